package ingest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"math"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/pprof/profile"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/discovery/targetgroup"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/scrape"

	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/version"
)

// fakeTransport responds with a status and a body, and counts what is closed.
type fakeTransport struct {
	mu             sync.Mutex
	status         int
	body           io.Reader
	err            error
	agent          string // User-Agent of the last request
	opened, closed int
	idleClosed     int
}

type fakeBody struct {
	io.Reader
	of *fakeTransport
}

// Close implements io.Closer.
func (b fakeBody) Close() error {
	b.of.mu.Lock()
	defer b.of.mu.Unlock()
	b.of.closed++
	return nil
}

// RoundTrip implements http.RoundTripper.
func (f *fakeTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.agent = r.Header.Get("User-Agent"); f.err != nil {
		return nil, f.err
	}
	f.opened++
	return &http.Response{StatusCode: f.status, Status: http.StatusText(f.status), Body: fakeBody{f.body, f}, Request: r}, nil
}

// CloseIdleConnections is called by http.Client.
func (f *fakeTransport) CloseIdleConnections() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.idleClosed++
}

// brokenBody fails after some bytes.
type brokenBody struct{ io.Reader }

func (b brokenBody) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// fetcherOf returns a fetcher of a job whose responses are those of a transport.
func fetcherOf(t *testing.T, logger *slog.Logger, limits Limits) (*fetcher, *fakeTransport, *memory) {
	t.Helper()
	store := &memory{}
	in, err := New(Options{Limits: limits}, store, slog.New(slog.DiscardHandler), nil)
	must(t, err)
	s, err := NewScraper(in, "a", logger, nil, nil)
	must(t, err)
	t.Cleanup(s.Close)
	transport := &fakeTransport{status: http.StatusOK}
	p := &pool{scraper: s, job: &JobConfig{JobName: "j", ScrapeTimeout: 60e9}, client: &http.Client{Transport: transport}}
	return &fetcher{pool: p, spec: profileSpec{key: "cpu"}, url: "http://target/x", labels: named()}, transport, store
}

func TestFetch_FailuresAreReturnedAndBodiesClosed(t *testing.T) {
	refused := errors.New("connection refused")
	raw := testProfile(t, func(p *profile.Profile) { p.TimeNanos = time.Now().UnixNano() })
	for name, c := range map[string]struct {
		change func(f *fetcher, transport *fakeTransport, store *memory)
		want   error
		text   string
		stored int
	}{
		"good":     {func(*fetcher, *fakeTransport, *memory) {}, nil, "", 1},
		"url":      {func(f *fetcher, _ *fakeTransport, _ *memory) { f.url = "http://[" }, nil, "missing ']'", 0},
		"refused":  {func(_ *fetcher, transport *fakeTransport, _ *memory) { transport.err = refused }, refused, "", 0},
		"status":   {func(_ *fetcher, transport *fakeTransport, _ *memory) { transport.status = 503 }, nil, "server returned HTTP status Service Unavailable", 0},
		"redirect": {func(_ *fetcher, transport *fakeTransport, _ *memory) { transport.status = 204 }, nil, "server returned HTTP status No Content", 0},
		"cut":      {func(_ *fetcher, transport *fakeTransport, _ *memory) { transport.body = brokenBody{transport.body} }, io.ErrUnexpectedEOF, "", 0},
		"no pprof": {func(_ *fetcher, transport *fakeTransport, _ *memory) { transport.body = strings.NewReader("hello") }, nil, "pprof", 0},
		"no delta": {func(f *fetcher, transport *fakeTransport, _ *memory) {
			f.spec.delta, transport.body = true, strings.NewReader("hello")
		}, nil, "pprof", 0},
		"not taken": {func(_ *fetcher, _ *fakeTransport, store *memory) { store.err = refused }, refused, "", 0},
		"no slot": {func(f *fetcher, _ *fakeTransport, _ *memory) {
			f.pool.job.ScrapeTimeout = 1e6
			for range fetchesMax {
				f.pool.scraper.slots <- struct{}{}
			}
		}, context.DeadlineExceeded, "", 0},
	} {
		f, transport, store := fetcherOf(t, slog.New(slog.DiscardHandler), Limits{})
		transport.body = bytes.NewReader(raw)
		c.change(f, transport, store)
		taken := len(f.pool.scraper.slots)
		err := f.fetch(t.Context())
		fails := c.want != nil || c.text != ""
		if fails != (err != nil) || c.want != nil && !errors.Is(err, c.want) || c.text != "" && !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v", name, err)
		}
		if transport.opened != transport.closed || len(f.pool.scraper.slots) != taken {
			t.Errorf("%s: %d of %d bodies are closed, %d slots are taken", name, transport.closed, transport.opened, len(f.pool.scraper.slots))
		}
		if got := store.list(); len(got) != c.stored || c.stored > 0 && got[0].tenant != "a" {
			t.Errorf("%s: %d are stored", name, len(got))
		}
		if name != "url" && transport.agent != version.UserAgent() {
			t.Errorf("%s: user agent %q", name, transport.agent)
		}
	}
}

