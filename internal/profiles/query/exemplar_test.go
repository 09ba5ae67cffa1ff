package query

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/exemplar"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"

	"github.com/ferula-io/ferula/internal/profiles"
)

const (
	first  = "00000000-0000-0000-0000-000000000001"
	second = "00000000-0000-0000-0000-000000000002"
)

type exemplarEnv struct {
	results  []exemplar.QueryResult
	err      error
	open     error // of ExemplarQuerier
	requests *profiles.MergeRequest
	from     [2]int64
}

func (w *exemplarEnv) ExemplarQuerier(context.Context) (storage.ExemplarQuerier, error) {
	return w, w.open
}

func (w *exemplarEnv) Select(start, end int64, _ ...[]*labels.Matcher) ([]exemplar.QueryResult, error) {
	w.from = [2]int64{start, end}
	return w.results, w.err
}

func (w *exemplarEnv) MergeFlame(_ context.Context, r *profiles.MergeRequest) (*profiles.FlameGraph, error) {
	w.requests = r
	return &profiles.FlameGraph{Total: 7}, w.err
}

func exemplarAt(ms int64, value float64, lset ...string) exemplar.Exemplar {
	return exemplar.Exemplar{Labels: labels.FromStrings(lset...), Value: value, Ts: ms}
}

func exemplarMetrics() [][]*labels.Matcher {
	return [][]*labels.Matcher{{labels.MustNewMatcher(labels.MatchEqual, "__name__", "m")}}
}

func TestFind_GreatestOrNearestExemplar(t *testing.T) {
	w := &exemplarEnv{results: []exemplar.QueryResult{
		{SeriesLabels: labels.FromStrings("__name__", "m", "handler", "/a"), Exemplars: []exemplar.Exemplar{exemplarAt(1000, 1, "profile_id", first), exemplarAt(2000, 9, "other", "x")}},
		{SeriesLabels: labels.FromStrings("__name__", "m", "handler", "/b"), Exemplars: []exemplar.Exemplar{exemplarAt(3000, 2, "trace_id", "t", "profileID", second), exemplarAt(9000, 2, "profile_id", first)}},
	}}
	f := NewExemplarFinder(w, w.MergeFlame)
	for _, tt := range []struct {
		near   int64
		ms     int64
		id     string
		series string
	}{{0, 9000, first, "/b"}, {2100, 3000, second, "/b"}, {1, 1000, first, "/a"}, {2000, 3000, second, "/b"}} {
		a, err := f.Find(context.Background(), profiles.ExemplarRequest{Tenant: "acme", Selectors: exemplarMetrics(), StartMS: 5, EndMS: 6, NearMS: tt.near, Match: []string{"handler"}, NodesMax: 3})
		must(t, err)
		if !a.Found || a.Exemplar.Ts != tt.ms || a.ID != tt.id || a.Series.Get("handler") != tt.series || a.Flame.Total != 7 {
			t.Errorf("near %d: %+v", tt.near, a)
		}
		if r := w.requests; r.Tenant != "acme" || len(r.IDs) != 1 || r.IDs[0].String() != tt.id || fmt.Sprint(r.Matchers) != `[handler="`+tt.series+`"]` || r.Type != exemplarType || r.StartMS != tt.ms-marginMS || r.MaxNodes != 3 {
			t.Errorf("near %d: requested %+v", tt.near, r)
		}
	}
	if w.from != [2]int64{5, 6} {
		t.Error(w.from)
	}
}

