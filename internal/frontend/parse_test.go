package frontend

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ferula-io/ferula/internal/frontend/downstream"
	"github.com/ferula-io/ferula/internal/frontend/limit"
	"github.com/ferula-io/ferula/promjson"
)

func TestParseTime_IsThatOfPrometheus(t *testing.T) {
	for text, want := range map[string]int64{
		"0": 0, "1": 1000, "1.5": 1500, "-1.5": -1500, "1.0004": 1000, "1.0006": 1001, "1e3": 1_000_000, "1e15": 1e18, "-1e15": -1e18,
		"1970-01-01T00:00:01Z": 1000, "1970-01-01T00:00:01.25+00:00": 1250,
	} {
		got, err := parseTime(text)
		check(t, err == nil && got == want, "%s: %d, %v, want %d", text, got, err, want)
	}
	for _, text := range []string{"", "x", "NaN", "Inf", "-Inf", "1.1e15", "-1.1e15", "1970-01-01", "1m"} {
		got, err := parseTime(text)
		check(t, errors.Is(err, errNotSplittable), "%s: %d, %v", text, got, err)
	}
}

func TestParseDuration_IsThatOfPrometheus(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"0": 0, "1": time.Second, "0.5": time.Second / 2, "-1": -time.Second, "1m": time.Minute, "1h30m": 90 * time.Minute, "1d": 24 * time.Hour, "9223372036": 9223372036 * time.Second,
	} {
		got, err := parseDuration(text)
		check(t, err == nil && got == want, "%s: %s, %v, want %s", text, got, err, want)
	}
	for _, text := range []string{"", "x", "NaN", "Inf", "-Inf", "9223372037", "-9223372037", "1x"} {
		got, err := parseDuration(text)
		check(t, errors.Is(err, errNotSplittable), "%s: %s, %v", text, got, err)
	}
}

func TestSeconds_HaveThreeDigitsOrNone(t *testing.T) {
	for ms, want := range map[int64]string{0: "0", 1: "0.001", -1: "-0.001", 999: "0.999", 1000: "1", -1000: "-1", -1500: "-1.500", 1_700_000_000_120: "1700000000.120"} {
		check(t, seconds(ms) == want, "%d: %s, want %s", ms, seconds(ms), want)
	}
}

// rangeParams is a query of a range.
func rangeParams(start, end, step string) query {
	return query{params: url.Values{"start": {start}, "end": {end}, "step": {step}}}
}

func TestRangeOf_QueriesThatCanBeSplit(t *testing.T) {
	for _, tt := range []struct {
		start, end, step string
		want             stepRange // without a step: not splittable
	}{
		{"0", "10", "1", stepRange{StartMS: 0, EndMS: 10_000, StepMS: 1000}},
		{"0", "10.5", "1", stepRange{StartMS: 0, EndMS: 10_000, StepMS: 1000}},
		{"5", "5", "0.001", stepRange{StartMS: 5000, EndMS: 5000, StepMS: 1}},
		{"0", "11000", "1", stepRange{StartMS: 0, EndMS: 11_000_000, StepMS: 1000}},
		{"0", "11000.999", "1", stepRange{StartMS: 0, EndMS: 11_000_000, StepMS: 1000}},
		{"0", "11001", "1", stepRange{}},
		{"1000", "12000", "1", stepRange{StartMS: 1_000_000, EndMS: 12_000_000, StepMS: 1000}},
		{"", "10", "1", stepRange{}},
		{"0", "", "1", stepRange{}},
		{"0", "10", "", stepRange{}},
		{"0", "10", "0", stepRange{}},
		{"0", "10", "-1", stepRange{}},
		{"0", "10", "0.0005", stepRange{}},
		{"0", "10", "0.0015", stepRange{}},
		{"10", "0", "1", stepRange{}},
	} {
		got, err := rangeParams(tt.start, tt.end, tt.step).rangeOf()
		check(t, got == tt.want && errors.Is(err, errNotSplittable) == (tt.want.StepMS == 0), "%+v: %+v, %v", tt, got, err)
	}
}

