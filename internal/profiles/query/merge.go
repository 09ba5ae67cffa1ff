package query

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/block"
	"github.com/ferula-io/ferula/internal/profiles/pprof"

	"github.com/ferula-io/ferula/internal/profiles/store"
)

// countedStacks reports for every stack whether it begins with the functions of site, root first.
func countedStacks(s *block.Symbols, site []string) []bool {
	// number of functions of site with which the stack begins; -1: it differs from site
	deep := make([]int32, len(s.Parents))
	counted := make([]bool, len(s.Parents))
	counted[0] = len(site) == 0
	for i := 1; i < len(s.Parents); i++ {
		parent := s.Parents[i]
		switch {
		case counted[parent]:
			counted[i] = true
		case deep[parent] >= 0 && s.FrameName(s.NodeFrame[i]) == site[deep[parent]]:
			deep[i] = deep[parent] + 1
			counted[i] = int(deep[i]) == len(site)
		default:
			deep[i] = -1
		}
	}
	return counted
}

// merge sums the samples of the selected rows of every source by stack, and passes the sums of each source to add. add
// must not keep the sums. add returns the number of bytes that the caller's result now has, and merge leases these
// bytes. The caller releases the lease after it has used the result. After an error the lease is nil.
func (e *Engine) merge(ctx context.Context, req *profiles.MergeRequest,
	add func(s *block.Symbols, sums []int64) (bytes int64, err error)) (lease *store.Lease, warnings []error, err error) {
	minNS, maxNS, err := span(req.StartMS, req.EndMS)
	if err != nil {
		return nil, nil, err
	}
	for what, n := range map[string]int{"profile": len(req.IDs), "span": len(req.Spans), "trace": len(req.Traces)} {
		if n > idsMax {
			return nil, nil, fmt.Errorf("%w: %d %s ids exceed the limit of %d", profiles.ErrLimit, n, what, idsMax)
		}
	}
	if req.MaxNodes < 0 {
		return nil, nil, fmt.Errorf("%w: max_nodes %d is negative", profiles.ErrBadRequest, req.MaxNodes)
	}
	ctx, view, done, err := e.view(ctx, req.Tenant, req.StartMS, req.EndMS, minNS, maxNS)
	if err != nil {
		return nil, nil, err
	}
	defer done()
	var held int64
	var scratch mergeScratch
	warnings, err = e.once(req.Tenant, view, func(p *pass) error { // an unreadable source adds nothing: see mergeSource
		return p.each(ctx, func(src block.Source) error {
			return mergeSource(ctx, view, src, req, minNS, maxNS, &scratch, func(s *block.Symbols, sums []int64) error {
				now, err := add(s, sums)
				if err == nil {
					held, err = view.Lease.Grow(held, now)
				}
				return err
			})
		})
	})
	if err != nil {
		return nil, nil, err
	}
	return view.Detach(), warnings, nil
}

// mergeScratch is memory that is used for one source after the other.
type mergeScratch struct {
	sums    []int64
	decoder block.PartDecoder
}

// mergeSource sums the samples of the selected rows of a source, and calls add for each part of the source. It first
// reads all rows and compares the checksums of all symbols, so that a source that cannot be read adds nothing. Only
// symbols that are wrong despite a correct checksum can cause an error after the first call of add.
func mergeSource(ctx context.Context, view *store.View, src block.Source, req *profiles.MergeRequest, minNS,
	maxNS int64, scratch *mergeScratch, add func(s *block.Symbols, sums []int64) error) error {
	series, t, err := seriesOf(src, req.Type)
	if err != nil {
		return err
	}
	wanted := make([]int32, len(series))
	any := false
	for i := range series {
		wanted[i] = -1
		if series[i].Type == t && matches(series[i].Labels, req.Matchers) {
			wanted[i], any = 0, true
		}
	}
	if !any {
		return nil
	}
	if len(req.Spans)+len(req.Traces) > 0 {
		return mergeSpans(ctx, view, src, req, wanted, minNS, maxNS, add)
	}
	rows, err := rowsOf(ctx, src, req, wanted, minNS, maxNS)
	if err != nil || len(rows) == 0 {
		return err
	}
	parts, done, err := partsOf(view, src, rows, scratch)
	defer done()
	if err != nil {
		return err
	}
	at := 0
	err = src.Samples(ctx, rows, func(row int, stacks []uint32, values []int64) error {
		for row >= parts.ranges[at].end {
			at++
		}
		return parts.ranges[at].add(row, stacks, values)
	})
	if err != nil {
		return err
	}
	if err := parts.check(src); err != nil {
		return err
	}
	for _, p := range parts.sums {
		if err := p.addTo(view, src, req.CallSite, parts.many, scratch, add); err != nil {
			return err
		}
	}
	return nil
}

