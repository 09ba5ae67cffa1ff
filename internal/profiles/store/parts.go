package store

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/ferula-io/ferula/internal/profiles/block"
)

// headPart has the stacks of the samples of one dataset of a head.
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

// number converts the number that a stack has in the head to its number in the block; false if
// the part does not have the stack.
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
	symbols block.PartsEncoder
	of      map[string]*headPart // by dataset
	nodes   []uint32             // a table for headPart.fill
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
		symbols, stacks, numbers := p.Part()
		part := &headPart{slices.Clone(stacks), slices.Clone(numbers)}
		for i := range part.numbers {
			part.numbers[i] += first - 1
		}
		first += uint32(len(symbols.Parents) - 1)
		divided.of[dataset] = part
		if err := divided.symbols.Add(dataset, symbols); err != nil {
			return nil, err
		}
	}
	divided.nodes = p.Table()
	return divided, nil
}

// mergeSymbols merges the symbols of blocks, separately for each dataset. It merges one dataset after the other, so
// that the tables of only one dataset are in memory at a time. nodes has for each block the new numbers of its
// stacks. If the symbols of one of the blocks are not divided by dataset, the merged symbols are not
// divided either.
func mergeSymbols(ctx context.Context, run []*block.Reader) (parts *block.PartsEncoder, nodes [][]uint32, err error) {
	parts, nodes = &block.PartsEncoder{}, make([][]uint32, len(run))
	whole := slices.ContainsFunc(run, func(b *block.Reader) bool { return b.Parts()[0].Dataset == "" })
	found := map[string][]partOfBlock{} // by dataset, in the order of blocks
	for number, b := range run {
		stacks := 1
		for i, part := range b.Parts() {
			dataset := part.Dataset
			if whole {
				dataset = ""
			}
			found[dataset] = append(found[dataset], partOfBlock{number, i})
			if n, ok := b.PartNodes(i); ok {
				stacks += n
			}
		}
		nodes[number] = make([]uint32, 1, stacks)
	}
	var decoder block.PartDecoder
	var arranger block.Arranger
	builder := block.NewBuilder()
	next := uint32(1)
	// Parts are sorted by dataset, and the stacks of a part follow the previous part. So each part of a block
	// appends the numbers of its stacks to the numbers of the previous parts.
	for _, dataset := range slices.Sorted(maps.Keys(found)) {
		if err := ctx.Err(); err != nil {
			return nil, nil, err
		}
		builder.Reset()
		from := make([]int, len(run)) // by block: the first stack of this dataset
		for i := range nodes {
			from[i] = len(nodes[i])
		}
		for _, p := range found[dataset] {
			symbols, err := decoder.Decode(run[p.block], p.part)
			if err != nil {
				return nil, nil, fmt.Errorf("%s: %w", run[p.block].Name(), err)
			}
			nodes[p.block] = builder.AppendAdded(nodes[p.block], symbols)
		}
		symbols, arranged := arranger.Arrange(&builder.Symbols)
		for i, numbers := range nodes {
			for k := from[i]; k < len(numbers); k++ {
				numbers[k] = next + arranged[numbers[k]] - 1
			}
		}
		next += uint32(len(symbols.Parents) - 1)
		if err := parts.Add(dataset, symbols); err != nil {
			return nil, nil, err
		}
	}
	return parts, nodes, nil
}

// partOfBlock is a part of one of the blocks that are merged.
type partOfBlock struct{ block, part int }
