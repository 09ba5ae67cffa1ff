// Package frontend measures the cost of a query frontend that splits a range query in two and joins the responses: goals
// frontend/*.
//
// Thanos' query frontend, ferula's and a relay that does not parse run as processes in front of one canned downstream,
// whose responses cost nothing. They receive the same requests in turn and are measured from outside. A copy and ferula's
// splices are measured in the bench's own process on the same bytes. Before a figure is taken, ferula's response must equal
// the downstream's unsplit response byte for byte, and Thanos' response must have the same samples. Each request must have
// reached the downstream in exactly two parts. A real query is measured in front of a real Prometheus.
package frontend

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os/exec"
	"time"

	"github.com/ferula-io/ferula/bench/area"
	"github.com/ferula-io/ferula/bench/canned"
	"github.com/ferula-io/ferula/bench/peer"
	"github.com/ferula-io/ferula/bench/proc"
)

// Area is the entry of this area in the list of cmd/bench.
var Area = area.Area{
	Name: "frontend", About: "query frontends of Thanos and ferula, as processes and in memory",
	Sides: []string{thanos, relay, copying, ferula}, Run: run,
}

// Sides of the table.
const (
	thanos  = "Thanos"
	relay   = "relay"
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

	// gzipRatioMax is the maximum ratio of the length of ferula's compressed response to that of Thanos'. If the ratio is
	// higher, the goals with gzip have no figure.
	gzipRatioMax = 1.05

	// fills is the maximum number of requests that are sent until a cache has stored a response. The cache may drop writes
	// that are too slow.
	fills = 5
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
const inMemory = `--query-range.response-cache-config={"type": "IN-MEMORY", "config": {"max_size": "1GB", "max_size_items": 0, "validity": "0s"}}`

// front is a process under test in front of a canned downstream.
type front struct {
	*area.Side
	down     *canned.Server
	response *canned.Response
	flags    []string
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
	zipped    = request{what: "client gzip", encoding: "gzip"}
	cacheHit  = request{what: "cache hit", hit: true}
	zippedHit = request{what: "cache hit, client gzip", encoding: "gzip", hit: true}
	secondHit = request{what: "second cache hit, client gzip", encoding: "gzip", hit: true}
)

// bench is one run of the area.
type bench struct {
	*area.Bench
	programs map[string]peer.Program // by side
	response *canned.Response        // the small response

	realNotes []string
	smallNote string
}

func run(ctx context.Context, of *area.Bench) error {
	b := &bench{Bench: of, programs: map[string]peer.Program{}}
	pair, err := b.Pair(ctx, peer.Thanos)
	if err != nil {
		return err
	}
	b.programs[thanos], b.programs[ferula] = pair[0].Program, pair[1].Program
	if b.programs[relay], err = b.Programs.Get(ctx, peer.Relay); err != nil {
		return err
	}
	b.Logf("rendering %d series x %d samples", series, points)
	if b.response, err = canned.Render(small); err != nil {
		return err
	}
	for _, part := range []func(context.Context) error{b.memory, b.processes, b.caches, b.stored, b.small, b.growths, b.real} {
		if err := part(ctx); err != nil {
			return err
		}
	}
	b.conclude()
	return nil
}

// front returns a front of a side in front of a canned downstream.
func (b *bench) front(side, dir string, down *canned.Server, flags ...string) *front {
	return &front{b.Side(side, b.programs[side], dir), down, b.response, flags}
}

// launch launches a front.
func (f *front) launch(*area.Side) (proc.Spec, error) {
	return launchAt(f.Side, f.down.URL, interval, f.flags...), nil
}

func launchAt(s *area.Side, downstream, interval string, flags ...string) proc.Spec {
	if s.Name == relay {
		return s.Program.Own(s.Log(), "-downstream="+downstream)
	}
	return s.Program.Frontend(s.Log(), downstream, interval, flags...)
}

// with calls work while fronts run.
func (b *bench) with(ctx context.Context, work func() error, fronts ...*front) error {
	var sides []*area.Side
	of := map[*area.Side]*front{}
	for _, f := range fronts {
		sides, of[f.Side] = append(sides, f.Side), f
	}
	return b.With(ctx, func(s *area.Side) (proc.Spec, error) { return of[s].launch(s) }, work, sides...)
}

// overCanned calls work with a downstream of responses, which compresses unless it is plain.
func overCanned(plain bool, work func(down *canned.Server) error, responses ...*canned.Response) (err error) {
	down, err := canned.Serve(plain, responses...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, down.Close()) }()
	return work(down)
}

// requestFor returns the request for the whole response. That to the relay names the parts, because the relay cannot split.
func (f *front) requestFor(a *canned.Response, q request) proc.Request {
	if f.Name == relay {
		return toRelay(params(a, a.Halves[0], "").Query, params(a, a.Halves[1], "").Query)
	}
	return params(a, a.Whole, q.encoding)
}

