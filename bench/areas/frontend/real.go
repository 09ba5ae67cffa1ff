package frontend

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/ferula-io/ferula/bench/area"
	"github.com/ferula-io/ferula/bench/blocks"
	"github.com/ferula-io/ferula/bench/peer"
	"github.com/ferula-io/ferula/bench/proc"
)

// The query as users report it: a ratio of two metrics for each of many instances over some hours.
const (
	realExpr     = "sum by (instance) ((bench_used / bench_limit) * 100)"
	realInterval = "8h"
	realStepMS   = 135_000
	realStartMS  = blocks.QuietStartMS + 3600_000
	realCutMS    = blocks.QuietStartMS + 4*3600_000 // where an interval of 8 h ends, in the middle of the range
	realEndMS    = realStartMS + (points-1)*realStepMS
)

var realSpec = blocks.Spec{
	Metric: "bench_used", Second: "bench_limit", Values: blocks.Decimals2, Series: series, PerPod: 1,
	Samples: 8 * 60, StepMS: 60_000, StartMS: blocks.QuietStartMS, Seed: 1,
}

func realParams(startMS, endMS int64) url.Values {
	return url.Values{"query": {realExpr}, "start": {seconds(startMS)}, "end": {seconds(endMS)}, "step": {seconds(realStepMS)}}
}

// realFront is a front before the real Prometheus, and what it is asked.
type realFront struct {
	*front
	request proc.Request
	what    string
	length  int64 // of the compared answer
}

// real says where the time of a real query goes, before a real Prometheus.
func (b *bench) real(ctx context.Context) (err error) {
	b.env.Logf("blocks: 2 x %d series x %d samples", realSpec.Series, realSpec.Samples)
	data, err := blocks.Ensure(ctx, b.env.Cache, realSpec)
	if err != nil {
		return err
	}
	prometheus, err := b.prometheus(ctx, data)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, prometheus.Stop()) }()
	ask := proc.Request{Path: "/api/v1/query_range", Query: realParams(realStartMS, realEndMS)}
	want, direct, err := prometheus.Fetch(ctx, ask)
	if err != nil {
		return err
	}
	b.realNote = fmt.Sprintf("%s, 6 h by %d s over %d instances (%.1f MB), before a real Prometheus with blocks, split in two at 08:00; Prometheus itself takes %.2g s for the whole. The relay's last byte is what fetching both halves at once takes. Server-Timing is what ferula says itself.",
		realExpr, realStepMS/1000, series, float64(len(want))/1e6, direct.Elapsed.Seconds())
	fronts := b.realFronts(prometheus.URL(), ask)
	for _, f := range fronts {
		if err := b.start(ctx, f.front); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, stop(f.front)) }()
		if err := b.compareReal(ctx, f, want); err != nil {
			return err
		}
	}
	for round := 1; round <= b.env.Rounds; round++ {
		for _, f := range fronts {
			if err := b.measureReal(ctx, round, f); err != nil {
				return err
			}
		}
		b.env.Logf("round %d of %d: real query", round, b.env.Rounds)
	}
	for _, f := range fronts {
		least := 1
		if f.side != thanos {
			least = 3 // what takes so little is ticked too seldom
		}
		if err := b.stagesOf(ctx, f.front, f.what+": ", least, func() (proc.Answer, error) { return b.askReal(ctx, f, io.Discard) }); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) prometheus(ctx context.Context, data string) (*proc.Server, error) {
	dir := filepath.Join(b.dir, "prometheus")
	own, config := filepath.Join(dir, "data"), filepath.Join(dir, "prometheus.yml")
	if err := blocks.Copy(data, own); err != nil {
		return nil, err
	}
	if err := os.WriteFile(config, []byte("scrape_configs: []\n"), 0o644); err != nil {
		return nil, err
	}
	return proc.Start(ctx, b.programs.prometheus.Serve(peer.TSDB{Dir: own, Config: config, Log: filepath.Join(dir, "log")}))
}

