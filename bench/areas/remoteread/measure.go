package remoteread

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/ferula-io/ferula/bench/area"
	"github.com/ferula-io/ferula/bench/blocks"
	"github.com/ferula-io/ferula/bench/proc"
)

const repeats = 3 // requests for one measurement of CPU

// great compares and measures servers over the great blocks.
func (b *bench) great(ctx context.Context) error {
	return b.both(ctx, floats, func() error {
		if err := b.compare(ctx, floats, compared()); err != nil {
			return err
		}
		for round := 1; round <= b.env.Rounds; round++ {
			for _, r := range measuredAlive() {
				for i := range b.sides {
					if err := b.measure(ctx, round, &b.sides[i], r); err != nil {
						return err
					}
				}
			}
			if err := b.underneath(ctx, round); err != nil {
				return err
			}
			if err := b.classic(ctx, round); err != nil {
				return err
			}
			b.env.Logf("round %d of %d: CPU of chunks %v and %v s, of samples %v and %v s", round, b.env.Rounds,
				b.out.Recorder.Median(prometheusSide, "CPU: "+chunks8h().what), b.out.Recorder.Median(ferulaSide, "CPU: "+chunks8h().what),
				b.out.Recorder.Median(prometheusSide, "CPU: "+samples8h().what), b.out.Recorder.Median(ferulaSide, "CPU: "+samples8h().what))
		}
		return nil
	})
}

// sendChecked sends a request. It returns an error if the response is not as long as the one that was compared.
func (b *bench) sendChecked(ctx context.Context, s *side, r read) (response, error) {
	a, err := send(ctx, s.server.URL(), r, nil)
	if want := b.lengths[s.name+name(floats, r)]; err == nil && (a.bytes == 0 || a.bytes != want) {
		err = fmt.Errorf("%s: %s: %w: %d bytes, %d before", s.name, r.what, area.ErrUnequal, a.bytes, want)
	}
	return a, err
}

// measure measures CPU, times, write calls and allocations of a request once.
func (b *bench) measure(ctx context.Context, round int, s *side, r read) error {
	var first, elapsed time.Duration
	before, err := s.server.IO()
	if err != nil {
		return err
	}
	cpu, err := s.server.CPUDuring(ctx, func() error {
		for range repeats {
			a, err := b.sendChecked(ctx, s, r)
			if err != nil {
				return err
			}
			first, elapsed = first+a.firstByte, elapsed+a.elapsed
		}
		return nil
	})
	if err != nil {
		return err
	}
	after, err := s.server.IO()
	if err != nil {
		return err
	}
	mallocs, err := s.server.MallocsDuring(ctx, func() error {
		_, err := b.sendChecked(ctx, s, r)
		return err
	})
	if err != nil {
		return err
	}
	tape := &b.out.Recorder
	tape.Add(round, s.name, "CPU: "+r.what, area.Seconds, cpu.Seconds()/repeats)
	tape.Add(round, s.name, "first byte: "+r.what, area.Seconds, first.Seconds()/repeats)
	tape.Add(round, s.name, "last byte: "+r.what, area.Seconds, elapsed.Seconds()/repeats)
	tape.Add(round, s.name, "write calls: "+r.what, area.Count, float64(after.Sub(before).Writes)/repeats)
	tape.Add(round, s.name, "mallocs: "+r.what, area.Count, float64(mallocs))
	return nil
}

const floorCPU = "CPU: the floor under chunks, 8 h"

// underneath measures the floor.
func (b *bench) underneath(ctx context.Context, round int) (err error) {
	dir, err := blocks.Ensure(ctx, b.env.Cache, floats)
	if err != nil {
		return err
	}
	floor, err := b.start(ctx, b.floor, "-dir="+dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, floor.Stop()) }()
	get := func() error {
		a, err := floor.Get(ctx, proc.Request{Path: "/floor"}, io.Discard)
		if err == nil && a.Bytes < b.lengths[ferulaSide+chunks8h().what]*9/10 {
			err = fmt.Errorf("floor: %w: %d bytes", area.ErrUnequal, a.Bytes)
		}
		return err
	}
	if err := get(); err != nil { // maps the pages
		return err
	}
	cpu, err := floor.CPUDuring(ctx, func() error {
		return errors.Join(get(), get(), get())
	})
	b.out.Recorder.Add(round, floorSide, floorCPU, area.Seconds, cpu.Seconds()/repeats)
	return err
}

// classic measures real, user and system time of both response types, for one reader and for many concurrent ones.
func (b *bench) classic(ctx context.Context, round int) error {
	for _, c := range []struct {
		r read
		n int
	}{{chunks2h(), 1}, {samples2h(), 1}, {chunks8h(), 1}, {samples8h(), 1}, {chunks8h(), readers}, {chunksTenth(), readers}, {samplesTenth(), readers}} {
		for i := range b.sides {
			s := &b.sides[i]
			var a response
			user, sys, err := s.server.TimesDuring(ctx, func() (err error) {
				a, err = sendAll(ctx, s.server.URL(), c.r, c.n)
				return err
			})
			if err != nil {
				return err
			}
			what := c.r.what
			if c.n > 1 {
				what += fmt.Sprintf(", %d readers", c.n)
			}
			tape := &b.out.Recorder
			tape.Add(round, s.name, "real: "+what, area.Seconds, a.elapsed.Seconds())
			tape.Add(round, s.name, "user: "+what, area.Seconds, user.Seconds())
			tape.Add(round, s.name, "sys: "+what, area.Seconds, sys.Seconds())
		}
	}
	return nil
}

