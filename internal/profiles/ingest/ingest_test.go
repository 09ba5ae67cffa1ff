package ingest

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"net/url"
	"runtime/pprof"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/pprof/profile"
	"go.uber.org/goleak"

	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/profilepb"
	"github.com/ferula-io/ferula/internal/series/labelenc"
)

func TestMain(m *testing.M) {
	http.DefaultTransport.(*http.Transport).DisableKeepAlives = true
	goleak.VerifyTestMain(m,
		goleak.IgnoreTopFunction("go.opencensus.io/stats/view.(*worker).start"),
		goleak.IgnoreTopFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"),
	)
}

// storedProfile is a copy of a profile that was appended to a store.
type storedProfile struct {
	tenant, labels string
	id             profiles.ID
	timeNS         int64
	profile        *profile.Profile
}

type memory struct {
	mu     sync.Mutex
	all    []storedProfile
	err    error
	notify chan struct{} // may be nil
}

func (m *memory) Append(_ context.Context, tenant string, batch []profiles.RawProfile) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err != nil {
		return m.err
	}
	for _, p := range batch {
		var text []string
		for set := p.Labels; len(set) > 0; {
			name, value, rest, err := labelenc.Next(set)
			if err != nil {
				return err
			}
			text, set = append(text, string(name)+"="+string(value)), rest
		}
		decoded, err := profile.ParseData(p.Raw)
		if err != nil {
			return err
		}
		m.all = append(m.all, storedProfile{tenant, strings.Join(text, ","), p.ID, p.TimeNS, decoded})
	}
	if m.notify != nil {
		select {
		case m.notify <- struct{}{}:
		default:
		}
	}
	return nil
}

func (m *memory) list() []storedProfile {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]storedProfile(nil), m.all...)
}

// stacks returns the values of one sample type by stack, as `root;leaf`.
func (k storedProfile) stacks(sampleType string) map[string]int64 {
	out := map[string]int64{}
	for i, t := range k.profile.SampleType {
		if t.Type != sampleType {
			continue
		}
		for _, s := range k.profile.Sample {
			var names []string
			for j := len(s.Location) - 1; j >= 0; j-- {
				names = append(names, s.Location[j].Line[0].Function.Name)
			}
			out[strings.Join(names, ";")] += s.Value[i]
		}
	}
	return out
}

var now = time.Unix(1_800_000_000, 0)

func newIngester(t testing.TB, limits Limits) (*Ingester, *memory) {
	t.Helper()
	store := &memory{}
	in, err := New(Options{Limits: limits}, store, slog.New(slog.DiscardHandler), nil)
	must(t, err)
	in.now = func() time.Time { return now }
	return in, store
}

// testProfile returns a pprof of one stack, main;work.
func testProfile(t testing.TB, change func(*profile.Profile)) []byte {
	t.Helper()
	main, work := &profile.Function{ID: 1, Name: "main"}, &profile.Function{ID: 2, Name: "work"}
	l1, l2 := &profile.Location{ID: 1, Line: []profile.Line{{Function: main}}}, &profile.Location{ID: 2, Line: []profile.Line{{Function: work}}}
	p := &profile.Profile{
		SampleType: []*profile.ValueType{{Type: "samples", Unit: "count"}, {Type: "cpu", Unit: "nanoseconds"}}, PeriodType: &profile.ValueType{Type: "cpu", Unit: "nanoseconds"}, Period: 1e7,
		TimeNanos: now.UnixNano(), DurationNanos: 1e10,
		Function: []*profile.Function{main, work}, Location: []*profile.Location{l1, l2},
		Sample: []*profile.Sample{{Location: []*profile.Location{l2, l1}, Value: []int64{3, 3e7}}},
	}
	if change != nil {
		change(p)
	}
	var b bytes.Buffer
	must(t, p.Write(&b))
	return b.Bytes()
}

func named(extra ...string) []profilepb.RawLabel {
	lset := []profilepb.RawLabel{{Name: "__name__", Value: "process_cpu"}}
	for i := 0; i+1 < len(extra); i += 2 {
		lset = append(lset, profilepb.RawLabel{Name: extra[i], Value: extra[i+1]})
	}
	return lset
}