// realFronts are a process for each question, so that none inherits a heap.
func (b *bench) realFronts(downstream string, ask proc.Request) []*realFront {
	parts := []string{realParams(realStartMS, realCutMS-realStepMS).Encode(), realParams(realCutMS, realEndMS).Encode()}
	fronts := []*realFront{{
		front: &front{side: relay, name: "relay-real", spec: func(log string) proc.Spec { return b.programs.relay.Relay(downstream, log) }},
		what:  realPlain, request: proc.Request{Path: "/relay", Query: url.Values{"part": parts}},
	}}
	for _, encoding := range []string{"", "gzip"} {
		what, asked := realPlain, ask
		if encoding != "" {
			what, asked.Encoding = realGzip, encoding
		}
		for _, program := range []peer.Program{b.programs.thanos, b.programs.ferula} {
			side := thanos
			if program.Name == peer.Ferula {
				side = ferula
			}
			fronts = append(fronts, &realFront{what: what, request: asked, front: &front{
				side: side, name: side + "-real" + encoding, spec: func(log string) proc.Spec {
					return program.Frontend(peer.Frontend{Downstream: downstream, Interval: realInterval, Log: log})
				},
			}})
		}
	}
	return fronts
}

const (
	realPlain = "real query"
	realGzip  = "real query, client gzip"
)

// askReal asks once and writes the body to w.
func (b *bench) askReal(ctx context.Context, f *realFront, w io.Writer) (proc.Answer, error) {
	a, err := f.server.Get(ctx, f.request, w)
	if err != nil {
		return a, fmt.Errorf("%s: %w", f.name, err)
	}
	if a.Encoding != f.request.Encoding {
		return a, fmt.Errorf("%s: %w: encoding %q", f.name, area.ErrUnequal, a.Encoding)
	}
	if f.length > 0 && a.Bytes != f.length {
		return a, fmt.Errorf("%s: %w: %d bytes, %d before", f.name, area.ErrUnequal, a.Bytes, f.length)
	}
	return a, nil
}

// compareReal fails unless a front's answer is Prometheus'. The relay's cannot be.
func (b *bench) compareReal(ctx context.Context, f *realFront, want []byte) error {
	var text bytes.Buffer
	in, done := decompressor(f.request.Encoding, &text)
	a, err := b.askReal(ctx, f, in)
	if derr := done(); err == nil {
		err = derr
	}
	if err != nil {
		return err
	}
	switch {
	case f.side == relay:
	case f.side == ferula && !b.env.Programs.Null:
		err = area.SameBytes(f.name, text.Bytes(), want)
	default:
		err = sameSamples(f.name, &text, want)
	}
	f.length = a.Bytes
	b.env.Logf("answers are equal: %s, %d bytes", f.name, a.Bytes)
	return err
}

func (b *bench) measureReal(ctx context.Context, round int, f *realFront) error {
	var a proc.Answer
	cpu, err := f.server.CPUDuring(ctx, func() (err error) {
		a, err = b.askReal(ctx, f, io.Discard)
		return err
	})
	if err != nil {
		return err
	}
	tape := &b.out.Tape
	tape.Add(round, f.side, f.what+": last byte", area.Seconds, a.Elapsed.Seconds())
	tape.Add(round, f.side, f.what+": first byte", area.Seconds, a.FirstByte.Seconds())
	tape.Add(round, f.side, f.what+": CPU of the frontend", area.Seconds, cpu.Seconds())
	for name, took := range serverTiming(a.Header.Values("Server-Timing")) {
		tape.Add(round, f.side, f.what+": Server-Timing "+name, area.Seconds, took.Seconds())
	}
	return nil
}

// serverTiming reads the durations of a Server-Timing header. What cannot be read is left out.
func serverTiming(headers []string) map[string]time.Duration {
	stages := map[string]time.Duration{}
	for _, header := range headers {
		for metric := range strings.SplitSeq(header, ",") {
			name, params, _ := strings.Cut(metric, ";")
			for param := range strings.SplitSeq(params, ";") {
				text, ok := strings.CutPrefix(strings.TrimSpace(param), "dur=")
				if ms, err := strconv.ParseFloat(text, 64); ok && err == nil {
					stages[strings.TrimSpace(name)] = time.Duration(ms * float64(time.Millisecond))
				}
			}
		}
	}
	return stages
}
