package scrape

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	commonconfig "github.com/prometheus/common/config"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/discovery/targetgroup"
	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/scrape"
	"github.com/prometheus/prometheus/storage"
	"google.golang.org/protobuf/proto"
)

var (
	histories = flag.Int("scrape.histories", 2, "number of random histories per configuration that are compared "+
		"with Prometheus' scrapes")
	historySeed = flag.Uint64("scrape.seed", 1, "seed of the histories")
)

const (
	plainText   = "text/plain; version=0.0.4"
	openMetrics = "application/openmetrics-text; version=1.0.0; charset=utf-8"
	protobuf    = "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"
)

// answer is the response of a target to one scrape.
type answer struct {
	status int // 0: 200
	media  string
	body   string
	gzip   bool
	cut    bool // the connection ends before the body

	protobuf string // the body for clients that prefer protobuf; "": they get the body, too
	delay    time.Duration
	down     bool // connections are refused
}

// recording is a storage that writes down what is committed. As the head does, it finds a series by its reference, or
// else by its labels, and refuses some samples.
type recording struct {
	mu      sync.Mutex
	refs    map[string]storage.SeriesRef // by labels
	labels  map[storage.SeriesRef]string
	next    storage.SeriesRef
	commits map[string][]string // by target
	ordered bool                // samples are refused that are not newer than the last of their series
	last    map[string]sample
}

type sample struct {
	t    int64
	text string // of the value
}

func newRecording() *recording {
	r := &recording{commits: map[string][]string{}, last: map[string]sample{}}
	r.collectGarbage()
	return r
}

// collectGarbage forgets all references.
func (r *recording) collectGarbage() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refs, r.labels = map[string]storage.SeriesRef{}, map[storage.SeriesRef]string{}
}

// committed returns what was committed for a target since the last call.
func (r *recording) committed(instance string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	lines := strings.Join(r.commits[instance], "---\n")
	delete(r.commits, instance)
	return lines
}

// all returns what was committed since the last call, ordered by target.
func (r *recording) all() (lines []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, of := range slices.Sorted(maps.Keys(r.commits)) {
		lines = append(lines, of+"\n"+strings.Join(r.commits[of], "---\n"))
	}
	clear(r.commits)
	return lines
}

func (r *recording) AppenderV2(context.Context) storage.AppenderV2 {
	r.mu.Lock() // the next scrape begins after a test has read what the loops know
	defer r.mu.Unlock()
	return &recordingAppender{to: r, seen: map[string]uint64{}, last: map[string]sample{}}
}

type recordingAppender struct {
	to    *recording
	lines []string
	seen  map[string]uint64
	of    string // the target
	last  map[string]sample
}

var errFull = errors.New("the storage is full")

func (a *recordingAppender) Append(ref storage.SeriesRef, l labels.Labels, st, t int64, v float64, h *histogram.Histogram,
	fh *histogram.FloatHistogram, o storage.AppendV2Options) (storage.SeriesRef, error) {
	a.to.mu.Lock()
	defer a.to.mu.Unlock()
	key, ok := a.to.labels[ref]
	if !ok {
		key = l.String()
		if ref = a.to.refs[key]; ref == 0 {
			a.to.next++
			ref = a.to.next
			a.to.refs[key], a.to.labels[ref] = ref, key
		}
	}
	name := l.Get(labels.MetricName)
	if name == "up" {
		a.of = l.Get("instance")
	}
	switch {
	case name == "late" && v > 50:
		return 0, storage.ErrOutOfOrderSample
	case name == "old" && v > 50:
		return 0, storage.ErrOutOfBounds
	case name == "full" && v > 90:
		return 0, errFull
	case name == "lost" && v > 90:
		return 0, storage.ErrNotFound
	}
	bits := math.Float64bits(v)
	if was, ok := a.seen[key]; ok && was != bits {
		return 0, storage.ErrDuplicateSampleForTimestamp
	}
	a.seen[key] = bits
	if a.to.ordered {
		value := fmt.Sprint(bits)
		if h != nil {
			value = h.String()
		}
		if fh != nil {
			value = fh.String()
		}
		if last, ok := a.to.last[key]; ok && t < last.t {
			return 0, storage.ErrOutOfOrderSample
		} else if ok && t == last.t && value != last.text {
			return 0, storage.ErrDuplicateSampleForTimestamp
		}
		a.last[key] = sample{t, value}
	}
	if name == "scrape_duration_seconds" && !a.to.ordered && bits != math.Float64bits(staleNaN) {
		bits = 0
	}
	text := fmt.Sprintf("%s %x @%s st=%d", key, bits, stamp(t), st)
	if key != l.String() {
		text += " as " + l.String()
	}
	if h != nil {
		text += fmt.Sprint(h, h.Schema)
	}
	if fh != nil {
		text += fmt.Sprint(fh, fh.Schema)
	}
	var partial *storage.AppendPartialError
	for _, e := range o.Exemplars {
		if e.Value > 50 {
			if partial == nil {
				partial = &storage.AppendPartialError{}
			}
			partial.ExemplarErrors = append(partial.ExemplarErrors, storage.ErrOutOfOrderExemplar)
		}
		text += fmt.Sprintf(" # %s %x %s", e.Labels, math.Float64bits(e.Value), stamp(e.Ts))
	}
	a.lines = append(a.lines, text+fmt.Sprintf(" %q %+v %v\n", o.MetricFamilyName, o.Metadata, o.RejectOutOfOrder))
	if partial != nil {
		return ref, partial
	}
	return ref, nil
}

