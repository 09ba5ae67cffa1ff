package ingest

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/pprof/profile"
	"github.com/prometheus/common/model"

	"github.com/ferula-io/ferula/internal/httpbody"
	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/pprof"
	"github.com/ferula-io/ferula/internal/profiles/profilepb"
	"github.com/ferula-io/ferula/metrics"
)

func TestErrors_HaveTheirStatusAndReason(t *testing.T) {
	for _, tt := range []struct {
		err    error
		status int
		reason string
	}{
		{limitError("rate", "x"), 429, "rate"}, {limitError("series", "x"), 429, "series"}, {limitError("tenants", "x"), 429, "tenants"}, {limitError("labels", "x"), 400, "labels"},
		{pprof.ErrLimit, 400, "profile_size"}, {pprof.ErrCorrupt, 400, "invalid"}, {profiles.ErrBadRequest, 400, "invalid"},
		{errUnsupported, 415, "invalid"}, {httpbody.ErrTooLarge, 413, "profile_size"}, {httpbody.ErrBusy, 503, "busy"},
		{profiles.ErrLimit, 429, "store"}, {profiles.ErrUnavailable, 503, "store"}, {context.Canceled, 500, "canceled"}, {context.DeadlineExceeded, 500, "canceled"},
		{io.EOF, 500, "store"},
	} {
		err := fmt.Errorf("wrapped: %w", tt.err)
		if got, reason := StatusOf(err), reasonOf(err); got != tt.status || reason != tt.reason {
			t.Errorf("%v: %d %s, want %d %s", tt.err, got, reason, tt.status, tt.reason)
		}
	}
	for _, err := range []error{httpbody.ErrSlow, httpbody.ErrUnread} {
		if StatusOf(err) == http.StatusInternalServerError {
			t.Errorf("%v: %d", err, StatusOf(err))
		}
	}
}

