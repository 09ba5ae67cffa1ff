package scrape

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	commonconfig "github.com/prometheus/common/config"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/discovery/targetgroup"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/scrape"
	"github.com/prometheus/prometheus/util/osutil"
)

// Prometheus' scrape manager and ours run side by side on a clock that does not wait: they request the same pages at
// the same times and store the same, while targets come and go, fail and are slow, the configuration changes, and both
// start again.
func TestManager_HistoriesEqualThoseOfPrometheus(t *testing.T) {
	var total tally
	_, _ = osutil.GetFQDN() // makes a channel of the resolver, which must not belong to one bubble
	n := uint64(max(20, *histories))
	for seed := *historySeed; seed < *historySeed+n && !t.Failed(); seed++ {
		synctest.Test(t, func(t *testing.T) { total.add(runHistory(t, seed)) })
	}
	t.Logf("%d histories: %+v", n, total)
	if total.known < total.scrapes/20 || total.exemplars == 0 || total.shuffled == 0 || total.changed < total.scrapes/200 {
		t.Errorf("the test compares too few pages with a known layout: %+v", total)
	}
}

// tally is what histories have compared.
type tally struct{ scrapes, samples, known, exemplars, shuffled, changed, reloads, restarts int }

func (t *tally) add(o tally) {
	t.scrapes += o.scrapes
	t.samples += o.samples
	t.known += o.known
	t.exemplars += o.exemplars
	t.shuffled += o.shuffled
	t.changed += o.changed
	t.reloads += o.reloads
	t.restarts += o.restarts
}

// world is what both managers see. It is a function of a seed.
type world struct {
	t       *testing.T
	seed    uint64
	r       *rand.Rand
	opts    scrape.Options
	start   time.Time
	jobs    map[string]map[string]string // options by job
	targets []*worldTarget
	labels  string // external ones
	cfg     *config.Config
	sides   [2]*side // the library's manager and ours
	ours    *Manager
	tally
	layouts map[*loop]*layout
	rounds  int
}

type worldTarget struct {
	job, host string
	gone      bool
	labels    model.LabelSet
	pages     *history
	answer    answer
	past      []answer
}

// side is one of the managers with its connections to the targets.
type side struct {
	recorded *recording
	registry *prometheus.Registry
	listener memListener
	server   http.Server
	mu       sync.Mutex
	answers  map[string]answer
	requests []string
	until    time.Time // all requests are answered

	apply  func(*config.Config) error
	active func() map[string][]*scrape.Target
	found  chan map[string][]*targetgroup.Group
	stop   func()
}

func runHistory(t *testing.T, seed uint64) tally {
	w := &world{t: t, seed: seed, r: rand.New(rand.NewPCG(seed, 42)), start: time.Now(), jobs: map[string]map[string]string{},
		layouts: map[*loop]*layout{}}
	r := w.r
	w.opts = scrape.Options{AppendMetadata: r.IntN(12) == 0, EnableTypeAndUnitLabels: r.IntN(8) == 0,
		EnableOpenMetrics2: r.IntN(8) == 0, ParseST: r.IntN(12) == 0, EnableZstdScrape: r.IntN(8) == 0, DiscoveryReloadOnStartup: true}
	for i := range w.sides {
		s := &side{recorded: newRecording(), listener: memListener{conns: make(chan net.Conn), closed: make(chan struct{})}}
		s.recorded.ordered = true
		s.server.Handler = s
		go func() { _ = s.server.Serve(&s.listener) }()
		w.sides[i] = s
	}
	for i := range 1 + r.IntN(2) {
		w.addJob(fmt.Sprint("j", i))
	}
	w.load()
	w.begin()
	calm := r.IntN(2) == 0 // most pages have the layout of the page before
	for range 12 + r.IntN(16) {
		for _, target := range w.targets {
			// With ParseST the library's parser never returns from an exemplar with an error.
			target.pages.calm, target.pages.simple = calm, w.opts.ParseST
			target.answer = target.pages.next()
			target.vary(r)
			target.past = append(target.past, target.answer)
		}
		for _, s := range w.sides {
			s.set(w.targets)
		}
		w.pass(15 * time.Second)
		synctest.Wait()
		if w.compare(); w.t.Failed() {
			break
		}
		w.event()
	}
	w.end()
	for _, s := range w.sides {
		_ = s.server.Close()
	}
	time.Sleep(time.Hour)
	return w.tally
}

