package e2e

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ferula-io/ferula/internal/app"
	"github.com/ferula-io/ferula/internal/frontend"
	"github.com/ferula-io/ferula/internal/frontend/downstream"
)

// startFrontend runs a query frontend in front of the downstream URL until the test
// ends, and waits until it is ready.
func startFrontend(t *testing.T, downstreamURL string, change func(*app.QueryFrontendOptions)) *server {
	t.Helper()
	opts := app.QueryFrontendOptions{
		Downstream: downstream.Options{URL: downstreamURL},
		Frontend:   frontend.Options{Split: frontend.SplitOptions{Interval: time.Hour}},
	}
	if change != nil {
		change(&opts)
	}
	opts.Web, opts.Logger = app.WebOptions{ListenAddress: "127.0.0.1:0"}, testLogger(t)
	q := try(app.NewQueryFrontend(opts)).must(t)
	s := &server{t: t, base: "http://" + q.Addr().String(), ready: "/-/ready", stop: run(t, q.Run)}
	s.waitReady()
	return s
}

// writeHours writes the hours of samples before end, of a few series, to each server.
func writeHours(t *testing.T, end time.Time, hours int, servers ...*server) {
	t.Helper()
	for at := end.Add(-time.Duration(hours) * time.Hour); !at.After(end); at = at.Add(30 * time.Second) {
		ms, i := at.UnixMilli(), float64(at.Unix()%100_000)
		req := v1(
			v1Series(ms, i*3, "__name__", "requests_total", "job", "a", "code", "200"),
			v1Series(ms, i/7, "__name__", "requests_total", "job", "a", "code", "500"),
			v1Series(ms, i*1e-9, "__name__", "temperature", "room", `"kitchen"<&>`),
		)
		if int(i)%7200 < 3600 {
			req.Timeseries = append(req.Timeseries, v1Series(ms, -i, "__name__", "sometimes", "job", "b"))
		}
		body := encoded(t, req)
		for _, s := range servers {
			s.must(v1Type, body)
		}
	}
}

var frontendQueries = []string{
	"requests_total", "rate(requests_total[5m])", "sum by (job) (rate(requests_total[5m]))", "temperature", "sometimes", "absent_over_time(sometimes[1m])",
	"nothing or vector(0)", "requests_total @ end()", "topk(1, requests_total)", "requests_total / ignoring(code) group_left sum without (code) (requests_total)", "sum(", "time()",
}

// compareFrontend sends random range queries to a frontend, twice each, and to its
// downstream, and compares the responses byte for byte.
// compareFrontend sends random range queries to both servers. The responses must be equal as returned by form.
func compareFrontend(t *testing.T, front, backend *server, end time.Time, rounds int, form func(response string) string) {
	t.Helper()
	r := rand.New(rand.NewPCG(21, 22))
	for range rounds {
		query := frontendQueries[r.IntN(len(frontendQueries))]
		from := end.Add(-time.Duration(r.IntN(4*3600)) * time.Second)
		to := from.Add(time.Duration(r.Int64N(int64(end.Sub(from)) + 1)))
		params := url.Values{"query": {query}, "start": {fmt.Sprint(from.Unix())}, "end": {fmt.Sprint(to.Unix())}, "step": {[]string{"15", "60", "37.5", "5m"}[r.IntN(4)]}}
		path := "/api/v1/query_range?" + params.Encode()
		wantStatus, want := backend.get(path)
		want = form(want)
		for range 2 {
			status, got := front.get(path)
			if got = form(got); status != wantStatus || got != want {
				i := differAt(got, want)
				t.Fatalf("%s\nfrontend %d …%.300s\nbehind   %d …%.300s", path, status, got[i:], wantStatus, want[i:])
			}
		}
	}
}

// bytesOf returns the response itself.
func bytesOf(response string) string { return response }

var sampleValue = regexp.MustCompile(`"-?[0-9]+\.[0-9]+(e[-+]?[0-9]+)?"`)

