package store

import (
	"context"

	"github.com/ferula-io/ferula/internal/profiles/block"
)

// SourceSamples scans a source by its samples. counted reports for each stack whether its samples
// count. The value of a row is the sum of its samples that count. Rows without such samples are
// skipped.
func (s *Scan) SourceSamples(ctx context.Context, src block.Source, groupOf []int32, groups int, counted []bool) error {
	s.sampled, s.singleRow = true, append(s.singleRow, false)
	number := s.begin(src, groupOf, groups)
	rows, err := RowsOf(ctx, src, groupOf, s.Steps.FromNS+1, s.Steps.FromNS+int64(s.Steps.Count)*s.Steps.StepNS)
	if err != nil {
		return err
	}
	s.pending = block.Zeros(s.pending, groups)
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
		acc := s.accumulator(group, s.Steps.Index(t))
		if err := s.limitError(); err != nil {
			return err
		}
		return s.add(src, int(group), pendingProfile{profile: c.ProfileAt(i), used: true, source: number, row: uint32(row),
			value: value, time: t, accumulator: acc})
	})
	if err != nil {
		return err
	}
	return s.offerPending()
}

// RowsOf returns the rows from minNS to maxNS, inclusive, whose series is in a group, in
// ascending order.
func RowsOf(ctx context.Context, src block.Source, groupOf []int32, minNS, maxNS int64) (rows []int, err error) {
	err = walk(ctx, src, groupOf, func(_ *block.Span, c block.Columns, lo, hi int) error {
		for i := lo; i < hi; i++ {
			if t := c.TimeAt(i); t >= minNS && t <= maxNS && groupOf[c.SeriesAt(i)] >= 0 {
				rows = append(rows, c.First+i)
			}
		}
		return nil
	})
	return rows, err
}