// begin starts both managers with the current configuration and targets.
func (w *world) begin() {
	logger := slog.New(slog.DiscardHandler)
	for i, s := range w.sides {
		s.registry, s.found = prometheus.NewRegistry(), make(chan map[string][]*targetgroup.Group)
		opts := w.opts
		done := make(chan struct{})
		if i == 0 {
			opts.HTTPClientOptions = []commonconfig.HTTPClientOption{commonconfig.WithDialContextFunc(s.dial)}
			m, err := scrape.NewManager(&opts, logger, nil, nil, s.recorded, s.registry)
			if err != nil {
				w.t.Fatal(err)
			}
			s.apply, s.active = m.ApplyConfig, m.TargetsActive
			s.stop = func() { m.Stop(); <-done }
			go func() { defer close(done); _ = m.Run(s.found) }()
			continue
		}
		m, err := newManager(&opts, s.recorded, logger, s.registry)
		if err != nil {
			w.t.Fatal(err)
		}
		m.dial = s.dial
		s.apply, s.active = m.ApplyConfig, m.TargetsActive
		s.stop = func() { close(s.found); <-done }
		go func() { defer close(done); m.run(s.found) }()
		w.ours = m
	}
	w.applyConfig()
	synctest.Wait()
	// The library applies targets at multiples of 5 s. Until then no target may be scraped, so later ones are sent
	// just before.
	w.send()
	w.pass(5*time.Second - 1)
}

// pass lets time go by. No request is answered later: who waits for it holds a lock, and the clock of a bubble stands
// still while another waits for the lock.
func (w *world) pass(d time.Duration) {
	for _, s := range w.sides {
		s.mu.Lock()
		s.until = time.Now().Add(d - time.Millisecond)
		s.mu.Unlock()
	}
	time.Sleep(d)
}

func (w *world) end() {
	var wg sync.WaitGroup
	for _, s := range w.sides {
		wg.Go(s.stop)
	}
	wg.Wait()
	clear(w.layouts)
}

func (w *world) applyConfig() {
	var wg sync.WaitGroup
	var errs [2]error
	for i, s := range w.sides {
		wg.Go(func() { errs[i] = s.apply(w.cfg) })
	}
	wg.Wait()
	if fmt.Sprint(errs[0]) != fmt.Sprint(errs[1]) {
		w.t.Errorf("seed %d: apply: %v, want %v", w.seed, errs[1], errs[0])
	}
}

// send sends the targets to both managers.
func (w *world) send() {
	for _, s := range w.sides {
		groups := map[string][]*targetgroup.Group{}
		for job := range w.jobs {
			groups[job] = []*targetgroup.Group{}
		}
		for i, t := range w.targets {
			if _, ok := w.jobs[t.job]; !ok || t.gone {
				continue
			}
			groups[t.job] = append(groups[t.job], &targetgroup.Group{Source: fmt.Sprint(i), Targets: []model.LabelSet{t.labels},
				Labels: model.LabelSet{"group": "g"}})
		}
		s.found <- groups
	}
}

