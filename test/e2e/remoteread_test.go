package e2e

import (
	"context"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	configutil "github.com/prometheus/common/config"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/prompb"
	"github.com/prometheus/prometheus/storage/remote"
	"github.com/prometheus/prometheus/tsdb/chunkenc"

	"github.com/ferula-io/ferula/internal/app"
)

// remoteRead reads series with Prometheus' own client, as SAMPLES or STREAMED_XOR_CHUNKS.
func (s *server) remoteRead(form prompb.ReadRequest_ResponseType, mint, maxt int64, m *labels.Matcher) []string {
	s.t.Helper()
	u := try(url.Parse(s.base + "/api/v1/read")).must(s.t)
	client, err := remote.NewReadClient("e2e", &remote.ClientConfig{
		URL: &configutil.URL{URL: u}, Timeout: model.Duration(30 * time.Second), ChunkedReadLimit: 50e6,
		AcceptedResponseTypes: []prompb.ReadRequest_ResponseType{form},
	})
	if err != nil {
		s.t.Fatal(err)
	}
	query := try(remote.ToQuery(mint, maxt, []*labels.Matcher{m}, nil)).must(s.t)
	set := try(client.Read(context.Background(), query, false)).must(s.t)
	var lines []string
	for set.Next() {
		line, it := set.At().Labels().String(), set.At().Iterator(nil)
		lines = append(lines, line+samplesText(it))
		if it.Err() != nil {
			s.t.Fatal(it.Err())
		}
	}
	if set.Err() != nil {
		s.t.Fatal(set.Err())
	}
	return lines
}

// samplesText returns timestamps and values of all samples.
func samplesText(it chunkenc.Iterator) (text string) {
	for {
		switch it.Next() {
		case chunkenc.ValFloat:
			t, v := it.At()
			text += fmt.Sprintf(" %d=%g", t, v)
		case chunkenc.ValHistogram:
			t, h := it.AtHistogram(nil)
			text += fmt.Sprintf(" %d=%s", t, h.ToFloat(nil))
		case chunkenc.ValFloatHistogram:
			t, h := it.AtFloatHistogram(nil)
			text += fmt.Sprintf(" %d=%s", t, h)
		default:
			return text
		}
	}
}

// postRead sends a remote read request of queries, all for the metric name.
func (s *server) postRead(form prompb.ReadRequest_ResponseType, queries int, name string, from, to time.Time) (int, string, http.Header) {
	s.t.Helper()
	request := &prompb.ReadRequest{AcceptedResponseTypes: []prompb.ReadRequest_ResponseType{form}}
	for range queries {
		matchers := []*labels.Matcher{labels.MustNewMatcher(labels.MatchEqual, labels.MetricName, name)}
		request.Queries = append(request.Queries, try(remote.ToQuery(from.UnixMilli(), to.UnixMilli(), matchers, nil)).must(s.t))
	}
	return s.request("POST", "/api/v1/read", string(encoded(s.t, request)), "Content-Type", "application/x-protobuf")
}

// TestRemoteRead_AFailedEndpointIsNeverSilent reads through a server whose remote_read
// endpoint is down. The protocol has no field for a warning.
func TestRemoteRead_AFailedEndpointIsNeverSilent(t *testing.T) {
	t.Parallel()
	forms := []prompb.ReadRequest_ResponseType{prompb.ReadRequest_STREAMED_XOR_CHUNKS, prompb.ReadRequest_SAMPLES}
	file := writeFile(t, filepath.Join(t.TempDir(), "prometheus.yml"),
		"scrape_configs: []\nremote_read:\n- {name: archive, url: 'http://127.0.0.1:1/api/v1/read', read_recent: true}\n- {name: never, url: 'http://127.0.0.1:2/api/v1/read', read_recent: true, required_matchers: {tier: old}}\n")
	at := time.Now().Truncate(time.Minute)
	for _, partial := range []bool{false, true} {
		s := startServe(t, func(o *app.ServeOptions) { o.ConfigFile, o.Read.Partial = file, partial })
		s.writeAll([][]byte{encoded(t, v1(v1Series(at.UnixMilli(), 1, "__name__", "near")))})
		for n, form := range forms {
			for _, name := range []string{"near", "absent"} {
				status, body, header := s.postRead(form, 2, name, at.Add(-time.Hour), at)
				missing := strings.Join(header.Values("X-Ferula-Partial"), " ")
				if partial && (status != http.StatusOK || !strings.Contains(missing, "archive") || strings.Contains(missing, "never") || len(body) == 0 && name == "near") {
					t.Errorf("%s of %s, partial responses allowed: %d, header %q, %d bytes", form, name, status, missing, len(body))
				}
				if !partial && (status != http.StatusBadGateway || !strings.Contains(body, "archive") || missing != "") {
					t.Errorf("%s of %s: %d %s, header %q", form, name, status, body, missing)
				}
			}
			if got := s.metric("ferula_remote_read_partial_total"); got < float64(2*n+2) {
				t.Errorf("%s: %g partial responses are counted", form, got)
			}
		}
		// PromQL has warnings and needs no error.
		s.expect("/api/v1/query?query=near", http.StatusOK, "warnings", "127.0.0.1:1/")
	}
}

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
		s.must(v1Type, body)
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
	to := try(url.Parse(address)).must(t)
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
		if status, body := near.reload(); status != tt.status {
			t.Errorf("%s: %d %s", tt.sections, status, body)
		}
		near.expectValue(tt.want, "far")
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
	noError(t, p.signal(syscall.SIGTERM))
}

