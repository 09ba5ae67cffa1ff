// Package api measures the cost of range queries over HTTP, for the server: goals api/*.
//
// Prometheus and ferula serve run as processes on copies of the same blocks, with the same flags, and get the same queries
// in turn. The responses are compared byte for byte before anything is measured. The cost of JSON is the CPU of a query
// that returns every point, less the CPU of the same evaluation that returns one series.
package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strconv"

	"github.com/klauspost/compress/gzip"

	"github.com/ferula-io/ferula/bench/area"
	"github.com/ferula-io/ferula/bench/blocks"
	"github.com/ferula-io/ferula/bench/peer"
	"github.com/ferula-io/ferula/bench/proc"
)

// Area is the entry of this area in the list of cmd/bench.
var Area = area.Area{Name: "api", About: "query_range of Prometheus and ferula serve, as processes", Run: run}

const (
	series = 10_000
	points = 161
	hours  = 8
	stepMS = 15_000

	memoryQueries = 4 // queries to one process, to measure the memory growth after the first one
)

var spec = blocks.Spec{
	Metric: "bench_metric", Values: blocks.Floats15, Series: series, Samples: hours * 3600_000 / stepMS,
	StepMS: stepMS, StartMS: blocks.QuietStartMS, Seed: 1,
}

// query is one range query. Its steps coincide neither with timestamps of samples nor with ends of blocks.
type query struct {
	what     string
	expr     string
	startMS  int64
	stepMS   int64
	encoding string
	series   int // number of series in the response, each with all points
	repeats  int // consecutive queries for one measurement
}

const (
	whole     = 180_000 // ms: 161 of them span the 8 h
	wholeFrom = blocks.QuietStartMS + 60_000
	short     = 15_000 // ms: 161 of them span 40 min
	shortFrom = blocks.QuietStartMS + 5*3600_000 + 60_000
)

var (
	matrix      = query{"8 h, every point", "bench_metric", wholeFrom, whole, "", series, 4}
	counted     = query{"8 h, count()", "count(bench_metric)", wholeFrom, whole, "", 1, 4}
	reported    = query{"8 h, rate[5m]", "rate(bench_metric[5m])", wholeFrom, whole, "", series, 2}
	shortMatrix = query{"40 min, every point", "bench_metric", shortFrom, short, "", series, 4}
	shortCount  = query{"40 min, count()", "count(bench_metric)", shortFrom, short, "", 1, 4}
	zipped      = query{"8 h, every point, gzip", "bench_metric", wholeFrom, whole, "gzip", series, 4}

	queries = []query{matrix, counted, shortMatrix, shortCount, reported, zipped}
)

func (q query) request() proc.Request {
	return proc.Request{Path: "/api/v1/query_range", Encoding: q.encoding, Query: url.Values{
		"query": {q.expr}, "start": {seconds(q.startMS)}, "end": {seconds(q.startMS + (points-1)*q.stepMS)}, "step": {seconds(q.stepMS)},
	}}
}

func seconds(ms int64) string { return strconv.FormatFloat(float64(ms)/1000, 'f', -1, 64) }

// side is one of the two servers. server is nil while none runs.
type side struct {
	name    string
	program peer.Program
	dir     string
	server  *proc.Server
}

// bench is one run of the area.
type bench struct {
	env     area.Env
	data    string
	sides   [2]side
	lengths map[string]int64 // of an uncompressed response in bytes, by name of the query; 0 if servers may differ
	out     *area.Outcome
}

func run(ctx context.Context, env area.Env) (*area.Outcome, error) {
	b := &bench{env: env, lengths: map[string]int64{}, out: &area.Outcome{Sides: []string{"Prometheus", "ferula"}}}
	env.Logf("blocks: %d series x %d samples", spec.Series, spec.Samples)
	var err error
	if b.data, err = blocks.Ensure(ctx, env.Cache, spec); err != nil {
		return nil, err
	}
	prometheus, err := env.Programs.Get(ctx, peer.Prometheus)
	if err != nil {
		return nil, err
	}
	ferula, err := env.Programs.Ferula(ctx, peer.Prometheus)
	if err != nil {
		return nil, err
	}
	for i, program := range []peer.Program{prometheus, ferula} {
		b.sides[i] = side{name: b.out.Sides[i], program: program, dir: filepath.Join(env.Cache, "run", "api", program.Name)}
		b.out.Versions = append(b.out.Versions, program.Version)
	}
	if err := b.alive(ctx); err != nil {
		return nil, err
	}
	if err := b.fresh(ctx); err != nil {
		return nil, err
	}
	b.conclude()
	return b.out, nil
}

