package e2e

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/ferula-io/ferula/internal/app"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

// lineServer accepts clients with a certificate of the authority, and keeps the first line that each sends: that of a
// command to Redis or memcached. It sends no response, so that the client sees a cache that fails.
type lineServer struct {
	net.Listener
	mu      sync.Mutex
	lines   []string
	refused int
	running sync.WaitGroup
}

func newLineServer(t *testing.T, g *guarded) *lineServer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &lineServer{Listener: tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{g.server}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: g.roots()})}
	s.running.Go(func() {
		for {
			conn, err := s.Accept()
			if err != nil {
				return
			}
			s.running.Go(func() { s.serve(conn) })
		}
	})
	t.Cleanup(func() { _ = l.Close(); s.running.Wait() })
	return s
}

func (s *lineServer) serve(conn net.Conn) {
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	line, err := bufio.NewReader(conn).ReadString('\n')
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.refused++
		return
	}
	s.lines = append(s.lines, line)
}

func (s *lineServer) seen() (lines, refused int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.lines), s.refused
}

func TestTLS_FrontendSendsItsCertificateToCaches(t *testing.T) {
	t.Parallel()
	g, other := newGuarded(t), newGuarded(t)
	downstream := startServe(t, idle(t))
	for kind, config := range map[string]string{
		"REDIS":     "{type: REDIS, config: {addr: '%s', tls_enabled: true, %s}}",
		"MEMCACHED": "{type: MEMCACHED, config: {addresses: ['%s'], tls_enabled: true, %s}}",
	} {
		for name, c := range map[string]struct {
			tlsConfig string
			accepted  bool
		}{
			"with its certificate":      {g.tlsConfig("client"), true},
			"without a certificate":     {g.tlsConfig(""), false},
			"with another CA's servers": {other.tlsConfig("client"), false},
		} {
			t.Run(kind+" "+name, func(t *testing.T) {
				cache := newLineServer(t, g)
				frontend := startPart(t, "query-frontend", "--http-address=127.0.0.1:0", "--query-frontend.downstream-url="+downstream.base,
					"--query-range.response-cache-config="+fmt.Sprintf(config, cache.Addr(), c.tlsConfig))
				eventually(t, 30*time.Second, "the cache to be connected", func() bool {
					// Without its cache a frontend responds nevertheless.
					if body := fetchTLS(t, http.DefaultClient, "http://"+frontend.http+"/api/v1/query_range?query=vector(7)&start=0&end=60&step=15"); !strings.Contains(body, `"7"`) {
						t.Errorf("no response: %s", body)
					}
					lines, refused := cache.seen()
					return c.accepted && lines > 0 || !c.accepted && refused > 0
				})
				if lines, refused := cache.seen(); c.accepted != (lines > 0) {
					t.Errorf("%d clients were accepted, %d refused", lines, refused)
				}
				if err := frontend.signal(os.Interrupt); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// spansConfig is the configuration of a part that sends its spans to the server.
func (o *outside) spansConfig(client, path, tlsConfig string) string {
	if path != "" {
		path = ", url_path: /" + path
	}
	return fmt.Sprintf("{type: OTLP, config: {client_type: %s, endpoint: '%s', %s%s}}", client, o.address(), tlsConfig, path)
}

func TestTLS_EveryPartSendsItsCertificateToTheReceiverOfSpans(t *testing.T) {
	t.Parallel()
	g, other := newGuarded(t), newGuarded(t)
	o, bucket := newOutside(t, g), newOutside(t, g)
	config := writeFile(t, filepath.Join(t.TempDir(), "prometheus.yml"), fmt.Sprintf("global: {external_labels: {replica: a}}\ntracing: {client_type: http, endpoint: '%s', sampling_fraction: 1, %s}\n", o.address(), g.tlsConfig("client")))
	ports := []string{"--http-address=127.0.0.1:0", "--grpc-address=127.0.0.1:0"}
	traced := func(name string, args ...string) []string {
		return append([]string{name, "--tracing.config=" + o.spansConfig("http", name, g.tlsConfig("client"))}, args...)
	}
	serve := startPart(t, "serve", "--web.listen-address=127.0.0.1:0", "--grpc-address=127.0.0.1:0", "--no-profiles.self", "--config.file="+config, "--storage.tsdb.path="+t.TempDir())
	parts := map[string]part{ // by the first folder of the path to which their spans go
		"v1":                 serve,
		"query":              startPart(t, append(traced("query", "--endpoint="+serve.grpc), ports...)...),
		"query-frontend":     startPart(t, traced("query-frontend", ports[0], "--query-frontend.downstream-url=http://"+serve.http)...),
		"sidecar":            startPart(t, append(traced("sidecar", "--prometheus.url=http://"+serve.http), ports...)...),
		"store":              startPart(t, append(traced("store", bucket.bucket(g.tlsConfig("client")), "--data-dir="+t.TempDir()), ports...)...),
		"opentelemetry.grpc": startPart(t, append([]string{"query", "--tracing.config=" + o.spansConfig("grpc", "", g.tlsConfig("client"))}, ports...)...),
		"refused":            startPart(t, append([]string{"query", "--tracing.config=" + o.spansConfig("http", "refused", other.tlsConfig("client"))}, ports...)...),
		"anonymous":          startPart(t, append([]string{"query", "--tracing.config=" + o.spansConfig("http", "anonymous", g.tlsConfig(""))}, ports...)...),
	}
	for folder, p := range parts {
		if folder == "sidecar" || folder == "store" { // they trace calls only
			conn := dial(t, p.grpc, insecure.NewCredentials())
			if _, err := storeapi.NewClient(conn, storeapi.ClientOptions{}).Info(t.Context()); err != nil {
				t.Errorf("%s: %v", folder, err)
			}
			conn.Close()
		} else if body := fetchTLS(t, http.DefaultClient, "http://"+p.http+"/api/v1/query?query=vector(7)"); !strings.Contains(body, `"7"`) {
			t.Errorf("%s: %s", folder, body)
		}
	}
	for folder, p := range parts {
		if folder == "v1" {
			continue
		}
		if err := p.signal(os.Interrupt); err != nil { // the last spans are sent when it stops
			t.Errorf("%s: %v", folder, err)
		}
	}
	if err := serve.signal(os.Interrupt); err != nil {
		t.Error(err)
	}
	for folder := range parts {
		path := strings.Replace(folder, "opentelemetry.grpc", "opentelemetry.proto.collector.trace.v1.TraceService", 1)
		if sent := o.requested(path); sent != (folder != "refused" && folder != "anonymous") {
			t.Errorf("%s: the receiver was requested: %t", folder, sent)
		}
	}
}

// The HTTP port of profiles compact, and its connection to the bucket.
func TestTLS_ProfilesCompactRequiresAndSendsCertificates(t *testing.T) {
	t.Parallel()
	g, other := newGuarded(t), newGuarded(t)
	o, address := newOutside(t, g), freeAddress(t)
	command := func(address, tlsConfig string) []string {
		return []string{"profiles", "compact", "--wait", "--http-address=" + address, "--http.config=" + g.web, o.bucket(tlsConfig), "--data-dir=" + t.TempDir()}
	}
	p := part{process: launch(t, binary(t), command(address, g.tlsConfig("client"))...), name: "profiles compact", http: address}
	eventually(t, 30*time.Second, "a listing of the bucket", func() bool { return o.requested("bucket") })
	eventually(t, 30*time.Second, "it to be ready", func() bool {
		return fetchTLS(t, tlsClient(g.roots(), &g.client), "https://"+address+"/-/ready") != ""
	})
	stranger := newAuthority(t).issue("stranger")
	p.refusesOverHTTP(t, g, &stranger)
	if err := p.signal(os.Interrupt); err != nil {
		t.Error(err)
	}
	for name, tlsConfig := range map[string]string{"certificate required": g.tlsConfig(""), "unknown authority": other.tlsConfig("client")} {
		refused := launch(t, binary(t), command("127.0.0.1:0", tlsConfig)...)
		refused.logged(t, regexp.MustCompile("Compacting the profile blocks failed.*"+name))
		if err := refused.signal(os.Interrupt); err != nil {
			t.Error(err)
		}
	}
}

func TestTLS_SidecarSendsItsCertificateToTheBucket(t *testing.T) {
	t.Parallel()
	g := newGuarded(t)
	prometheus := startServe(t, func(o *app.ServeOptions) {
		o.ConfigFile = configFile(t, "replica: a")
		o.Flags = map[string]string{"storage.tsdb.min-block-duration": "2h", "storage.tsdb.max-block-duration": "2h"}
	})
	data := t.TempDir()
	block := writeBlock(t, data, 1, labels.FromStrings("__name__", "shipped"))
	for name, reason := range map[string]string{"client": "", "": "certificate required"} {
		o := newObjects(t, g)
		sidecar := startPart(t, "sidecar", "--http-address=127.0.0.1:0", "--grpc-address=127.0.0.1:0", "--prometheus.url="+prometheus.base, "--tsdb.path="+data,
			"--shipper.meta-file-name="+name+"shipper.json", o.bucket(g.tlsConfig(name)))
		if reason == "" {
			eventually(t, 30*time.Second, "the block in the bucket", func() bool { return o.has("/" + block + "/meta.json") })
		} else {
			sidecar.logged(t, regexp.MustCompile("component=shipper.*"+reason))
		}
		if err := sidecar.signal(os.Interrupt); err != nil {
			t.Error(err)
		}
	}
}

// A store of --endpoint.sd-config has certificates of its own; discovery and scrapes of profiles have those of their section.
func TestTLS_SectionsOfConfigurationsHaveTheirOwnCertificates(t *testing.T) {
	t.Parallel()
	g := newGuarded(t)
	o, dir := newOutside(t, g), t.TempDir()
	metrics := writeFile(t, filepath.Join(dir, "prometheus.yml"), fmt.Sprintf("scrape_configs: [{job_name: discovered, http_sd_configs: [{url: 'https://%s/discovery', %s}]}]\n", o.address(), g.tlsConfig("client")))
	profiles := writeFile(t, filepath.Join(dir, "profiles.yml"), fmt.Sprintf("scrape_configs: [{job_name: profiled, scrape_interval: 1s, scheme: https, %s, static_configs: [{targets: ['%s']}]}]\n", g.tlsConfig("client"), o.address()))
	serve := startPart(t, append([]string{"serve", "--web.listen-address=127.0.0.1:0", "--no-profiles.self", "--config.file=" + metrics, "--profiles.config-file=" + profiles, "--storage.tsdb.path=" + t.TempDir()}, g.grpcServer()...)...)
	for _, folder := range []string{"discovery", "debug"} {
		eventually(t, 30*time.Second, "requests of /"+folder, func() bool { return o.requested(folder) })
	}
	endpoints := fmt.Sprintf("endpoints: [{address: '%s', client_config: {%s}}]", serve.grpc, g.tlsConfig("client"))
	query := startPart(t, "query", "--http-address=127.0.0.1:0", "--grpc-address=127.0.0.1:0", "--endpoint.sd-config="+endpoints)
	eventually(t, 30*time.Second, "the store to be up", func() bool {
		return strings.Contains(fetchTLS(t, http.DefaultClient, "http://"+query.http+"/api/v1/stores"), `"lastError":null`)
	})
	for _, p := range []part{query, serve} {
		if err := p.signal(os.Interrupt); err != nil {
			t.Errorf("%s: %v", p.name, err)
		}
	}
}

// A client without the password gets its 401 before it sends the body: bodies take memory after authentication only.
func TestWeb_BodiesAreReadAfterThePassword(t *testing.T) {
	t.Parallel()
	web := writeFile(t, filepath.Join(t.TempDir(), "web.yml"), eveInBcrypt)
	serve := startPart(t, "serve", "--web.listen-address=127.0.0.1:0", "--grpc-address=", "--no-profiles.self", "--web.enable-otlp-receiver", "--web.config.file="+web, "--storage.tsdb.path="+t.TempDir())
	query := startPart(t, "query", "--http-address=127.0.0.1:0", "--grpc-address=127.0.0.1:0", "--http.config="+web)
	frontend := startPart(t, "query-frontend", "--http-address=127.0.0.1:0", "--http.config="+web, "--query-frontend.downstream-url=http://eve:apple@"+serve.http)
	paths := []string{"/api/v1/query", "/api/v1/query_range", "/api/v1/series"}
	for p, paths := range map[*part][]string{
		&serve: append(paths, "/api/v1/write", "/api/v1/read", "/api/v1/otlp/v1/metrics", "/ingest?name=a", "/push.v1.PusherService/Push", "/v1development/profiles"), &query: paths, &frontend: paths,
	} {
		for _, path := range paths {
			if status := announce(t, p.http, path, "", 20*time.Second); status != http.StatusUnauthorized {
				t.Errorf("%s %s without a password: %d", p.name, path, status)
			}
		}
		if status := announce(t, p.http, paths[0], "Authorization: Basic ZXZlOmFwcGxl\r\n", 300*time.Millisecond); status != 0 {
			t.Errorf("%s with the password responds before the body: %d", p.name, status)
		}
	}
	for _, p := range []part{frontend, query, serve} {
		if err := p.signal(os.Interrupt); err != nil {
			t.Errorf("%s: %v", p.name, err)
		}
	}
}

// announce sends the headers of a request and no body. It returns the status; 0 if none comes.
func announce(t *testing.T, address, path, header string, within time.Duration) int {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(within)); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 1000000\r\n%s\r\n", path, address, header); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0
	}
	resp.Body.Close()
	return resp.StatusCode
}
