package e2e

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/xml"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/ferula-io/ferula/internal/app"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

// guarded is an authority whose clients and servers require its certificates of each other.
type guarded struct {
	*authority
	server, client tls.Certificate
	web            string // file: a web configuration that requires client certificates
}

func newGuarded(t *testing.T) *guarded {
	t.Helper()
	g := &guarded{authority: newAuthority(t)}
	g.server, g.client = g.issue("server"), g.issue("client")
	g.web = writeFile(t, g.file("web.yml"), fmt.Sprintf("tls_server_config: {cert_file: %s, key_file: %s, client_ca_file: %s, client_auth_type: RequireAndVerifyClientCert}\n",
		g.file("server.pem"), g.file("server-key.pem"), g.file("ca.pem")))
	return g
}

func (g *guarded) roots() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(g.cert)
	return pool
}

// tlsConfig is the section of a client in files of Prometheus' and Thanos' format. Without a
// name it has no certificate.
func (g *guarded) tlsConfig(certificate string) string {
	if certificate == "" {
		return fmt.Sprintf("tls_config: {ca_file: %s}", g.file("ca.pem"))
	}
	return fmt.Sprintf("tls_config: {ca_file: %s, cert_file: %s, key_file: %s}", g.file("ca.pem"), g.file(certificate+".pem"), g.file(certificate+"-key.pem"))
}

func (g *guarded) grpcServer() []string {
	return []string{"--grpc-address=127.0.0.1:0", "--grpc-server-tls-cert=" + g.file("server.pem"), "--grpc-server-tls-key=" + g.file("server-key.pem"), "--grpc-server-tls-client-ca=" + g.file("ca.pem")}
}

func (g *guarded) grpcClient(certificate string) []string {
	args := []string{"--grpc-client-tls-secure", "--grpc-client-tls-ca=" + g.file("ca.pem")}
	if certificate != "" {
		args = append(args, "--grpc-client-tls-cert="+g.file(certificate+".pem"), "--grpc-client-tls-key="+g.file(certificate+"-key.pem"))
	}
	return args
}

// outside is a server that requires a certificate of the authority: a scrape target, a
// receiver of remote write, and an S3 without objects. seen has the paths of its requests.
type outside struct {
	*httptest.Server
	mu   sync.Mutex
	seen map[string]bool
}

func newOutside(t *testing.T, g *guarded) *outside {
	t.Helper()
	o := &outside{seen: map[string]bool{}}
	o.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		o.mu.Lock()
		o.seen[strings.Split(r.URL.Path, "/")[1]] = true
		o.mu.Unlock()
		switch r.URL.Path {
		case "/metrics":
			_, _ = io.WriteString(w, "tls_sample 1\n")
		case "/write":
			w.WriteHeader(http.StatusNoContent)
		default:
			w.Header().Set("Content-Type", "application/xml")
			_, _ = io.WriteString(w, `<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>bucket</Name><Prefix></Prefix><KeyCount>0</KeyCount><MaxKeys>1000</MaxKeys><IsTruncated>false</IsTruncated></ListBucketResult>`)
		}
	}))
	o.TLS = &tls.Config{Certificates: []tls.Certificate{g.server}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: g.roots()}
	o.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	o.EnableHTTP2 = true // for spans over gRPC
	o.StartTLS()
	t.Cleanup(o.Close)
	return o
}

func (o *outside) address() string { return o.Listener.Addr().String() }

func (o *outside) requested(folder string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.seen[folder]
}

// bucket returns the configuration of the bucket on this server.
func (o *outside) bucket(tlsConfig string) string {
	return fmt.Sprintf("--objstore.config={type: S3, config: {bucket: bucket, endpoint: '%s', region: us-east-1, access_key: a, secret_key: b, http_config: {%s}}}", o.address(), tlsConfig)
}

// part is a running process and the addresses of its log.
type part struct {
	*process
	name, http, grpc string
}

var (
	loggedHTTP = regexp.MustCompile(`msg=Ready .*?(?:url=https?://|http=)([0-9.:]+)`)
	loggedGRPC = regexp.MustCompile(`msg="Listening for gRPC".* address=(\S+)`)
)

