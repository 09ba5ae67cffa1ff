// Package sidecar measures the cost of a StoreAPI over Prometheus: goals sidecar/*.
//
// One Prometheus serves the blocks. Thanos' and ferula's sidecars run as processes with the same flags, and ferula's
// also without the directory of Prometheus, so that it reads blocks by remote read. One client requests
// the same series from them in turn and drains the messages. Before the measurement the responses are compared: labels,
// order, chunks. The cost of Prometheus itself is not counted. The same is done with samples in the head of Prometheus, where
// the samples in the requested range are compared.
package sidecar

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/ferula-io/ferula/bench/area"
	"github.com/ferula-io/ferula/bench/blocks"
	"github.com/ferula-io/ferula/bench/peer"
	"github.com/ferula-io/ferula/bench/proc"
	"github.com/ferula-io/ferula/bench/push"
	"github.com/ferula-io/ferula/bench/stores"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

// Area is the entry of this area in the list of cmd/bench.
var Area = area.Area{
	Name: "sidecar", About: "StoreAPI over Prometheus: sidecars of Thanos and ferula, as processes",
	Sides: []string{"Thanos", byRemoteRead, "ferula"}, Run: run,
}

const (
	hourMS       = 3600_000
	byRemoteRead = "ferula by remote read" // its directory is not that of Prometheus
	repeats      = 3                       // consecutive requests for one reading
)

func spec() blocks.Spec { return area.Floats(8) }

// recent is pushed by remote write. Its range is less than 3 h, so it stays in the head.
func recent() blocks.Spec {
	s := spec()
	s.Samples, s.Seed = 135*4, 4
	return s
}

// request is a Series request for all series.
type request struct {
	what    string
	series  storeapi.SeriesRequest
	samples int // of a series in the range, if samples are compared
}

func of(what string, fromMS, toMS int64, without ...string) request {
	r := stores.Request(spec().Metric, fromMS, toMS-1)
	r.WithoutReplicaLabels = without
	return request{what: what, series: r}
}

func whole(what string, without ...string) request {
	return of("Series of 10,000 x 8 h"+what, spec().StartMS, spec().EndMS(), without...)
}

func plain() request       { return whole("") }
func withoutName() request { return whole(" without replica label", "replica") }
func plain2h() request {
	return of("Series of 10,000 x 2 h", spec().StartMS+2*hourMS, spec().StartMS+4*hourMS)
}

func labelsOnly() request {
	r := whole(" without chunks")
	r.series.SkipChunks = true
	return r
}

// recentSeries requests the last 2 h of the head. Its start cuts chunks.
func recentSeries() request {
	r := of("Series of the last 2 h, in the head", recent().EndMS()-2*hourMS, recent().EndMS())
	r.samples = 480
	return r
}

// bench is one run of the area.
type bench struct {
	*area.Bench
	sides      []*area.Side
	prometheus *area.Side
}

func run(ctx context.Context, of *area.Bench) (err error) {
	b := &bench{Bench: of}
	if b.prometheus, err = b.SideOf(ctx, "Prometheus", peer.Prometheus, "prometheus"); err != nil {
		return err
	}
	if b.sides, err = b.Pair(ctx, peer.Thanos); err != nil {
		return err
	}
	b.sides = slices.Insert(b.sides, 1, b.Side(byRemoteRead, b.sides[1].Program, "remote-read"))
	err = b.With(ctx, b.TSDB(ctx, area.TSDB{Data: spec(), Config: area.Replica}), func() error {
		return b.measure(ctx, []request{plain(), withoutName(), labelsOnly(), plain2h()}, plain(), withoutName())
	}, b.prometheus)
	if err != nil {
		return err
	}
	inHead := area.TSDB{Config: area.Replica, Flags: []string{area.ReceiveWrites}}
	err = b.With(ctx, b.TSDB(ctx, inHead), func() error {
		if err := errors.Join(push.All(ctx, recent(), b.prometheus), push.WaitMapped(ctx, b.prometheus.Server, recent())); err != nil {
			return err
		}
		return b.measure(ctx, []request{recentSeries()}, recentSeries())
	}, b.prometheus)
	if err != nil {
		return fmt.Errorf("head: %w", err)
	}
	b.conclude()
	return nil
}