// stamp hides timestamps of the scrape.
func stamp(t int64) string {
	if t > 1.5e12 && t < 3e12 {
		return "now"
	}
	return fmt.Sprint(t)
}

func (a *recordingAppender) Commit() error {
	stale := fmt.Sprintf(" %x @", math.Float64bits(staleNaN))
	slices.SortStableFunc(a.lines, func(x, y string) int { // staleness markers are in the order of a map
		if strings.Contains(x, stale) && strings.Contains(y, stale) {
			return cmp.Compare(x, y)
		}
		return 0
	})
	a.to.mu.Lock()
	defer a.to.mu.Unlock()
	maps.Copy(a.to.last, a.last)
	a.to.commits[a.of] = append(a.to.commits[a.of], strings.Join(a.lines, ""))
	return nil
}

func (a *recordingAppender) Rollback() error { return nil }

// pages answers scrapes by the host of the request.
type pages struct {
	mu      sync.Mutex
	answers map[string]answer
}

func (p *pages) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	a := p.answers[r.Host]
	p.mu.Unlock()
	a.write(w, r)
}

var gzipWriters = sync.Pool{New: func() any { return gzip.NewWriter(io.Discard) }}

func (a answer) write(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", a.media)
	if a.media == "" {
		w.Header()["Content-Type"] = nil
	}
	body := []byte(a.body)
	if a.gzip && strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		var b bytes.Buffer
		z := gzipWriters.Get().(*gzip.Writer)
		z.Reset(&b)
		_, _ = z.Write(body)
		_ = z.Close()
		gzipWriters.Put(z)
		body = b.Bytes()
		w.Header().Set("Content-Encoding", "gzip")
	}
	if a.cut {
		w.Header().Set("Content-Length", fmt.Sprint(len(body)+10))
	}
	w.WriteHeader(cmp.Or(a.status, http.StatusOK))
	_, _ = w.Write(body)
}

// twins are Prometheus' scrape manager and ours with the same jobs and targets.
type twins struct {
	t        testing.TB
	server   *pages
	jobs     string
	round    int
	library  *scrape.Manager
	ours     *Manager
	recorded [2]*recording // by the library, by us
	registry [2]*prometheus.Registry
	known    int // pages that had the layout of the page before
	shuffled int // of them, with the lines in another order
	changed  int // pages that had most lines of the page before
}

