// Package stores serves storages by the StoreAPI on loopback, for tests.
package stores

import (
	"context"
	"math"
	"net"
	"sync"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/thanos/fanout"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

// Raw is a storage as the source of a StoreAPI. It lists no labels.
type Raw struct {
	storeapi.NoServices
	storage.ChunkQueryable
}

func (Raw) Info(context.Context) (storeapi.Info, error) {
	return storeapi.Info{Component: "store", Store: &storeapi.StoreInfo{
		TimeRange: storeapi.TimeRange{MinMS: math.MinInt64, MaxMS: math.MaxInt64}, Sharding: true, WithoutReplicaLabels: true,
	}}, nil
}
func (Raw) ExternalLabels() labels.Labels       { return labels.EmptyLabels() }
func (Raw) Capabilities() storeapi.Capabilities { return storeapi.Capabilities{} }
func (r Raw) Series(ctx context.Context, request storeapi.SeriesRequest) storeapi.Stream {
	return storeapi.LocalSeries(ctx, r, labels.EmptyLabels(), request)
}

func (r Raw) RawQuerier(ctx context.Context, mint, maxt int64) (series.Querier, error) {
	return series.Open(ctx, r.ChunkQueryable, mint, maxt)
}

func (Raw) LabelNames(context.Context, storeapi.LabelsRequest) (names, warnings []string, err error) {
	return nil, nil, nil
}

func (Raw) LabelValues(context.Context, storeapi.LabelsRequest) (values, warnings []string, err error) {
	return nil, nil, nil
}

// Serve serves a source until the test ends; stop closes its connections at once.
func Serve(t testing.TB, source storeapi.Source) (address string, stop func()) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(storeapi.GRPCServerOptions()...)
	storeapi.NewServer(source, storeapi.ServerOptions{}).Register(server)
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(l) })
	stop = sync.OnceFunc(func() { server.Stop(); serving.Wait() })
	t.Cleanup(stop)
	return l.Addr().String(), stop
}

// client is a StoreAPI client that owns its connection.
type client struct {
	*storeapi.Client
	conn *grpc.ClientConn
}

func (c client) Series(ctx context.Context, r storeapi.SeriesRequest) storeapi.Stream {
	return c.Client.Series(ctx, r)
}
func (c client) Close() error { return c.conn.Close() }

// Fanout serves sources until the test ends, and returns a fanout over them.
func Fanout(t testing.TB, opts fanout.Options, sources ...storeapi.Source) *fanout.Fanout {
	t.Helper()
	endpoints := fanout.EndpointsOptions{Dial: func(a fanout.Address) (fanout.Client, error) {
		conn, err := grpc.NewClient(a.Name, append(storeapi.GRPCDialOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
		if err != nil {
			return nil, err
		}
		return client{storeapi.NewClient(conn, storeapi.ClientOptions{}), conn}, nil
	}}
	for _, source := range sources {
		address, _ := Serve(t, source)
		endpoints.Static = append(endpoints.Static, fanout.Address{Name: address})
	}
	e := fanout.NewEndpoints(endpoints)
	e.Update(context.Background())
	t.Cleanup(e.Close)
	for _, s := range e.Statuses() {
		if s.LastError != nil {
			t.Fatal(s.LastError)
		}
	}
	return fanout.New(e, opts)
}