// measure compares the responses of both sidecars and takes the readings of all requests, and those of memory of some.
func (b *bench) measure(ctx context.Context, requests []request, memory ...request) error {
	launch := area.AtGRPC(func(s *area.Side) proc.Spec { // both programs take the same flags
		data := b.prometheus.TSDBDir()
		if s.Name == byRemoteRead {
			data = s.TSDBDir()
		}
		return s.Program.Sidecar(s.Log(), s.GRPC, b.prometheus.URL(), data)
	})
	err := b.With(ctx, launch, func() error {
		return stores.With(stores.LikeThanos, func(clients []*stores.Client) error {
			for _, q := range requests {
				if err := b.compare(ctx, q, clients...); err != nil {
					return fmt.Errorf("%s: %w", q.what, err)
				}
			}
			return b.InTurn(requests[0].what, b.sides, func(round int, s *area.Side) error {
				for _, q := range requests {
					if err := b.costs(ctx, round, s, clients[slices.Index(b.sides, s)], q); err != nil {
						return err
					}
				}
				return nil
			})
		}, b.sides[0].GRPC, b.sides[1].GRPC, b.sides[2].GRPC)
	}, b.sides...)
	if err != nil {
		return err
	}
	return b.InTurn("memory", b.sides, func(round int, s *area.Side) error {
		for _, q := range memory {
			g, err := b.Growth(ctx, round, s, launch, q.what, func() error {
				return stores.With(stores.LikeThanos, func(clients []*stores.Client) error {
					_, err := b.send(ctx, s, clients[0], q)
					return err
				}, s.GRPC)
			})
			if err != nil {
				return err
			}
			b.Add(round, s.Name, area.Idle, area.Bytes, float64(g.Idle))
			for _, percent := range []int{25, 50, 75, 100} {
				b.Add(round, s.Name, fmt.Sprintf("RssAnon over idle at %d %%: %s", percent, q.what), area.Bytes, float64(g.At(float64(percent)/100)))
			}
		}
		return nil
	})
}

// compare returns an error unless both responses have the same series in the same order, with the same chunks or samples.
func (b *bench) compare(ctx context.Context, q request, clients ...*stores.Client) error {
	all, d, err := stores.Compare(ctx, q.series, q.samples > 0, clients...)
	if err != nil {
		return err
	}
	return complete(q, all[0], d.Count)
}

// complete returns an error unless a response has all series, and their chunks or samples. A chunk has an hour at most.
func complete(q request, a stores.Response, samples int) error {
	least := spec().Series * int((q.series.MaxMS-q.series.MinMS+1)/hourMS)
	if q.series.SkipChunks {
		least = 0
	}
	if a.Series != spec().Series || a.Chunks < least || least == 0 && a.Chunks > 0 || samples != q.samples*spec().Series {
		return fmt.Errorf("%s: %w: %d series, %d chunks, %d samples", q.what, area.ErrEmpty, a.Series, a.Chunks, samples)
	}
	return nil
}

// send drains a response. It must have as many bytes as the earlier ones.
func (b *bench) send(ctx context.Context, s *area.Side, c *stores.Client, q request) (stores.Response, error) {
	a, err := c.Receive(ctx, q.series, nil)
	if err == nil {
		err = b.SameLength(s.Name, q.what, a.Bytes)
	}
	return a, err
}

func (b *bench) costs(ctx context.Context, round int, s *area.Side, c *stores.Client, q request) error {
	var last stores.Response
	w := area.Work{What: q.what, Repeats: repeats, Mallocs: true, Send: func() (proc.Response, error) {
		a, err := b.send(ctx, s, c, q)
		last = a
		return proc.Response{FirstByte: a.First, Elapsed: a.Elapsed}, err
	}}
	if err := b.Costs(ctx, round, s.Name, s.Server, w); err != nil {
		return err
	}
	b.Add(round, s.Name, "messages: "+q.what, area.Count, float64(last.Messages))
	b.Add(round, s.Name, "bytes of messages: "+q.what, area.Bytes, float64(last.Bytes))
	return nil
}

// conclude computes the figures of the goals.
func (b *bench) conclude() {
	b.Ratio("sidecar/cpu", "CPU: "+plain().what)
	b.Ratio("sidecar/labels-only", "CPU: "+labelsOnly().what)
	growth := area.GrowthOf + plain().what
	b.Measure("sidecar/anon-mib", b.Median("ferula", growth)/area.MiB, growth, area.Idle)
	b.Note(
		fmt.Sprintf("%d series x 8 h of 15-digit floats every 15 s in blocks of 2 h, behind one Prometheus, whose cost is not counted. CPU is that of the sidecar process per request, over %d requests in a row and the garbage collection after them.", spec().Series, repeats),
		"The client requests batches of 64, as Thanos' querier does. Labels, order and chunks of both responses are equal; the sizes of their messages differ and are reported as bytes.",
		"Prometheus has two external labels, as in an HA pair. \"Without replica label\" is the request of a querier that deduplicates.",
		"Growth is that of a new process: the peak of RssAnon during its first request less RssAnon after a garbage collection before it. RssAnon over idle is its course in the same request, at shares of its duration. First byte is the first message.",
		fmt.Sprintf("In the head: %d samples of each series, received by Prometheus from remote write, full chunks memory-mapped; the last 2 h are requested. Labels and samples of both responses in this range are equal.", recent().Samples),
	)
}