func toRelay(parts ...url.Values) proc.Request {
	query := url.Values{}
	for _, part := range parts {
		query.Add("part", part.Encode())
	}
	return proc.Request{Path: "/relay", Query: query}
}

func params(a *canned.Response, p canned.Part, encoding string) proc.Request {
	return area.Query{
		Expr: a.Query, StartMS: p.StartMS, StepMS: a.StepMS, Points: int((p.EndMS-p.StartMS)/a.StepMS) + 1, Encoding: encoding,
	}.Request()
}

// send sends one request and writes the body to w. Wrong encodings, wrong parts and cache misses are errors.
func (b *bench) send(ctx context.Context, f *front, a *canned.Response, q request, w io.Writer) (proc.Response, error) {
	got, err := f.Get(ctx, f.requestFor(a, q), w)
	served, unknown := f.down.Take()
	switch err = errors.Join(err, unknown); {
	case err != nil:
	case got.Encoding != q.encoding:
		err = fmt.Errorf("%w: encoding %q", area.ErrUnequal, got.Encoding)
	case q.hit && len(served) > 0:
		err = fmt.Errorf("%w: the downstream received %d requests", errMiss, len(served))
	case !q.hit:
		err = checkParts([]*canned.Response{a}, []int{1}, served)
	}
	if err != nil {
		return got, fmt.Errorf("%s: %s: %w", f.Name, q.what, err)
	}
	return got, nil
}

var (
	errMiss  = errors.New("not served from the cache")
	errParts = errors.New("the downstream did not receive a request for each half")
)

// checkParts fails unless the downstream received each half of a query as often as the query was sent, and nothing else.
func checkParts(responses []*canned.Response, sent []int, served []canned.Served) error {
	received := map[canned.Served]int{}
	for _, s := range served {
		s.Encoding = ""
		received[s]++
	}
	for i, a := range responses {
		for _, half := range a.Halves {
			key := canned.Served{Query: a.Query, StartMS: half.StartMS, EndMS: half.EndMS}
			if n := received[key]; n != sent[i] {
				return fmt.Errorf("%w: %s was sent %d times, the half from %d was requested %d times", errParts, a.Query, sent[i], half.StartMS, n)
			}
			delete(received, key)
		}
	}
	for other, n := range received {
		return fmt.Errorf("%w: %v was requested %d times", errParts, other, n)
	}
	return nil
}

// job is a front and the request that it receives repeatedly for one reading.
type job struct {
	*front
	request request
	repeats int
}

// costs takes one reading of a job. Every response must be as long as the one that was compared.
func (b *bench) costs(ctx context.Context, round int, j job) error {
	if b.Programs.Null && j.Name != relay {
		j.repeats = 1 // the peer takes longer
	}
	what := j.request.what
	return b.Costs(ctx, round, j.Name, j.Server, area.Work{What: what, Repeats: j.repeats, Mallocs: round == 1, Send: func() (proc.Response, error) {
		a, err := b.send(ctx, j.front, j.response, j.request, io.Discard)
		if err == nil {
			err = b.SameLength(j.Name, what, a.Bytes)
		}
		return a, err
	}})
}

// rounds compares the response of each job and then takes their readings in turn.
func (b *bench) rounds(ctx context.Context, what string, jobs []job) error {
	for _, j := range jobs {
		if err := b.compare(ctx, j.front, j.response, j.request); err != nil {
			return err
		}
	}
	return b.EachRound(what, func(round int) error {
		for _, j := range jobs {
			if err := b.costs(ctx, round, j); err != nil {
				return err
			}
		}
		return nil
	})
}

// processes measures the fronts without a cache, in front of canned downstreams.
func (b *bench) processes(ctx context.Context) error {
	return overCanned(false, func(both *canned.Server) error {
		return overCanned(true, func(plain *canned.Server) error {
			theirs, before := b.front(thanos, "thanos", both), b.front(thanos, "thanos-plain-downstream", plain)
			floor, ours := b.front(relay, "relay", plain), b.front(ferula, "ferula", both)
			return b.with(ctx, func() error {
				return b.rounds(ctx, "processes", []job{
					{theirs, identity, 1}, {floor, identity, 20}, {ours, identity, 20}, {before, plainDown, 1}, {theirs, zipped, 1}, {ours, zipped, 2},
				})
			}, theirs, before, floor, ours)
		}, b.response)
	}, b.response)
}

