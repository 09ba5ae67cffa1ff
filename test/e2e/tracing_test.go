package e2e

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/ferula-io/ferula/internal/app"
)

// traceReceiver is an OTLP receiver over HTTP.
type traceReceiver struct {
	*httptest.Server
	mu    sync.Mutex
	spans []receivedSpan
}

// receivedSpan has the fields that the tests compare.
type receivedSpan struct {
	service, name, trace, id, parent string
	attributes                       map[string]string
}

func receiveTraces(t *testing.T) *traceReceiver {
	t.Helper()
	r := &traceReceiver{}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		raw, err := io.ReadAll(q.Body)
		in := &collector.ExportTraceServiceRequest{}
		if err == nil {
			err = proto.Unmarshal(raw, in)
		}
		if err != nil || q.URL.Path != "/v1/traces" || q.Header.Get("X-Tenant") != "north" {
			http.Error(w, fmt.Sprint(q.URL, err), http.StatusBadRequest)
			return
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, of := range in.ResourceSpans {
			service := ""
			for _, a := range of.Resource.Attributes {
				if a.Key == "service.name" {
					service = a.Value.GetStringValue()
				}
			}
			for _, scope := range of.ScopeSpans {
				for _, span := range scope.Spans {
					s := receivedSpan{service, span.Name, trace.TraceID(span.TraceId).String(), fmt.Sprintf("%x", span.SpanId), fmt.Sprintf("%x", span.ParentSpanId), map[string]string{}}
					for _, a := range span.Attributes {
						s.attributes[a.Key] = a.Value.GetStringValue()
					}
					r.spans = append(r.spans, s)
				}
			}
		}
	}))
	t.Cleanup(r.Close)
	return r
}

// section is the section of a configuration that sends everything to the receiver.
func (r *traceReceiver) section() string {
	return "tracing: {client_type: http, endpoint: '" + strings.TrimPrefix(r.URL, "http://") + "', insecure: true, sampling_fraction: 1, headers: {x-tenant: north}}\n"
}

// of returns the spans of a trace; of all for "".
func (r *traceReceiver) of(trace string) (list []receivedSpan) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.spans {
		if trace == "" || s.trace == trace {
			list = append(list, s)
		}
	}
	return list
}

// named returns the first span with a name.
func named(list []receivedSpan, name string) (receivedSpan, bool) {
	i := slices.IndexFunc(list, func(s receivedSpan) bool { return s.name == name })
	if i < 0 {
		return receivedSpan{}, false
	}
	return list[i], true
}

// Requests, rules, scrapes and remote writes are traced as by Prometheus, to the receiver
// that the file names, also after a reload.
func TestServe_TracesGoToTheReceiverOfTheFile(t *testing.T) {
	one, two := receiveTraces(t), receiveTraces(t)
	dir := t.TempDir()
	target := exposition(t, "# TYPE orders gauge\norders 7\n# EOF\n")
	far := startServe(t, idle(t))
	writeFile(t, filepath.Join(dir, "rules.yml"), "groups: [{name: a, rules: [{record: seven, expr: orders}]}]\n")
	rest := `
global: {scrape_interval: 200ms, scrape_timeout: 200ms, evaluation_interval: 200ms}
rule_files: [rules.yml]
scrape_configs: [{job_name: a, static_configs: [{targets: ['` + target + `']}]}]
remote_write: [{url: '` + far.base + `/api/v1/write', queue_config: {batch_send_deadline: 100ms}}]
remote_read: [{url: '` + far.base + `/api/v1/read', read_recent: true}]
`
	file := writeFile(t, filepath.Join(dir, "prometheus.yml"), one.section()+rest)
	s := startServe(t, func(o *app.ServeOptions) {
		o.ConfigFile, o.Web.EnableLifecycle = file, true
		o.GRPC.ListenAddress = "127.0.0.1:0"
	})
	const first, second, third = "00000000000000000000000000000001", "00000000000000000000000000000002", "00000000000000000000000000000003"
	s.waitValue("orders", "7")
	s.traced("/api/v1/query?query=sum(orders)", first)
	s.traced("/api/v1/query_range?query=rate(orders[1m])&start=0&end=60&step=15", second)
	s.traced("/api/v1/query?query=sum(", third)
	for _, want := range []string{"rule group", "scrape", "Remote Send Batch"} {
		eventually(t, 60*time.Second, "a span "+want, func() bool { _, ok := named(one.of(""), want); return ok })
	}
	eventually(t, 60*time.Second, "the spans of the requests", func() bool {
		_, ok := named(one.of(third), "GET /api/v1/query")
		return ok
	})
	root, ok := named(one.of(first), "GET /api/v1/query")
	if !ok || root.service != "ferula-serve" || root.parent != "00000000000000aa" {
		t.Errorf("the span of the request is %+v", root)
	}
	query, ok := named(one.of(first), "promqlInstantQuery")
	if !ok || query.parent != root.id || query.attributes["query"] != "sum(orders)" || query.attributes["engine"] == "" {
		t.Errorf("the span of the query is %+v in %+v", query, one.of(first))
	}
	if _, ok := named(one.of(first), "columnsEval"); !ok {
		t.Errorf("the evaluation has no span: %+v", one.of(first))
	}
	if _, ok := named(one.of(first), "Remote Read"); !ok {
		t.Errorf("the remote read has no span: %+v", one.of(first))
	}
	if query, ok := named(one.of(second), "promqlRangeQuery"); !ok || query.attributes["step"] != "15" {
		t.Errorf("the span of the range query is %+v", query)
	}
	// After a fault the old receiver stays in use.
	writeFile(t, file, "tracing: {endpoint: '127.0.0.1:1', tls_config: {ca_file: missing.pem}}\n"+rest)
	s.reloadFails("tracing: tls_config")
	const fourth, fifth, sixth = "00000000000000000000000000000004", "00000000000000000000000000000005", "00000000000000000000000000000006"
	s.traced("/api/v1/labels", fourth)
	writeFile(t, file, two.section()+rest)
	s.mustReload()
	s.traced("/api/v1/labels", fifth)
	eventually(t, 60*time.Second, "rules traced to the second receiver", func() bool { _, ok := named(two.of(""), "rule group"); return ok })
	writeFile(t, file, rest)
	s.mustReload()
	s.traced("/api/v1/labels", sixth)
	noError(t, s.stop()) // sends the pending spans
	for id, want := range map[string][2]bool{fourth: {true, false}, fifth: {false, true}, sixth: {false, false}} {
		if got := [2]bool{len(one.of(id)) > 0, len(two.of(id)) > 0}; got != want {
			t.Errorf("the receivers have spans of %s: %v, want %v", id, got, want)
		}
	}
}

// traced requests a path within a trace.
func (s *server) traced(path, id string) {
	s.t.Helper()
	if status, text, _ := s.request("GET", path, "", "Traceparent", "00-"+id+"-00000000000000aa-01"); status/100 == 5 {
		s.t.Errorf("%s: %d %s", path, status, text)
	}
}
