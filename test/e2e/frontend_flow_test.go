package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ferula-io/ferula/internal/app"
)

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
	if err := front.signal(os.Interrupt); err != nil {
		t.Errorf("%v\n%s", err, front.log)
	}
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
	if err := front.signal(os.Interrupt); err != nil {
		t.Errorf("%v\n%s", err, front.log)
	}
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
		if status, body := front.get("/-/ready"); status != http.StatusOK {
			t.Fatalf("not ready after %s: %d %s", time.Since(begun), status, body)
		}
	}
	if probes.Load() > before+1 {
		t.Error("a probe got a connection, so the test proves nothing")
	}
}
