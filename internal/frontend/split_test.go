package frontend

import (
	"github.com/prometheus/prometheus/promql/parser"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

func randomRange(r *rand.Rand) stepRange {
	step := r.Int64N(100_000) + 1
	start := r.Int64N(4_000_000_000) - 2_000_000_000
	got, err := newRange(start, start+r.Int64N(3_000_000_000), step)
	if err != nil {
		panic(err)
	}
	return got
}

func TestPlan_PartsCoverAllSteps(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		whole := randomRange(r)
		interval := time.Duration(r.Int64N(1_000_000_000)+1_000_000) * time.Millisecond
		next, last := whole.StartMS, int64(math.MinInt64)
		for _, p := range splitAt(whole, interval) {
			check(t, p.StartMS == next && p.EndMS >= p.StartMS, "%+v: part %+v does not begin at %d", whole, p, next)
			check(t, (p.EndMS-p.StartMS)%whole.StepMS == 0, "%+v does not end at a step", p)
			check(t, floorDiv(p.StartMS, interval.Milliseconds()) == p.Index && floorDiv(p.EndMS, interval.Milliseconds()) == p.Index, "%+v leaves its interval", p)
			check(t, p.Index > last, "index %d after %d", p.Index, last)
			check(t, p.StepOffset() == whole.StepOffset(), "step offsets %d and %d", p.StepOffset(), whole.StepOffset())
			next, last = p.EndMS+whole.StepMS, p.Index
		}
		check(t, next == whole.EndMS+whole.StepMS, "%+v: parts end at %d", whole, next)
	}
}

func TestWiden_IsTheShortestIntervalWithinTheLimit(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 20_000 {
		whole := randomRange(r)
		interval := time.Duration(r.Int64N(10_000_000)+1_000_000) * time.Millisecond
		limit := r.IntN(20) + 2
		wide := widen(whole, interval, limit)
		check(t, wide%interval == 0, "%s is not a multiple of %s", wide, interval)
		check(t, len(splitAt(whole, wide)) <= limit, "%d parts, at limit %d", len(splitAt(whole, wide)), limit)
		if wide > interval {
			// One multiple less would be too many intervals (some may hold no step).
			shorter := (wide - interval).Milliseconds()
			pieces := floorDiv(whole.EndMS, shorter) - floorDiv(whole.StartMS, shorter) + 1
			check(t, pieces > int64(limit), "%s would do, got %s", wide-interval, wide)
		}
	}
	check(t, widen(stepRange{0, 1000, 1}, time.Millisecond, 1) == 0, "one part is no split")
}

func TestRange_ClipAndWithoutKeepTheSteps(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for range 5_000 {
		step := r.Int64N(50) + 1
		start := r.Int64N(1000) - 500
		whole, err := newRange(start, start+r.Int64N(2000), step)
		check(t, err == nil, "%v", err)
		taken := map[int64]bool{}
		var parts []stepRange
		for at := whole.StartMS; at <= whole.EndMS; {
			length := r.Int64N(5)
			if r.IntN(2) == 0 {
				p := stepRange{at, min(at+length*step, whole.EndMS), step}
				parts = append(parts, p)
				for x := p.StartMS; x <= p.EndMS; x += step {
					taken[x] = true
				}
			}
			at += (length + 1) * step
		}
		for _, gap := range whole.Without(parts) {
			for x := gap.StartMS; x <= gap.EndMS; x += step {
				check(t, !taken[x], "%d is in a gap and in a part", x)
				taken[x] = true
			}
		}
		steps := (whole.EndMS-whole.StartMS)/whole.StepMS + 1
		check(t, int64(len(taken)) == steps, "%d of %d steps", len(taken), steps)

		from, to := start+r.Int64N(3000)-500, start+r.Int64N(3000)-500
		part, ok := whole.Clip(from, to)
		var want []int64
		for x := whole.StartMS; x <= whole.EndMS; x += step {
			if x >= from && x <= to {
				want = append(want, x)
			}
		}
		check(t, ok == (len(want) > 0), "clip %+v to %d..%d: %v", whole, from, to, ok)
		if ok {
			check(t, part.StartMS == want[0] && part.EndMS == want[len(want)-1], "clip %+v to %d..%d: %+v", whole, from, to, part)
		}
	}
}

