package ingest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	runtimepprof "runtime/pprof"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/pprof/profile"
	"go.opentelemetry.io/collector/pdata/pprofile"

	"github.com/ferula-io/ferula/internal/hint"
	"github.com/ferula-io/ferula/internal/httpbody"
	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/pprof"
	"github.com/ferula-io/ferula/internal/profiles/profilepb"
	"github.com/ferula-io/ferula/metrics"
)

// counted returns the numbers of discarded profiles that are not 0, by reason.
func counted(in *Ingester) map[string]uint64 {
	found := map[string]uint64{}
	for _, reason := range []string{"invalid", "profile_size", "busy", "store", "canceled", "label_value", "labels", "too_new", "relabelled", "symbols"} {
		if n := in.discarded.With(reason).Get(); n > 0 {
			found[reason] = n
		}
	}
	return found
}

// Each refused upload is counted once, wherever it is refused.
func TestHandler_EveryRefusalIsCountedOnce(t *testing.T) {
	limits := Limits{ProfileBytes: 2000}
	noProfileType, noProfile := form(t, "x", "y")
	for name, tt := range map[string]struct {
		query, contentType string
		body               []byte
		status             int
		want               map[string]uint64
	}{
		"parameter":   {"name=a&from=x", "", nil, 400, map[string]uint64{"invalid": 1}},
		"too large":   {"name=a", "", make([]byte, 4001+1<<20), 413, map[string]uint64{"profile_size": 1}},
		"form":        {"name=a", noProfileType, noProfile, 400, map[string]uint64{"invalid": 1}},
		"name":        {"name=a%7Bb", "", []byte("a 1"), 400, map[string]uint64{"invalid": 1}},
		"pprof":       {"name=a&format=pprof", "", []byte("nothing"), 400, map[string]uint64{"invalid": 1}},
		"stacks":      {"name=a", "", []byte("a"), 400, map[string]uint64{"invalid": 1}},
		"recording":   {"name=a&format=jfr", "", []byte("FLR"), 400, map[string]uint64{"invalid": 1}},
		"label":       {"name=a%7Bx=" + strings.Repeat("v", 3000) + "%7D", "", []byte("a 1"), 400, map[string]uint64{"label_value": 1}},
		"accepted":    {"name=a", "", []byte("a 1"), 200, map[string]uint64{}},
		"the largest": {"name=a&format=lines", "", bytes.Repeat([]byte{'\n'}, 4000+1<<20), 200, map[string]uint64{}},
	} {
		in, _ := newIngester(t, limits)
		if status, text := ingest(t, in, tt.query, tt.contentType, tt.body); status != tt.status || !reflect.DeepEqual(counted(in), tt.want) {
			t.Errorf("%s: %d %s, counted %v, want %d, %v", name, status, text, counted(in), tt.status, tt.want)
		}
	}
}

func TestHandler_TooLargeBodyNamesTheFlag(t *testing.T) {
	in, _ := newIngester(t, Limits{ProfileBytes: 10, Flags: hint.Flags{"ProfileBytes": "--bytes"}})
	if _, text := ingest(t, in, "name=a", "", make([]byte, 21+1<<20)); !strings.Contains(text, "(--bytes)") {
		t.Error(text)
	}
	if _, text := ingest(t, in, "name=a", "", []byte("a")); strings.Contains(text, "(--bytes)") {
		t.Error(text)
	}
}

func TestHandler_WithoutASlotAnUploadIsRefusedLater(t *testing.T) {
	in, _ := newIngester(t, Limits{})
	bodies := httpbody.NewReader(httpbody.Options{Wait: time.Millisecond})
	slots := make(chan struct{}) // none
	r := requestOf(t, "name=a", "a 1")
	if err := in.receive(discardResponse{}, r, "a", bodies, slots); !errors.Is(err, httpbody.ErrBusy) || !reflect.DeepEqual(counted(in), map[string]uint64{"busy": 1}) {
		t.Errorf("%v, counted %v", err, counted(in))
	}
}

// discardResponse is a response without a reader.
type discardResponse struct{}

func (discardResponse) Header() http.Header         { return http.Header{} }
func (discardResponse) Write(p []byte) (int, error) { return len(p), nil }
func (discardResponse) WriteHeader(int)             {}

func requestOf(t *testing.T, query, body string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://localhost/ingest?"+query, strings.NewReader(body))
	must(t, err)
	return r
}