// externalLine formats one sample. A series without a label cluster gets the given one.
func externalLine(metric map[string]string, cluster string, ms int64, value string) string {
	if metric["cluster"] == "" {
		metric = maps.Clone(metric)
		metric["cluster"] = cluster
	}
	return fmt.Sprintf("%s %d=%s", labels.FromMap(metric), ms, value)
}

// rowsOfPromQL returns the samples of the ten minutes before at by PromQL.
func (s *server) rowsOfPromQL(query, cluster string, at time.Time) []string {
	s.t.Helper()
	form := url.Values{"query": {query + "[10m]"}, "time": {fmt.Sprint(at.Unix())}}
	status, body := s.get("/api/v1/query?" + form.Encode())
	var response struct {
		Data struct {
			Result []struct {
				Metric map[string]string
				Values [][2]any
			}
		}
		Warnings []string
	}
	if err := json.Unmarshal([]byte(body), &response); err != nil || status != http.StatusOK || len(response.Warnings) > 0 {
		s.t.Fatalf("%s: %d %s %v", query, status, body, err)
	}
	var lines []string
	for _, series := range response.Data.Result {
		for _, v := range series.Values {
			lines = append(lines, externalLine(series.Metric, cluster, int64(v[0].(float64)*1000+0.5), v[1].(string)))
		}
	}
	slices.Sort(lines)
	return lines
}

// rowsOfCSV returns the samples of an exported file.
func rowsOfCSV(t *testing.T, path string) []string {
	t.Helper()
	f := try(os.Open(path)).must(t)
	defer f.Close()
	records := try(csv.NewReader(f).ReadAll()).must(t)
	var lines []string
	for _, r := range records[1:] {
		metric := map[string]string{}
		if err := json.Unmarshal([]byte(r[1]), &metric); err != nil {
			t.Fatalf("%s: %v", r[1], err)
		}
		metric["__name__"] = r[0]
		at, err := time.Parse(time.RFC3339Nano, r[2])
		ms := at.UnixMilli()
		if err != nil {
			if ms, err = strconv.ParseInt(r[2], 10, 64); err != nil {
				t.Fatal(err)
			}
		}
		lines = append(lines, externalLine(metric, "missing", ms, r[3]))
	}
	slices.Sort(lines)
	return lines
}