func startPart(t *testing.T, args ...string) part {
	t.Helper()
	p := part{process: launch(t, binary(t), args...), name: args[0]}
	p.http = p.logged(t, loggedHTTP)
	if slices.Contains(args, "--grpc-address=127.0.0.1:0") {
		p.grpc = p.logged(t, loggedGRPC)
	}
	return p
}

// tlsClient returns an HTTP client. It sends the certificate, if there is one, whatever
// authorities the server accepts.
func tlsClient(roots *x509.CertPool, certificate *tls.Certificate) *http.Client {
	return &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: tlsClientConfig(roots, certificate)}}
}

func tlsClientConfig(roots *x509.CertPool, certificate *tls.Certificate) *tls.Config {
	config := &tls.Config{RootCAs: roots}
	if certificate != nil {
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return certificate, nil }
	}
	return config
}

// fetchTLS returns the body of a response with status 200; "" otherwise.
func fetchTLS(t *testing.T, client *http.Client, address string) string {
	t.Helper()
	resp, err := client.Get(address)
	if err != nil {
		return ""
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		return ""
	}
	return string(body)
}

// startGuarded runs every part with TLS and client certificates on each of its ports and
// connections.
func startGuarded(t *testing.T, g *guarded, o *outside) []part {
	t.Helper()
	dir := t.TempDir()
	config := writeFile(t, filepath.Join(dir, "prometheus.yml"), fmt.Sprintf(`
global: {scrape_interval: 1s, external_labels: {replica: a}}
scrape_configs: [{job_name: outside, scheme: https, %s, static_configs: [{targets: ['%s']}]}]
remote_write: [{url: 'https://%s/write', %s}]
`, g.tlsConfig("client"), o.address(), o.address(), g.tlsConfig("client")))
	// command returns the arguments of a part with TLS on both ports.
	command := func(name string, args ...string) []string {
		all := []string{name, "--http-address=127.0.0.1:0", "--http.config=" + g.web}
		if name == "serve" {
			all = []string{name, "--web.listen-address=127.0.0.1:0", "--web.config.file=" + g.web}
		}
		if name != "query-frontend" {
			all = append(all, g.grpcServer()...)
		}
		return append(all, args...)
	}
	serve := startPart(t, command("serve", "--config.file="+config, "--storage.tsdb.path="+dir)...)
	sidecar := startPart(t, command("sidecar", "--prometheus.url=https://"+serve.http, "--prometheus.http-client={"+g.tlsConfig("client")+"}", "--tsdb.path="+dir)...)
	store := startPart(t, command("store", o.bucket(g.tlsConfig("client")), "--data-dir="+t.TempDir())...)
	query := startPart(t, append(command("query", "--query.replica-label=replica", "--endpoint="+serve.grpc, "--endpoint="+sidecar.grpc, "--endpoint="+store.grpc), g.grpcClient("client")...)...)
	frontend := startPart(t, command("query-frontend", "--query-frontend.downstream-url=https://"+query.http, "--query-frontend.downstream-tripper-config={"+g.tlsConfig("client")+"}")...)
	return []part{serve, sidecar, store, query, frontend}
}

func TestTLS_EveryPortRequiresACertificateAndEveryClientSendsOne(t *testing.T) {
	t.Parallel()
	g := newGuarded(t)
	o := newOutside(t, g)
	parts := startGuarded(t, g, o)
	trusted := tlsClient(g.roots(), &g.client)
	byName := map[string]part{}
	for _, p := range parts {
		byName[p.name] = p
	}
	query := func(name, expression string) string {
		return fetchTLS(t, trusted, "https://"+byName[name].http+"/api/v1/query?query="+expression)
	}
	eventually(t, 30*time.Second, "the sample of a target that requires a certificate, through frontend and querier", func() bool {
		return strings.Contains(query("query-frontend", "count(tls_sample)"), `,"1"]`)
	})
	if stores := fetchTLS(t, trusted, "https://"+byName["query"].http+"/api/v1/stores"); strings.Count(stores, `"lastError":null`) != 3 {
		t.Errorf("not all three stores are up: %s", stores)
	}
	for _, folder := range []string{"write", "bucket"} {
		eventually(t, 30*time.Second, folder+" to be requested with a certificate", func() bool { return o.requested(folder) })
	}
	client := writeFile(t, g.file("client.yml"), g.tlsConfig("client")+"\n")
	for name, source := range map[string][]string{
		"remote read": {"--url=https://" + byName["serve"].http, "--http.config-file=" + client},
		"StoreAPI":    append(g.grpcClient("client"), "--store="+byName["query"].grpc),
	} {
		out := filepath.Join(t.TempDir(), "out.csv")
		cmd := commandOf(t, binary(t), append([]string{"read", "--match=tls_sample", "--start=-10m", "--retries=0", "--output=" + out}, source...)...)
		printed, err := cmd.CombinedOutput()
		text, _ := os.ReadFile(out)
		if err != nil || !strings.Contains(string(text), "tls_sample") {
			t.Errorf("ferula read by %s: %v: %s\n%s", name, err, printed, text)
		}
	}
	stranger := newAuthority(t).issue("stranger")
	for _, p := range parts {
		p.refusesOverHTTP(t, g, &stranger)
		p.refusesOverGRPC(t, g, &stranger)
	}
	for _, p := range slices.Backward(parts) {
		noError(t, p.signal(os.Interrupt))
	}
}