func TestHandler_LabelsOfTheNameReplaceTheDefaults(t *testing.T) {
	recording, err := os.ReadFile("testdata/openjdk17.jfr.gz")
	must(t, err)
	for name, want := range map[string]string{
		"app":                             "__name__=process_cpu,service_name=app",
		"app{__name__=own}":               "__name__=own,service_name=app",
		"app{service_name=shop}":          "__name__=process_cpu,service_name=shop",
		"app{service_name=,__name__=own}": "__name__=own,service_name=app",
		"app{}":                           "__name__=process_cpu,service_name=app",
		"app{a=b, }":                      "__name__=process_cpu,a=b,service_name=app",
		"a.cpu":                           "__name__=process_cpu,service_name=a",
	} {
		in, store := newIngester(t, Limits{})
		if code, text := ingest(t, in, "name="+url.QueryEscape(name), "", []byte("main 1")); code != http.StatusOK || store.list()[0].labels != want {
			t.Errorf("%s: %d %s, %+v", name, code, text, store.list())
		}
	}
	for name, want := range map[string]string{
		"app": "service_name=app", "app{__name__=own}": "service_name=app", "app{service_name=shop}": "service_name=shop", "app{service_name=}": "service_name=app",
	} {
		in, store := newIngester(t, Limits{})
		if code, text := ingest(t, in, "format=jfr&name="+url.QueryEscape(name), "", recording); code != http.StatusOK {
			t.Fatal(code, text)
		}
		for _, p := range store.list() {
			if kind, rest, _ := strings.Cut(p.labels, ","); rest != want || kind == "__name__=own" {
				t.Errorf("%s: %s", name, p.labels)
			}
		}
	}
	for _, bad := range []string{"app{=b}", "app{a={b}}", "app{a=b", "{a=b}", " {}"} {
		if _, lset, err := parseName(bad); !errors.Is(err, profiles.ErrBadRequest) {
			t.Errorf("%s: %v, %v", bad, lset, err)
		}
	}
}

// The library that computes the increase refuses what package profiles/pprof repairs.
func TestHandler_ProfilesWithoutTheirLocationsHaveNoDelta(t *testing.T) {
	e := pprof.NewEncoder()
	e.SampleType("cpu", "nanoseconds")
	e.Sample([]uint64{99}, 1)
	broken, good := string(e.Append(nil)), string(testProfile(t, nil))
	for want, fields := range map[string][]string{"prev_profile: ": {"profile", good, "prev_profile", broken}, "bad request: profile: ": {"profile", broken, "prev_profile", good}} {
		in, store := newIngester(t, Limits{})
		contentType, body := form(t, fields...)
		if code, text := ingest(t, in, "name=app", contentType, body); code != http.StatusBadRequest || !strings.Contains(text, want) || len(store.list()) != 0 {
			t.Errorf("%d %s, want %q", code, text, want)
		}
	}
}

// calls counts the pushes that reach a store.
type calls struct{ n int }

func (c *calls) Append(context.Context, string, []profiles.RawProfile) error { c.n++; return nil }

func TestPush_NothingToStoreDoesNotReachTheStore(t *testing.T) {
	set := metrics.NewSet()
	store := &calls{}
	in, err := New(Options{}, store, slog.New(slog.DiscardHandler), set)
	must(t, err)
	in.now = func() time.Time { return now }
	if err := in.Push(t.Context(), "a", nil); err != nil || store.n != 0 {
		t.Errorf("%d calls, %v", store.n, err)
	}
	if err := in.Push(t.Context(), "a", []profilepb.RawProfile{{Labels: named(), Raw: testProfile(t, nil)}}); err != nil || store.n != 1 {
		t.Errorf("%d calls, %v", store.n, err)
	}
	var page strings.Builder
	set.WritePrometheus(&page)
	if strings.Contains(page.String(), "relabelled") {
		t.Errorf("a reason that did not occur: %s", page.String())
	}
	configured(t, in, "relabel_configs: [{source_labels: [__name__], regex: process_cpu, action: drop}]\n")
	if err := in.Push(t.Context(), "a", []profilepb.RawProfile{{Labels: named(), Raw: testProfile(t, nil)}}); err != nil || store.n != 1 || in.received.Get() != 1 {
		t.Errorf("%d calls, %d received, %v", store.n, in.received.Get(), err)
	}
}

