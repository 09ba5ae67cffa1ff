package e2e

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/ferula-io/ferula/internal/app"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

// slotLimitedPrometheus is a proxy for a Prometheus with few slots for remote reads. Its
// socket buffers are small, so that a client that does not read blocks a slot.
type slotLimitedPrometheus struct {
	*httptest.Server
	slots chan struct{}

	mu                        sync.Mutex
	reads, open, peak, listed int
}

func newSlotLimitedPrometheus(t *testing.T, backend string, slots int) *slotLimitedPrometheus {
	u, err := url.Parse(backend)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(u)
	g := &slotLimitedPrometheus{slots: make(chan struct{}, slots)}
	g.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/api/v1/read":
			select {
			case g.slots <- struct{}{}:
				defer func() { <-g.slots }()
			case <-r.Context().Done():
				return
			}
			g.mu.Lock()
			g.reads++
			g.open++
			g.peak = max(g.peak, g.open)
			g.mu.Unlock()
			defer func() {
				g.mu.Lock()
				g.open--
				g.mu.Unlock()
			}()
		case "/api/v1/series":
			g.mu.Lock()
			g.listed++
			g.mu.Unlock()
		}
		proxy.ServeHTTP(w, r)
	}))
	g.Config.ErrorLog = nil
	g.Listener = smallBuffers{g.Listener}
	g.Start()
	t.Cleanup(g.Close)
	return g
}

// counts returns the number of remote reads since the last call, the maximum of
// concurrent ones, and the number of series listings.
func (g *slotLimitedPrometheus) counts() (reads, peak, listed int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	reads, peak, listed = g.reads, g.peak, g.listed
	g.reads, g.peak, g.listed = 0, 0, 0
	return reads, peak, listed
}

type smallBuffers struct{ net.Listener }

func (l smallBuffers) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetWriteBuffer(4 << 10)
	}
	return conn, err
}

// wideMetric returns 120 series per cluster, with megabytes of labels.
func wideMetric(name string, clusters ...string) (all []labels.Labels) {
	for _, cluster := range clusters {
		for i := range 120 {
			b := labels.NewBuilder(labels.FromStrings("__name__", name, "i", fmt.Sprintf("%03d", i), "own", cluster, "text", strings.Repeat("x", 12<<10)))
			all = append(all, b.Set("cluster", cluster).Labels())
		}
	}
	return all
}

func TestSidecar_OpensNoMoreRemoteReadsThanPrometheusAllows(t *testing.T) {
	prom := startServe(t, func(o *app.ServeOptions) { o.ConfigFile = configFile(t, "cluster: eu") })
	now := prom.writeNow(wideMetric("one", "", "us")...)
	now = max(now, prom.writeNow(wideMetric("many", "", "eu", "us", "ap", "sa", "af")...))
	now = max(now, prom.writeNow(labels.FromStrings("__name__", "none", "a", "1")))
	for _, tt := range []struct {
		metric        string
		selectionsMax int
		series, reads int
	}{
		{"none", 0, 1, 1}, {"one", 0, 240, 2}, {"one", 1, 240, 1}, {"many", 0, 720, 1}, {"many", 6, 720, 6},
	} {
		slots := 3
		if tt.selectionsMax > slots {
			slots = tt.selectionsMax
		}
		g := newSlotLimitedPrometheus(t, prom.base, slots)
		s := startSidecar(t, g.URL, func(o *app.SidecarOptions) { o.SelectionsMax = tt.selectionsMax })
		s.waitReady()
		g.counts()
		got, err := storeSeries(s.client, storeapi.SeriesRequest{MinMS: now - 60_000, MaxMS: now + 1000, Matchers: []*labels.Matcher{equalMatcher("__name__", tt.metric)}})
		reads, peak, _ := g.counts()
		if err != nil || len(got) != tt.series || reads != tt.reads || peak > slots || !slices.IsSorted(got) {
			t.Errorf("%s, %d selections: %d series by %d remote reads, %d at once: %v", tt.metric, tt.selectionsMax, len(got), reads, peak, err)
		}
		for _, line := range got {
			if !strings.Contains(line, `cluster="eu"`) {
				t.Fatalf("%s: %.200s", tt.metric, line)
			}
		}
		if err := s.stop(); err != nil {
			t.Error(err)
		}
	}
}

func TestSidecar_RequestAcquiresAllItsRemoteReadSlotsAtOnce(t *testing.T) {
	prom := startServe(t, func(o *app.ServeOptions) { o.ConfigFile = configFile(t, "cluster: eu") })
	now := prom.writeNow(wideMetric("two", "", "us", "ap")...)
	g := newSlotLimitedPrometheus(t, prom.base, 3)
	s := startSidecar(t, g.URL, func(o *app.SidecarOptions) { o.ReadsMax = 3 })
	s.waitReady()
	var running sync.WaitGroup
	for range 6 {
		running.Go(func() {
			got, err := storeSeries(s.client, storeapi.SeriesRequest{MinMS: now - 60_000, MaxMS: now + 1000, Matchers: []*labels.Matcher{equalMatcher("__name__", "two")}})
			if err != nil || len(got) != 360 {
				t.Errorf("%d series, %v", len(got), err)
			}
		})
	}
	running.Wait()
	if reads, peak, _ := g.counts(); reads != 18 || peak > 3 {
		t.Errorf("%d remote reads, %d at once", reads, peak)
	}
}

func TestSidecar_ListsLabelsWithoutReadingSamples(t *testing.T) {
	prom := startServe(t, func(o *app.ServeOptions) { o.ConfigFile = configFile(t, "cluster: eu, replica: r1") })
	now := prom.writeNow(
		labels.FromStrings("__name__", "listed", "a", "2"), labels.FromStrings("__name__", "listed", "a", "1", "z", "\u00fc"),
		labels.FromStrings("__name__", "listed", "a", "3", "cluster", "own"), labels.FromStrings("__name__", "other", "a", "3"),
	)
	g := newSlotLimitedPrometheus(t, prom.base, 1)
	s := startSidecar(t, g.URL, nil)
	s.waitReady()
	g.counts()
	request := storeapi.SeriesRequest{MinMS: now - 1000, MaxMS: now + 1000, Matchers: []*labels.Matcher{equalMatcher("__name__", "listed")}, SkipChunks: true}
	want := []string{
		`{__name__="listed", a="1", cluster="eu", replica="r1", z="` + "\u00fc" + `"}`,
		`{__name__="listed", a="2", cluster="eu", replica="r1"}`, `{__name__="listed", a="3", cluster="eu", replica="r1"}`,
	}
	if got, err := storeSeries(s.client, request); err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, %v; want %q", got, err, want)
	}
	if reads, _, listed := g.counts(); reads != 0 || listed != 1 {
		t.Errorf("%d remote reads, %d lists", reads, listed)
	}
	request.MinMS, request.MaxMS = -1<<62, 1<<62
	if got, err := storeSeries(s.client, request); err != nil || !slices.Equal(got, want) {
		t.Errorf("unlimited time range: %q, %v", got, err)
	}
	small := startSidecar(t, g.URL, func(o *app.SidecarOptions) { o.Limits.SortBytesMax = 100 })
	small.waitReady()
	if _, err := storeSeries(small.client, request); err == nil || !strings.Contains(err.Error(), "more than 100 bytes") {
		t.Errorf("over the limit of sort memory: %v", err)
	}
}