// rowParts are the parts of a source to which the selected rows belong. A part has the symbols of one or more ranges of
// rows.
type rowParts struct {
	sums   []*partSums // each part once
	ranges []rowRange  // ascending; several ranges may have the same part
	many   bool        // the symbols of all these parts are too large to be cached
}

type rowRange struct {
	end int // after the last row of the range
	*partSums
}

// partSums are the samples of rows of one part, summed by stack.
type partSums struct {
	block.Part
	number  int            // of the part in its source
	nodes   int            // number of its stacks, with the root
	symbols *block.Symbols // nil: they are not decoded yet
	sums    []int64
}

// sized is a source that knows the sizes of its parts before their symbols are decoded.
type sized interface {
	PartNodes(i int) (nodes int, ok bool)
	PartBytes(i int) int64
}

// newPart returns part number number of a source, without sums, and the size of its symbols in bytes. If the number
// of stacks is not known before the symbols are decoded, newPart decodes the symbols. It then returns the size 0,
// and the caller must call done when the symbols are no longer used.
func newPart(view *store.View, src block.Source, known block.Part,
	number int) (p *partSums, bytes int64, done func(), err error) {
	p = &partSums{Part: known, number: number}
	if b, ok := src.(sized); ok {
		if n, ok := b.PartNodes(number); ok {
			p.nodes = n + 1
			return p, b.PartBytes(number), nil, nil
		}
	}
	if p.symbols, done, err = view.PartSymbols(src, number); err != nil {
		return nil, 0, nil, err
	}
	p.nodes = len(p.symbols.Parents)
	return p, 0, done, nil
}

// check compares the checksums of the symbols of all parts. If there is only one part, decoding its symbols compares
// the checksum early enough.
func (p *rowParts) check(src block.Source) error {
	b, ok := src.(interface{ CheckPart(i int) error })
	if !ok || len(p.sums) == 1 {
		return nil
	}
	for _, part := range p.sums {
		if err := b.CheckPart(part.number); err != nil {
			return err
		}
	}
	return nil
}

// addTo calls add with the symbols of the part and its sums.
func (p *partSums) addTo(view *store.View, src block.Source, site []string, many bool, scratch *mergeScratch,
	add func(s *block.Symbols, sums []int64) error) (err error) {
	symbols := p.symbols
	if symbols == nil {
		var done func()
		if many {
			symbols, done, err = view.DecodePart(src, p.number, &scratch.decoder)
		} else {
			symbols, done, err = view.PartSymbols(src, p.number)
		}
		if err != nil {
			return err
		}
		defer done()
	}
	cutCallSite(symbols, site, p.sums)
	return add(symbols, p.sums)
}