func TestPush_IsStoredAsAWholeWithSortedLabels(t *testing.T) {
	in, store := newIngester(t, Limits{})
	id := "01020304-0506-0708-090a-0b0c0d0e0f10"
	err := in.Push(context.Background(), "acme", []profilepb.RawProfile{
		{Labels: named("zone.name", "b", "service_name", "shop", "empty", "", "__session_id__", "1"), Raw: testProfile(t, nil), ID: id},
		{Labels: named(), Raw: testProfile(t, func(p *profile.Profile) { p.TimeNanos = 0 })},
	})
	must(t, err)
	all := store.list()
	if len(all) != 2 || all[0].tenant != "acme" || all[0].labels != "__name__=process_cpu,service_name=shop,zone_name=b" || all[0].id.String() != id {
		t.Errorf("%+v", all)
	}
	if all[1].labels != "__name__=process_cpu,service_name=unspecified" || all[1].timeNS != now.UnixNano() || all[1].id != (profiles.ID{}) {
		t.Errorf("%+v", all[1])
	}
	err = in.Push(context.Background(), "acme", []profilepb.RawProfile{{Labels: named(), Raw: testProfile(t, nil)}, {Labels: named(), Raw: []byte("no pprof")}})
	if err == nil || !strings.HasPrefix(err.Error(), "profile 2: ") || len(store.list()) != 2 {
		t.Errorf("%v, %d profiles", err, len(store.list()))
	}
	if n := in.discarded.With("invalid").Get(); n != 2 {
		t.Errorf("%v counted as discarded", n)
	}
	store.err = profiles.ErrUnavailable
	if err = in.Push(context.Background(), "acme", []profilepb.RawProfile{{Labels: named(), Raw: testProfile(t, nil)}}); !errors.Is(err, profiles.ErrUnavailable) {
		t.Error(err)
	}
}

// bomb returns a small gzip that inflates to n bytes of zeros.
func bomb(t testing.TB, n int) []byte {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write(make([]byte, n)); err != nil {
		t.Fatal(err)
	}
	must(t, w.Close())
	return b.Bytes()
}

func TestPush_EveryLimitIsReportedAndCounted(t *testing.T) {
	limits := Limits{
		Series: 2, ProfileBytes: 5000, DecompressedBytes: 20_000, RateBytes: 20_000, BurstBytes: 20_000, Symbols: 40, Labels: 4, LabelNameBytes: 20, LabelValueBytes: 30, Tenants: 3,
	}
	deep := func(p *profile.Profile) {
		for i := range 50 {
			p.Function = append(p.Function, &profile.Function{ID: uint64(i + 3), Name: fmt.Sprintf("f%d", i)})
		}
		for i, f := range p.Function[2:] {
			l := &profile.Location{ID: uint64(i + 3), Line: []profile.Line{{Function: f}}}
			p.Location = append(p.Location, l)
			p.Sample[0].Location = append(p.Sample[0].Location, l)
		}
	}
	for _, tt := range []struct {
		name   string
		labels []profilepb.RawLabel
		raw    []byte
		reason string
		text   string
	}{
		{"profile bytes", named(), make([]byte, 5001), "profile_size", "5001 bytes, at most 5000"},
		{"gzip bomb", named(), bomb(t, 10<<20)[:0], "invalid", "profile 1"},
		{"decompressed bytes", named(), bomb(t, 1<<20), "profile_size", "more than 20000 bytes when decompressed"},
		{"symbols", named(), testProfile(t, deep), "profile_size", "exceed the limit of 40"},
		{"too old", named(), testProfile(t, func(p *profile.Profile) { p.TimeNanos -= 2 * int64(time.Hour) }), "too_old", "more than 1h0m0s ago"},
		{"too new", named(), testProfile(t, func(p *profile.Profile) { p.TimeNanos += int64(time.Hour) }), "too_new", "in the future"},
		{"labels", named("a", "1", "b", "1", "c", "1"), testProfile(t, nil), "labels", "5 labels, at most 4"},
		{"label name", named(strings.Repeat("n", 21), "v"), testProfile(t, nil), "label_name", "21 bytes, at most 20"},
		{"label value", named("n", strings.Repeat("v", 31)), testProfile(t, nil), "label_value", "31 bytes, at most 30"},
		{"sample type", named(), testProfile(t, func(p *profile.Profile) { p.SampleType[1].Type = strings.Repeat("t", 31) }), "label_value", "31 bytes, at most 30"},
		{"unit", named(), testProfile(t, func(p *profile.Profile) { p.SampleType[0].Unit = strings.Repeat("u", 31) }), "label_value", "unit of sample type"},
		{"period type", named(), testProfile(t, func(p *profile.Profile) { p.PeriodType.Type = strings.Repeat("t", 31) }), "label_value", "period type"},
		{"colon", named(), testProfile(t, func(p *profile.Profile) { p.SampleType[1].Type = "a:b" }), "invalid", "has a colon"},
		{"bad name", named("a-b", "v"), testProfile(t, nil), "invalid", `"a-b"`},
		{"bad value", named("a", "\xff"), testProfile(t, nil), "invalid", "not UTF-8"},
		{"twice", named("a.b", "1", "a_b", "2"), testProfile(t, nil), "invalid", `duplicate label "a_b"`},
		{"nameless", []profilepb.RawLabel{{Name: "a", Value: "b"}}, testProfile(t, nil), "invalid", "__name__ is missing"},
		{"no profile", named(), nil, "invalid", ""},
		{"garbage", named(), []byte{0x0A, 0xFF, 0xFF, 0xFF}, "invalid", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in, store := newIngester(t, limits)
			err := in.Push(context.Background(), "a", []profilepb.RawProfile{{Labels: tt.labels, Raw: tt.raw}})
			if err == nil || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("%v, want %q", err, tt.text)
			}
			if n := in.discarded.With(tt.reason).Get(); n != 1 {
				t.Errorf("%v counted as %s: %v", n, tt.reason, err)
			}
			if len(store.list()) != 0 {
				t.Error("it was kept")
			}
		})
	}
	in, _ := newIngester(t, limits)
	push := func(tenant string, lset []profilepb.RawLabel) error {
		return in.Push(context.Background(), tenant, []profilepb.RawProfile{{Labels: lset, Raw: testProfile(t, nil)}})
	}
	for i := range 2 {
		must(t, push("a", named("n", fmt.Sprint(i))))
	}
	var limit *LimitError
	if err := push("a", named("n", "2")); !errors.As(err, &limit) || limit.Reason != "series" || !errors.Is(err, profiles.ErrLimit) {
		t.Error(err)
	}
	if err := push("a", named("n", "1")); err != nil {
		t.Error("a known series:", err)
	}
	for _, tenant := range []string{"b", "c"} {
		if err := push(tenant, named()); err != nil {
			t.Error(err)
		}
	}
	if err := push("d", named()); !errors.As(err, &limit) || limit.Reason != "tenants" {
		t.Error(err)
	}
	var err error
	for range 1000 { // the clock does not advance: the bucket is not refilled
		if err = push("a", named("n", "1")); err != nil {
			break
		}
	}
	if !errors.As(err, &limit) || limit.Reason != "rate" {
		t.Error(err)
	}
}