func TestFind_ExemplarWithoutProfileIDByTime(t *testing.T) {
	w := &exemplarEnv{results: []exemplar.QueryResult{
		{SeriesLabels: labels.FromStrings("service_name", "shop"), Exemplars: []exemplar.Exemplar{exemplarAt(100_000, 9, "trace_id", "t"), exemplarAt(200_000, 3, "trace_id", "u")}},
	}}
	f := NewExemplarFinder(w, w.MergeFlame)
	if _, err := f.Find(context.Background(), profiles.ExemplarRequest{Selectors: exemplarMetrics()}); !errors.Is(err, profiles.ErrNoExemplar) || !strings.Contains(err.Error(), "has a profile ID") {
		t.Error(err)
	}
	// The request has labels to match: the reason of an empty range is not that it has none.
	if _, err := NewExemplarFinder(&exemplarEnv{}, w.MergeFlame).Find(context.Background(), profiles.ExemplarRequest{Selectors: exemplarMetrics(), Match: []string{"service_name"}}); !errors.Is(err, profiles.ErrNoExemplar) || strings.Contains(err.Error(), "labels to match") {
		t.Error(err)
	}
	a, err := f.Find(context.Background(), profiles.ExemplarRequest{Selectors: exemplarMetrics(), Match: []string{"service_name"}})
	if err != nil || a.By != "time" || a.ID != "" || a.Exemplar.Value != 9 {
		t.Fatalf("%+v %v", a, err)
	}
	if r := w.requests; r.StartMS != 85_000 || r.EndMS != 100_000 || r.IDs != nil || fmt.Sprint(r.Matchers) != `[service_name="shop"]` {
		t.Errorf("%+v", r)
	}
	selector := []*labels.Matcher{labels.MustNewMatcher(labels.MatchEqual, "service_name", "other")}
	if _, err = f.Find(context.Background(), profiles.ExemplarRequest{Selectors: exemplarMetrics(), Matchers: selector, WindowMS: 1000, NearMS: 190_000}); err != nil || w.requests.StartMS != 199_000 || fmt.Sprint(w.requests.Matchers) != `[service_name="other"]` {
		t.Errorf("%+v %v", w.requests, err)
	}
	// An exemplar with a profile ID is preferred to all without, earlier and later ones.
	w.results[0].Exemplars = []exemplar.Exemplar{exemplarAt(1, 9, "trace_id", "t"), exemplarAt(2, 1, "profile_id", first), exemplarAt(3, 8, "trace_id", "t")}
	if a, err = f.Find(context.Background(), profiles.ExemplarRequest{Selectors: exemplarMetrics(), Match: []string{"service_name"}}); err != nil || a.ID != first {
		t.Errorf("%+v %v", a, err)
	}
}

func TestFind_ByProfileID(t *testing.T) {
	w := &exemplarEnv{}
	typ := profiles.Type{Name: "memory", SampleType: "alloc_space"}
	f := NewExemplarFinder(nil, w.MergeFlame)
	f.now = func() time.Time { return time.UnixMilli(900_000_000_000) }
	timed := profiles.NewID(800_000_000_000).String()
	for _, tt := range []struct {
		r          profiles.ExemplarRequest
		start, end int64
	}{
		{profiles.ExemplarRequest{ProfileID: first}, 900_000_000_000 - dayMS, 900_000_000_000 + marginMS},
		{profiles.ExemplarRequest{ProfileID: first, NearMS: 700_000_000_000}, 700_000_000_000 - marginMS, 700_000_000_000 + marginMS},
		{profiles.ExemplarRequest{ProfileID: first, StartMS: 5, EndMS: 7, NearMS: 700_000_000_000}, 5, 7},
		{profiles.ExemplarRequest{ProfileID: timed}, 800_000_000_000 - marginMS, 800_000_000_000 + marginMS},
		{profiles.ExemplarRequest{ProfileID: timed, StartMS: 5, EndMS: 7}, 5, 7},
	} {
		tt.r.Type = typ
		a, err := f.Find(context.Background(), tt.r)
		if err != nil || a.Found || w.requests.IDs[0].String() != tt.r.ProfileID || w.requests.Type != typ || w.requests.StartMS != tt.start || w.requests.EndMS != tt.end {
			t.Errorf("%+v: %+v %+v %v", tt.r, a, w.requests, err)
		}
	}
}

func TestFind_ErrorsNameTheCause(t *testing.T) {
	broken := errors.New("broken")
	for name, tt := range map[string]struct {
		w    *exemplarEnv
		r    profiles.ExemplarRequest
		want error
	}{
		"nothing":     {&exemplarEnv{}, profiles.ExemplarRequest{}, profiles.ErrBadRequest},
		"no exemplar": {&exemplarEnv{}, profiles.ExemplarRequest{Selectors: exemplarMetrics()}, profiles.ErrNoExemplar},
		"bad id":      {&exemplarEnv{}, profiles.ExemplarRequest{ProfileID: "x"}, profiles.ErrBadRequest},
		"bad label":   {&exemplarEnv{results: []exemplar.QueryResult{{Exemplars: []exemplar.Exemplar{exemplarAt(1, 1, "profile_id", "x")}}}}, profiles.ExemplarRequest{Selectors: exemplarMetrics()}, profiles.ErrBadRequest},
		"broken":      {&exemplarEnv{err: broken}, profiles.ExemplarRequest{Selectors: exemplarMetrics()}, broken},
		"not open":    {&exemplarEnv{open: broken}, profiles.ExemplarRequest{Selectors: exemplarMetrics()}, broken},
		"no flames":   {&exemplarEnv{err: broken}, profiles.ExemplarRequest{ProfileID: first}, broken},
	} {
		if _, err := NewExemplarFinder(tt.w, tt.w.MergeFlame).Find(context.Background(), tt.r); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", name, err, tt.want)
		}
	}
}