// caches measures requests whose whole response is in the in-memory cache.
func (b *bench) caches(ctx context.Context) error {
	return overCanned(false, func(down *canned.Server) error {
		theirs, ours := b.front(thanos, "thanos-cache", down, inMemory), b.front(ferula, "ferula-cache", down, inMemory)
		return b.with(ctx, func() error {
			for _, f := range []*front{theirs, ours} {
				if err := b.fill(ctx, f); err != nil {
					return err
				}
			}
			for _, f := range []*front{theirs, ours} {
				if err := b.compare(ctx, f, b.response, secondHit); err != nil { // the first hit with gzip
					return err
				}
				if err := b.costs(ctx, 1, job{f, secondHit, 1}); err != nil {
					return err
				}
			}
			return b.rounds(ctx, "cache", []job{{theirs, cacheHit, 1}, {ours, cacheHit, 10}, {theirs, zippedHit, 1}, {ours, zippedHit, 4}})
		}, theirs, ours)
	}, b.response)
}

// storeds are servers of caches: how they are started, and how a frontend is told of one.
var storeds = []struct {
	program, config string
	flags           func(port string) []string
}{
	{"memcached", `{type: MEMCACHED, config: {addresses: ['%s']}}`, func(port string) []string {
		return []string{"-p", port, "-l", "127.0.0.1", "-u", "daemon", "-U", "0"}
	}},
	{"redis-server", `{type: REDIS, config: {addr: '%s'}}`, func(port string) []string {
		return []string{"--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"}
	}},
}

// storedSeries are as many as the default limit of an item of memcached, 1 MiB, lets both frontends store.
const storedSeries = 100

// stored measures hits in memcached and Redis: a server for each frontend.
func (b *bench) stored(ctx context.Context) error {
	spec := small
	spec.Series, spec.Zip = storedSeries, false
	response, err := canned.Render(spec)
	if err != nil {
		return err
	}
	b.Note(fmt.Sprintf("Hits in memcached and redis-server: %d series, a server for each frontend, CPU of the frontend only. Without the program there is no row.", storedSeries))
	for _, c := range storeds {
		path, err := exec.LookPath(c.program)
		if err != nil {
			b.Logf("no rows: %v", err)
			continue
		}
		program := peer.Program{Name: c.program, Path: path}
		launch := func(s *area.Side) (proc.Spec, error) {
			return proc.Spec{Name: c.program, Path: path, Log: s.Log(), Args: func(address string) []string {
				_, port, _ := net.SplitHostPort(address)
				return c.flags(port)
			}}, nil
		}
		theirs, ours := b.Side(c.program, program, c.program+"-thanos"), b.Side(c.program, program, c.program+"-ferula")
		err = b.With(ctx, launch, func() error {
			return overCanned(true, func(down *canned.Server) error {
				var fronts []*front
				var jobs []job
				for side, server := range map[string]*area.Side{thanos: theirs, ferula: ours} {
					flag := "--query-range.response-cache-config=" + fmt.Sprintf(c.config, server.Address())
					f := b.front(side, side+"-"+c.program, down, flag)
					f.response = response
					fronts = append(fronts, f)
					jobs = append(jobs, job{f, request{what: "cache hit, " + c.program, hit: true}, 20})
				}
				return b.with(ctx, func() error {
					return errors.Join(b.fill(ctx, fronts[0]), b.fill(ctx, fronts[1]), b.rounds(ctx, c.program, jobs))
				}, fronts...)
			}, response)
		}, theirs, ours)
		if err != nil {
			return fmt.Errorf("%s: %w", c.program, err)
		}
	}
	return nil
}

// fill sends requests until the response comes from the cache.
func (b *bench) fill(ctx context.Context, f *front) error {
	for range fills {
		a, err := f.Get(ctx, f.requestFor(f.response, cacheHit), io.Discard)
		served, unknown := f.down.Take()
		if err := errors.Join(err, unknown); err != nil {
			return fmt.Errorf("%s: %w", f.Name, err)
		}
		state := a.Header.Get("X-Ferula-Cache")
		b.Logf("%s: %d parts fetched, %s", f.Name, len(served), state)
		if len(served) == 0 {
			if f.Name == ferula && !b.Programs.Null && state != "hit" {
				return fmt.Errorf("%s: %w, it reports %q", f.Name, errMiss, state)
			}
			return nil
		}
		if err := proc.Wait(ctx, 100*time.Millisecond); err != nil { // it is stored in the background
			return err
		}
	}
	return fmt.Errorf("%s: %w after %d queries", f.Name, errMiss, fills)
}

const (
	growthSmall = "one response"
	growthBig   = "ten times the series"
)

// growths measures memory growth, each time on a process that has just started.
func (b *bench) growths(ctx context.Context) error {
	if err := b.growth(ctx, b.response, growthSmall, thanos, ferula); err != nil {
		return err
	}
	if b.Programs.Null {
		return nil // the peer would need more memory than the machine has
	}
	b.Logf("rendering %d series x %d samples", series*bigCopies, points)
	response, err := canned.Render(big)
	if err != nil {
		return err
	}
	return b.growth(ctx, response, growthBig, ferula)
}

