package promcompat_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
)

const (
	peerModule = "github.com/prometheus/client_golang"
	ownPath    = "github.com/ferula-io/ferula/metrics/promcompat"
	folderName = "peerprograms" // in the overlay only

	openMetrics = "application/openmetrics-text"
)

// theirPrograms are the example programs of client_golang, and their lines that a response has only after
// the goroutines of the program have run.
var theirPrograms = map[string][]string{
	"createdtimestamps": nil, "customlabels": nil, "gocollector": nil, "nativehistogram": nil, "simple": nil, "versioncollector": nil,
	"exemplars": nil, "middleware": nil,
	"random": {`rpc_durations_seconds_count{service="uniform"}`, `{service="normal"}`, `{service="exponential"}`},
}

// theirExamples are the examples of client_golang that have a response for /metrics, or instrument
// handlers, by the package with the types that their text does not qualify.
var theirExamples = map[string][]string{
	"promhttp":   {"ExampleInstrumentRoundTripperDuration", "ExampleWithExtraMethods", "ExampleWithLabelFromCtx", "ExampleInstrumentHandlerDuration"},
	"collectors": {"ExampleNewGoCollector", "ExampleNewGoCollector_withAdvancedGoMetrics", "ExampleNewGoCollector_defaultRegister"},
}

// variants are the ways in which the examples are built: as they are; with the import of promhttp changed to promcompat/promhttp;
// with promcompat.Handler instead of HandlerFor, as in docs/migrate/client_golang.md.
var variants = []string{"theirs", "imports", "handler"}

// promhttpPaths are the imports of promhttp by variant.
var promhttpPaths = map[string]string{
	"theirs": peerModule + "/prometheus/promhttp", "imports": ownPath + "/promhttp", "handler": ownPath + "/" + folderName + "/handler/promhttp",
}

// client_golang's example programs, and its examples that have a handler for /metrics, compile with the import of
// promhttp changed. Their responses have the same families as before, with the same labels, for client_golang's
// parser.
func TestPrograms_OfClientGolangServeTheSame(t *testing.T) {
	if testing.Short() {
		t.Skip("builds a program")
	}
	pages := run(t)
	for _, program := range slices.Sorted(maps.Keys(pages[variants[0]])) {
		for _, variant := range variants[1:] {
			for format, want := range pages[variants[0]][program] {
				got := pages[variant][program][format]
				if strings.HasPrefix(format, openMetrics) && !strings.HasPrefix(want.ContentType, openMetrics) {
					continue // their handler has OpenMetrics by an option only
				}
				compare(t, fmt.Sprintf("%s, %s, %s", program, variant, format), shapes(t, got), shapes(t, want), variant == "handler")
			}
		}
	}
	if n := len(pages[variants[0]]); n != len(theirPrograms)+7 {
		t.Errorf("%d programs", n)
	}
}

// clash is a gauge that has the name of a counter without _total. In OpenMetrics these are two families of one name
// in client_golang's response; promcompat.Handler writes the counter as unknown, with its whole name.
const clash = "go_memstats_alloc_bytes"

// compare compares the shapes of all families. promcompat.Handler has no metrics of itself, as promhttp has.
func compare(t *testing.T, what string, got, want map[string]string, ownHandler bool) {
	t.Helper()
	for family, shape := range want {
		if ownHandler && (strings.HasPrefix(family, "promhttp_metric_handler_") || strings.HasPrefix(family, clash)) {
			continue
		}
		if got[family] != shape {
			t.Errorf("%s: family %s is\n%s\nwant\n%s", what, family, got[family], shape)
		}
	}
	for family := range got {
		if _, ok := want[family]; !ok && family != clash+"_total" {
			t.Errorf("%s: family %s is not in the response of client_golang", what, family)
		}
	}
	if len(want) == 0 {
		t.Errorf("%s: no families", what)
	}
}

// page is one response.
type page struct {
	ContentType string
	Text        []byte
}