func TestCheckRange_AppliesToRangesThatAreNotSplit(t *testing.T) {
	limits := limit.Query{LengthMax: 10 * time.Second, PointsMax: 100}
	for _, tt := range []struct {
		start, end, step string
		ok               bool
	}{
		{"0", "10", "1", true}, {"0", "10.001", "1", false}, {"0", "0.1", "0.001", false}, {"0", "0.099", "0.001", true},
		{"0", "0.1", "0.0005", false}, {"0", "0.099", "0.0005", true}, {"0", "11", "0", false}, {"0", "11", "", false}, {"0", "11", "-1", false},
		{"0", "10", "0", true}, {"0", "10", "x", true}, {"x", "11", "1", true}, {"0", "x", "1", true}, {"5", "4", "1", true},
	} {
		err := rangeParams(tt.start, tt.end, tt.step).checkRange(limits)
		check(t, (err == nil) == tt.ok && (err == nil || errors.Is(err, limit.ErrLimit)), "%+v: %v", tt, err)
	}
}

func TestAligned_MovesBackToMultiplesOfTheStep(t *testing.T) {
	q, r, err := rangeParams("65", "131", "30").aligned(30_000)
	check(t, err == nil && r == stepRange{StartMS: 60_000, EndMS: 120_000, StepMS: 30_000}, "%+v, %v", r, err)
	check(t, q.params.Get("start") == "60" && q.params.Get("end") == "120" && q.params.Get("step") == "30", "%v", q.params)
	for _, bad := range []query{rangeParams("x", "131", "30"), rangeParams("65", "x", "30"), rangeParams("65", "131", "x")} {
		_, _, err := bad.aligned(30_000)
		check(t, err != nil, "%v", bad.params)
	}
}

func TestBounds_OfRequestsForLabels(t *testing.T) {
	now := time.UnixMilli(10_000_500)
	for _, tt := range []struct {
		start, end string
		from, to   int64
		fails      bool
	}{
		{"", "", 9_000_500, 10_000_500, false}, {"1", "", 1000, 10_000_500, false}, {"", "5000", 4_000_000, 5_000_000, false},
		{"1", "2", 1000, 2000, false}, {"2", "2", 2000, 2000, false}, {"3", "2", 0, 0, true}, {"x", "2", 0, 0, true}, {"1", "x", 0, 0, true},
	} {
		params := url.Values{}
		for name, value := range map[string]string{"start": tt.start, "end": tt.end} {
			if value != "" {
				params.Set(name, value)
			}
		}
		from, to, err := query{params: params}.bounds(now, 1000*time.Second)
		check(t, from == tt.from && to == tt.to && (err != nil) == tt.fails, "%+v: %d, %d, %v", tt, from, to, err)
	}
}

func TestLookback_IsZeroIfItIsInvalid(t *testing.T) {
	for text, want := range map[string]time.Duration{"": 0, "x": 0, "5m": 5 * time.Minute, "1.5": 1500 * time.Millisecond} {
		got := query{params: url.Values{"lookback_delta": {text}}}.lookback()
		check(t, got == want, "%q: %s, want %s", text, got, want)
	}
}

func TestWithRange_LeavesTheQueryAsItIs(t *testing.T) {
	q := rangeParams("0", "10", "1")
	other := q.withRange(5000, 6000)
	check(t, q.params.Get("start") == "0" && q.params.Get("end") == "10", "%v", q.params)
	check(t, other.params.Get("start") == "5" && other.params.Get("end") == "6" && other.params.Get("step") == "1", "%v", other.params)
}

func TestAcceptsJSON_TheMostSpecificMediaRangeDecides(t *testing.T) {
	for accept, want := range map[string]bool{
		"": true, ",": true, "application/json": true, "APPLICATION/JSON": true, "text/html": false, "*/*": true, "application/*": true,
		"*/*;q=0": false, "application/json;q=0": false, "application/json; Q = 0.0": false, "application/json;q=0.1": true, "application/json;charset=x;q=0": false,
		"application/json;q=x": true, "*/*, application/json;q=0": false, "application/json;q=0, */*": false, "*/*;q=0, application/json": true,
		"application/json, */*;q=0": true, "application/*;q=0, */*": false, "text/html, application/json": true,
	} {
		check(t, acceptsJSON([]string{accept}) == want, "%q: %v", accept, !want)
	}
	check(t, acceptsJSON(nil), "without a header")
	check(t, acceptsJSON([]string{"text/html", "application/json"}), "two lines")
}