// roundedValues returns a response of a Thanos querier with values of ten digits: it adds the
// values before a counter reset to those after it, from the start of the requested range on, so
// that the last digits of rate() depend on that start. A querier also adds an analysis of each
// evaluation, which splits cannot share.
func roundedValues(response string) string {
	return sampleValue.ReplaceAllStringFunc(strings.Replace(response, `,"analysis":{}`, "", 1), func(quoted string) string {
		v, err := strconv.ParseFloat(strings.Trim(quoted, `"`), 64)
		if err != nil {
			return quoted
		}
		return strconv.Quote(strconv.FormatFloat(v, 'g', 10, 64))
	})
}

// differAt returns an offset up to 100 bytes before the first difference.
func differAt(a, b string) int {
	i := 0
	for i < len(a) && i < len(b) && a[i] == b[i] {
		i++
	}
	return max(0, i-100)
}

func TestFrontend_ResponseEqualsTheDownstreamsByteForByte(t *testing.T) {
	backend := startServe(t, idle(t))
	end := time.Now().Truncate(time.Minute)
	writeHours(t, end, 4, backend)
	for _, cache := range []string{"", "{type: IN-MEMORY, config: {max_size: 64MB}}"} {
		front := startFrontend(t, backend.base, func(o *app.QueryFrontendOptions) { o.RangeCache = cache })
		compareFrontend(t, front, backend, end, 60, bytesOf)
	}
}

// startFilledPrometheus runs a Prometheus with four hours of samples, and returns it
// with its data directory.
func startFilledPrometheus(t *testing.T, end time.Time) (prometheus *server, dir string) {
	t.Helper()
	dir = t.TempDir()
	prometheus = startPrometheus(t, "global: {external_labels: {cluster: one}}\n", dir)
	writeHours(t, end, 4, prometheus)
	return prometheus, dir
}

func TestPeerFrontend_ResponseEqualsPrometheusWithEveryCache(t *testing.T) {
	end := time.Now().Truncate(time.Minute)
	prometheus, _ := startFilledPrometheus(t, end)
	redis, memcached := freeAddress(t), freeAddress(t)
	port := func(address string) string { return strings.TrimPrefix(address, "127.0.0.1:") }
	startServerProgram(t, "redis-server", redis, "--port", port(redis), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no")
	startServerProgram(t, "memcached", memcached, "-p", port(memcached), "-l", "127.0.0.1", "-u", "daemon", "-U", "0")
	for name, cache := range map[string]string{
		"none":      "",
		"memory":    "{type: IN-MEMORY, config: {max_size: 64MB}}",
		"redis":     fmt.Sprintf("{type: REDIS, config: {addr: '%s'}}", redis),
		"memcached": fmt.Sprintf("{type: MEMCACHED, config: {addresses: ['%s']}}", memcached),
		"down":      fmt.Sprintf("{type: REDIS, config: {addr: '%s'}}", freeAddress(t)),
	} {
		t.Run(name, func(t *testing.T) {
			front := startFrontend(t, prometheus.base, func(o *app.QueryFrontendOptions) { o.RangeCache = cache })
			compareFrontend(t, front, prometheus, end, 40, bytesOf)
		})
	}
}

func TestPeerFrontend_ResponseEqualsThanosQuery(t *testing.T) {
	end := time.Now().Truncate(time.Minute)
	prometheus, data := startFilledPrometheus(t, end)
	query := startThanos(t, "query", "--endpoint="+thanosSidecar(t, prometheus, data))
	eventually(t, 60*time.Second, "the store to be found", func() bool { return query.value("count(requests_total)", "time", fmt.Sprint(end.Unix())) == "2" })
	front := startFrontend(t, query.base, func(o *app.QueryFrontendOptions) { o.RangeCache = "{type: IN-MEMORY, config: {max_size: 64MB}}" })
	compareFrontend(t, front, query, end, 40, roundedValues)
}

// startServerProgram runs an installed program until the test ends, and waits until it
// listens on the address.
func startServerProgram(t *testing.T, name, address string, args ...string) {
	t.Helper()
	path, err := exec.LookPath(name)
	needsPeer(t, name, err == nil)
	cmd := exec.Command(path, args...)
	cmd.Dir = t.TempDir()
	launchCommand(t, cmd)
	listening(t, address)
}

// asTenant sends a GET with the tenant's header and returns status and body.
func asTenant(ctx context.Context, base, path, tenant string) (status int, body string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+path, nil)
	if err != nil {
		return 0, "", err
	}
	req.Header.Set("X-Scope-OrgID", tenant)
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b), err
}

