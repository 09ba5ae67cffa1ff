package series

import (
	"bytes"

	"github.com/ferula-io/ferula/internal/series/labelenc"
)

// SymbolRefs is an optional interface of a Set whose source numbers its labels, as a block's
// index does. Wires that send numbers in place of strings use it.
type SymbolRefs interface {
	// LabelRefs returns one number for each label (name and value) of the current series, in
	// the order of the labels, borrowed until Next. Within one set two labels have the same
	// number if and only if they are equal.
	LabelRefs() []uint64
}

// addedNumber is the number of the first label that an extendedSet adds; the second has the next number. The
// numbers of a source's own labels are smaller, so the numbers stay distinct.
const addedNumber = 1 << 63

// LabelRefs implements SymbolRefs. It returns nil if the underlying set has no symbol
// references.
func (w *extendedSet) LabelRefs() []uint64 {
	switch {
	case w.current == nil:
		return w.mergedNumbers()
	case len(w.current.numbers) == 0:
		return nil
	default:
		return w.current.numbers
	}
}

// mergedNumbers returns the numbers of the labels of set's current series and of the added
// labels, in the order of the label names. It returns nil if set has no numbers.
func (w *extendedSet) mergedNumbers() []uint64 {
	numbered, ok := w.set.(SymbolRefs)
	if !ok {
		return nil
	}
	own := numbered.LabelRefs()
	if own == nil {
		return nil
	}
	w.numbers = w.numbers[:0]
	lset, add, added := w.set.Labels(), w.add, uint64(addedNumber)
	for len(own) > 0 || len(add) > 0 {
		nameOwn, _, restOwn, _ := labelenc.Next(lset)
		nameAdd, _, restAdd, _ := labelenc.Next(add)
		if len(add) == 0 || len(own) > 0 && bytes.Compare(nameOwn, nameAdd) < 0 {
			w.numbers = append(w.numbers, own[0])
			own, lset = own[1:], restOwn
			continue
		}
		w.numbers = append(w.numbers, added)
		added, add = added+1, restAdd
	}
	return w.numbers
}