func TestOptions_IntervalForIsThatOfThanos(t *testing.T) {
	hours := func(n int64) stepRange { return stepRange{0, n * 3600_000, 15_000} }
	dynamic := SplitOptions{MinInterval: time.Hour, MaxInterval: 24 * time.Hour, HorizontalShards: 4}
	for _, tt := range []struct {
		opts SplitOptions
		r    stepRange
		want time.Duration
	}{
		{SplitOptions{Interval: 24 * time.Hour}, hours(1), 24 * time.Hour},
		{SplitOptions{}, hours(1), 0},
		{dynamic, hours(1), time.Hour},
		{dynamic, hours(2), 30 * time.Minute},
		{dynamic, hours(47), 47 * time.Hour / 4},
		{dynamic, hours(48), 24 * time.Hour},
		{dynamic, hours(72), 24 * time.Hour},
		{dynamic, hours(720), 24 * time.Hour},
	} {
		check(t, tt.opts.IntervalFor(tt.r) == tt.want, "%+v over %+v: %s, want %s", tt.opts, tt.r, tt.opts.IntervalFor(tt.r), tt.want)
	}
	for _, bad := range []SplitOptions{
		{Interval: time.Hour, MinInterval: time.Hour},
		{MinInterval: time.Hour, MaxInterval: 2 * time.Hour},
		{MinInterval: time.Hour, HorizontalShards: 4},
		{MinInterval: 2 * time.Hour, MaxInterval: time.Hour, HorizontalShards: 4},
		{Interval: -1},
	} {
		check(t, bad.Validate() != nil, "%+v is accepted", bad)
	}
	check(t, dynamic.Validate() == nil && SplitOptions{Interval: 1}.Validate() == nil && SplitOptions{}.Validate() == nil, "good options are refused")
}

func TestNewRange_InvalidRangesAreRejected(t *testing.T) {
	for _, r := range []stepRange{{0, 10, 0}, {0, 10, -1}, {10, 0, 1}} {
		_, err := newRange(r.StartMS, r.EndMS, r.StepMS)
		check(t, err != nil, "%+v is accepted", r)
	}
	r, err := newRange(5, 7, 1)
	check(t, err == nil && r == stepRange{5, 7, 1}, "the shortest step: %+v %v", r, err)
	r, err = newRange(5, 27, 10)
	check(t, err == nil && r == stepRange{5, 25, 10}, "%+v %v", r, err)
}

func TestTraitsOf_Expressions(t *testing.T) {
	p := parser.NewParser(parser.Options{EnableExperimentalFunctions: true, ExperimentalDurationExpr: true, EnableExtendedRangeSelectors: true, EnableBinopFillModifiers: true})
	const none = math.MinInt64
	for query, want := range map[string]exprTraits{
		`up`:                                  {false, none, 0, false},
		`sum by (a) (rate(up[5m] offset 1h))`: {false, none, 0, false},
		`up @ 100`:                            {false, 100_000, 0, false},
		`up @ 100 + rate(up[1m] @ 200)`:       {false, 200_000, 0, false},
		`up @ start()`:                        {true, none, 0, false},
		`rate(up[5m] @ end())`:                {true, none, 0, false},
		`max_over_time(up[1h:1m] @ end())`:    {true, none, 0, false},
		`up offset -1h`:                       {false, none, 3600_000, false},
		`max_over_time((up offset -1h)[2h:] offset -1m)`: {false, none, 3660_000, false},
		`max_over_time((up offset -1h)[2h:] @ 100)`:      {false, 100_000, 3600_000, false},
		`up @ 100 offset -1h`:                            {false, 100_000, 3600_000, false},
		`rate(up[5m] offset -1m30s)`:                     {false, none, 90_000, false},
		`(up offset -1h) + (up offset -2h)`:              {false, none, 3 * 3600_000, false},
		`max_over_time((up offset -1h)[2h:] @ end())`:    {true, none, 3600_000, false},
		`up smoothed`:                            {false, none, 0, true},
		`rate(up[5m] smoothed @ 100 offset -1m)`: {false, 100_000, 60_000, true},
		`rate(up[5m] anchored)`:                  {false, none, 0, false},
		`up[range()]`:                            {true, none, 0, false},
		`up[range() / 2]`:                        {true, none, 0, false},
		`up[1m + range()]`:                       {true, none, 0, false},
		`up[(1m + range()) * 2]`:                 {true, none, 0, false},
		`rate(up[step()])`:                       {false, none, 0, false},
		`rate(up[max_of(step(), 1m)])`:           {false, none, 0, false},
		`increase(up[5m]) / step()`:              {true, none, 0, false},
		`sort_desc(up)`:                          {true, none, 0, false},
		`end() - start()`:                        {true, none, 0, false},
		`absent_over_time(up[5m]) or vector(0)`:  {false, none, 0, false},
	} {
		got, ok := traitsOf(p, query)
		check(t, ok && got == want, "%s: %+v %v, want %+v", query, got, ok, want)
	}
	got, ok := traitsOf(p, "up offset (1m * 2)")
	check(t, ok && got.LookAheadMS > 1<<40 && !got.Unsplittable, "an offset that only an evaluation knows: %+v %v", got, ok)
	for _, bad := range []string{"", "up{", "nofunction(up)", strings.Repeat("(", 10), strings.Repeat("abs(", 200_000), strings.Repeat("-", 100_000) + "1"} {
		_, ok := traitsOf(p, bad)
		check(t, !ok, "%.20q is parsed", bad)
	}
}