var jobOptions = map[string][]string{
	"honor_labels":                       {"true"},
	"honor_timestamps":                   {"false"},
	"track_timestamps_staleness":         {"true"},
	"extra_scrape_metrics":               {"true", "false"},
	"sample_limit":                       {"3", "9", "20"},
	"target_limit":                       {"1", "2"},
	"label_limit":                        {"6", "5"},
	"label_name_length_limit":            {"20"},
	"label_value_length_limit":           {"30"},
	"body_size_limit":                    {"2KB", "400B"},
	"scrape_native_histograms":           {"true"},
	"always_scrape_classic_histograms":   {"true"},
	"convert_classic_histograms_to_nhcb": {"true"},
	"native_histogram_bucket_limit":      {"3"},
	"native_histogram_min_bucket_factor": {"1.5"},
	"fallback_scrape_protocol":           {"PrometheusText0.0.4", "OpenMetricsText1.0.0", "PrometheusProto"},
	"metric_name_validation_scheme":      {"legacy", "utf8"},
	"metric_name_escaping_scheme":        {"underscores", "dots", "values", "allow-utf-8"},
	"enable_compression":                 {"false"},
	"scrape_interval":                    {"10s", "30s"},
	"scrape_timeout":                     {"4s"},
	"scrape_protocols":                   {"[PrometheusProto]", "[OpenMetricsText1.0.0, PrometheusText1.0.0]", "[PrometheusText0.0.4]", "[OpenMetricsText0.0.1]"},
	"metrics_path":                       {"/other"},
	"params":                             {"{x: [y, z]}"},
	"keep_dropped_targets":               {"1"},
	"metric_relabel_configs": {
		`[{source_labels: [__name__], regex: "b.*", action: drop}, {source_labels: [x], target_label: y}, {regex: z, action: labeldrop}]`,
		`[{source_labels: [x], regex: "7", target_label: __name__, replacement: ""}]`,
		`[{regex: "x", action: labeldrop}]`,
		`[{source_labels: [__name__], regex: "a|late|s", action: keep}]`,
		`[{target_label: instance, replacement: all}]`,
	},
	"relabel_configs": {
		`[{source_labels: [__address__], regex: ".*-1:.*", action: drop}]`,
		`[{source_labels: [zone], target_label: x}]`,
		`[{target_label: __scrape_interval__, replacement: 20s}, {target_label: __scrape_timeout__, replacement: 7s}]`,
		`[{target_label: __scrape_native_histograms__, replacement: "true"}, {target_label: __param_a, replacement: b}]`,
	},
}

func pick[T any](r *rand.Rand, list []T) T { return list[r.IntN(len(list))] }

func (w *world) addJob(name string) {
	options := map[string]string{}
	for range w.r.IntN(5) {
		key := pick(w.r, slices.Sorted(maps.Keys(jobOptions)))
		options[key] = pick(w.r, jobOptions[key])
	}
	w.jobs[name] = options
	for i := range 1 + w.r.IntN(3) {
		host := fmt.Sprintf("%s-%d:80", name, i)
		if slices.ContainsFunc(w.targets, func(t *worldTarget) bool { return t.host == host }) {
			continue
		}
		w.targets = append(w.targets, &worldTarget{job: name, host: host, labels: model.LabelSet{model.AddressLabel: model.LabelValue(host)},
			pages: &history{r: rand.New(rand.NewPCG(w.seed, uint64(len(w.targets)))), brief: true}})
	}
}

// load loads the configuration of the jobs. It reports false, and changes nothing, if that is not valid.
func (w *world) load() bool {
	var b strings.Builder
	fmt.Fprintf(&b, "global: {scrape_interval: 15s, scrape_timeout: 5s, external_labels: {%s}}\nscrape_configs:\n", w.labels)
	for _, name := range slices.Sorted(maps.Keys(w.jobs)) {
		fmt.Fprintf(&b, "  - job_name: %s\n", name)
		for _, key := range slices.Sorted(maps.Keys(w.jobs[name])) {
			fmt.Fprintf(&b, "    %s: %s\n", key, w.jobs[name][key])
		}
	}
	cfg, err := config.Load(b.String(), slog.New(slog.DiscardHandler))
	if err != nil {
		if w.cfg == nil { // the first one
			for _, options := range w.jobs {
				clear(options)
			}
			return w.load()
		}
		return false
	}
	w.cfg = cfg
	return true
}

// event changes something for the next round.
func (w *world) event() {
	r := w.r
	switch r.IntN(20) {
	case 0, 1, 2:
		was := map[string]map[string]string{}
		for name, options := range w.jobs {
			was[name] = maps.Clone(options)
		}
		switch name := pick(r, slices.Sorted(maps.Keys(w.jobs))); r.IntN(12) {
		case 0:
			w.labels = fmt.Sprint("replica: r", r.IntN(3))
		case 1:
			if len(w.jobs) > 1 {
				delete(w.jobs, name)
			}
		case 2:
			w.addJob(fmt.Sprint("j", r.IntN(3)))
		case 3:
			clear(w.jobs[name])
		default:
			key := pick(r, slices.Sorted(maps.Keys(jobOptions)))
			if _, ok := w.jobs[name][key]; ok && r.IntN(2) == 0 {
				delete(w.jobs[name], key)
			} else {
				w.jobs[name][key] = pick(r, jobOptions[key])
			}
		}
		if !w.load() {
			w.jobs = was
			return
		}
		w.reloads++
		w.applyConfig()
		synctest.Wait()
		if r.IntN(5) > 0 {
			w.send()
		}
	case 3, 4, 5:
		t := pick(r, w.targets)
		t.gone = !t.gone
		w.send()
	case 6:
		t := pick(r, w.targets)
		t.labels = t.labels.Clone()
		t.labels["zone"] = model.LabelValue(pick(r, []string{"a", "b", ""}))
		w.send()
	case 7:
		if r.IntN(3) == 0 {
			w.end()
			w.restarts++
			w.begin()
		}
	case 8:
		for _, s := range w.sides {
			s.recorded.collectGarbage()
		}
	case 9: // nothing new
		w.send()
	}
}

