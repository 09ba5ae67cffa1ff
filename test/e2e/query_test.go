package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/util/annotations"
	"github.com/prometheus/prometheus/util/teststorage"
	"google.golang.org/grpc"

	"github.com/ferula-io/ferula/internal/app"
	"github.com/ferula-io/ferula/internal/httpapi"
	"github.com/ferula-io/ferula/internal/promql"
	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/series/labelenc"
	"github.com/ferula-io/ferula/internal/thanos/fanout"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
	pb "github.com/ferula-io/ferula/internal/thanos/storepb/thanospb"
	"github.com/ferula-io/ferula/test/stores"
)

// querier is a running `ferula query` in this process.
type querier struct{ *server }

// startQuery runs a querier over stores until the test ends, and waits until it is
// ready.
func startQuery(t *testing.T, stores []string, change func(*app.QueryOptions)) *querier {
	t.Helper()
	opts := app.QueryOptions{
		Web: app.WebOptions{ListenAddress: "127.0.0.1:0"}, GRPC: app.GRPCOptions{ListenAddress: "127.0.0.1:0"},
		Endpoints: fanout.EndpointsOptions{InfoInterval: 100 * time.Millisecond, InfoTimeout: time.Second},
		Stores:    httpapi.StoreDefaults{Partial: true, DynamicLookback: true},
		Logger:    testLogger(t),
	}
	for _, store := range stores {
		opts.Endpoints.Static = append(opts.Endpoints.Static, fanout.Address{Name: store})
	}
	if change != nil {
		change(&opts)
	}
	one := try(app.NewQuery(opts)).must(t)
	q := &querier{&server{t: t, base: "http://" + one.Addr().String(), grpc: one.GRPCAddr().String(), ready: "/-/ready", stop: run(t, one.Run)}}
	q.waitReady()
	return q
}

// storageRequests removes the requests whose responses differ between a server and a
// querier. Which of equal series topk returns depends on the order of the storage.
func storageRequests(requests []string) []string {
	return slices.DeleteFunc(slices.Clone(requests), func(r string) bool {
		return r == "/api/v1/targets" || r == "/api/v1/metadata" || r == "/api/v1/scrape_pools" || strings.Contains(r, "topk")
	})
}

func TestQuery_ResponseEqualsTheStoresOwn(t *testing.T) {
	s, store := grpcServe(t, "scrape_configs: []\n", nil)
	end := time.Now().Truncate(time.Minute)
	s.writeAll(storeSamples(t, end))
	q := startQuery(t, []string{store}, nil)
	second := startQuery(t, []string{q.grpc}, nil)
	packed := startQuery(t, []string{store}, func(o *app.QueryOptions) { o.Client.Client.Compression = "snappy" })
	requests := storageRequests(append(sharedRequests(end), storeRequests(end)...))
	for _, request := range requests {
		wantStatus, want := s.get(request)
		for name, one := range map[string]*querier{"querier": q, "querier of the querier": second, "querier with snappy": packed} {
			if status, got := one.get(request); status != wantStatus || got != want && normalizedResponse(t, got) != normalizedResponse(t, want) {
				t.Errorf("%s\n%s %d %.500s\nserver %d %.500s", request, name, status, got, wantStatus, want)
			}
		}
	}
	if len(requests) < 60 {
		t.Errorf("only %d requests", len(requests))
	}
	for _, path := range []string{"/api/v1/rules", "/api/v1/alerts", "/api/v1/targets", "/api/v1/metadata", "/api/v1/status/flags", "/api/v1/status/buildinfo", "/api/v1/status/runtimeinfo", "/metrics", "/-/healthy", "/", "/stores"} {
		q.expect(path, http.StatusOK)
	}
	q.expect("/api/v1/query?query=1&dedup=x", http.StatusBadRequest)
}

