// Package storeapi measures the cost of series in a StoreAPI stream: goals storeapi/*.
//
// The input is a file of series generated from a seed. Two workers, Thanos' codec as released and ferula's server and client,
// send them over TCP within their own process; the floor is gRPC with a codec that does nothing. The received series are
// compared first, every byte of labels and chunks. The memory growth of a streaming server is measured in a separate
// process. Further goals measure Thanos query and ferula query as processes between stores and clients.
package storeapi

import (
	"context"
	"errors"
	"fmt"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/ferula-io/ferula/bench/area"
	"github.com/ferula-io/ferula/bench/peer"
	"github.com/ferula-io/ferula/bench/proc"
	"github.com/ferula-io/ferula/bench/stores"
	"github.com/ferula-io/ferula/bench/streams"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

// Area is the entry of this area in the list of cmd/bench.
var Area = area.Area{
	Name: "storeapi", About: "StoreAPI streams through ferula, Thanos' codec, and gRPC alone; queriers as processes",
	Sides: []string{thanos, floor, ferula}, Run: run,
}

const (
	thanos = "Thanos"
	floor  = "gRPC alone"
	ferula = "ferula"

	nanosecondsASeries = "ns/series"

	repeats = 5

	fewSeries  = 10_000
	manySeries = 1_000_000
)

// side is one implementation under test.
type side struct {
	name   string
	worker *worker
	task   streams.Task // its default request
}

type bench struct {
	*area.Bench
	sides []side
	files map[int]string // by number of samples of a series
}

func run(ctx context.Context, of *area.Bench) (err error) {
	b := &bench{Bench: of, files: map[int]string{}}
	for _, n := range sampleCounts {
		if b.files[n], err = ensure(b.Cache, n); err != nil {
			return err
		}
	}
	codec, err := b.Program(ctx, peer.ThanosCodec)
	if err != nil {
		return err
	}
	own, err := b.Program(ctx, peer.Storestream)
	if err != nil {
		return err
	}
	mine := own
	if b.Programs.Null {
		mine = codec
	}
	b.sides = []side{
		{name: thanos, task: streams.Task{Batch: stores.Batch}}, {name: floor, task: streams.Task{Noop: true}},
		{name: ferula, task: streams.Task{Batch: stores.Batch, Extension: true}},
	}
	for i, p := range []peer.Program{codec, own, mine} {
		if b.sides[i].worker, err = startWorker(p); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, b.sides[i].worker.close()) }()
	}
	if err := b.compare(ctx); err != nil {
		return err
	}
	if err := b.EachRound("streams", func(round int) error { return errors.Join(b.streams(ctx, round), b.sizes(ctx, round)) }); err != nil {
		return err
	}
	for _, n := range []int{fewSeries, manySeries} {
		if err := b.growth(ctx, b.Side(ferula, own, "growth"), n); err != nil {
			return fmt.Errorf("growth: %w", err)
		}
	}
	for _, step := range []func(context.Context) error{b.labelBytes, b.disjoint, b.query, b.hop} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	b.conclude()
	return nil
}

