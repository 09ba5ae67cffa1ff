package app

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ferula-io/ferula/internal/frontend/downstream"
	"github.com/ferula-io/ferula/internal/profiles/store"
	"github.com/ferula-io/ferula/internal/thanos/gateway"
	"github.com/ferula-io/ferula/internal/tsdb"
	"github.com/ferula-io/ferula/metrics"
)

// starts checks the errors of processes that must not start, by their texts, and that each process that does not start
// releases its address.
func starts(t *testing.T, what string, start func(text string, web WebOptions) error, texts ...string) {
	t.Helper()
	for _, text := range texts {
		address := unusedAddress(t)
		if err := start(text, WebOptions{ListenAddress: address}); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v, want %q", what, err, text)
		}
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Errorf("%s: %q: %v", what, text, err)
			continue
		}
		_ = l.Close()
	}
}

const unknownTracing = "{type: NONE}"

func TestNewServe_EveryFaultOfTheOptionsIsAnError(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		put(t, path, text)
		return path
	}
	change := map[string]func(o *ServeOptions){
		"--web.max-connections: -1 is less than 1":         func(o *ServeOptions) { o.Web.MaxConnections = -1 },
		"listen on 127.0.0.1:99999":                        func(o *ServeOptions) { o.Web.MoreAddresses = []string{"127.0.0.1:99999"} },
		"--web.external-url: \"'x'\": must not":            func(o *ServeOptions) { o.Web.ExternalURL = "'x'" },
		"--config.file: ":                                  func(o *ServeOptions) { o.ConfigFile = file("unknown.yml", "x: 1\n") },
		"--config.file: configuration ":                    func(o *ServeOptions) { o.ConfigFile, o.Peer.AutoReload = filepath.Join(dir, "none.yml"), time.Hour },
		"--storage.tsdb.path: mkdir ":                      func(o *ServeOptions) { o.Store.Dir = filepath.Join(file("a-file", ""), "data") },
		"--storage.tsdb.samples-per-chunk: -1 is negative": func(o *ServeOptions) { o.Store.SamplesPerChunk = -1 },
		"--objstore.config: no external labels":            func(o *ServeOptions) { o.Ship.Bucket, o.Ship.IgnoreBlockSize = "{type: FILESYSTEM}", true },
		"--objstore.config: object storage configuration": func(o *ServeOptions) {
			o.Ship, o.ConfigFile = ShippingOptions{Bucket: "{type: NONE}", IgnoreBlockSize: true}, file("labels.yml", "global: {external_labels: {a: b}}\n")
		},
		"--profiles.config-file: ":            func(o *ServeOptions) { o.Profiles.ConfigFile = file("profiles.yml", "x: 1\n") },
		"head size -1 is negative":            func(o *ServeOptions) { o.Profiles.Store = store.Options{HeadBytes: -1} },
		"profile limit on tenants: -1":        func(o *ServeOptions) { o.Profiles.Limits.Tenants = -1 },
		"--query.max-samples: -1 is negative": func(o *ServeOptions) { o.Query.MaxSamples = -1 },
		"--query.engine: \"fast\" is neither": func(o *ServeOptions) { o.Engine.Name = "fast" },
		"--query.parallelism: -1 is negative": func(o *ServeOptions) { o.Engine.Parallelism = -1 },
		"bad.rules": func(o *ServeOptions) {
			o.ConfigFile = file("rules.yml", "rule_files: ["+file("bad.rules", "groups: [{name: a, rules: [{record: b, expr: '('}]}]\n")+"]\n")
		},
		"--web.cors.origin: \"(\"":           func(o *ServeOptions) { o.Web.CORSOrigin = "(" },
		"listen on 127.0.0.1:99999 for gRPC": func(o *ServeOptions) { o.GRPC.ListenAddress = "127.0.0.1:99999" },
		"or allow it with --grpc-server-allow-anonymous": func(o *ServeOptions) {
			o.GRPC.ListenAddress, o.Web.ConfigFile = "0.0.0.0:0", file("web.yml", "basic_auth_users: {eve: $2y$10$QOauhQNbBCuQDKes6eFzPeMqBSjb7Mr5DUmpZ/VcEd00UAV/LDeSi}\n")
		},
	}
	var texts []string
	for text := range change {
		texts = append(texts, text)
	}
	starts(t, "serve", func(text string, web WebOptions) error {
		o := ServeOptions{Web: web, Store: tsdb.Options{Dir: t.TempDir()}, Logger: slog.New(slog.DiscardHandler)}
		change[text](&o)
		_, err := NewServe(o)
		return err
	}, texts...)
	// gRPC on all addresses is valid despite the users of web.yml if AllowAnonymous is set.
	s, err := NewServe(ServeOptions{
		Web:  WebOptions{ListenAddress: "127.0.0.1:0", ConfigFile: filepath.Join(dir, "web.yml")},
		GRPC: GRPCOptions{ListenAddress: "0.0.0.0:0", AllowAnonymous: true}, Store: tsdb.Options{Dir: t.TempDir()}, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	if s.own == nil {
		t.Error("a server with passwords cannot scrape itself")
	}
	if err := s.process.Close(); err != nil {
		t.Error(err)
	}
}

func TestNewQuery_EveryFaultOfTheOptionsIsAnError(t *testing.T) {
	change := map[string]func(o *QueryOptions){
		"--tracing.config: ":                  func(o *QueryOptions) { o.Tracing = unknownTracing },
		"--query.max-samples: -1 is negative": func(o *QueryOptions) { o.Query.MaxSamples = -1 },
		"--query.engine: \"fast\" is neither": func(o *QueryOptions) { o.Engine.Name = "fast" },
		"--query.parallelism: -1 is negative": func(o *QueryOptions) { o.Engine.Parallelism = -1 },
		"--grpc-client-tls-*: ":               func(o *QueryOptions) { o.Client.TLS, o.Client.TLSCA = true, "/none" },
		"--selector.relabel-config: ":         func(o *QueryOptions) { o.Relabel = "[null]" },
		"listen on 127.0.0.1:99999: ":         func(o *QueryOptions) { o.Web.MoreAddresses = []string{"127.0.0.1:99999"} },
		"listen on 127.0.0.1:99999 for gRPC":  func(o *QueryOptions) { o.GRPC.ListenAddress = "127.0.0.1:99999" },
		"external URL \"'x'\": must not":      func(o *QueryOptions) { o.Web.ExternalURL = "'x'" },
		"--web.cors.origin: \"(\"":            func(o *QueryOptions) { o.Web.CORSOrigin = "(" },
	}
	var texts []string
	for text := range change {
		texts = append(texts, text)
	}
	starts(t, "query", func(text string, web WebOptions) error {
		o := QueryOptions{Web: web, Logger: slog.New(slog.DiscardHandler)}
		change[text](&o)
		_, err := NewQuery(o)
		return err
	}, texts...)
}

func TestNewQueryFrontend_EveryFaultOfTheOptionsIsAnError(t *testing.T) {
	change := map[string]func(o *QueryFrontendOptions){
		"--tracing.config: ":                        func(o *QueryFrontendOptions) { o.Tracing = unknownTracing },
		"--query-frontend.downstream-url: ":         func(o *QueryFrontendOptions) { o.Downstream.URL = "ftp://a" },
		"--query-range.response-cache-config: ":     func(o *QueryFrontendOptions) { o.RangeCache = "type: NONE" },
		"--labels.response-cache-config: ":          func(o *QueryFrontendOptions) { o.LabelCache = "type: NONE" },
		"limit: maximum of tenants is negative: -1": func(o *QueryFrontendOptions) { o.Limits.TenantsMax = -1 },
		"limit: maximum of concurrent requests is":  func(o *QueryFrontendOptions) { o.DownstreamMax = -2 },
		"--query-range.max-query-parallelism and":   func(o *QueryFrontendOptions) { o.Frontend.Parallelism = -1 },
		"listen on 127.0.0.1:99999: ":               func(o *QueryFrontendOptions) { o.Web.MoreAddresses = []string{"127.0.0.1:99999"} },
	}
	var texts []string
	for text := range change {
		texts = append(texts, text)
	}
	starts(t, "query-frontend", func(text string, web WebOptions) error {
		o := QueryFrontendOptions{Web: web, Downstream: downstream.Options{URL: "http://127.0.0.1:1"}, Logger: slog.New(slog.DiscardHandler)}
		change[text](&o)
		_, err := NewQueryFrontend(o)
		return err
	}, texts...)
}

func TestNewSidecar_EveryFaultOfTheOptionsIsAnError(t *testing.T) {
	change := map[string]func(o *SidecarOptions){
		"--prometheus.url: \"ftp://a\" is not":            func(o *SidecarOptions) { o.PrometheusURL = "ftp://a" },
		"--prometheus.url: \"http:\" is not":              func(o *SidecarOptions) { o.PrometheusURL = "http://" },
		"--prometheus.url: \"<secret>\" is not":           func(o *SidecarOptions) { o.PrometheusURL = "http://u:p%zz@a" },
		"--prometheus.http-client: ":                      func(o *SidecarOptions) { o.HTTPClient = "x: 1" },
		"--tracing.config: ":                              func(o *SidecarOptions) { o.Tracing = unknownTracing },
		"--objstore.config: object storage configuration": func(o *SidecarOptions) { o.Ship.Bucket = "{type: NONE}" },
		"--reloader.config-envsubst-file: ":               func(o *SidecarOptions) { o.Reload.OutputFile = "x" },
		"listen on 127.0.0.1:99999: ":                     func(o *SidecarOptions) { o.Web.MoreAddresses = []string{"127.0.0.1:99999"} },
		"listen on 127.0.0.1:99999 for gRPC":              func(o *SidecarOptions) { o.GRPC.ListenAddress = "127.0.0.1:99999" },
	}
	var texts []string
	for text := range change {
		texts = append(texts, text)
	}
	starts(t, "sidecar", func(text string, web WebOptions) error {
		o := SidecarOptions{Web: web, PrometheusURL: "https://127.0.0.1:1", TSDBDir: t.TempDir(), Logger: slog.New(slog.DiscardHandler)}
		change[text](&o)
		_, err := NewSidecar(o)
		return err
	}, texts...)
}

func TestNewStore_EveryFaultOfTheOptionsIsAnError(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	put(t, file, "")
	change := map[string]func(o *StoreOptions){
		"--tracing.config: ":                              func(o *StoreOptions) { o.Tracing = unknownTracing },
		"--selector.relabel-config: rule 0 is empty":      func(o *StoreOptions) { o.Relabel = "[null]" },
		"--objstore.config: object storage configuration": func(o *StoreOptions) { o.Bucket = "{type: NONE}" },
		"--data-dir: ":                       func(o *StoreOptions) { o.Store.Dir = filepath.Join(file, "x") },
		"listen on 127.0.0.1:99999: ":        func(o *StoreOptions) { o.Web.MoreAddresses = []string{"127.0.0.1:99999"} },
		"listen on 127.0.0.1:99999 for gRPC": func(o *StoreOptions) { o.GRPC.ListenAddress = "127.0.0.1:99999" },
	}
	var texts []string
	for text := range change {
		texts = append(texts, text)
	}
	starts(t, "store", func(text string, web WebOptions) error {
		o := StoreOptions{
			Web: web, Bucket: "{type: FILESYSTEM, config: {directory: " + t.TempDir() + "}}",
			Store: gateway.Options{Dir: t.TempDir(), CacheBytes: 4 << 20}, Logger: slog.New(slog.DiscardHandler),
		}
		change[text](&o)
		_, err := NewStore(o)
		return err
	}, texts...)
}

func TestSelectorRelabel_NamesTheRule(t *testing.T) {
	for text, want := range map[string]string{
		"[{action: keep, source_labels: [a], regex: b}, null]":               "rule 1 is empty",
		"[{action: labeldrop, regex: a}]":                                    `rule 0: action "labeldrop" is not supported: use keep, drop or hashmod`,
		"[{action: hashmod, source_labels: [cluster], target_label: shard}]": "rule 0: relabel configuration for hashmod",
		"x": "cannot unmarshal",
	} {
		if rules, err := selectorRelabel(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, %v", text, rules, err)
		}
	}
	if rules, err := selectorRelabel(""); rules != nil || err != nil {
		t.Error(rules, err)
	}
}

// The queue for slots is not limited: only admitted requests wait in it.
func TestNewSlots_AreLimitedByConnections(t *testing.T) {
	for _, tt := range []struct{ max, perHost, want int }{{0, 0, 256}, {0, 7, 7}, {5, 7, 5}, {5, -1, 5}, {5, 1, 1}} {
		o := QueryFrontendOptions{DownstreamMax: tt.max, Downstream: downstream.Options{Transport: downstream.Transport{MaxConnsPerHost: &tt.perHost}}}
		slots, err := newSlots(o, metrics.NewSet())
		if err != nil {
			t.Fatal(err)
		}
		for n := 0; n < tt.want; n++ {
			if slots.Full() {
				t.Fatalf("%+v: full after %d", tt, n)
			}
			if _, err := slots.Acquire(t.Context(), fmt.Sprint(n)); err != nil {
				t.Fatal(err)
			}
		}
		if !slots.Full() {
			t.Errorf("%+v: not full", tt)
		}
	}
	if slots, err := newSlots(QueryFrontendOptions{}, metrics.NewSet()); err != nil || slots.MaxPerRequest() > 256 {
		t.Error(err)
	}
}

func TestRead_ErrorsOfSourcesAreOptions(t *testing.T) {
	o := readOptions(t)
	o.Store, o.StoreClient = "127.0.0.1:1", StoreClientOptions{TLS: true, TLSCA: "/none"}
	if _, err := Read(t.Context(), o); err == nil || !strings.Contains(err.Error(), "--store: ") || !strings.Contains(err.Error(), "/none") {
		t.Error(err)
	}
	o = readOptions(t)
	o.URL, o.HTTPConfigFile = "http://127.0.0.1:1", filepath.Join(t.TempDir(), "http.yml")
	put(t, o.HTTPConfigFile, "tls_config: {ca_file: /none}\n")
	if _, err := Read(t.Context(), o); err == nil || !strings.Contains(err.Error(), "--http.config-file: ") || !strings.Contains(err.Error(), "/none") {
		t.Error(err)
	}
}

// closeCounter is a transport that counts its calls.
type closeCounter struct{ closed int }

func (*closeCounter) RoundTrip(*http.Request) (*http.Response, error) { return nil, os.ErrClosed }
func (c *closeCounter) CloseIdleConnections()                         { c.closed++ }

func TestWithHeader_ChangesACopyAndClosesIdleConnections(t *testing.T) {
	next := &closeCounter{}
	client := &http.Client{Transport: withHeader{next, http.Header{"X-A": {"1"}}}}
	client.CloseIdleConnections()
	if next.closed != 1 {
		t.Errorf("closed %d times", next.closed)
	}
	request, err := http.NewRequest(http.MethodGet, "http://a", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Transport.RoundTrip(request); !errors.Is(err, os.ErrClosed) || len(request.Header) != 0 {
		t.Errorf("%v, %v", request.Header, err)
	}
	withHeader{http.NewFileTransport(http.Dir(".")), nil}.CloseIdleConnections() // it has no such method
}
