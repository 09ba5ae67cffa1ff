package series

// Numbered is a Set whose source knows labels by number, as a block's index does:
// the optional upgrade of a Set, for wires that send numbers.
type Numbered interface {
	// LabelNumbers has a number for each label of the current series, in their
	// order, borrowed until Next. Equal numbers of one set are equal labels, and
	// equal labels have equal numbers.
	LabelNumbers() []uint64
}
