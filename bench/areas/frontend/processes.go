package frontend

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/ferula-io/ferula/bench/area"
	"github.com/ferula-io/ferula/bench/canned"
	"github.com/ferula-io/ferula/bench/proc"
)

// processes measures the fronts without a cache, in front of canned downstreams.
func (b *bench) processes(ctx context.Context) (err error) {
	both, err := canned.Serve(false, b.response)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, both.Close()) }()
	plain, err := canned.Serve(true, b.response)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, plain.Close()) }()
	theirs := b.frontOf(thanos, "thanos", both, "")
	before := b.frontOf(thanos, "thanos-plain-downstream", plain, "")
	floor := &front{side: relay, name: "relay", down: plain, spec: func(log string) proc.Spec { return b.programs.relay.Relay(plain.URL, log) }}
	ours := b.frontOf(ferula, "ferula", both, "")
	jobs := []job{
		{theirs, identity, 1}, {floor, identity, 20}, {ours, identity, 20},
		{before, plainDown, 1},
		{theirs, zipped, 1}, {ours, zipped, 2},
	}
	fronts := []*front{theirs, before, floor, ours}
	if !b.env.Programs.Null { // flags and encodings that the peer does not have
		unzips := b.frontOf(ferula, "ferula-gzip-downstream", both, "", "--downstream.encoding=gzip")
		fronts = append(fronts, unzips)
		jobs = append(jobs, job{unzips, gzipDown, 4}, job{ours, zstandard, 4})
	}
	if err := b.start(ctx, fronts...); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop(fronts...)) }()
	if err := b.rounds(ctx, "processes", jobs); err != nil {
		return err
	}
	for _, f := range []*front{theirs, floor, ours} {
		if err := b.cannedStages(ctx, f, identity); err != nil {
			return err
		}
	}
	return nil
}

// rounds compares the response of each job and then takes their readings in turn.
func (b *bench) rounds(ctx context.Context, what string, jobs []job) error {
	for _, j := range jobs {
		if err := b.compare(ctx, j.front, b.response, j.request); err != nil {
			return err
		}
	}
	for round := 1; round <= b.env.Rounds; round++ {
		for _, j := range jobs {
			if b.env.Programs.Null && j.front.side != relay {
				j.repeats = 1 // the peer takes longer
			}
			if err := b.measure(ctx, round, j); err != nil {
				return err
			}
		}
		first := jobs[0]
		b.env.Logf("round %d of %d: %s: CPU %.4g and %.4g s", round, b.env.Rounds, what,
			b.out.Recorder.Median(first.front.side, cpuOf(first.request)), b.out.Recorder.Median(ferula, cpuOf(first.request)))
	}
	return nil
}

// Stages of a request, by the functions in a profile; the innermost one that matches counts.
var stages = []proc.Stage{
	{Name: "collect garbage", In: []string{"runtime.gcBgMarkWorker", "runtime.gcAssist", "runtime.bgsweep", "runtime.bgscavenge", "runtime.gcStart", "runtime.gcMarkTermination"}},
	{Name: "gunzip", In: []string{"compress/flate.(*decompressor)", "compress/gzip.(*Reader)", "klauspost/compress/flate.(*decompressor)"}},
	{Name: "compress", In: []string{"flate.(*Writer)", "flate.(*compressor)", "gzip.(*Writer)", "zstd.(*Encoder)"}},
	{Name: "write", In: []string{"net/http.(*response).Write", "net/http.(*response).ReadFrom", "net/http.(*response).finishRequest", "net/http.(*chunkWriter)"}},
	{Name: "read", In: []string{"frontend/downstream.", "net/http.(*persistConn)", "net/http.(*body)", "net/http.(*bodyEOFSignal)", "queryrange.BodyBuffer", "net/http/internal.(*chunkedReader)"}},
	{Name: "decode", In: []string{"queryrange.prometheusCodec.DecodeResponse", "queryRangeCodec.DecodeResponse"}},
	{Name: "merge", In: []string{"queryrange.prometheusCodec.MergeResponse"}},
	{Name: "encode", In: []string{"queryrange.prometheusCodec.EncodeResponse"}},
	{Name: "read cache", In: []string{"queryrange.resultsCache", "queryrange.(*resultsCache)", "frontend/cache."}},
	{Name: "scan", In: []string{"promjson.(*Scanner)", "promjson.CompareMetrics", "promjson.FirstTime", "promjson.LastTime"}},
	{Name: "splice", In: []string{"frontend.(*splicing)", "promjson.(*Splicer)", "promjson.(*output)", "main.(*relay).copy"}},
}

const profiled = 1500 * time.Millisecond // minimum duration of the profiled queries

// stagesOf records the CPU time of each stage of a request, from a profile over several
// requests.
func (b *bench) stagesOf(ctx context.Context, f *front, what string, minRequests int, get func() (proc.Response, error)) error {
	return b.profileOf(ctx, f.server, f.side, what, minRequests, stages, get)
}