// newTwins returns twins that scrape only when they are told to. jobs is the YAML of scrape_configs, in which
// INTERVAL stands for an interval, and groups has the targets of each job.
func newTwins(t testing.TB, jobs string, groups map[string][]*targetgroup.Group, opts scrape.Options) *twins {
	t.Helper()
	tw := &twins{t: t, server: &pages{answers: map[string]answer{}}, jobs: jobs}
	server := httptest.NewServer(tw.server)
	t.Cleanup(server.Close)
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", server.Listener.Addr().String())
	}
	opts.HTTPClientOptions = []commonconfig.HTTPClientOption{commonconfig.WithDialContextFunc(dial)}
	opts.DiscoveryReloadOnStartup = true
	theirs := opts
	// Otherwise the library would keep the connections of all reloads, and files would run out.
	theirs.HTTPClientOptions = append(theirs.HTTPClientOptions, commonconfig.WithKeepAlivesDisabled())
	// The library scrapes when a loop ends, and a reload ends every loop but keeps what it knows.
	theirs.InitialScrapeOffset, theirs.ScrapeOnShutdown = never, true
	logger := slog.New(slog.DiscardHandler)
	for i := range tw.recorded {
		tw.recorded[i], tw.registry[i] = newRecording(), prometheus.NewRegistry()
	}
	var err error
	if tw.library, err = scrape.NewManager(&theirs, logger, nil, nil, tw.recorded[0], tw.registry[0]); err != nil {
		t.Fatal(err)
	}
	if tw.ours, err = newManager(&opts, tw.recorded[1], logger, tw.registry[1]); err != nil {
		t.Fatal(err)
	}
	tw.ours.dial = dial
	tw.apply()
	found := make(chan map[string][]*targetgroup.Group)
	go func() { _ = tw.library.Run(found) }()
	found <- groups
	n := 0
	for _, g := range groups {
		for _, g := range g {
			n += len(g.Targets)
		}
	}
	for count(tw.library.TargetsActive()) < n {
		time.Sleep(time.Millisecond)
	}
	tw.ours.groups = groups
	tw.ours.reload()
	t.Cleanup(func() {
		tw.library.Stop()
		tw.ours.end()
	})
	return tw
}

// changed says whether a page whose layout is known had a few other lines.
func changed(was, is *layout) bool { return was != nil && is != nil && was != is && is.used }

func count(targets map[string][]*scrape.Target) (n int) {
	for _, list := range targets {
		n += len(list)
	}
	return n
}

// apply applies the jobs with another interval to both.
func (tw *twins) apply() {
	tw.t.Helper()
	tw.round++
	jobs := strings.ReplaceAll(tw.jobs, "INTERVAL", fmt.Sprintf("%dh", 1000+tw.round))
	cfg, err := config.Load("global: {scrape_timeout: 1m, scrape_interval: 1000h}\nscrape_configs:\n"+jobs, slog.New(slog.DiscardHandler))
	if err != nil {
		tw.t.Fatalf("%s: %v", jobs, err)
	}
	for _, apply := range []func(*config.Config) error{tw.library.ApplyConfig, tw.ours.ApplyConfig} {
		if err := apply(cfg); err != nil {
			tw.t.Fatal(err)
		}
	}
}

// scrape lets both scrape each target once and compares what they stored and say about the targets.
func (tw *twins) scrape(answers map[string]answer) {
	tw.t.Helper()
	tw.server.mu.Lock()
	tw.server.answers = answers
	tw.server.mu.Unlock()
	var wg sync.WaitGroup
	var mu sync.Mutex
	for _, p := range tw.ours.pools {
		for _, l := range p.loops {
			wg.Go(func() {
				was := l.cache.layout
				l.scrape(time.Time{}, time.Now())
				if changed(was, l.cache.layout) {
					mu.Lock()
					tw.changed++
					mu.Unlock()
				}
				if was != nil && l.cache.layout == was {
					mu.Lock()
					tw.known++
					if was.index != nil {
						tw.shuffled++
					}
					mu.Unlock()
				}
			})
		}
	}
	wg.Wait()
	tw.apply() // the library scrapes
	targets := [2]map[string]*scrape.Target{{}, {}}
	for i, active := range []map[string][]*scrape.Target{tw.library.TargetsActive(), tw.ours.TargetsActive()} {
		for _, list := range active {
			for _, t := range list {
				targets[i][t.GetValue("instance")] = t
			}
		}
	}
	if len(targets[0]) != len(targets[1]) {
		tw.t.Fatalf("%d targets, want %d", len(targets[1]), len(targets[0]))
	}
	for instance := range targets[0] {
		var texts [2]string
		for i := range texts {
			t := targets[i][instance]
			md := t.ListMetadata()
			slices.SortFunc(md, func(a, b scrape.MetricMetadata) int { return cmp.Compare(a.MetricFamily, b.MetricFamily) })
			texts[i] = fmt.Sprintf("%s%v %v %+v %d", tw.recorded[i].committed(instance), t.Health(), t.LastError(), md, t.SizeMetadata())
		}
		if texts[0] != texts[1] {
			a := answers[t0(targets[0][instance])]
			tw.t.Fatalf("round %d, %s: answer %+v\n%s\nwant\n%s\nfirst difference: %s", tw.round, instance, a, texts[1], texts[0], difference(texts[1], texts[0]))
		}
	}
}

