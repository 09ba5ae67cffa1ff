package profile

import (
	"context"
	"maps"
	"slices"

	"github.com/ferula-io/ferula/internal/store/profile/block"
)

// headPart is the stacks of one dataset of a head.
type headPart struct {
	stacks  []uint32 // of the head, ascending
	numbers []uint32 // their numbers in the block
}

// fill sets the numbers of the part's stacks in nodes, a table by stack of the head. It does
// not change the other elements of the table.
func (p *headPart) fill(nodes []uint32) {
	for i, stack := range p.stacks {
		nodes[stack] = p.numbers[i]
	}
}

// number returns the number in the block of a stack of the head; false if the part does not
// have it.
func (p *headPart) number(stack uint32) (uint32, bool) {
	if stack == 0 {
		return 0, true
	}
	at, ok := slices.BinarySearch(p.stacks, stack)
	if !ok {
		return 0, false
	}
	return p.numbers[at], true
}

// headParts are the symbols of a head, divided for a block.
type headParts struct {
	symbols []block.DatasetSymbols
	of      map[string]*headPart // by dataset
}

// divide divides the symbols of a head by the datasets of its rows, so that a query of one
// service reads only the symbols of that service.
func divide(ctx context.Context, v *headView, rows []headRow) (*headParts, error) {
	byDataset := map[string][]int{}
	for i := range rows {
		byDataset[rows[i].dataset] = append(byDataset[rows[i].dataset], rows[i].row)
	}
	p, divided := block.NewPartitioner(&v.symbols), &headParts{of: make(map[string]*headPart, len(byDataset))}
	first := uint32(1)
	for _, dataset := range slices.Sorted(maps.Keys(byDataset)) {
		p.Begin()
		err := v.Samples(ctx, byDataset[dataset], func(_ int, stacks []uint32, _ []int64) error {
			for _, stack := range stacks {
				p.Use(stack)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		part := &headPart{}
		var symbols *block.Symbols
		symbols, part.stacks, part.numbers = p.Part()
		for i := range part.numbers {
			part.numbers[i] += first - 1
		}
		first += uint32(len(symbols.Parents) - 1)
		divided.of[dataset] = part
		divided.symbols = append(divided.symbols, block.DatasetSymbols{Dataset: dataset, Symbols: symbols})
	}
	return divided, nil
}

// symbolMerge merges the symbols of blocks, separately for each dataset. The symbols of
// blocks of an earlier version are not divided by dataset. If one of the blocks is such a
// block, the merged symbols are not divided either.
type symbolMerge struct {
	whole    bool
	builders map[string]*block.Builder
	moved    [][]movedPart // by block
}

// movedPart is a part of a block whose stacks are in a builder.
type movedPart struct {
	dataset string
	numbers []uint32 // by stack of the part: its number in the builder
}

func newSymbolMerge(run []*heldBlock) *symbolMerge {
	whole := func(b *heldBlock) bool { return b.Parts()[0].Dataset == "" }
	return &symbolMerge{whole: slices.ContainsFunc(run, whole), builders: map[string]*block.Builder{}, moved: make([][]movedPart, len(run))}
}

// add adds the symbols of b, the block with this number in the run.
func (m *symbolMerge) add(number int, b *heldBlock) error {
	for i, part := range b.Parts() {
		symbols, err := b.PartSymbols(i)
		if err != nil {
			return err
		}
		dataset := part.Dataset
		if m.whole {
			dataset = ""
		}
		if m.builders[dataset] == nil {
			m.builders[dataset] = block.NewBuilder()
		}
		m.moved[number] = append(m.moved[number], movedPart{dataset, m.builders[dataset].Add(symbols)})
	}
	return nil
}

// finish returns the merged symbols, and for each block the new numbers of its stacks.
func (m *symbolMerge) finish() (parts []block.DatasetSymbols, nodes [][]uint32) {
	first, arranged := map[string]uint32{}, map[string][]uint32{}
	next := uint32(1)
	for _, dataset := range slices.Sorted(maps.Keys(m.builders)) {
		symbols, numbers := m.builders[dataset].Arrange()
		first[dataset], arranged[dataset] = next, numbers
		next += uint32(len(symbols.Parents) - 1)
		parts = append(parts, block.DatasetSymbols{Dataset: dataset, Symbols: symbols})
	}
	for _, moved := range m.moved {
		of := []uint32{0}
		for _, part := range moved {
			for _, n := range part.numbers[1:] { // stacks of a block are numbered part by part
				of = append(of, first[part.dataset]+arranged[part.dataset][n]-1)
			}
		}
		nodes = append(nodes, of)
	}
	return parts, nodes
}