// partsOf returns the parts of rows, which ascend, with sums of 0. done must be called, also after an error.
func partsOf(view *store.View, src block.Source, rows []int,
	scratch *mergeScratch) (parts rowParts, done func(), err error) {
	var each []func()
	done = func() {
		for _, f := range each {
			f()
		}
	}
	nodes, bytes := 0, int64(0)
	known := src.Parts()
	of := make([]*partSums, len(known))
	for len(rows) > 0 {
		part, end := src.PartOf(rows[0])
		n, _ := slices.BinarySearch(rows, end)
		if n == 0 || part >= len(known) {
			return rowParts{}, done, fmt.Errorf("%w: row %d has no symbols", profiles.ErrCorrupt, rows[0])
		}
		if of[part] == nil {
			p, size, release, err := newPart(view, src, known[part], part)
			if err != nil {
				return rowParts{}, done, err
			}
			if release != nil {
				each = append(each, release)
			}
			of[part], nodes, bytes = p, nodes+p.nodes, bytes+size
			parts.sums = append(parts.sums, p)
		}
		parts.ranges = append(parts.ranges, rowRange{end, of[part]})
		rows = rows[n:]
	}
	scratch.sums = block.Zeros(scratch.sums, nodes)
	left := scratch.sums
	for _, p := range parts.sums {
		p.sums, left = left[:p.nodes:p.nodes], left[p.nodes:]
	}
	parts.many = view.Many(bytes)
	return parts, done, nil
}

// add adds the samples of a row. stacks are numbers of stacks in the source.
func (p *partSums) add(row int, stacks []uint32, values []int64) error {
	for i, stack := range stacks {
		n, ok := p.Local(stack)
		if !ok || int(n) >= len(p.sums) {
			return fmt.Errorf("%w: row %d has stack %d, which is not of dataset %q", profiles.ErrCorrupt, row, stack, p.Dataset)
		}
		p.sums[n] = block.AddValues(p.sums[n], values[i])
	}
	return nil
}

// cutCallSite sets the sums of stacks that do not begin with the functions of site to 0. An empty site changes nothing.
func cutCallSite(symbols *block.Symbols, site []string, sums []int64) {
	if len(site) == 0 {
		return
	}
	for i, counted := range countedStacks(symbols, site) {
		if !counted {
			sums[i] = 0
		}
	}
}

// rowsOf returns the rows of the wanted series in the range, ascending. If the request has profile IDs, it returns
// only the rows of these profiles. wanted is -1 for series that are not wanted.
func rowsOf(ctx context.Context, src block.Source, req *profiles.MergeRequest, wanted []int32, minNS,
	maxNS int64) ([]int, error) {
	if len(req.IDs) == 0 {
		return store.RowsOf(ctx, src, wanted, minNS, maxNS)
	}
	var rows []int
	for _, id := range req.IDs {
		var inner error
		err := src.Find(id, func(row int) {
			c, err := src.Columns(row)
			if err != nil {
				inner = err
				return
			}
			if t := c.TimeAt(row - c.First); t >= minNS && t <= maxNS && wanted[c.SeriesAt(row-c.First)] >= 0 {
				rows = append(rows, row)
			}
		})
		if err == nil {
			err = inner
		}
		if err != nil {
			return nil, err
		}
	}
	slices.Sort(rows)
	return slices.Compact(rows), nil
}

// MergeFlame sums profiles and returns a flame graph, which the caller owns.
func (e *Engine) MergeFlame(ctx context.Context, req *profiles.MergeRequest) (*profiles.FlameGraph, error) {
	t := newTree()
	lease, warnings, err := e.merge(ctx, req, func(s *block.Symbols, sums []int64) (int64, error) {
		t.add(s, sums)
		if t.n > nodesMax {
			return 0, fmt.Errorf("%w: the flame graph has more than %d nodes", profiles.ErrLimit, nodesMax)
		}
		return t.bytes(), nil
	})
	if err != nil {
		return nil, err
	}
	defer lease.Release()
	flame := t.flame(req.MaxNodes)
	flame.Warnings = warnings
	return flame, nil
}