func t0(t *scrape.Target) string { return t.GetValue(model.AddressLabel) }

func difference(got, want string) string {
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range max(len(g), len(w)) {
		var a, b string
		if i < len(g) {
			a = g[i]
		}
		if i < len(w) {
			b = w[i]
		}
		if a != b {
			return fmt.Sprintf("line %d is\n%s\nwant\n%s", i, a, b)
		}
	}
	return ""
}

// sameMetrics compares the counters of both that do not depend on time or on the reloads that drive the library.
func (tw *twins) sameMetrics() {
	tw.t.Helper()
	var texts [2]string
	for i, r := range tw.registry {
		for line := range strings.Lines(counters(tw.t, r)) {
			if !strings.Contains(line, "length") && !strings.Contains(line, "duration") && !strings.Contains(line, "reloads_total") {
				texts[i] += line
			}
		}
	}
	if texts[0] != texts[1] {
		tw.t.Errorf("metrics: %s", difference(texts[1], texts[0]))
	}
}

func counters(t testing.TB, r *prometheus.Registry) string {
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, f := range families {
		for _, m := range f.Metric {
			fmt.Fprintln(&b, f.GetName(), m.Label, m.Counter.GetValue(), m.Gauge.GetValue(), m.Summary.GetSampleCount(), m.Histogram.GetSampleCount())
		}
	}
	return b.String()
}

// A response that is cut after body_size_limit exceeds the limit.
func TestManager_CutResponsesExceedTheBodySizeLimit(t *testing.T) {
	groups := map[string][]*targetgroup.Group{"j": {{Targets: []model.LabelSet{{model.AddressLabel: "a:80"}}}}}
	tw := newTwins(t, "  - {job_name: j, scrape_interval: INTERVAL, body_size_limit: 400B}\n", groups, scrape.Options{})
	for _, lines := range []int{10, 200} {
		tw.scrape(map[string]answer{"a:80": {media: plainText, body: strings.Repeat("a 1\n", lines), gzip: true, cut: true}})
	}
	tw.sameMetrics()
}

// The storage refuses a sample of a page whose layout is known: the page still has its families, up to the sample that
// ends it.
func TestManager_PagesWithRefusedSamplesHaveMetadata(t *testing.T) {
	groups := map[string][]*targetgroup.Group{"j": {{Targets: []model.LabelSet{{model.AddressLabel: "a:80"}}}}}
	for name, odd := range map[string]string{
		"refused sample": "# TYPE late counter\nlate 60\n# TYPE b gauge\nb 1\n",
		"refused page":   "# TYPE late counter\nlate 1\n# TYPE b gauge\nb 1\n# TYPE late gauge\nfull 99\n# TYPE late summary\n",
	} {
		t.Run(name, func(t *testing.T) {
			tw := newTwins(t, "  - {job_name: j, scrape_interval: INTERVAL}\n", groups, scrape.Options{})
			known := strings.NewReplacer("late 60", "late 1", "full 99", "full 1").Replace(odd)
			for _, body := range []string{known, known, odd} {
				tw.scrape(map[string]answer{"a:80": {media: plainText, body: body}})
			}
			for range metadataAge + 2 {
				tw.scrape(map[string]answer{"a:80": {media: plainText, body: "a 1\n"}})
			}
			if tw.known == 0 {
				t.Error("no page had a known layout")
			}
		})
	}
}

// A job without target groups has no series of failed syncs.
func TestManager_CountsSyncsOfJobsWithoutTargets(t *testing.T) {
	groups := map[string][]*targetgroup.Group{"empty": {}, "j": {{Targets: []model.LabelSet{{model.AddressLabel: "a:80"}}}}}
	jobs := "  - {job_name: j, scrape_interval: INTERVAL}\n  - {job_name: empty, scrape_interval: INTERVAL}\n"
	newTwins(t, jobs, groups, scrape.Options{}).sameMetrics()
}

