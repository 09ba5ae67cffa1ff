package e2e

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ferula-io/ferula/internal/app"
)

// readsFrom starts a server with these sections in its configuration file.
func readsFrom(t *testing.T, sections string) (s *server, file string) {
	t.Helper()
	file = writeFile(t, filepath.Join(t.TempDir(), "prometheus.yml"), "scrape_configs: []\n"+sections)
	return startServe(t, func(o *app.ServeOptions) { o.ConfigFile, o.Web.EnableLifecycle = file, true }), file
}

// compareResponses sends the queries of sharedRequests to both servers.
func compareResponses(t *testing.T, got, want *server, end time.Time) {
	t.Helper()
	compared, withData := 0, 0
	for _, request := range sharedRequests(end) {
		if !strings.HasPrefix(request, "/api/v1/query?") && !strings.HasPrefix(request, "/api/v1/query_range?") {
			continue
		}
		gotStatus, gotBody := got.get(request)
		wantStatus, wantBody := want.get(request)
		if compared++; strings.Contains(wantBody, `"metric":{"`) {
			withData++
		}
		if gotStatus != wantStatus || gotBody != wantBody {
			t.Errorf("%s\ngot  %d %.500s\nwant %d %.500s", request, gotStatus, gotBody, wantStatus, wantBody)
		}
	}
	if compared < 50 || withData < 20 {
		t.Fatalf("%d requests compared, %d with data", compared, withData)
	}
}