func TestFetch_ProfileOfTheGreatestSizeIsRead(t *testing.T) {
	raw := testProfile(t, func(p *profile.Profile) { p.TimeNanos = time.Now().UnixNano() })
	for limit, ok := range map[int]bool{len(raw): true, len(raw) - 1: false} {
		f, transport, _ := fetcherOf(t, slog.New(slog.DiscardHandler), Limits{ProfileBytes: limit})
		transport.body = bytes.NewReader(raw)
		if err := f.fetch(t.Context()); (err == nil) != ok {
			t.Errorf("%d bytes of %d: %v", len(raw), limit, err)
		}
	}
}

func TestReport_CountsAllAndLogsChanges(t *testing.T) {
	var log strings.Builder
	f, _, _ := fetcherOf(t, slog.New(slog.NewTextHandler(&log, nil)), Limits{})
	for _, err := range []error{nil, errors.New("x"), errors.New("x"), nil, nil, errors.New("x")} {
		f.report(err)
	}
	counts := f.pool.scraper.scrapes
	if ok, failed := counts.With("j", "cpu", "ok").Get(), counts.With("j", "cpu", "failed").Get(); ok != 3 || failed != 3 {
		t.Errorf("%d succeeded, %d failed", ok, failed)
	}
	if began, ended := strings.Count(log.String(), "Profile scrape failed"), strings.Count(log.String(), "Profile scrape recovered"); began != 2 || ended != 1 {
		t.Errorf("%d failures and %d recoveries are logged", began, ended)
	}
}

func TestFetcher_DeltaHasTheTimeBetweenTwoScrapes(t *testing.T) {
	f, _, _ := fetcherOf(t, slog.New(slog.DiscardHandler), Limits{})
	heap := func(value int64) []byte {
		return testProfile(t, func(p *profile.Profile) {
			p.SampleType = []*profile.ValueType{{Type: "alloc_space", Unit: "bytes"}, {Type: "inuse_space", Unit: "bytes"}}
			p.Sample[0].Value = []int64{value, 5}
		})
	}
	for i, want := range []struct{ allocated, from, duration int64 }{{0, 1000, 0}, {30, 1000, 250}, {0, 1250, 50}, {7, 1300, 1}} {
		raw, err := f.delta(heap([]int64{100, 130, 130, 137}[i]), time.Unix(0, []int64{1000, 1250, 1300, 1301}[i]))
		must(t, err)
		p, err := profile.ParseData(raw)
		if err != nil || len(p.Sample) != 1 || p.Sample[0].Value[0] != want.allocated || p.Sample[0].Value[1] != 5 || p.TimeNanos != want.from || p.DurationNanos != want.duration {
			t.Errorf("scrape %d: %v, %v, want %+v", i, p, err, want)
		}
	}
	if _, err := f.delta(testProfile(t, nil), time.Unix(0, 1400)); !errors.Is(err, profiles.ErrBadRequest) {
		t.Errorf("a profile of another type: %v", err)
	}
}

func TestPool_StopEndsItsLoopsAndConnections(t *testing.T) {
	f, transport, _ := fetcherOf(t, slog.New(slog.DiscardHandler), Limits{})
	ended := make(chan struct{}, 2)
	f.pool.loops = map[string]*loop{}
	for _, key := range []string{"a", "b"} {
		ctx, cancel := context.WithCancel(t.Context())
		l := &loop{cancel: cancel}
		l.running.Go(func() {
			<-ctx.Done()
			ended <- struct{}{}
		})
		f.pool.loops[key] = l
	}
	if f.pool.stop(); len(ended) != 2 || len(f.pool.loops) != 0 || transport.idleClosed != 1 {
		t.Errorf("%d loops have ended, %d are left; idle connections were closed %d times", len(ended), len(f.pool.loops), transport.idleClosed)
	}
}

