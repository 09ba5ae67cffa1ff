package app

import (
	"context"
	"errors"
	"flag"
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
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"

	"github.com/ferula-io/ferula/internal/frontend"
	"github.com/ferula-io/ferula/internal/frontend/downstream"
	"github.com/ferula-io/ferula/internal/process/telemetry"
	profilecompact "github.com/ferula-io/ferula/internal/profiles/compact"
	"github.com/ferula-io/ferula/internal/thanos/fanout"
	"github.com/ferula-io/ferula/internal/thanos/gateway"
	"github.com/ferula-io/ferula/internal/tsdb"
)

// update makes TestMetricsDoc_IsCurrent write the documentation: `make generate`.
var update = flag.Bool("update", false, "write docs/ops/metrics.md")

const metricsDoc = "../../docs/ops/metrics.md"

// runningRole is a process of the reference of metrics.
type runningRole struct {
	name string
	reg  *telemetry.Registry
	base string // of its URLs
}

// family is the metadata of a metric family. The type is empty if it is one of a linked package without series.
type family struct {
	Name, Type, Help string
	Labels           []string // sorted
}

// descText matches the text of a prometheus.Desc, which has no accessors.
var (
	descText   = regexp.MustCompile(`^Desc\{fqName: "([^"]*)", help: ("(?:[^"\\]|\\.)*"), .*constLabels: \{(.*)\}, variableLabels: \{(.*)\}\}$`)
	constLabel = regexp.MustCompile(`([a-zA-Z_][a-zA-Z0-9_]*)="`)
)

// registered returns the families that are registered, also those without series.
func (r runningRole) registered() map[string]family {
	descs, all := make(chan *prometheus.Desc), map[string]family{}
	go func() { r.reg.Registry.Describe(descs); close(descs) }()
	for desc := range descs {
		m := descText.FindStringSubmatch(desc.String())
		if m == nil {
			continue
		}
		f := all[m[1]]
		f.Name = m[1]
		f.Help, _ = strconv.Unquote(m[2])
		for _, l := range constLabel.FindAllStringSubmatch(m[3], -1) {
			f.Labels = append(f.Labels, l[1])
		}
		for l := range strings.SplitSeq(m[4], ",") {
			if l != "" {
				f.Labels = append(f.Labels, strings.TrimSuffix(strings.TrimPrefix(l, "c("), ")"))
			}
		}
		all[f.Name] = f
	}
	for _, f := range r.reg.Own.Families() {
		all[f.Name] = family{Name: f.Name, Type: f.Type, Help: f.Help}
	}
	for _, f := range r.reg.Own.Vectors() {
		all[f.Name] = family{f.Name, f.Type, f.Help, slices.Clone(f.Labels)}
	}
	for name, f := range all {
		slices.Sort(f.Labels)
		f.Labels = slices.Compact(f.Labels)
		all[name] = f
	}
	return all
}

// families returns the families that the role has registered or exposes.
func (r runningRole) families(t *testing.T) map[string]family {
	t.Helper()
	all := r.registered()
	_, page := httpGet(t, r.base+"/metrics")
	p := textparse.NewPromParser([]byte(page), labels.NewSymbolTable(), false)
	of := family{}
	for {
		entry, err := p.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		switch entry {
		case textparse.EntryType:
			name, kind := p.Type()
			of = all[string(name)]
			of.Name, of.Type = string(name), strings.Replace(string(kind), "unknown", "untyped", 1)
		case textparse.EntryHelp:
			name, help := p.Help()
			f := all[string(name)]
			f.Name, f.Help = string(name), string(help)
			all[string(name)] = f
		case textparse.EntrySeries:
			var l labels.Labels
			p.Labels(&l)
			if series := l.Get(labels.MetricName); !strings.HasPrefix(series, of.Name) || of.Name == "" {
				of = family{Name: series, Type: "untyped"} // a writer's line without metadata
			}
			l.Range(func(l labels.Label) {
				bucket := l.Name == "le" && of.Type == "histogram" || l.Name == "quantile" && of.Type == "summary"
				if l.Name != labels.MetricName && !bucket && !slices.Contains(of.Labels, l.Name) {
					of.Labels = append(of.Labels, l.Name)
					slices.Sort(of.Labels)
				}
			})
			all[of.Name] = of
		default:
		}
	}
}

