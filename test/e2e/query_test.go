package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ferula-io/ferula/internal/app"
	"github.com/ferula-io/ferula/internal/httpapi"
	"github.com/ferula-io/ferula/internal/thanos/fanout"
)

// querier is a running `ferula query` in this process.
type querier struct {
	*server
	grpc string
}

// startQuery runs a querier over stores until the test ends, and waits until it is
// ready.
func startQuery(t *testing.T, stores []string, change func(*app.QueryOptions)) *querier {
	t.Helper()
	opts := app.QueryOptions{
		Web: app.WebOptions{ListenAddress: "127.0.0.1:0"}, GRPC: app.GRPCOptions{ListenAddress: "127.0.0.1:0"},
		Endpoints: fanout.EndpointsOptions{InfoInterval: 100 * time.Millisecond, InfoTimeout: time.Second},
		Stores:    httpapi.StoreDefaults{Partial: true, DynamicLookback: true},
		Logger:    slog.New(slog.NewTextHandler(testLog{t}, nil)),
	}
	for _, store := range stores {
		opts.Endpoints.Static = append(opts.Endpoints.Static, fanout.Address{Name: store})
	}
	if change != nil {
		change(&opts)
	}
	one, err := app.NewQuery(opts)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- one.Run(ctx) }()
	q := &querier{server: &server{t: t, base: "http://" + one.Addr().String(), ready: "/-/ready"}, grpc: one.GRPCAddr().String()}
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the querier stopped with %v", err)
		}
	})
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
	requests := storageRequests(append(sharedRequests(end), storeRequests(end)...))
	for _, request := range requests {
		wantStatus, want := s.get(request)
		for name, one := range map[string]*querier{"querier": q, "querier of the querier": second} {
			if status, got := one.get(request); status != wantStatus || got != want && normalizedResponse(t, got) != normalizedResponse(t, want) {
				t.Errorf("%s\n%s %d %.500s\nserver %d %.500s", request, name, status, got, wantStatus, want)
			}
		}
	}
	if len(requests) < 60 {
		t.Errorf("only %d requests", len(requests))
	}
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
	if got := q.value(`resets(counted_total{job="a"}[39m])`, at...); got != "0" {
		t.Errorf("resets: %s", got)
	}
	if got := q.value(`round(rate(counted_total{job="a"}[30m]), 0.001)`, at...); got != "1" {
		t.Errorf("rate: %s", got)
	}
	if got := q.value(`resets(counted_total{job="b"}[39m])`, at...); got != "1" {
		t.Errorf("resets of the one that restarted: %s", got)
	}
	if _, body := q.get("/api/v1/series?match[]=level"); body != `{"status":"success","data":[{"__name__":"level","cluster":"eu","room":"x"}]}` {
		t.Error(body)
	}
	if _, body := q.get("/api/v1/label/replica/values"); !strings.Contains(body, `["r0","r1"]`) {
		t.Error(body)
	}
	_, body := q.get("/api/v1/query?query=level&storeMatch[]=" + url.QueryEscape(`{__address__="`+stores[1]+`"}`) + "&dedup=false&time=" + fmt.Sprint(end.Add(-30*time.Minute).Unix()))
	if !strings.Contains(body, `"r1"`) || strings.Contains(body, `"r0"`) {
		t.Error(body)
	}
}

func TestQuery_StoreThatIsDownIsNamedOrFailsTheRequest(t *testing.T) {
	s, store := grpcServe(t, "scrape_configs: []\n", nil)
	end := time.Now().Truncate(time.Minute)
	s.writeAll(storeSamples(t, end))
	down := fmt.Sprintf("127.0.0.1:%d", freePort(t))
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
		if status, body := q.get(path); status != http.StatusOK || !strings.Contains(body, down) {
			t.Errorf("%s: %d %s", path, status, body)
		}
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
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	eventually(t, 60*time.Second, "a warning that names the store", func() bool {
		_, body := q.get("/api/v1/query?query=temperature" + at)
		return strings.Contains(body, `"result":[]`) && strings.Contains(body, store)
	})
}

func TestQuery_StoreParametersAreValidated(t *testing.T) {
	q := startQuery(t, nil, nil)
	for _, parameter := range []string{
		"engine=thanos", "engine=x", "dedup=x", "partial_response=x", "max_source_resolution=x", "max_source_resolution=-1", "storeMatch[]=x{", "shard_info=x",
	} {
		if status, body := q.get("/api/v1/query?query=1&" + parameter); status != http.StatusBadRequest {
			t.Errorf("%s: %d %s", parameter, status, body)
		}
	}
	for _, parameter := range []string{"engine=prometheus", "dedup=0", "partial_response=t", "max_source_resolution=5m", "max_source_resolution=auto", "storeMatch[]=" + url.QueryEscape(`{__address__="x"}`)} {
		if status, body := q.get("/api/v1/query?query=1&" + parameter); status != http.StatusOK {
			t.Errorf("%s: %d %s", parameter, status, body)
		}
	}
	for _, path := range []string{"/api/v1/rules", "/api/v1/alerts", "/api/v1/targets", "/api/v1/metadata", "/api/v1/stores", "/api/v1/status/flags", "/api/v1/status/buildinfo", "/api/v1/status/runtimeinfo", "/metrics", "/-/healthy", "/", "/stores"} {
		if status, body := q.get(path); status != http.StatusOK {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
}

func TestQuery_ReadsStoresWithSnappyCompression(t *testing.T) {
	s, store := grpcServe(t, "scrape_configs: []\n", nil)
	end := time.Now().Truncate(time.Minute)
	s.writeAll(storeSamples(t, end))
	q := startQuery(t, []string{store}, func(o *app.QueryOptions) { o.Client.Client.Compression = "snappy" })
	for _, request := range storageRequests(storeRequests(end)) {
		_, want := s.get(request)
		if _, got := q.get(request); got != want && normalizedResponse(t, got) != normalizedResponse(t, want) {
			t.Errorf("%s\nquerier %.300s\nserver %.300s", request, got, want)
		}
	}
}

func TestQuery_CORSHeadersAreSentUnlessDisabled(t *testing.T) {
	for _, disabled := range []bool{false, true} {
		q := startQuery(t, nil, func(o *app.QueryOptions) { o.DisableCORS = disabled })
		req, err := http.NewRequest(http.MethodGet, q.base+"/api/v1/query?query=1", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Origin", "http://elsewhere.example")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if allowed := resp.Header.Get("Access-Control-Allow-Origin") != ""; allowed == disabled {
			t.Errorf("disabled %v: %v", disabled, resp.Header)
		}
	}
}