// shapes returns what the examples do not draw at random of each family: type, help, unit, labels, bounds and
// quantiles.
func shapes(t *testing.T, p page) map[string]string {
	t.Helper()
	all := map[string]string{}
	if strings.HasPrefix(p.ContentType, openMetrics) { // client_golang has no parser for it
		family := ""
		for line := range strings.Lines(strings.TrimSuffix(string(p.Text), "# EOF\n")) {
			if rest, ok := strings.CutPrefix(line, "# HELP "); ok {
				family, _, _ = strings.Cut(rest, " ")
			}
			if !strings.HasPrefix(line, "#") {
				end := strings.LastIndex(strings.SplitN(line, " # ", 2)[0], " ")
				line = line[:end] + "\n"
			}
			all[family] += line
		}
		return all
	}
	d := expfmt.NewDecoder(bytes.NewReader(p.Text), expfmt.Format(p.ContentType))
	for {
		var f dto.MetricFamily
		if err := d.Decode(&f); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatalf("%v in\n%s", err, p.Text)
		}
		text := fmt.Sprintf("%s, %s, %q, %q", f.GetName(), f.GetType(), f.GetHelp(), f.GetUnit())
		for _, m := range f.Metric {
			text += "\n"
			for _, l := range m.Label {
				text += fmt.Sprintf("%s=%q ", l.GetName(), l.GetValue())
			}
			for _, q := range m.GetSummary().GetQuantile() {
				text += fmt.Sprint(" quantile ", q.GetQuantile())
			}
			for _, b := range m.GetHistogram().GetBucket() {
				text += fmt.Sprint(" bucket ", b.GetUpperBound())
			}
			text += fmt.Sprint(" native ", m.GetHistogram().GetSchema(), m.GetHistogram().GetZeroThreshold())
			text += fmt.Sprint(" created ", m.GetHistogram().GetCreatedTimestamp() != nil, m.GetCounter().GetCreatedTimestamp() != nil, m.GetSummary().GetCreatedTimestamp() != nil)
		}
		all[f.GetName()] = text
	}
}

// run builds one program of all examples in all variants, and returns the responses by variant, example and Accept
// header.
func run(t *testing.T) map[string]map[string]map[string]page {
	t.Helper()
	peer := command(t, ".", "go", "list", "-m", "-f", "{{.Dir}}", peerModule)
	b := overlay{t: t, folder: folderName, tmp: t.TempDir(), Replace: map[string]string{}}
	calls, imports := "", []string{}
	for _, variant := range variants {
		add := func(name, call string, waitFor []string) {
			imports = append(imports, fmt.Sprintf("%s_%s %q", variant, path.Base(name), path.Join(ownPath, folderName, variant, name)))
			calls += fmt.Sprintf("\tserve(%q, %q, %s_promhttp.Handler, %s_%s.%s, %#v)\n", variant, call, variant, variant, path.Base(name), call, waitFor)
		}
		for _, name := range slices.Sorted(maps.Keys(theirPrograms)) {
			text := read(t, filepath.Join(peer, "examples", name, "main.go"))
			call := "Main" + strings.ToUpper(name[:1]) + name[1:]
			text = strings.Replace(text, "package main\n", "package "+name+"\n", 1)
			text = strings.Replace(text, "func main() {", "func "+call+"() {", 1)
			b.add(path.Join(variant, name, "main.go"), b.rewrite(variant, text))
			add(name, call, theirPrograms[name])
		}
		b.add(path.Join(variant, "middleware/httpmiddleware/httpmiddleware.go"), b.rewrite(variant, read(t, filepath.Join(peer, "examples/middleware/httpmiddleware/httpmiddleware.go"))))
		for dir, names := range theirExamples {
			files := try(filepath.Glob(filepath.Join(peer, "prometheus", dir, "*_test.go"))).must(t)
			for _, file := range files {
				if text := examplesOf(t, file, names, path.Join(peerModule, "prometheus", dir), "examples"+dir); text != "" {
					b.add(path.Join(variant, "examples"+dir, strings.TrimSuffix(filepath.Base(file), "_test.go")+"_.go"), b.rewrite(variant, text))
				}
			}
			for _, name := range names {
				add("examples"+dir, name, nil)
			}
		}
		imports = append(imports, fmt.Sprintf("%s_promhttp %q", variant, promhttpPaths[variant]))
	}
	b.add("handler/promhttp/promhttp.go", withOwnHandler(t))
	slices.Sort(imports)
	b.add("flag/flag.go", flagPackage)
	b.add("page/page.go", pagePackage)
	b.add("main.go", "package main\n\nimport (\n"+strings.Join(slices.Compact(imports), "\n")+"\n)\n\nfunc examples() {\n"+calls+"}\n")
	b.add("serve.go", servePackage)
	binary, result := filepath.Join(b.tmp, "programs"), filepath.Join(b.tmp, "pages.json")
	command(t, ".", "go", "build", "-buildvcs=false", "-o", binary, "-overlay="+b.write(), "./"+folderName)
	command(t, b.tmp, binary, result)
	var pages map[string]map[string]map[string]page
	noError(t, json.Unmarshal([]byte(read(t, result)), &pages))
	return pages
}