// replicas runs two servers with samples of the same series at different timestamps,
// each with gaps and counter resets, and returns their StoreAPI addresses.
func replicas(t *testing.T, end time.Time) (stores []string) {
	t.Helper()
	for replica, offset := range []time.Duration{0, 4 * time.Second} {
		s, store := grpcServe(t, fmt.Sprintf("global: {external_labels: {cluster: eu, replica: r%d}}\nscrape_configs: []\n", replica), nil)
		var bodies [][]byte
		i := 0
		for at := end.Add(-40 * time.Minute).Add(offset); !at.After(end); at = at.Add(15 * time.Second) {
			i++
			if i%40 > 25+5*replica && i%40 < 33+5*replica || replica == 1 && i > 130 {
				continue
			}
			ms, since := at.UnixMilli(), at.Sub(end.Add(-40*time.Minute)).Seconds()
			restarts := since
			if since > 900 {
				restarts = since - 900
			}
			bodies = append(bodies, encoded(t, v1(
				v1Series(ms, since, "__name__", "counted_total", "job", "a"),
				v1Series(ms, restarts*3, "__name__", "counted_total", "job", "b", "z", "1"),
				v1Series(ms, since+float64(replica)/4, "__name__", "level", "room", "x"),
			)))
		}
		s.writeAll(bodies)
		stores = append(stores, store)
	}
	return stores
}

func TestQuery_ReplicasAreDeduplicatedUnlessDedupIsFalse(t *testing.T) {
	// Deduplication switches replicas at gaps, and which one it picks depends slightly on
	// where the TSDB cuts chunks. It cuts none on the full hour.
	end := time.Now().Truncate(time.Hour)
	stores := replicas(t, end)
	q := startQuery(t, stores, func(o *app.QueryOptions) { o.Stores.ReplicaLabels = []string{"replica"} })
	count := func(params ...string) string {
		return q.value("count(level)", append([]string{"time", fmt.Sprint(end.Add(-30 * time.Minute).Unix())}, params...)...)
	}
	for want, params := range map[string][]string{"1": {}, "2": {"dedup", "false"}, " 1": {"replicaLabels[]", "replica"}, " 2": {"replicaLabels[]", "nothing"}} {
		if got := count(params...); got != strings.TrimSpace(want) {
			t.Errorf("%q: %s, want %s", params, got, want)
		}
	}
	// A counter without resets grows by one per second in every replica.
	at := []string{"time", fmt.Sprint(end.Unix())}
	q.expectValue("0", `resets(counted_total{job="a"}[39m])`, at...)
	q.expectValue("1", `round(rate(counted_total{job="a"}[30m]), 0.001)`, at...)
	q.expectValue("1", `resets(counted_total{job="b"}[39m])`, at...)
	if _, body := q.get("/api/v1/series?match[]=level"); body != `{"status":"success","data":[{"__name__":"level","cluster":"eu","room":"x"}]}` {
		t.Error(body)
	}
	q.expect("/api/v1/label/replica/values", 0, `["r0","r1"]`)
	_, body := q.get("/api/v1/query?query=level&storeMatch[]=" + url.QueryEscape(`{__address__="`+stores[1]+`"}`) + "&dedup=false&time=" + fmt.Sprint(end.Add(-30*time.Minute).Unix()))
	if !strings.Contains(body, `"r1"`) || strings.Contains(body, `"r0"`) {
		t.Error(body)
	}
}