// configurations are jobs by name; each history is scraped with each.
var configurations = map[string]string{
	"plain":      "",
	"honor":      "honor_labels: true, enable_compression: false",
	"now":        "honor_timestamps: false",
	"track":      "track_timestamps_staleness: true, extra_scrape_metrics: true",
	"limit":      "sample_limit: 9, extra_scrape_metrics: true",
	"labels":     "label_limit: 5, label_name_length_limit: 20, label_value_length_limit: 30",
	"body":       "body_size_limit: 400B, extra_scrape_metrics: true",
	"native":     "scrape_native_histograms: true, native_histogram_bucket_limit: 3, native_histogram_min_bucket_factor: 1.5",
	"nhcb":       "convert_classic_histograms_to_nhcb: true",
	"fallback":   "fallback_scrape_protocol: PrometheusText0.0.4",
	"legacy":     "metric_name_validation_scheme: legacy",
	"relabel":    `metric_relabel_configs: [{source_labels: [__name__], regex: "b.*", action: drop}, {source_labels: [x], target_label: y}, {regex: z, action: labeldrop}]`,
	"nameless":   `metric_relabel_configs: [{source_labels: [x], regex: "7", target_label: __name__, replacement: ""}]`,
	"collisions": `metric_relabel_configs: [{regex: "x", action: labeldrop}]`,
}

func configurationYAML() string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(configurations)) {
		more := configurations[name]
		if more != "" {
			more = ", " + more
		}
		fmt.Fprintf(&b, "  - {job_name: %s, scrape_interval: INTERVAL%s}\n", name, more)
	}
	return b.String()
}

// history makes the pages of a target. Each page has most of the lines of the page before.
type history struct {
	r       *rand.Rand
	open    bool // OpenMetrics
	shuffle bool // each page has its lines in another order
	brief   bool // one of short histories: pages have timestamps, too
	calm    bool // with few changes
	traced  bool // lines have exemplars now and then
	simple  bool // no exemplar has an error
	churned bool // lines come and go in most pages

	protobuf bool // the target also speaks protobuf
	lines    []string
	answers  int
}

var seriesTexts = []string{
	"a", `a{x="1"}`, `a{x="2",z="3"}`, `a{z="3",x="2"}`, `a{x = "1" , }`, `b{x="1"}`, "b", `c_total{x="7"}`, "c_total", `late{x="1"}`, `late{x="2"}`,
	`old`, `full`, `lost`, `d{instance="own",exported_instance="e"}`, `d{job="x"}`, `h_bucket{le="1"}`, `h_bucket{le="2.0"}`,
	`h_bucket{le="+Inf"}`, "h_sum", "h_count", `s{quantile="0.5"}`, `e{x="ü\n\"\\"}`, `{"quoted.name",x="1"}`, `{"quoted"}`, `long{a="1",b="2",c="3",d="4",e="5"}`,
	`wide{averyveryverylongname="1"}`, `wide{x="` + strings.Repeat("v", 40) + `"}`, "c_created", "g{}", `up`, `scrape_samples_scraped`,
}

var valueTexts = []string{"0", "1", "-0", "+1", "1.5", "NaN", "nan", "+Inf", "-Inf", "Inf", "1e5", "1E-5", "123456789012345", "1234567890123456789",
	"0.1", "0.30000000000000004", "1.", ".5", "-.5", "99", "55", "1e400", "0x1p-2", "1_000", "", ".", "-", "1e", "5e-324", "9007199254740993", "00012.50", "2.2250738585072011e-308", "infinity", "1\r"}

// exemplarTexts follow a value. Most of them are simple, see pageValues.readExemplar.
var exemplarTexts = []string{` # {id="N"} V @T`, ` # {id="N"} V`, ` # {trace_id="N",span="b"} V @T`, ` # {b="N",a="x y"} 55 @T`, ` # {id="N"} 55`,
	` # {} V`, ` # {} V @T`, ` # {a="N",} V`, ` # {A_9="~ !"} NaN`, ` # {id="N"} 1e3 1.5e2`, ` # {id="N"} V 123.456789`, ` # {id="N"} -0 -1`, ` # {a="1",a="2"} V`}

// oddExemplars are errors, or not simple.
var oddExemplars = []string{` # {id="ü"} V`, ` # {id="a\"b"} V`, ` # {"id"="N"} V`, ` # {"id"} V`, ` # {id="N"} V NaN`, ` # {id="N"} V +Inf`, ` # {id="N"} V 1 2`,
	` # {id="N"} `, ` # {id="N"}V`, ` # {id="N"}`, ` # {id="N" } V`, ` # { id="N"} V`, ` # {,} V`, ` # {id} V`, ` # {1d="N"} V`, ` # {id="N",,} V`, ` # {id="N"} V `, ` # {id="N`,
	` # {id="N"} 0x1p-2`, ` # {id="N"} 1_0`, ` # {id="\xff"} V`, " # {id=\"\x00\"} V", ` #{id="N"} V`, ` # `, ` `, ` 1 # {id="N"} V`, `  # {id="N"} V`, ` # {id="N"}  V`, ` # {id="N"} 1e400`}

