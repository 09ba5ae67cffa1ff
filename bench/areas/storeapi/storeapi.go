// Package storeapi measures the cost of series in a StoreAPI stream: goals storeapi/*.
//
// The input is a file of series generated from a seed. Two workers, Thanos' codec as released and ferula's server and client,
// send them over TCP within their own process; the floor is gRPC with a codec that does nothing. The received series are
// compared first, every byte of labels and chunks. The memory growth of a streaming server is measured in a separate
// process. The goals query and hop2 measure Thanos query and ferula query as processes between stores and clients.
package storeapi

import (
	"context"
	"errors"
	"fmt"

	"github.com/ferula-io/ferula/bench/area"
	"github.com/ferula-io/ferula/bench/peer"
	"github.com/ferula-io/ferula/bench/streams"
)

// Area is the entry of this area in the list of cmd/bench.
var Area = area.Area{
	Name: "storeapi", About: "StoreAPI streams through ferula, Thanos' codec, and gRPC alone; queriers as processes", Run: run,
}

const (
	thanos = "Thanos"
	floor  = "gRPC alone"
	ferula = "ferula"

	nanosecondsASeries = "ns/series"

	thanosBatch = 64 // the batch size that Thanos' querier requests
	repeats     = 5
)

// side is one implementation under test.
type side struct {
	name   string
	worker *worker
	task   streams.Task // its default request
}

type bench struct {
	env   area.Env
	out   *area.Outcome
	sides []side
	files map[int]string // by number of samples of a series
}

func run(ctx context.Context, env area.Env) (_ *area.Outcome, err error) {
	b := &bench{env: env, files: map[int]string{}, out: &area.Outcome{Sides: []string{thanos, floor, ferula}}}
	for _, n := range sampleCounts {
		if b.files[n], err = ensure(env.Cache, n); err != nil {
			return nil, err
		}
	}
	codec, err := env.Programs.Get(ctx, peer.ThanosCodec)
	if err != nil {
		return nil, err
	}
	own, err := env.Programs.Get(ctx, peer.Storestream)
	if err != nil {
		return nil, err
	}
	b.out.Versions = []string{codec.Version, own.Version}
	mine := own
	if env.Programs.Null {
		mine = codec
	}
	b.sides = []side{{name: thanos, task: streams.Task{Batch: thanosBatch}}, {name: floor, task: streams.Task{Noop: true}}, {name: ferula, task: streams.Task{Batch: thanosBatch, Extension: true}}}
	for i, p := range []peer.Program{codec, own, mine} {
		if b.sides[i].worker, err = startWorker(p); err != nil {
			return nil, err
		}
		w := b.sides[i].worker
		defer func() { err = errors.Join(err, w.close()) }()
	}
	for _, step := range []func(context.Context) error{b.compare, b.streams, b.matrix, b.wire, b.batchBytes} {
		if err := step(ctx); err != nil {
			return nil, err
		}
	}
	if err := b.growth(ctx, own); err != nil {
		return nil, err
	}
	if err := b.labelBytes(ctx); err != nil {
		return nil, fmt.Errorf("label bytes: %w", err)
	}
	if err := b.disjoint(ctx); err != nil {
		return nil, fmt.Errorf("disjoint stores: %w", err)
	}
	if err := b.queriers(ctx); err != nil {
		return nil, err
	}
	b.conclude()
	return b.out, nil
}

// compare checks that all sides deliver equal series, for every kind of request that is measured.
func (b *bench) compare(ctx context.Context) error {
	for _, n := range sampleCounts {
		want := ""
		for _, s := range b.sides {
			if s.task.Noop {
				continue // its client does not decode
			}
			tasks := []streams.Task{s.task, {Batch: thanosBatch}, {Batch: 1}}
			if s.name == ferula {
				tasks = append(tasks, streams.Task{Querier: true})
			}
			for _, t := range tasks {
				t.File, t.Series, t.Check = b.files[n], seriesCount, true
				f, err := s.worker.do(ctx, t)
				if err != nil {
					return err
				}
				if want == "" {
					want = f.Digest
				}
				if f.Digest != want || want == "" {
					return fmt.Errorf("%d samples, %s, %+v: %w", n, s.name, t, area.ErrUnequal)
				}
			}
		}
	}
	b.env.Logf("received series are equal")
	return nil
}

func streamWhat(samples int) string { return fmt.Sprintf("CPU: %d samples", samples) }

// plainWhat names the reading of ferula without deltas, which sends the same bytes as the floor.
func plainWhat(samples int) string { return streamWhat(samples) + ", the same bytes" }
func keptWhat(samples int) string  { return streamWhat(samples) + ", all kept" }
func allocWhat(samples int) string { return fmt.Sprintf("allocations: %d samples, all kept", samples) }

// heldWhat and heldAllocWhat name the readings of the client of ferula query.
func heldWhat(samples int) string { return streamWhat(samples) + ", held by the querier" }

func heldAllocWhat(samples int) string {
	return fmt.Sprintf("allocations: %d samples, held by the querier", samples)
}