// runRole runs a process until the test ends and waits until it is ready.
func runRole(t *testing.T, name string, reg *telemetry.Registry, addr net.Addr, run func(context.Context) error) runningRole {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("%s: %v", name, err)
		}
	})
	r := runningRole{name, reg, "http://" + addr.String()}
	for deadline := time.Now().Add(60 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		status, text := httpGet(t, r.base+"/-/ready")
		if status == http.StatusOK {
			return r
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s is not ready: %s", name, text)
		}
	}
}

// runEveryRole runs one process of each role, each with everything that has metrics.
func runEveryRole(t *testing.T) []runningRole {
	t.Helper()
	dir := t.TempDir()
	nowhere := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(nowhere.Close)
	write := func(name, text string) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	write("rules.yml", "groups: [{name: one, interval: 1s, rules: [{record: two, expr: vector(2)}]}]\n")
	web, quiet := WebOptions{ListenAddress: "127.0.0.1:0"}, slog.New(slog.DiscardHandler)
	rpc := GRPCOptions{ListenAddress: "127.0.0.1:0"}
	bucket := "{type: FILESYSTEM, config: {directory: " + t.TempDir() + "}}"
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	atNowhere := func(config string) string {
		return strings.ReplaceAll(config, "HOST", nowhere.Listener.Addr().String())
	}
	profileTargets := write("profiles.yml", atNowhere(`scrape_configs: [{job_name: none, static_configs: [{targets: ["HOST"]}]}]`))
	serve, err := NewServe(ServeOptions{
		ConfigFile: write("prometheus.yml", atNowhere(`
global: {external_labels: {replica: a}}
rule_files: [rules.yml]
alerting: {alertmanagers: [{static_configs: [{targets: ["HOST"]}]}]}
remote_write: [{url: "http://HOST/write", name: one}]
remote_read: [{url: "http://HOST/read", name: two}]
scrape_configs: [{job_name: none, static_configs: [{targets: ["HOST"]}]}]
`)),
		Web: web, GRPC: rpc, Store: tsdb.Options{Dir: filepath.Join(dir, "data")}, Ship: ShippingOptions{Bucket: bucket, IgnoreBlockSize: true},
		Peer: PeerAPIOptions{OTLP: true}, Profiles: ProfilesOptions{ConfigFile: profileTargets, Self: true, Every: time.Second, SingleTenant: true}, Logger: quiet,
	})
	must(err)
	roles := []runningRole{runRole(t, "serve", serve.reg, serve.Addr(), serve.Run)}
	sidecar, err := NewSidecar(SidecarOptions{Web: web, GRPC: rpc, PrometheusURL: roles[0].base, TSDBDir: t.TempDir(),
		Ship: ShippingOptions{Bucket: bucket, IgnoreBlockSize: true}, Logger: quiet})
	must(err)
	roles = append(roles, runRole(t, "sidecar", sidecar.reg, sidecar.Addr(), sidecar.Run))
	query, err := NewQuery(QueryOptions{Web: web, GRPC: rpc, Logger: quiet,
		Endpoints: fanout.EndpointsOptions{InfoInterval: 100 * time.Millisecond, InfoTimeout: 10 * time.Second, Static: []fanout.Address{{Name: sidecar.GRPCAddr().String()}}}})
	must(err)
	roles = append(roles, runRole(t, "query", query.reg, query.Addr(), query.Run))
	front, err := NewQueryFrontend(QueryFrontendOptions{Web: web, Downstream: downstream.Options{URL: roles[0].base},
		Frontend:   frontend.Options{Split: frontend.SplitOptions{Interval: time.Hour}, Labels: frontend.LabelOptions{Interval: time.Hour}},
		RangeCache: "type: IN-MEMORY\n", LabelCache: "type: IN-MEMORY\n", Logger: quiet})
	must(err)
	roles = append(roles, runRole(t, "query-frontend", front.reg, front.Addr(), front.Run))
	store, err := NewStore(StoreOptions{Web: web, GRPC: rpc, Bucket: bucket, Store: gateway.Options{Dir: t.TempDir(), CacheBytes: 4 << 20}, Logger: quiet})
	must(err)
	roles = append(roles, runRole(t, "store", store.reg, store.Addr(), store.Run))
	compact, err := NewProfilesCompact(ProfilesCompactOptions{Web: web, Bucket: bucket, Compact: profilecompact.Options{Dir: t.TempDir()}, Wait: true, Logger: quiet})
	must(err)
	roles = append(roles, runRole(t, "profiles compact", compact.reg, compact.Addr(), compact.Run))
	for _, r := range roles { // so that families which depend on a request are there
		httpGet(t, r.base+"/api/v1/query?query=up")
		httpGet(t, r.base+"/api/v1/query_range?query=up&start=0&end=10&step=5")
	}
	return roles
}