func TestFrontend_OneTenantsHangingRequestsDoNotDelayOtherTenantsNorProbes(t *testing.T) {
	var hanging atomic.Int64
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Scope-OrgID") == "greedy" {
			hanging.Add(1)
			<-r.Context().Done()
			return
		}
		_, _ = io.WriteString(w, `{"status":"success","data":{"resultType":"matrix","result":[]}}`)
	}))
	defer backend.Close()
	front := startProcess(t, binary(t), "query-frontend", "--http-address=127.0.0.1:0", "--query-frontend.downstream-url="+backend.URL, "--limits.max-queue-time=1h")

	ctx, cancel := context.WithCancel(t.Context())
	var greedy sync.WaitGroup
	var refused atomic.Int64
	for i := range 600 {
		greedy.Go(func() {
			path := fmt.Sprintf("/api/v1/query_range?query=x%d&start=0&end=300000&step=60", i) // four splits each
			if status, _, err := asTenant(ctx, front.base, path, "greedy"); err == nil && status == http.StatusTooManyRequests {
				refused.Add(1)
			}
		})
	}
	defer greedy.Wait()
	defer cancel()
	eventually(t, 60*time.Second, "the tenant to reach its limits", func() bool {
		_, metrics := front.get("/metrics")
		return hanging.Load() == 192 && strings.Contains(metrics, "\nferula_frontend_queue_length 408\n")
	})
	soon, done := context.WithTimeout(t.Context(), 60*time.Second)
	defer done()
	for _, path := range []string{"/-/healthy", "/-/ready", "/metrics", "/api/v1/query_range?query=x&start=0&end=300000&step=60", "/api/v1/query?query=x", "/api/v1/labels"} {
		if status, body, err := asTenant(soon, front.base, path, "modest"); status != http.StatusOK {
			t.Errorf("%s: %d %.200s %v", path, status, body, err)
		}
	}
	if refused.Load() != 0 {
		t.Errorf("%d requests of the tenant were refused", refused.Load())
	}
	cancel()
	greedy.Wait()
	noError(t, front.signal(os.Interrupt))
}

func TestFrontend_DownstreamConnectionLimitAndTimeoutAreHonoured(t *testing.T) {
	var mu sync.Mutex
	requests := map[string]int{}
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		requests[r.FormValue("query")]++
		mu.Unlock()
		if r.FormValue("query") == "slow" {
			<-r.Context().Done()
			return
		}
		_, _ = io.WriteString(w, `{"status":"success","data":{"resultType":"matrix","result":[]}}`)
	}))
	defer backend.Close()
	front := startProcess(t, binary(t), "query-frontend", "--http-address=127.0.0.1:0", "--query-frontend.downstream-url="+backend.URL,
		"--query-frontend.downstream-tripper-config={max_conns_per_host: 2, response_header_timeout: 2s}")
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	const path = "/api/v1/query_range?start=0&end=1000000&step=300&query="
	if status, body, err := asTenant(ctx, front.base, path+"parts", "a"); status != http.StatusOK {
		t.Errorf("more splits than connections: %d %s %v", status, body, err)
	}
	if status, body, err := asTenant(ctx, front.base, path+"slow", "a"); status != http.StatusGatewayTimeout || !strings.Contains(body, `"timeout"`) {
		t.Errorf("a query that times out: %d %s %v", status, body, err)
	}
	mu.Lock()
	defer mu.Unlock()
	if requests["parts"] != 2 || requests["slow"] > 2 {
		t.Errorf("requests to the downstream: %v", requests)
	}
	noError(t, front.signal(os.Interrupt))
}

