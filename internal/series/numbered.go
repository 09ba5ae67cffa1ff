package series

import (
	"bytes"

	"github.com/ferula-io/ferula/internal/codec/labelenc"
)

// SymbolRefs is an optional interface of a Set whose source numbers its labels, as a block's
// index does. Wires that send numbers in place of strings use it.
type SymbolRefs interface {
	// LabelRefs returns a number for each label of the current series, in the order
	// of the labels, borrowed until Next. Within one set, labels are equal if and only
	// if their numbers are.
	LabelRefs() []uint64
}

// addedNumber is the number of the first label that an extendedSet adds. Numbers of a
// source's own labels are smaller.
const addedNumber = 1 << 63

// LabelRefs implements SymbolRefs. It returns nil if the underlying set has no numbers.
func (w *extendedSet) LabelRefs() []uint64 {
	if w.current == nil {
		return w.ownNumbers()
	}
	if len(w.current.numbers) == 0 {
		return nil
	}
	return w.current.numbers
}

// ownNumbers returns the numbers of the current series' labels and of the added labels,
// in the order of the label names.
func (w *extendedSet) ownNumbers() []uint64 {
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