// alive runs both servers at the same time, compares their responses and takes the readings that do not require a new
// process.
func (b *bench) alive(ctx context.Context) (err error) {
	for i := range b.sides {
		s := &b.sides[i]
		if err := b.start(ctx, s); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, s.stop()) }()
	}
	for _, q := range queries {
		if err := b.compare(ctx, q); err != nil {
			return err
		}
	}
	for round := 1; round <= b.env.Rounds; round++ {
		for _, q := range queries {
			for i := range b.sides {
				if err := b.measure(ctx, round, &b.sides[i], q); err != nil {
					return err
				}
			}
		}
		b.env.Logf("round %d of %d: CPU of every point %v and %v s", round, b.env.Rounds,
			b.out.Recorder.Median(b.sides[0].name, "CPU: "+matrix.what), b.out.Recorder.Median(b.sides[1].name, "CPU: "+matrix.what))
	}
	return nil
}

// fresh measures memory, each time of a new process.
func (b *bench) fresh(ctx context.Context) error {
	for round := 1; round <= b.env.Rounds; round++ {
		for i := range b.sides {
			if err := b.memory(ctx, round, &b.sides[i]); err != nil {
				return err
			}
		}
		b.env.Logf("round %d of %d: memory", round, b.env.Rounds)
	}
	return nil
}

func (b *bench) start(ctx context.Context, s *side) error {
	data, config := filepath.Join(s.dir, "data"), filepath.Join(s.dir, "prometheus.yml")
	if err := blocks.Copy(b.data, data); err != nil {
		return err
	}
	if err := os.WriteFile(config, []byte("scrape_configs: []\n"), 0o644); err != nil {
		return err
	}
	var err error
	s.server, err = proc.Start(ctx, s.program.Serve(peer.TSDB{Dir: data, Config: config, Log: filepath.Join(s.dir, "log")}))
	return err
}

func (s *side) stop() error {
	server := s.server
	s.server = nil
	return server.Stop()
}

// compare queries both servers. It returns an error unless both return the same complete response.
func (b *bench) compare(ctx context.Context, q query) error {
	var plain [2][]byte
	for i, s := range b.sides {
		body, a, err := s.server.Fetch(ctx, q.request())
		if err != nil {
			return fmt.Errorf("%s: %s: %w", s.name, q.what, err)
		}
		if a.Encoding != q.encoding {
			return fmt.Errorf("%s: %s: requested encoding %q, got %q", s.name, q.what, q.encoding, a.Encoding)
		}
		if plain[i], err = decompress(body, a.Encoding); err != nil {
			return fmt.Errorf("%s: %s: %w", s.name, q.what, err)
		}
		b.out.Recorder.Add(1, s.name, "bytes on the wire: "+q.what, area.Bytes, float64(a.Wire))
	}
	if err := checkMatrix(plain[0], q.series, points); err != nil {
		return fmt.Errorf("%s: %s: %w", b.sides[0].name, q.what, err)
	}
	if err := area.SameBytes(q.what, plain[0], plain[1]); err != nil {
		return err
	}
	if wire := [2]float64{b.out.Recorder.Median(b.sides[0].name, "bytes on the wire: "+q.what), b.out.Recorder.Median(b.sides[1].name, "bytes on the wire: "+q.what)}; q.encoding != "" && wire[1] > 1.05*wire[0] {
		return fmt.Errorf("%s: ferula sends %v bytes, Prometheus %v", q.what, wire[1], wire[0])
	}
	if q.encoding == "" {
		b.lengths[q.what] = int64(len(plain[0]))
	}
	b.env.Logf("responses are equal: %s, %d bytes", q.what, len(plain[0]))
	return nil
}

func decompress(body []byte, encoding string) ([]byte, error) {
	if encoding == "" {
		return body, nil
	}
	r, err := gzip.NewReader(bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(r)
}

// checkMatrix returns an error unless body is a matrix with that many series, each with that many points.
func checkMatrix(body []byte, series, points int) error {
	var response struct {
		Status string
		Data   struct {
			ResultType string
			Result     []struct {
				Metric map[string]string
				Values []json.RawMessage
			}
		}
	}
	if err := json.Unmarshal(body, &response); err != nil {
		return err
	}
	if response.Status != "success" || response.Data.ResultType != "matrix" || len(response.Data.Result) != series {
		return fmt.Errorf("%w: %s %s of %d series, want %d", area.ErrEmpty, response.Status, response.Data.ResultType, len(response.Data.Result), series)
	}
	for i, s := range response.Data.Result {
		if len(s.Values) != points {
			return fmt.Errorf("%w: series %d has %d points, want %d", area.ErrEmpty, i, len(s.Values), points)
		}
	}
	return nil
}
