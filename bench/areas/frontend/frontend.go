// Package frontend measures the cost of a query frontend that splits a range query in two and joins the responses: goals
// frontend/*.
//
// Thanos' query frontend, ferula's and a relay that does not parse run as processes in front of one canned downstream,
// whose responses cost nothing. They receive the same requests in turn and are measured from outside. Typed codecs, a copy
// and ferula's splices are measured in the bench's own process on the same bytes. Before a figure is taken, ferula's
// response must equal the downstream's unsplit response byte for byte, and Thanos' response must have the same samples.
// Each request must have reached the downstream in exactly two parts. The stages of a real query are measured in front of a
// real Prometheus.
package frontend

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"path/filepath"
	"strconv"
	"time"

	"github.com/ferula-io/ferula/bench/area"
	"github.com/ferula-io/ferula/bench/canned"
	"github.com/ferula-io/ferula/bench/peer"
	"github.com/ferula-io/ferula/bench/proc"
)

// Area is the entry of this area in the list of cmd/bench.
var Area = area.Area{
	Name: "frontend", About: "query frontends of Thanos and ferula, as processes and in memory", Run: run,
}

// Sides of the table.
const (
	thanos  = "Thanos"
	relay   = "relay"
	typed   = "typed codecs"
	copying = "copy"
	ferula  = "ferula"
)

const (
	series    = 11_000
	points    = 161
	stepMS    = 180_000
	cutMS     = int64(1767312000_000) // 2026-01-02, where an interval of a day ends
	bigCopies = 10
	interval  = "24h"

	nanosecondsASample = "ns/sample"
)

var (
	small = canned.Spec{
		Query: "bench_metric", Series: series, Points: points, StartMS: cutMS - points/2*stepMS, StepMS: stepMS, CutMS: cutMS, Zip: true,
	}
	big = canned.Spec{
		Query: "bench_metric_big", Series: series, Copies: bigCopies, Points: points, StartMS: small.StartMS, StepMS: stepMS, CutMS: cutMS,
	}
)

// inMemory configures a result cache that can hold the small response, compressed or not.
const inMemory = `{"type": "IN-MEMORY", "config": {"max_size": "1GB", "max_size_items": 0, "validity": "0s"}}`

// front is one process under test. server is nil while none runs.
type front struct {
	side   string
	name   string // of its log
	spec   func(log string) proc.Spec
	down   *canned.Server
	server *proc.Server
}

// request is one way to request the response.
type request struct {
	what     string
	encoding string // that the client accepts
	hit      bool   // it must be served from the cache
}

var (
	identity  = request{what: "client identity"}
	plainDown = request{what: "client identity, downstream without gzip"}
	gzipDown  = request{what: "client identity, gzip requested downstream"}
	zipped    = request{what: "client gzip", encoding: "gzip"}
	zstandard = request{what: "client zstd", encoding: "zstd"}
	cacheHit  = request{what: "cache hit", hit: true}
	zippedHit = request{what: "cache hit, client gzip", encoding: "gzip", hit: true}
	secondHit = request{what: "second cache hit, client gzip", encoding: "gzip", hit: true}
)

// bench is one run of the area.
type bench struct {
	env      area.Env
	dir      string // for logs and data of this run
	programs struct{ thanos, ferula, relay, prometheus peer.Program }
	response *canned.Response // the small response
	lengths  map[string]int64

	realNotes []string
	smallNote string
	out       *area.Outcome
}

func run(ctx context.Context, env area.Env) (*area.Outcome, error) {
	b := &bench{
		env: env, dir: filepath.Join(env.Cache, "run", "frontend"), lengths: map[string]int64{},
		out: &area.Outcome{Sides: []string{thanos, relay, typed, copying, ferula}},
	}
	if err := b.findPrograms(ctx); err != nil {
		return nil, err
	}
	env.Logf("rendering %d series x %d samples", series, points)
	var err error
	if b.response, err = canned.Render(small); err != nil {
		return nil, err
	}
	for _, part := range []func(context.Context) error{b.memory, b.processes, b.caches, b.small, b.growths, b.real, b.behindThanos} {
		if err := part(ctx); err != nil {
			return nil, err
		}
	}
	b.conclude()
	return b.out, nil
}

func (b *bench) findPrograms(ctx context.Context) error {
	var errs [4]error
	programs := b.env.Programs
	b.programs.thanos, errs[0] = programs.Get(ctx, peer.Thanos)
	b.programs.ferula, errs[1] = programs.Ferula(ctx, peer.Thanos)
	b.programs.relay, errs[2] = programs.Get(ctx, peer.Relay)
	b.programs.prometheus, errs[3] = programs.Get(ctx, peer.Prometheus)
	for _, p := range []peer.Program{b.programs.thanos, b.programs.ferula, b.programs.prometheus} {
		b.out.Versions = append(b.out.Versions, p.Version)
	}
	return errors.Join(errs[:]...)
}

// frontOf returns a query frontend in front of a canned downstream.
func (b *bench) frontOf(side, name string, down *canned.Server, cache string, more ...string) *front {
	program := b.programs.thanos
	if side == ferula {
		program = b.programs.ferula
	}
	return &front{side: side, name: name, down: down, spec: func(log string) proc.Spec {
		return program.Frontend(peer.Frontend{Downstream: down.URL, Interval: interval, Cache: cache, More: more, Log: log})
	}}
}