// overlay is a directory that go build sees, but that does not exist.
type overlay struct {
	t       *testing.T
	folder  string // below this directory
	tmp     string
	Replace map[string]string
}

func (b *overlay) add(name, text string) {
	folder := try(filepath.Abs(b.folder)).must(b.t)
	file := filepath.Join(b.tmp, fmt.Sprintf("%d.go", len(b.Replace)))
	noError(b.t, os.WriteFile(file, []byte(text), 0o600))
	b.Replace[filepath.Join(folder, filepath.FromSlash(name))] = file
}

func (b *overlay) write() string {
	text := try(json.Marshal(map[string]any{"Replace": b.Replace})).must(b.t)
	file := filepath.Join(b.tmp, "overlay.json")
	noError(b.t, os.WriteFile(file, text, 0o600))
	return file
}

// rewrite changes the import of promhttp. So that all examples fit into one program and need no port, it also replaces
// package flag and the call of http.ListenAndServe.
func (b *overlay) rewrite(variant, text string) string {
	here := path.Join(ownPath, folderName)
	for _, change := range [][2]string{
		{`"` + peerModule + `/prometheus/promhttp"`, `"` + promhttpPaths[variant] + `"`},
		{`"` + peerModule + `/examples/`, `"` + path.Join(here, variant) + `/`},
		{`"flag"`, `"` + path.Join(here, "flag") + `"`},
		{"http.ListenAndServe(", "page.Listen("},
	} {
		text = strings.ReplaceAll(text, change[0], change[1])
	}
	if strings.Contains(text, "page.Listen(") {
		end := regexp.MustCompile(`(?m)^package \w+\n`).FindStringIndex(text)[1]
		text = text[:end] + "\nimport \"" + here + "/page\"\n" + text[end:]
	}
	return text
}

// withOwnHandler returns package promhttp of this module with promcompat.Handler in the place of client_golang's handler.
func withOwnHandler(t *testing.T) string {
	t.Helper()
	text := read(t, filepath.Join("promhttp", "promhttp.go"))
	for _, change := range [][2]string{
		{"promhttp.HandlerFor(withSets(reg), opts)", "promcompat.Handler(reg, metrics.HandlerOptions{CreatedLines: opts.EnableOpenMetricsTextCreatedSamples})"},
		{"import (\n", "import (\n\t\"github.com/ferula-io/ferula/metrics\"\n"},
	} {
		if strings.Count(text, change[0]) != 1 {
			t.Fatalf("promhttp.go does not have %q once", change[0])
		}
		text = strings.Replace(text, change[0], change[1], 1)
	}
	return text
}