// compare checks that all sides deliver equal series, for every kind of request that is measured.
func (b *bench) compare(ctx context.Context) error {
	for _, n := range sampleCounts {
		want := ""
		for _, s := range b.sides {
			tls := s.task
			tls.TLS = true
			tasks := []streams.Task{s.task, tls, {Batch: stores.Batch}, {Batch: 1}, {Batch: 10, Snappy: true}}
			switch s.name {
			case floor:
				continue // its client does not decode
			case ferula:
				tasks = append(tasks, streams.Task{Querier: true})
			}
			for _, t := range tasks {
				t.Check = true
				f, err := b.do(ctx, s, n, seriesCount, t)
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
	b.Logf("received series are equal")
	return nil
}

// do runs a task over so many series of so many samples.
func (b *bench) do(ctx context.Context, s side, samples, series int, t streams.Task) (streams.Figures, error) {
	t.File, t.Series = b.files[samples], series
	if t.Repeats == 0 {
		t.Repeats = repeats
	}
	return s.worker.do(ctx, t)
}

func streamWhat(samples int) string { return fmt.Sprintf("CPU: %d samples", samples) }

// plainWhat names the reading of ferula without deltas, which sends the same bytes as the floor.
func plainWhat(samples int) string { return streamWhat(samples) + ", the same bytes" }

// tlsWhat names the reading of the default request over TLS.
func tlsWhat(samples int) string { return streamWhat(samples) + ", TLS" }

// heldWhat and heldAllocWhat name the readings of the client of ferula query.
func heldWhat(samples int) string { return streamWhat(samples) + ", held by the querier" }

func heldAllocWhat(samples int) string {
	return fmt.Sprintf("allocations: %d samples, held by the querier", samples)
}

// streams takes the readings of the goals, sides in turn.
func (b *bench) streams(ctx context.Context, round int) error {
	for _, n := range sampleCounts {
		for _, s := range b.sides {
			for _, what := range []string{streamWhat(n), tlsWhat(n), plainWhat(n), heldWhat(n)} {
				t := s.task
				switch what {
				case tlsWhat(n):
					t.TLS = true
				case plainWhat(n):
					t.NoDeltas = true
				case heldWhat(n):
					t.Querier = true
				}
				if s.name == thanos && t.NoDeltas || s.name != ferula && t.Querier {
					continue
				}
				f, err := b.do(ctx, s, n, seriesCount, t)
				if err != nil {
					return err
				}
				b.Add(round, s.name, what, nanosecondsASeries, float64(f.CPUNanoseconds)/seriesCount)
				if t.Querier {
					b.Add(round, s.name, heldAllocWhat(n), area.Count, float64(f.Mallocs)/seriesCount)
				}
			}
		}
	}
	return nil
}

// size is a stream of so many series in batches of so many.
type size struct {
	series, batch int
	snappy        bool
}

func (z size) what(samples int) string {
	what := fmt.Sprintf("%d samples x %d series, batch %d", samples, z.series, z.batch)
	if z.snappy {
		what += ", snappy"
	}
	return what
}

// sizesOf are the sizes of streams of series of so many samples: with 100 samples also those of the discussion about batches.
func sizesOf(samples int) (all []size) {
	for _, series := range []int{100, 1000, 10_000, seriesCount} {
		all = append(all, size{series, stores.Batch, false})
		for _, batch := range []int{1, 10, 100, 1000} {
			if samples == 100 && series <= 1000 && batch <= series {
				all = append(all, size{series, batch, false}, size{series, batch, true})
			}
		}
	}
	return all
}

// moved is the least number of series that a reading of a size moves.
const moved = 20_000

// sizes takes a reading of every size of a stream. Both sides get the request that Thanos sends.
func (b *bench) sizes(ctx context.Context, round int) error {
	for _, samples := range sampleCounts {
		for _, z := range sizesOf(samples) {
			for _, s := range []side{b.sides[0], b.sides[2]} {
				repeats := max(1, moved/z.series)
				if z.batch == stores.Batch {
					repeats = seriesCount / z.series
				}
				f, err := b.do(ctx, s, samples, z.series, streams.Task{Batch: z.batch, Snappy: z.snappy, Repeats: repeats})
				if err != nil {
					return err
				}
				of, n := z.what(samples), float64(z.series)
				b.Add(round, s.name, "CPU: "+of, nanosecondsASeries, float64(f.CPUNanoseconds)/n)
				if z.batch != stores.Batch {
					b.Add(round, s.name, "time: "+of, nanosecondsASeries, float64(f.Nanoseconds)/n)
					b.Add(round, s.name, "bytes of a series: "+of, area.Bytes, float64(f.Bytes)/n)
					b.Add(round, s.name, "write calls for a stream: "+of, area.Count, float64(f.Writes))
				}
			}
		}
	}
	return nil
}

func growthWhat(n int) string { return fmt.Sprintf("growth of a server: %d series", n) }

// growth measures how much the memory of a server grows while it streams n series. Each measurement starts a new process.
func (b *bench) growth(ctx context.Context, s *area.Side, n int) error {
	launch := area.AtGRPC(func(s *area.Side) proc.Spec { return s.Program.Own(s.Log(), "-grpc="+s.GRPC) })
	r := storeapi.SeriesRequest{MaxMS: 1, Matchers: []*labels.Matcher{labels.MustNewMatcher(labels.MatchEqual, "series", fmt.Sprint(n))}}
	return b.InTurn(growthWhat(n), []*area.Side{s}, func(round int, s *area.Side) error {
		return b.With(ctx, launch, func() (err error) {
			c, err := stores.Dial(s.GRPC, storeapi.ClientOptions{})
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, c.Close()) }()
			// The request for few series is repeated until manySeries were sent in total, so that the servers of both
			// measurements work equally long: a single short response would end before the first garbage collection.
			g, err := s.GrowthDuring(ctx, func() error {
				for range manySeries / n {
					a, err := c.Receive(ctx, r, nil)
					if err == nil && a.Series != n {
						err = fmt.Errorf("%w: %d series", area.ErrUnequal, a.Series)
					}
					if err != nil {
						return err
					}
				}
				return nil
			})
			b.Add(round, ferula, growthWhat(n), area.Bytes, float64(g.Bytes()))
			return err
		}, s)
	})
}

// conclude computes the figures of the goals.
func (b *bench) conclude() {
	var allocs []string
	for _, n := range sampleCounts {
		allocs = append(allocs, heldAllocWhat(n))
		b.Ratio(fmt.Sprintf("storeapi/series-%d", n), streamWhat(n))
		b.RatioTo(fmt.Sprintf("storeapi/vs-noop-%d", n), floor, plainWhat(n))
	}
	b.Ratio("storeapi/tls-series-100", tlsWhat(100))
	b.Own("storeapi/allocs-per-series", 1, allocs...)
	few, many := growthWhat(fewSeries), growthWhat(manySeries)
	b.Measure("storeapi/growth", area.Over(b.Median(ferula, many), b.Median(ferula, few)), few, many)
	b.Note(
		fmt.Sprintf("%d series of 9 labels, gauges in XOR chunks of 120 samples; server and client in one process, TCP between them, no store, no interceptors, and TLS only in the rows that say so: TLS 1.3, AES-128-GCM, on one connection. CPU is that of both.", seriesCount),
		"Each side gets its default request: Thanos batches of 64; ferula, from a ferula client, batches of 128 KiB with deltas. Each client converts labels to the engine's type and reads the chunks, then releases them. \"Held by the querier\": the client is that of ferula query, which copies labels and chunks of the whole response to its slabs, merges and sorts them, and holds them until the query ends; allocations are those of server and client.",
		"ferula's source holds encoded label sets and consecutive chunks, as the mapped files of a block do. Thanos' source holds encoded messages.",
		"gRPC alone sends the encoded messages that ferula sends without deltas, through buffers of 128 KiB, and drops them. \"The same bytes\" is ferula without deltas.",
		"With a number of series and a batch size both sides get the request that Thanos sends, and ferula still ends a batch at 128 KiB; all figures but write calls are per series. Bytes and write calls are those of the server to its connection: messages, frames and headers. Thanos' flag of the batch size, --query.series-response-batch-size, is ferula query's, too.",
		"Growth is that of a server that generates its series while it sends them, so that only the memory of the server itself can grow.",
		"Queriers are processes between a client and ferula serve as the store; only their own CPU is counted. Thanos query runs its default, the Prometheus engine. 161 steps of 3 min over 10,000 series x 8 h of 15-digit floats every 15 s: most of the CPU is the engine. For the first query ferula's querier sends its steps, and the store leaves out the samples between them, at the cost of the store, whose CPU is not counted here; Thanos query gets whole chunks. The second query needs all samples.",
		"Hop: a client requests batches of 64, as Thanos does, and receives every series; both stores have the same series with different replica labels, so that the series of the two alternate.",
	)
}
