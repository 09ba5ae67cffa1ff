package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log/slog"
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

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

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
		if err := p.signal(os.Interrupt); err != nil {
			t.Errorf("%s: %v", p.name, err)
		}
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
	if err := serve.signal(os.Interrupt); err != nil {
		t.Error(err)
	}
}