// refusals are clients that every port must refuse, and the server's log messages about
// them.
var refusals = map[string]string{
	"without a certificate":        "client didn't provide a certificate",
	"with a stranger's":            "unknown authority",
	"that does not trust the port": "", // the client ends the handshake
}

// refusedConfig returns the TLS configuration of a client of refusals.
func (g *guarded) refusedConfig(name string, stranger *tls.Certificate) *tls.Config {
	switch name {
	case "without a certificate":
		return tlsClientConfig(g.roots(), nil)
	case "with a stranger's":
		return tlsClientConfig(g.roots(), stranger)
	}
	return tlsClientConfig(x509.NewCertPool(), &g.client)
}

// refusesOverHTTP checks that the port refuses the client at every endpoint of the part,
// including its metrics.
func (p part) refusesOverHTTP(t *testing.T, g *guarded, stranger *tls.Certificate) {
	t.Helper()
	if page := fetchTLS(t, tlsClient(g.roots(), &g.client), "https://"+p.http+"/metrics"); !strings.Contains(page, "ferula_build_info") {
		t.Errorf("%s: no metrics for a client with a certificate: %q", p.name, page)
	}
	if fetchTLS(t, http.DefaultClient, "http://"+p.http+"/metrics") != "" {
		t.Errorf("%s: a client in plain text is served", p.name)
	}
	for name, line := range refusals {
		client := &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: g.refusedConfig(name, stranger)}}
		if fetchTLS(t, client, "https://"+p.http+"/metrics") != "" {
			t.Errorf("%s: an HTTP client %s is served", p.name, name)
		}
		if line != "" {
			p.logged(t, regexp.MustCompile("http: TLS handshake error from .*"+line))
		}
	}
}

func (p part) refusesOverGRPC(t *testing.T, g *guarded, stranger *tls.Certificate) {
	t.Helper()
	if p.grpc == "" {
		return
	}
	info := func(creds credentials.TransportCredentials) error {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		conn := dial(t, p.grpc, creds)
		defer conn.Close()
		_, err := storeapi.NewClient(conn, storeapi.ClientOptions{}).Info(ctx)
		return err
	}
	if err := info(credentials.NewTLS(tlsClientConfig(g.roots(), &g.client))); err != nil {
		t.Errorf("%s: %v", p.name, err)
	}
	if info(insecure.NewCredentials()) == nil {
		t.Errorf("%s: a gRPC client in plain text is served", p.name)
	}
	for name, line := range refusals {
		wanted := regexp.MustCompile("The TLS handshake of a client failed.*" + line)
		eventually(t, 30*time.Second, p.name+" to log a gRPC client "+name, func() bool { // it logs one a second
			if info(credentials.NewTLS(g.refusedConfig(name, stranger))) == nil {
				t.Fatalf("%s: a gRPC client %s is served", p.name, name)
			}
			return line == "" || wanted.MatchString(p.log.String())
		})
	}
}