// profileOf is stagesOf for any process that takes part in the requests.
func (b *bench) profileOf(ctx context.Context, server *proc.Server, side, what string, minRequests int, of []proc.Stage, get func() (proc.Response, error)) error {
	once, err := get()
	if err != nil {
		return err
	}
	n := max(minRequests, int(profiled/once.Elapsed))
	spent, err := server.Stages(ctx, time.Duration(n)*once.Elapsed, of, func() error {
		for range n {
			if _, err := get(); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, stage := range append(slices.Clone(of), proc.Stage{Name: proc.Other}) {
		if d, ok := spent[stage.Name]; ok {
			b.out.Recorder.Add(0, side, what+"profile, "+stage.Name, area.Seconds, d.Seconds()/float64(n))
		}
	}
	return nil
}

// cannedStages is stagesOf for a request of the canned response.
func (b *bench) cannedStages(ctx context.Context, f *front, q request) error {
	return b.stagesOf(ctx, f, q.what+": ", 1, func() (proc.Response, error) { return b.send(ctx, f, b.response, q, io.Discard) })
}

// caches measures requests whose whole response is in the in-memory cache.
func (b *bench) caches(ctx context.Context) (err error) {
	down, err := canned.Serve(false, b.response)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, down.Close()) }()
	theirs, ours := b.frontOf(thanos, "thanos-cache", down, inMemory), b.frontOf(ferula, "ferula-cache", down, inMemory)
	fronts := []*front{theirs, ours}
	if err := b.start(ctx, fronts...); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop(fronts...)) }()
	for _, f := range fronts {
		if err := b.fill(ctx, f); err != nil {
			return err
		}
	}
	for _, f := range fronts {
		if err := b.compare(ctx, f, b.response, secondHit); err != nil { // the first hit with gzip
			return err
		}
		if err := b.measure(ctx, 1, job{f, secondHit, 1}); err != nil {
			return err
		}
	}
	jobs := []job{{theirs, cacheHit, 1}, {ours, cacheHit, 10}, {theirs, zippedHit, 1}, {ours, zippedHit, 4}}
	if err := b.rounds(ctx, "cache", jobs); err != nil {
		return err
	}
	for _, j := range jobs {
		if err := b.cannedStages(ctx, j.front, j.request); err != nil {
			return err
		}
	}
	return nil
}

// fills is the maximum number of requests that are sent until a cache has stored a
// response. The cache may drop writes that are too slow.
const fills = 5

// fill sends requests until the response comes from the cache.
func (b *bench) fill(ctx context.Context, f *front) error {
	for range fills {
		a, err := f.server.Get(ctx, f.requestFor(b.response, cacheHit), io.Discard)
		served, unknown := f.down.Take()
		if err := errors.Join(err, unknown); err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
		state := a.Header.Get("X-Ferula-Cache")
		b.env.Logf("%s: %d parts fetched, %s", f.name, len(served), state)
		if len(served) == 0 {
			if f.side == ferula && !b.env.Programs.Null && state != "hit" {
				return fmt.Errorf("%s: %w, it reports %q", f.name, errMiss, state)
			}
			return nil
		}
	}
	return fmt.Errorf("%s: %w after %d queries", f.name, errMiss, fills)
}

// growths measures memory growth, each time on a process that has just started.
func (b *bench) growths(ctx context.Context) error {
	if err := b.growth(ctx, b.response, growthSmall, thanos, ferula); err != nil {
		return err
	}
	if b.env.Programs.Null {
		return nil // the peer would need more memory than the machine has
	}
	b.env.Logf("rendering %d series x %d samples", series*bigCopies, points)
	response, err := canned.Render(big)
	if err != nil {
		return err
	}
	return b.growth(ctx, response, growthBig, ferula)
}

const (
	growthSmall = "growth of RssAnon: one response"
	growthBig   = "growth of RssAnon: ten times the series"
	idleAnon    = "RssAnon, idle"
)

func (b *bench) growth(ctx context.Context, response *canned.Response, what string, sides ...string) (err error) {
	down, err := canned.Serve(false, response)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, down.Close()) }()
	for round := 1; round <= b.env.Rounds; round++ {
		for _, side := range sides {
			f := b.frontOf(side, side+"-fresh", down, "")
			if err := b.growthOf(ctx, round, f, response, what); err != nil {
				return err
			}
		}
		b.env.Logf("round %d of %d: %s", round, b.env.Rounds, what)
	}
	return nil
}

func (b *bench) growthOf(ctx context.Context, round int, f *front, response *canned.Response, what string) (err error) {
	if err := b.start(ctx, f); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop(f)) }()
	if round == 1 && response != b.response { // processes compares the small response
		if err := b.compare(ctx, f, response, request{what: what}); err != nil {
			return err
		}
		if err := errors.Join(stop(f), b.start(ctx, f)); err != nil {
			return err
		}
	}
	grown, err := f.server.GrowthDuring(ctx, func() error {
		a, err := b.send(ctx, f, response, identity, io.Discard)
		if err == nil && a.Bytes == 0 {
			err = area.ErrEmpty
		}
		return err
	})
	if err != nil {
		return err
	}
	b.out.Recorder.Add(round, f.side, what, area.Bytes, float64(grown.Bytes()))
	if response == b.response {
		b.out.Recorder.Add(round, f.side, idleAnon, area.Bytes, float64(grown.Idle))
	}
	return nil
}