func TestPush_ManyCompressionBombsEndEarly(t *testing.T) {
	in, store := newIngester(t, Limits{DecompressedBytes: 1 << 20, BurstBytes: 3 << 20, RateBytes: 1})
	big := testProfile(t, func(p *profile.Profile) { p.Function[0].Name = strings.Repeat("n", 900_000) })
	var all []profilepb.RawProfile
	for range 1000 {
		all = append(all, profilepb.RawProfile{Labels: named(), Raw: big})
	}
	var limit *LimitError
	if err := in.Push(context.Background(), "a", all); !errors.As(err, &limit) || limit.Reason != "rate" || !strings.Contains(err.Error(), "profile 4:") || len(store.list()) != 0 {
		t.Error(err)
	}
}

func TestPush_HostilePprofIsRejectedOrRepaired(t *testing.T) {
	in, _ := newIngester(t, Limits{})
	cycle := []byte{0x22, 0x04, 0x08, 0x01, 0x10, 0x01} // a location with a missing mapping
	for name, raw := range map[string][]byte{
		"negative counts":   testProfile(t, func(p *profile.Profile) { p.Sample[0].Value = []int64{-3, -1 << 63} }),
		"no samples":        testProfile(t, func(p *profile.Profile) { p.Sample = nil }),
		"dangling mapping":  cycle,
		"length beyond":     {0x32, 0xFF, 0xFF, 0xFF, 0xFF, 0x0F},
		"huge string table": bytes.Repeat([]byte{0x32, 0}, 600_000),
		"truncated":         testProfile(t, nil)[:40],
		"two gzip members":  append(testProfile(t, nil), testProfile(t, nil)...),
		"endless varint":    bytes.Repeat([]byte{0xFF}, 100),
		"recursion in stacks": testProfile(t, func(p *profile.Profile) {
			l := p.Sample[0].Location
			for range 100 {
				p.Sample[0].Location = append(p.Sample[0].Location, l...)
			}
		}),
	} {
		err := in.Push(context.Background(), "a", []profilepb.RawProfile{{Labels: named(), Raw: raw}})
		t.Logf("%s: %v", name, err)
		if status := StatusOf(err); err != nil && status != http.StatusBadRequest {
			t.Errorf("%s: %d %v", name, status, err)
		}
	}
}

