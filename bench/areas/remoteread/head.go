package remoteread

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/prometheus/prometheus/prompb"

	"github.com/ferula-io/ferula/bench/area"
	"github.com/ferula-io/ferula/bench/blocks"
	"github.com/ferula-io/ferula/bench/peer"
	"github.com/ferula-io/ferula/bench/proc"
	"github.com/ferula-io/ferula/bench/push"
)

// recent is pushed to both sides by remote write. Its range is less than 3 h, so it stays in their heads.
var recent = blocks.Spec{
	Metric: "bench_metric", Values: blocks.Floats15, Series: series, Samples: 135 * 60_000 / stepMS,
	StepMS: stepMS, StartMS: blocks.QuietStartMS, Seed: 4,
}

// The reads cover the last 2 h of the head. Their start cuts chunks.
func headChunks() read  { return ofHead(chunks) }
func headSamples() read { return ofHead(samples) }

func ofHead(form prompb.ReadRequest_ResponseType) read {
	return of(recent, "the last 2 h, in the head", form, recent.EndMS()-2*hourMS, recent.EndMS()-1)
}

// head compares and measures servers whose samples are in the head.
func (b *bench) head(ctx context.Context) error {
	if err := b.headAlive(ctx); err != nil {
		return err
	}
	for round := 1; round <= b.env.Rounds; round++ {
		for _, r := range []read{headChunks(), headSamples()} {
			for i := range b.sides {
				if err := b.headFresh(ctx, round, &b.sides[i], r); err != nil {
					return err
				}
			}
		}
		b.env.Logf("round %d of %d: memory, head", round, b.env.Rounds)
	}
	return nil
}

// headAlive fills both sides, compares them and measures CPU.
func (b *bench) headAlive(ctx context.Context) (err error) {
	for i := range b.sides {
		s := &b.sides[i]
		if err := os.RemoveAll(s.dir); err != nil {
			return err
		}
		if err := b.serveHead(ctx, s); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, s.stop()) }()
		if err := push.Samples(ctx, s.server.URL(), recent); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		b.env.Logf("%s: %d samples pushed", s.name, recent.Series*recent.Samples)
	}
	for i := range b.sides {
		if err := push.WaitMapped(ctx, b.sides[i].server, recent); err != nil {
			return fmt.Errorf("%s: %w", b.sides[i].name, err)
		}
	}
	reads := []read{headChunks(), headSamples()}
	if err := b.compare(ctx, recent, reads); err != nil {
		return err
	}
	for round := 1; round <= b.env.Rounds; round++ {
		for _, r := range reads {
			for i := range b.sides {
				if err := b.measure(ctx, round, &b.sides[i], r); err != nil {
					return err
				}
			}
		}
		b.env.Logf("round %d of %d: head", round, b.env.Rounds)
	}
	return nil
}

// serveHead starts a side on its directory, which has no blocks.
func (b *bench) serveHead(ctx context.Context, s *side) (err error) {
	data, config := filepath.Join(s.dir, "data"), filepath.Join(s.dir, "prometheus.yml")
	if err := errors.Join(os.MkdirAll(data, 0o755), os.WriteFile(config, []byte("scrape_configs: []\n"), 0o644)); err != nil {
		return err
	}
	s.server, err = proc.Start(ctx, s.program.Serve(peer.TSDB{
		Dir: data, Config: config, Log: filepath.Join(s.dir, "log"), More: []string{"--web.enable-remote-write-receiver"},
	}))
	return err
}

// headFresh starts a side on the write-ahead log that headAlive has written, and measures the growth of memory by the first
// request.
func (b *bench) headFresh(ctx context.Context, round int, s *side, r read) (err error) {
	if err := b.serveHead(ctx, s); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	growth, err := s.server.GrowthDuring(ctx, func() error {
		_, err := b.sendChecked(ctx, s, r)
		return err
	})
	b.out.Recorder.Add(round, s.name, "growth of RssAnon: "+r.what, area.Bytes, float64(growth.Bytes()))
	return err
}
