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

// The query is like those in user reports: a ratio of two metrics for each of many instances over some hours.
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

// backend is a real server behind the frontends.
type backend struct {
	name    string // of logs
	what    string // prefix of its readings
	server  *proc.Server
	querier bool // the costs of the server are read, too
}

// realFront is a front in front of a real server, with its request.
type realFront struct {
	*front
	backend backend
	request proc.Request
	what    string
	length  int64 // of the compared response
}

// real measures the stages of a real query, in front of a real Prometheus.
func (b *bench) real(ctx context.Context) (err error) {
	prometheus, err := b.prometheus(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, prometheus.Stop()) }()
	return b.query(ctx, backend{name: "real", what: "real query", server: prometheus}, func(direct time.Duration, bytes int) string {
		return fmt.Sprintf("Real query: %s, 6 h by %d s over %d instances (%.1f MB), in front of a real Prometheus with blocks, split in two at 08:00; Prometheus itself takes %.2g s for the whole query. The relay's last byte is the time of fetching both halves at once. Server-Timing is reported by ferula itself.",
			realExpr, realStepMS/1000, series, float64(bytes)/1e6, direct.Seconds())
	})
}

// query measures the query in front of a backend. note returns the note under the table, from the duration of the whole
// query at the backend and the length of the response.
func (b *bench) query(ctx context.Context, back backend, note func(direct time.Duration, bytes int) string) (err error) {
	req := proc.Request{Path: "/api/v1/query_range", Query: realParams(realStartMS, realEndMS)}
	want, direct, err := back.server.Fetch(ctx, req)
	if err != nil {
		return err
	}
	if back.querier {
		want = withoutAnalysis(want)
	}
	b.realNotes = append(b.realNotes, note(direct.Elapsed, len(want)))
	fronts := b.realFronts(back, req)
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
		b.env.Logf("round %d of %d: %s", round, b.env.Rounds, back.what)
	}
	for _, f := range fronts {
		minRequests := 1
		if f.side != thanos {
			minRequests = 3 // one request gets too few samples
		}
		get := func() (proc.Response, error) { return b.sendReal(ctx, f, io.Discard) }
		if err := b.stagesOf(ctx, f.front, f.what+": ", minRequests, get); err != nil {
			return err
		}
		if back.querier {
			if err := b.profileOf(ctx, back.server, f.side, f.what+": querier's ", 1, querierStages, get); err != nil {
				return err
			}
		}
	}
	return nil
}

// prometheus starts a Prometheus with the blocks of the real query.
func (b *bench) prometheus(ctx context.Context) (*proc.Server, error) {
	b.env.Logf("blocks: 2 x %d series x %d samples", realSpec.Series, realSpec.Samples)
	data, err := blocks.Ensure(ctx, b.env.Cache, realSpec)
	if err != nil {
		return nil, err
	}
	own, config := b.prometheusData(), filepath.Join(b.dir, "prometheus", "prometheus.yml")
	if err := blocks.Copy(data, own); err != nil {
		return nil, err
	}
	if err := os.WriteFile(config, []byte("global: {external_labels: {prometheus: bench, replica: a}}\nscrape_configs: []\n"), 0o644); err != nil {
		return nil, err
	}
	return proc.Start(ctx, b.programs.prometheus.Serve(peer.TSDB{Dir: own, Config: config, Log: filepath.Join(b.dir, "prometheus", "log")}))
}

func (b *bench) prometheusData() string { return filepath.Join(b.dir, "prometheus", "data") }

// realFronts returns a process for each request, so that no process inherits a heap.
func (b *bench) realFronts(back backend, req proc.Request) []*realFront {
	parts := []string{realParams(realStartMS, realCutMS-realStepMS).Encode(), realParams(realCutMS, realEndMS).Encode()}
	downstream := back.server.URL()
	fronts := []*realFront{{
		front:   &front{side: relay, name: "relay-" + back.name, spec: func(log string) proc.Spec { return b.programs.relay.Relay(downstream, log) }},
		backend: back, what: back.what, request: proc.Request{Path: "/relay", Query: url.Values{"part": parts}},
	}}
	for _, encoding := range []string{"", "gzip"} {
		what, encoded := back.what, req
		if encoding != "" {
			what, encoded.Encoding = back.what+", client gzip", encoding
		}
		for _, program := range []peer.Program{b.programs.thanos, b.programs.ferula} {
			side := thanos
			if program.Name == peer.Ferula {
				side = ferula
			}
			fronts = append(fronts, &realFront{backend: back, what: what, request: encoded, front: &front{
				side: side, name: side + "-" + back.name + encoding, spec: func(log string) proc.Spec {
					return program.Frontend(peer.Frontend{Downstream: downstream, Interval: realInterval, Log: log})
				},
			}})
		}
	}
	return fronts
}

// sendReal sends the request once and writes the body to w.
func (b *bench) sendReal(ctx context.Context, f *realFront, w io.Writer) (proc.Response, error) {
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

// compareReal fails unless a front's response equals Prometheus'. The relay's response cannot be compared.
func (b *bench) compareReal(ctx context.Context, f *realFront, want []byte) error {
	var text bytes.Buffer
	in, done := decompressor(f.request.Encoding, &text)
	a, err := b.sendReal(ctx, f, in)
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
	b.env.Logf("responses are equal: %s, %d bytes", f.name, a.Bytes)
	return err
}

func (b *bench) measureReal(ctx context.Context, round int, f *realFront) error {
	var a proc.Response
	var queriers time.Duration
	work := func() (err error) {
		a, err = b.sendReal(ctx, f, io.Discard)
		return err
	}
	cpu, err := f.server.CPUDuring(ctx, func() (err error) {
		if !f.backend.querier {
			return work()
		}
		queriers, err = f.backend.server.CPUDuring(ctx, work)
		return err
	})
	if err != nil {
		return err
	}
	rec := &b.out.Recorder
	if f.backend.querier {
		rec.Add(round, f.side, f.what+": CPU of the querier", area.Seconds, queriers.Seconds())
	}
	rec.Add(round, f.side, f.what+": last byte", area.Seconds, a.Elapsed.Seconds())
	rec.Add(round, f.side, f.what+": first byte", area.Seconds, a.FirstByte.Seconds())
	rec.Add(round, f.side, f.what+": CPU of the frontend", area.Seconds, cpu.Seconds())
	for name, took := range serverTiming(a.Header.Values("Server-Timing")) {
		rec.Add(round, f.side, f.what+": Server-Timing "+name, area.Seconds, took.Seconds())
	}
	return nil
}

// serverTiming parses the durations of a Server-Timing header. Values that do not parse are skipped.
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