// A readiness probe that waits for a free connection does not make the frontend unready.
func TestFrontend_StaysReadyWhileAllConnectionsAreInUse(t *testing.T) {
	var hanging, probes atomic.Int64
	backend := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/-/ready" {
			probes.Add(1)
			return
		}
		hanging.Add(1)
		<-r.Context().Done()
	}))
	defer backend.Close()
	two, every := 2, 300*time.Millisecond
	front := startFrontend(t, backend.URL, func(o *app.QueryFrontendOptions) {
		o.Downstream.Transport.MaxConnsPerHost, o.ProbeEvery = &two, every
	})
	ctx, cancel := context.WithCancel(t.Context())
	var queries sync.WaitGroup
	for i := range two {
		queries.Go(func() { _, _, _ = asTenant(ctx, front.base, fmt.Sprintf("/api/v1/query?query=x%d", i), "a") })
	}
	defer queries.Wait()
	defer cancel()
	eventually(t, 60*time.Second, "both connections to be in use", func() bool { return hanging.Load() == 2 })
	before := probes.Load()
	for begun := time.Now(); time.Since(begun) < 5*every; time.Sleep(every / 4) {
		front.expect("/-/ready", http.StatusOK)
	}
	if probes.Load() > before+1 {
		t.Error("a probe got a connection, so the test proves nothing")
	}
}

// The cache must not return the response of one tenant or token to another. Each case
// has the flags of a multi-tenant installation.
func TestFrontend_CacheSeparatesTenants(t *testing.T) {
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = r.ParseForm()
		fmt.Fprintf(w, `{"status":"success","data":{"resultType":"matrix","result":[{"metric":{"seen":"%s/%s/%s"},"values":[[%s,"1"]]}]}}`,
			r.Header.Get("X-Scope-OrgID"), r.Header.Get("THANOS-TENANT"), r.Header.Get("Authorization"), r.Form.Get("start"))
	}))
	defer backend.Close()
	const path = "/api/v1/query_range?query=up&start=0&end=7199&step=30"
	for name, c := range map[string]struct {
		args          []string
		first, second []string
		sees          string // what the second client gets; "": its request is refused
	}{
		"one tenant named by the other header": {nil, []string{"THANOS-TENANT", "a"}, []string{"X-Scope-OrgID", "a"}, "a//"},
		"a header added to the gateway's":      {nil, []string{"THANOS-TENANT", "a"}, []string{"THANOS-TENANT", "b", "X-Scope-OrgID", "a"}, ""},
		"a header that is not sent":            {[]string{"--query-frontend.org-id-header=X-Team"}, []string{"THANOS-TENANT", "a"}, []string{"THANOS-TENANT", "b"}, "/b/"},
		"a renamed header":                     {[]string{"--query-frontend.tenant-header=X-Team"}, []string{"X-Team", "a"}, []string{"X-Team", "b"}, "/b/"},
		"a forwarded token":                    {[]string{"--query-frontend.forward-header=Authorization"}, []string{"Authorization", "Bearer a"}, []string{"Authorization", "Bearer b"}, "//Bearer b"},
		"no token":                             {[]string{"--query-frontend.forward-header=Authorization"}, []string{"Authorization", "Bearer a"}, nil, "//"},
	} {
		t.Run(name, func(t *testing.T) {
			p := startProcess(t, binary(t), append([]string{"query-frontend", "--http-address=127.0.0.1:0", "--query-frontend.downstream-url=" + backend.URL,
				"--query-range.split-interval=1h", "--query-range.response-cache-config={type: IN-MEMORY, config: {max_size: 16MB}}"}, c.args...)...)
			as := func(header []string) (int, string, string) {
				status, body, got := p.request("GET", path, "", header...)
				return status, body, got.Get("X-Ferula-Cache")
			}
			_, first, _ := as(c.first)
			if _, again, cache := as(c.first); cache != "hit" || again != first {
				t.Fatalf("the first client's response is not cached: %s %s", cache, again)
			}
			status, other, cache := as(c.second)
			switch {
			case c.sees == "" && status != http.StatusBadRequest:
				t.Errorf("%d %s", status, other)
			case c.sees != "" && (cache != "miss" || !strings.Contains(other, `"seen":"`+c.sees+`"`)):
				t.Errorf("cache %s, the second client sees %s", cache, other)
			}
		})
	}
}