// A client that does not trust a server logs the reason. A client without a certificate
// makes the server log the reason.
func TestTLS_ClientsThatCannotConnectLogTheReason(t *testing.T) {
	t.Parallel()
	g, other := newGuarded(t), newGuarded(t)
	o := newOutside(t, g)
	serve := startPart(t, append([]string{"serve", "--web.listen-address=127.0.0.1:0", "--web.config.file=" + g.web, "--storage.tsdb.path=" + t.TempDir()}, g.grpcServer()...)...)
	ports := []string{"--http-address=127.0.0.1:0", "--grpc-address=127.0.0.1:0"}
	const unknown = ".*certificate signed by unknown authority"
	for name, c := range map[string]struct {
		args []string
		line string
	}{
		"query":               {append(append(ports, "--endpoint="+serve.grpc), other.grpcClient("client")...), `msg="Store is down"` + unknown},
		"query-frontend":      {[]string{ports[0], "--query-frontend.downstream-url=https://" + serve.http, "--query-frontend.downstream-tripper-config={" + other.tlsConfig("client") + "}"}, "Not ready: the downstream is not available" + unknown},
		"sidecar":             {append(ports, "--prometheus.url=https://"+serve.http, "--prometheus.http-client={"+other.tlsConfig("client")+"}", "--tsdb.path="+t.TempDir()), "Not ready: polling Prometheus failed" + unknown},
		"store":               {append(ports, o.bucket(other.tlsConfig("client")), "--data-dir="+t.TempDir()), "Not ready: listing the blocks failed" + unknown},
		"query anonymous":     {append(append(ports, "--endpoint="+serve.grpc), g.grpcClient("")...), `msg="Store is down"`},
		"sidecar anonymous":   {append(ports, "--prometheus.url=https://"+serve.http, "--prometheus.http-client={"+g.tlsConfig("")+"}", "--tsdb.path="+t.TempDir()), "Not ready: polling Prometheus failed"},
		"query in plain text": {append(ports, "--endpoint="+serve.grpc), `msg="Store is down"`},
	} {
		t.Run(name, func(t *testing.T) {
			p := launch(t, binary(t), append([]string{strings.Fields(name)[0]}, slices.Clone(c.args)...)...)
			p.logged(t, regexp.MustCompile(c.line))
			if err := p.signal(os.Interrupt); err != nil {
				t.Log(err) // it was not ready
			}
		})
	}
	serve.logged(t, regexp.MustCompile("The TLS handshake of a client failed.*didn't provide a certificate"))
	serve.logged(t, regexp.MustCompile("http: TLS handshake error.*didn't provide a certificate"))
	config := writeFile(t, other.file("client.yml"), other.tlsConfig("client")+"\n")
	for what, source := range map[string][]string{
		"remote read": {"--url=https://" + serve.http, "--http.config-file=" + config},
		"StoreAPI":    append(other.grpcClient("client"), "--store="+serve.grpc),
	} {
		printed := refusedBy(t, binary(t), t.TempDir(), append([]string{"read", "--match=up", "--retries=0", "--output=out.csv"}, source...)...)
		if !strings.Contains(printed, "unknown authority") {
			t.Errorf("ferula read by %s: %s", what, printed)
		}
	}
	noError(t, serve.signal(os.Interrupt))
}

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
	l := try(net.Listen("tcp", "127.0.0.1:0")).must(t)
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
	const redis = "{type: REDIS, config: {addr: '%s', tls_enabled: true, %s}}"
	const memcached = "{type: MEMCACHED, config: {addresses: ['%s'], tls_enabled: true, %s}}"
	for name, c := range map[string]struct {
		config, tlsConfig string
		accepted          bool
	}{
		"Redis":                          {redis, g.tlsConfig("client"), true},
		"Redis without a certificate":    {redis, g.tlsConfig(""), false},
		"Memcached":                      {memcached, g.tlsConfig("client"), true},
		"Memcached of another authority": {memcached, other.tlsConfig("client"), false},
	} {
		t.Run(name, func(t *testing.T) {
			cache := newLineServer(t, g)
			frontend := startPart(t, "query-frontend", "--http-address=127.0.0.1:0", "--query-frontend.downstream-url="+downstream.base,
				"--query-range.response-cache-config="+fmt.Sprintf(c.config, cache.Addr(), c.tlsConfig))
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
			noError(t, frontend.signal(os.Interrupt))
		})
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
		noError(t, p.signal(os.Interrupt)) // the last spans are sent when it stops
	}
	noError(t, serve.signal(os.Interrupt))
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
	noError(t, p.signal(os.Interrupt))
	for name, tlsConfig := range map[string]string{"certificate required": g.tlsConfig(""), "unknown authority": other.tlsConfig("client")} {
		refused := launch(t, binary(t), command("127.0.0.1:0", tlsConfig)...)
		refused.logged(t, regexp.MustCompile("Compacting the profile blocks failed.*"+name))
		noError(t, refused.signal(os.Interrupt))
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
		noError(t, sidecar.signal(os.Interrupt))
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
		noError(t, p.signal(os.Interrupt))
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
		noError(t, p.signal(os.Interrupt))
	}
}