func TestApplyConfig_JobThatCannotBeScrapedKeepsTheOthers(t *testing.T) {
	in, _ := newIngester(t, Limits{})
	s, err := NewScraper(in, "a", slog.New(slog.DiscardHandler), nil, nil)
	must(t, err)
	defer s.Close()
	apply := func(text string) error {
		t.Helper()
		cfg, err := parseConfig([]byte(text))
		must(t, err)
		return s.ApplyConfig(cfg)
	}
	if err := apply("scrape_configs: [{job_name: a}]"); err != nil || s.pools["a"] == nil || len(s.changed) != 1 {
		t.Fatalf("%v, %d signals", err, len(s.changed))
	}
	before := s.pools["a"]
	if err := apply("scrape_configs: [{job_name: b, tls_config: {ca_file: /nowhere/ca}}]"); err == nil || !strings.HasPrefix(err.Error(), `job "b": `) || s.pools["a"] != before || s.pools["b"] != nil {
		t.Errorf("%v, %d jobs", err, len(s.pools))
	}
	if err := apply("scrape_configs: [{job_name: a}, {job_name: c}]"); err != nil || s.pools["a"] != before || s.pools["c"] == nil {
		t.Errorf("%v, %d jobs", err, len(s.pools))
	}
}

func TestFolded_LimitsAreExact(t *testing.T) {
	folded := func(kind foldedType) *foldedProfile { return newFolded(kind, 100, now, now.Add(time.Second)) }
	f := folded(foldedCPU)
	f.stacks = stacksMax - 1
	if err := f.add([]byte("a"), 1); err != nil {
		t.Errorf("as many stacks as the limit: %v", err)
	}
	if err := f.add([]byte("a"), 1); err == nil || !strings.Contains(err.Error(), "more than 500000 stacks") {
		t.Errorf("one stack more: %v", err)
	}
	f = folded(foldedCPU)
	deep := strings.Repeat("a;", depthMax-1) + "a"
	if err := f.add([]byte(deep), 1); err != nil || len(f.stack) != depthMax {
		t.Errorf("as many frames as the limit: %v, %d frames", err, len(f.stack))
	}
	if err := f.read([]byte("a\n"+deep+";a\n"), false); err == nil || !strings.Contains(err.Error(), "a stack of 4097 frames, at most 4096") {
		t.Errorf("one frame more: %v", err)
	}
	const most = math.MaxInt64 / 10_000_000
	if err := f.add([]byte("a"), most); err != nil {
		t.Errorf("the greatest count: %v", err)
	}
	if err := f.add([]byte("a"), most+1); !errors.Is(err, profiles.ErrBadRequest) || !strings.Contains(err.Error(), "922337203686 samples overflow") {
		t.Errorf("one more: %v", err)
	}
	if err := folded(foldedUnits["bytes"]).add([]byte("a"), math.MaxInt64); err != nil {
		t.Errorf("the greatest number of bytes: %v", err)
	}
	for text, want := range map[string]string{
		"a": `line 1: "a" is not of the form stack count`, "\n\n a 1\nb": `line 4: "b" is not of`, "a x": `line 1: "x" is not a count`, "a 1\nb -1": `line 2: "-1" is not a count`,
		"a 9223372036854775808": "is not a count", " 5": `"5" is not of the form`, "a 922337203686": "overflow", "a 0\n\n": "", "": "", "a;b c 1": "",
	} {
		if err := folded(foldedCPU).read([]byte(text), true); (err == nil) != (want == "") || err != nil && (!errors.Is(err, profiles.ErrBadRequest) || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

func TestFolded_TimesPeriodsAndRepeatedFrames(t *testing.T) {
	for kind, want := range map[foldedType]int64{foldedCPU: 10_000_000, foldedUnits["objects"]: 1} {
		f := newFolded(kind, 100, now, now.Add(7*time.Second))
		if err := f.read([]byte("a;b;a 3\n\xff 1\n"), true); err != nil || len(f.locations) != 3 {
			t.Fatalf("%v, %d locations", err, len(f.locations))
		}
		p, err := profile.ParseData(f.encoder.Append(nil))
		if err != nil || p.TimeNanos != now.UnixNano() || p.DurationNanos != 7e9 || p.Period != want || len(p.Sample) != 2 || p.Sample[0].Value[0] != 3*want || p.Sample[1].Value[0] != want {
			t.Fatalf("%v, %v", p, err)
		}
		if stack := p.Sample[0].Location; len(stack) != 3 || stack[0] != stack[2] || stack[1].Line[0].Function.Name != "b" || p.Sample[1].Location[0].Line[0].Function.Name != "\uFFFD" {
			t.Errorf("%v", p)
		}
	}
}

func TestPlaceOf_EveryFormAtItsLimits(t *testing.T) {
	for name, want := range map[string]struct {
		file string
		line int64
	}{
		"a.py:2147483647 x": {"a.py", 1<<31 - 1}, "a.py:2147483648 x": {}, ":1 x": {}, ".:1 x": {".", 1}, "a:1 x": {}, "x (:1)": {}, "x - y - a.rb:3": {"a.rb", 3}, "a.py:1": {}, "x (a.py:1": {}, " - ": {},
	} {
		if file, line := sourceOf(name); file != want.file || line != want.line {
			t.Errorf("%q: %q, line %d, want %+v", name, file, line, want)
		}
	}
}

// lateStore refuses pushes whose context has ended.
type lateStore struct{ memory }

// Append implements the store of an Ingester.
func (s *lateStore) Append(ctx context.Context, tenant string, batch []profiles.RawProfile) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if _, ok := ctx.Deadline(); !ok {
		return errors.New("the push has no deadline")
	}
	return s.memory.Append(ctx, tenant, batch)
}

// canceling cancels at the first push, and counts the pushes.
type canceling struct {
	memory
	cancel context.CancelFunc
	pushes atomic.Int64
}

func (c *canceling) Append(ctx context.Context, tenant string, batch []profiles.RawProfile) error {
	c.pushes.Add(1)
	c.cancel()
	return c.memory.Append(ctx, tenant, batch)
}

func TestSelf_NoStateIsRecordedAfterACancel(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	store := &canceling{cancel: cancel}
	in, err := New(Options{}, store, slog.New(slog.DiscardHandler), nil)
	must(t, err)
	// The next tick is due while a profile is recorded.
	NewSelf(SelfOptions{Every: time.Nanosecond, Tenant: "own"}, in, slog.New(slog.DiscardHandler)).runStates(ctx)
	if n := store.pushes.Load(); n != 1 {
		t.Errorf("%d profiles were pushed, 1 before the cancel", n)
	}
}

func TestSelf_StatesArePushedAfterACancelAndErrorsReturned(t *testing.T) {
	store := &lateStore{}
	in, err := New(Options{}, store, slog.New(slog.DiscardHandler), nil)
	must(t, err)
	s := NewSelf(SelfOptions{Tenant: "own"}, in, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // shutdown pushes the last slice
	since := time.Now().Add(-time.Second)
	for _, state := range states {
		if err := s.state(ctx, state.lookup, state.name, since); err != nil {
			t.Errorf("%s: %v", state.name, err)
		}
	}
	got := store.list()
	if len(got) != len(states) {
		t.Fatalf("%d profiles are stored", len(got))
	}
	for i, p := range got {
		if p.tenant != "own" || p.labels != "__name__="+states[i].name+",service_name=ferula" {
			t.Errorf("%s of tenant %s", p.labels, p.tenant)
		}
		if d := p.profile.DurationNanos; states[i].name != "goroutines" && (p.profile.TimeNanos != since.UnixNano() || d < 1e9 || d > int64(time.Since(since))) {
			t.Errorf("%s: %d ns from %d on", p.labels, d, p.profile.TimeNanos)
		}
	}
	if err := s.state(ctx, "nothing", "nothing", since); err == nil || !strings.Contains(err.Error(), "no such runtime profile") {
		t.Errorf("an unknown profile: %v", err)
	}
	other, err := profile.ParseData(testProfile(t, nil))
	must(t, err)
	s.counted["heap"].previous = other
	if err := s.state(ctx, "heap", "memory", since); !errors.Is(err, profiles.ErrBadRequest) {
		t.Errorf("a profile of another type: %v", err)
	}
	store.mu.Lock()
	store.err = io.ErrClosedPipe
	store.mu.Unlock()
	if err := s.state(ctx, "goroutine", "goroutines", since); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("a store that fails: %v", err)
	}
}

func TestPool_SyncKeepsTheLoopsOfTargetsThatRemain(t *testing.T) {
	var log bytes.Buffer
	f, transport, _ := fetcherOf(t, slog.New(slog.NewTextHandler(&log, nil)), Limits{})
	transport.err = errors.New("connection refused")
	p := f.pool
	p.loops, p.profiles = map[string]*loop{}, []profileSpec{{key: "cpu"}, {key: "heap"}}
	p.job.Scheme, p.job.ScrapeInterval, p.job.ScrapeTimeout = "http", model.Duration(24*time.Hour), model.Duration(time.Second)
	sync := func(addresses ...model.LabelValue) {
		group := &targetgroup.Group{}
		for _, address := range addresses {
			group.Targets = append(group.Targets, model.LabelSet{model.AddressLabel: address})
		}
		p.sync(t.Context(), []*targetgroup.Group{group})
	}
	loopOf := func(address string) *loop {
		for key, l := range p.loops {
			if strings.Contains(key, "http://"+address+"/") {
				return l
			}
		}
		return nil
	}
	sync("a:1", "b:1")
	a, b := loopOf("a:1"), loopOf("b:1")
	if len(p.loops) != 2 || a == nil || b == nil || log.Len() > 0 {
		t.Fatalf("%d loops: %s", len(p.loops), &log)
	}
	sync("a:1", "c:1", "http://no address")
	if len(p.loops) != 2 || loopOf("a:1") != a || loopOf("b:1") != nil || loopOf("c:1") == nil {
		t.Errorf("%d loops", len(p.loops))
	}
	b.running.Wait() // its goroutines have ended
	if !strings.Contains(log.String(), `level=ERROR msg="Invalid profile target" job=j err=`) {
		t.Errorf("log: %s", &log)
	}
	if p.stop(); len(p.loops) != 0 {
		t.Errorf("%d loops are left", len(p.loops))
	}
}

func TestFetcher_RunsAtItsOffsetAndEveryInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, transport, _ := fetcherOf(t, slog.New(slog.DiscardHandler), Limits{})
		transport.status, transport.body = http.StatusServiceUnavailable, strings.NewReader("")
		f.pool.job.ScrapeInterval = model.Duration(10 * time.Second)
		opened := func() int {
			synctest.Wait()
			transport.mu.Lock()
			defer transport.mu.Unlock()
			return transport.opened
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := 0
		go func() {
			f.run(ctx, 3*time.Second)
			ended++
		}()
		for i, pause := range []time.Duration{3*time.Second - 1, 1, 10*time.Second - 1, 1} {
			time.Sleep(pause)
			if got := opened(); got != (i+1)/2 {
				t.Errorf("%d scrapes after pause %d", got, i)
			}
		}
		cancel()
		if opened(); ended != 1 {
			t.Error("it runs after the end of its context")
		}
		f.run(ctx, time.Hour)
		if opened() != 2 {
			t.Error("it scrapes after the end of its context")
		}
	})
}