func (h *history) exemplar() string {
	text := exemplarTexts[h.r.IntN(2)]
	switch h.r.IntN(12) {
	case 0:
		text = pick(h.r, exemplarTexts)
	case 1:
		if !h.simple && h.r.IntN(20) == 0 {
			text = pick(h.r, oddExemplars)
		}
	}
	if !h.brief {
		text = strings.ReplaceAll(text, "@T", fmt.Sprint(h.r.IntN(3)))
	}
	return strings.ReplaceAll(text, "N", fmt.Sprint(h.r.IntN(3)))
}

func (h *history) value() string {
	switch n := h.r.IntN(80); {
	case h.calm && n%8 > 0:
		return fmt.Sprint(h.r.IntN(45))
	case n == 0:
		return valueTexts[h.r.IntN(len(valueTexts))]
	case n < 30:
		return fmt.Sprint(h.r.IntN(60))
	default:
		return fmt.Sprint(h.r.Float64() * 45)
	}
}

func (h *history) comment() string {
	name := []string{"a", "b", "c", "h", "s", "late"}[h.r.IntN(6)]
	kind := h.r.IntN(6)
	if h.calm && h.open {
		kind *= 3 // other comments are errors in OpenMetrics
	}
	switch kind {
	case 0:
		return "# HELP " + name + " some " + fmt.Sprint(h.r.IntN(3)) + ` \\ help`
	case 1:
		return "# nothing"
	case 2:
		if h.open {
			return "# UNIT " + name + " "
		}
		return ""
	default:
		return "# TYPE " + name + " " + []string{"counter", "gauge", "histogram", "summary"}[h.r.IntN(4)]
	}
}

