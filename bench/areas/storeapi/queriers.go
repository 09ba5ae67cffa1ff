package storeapi

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ferula-io/ferula/bench/area"
	"github.com/ferula-io/ferula/bench/blocks"
	"github.com/ferula-io/ferula/bench/peer"
	"github.com/ferula-io/ferula/bench/proc"
	"github.com/ferula-io/ferula/bench/push"
	"github.com/ferula-io/ferula/bench/stores"
	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
	"github.com/ferula-io/ferula/internal/thanos/storepb"
)

// The data of stores, and the queries for queriers.
var (
	hopSpec = blocks.Spec{
		Metric: "bench_metric", Values: blocks.Floats15, Series: 100_000, Samples: 120, StepMS: 15_000, StartMS: blocks.QuietStartMS, Seed: 1,
	}
	// A store of which label bytes are measured has two blocks, and the hour after them in the head, of the same series.
	labelSpec = blocks.Spec{
		Metric: "bench_metric", Values: blocks.Floats15, Series: 10_000, Samples: 240, StepMS: 60_000, StartMS: blocks.QuietStartMS, Seed: 1,
	}

	queries = []area.Query{
		area.EightHours("sum by (namespace), 8 h", "sum by (namespace) (bench_metric)", 20),
		area.EightHours("max by (namespace) of avg_over_time[5m], 8 h", "max by (namespace) (avg_over_time(bench_metric[5m]))", 20),
	}
)

func querySpec() blocks.Spec { return area.Floats(8) }

func labelHeadSpec() blocks.Spec {
	s := labelSpec
	s.Samples, s.StartMS, s.Seed = 60, s.EndMS(), 2
	return s
}

const (
	requestsPerReading = 3 // consecutive requests for one reading
	hopWhat            = "200,000 series of 120 samples of two stores, merged and forwarded"
	querierPrefix      = "CPU of the querier: "

	tolerance = 1e-9 // the engine in Thanos is of an older release, which adds in another order

	partMS = 2 * 3600_000 // length of a block
	parts  = 3            // of a store whose label bytes are measured: the blocks and the head
)

// withQueriers calls work while Thanos query and ferula query run over the same stores.
func (b *bench) withQueriers(ctx context.Context, endpoints []string, work func(both []*area.Side) error) error {
	both, err := b.Pair(ctx, peer.Thanos)
	if err != nil {
		return err
	}
	launch := area.AtGRPC(func(s *area.Side) proc.Spec { return s.Program.Query(s.Log(), s.GRPC, endpoints) })
	return b.With(ctx, launch, func() error {
		for _, s := range both {
			err := proc.Until(ctx, 30*time.Second, 100*time.Millisecond, s.Name+" has discovered its stores", func() error {
				body, _, err := s.Fetch(ctx, proc.Request{Path: "/api/v1/stores"})
				if err == nil && slices.ContainsFunc(endpoints, func(e string) bool { return !strings.Contains(string(body), e) }) {
					err = area.ErrEmpty
				}
				return err
			})
			if err != nil {
				return err
			}
		}
		return work(both)
	}, both...)
}

// overStores calls work while ferula serve serves blocks as stores. Each has an external label replica with its name.
func (b *bench) overStores(ctx context.Context, data blocks.Spec, names []string, flags []string, work func(all []*area.Side, endpoints []string) error) error {
	p, err := b.Program(ctx, peer.Ferula)
	if err != nil {
		return err
	}
	var all []*area.Side
	for _, name := range names {
		all = append(all, b.Side(ferula, p, "store-"+name))
	}
	launch := func(s *area.Side) (proc.Spec, error) {
		config := "global: {external_labels: {replica: " + names[slices.Index(all, s)] + "}}\nscrape_configs: []"
		return b.TSDB(ctx, area.TSDB{Data: data, Config: config, Flags: flags, GRPC: true})(s)
	}
	return b.With(ctx, launch, func() error {
		var endpoints []string
		for _, s := range all {
			endpoints = append(endpoints, s.GRPC)
		}
		return work(all, endpoints)
	}, all...)
}

// readings takes readings of the CPU of queriers.
func (b *bench) readings(ctx context.Context, what string, both []*area.Side, send func(s *area.Side) error) error {
	return b.InTurn(what, both, func(round int, s *area.Side) error {
		cpu, err := s.CPUDuring(ctx, func() error {
			for range requestsPerReading {
				if err := send(s); err != nil {
					return err
				}
			}
			return nil
		})
		b.Add(round, s.Name, querierPrefix+what, area.Seconds, cpu.Seconds()/requestsPerReading)
		return err
	})
}

// query measures PromQL queries of both queriers.
func (b *bench) query(ctx context.Context) error {
	return b.overStores(ctx, querySpec(), []string{"a"}, nil, func(_ []*area.Side, endpoints []string) error {
		return b.withQueriers(ctx, endpoints, func(both []*area.Side) error {
			for _, q := range queries {
				if err := b.SameResults(ctx, q, tolerance, both...); err != nil {
					return err
				}
			}
			for _, q := range queries {
				err := b.readings(ctx, q.What, both, func(s *area.Side) error { _, _, err := s.Fetch(ctx, q.Request()); return err })
				if err != nil {
					return err
				}
			}
			b.Ratio("storeapi/query", querierPrefix+queries[0].What)
			return nil
		})
	})
}