func TestAsJSON_RequestsJSONAlone(t *testing.T) {
	header := http.Header{"Accept": {"text/html, */*"}, "X-A": {"b"}}
	q, ok := query{header: header}.asJSON()
	check(t, ok && q.header.Get("Accept") == "application/json" && q.header.Get("X-A") == "b" && header.Get("Accept") == "text/html, */*", "%v, %v, %v", ok, q.header, header)
	q, ok = query{}.asJSON()
	check(t, ok && q.header.Get("Accept") == "application/json", "%v, %v", ok, q.header)
	_, ok = query{header: http.Header{"Accept": {"text/html"}}}.asJSON()
	check(t, !ok, "HTML is JSON")
}

func TestHeaderHash_OmitsWhatDoesNotChangeAResponse(t *testing.T) {
	hash := func(h http.Header) string { return query{header: h}.headerHash() }
	check(t, hash(nil) == "" && hash(http.Header{"Accept": {"a"}, "User-Agent": {"b"}}) == "", "neutral headers have a hash")
	seen := map[string]bool{}
	for _, h := range []http.Header{
		{"Cookie": {"a"}}, {"Cookie": {"b"}}, {"Cookie": {"a", "b"}}, {"Cookie": {"ab"}}, {"Cooki": {"ea"}}, {"Cookie": {"a"}, "Authorization": {"b"}}, {"Cookie": {}},
	} {
		sum := hash(h)
		check(t, len(sum) == 32 && !seen[sum], "%v: %q", h, sum)
		seen[sum] = true
	}
	check(t, hash(http.Header{"A": {"1"}, "B": {"2"}, "C": {"3"}, "Accept": {"x"}}) == hash(http.Header{"C": {"3"}, "B": {"2"}, "A": {"1"}}), "the order of headers matters")
}

func TestKeyBuilder_ListsOfStringsHaveDifferentKeys(t *testing.T) {
	seen := map[string]bool{}
	for _, lists := range [][][]string{{{"a"}}, {{"a", ""}}, {{"a"}, {}}, {{"ab", "c"}}, {{"a", "bc"}}, {{"a:", "b"}}, {{"1:a"}}, {{"a", "b", "c"}}, {{"a", "b"}, {"c"}}} {
		var k keyBuilder
		for _, list := range lists {
			k.list("n", list)
		}
		check(t, !seen[k.String()], "%q: %q", lists, k.String())
		seen[k.String()] = true
	}
}

func TestKindOf_Endpoints(t *testing.T) {
	for path, want := range map[string]string{
		"/api/v1/query_range": "range", "/prefix/api/v1/query_range": "range", "/api/v1/query": "instant", "/api/v1/labels": "labels", "/api/v1/series": "labels",
		"/api/v1/label/a/values": "labels", "/api/v1/label/a": "other", "/api/v1/xlabel/a/values": "other", "/api/v1/metadata": "other", "/graph": "other", "/query_range": "other", "/api/v1/query_rangex": "other",
	} {
		check(t, kindOf(path).String() == want, "%s: %s, want %s", path, kindOf(path), want)
	}
}