// examplesOf returns a file with the functions of these names in a test file of a package, and with the declarations
// that they need; "" if it has none of them. If pkg is not "", the test file belongs to that package, which is imported
// with a dot.
func examplesOf(t *testing.T, file string, names []string, pkg, name string) string {
	t.Helper()
	text := read(t, file)
	fset := token.NewFileSet()
	parsed := try(parser.ParseFile(fset, file, text, parser.SkipObjectResolution)).must(t)
	var decls []ast.Decl
	used := map[string]bool{}
	take := func(d ast.Decl) {
		decls = append(decls, d)
		ast.Inspect(d, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok {
				used[id.Name] = true
			}
			return true
		})
	}
	for _, d := range parsed.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && slices.Contains(names, f.Name.Name) {
			take(d)
		}
	}
	if len(decls) == 0 {
		return ""
	}
	for _, d := range slices.Backward(parsed.Decls) { // what the examples need comes before them
		if g, ok := d.(*ast.GenDecl); ok && g.Tok != token.IMPORT && slices.ContainsFunc(g.Specs, func(s ast.Spec) bool { return slices.ContainsFunc(declared(s), func(n string) bool { return used[n] }) }) {
			take(d)
		}
	}
	out := "package " + name + "\n\nimport (\n"
	if pkg != "" {
		out += "\t. \"" + pkg + "\"\n"
	}
	for _, i := range parsed.Imports {
		if p := strings.Trim(i.Path.Value, `"`); used[path.Base(p)] {
			out += "\t" + i.Path.Value + "\n"
		}
	}
	out += ")\n"
	for _, d := range decls {
		out += "\n" + text[fset.Position(d.Pos()).Offset:fset.Position(d.End()).Offset] + "\n"
	}
	return out
}

// declared returns the names that a declaration of types, constants or variables declares.
func declared(s ast.Spec) (names []string) {
	switch s := s.(type) {
	case *ast.TypeSpec:
		names = append(names, s.Name.Name)
	case *ast.ValueSpec:
		for _, n := range s.Names {
			names = append(names, n.Name)
		}
	}
	return names
}

func read(t *testing.T, file string) string {
	t.Helper()
	text := try(os.ReadFile(file)).must(t)
	return string(text)
}