// metricsTables returns the generated part of the reference: own families, then the others.
func metricsTables(t *testing.T, roles []runningRole) string {
	t.Helper()
	all, own, by := map[string]family{}, map[string]bool{}, map[string][]string{}
	for _, r := range roles {
		ours := map[string]bool{}
		for _, f := range r.reg.Own.Families() {
			ours[f.Name] = true
		}
		for _, f := range r.reg.Own.Vectors() {
			ours[f.Name] = true
		}
		for name, f := range r.families(t) {
			if strings.HasPrefix(name, "go_") || strings.HasPrefix(name, "process_") {
				continue
			}
			all[name], by[name] = f, append(by[name], r.name)
			own[name] = own[name] || ours[name] || strings.HasPrefix(name, "ferula_") || strings.HasPrefix(name, "thanos_store_nodes")
		}
	}
	var names []string
	for name := range all {
		names = append(names, name)
	}
	slices.Sort(names)
	var b strings.Builder
	b.WriteString("### Defined by ferula\n\n| metric | type | labels | exposed by | meaning |\n|---|---|---|---|---|\n")
	for _, name := range names {
		if f := all[name]; own[name] {
			if f.Help == "" {
				t.Errorf("%s has no help", name)
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", name, f.Type, code(f.Labels), exposedBy(by[name]), strings.ReplaceAll(f.Help, "|", "\\|"))
		}
	}
	b.WriteString("\n### Defined by linked packages of Prometheus, Thanos and gRPC\n\n| metric | labels | exposed by |\n|---|---|---|\n")
	for _, name := range names {
		if f := all[name]; !own[name] {
			fmt.Fprintf(&b, "| `%s` | %s | %s |\n", name, code(f.Labels), exposedBy(by[name]))
		}
	}
	return b.String()
}

func exposedBy(by []string) string {
	if len(by) == 6 {
		return "all"
	}
	return strings.Join(by, ", ")
}

func code(labels []string) string {
	if len(labels) == 0 {
		return ""
	}
	return "`" + strings.Join(labels, "`, `") + "`"
}

// The reference of metrics lists what processes of each role expose. Some families appear
// with the first event, so the test waits for them.
func TestMetricsDoc_IsCurrent(t *testing.T) {
	roles := runEveryRole(t)
	doc, err := os.ReadFile(metricsDoc)
	if err != nil {
		t.Fatal(err)
	}
	const begin, end = "<!-- generated -->\n", "<!-- end -->"
	head, rest, ok := strings.Cut(string(doc), begin)
	written, tail, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no generated part", metricsDoc)
	}
	for _, m := range regexp.MustCompile("`((?:go|process)_[a-z_]+)`").FindAllStringSubmatch(head, -1) {
		for _, r := range roles {
			if _, ok := r.families(t)[m[1]]; !ok {
				t.Errorf("%s does not expose %s", r.name, m[1])
			}
		}
	}
	if *update {
		time.Sleep(5 * time.Second) // only here: what is missed then, the test reports
		if err := os.WriteFile(metricsDoc, []byte(head+begin+"\n"+metricsTables(t, roles)+"\n"+end+tail), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	var current string
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		if current = "\n" + metricsTables(t, roles) + "\n"; current == written {
			return
		}
	}
	missing, stale := linesWithout(current, written), linesWithout(written, current)
	t.Errorf("%s is not current: run `make generate`\nexposed, not in the reference:\n%s\nin the reference, not exposed:\n%s", metricsDoc, missing, stale)
}

// linesWithout returns the lines of a that are not lines of b.
func linesWithout(a, b string) string {
	known := strings.Split(b, "\n")
	var out []string
	for line := range strings.SplitSeq(a, "\n") {
		if !slices.Contains(known, line) {
			out = append(out, line)
		}
	}
	return strings.Join(out, "\n")
}