func (b *bench) growth(ctx context.Context, response *canned.Response, what string, sides ...string) error {
	return overCanned(false, func(down *canned.Server) error {
		var fronts []*area.Side
		of := map[*area.Side]*front{}
		for _, side := range sides {
			f := b.front(side, side+"-fresh", down)
			fronts, of[f.Side] = append(fronts, f.Side), f
			if response == b.response {
				continue // processes has compared it
			}
			if err := b.with(ctx, func() error { return b.compare(ctx, f, response, request{what: what}) }, f); err != nil {
				return err
			}
		}
		return b.InTurn(what, fronts, func(round int, s *area.Side) error {
			g, err := b.Growth(ctx, round, s, of[s].launch, what, func() error {
				a, err := b.send(ctx, of[s], response, identity, io.Discard)
				if err == nil && a.Bytes == 0 {
					err = area.ErrEmpty
				}
				return err
			})
			if response == b.response {
				b.Add(round, s.Name, area.Idle, area.Bytes, float64(g.Idle))
			}
			return err
		})
	}, response)
}

func cpuOf(q request) string { return "CPU: " + q.what }

// conclude computes the figures of the goals.
func (b *bench) conclude() {
	// Thanos is measured with and without gzip from the downstream: the cheaper variant counts. ferula has two splices: the
	// more expensive one counts.
	cpu, plain := cpuOf(identity), cpuOf(plainDown)
	b.Measure("frontend/vs-thanos", b.Median(ferula, cpu)/min(b.Median(thanos, cpu), b.Median(thanos, plain)), cpu, plain)
	for goal, q := range map[string]request{"frontend/vs-thanos-gzip": zipped, "frontend/cache-hit-gzip": zippedHit} {
		if b.Length(ferula, q.what) <= gzipRatioMax*b.Length(thanos, q.what) {
			b.Ratio(goal, cpuOf(q))
		}
	}
	b.RatioTo("frontend/vs-relay", relay, cpu)
	splice := area.Worst(b.Median(ferula, spliceWhat), b.Median(ferula, stepsWhat))
	b.Measure("frontend/vs-memcpy", splice/b.Median(copying, copyWhat), spliceWhat, stepsWhat, copyWhat)
	b.Ratio("frontend/cache-hit-vs-thanos", cpuOf(cacheHit))
	b.Ratio("frontend/small", smallCPU(identity, smallRate), smallCPU(zipped, smallRate))
	b.Measure("frontend/anon-59mb-mib", b.Median(ferula, area.GrowthOf+growthSmall)/area.MiB, area.GrowthOf+growthSmall, area.Idle)
	b.Own("frontend/anon-590mb-mib", area.MiB, area.GrowthOf+growthBig)
	megabytes := float64(len(b.response.Whole.Plain)) / 1e6
	b.Note(
		fmt.Sprintf("%d series x %d samples of 15-digit floats, 7 labels: %.1f MB, split in two at midnight by the default interval of %s. CPU is that of the frontend's process per query, sockets and collections included.", series, points, megabytes, interval),
		"The downstream is canned: the whole result and both halves were rendered in advance by Prometheus' codec; each is one write, and gzip is compressed in advance. Thanos requests gzip from it, as Go's transport does by default, ferula requests identity, its default. frontend/vs-thanos takes the cheaper of Thanos in front of a downstream with gzip and in front of one without.",
		"Start and end stay as requested with both (--no-query-range.align-range-with-step), so that both send the same queries. ferula's bytes equal the unsplit response's; Thanos' are encoded differently, so its labels, times and values are compared.",
		"The relay is net/http on both sides with reads of 1 MiB and writes of 256 KiB, as in the frontend; it fetches both halves at once and sends one after the other, unread.",
		"In memory all read and write 64 KiB at a time. frontend/vs-memcpy takes the slower of two splices by promjson.Splicer: plain, and with the check of timestamps against the steps that the frontend uses.",
		"A cache hit is the CPU of the process that serves from its memory cache, sockets included; the run fails if a hit reaches the downstream.",
		"With gzip, ferula compresses the first two hits of a response of more than 1 MiB, keeps the second in the cache as it was sent, and copies that from the third hit on, as long as the parts in the cache are the same. frontend/cache-hit-gzip is the cost of such a later hit. The row of the second hit has the cost of compression and keeping.",
		b.smallNote,
		"Growth is measured on a process that has just started: peak of RssAnon during its first query, less RssAnon after a collection before it. Ten times the series: the same series in ten clusters; Thanos does not run that.",
	)
	b.Note(b.realNotes...)
}