func TestTraits_LastImmutableStep(t *testing.T) {
	p := parser.NewParser(parser.Options{EnableExperimentalFunctions: true, ExperimentalDurationExpr: true, EnableExtendedRangeSelectors: true})
	const now, none = 100_000_000, math.MinInt64
	for _, c := range []struct {
		query    string
		lookback time.Duration
		want     int64
	}{
		{`up`, 0, now},
		{`up offset 1h`, 0, now},
		{`up offset -1h`, 0, now - 3600_000},
		{`up @ 100000`, 0, now},
		{`up @ 100000.001`, 0, none},
		{`up @ 99000 offset -1000s`, 0, now - 1000_000},
		{`up @ 99000 offset -1001s`, 0, none},
		{`up @ 99000 + up offset -1001s`, 0, none}, // cached later than necessary, which is safe
		{`max_over_time((up @ 99000 offset -1h)[2h:])`, 0, none},
		{`max_over_time((up offset -1h)[2h:] @ 97000)`, 0, none},
		{`max_over_time((up offset -1h)[2h:] @ 96400)`, 0, now - 3600_000},
		{`up smoothed`, 0, now - 3600_000},
		{`up smoothed`, 5 * time.Minute, now - 300_000},
		{`increase(up[1m] smoothed @ 99900)`, time.Minute, now - 60_000},
		{`increase(up[1m] smoothed @ 99900)`, 101 * time.Second, none},
		{`up smoothed offset -1m`, time.Minute, now - 120_000},
		{`up anchored`, 0, now},
		{`up offset -200y + up @ 9e15`, 0, none},
		{`up @ 9.1e15`, 0, none},
		{`up @ -9.1e15 offset -290y`, 0, now - 290*365*24*3600_000},
	} {
		traits, ok := traitsOf(p, c.query)
		check(t, ok, "%s is not parsed", c.query)
		got := traits.LastImmutableStep(now, c.lookback)
		check(t, got == c.want, "%s, lookback %s: immutable until %d, want %d", c.query, c.lookback, got, c.want)
	}
	traits, ok := traitsOf(p, strings.Repeat("max_over_time(", 40)+"up"+strings.Repeat("[1m:] offset (1m * -1))", 40))
	check(t, ok && traits.LastImmutableStep(now, 0) < -1<<60, "%+v %v", traits, ok)
}

func TestOptions_TwoShardsAreTheFewest(t *testing.T) {
	for shards, ok := range map[int]bool{1: false, 2: true, 3: true} {
		err := SplitOptions{MinInterval: time.Hour, MaxInterval: 2 * time.Hour, HorizontalShards: shards}.Validate()
		check(t, (err == nil) == ok, "%d shards: %v", shards, err)
	}
}

