package e2e

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ferula-io/ferula/internal/app"
	"github.com/ferula-io/ferula/internal/frontend/downstream"
)

// The load balancer of a frontend must see the downstream stop and recover.
func TestFrontend_IsReadyWhileItsDownstreamIs(t *testing.T) {
	t.Parallel()
	var status, queryStatus atomic.Int64
	status.Store(http.StatusServiceUnavailable)
	queryStatus.Store(http.StatusOK)
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/prefix/-/ready" && status.Load() == 0:
			panic(http.ErrAbortHandler)
		case r.URL.Path == "/prefix/-/ready":
			w.WriteHeader(int(status.Load()))
		case strings.HasPrefix(r.URL.Path, "/prefix/api/v1/"):
			w.WriteHeader(int(queryStatus.Load()))
			_, _ = io.WriteString(w, `{"status":"success","data":[]}`)
		default:
			t.Errorf("a request for %s", r.URL)
		}
	}))
	defer backend.Close()
	front := runFrontend(t, app.QueryFrontendOptions{Downstream: downstream.Options{URL: backend.URL + "/prefix"}, ProbeEvery: 20 * time.Millisecond})
	ready := func() int {
		status, _ := front.get("/-/ready")
		return status
	}
	query := func() int {
		status, _ := front.get("/api/v1/query?query=1")
		return status
	}
	expectReadiness := func(why string, want int) {
		t.Helper()
		eventually(t, 60*time.Second, fmt.Sprintf("%d because %s", want, why), func() bool { return ready() == want })
	}
	if got, _ := front.get("/-/healthy"); got != http.StatusOK {
		t.Errorf("a frontend that waits for its downstream is not healthy: %d", got)
	}
	expectReadiness("the downstream is starting", http.StatusServiceUnavailable)
	status.Store(http.StatusOK)
	expectReadiness("it is ready", http.StatusOK)
	status.Store(0)
	expectReadiness("it breaks connections", http.StatusServiceUnavailable)
	if got := query(); got != http.StatusOK {
		t.Errorf("a query through a frontend that is not ready: %d", got)
	}
	status.Store(http.StatusNotFound)
	expectReadiness("it has no readiness endpoint", http.StatusOK)
	status.Store(http.StatusBadGateway)
	expectReadiness("a proxy in front of it returns 502", http.StatusServiceUnavailable)
	// A downstream that responds to queries is ready, even if its probe fails.
	eventually(t, 60*time.Second, "200 because it responds to queries", func() bool { return query() == http.StatusOK && ready() == http.StatusOK })
	queryStatus.Store(http.StatusInternalServerError)
	eventually(t, 60*time.Second, "503 because queries fail too", func() bool { return query() >= 500 && ready() == http.StatusServiceUnavailable })
	backend.Config.SetKeepAlivesEnabled(false)
	backend.CloseClientConnections()
	backend.Listener.Close()
	expectReadiness("nothing listens there", http.StatusServiceUnavailable)
}

// runFrontend starts a query frontend that runs until the test ends. It does not wait
// for readiness.
func runFrontend(t *testing.T, opts app.QueryFrontendOptions) *server {
	t.Helper()
	opts.Web = app.WebOptions{ListenAddress: "127.0.0.1:0"}
	opts.Logger = slog.New(slog.NewTextHandler(testLog{t}, nil))
	q, err := app.NewQueryFrontend(opts)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- q.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("the frontend stopped with %v", err)
			}
		case <-time.After(30 * time.Second):
			t.Error("the frontend did not stop")
		}
	})
	return &server{t: t, base: "http://" + q.Addr().String()}
}
