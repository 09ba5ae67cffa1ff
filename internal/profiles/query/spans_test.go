package query

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/store"
	"github.com/ferula-io/ferula/internal/series/labelenc"
)

// checkSpans compares a merge of spans and traces with a naive one.
func checkSpans(t *testing.T, r *rand.Rand, e *Engine, rows []*naiveRow, of *profiles.MergeRequest) {
	t.Helper()
	req, want := *of, map[string]int64{}
	req.CallSite = nil
	for range r.IntN(3) {
		req.Spans = append(req.Spans, uint64(1+r.IntN(5)))
	}
	if len(req.Spans) == 0 || r.IntN(4) == 0 {
		req.Traces = append(req.Traces, profiles.TraceID{15: byte(1 + r.IntN(3))})
	}
	for _, row := range rows {
		if !row.matches(req.Type, req.Matchers) || row.timeNS < req.StartMS*1e6 || row.timeNS > req.EndMS*1e6+999_999 || len(req.IDs) > 0 && !slices.Contains(req.IDs, row.id) {
			continue
		}
		for id, stacks := range row.spans {
			if span, err := profiles.ParseSpanID(id); err != nil || !slices.Contains(req.Spans, span) {
				continue
			}
			for stack, v := range stacks {
				want[stack] += v
			}
		}
		for id, stacks := range row.traces {
			if trace, err := profiles.ParseTraceID(id); err != nil || !slices.Contains(req.Traces, trace) {
				continue
			}
			for stack, v := range stacks {
				want[stack] += v
			}
		}
	}
	if len(req.Traces) > 0 {
		req.Spans = nil // the naive merge would count a sample of both a requested span and a requested trace twice
		want = map[string]int64{}
		for _, row := range rows {
			if !row.matches(req.Type, req.Matchers) || row.timeNS < req.StartMS*1e6 || row.timeNS > req.EndMS*1e6+999_999 || len(req.IDs) > 0 && !slices.Contains(req.IDs, row.id) {
				continue
			}
			for stack, v := range row.traces[fmt.Sprintf("%032x", req.Traces[0][15])] {
				want[stack] += v
			}
		}
	}
	maps.DeleteFunc(want, func(_ string, v int64) bool { return v == 0 })
	flame, err := e.MergeFlame(context.Background(), &req)
	must(t, err)
	if got := stacksOf(t, flame); !maps.Equal(got, want) || len(flame.Warnings) > 0 {
		t.Fatalf("%+v: flame of spans %v, want %v, %v", req, got, want, flame.Warnings)
	}
}

// checkHeatmap compares heat maps of profiles and of spans with naive ones.
func checkHeatmap(t *testing.T, r *rand.Rand, e *Engine, rows []*naiveRow) {
	t.Helper()
	over := randomSelect(r)
	over.Tenant, over.Limit, over.Exemplars = "t", 0, true
	over.Spans = r.IntN(2) == 0
	req := &profiles.HeatmapRequest{SeriesRequest: *over}
	type point struct {
		group string
		slot  int64
		id    string
	}
	values := map[point]int64{}
	for i, row := range rows {
		ms := row.timeNS / 1e6
		if !row.matches(req.Type, req.Matchers) || ms <= req.StartMS-req.StepMS || ms > req.StartMS+(req.EndMS-req.StartMS)/req.StepMS*req.StepMS {
			continue
		}
		group := map[string]string{}
		for _, name := range req.GroupBy {
			if v := row.all()[name]; v != "" {
				group[name] = v
			}
		}
		slot := req.StartMS + (ms-req.StartMS+req.StepMS-1+req.StepMS*1000)/req.StepMS*req.StepMS - req.StepMS*1000
		p := point{group: string(encodeMap(group)), slot: slot, id: fmt.Sprint(row.id, row.timeNS)}
		if !req.Spans {
			values[p] += row.total()
			continue
		}
		for span, stacks := range row.spans {
			byTrace := int64(0)
			for _, v := range stacks {
				byTrace += v
			}
			p.id = fmt.Sprint(i, span)
			if byTrace > 0 {
				values[p] += byTrace
			}
		}
	}
	got, err := e.Heatmap(context.Background(), req)
	if err != nil || len(got.Warnings) > 0 {
		t.Fatal(err, got)
	}
	if req.Spans { // one span with two traces is two points: compare the sums only
		var sum, want int64
		for _, v := range values {
			want += v
		}
		for _, s := range got.Series {
			for _, slot := range s.Slots {
				for i, x := range slot.Exemplars {
					if x.Span.ID == 0 || slot.Counts[i] < 1 {
						t.Fatalf("%+v", slot)
					}
					if slot.Counts[i] == 1 {
						sum += x.Value
					}
				}
			}
		}
		if sum > want || (sum == 0) != (want == 0) && want == 0 {
			t.Fatalf("%+v: spans of %d, want %d", req, sum, want)
		}
		return
	}
	var all []int64
	for _, v := range values {
		all = append(all, v)
	}
	want := map[string]int32{}
	if len(all) > 0 {
		low, high := slices.Min(all), slices.Max(all)
		for p, v := range values {
			bucket := 0
			if high > low {
				bucket = min(int(float64(v-low)/(float64(high-low)/20)), 19)
			}
			want[fmt.Sprintf("%q %d %.3f", p.group, p.slot, float64(low)+float64(bucket)*(float64(high-low)/20))]++
		}
	}
	counts := map[string]int32{}
	for _, s := range got.Series {
		for _, slot := range s.Slots {
			for i := range slot.Counts {
				counts[fmt.Sprintf("%q %d %.3f", s.Labels, slot.TimeMS, slot.YMin[i])] += slot.Counts[i]
			}
			if len(slot.Exemplars) != len(slot.Counts) {
				t.Fatalf("%+v", slot)
			}
		}
	}
	if !maps.Equal(counts, want) {
		t.Fatalf("%+v:\n%v\nwant\n%v", req, counts, want)
	}
}

