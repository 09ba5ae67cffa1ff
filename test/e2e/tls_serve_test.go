package e2e

import (
	"bytes"
	"crypto/tls"
	"encoding/xml"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
)

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
	req, err := http.NewRequest(http.MethodPost, "https://"+archive.http+"/api/v1/write", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", v1Type)
	req.Header.Set("Content-Encoding", "snappy")
	resp, err := tlsClient(g.roots(), &g.client).Do(req)
	if err != nil {
		t.Fatal(err)
	}
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
		if err := p.signal(os.Interrupt); err != nil {
			t.Error(err)
		}
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
			eventually(t, 60*time.Second, "a warning of the remote_read endpoint", func() bool {
				body = fetchTLS(t, http.DefaultClient, "http://"+serve.http+"/api/v1/query?query=archived")
				return strings.Contains(body, c.reason)
			})
			if strings.Contains(body, `,"7"]`) || o.alerted() || o.has("/"+block+"/index") {
				t.Errorf("something was reached: %s", body)
			}
			if err := serve.signal(os.Interrupt); err != nil {
				t.Error(err)
			}
		})
	}
	archive.logged(t, regexp.MustCompile("http: TLS handshake error.*didn't provide a certificate"))
	if err := archive.signal(os.Interrupt); err != nil {
		t.Error(err)
	}
}
