package e2e

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ferula-io/ferula/internal/app"
	"github.com/ferula-io/ferula/internal/frontend"
	"github.com/ferula-io/ferula/internal/frontend/downstream"
	"github.com/ferula-io/ferula/internal/frontend/split"
)

// startFrontend runs a query frontend in front of the downstream URL until the test
// ends, and waits until it is ready.
func startFrontend(t *testing.T, downstreamURL string, change func(*app.QueryFrontendOptions)) *server {
	t.Helper()
	opts := app.QueryFrontendOptions{
		Web:        app.WebOptions{ListenAddress: "127.0.0.1:0"},
		Downstream: downstream.Options{URL: downstreamURL},
		Frontend:   frontend.Options{Split: split.Options{Interval: time.Hour}},
		Logger:     slog.New(slog.NewTextHandler(testLog{t}, &slog.HandlerOptions{Level: slog.LevelWarn})),
	}
	if change != nil {
		change(&opts)
	}
	q, err := app.NewQueryFrontend(opts)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- q.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the frontend stopped with %v", err)
		}
	})
	s := &server{t: t, base: "http://" + q.Addr().String(), ready: "/-/ready"}
	s.waitReady()
	return s
}

// writeHours writes the hours of samples before end, of a few series, to each server.
func writeHours(t *testing.T, end time.Time, hours int, servers ...*server) {
	t.Helper()
	for at := end.Add(-time.Duration(hours) * time.Hour); !at.After(end); at = at.Add(30 * time.Second) {
		ms, i := at.UnixMilli(), float64(at.Unix()%100_000)
		req := v1(
			v1Series(ms, i*3, "__name__", "requests_total", "job", "a", "code", "200"),
			v1Series(ms, i/7, "__name__", "requests_total", "job", "a", "code", "500"),
			v1Series(ms, i*1e-9, "__name__", "temperature", "room", `"kitchen"<&>`),
		)
		if int(i)%7200 < 3600 {
			req.Timeseries = append(req.Timeseries, v1Series(ms, -i, "__name__", "sometimes", "job", "b"))
		}
		body := encoded(t, req)
		for _, s := range servers {
			if status, text, _ := s.write(v1Type, "snappy", body); status != http.StatusNoContent {
				t.Fatalf("%s: %d %s", s.base, status, text)
			}
		}
	}
}

var frontendQueries = []string{
	"requests_total", "rate(requests_total[5m])", "sum by (job) (rate(requests_total[5m]))", "temperature", "sometimes", "absent_over_time(sometimes[1m])",
	"nothing or vector(0)", "requests_total @ end()", "topk(1, requests_total)", "requests_total / ignoring(code) group_left sum without (code) (requests_total)", "sum(", "time()",
}

// compareFrontend sends random range queries to a frontend, twice each, and to its
// downstream, and compares the responses byte for byte.
// compareFrontend sends random range queries to both servers. The responses must be equal as returned by form.
func compareFrontend(t *testing.T, front, backend *server, end time.Time, rounds int, form func(response string) string) {
	t.Helper()
	r := rand.New(rand.NewPCG(21, 22))
	for range rounds {
		query := frontendQueries[r.IntN(len(frontendQueries))]
		from := end.Add(-time.Duration(r.IntN(4*3600)) * time.Second)
		to := from.Add(time.Duration(r.Int64N(int64(end.Sub(from)) + 1)))
		params := url.Values{"query": {query}, "start": {fmt.Sprint(from.Unix())}, "end": {fmt.Sprint(to.Unix())}, "step": {[]string{"15", "60", "37.5", "5m"}[r.IntN(4)]}}
		path := "/api/v1/query_range?" + params.Encode()
		wantStatus, want := backend.get(path)
		want = form(want)
		for range 2 {
			status, got := front.get(path)
			if got = form(got); status != wantStatus || got != want {
				i := differAt(got, want)
				t.Fatalf("%s\nfrontend %d …%.300s\nbehind   %d …%.300s", path, status, got[i:], wantStatus, want[i:])
			}
		}
	}
}

// bytesOf returns the response itself.
func bytesOf(response string) string { return response }

var sampleValue = regexp.MustCompile(`"-?[0-9]+\.[0-9]+(e[-+]?[0-9]+)?"`)

// roundedValues returns a response of a Thanos querier with values of ten digits: it adds the
// values before a counter reset to those after it, from the start of the requested range on, so
// that the last digits of rate() depend on that start. A querier also adds an analysis of each
// evaluation, which splits cannot share.
func roundedValues(response string) string {
	return sampleValue.ReplaceAllStringFunc(strings.Replace(response, `,"analysis":{}`, "", 1), func(quoted string) string {
		v, err := strconv.ParseFloat(strings.Trim(quoted, `"`), 64)
		if err != nil {
			return quoted
		}
		return strconv.Quote(strconv.FormatFloat(v, 'g', 10, 64))
	})
}

// differAt returns an offset up to 100 bytes before the first difference.
func differAt(a, b string) int {
	i := 0
	for i < len(a) && i < len(b) && a[i] == b[i] {
		i++
	}
	return max(0, i-100)
}

func TestFrontend_ResponseEqualsTheDownstreamsByteForByte(t *testing.T) {
	backend := startServe(t, idle(t))
	end := time.Now().Truncate(time.Minute)
	writeHours(t, end, 4, backend)
	for _, cache := range []string{"", "{type: IN-MEMORY, config: {max_size: 64MB}}"} {
		front := startFrontend(t, backend.base, func(o *app.QueryFrontendOptions) { o.RangeCache = cache })
		compareFrontend(t, front, backend, end, 60, bytesOf)
	}
}