// ingest sends a POST to /ingest.
func ingest(t *testing.T, in *Ingester, query, contentType string, body []byte) (int, string) {
	t.Helper()
	r := httptest.NewRequest(http.MethodPost, "/ingest?"+query, bytes.NewReader(body))
	r.Header.Set("Content-Type", contentType)
	w := httptest.NewRecorder()
	in.Handler(func(h http.Header) (string, error) { return h.Get("X-Scope-OrgID") + "tenant", nil }, nil).ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

func form(t *testing.T, fields ...string) (string, []byte) {
	t.Helper()
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	for i := 0; i+1 < len(fields); i += 2 {
		part, err := w.CreateFormFile(fields[i], fields[i])
		must(t, err)
		_, _ = part.Write([]byte(fields[i+1]))
	}
	must(t, w.Close())
	return w.FormDataContentType(), b.Bytes()
}

func TestHandler_FoldedStacksBecomeNanoseconds(t *testing.T) {
	in, store := newIngester(t, Limits{})
	span := "&from=1799999990&until=1800000000000" // seconds and milliseconds
	if code, text := ingest(t, in, "name="+url.QueryEscape(`app.x{region=eu,a.b="c"}`)+span+"&sampleRate=50", "", []byte("main;work 3\nmain 1\n\nmain;work 1\n")); code != 200 {
		t.Fatal(code, text)
	}
	if code, text := ingest(t, in, "name=app&format=lines&units=objects&until=1800000000&from=1799999999000000000", "text/plain", []byte("main;work\nmain;work\nmain")); code != 200 {
		t.Fatal(code, text)
	}
	all := store.list()
	if all[0].labels != "__name__=process_cpu,a_b=c,region=eu,service_name=app.x" || all[0].tenant != "tenant" || all[0].timeNS != 1799999990e9 || all[0].profile.DurationNanos != 10e9 {
		t.Errorf("%+v", all[0])
	}
	if got := all[0].stacks("cpu"); len(got) != 2 || got["main;work"] != 4*20e6 || got["main"] != 20e6 {
		t.Errorf("%v", got)
	}
	if got := all[1].stacks("inuse_objects"); all[1].labels != "__name__=memory,service_name=app" || len(got) != 2 || got["main;work"] != 2 || got["main"] != 1 {
		t.Errorf("%+v %v", all[1], got)
	}
}

func TestHandler_PprofUploadIsRawOrMultipartWithPrevious(t *testing.T) {
	in, store := newIngester(t, Limits{})
	heap := func(values ...int64) string {
		return string(testProfile(t, func(p *profile.Profile) {
			p.SampleType = []*profile.ValueType{{Type: "alloc_space", Unit: "bytes"}, {Type: "inuse_space", Unit: "bytes"}}
			p.PeriodType = &profile.ValueType{Type: "space", Unit: "bytes"}
			p.Sample[0].Value = values
		}))
	}
	if code, text := ingest(t, in, "name=app&format=pprof", "application/octet-stream", testProfile(t, nil)); code != 200 {
		t.Fatal(code, text)
	}
	contentType, body := form(t, "profile", heap(100, 7), "prev_profile", heap(60, 9), "sample_type_config", `{"alloc_space":{"units":"bytes","cumulative":true},"inuse_space":{"units":"bytes","aggregation":"average"}}`)
	if code, text := ingest(t, in, "name=app", contentType, body); code != 200 {
		t.Fatal(code, text)
	}
	contentType, body = form(t, "profile", heap(10, 7), "prev_profile", heap(60, 9))
	if code, text := ingest(t, in, "name=app", contentType, body); code != 200 {
		t.Fatal(code, text)
	}
	contentType, body = form(t, "profile", string(testProfile(t, func(p *profile.Profile) {
		p.SampleType = []*profile.ValueType{{Type: "contentions", Unit: "count"}, {Type: "delay", Unit: "nanoseconds"}}
	})), "sample_type_config", `{"contentions":{"display-name":"mutex_count"},"delay":{"display-name":"mutex_duration"}}`)
	if code, text := ingest(t, in, "name=app", contentType, body); code != 200 {
		t.Fatal(code, text)
	}
	all := store.list()
	if all[0].labels != "__name__=process_cpu,service_name=app" || all[0].stacks("samples")["main;work"] != 3 {
		t.Errorf("%+v", all[0])
	}
	if a, b := all[1].stacks("alloc_space")["main;work"], all[1].stacks("inuse_space")["main;work"]; a != 40 || b != 7 || all[1].labels != "__name__=memory,service_name=app" {
		t.Errorf("%d allocated, %d in use, %s", a, b, all[1].labels)
	}
	if a, b := all[2].stacks("alloc_space")["main;work"], all[2].stacks("inuse_space")["main;work"]; a != 0 || b != 7 {
		t.Errorf("after a restart: %d allocated, %d in use", a, b)
	}
	if all[3].labels != "__name__=mutex,service_name=app" {
		t.Errorf("%+v", all[3])
	}
}

func TestHandler_BadUploadReportsTheReason(t *testing.T) {
	in, store := newIngester(t, Limits{ProfileBytes: 2000})
	multi, noProfile := form(t, "x", "y")
	badConfigType, badConfig := form(t, "profile", "x", "sample_type_config", "[")
	cutType, cut := form(t, "profile", strings.Repeat("x", 1000))
	for _, tt := range []struct {
		query, contentType string
		body               []byte
		status             int
		text               string
	}{
		{"", "", nil, 400, "name is missing"},
		{"name=%7Ba=b%7D", "", nil, 400, "no application name"},
		{"name=a%7Bb", "", nil, 400, "is not of the form app{key=value,...}"},
		{"name=a%7Bb%7D", "", []byte("a 1"), 400, `"b" is not of the form key=value`},
		{"name=a&from=x", "", nil, 400, `from: not a time: "x"`},
		{"name=a&from=now&until=now-1h", "", nil, 400, "until is before from"},
		{"name=a&sampleRate=-1", "", nil, 400, "sampleRate"},
		{"name=a&format=jfr", "", nil, 400, "corrupt flight recording: it is empty"},
		{"name=a&format=speedscope", "", nil, 415, "format speedscope"},
		{"name=a&format=trie", "", nil, 415, "format trie"},
		{"name=a&format=zip", "", nil, 400, `format "zip" is unknown`},
		{"name=a", "", []byte("a 1\nmain work\n"), 400, `line 2: "work" is not a count`},
		{"name=a", "", []byte("a 1\nb\n"), 400, `line 2: "b" is not of the form stack count`},
		{"name=a", "", []byte("a -1"), 400, "is not a count"},
		{"name=a", "", []byte("a 9223372036854775807"), 400, "overflow a value"},
		{"name=a", "", []byte(strings.Repeat("a;", 5000) + "b 1"), 400, "a stack of 5001 frames"},
		{"name=a", "", bytes.Repeat([]byte("a 1\n"), 1<<20), 413, "too large"},
		{"name=a&format=pprof", "", []byte("nothing"), 400, "corrupt pprof"},
		{"name=a", multi, noProfile, 400, "no field named profile"},
		{"name=a", badConfigType, badConfig, 400, "sample_type_config"},
		{"name=a", cutType, cut[:500], 400, "body: "},
		{"name=a&from=1700000000", "", []byte("a 1"), 400, "more than 1h0m0s ago"},
		{"name=a%7B__name__=%7D", "", []byte("a 1"), 200, ""},
	} {
		if status, text := ingest(t, in, tt.query, tt.contentType, tt.body); status != tt.status || !strings.Contains(text, tt.text) {
			t.Errorf("%s %.60q: %d %s, want %d %s", tt.query, tt.body, status, text, tt.status, tt.text)
		}
	}
	if n := len(store.list()); n != 1 {
		t.Errorf("%d profiles were stored", n)
	}
}

func TestSelf_RecordsCPUSlicesAndDeltas(t *testing.T) {
	var log strings.Builder // a slog.Handler locks its writer
	store := &memory{notify: make(chan struct{}, 100)}
	in, err := New(Options{}, store, slog.New(slog.DiscardHandler), nil)
	must(t, err)
	self := NewSelf(SelfOptions{Every: 200 * time.Millisecond, Tenant: "anonymous", Labels: []profilepb.RawLabel{{Name: "version", Value: "1"}}}, in, slog.New(slog.NewTextHandler(&log, nil)))
	defer func() {
		if strings.Contains(log.String(), "Failed") {
			t.Errorf("log: %s", log.String())
		}
	}()
	if _, ok := self.Current(); ok {
		t.Error("a slice before Run")
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { self.Run(ctx) })
	var current profiles.ID
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); {
		if id, ok := self.Current(); ok {
			current = id
			break
		}
		time.Sleep(time.Millisecond)
	}
	// A concurrent request for a CPU profile succeeds.
	w := httptest.NewRecorder()
	self.ServeCPU(w, httptest.NewRequest(http.MethodGet, "/debug/pprof/profile?seconds=1", nil))
	if _, err := profile.Parse(w.Body); err != nil || w.Code != 200 {
		t.Errorf("%d %v", w.Code, err)
	}
	has := func(name string) bool {
		for _, k := range store.list() {
			if k.labels == "__name__="+name+",service_name=ferula,version=1" && k.tenant == "anonymous" && (name != "process_cpu" || k.id == current) {
				return true
			}
		}
		return false
	}
	for _, name := range []string{"process_cpu", "memory", "goroutines", "mutex", "block"} {
		for deadline := time.Now().Add(30 * time.Second); !has(name); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("no %s", name)
			}
		}
	}
	cancel()
	running.Wait()
	if err := pprof.StartCPUProfile(&bytes.Buffer{}); err != nil {
		t.Error("the profiler is not released:", err)
	}
	pprof.StopCPUProfile()
	var allocated []int64
	for _, k := range store.list() {
		if strings.HasPrefix(k.labels, "__name__=memory") {
			var sum int64
			for _, v := range k.stacks("alloc_space") {
				sum += v
			}
			allocated = append(allocated, sum)
		}
	}
	if len(allocated) > 1 && allocated[1] >= allocated[0] && allocated[0] > 64<<20 {
		t.Errorf("allocations are not differences: %v", allocated)
	}
}

