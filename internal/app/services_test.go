package app

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/promslog"

	"github.com/ferula-io/ferula/internal/frontend/downstream"
	"github.com/ferula-io/ferula/internal/process"
	"github.com/ferula-io/ferula/internal/process/telemetry"
	"github.com/ferula-io/ferula/internal/profiles/api"
	"github.com/ferula-io/ferula/internal/profiles/ingest"
	"github.com/ferula-io/ferula/internal/promql"
	"github.com/ferula-io/ferula/internal/promql/columns"
	"github.com/ferula-io/ferula/internal/remoteread"
	"github.com/ferula-io/ferula/internal/thanos/gateway"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
	"github.com/ferula-io/ferula/internal/tsdb"
	"github.com/ferula-io/ferula/metrics"
)

// textOf returns the help of all families and then their metrics.
func textOf(set *metrics.Set) string {
	var b strings.Builder
	for _, f := range set.Families() {
		b.WriteString("# HELP " + f.Name + " " + f.Help + "\n")
	}
	set.WritePrometheus(&b)
	return b.String()
}

func TestExposeReady_FollowsTheReadiness(t *testing.T) {
	reg, readiness := telemetry.New(), &process.Readiness{}
	exposeReady(reg, readiness)
	exposeBuild(reg)
	if text := textOf(reg.Own); !strings.Contains(text, "\nprometheus_ready 0\n") || !strings.Contains(text, "# HELP prometheus_ready 1 while the server is ready") {
		t.Error(text)
	}
	readiness.Ready()
	text := textOf(reg.Own)
	if !strings.Contains(text, "\nprometheus_ready 1\n") {
		t.Error(text)
	}
	for _, want := range []string{`goos="` + runtime.GOOS + `"`, `version="` + APIVersion + `"} 1` + "\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s in %s", want, text)
		}
	}
}