func TestPush_SizesAndTypesAtTheirLimits(t *testing.T) {
	push := func(limits Limits, raw []byte) error {
		in, _ := newIngester(t, limits)
		return in.Push(t.Context(), "a", []profilepb.RawProfile{{Labels: named(), Raw: raw}})
	}
	raw := testProfile(t, nil)
	var limit *LimitError
	if err := push(Limits{ProfileBytes: len(raw)}, raw); err != nil {
		t.Error(err)
	}
	if err := push(Limits{ProfileBytes: len(raw) - 1}, raw); !errors.As(err, &limit) || limit.Reason != "profile_size" {
		t.Error(err)
	}
	for text, ok := range map[string]bool{strings.Repeat("t", 30): true, strings.Repeat("t", 31): false, ":a": false, "a:": false, "": true} {
		for what, change := range map[string]func(*profile.Profile){
			"type": func(p *profile.Profile) { p.SampleType[1].Type = text }, "unit": func(p *profile.Profile) { p.SampleType[1].Unit = text },
			"period type": func(p *profile.Profile) { p.PeriodType.Type = text }, "unit of the period type": func(p *profile.Profile) { p.PeriodType.Unit = text },
		} {
			if err := push(Limits{LabelValueBytes: 30}, testProfile(t, change)); (err == nil) != ok {
				t.Errorf("%s %q: %v", what, text, err)
			}
		}
	}
}

func TestTenantLimits_OverThoseOfTheFlags(t *testing.T) {
	base := Limits{RateBytes: 1, BurstBytes: 5, DecompressedBytes: 3, Series: 1, ProfileBytes: 1, Symbols: 1, Samples: 1, Nodes: 1, Labels: 1, Flags: hint.Flags{"Series": "--series", "Rate": "--rate"}}
	for _, tt := range []struct {
		own         TenantLimits
		rate, burst int
	}{
		{TenantLimits{}, 1, 5}, {TenantLimits{Rate: 1}, 1, 5}, {TenantLimits{Rate: 3}, 3, 6}, {TenantLimits{Rate: 2}, 2, 5}, {TenantLimits{Burst: 7}, 1, 7}, {TenantLimits{Burst: 4}, 1, 4},
		{TenantLimits{Rate: 10, Burst: 7}, 10, 7}, {TenantLimits{DecompressedSize: 100}, 1, 100}, {TenantLimits{Burst: 1}, 1, 3},
	} {
		if got := tt.own.over(base, "a"); got.RateBytes != tt.rate || got.BurstBytes != tt.burst {
			t.Errorf("%+v: rate %d, burst %d", tt.own, got.RateBytes, got.BurstBytes)
		}
	}
	got := (&TenantLimits{Rate: 2, Burst: 9, Series: 3, ProfileSize: 4, DecompressedSize: 5, Symbols: 6, Samples: 7, Nodes: 8, Labels: 10}).over(base, "a")
	want := Limits{RateBytes: 2, BurstBytes: 9, DecompressedBytes: 5, Series: 3, ProfileBytes: 4, Symbols: 6, Samples: 7, Nodes: 8, Labels: 10, Flags: got.Flags}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	if len(got.Flags) != 10 || got.Flags.Of("Series") != " (series of tenant a in --profiles.config-file)" || got.Flags.Of("Rate") != " (--rate)" || base.Flags.Of("Series") != " (--series)" {
		t.Errorf("%v, %v", got.Flags, base.Flags)
	}
}

func TestLoadConfig_PathsAreRelativeToTheFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "profiles.yml")
	text := "scrape_configs: [{job_name: a, basic_auth: {username: u, password_file: secret}, file_sd_configs: [{files: [targets.json]}]}]"
	must(t, os.WriteFile(path, []byte(text), 0o600))
	cfg, err := LoadConfig(path)
	must(t, err)
	job := cfg.Jobs[0]
	if got := job.HTTPClientConfig.BasicAuth.PasswordFile; got != filepath.Join(dir, "secret") {
		t.Errorf("password in %s", got)
	}
	if got := fmt.Sprintf("%+v", job.ServiceDiscoveryConfigs[0]); !strings.Contains(got, filepath.Join(dir, "targets.json")) {
		t.Errorf("targets: %s", got)
	}
	if _, err := LoadConfig(filepath.Join(dir, "none")); !errors.Is(err, os.ErrNotExist) || !strings.HasPrefix(err.Error(), "read profile configuration: ") {
		t.Error(err)
	}
}

// testRecording returns a recording without events.
func testRecording(rate uint64) *recording {
	return &recording{upload: &upload{rate: rate, from: now, until: now.Add(time.Second)}, building: map[*measured]*builtProfile{}}
}