func (h *history) next() answer {
	h.answers++
	r := h.r
	if h.answers == 1 || r.IntN(40) == 0 && !h.calm {
		h.lines, h.open, h.shuffle = nil, r.IntN(2) == 0, !h.shuffle && r.IntN(4) == 0
		h.traced, h.churned = h.open && r.IntN(2) == 0, !h.shuffle && r.IntN(4) == 0
		texts := seriesTexts
		if h.calm { // without those that are refused
			texts = slices.DeleteFunc(slices.Clone(texts), func(s string) bool {
				return slices.Contains([]string{"late", "old", "full", "lost", "long", "wide", "g"}, strings.SplitN(s, "{", 2)[0])
			})
		}
		for _, i := range r.Perm(len(texts))[:r.IntN(14)] {
			h.lines = append(h.lines, texts[i]+" V")
			if r.IntN(3) == 0 {
				h.lines = append(h.lines, h.comment())
			}
		}
	}
	for h.churned && r.IntN(2) == 0 {
		i := r.IntN(len(h.lines) + 1)
		switch n := r.IntN(12); {
		case n < 5 && i < len(h.lines):
			h.lines = slices.Delete(h.lines, i, i+1)
		case n == 5:
			h.lines = slices.Insert(h.lines, i, h.comment())
		case n == 6 && len(h.lines) > 0: // a line moves, or is there twice
			h.lines = slices.Insert(h.lines, i, h.lines[r.IntN(len(h.lines))])
		case n == 7 && r.IntN(4) == 0:
			h.lines = slices.Insert(h.lines, i, pick(r, seriesTexts)+" V")
		default:
			h.lines = slices.Insert(h.lines, i, fmt.Sprintf(`%s{id="%d"} V`, pick(r, []string{"n", "a", "h_bucket", "b", "c_total"}), r.IntN(9)))
		}
	}
	if h.brief && r.IntN(40) == 0 {
		line := pick(r, []string{"ts V @T", `ts{x="1"} V @T`, "a V @T", `c_total{x="7"} V @T`, `h_bucket{le="1"} V @T # {id="1"} V @T`, `c_total{x="8"} V # {id="2"} V @T`})
		h.lines = slices.Insert(h.lines, r.IntN(len(h.lines)+1), line)
	}
	chance := 30
	if h.brief {
		chance = 60
	}
	if h.calm {
		chance = 200
	}
	switch r.IntN(chance) {
	case 0:
		h.lines = slices.Insert(h.lines, r.IntN(len(h.lines)+1), seriesTexts[r.IntN(len(seriesTexts))]+" V")
	case 1:
		if len(h.lines) > 0 {
			i := r.IntN(len(h.lines))
			h.lines = slices.Delete(h.lines, i, i+1)
		}
	case 2:
		h.lines = slices.Insert(h.lines, r.IntN(len(h.lines)+1), h.comment())
	case 3:
		r.Shuffle(len(h.lines), func(i, j int) { h.lines[i], h.lines[j] = h.lines[j], h.lines[i] })
	case 4:
		if r.IntN(2) == 0 { // until another insertion or deletion removes it
			odd := []string{"f 1 1700", "f V 99999999999999", "f{x=\"\xff\"} 1", "f{", "f  V", "\tf V", "f\tV", "a V # {id=\"1\"} 0.5", "a_total V # {id=\"1\"} 0.5 1.5",
				"a 1\x00", "# TYPE a nonsense", "# HELP a \xff", "f{x=\"a\nb\"} V", "f V ", "{} 1", `{x="1"} 1`, "# EOF"}
			h.lines = slices.Insert(h.lines, r.IntN(len(h.lines)+1), odd[r.IntN(len(odd))])
		}
	}
	if h.shuffle {
		r.Shuffle(len(h.lines), func(i, j int) { h.lines[i], h.lines[j] = h.lines[j], h.lines[i] })
	}
	a := answer{media: plainText, gzip: r.IntN(2) == 0}
	var b strings.Builder
	for _, line := range h.lines {
		if h.traced && strings.HasSuffix(line, " V") && r.IntN(3) == 0 {
			line += h.exemplar()
		}
		for strings.Contains(line, "V") && !strings.HasPrefix(line, "#") {
			line = strings.Replace(line, "V", h.value(), 1)
		}
		b.WriteString(line + "\n")
	}
	if h.open {
		a.media = openMetrics
		b.WriteString("# EOF\n")
	}
	a.body = b.String()
	faults := 80
	if h.calm {
		faults = 400
	}
	switch r.IntN(faults) {
	case 0:
		a.status = 500
	case 1:
		a.cut = true
	case 2:
		a.body = a.body[:r.IntN(len(a.body)+1)]
	case 3:
		a.body = ""
	case 4:
		a.media = []string{"", "text/html", "nonsense", openMetrics, plainText, protobuf}[r.IntN(6)]
	case 5:
		a.media, a.body = protobuf, protobufPage(r)
	case 6:
		a.body = strings.TrimSuffix(a.body, "\n")
	}
	return a
}

// protobufPage has a counter with an exemplar, a native histogram and a classic one.
func protobufPage(r *rand.Rand) string {
	var b bytes.Buffer
	bucket := func(le float64, n uint64) *dto.Bucket {
		return &dto.Bucket{UpperBound: proto.Float64(le), CumulativeCount: proto.Uint64(n)}
	}
	for _, f := range []*dto.MetricFamily{
		{Name: proto.String("c_total"), Help: proto.String("h"), Type: dto.MetricType_COUNTER.Enum(), Metric: []*dto.Metric{{Counter: &dto.Counter{
			Value: proto.Float64(r.Float64()), Exemplar: &dto.Exemplar{Value: proto.Float64(1), Label: []*dto.LabelPair{{Name: proto.String("id"), Value: proto.String("7")}}}}}}},
		{Name: proto.String("h"), Type: dto.MetricType_HISTOGRAM.Enum(), Metric: []*dto.Metric{{Histogram: &dto.Histogram{
			SampleCount: proto.Uint64(10), SampleSum: proto.Float64(r.Float64()), Schema: proto.Int32(3), ZeroThreshold: proto.Float64(0.001), ZeroCount: proto.Uint64(1),
			PositiveSpan: []*dto.BucketSpan{{Offset: proto.Int32(0), Length: proto.Uint32(5)}}, PositiveDelta: []int64{1, 1, 0, -1, 1},
			Bucket: []*dto.Bucket{bucket(1, 4), bucket(2, 10)}}}}},
		{Name: proto.String("k"), Type: dto.MetricType_HISTOGRAM.Enum(), Metric: []*dto.Metric{{Histogram: &dto.Histogram{
			SampleCount: proto.Uint64(10), SampleSum: proto.Float64(3), Bucket: []*dto.Bucket{bucket(1, 4), bucket(2, 10)}}}}},
	} {
		if err := scrape.AddMetricFamilyToProtobuf(&b, f); err != nil {
			panic(err)
		}
	}
	return b.String()
}

