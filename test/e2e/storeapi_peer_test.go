package e2e

import (
	"encoding/json"
	"fmt"
	"math"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/prompb"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/ferula-io/ferula/internal/app"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

// grpcServe runs a server with a StoreAPI, and returns the StoreAPI's address.
func grpcServe(t *testing.T, config string, change func(*app.ServeOptions)) (s *server, address string) {
	t.Helper()
	address = fmt.Sprintf("127.0.0.1:%d", freePort(t))
	file := writeFile(t, filepath.Join(t.TempDir(), "prometheus.yml"), config)
	s = startServe(t, func(o *app.ServeOptions) {
		o.ConfigFile, o.GRPC.ListenAddress = file, address
		if change != nil {
			change(o)
		}
	})
	return s, address
}

// thanosQuery runs a Thanos querier over stores, and waits until it knows them.
func thanosQuery(t *testing.T, stores []string, args ...string) *server {
	t.Helper()
	address := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	args = append([]string{
		"query", "--http-address=" + address, fmt.Sprintf("--grpc-address=127.0.0.1:%d", freePort(t)), "--log.level=warn",
		"--endpoint.info-timeout=1m", // Thanos forgets a store that does not respond in time
	}, args...)
	for _, store := range stores {
		args = append(args, "--endpoint="+store)
	}
	startPeer(t, "http://"+address+"/-/ready", peerBinary(t, "thanos"), args...)
	q := &server{t: t, base: "http://" + address}
	eventually(t, 60*time.Second, "Thanos to know its stores", func() bool {
		_, body := q.get("/api/v1/stores")
		for _, store := range stores {
			if !strings.Contains(body, store) {
				return false
			}
		}
		return true
	})
	return q
}

// responseData returns a response's status and data, with lists sorted where their order has no meaning, and without the
// labels in drop and the fields that only one of the servers sends.
func responseData(t *testing.T, body string, drop ...string) any {
	t.Helper()
	var response map[string]any
	if err := json.Unmarshal([]byte(body), &response); err != nil {
		t.Fatalf("%v: %.300s", err, body)
	}
	data := response["data"]
	if object, ok := data.(map[string]any); ok {
		delete(object, "analysis")
		delete(object, "stats")
		if list, ok := object["result"].([]any); ok && object["resultType"] != "scalar" && object["resultType"] != "string" {
			sortJSON(list, drop)
		}
	}
	if list, ok := data.([]any); ok {
		sortJSON(list, drop)
	}
	return []any{response["status"], data}
}

// normalizedResponse returns responseData as text, with long numbers rounded.
func normalizedResponse(t *testing.T, body string, drop ...string) string {
	t.Helper()
	text, err := json.Marshal(responseData(t, body, drop...))
	if err != nil {
		t.Fatal(err)
	}
	return longNumber.ReplaceAllStringFunc(string(text), func(number string) string {
		v, err := strconv.ParseFloat(strings.Trim(number, `"`), 64)
		if err != nil {
			t.Fatal(err)
		}
		return strconv.FormatFloat(v, 'e', 9, 64)
	})
}

// longNumber is a value with so many digits that the last ones are rounding errors.
var longNumber = regexp.MustCompile(`"-?[0-9][0-9.e+-]{12,}"`)

// equalWithinRounding compares decoded JSON. Values may differ in their last digits, because Thanos has an older engine.
func equalWithinRounding(a, b any) bool {
	switch a := a.(type) {
	case map[string]any:
		b, ok := b.(map[string]any)
		if !ok || len(a) != len(b) {
			return false
		}
		for key := range a {
			if other, ok := b[key]; !ok || !equalWithinRounding(a[key], other) {
				return false
			}
		}
		return true
	case []any:
		b, ok := b.([]any)
		return ok && slices.EqualFunc(a, b, equalWithinRounding)
	case string:
		b, ok := b.(string)
		if !ok || a == b {
			return ok
		}
		x, errX := strconv.ParseFloat(a, 64)
		y, errY := strconv.ParseFloat(b, 64)
		return errX == nil && errY == nil && math.Abs(x-y) <= 1e-12*math.Abs(x)
	}
	return a == b
}

func sortJSON(list []any, drop []string) {
	key := func(v any) string {
		if object, ok := v.(map[string]any); ok {
			for _, field := range []string{"metric", "seriesLabels"} {
				if labels, ok := object[field]; ok {
					v = labels
				}
			}
		}
		text, _ := json.Marshal(v)
		return string(text)
	}
	for _, v := range list {
		object, _ := v.(map[string]any)
		for _, label := range drop {
			delete(object, label)
			for _, field := range []string{"metric", "seriesLabels"} {
				if labels, ok := object[field].(map[string]any); ok {
					delete(labels, label)
				}
			}
		}
	}
	slices.SortFunc(list, func(a, b any) int { return strings.Compare(key(a), key(b)) })
}

// storeSamples returns sharedSamples and a series with exemplars.
func storeSamples(t *testing.T, end time.Time) [][]byte {
	t.Helper()
	bodies := sharedSamples(t, end)
	for i := range 5 {
		ms := end.Add(-time.Duration(i+1)*time.Minute + 7*time.Second).UnixMilli()
		one := v1Series(ms, float64(i), "__name__", "traced_total", "job", "a")
		one.Exemplars = []prompb.Exemplar{{Labels: []prompb.Label{{Name: "trace_id", Value: fmt.Sprint(i)}}, Value: float64(i), Timestamp: ms}}
		bodies = append(bodies, encoded(t, v1(one)))
	}
	slices.Reverse(bodies[len(bodies)-5:])
	return bodies
}

// storeRequests are requests that both Thanos and Prometheus support.
func storeRequests(end time.Time) []string {
	from := end.Add(-25 * time.Minute)
	span := fmt.Sprintf("start=%d&end=%d", from.Unix(), end.Unix())
	requests := []string{
		"/api/v1/labels?" + span, "/api/v1/labels?match[]=temperature&" + span, "/api/v1/label/job/values?" + span, "/api/v1/label/code/values?" + span,
		"/api/v1/label/job/values?match[]=requests_total{code=\"500\"}&" + span, "/api/v1/label/__name__/values?" + span,
		"/api/v1/series?match[]=requests_total&" + span, "/api/v1/series?match[]={__name__=~\".%2B\"}&" + span, "/api/v1/series?match[]=nothing&" + span,
		"/api/v1/query_exemplars?query=traced_total&" + span,
	}
	for _, q := range []string{
		"requests_total", "rate(requests_total[5m])", "sum by (job) (rate(requests_total[5m]))", "temperature", `requests_total{code=~"5.."}`, "requests_total offset 10m",
		"histogram_quantile(0.9, size_bucket)", "absent(nothing)", `{__name__=~"requests.*|temp.*",job!="a"}`, "max_over_time(rate(requests_total[1m])[10m:30s])", "traced_total",
		"sum by (job) (avg_over_time(requests_total[5m]))", "changes(temperature[10m])", "deriv(temperature[5m])", "max_over_time(sum(requests_total)[10m:30s])",
	} {
		form := url.Values{"query": {q}, "time": {fmt.Sprint(end.Unix())}}
		requests = append(requests, "/api/v1/query?"+form.Encode())
		form = url.Values{"query": {q}, "start": {fmt.Sprint(from.Unix())}, "end": {fmt.Sprint(end.Unix())}, "step": {"37.5"}}
		requests = append(requests, "/api/v1/query_range?"+form.Encode())
	}
	return requests
}

func prometheusPeer(t *testing.T) *server {
	t.Helper()
	path, dir := peerBinary(t, "prometheus"), t.TempDir()
	config := writeFile(t, filepath.Join(dir, "prometheus.yml"), "scrape_configs: []\n")
	address := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	startPeer(t, "http://"+address+"/-/ready", path, "--config.file="+config, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--enable-feature=exemplar-storage",
		"--web.listen-address="+address, "--web.enable-remote-write-receiver", "--log.level=warn")
	return &server{t: t, base: "http://" + address}
}

func TestPeerThanosQuery_ResultsOverTheStoreAPIEqualPrometheus(t *testing.T) {
	prometheus := prometheusPeer(t)
	plain, plainStore := grpcServe(t, "scrape_configs: []\n", nil)
	labelled, labelledStore := grpcServe(t, "global: {external_labels: {cluster: eu, a_replica: one}}\nscrape_configs: []\n", nil)
	end := time.Now().Truncate(time.Minute)
	bodies := storeSamples(t, end)
	for _, s := range []*server{prometheus, plain, labelled} {
		s.writeAll(bodies)
	}
	overPlain := thanosQuery(t, []string{plainStore})
	overLabelled := thanosQuery(t, []string{labelledStore}, "--query.replica-label=a_replica")
	compared := 0
	for _, request := range storeRequests(end) {
		if strings.Contains(request, "rate%28") {
			continue // Thanos adjusts counters for resets before the engine reads them
		}
		_, want := prometheus.get(request)
		_, got := overPlain.get(request + "&dedup=false")
		if compared++; !equalWithinRounding(responseData(t, got), responseData(t, want)) {
			t.Errorf("%s\nthrough ferula %.700s\nPrometheus     %.700s", request, got, want)
		}
		if strings.HasPrefix(request, "/api/v1/label") || strings.Contains(request, "sum by") || strings.Contains(request, "histogram_quantile") || strings.Contains(request, "absent") {
			continue // labels include the external ones, and these functions drop them
		}
		_, got = overLabelled.get(request + "&dedup=true")
		if compared++; !equalWithinRounding(responseData(t, got, "cluster", "a_replica"), responseData(t, want)) {
			t.Errorf("%s\nthrough ferula with external labels, deduplicated %.700s\nPrometheus     %.700s", request, got, want)
		}
	}
	if compared < 40 {
		t.Fatalf("only %d responses compared", compared)
	}
	_, body := overLabelled.get("/api/v1/label/cluster/values")
	if !strings.Contains(body, `["eu"]`) {
		t.Errorf("values of an external label: %s", body)
	}
	_, body = overLabelled.get("/api/v1/query?dedup=false&query=" + url.QueryEscape(`count(requests_total{cluster="eu",a_replica="one"})`) + "&time=" + fmt.Sprint(end.Unix()))
	if !strings.Contains(body, `"3"`) {
		t.Errorf("selected by external labels: %s", body)
	}
}

// ferula's client reads a Thanos querier over ferula, and a Thanos sidecar of a Prometheus with the same samples.
func TestPeerThanos_StoreAPIsAreReadByTheClient(t *testing.T) {
	s, store := grpcServe(t, "global: {external_labels: {cluster: eu}}\nscrape_configs: []\n", nil)
	end := time.Now().Truncate(time.Minute)
	bodies := storeSamples(t, end)
	s.writeAll(bodies)

	prometheusAt, dir := fmt.Sprintf("127.0.0.1:%d", freePort(t)), t.TempDir()
	config := writeFile(t, filepath.Join(dir, "prometheus.yml"), "global: {external_labels: {cluster: eu}}\nscrape_configs: []\n")
	startPeer(t, "http://"+prometheusAt+"/-/ready", peerBinary(t, "prometheus"), "--config.file="+config, "--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address="+prometheusAt, "--web.enable-remote-write-receiver", "--log.level=warn", "--web.enable-lifecycle")
	(&server{t: t, base: "http://" + prometheusAt}).writeAll(bodies)
	sidecar, sidecarHTTP := fmt.Sprintf("127.0.0.1:%d", freePort(t)), fmt.Sprintf("127.0.0.1:%d", freePort(t))
	startPeer(t, "http://"+sidecarHTTP+"/-/ready", peerBinary(t, "thanos"), "sidecar", "--prometheus.url=http://"+prometheusAt, "--grpc-address="+sidecar, "--http-address="+sidecarHTTP, "--log.level=warn")

	querier, querierHTTP := fmt.Sprintf("127.0.0.1:%d", freePort(t)), fmt.Sprintf("127.0.0.1:%d", freePort(t))
	startPeer(t, "http://"+querierHTTP+"/-/ready", peerBinary(t, "thanos"), "query", "--endpoint="+store, "--grpc-address="+querier, "--http-address="+querierHTTP, "--log.level=warn")
	eventually(t, 60*time.Second, "Thanos to know its store", func() bool {
		_, body := (&server{t: t, base: "http://" + querierHTTP}).get("/api/v1/stores")
		return strings.Contains(body, store)
	})

	request := storeapi.SeriesRequest{MinMS: end.Add(-time.Hour).UnixMilli(), MaxMS: end.UnixMilli(), Matchers: nameMatchers("requests_total|temperature|size_bucket")}
	want, err := readStore(t, dial(t, store, insecure.NewCredentials()), storeapi.ClientOptions{}, request)
	if err != nil || len(want) != 6 {
		t.Fatal(want, err)
	}
	for name, address := range map[string]string{"querier": querier, "sidecar": sidecar} {
		conn := dial(t, address, insecure.NewCredentials())
		info, err := storeapi.NewClient(conn, storeapi.ClientOptions{}).Info(t.Context())
		if err != nil || info.Store == nil || len(info.LabelSets) != 1 || info.LabelSets[0].String() != `{cluster="eu"}` {
			t.Errorf("%s: %+v, %v", name, info, err)
		}
		for _, opts := range []storeapi.ClientOptions{{}, {NoExtension: true, BatchSeries: 1}, {Compression: storeapi.Snappy}} {
			got, err := readStore(t, conn, opts, request)
			if err != nil || strings.Join(got, "\n") != strings.Join(want, "\n") {
				t.Errorf("%s, %+v: %v\n%.500s, want\n%.500s", name, opts, err, strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
		}
		values, _, err := storeapi.NewClient(conn, storeapi.ClientOptions{}).LabelValues(t.Context(), storeapi.LabelsRequest{Label: "job", MinMS: request.MinMS, MaxMS: request.MaxMS})
		if err != nil || strings.Join(values, " ") != "a b<&>" {
			t.Errorf("%s: values %q, %v", name, values, err)
		}
	}
}