// sortedSamples returns the series of sharedSamples in the order of their labels. A head
// returns series in the order of appending, a merge in the order of labels.
func sortedSamples(t *testing.T, end time.Time) [][]byte {
	t.Helper()
	var bodies [][]byte
	for at := end.Add(-30 * time.Minute); !at.After(end); at = at.Add(15 * time.Second) {
		ms, i := at.UnixMilli(), float64(at.Unix()%1800)
		bodies = append(bodies, encoded(t, v1(
			v1Series(ms, i*3, "__name__", "requests_total", "code", "200", "job", "a"),
			v1Series(ms, i*i*1e17, "__name__", "requests_total", "code", "200", "job", "b<&>"),
			v1Series(ms, i/7, "__name__", "requests_total", "code", "500", "job", "a"),
			v1Series(ms, 2*i, "__name__", "size_bucket", "le", "+Inf"),
			v1Series(ms, i, "__name__", "size_bucket", "le", "1"),
			v1Series(ms, -i*1e-9, "__name__", "temperature", "room", `"kitchen"\`),
		)))
	}
	return bodies
}

func (s *server) writeAll(bodies [][]byte) {
	s.t.Helper()
	for _, body := range bodies {
		if status, text, _ := s.write(v1Type, "snappy", body); status != http.StatusNoContent {
			s.t.Fatalf("%s: %d %s", s.base, status, text)
		}
	}
}

func TestRemoteRead_ResponseEqualsTheRemoteServers(t *testing.T) {
	end := time.Now().Truncate(time.Minute)
	far := startServe(t, idle(t))
	far.writeAll(sortedSamples(t, end))
	near, _ := readsFrom(t, "remote_read: [{url: '"+far.base+"/api/v1/read', read_recent: true}]\n")
	compareResponses(t, near, far, end)
	// A series of both servers has the samples of both.
	all := startServe(t, idle(t))
	later := end.Add(time.Minute)
	more := [][]byte{encoded(t, v1(v1Series(later.UnixMilli(), 5, "__name__", "temperature", "room", `"kitchen"\`), v1Series(later.UnixMilli(), 6, "__name__", "near")))}
	all.writeAll(sortedSamples(t, end))
	all.writeAll(more)
	near.writeAll(more)
	compareResponses(t, near, all, later)
	form := url.Values{"query": {`{__name__=~".+"}`}, "start": {fmt.Sprint(end.Add(-time.Hour).Unix())}, "end": {fmt.Sprint(later.Unix())}, "step": {"15"}}
	_, got := near.get("/api/v1/query_range?" + form.Encode())
	if _, want := all.get("/api/v1/query_range?" + form.Encode()); got != want || !strings.Contains(got, "near") {
		t.Errorf("got  %.1000s\nwant %.1000s", got, want)
	}
}

func TestRemoteRead_SectionOptionsAreHonoured(t *testing.T) {
	const appleInBcrypt = "$2a$04$ZPhz8rfdmpae1mBwsJUU1ugnOw3VCQbDPPYb9UM60sEIvn6WarITe"
	dir := t.TempDir()
	web := writeFile(t, filepath.Join(dir, "web.yml"), "basic_auth_users:\n  eve: "+appleInBcrypt+"\n")
	labelled := writeFile(t, filepath.Join(dir, "far.yml"), "global: {external_labels: {cluster: eu}}\nscrape_configs: []\n")
	far := startServe(t, func(o *app.ServeOptions) { o.ConfigFile, o.Web.ConfigFile = labelled, web })
	now := time.Now()
	far.writeAll([][]byte{encoded(t, v1(v1Series(now.UnixMilli(), 1.5, "__name__", "far", "a", "1"), v1Series(now.UnixMilli(), 2, "__name__", "far", "a", "1", "b", "2"), v1Series(now.UnixMilli(), 3, "__name__", "far", "z", "1")))})
	address := strings.Replace(far.base, "eve:apple@", "", 1) + "/api/v1/read"
	account := ", basic_auth: {username: eve, password: apple}"
	needsHeader := requireHeader(t, address, "X-Ferula", "please")
	own := "global: {external_labels: {cluster: eu}}\n"
	for _, tt := range []struct {
		name, config, query string
		want                int
		warning             string
	}{
		{"external labels are added to the request and removed from the result", own + "remote_read: [{url: '" + address + "', read_recent: true" + account + "}]\n", `far{cluster=""}`, 0, ""},
		{"a matcher for an external label is forwarded", own + "remote_read: [{url: '" + address + "', read_recent: true" + account + "}]\n", `far{cluster="eu"}`, 3, ""},
		{"the result has no external labels", own + "remote_read: [{url: '" + address + "', read_recent: true" + account + "}]\n", `count by (cluster) (far)`, 1, ""},
		{"filter_external_labels is false", "global: {external_labels: {cluster: us}}\nremote_read: [{url: '" + address + "', read_recent: true, filter_external_labels: false" + account + "}]\n", `far{cluster="eu"}`, 3, ""},
		{"another cluster returns nothing", "global: {external_labels: {cluster: us}}\nremote_read: [{url: '" + address + "', read_recent: true" + account + "}]\n", `far`, 0, ""},
		{"recent samples are read locally", "remote_read: [{url: '" + address + "'" + account + "}]\n", `far offset -3h`, 0, ""},
		{"a required matcher is missing", "remote_read: [{url: '" + address + "', read_recent: true, required_matchers: {a: '1'}" + account + "}]\n", `far`, 0, ""},
		{"a required matcher is there", "remote_read: [{url: '" + address + "', read_recent: true, required_matchers: {a: '1'}" + account + "}]\n", `far{a="1"}`, 2, ""},
		{"headers are sent", "remote_read: [{url: '" + needsHeader + "', read_recent: true, headers: {X-Ferula: please}" + account + "}]\n", `far`, 3, ""},
		{"no account", "remote_read: [{url: '" + address + "', read_recent: true}]\n", `far`, 0, "401 Unauthorized"},
		{"connection refused", "remote_read: [{url: 'http://u:secret@127.0.0.1:1/', read_recent: true, remote_timeout: 2s}]\n", `far`, 0, "unavailable: http://u:xxxxx@127.0.0.1:1/"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			near, _ := readsFrom(t, tt.config)
			form := url.Values{"query": {tt.query}, "time": {fmt.Sprint(now.Unix() + 1)}}
			status, body := near.get("/api/v1/query?" + form.Encode())
			if n := strings.Count(body, `"metric":`); status != http.StatusOK || n != tt.want || strings.Contains(body, "secret") {
				t.Errorf("%d %s, want %d series", status, body, tt.want)
			}
			if strings.Contains(tt.query, "count by") && strings.Contains(body, "cluster") {
				t.Errorf("%s has an external label", body)
			}
			if tt.warning == "" && strings.Contains(body, "warnings") || !strings.Contains(body, tt.warning) || (tt.warning != "" && !strings.Contains(body, `"warnings":[`)) {
				t.Errorf("%s, want the warning %q", body, tt.warning)
			}
		})
	}
}

// requireHeader forwards requests that have a header, and returns 403 for others.
func requireHeader(t *testing.T, address, name, value string) string {
	t.Helper()
	to, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.Out.URL = to }}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(name) != value {
			http.Error(w, "no", http.StatusForbidden)
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	return s.URL
}

func TestRemoteRead_SectionsAreReloaded(t *testing.T) {
	now := time.Now()
	far := startServe(t, idle(t))
	far.writeAll([][]byte{encoded(t, v1(v1Series(now.UnixMilli(), 1.5, "__name__", "far")))})
	section := "remote_read: [{url: '" + far.base + "/api/v1/read', read_recent: true}]\n"
	near, file := readsFrom(t, "")
	for _, tt := range []struct {
		sections string
		status   int
		want     string
	}{
		{section, http.StatusOK, "1.5"},
		{"remote_read: [" + strings.TrimSuffix(strings.TrimPrefix(section, "remote_read: ["), "]\n") + "," + strings.TrimPrefix(section, "remote_read: ["), http.StatusInternalServerError, "1.5"},
		{strings.Replace(section, "true}", "true, tls_config: {ca_file: /nowhere}}", 1), http.StatusInternalServerError, "1.5"},
		{"", http.StatusOK, ""},
		{section, http.StatusOK, "1.5"},
	} {
		writeFile(t, file, "scrape_configs: []\n"+tt.sections)
		if status, body := near.post("/-/reload", "", ""); status != tt.status {
			t.Errorf("%s: %d %s", tt.sections, status, body)
		}
		if got := near.value("far"); got != tt.want {
			t.Errorf("%s: far is %q, want %q", tt.sections, got, tt.want)
		}
	}
}

func TestPeerPrometheus_AndFerulaReadEachOther(t *testing.T) {
	end := time.Now().Truncate(time.Minute)
	prometheus := startPrometheus(t, "", "")
	prometheus.writeAll(sortedSamples(t, end))
	near, _ := readsFrom(t, "remote_read: [{url: '"+prometheus.base+"/api/v1/read', read_recent: true}]\n")
	compareResponses(t, near, prometheus, end)
	far := startServe(t, idle(t))
	far.writeAll(sortedSamples(t, end))
	reader := startPrometheus(t, "remote_read: [{url: '"+far.base+"/api/v1/read', read_recent: true}]\n", "")
	compareResponses(t, reader, far, end)
}

// startPrometheus runs a real Prometheus with a remote write receiver and these sections
// in its configuration. An empty data is a new directory.
func startPrometheus(t *testing.T, sections, data string) *server {
	t.Helper()
	path := peerBinary(t, "prometheus")
	dir := t.TempDir()
	if data == "" {
		data = filepath.Join(dir, "data")
	}
	config := writeFile(t, filepath.Join(dir, "prometheus.yml"), "scrape_configs: []\n"+sections)
	address := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	startPeer(t, "http://"+address+"/-/ready", path, "--config.file="+config, "--storage.tsdb.path="+data,
		"--web.listen-address="+address, "--web.enable-remote-write-receiver", "--log.level=warn")
	return &server{t: t, base: "http://" + address}
}

// TestRemoteRead_QueriesOfSeveralSelectors reads several selectors and parts that Prometheus' engine
// evaluates from an endpoint that responds and one that does not.
func TestRemoteRead_QueriesOfSeveralSelectors(t *testing.T) {
	end := time.Now().Truncate(time.Minute)
	remote := startServe(t, nil)
	remote.writeAll(sortedSamples(t, end))
	config := writeFile(t, filepath.Join(t.TempDir(), "prometheus.yml"), "scrape_configs: []\nremote_read:\n"+
		"- {url: '"+remote.base+"/api/v1/read', read_recent: true}\n- {url: 'http://127.0.0.1:1/api/v1/read', read_recent: true}\n")
	p := startProcess(t, binary(t), "serve", "--config.file="+config, "--storage.tsdb.path="+t.TempDir(), "--web.listen-address=127.0.0.1:0")
	for _, query := range []string{
		`requests_total + requests_total`,
		`sum(requests_total) / sum(rate(size_bucket[5m])) or temperature`,
		`sum(requests_total) + sum(max_over_time(temperature[5m:1m] @ ` + fmt.Sprint(end.Unix()) + `)) - sum(size_bucket)`,
		`count(requests_total) + count(temperature offset 1m) * count(missing) or count(max_over_time(size_bucket[10m:1m]))`,
	} {
		path := "/api/v1/query?" + url.Values{"query": {query}, "time": {fmt.Sprint(end.Unix())}}.Encode()
		status, body := p.get(path)
		_, want := remote.get(path)
		got, warnings, _ := strings.Cut(body, `,"warnings":`)
		if status != http.StatusOK || got+"}" != strings.TrimSuffix(want, "\n") || !strings.Contains(warnings, "127.0.0.1:1") {
			t.Errorf("%s: %d\n got %.300s\nwant %.300s\nwarnings %.200s", query, status, got, want, warnings)
		}
		if !strings.Contains(want, `"value":[`) {
			t.Errorf("%s: no result", query)
		}
	}
	if err := p.signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
}
