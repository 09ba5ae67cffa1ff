// Package remoteread measures the cost of remote read, for the server and for the client: goals remoteread/*.
//
// Prometheus and ferula serve run as processes on copies of the same blocks. Both get the same requests in turn, for both
// response types of the protocol. Streams of chunks must be equal byte by byte. Responses with samples may differ, since
// Prometheus does not sort their series and omits zeros: ferula's own client must read the same labels, times and values
// from both servers and both response types. The bench then measures CPU, write calls and allocations of a running server,
// the memory of servers that have just started, and times of both response types.
package remoteread

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/ferula-io/ferula/bench/area"
	"github.com/ferula-io/ferula/bench/blocks"
	"github.com/ferula-io/ferula/bench/peer"
	"github.com/ferula-io/ferula/bench/proc"
	"github.com/ferula-io/ferula/bench/push"
)

// Area is the entry of this area in the list of cmd/bench.
var Area = area.Area{
	Name: "remoteread", About: "remote read of Prometheus and ferula serve, both response types",
	Sides: []string{prometheusSide, floorSide, ferulaSide}, Run: run,
}

// Columns of the table. The floor has one of its own, because the spread of its readings decides whether a run is recorded.
const (
	prometheusSide = "Prometheus"
	floorSide      = "floor"
	ferulaSide     = "ferula"
)

const (
	hourMS  = 3600_000
	readers = 16
	repeats = 3 // requests for one measurement of CPU

	tolerance = 1e-9 // engines may add values in another order

	// slowBytesPerSecond is the rate of a slow reader: a response of chunks takes it about a minute.
	slowBytesPerSecond = 2 << 20
)

func floats() blocks.Spec { return area.Floats(8) }

func decimals() blocks.Spec {
	s := floats()
	s.Values, s.Series, s.Seed = blocks.Decimals2, 1000, 2
	return s
}

// recent is pushed to both sides by remote write. Its range is less than 3 h, so it stays in their heads.
func recent() blocks.Spec {
	s := floats()
	s.Samples, s.Seed = 135*4, 4
	return s
}

// few and many are the blocks for the growth of memory by series.
func few() blocks.Spec  { return small(1_000) }
func many() blocks.Spec { return small(100_000) }

// small returns the spec of blocks with few samples a series.
func small(series int) blocks.Spec {
	return blocks.Spec{Metric: "bench_metric", Values: blocks.Integers, Series: series, Samples: 120, StepMS: 60_000, StartMS: blocks.QuietStartMS, Seed: 3}
}

// whole is a read of all samples of a spec.
func whole(s blocks.Spec, form string) read { return of(s, "8 h", form, s.StartMS, s.EndMS()-1) }

// inHead is a read of the last 2 h of the head. Its start cuts chunks.
func inHead(form string) read {
	return of(recent(), "the last 2 h, in the head", form, recent().EndMS()-2*hourMS, recent().EndMS()-1)
}

func of2h(form string) read {
	return of(floats(), "2 h", form, floats().StartMS+2*hourMS, floats().StartMS+4*hourMS-1)
}

func chunks8h() read       { return whole(floats(), chunks) }
func samples8h() read      { return whole(floats(), samples) }
func headChunks() read     { return inHead(chunks) }
func headSamples() read    { return inHead(samples) }
func decimalSamples() read { return whole(decimals(), samples) }

func chunksCut() read {
	from := floats().StartMS + hourMS + 7_777
	return of(floats(), "2 h that cut chunks", chunks, from, from+2*hourMS)
}

// bench is one run of the area.
type bench struct {
	*area.Bench
	sides        []*area.Side
	drain, floor *area.Side
}