// vary makes the answer slow, late or of another kind now and then.
func (t *worldTarget) vary(r *rand.Rand) {
	a := &t.answer
	chance := 30
	if t.pages.calm {
		chance = 150
	}
	switch r.IntN(chance) {
	case 0:
		a.delay = time.Duration(1 + r.IntN(9e9))
	case 1:
		a.down = true
	case 2:
		a.status = http.StatusFound
	}
	if r.IntN(chance/7) == 0 || t.pages.protobuf {
		t.pages.protobuf = r.IntN(8) > 0
		a.protobuf = protobufPage(r)
	}
	now := time.Now().UnixMilli()
	for strings.Contains(a.body, "@T") {
		ms := pick(r, []int64{now, now, now, now - now%60000, now - 45000, now - 3600_000, now + 3600_000, 1000, -1})
		text := fmt.Sprint(ms)
		if strings.HasPrefix(a.media, "application/openmetrics") {
			text = fmt.Sprintf("%.3f", float64(ms)/1000)
		}
		a.body = strings.Replace(a.body, "@T", text, 1)
	}
	if len(a.body) == 400 || len(a.body) == 2048 {
		a.cut = false // a page as long as body_size_limit that is cut: both fail, with different errors
	}
}

func (s *side) set(targets []*worldTarget) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answers = map[string]answer{}
	for _, t := range targets {
		s.answers[t.host] = t.answer
	}
}

func (s *side) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	a, until := s.answers[r.Host], s.until
	redirect := a.status == http.StatusFound && r.URL.Path != "/moved"
	if !redirect && !a.down { // our client sends these again, or closes a connection where the library's does not
		s.requests = append(s.requests, fmt.Sprintf("%s %s %s %s %v\n", time.Now(), r.Method, r.Host, r.URL, r.Header))
	}
	s.mu.Unlock()
	if a.down {
		panic(http.ErrAbortHandler)
	}
	time.Sleep(min(a.delay, time.Until(until)))
	if a.protobuf != "" && strings.HasPrefix(r.Header.Get("Accept"), "application/vnd.google.protobuf") {
		a.media, a.body = protobuf, a.protobuf
	}
	if redirect {
		w.Header().Set("Location", "/moved")
	} else if a.status == http.StatusFound {
		a.status = 0
	}
	a.write(w, r)
}

func (s *side) dial(_ context.Context, network, address string) (net.Conn, error) {
	s.mu.Lock()
	down := s.answers[address].down
	s.mu.Unlock()
	if down {
		return nil, &net.OpError{Op: "dial", Net: network, Err: errors.New("connection refused")}
	}
	to, from := &half{}, &half{}
	to.changed.L, from.changed.L = &to.mu, &from.mu
	select {
	case s.listener.conns <- &memConn{in: to, out: from}:
		return &memConn{in: from, out: to}, nil
	case <-s.listener.closed:
		return nil, net.ErrClosed
	}
}