// MergePprof sums profiles and returns an uncompressed pprof profile.proto. warnings are the
// errors of sources that could not be read.
func (e *Engine) MergePprof(ctx context.Context, req *profiles.MergeRequest) (raw []byte, warnings []error, err error) {
	symbols := block.NewBuilder()
	var sums []int64
	lease, warnings, err := e.merge(ctx, req, func(s *block.Symbols, from []int64) (int64, error) {
		nodes := symbols.AddUsed(s, from)
		if len(symbols.Parents) > nodesMax {
			return 0, fmt.Errorf("%w: the merged profile has more than %d stacks", profiles.ErrLimit, nodesMax)
		}
		sums = append(sums, make([]int64, len(symbols.Parents)-len(sums))...)
		for i, v := range from {
			if v != 0 {
				sums[nodes[i]] = block.AddValues(sums[nodes[i]], v)
			}
		}
		return int64(symbols.Bytes()) + 8*int64(cap(sums)), nil
	})
	if err != nil {
		return nil, nil, err
	}
	defer lease.Release()
	return encodePprof(&symbols.Symbols, sums, req), warnings, nil
}

// encodePprof returns a pprof with one sample for each stack whose sum is not 0, or with cut stacks if the request
// has a PGO.
func encodePprof(s *block.Symbols, sums []int64, req *profiles.MergeRequest) []byte {
	e := pprof.NewEncoder()
	e.SampleType(req.Type.SampleType, req.Type.SampleUnit)
	e.Period(req.Type.PeriodType, req.Type.PeriodUnit, 0)
	start, end := max(0, min(req.StartMS, farthestMS)), max(0, min(req.EndMS, farthestMS))
	e.Times(start*1e6, (end-start)*1e6)
	functions := make([]uint64, len(s.Functions))
	for i, f := range s.Functions {
		functions[i] = e.Function(s.Strings[f.Name], s.Strings[f.System], s.Strings[f.File], f.StartLine)
	}
	locations := make([]uint64, len(s.Frames))
	for i, f := range s.Frames {
		locations[i] = e.Location(functions[f.Function], int64(f.Line))
	}
	if req.PGO != nil {
		encodeCut(e, s, sums, locations, functions, req.PGO)
		return e.Append(nil)
	}
	var stack []uint64
	for i, v := range sums {
		if v == 0 {
			continue
		}
		stack = stack[:0]
		for node := uint32(i); node != 0; node = s.Parents[node] {
			stack = append(stack, locations[s.NodeFrame[node]])
		}
		e.Sample(stack, v)
	}
	return e.Append(nil)
}

// encodeCut adds the samples to a pprof, with their stacks cut for Go's compiler. Samples that have the same stack
// after the cut become one sample, in the order of their first occurrence.
func encodeCut(e *pprof.Encoder, s *block.Symbols, sums []int64, locations, functions []uint64, cut *profiles.PGO) {
	type sample struct {
		stack []uint64
		value int64
	}
	var samples []sample
	byStack, leaves := map[string]int{}, map[uint32]uint64{}
	var stack []uint64
	var key []byte
	for i, v := range sums {
		if v == 0 {
			continue
		}
		stack, key = stack[:0], key[:0]
		for node := uint32(i); node != 0 && (cut.KeepFrames == 0 || len(stack) < cut.KeepFrames); node = s.Parents[node] {
			location := locations[s.NodeFrame[node]]
			if cut.AggregateCallees && node == uint32(i) {
				function := s.Frames[s.NodeFrame[node]].Function
				if leaves[function] == 0 {
					leaves[function] = e.Location(functions[function], 0)
				}
				location = leaves[function]
			}
			stack, key = append(stack, location), binary.AppendUvarint(key, location)
		}
		n, ok := byStack[string(key)]
		if !ok {
			n = len(samples)
			byStack[string(key)] = n
			samples = append(samples, sample{stack: slices.Clone(stack)})
		}
		samples[n].value = block.AddValues(samples[n].value, v)
	}
	for i := range samples {
		e.Sample(samples[i].stack, samples[i].value)
	}
}
