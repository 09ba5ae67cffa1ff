package storeclient

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"net"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	"google.golang.org/grpc"

	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/thanos/fanout"
	"github.com/ferula-io/ferula/internal/thanos/sources"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
	"github.com/ferula-io/ferula/internal/tsdb"
	"github.com/ferula-io/ferula/metrics"
)

const startMS = 1_700_000_000_000

// serve serves a StoreAPI with two series of m and returns its address.
func serve(t *testing.T) string {
	t.Helper()
	store, err := tsdb.New(tsdb.Options{Dir: t.TempDir()}, slog.New(slog.DiscardHandler), prometheus.NewRegistry(), metrics.NewSet())
	if err == nil {
		err = store.Open()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	app := store.Appender(context.Background())
	for _, job := range []string{"a", "b"} {
		if _, err := app.Append(0, labels.FromStrings("__name__", "m", "job", job), startMS, 1); err != nil {
			t.Fatal(err)
		}
	}
	if err := app.Commit(); err != nil {
		t.Fatal(err)
	}
	external := func() labels.Labels { return labels.FromStrings("cluster", "eu") }
	return listen(t, sources.NewLocal(store, parser.NewParser(parser.Options{}), external, nil))
}

func listen(t *testing.T, source storeapi.Source) string {
	t.Helper()
	storeapi.RegisterSnappy()
	server := grpc.NewServer(storeapi.GRPCServerOptions()...)
	storeapi.NewServer(source, storeapi.ServerOptions{Metrics: metrics.NewSet()}).Register(server)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = server.Serve(l); close(ended) }()
	t.Cleanup(func() { server.Stop(); <-ended })
	return l.Addr().String()
}

var ofM = labels.MustNewMatcher(labels.MatchEqual, "__name__", "m")

// read returns the number of series of m in source.
func read(t *testing.T, source series.Source) (n int, err error) {
	t.Helper()
	q, err := source.RawQuerier(context.Background(), startMS, startMS)
	if err != nil {
		t.Fatal(err)
	}
	set := q.Select(context.Background(), series.SelectOptions{}, ofM)
	for set.Next() {
		n++
	}
	return n, errors.Join(set.Err(), q.Close())
}

func TestOptions_DialerConnectsToAddressesAndGroups(t *testing.T) {
	address := serve(t)
	for _, group := range []bool{false, true} {
		o := Options{}
		o.Client.Compression = storeapi.Snappy
		dial, err := o.Dialer()
		if err != nil {
			t.Fatal(err)
		}
		c, err := dial(fanout.Address{Name: address, Group: group})
		if err != nil {
			t.Fatal(err)
		}
		info, err := c.Info(context.Background())
		if err != nil || len(info.LabelSets) != 1 {
			t.Errorf("%+v, %v", info, err)
		}
		stream, n := c.Series(context.Background(), storeapi.SeriesRequest{MinMS: startMS, MaxMS: startMS, Matchers: []*labels.Matcher{ofM}}), 0
		for stream.Next() {
			n++
		}
		if err := errors.Join(stream.Err(), stream.Close(), c.Close()); err != nil || n != 2 {
			t.Error(n, err)
		}
	}
}

func TestOptions_DialerChecksTLSFilesAndVerifiesServers(t *testing.T) {
	if _, err := (Options{TLS: true, TLSCA: filepath.Join(t.TempDir(), "absent")}).Dialer(); err == nil {
		t.Error("a CA file that does not exist")
	}
	dial, err := Options{TLS: true}.Dialer()
	if err != nil {
		t.Fatal(err)
	}
	c, err := dial(fanout.Address{Name: serve(t)}) // without TLS
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if _, err := c.Info(ctx); err == nil {
		t.Error("a connection without TLS")
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if _, err := Open("127.0.0.1:1", Options{TLS: true, TLSMinVersion: "0.9"}, 0); err == nil {
		t.Error("a version of TLS that does not exist")
	}
}

func TestSource_ReadsOneStore(t *testing.T) {
	s, err := Open(serve(t), Options{}, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := read(t, s); n != 2 || err != nil {
		t.Error(n, err)
	}
	q, err := s.RawQuerier(context.Background(), 0, math.MaxInt64)
	if err != nil {
		t.Fatal(err)
	}
	if names, err := q.LabelNames(context.Background(), series.SelectOptions{}); err != nil || !slices.Equal(names, []string{"__name__", "cluster", "job"}) {
		t.Error(names, err)
	}
	if err := errors.Join(q.Close(), s.Close()); err != nil {
		t.Error(err)
	}
}

// stalledStore is a store whose series never arrive.
type stalledStore struct {
	storeapi.Source
	canceled chan struct{}
}

func (s stalledStore) ExternalLabels() labels.Labels { return labels.EmptyLabels() }

func (stalledStore) Capabilities() storeapi.Capabilities { return storeapi.Capabilities{} }

func (s stalledStore) Series(ctx context.Context, r storeapi.SeriesRequest) storeapi.Stream {
	return storeapi.LocalSeries(ctx, s, labels.EmptyLabels(), r)
}

func (s stalledStore) RawQuerier(context.Context, int64, int64) (series.Querier, error) {
	return stalledQuerier{s.canceled}, nil
}

type stalledQuerier struct{ canceled chan struct{} }

func (q stalledQuerier) Select(ctx context.Context, _ series.SelectOptions, _ ...*labels.Matcher) series.Set {
	<-ctx.Done()
	close(q.canceled)
	return series.Failed(ctx.Err())
}

func (stalledQuerier) Capabilities() series.Capabilities { return series.Capabilities{} }
func (stalledQuerier) LabelNames(context.Context, series.SelectOptions, ...*labels.Matcher) ([]string, error) {
	return nil, nil
}

func (s stalledStore) LabelNames(ctx context.Context, _ storeapi.LabelsRequest) (_, _ []string, _ error) {
	<-ctx.Done()
	s.canceled <- struct{}{}
	return nil, nil, ctx.Err()
}

func (stalledQuerier) Close() error { return nil }

func TestSource_AStalledStoreIsCutOff(t *testing.T) {
	canceled := make(chan struct{})
	address := listen(t, stalledStore{canceled: canceled})
	s, err := Open(address, Options{}, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if n, err := read(t, s); n != 0 || !errors.Is(err, errStalled) {
		t.Error(n, err)
	}
	<-canceled // the request of the store ends too
}

func TestSource_AStoreThatStallsForLabelNamesIsCutOff(t *testing.T) {
	canceled := make(chan struct{})
	s, err := Open(listen(t, stalledStore{canceled: canceled}), Options{}, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	q, err := s.RawQuerier(t.Context(), startMS, startMS)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	if names, err := q.LabelNames(t.Context(), series.SelectOptions{}); len(names) > 0 || !errors.Is(err, errStalled) {
		t.Error(names, err)
	}
	<-canceled // the request of the store ends too
}
