package split

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/prometheus/promql/parser"
)

func TestRange_WithoutReturnsNoEmptyGaps(t *testing.T) {
	whole := Range{0, 100, 10}
	for _, tt := range []struct {
		parts, want []Range
	}{
		{nil, []Range{whole}},
		{[]Range{whole}, nil},
		{[]Range{{0, 40, 10}, {50, 100, 10}}, nil},
		{[]Range{{0, 40, 10}}, []Range{{50, 100, 10}}},
		{[]Range{{50, 100, 10}}, []Range{{0, 40, 10}}},
		{[]Range{{10, 20, 10}, {40, 90, 10}}, []Range{{0, 0, 10}, {30, 30, 10}, {100, 100, 10}}},
	} {
		got := whole.Without(tt.parts)
		check(t, slices.Equal(got, tt.want), "%v: %v, want %v", tt.parts, got, tt.want)
	}
}

func TestOptions_IntervalForCountsFromTheStartOfTheRange(t *testing.T) {
	o := Options{MinInterval: time.Hour, MaxInterval: 24 * time.Hour, HorizontalShards: 4}
	const hour = 3600_000
	for _, tt := range []struct {
		r    Range
		want time.Duration
	}{
		{Range{100 * hour, 101 * hour, 1000}, time.Hour},
		{Range{100 * hour, 101*hour + 4, 1000}, 15*time.Minute + time.Millisecond},
		{Range{100 * hour, 104 * hour, 1000}, time.Hour},
		{Range{100 * hour, 148 * hour, 1000}, 24 * time.Hour},
		{Range{100 * hour, 148*hour - 4, 1000}, 12*time.Hour - time.Millisecond},
	} {
		check(t, o.IntervalFor(tt.r) == tt.want, "%+v: %s, want %s", tt.r, o.IntervalFor(tt.r), tt.want)
	}
	short := Options{MinInterval: 1, MaxInterval: time.Hour, HorizontalShards: 1000}
	check(t, short.IntervalFor(Range{0, 10, 1}) == time.Millisecond, "the shortest part has %s", short.IntervalFor(Range{0, 10, 1}))
}

func TestPlan_OfTheShortestIntervals(t *testing.T) {
	r := Range{5, 8, 1}
	for _, interval := range []time.Duration{0, -time.Hour, time.Microsecond} {
		got := Plan(r, interval)
		check(t, len(got) == 1 && got[0] == Part{Range: r}, "%s: %+v", interval, got)
	}
	got := Plan(r, time.Millisecond)
	check(t, len(got) == 4 && got[0] == Part{Range{5, 5, 1}, 5} && got[3] == Part{Range{8, 8, 1}, 8}, "%+v", got)
}

func TestWiden_OfTheShortestIntervals(t *testing.T) {
	for _, tt := range []struct {
		r        Range
		interval time.Duration
		parts    int
		want     time.Duration
	}{
		{Range{0, 1000, 1}, 100 * time.Millisecond, 2, 600 * time.Millisecond},
		{Range{0, 99, 1}, 100 * time.Millisecond, 2, 100 * time.Millisecond},
		{Range{0, 3, 1}, time.Millisecond, 2, 2 * time.Millisecond},
		{Range{0, 3, 1}, time.Millisecond, 4, time.Millisecond},
		{Range{0, 3, 1}, time.Millisecond, 1, 0},
	} {
		got := Widen(tt.r, tt.interval, tt.parts)
		check(t, got == tt.want, "%+v into %d: %s, want %s", tt.r, tt.parts, got, tt.want)
	}
}

func TestTraitsOf_Subqueries(t *testing.T) {
	p := parser.NewParser(parser.Options{EnableExperimentalFunctions: true, ExperimentalDurationExpr: true, EnableExtendedRangeSelectors: true})
	const none = math.MinInt64
	for query, want := range map[string]Traits{
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
		got, ok := TraitsOf(p, query)
		check(t, ok && got == want, "%s: %+v %v, want %+v", query, got, ok, want)
	}
	traits := Traits{LatestMS: none, Smoothed: true}
	check(t, traits.LastImmutableStep(1000, 1) == 1000, "a lookback of almost nothing: %d", traits.LastImmutableStep(1000, 1))
}

func TestNewRange_OfOneStep(t *testing.T) {
	r, err := NewRange(5, 5, 10)
	check(t, err == nil && r == Range{5, 5, 10} && r.Points() == 1, "%+v %v", r, err)
	part, ok := r.Clip(5, 5)
	check(t, ok && part == r, "%+v %v", part, ok)
	_, ok = r.Clip(6, 100)
	check(t, !ok, "clipped behind it")
}