// checkExternal reads near, which has external labels and a remote_read section, by
// PromQL, remote read and `ferula read`, and compares the results.
func checkExternal(t *testing.T, near *server, at time.Time, want int) {
	t.Helper()
	rows := near.rowsOfPromQL(`{__name__=~"near|far"}`, "eu", at)
	if len(rows) != want {
		t.Errorf("PromQL has %d rows, want %d:\n%s", len(rows), want, strings.Join(rows, "\n"))
	}
	mint, maxt := at.Add(-10*time.Minute).UnixMilli()+1, at.UnixMilli()
	flat := func(lines []string) (all []string) { // one line per sample
		for _, line := range lines {
			head, samples, _ := strings.Cut(line, "} ")
			for _, one := range strings.Fields(samples) {
				all = append(all, head+"} "+one)
			}
		}
		slices.Sort(all)
		return all
	}
	everything := labels.MustNewMatcher(labels.MatchRegexp, labels.MetricName, "near|far")
	for _, form := range []prompb.ReadRequest_ResponseType{prompb.ReadRequest_STREAMED_XOR_CHUNKS, prompb.ReadRequest_SAMPLES} {
		if got := flat(near.remoteRead(form, mint, maxt, everything)); !slices.Equal(got, rows) {
			t.Errorf("%s:\ngot  %s\nwant %s", form, strings.Join(got, "\n     "), strings.Join(rows, "\n     "))
		}
		for _, m := range []*labels.Matcher{
			labels.MustNewMatcher(labels.MatchEqual, "cluster", "eu"), labels.MustNewMatcher(labels.MatchNotEqual, "cluster", "eu"),
			labels.MustNewMatcher(labels.MatchRegexp, "cluster", "e.|x"), labels.MustNewMatcher(labels.MatchNotRegexp, "cluster", "us|"),
			labels.MustNewMatcher(labels.MatchEqual, "cluster", ""), labels.MustNewMatcher(labels.MatchEqual, "cluster", "us"),
		} {
			for _, line := range flat(near.remoteRead(form, mint, maxt, m)) {
				_, cluster, _ := strings.Cut(line, `cluster="`)
				if cluster, _, _ = strings.Cut(cluster, `"`); !m.Matches(cluster) {
					t.Errorf("%s: %s has %s", form, m, line)
				}
			}
		}
	}
	if got := flat(near.remoteRead(prompb.ReadRequest_SAMPLES, mint, maxt, labels.MustNewMatcher(labels.MatchEqual, "cluster", "eu"))); !slices.Equal(got, slices.DeleteFunc(slices.Clone(rows), func(line string) bool { return !strings.Contains(line, `cluster="eu"`) })) {
		t.Errorf("in the cluster: %s", strings.Join(got, "\n"))
	}
	out := filepath.Join(t.TempDir(), "out.csv")
	mustRead(t, binary(t), "read", "--url="+near.base, "--match", `{__name__=~"near|far"}`, "--start", fmt.Sprintf("%.3f", float64(mint)/1000), "--end", fmt.Sprintf("%.3f", float64(maxt)/1000), "-o", out)
	if got := rowsOfCSV(t, out); !slices.Equal(got, rows) {
		t.Errorf("ferula read:\ngot  %s\nwant %s", strings.Join(got, "\n     "), strings.Join(rows, "\n     "))
	}
}

// writeExternalSeries writes series to near and far. Some of far's have a stored label
// with the name of an external one.
func writeExternalSeries(t *testing.T, near, far *server, at time.Time) {
	t.Helper()
	ms := at.Add(-time.Minute).UnixMilli()
	near.writeAll([][]byte{encoded(t, v1(v1Series(ms, 1, "__name__", "near", "a", "1"), v1Series(ms, 2, "__name__", "far", "both", "yes")))})
	far.writeAll([][]byte{encoded(t, v1(
		v1Series(ms, 2, "__name__", "far", "both", "yes"), v1Series(ms, 3, "__name__", "far", "b", "1"), v1Series(ms, 4, "__name__", "far", "z", "1"),
		v1Series(ms, 5, "__name__", "far", "cluster", "eu", "stored", "1"), v1Series(ms, 6, "__name__", "far", "cluster", "us", "stored", "1"),
	))})
}

func TestRemoteRead_ExternalLabelsAreTheSameByEveryPath(t *testing.T) {
	for _, tt := range []struct {
		name, far, section string
		want               int
	}{
		{"the same labels", "global: {external_labels: {cluster: eu}}\n", "", 5},
		{"other labels", "global: {external_labels: {cluster: us}}\n", "", 3},
		{"stored labels only", "", "", 3},
		{"stored labels and no filter", "", ", filter_external_labels: false", 6},
		{"other labels and no filter", "global: {external_labels: {cluster: us}}\n", ", filter_external_labels: false", 7},
	} {
		t.Run(tt.name, func(t *testing.T) {
			at := time.Now().Truncate(time.Second)
			file := writeFile(t, filepath.Join(t.TempDir(), "far.yml"), tt.far+"scrape_configs: []\n")
			far := startServe(t, func(o *app.ServeOptions) { o.ConfigFile = file })
			near, _ := readsFrom(t, "global: {external_labels: {cluster: eu}}\nremote_read: [{url: '"+far.base+"/api/v1/read', read_recent: true"+tt.section+"}]\n")
			writeExternalSeries(t, near, far, at)
			checkExternal(t, near, at, tt.want)
		})
	}
}

func TestPeerPrometheus_IsReadThroughAServerWithExternalLabels(t *testing.T) {
	for _, tt := range []struct {
		far  string
		want int
	}{{"eu", 4}, {"us", 3}} {
		t.Run(tt.far, func(t *testing.T) {
			at := time.Now().Truncate(time.Second)
			far := startPrometheus(t, "global: {external_labels: {cluster: "+tt.far+"}}\n", "")
			near, _ := readsFrom(t, "global: {external_labels: {cluster: eu}}\nremote_read: [{url: '"+far.base+"/api/v1/read', read_recent: true}]\n")
			writeExternalSeries(t, near, far, at)
			checkExternal(t, near, at, tt.want)
		})
	}
}