func TestWiden_WithoutAnIntervalThereIsNoSplit(t *testing.T) {
	for _, interval := range []time.Duration{0, -time.Hour, time.Microsecond} {
		check(t, widen(stepRange{0, 1000, 1}, interval, 5) == 0, "interval %s", interval)
	}
}

func TestOptions_ValidateNamesEveryFault(t *testing.T) {
	for name, tt := range map[string]struct {
		o    SplitOptions
		want []string
	}{
		"none":                 {SplitOptions{}, nil},
		"an interval":          {SplitOptions{Interval: time.Hour}, nil},
		"dynamic":              {SplitOptions{MinInterval: 1, MaxInterval: 2, HorizontalShards: 2}, nil},
		"equal intervals":      {SplitOptions{MinInterval: 2, MaxInterval: 2, HorizontalShards: 2}, nil},
		"no minimum":           {SplitOptions{MaxInterval: 2, HorizontalShards: 2}, []string{"max-split-interval: must be set together"}},
		"no maximum":           {SplitOptions{MinInterval: 2, HorizontalShards: 2}, []string{"max-split-interval: must be set together"}},
		"shards only":          {SplitOptions{HorizontalShards: 2}, []string{"max-split-interval: must be set together"}},
		"one shard":            {SplitOptions{MinInterval: 1, MaxInterval: 2, HorizontalShards: 1}, []string{"horizontal-shards: must be at least 2"}},
		"no shards":            {SplitOptions{MinInterval: 1, MaxInterval: 2}, []string{"horizontal-shards: must be at least 2"}},
		"descending":           {SplitOptions{MinInterval: 3, MaxInterval: 2, HorizontalShards: 2}, []string{"max-split-interval: must not be less"}},
		"both":                 {SplitOptions{Interval: 1, MaxInterval: 2}, []string{"cannot be set together"}},
		"both, with a minimum": {SplitOptions{Interval: 1, MinInterval: 2}, []string{"cannot be set together"}},
		"both, with shards":    {SplitOptions{Interval: 1, HorizontalShards: 2}, []string{"cannot be set together"}},
		"a negative interval":  {SplitOptions{Interval: -1}, []string{"must not be negative"}},
		"a negative minimum":   {SplitOptions{MinInterval: -1, MaxInterval: 1, HorizontalShards: 2}, []string{"must not be negative"}},
		"a negative maximum":   {SplitOptions{MinInterval: 1, MaxInterval: -1, HorizontalShards: 2}, []string{"must not be negative", "must not be less"}},
		"negative shards":      {SplitOptions{MinInterval: 1, MaxInterval: 1, HorizontalShards: -1}, []string{"must not be negative", "horizontal-shards: must be at least 2"}},
	} {
		err := tt.o.Validate()
		if (err == nil) != (tt.want == nil) {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if err != nil && len(strings.Split(err.Error(), "\n")) != len(tt.want) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
		for _, want := range tt.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q", name, err, want)
			}
		}
	}
}

func TestRange_WithoutReturnsNoEmptyGaps(t *testing.T) {
	whole := stepRange{0, 100, 10}
	for _, tt := range []struct {
		parts, want []stepRange
	}{
		{nil, []stepRange{whole}},
		{[]stepRange{whole}, nil},
		{[]stepRange{{0, 40, 10}, {50, 100, 10}}, nil},
		{[]stepRange{{0, 40, 10}}, []stepRange{{50, 100, 10}}},
		{[]stepRange{{50, 100, 10}}, []stepRange{{0, 40, 10}}},
		{[]stepRange{{10, 20, 10}, {40, 90, 10}}, []stepRange{{0, 0, 10}, {30, 30, 10}, {100, 100, 10}}},
	} {
		got := whole.Without(tt.parts)
		check(t, slices.Equal(got, tt.want), "%v: %v, want %v", tt.parts, got, tt.want)
	}
}