func TestNewQueryEngine_IsTheChosenOne(t *testing.T) {
	engine, err := promql.New(promql.Options{}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	for name, own := range map[string]bool{"": false, columns.Columns: false, columns.Prometheus: true} {
		got, err := newQueryEngine(EngineOptions{Name: name}, promql.Options{}, engine, metrics.NewSet())
		if err != nil || (got == engine) != own {
			t.Errorf("%q: %T, %v", name, got, err)
		}
	}
}

func TestReadOptions_PermanentErrorsDependOnTheSource(t *testing.T) {
	other := errors.New("other")
	dir := t.TempDir()
	bucketBlock(t, dir, "x")
	for name, tt := range map[string]struct {
		o         ReadOptions
		permanent map[error]bool
	}{
		"store":     {ReadOptions{Store: "127.0.0.1:1"}, map[error]bool{storeapi.ErrBadRequest: true, storeapi.ErrLimit: true, storeapi.ErrUnavailable: false, other: false}},
		"url":       {ReadOptions{URL: "http://127.0.0.1:1"}, map[error]bool{remoteread.ErrRefused: true, remoteread.ErrUnavailable: false, other: false}},
		"directory": {ReadOptions{TSDBPath: dir, Logger: slog.New(slog.DiscardHandler)}, map[error]bool{other: true}},
	} {
		source, permanent, err := tt.o.source()
		if err != nil {
			t.Fatal(name, err)
		}
		for err, want := range tt.permanent {
			if permanent(fmt.Errorf("wrapped: %w", err)) != want {
				t.Errorf("%s: %v is not %v", name, err, want)
			}
		}
		if closer, ok := source.(io.Closer); ok {
			if err := closer.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestQuery_ServesUnderAPrefixAndThePagesOfThanosWithoutIt(t *testing.T) {
	for _, prefix := range []string{"", "/pre"} {
		q, err := NewQuery(QueryOptions{
			Web: WebOptions{ListenAddress: "127.0.0.1:0", RoutePrefix: prefix}, SubqueryInterval: 7 * time.Second, DisableCORS: prefix == "",
			Query: promql.Options{MaxConcurrency: 3}, Flags: map[string]string{"a": "b"}, Logger: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		if step := q.engine.SubqueryStep(0); step != 7000 {
			t.Errorf("subqueries have a step of %d ms", step)
		}
		r := runRole(t, "query", q.reg, prefixed{q.Addr().String() + prefix}, q.Run)
		base := "http://" + q.Addr().String()
		for path, want := range map[string]string{
			prefix + "/api/v1/query?query=1%2B41": `"42"`, prefix + "/api/v1/status/flags": `"a":"b"`, prefix + "/api/v1/stores": `"status":"success"`,
			prefix + "/metrics": "\nthanos_query_concurrent_gate_queries_max 3\n", "/metrics": "\nthanos_query_concurrent_gate_queries_in_flight 0\n",
			prefix + "/-/healthy": "healthy", "/-/healthy": "healthy", "/-/ready": "ready", prefix + "/api/v1/status/runtimeinfo": `"startTime"`, prefix + "/": "<html",
		} {
			if status, _, body := send(t, http.MethodGet, base+path); status != http.StatusOK || !strings.Contains(strings.ToLower(body), strings.ToLower(want)) {
				t.Errorf("%s: %d %.300s, want %s", path, status, body, want)
			}
		}
		status, header, _ := send(t, http.MethodGet, base+"/")
		if want := map[string]int{"": http.StatusOK, "/pre": http.StatusFound}[prefix]; status != want || status == http.StatusFound && header.Get("Location") != "/pre/" {
			t.Errorf("%q: %d %v", prefix, status, header)
		}
		if _, body := httpGet(t, r.base+"/metrics"); !strings.Contains(body, "\nthanos_query_concurrent_gate_duration_seconds_count ") {
			t.Error("slots are not counted")
		}
		request := httptest.NewRequest(http.MethodGet, base+prefix+"/api/v1/query?query=1", nil)
		request.RequestURI = ""
		request.Header.Set("Origin", "http://other.test")
		response, err := http.DefaultTransport.RoundTrip(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if allowed := response.Header.Get("Access-Control-Allow-Origin") != ""; allowed != (prefix != "") {
			t.Errorf("%q: another origin is allowed: %v", prefix, allowed)
		}
		if q.GRPCAddr() != nil {
			t.Error("a gRPC address without a server")
		}
	}
}

func TestNewSlotMetric_ObservesSeconds(t *testing.T) {
	set := metrics.NewSet()
	newSlotMetric(set)(2 * time.Second)
	text := textOf(set)
	for _, want := range []string{"_bucket{le=\"1\"} 0\n", "_bucket{le=\"3\"} 1\n", "_sum 2\n", "# HELP thanos_query_concurrent_gate_duration_seconds How long"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in %s", want, text)
		}
	}
}

func TestQueryFrontend_PagesOfOtherOriginsAreAllowedUnlessDisabled(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/-/ready" {
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"status":"success","data":{"resultType":"scalar","result":[1,"42"]}}`)
	}))
	defer server.Close()
	for _, off := range []bool{false, true} {
		q, err := NewQueryFrontend(QueryFrontendOptions{
			Web: WebOptions{ListenAddress: "127.0.0.1:0"}, Downstream: downstream.Options{URL: server.URL}, DisableCORS: off,
			Logger: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		r := runRole(t, "query-frontend", q.reg, q.Addr(), q.Run)
		status, header, body := send(t, http.MethodGet, r.base+"/api/v1/query?query=42")
		if status != http.StatusOK || !strings.Contains(body, `"42"`) {
			t.Errorf("%d %s", status, body)
		}
		for name, want := range map[string]string{
			"Access-Control-Allow-Headers": "Accept, Accept-Encoding, Authorization, Content-Type, Origin", "Access-Control-Allow-Methods": "GET, POST, OPTIONS",
			"Access-Control-Allow-Origin": "*", "Access-Control-Expose-Headers": "Date, Server-Timing, X-Ferula-Cache",
		} {
			if off {
				want = ""
			}
			if got := header.Get(name); got != want {
				t.Errorf("%v: %s: %q", off, name, got)
			}
		}
		if status, _, body := send(t, http.MethodOptions, r.base+"/api/v1/query"); (status == http.StatusNoContent && body == "") == off {
			t.Errorf("%v: OPTIONS: %d %q", off, status, body)
		}
		for _, path := range []string{"/metrics", "/-/healthy", "/-/ready"} {
			if status, header, _ := send(t, http.MethodGet, r.base+path); status != http.StatusOK || header.Get("Access-Control-Allow-Origin") != "" {
				t.Errorf("%s: %d %v", path, status, header)
			}
		}
	}
}

func TestQueryFrontend_IsReadyWhileItsDownstreamIs(t *testing.T) {
	var down atomic.Bool
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if down.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	defer server.Close()
	q, err := NewQueryFrontend(QueryFrontendOptions{Web: WebOptions{ListenAddress: "127.0.0.1:0"}, Downstream: downstream.Options{URL: server.URL}, ProbeEvery: time.Millisecond, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	r := runRole(t, "query-frontend", q.reg, q.Addr(), q.Run)
	down.Store(true)
	until(t, func() bool {
		status, _ := httpGet(t, r.base+"/-/ready")
		return status == http.StatusServiceUnavailable
	})
	down.Store(false)
	expect(t, r.base+"/-/ready", "ready")
}

func until(t *testing.T, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("nothing happened within 30 s")
		}
	}
}

// A list of blocks that is out of date has the error, as that of Thanos.
func TestStore_FailedListingIsInTheListOfBlocks(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "bucket")
	bucketBlock(t, dir, "x")
	web, _ := startStore(t, dir, func(o *StoreOptions) { o.SyncInterval = 5 * time.Millisecond })
	type list struct {
		Err         *string
		RefreshedAt time.Time
		Blocks      []any
	}
	blocks := func() list {
		_, body := httpGet(t, web+"/api/v1/blocks")
		var response struct{ Data list }
		if err := json.Unmarshal([]byte(body), &response); err != nil {
			t.Fatal(err, body)
		}
		return response.Data
	}
	whole := blocks()
	if whole.Err != nil || len(whole.Blocks) != 1 || time.Since(whole.RefreshedAt).Abs() > time.Hour {
		t.Errorf("%+v", whole)
	}
	if err := os.Rename(dir, dir+".away"); err != nil {
		t.Fatal(err)
	}
	var failed list
	until(t, func() bool { failed = blocks(); return failed.Err != nil })
	if *failed.Err == "" || len(failed.Blocks) != 1 || !failed.RefreshedAt.After(whole.RefreshedAt) {
		t.Errorf("%+v", failed)
	}
	if err := os.Rename(dir+".away", dir); err != nil {
		t.Fatal(err)
	}
	until(t, func() bool { return blocks().Err == nil })
}

// New blocks are found by the next list, and the list is sorted.
func TestStore_ListsTheBucketAgain(t *testing.T) {
	dir := t.TempDir()
	bucketBlock(t, dir, "x")
	web, _ := startStore(t, dir, func(o *StoreOptions) { o.SyncInterval = 5 * time.Millisecond; o.Web.RoutePrefix = "/pre" })
	for range 3 {
		bucketBlock(t, dir, "x")
	}
	var body string
	until(t, func() bool { _, body = httpGet(t, web+"/pre/api/v1/blocks"); return strings.Count(body, `"ulid"`) == 4 })
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	at := -1
	for _, e := range entries {
		if next := strings.Index(body, e.Name()); next < at || next < 0 {
			t.Errorf("%s at %d, after %d", e.Name(), next, at)
		} else {
			at = next
		}
	}
	_, header, _ := send(t, http.MethodGet, web+"/pre/api/v1/blocks")
	if header.Get("Content-Type") != "application/json" || !strings.HasPrefix(body, `{"status":"success","data":{"err":null,"label":"","refreshedAt":"20`) || !strings.Contains(body, `Z","blocks":[{`) || !strings.HasSuffix(body, "}]}}\n") || strings.Count(body, "},{\"ulid\"")+strings.Count(body, "},{\"version\"") < 3 {
		t.Errorf("%v %s", header, body)
	}
}

// A list that stays failed, and a process that is stopped while it waits for the first.
func TestStore_FirstSyncEndsWithItsContext(t *testing.T) {
	s, err := NewStore(StoreOptions{
		Web: WebOptions{ListenAddress: "127.0.0.1:0"}, Bucket: "{type: S3, config: {bucket: b, endpoint: '127.0.0.1:1', insecure: true, access_key: a, secret_key: b}}",
		Store: gateway.Options{Dir: t.TempDir(), CacheBytes: 4 << 20}, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.firstSync(ctx); err != nil {
		t.Error(err)
	}
	if err := s.process.Close(); err != nil {
		t.Error(err)
	}
}

func TestSidecar_BecomesReadyAgainAndDoesNotEndThen(t *testing.T) {
	var down atomic.Bool
	up := prometheusWith(`"storage.tsdb.min-block-duration":"2h","storage.tsdb.max-block-duration":"2h"`, "a: b")
	s, ended, stop := startSidecar(t, func(w http.ResponseWriter, r *http.Request) {
		if down.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		up(w, r)
	}, func(o *SidecarOptions) { o.ReadyTimeout = 1 }) // counts until the first successful poll
	base := "http://" + s.Addr().String()
	expect(t, base+"/-/ready", "ready")
	down.Store(true)
	until(t, func() bool { status, _ := httpGet(t, base+"/-/ready"); return status == http.StatusServiceUnavailable })
	expect(t, base+"/metrics", "thanos_sidecar_prometheus_up 0\n")
	down.Store(false)
	expect(t, base+"/-/ready", "ready")
	expect(t, base+"/metrics", "thanos_sidecar_prometheus_up 1\n")
	stop()
	if err := endOf(t, ended); err != nil {
		t.Error(err)
	}
}

// If the sidecar cannot read the flags of Prometheus, it neither ends nor ships. It is not ready.
func TestSidecar_IsNotReadyUntilTheFlagsAreRead(t *testing.T) {
	var flags atomic.Bool
	with := prometheusWith(`"storage.tsdb.min-block-duration":"2h","storage.tsdb.max-block-duration":"2h"`, "a: b")
	requested := make(chan struct{}, 1000)
	s, _, _ := startSidecar(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/api/v1/status/flags" && !flags.Load() {
			select {
			case requested <- struct{}{}:
			default:
			}
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		with(w, r)
	}, func(o *SidecarOptions) {
		o.Ship.Bucket = "{type: FILESYSTEM, config: {directory: " + t.TempDir() + "}}"
	})
	<-requested
	<-requested
	if status, body := httpGet(t, "http://"+s.Addr().String()+"/-/ready"); status != http.StatusServiceUnavailable {
		t.Errorf("%d %s", status, body)
	}
	flags.Store(true)
	expect(t, "http://"+s.Addr().String()+"/-/ready", "Shipping")
}

// A sidecar polls sooner while Prometheus is starting.
func TestSidecar_AFailedPollIsRepeatedSoon(t *testing.T) {
	var calls atomic.Int64
	up := prometheusWith("", "a: b")
	s, _, _ := startSidecar(t, func(w http.ResponseWriter, r *http.Request) {
		if calls.Add(1) == 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		up(w, r)
	}, func(o *SidecarOptions) { o.PollInterval = time.Hour })
	expect(t, "http://"+s.Addr().String()+"/-/ready", "ready")
}

func TestProfilesOptions_TenantIsThatOfTheHeaderUnlessThereIsOne(t *testing.T) {
	h := http.Header{"X-Scope-Orgid": {"team-a"}}
	for single, want := range map[bool]string{true: api.AnonymousTenant, false: "team-a"} {
		if got, err := (ProfilesOptions{SingleTenant: single}).tenantOf()(h); got != want || err != nil {
			t.Errorf("%v: %s, %v", single, got, err)
		}
	}
}

func TestProfileService_WarnsOfLimitsWithoutEffect(t *testing.T) {
	cfg := &ingest.Config{Limits: map[string]*ingest.TenantLimits{"anonymous": {}, "b": {}, "a": {}}}
	for single, want := range map[bool]string{true: "tenant=a\ntenant=b\n", false: ""} {
		var log bytes.Buffer
		l := &profileService{singleTenant: single, logger: slog.New(slog.NewTextHandler(&log, nil))}
		l.warnOfUnusedLimits(cfg)
		var got strings.Builder
		for line := range strings.Lines(log.String()) {
			_, tenant, _ := strings.Cut(line, "tenant=")
			got.WriteString("tenant=" + tenant)
		}
		if got.String() != want {
			t.Errorf("%v: %q", single, log.String())
		}
	}
}

// A request is labelled with the pattern of its path, not with the path.
func TestProfileService_RequestsKeepTheirPattern(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /a/{name}", func(http.ResponseWriter, *http.Request) {})
	plain := (&profileService{}).withPprofLabels(mux)
	if plain != http.Handler(mux) {
		t.Error("labels without recording")
	}
	r := httptest.NewRequest(http.MethodGet, "/a/b", nil)
	(&profileService{self: &ingest.Self{}}).withPprofLabels(mux).ServeHTTP(httptest.NewRecorder(), r)
	if r.Pattern != "GET /a/{name}" {
		t.Errorf("%q", r.Pattern)
	}
}

func TestProfileService_ExemplarsHaveTheTrace(t *testing.T) {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Header.Set("Traceparent", "00-0102030405060708090a0b0c0d0e0f10-0102030405060708-01")
	for name, l := range map[string]*profileService{"off": {}, "nothing recorded": {self: &ingest.Self{}}} {
		if got := l.exemplar(r); len(got) != 2 || got[0] != "trace_id" || got[1] != "0102030405060708090a0b0c0d0e0f10" {
			t.Errorf("%s: %q", name, got)
		}
	}
}

func newServe(t *testing.T, change func(*ServeOptions)) *Serve {
	t.Helper()
	o := ServeOptions{Web: WebOptions{ListenAddress: "127.0.0.1:0"}, Store: tsdb.Options{Dir: t.TempDir()}, Logger: slog.New(slog.DiscardHandler)}
	if change != nil {
		change(&o)
	}
	s, err := NewServe(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.process.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestServe_NoticesEndAtTheShutdown(t *testing.T) {
	for given, most := range map[int]int{0: 16, 3: 3} {
		n := newServe(t, func(o *ServeOptions) { o.Peer.SubscribersMax = given }).notices
		for i := range most + 1 {
			if _, _, ok := n.Sub(); ok != (i < most) {
				t.Errorf("subscriber %d of %d: %v", i+1, most, ok)
			}
		}
	}
	n := newServe(t, nil).notices
	var of context.Context // a request that ends by itself leaves nothing behind
	n.untilShutdown(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { of = r.Context() })).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil))
	if of.Err() == nil {
		t.Error("the context of a request outlives it")
	}
	if got := n.Get(); len(got) != 1 || !strings.Contains(got[0].Text, "is starting") {
		t.Errorf("%+v", got)
	}
	began, ended := make(chan context.Context), make(chan struct{})
	handler := n.untilShutdown(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		began <- r.Context()
		<-r.Context().Done()
		close(ended)
	}))
	go handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil))
	<-began
	n.stopping()
	<-ended
	if got := fmt.Sprint(n.Get()); !strings.Contains(got, "shutting down") {
		t.Error(got)
	}
}

func TestServe_CounterReadsItsOwnMetrics(t *testing.T) {
	s := newServe(t, nil)
	c := prometheus.NewCounter(prometheus.CounterOpts{Name: "test_total", Help: "Test."})
	c.Add(3)
	if err := s.reg.Register(c); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]float64{"test_total": 3, "none_total": 0} {
		if got, err := s.counter(name); got != want || err != nil {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
}

func TestServe_LifecycleNeedsAReadyServer(t *testing.T) {
	s := newServe(t, func(o *ServeOptions) { o.Web.EnableLifecycle = true })
	for path, want := range map[string]int{"POST /-/reload": 503, "PUT /-/quit": 503, "GET /-/quit": 405, "GET /-/reload": 405} {
		method, target, _ := strings.Cut(path, " ")
		w := httptest.NewRecorder()
		if s.handler.ServeHTTP(w, httptest.NewRequest(method, target, nil)); w.Code != want {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
}

func TestServe_SignalsReload(t *testing.T) {
	level := promslog.NewLevel()
	r, file := startServe(t, "global: {evaluation_interval: 7s, external_labels: {zone: one}}\n", func(o *ServeOptions) { o.LogLevel = level })
	if level.String() != "info" {
		t.Errorf("level %s", level)
	}
	put(t, file, "global: {external_labels: {zone: two}}\nruntime: {log_level: debug, gogc: 83}\n")
	if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	expect(t, r.base+"/api/v1/status/config", "zone: two")
	expect(t, r.base+"/api/v1/status/runtimeinfo", `"GOGC":"83"`)
	until(t, func() bool { return level.String() == "debug" })
	_, body := httpGet(t, r.base+"/metrics")
	_, value, _ := strings.Cut(body, "\nprometheus_config_last_reload_success_timestamp_seconds ")
	value, _, _ = strings.Cut(value, "\n")
	if at, err := strconv.ParseFloat(value, 64); err != nil || math.Abs(at-float64(time.Now().Unix())) > 600 {
		t.Errorf("%q, %v", value, err)
	}
	if _, body := httpGet(t, r.base+"/api/v1/notifications"); strings.Contains(body, "is starting") {
		t.Error(body)
	}
}

func TestServe_TheIntervalOfRulesIsTheStepOfSubqueries(t *testing.T) {
	file := filepath.Join(t.TempDir(), "prometheus.yml")
	put(t, file, "global: {evaluation_interval: 7s}\n")
	s, err := NewServe(ServeOptions{ConfigFile: file, Web: WebOptions{ListenAddress: "127.0.0.1:0"}, Store: tsdb.Options{Dir: t.TempDir()}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	runRole(t, "serve", s.reg, s.Addr(), s.Run)
	if step := s.engine.SubqueryStep(0); step != 7000 {
		t.Errorf("%d ms", step)
	}
}

func TestServe_WithoutFilesThereIsNothingToReload(t *testing.T) {
	s := newServe(t, nil)
	before, at := s.config.lastReload()
	if err := s.config.reload(); err != nil || !before {
		t.Error(err)
	}
	if ok, again := s.config.lastReload(); !ok || !again.Equal(at) {
		t.Errorf("%v at %s, before %s", ok, again, at)
	}
}

// Every part of a configuration that is rejected leaves the whole old one in force.
func TestServe_EachPartOfAReloadCanBeRejected(t *testing.T) {
	profileTargets := filepath.Join(t.TempDir(), "profiles.yml")
	put(t, profileTargets, "scrape_configs: []\n")
	r, file := startServe(t, "global: {external_labels: {zone: one}}\n", func(o *ServeOptions) {
		o.Web.EnableLifecycle, o.Profiles.ConfigFile = true, profileTargets
		o.Ship = ShippingOptions{Bucket: "{type: FILESYSTEM, config: {directory: " + t.TempDir() + "}}", IgnoreBlockSize: true}
	})
	missing := filepath.Join(t.TempDir(), "none", "file")
	broken := filepath.Join(t.TempDir(), "bad.rules")
	put(t, broken, "groups: [{name: a, rules: [{record: b, expr: '('}]}]\n")
	reject := func(what string) {
		t.Helper()
		if status, _, body := send(t, http.MethodPost, r.base+"/-/reload"); status != http.StatusInternalServerError || !strings.Contains(body, what) {
			t.Errorf("%s: %d %s", what, status, body)
		}
		if _, body := httpGet(t, r.base+"/api/v1/status/config"); !strings.Contains(body, "zone: one") {
			t.Errorf("%s: %s", what, body)
		}
	}
	for what, text := range map[string]string{
		"no external labels":    "global: {scrape_interval: 1m}\n",
		"bad.rules":             "global: {external_labels: {zone: two}}\nrule_files: [" + broken + "]\n",
		"none/file":             "global: {external_labels: {zone: two}}\nremote_write: [{url: http://a, tls_config: {ca_file: " + missing + "}}]\n",
		"global.query_log_file": "global: {external_labels: {zone: two}, query_log_file: " + missing + "}\n",
		"scrape job":            "global: {external_labels: {zone: two}}\nscrape_configs: [{job_name: a, tls_config: {ca_file: " + missing + "}}]\n",
		"remote read":           "global: {external_labels: {zone: two}}\nremote_read: [{url: http://a, name: one}, {url: http://a, name: one}]\n",
		"none/file: no such":    "global: {external_labels: {zone: two}}\ntracing: {endpoint: 'a:1', tls_config: {ca_file: " + missing + "}}\n",
	} {
		put(t, file, text)
		reject(what)
	}
	log := filepath.Join(t.TempDir(), "queries.log")
	put(t, file, "global: {external_labels: {zone: two}, query_log_file: "+log+"}\n")
	put(t, profileTargets, "x: 1\n")
	reject("profiles.yml")
	put(t, profileTargets, "scrape_configs: [{job_name: a, static_configs: [{targets: ['127.0.0.1:1']}]}]\n")
	if status, _, body := send(t, http.MethodPost, r.base+"/-/reload"); status != http.StatusOK {
		t.Errorf("%d %s", status, body)
	}
	expect(t, r.base+"/api/v1/status/config", "zone: two")
	httpGet(t, r.base+"/api/v1/query?query=vector(42)")
	if text, err := os.ReadFile(log); err != nil || !strings.Contains(string(text), "vector(42)") {
		t.Errorf("%s, %v", text, err)
	}
}

func TestLiveConfig_SumIsOfAllFiles(t *testing.T) {
	dir := t.TempDir()
	main, targets := filepath.Join(dir, "prometheus.yml"), filepath.Join(dir, "profiles.yml")
	put(t, main, "global: {}\n")
	put(t, targets, "a")
	l := &liveConfig{serve: &Serve{opts: ServeOptions{ConfigFile: main, Profiles: ProfilesOptions{ConfigFile: targets}}}}
	seen := map[string]bool{}
	for i, change := range []func(){func() {}, func() { put(t, main, "global: { }\n") }, func() { put(t, targets, "b") }, func() { l.serve.opts.Profiles.ConfigFile = "" }, func() { l.serve.opts.ConfigFile = "" }} {
		change()
		sum, err := l.sum()
		if err != nil || seen[sum] {
			t.Errorf("change %d: %q, %v", i, sum, err)
		}
		seen[sum] = true
	}
	l.serve.opts = ServeOptions{ConfigFile: filepath.Join(dir, "none")}
	if _, err := l.sum(); err == nil || !strings.Contains(err.Error(), "--config.file: ") {
		t.Error(err)
	}
	l.serve.opts = ServeOptions{Profiles: ProfilesOptions{ConfigFile: filepath.Join(dir, "none")}}
	if _, err := l.sum(); err == nil || !strings.Contains(err.Error(), "--profiles.config-file: ") {
		t.Error(err)
	}
}

func TestLiveConfig_ReloadsByItselfOnlyWithAFile(t *testing.T) {
	for _, tt := range []struct {
		o    ServeOptions
		want bool
	}{
		{ServeOptions{}, false}, {ServeOptions{ConfigFile: "a"}, false}, {ServeOptions{Peer: PeerAPIOptions{AutoReload: 1}}, false},
		{ServeOptions{ConfigFile: "a", Peer: PeerAPIOptions{AutoReload: 1}}, true},
		{ServeOptions{Profiles: ProfilesOptions{ConfigFile: "a"}, Peer: PeerAPIOptions{AutoReload: 1}}, true},
	} {
		if got := (&liveConfig{serve: &Serve{opts: tt.o}}).autoReloads(); got != tt.want {
			t.Errorf("%+v: %v", tt.o, got)
		}
	}
}

func TestServe_FeaturesFollowTheFlags(t *testing.T) {
	for on, change := range map[bool]func(*ServeOptions){
		false: func(o *ServeOptions) { o.Store.MaxExemplars = -1; o.Receive.RemoteWriteOff = true },
		true: func(o *ServeOptions) {
			o.Web.EnableLifecycle, o.Peer.OTLP, o.Peer.Admin, o.Peer.Search, o.Peer.AutoReload, o.Scrape.MetadataInWAL = true, true, true, true, time.Hour, true
		},
	} {
		r, _ := startServe(t, "", change)
		_, body := httpGet(t, r.base+"/api/v1/features")
		for _, name := range []string{"exemplar_storage", "lifecycle", "remote_write_receiver", "otlp_write_receiver", "admin", "search", "auto_reload_config", "metadata_wal_records"} {
			if want := fmt.Sprintf("%q:%v", name, on); !strings.Contains(body, want) && (on || strings.Contains(body, fmt.Sprintf("%q:true", name))) {
				t.Errorf("no %s in %s", want, body)
			}
		}
		for _, want := range []string{`"at_modifier":true`, `"agent_mode":false`, `"static":true`, `"query_stats":true`} {
			if !strings.Contains(body, want) {
				t.Errorf("no %s in %s", want, body)
			}
		}
	}
}

func TestServe_BlocksAreNotJoinedBeforeTheyAreShipped(t *testing.T) {
	file := filepath.Join(t.TempDir(), "prometheus.yml")
	put(t, file, "global: {external_labels: {a: b}}\n")
	for name, tt := range map[string]struct {
		change func(*ServeOptions)
		want   bool
	}{
		"no bucket": {func(*ServeOptions) {}, false}, "kept": {func(o *ServeOptions) { o.Store.KeepOverlappingBlocks = true }, true},
		"shipped": {func(o *ServeOptions) {
			o.Ship.Bucket, o.Store.MinBlockDuration, o.Store.MaxBlockDuration = "{type: FILESYSTEM, config: {directory: "+t.TempDir()+"}}", 2*time.Hour, 2*time.Hour
		}, true},
		"shipped, whatever the size": {func(o *ServeOptions) {
			o.Ship.Bucket, o.Ship.IgnoreBlockSize = "{type: FILESYSTEM, config: {directory: "+t.TempDir()+"}}", true
		}, false},
	} {
		s := newServe(t, func(o *ServeOptions) { o.ConfigFile = file; tt.change(o) })
		if got := s.store.Options().KeepOverlappingBlocks; got != tt.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