// decimals compares the sizes of responses with values that compress well.
func (b *bench) decimals(ctx context.Context) error {
	return b.both(ctx, decimals, func() error {
		return b.compare(ctx, decimals, []read{of(decimals, "8 h", chunks, from, to), of(decimals, "8 h", samples, from, to)})
	})
}

// noise is the resolution of memory growth: a process may hold this many bytes of free memory that it has not released
// to the kernel.
const noise = 1 << 20

// conclude computes the measures of the goals.
func (b *bench) conclude() {
	tape, out := &b.out.Recorder, b.out
	const prometheus, ferula = prometheusSide, ferulaSide
	over := func(goal, what string) { out.Measure(goal, tape.Over(ferula, prometheus, what), what) }
	own := func(goal, what string, unit float64, more ...string) {
		out.Measure(goal, tape.Median(ferula, what)/unit, append([]string{what}, more...)...)
	}
	over("remoteread/chunks-cpu", "CPU: "+chunks8h().what)
	own("remoteread/chunks-anon-mib", "growth of RssAnon: "+chunks8h().what, 1<<20)
	own("remoteread/chunks-mallocs", "mallocs: "+chunks8h().what, 1)
	own("remoteread/chunks-writes", "write calls: "+chunks8h().what, 1)
	out.Measure("remoteread/chunks-floor", area.Over(tape.Median(ferula, "CPU: "+chunks8h().what), tape.Median(floorSide, floorCPU)), "CPU: "+chunks8h().what, floorCPU)
	over("remoteread/chunks-first-byte", "first byte: "+chunks8h().what)
	worstReaders, ofReaders := 0.0, []string{manyGrowth(chunks8h()), manyGrowth(samples8h())}
	for _, what := range ofReaders {
		if v := tape.Median(ferula, what); !(v <= worstReaders) {
			worstReaders = v
		}
	}
	out.Measure("remoteread/readers16-anon-mib", worstReaders/(1<<20), ofReaders...)
	over("remoteread/samples-cpu", "CPU: "+samples8h().what)
	own("remoteread/samples-anon-mib", "growth of RssAnon: "+samples8h().what, 1<<20)
	over("remoteread/samples-first-byte", "first byte: "+samples8h().what)
	bytesFloats, bytesDecimals := "bytes: "+samples8h().what, "bytes: "+name(decimals, of(decimals, "8 h", samples, from, to))
	out.Measure("remoteread/samples-bytes", max(tape.Over(ferula, prometheus, bytesFloats), tape.Over(ferula, prometheus, bytesDecimals)), bytesFloats, bytesDecimals)
	over("remoteread/unaligned-cpu", "CPU: "+chunksCut().what)
	worst, from := 0.0, []string{}
	for _, form := range []string{"chunks", "samples"} {
		few, many := growthName(few(), form), growthName(many(), form)
		worst, from = max(worst, area.Over(max(noise, tape.Median(ferula, many)), max(noise, tape.Median(ferula, few)))), append(from, few, many)
	}
	out.Measure("remoteread/growth", worst, from...)
	over("remoteread/head-chunks-cpu", "CPU: "+headChunks().what)
	over("remoteread/head-samples-cpu", "CPU: "+headSamples().what)
	own("remoteread/head-samples-anon-mib", "growth of RssAnon: "+headSamples().what, 1<<20)
	out.Notes = append(out.Notes,
		fmt.Sprintf("%d series x 8 h at 15 s (%d samples each, %d blocks of 2 h), 15-digit floats; samples-bytes also over 1,000 series of values with 2 decimals.", floats.Series, floats.Samples, 4),
		"Streams of chunks are equal byte by byte. Samples are compared as ferula's client reads them: labels, times and values, from both servers and in both forms.",
		"CPU is that of the server process per request, over some requests in a row and the garbage collection that follows them.",
		"The floor maps the same chunk files and writes them to the client in pieces of 64 KiB, with one copy and two checksums.",
		"Growth is taken on a process that has just started: peak of RssAnon during its first request, less RssAnon after a collection before it. remoteread/growth is the worse of the two forms, 120 samples a series; less than 1 MiB counts as 1 MiB, since a process that has collected keeps about as much of free pages.",
		fmt.Sprintf("The head has %d series of %d samples that both sides received by remote write, full chunks memory-mapped; growth is that of a server that has just replayed them.", recent.Series, recent.Samples),
		fmt.Sprintf("%d readers request samples of a tenth of the series only: ten responses of all series at once would be 20 GB in Prometheus. User and system time are in ticks of 10 ms; real is the slowest reader's.", readers),
	)
}