func TestRecording_ValuesOfEveryKindOfEvent(t *testing.T) {
	const period = 10_000_000
	for name, tt := range map[string]struct {
		event jfrEvent
		wall  bool
		want  map[*measured][2]int64
	}{
		"execution":           {jfrEvent{kind: javaCPU}, false, map[*measured][2]int64{javaCPU: {period}}},
		"execution, asleep":   {jfrEvent{kind: javaCPU, state: "STATE_SLEEPING"}, false, map[*measured][2]int64{}},
		"wall time":           {jfrEvent{kind: javaCPU}, true, map[*measured][2]int64{javaWall: {period}, javaCPU: {period}}},
		"wall time, asleep":   {jfrEvent{kind: javaCPU, state: "STATE_SLEEPING"}, true, map[*measured][2]int64{javaWall: {period}}},
		"wall clock":          {jfrEvent{kind: javaWall, count: 3, amount: 7}, false, map[*measured][2]int64{javaWall: {3 * period}}},
		"lock":                {jfrEvent{kind: javaLock, count: 3, amount: 7}, false, map[*measured][2]int64{javaLock: {3, 7}}},
		"allocation":          {jfrEvent{kind: javaInTLAB, count: 1, amount: 64}, false, map[*measured][2]int64{javaInTLAB: {1, 64}}},
		"live object":         {jfrEvent{kind: javaLive, count: 1}, false, map[*measured][2]int64{javaLive: {1, 0}}},
		"many of wall clocks": {jfrEvent{kind: javaWall, count: 1 << 41}, false, nil},
	} {
		r := testRecording(100)
		r.wall = tt.wall
		if err := r.add(&tt.event); (err == nil) != (tt.want != nil) {
			t.Errorf("%s: %v", name, err)
		}
		got := map[*measured][2]int64{}
		for m, b := range r.building {
			if len(b.samples) != 1 || len(r.order) != len(r.building) {
				t.Errorf("%s: %+v", name, b.samples)
			}
			got[m] = b.samples[0].values
		}
		if tt.want != nil && !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
}

func TestRecording_EqualSamplesAddUpToTheLimits(t *testing.T) {
	r := testRecording(1)
	frames := []jfrFrame{{method: "a", line: 1}, {method: "b", line: 2}, {method: "a", line: 3}}
	add := func(e jfrEvent) error { e.kind, e.stack = javaPark, frames; return r.add(&e) }
	for _, e := range []jfrEvent{{count: 1, amount: 2}, {count: 3, amount: 4}, {chunk: 1}, {stackID: 1}, {context: 1}} {
		if err := add(e); err != nil {
			t.Error(err)
		}
	}
	b := r.building[javaPark]
	if len(b.samples) != 4 || b.samples[0].values != [2]int64{4, 6} || len(b.functions) != 2 || len(b.locations) != 3 || len(r.order) != 1 {
		t.Errorf("%d samples, first %v, %d functions, %d locations", len(b.samples), b.samples[0].values, len(b.functions), len(b.locations))
	}
	if err := add(jfrEvent{amount: math.MaxInt64 - 6}); err != nil {
		t.Error(err)
	}
	if err := add(jfrEvent{amount: 1}); !errors.Is(err, profiles.ErrBadRequest) || !strings.Contains(err.Error(), "overflow") {
		t.Error(err)
	}
	b.samples = append(b.samples, make([]builtSample, stacksMax-1-len(b.samples))...)
	if err := add(jfrEvent{stackID: 2}); err != nil || len(b.samples) != stacksMax {
		t.Errorf("%v, %d samples", err, len(b.samples))
	}
	var limit *LimitError
	if err := add(jfrEvent{stackID: 3}); !errors.As(err, &limit) || limit.Reason != "symbols" {
		t.Error(err)
	}
	if err := add(jfrEvent{stackID: 2}); err != nil {
		t.Errorf("a known stack: %v", err)
	}
	r.wall = true
	full := &builtProfile{encoder: pprof.NewEncoder(), samples: make([]builtSample, stacksMax), index: map[sampleOf]int{}}
	r.building[javaWall] = full
	if err := r.add(&jfrEvent{kind: javaCPU}); !errors.As(err, &limit) || r.building[javaCPU] != nil {
		t.Errorf("the wall time of an execution: %v", err)
	}
}

func TestRecordingProfiles_BrokenLabelsAreABadRequest(t *testing.T) {
	recording, err := os.ReadFile("testdata/openjdk17.jfr.gz")
	must(t, err)
	limits := Limits{ProfileBytes: 1 << 20, Flags: hint.Flags{"ProfileBytes": "--bytes"}}.withDefaults()
	for name, labels := range map[string][]byte{"no message": {0xFF}, "no gzip": {0x1F, 0x8B}} {
		if _, err := recordingProfiles(&upload{rate: 100, limits: &limits, profile: recording, labels: labels}, nil); !errors.Is(err, profiles.ErrBadRequest) {
			t.Errorf("%s: %v", name, err)
		}
	}
	large := bomb(t, recordingInflation<<20+1)
	for _, u := range []*upload{{profile: recording, labels: large}, {profile: large}} {
		u.rate, u.limits = 100, &limits
		var limit *LimitError
		if _, err := recordingProfiles(u, nil); !errors.As(err, &limit) || limit.Reason != "profile_size" || !strings.HasSuffix(err.Error(), "(--bytes)") {
			t.Errorf("a large one: %v", err)
		}
	}
}

// first returns the first profile of a request.
func firstOf(p pprofile.Profiles) pprofile.Profile {
	return p.ResourceProfiles().At(0).ScopeProfiles().At(0).Profiles().At(0)
}

func decodedOTLP(t *testing.T, p pprofile.Profiles) *otlpExport {
	t.Helper()
	request, err := decodeOTLP(otlpProto(t, p), otlpMax)
	must(t, err)
	return request
}

func TestOTLPConverter_CostsOfTextsAndPprofs(t *testing.T) {
	limits := Limits{}.withDefaults()
	request := decodedOTLP(t, otlpRequest(nil))
	c := &otlpConverter{request: request, limits: &limits, left: limits.BurstBytes, reads: 1_000_000}
	all, err := c.convert(&request.profiles[0])
	if err != nil || len(all) != 2 {
		t.Fatal(len(all), err)
	}
	attribute := func(texts ...string) int { return attributeBytes + len(strings.Join(texts, "")) }
	reads := len("samplescountcpunanoseconds") + attribute("host.name", "a1") + attribute("k8s.pod.label.app/part", "web") + attribute("process.command_args") +
		attribute("service.name", "shop") + attribute("thread.id") + attribute("process.executable.name", "nginx") + len("mainmain.go") + len("workmain.go") + len("/lib/libc.so")
	p := &request.profiles[0]
	reads += len(*p.resource) + len(*p.scope) // and the elements of the dictionary that its samples use
	for table, used := range map[otlpTable][]int{otlpMappings: {1}, otlpLocations: {1, 2}, otlpFunctions: {1, 2}, otlpLinks: {1}, otlpAttributes: {1, 2, 3}, otlpStacks: {1, 2}} {
		for _, i := range used {
			reads += len(request.tables[table][i])
		}
	}
	if got := 1_000_000 - c.reads; got != reads {
		t.Errorf("%d bytes are read, want %d", got, reads)
	}
	common := labelBytes + len("host_namea1") + labelBytes + len("k8s_pod_label_app_partweb")
	left := len(all[0].Raw) + len(all[1].Raw) + 2*groupBytes + 2*common
	if got := limits.BurstBytes - c.left; got != left {
		t.Errorf("%d bytes are used, want %d", got, left)
	}
	for more, ok := range map[int]bool{0: true, -1: false} {
		c := &otlpConverter{request: request, limits: &limits, left: left + more, reads: reads}
		if _, err := c.convert(&request.profiles[0]); (err == nil) != ok || err != nil && (!errors.Is(err, pprof.ErrLimit) || !strings.Contains(err.Error(), "the profiles of the request")) {
			t.Errorf("%d bytes more: %v", more, err)
		}
		c = &otlpConverter{request: request, limits: &limits, left: left, reads: reads + more}
		if _, err := c.convert(&request.profiles[0]); (err == nil) != ok || err != nil && (!errors.Is(err, pprof.ErrLimit) || !strings.Contains(err.Error(), "the strings of the request")) {
			t.Errorf("%d bytes of texts more: %v", more, err)
		}
		g := &otlpGroup{encoder: pprof.NewEncoder()}
		g.encoder.SampleType("cpu", "nanoseconds")
		c = &otlpConverter{limits: &Limits{DecompressedBytes: g.encoder.Bytes() + more}}
		if err := c.fits(g); (err == nil) != ok || err != nil && (!errors.Is(err, pprof.ErrLimit) || !strings.Contains(err.Error(), "bytes as pprof")) {
			t.Errorf("%d bytes of a pprof more: %v", more, err)
		}
	}
	c.left = -1
	if _, err := c.convert(&request.profiles[0]); !errors.Is(err, pprof.ErrLimit) {
		t.Error(err)
	}
}

func TestOTLPConverter_ReadsUpToTheLimits(t *testing.T) {
	c := &otlpConverter{limits: &Limits{DecompressedBytes: 100, BurstBytes: 200}, reads: 100}
	if err := c.read(100); err != nil || c.reads != 0 {
		t.Errorf("%v, %d left", err, c.reads)
	}
	if err := c.read(1); !errors.Is(err, pprof.ErrLimit) || !strings.Contains(err.Error(), "more than 3200 bytes") {
		t.Error(err)
	}
	c.reads = attributeBytes
	if err := c.read(101); !errors.Is(err, pprof.ErrLimit) || !strings.Contains(err.Error(), "more than 100 bytes as pprof") || c.reads != 0 {
		t.Errorf("%v, %d left", err, c.reads)
	}
	for bytes, ok := range map[int]bool{2 * (attributeBytes + 3): true, 2*(attributeBytes+3) - 1: false} {
		c := &otlpConverter{limits: &Limits{DecompressedBytes: bytes}, reads: 1000}
		n, total := 0, 0
		var err error
		for range 3 {
			if err = c.attribute(&total, []byte("a"), &otlpValue{kind: otlpText, text: []byte("bc")}, func(string, string) { n++ }); err != nil {
				break
			}
		}
		if want := map[bool]int{true: 2, false: 1}[ok]; n != want || !errors.Is(err, pprof.ErrLimit) {
			t.Errorf("%d bytes: %d attributes are read, %v", bytes, n, err)
		}
	}
}

func TestPushOTLP_TypesThatAreConverted(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(p pprofile.Profiles, text map[string]int32)
		name   string
		value  int64
	}{
		"counts of CPU":     {func(pprofile.Profiles, map[string]int32) {}, "cpu", 100_000_000},
		"another type":      {func(p pprofile.Profiles, n map[string]int32) { firstOf(p).SampleType().SetTypeStrindex(n["x"]) }, "x", 2},
		"another unit":      {func(p pprofile.Profiles, n map[string]int32) { firstOf(p).SampleType().SetUnitStrindex(n["x"]) }, "samples", 2},
		"another period":    {func(p pprofile.Profiles, n map[string]int32) { firstOf(p).PeriodType().SetTypeStrindex(n["x"]) }, "samples", 2},
		"another period's":  {func(p pprofile.Profiles, n map[string]int32) { firstOf(p).PeriodType().SetUnitStrindex(n["x"]) }, "samples", 2},
		"no period":         {func(p pprofile.Profiles, _ map[string]int32) { firstOf(p).SetPeriod(0) }, "samples", 2},
		"a period of 1 ns":  {func(p pprofile.Profiles, _ map[string]int32) { firstOf(p).SetPeriod(1) }, "cpu", 2},
		"a negative period": {func(p pprofile.Profiles, _ map[string]int32) { firstOf(p).SetPeriod(-1) }, "samples", 2},
	} {
		in, store := newIngester(t, Limits{})
		_, first, err := pushOTLP(t, in, otlpRequest(func(p pprofile.Profiles) { tt.change(p, otlpDictionary(p, "x")) }))
		all := store.list()
		if err != nil || first != nil || len(all) != 2 || all[1].profile.SampleType[0].Type != tt.name || all[1].profile.Sample[0].Value[0] != tt.value {
			t.Errorf("%s: %v, %v, %+v", name, first, err, all)
		}
	}
}

