package series

import (
	"bytes"

	"github.com/ferula-io/ferula/internal/codec/labelenc"
)

// Numbered is a Set whose source knows labels by number, as a block's index does:
// the optional upgrade of a Set, for wires that send numbers.
type SymbolRefs interface {
	// LabelNumbers has a number for each label of the current series, in their
	// order, borrowed until Next. Equal numbers of one set are equal labels, and
	// equal labels have equal numbers.
	LabelNumbers() []uint64
}

// addedNumber is the number of the first label that a widened set adds; no source
// has so many of its own.
const addedNumber = 1 << 63

// LabelNumbers implements Numbered; nil if the set below has none.
func (w *widened) LabelNumbers() []uint64 {
	if w.current == nil {
		return w.ownNumbers()
	}
	if len(w.current.numbers) == 0 {
		return nil
	}
	return w.current.numbers
}

// ownNumbers puts the numbers of the labels of set's current series and of those
// that are added in the order of their names.
func (w *widened) ownNumbers() []uint64 {
	numbered, ok := w.set.(SymbolRefs)
	if !ok {
		return nil
	}
	own := numbered.LabelNumbers()
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