// command runs a command in a directory and returns its output.
func command(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// flagPackage stands for package flag: several examples in one program have flags of the same name.
const flagPackage = `package flag

import "time"

func String(_, v, _ string) *string                              { return &v }
func Float64(_ string, v float64, _ string) *float64             { return &v }
func Duration(_ string, v time.Duration, _ string) *time.Duration { return &v }
func Parse()                                                     {}
`

// pagePackage stands for http.ListenAndServe.
const pagePackage = `package page

import (
	"net/http"
	"runtime"
)

var Listening = make(chan http.Handler)

// Listen never returns.
func Listen(string, http.Handler) error {
	Listening <- http.DefaultServeMux
	runtime.Goexit()
	return nil
}
`

// servePackage runs the examples, one after the other, and requests their responses.
const servePackage = `package main

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"` + ownPath + "/" + folderName + `/page"
)

type response struct {
	ContentType string
	Text        []byte
}

var pages = map[string]map[string]map[string]response{}

func main() {
	// One example sends a request to the internet.
	http.DefaultTransport = transport{}
	examples()
	text, err := json.Marshal(pages)
	if err == nil {
		err = os.WriteFile(os.Args[1], text, 0o600)
	}
	if err != nil {
		panic(err)
	}
}

func serve(variant, name string, handler func() http.Handler, example func(), waitFor []string) {
	http.DefaultServeMux = http.NewServeMux()
	registry := prometheus.NewRegistry()
	prometheus.DefaultRegisterer, prometheus.DefaultGatherer = registry, registry
	ended := make(chan bool)
	go func() {
		example()
		ended <- true
	}()
	var h http.Handler
	select {
	case h = <-page.Listening:
	case <-ended: // an example without a server
		mux := http.NewServeMux()
		mux.Handle("/metrics", handler())
		h = mux
	}
	for end := time.Now().Add(30 * time.Second); !has(request(h, ""), waitFor) && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
	if pages[variant] == nil {
		pages[variant] = map[string]map[string]response{}
	}
	pages[variant][name] = map[string]response{}
	for _, accept := range []string{"", "application/openmetrics-text;version=1.0.0", "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited"} {
		pages[variant][name][accept] = request(h, accept)
	}
}

func has(r response, lines []string) bool {
	for _, line := range lines {
		if !strings.Contains(string(r.Text), line) {
			return false
		}
	}
	return true
}

func request(h http.Handler, accept string) response {
	r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
	r.Header.Set("Accept", accept)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if w.Code != http.StatusOK {
		panic(w.Body.String())
	}
	return response{w.Header().Get("Content-Type"), w.Body.Bytes()}
}

type transport struct{}

func (transport) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusNoContent, Request: r, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(""))}, nil
}
`

// comparison runs after client_golang's examples, in their package: promhttp and promcompat must serve the same families.
const comparison = `package prometheus_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/ferula-io/ferula/metrics"
	"github.com/ferula-io/ferula/metrics/promcompat"
)

func TestMain(m *testing.M) {
	code := m.Run()
	for _, accept := range []string{"", "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited"} {
		want := families(promhttp.HandlerFor(prometheus.DefaultGatherer, promhttp.HandlerOpts{}), accept)
		got := families(promcompat.Handler(prometheus.DefaultGatherer, metrics.HandlerOptions{Sets: []*metrics.Set{metrics.NewSet()}}), accept)
		fmt.Println("families:", len(want))
		for name, text := range want {
			if got[name] != text {
				fmt.Printf("%s: got %s, want %s\n", name, got[name], text)
				code = 1
			}
		}
		if len(got) != len(want) || len(want) < 6 {
			fmt.Printf("%d families, want %d\n", len(got), len(want))
			code = 1
		}
	}
	os.Exit(code)
}

// families parses a page, without the parts that change between two scrapes.
func families(h http.Handler, accept string) map[string]string {
	r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
	r.Header.Set("Accept", accept)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	d := expfmt.NewDecoder(w.Body, expfmt.ResponseFormat(w.Header()))
	all := map[string]string{}
	for {
		var f dto.MetricFamily
		if d.Decode(&f) != nil {
			return all
		}
		if n := f.GetName(); !strings.HasPrefix(n, "go_") && !strings.HasPrefix(n, "process_") && n != "runtime_goroutines_count" && n != "expvar_memstats" {
			all[n] = f.String()
		}
	}
}
`

// client_golang's own examples run next to package metrics. promcompat.Handler serves
// their metrics as promhttp does.
func TestExamples_OfClientGolangAreServedAsByPromhttp(t *testing.T) {
	if testing.Short() {
		t.Skip("builds a program")
	}
	peer := filepath.Join(command(t, ".", "go", "list", "-m", "-f", "{{.Dir}}", peerModule), "prometheus")
	files, err := filepath.Glob(filepath.Join(peer, "example*_test.go"))
	if err != nil || len(files) == 0 {
		t.Fatal("no examples", err)
	}
	files = append(files, filepath.Join(peer, "expvar_collector_test.go"), filepath.Join(peer, "utils_test.go")) // the second has helpers of the examples
	b := overlay{t: t, folder: "peerexamples", tmp: t.TempDir(), Replace: map[string]string{}}
	b.add("main_test.go", comparison)
	for _, file := range files {
		b.add(filepath.Base(file), read(t, file))
	}
	b.add("registry_test.go", examplesOf(t, filepath.Join(peer, "registry_test.go"), []string{"ExampleRegistry_grouping"}, "", "prometheus_test"))
	binary := filepath.Join(b.tmp, "examples.test")
	command(t, ".", "go", "test", "-c", "-vet=off", "-o", binary, "-overlay="+b.write(), "./"+b.folder)
	// The excluded example has callbacks that dereference nil when they are scraped, also
	// by promhttp.
	t.Log(command(t, b.tmp, binary, "-test.skip=ExampleGaugeFunc_constLabels"))
}