// hop measures both queriers while they forward the merged series of two stores.
func (b *bench) hop(ctx context.Context) error {
	return b.overStores(ctx, hopSpec, []string{"a", "b"}, nil, func(_ []*area.Side, endpoints []string) error {
		return b.withQueriers(ctx, endpoints, func(both []*area.Side) error {
			return stores.With(stores.LikeThanos, func(clients []*stores.Client) error {
				r := stores.Request(hopSpec.Metric, hopSpec.StartMS, hopSpec.EndMS())
				found, _, err := stores.Compare(ctx, r, false, clients...)
				if err == nil && found[0].Series != 2*hopSpec.Series {
					err = fmt.Errorf("%w: %d series", area.ErrUnequal, found[0].Series)
				}
				if err != nil {
					return err
				}
				b.Logf("merged streams are equal: %d series, %d chunks", found[0].Series, found[0].Chunks)
				err = b.readings(ctx, hopWhat, both, func(s *area.Side) error {
					got, err := clients[slices.Index(both, s)].Receive(ctx, r, nil)
					if err == nil && (got.Series != found[0].Series || got.Chunks != found[0].Chunks) {
						err = area.ErrUnequal
					}
					return err
				})
				b.Ratio("storeapi/hop2", querierPrefix+hopWhat)
				return err
			}, both[0].GRPC, both[1].GRPC)
		})
	})
}

// shape is what sends labels: a store, or a querier over two.
type shape struct {
	what   string
	series int
	peer   string // address of Thanos query; "": none
	own    string // address of ferula
}

// labelBytes measures the bytes of labels that a store and a querier send, with and without differences.
func (b *bench) labelBytes(ctx context.Context) error {
	flags := []string{area.ReceiveWrites}
	return b.overStores(ctx, labelSpec, []string{"a", "b"}, flags, func(all []*area.Side, endpoints []string) error {
		if err := push.All(ctx, labelHeadSpec(), all...); err != nil {
			return err
		}
		return b.withQueriers(ctx, endpoints, func(both []*area.Side) error {
			var whats []string
			for _, s := range []shape{
				{"two blocks and a head", labelSpec.Series, "", endpoints[0]},
				{"a querier over two stores", 2 * labelSpec.Series, both[0].GRPC, both[1].GRPC},
			} {
				for _, labelsOnly := range []bool{false, true} {
					what, err := b.labelBytesOf(ctx, s, labelsOnly)
					if err != nil {
						return fmt.Errorf("%s: %w", what, err)
					}
					whats = append(whats, what)
				}
			}
			b.Own("storeapi/symbols-label-bytes", 1, whats...)
			b.Note(fmt.Sprintf("Label bytes of a series: all bytes of the messages of a stream, less those of its chunks. A store is ferula serve with %d series of nine labels, one of them external, in two blocks and in the head; the querier is over two of them, whose series differ in the external label. \"With differences\" is what a ferula process on another machine requests, \"plain\" the same request without these. \"Labels only\" is a request without chunks, whose messages hold more series.", labelSpec.Series))
			return nil
		})
	})
}

// labelBytesOf measures one shape. what names the figure: bytes with differences over bytes without.
func (b *bench) labelBytesOf(ctx context.Context, s shape, labelsOnly bool) (what string, err error) {
	what = "label bytes of a series: " + s.what
	if labelsOnly {
		what += ", labels only"
	}
	plain, coded := what+", plain", what+", with differences"
	var first *stores.Digest
	for _, r := range []struct {
		side, address, what string
		opts                storeapi.ClientOptions
	}{
		{thanos, s.peer, plain, stores.LikeThanos}, {ferula, s.own, plain, storeapi.ClientOptions{NoDeltas: true}},
		{ferula, s.own, coded, storeapi.ClientOptions{}},
	} {
		if r.address == "" {
			continue
		}
		n, bytes, d, err := receiveLabels(ctx, r.address, r.opts, labelsOnly)
		if err != nil {
			return what, fmt.Errorf("%s: %w", r.side, err)
		}
		if first == nil {
			first = &d
		}
		if d.Sum() != first.Sum() || n != s.series {
			return what, fmt.Errorf("%w: %s sends %d series, want %d, %s", area.ErrUnequal, r.side, n, s.series, r.what)
		}
		b.Add(1, r.side, r.what, area.Bytes, float64(bytes)/float64(n))
	}
	what += ", with over without"
	b.Add(0, ferula, what, area.Ratio, area.Over(b.Median(ferula, coded), b.Median(ferula, plain)))
	return what, nil
}

// receiveLabels requests all series of a store at address, and returns their number, and the bytes of the messages without those
// of chunks. Unless it requests labels only, each must have chunks of both blocks and of the head.
func receiveLabels(ctx context.Context, address string, opts storeapi.ClientOptions, labelsOnly bool) (n int, bytes int64, d stores.Digest, err error) {
	err = stores.With(opts, func(clients []*stores.Client) error {
		r := stores.Request(labelSpec.Metric, labelSpec.StartMS, labelHeadSpec().EndMS())
		r.SkipChunks = labelsOnly
		a, err := clients[0].Receive(ctx, r, func(lset []byte, chunks []series.Chunk) error {
			var of [parts]bool
			for _, c := range chunks {
				sent := []series.Part{{Encoding: c.Encoding, Data: c.Data}}
				bytes -= int64(storepb.FieldSize(storepb.ChunkSize(c.MinMS, c.MaxMS, sent)))
				if part := (c.MinMS - labelSpec.StartMS) / partMS; part >= 0 && part < parts {
					of[part] = true
				}
			}
			if of != [parts]bool{!labelsOnly, !labelsOnly, !labelsOnly} {
				return fmt.Errorf("%w: chunks of blocks and head: %v", area.ErrUnequal, of)
			}
			return d.Add(lset, chunks)
		})
		n, bytes = a.Series, bytes+a.Bytes
		return err
	}, address)
	return n, bytes, d, err
}