func TestQuery_StoreThatIsDownIsNamedOrFailsTheRequest(t *testing.T) {
	s, store := grpcServe(t, "scrape_configs: []\n", nil)
	end := time.Now().Truncate(time.Minute)
	s.writeAll(storeSamples(t, end))
	down := freeAddress(t)
	q := startQuery(t, []string{store, down}, nil)
	at := fmt.Sprintf("&time=%d", end.Unix())
	status, body := q.get("/api/v1/query?query=temperature" + at)
	var response struct {
		Data     struct{ Result []any }
		Warnings []string
	}
	if err := json.Unmarshal([]byte(body), &response); err != nil || status != http.StatusOK {
		t.Fatal(status, err, body)
	}
	if len(response.Data.Result) != 1 || len(response.Warnings) != 1 || !strings.Contains(response.Warnings[0], down) {
		t.Errorf("%s", body)
	}
	for _, path := range []string{"/api/v1/query?query=temperature", "/api/v1/labels?", "/api/v1/series?match[]=temperature"} {
		if status, body := q.get(path + "&partial_response=false"); status/100 == 2 || !strings.Contains(body, down) {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
	for _, path := range []string{
		"/api/v1/targets", "/api/v1/rules", "/api/v1/alerts", "/api/v1/metadata", "/api/v1/query?query=temperature", "/api/v1/labels", "/api/v1/series?match[]=temperature",
		"/api/v1/query_exemplars?query=up&start=0&end=1",
	} {
		q.waitFor(path, `"status":"success"`, `"warnings"`, down)
	}
	_, body = q.get("/api/v1/stores")
	var stores struct {
		Data map[string][]struct {
			Name             string
			LastError        *string
			LabelSets        []map[string]string
			MinTime, MaxTime int64
		}
	}
	if err := json.Unmarshal([]byte(body), &stores); err != nil {
		t.Fatal(err, body)
	}
	up, gone := stores.Data["sidecar"], stores.Data["unknown-store-api"]
	if len(up) != 1 || up[0].Name != store || up[0].LastError != nil || len(gone) != 1 || gone[0].Name != down || gone[0].LastError == nil {
		t.Errorf("%s", body)
	}
	// Without any store the result is empty, and warnings name the stores.
	noError(t, s.stop())
	q.waitFor("/api/v1/query?query=temperature"+at, `"result":[]`, store)
}

func TestQuery_CORSHeadersAreSentUnlessDisabled(t *testing.T) {
	for _, disabled := range []bool{false, true} {
		q := startQuery(t, nil, func(o *app.QueryOptions) { o.DisableCORS = disabled })
		_, _, header := q.request("GET", "/api/v1/query?query=1", "", "Origin", "http://elsewhere.example")
		if allowed := header.Get("Access-Control-Allow-Origin") != ""; allowed == disabled {
			t.Errorf("disabled %v: %v", disabled, header)
		}
	}
}

// misbehavingStore is a StoreAPI whose Series calls next with the number of the series.
// next returns the series to send, errEnd to end the stream, or the error to fail with.
type misbehavingStore struct {
	stores.Raw
	next func(ctx context.Context, i int) (lset []byte, chunks []series.Chunk, err error)
}

var errEnd = errors.New("end")

func (o misbehavingStore) Series(ctx context.Context, _ storeapi.SeriesRequest) storeapi.Stream {
	return &misbehavingStream{ctx: ctx, next: o.next}
}

type misbehavingStream struct {
	ctx    context.Context
	next   func(ctx context.Context, i int) ([]byte, []series.Chunk, error)
	i      int
	lset   []byte
	chunks []series.Chunk
	err    error
}

func (o *misbehavingStream) Next() bool {
	o.lset, o.chunks, o.err = o.next(o.ctx, o.i)
	o.i++
	return o.err == nil
}
func (o *misbehavingStream) Labels() []byte                  { return o.lset }
func (o *misbehavingStream) Chunks() []series.Chunk          { return o.chunks }
func (*misbehavingStream) Warnings() annotations.Annotations { return nil }
func (*misbehavingStream) BufferedBytes() int64              { return 0 }
func (*misbehavingStream) Close() error                      { return nil }
func (o *misbehavingStream) Err() error {
	if errors.Is(o.err, errEnd) {
		return nil
	}
	return o.err
}

// serveMisbehaving serves a store on loopback; stop closes its connections at once.
func serveMisbehaving(t *testing.T, o misbehavingStore) (address string, stop func()) {
	t.Helper()
	return stores.Serve(t, o)
}

func testLabels(i int) []byte {
	return labelenc.Append(nil, labels.FromStrings("__name__", "test_metric", "i", fmt.Sprintf("%09d", i)))
}

func testChunks(t testing.TB, ms int64) []series.Chunk {
	t.Helper()
	c := chunkenc.NewXORChunk()
	app := try(c.Appender()).must(t)
	app.Append(0, ms, 1)
	return []series.Chunk{{MinMS: ms, MaxMS: ms, Encoding: chunkenc.EncXOR, Data: c.Bytes()}}
}

// Each store is queried together with a good one, over real connections. The result is
// complete, or a warning names the store, or the request fails. It never hangs.
func TestQuery_MisbehavingStoreCausesAWarningOrAnError(t *testing.T) {
	now := time.Now().UnixMilli()
	good := testChunks(t, now)
	ends := func(n int, lset func(i int) []byte, chunks []series.Chunk, err error) func(context.Context, int) ([]byte, []series.Chunk, error) {
		return func(_ context.Context, i int) ([]byte, []series.Chunk, error) {
			if i == n {
				return nil, nil, err
			}
			return lset(i), chunks, nil
		}
	}
	for _, c := range []struct {
		name  string
		next  func(context.Context, int) ([]byte, []series.Chunk, error)
		count string // the expected result, "" if the response must be partial
		fails bool   // the request fails also with partial_response=true
	}{
		{"is good", ends(3, testLabels, good, errEnd), "4", false},
		{"sends series out of order", ends(3, func(i int) []byte { return testLabels(9 - i) }, good, errEnd), "", false},
		{"fails", ends(2, testLabels, good, errors.New("disk failure")), "", false},
		{"stalls", func(ctx context.Context, i int) ([]byte, []series.Chunk, error) {
			if i == 2 {
				<-ctx.Done()
				return nil, nil, ctx.Err()
			}
			return testLabels(i), good, nil
		}, "", false},
		{"sends an empty label name", ends(1, func(int) []byte { return labelenc.AppendLabel(nil, "", "x") }, good, errEnd), "", false},
		{"sends an empty chunk", ends(1, testLabels, []series.Chunk{{MinMS: now, MaxMS: now, Encoding: chunkenc.EncXOR}}, errEnd), "", true},
		{"sends a truncated chunk", ends(1, testLabels, []series.Chunk{{MinMS: now, MaxMS: now, Encoding: chunkenc.EncXOR, Data: good[0].Data[:5]}}, errEnd), "", true},
		{"sends samples outside of the chunk's range", ends(1, testLabels, []series.Chunk{{MinMS: now - 10, MaxMS: now - 1, Encoding: chunkenc.EncXOR, Data: good[0].Data}}, errEnd), "", true},
		{"sends an invalid histogram", ends(1, testLabels, []series.Chunk{{MinMS: now, MaxMS: now, Encoding: chunkenc.EncHistogram, Data: []byte{0, 9, 0, 1, 2, 3}}}, errEnd), "", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			bad, _ := serveMisbehaving(t, misbehavingStore{next: c.next})
			fine, _ := serveMisbehaving(t, misbehavingStore{next: ends(1, func(int) []byte { return testLabels(500) }, good, errEnd)})
			q := startQuery(t, []string{bad, fine}, func(o *app.QueryOptions) { o.Fanout.ResponseTimeout = time.Second })
			at := fmt.Sprintf("/api/v1/query?query=count(test_metric)&time=%d", now/1000+1)
			begun := time.Now()
			status, body := q.get(at)
			switch {
			case c.fails:
				if status == http.StatusOK {
					t.Errorf("%d %s", status, body)
				}
			case c.count != "":
				if status != http.StatusOK || !strings.Contains(body, `"`+c.count+`"`) || strings.Contains(body, "warnings") {
					t.Errorf("%d %s", status, body)
				}
			case status != http.StatusOK || !strings.Contains(body, bad) || strings.Contains(body, fine):
				t.Errorf("%d %s", status, body)
			}
			if c.count == "" {
				if status, body := q.get(at + "&partial_response=false"); status == http.StatusOK || !c.fails && !strings.Contains(body, bad) {
					t.Errorf("no partial response: %d %s", status, body)
				}
			}
			if took := time.Since(begun); took > 20*time.Second {
				t.Errorf("it took %s", took)
			}
		})
	}
}

func TestQuery_StoreThatDiesWhileStreamingIsNamed(t *testing.T) {
	now := time.Now().UnixMilli()
	good := testChunks(t, now)
	var stop func()
	var died sync.WaitGroup
	bad, stop := serveMisbehaving(t, misbehavingStore{next: func(ctx context.Context, i int) ([]byte, []series.Chunk, error) {
		if i == 5000 {
			died.Go(stop)
			<-ctx.Done()
			return nil, nil, ctx.Err()
		}
		return testLabels(i), good, nil
	}})
	q := startQuery(t, []string{bad}, nil)
	status, body := q.get(fmt.Sprintf("/api/v1/query?query=count(test_metric)&time=%d", now/1000+1))
	if status != http.StatusOK || !strings.Contains(body, bad) {
		t.Errorf("%d %.500s", status, body)
	}
	died.Wait()
}

// A stream without end, or with huge labels, must fail by the query's byte limit before
// it exhausts memory.
func TestQuery_FailsWithinBoundedMemoryOverTheByteLimit(t *testing.T) {
	big, good := strings.Repeat("x", 4<<20), testChunks(t, time.Now().UnixMilli())
	for name, next := range map[string]func(context.Context, int) ([]byte, []series.Chunk, error){
		"without end": func(_ context.Context, i int) ([]byte, []series.Chunk, error) {
			return testLabels(i), good, nil
		},
		"huge labels": func(_ context.Context, i int) ([]byte, []series.Chunk, error) {
			return labelenc.Append(nil, labels.FromStrings("__name__", "test_metric", "big", big, "i", fmt.Sprintf("%06d", i))), good, nil
		},
	} {
		address, _ := serveMisbehaving(t, misbehavingStore{next: next})
		q := startQuery(t, []string{address}, func(o *app.QueryOptions) { o.Fanout.BytesMax = 16 << 20 })
		stop, peak := make(chan struct{}), uint64(0)
		var watching sync.WaitGroup
		watching.Go(func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(10 * time.Millisecond):
					var m runtime.MemStats
					runtime.ReadMemStats(&m)
					peak = max(peak, m.HeapAlloc)
				}
			}
		})
		status, body := q.get("/api/v1/query?query=count(test_metric)")
		close(stop)
		watching.Wait()
		if status == http.StatusOK || !strings.Contains(body, "limit") {
			t.Errorf("%s: %d %.300s", name, status, body)
		}
		if peak > 512<<20 {
			t.Errorf("%s: %d MiB of heap", name, peak>>20)
		}
	}
}