// streams takes the readings of the goals, sides in turn.
func (b *bench) streams(ctx context.Context) error {
	for round := 1; round <= b.env.Rounds; round++ {
		for _, n := range sampleCounts {
			for _, s := range b.sides {
				t := s.task
				t.File, t.Series, t.Repeats = b.files[n], seriesCount, repeats
				f, err := s.worker.do(ctx, t)
				if err != nil {
					return err
				}
				b.add(round, s.name, streamWhat(n), f)
				switch s.name {
				case floor:
					b.add(round, s.name, plainWhat(n), f)
					continue
				case ferula:
					plain := t
					plain.NoDeltas = true
					if f, err = s.worker.do(ctx, plain); err != nil {
						return err
					}
					b.add(round, s.name, plainWhat(n), f)
				}
				t.Keep = true
				if f, err = s.worker.do(ctx, t); err != nil {
					return err
				}
				b.add(round, s.name, keptWhat(n), f)
				b.out.Recorder.Add(round, s.name, allocWhat(n), area.Count, float64(f.Mallocs)/seriesCount)
				if s.name == ferula {
					t.Querier = true
					if f, err = s.worker.do(ctx, t); err != nil {
						return err
					}
					b.add(round, s.name, heldWhat(n), f)
					b.out.Recorder.Add(round, s.name, heldAllocWhat(n), area.Count, float64(f.Mallocs)/seriesCount)
				}
			}
		}
		b.env.Logf("round %d of %d", round, b.env.Rounds)
	}
	return nil
}

func (b *bench) add(round int, side, what string, f streams.Figures) {
	b.out.Recorder.Add(round, side, what, nanosecondsASeries, float64(f.CPUNanoseconds)/seriesCount)
}

// wire measures the bytes that servers write.
func (b *bench) wire(ctx context.Context) error {
	for _, n := range sampleCounts {
		for _, kind := range []struct {
			what string
			task streams.Task
		}{
			{"plain", streams.Task{NoDeltas: true}}, {"snappy", streams.Task{NoDeltas: true, Compression: "snappy"}},
			{"labels only", streams.Task{NoDeltas: true, LabelsOnly: true}},
			{"deltas", streams.Task{}}, {"deltas, snappy", streams.Task{Compression: "snappy"}}, {"deltas, labels only", streams.Task{LabelsOnly: true}},
		} {
			for _, s := range b.sides {
				t := kind.task
				t.Batch, t.Extension = s.task.Batch, s.task.Extension
				if s.task.Noop || s.name == thanos && !t.NoDeltas {
					continue
				}
				t.File, t.Series, t.Check = b.files[n], seriesCount, true
				f, err := s.worker.do(ctx, t)
				if err != nil {
					return err
				}
				b.out.Recorder.Add(1, s.name, fmt.Sprintf("bytes of a series: %d samples, %s", n, kind.what), area.Bytes, float64(f.WireBytes)/seriesCount)
			}
		}
	}
	return nil
}

// conclude computes the figures of the goals.
func (b *bench) conclude() {
	rec := &b.out.Recorder
	allocs := 0.0
	var from []string
	for _, n := range sampleCounts {
		allocs, from = max(allocs, rec.Median(ferula, heldAllocWhat(n))), append(from, heldAllocWhat(n))
		b.out.Measure(fmt.Sprintf("storeapi/series-%d", n), rec.Over(ferula, thanos, streamWhat(n)), streamWhat(n))
		b.out.Measure(fmt.Sprintf("storeapi/vs-noop-%d", n), rec.Over(ferula, floor, plainWhat(n)), plainWhat(n))
	}
	b.out.Measure("storeapi/allocs-per-series", allocs, from...)
	b.out.Measure("storeapi/growth", area.Over(rec.Median(ferula, growthWhat(manySeries)), rec.Median(ferula, growthWhat(fewSeries))), growthWhat(fewSeries), growthWhat(manySeries))
	b.out.Notes = append(b.out.Notes,
		fmt.Sprintf("%d series of 9 labels, gauges in XOR chunks of %d samples; server and client in one process, TCP between them, no store, no TLS, no interceptors. CPU is that of both.", seriesCount, chunkSamples),
		"Each side gets its default request: Thanos batches of 64; ferula, from a ferula client, batches of 128 KiB with deltas. Each client converts labels to the engine's type and reads the chunks, then releases them; \"all kept\": it holds everything until the stream ends, ferula as copies. \"Held by the querier\": the client is that of ferula query, which copies labels and chunks of the whole response to its slabs, merges and sorts them, and holds them until the query ends; allocations are those of server and client.",
		"ferula's source holds encoded label sets and consecutive chunks, as the mapped files of a block do. Thanos' source holds encoded messages.",
		"gRPC alone sends the encoded messages that ferula sends without deltas, through buffers of 128 KiB, and drops them. \"The same bytes\" is ferula without deltas.",
		"In the matrix of samples, series and batches both sides get the request that Thanos sends, and ferula still ends a batch at 128 KiB. Its sizes are those of the benchmark in Thanos' change that introduced batches, and 64; time is wall time of the stream, without the garbage collection after it, which CPU includes; all figures are per series.",
		"Growth is that of a server that generates its series while it sends them, so that only the memory of the server itself can grow.",
	)
}
