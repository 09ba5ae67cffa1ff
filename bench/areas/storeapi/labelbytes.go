package storeapi

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/stats"

	"github.com/ferula-io/ferula/bench/area"
	"github.com/ferula-io/ferula/bench/blocks"
	"github.com/ferula-io/ferula/bench/push"
	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
	"github.com/ferula-io/ferula/internal/thanos/storepb"
)

// The samples of a store: two blocks, and the hour after them in the head. The series of both are the same.
var (
	labelSpec = blocks.Spec{
		Metric: "bench_metric", Values: blocks.Floats15, Series: 10_000, Samples: 240, StepMS: 60_000, StartMS: blocks.QuietStartMS, Seed: 1,
	}
	labelHeadSpec = blocks.Spec{
		Metric: "bench_metric", Values: blocks.Floats15, Series: 10_000, Samples: 60, StepMS: 60_000, StartMS: labelSpec.EndMS(), Seed: 2,
	}
)

const (
	partMS = 2 * 3600_000 // length of a block
	parts  = 3            // of a store: the blocks and the head
)

// shape is what sends labels: a store, or a querier over two.
type shape struct {
	what   string
	series int
	peer   string // address of Thanos query; "": none
	own    string // address of ferula
}

// labelBytes measures the bytes of labels that a store and a querier send, with and without differences.
func (b *bench) labelBytes(ctx context.Context) (err error) {
	from, err := blocks.Ensure(ctx, b.env.Cache, labelSpec)
	if err != nil {
		return err
	}
	var stores []string
	for _, name := range []string{"a", "b"} {
		server, address, err := b.runStore(ctx, from, "labels-"+name, "global: {external_labels: {replica: "+name+"}}\nscrape_configs: []\n", "--web.enable-remote-write-receiver")
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, server.Stop()) }()
		if err := push.Samples(ctx, server.URL(), labelHeadSpec); err != nil {
			return err
		}
		stores = append(stores, address)
	}
	both, stop, err := b.runQueriers(ctx, stores)
	defer func() { err = errors.Join(err, stop()) }()
	if err != nil {
		return err
	}
	worst, whats := 0.0, []string(nil)
	for _, s := range []shape{
		{"two blocks and a head", labelSpec.Series, "", stores[0]},
		{"a querier over two stores", 2 * labelSpec.Series, both[0].address, both[1].address},
	} {
		for _, labelsOnly := range []bool{false, true} {
			ratio, what, err := b.labelBytesOf(ctx, s, labelsOnly)
			if err != nil {
				return fmt.Errorf("%s: %w", what, err)
			}
			worst, whats = max(worst, ratio), append(whats, what)
		}
	}
	b.out.Measure("storeapi/symbols-label-bytes", worst, whats...)
	b.out.Notes = append(b.out.Notes, fmt.Sprintf("Label bytes of a series: all bytes of the messages of a stream, less those of its chunks. A store is ferula serve with %d series of nine labels, one of them external, in two blocks and in the head; the querier is over two of them, whose series differ in the external label. \"With differences\" is what a ferula process on another machine requests, \"plain\" the same request without these. \"Labels only\" is a request without chunks, whose messages hold more series.", labelSpec.Series))
	return nil
}

// labelBytesOf measures one shape. what names the figure: bytes with differences over bytes without.
func (b *bench) labelBytesOf(ctx context.Context, s shape, labelsOnly bool) (ratio float64, what string, err error) {
	what = "label bytes of a series: " + s.what
	if labelsOnly {
		what += ", labels only"
	}
	plain, coded := what+", plain", what+", with differences"
	var first *labelStream
	for _, r := range []struct {
		side, address, what string
		opts                storeapi.ClientOptions
	}{
		{thanos, s.peer, plain, storeapi.ClientOptions{NoExtension: true, BatchSeries: thanosBatch}},
		{ferula, s.own, plain, storeapi.ClientOptions{NoDeltas: true}},
		{ferula, s.own, coded, storeapi.ClientOptions{}},
	} {
		if r.address == "" {
			continue
		}
		got, err := receiveLabels(ctx, r.address, r.opts, labelsOnly)
		if err != nil {
			return 0, what, fmt.Errorf("%s: %w", r.side, err)
		}
		if first == nil {
			first = &got
		}
		if got.sum != first.sum || got.series != s.series {
			return 0, what, fmt.Errorf("%w: %s sends %d series, want %d, %s", area.ErrUnequal, r.side, got.series, s.series, r.what)
		}
		b.out.Recorder.Add(1, r.side, r.what, area.Bytes, float64(got.labelBytes)/float64(got.series))
	}
	rec := &b.out.Recorder
	what += ", with over without"
	ratio = area.Over(rec.Median(ferula, coded), rec.Median(ferula, plain))
	rec.Add(0, ferula, what, area.Ratio, ratio)
	return ratio, what, nil
}

// labelStream is what a stream of series has sent.
type labelStream struct {
	series     int
	labelBytes int64             // all but chunks
	sum        [sha256.Size]byte // of labels and chunks
}

// messageBytes counts the bytes of the messages of a client's calls.
type messageBytes struct{ n atomic.Int64 }

func (*messageBytes) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (*messageBytes) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (*messageBytes) HandleConn(context.Context, stats.ConnStats)                       {}

// HandleRPC implements stats.Handler.
func (m *messageBytes) HandleRPC(_ context.Context, s stats.RPCStats) {
	if in, ok := s.(*stats.InPayload); ok {
		m.n.Add(int64(in.WireLength))
	}
}

// receiveLabels requests all series of a store at address. Unless it requests labels only, each must have chunks of both
// blocks and of the head.
func receiveLabels(ctx context.Context, address string, opts storeapi.ClientOptions, labelsOnly bool) (got labelStream, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var wire messageBytes
	conn, err := grpc.NewClient(address, append(storeapi.GRPCDialOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithStatsHandler(&wire))...)
	if err != nil {
		return got, err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	set := storeapi.NewClient(conn, opts).Series(ctx, storeapi.SeriesRequest{
		MinMS: labelSpec.StartMS, MaxMS: labelHeadSpec.EndMS(), SkipChunks: labelsOnly, AbortOnPartial: true,
		Matchers: []*labels.Matcher{labels.MustNewMatcher(labels.MatchEqual, "__name__", labelSpec.Metric)},
	})
	defer func() { err = errors.Join(err, set.Close()) }()
	hash := sha256.New()
	chunkBytes := int64(0)
	for set.Next() {
		got.series++
		hash.Write(set.Labels())
		var of [parts]bool
		for _, c := range set.Chunks() {
			fmt.Fprint(hash, c.MinMS, c.MaxMS, c.Encoding)
			hash.Write(c.Data)
			sent := []series.Part{{Encoding: c.Encoding, Data: c.Data}}
			chunkBytes += int64(storepb.FieldSize(storepb.ChunkSize(c.MinMS, c.MaxMS, sent)))
			if part := (c.MinMS - labelSpec.StartMS) / partMS; part >= 0 && part < parts {
				of[part] = true
			}
		}
		if of != [parts]bool{!labelsOnly, !labelsOnly, !labelsOnly} {
			return got, fmt.Errorf("%w: chunks of blocks and head: %v", area.ErrUnequal, of)
		}
	}
	got.labelBytes, got.sum = wire.n.Load()-chunkBytes, [sha256.Size]byte(hash.Sum(nil))
	return got, set.Err()
}