func run(ctx context.Context, of *area.Bench) (err error) {
	b := &bench{Bench: of}
	if b.sides, err = b.Pair(ctx, peer.Prometheus); err != nil {
		return err
	}
	for name, to := range map[string]**area.Side{peer.Drain: &b.drain, peer.Relay: &b.floor} {
		program, err := b.Programs.Get(ctx, name)
		if err != nil {
			return err
		}
		*to = b.Side(name, program, name)
	}
	launch := b.TSDB(ctx, area.TSDB{Data: floats()})
	if err := b.With(ctx, launch, func() error { return b.great(ctx) }, b.sides...); err != nil {
		return err
	}
	ofDecimals := func() error { return b.compare(ctx, decimals(), whole(decimals(), chunks), decimalSamples()) }
	if err := b.With(ctx, b.TSDB(ctx, area.TSDB{Data: decimals()}), ofDecimals, b.sides...); err != nil {
		return err
	}
	if err := b.memory(ctx, launch, chunks8h(), samples8h()); err != nil {
		return err
	}
	if err := b.concurrent(ctx, launch); err != nil {
		return err
	}
	for _, spec := range []blocks.Spec{few(), many()} {
		if err := b.memory(ctx, b.TSDB(ctx, area.TSDB{Data: spec}), grown(spec, chunks), grown(spec, samples)); err != nil {
			return err
		}
	}
	if err := b.head(ctx); err != nil {
		return err
	}
	b.conclude()
	return nil
}

// own launches one of the bench's programs.
func own(flags ...string) area.Launch {
	return func(s *area.Side) (proc.Spec, error) { return s.Program.Own(s.Log(), flags...), nil }
}

// compare returns an error unless both sides return the same data for every read.
func (b *bench) compare(ctx context.Context, spec blocks.Spec, reads ...read) error {
	return b.With(ctx, own(), func() error {
		reports := map[string]string{}
		for _, r := range reads {
			var sums [2][]byte
			for i, s := range b.sides {
				to := hashing()
				a, err := r.send(ctx, s.Server, to)
				if err == nil {
					err = b.SameLength(s.Name, name(r), a.Bytes)
				}
				if err != nil {
					return fmt.Errorf("%s: %s: %w", s.Name, r.what, err)
				}
				sums[i] = to.sum.Sum(nil)
				b.Add(1, s.Name, "bytes: "+name(r), area.Bytes, float64(a.Bytes))
				text, err := r.drained(ctx, b.drain.Server, s.Server)
				if err != nil {
					return fmt.Errorf("%s: %s: %w", s.Name, r.what, err)
				}
				same := fmt.Sprint(r.mint, r.maxt)
				if reports[same] == "" {
					reports[same] = text
				}
				var nSeries, nSamples int
				if _, err := fmt.Sscanf(text, "%d series, %d samples", &nSeries, &nSamples); err != nil || nSeries != spec.Series || nSamples < spec.Series {
					return fmt.Errorf("%s: %s: %w: %q", s.Name, r.what, area.ErrEmpty, text)
				}
				if text != reports[same] {
					return fmt.Errorf("%s: %s: %w: %s, elsewhere %s", s.Name, r.what, area.ErrUnequal, text, reports[same])
				}
			}
			if r.form == chunks && !bytes.Equal(sums[0], sums[1]) {
				return fmt.Errorf("%s: %w: other bytes", r.what, area.ErrUnequal)
			}
			b.Logf("responses are equal: %s: %s", name(r), reports[fmt.Sprint(r.mint, r.maxt)])
		}
		return nil
	}, b.drain)
}

// name returns the name of a read in the table.
func name(r read) string {
	if r.spec == floats() || r.spec == recent() {
		return r.what
	}
	return fmt.Sprintf("%s, %s x %d", r.what, r.spec.Values, r.spec.Series)
}

// great compares and measures servers over the great blocks.
func (b *bench) great(ctx context.Context) error {
	if err := b.compare(ctx, floats(), chunks8h(), samples8h(), of2h(chunks), of2h(samples), chunksCut()); err != nil {
		return err
	}
	if err := errors.Join(b.costs(ctx, chunks8h(), samples8h(), chunksCut()), b.queried(ctx)); err != nil {
		return err
	}
	return b.EachRound("floor and times", func(round int) error {
		if err := errors.Join(b.underneath(ctx, round), b.ofClient(ctx, round)); err != nil {
			return err
		}
		for _, r := range []read{of2h(chunks), of2h(samples), chunks8h(), samples8h()} {
			for _, s := range b.sides {
				user, sys, err := s.TimesDuring(ctx, func() error { _, err := b.send(ctx, s, r, &sink{}); return err })
				if err != nil {
					return err
				}
				b.Add(round, s.Name, "user: "+r.what, area.Seconds, user.Seconds())
				b.Add(round, s.Name, "sys: "+r.what, area.Seconds, sys.Seconds())
			}
		}
		return nil
	})
}