func TestLimits_ValidateNamesEachFault(t *testing.T) {
	if err := (Limits{}).Validate(); err != nil {
		t.Error(err)
	}
	if err := (Limits{Series: math.MaxInt64 / 4}).Validate(); err != nil {
		t.Error(err)
	}
	for name, l := range map[string]Limits{
		"rate": {RateBytes: -1}, "burst": {BurstBytes: -1}, "series": {Series: math.MaxInt64/4 + 1}, "profile bytes": {ProfileBytes: -1}, "decompressed bytes": {DecompressedBytes: -1},
		"symbols": {Symbols: -1}, "samples": {Samples: -1}, "depth": {Depth: -1}, "nodes": {Nodes: -1}, "labels": {Labels: -1}, "label name bytes": {LabelNameBytes: -1}, "label value bytes": {LabelValueBytes: -1},
		"age": {Age: -1}, "future": {Future: -1}, "tenants": {Tenants: -1},
	} {
		if err := l.Validate(); err == nil || !strings.HasPrefix(err.Error(), "profile limit on "+name+": ") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := New(Options{Limits: Limits{Age: -1}}, &memory{}, slog.New(slog.DiscardHandler), nil); err == nil {
		t.Error("negative limits are accepted")
	}
}

func TestTenant_AdmitsSeriesUpToTheLimit(t *testing.T) {
	set := func(from, to int) map[uint64]struct{} {
		hashes := map[uint64]struct{}{}
		for i := from; i < to; i++ {
			hashes[uint64(i)] = struct{}{}
		}
		return hashes
	}
	at := time.Unix(1_000_000, 0)
	all := &tenants{max: 10, byName: map[string]*tenant{}}
	one := &tenant{series: map[uint64]time.Time{}, swept: at}
	admit := func(what string, from, to, limit int, want bool) {
		t.Helper()
		err := one.admit(set(from, to), limit, at)
		var e *LimitError
		if (err == nil) != want || err != nil && (!errors.As(err, &e) || e.Reason != "series") {
			t.Errorf("%s: %v", what, err)
		}
	}
	admit("as many as the limit", 0, 3, 3, true)
	admit("one more", 0, 4, 3, false)
	all.record("a", one, set(0, 3), at)
	admit("known ones", 0, 3, 3, true)
	admit("known ones beyond a limit that was lowered", 0, 3, 1, true)
	admit("a new one", 2, 4, 3, false)
	at = at.Add(seriesIdle)
	admit("after the time of idle ones, exactly", 3, 4, 3, false)
	at = at.Add(time.Minute)
	admit("idle ones are swept once a minute", 3, 4, 3, false)
	at = at.Add(1)
	admit("after more than this", 3, 6, 3, true)
	if len(one.series) != 0 {
		t.Errorf("%d series are left", len(one.series))
	}
}

func TestTenants_IdleOnesAreForgottenAfterAnHour(t *testing.T) {
	at := time.Unix(1_000_000, 0)
	limits := Limits{RateBytes: 10, BurstBytes: 20}
	all := &tenants{max: 2, byName: map[string]*tenant{}, swept: at.Add(-time.Hour)}
	get := func(name string, want bool) {
		t.Helper()
		got, err := all.get(name, &limits, at)
		var e *LimitError
		if (err == nil) != want || (got != nil) != want || err != nil && (!errors.As(err, &e) || e.Reason != "tenants") {
			t.Fatalf("%s: %v", name, err)
		}
		if want {
			all.record(name, got, nil, at)
		}
	}
	get("a", true)
	get("b", true)
	at = at.Add(seriesIdle)
	get("c", false)
	at = at.Add(time.Minute)
	get("c", false) // swept a minute ago
	at = at.Add(1)
	get("c", true)
	if len(all.byName) != 1 {
		t.Errorf("%d tenants", len(all.byName))
	}
	known, err := all.get("c", &Limits{RateBytes: 30, BurstBytes: 40}, at)
	if err != nil || known.rate.Limit() != 30 || known.rate.Burst() != 40 {
		t.Errorf("%v, %v", known, err)
	}
	// Of two concurrent first pushes the first is recorded.
	other := &tenant{series: map[uint64]time.Time{}}
	all.record("c", other, map[uint64]struct{}{7: {}}, at)
	if all.byName["c"] != known || len(known.series) != 1 || len(other.series) != 0 {
		t.Error("the second push replaces the tenant")
	}
}

func TestPush_TimesOfTheLimitsAreStored(t *testing.T) {
	for _, tt := range []struct {
		ns   int64 // of the profile
		push int64 // of the push
		want int64 // 0: refused
	}{
		{now.Add(-time.Hour).UnixNano(), 0, now.Add(-time.Hour).UnixNano()}, {now.Add(-time.Hour).UnixNano() - 1, 0, 0},
		{now.Add(10 * time.Minute).UnixNano(), 0, now.Add(10 * time.Minute).UnixNano()}, {now.Add(10*time.Minute).UnixNano() + 1, 0, 0},
		{0, 0, now.UnixNano()}, {0, now.UnixNano() - 5, now.UnixNano() - 5}, {now.UnixNano() - 7, now.UnixNano() - 5, now.UnixNano() - 7}, {now.UnixMicro(), 0, now.UnixMicro() * 1000},
		{microsecondsMin - 1, 0, 0}, {microsecondsMax, 0, 0},
	} {
		in, store := newIngester(t, Limits{})
		raw := testProfile(t, func(p *profile.Profile) { p.TimeNanos = tt.ns })
		err := in.Push(context.Background(), "a", []profilepb.RawProfile{{Labels: named(), Raw: raw, TimeNS: tt.push}})
		all := store.list()
		if (err == nil) != (tt.want != 0) || err == nil && (len(all) != 1 || all[0].timeNS != tt.want) {
			t.Errorf("%+v: %+v, %v", tt, all, err)
		}
	}
	for at, want := range map[time.Time]int64{time.UnixMicro(microsecondsMin): microsecondsMin * 1000, time.UnixMicro(microsecondsMax - 1): (microsecondsMax - 1) * 1000} {
		in, store := newIngester(t, Limits{})
		in.now = func() time.Time { return at }
		raw := testProfile(t, func(p *profile.Profile) { p.TimeNanos = at.UnixMicro() })
		if err := in.Push(context.Background(), "a", []profilepb.RawProfile{{Labels: named(), Raw: raw}}); err != nil || store.list()[0].timeNS != want {
			t.Errorf("%s: %v", at, err)
		}
	}
}

func TestPush_CountsWhatItStores(t *testing.T) {
	set := metrics.NewSet()
	in, err := New(Options{}, &memory{}, slog.New(slog.DiscardHandler), set)
	must(t, err)
	in.now = func() time.Time { return now }
	raw := testProfile(t, nil)
	must(t, in.Push(context.Background(), "a", []profilepb.RawProfile{{Labels: named(), Raw: raw}, {Labels: named("b", "c"), Raw: raw}}))
	plain, err := gzip.NewReader(bytes.NewReader(raw))
	must(t, err)
	text, err := io.ReadAll(plain)
	must(t, err)
	if in.received.Get() != 2 || in.bytes.With("sent").Get() != uint64(2*len(raw)) || in.bytes.With("decompressed").Get() != uint64(2*len(text)) {
		t.Errorf("%d profiles of %d bytes, %d decompressed", in.received.Get(), in.bytes.With("sent").Get(), in.bytes.With("decompressed").Get())
	}
	canceled, cancel := context.WithCancel(context.Background())
	cancel()
	if err := in.Push(canceled, "a", []profilepb.RawProfile{{Labels: named(), Raw: raw}}); !errors.Is(err, context.Canceled) || in.discarded.With("canceled").Get() != 1 {
		t.Errorf("%v, %d counted", err, in.discarded.With("canceled").Get())
	}
	if err := in.Push(context.Background(), "a", nil); err != nil || in.received.Get() != 2 {
		t.Errorf("an empty push: %v", err)
	}
	if err := in.Push(context.Background(), "a", []profilepb.RawProfile{{Labels: named(), Raw: raw, ID: "x"}}); !errors.Is(err, profiles.ErrBadRequest) {
		t.Errorf("an invalid ID: %v", err)
	}
	if in.discarded.With("invalid").Get() != 1 {
		t.Errorf("%d are counted as invalid", in.discarded.With("invalid").Get())
	}
	for _, f := range set.Families() {
		if f.Help == "" {
			t.Errorf("%s has no help", f.Name)
		}
	}
}

func TestNormalize_LimitsHoldExactly(t *testing.T) {
	limits := Limits{Labels: 2, LabelNameBytes: 12, LabelValueBytes: 11}
	for _, tt := range []struct {
		lset []profilepb.RawLabel
		ok   bool
	}{
		{[]profilepb.RawLabel{{Name: "a", Value: "b"}}, true}, // and service_name
		{[]profilepb.RawLabel{{Name: "a", Value: "b"}, {Name: "c", Value: "d"}}, false},
		{[]profilepb.RawLabel{{Name: strings.Repeat("n", 12), Value: "b"}}, true}, {[]profilepb.RawLabel{{Name: strings.Repeat("n", 13), Value: "b"}}, false},
		{[]profilepb.RawLabel{{Name: "a", Value: strings.Repeat("v", 11)}}, true}, {[]profilepb.RawLabel{{Name: "a", Value: strings.Repeat("v", 12)}}, false},
	} {
		out, keep, err := normalize(tt.lset, &limits, nil)
		if (err == nil) != tt.ok || keep != tt.ok || tt.ok && len(out) != 2 {
			t.Errorf("%v: %v, %v, %v", tt.lset, out, keep, err)
		}
	}
	most := 4 * 2 * 23
	for size, want := range map[int]bool{most: true, most + 1: false} {
		if err := limits.beforeRules([]profilepb.RawLabel{{Name: "n", Value: strings.Repeat("v", size-1)}}); (err == nil) != want {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
}

func TestValidName_Characters(t *testing.T) {
	for name, want := range map[string]bool{
		"": false, "_": true, "a": true, "z": true, "A": true, "Z": true, "a0": true, "a9": true, "0": false, "9a": false, "`": false, "{": false, "@": false, "[": false, "a/": false, "a:": false, "a.b": false, "ä": false, "__a_Z9": true,
	} {
		if validName(name) != want {
			t.Errorf("%q: %v", name, !want)
		}
	}
	for key, want := range map[string]string{
		"": "", "__a": "", "_a": "_a", "a.b": "a_b", "0a": "_0a", "9": "_9", ":a": "_a", "/": "_", "aZ09_": "aZ09_", "ä": "__", "a`{@[": "a____",
	} {
		if got := otlpLabelName([]byte(key)); got != want {
			t.Errorf("%q: %q, want %q", key, got, want)
		}
	}
	for want, v := range map[string]otlpValue{
		"a\uFFFDb": {kind: otlpText, text: []byte("a\xFFb")}, "true": {kind: otlpBool, bits: 1}, "false": {kind: otlpBool}, "-5": {kind: otlpInt, bits: math.MaxUint64 - 4},
		"0.5": {kind: otlpDouble, double: protoFixed(math.Float64bits(0.5))}, "": {},
	} {
		if got := otlpLabelValue(&v); got != want {
			t.Errorf("%+v: %q, want %q", v, got, want)
		}
	}
}

func TestProfileName_BySampleTypes(t *testing.T) {
	for _, tt := range []struct {
		types   string
		units   string
		display string
		want    string
	}{
		{"cpu", "", "", "process_cpu"}, {"samples cpu", "", "", "process_cpu"}, {"cpu wall", "", "", "wall"}, {"wall", "", "", "wall"}, {"goroutine", "", "", "goroutines"}, {"goroutines", "", "", "goroutines"},
		{"goroutineleak", "", "", "goroutine_leak"}, {"inuse_space", "", "", "memory"}, {"alloc_objects inuse_objects", "", "", "memory"}, {"heap", "", "", "memory"}, {"contentions delay", "", "", "block"},
		{"exceptions", "", "", "exceptions"}, {"exception", "", "", "exceptions"}, {"contentions", "lock_samples", "", "mutex"}, {"contentions", "", "mutex_count", "mutex"}, {"contentions", "", "block_count", "block"},
		{"goroutine", "", "goroutine_leak_count", "goroutine_leak"}, {"contentions", "", "else", "block"}, {"own_type", "", "", "own_type"}, {"own type", "", "", "process_cpu"}, {"own_type another", "", "", "process_cpu"}, {"samples", "", "", "process_cpu"}, {"", "", "", "process_cpu"},
	} {
		types := strings.Split(tt.types, " ")
		if tt.types == "own type" {
			types = []string{tt.types}
		}
		config := map[string]profilepb.SampleTypeConfig{}
		if tt.display != "" {
			config[types[0]] = profilepb.SampleTypeConfig{DisplayName: tt.display}
		}
		if got := profileName(types, config, tt.units); got != tt.want {
			t.Errorf("%+v: %s", tt, got)
		}
	}
}

func TestDelta_OfCumulativeValues(t *testing.T) {
	heap := func(nanos int64, values ...int64) *profile.Profile {
		p, err := profile.ParseData(testProfile(t, func(p *profile.Profile) {
			p.SampleType = []*profile.ValueType{{Type: "alloc_space", Unit: "bytes"}, {Type: "inuse_space", Unit: "bytes"}}
			p.Sample[0].Value, p.TimeNanos, p.DurationNanos = values, nanos, 5
		}))
		must(t, err)
		return p
	}
	for _, tt := range []struct{ from, to, want []int64 }{
		{[]int64{60, 9}, []int64{100, 7}, []int64{40, 7}}, {[]int64{60, 9}, []int64{10, 7}, []int64{0, 7}}, {[]int64{60, 9}, []int64{60, 0}, nil}, {[]int64{59, 9}, []int64{60, 0}, []int64{1, 0}},
	} {
		got, err := delta(heap(1000, tt.from...), heap(2000, tt.to...), isCumulative)
		if err != nil || got.TimeNanos != 2000 || got.DurationNanos != 5 || len(got.Sample) != min(1, len(tt.want)) || tt.want != nil && fmt.Sprint(got.Sample[0].Value) != fmt.Sprint(tt.want) {
			t.Errorf("%+v: %v, %v", tt, got, err)
		}
	}
	other, err := profile.ParseData(testProfile(t, nil))
	must(t, err)
	if _, err := delta(other, heap(1, 1, 1), isCumulative); !errors.Is(err, profiles.ErrBadRequest) || !strings.Contains(err.Error(), "another type") {
		t.Error(err)
	}
	for name, want := range map[string]bool{"alloc_space": true, "contentions": true, "inuse_space": false, "inuse_objects": false} {
		if isCumulative(name) != want {
			t.Errorf("%s: %v", name, !want)
		}
	}
}

func TestHandler_PreviousProfileThatIsBrokenIsNamed(t *testing.T) {
	in, store := newIngester(t, Limits{})
	for field, fields := range map[string][]string{
		"prev": {"profile", string(testProfile(t, nil)), "prev_profile", "nothing"}, "another type": {"profile", string(testProfile(t, nil)), "prev_profile", string(testProfile(t, func(p *profile.Profile) {
			p.SampleType = []*profile.ValueType{{Type: "x", Unit: "y"}, {Type: "z", Unit: "y"}}
		}))},
	} {
		contentType, body := form(t, fields...)
		if code, text := ingest(t, in, "name=app", contentType, body); code != http.StatusBadRequest {
			t.Errorf("%s: %d %s", field, code, text)
		}
	}
	if len(store.list()) != 0 || in.discarded.With("invalid").Get() != 2 {
		t.Errorf("%d stored, %d discarded", len(store.list()), in.discarded.With("invalid").Get())
	}
}

// Bodies and slots are released after each outcome: the handler has few.
func TestHandler_ReleasesBodiesAndSlots(t *testing.T) {
	in, _ := newIngester(t, Limits{ProfileBytes: 100_000})
	raw := testProfile(t, nil)
	bodies := httpbody.NewReader(httpbody.Options{BytesMax: int64(2*len(raw) + 1000), Wait: 10 * time.Millisecond})
	h := in.Handler(func(h http.Header) (string, error) {
		if h.Get("X-Scope-OrgID") == "bad" {
			return "", errors.New("no such tenant")
		}
		return "a", nil
	}, bodies)
	post := func(query, tenant string, body []byte) (int, string) {
		r := httptest.NewRequest(http.MethodPost, "/ingest?"+query, bytes.NewReader(body))
		r.Header.Set("X-Scope-OrgID", tenant)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Code, w.Body.String()
	}
	for range 3 * uploadsMax {
		for query, want := range map[string]int{"name=a&format=pprof": 200, "name=a&format=lines&x=1": 200, "format=pprof": 400, "name=a&%zz": 400, "name=a&format=jfr": 400} {
			if code, text := post(query, "", raw); code != want {
				t.Fatalf("%s: %d %s", query, code, text)
			}
		}
	}
	if code, text := post("name=a", "bad", raw); code != http.StatusBadRequest || text != "no such tenant\n" {
		t.Errorf("%d %s", code, text)
	}
}

func TestHandler_RatesAndTimesOfUploads(t *testing.T) {
	in, _ := newIngester(t, Limits{})
	for query, want := range map[string]uint64{"": 100, "&sampleRate=0": 100, "&sampleRate=1": 1, "&sampleRate=1000000000": 1e9, "&sampleRate=1000000001": 0, "&sampleRate=-1": 0, "&sampleRate=x": 0, "&sampleRate=00": 0} {
		u, err := in.parse("name=a"+query, "")
		if (err == nil) != (want > 0) || err == nil && u.rate != want || err != nil && !errors.Is(err, profiles.ErrBadRequest) {
			t.Errorf("%s: %+v, %v", query, u, err)
		}
	}
	u, err := in.parse("name=a&from=1799999990&until=1799999990", "")
	if err != nil || !u.from.Equal(u.until) || u.from.Unix() != 1799999990 {
		t.Errorf("%+v, %v", u, err)
	}
	if _, err := in.parse("name=a&from=1799999991&until=1799999990", ""); err == nil {
		t.Error("until is before from")
	}
	for contentType, want := range map[string]string{"multipart/form-data; boundary=x": "pprof", "text/plain": "", "": ""} {
		if u, err := in.parse("name=a", contentType); err != nil || u.format != want {
			t.Errorf("%s: %+v, %v", contentType, u, err)
		}
	}
	if u, err := in.parse("name=a&format=lines", "multipart/form-data; boundary=x"); err != nil || u.format != "lines" {
		t.Errorf("%+v, %v", u, err)
	}
}

func TestDecompressed_UpToTheLimit(t *testing.T) {
	for n, want := range map[int]bool{99: true, 100: true, 101: false} {
		out, err := decompressed(bomb(t, n), 100)
		var limit *LimitError
		if (err == nil) != want || want && len(out) != n || !want && (!errors.As(err, &limit) || limit.Reason != "profile_size") {
			t.Errorf("%d bytes: %d, %v", n, len(out), err)
		}
	}
	for _, b := range [][]byte{nil, {0x1F}, []byte("plain")} {
		if out, err := decompressed(b, 1); err != nil || !bytes.Equal(out, b) {
			t.Errorf("%q: %q, %v", b, out, err)
		}
	}
	for _, b := range [][]byte{{0x1F, 0x8B}, bomb(t, 50)[:15]} {
		if _, err := decompressed(b, 100); !errors.Is(err, profiles.ErrBadRequest) || !strings.Contains(err.Error(), "gzip: ") {
			t.Errorf("%q: %v", b, err)
		}
	}
}

func TestProfiles_OfAJob(t *testing.T) {
	yes, no := true, false
	list := func(interval time.Duration, pprof map[string]*ProfileConfig) (map[string]profileSpec, error) {
		j := &JobConfig{JobName: "j", ScrapeInterval: model.Duration(interval), Profiling: ProfilingConfig{Pprof: pprof}}
		found, err := j.profiles()
		byKey := map[string]profileSpec{}
		for _, f := range found {
			byKey[f.key] = f
		}
		return byKey, err
	}
	got, err := list(15*time.Second, nil)
	if err != nil || len(got) != 5 || got["process_cpu"].seconds != 14 || got["process_cpu"].delta || !got["memory"].delta || got["memory"].seconds != 0 || got["goroutine"].delta || got["goroutine"].name != "goroutines" {
		t.Errorf("%+v, %v", got, err)
	}
	for interval, want := range map[time.Duration]int{time.Second: 1, 1999 * time.Millisecond: 1, 2 * time.Second: 1, 3 * time.Second: 2} {
		if got, err := list(interval, nil); err != nil || got["process_cpu"].seconds != want {
			t.Errorf("%s: %+v, %v", interval, got["process_cpu"], err)
		}
	}
	got, err = list(15*time.Second, map[string]*ProfileConfig{
		"memory": {Delta: &no}, "goroutine": {Delta: &yes, Enabled: &yes}, "mutex": {Enabled: &no}, "block": {Seconds: 15}, "process_cpu": {Delta: &yes, Seconds: 5, Path: "/cpu"}, "own": {Path: "/own"},
	})
	if err != nil || len(got) != 5 || got["memory"].delta || !got["goroutine"].delta || got["block"].delta || got["block"].seconds != 15 || got["process_cpu"].delta || got["process_cpu"].seconds != 5 || got["process_cpu"].path != "/cpu" || got["own"].name != "own" {
		t.Errorf("%+v, %v", got, err)
	}
	for want, c := range map[string]map[string]*ProfileConfig{
		`path "" does not begin with a slash`: {"own": nil}, `path "x" does not begin`: {"memory": {Path: "x"}}, `profile "a-b" contains`: {"a-b": {Path: "/x"}}, "16 seconds are not between": {"memory": {Seconds: 16}}, "-1 seconds are not": {"memory": {Seconds: -1}},
	} {
		if _, err := list(15*time.Second, c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

func TestParseConfig_IntervalsOfJobs(t *testing.T) {
	job := func(text string) *JobConfig {
		t.Helper()
		cfg, err := parseConfig([]byte(text))
		if err != nil {
			t.Fatal(text, err)
		}
		return cfg.Jobs[0]
	}
	if j := job("scrape_configs: [{job_name: a}]"); time.Duration(j.ScrapeInterval) != 15*time.Second || time.Duration(j.ScrapeTimeout) != 10*time.Second || j.Scheme != "http" {
		t.Errorf("%+v", j)
	}
	if j := job("global: {scrape_interval: 5s, scrape_timeout: 7s}\nscrape_configs: [{job_name: a, scheme: https}]"); time.Duration(j.ScrapeInterval) != 5*time.Second || j.scrapeConfig().ScrapeTimeout != j.ScrapeInterval || j.scrapeConfig().Scheme != "https" || j.scrapeConfig().MetricsPath != "/" {
		t.Errorf("%+v", j)
	}
	if j := job("scrape_configs: [{job_name: a, scrape_interval: 1s, scrape_timeout: 500ms, profiling_config: {path_prefix: /p}}]"); time.Duration(j.ScrapeInterval) != time.Second || time.Duration(j.scrapeConfig().ScrapeTimeout) != 500*time.Millisecond || j.scrapeConfig().MetricsPath != "/p" {
		t.Errorf("%+v", j)
	}
	for text, want := range map[string]string{
		"scrape_configs: [{job_name: a, scrape_interval: 999ms}]":                     "shorter than a second",
		"scrape_configs: [{job_name: a}, {job_name: a}]":                              `duplicate job "a"`,
		"scrape_configs: [null]":                                                      "scrape_configs[0] is empty",
		"scrape_configs: [{scheme: http}]":                                            "job_name is empty",
		"scrape_configs: [{job_name: a, scheme: ftp}]":                                `scheme "ftp"`,
		"scrape_configs: [{job_name: a, bearer_token: x, basic_auth: {username: y}}]": `job "a": `,
		"scrape_configs: [{job_name: a, relabel_configs: [null]}]":                    `job "a": relabel_configs[0]`,
	} {
		if _, err := parseConfig([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestSelf_WithoutAProfilerHasNoCurrentSlice(t *testing.T) {
	var none *Self
	if id, ok := none.Current(); ok || id != (profiles.ID{}) {
		t.Errorf("%v, %v", id, ok)
	}
	in, _ := newIngester(t, Limits{})
	s := NewSelf(SelfOptions{}, in, slog.New(slog.DiscardHandler))
	if err := s.state(context.Background(), "no such profile", "x", now); err == nil {
		t.Error("an unknown runtime profile is no error")
	}
	s.profiler <- struct{}{} // in use
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	w := httptest.NewRecorder()
	s.ServeCPU(w, httptest.NewRequest(http.MethodGet, "/", nil).WithContext(ctx))
	if w.Body.Len() != 0 || len(s.endSlice) != 1 {
		t.Errorf("%q", w.Body)
	}
	s.Run(ctx)
}

func TestSelf_RequestedCPUProfileReleasesTheProfiler(t *testing.T) {
	in, _ := newIngester(t, Limits{})
	s := NewSelf(SelfOptions{}, in, slog.New(slog.DiscardHandler))
	s.ServeCPU(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/?seconds=1", nil))
	if len(s.profiler) != 0 {
		t.Error("the profiler is still in use")
	}
}

// decodedValues keeps the first value of every decoded profile of a push.
type decodedValues struct {
	values   []int64
	profiles map[*pprof.Profile]bool
}

func (d *decodedValues) Append(_ context.Context, _ string, batch []profiles.RawProfile) error {
	for _, p := range batch {
		d.values = append(d.values, p.Profile.Values(&p.Profile.Samples[0])[0])
		d.profiles[p.Profile] = true
	}
	return nil
}

func TestPush_ProfilesOfARequestShareNoBuffers(t *testing.T) {
	in, _ := newIngester(t, Limits{})
	store := &decodedValues{profiles: map[*pprof.Profile]bool{}}
	in.store = store
	var pushed []profilepb.RawProfile
	var want []int64
	for i := range int64(20) {
		raw := testProfile(t, func(p *profile.Profile) { p.Sample[0].Value[0] = 100 + i })
		pushed, want = append(pushed, profilepb.RawProfile{Labels: named(), Raw: raw}), append(want, 100+i)
	}
	must(t, in.Push(t.Context(), "a", pushed))
	if !slices.Equal(store.values, want) || len(store.profiles) != len(want) {
		t.Errorf("values %v in %d profiles, want %v", store.values, len(store.profiles), want)
	}
}

func TestPush_DecodedProfilesAreUsedAgain(t *testing.T) {
	const pushes = 100
	old := testProfile(t, func(p *profile.Profile) { p.TimeNanos = now.Add(-1000 * time.Hour).UnixNano() })
	for what, raw := range map[string][]byte{"stored": testProfile(t, nil), "not decoded": []byte("no pprof"), "too old": old} {
		in, _ := newIngester(t, Limits{})
		created := 0
		in.decoded.New = func() any { created++; return &pprof.Profile{} }
		for range pushes {
			err := in.Push(t.Context(), "a", []profilepb.RawProfile{{Labels: named(), Raw: raw}})
			if (err == nil) != (what == "stored") {
				t.Fatalf("%s: %v", what, err)
			}
		}
		if created == 0 || created == pushes { // the pool may drop some, but not all
			t.Errorf("%s: %d profiles are created in %d pushes", what, created, pushes)
		}
	}
}
