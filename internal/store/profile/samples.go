package profile

import (
	"context"

	"github.com/ferula-io/ferula/internal/store/profile/block"
)

// SourceSamples scans a source by its samples: a row's value is the sum of those
// whose stack is counted, and a row without any does not count. counted is by stack.
func (s *Scan) SourceSamples(ctx context.Context, src block.Source, groupOf []int32, groups int, counted []bool) error {
	s.sampled, s.single = true, append(s.single, false)
	number := s.begin(src, groupOf, groups)
	rows, err := RowsOf(ctx, src, groupOf, s.Buckets.FromNS+1, s.Buckets.FromNS+int64(s.Buckets.N)*s.Buckets.StepNS)
	if err != nil {
		return err
	}
	s.beginRuns(groups)
	err = src.Samples(ctx, rows, func(row int, stacks []uint32, values []int64) error {
		var value int64
		any := false
		for i, stack := range stacks {
			if counted[stack] {
				value, any = block.AddValues(value, values[i]), true
			}
		}
		if !any {
			return nil
		}
		c, err := src.Columns(row)
		if err != nil {
			return err
		}
		i := row - c.First
		group, t := groupOf[c.SeriesAt(i)], c.TimeAt(i)
		cell := s.at(group, s.Buckets.bucket(t))
		if err := s.crowded(); err != nil {
			return err
		}
		return s.add(src, int(group), run{ord: c.OrdAt(i), used: true, source: number, row: uint32(row), value: value, time: t, cell: cell})
	})
	if err != nil {
		return err
	}
	return s.endRuns()
}

// RowsOf are the rows, ascending, of the series that have a group and of times
// between two, inclusive.
func RowsOf(ctx context.Context, src block.Source, groupOf []int32, minNS, maxNS int64) ([]int, error) {
	spans, err := src.Spans()
	if err != nil {
		return nil, err
	}
	var rows []int
	for i := range spans {
		span := &spans[i]
		if !wanted(span, groupOf) {
			continue
		}
		for row := span.Lo; row < span.Hi; {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			c, err := src.Columns(row)
			if err != nil {
				return nil, err
			}
			end := min(span.Hi, c.First+c.N)
			if end <= row {
				return nil, noColumn(src, row)
			}
			for ; row < end; row++ {
				if t := c.TimeAt(row - c.First); t >= minNS && t <= maxNS && groupOf[c.SeriesAt(row-c.First)] >= 0 {
					rows = append(rows, row)
				}
			}
		}
	}
	return rows, nil
}