// queried measures each program as it evaluates PromQL over remote_read, and the server that it reads.
func (b *bench) queried(ctx context.Context) error {
	q := area.EightHours("sum by (namespace), 8 h", "sum by (namespace) (bench_metric)", 20)
	var readers []*area.Side
	reads := map[*area.Side]*area.Side{}
	for _, from := range b.sides {
		for _, program := range b.sides {
			reader := b.Side(program.Name, program.Program, program.Name+"-reads-"+from.Name)
			readers, reads[reader] = append(readers, reader), from
		}
	}
	launch := func(s *area.Side) (proc.Spec, error) {
		config := fmt.Sprintf("remote_read: [{url: '%s/api/v1/read', read_recent: true}]", reads[s].URL())
		return b.TSDB(ctx, area.TSDB{Config: config})(s)
	}
	return b.With(ctx, launch, func() error {
		if err := b.SameResults(ctx, q, tolerance, readers...); err != nil {
			return fmt.Errorf("over remote_read: %w", err)
		}
		return b.InTurn("PromQL over remote_read", readers, func(round int, s *area.Side) error {
			measure := func(of *area.Side, work func() error) error {
				what := "CPU of the server that " + s.Name + " queries by remote_read: "
				if of == s {
					what = "CPU of " + s.Name + " that queries by remote_read: "
				}
				cpu, err := of.CPUDuring(ctx, work)
				b.Add(round, reads[s].Name, what+q.What, area.Seconds, cpu.Seconds())
				return err
			}
			return area.Around([]*area.Side{reads[s], s}, measure, func() error {
				a, err := s.Get(ctx, q.Request(), io.Discard)
				return errors.Join(err, b.SameLength(s.Name+" from "+reads[s].Name, q.What, a.Bytes))
			})
		})
	}, readers...)
}

// send sends a request. The response must be as long as the one that was compared.
func (b *bench) send(ctx context.Context, s *area.Side, r read, to *sink) (proc.Response, error) {
	a, err := r.send(ctx, s.Server, to)
	if err == nil {
		err = b.SameLength(s.Name, name(r), a.Bytes)
	}
	return a, err
}

// costs takes the readings of requests to servers that run.
func (b *bench) costs(ctx context.Context, reads ...read) error {
	return b.InTurn(reads[0].what, b.sides, func(round int, s *area.Side) error {
		for _, r := range reads {
			w := area.Work{What: r.what, Repeats: repeats, Mallocs: true, Send: func() (proc.Response, error) { return b.send(ctx, s, r, &sink{}) }}
			if err := b.Costs(ctx, round, s.Name, s.Server, w); err != nil {
				return err
			}
		}
		return nil
	})
}

const floorCPU = "CPU: the floor under chunks, 8 h"

// underneath measures the floor, which must send about as many bytes as the chunks have.
func (b *bench) underneath(ctx context.Context, round int) error {
	dir, err := blocks.Ensure(ctx, b.Cache, floats())
	if err != nil {
		return err
	}
	return b.With(ctx, own("-dir="+dir), func() error {
		get := func() error {
			a, err := b.floor.Get(ctx, proc.Request{Path: "/floor"}, io.Discard)
			if least := b.Median(ferulaSide, "bytes: "+chunks8h().what) * 9 / 10; err == nil && float64(a.Bytes) < least {
				err = fmt.Errorf("floor: %w: %d bytes", area.ErrUnequal, a.Bytes)
			}
			return err
		}
		if err := get(); err != nil { // maps the pages
			return err
		}
		cpu, err := b.floor.CPUDuring(ctx, func() error { return errors.Join(get(), get(), get()) })
		b.Add(round, floorSide, floorCPU, area.Seconds, cpu.Seconds()/repeats)
		return err
	}, b.floor)
}

const (
	clientGrowth = "growth of RssAnon of ferula's client: "
	clientCPU    = "CPU of ferula's client: "
)

