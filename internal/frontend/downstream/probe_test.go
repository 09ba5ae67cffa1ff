package downstream

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	instruments "github.com/ferula-io/ferula/metrics"
)

// fixture is a probe of a server, and the readiness that it reports.
type fixture struct {
	*Probe
	status  atomic.Int64 // of the server's responses to probes
	probes  atomic.Int64
	busy    atomic.Bool
	ready   atomic.Bool
	changes chan string
}

func newFixture(t *testing.T, every time.Duration) *fixture {
	t.Helper()
	f := &fixture{changes: make(chan string, 100)}
	f.status.Store(http.StatusOK)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/-/ready" {
			w.WriteHeader(int(f.status.Load()))
			f.probes.Add(1)
		}
	}))
	t.Cleanup(srv.Close)
	client, err := New(Options{URL: srv.URL}, slog.New(slog.DiscardHandler), instruments.NewSet())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	f.Probe = NewProbe(client, ProbeOptions{
		Every: every, Busy: f.busy.Load, IsReady: f.ready.Load,
		Ready: func() { f.ready.Store(true); f.changes <- "ready" },
		Waiting: func(err error) {
			f.ready.Store(false)
			f.changes <- "waiting: " + err.Error()
		},
	})
	return f
}

// run runs the probe until the test ends.
func (f *fixture) run(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- f.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func (f *fixture) expect(t *testing.T, want string) {
	t.Helper()
	select {
	case got := <-f.changes:
		if !strings.HasPrefix(got, want) {
			t.Errorf("%s, want %s", got, want)
		}
	case <-time.After(time.Minute):
		t.Fatalf("not %s within a minute", want)
	}
}

func TestProbe_ReportsEveryChangeOnce(t *testing.T) {
	f := newFixture(t, 2*time.Second) // also the timeout of a probe
	f.status.Store(http.StatusServiceUnavailable)
	f.run(t)
	f.expect(t, "waiting: GET /-/ready returned status 503")
	f.status.Store(http.StatusNotFound) // a server without a readiness endpoint
	f.expect(t, "ready")
	f.status.Store(http.StatusInternalServerError)
	f.expect(t, "waiting: GET /-/ready returned status 500")
}

func TestProbe_ResponsesToQueriesAndFullSlotsMeanAvailable(t *testing.T) {
	f := newFixture(t, time.Hour)
	before := time.Now().Add(-time.Nanosecond)
	open := func(path string) {
		t.Helper()
		resp, err := f.Open(context.Background(), Request{Path: path, Retries: -1})
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
	}
	f.status.Store(http.StatusServiceUnavailable)
	if open("/-/ready"); f.respondedSince(before) {
		t.Error("a failure counts")
	}
	if open("/api/v1/query"); !f.respondedSince(before) || f.respondedSince(time.Now()) {
		t.Error("a success does not count")
	}
}

func TestProbe_AReadyDownstreamWithFullSlotsStaysReady(t *testing.T) {
	f := newFixture(t, 50*time.Millisecond)
	f.busy.Store(true)
	f.status.Store(http.StatusServiceUnavailable)
	f.run(t)
	f.expect(t, "waiting: ") // full slots do not make it ready
	f.status.Store(http.StatusOK)
	f.expect(t, "ready")
	f.status.Store(http.StatusServiceUnavailable)
	for end := f.probes.Load() + 3; f.probes.Load() < end; time.Sleep(time.Millisecond) {
		if len(f.changes) > 0 {
			t.Fatal(<-f.changes)
		}
	}
	f.busy.Store(false)
	f.expect(t, "waiting: ")
}

func TestProbe_KeepsItsConnection(t *testing.T) {
	var connections atomic.Int64
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("Prometheus Server is Ready.\n"))
	}))
	srv.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			connections.Add(1)
		}
	}
	srv.Start()
	defer srv.Close()
	client, err := New(Options{URL: srv.URL}, slog.New(slog.DiscardHandler), instruments.NewSet())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	probe := NewProbe(client, ProbeOptions{})
	for range 3 {
		if err := probe.probe(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if n := connections.Load(); n != 1 {
		t.Errorf("%d connections for 3 probes", n)
	}
}