func TestQuery_ClientDisconnectCancelsItsStoreStreams(t *testing.T) {
	var open atomic.Int64
	address, _ := serveMisbehaving(t, misbehavingStore{next: func(ctx context.Context, _ int) ([]byte, []series.Chunk, error) {
		open.Add(1)
		defer open.Add(-1)
		<-ctx.Done()
		return nil, nil, ctx.Err()
	}})
	q := startQuery(t, []string{address}, nil)
	for range 20 {
		ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		req := try(http.NewRequestWithContext(ctx, http.MethodGet, q.base+"/api/v1/query?query=test_metric", nil)).must(t)
		if resp, err := http.DefaultClient.Do(req); err == nil {
			resp.Body.Close()
			t.Error("got a response although the store sends none")
		}
		cancel()
	}
	eventually(t, 60*time.Second, "the streams of queries whose clients disconnected to end", func() bool { return open.Load() == 0 })
}

// Of 200 stores 20 are down. Warnings name them, and the result has the other 180.
func TestQuery_TwoHundredStoresOfWhichSomeAreDown(t *testing.T) {
	now := time.Now().UnixMilli()
	good := testChunks(t, now)
	var stores []string
	for i := range 200 {
		if i%10 == 0 {
			stores = append(stores, freeAddress(t))
			continue
		}
		address, _ := serveMisbehaving(t, misbehavingStore{next: func(_ context.Context, n int) ([]byte, []series.Chunk, error) {
			if n == 1 {
				return nil, nil, errEnd
			}
			return testLabels(i), good, nil
		}})
		stores = append(stores, address)
	}
	q := startQuery(t, nil, func(o *app.QueryOptions) {
		o.Logger = slog.New(slog.DiscardHandler)
		for _, store := range stores {
			o.Endpoints.Static = append(o.Endpoints.Static, fanout.Address{Name: store})
		}
	})
	// The querier finds stores in the background. A store that it has not reached yet is
	// a warning, too.
	eventually(t, 60*time.Second, "180 series and a warning for each store that is down", func() bool {
		status, body := q.get(fmt.Sprintf("/api/v1/query?query=count(test_metric)&time=%d", now/1000+1))
		return status == http.StatusOK && strings.Contains(body, `"180"`) && strings.Count(body, "store 127.0.0.1:") >= 10
	})
}