func TestNewFetcher_ServiceIsThatOfTheTargetOrTheJob(t *testing.T) {
	f, _, _ := fetcherOf(t, slog.New(slog.DiscardHandler), Limits{})
	f.pool.job.Scheme, f.pool.job.ScrapeInterval, f.pool.job.ScrapeTimeout = "http", model.Duration(time.Minute), model.Duration(time.Second)
	f.pool.job.Profiling.PathPrefix = "/p/"
	f.pool.job.Params = url.Values{"k": {"v"}}
	for own, want := range map[model.LabelValue]string{"": "j", "shop": "shop"} {
		group := &targetgroup.Group{Targets: []model.LabelSet{{model.AddressLabel: "a:1", profiles.LabelService: own}}}
		targets, failures := scrape.TargetsFromGroup(group, f.pool.job.scrapeConfig(), nil, labels.NewBuilder(labels.EmptyLabels()))
		if len(targets) != 1 || len(failures) != 0 {
			t.Fatal(len(targets), failures)
		}
		for spec, address := range map[profileSpec]string{{name: "cpu", path: "/x", seconds: 5}: "http://a:1/p/x?k=v&seconds=5", {name: "cpu", path: "/x"}: "http://a:1/p/x?k=v"} {
			one := newFetcher(f.pool, targets[0], spec)
			got := map[string]string{}
			for _, l := range one.labels {
				got[l.Name] = l.Value
			}
			if one.url != address || got[profiles.LabelService] != want || got[profiles.LabelName] != "cpu" || got["instance"] != "a:1" || len(got) != len(one.labels) {
				t.Errorf("%s: %s, %v", own, one.url, one.labels)
			}
		}
	}
}