func TestClassify_StatusAndTypeOfEveryError(t *testing.T) {
	for _, tt := range []struct {
		err    error
		status int
		kind   string
	}{
		{badRequest(io.EOF), 400, "bad_data"}, {&statusError{418, "x", io.EOF}, 418, "x"}, {context.Canceled, 499, "canceled"}, {context.DeadlineExceeded, 504, "timeout"},
		{downstream.ErrTimeout, 504, "timeout"}, {limit.ErrQueueFull, 429, "unavailable"}, {limit.ErrTenants, 429, "unavailable"}, {limit.ErrWait, 503, "timeout"},
		{limit.ErrTenant, 400, "bad_data"}, {limit.ErrLimit, 422, "execution"}, {downstream.ErrLimit, 422, "execution"}, {errResponseTooLarge, 422, "execution"},
		{downstream.ErrRequest, 400, "bad_data"}, {downstream.ErrUnavailable, 502, "internal"}, {downstream.ErrChanged, 502, "internal"}, {downstream.ErrCorrupt, 502, "internal"},
		{promjson.ErrSyntax, 502, "internal"}, {promjson.ErrLimit, 502, "internal"}, {promjson.ErrOverlap, 502, "internal"}, {io.ErrUnexpectedEOF, 502, "internal"},
		{&promjson.PartError{}, 502, "internal"}, {errors.New("else"), 500, "internal"},
	} {
		errs := []error{tt.err}
		if !errors.As(tt.err, new(*promjson.PartError)) { // its text needs a reason
			errs = append(errs, fmt.Errorf("wrapped: %w", tt.err))
		}
		for _, err := range errs {
			e := classify(err)
			check(t, e.status == tt.status && e.kind == tt.kind && errors.Is(e, tt.err), "%v: %d %s %v", err, e.status, e.kind, e)
		}
	}
}

func TestPartFailed_KeepsErrorsOfTheDownstream(t *testing.T) {
	f := &Frontend{}
	for kind, want := range map[string]int{"bad_data": 400, "execution": 422, "canceled": 499, "timeout": 503, "not_found": 404, "internal": 500, "": 500} {
		err := f.partFailed(fmt.Errorf("part 1: %w", &promjson.APIError{Status: "error", Type: kind, Message: "why"}))
		var e *statusError
		check(t, errors.As(err, &e) && e.status == want && e.kind == kind && e.Error() == "why", "%s: %v", kind, err)
	}
	for _, err := range []error{io.EOF, &promjson.APIError{Status: "success", Type: "timeout"}} {
		got := f.partFailed(err)
		check(t, errors.Is(got, err) && !errors.As(got, new(*statusError)), "%v", err)
	}
}

func TestCacheState_OfPartsFromCacheAndDownstream(t *testing.T) {
	for want, n := range map[string][2]int{"hit": {1, 0}, "partial": {1, 1}, "miss": {0, 1}} {
		check(t, cacheState(n[0], n[1]) == want, "%v: %s", n, cacheState(n[0], n[1]))
	}
	check(t, cacheState(0, 0) == "hit", "nothing to fetch: %s", cacheState(0, 0))
}

func TestCacheable_OnlyCompleteResponses(t *testing.T) {
	for _, tt := range []struct {
		a    partAnnotations
		want bool
	}{
		{partAnnotations{}, true}, {partAnnotations{Partial: true}, false}, {partAnnotations{Warnings: []string{"PromQL warning: x"}}, true},
		{partAnnotations{Warnings: []string{"PromQL warning: x", "store is down"}}, false}, {partAnnotations{Warnings: []string{"PromQL"}}, false},
	} {
		check(t, cacheable(tt.a) == tt.want, "%+v: %v", tt.a, !tt.want)
	}
}

// Parts of a list are cached if their bounds recur: those of intervals and of minutes.
func TestListParts_BoundsThatRecur(t *testing.T) {
	f := &Frontend{opts: Options{Labels: LabelOptions{Interval: 90 * time.Second}}}
	for _, tt := range []struct {
		start, end int64
		want       bool
	}{
		{0, 89_999, true}, {90_000, 179_999, true}, {60_000, 119_999, true}, {60_000, 120_000, true}, {60_000, 119_000, true}, {90_000, 120_000, true},
		{60_001, 120_000, false}, {59_999, 120_000, false}, {60_000, 119_998, false}, {60_000, 120_001, false}, {60_000, 118_999, false}, {60_000, 118_000, false}, {61_000, 119_999, false},
		{60_000, 90_000, false}, {60_000, 89_999, true}, {60_000, 89_998, false},
	} {
		got := f.requestedAgain(stepRange{StartMS: tt.start, EndMS: tt.end, StepMS: 1})
		check(t, got == tt.want, "%+v: %v", tt, got)
	}
}