// compare compares what both managers requested and stored since the last call, and what they say of their targets.
func (w *world) compare() {
	w.t.Helper()
	for _, pool := range w.ours.pools {
		for _, l := range pool.loops {
			if was := w.layouts[l]; was != nil && was == l.cache.layout && was.used {
				w.known++
				if was.exemplars {
					w.exemplars++
				}
				if was.index != nil {
					w.shuffled++
				}
			}
			if changed(w.layouts[l], l.cache.layout) {
				w.changed++
			}
			w.layouts[l] = l.cache.layout
		}
	}
	var texts [2]string
	for i, s := range w.sides {
		var b strings.Builder
		s.mu.Lock()
		slices.Sort(s.requests)
		b.WriteString(strings.Join(s.requests, ""))
		s.requests = nil
		s.mu.Unlock()
		active := s.active()
		for _, job := range slices.Sorted(maps.Keys(active)) {
			var lines []string
			for _, t := range active[job] {
				md := t.ListMetadata()
				slices.SortFunc(md, func(a, b scrape.MetricMetadata) int { return cmp.Compare(a.MetricFamily, b.MetricFamily) })
				lines = append(lines, fmt.Sprintf("%s %s %s %v %v %s %s %+v %d\n", job, t, t.Labels(labels.NewBuilder(labels.EmptyLabels())), t.Health(), t.LastError(), t.LastScrape(), t.LastScrapeDuration(), md, t.SizeMetadata()))
			}
			slices.Sort(lines)
			b.WriteString(strings.Join(lines, ""))
		}
		for _, line := range s.recorded.all() {
			b.WriteString(line)
		}
		if r := w.rounds; r%8 == 7 {
			b.WriteString(counters(w.t, s.registry))
		}
		texts[i] = b.String()
	}
	w.rounds++
	w.scrapes += strings.Count(texts[0], `{__name__="up"`)
	w.samples += strings.Count(texts[0], " st=")
	if texts[0] != texts[1] {
		w.t.Errorf("seed %d, at %s: %s", w.seed, time.Since(w.start), difference(texts[1], texts[0]))
		if file := os.Getenv("SCRAPE_DIFFERENCE"); file != "" {
			var b strings.Builder
			for _, t := range w.targets {
				for i, a := range t.past {
					fmt.Fprintf(&b, "-- %d of %s %+v\n", i, t.host, a)
				}
			}
			_ = os.WriteFile(file, []byte(fmt.Sprintf("%v\n%s\n====== ours\n%s\n====== library\n%s", w.jobs, b.String(), texts[1], texts[0])), 0o644)
		}
	}
}

// memListener and memConn are a network without a kernel, so that the clock of a bubble knows when all wait.
type memListener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (l *memListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *memListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *memListener) Addr() net.Addr { return &net.TCPAddr{} }

// half is one direction of a connection.
type half struct {
	mu       sync.Mutex
	changed  sync.Cond
	buf      []byte
	ended    bool // by the writer
	closed   bool // by the reader
	deadline time.Time
	timer    *time.Timer
}

type memConn struct{ in, out *half }

func (c *memConn) Read(b []byte) (int, error) {
	h := c.in
	h.mu.Lock()
	defer h.mu.Unlock()
	for {
		switch {
		case h.closed:
			return 0, net.ErrClosed
		case !h.deadline.IsZero() && !time.Now().Before(h.deadline):
			return 0, os.ErrDeadlineExceeded
		case len(h.buf) > 0:
			n := copy(b, h.buf)
			h.buf = h.buf[n:]
			return n, nil
		case h.ended:
			return 0, io.EOF
		case len(b) == 0:
			return 0, nil
		}
		h.changed.Wait()
	}
}

func (c *memConn) Write(b []byte) (int, error) {
	h := c.out
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed || h.ended {
		return 0, net.ErrClosed
	}
	h.buf = append(h.buf, b...)
	h.changed.Broadcast()
	return len(b), nil
}

func (c *memConn) Close() error {
	for h, closed := range map[*half]*bool{c.in: &c.in.closed, c.out: &c.out.ended} {
		h.mu.Lock()
		*closed = true
		h.changed.Broadcast()
		h.mu.Unlock()
	}
	return nil
}

func (c *memConn) SetReadDeadline(t time.Time) error {
	h := c.in
	h.mu.Lock()
	defer h.mu.Unlock()
	h.deadline = t
	if h.timer != nil {
		h.timer.Stop()
		h.timer = nil
	}
	if !t.IsZero() && time.Until(t) > 0 {
		h.timer = time.AfterFunc(time.Until(t), h.changed.Broadcast)
	}
	h.changed.Broadcast()
	return nil
}

func (c *memConn) SetDeadline(t time.Time) error    { return c.SetReadDeadline(t) }
func (c *memConn) SetWriteDeadline(time.Time) error { return nil }
func (c *memConn) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (c *memConn) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