func TestPushOTLP_BrokenProfilesAreNamed(t *testing.T) {
	for want, change := range map[string]func(p pprofile.Profiles){
		"sample_type or period_type: ":                      func(p pprofile.Profiles) { firstOf(p).PeriodType().SetUnitStrindex(99) },
		"it has no sample type":                             func(p pprofile.Profiles) { firstOf(p).SampleType().SetTypeStrindex(0) },
		"duration 9223372036854775808 is":                   func(p pprofile.Profiles) { firstOf(p).SetDurationNano(1 << 63) },
		"its time 9223372036854775808 or":                   func(p pprofile.Profiles) { firstOf(p).SetTime(1 << 63) },
		"samples[0]: bad request: invalid OTLP profiles: a": func(p pprofile.Profiles) { firstOf(p).Samples().At(0).AttributeIndices().FromRaw([]int32{99}) },
		"samples[0]: bad request: invalid OTLP profiles: l": func(p pprofile.Profiles) { firstOf(p).Samples().At(0).SetLinkIndex(99) },
		"in the future":                                     func(p pprofile.Profiles) { firstOf(p).SetTime(math.MaxInt64) },
	} {
		in, store := newIngester(t, Limits{})
		if _, _, err := pushOTLP(t, in, otlpRequest(change)); err == nil || !strings.Contains(err.Error(), want) || StatusOf(err) != http.StatusBadRequest || len(store.list()) != 0 {
			t.Errorf("%v, want %q", err, want)
		}
	}
	in, store := newIngester(t, Limits{})
	if _, first, err := pushOTLP(t, in, otlpRequest(func(p pprofile.Profiles) { firstOf(p).SetDurationNano(math.MaxInt64) })); err != nil || first != nil || store.list()[0].profile.DurationNanos != math.MaxInt64 {
		t.Errorf("the longest duration: %v, %v", first, err)
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := in.pushOTLP(canceled, "a", decodedOTLP(t, otlpRequest(nil))); !errors.Is(err, context.Canceled) || len(store.list()) != 2 {
		t.Errorf("%v, %d stored", err, len(store.list()))
	}
}

func TestPushOTLP_LabelsOfSamplesAndServices(t *testing.T) {
	onlyFirst := func(p pprofile.Profiles) {
		n := 0
		firstOf(p).Samples().RemoveIf(func(pprofile.Sample) bool { n++; return n > 1 })
	}
	attribute := func(p pprofile.Profiles, key string) (add func(sample int)) {
		a := p.Dictionary().AttributeTable().AppendEmpty()
		a.SetKeyStrindex(otlpDictionary(p, key)[key])
		a.Value().SetStr("v")
		n := int32(p.Dictionary().AttributeTable().Len() - 1)
		return func(sample int) { firstOf(p).Samples().At(sample).AttributeIndices().Append(n) }
	}
	last := func(p pprofile.Profiles) interface {
		SetBool(bool)
		SetStr(string)
	} {
		table := p.Dictionary().AttributeTable()
		return table.At(table.Len() - 1).Value()
	}
	for name, tt := range map[string]struct {
		change func(p pprofile.Profiles)
		want   string // of all profiles: labels and labels of the first sample
	}{
		"executable": {func(pprofile.Profiles) {}, "shop map[span_id:[cd00000000000002] trace_id:[ab000000000000000000000000000001]]; nginx map[process_executable_name:[nginx]]"},
		"bool":       {func(p pprofile.Profiles) { attribute(p, "on")(1); last(p).SetBool(true) }, "shop map[span_id:[cd00000000000002] trace_id:[ab000000000000000000000000000001]]; nginx map[on:[true] process_executable_name:[nginx]]"},
		"empty text": {func(p pprofile.Profiles) {
			onlyFirst(p)
			firstOf(p).Samples().At(0).SetLinkIndex(0)
			attribute(p, "none")(0)
			last(p).SetStr("")
		}, "shop map[]"},
		"own names": {func(p pprofile.Profiles) {
			onlyFirst(p)
			firstOf(p).Samples().At(0).SetLinkIndex(0)
			attribute(p, "__none")(0)
		}, "shop map[]"},
		"no trace": {func(p pprofile.Profiles) { onlyFirst(p); p.Dictionary().LinkTable().At(1).SetTraceID([16]byte{}) }, "shop map[span_id:[cd00000000000002]]"},
		"no span":  {func(p pprofile.Profiles) { onlyFirst(p); p.Dictionary().LinkTable().At(1).SetSpanID([8]byte{}) }, "shop map[]"},
		"of resource": {func(p pprofile.Profiles) {
			firstOf(p).Samples().At(0).SetLinkIndex(0)
			p.ResourceProfiles().At(0).Resource().Attributes().PutStr("service.name", "all")
		}, "shop map[]; all map[process_executable_name:[nginx]]"},
		"no service": {func(p pprofile.Profiles) {
			onlyFirst(p)
			firstOf(p).Samples().At(0).SetLinkIndex(0)
			firstOf(p).Samples().At(0).AttributeIndices().FromRaw(nil)
		}, "unspecified map[]"},
		"own names of the resource": {func(p pprofile.Profiles) {
			onlyFirst(p)
			p.ResourceProfiles().At(0).Resource().Attributes().PutStr("__own", "v")
			firstOf(p).Samples().At(0).SetLinkIndex(0)
		}, "shop map[]"},
	} {
		in, store := newIngester(t, Limits{})
		if _, first, err := pushOTLP(t, in, otlpRequest(tt.change)); first != nil || err != nil {
			t.Errorf("%s: %v, %v", name, first, err)
			continue
		}
		var got []string
		for _, p := range store.list() {
			got = append(got, fmt.Sprint(p.labels[strings.Index(p.labels, "service_name=")+len("service_name="):], " ", p.profile.Sample[0].Label))
		}
		if strings.Join(got, "; ") != tt.want {
			t.Errorf("%s: %s, want %s", name, strings.Join(got, "; "), tt.want)
		}
	}
}

// The ID of a profile is that of one stored profile. If services share it, none has it.
func TestPushOTLP_IDIsThatOfOneProfile(t *testing.T) {
	id := profiles.ID{1, 15: 16}
	for samples, want := range map[int]profiles.ID{1: id, 2: {}} {
		in, store := newIngester(t, Limits{})
		if _, first, err := pushOTLP(t, in, otlpRequest(func(p pprofile.Profiles) {
			firstOf(p).SetProfileID(pprofile.ProfileID(id))
			n := 0
			firstOf(p).Samples().RemoveIf(func(pprofile.Sample) bool { n++; return n > samples })
		})); first != nil || err != nil {
			t.Fatal(first, err)
		}
		for _, p := range store.list() {
			if p.id != want || len(store.list()) != samples {
				t.Errorf("%d services: %v of %d", samples, p.id, len(store.list()))
			}
		}
	}
}

// A stack of one frame too many is cut and counted; one of as many as allowed is not.
func TestPushOTLP_DepthOfStacks(t *testing.T) {
	for name, change := range map[string]func(p pprofile.Profiles){
		"a location of two frames": func(pprofile.Profiles) {},
		"two locations": func(p pprofile.Profiles) {
			p.Dictionary().StackTable().At(1).LocationIndices().FromRaw([]int32{2, 2})
		},
	} {
		for depth, cut := range map[int]uint64{1: 1, 2: 0, 3: 0} {
			in, store := newIngester(t, Limits{Depth: depth})
			if _, first, err := pushOTLP(t, in, otlpRequest(change)); first != nil || err != nil {
				t.Fatal(first, err)
			}
			if got := in.repaired.With("depth").Get(); got != cut {
				t.Errorf("%s, at most %d: %d are cut", name, depth, got)
			}
			if stack := store.list()[0].profile.Sample[0].Location; len(stack) != 2 {
				t.Errorf("%s, at most %d: %d frames", name, depth, len(stack))
			}
		}
	}
}

func TestPushOTLP_FunctionsAndLocationsAreEncodedOnce(t *testing.T) {
	in, store := newIngester(t, Limits{})
	_, first, err := pushOTLP(t, in, otlpRequest(func(p pprofile.Profiles) {
		dict := p.Dictionary()
		unnamed := dict.LocationTable().AppendEmpty() // 3: a line without a function
		unnamed.SetAddress(0xAB)
		unnamed.Lines().AppendEmpty().SetLine(5)
		negative := dict.LocationTable().AppendEmpty() // 4
		for _, line := range []int64{-5, 0} {
			l := negative.Lines().AppendEmpty()
			l.SetFunctionIndex(1)
			l.SetLine(line)
		}
		dict.StackTable().At(1).LocationIndices().FromRaw([]int32{1, 1, 2, 2, 3, 3, 4, 4})
		n := 0
		firstOf(p).Samples().RemoveIf(func(pprofile.Sample) bool { n++; return n > 1 })
	}))
	if first != nil || err != nil {
		t.Fatal(first, err)
	}
	p := store.list()[0].profile
	var frames []string
	for _, l := range p.Sample[0].Location {
		frames = append(frames, fmt.Sprint(l.Line[0].Function.Name, ":", l.Line[0].Line))
	}
	want := "work:10 main:10 work:10 main:10 0x1234:0 0x1234:0 0xab:0 0xab:0 main:0 main:0 main:0 main:0"
	if got := strings.Join(frames, " "); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if len(p.Function) != 4 || len(p.Location) != 6 {
		t.Errorf("%d functions, %d locations", len(p.Function), len(p.Location))
	}
}

func TestSelf_SlicesEndAndFailuresAreReturned(t *testing.T) {
	store := &memory{}
	in, err := New(Options{}, store, slog.New(slog.DiscardHandler), nil)
	must(t, err)
	s := NewSelf(SelfOptions{Every: time.Hour, Tenant: "own"}, in, slog.New(slog.DiscardHandler))
	s.endSlice <- struct{}{}
	if err := s.slice(t.Context()); err != nil || len(store.list()) != 1 || store.list()[0].id == (profiles.ID{}) {
		t.Errorf("%v, %+v", err, store.list())
	}
	if id, ok := s.Current(); ok {
		t.Errorf("after its end: %v", id)
	}
	must(t, runtimepprof.StartCPUProfile(io.Discard))
	defer runtimepprof.StopCPUProfile()
	if err := s.slice(t.Context()); err == nil || len(store.list()) != 1 {
		t.Errorf("the profiler is in use: %v", err)
	}
	if id, ok := s.Current(); ok {
		t.Errorf("without a profiler: %v", id)
	}
}

func TestSelf_FractionOfMutexesIsRestored(t *testing.T) {
	in, err := New(Options{}, &memory{}, slog.New(slog.DiscardHandler), nil)
	must(t, err)
	before := runtime.SetMutexProfileFraction(7)
	defer runtime.SetMutexProfileFraction(before)
	s := NewSelf(SelfOptions{Every: time.Hour}, in, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { s.Run(ctx) })
	for {
		if _, ok := s.Current(); ok {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if got := runtime.SetMutexProfileFraction(-1); got != mutexFraction {
		t.Errorf("1 of %d", got)
	}
	cancel()
	running.Wait()
	if got := runtime.SetMutexProfileFraction(-1); got != 7 {
		t.Errorf("afterwards: 1 of %d", got)
	}
}