// announce sends the headers of a request and no body. It returns the status; 0 if none comes.
func announce(t *testing.T, address, path, header string, within time.Duration) int {
	t.Helper()
	conn := try(net.Dial("tcp", address)).must(t)
	defer conn.Close()
	noError(t, conn.SetDeadline(time.Now().Add(within)))
	try(fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 1000000\r\n%s\r\n", path, address, header)).must(t)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0
	}
	resp.Body.Close()
	return resp.StatusCode
}

// objects is an S3 with one bucket and an Alertmanager, which require a certificate.
type objects struct {
	*httptest.Server
	mu     sync.Mutex
	stored map[string][]byte // by path
	alerts int               // requests with alerts
}

func newObjects(t *testing.T, g *guarded) *objects {
	t.Helper()
	o := &objects{stored: map[string][]byte{}}
	o.Server = httptest.NewUnstartedServer(o)
	o.TLS = &tls.Config{Certificates: []tls.Certificate{g.server}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: g.roots()}
	o.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	o.StartTLS()
	t.Cleanup(o.Close)
	return o
}

func (o *objects) address() string { return o.Listener.Addr().String() }

func (o *objects) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if strings.HasSuffix(r.URL.Path, "/api/v2/alerts") {
		o.alerts++
		return
	}
	w.Header().Set("ETag", `"1"`)
	w.Header().Set("Last-Modified", time.Now().UTC().Format(http.TimeFormat))
	stored, found := o.stored[r.URL.Path]
	switch {
	case r.Method == http.MethodPut:
		o.stored[r.URL.Path] = body
	case r.URL.Query().Has("list-type"):
		o.list(w, r.URL.Path, r.URL.Query().Get("prefix"))
	case !found:
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, "<Error><Code>NoSuchKey</Code></Error>")
	default:
		http.ServeContent(w, r, "", time.Now(), bytes.NewReader(stored))
	}
}

// list lists every object with a prefix; clients find folders in their names.
func (o *objects) list(w io.Writer, bucket, prefix string) {
	type object struct {
		Key, LastModified, ETag string
		Size                    int
	}
	var result struct {
		XMLName  xml.Name `xml:"ListBucketResult"`
		KeyCount int
		Contents []object
	}
	for path, body := range o.stored {
		if key, ok := strings.CutPrefix(path, strings.TrimSuffix(bucket, "/")+"/"); ok && strings.HasPrefix(key, prefix) {
			result.Contents = append(result.Contents, object{key, time.Now().UTC().Format(time.RFC3339), `"1"`, len(body)})
		}
	}
	result.KeyCount = len(result.Contents)
	_ = xml.NewEncoder(w).Encode(result)
}

func (o *objects) has(suffix string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	for path := range o.stored {
		if strings.HasSuffix(path, suffix) {
			return true
		}
	}
	return false
}

func (o *objects) alerted() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.alerts > 0
}

func (o *objects) bucket(tlsConfig string) string {
	return fmt.Sprintf("--objstore.config={type: S3, config: {bucket: bucket, endpoint: '%s', region: us-east-1, access_key: a, secret_key: b, bucket_lookup_type: path, http_config: {%s}}}", o.address(), tlsConfig)
}