func (b *bench) start(ctx context.Context, fronts ...*front) error {
	for _, f := range fronts {
		server, err := proc.Start(ctx, f.spec(filepath.Join(b.dir, f.name+".log")))
		if err != nil {
			return errors.Join(err, stop(fronts...))
		}
		f.server = server
	}
	return nil
}

func stop(fronts ...*front) error {
	var errs []error
	for _, f := range fronts {
		if f.server != nil {
			errs = append(errs, f.server.Stop())
			f.server = nil
		}
	}
	return errors.Join(errs...)
}

// requestFor returns the request for the whole response. That to the relay names the parts, because the relay cannot split.
func (f *front) requestFor(a *canned.Response, q request) proc.Request {
	if f.side == relay {
		var parts []string
		for _, p := range a.Halves {
			parts = append(parts, params(a, p).Encode())
		}
		return proc.Request{Path: "/relay", Query: url.Values{"part": parts}}
	}
	return proc.Request{Path: "/api/v1/query_range", Query: params(a, a.Whole), Encoding: q.encoding}
}

func params(a *canned.Response, p canned.Part) url.Values {
	return url.Values{"query": {a.Query}, "start": {seconds(p.StartMS)}, "end": {seconds(p.EndMS)}, "step": {seconds(a.StepMS)}}
}

func seconds(ms int64) string { return strconv.FormatFloat(float64(ms)/1000, 'f', -1, 64) }

// send sends one request and writes the body to w. Wrong encodings, wrong parts and cache misses are errors.
func (b *bench) send(ctx context.Context, f *front, a *canned.Response, q request, w io.Writer) (proc.Response, error) {
	got, err := f.server.Get(ctx, f.requestFor(a, q), w)
	served, unknown := f.down.Take()
	if err := errors.Join(err, unknown); err != nil {
		return got, fmt.Errorf("%s: %s: %w", f.name, q.what, err)
	}
	if got.Encoding != q.encoding {
		return got, fmt.Errorf("%s: %s: %w: encoding %q", f.name, q.what, area.ErrUnequal, got.Encoding)
	}
	if q.hit {
		if len(served) > 0 {
			return got, fmt.Errorf("%s: %s: %w: the downstream received %d requests", f.name, q.what, errMiss, len(served))
		}
		return got, nil
	}
	if err := checkParts(a, served); err != nil {
		return got, fmt.Errorf("%s: %s: %w", f.name, q.what, err)
	}
	return got, nil
}

var (
	errMiss  = errors.New("not served from the cache")
	errParts = errors.New("the downstream did not receive a request for each half")
)

// checkParts fails unless each half was requested once.
func checkParts(a *canned.Response, served []canned.Served) error {
	requests := map[int64]int{}
	for _, s := range served {
		requests[s.StartMS]++
		if s.Query != a.Query || s.EndMS == a.Whole.EndMS && s.StartMS == a.Whole.StartMS {
			return fmt.Errorf("%w: %v", errParts, served)
		}
	}
	if len(served) != len(a.Halves) || requests[a.Halves[0].StartMS] != 1 || requests[a.Halves[1].StartMS] != 1 {
		return fmt.Errorf("%w: %v", errParts, served)
	}
	return nil
}

// job is a front and the request that it receives repeatedly for one reading.
type job struct {
	front   *front
	request request
	repeats int
}

// measure takes one reading of a job: CPU and the other figures of the same requests. Every response must be as long as the
// one that was compared.
func (b *bench) measure(ctx context.Context, round int, j job) error {
	f, q := j.front, j.request
	var first, elapsed time.Duration
	before, err := f.server.IO()
	if err != nil {
		return err
	}
	cpu, err := f.server.CPUDuring(ctx, func() error {
		for range j.repeats {
			a, err := b.send(ctx, f, b.response, q, io.Discard)
			if err != nil {
				return err
			}
			if want := b.lengths[f.side+q.what]; a.Bytes == 0 || a.Bytes != want {
				return fmt.Errorf("%s: %s: %w: %d bytes, %d before", f.name, q.what, area.ErrUnequal, a.Bytes, want)
			}
			first, elapsed = first+a.FirstByte, elapsed+a.Elapsed
		}
		return nil
	})
	if err != nil {
		return err
	}
	after, err := f.server.IO()
	if err != nil {
		return err
	}
	rec, n := &b.out.Recorder, float64(j.repeats)
	rec.Add(round, f.side, cpuOf(q), area.Seconds, cpu.Seconds()/n)
	rec.Add(round, f.side, "CPU a sample: "+q.what, nanosecondsASample, float64(cpu.Nanoseconds())/n/float64(b.response.Samples()))
	rec.Add(round, f.side, "first byte: "+q.what, area.Seconds, first.Seconds()/n)
	rec.Add(round, f.side, "last byte: "+q.what, area.Seconds, elapsed.Seconds()/n)
	rec.Add(round, f.side, "write calls: "+q.what, area.Count, float64(after.Sub(before).Writes)/n)
	if round > 1 {
		return nil
	}
	mallocs, err := f.server.MallocsDuring(ctx, func() error {
		_, err := b.send(ctx, f, b.response, q, io.Discard)
		return err
	})
	rec.Add(round, f.side, "mallocs: "+q.what, area.Count, float64(mallocs))
	return err
}

func cpuOf(q request) string { return "CPU: " + q.what }
