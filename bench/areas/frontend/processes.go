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

// processes measures the fronts side by side before canned downstreams, without a cache.
func (b *bench) processes(ctx context.Context) (err error) {
	both, err := canned.Serve(false, b.answer)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, both.Close()) }()
	plain, err := canned.Serve(true, b.answer)
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
	if !b.env.Programs.Null { // flags and encodings that the peer has not
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

// rounds compares the answer of each job and then takes their readings in turn.
func (b *bench) rounds(ctx context.Context, what string, jobs []job) error {
	for _, j := range jobs {
		if err := b.compare(ctx, j.front, b.answer, j.question); err != nil {
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
			b.out.Tape.Best(first.front.side, cpuOf(first.question)), b.out.Tape.Best(ferula, cpuOf(first.question)))
	}
	return nil
}

// Stages of the way, by the functions that a profile shows, the innermost of which counts.
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
	{Name: "splice", In: []string{"frontend/splice.", "promjson.(*Splicer)", "promjson.(*output)", "main.(*relay).move"}},
}

const profiled = 1500 * time.Millisecond // of queries in a row, at least

// stagesOf says where the CPU of a question goes, by a profile over some of them.
func (b *bench) stagesOf(ctx context.Context, f *front, what string, least int, ask func() (proc.Answer, error)) error {
	once, err := ask()
	if err != nil {
		return err
	}
	n := max(least, int(profiled/once.Elapsed))
	spent, err := f.server.Stages(ctx, time.Duration(n)*once.Elapsed, stages, func() error {
		for range n {
			if _, err := ask(); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, stage := range append(slices.Clone(stages), proc.Stage{Name: proc.Other}) {
		if d, ok := spent[stage.Name]; ok {
			b.out.Tape.Add(0, f.side, what+"profile, "+stage.Name, area.Seconds, d.Seconds()/float64(n))
		}
	}
	return nil
}

// cannedStages is stagesOf for a question about the canned answer.
func (b *bench) cannedStages(ctx context.Context, f *front, q question) error {
	return b.stagesOf(ctx, f, q.what+": ", 1, func() (proc.Answer, error) { return b.ask(ctx, f, b.answer, q, io.Discard) })
}

// caches measures full hits in the memory cache.
func (b *bench) caches(ctx context.Context) (err error) {
	down, err := canned.Serve(false, b.answer)
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
	if err := b.rounds(ctx, "cache", []job{{theirs, cacheHit, 1}, {ours, cacheHit, 10}}); err != nil {
		return err
	}
	for _, f := range fronts {
		if err := b.cannedStages(ctx, f, cacheHit); err != nil {
			return err
		}
	}
	return nil
}

// fills is how often a cache is given the chance to keep an answer: what does not keep up may be dropped.
const fills = 5

// fill asks until the answer comes from the cache.
func (b *bench) fill(ctx context.Context, f *front) error {
	for range fills {
		a, err := f.server.Get(ctx, f.request(b.answer, cacheHit), io.Discard)
		served, unknown := f.down.Take()
		if err := errors.Join(err, unknown); err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
		state := a.Header.Get("X-Ferula-Cache")
		b.env.Logf("%s: %d parts fetched, %s", f.name, len(served), state)
		if len(served) == 0 {
			if f.side == ferula && !b.env.Programs.Null && state != "hit" {
				return fmt.Errorf("%s: %w, it says %q", f.name, errMiss, state)
			}
			return nil
		}
	}
	return fmt.Errorf("%s: %w after %d queries", f.name, errMiss, fills)
}

// growths measures memory, each time on a process that has just started.
func (b *bench) growths(ctx context.Context) error {
	if err := b.growth(ctx, b.answer, growthSmall, thanos, ferula); err != nil {
		return err
	}
	if b.env.Programs.Null {
		return nil // the peer would need more memory than there is
	}
	b.env.Logf("rendering %d series x %d samples", series*bigCopies, points)
	answer, err := canned.Render(big)
	if err != nil {
		return err
	}
	return b.growth(ctx, answer, growthBig, ferula)
}

const (
	growthSmall = "growth of RssAnon: one answer"
	growthBig   = "growth of RssAnon: ten times the series"
	idleAnon    = "RssAnon, idle"
)

func (b *bench) growth(ctx context.Context, answer *canned.Answer, what string, sides ...string) (err error) {
	down, err := canned.Serve(false, answer)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, down.Close()) }()
	for round := 1; round <= b.env.Rounds; round++ {
		for _, side := range sides {
			f := b.frontOf(side, side+"-fresh", down, "")
			if err := b.growthOf(ctx, round, f, answer, what); err != nil {
				return err
			}
		}
		b.env.Logf("round %d of %d: %s", round, b.env.Rounds, what)
	}
	return nil
}

func (b *bench) growthOf(ctx context.Context, round int, f *front, answer *canned.Answer, what string) (err error) {
	if err := b.start(ctx, f); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop(f)) }()
	if round == 1 && answer != b.answer { // the small one is compared elsewhere
		if err := b.compare(ctx, f, answer, question{what: what}); err != nil {
			return err
		}
		if err := errors.Join(stop(f), b.start(ctx, f)); err != nil {
			return err
		}
	}
	grown, err := f.server.GrowthDuring(ctx, func() error {
		a, err := b.ask(ctx, f, answer, identity, io.Discard)
		if err == nil && a.Bytes == 0 {
			err = area.ErrEmpty
		}
		return err
	})
	if err != nil {
		return err
	}
	b.out.Tape.Add(round, f.side, what, area.Bytes, float64(grown.Bytes()))
	if answer == b.answer {
		b.out.Tape.Add(round, f.side, idleAnon, area.Bytes, float64(grown.Idle))
	}
	return nil
}