func TestListParts_OnlyListsThatCannotChangeAreCached(t *testing.T) {
	const minute = 60_000
	f := &Frontend{opts: Options{Now: func() time.Time { return time.UnixMilli(10 * minute) }, Labels: LabelOptions{Interval: 2 * time.Minute, MaxFreshness: time.Minute, Parallelism: 10}}}
	describe := func(parts []listPart) (text string) {
		for _, p := range parts {
			text += fmt.Sprintf("%d-%d %v, ", p.StartMS, p.EndMS, p.cached)
		}
		return text
	}
	for _, tt := range []struct {
		start, end int64
		useCache   bool
		whole      bool
		want       string
	}{
		{0, 4*minute - 1, true, false, "0-119999 true, 120000-239999 true, "},
		{0, 4*minute - 1, false, false, "0-119999 false, 120000-239999 false, "},
		{8 * minute, 9 * minute, true, false, "480000-540000 true, "},
		{8 * minute, 9*minute + 1, true, false, "480000-540001 false, "},
		{8 * minute, 10*minute - 1, true, false, "480000-599999 false, "},
		{5000, 4*minute + 5000, true, false, "5000-119999 false, 120000-239999 true, 240000-245000 false, "},
		{5000, 4*minute + 5000, true, true, "0-119999 true, 120000-239999 true, 240000-359999 true, "},
		{5000, 8*minute + 5000, true, true, "0-119999 true, 120000-239999 true, 240000-359999 true, 360000-479999 true, 480000-485000 false, "},
		{5000, 4*minute + 5000, false, true, "5000-119999 false, 120000-239999 false, 240000-245000 false, "},
	} {
		f.opts.Labels.WholeIntervals = tt.whole
		got := describe(f.listParts(tt.start, tt.end, tt.useCache))
		check(t, got == tt.want, "%+v: %s", tt, got)
	}
	// The last instant of a whole interval is the last that cannot change.
	f.opts.Now, f.opts.Labels.WholeIntervals = func() time.Time { return time.UnixMilli(7*minute - 1) }, true
	got := describe(f.listParts(5*minute, 5*minute+1000, true))
	check(t, got == "240000-359999 true, ", "at the end of the interval: %s", got)
	f.opts.Now = func() time.Time { return time.UnixMilli(7*minute - 2) }
	got = describe(f.listParts(5*minute, 5*minute+1000, true))
	check(t, got == "300000-301000 false, ", "before the end of the interval: %s", got)
	f.opts.Labels.Interval = 0
	got = describe(f.listParts(5, 7, true))
	check(t, got == "5-7 false, ", "without an interval: %s", got)
	f.opts.Labels.Interval, f.opts.Labels.Parallelism = 2*time.Minute, 1
	got = describe(f.listParts(5, 7*minute, true))
	check(t, got == "5-420000 false, ", "one part: %s", got)
}

func TestReadEmpty_FindsResponsesWithoutSeries(t *testing.T) {
	const none, some = `{"status":"success","data":{"resultType":"matrix","result":[]}}`, `{"data":{"result":[{"metric":{}}]}}`
	for text, want := range map[string]bool{
		none: true, some: false, "": false, `{"data":{"result":[`: false, `{"data":`: false, none + strings.Repeat(" ", 20_000): true, none + strings.Repeat(" ", emptyMaxBytes): false,
	} {
		for _, size := range []int{1, 7, 1 << 20} {
			read, empty, err := readEmpty(&smallReads{r: strings.NewReader(text), n: size})
			check(t, err == nil && empty == want && strings.HasPrefix(text, string(read)) && (!empty || len(read) == len(text)), "%.60q in pieces of %d: %v, %d bytes, %v", text, size, empty, len(read), err)
		}
	}
	_, empty, err := readEmpty(io.MultiReader(strings.NewReader(none), failingReader{}))
	check(t, errors.Is(err, io.ErrNoProgress) && !empty, "%v, %v", empty, err)
	read, empty, err := readEmpty(io.MultiReader(strings.NewReader(some), failingReader{}))
	check(t, err == nil && !empty && string(read) == some, "%q, %v, %v", read, empty, err)
}