// ofClient measures the growth of memory of ferula's client, which reads from each server, and then the CPU of another read.
func (b *bench) ofClient(ctx context.Context, round int) error {
	for _, s := range b.sides {
		for _, r := range []read{samples8h(), chunks8h()} {
			err := b.With(ctx, own(), func() error {
				drain := func() error { _, err := r.drained(ctx, b.drain.Server, s.Server); return err }
				g, err := b.drain.GrowthDuring(ctx, drain)
				if err != nil {
					return err
				}
				b.Add(round, s.Name, clientGrowth+r.what, area.Bytes, float64(g.Bytes()))
				cpu, err := b.drain.CPUDuring(ctx, drain)
				b.Add(round, s.Name, clientCPU+r.what, area.Seconds, cpu.Seconds())
				return err
			}, b.drain)
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// grown is a read of all samples of small blocks.
func grown(spec blocks.Spec, form string) read {
	r := of(spec, "", form, spec.StartMS, spec.EndMS()-1)
	r.what = fmt.Sprintf("%s, %d series x %d samples", form, spec.Series, spec.Samples)
	return r
}

// memory measures the growth of memory by the first request to a server that has just started.
func (b *bench) memory(ctx context.Context, launch area.Launch, reads ...read) error {
	return b.InTurn("memory: "+reads[0].what, b.sides, func(round int, s *area.Side) error {
		for _, r := range reads {
			_, err := b.Growth(ctx, round, s, launch, r.what, func() error {
				_, err := b.send(ctx, s, r, &sink{})
				return err
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
}

func manyGrowth(r read) string {
	return fmt.Sprintf("%s, %d readers, half of them slow", r.what, readers)
}

// concurrent measures the growth of memory while many readers read at once, half of them slowly. When the fast readers have
// read their responses, the slow ones disconnect. Prometheus is measured with chunks only, because with samples its memory for
// 16 readers exceeds the machine's.
func (b *bench) concurrent(ctx context.Context, launch area.Launch) error {
	return b.InTurn("memory with many readers", b.sides, func(round int, s *area.Side) error {
		for _, r := range []read{chunks8h(), samples8h()} {
			if r.form == samples && (s == b.sides[0] || b.Programs.Null) {
				continue
			}
			if _, err := b.Growth(ctx, round, s, launch, manyGrowth(r), func() error { return b.readAll(ctx, s, r) }); err != nil {
				return err
			}
		}
		return nil
	})
}

// readAll reads a response with all readers at once. A fast reader must receive the whole response, a slow one a part of it,
// for which it may have to wait until the fast ones have ended: servers serve ten readers at once.
func (b *bench) readAll(ctx context.Context, s *area.Side, r read) error {
	slow, leave := context.WithCancel(ctx)
	defer leave()
	slowly := make(chan error)
	var begun sync.WaitGroup // the slow readers that still wait for their first byte
	begun.Add(readers / 2)
	go func() {
		slowly <- proc.Parallel(readers/2, func(int) error {
			to := &sink{rate: slowBytesPerSecond, first: sync.OnceFunc(begun.Done)}
			defer to.first()
			_, err := r.send(slow, s.Server, to)
			if slow.Err() != nil { // readAll has ended it
				err = nil
			}
			if err == nil && to.bytes == 0 {
				err = fmt.Errorf("%s: a slow reader: %w", r.what, area.ErrEmpty)
			}
			return err
		})
	}()
	err := proc.Parallel(readers/2, func(int) error {
		a, err := r.send(ctx, s.Server, &sink{})
		if want := b.Median(s.Name, "bytes: "+r.what); err == nil && float64(a.Bytes) != want {
			err = fmt.Errorf("%s: %w: %d bytes, want %v", r.what, area.ErrUnequal, a.Bytes, want)
		}
		return err
	})
	begun.Wait()
	leave()
	return errors.Join(err, <-slowly)
}

// head compares and measures servers whose samples are in the head. Then it measures the memory of servers that have just
// replayed the same write-ahead log.
func (b *bench) head(ctx context.Context) error {
	t := area.TSDB{Flags: []string{area.ReceiveWrites}}
	err := b.With(ctx, b.TSDB(ctx, t), func() error {
		if err := push.All(ctx, recent(), b.sides...); err != nil {
			return err
		}
		for _, s := range b.sides {
			if err := push.WaitMapped(ctx, s.Server, recent()); err != nil {
				return fmt.Errorf("%s: %w", s.Name, err)
			}
		}
		if err := b.compare(ctx, recent(), headChunks(), headSamples()); err != nil {
			return err
		}
		return b.costs(ctx, headChunks(), headSamples())
	}, b.sides...)
	if err != nil {
		return err
	}
	t.Keep = true
	return b.memory(ctx, b.TSDB(ctx, t), headChunks(), headSamples())
}

// noise is the resolution of memory growth: a process may hold this many bytes of free memory that it has not released
// to the kernel.
const noise = 1 << 20

// conclude computes the measures of the goals.
func (b *bench) conclude() {
	for goal, what := range map[string]string{
		"chunks-cpu": "CPU: " + chunks8h().what, "samples-cpu": "CPU: " + samples8h().what, "unaligned-cpu": "CPU: " + chunksCut().what,
		"chunks-first-byte": "first byte: " + chunks8h().what, "samples-first-byte": "first byte: " + samples8h().what,
		"head-chunks-cpu": "CPU: " + headChunks().what, "head-samples-cpu": "CPU: " + headSamples().what,
	} {
		b.Ratio("remoteread/"+goal, what)
	}
	b.Ratio("remoteread/samples-bytes", "bytes: "+samples8h().what, "bytes: "+name(decimalSamples()))
	for goal, whats := range map[string][]string{
		"chunks-anon-mib": {chunks8h().what}, "samples-anon-mib": {samples8h().what}, "head-samples-anon-mib": {headSamples().what},
		"readers16-anon-mib": {manyGrowth(chunks8h()), manyGrowth(samples8h())},
	} {
		for i := range whats {
			whats[i] = area.GrowthOf + whats[i]
		}
		b.Own("remoteread/"+goal, area.MiB, whats...)
	}
	b.Own("remoteread/chunks-mallocs", 1, "mallocs: "+chunks8h().what)
	b.Own("remoteread/chunks-writes", 1, "write calls: "+chunks8h().what)
	cpu := "CPU: " + chunks8h().what
	b.Measure("remoteread/chunks-floor", area.Over(b.Median(ferulaSide, cpu), b.Median(floorSide, floorCPU)), cpu, floorCPU)
	worst, from := 0.0, []string{}
	for _, form := range []string{chunks, samples} {
		least, most := area.GrowthOf+grown(few(), form).what, area.GrowthOf+grown(many(), form).what
		worst = max(worst, area.Over(max(noise, b.Median(ferulaSide, most)), max(noise, b.Median(ferulaSide, least))))
		from = append(from, least, most)
	}
	b.Measure("remoteread/growth", worst, from...)
	b.Note(
		fmt.Sprintf("%d series x 8 h at 15 s (%d samples each, 4 blocks of 2 h), 15-digit floats; samples-bytes also over 1,000 series of values with 2 decimals.", floats().Series, floats().Samples),
		"Streams of chunks are equal byte by byte. Samples are compared as ferula's client reads them: labels, times and values, from both servers and in both forms.",
		"CPU is that of the server process per request, over some requests in a row and the garbage collection that follows them.",
		"By remote_read: Prometheus and ferula without blocks, each with remote_read (read_recent) of each server. The column is the server.",
		"The floor maps the same chunk files and writes them to the client in pieces of 64 KiB, with one copy and two checksums.",
		"Growth is taken on a process that has just started: peak of RssAnon during its first request, less RssAnon after a collection before it. remoteread/growth is the worse of the two forms, 120 samples a series; less than 1 MiB counts as 1 MiB, since a process that has collected keeps about as much of free pages.",
		fmt.Sprintf("The head has %d series of %d samples that both sides received by remote write, full chunks memory-mapped; growth is that of a server that has just replayed them.", recent().Series, recent().Samples),
		fmt.Sprintf("%d readers: half of them take %d MiB a second and disconnect when the others have ended. User and system time are in ticks of 10 ms.", readers, slowBytesPerSecond>>20),
	)
}
