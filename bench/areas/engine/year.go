package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/ferula-io/ferula/bench/area"
	"github.com/ferula-io/ferula/bench/blocks"
	"github.com/ferula-io/ferula/bench/proc"
)

const (
	yearBlockMS = 486 * hourMS // what Prometheus compacts the blocks of a year to, so that no server compacts these again
	yearStepMS  = 365 * 24 * hourMS / 1000

	sideBytes  = "size: files with summaries of chunks"
	blockBytes = "size: blocks of a tenth of a year"

	madeTimeout = 10 * time.Minute
)

// yearSpec is a tenth of a year of counters.
func yearSpec() blocks.Spec {
	return blocks.Spec{
		Metric: "bench_year_total", Values: blocks.Counter, Series: 1000, Samples: 100 * yearStepMS / 15_000, StepMS: 15_000,
		StartMS: startMS - startMS%yearBlockMS, Seed: 5, BlockMS: yearBlockMS,
	}
}

// yearQuery returns some steps of the thousand that a query over a year would have.
func yearQuery(part string, steps int) query {
	return query{area.Query{
		What: "sum by (rate[step]), " + part + " of a year", Expr: fmt.Sprintf("sum by (job) (rate(bench_year_total[%ds]))", yearStepMS/1000),
		StartMS: yearSpec().StartMS + yearStepMS, StepMS: yearStepMS, Points: steps, Series: 1,
	}, "", 1}
}

func tenth() query     { return yearQuery("a tenth", 100) }
func twentieth() query { return yearQuery("a twentieth", 50) }

// year measures queries over long ranges. ferula makes its files with summaries in the background before it is measured.
func year(ctx context.Context, b *area.Bench, sides []*area.Side) error {
	err := b.With(ctx, b.TSDB(ctx, area.TSDB{Data: yearSpec()}), func() error {
		ours := sides[len(sides)-1]
		if err := summarized(ctx, b, ours); err != nil {
			return err
		}
		return measure(ctx, b, sides, blocks.Spec{}, []query{tenth(), twentieth()})
	}, sides...)
	if err != nil {
		return err
	}
	return b.InTurn(tenth().What, sides, func(round int, s *area.Side) error {
		_, err := b.Growth(ctx, round, s, b.TSDB(ctx, area.TSDB{Keep: true}), tenth().What, func() error {
			_, err := s.Get(ctx, tenth().request(), io.Discard)
			return err
		})
		return err
	})
}

var errUnmade = errors.New("blocks without a file of summaries")

// untilSummarized waits until each block of ferula has its file of summaries. It returns the blocks' meta.json.
func untilSummarized(ctx context.Context, b *area.Bench, s *area.Side) (metas []string, err error) {
	if b.Programs.Null {
		return nil, nil
	}
	dir := s.TSDBDir()
	err = proc.Until(ctx, madeTimeout, time.Second, "summaries of chunks", func() error {
		var failed error
		metas, failed = filepath.Glob(filepath.Join(dir, "*", "meta.json")) // each time: blocks are compacted
		for _, meta := range metas {
			if _, err := os.Stat(filepath.Join(dir, "summaries", filepath.Base(filepath.Dir(meta)))); err != nil {
				return errors.Join(failed, errUnmade, err)
			}
		}
		return failed
	})
	return metas, err
}

// summarized waits until ferula has its files of summaries, and records their size and that of the blocks.
func summarized(ctx context.Context, b *area.Bench, s *area.Side) error {
	metas, err := untilSummarized(ctx, b, s)
	if err != nil || metas == nil {
		return err
	}
	side, err := area.BytesBelow(filepath.Join(s.TSDBDir(), "summaries"))
	b.Add(1, s.Name, sideBytes, area.Bytes, side)
	all := 0.0
	for _, meta := range metas {
		size, e := area.BytesBelow(filepath.Dir(meta))
		all, err = all+size, errors.Join(err, e)
	}
	b.Add(1, s.Name, blockBytes, area.Bytes, all)
	return err
}

// concludeYear computes the measures of long ranges.
func concludeYear(b *area.Bench) {
	b.Ratio("engine/year-sum-rate", "CPU: "+tenth().What)
	b.Own("engine/year-anon-mib", area.MiB, area.GrowthOf+tenth().What)
	b.Measure("engine/year-disk", area.Over(b.Median(ferula, sideBytes), b.Median(ferula, blockBytes)), sideBytes, blockBytes)
	over := func(side string) float64 {
		return area.Over(b.Median(side, "CPU: "+tenth().What), b.Median(side, "CPU: "+twentieth().What))
	}
	b.Note(fmt.Sprintf("The year has 1,000 counters at 15 s; a tenth of it is measured, with a window of 8.76 h at each of 100 steps. "+
		"A tenth costs %.2f times a twentieth in Prometheus, %.2f times in ferula (linear: 2), which has made its files "+
		"with summaries of chunks in the background before.", over(prometheus), over(ferula)))
}
