package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/ferula-io/ferula/bench/area"
	"github.com/ferula-io/ferula/bench/blocks"
	"github.com/ferula-io/ferula/bench/proc"
)

const (
	yearWithout = "bytes fetched for "
	yearWith    = "with summaries, bytes fetched for "

	dayMS = 24 * 3600_000
)

// yearSpec is four weeks of counters, as a compactor leaves them.
func yearSpec() blocks.Spec {
	start := int64(1_767_225_600_000)
	return blocks.Spec{Metric: "bench_year_total", Values: blocks.Counter, Series: 1000, Samples: 28 * dayMS / 15_000, StepMS: 15_000,
		StartMS: start - start%(14*dayMS), Seed: 5, Compacted: 14 * 12}
}

// yearQueries are those of Grafana for a long range: with windows of the step, and with $__rate_interval.
func yearQueries() (all []area.Query) {
	const step = dayMS / 4
	for _, window := range []string{"6h", "6h15s"} {
		all = append(all, area.Query{What: "windows of " + window, Expr: "sum by (job) (rate(bench_year_total[" + window + "]))",
			StartMS: yearSpec().StartMS + step, StepMS: step, Points: 28 * 4, Series: 1})
	}
	return all
}

// yearRatio returns the worst ratio of the bytes with summaries to those without, and what it is made of.
func yearRatio(b *area.Bench) (worst float64, of []string) {
	for _, q := range yearQueries() {
		worst = area.Worst(worst, area.Over(b.Median("ferula", yearWith+q.What), b.Median("ferula", yearWithout+q.What)))
		of = append(of, yearWith+q.What, yearWithout+q.What)
	}
	return worst, of
}

var errDiffers = errors.New("with summaries the answer is another")

// year measures what a store fetches for a query of a querier over long ranges, with and without summaries of chunks.
func year(ctx context.Context, b *area.Bench, ours *area.Side) error {
	if b.Programs.Null {
		return nil
	}
	bucket := filepath.Join(b.Dir, "year")
	defer os.RemoveAll(bucket) // it consists of links
	return b.EachRound("long range", func(round int) error {
		if err := makeBucket(ctx, b.Cache, yearSpec(), bucket, 1); err != nil {
			return err
		}
		var want [][]byte
		for _, q := range yearQueries() {
			answer, err := yearBytes(ctx, b, round, ours, bucket, q, yearWithout)
			if err != nil {
				return err
			}
			want = append(want, answer)
		}
		make := exec.CommandContext(ctx, ours.Program.Path, "summarize",
			fmt.Sprintf("--objstore.config={type: FILESYSTEM, config: {directory: %s}}", bucket))
		if out, err := make.CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		for i, q := range yearQueries() {
			got, err := yearBytes(ctx, b, round, ours, bucket, q, yearWith)
			if err == nil && !bytes.Equal(got, want[i]) {
				err = fmt.Errorf("%s: %w", q.Expr, errDiffers)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// yearBytes returns the answer of a new store and a querier, and records what the store fetched.
func yearBytes(ctx context.Context, b *area.Bench, round int, ours *area.Side, bucket string, q area.Query, what string) (answer []byte, err error) {
	if err := os.RemoveAll(ours.Dir); err != nil {
		return nil, err
	}
	querier := b.Side("query", ours.Program, "query")
	query := area.AtGRPC(func(s *area.Side) proc.Spec { return s.Program.Query(s.Log(), s.GRPC, []string{ours.GRPC}) })
	err = b.With(ctx, over(bucket), func() error {
		return b.With(ctx, query, func() error {
			var body bytes.Buffer
			if _, err := querier.Get(ctx, q.Request(), &body); err != nil {
				return err
			}
			answer = body.Bytes()
			_, bytes, err := fetched(ctx, ours)
			if err != nil {
				return err
			}
			b.Add(round, ours.Name, what+q.What, area.Bytes, bytes)
			m, err := q.Result(ctx, querier.Server)
			if err == nil {
				err = q.Complete(m)
			}
			return err
		}, querier)
	}, ours)
	return answer, err
}
