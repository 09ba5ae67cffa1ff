package e2e

import (
	"context"
	"log/slog"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/teststorage"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/ferula-io/ferula/internal/query/dedup"
	"github.com/ferula-io/ferula/internal/query/fanout"
	"github.com/ferula-io/ferula/internal/query/promql"
	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/wire/storeapi"
)

// behindStoreAPI is a storage that is written to directly and read through a
// querier, a StoreAPI and a connection.
type storeAPIStorage struct {
	*teststorage.TestStorage
	query *fanout.Query
}

func (b *storeAPIStorage) Querier(mint, maxt int64) (storage.Querier, error) {
	return b.query.Querier(mint, maxt)
}

// rawStore offers a storage as a StoreAPI.
type rawStore struct{ storage.ChunkQueryable }

func (rawStore) Info(context.Context) (storeapi.Info, error) {
	return storeapi.Info{Component: "store", Store: &storeapi.StoreInfo{TimeRange: storeapi.TimeRange{MinMS: math.MinInt64, MaxMS: math.MaxInt64}}}, nil
}
func (rawStore) ExternalLabels() labels.Labels { return labels.EmptyLabels() }
func (s rawStore) RawQuerier(ctx context.Context, mint, maxt int64) (series.Querier, error) {
	return series.Open(ctx, s.ChunkQueryable, mint, maxt)
}

func (rawStore) LabelNames(context.Context, storeapi.LabelsRequest) (names, warnings []string, err error) {
	return nil, nil, nil
}

func (rawStore) LabelValues(context.Context, storeapi.LabelsRequest) (values, warnings []string, err error) {
	return nil, nil, nil
}

// grpcStore is a client with its connection.
type grpcStore struct {
	*storeapi.Client
	conn *grpc.ClientConn
}

func (g grpcStore) Series(ctx context.Context, r storeapi.SeriesRequest) storeapi.Stream {
	return g.Client.Series(ctx, r)
}
func (g grpcStore) Close() error { return g.conn.Close() }

// overStoreAPI offers sources on loopback and reads them as one.
func overStoreAPI(t testing.TB, opts fanout.Options, sources ...storeapi.Source) *fanout.Fanout {
	t.Helper()
	eo := fanout.EndpointsOptions{Dial: func(address string, _ bool) (fanout.Client, error) {
		conn, err := grpc.NewClient(address, append(storeapi.GRPCDialOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
		if err != nil {
			return nil, err
		}
		return grpcStore{storeapi.NewClient(conn, storeapi.ClientOptions{}), conn}, nil
	}}
	for _, source := range sources {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		server := grpc.NewServer(storeapi.GRPCServerOptions()...)
		storeapi.NewServer(source, storeapi.ServerOptions{}).Register(server)
		done := make(chan struct{})
		go func() { defer close(done); _ = server.Serve(l) }()
		t.Cleanup(func() { server.Stop(); <-done })
		eo.Static = append(eo.Static, fanout.Address{Name: l.Addr().String()})
	}
	e := fanout.NewEndpoints(eo)
	e.Update(context.Background())
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		e.Run(ctx) // closes the connections
	})
	for _, s := range e.Statuses() {
		if s.LastError != nil {
			t.Fatal(s.LastError)
		}
	}
	opts.Dedup, opts.IsCounter, opts.Counter = dedup.Penalty, dedup.IsCounter, dedup.Counter
	return fanout.New(e, opts)
}

// notCarried are evaluations, by file and line, of what chunks on a wire do not carry.
// A chunk that was cut no longer says whether a histogram at its beginning follows
// the one before without a reset: its hint is "unknown" and not "not_reset", here as
// in remote read and in Thanos.
var unsupportedEvaluations = map[string][]int{
	"native_histograms.test": {1747, 1752, 1821, 1826, 1880, 1885},
	"range_queries.test":     {93},
}

// Prometheus' own scripts, each of their storages read over the wire. With replica
// labels that nobody has, replicas are made one all the way and nothing may change.
// Start timestamps are not on the wire at all, which leaves one file out.
func TestQuery_PrometheusScriptsPassOverTheStoreAPI(t *testing.T) {
	engine, err := promql.New(promql.Options{
		MaxSamples: 10_000_000, ExperimentalFunctions: true, ExtendedRangeSelectors: true, BinopFillModifiers: true, DelayedNameRemoval: true,
		Timeout: 100 * time.Second,
	}, slog.New(slog.DiscardHandler), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	module, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/prometheus/prometheus").Output()
	if err != nil {
		t.Fatal(err)
	}
	scripts, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(module)), "promql/promqltest/testdata/*.test"))
	if err != nil || len(scripts) < 15 {
		t.Fatalf("%d scripts: %v", len(scripts), err)
	}
	for _, script := range scripts {
		name := filepath.Base(script)
		if name == "start_timestamps.test" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			text, err := os.ReadFile(script)
			if err != nil {
				t.Fatal(err)
			}
			promqltest.RunTestWithStorage(t, withoutEvaluations(t, string(text), unsupportedEvaluations[name]), engine, func(t testing.TB) storage.Storage {
				s := teststorage.New(t)
				f := overStoreAPI(t, fanout.Options{}, rawStore{s})
				return &storeAPIStorage{s, f.Queryable(fanout.Request{ReplicaLabels: []string{"no_such_replica"}})}
			})
		})
	}
}

// without leaves out the evaluations that begin at some lines, the first being 1.
func withoutEvaluations(t *testing.T, script string, evaluations []int) string {
	t.Helper()
	lines := strings.Split(script, "\n")
	for _, line := range evaluations {
		if !strings.HasPrefix(lines[line-1], "eval") {
			t.Fatalf("line %d is no evaluation: %s", line, lines[line-1])
		}
		lines[line-1] = ""
		for i := line; strings.HasPrefix(lines[i], " ") || strings.HasPrefix(lines[i], "\t"); i++ {
			lines[i] = ""
		}
	}
	return strings.Join(lines, "\n")
}