// Prometheus' scrape manager and ours store the same and say the same about their targets, whatever the targets
// answer.
func TestManager_StoresWhatPrometheusStores(t *testing.T) {
	for name, opts := range map[string]scrape.Options{"default": {}, "metadata": {AppendMetadata: true},
		"typed": {EnableTypeAndUnitLabels: true}, "second": {EnableOpenMetrics2: true}} {
		t.Run(name, func(t *testing.T) {
			n, rounds := *histories, 24
			if name != "default" {
				n, rounds = (n+3)/4, 15
			}
			groups, all := map[string][]*targetgroup.Group{}, map[string]*history{}
			for _, job := range slices.Sorted(maps.Keys(configurations)) {
				g := &targetgroup.Group{}
				for i := range n {
					host := model.LabelValue(fmt.Sprintf("%s-%d:80", job, i))
					g.Targets = append(g.Targets, model.LabelSet{model.AddressLabel: host})
					all[string(host)] = &history{r: rand.New(rand.NewPCG(*historySeed, uint64(len(all))))}
				}
				groups[job] = []*targetgroup.Group{g}
			}
			tw := newTwins(t, configurationYAML(), groups, opts)
			for round := range rounds {
				if round%8 == 5 {
					tw.recorded[0].collectGarbage()
					tw.recorded[1].collectGarbage()
				}
				answers := map[string]answer{}
				for _, host := range slices.Sorted(maps.Keys(all)) {
					answers[host] = all[host].next()
				}
				tw.scrape(answers)
			}
			tw.sameMetrics()
			total := rounds * len(all)
			if !opts.AppendMetadata && tw.known < total/20 ||
				name == "default" && (tw.shuffled < total/400 || tw.changed < total/200) {
				t.Errorf("of %d pages %d had a known layout, %d in another order, %d were changed: the test compares too few", total, tw.known, tw.shuffled, tw.changed)
			}
		})
	}
}

// Two discoveries may find one target with different labels before relabeling. The target shows those of the last one.
func TestManager_ShowsTheLabelsOfTheLastOfEqualTargets(t *testing.T) {
	found := &targetgroup.Group{Targets: []model.LabelSet{{model.AddressLabel: "b:80"}}}
	for _, pod := range []model.LabelValue{"first", "last"} {
		found.Targets = append(found.Targets, model.LabelSet{model.AddressLabel: "a:80", "__meta_pod": pod})
	}
	groups := map[string][]*targetgroup.Group{"twice": {found}}
	cfg, err := config.Load("scrape_configs: [{job_name: twice, scrape_interval: 1000h}]", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	logger := slog.New(slog.DiscardHandler)
	theirs := scrape.Options{DiscoveryReloadOnStartup: true, InitialScrapeOffset: never}
	library, err := scrape.NewManager(&theirs, logger, nil, nil, newRecording(), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	ours, err := newManager(&scrape.Options{}, newRecording(), logger, prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	for _, apply := range []func(*config.Config) error{library.ApplyConfig, ours.ApplyConfig} {
		if err := apply(cfg); err != nil {
			t.Fatal(err)
		}
	}
	updates := make(chan map[string][]*targetgroup.Group)
	go func() { _ = library.Run(updates) }()
	updates <- groups
	for count(library.TargetsActive()) < 2 {
		time.Sleep(time.Millisecond)
	}
	ours.groups = groups
	ours.reload()
	pods := func(active map[string][]*scrape.Target) (list []string) {
		b := labels.NewBuilder(labels.EmptyLabels())
		for _, t := range active["twice"] {
			list = append(list, t.DiscoveredLabels(b).Get("__meta_pod"))
		}
		slices.Sort(list)
		return list
	}
	got, want := pods(ours.TargetsActive()), pods(library.TargetsActive())
	library.Stop()
	ours.end()
	if !slices.Equal(got, want) || !slices.Contains(want, "last") {
		t.Errorf("the targets show the labels of the pods %q, want %q", got, want)
	}
}