// archiving returns the arguments of a server with a block, whose Alertmanager, remote_read
// endpoint and bucket require certificates, and the name of the block.
func archiving(t *testing.T, archive string, o *objects, tlsConfig string) (args []string, block string) {
	t.Helper()
	dir, data := t.TempDir(), t.TempDir()
	block = writeBlock(t, data, 1, labels.FromStrings("__name__", "shipped"))
	writeFile(t, filepath.Join(dir, "rules.yml"), "groups: [{name: all, rules: [{alert: Always, expr: vector(1)}]}]\n")
	config := writeFile(t, filepath.Join(dir, "prometheus.yml"), fmt.Sprintf(`
global: {evaluation_interval: 200ms, external_labels: {cluster: eu}}
rule_files: [rules.yml]
alerting: {alertmanagers: [{scheme: https, %[3]s, static_configs: [{targets: ['%[1]s']}]}]}
remote_read: [{url: 'https://%[2]s/api/v1/read', read_recent: true, filter_external_labels: false, %[3]s}]
`, o.address(), archive, tlsConfig))
	return []string{"serve", "--web.listen-address=127.0.0.1:0", "--grpc-address=", "--no-profiles.self", "--config.file=" + config, "--storage.tsdb.path=" + data,
		"--storage.tsdb.min-block-duration=2h", "--storage.tsdb.max-block-duration=2h", "--storage.tsdb.retention.time=30d", "--rules.alert.resend-delay=1s", o.bucket(tlsConfig)}, block
}

// startArchive runs a server that requires certificates and has a sample.
func startArchive(t *testing.T, g *guarded) part {
	t.Helper()
	archive := startPart(t, "serve", "--web.listen-address=127.0.0.1:0", "--grpc-address=", "--no-profiles.self", "--web.config.file="+g.web, "--storage.tsdb.path="+t.TempDir())
	body := encoded(t, v1(v1Series(time.Now().UnixMilli(), 7, "__name__", "archived")))
	req := try(http.NewRequest(http.MethodPost, "https://"+archive.http+"/api/v1/write", bytes.NewReader(body))).must(t)
	req.Header.Set("Content-Type", v1Type)
	req.Header.Set("Content-Encoding", "snappy")
	resp := try(tlsClient(g.roots(), &g.client).Do(req)).must(t)
	resp.Body.Close()
	if resp.StatusCode != http.StatusNoContent {
		t.Fatal(resp.Status)
	}
	return archive
}

func TestTLS_ServeSendsItsCertificateToAlertmanagersRemoteReadAndBuckets(t *testing.T) {
	t.Parallel()
	g := newGuarded(t)
	o, archive := newObjects(t, g), startArchive(t, g)
	args, block := archiving(t, archive.http, o, g.tlsConfig("client"))
	serve := startPart(t, args...)
	eventually(t, 60*time.Second, "an alert at the Alertmanager", o.alerted)
	eventually(t, 60*time.Second, "the sample of the remote_read endpoint", func() bool {
		return strings.Contains(fetchTLS(t, http.DefaultClient, "http://"+serve.http+"/api/v1/query?query=archived"), `,"7"]`)
	})
	for _, name := range []string{"chunks/000001", "index", "meta.json"} {
		eventually(t, 60*time.Second, name+" of the block in the bucket", func() bool { return o.has("/" + block + "/" + name) })
	}
	for _, p := range []part{serve, archive} {
		noError(t, p.signal(os.Interrupt))
	}
}

func TestTLS_ServeWithoutATrustedCertificateReachesNothingAndNamesTheReason(t *testing.T) {
	t.Parallel()
	g, other := newGuarded(t), newGuarded(t)
	o, archive := newObjects(t, g), startArchive(t, g)
	for name, c := range map[string]struct{ tlsConfig, reason string }{
		"without a certificate":     {g.tlsConfig(""), "certificate required"},
		"with another CA's servers": {other.tlsConfig("client"), "unknown authority"},
	} {
		t.Run(name, func(t *testing.T) {
			args, block := archiving(t, archive.http, o, c.tlsConfig)
			serve := startPart(t, args...)
			serve.logged(t, regexp.MustCompile(`component=notifier.*`+c.reason))
			serve.logged(t, regexp.MustCompile(`component=shipper.*`+c.reason))
			body := ""
			for _, path := range []string{"series?match[]=archived", "query?query=archived"} {
				eventually(t, 20*time.Second, "a warning of the remote_read endpoint: "+path, func() bool {
					body = fetchTLS(t, http.DefaultClient, "http://"+serve.http+"/api/v1/"+path)
					return strings.Contains(body, c.reason)
				})
			}
			if strings.Contains(body, `,"7"]`) || o.alerted() || o.has("/"+block+"/index") {
				t.Errorf("something was reached: %s", body)
			}
			noError(t, serve.signal(os.Interrupt))
		})
	}
	archive.logged(t, regexp.MustCompile("http: TLS handshake error.*didn't provide a certificate"))
	noError(t, archive.signal(os.Interrupt))
}
