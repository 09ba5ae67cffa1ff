package e2e

import (
	"context"
	"log/slog"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/teststorage"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/ferula-io/ferula/internal/promql"
	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/thanos/dedup"
	"github.com/ferula-io/ferula/internal/thanos/fanout"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

// storeAPIStorage is a storage that is written directly and read through a querier, a
// StoreAPI and a gRPC connection.
type storeAPIStorage struct {
	*teststorage.TestStorage
	query *fanout.Query
}

func (b *storeAPIStorage) Querier(mint, maxt int64) (storage.Querier, error) {
	return b.query.Querier(mint, maxt)
}

// rawStore serves a storage as the source of a StoreAPI.
type rawStore struct {
	storeapi.NoServices
	storage.ChunkQueryable
}

func (rawStore) Info(context.Context) (storeapi.Info, error) {
	return storeapi.Info{Component: "store", Store: &storeapi.StoreInfo{TimeRange: storeapi.TimeRange{MinMS: math.MinInt64, MaxMS: math.MaxInt64}, Sharding: true, WithoutReplicaLabels: true}}, nil
}
func (rawStore) ExternalLabels() labels.Labels       { return labels.EmptyLabels() }
func (rawStore) Capabilities() storeapi.Capabilities { return storeapi.Capabilities{} }
func (s rawStore) Series(ctx context.Context, r storeapi.SeriesRequest) storeapi.Stream {
	return storeapi.LocalSeries(ctx, s, labels.EmptyLabels(), r)
}

func (s rawStore) RawQuerier(ctx context.Context, mint, maxt int64) (series.Querier, error) {
	return series.Open(ctx, s.ChunkQueryable, mint, maxt)
}

func (rawStore) LabelNames(context.Context, storeapi.LabelsRequest) (names, warnings []string, err error) {
	return nil, nil, nil
}

func (rawStore) LabelValues(context.Context, storeapi.LabelsRequest) (values, warnings []string, err error) {
	return nil, nil, nil
}

// grpcStore is a StoreAPI client that owns its connection.
type grpcStore struct {
	*storeapi.Client
	conn *grpc.ClientConn
}

func (g grpcStore) Series(ctx context.Context, r storeapi.SeriesRequest) storeapi.Stream {
	return g.Client.Series(ctx, r)
}
func (g grpcStore) Close() error { return g.conn.Close() }

// overStoreAPI serves sources on loopback and returns a fanout over them.
func overStoreAPI(t testing.TB, opts fanout.Options, sources ...storeapi.Source) *fanout.Fanout {
	t.Helper()
	eo := fanout.EndpointsOptions{Dial: func(a fanout.Address) (fanout.Client, error) {
		address := a.Name
		conn, err := grpc.NewClient(address, append(storeapi.GRPCDialOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
		if err != nil {
			return nil, err
		}
		return grpcStore{storeapi.NewClient(conn, storeapi.ClientOptions{}), conn}, nil
	}}
	for _, source := range sources {
		address := serveSource(t, source)
		eo.Static = append(eo.Static, fanout.Address{Name: address})
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

// serveStore serves a source on loopback; stop closes its connections at once.
func serveStore(t testing.TB, source storeapi.Source) (address string, stop func()) {
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

// serveSource serves a source on loopback until the test ends.
func serveSource(t testing.TB, source storeapi.Source) (address string) {
	t.Helper()
	address, _ = serveStore(t, source)
	return address
}

// unsupportedEvaluations are evaluations, by file and line, that need information which
// chunks on the wire do not have. The first histogram of a cut chunk has the counter
// reset hint "unknown" instead of "not_reset", as with remote read and Thanos.
var unsupportedEvaluations = map[string][]int{
	"native_histograms.test": {1747, 1752, 1821, 1826, 1880, 1885},
	"range_queries.test":     {93},
}

// racedScripts are the scripts that run under the race detector, where all of them would
// take minutes. Each reads over the wire in a different way; functions are not repeated.
var racedScripts = []string{"aggregators.test", "histograms.test", "range_queries.test", "staleness.test", "subquery.test"}

// Every script of Prometheus runs against a storage that is read over gRPC. A replica
// label that no series has switches deduplication on, which must not change a result.
// Start timestamps are not sent over the wire, so one file is skipped.
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
		if name == "start_timestamps.test" || raceEnabled && !slices.Contains(racedScripts, name) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			text, err := os.ReadFile(script)
			if err != nil {
				t.Fatal(err)
			}
			promqltest.RunTestWithStorage(t, withoutEvaluations(t, string(text), unsupportedEvaluations[name]), engine, func(t testing.TB) storage.Storage {
				s := teststorage.New(t)
				f := overStoreAPI(t, fanout.Options{}, rawStore{ChunkQueryable: s})
				return &storeAPIStorage{s, f.Queryable(fanout.Request{ReplicaLabels: []string{"no_such_replica"}})}
			})
		})
	}
}

// withoutEvaluations removes the evaluations that begin at these lines, counted from 1.
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