// silentStore runs a server whose Info advertises every service and all times, and that
// never responds to another request.
func silentStore(t *testing.T) (address string) {
	t.Helper()
	listener := try(net.Listen("tcp", "127.0.0.1:0")).must(t)
	server := grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		if method, _ := grpc.MethodFromServerStream(stream); !strings.HasSuffix(method, "/Info") {
			<-stream.Context().Done()
			return stream.Context().Err()
		}
		if err := stream.RecvMsg(&pb.InfoRequest{}); err != nil {
			return err
		}
		return stream.SendMsg(&pb.InfoResponse{
			ComponentType: "sidecar", Store: &pb.StoreInfo{MaxTime: 1 << 62}, Rules: &pb.RulesInfo{}, MetricMetadata: &pb.MetricMetadataInfo{}, Targets: &pb.TargetsInfo{}, Exemplars: &pb.ExemplarsInfo{MaxTime: 1 << 62},
		})
	}))
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return listener.Addr().String()
}

// Every request that waits for a store ends by the query timeout, names the store, and
// releases its slot.
func TestQuery_SilentStoreEndsByTheQueryTimeout(t *testing.T) {
	store := silentStore(t)
	q := startQuery(t, []string{store}, func(o *app.QueryOptions) { o.Query.Timeout = 300 * time.Millisecond })
	q.waitFor("/api/v1/stores", `"sidecar":[`)
	selector := url.QueryEscape(`{__name__=~".+"}`)
	for _, request := range []string{
		"/api/v1/query?query=up", "/api/v1/series?match[]=" + selector, "/api/v1/labels", "/api/v1/label/job/values", "/api/v1/query_exemplars?query=up&start=1&end=2",
		"/api/v1/metadata", "/api/v1/targets", "/api/v1/rules", "/api/v1/alerts",
	} {
		for _, partial := range []string{"true", "false"} {
			separator := "?"
			if strings.Contains(request, "?") {
				separator = "&"
			}
			done := make(chan struct{})
			go func() {
				defer close(done)
				status, body := q.get(request + separator + "partial_response=" + partial)
				// The deadline is sent to the store, which may exceed it first.
				if partial == "true" && status == http.StatusOK && strings.Contains(body, `"warnings":["store `+store) {
					return
				}
				if status != http.StatusServiceUnavailable || !strings.Contains(body, `"errorType":"timeout"`) {
					t.Errorf("%s: %d %s", request, status, body)
				}
				if !strings.Contains(request, "/query?") && !strings.Contains(request, "/series") && !strings.Contains(body, store) {
					t.Errorf("%s: the store is not named: %s", request, body)
				}
			}()
			select {
			case <-done:
			case <-time.After(20 * time.Second):
				t.Fatalf("%s has not ended", request)
			}
		}
	}
}

// storeAPIStorage is a storage that is written directly and read through a querier, a
// StoreAPI and a gRPC connection.
type storeAPIStorage struct {
	*teststorage.TestStorage
	query *fanout.Query
}

func (b *storeAPIStorage) Querier(mint, maxt int64) (storage.Querier, error) {
	return b.query.Querier(mint, maxt)
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
	module := try(exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/prometheus/prometheus").Output()).must(t)
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
			text := try(os.ReadFile(script)).must(t)
			promqltest.RunTestWithStorage(t, withoutEvaluations(t, string(text), unsupportedEvaluations[name]), engine, func(t testing.TB) storage.Storage {
				s := teststorage.New(t)
				f := stores.Fanout(t, fanout.Options{}, stores.Raw{ChunkQueryable: s})
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

// serveSource serves a source on loopback until the test ends.
func serveSource(t testing.TB, source storeapi.Source) (address string) {
	t.Helper()
	address, _ = stores.Serve(t, source)
	return address
}
