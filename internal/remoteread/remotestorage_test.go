package remoteread

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	configutil "github.com/prometheus/common/config"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/model/labels"
	prometheustsdb "github.com/prometheus/prometheus/tsdb"

	"github.com/ferula-io/ferula/internal/tsdb"
	"github.com/ferula-io/ferula/metrics"
)

func TestStorage_LocalStartIsTwoBlocksAfterTheFirst(t *testing.T) {
	dir := t.TempDir()
	hour := time.Hour.Milliseconds()
	open := func() *Storage {
		s, err := tsdb.New(tsdb.Options{Dir: dir}, slog.New(slog.DiscardHandler), prometheus.NewRegistry(), metrics.NewSet())
		if err == nil {
			err = s.Open()
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		return New(s, 0)
	}
	r := open()
	before := time.Now().UnixMilli()
	got, err := r.localStart()
	if after := time.Now().UnixMilli(); err != nil || got < before+4*hour || got > after+4*hour {
		t.Errorf("an empty storage: %d at %d, %v", got, before, err)
	}
	if err := r.store.Close(); err != nil {
		t.Fatal(err)
	}
	w, err := prometheustsdb.NewBlockWriter(slog.New(slog.DiscardHandler), dir, 2*hour)
	if err != nil {
		t.Fatal(err)
	}
	from := before - 20*hour
	app := w.Appender(context.Background())
	if _, err := app.Append(0, labels.FromStrings("__name__", "m"), from, 1); err != nil {
		t.Fatal(err)
	}
	if err := app.Commit(); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Flush(context.Background()); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	r = open()
	metas, err := r.store.BlockMetas()
	if err != nil || len(metas) != 1 {
		t.Fatal(metas, err)
	}
	if got, err := r.localStart(); err != nil || got != metas[0].MinTime+4*hour {
		t.Errorf("%d, the first block begins at %d, %v", got, metas[0].MinTime, err)
	}
}

func TestStorage_EndpointFollowsItsSection(t *testing.T) {
	external := labels.FromStrings("cluster", "eu")
	u, err := url.Parse("http://127.0.0.1:1/read")
	if err != nil {
		t.Fatal(err)
	}
	r := New(nil, 0)
	e := r.endpoint("http://127.0.0.1:1/read", &config.RemoteReadConfig{URL: &configutil.URL{URL: u}, FilterExternalLabels: true, ReadRecent: true, RequiredMatchers: model.LabelSet{"job": "a"}}, http.DefaultClient, external)
	if !labels.Equal(e.ExternalLabels, external) || e.LocalStart != nil || len(e.RequiredMatchers) != 1 || e.RequiredMatchers[0].String() != `job="a"` {
		t.Errorf("%+v", e)
	}
	e = r.endpoint("http://127.0.0.1:1/read", &config.RemoteReadConfig{URL: &configutil.URL{URL: u}}, http.DefaultClient, external)
	if !e.ExternalLabels.IsEmpty() || e.LocalStart == nil || len(e.RequiredMatchers) != 0 {
		t.Errorf("%+v", e)
	}
}

func TestStorage_PrepareChecksEverySectionAndTakesAllOrNone(t *testing.T) {
	r, mint, maxt := New(emptyStore(t), 0), int64(0), time.Now().UnixMilli()
	var requests atomic.Int64
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		requests.Add(1)
		w.WriteHeader(http.StatusBadRequest)
	}))
	defer srv.Close()
	section := func(name, url string) *config.RemoteReadConfig {
		return &config.RemoteReadConfig{Name: name, URL: parse(t, url), ReadRecent: true, RemoteTimeout: model.Duration(time.Minute), ChunkedReadLimit: 1 << 20}
	}
	read := func() int64 {
		t.Helper()
		requests.Store(0)
		q, err := r.Querier(mint, maxt)
		if err != nil {
			t.Fatal(err)
		}
		set := q.Select(context.Background(), true, nil, labels.MustNewMatcher(labels.MatchEqual, "__name__", "m"))
		for set.Next() {
			t.Error(set.At().Labels())
		}
		_ = q.Close()
		return requests.Load()
	}
	good := section("a", srv.URL)
	take, err := r.Prepare(&config.Config{RemoteReadConfigs: []*config.RemoteReadConfig{good}})
	if err != nil {
		t.Fatal(err)
	}
	if n := read(); n != 0 {
		t.Errorf("%d requests before the endpoint is in effect", n)
	}
	if take(); read() != 1 {
		t.Error("no request to the endpoint")
	}
	broken := section("", "http://user:secret@127.0.0.1:1/read")
	broken.HTTPClientConfig.TLSConfig.CAFile = filepath.Join(t.TempDir(), "absent")
	for want, sections := range map[string][]*config.RemoteReadConfig{
		"remote_read: duplicate section for " + srv.URL:                                    {good, section("a", srv.URL)},
		"HTTP client of remote_read http://user:xxxxx@127.0.0.1:1/read: unable to read CA": {good, broken},
	} {
		if take, err := r.Prepare(&config.Config{RemoteReadConfigs: sections}); take != nil || err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	if read() != 1 {
		t.Error("a rejected configuration changed the endpoints")
	}
	if take, err = r.Prepare(&config.Config{}); err != nil {
		t.Fatal(err)
	}
	if take(); read() != 0 {
		t.Error("a removed endpoint gets requests")
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}

func parse(t *testing.T, text string) *configutil.URL {
	t.Helper()
	u, err := url.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return &configutil.URL{URL: u}
}

// emptyStore returns an open storage without samples.
func emptyStore(t *testing.T) *tsdb.Store {
	t.Helper()
	s, err := tsdb.New(tsdb.Options{Dir: t.TempDir()}, slog.New(slog.DiscardHandler), prometheus.NewRegistry(), metrics.NewSet())
	if err == nil {
		err = s.Open()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func TestStorage_ConnectionsOfRemovedEndpointsAreClosed(t *testing.T) {
	r := New(emptyStore(t), 0)
	var connections atomic.Int64
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadRequest) }))
	srv.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			connections.Add(1)
		case http.StateClosed:
			connections.Add(-1)
		default:
		}
	}
	srv.Start()
	defer srv.Close()
	apply := func(sections ...*config.RemoteReadConfig) {
		t.Helper()
		take, err := r.Prepare(&config.Config{RemoteReadConfigs: sections})
		if err != nil {
			t.Fatal(err)
		}
		take()
	}
	for name, remove := range map[string]func(){
		"removed from the configuration": func() { apply() },
		"closed": func() {
			if err := r.Close(); err != nil {
				t.Error(err)
			}
		},
	} {
		apply(&config.RemoteReadConfig{URL: parse(t, srv.URL), ReadRecent: true, RemoteTimeout: model.Duration(time.Minute), ChunkedReadLimit: 1 << 20})
		q, err := r.Querier(0, time.Now().UnixMilli())
		if err != nil {
			t.Fatal(err)
		}
		for set := q.Select(context.Background(), true, nil, labels.MustNewMatcher(labels.MatchEqual, "__name__", "m")); set.Next(); {
			t.Error(set.At().Labels())
		}
		_ = q.Close()
		if connections.Load() != 1 {
			t.Fatalf("%s: %d connections", name, connections.Load())
		}
		remove()
		for deadline := time.Now().Add(30 * time.Second); connections.Load() > 0; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s: the connection of the endpoint is open", name)
			}
		}
	}
}