// startFilledPrometheus runs a Prometheus with four hours of samples, and returns it
// with its data directory.
func startFilledPrometheus(t *testing.T, end time.Time) (prometheus *server, dir string) {
	t.Helper()
	path := peerBinary(t, "prometheus")
	dir = t.TempDir()
	config := writeFile(t, filepath.Join(dir, "prometheus.yml"), "global: {external_labels: {cluster: one}}\nscrape_configs: []\n")
	address := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	startPeer(t, "http://"+address+"/-/ready", path, "--config.file="+config, "--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address="+address, "--web.enable-remote-write-receiver", "--log.level=warn")
	prometheus = &server{t: t, base: "http://" + address}
	writeHours(t, end, 4, prometheus)
	return prometheus, filepath.Join(dir, "data")
}

func TestPeerFrontend_ResponseEqualsPrometheusWithEveryCache(t *testing.T) {
	end := time.Now().Truncate(time.Minute)
	prometheus, _ := startFilledPrometheus(t, end)
	redis, memcached := freePort(t), freePort(t)
	startServerProgram(t, "redis-server", redis, "--port", fmt.Sprint(redis), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no")
	startServerProgram(t, "memcached", memcached, "-p", fmt.Sprint(memcached), "-l", "127.0.0.1", "-u", "daemon", "-U", "0")
	for name, cache := range map[string]string{
		"none":      "",
		"memory":    "{type: IN-MEMORY, config: {max_size: 64MB}}",
		"redis":     fmt.Sprintf("{type: REDIS, config: {addr: '127.0.0.1:%d'}}", redis),
		"memcached": fmt.Sprintf("{type: MEMCACHED, config: {addresses: ['127.0.0.1:%d']}}", memcached),
		"down":      fmt.Sprintf("{type: REDIS, config: {addr: '127.0.0.1:%d'}}", freePort(t)),
	} {
		t.Run(name, func(t *testing.T) {
			front := startFrontend(t, prometheus.base, func(o *app.QueryFrontendOptions) { o.RangeCache = cache })
			compareFrontend(t, front, prometheus, end, 40, bytesOf)
		})
	}
}

func TestPeerFrontend_ResponseEqualsThanosQuery(t *testing.T) {
	end := time.Now().Truncate(time.Minute)
	prometheus, data := startFilledPrometheus(t, end)
	thanos := peerBinary(t, "thanos")
	sidecarHTTP, sidecarGRPC, queryHTTP, queryGRPC := freePort(t), freePort(t), freePort(t), freePort(t)
	local := func(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }
	startPeer(t, "http://"+local(sidecarHTTP)+"/-/ready", thanos, "sidecar", "--prometheus.url="+prometheus.base, "--tsdb.path="+data,
		"--http-address="+local(sidecarHTTP), "--grpc-address="+local(sidecarGRPC))
	startPeer(t, "http://"+local(queryHTTP)+"/-/ready", thanos, "query", "--endpoint="+local(sidecarGRPC), "--http-address="+local(queryHTTP), "--grpc-address="+local(queryGRPC))
	query := &server{t: t, base: "http://" + local(queryHTTP)}
	eventually(t, 60*time.Second, "the store to be found", func() bool { return query.value("count(requests_total)", "time", fmt.Sprint(end.Unix())) == "2" })
	front := startFrontend(t, query.base, func(o *app.QueryFrontendOptions) { o.RangeCache = "{type: IN-MEMORY, config: {max_size: 64MB}}" })
	compareFrontend(t, front, query, end, 40, roundedValues)
}

// startServerProgram runs an installed program until the test ends, and waits until it
// listens on the port.
func startServerProgram(t *testing.T, name string, port int, args ...string) {
	t.Helper()
	path, err := exec.LookPath(name)
	needsPeer(t, name, err == nil)
	cmd := exec.Command(path, args...)
	cmd.Dir = t.TempDir()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	eventually(t, 60*time.Second, name+" to listen", func() bool {
		c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			return false
		}
		c.Close()
		return true
	})
}

func TestFrontend_ExportsTracesByOTLP(t *testing.T) {
	var mu sync.Mutex
	var received strings.Builder
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		received.WriteString(r.URL.Path)
		received.Write(body)
	}))
	defer receiver.Close()
	backend := startServe(t, idle(t))
	t.Run("query", func(t *testing.T) { // the frontend stops with the subtest and exports the remaining spans
		front := startFrontend(t, backend.base, func(o *app.QueryFrontendOptions) {
			o.Tracing = "type: OTLP\nconfig: {client_type: http, insecure: true, endpoint: '" + strings.TrimPrefix(receiver.URL, "http://") + "'}"
		})
		if status, body := front.get("/api/v1/query_range?query=vector(1)&start=0&end=9000&step=60"); status != 200 {
			t.Fatalf("%d %s", status, body)
		}
	})
	mu.Lock()
	defer mu.Unlock()
	for _, want := range []string{"/v1/traces", "ferula-query-frontend", "fetch", "/api/v1/query_range", "HTTP GET"} {
		if !strings.Contains(received.String(), want) {
			t.Errorf("no %q in the traces received", want)
		}
	}
}