func FuzzFolded(f *testing.F) {
	f.Add([]byte("main;work 3\nmain 1\n"), false)
	f.Add([]byte(";;a;\xff 18446744073709551616"), false)
	f.Add([]byte("a;b\n\n;c"), true)
	f.Add([]byte("a.py:1 - b;c (a.py:2);d - a.rb:3;e:4 - ( - ;) 5"), false)
	f.Fuzz(func(t *testing.T, body []byte, lines bool) {
		folded := newFolded(foldedCPU, 100, now, now)
		if err := folded.read(body, !lines); err != nil {
			var limit *LimitError
			if !errors.Is(err, profiles.ErrBadRequest) && !errors.As(err, &limit) {
				t.Fatal(err)
			}
			return
		}
		p, err := profile.ParseUncompressed(folded.encoder.Append(nil))
		if err != nil {
			t.Fatalf("%q makes no pprof: %v", body, err)
		}
		if len(p.Sample) != folded.stacks {
			t.Fatalf("%d samples of %d stacks", len(p.Sample), folded.stacks)
		}
	})
}

func FuzzName(f *testing.F) {
	f.Add("app{a=b,c=d}")
	f.Add(`app{a="b"}`)
	f.Add("{=}")
	limits := Limits{}.withDefaults()
	f.Fuzz(func(t *testing.T, text string) {
		app, lset, err := parseName(text)
		if err == nil && app == "" {
			t.Fatalf("%q has no application", text)
		}
		out, _, err2 := normalize(lset, &limits, nil)
		if err = errors.Join(err, err2); err != nil {
			var limit *LimitError
			if !errors.Is(err, profiles.ErrBadRequest) && !errors.As(err, &limit) {
				t.Fatal(err)
			}
			return
		}
		var set []byte
		for _, l := range out {
			set = labelenc.AppendLabel(set, l.Name, l.Value)
		}
		if err := labelenc.Validate(set); err != nil {
			t.Fatalf("%q: %v", text, err)
		}
	})
}

func TestSelf_BlockingIsRecorded(t *testing.T) {
	in, err := New(Options{}, &memory{}, slog.New(slog.DiscardHandler), nil)
	must(t, err)
	self := NewSelf(SelfOptions{Every: time.Hour, Tenant: "anonymous"}, in, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { self.Run(ctx) })
	defer running.Wait()
	defer cancel()
	for end := time.Now().Add(30 * time.Second); ; {
		turn := make(chan struct{})
		go func() { time.Sleep(2 * blockRate); close(turn) }()
		<-turn
		var page bytes.Buffer
		must(t, pprof.Lookup("block").WriteTo(&page, 1))
		if strings.Contains(page.String(), t.Name()) {
			return
		}
		if time.Now().After(end) {
			t.Fatal("a goroutine that was blocked is not in the block profile")
		}
	}
}

// must ends a test that cannot go on after an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
