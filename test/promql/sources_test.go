package promql_test

import (
	"context"
	"log/slog"
	"math"
	"net"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	promtsdb "github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/util/teststorage"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/ferula-io/ferula/internal/remoteread"
	"github.com/ferula-io/ferula/internal/thanos/dedup"
	"github.com/ferula-io/ferula/internal/thanos/fanout"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
	"github.com/ferula-io/ferula/internal/tsdb"
	"github.com/ferula-io/ferula/metrics"
)

// wires are the ways in which the engine reads a store.
var wires = map[string]func(testing.TB) storage.Storage{
	"TSDB":         func(t testing.TB) storage.Storage { return newStore(t) },
	"all features": func(t testing.TB) storage.Storage { return newStore(t) },
	"samples":      func(t testing.TB) storage.Storage { s := newStore(t); return remote{s, s} },
	"StoreAPI":     func(t testing.TB) storage.Storage { s := newStore(t); return remote{s, overStoreAPI(t, s)} },
	"remote read":  func(t testing.TB) storage.Storage { s := newStore(t); return remote{s, overRemoteRead(t, s)} },
}

// newStore returns an empty store. If the test needs start timestamps, which ours does
// not keep, it returns Prometheus' own.
func newStore(t testing.TB) storage.Storage {
	t.Helper()
	if strings.Contains(t.Name(), "start_timestamps") {
		return teststorage.New(t, func(o *promtsdb.Options) {
			o.EnableSTStorage, o.EnableHistogramSTEncoding, o.FloatChunkEncoding = true, true, chunkenc.EncXOR2
		})
	}
	s, err := tsdb.New(tsdb.Options{
		Dir: t.TempDir(), Retention: -1, NoLockfile: true, FreeBytesMin: -1,
		MinBlockDuration: 24 * time.Hour, MaxBlockDuration: 24 * time.Hour,
	}, slog.New(slog.DiscardHandler), prometheus.NewRegistry(), metrics.NewSet())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Open(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// remote is a store that is written directly and read over a wire. It has no raw interface.
type remote struct {
	storage.Storage
	from storage.Queryable
}

// Querier implements storage.Queryable.
func (r remote) Querier(mint, maxt int64) (storage.Querier, error) { return r.from.Querier(mint, maxt) }

// overRemoteRead serves a store by remote read, and returns a client.
func overRemoteRead(t testing.TB, s storage.Storage) storage.Queryable {
	t.Helper()
	server := httptest.NewServer(remoteread.NewServer(remoteread.Options{FrameBytesMax: 1 << 20, SamplesMax: 50_000_000}, s, slog.New(slog.DiscardHandler), nil))
	t.Cleanup(server.Close)
	return remoteread.NewClient(remoteread.ClientOptions{URL: server.URL, HTTP: server.Client()})
}

// overStoreAPI serves a store by StoreAPI, and returns a querier's storage.
func overStoreAPI(t testing.TB, s storage.Storage) storage.Queryable {
	t.Helper()
	source, ok := s.(*tsdb.Store)
	if !ok {
		return s
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(storeapi.GRPCServerOptions()...)
	storeapi.NewServer(local{Store: source}, storeapi.ServerOptions{}).Register(server)
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(listener) }()
	endpoints := fanout.NewEndpoints(fanout.EndpointsOptions{
		Static: []fanout.Address{{Name: listener.Addr().String()}},
		Dial: func(a fanout.Address) (fanout.Client, error) {
			address := a.Name
			conn, err := grpc.NewClient("passthrough:///"+address, append(storeapi.GRPCDialOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
			if err != nil {
				return nil, err
			}
			return client{storeapi.NewClient(conn, storeapi.ClientOptions{}), conn}, nil
		},
	})
	endpoints.Update(context.Background())
	t.Cleanup(func() { endpoints.Close(); server.Stop(); <-done })
	f := fanout.New(endpoints, fanout.Options{Dedup: dedup.Penalty, IsCounter: dedup.IsCounter, Counter: dedup.Counter})
	return queries{f}
}

// queries opens a storage for each query.
type queries struct{ fanout *fanout.Fanout }

// Querier implements storage.Queryable.
func (q queries) Querier(mint, maxt int64) (storage.Querier, error) {
	return q.fanout.Queryable(fanout.Request{AbortOnPartial: true}).Querier(mint, maxt)
}

// client is a StoreAPI client that owns its connection.
type client struct {
	*storeapi.Client
	conn *grpc.ClientConn
}

// Series implements fanout.Client.
func (c client) Series(ctx context.Context, r storeapi.SeriesRequest) storeapi.Stream {
	return c.Client.Series(ctx, r)
}

// Close implements fanout.Client.
func (c client) Close() error { return c.conn.Close() }

// local is a store as a source of StoreAPI.
type local struct {
	storeapi.NoServices
	*tsdb.Store
}

// Info implements storeapi.Source.
func (local) Info(context.Context) (storeapi.Info, error) {
	return storeapi.Info{Component: "sidecar", Store: &storeapi.StoreInfo{TimeRange: storeapi.TimeRange{MinMS: math.MinInt64, MaxMS: math.MaxInt64}}}, nil
}

// Capabilities implements storeapi.Source.
func (local) Capabilities() storeapi.Capabilities { return storeapi.Capabilities{} }

// Series implements storeapi.API.
func (l local) Series(ctx context.Context, r storeapi.SeriesRequest) storeapi.Stream {
	return storeapi.LocalSeries(ctx, l.Store, labels.EmptyLabels(), r)
}

// ExternalLabels implements storeapi.Source.
func (local) ExternalLabels() labels.Labels { return labels.EmptyLabels() }

// LabelNames implements storeapi.Source.
func (local) LabelNames(context.Context, storeapi.LabelsRequest) (names, warnings []string, err error) {
	return nil, nil, nil
}

// LabelValues implements storeapi.Source.
func (local) LabelValues(context.Context, storeapi.LabelsRequest) (values, warnings []string, err error) {
	return nil, nil, nil
}