// checkSpanExemplars compares the spans of a time series with those of a heat map: the exemplar of a point is the greatest
// one of the slot.
func checkSpanExemplars(t *testing.T, r *rand.Rand, e *Engine) {
	t.Helper()
	req := randomSelect(r)
	req.Tenant, req.Limit, req.Exemplars, req.Spans, req.CallSite = "t", 0, true, true, nil
	heat, err := e.Heatmap(context.Background(), &profiles.HeatmapRequest{SeriesRequest: *req})
	must(t, err)
	want := map[string]string{}
	for _, s := range heat.Series {
		for _, slot := range s.Slots {
			x := &slot.Exemplars[len(slot.Exemplars)-1]
			want[fmt.Sprintf("%q %d", s.Labels, slot.TimeMS)] = fmt.Sprintf("%v %d %d %q %+v", x.ID, x.TimeNS, x.Value, x.Labels, x.Span)
		}
	}
	result, err := e.SelectSeries(context.Background(), req)
	must(t, err)
	defer result.Close()
	plain := *req
	plain.Exemplars, plain.Spans = false, false
	sums, err := e.SelectSeries(context.Background(), &plain)
	must(t, err)
	defer sums.Close()
	got := map[string]string{}
	for i, s := range result.Series {
		if !slices.Equal(s.Points, sums.Series[i].Points) {
			t.Fatalf("%+v: points %v, want %v", req, s.Points, sums.Series[i].Points)
		}
		for j, x := range s.Exemplars {
			if x.Span == 0 {
				continue
			}
			set, err := labelenc.AppendWithout(nil, result.Sets[x.Set], result.GroupBy)
			must(t, err)
			got[fmt.Sprintf("%q %d", s.Labels, s.Points[j].TimeMS)] = fmt.Sprintf("%v %d %d %q %+v", x.ID, x.TimeNS, x.Value, set, result.Spans[x.Span])
		}
	}
	if !maps.Equal(got, want) || len(result.Warnings) > 0 {
		t.Fatalf("%+v: exemplars\n%v, want\n%v", req, got, want)
	}
}

func TestSelectSeries_SpansOfACallSiteAreRefused(t *testing.T) {
	req := &profiles.SeriesRequest{Tenant: "t", EndMS: 1, StepMS: 1, Exemplars: true, Spans: true, CallSite: []string{"main"}}
	if _, err := New(Options{}, openStore(t, t.TempDir(), store.Options{})).SelectSeries(context.Background(), req); !errors.Is(err, profiles.ErrBadRequest) {
		t.Errorf("got %v", err)
	}
}