// smallReads returns at most n bytes at once.
type smallReads struct {
	r io.Reader
	n int
}

func (s *smallReads) Read(p []byte) (int, error) { return s.r.Read(p[:min(len(p), s.n)]) }

type failingReader struct{}

func (failingReader) Read([]byte) (int, error) { return 0, io.ErrNoProgress }

func TestRemembered_AllAreForgottenAtTheLimit(t *testing.T) {
	r := remembered[int, string]{max: 10}
	for i := range r.max {
		r.put(i, "a")
	}
	r.put(0, "b")
	zero, _ := r.get(0)
	_, ok := r.get(r.max)
	check(t, len(r.values) == r.max && zero == "b" && !ok, "%v", r.values)
	r.put(r.max, "c")
	check(t, len(r.values) == 1 && r.values[r.max] == "c", "%v", r.values)
}

func TestConcurrently_CallsEachOnceUntilOneReturnsFalse(t *testing.T) {
	for _, n := range []int{0, 1, 2, lookupConcurrency, 100} {
		calls := make(chan int, 1000)
		concurrently(n, func(i int) bool { calls <- i; return true })
		close(calls)
		var got []int
		for i := range calls {
			got = append(got, i)
		}
		slices.Sort(got)
		check(t, len(got) == n && (n == 0 || got[0] == 0 && got[n-1] == n-1), "%d: %v", n, got)
	}
	calls := make(chan int, 1000)
	concurrently(1000, func(i int) bool { calls <- i; return false })
	check(t, len(calls) <= lookupConcurrency, "%d calls after the first has returned false", len(calls))
}

func TestOptions_ValidateNamesEachFault(t *testing.T) {
	d, c := &downstream.Client{}, newMemoryCache()
	defer c.Close()
	for _, tt := range []struct {
		name string
		opts Options
		want string // "": none
	}{
		{"least", Options{Downstream: d}, ""},
		{"no downstream", Options{}, "no downstream"},
		{"parallelism", Options{Downstream: d, Parallelism: -1}, "max-query-parallelism"},
		{"parallelism of labels", Options{Downstream: d, Labels: LabelOptions{Parallelism: -1}}, "max-query-parallelism"},
		{"a cache without intervals", Options{Downstream: d, Cache: c}, "query-range.split-interval"},
		{"a cache", Options{Downstream: d, Cache: c, Split: SplitOptions{Interval: 1}}, ""},
		{"a cache with dynamic intervals", Options{Downstream: d, Cache: c, Split: SplitOptions{MinInterval: 1, MaxInterval: 2, HorizontalShards: 2}}, ""},
		{"labels without intervals", Options{Downstream: d, LabelCache: c}, "labels.split-interval"},
		{"labels", Options{Downstream: d, LabelCache: c, Labels: LabelOptions{Interval: 1}}, ""},
		{"intervals", Options{Downstream: d, Split: SplitOptions{Interval: -1}}, "split intervals"},
		{"tenants", Options{Downstream: d, Tenants: limit.Tenants{Default: "a/b"}}, "default-tenant-id"},
	} {
		err := tt.opts.Validate()
		check(t, (err == nil) == (tt.want == "") && (err == nil || strings.Contains(err.Error(), tt.want) && !strings.Contains(err.Error(), "\n")), "%s: %v", tt.name, err)
	}
	_, err := New(Options{Parallelism: -1})
	check(t, err != nil && strings.Contains(err.Error(), "no downstream") && strings.Contains(err.Error(), "parallelism"), "%v", err)
	o := Options{Parallelism: 9, Labels: LabelOptions{Parallelism: 2}, Slots: slotsOf(t, 5)}.withDefaults()
	check(t, o.Parallelism == 5 && o.Labels.Parallelism == 2, "%d and %d parts at 5 slots", o.Parallelism, o.Labels.Parallelism)
	o = Options{Slots: slotsOf(t, 5)}.withDefaults()
	check(t, o.Parallelism == 5 && o.Labels.Parallelism == 5, "%d and %d parts at 5 slots", o.Parallelism, o.Labels.Parallelism)
}