func TestOptions_IntervalForCountsFromTheStartOfTheRange(t *testing.T) {
	o := SplitOptions{MinInterval: time.Hour, MaxInterval: 24 * time.Hour, HorizontalShards: 4}
	const hour = 3600_000
	for _, tt := range []struct {
		r    stepRange
		want time.Duration
	}{
		{stepRange{100 * hour, 101 * hour, 1000}, time.Hour},
		{stepRange{100 * hour, 101*hour + 4, 1000}, 15*time.Minute + time.Millisecond},
		{stepRange{100 * hour, 104 * hour, 1000}, time.Hour},
		{stepRange{100 * hour, 148 * hour, 1000}, 24 * time.Hour},
		{stepRange{100 * hour, 148*hour - 4, 1000}, 12*time.Hour - time.Millisecond},
	} {
		check(t, o.IntervalFor(tt.r) == tt.want, "%+v: %s, want %s", tt.r, o.IntervalFor(tt.r), tt.want)
	}
	short := SplitOptions{MinInterval: 1, MaxInterval: time.Hour, HorizontalShards: 1000}
	check(t, short.IntervalFor(stepRange{0, 10, 1}) == time.Millisecond, "the shortest part has %s", short.IntervalFor(stepRange{0, 10, 1}))
}

func TestPlan_OfTheShortestIntervals(t *testing.T) {
	r := stepRange{5, 8, 1}
	for _, interval := range []time.Duration{0, -time.Hour, time.Microsecond} {
		got := splitAt(r, interval)
		check(t, len(got) == 1 && got[0] == intervalPart{stepRange: r}, "%s: %+v", interval, got)
	}
	got := splitAt(r, time.Millisecond)
	check(t, len(got) == 4 && got[0] == intervalPart{stepRange{5, 5, 1}, 5} && got[3] == intervalPart{stepRange{8, 8, 1}, 8}, "%+v", got)
}

func TestWiden_OfTheShortestIntervals(t *testing.T) {
	for _, tt := range []struct {
		r        stepRange
		interval time.Duration
		parts    int
		want     time.Duration
	}{
		{stepRange{0, 1000, 1}, 100 * time.Millisecond, 2, 600 * time.Millisecond},
		{stepRange{0, 99, 1}, 100 * time.Millisecond, 2, 100 * time.Millisecond},
		{stepRange{0, 3, 1}, time.Millisecond, 2, 2 * time.Millisecond},
		{stepRange{0, 3, 1}, time.Millisecond, 4, time.Millisecond},
		{stepRange{0, 3, 1}, time.Millisecond, 1, 0},
	} {
		got := widen(tt.r, tt.interval, tt.parts)
		check(t, got == tt.want, "%+v into %d: %s, want %s", tt.r, tt.parts, got, tt.want)
	}
}

func TestTraitsOf_Subqueries(t *testing.T) {
	p := parser.NewParser(parser.Options{EnableExperimentalFunctions: true, ExperimentalDurationExpr: true, EnableExtendedRangeSelectors: true})
	const none = math.MinInt64
	for query, want := range map[string]exprTraits{
		`max_over_time(up[1m+range():1m])`:         {true, none, 0, false},
		`max_over_time(up[1h:range()])`:            {true, none, 0, false},
		`max_over_time(up[1h:1m])`:                 {false, none, 0, false},
		`max_over_time(up[1h:1m] @ 100)`:           {false, 100_000, 0, false},
		`max_over_time(up[1h:1m] offset -1m)`:      {false, none, 60_000, false},
		`max_over_time(up[1h:1m] offset (1m * 2))`: {false, none, aheadMax, false},
		`up offset (1m + range())`:                 {true, none, aheadMax, false},
		`up offset -0.0005`:                        {false, none, 1, false},
		`up @ 100 + up @ 50`:                       {false, 100_000, 0, false},
	} {
		got, ok := traitsOf(p, query)
		check(t, ok && got == want, "%s: %+v %v, want %+v", query, got, ok, want)
	}
	traits := exprTraits{LatestMS: none, Smoothed: true}
	check(t, traits.LastImmutableStep(1000, 1) == 1000, "a lookback of almost nothing: %d", traits.LastImmutableStep(1000, 1))
}

func TestNewRange_OfOneStep(t *testing.T) {
	r, err := newRange(5, 5, 10)
	check(t, err == nil && r == stepRange{5, 5, 10}, "%+v %v", r, err)
	part, ok := r.Clip(5, 5)
	check(t, ok && part == r, "%+v %v", part, ok)
	_, ok = r.Clip(6, 100)
	check(t, !ok, "clipped behind it")
}
