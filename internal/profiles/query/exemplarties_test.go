package query

import (
	"context"
	"errors"
	"testing"

	"github.com/prometheus/prometheus/model/exemplar"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"

	"github.com/ferula-io/ferula/internal/profiles"
)

func TestFind_OfEqualExemplarsTheLaterThenTheFirstSeriesWins(t *testing.T) {
	series := func(name string, e ...exemplar.Exemplar) exemplar.QueryResult {
		return exemplar.QueryResult{SeriesLabels: labels.FromStrings("s", name), Exemplars: e}
	}
	for name, tt := range map[string]struct {
		results []exemplar.QueryResult
		near    int64
		series  string
		ms      int64
	}{
		"equal":                     {[]exemplar.QueryResult{series("a", exemplarAt(5, 1, "profile_id", first)), series("b", exemplarAt(5, 1, "profile_id", first))}, 0, "a", 5},
		"equal, near a timestamp":   {[]exemplar.QueryResult{series("a", exemplarAt(5, 1, "profile_id", first)), series("b", exemplarAt(5, 2, "profile_id", first))}, 7, "a", 5},
		"later":                     {[]exemplar.QueryResult{series("a", exemplarAt(5, 1, "profile_id", first)), series("b", exemplarAt(6, 1, "profile_id", first))}, 0, "b", 6},
		"earlier":                   {[]exemplar.QueryResult{series("a", exemplarAt(6, 1, "profile_id", first)), series("b", exemplarAt(5, 1, "profile_id", first))}, 0, "a", 6},
		"as near, later":            {[]exemplar.QueryResult{series("a", exemplarAt(5, 1, "profile_id", first)), series("b", exemplarAt(9, 1, "profile_id", first))}, 7, "b", 9},
		"as near, earlier":          {[]exemplar.QueryResult{series("a", exemplarAt(9, 1, "profile_id", first)), series("b", exemplarAt(5, 1, "profile_id", first))}, 7, "a", 9},
		"a profile ID over a value": {[]exemplar.QueryResult{series("a", exemplarAt(5, 1, "profile_id", first)), series("b", exemplarAt(6, 9))}, 0, "a", 5},
		"a value before its ID":     {[]exemplar.QueryResult{series("a", exemplarAt(6, 9)), series("b", exemplarAt(5, 1, "profileId", first))}, 0, "b", 5},
	} {
		w := &exemplarEnv{results: tt.results}
		a, err := NewExemplarFinder(w, w.MergeFlame).Find(context.Background(), profiles.ExemplarRequest{Selectors: exemplarMetrics(), NearMS: tt.near, Match: []string{"s"}})
		if err != nil || a.Series.Get("s") != tt.series || a.Exemplar.Ts != tt.ms || a.By != "profile_id" {
			t.Errorf("%s: %+v, %v", name, a, err)
		}
	}
}

func TestFind_RangesOfTheSearch(t *testing.T) {
	w := &exemplarEnv{results: []exemplar.QueryResult{{SeriesLabels: labels.FromStrings("s", "a"), Exemplars: []exemplar.Exemplar{exemplarAt(10_000_000, 1)}}}}
	for _, tt := range []struct {
		window, startMS int64
	}{{0, 10_000_000 - 15_000}, {7, 10_000_000 - 7}} {
		a, err := NewExemplarFinder(w, w.MergeFlame).Find(context.Background(), profiles.ExemplarRequest{Selectors: exemplarMetrics(), Match: []string{"s"}, WindowMS: tt.window})
		if err != nil || a.By != "time" || w.requests.StartMS != tt.startMS || w.requests.EndMS != 10_000_000 || w.requests.IDs != nil {
			t.Errorf("%+v, %+v, %v", a, w.requests, err)
		}
	}
	w = &exemplarEnv{results: []exemplar.QueryResult{{Exemplars: []exemplar.Exemplar{exemplarAt(10_000_000, 1, "profile_id", first)}}}}
	if _, err := NewExemplarFinder(w, w.MergeFlame).Find(context.Background(), profiles.ExemplarRequest{Selectors: exemplarMetrics()}); err != nil || w.requests.StartMS != 10_000_000-3_600_000 || w.requests.EndMS != 10_000_000+3_600_000 {
		t.Errorf("%+v, %v", w.requests, err)
	}
}

func TestFind_NeedsAProfileOrMetrics(t *testing.T) {
	w := &exemplarEnv{}
	for name, f := range map[string]*ExemplarFinder{"no metrics": NewExemplarFinder(nil, w.MergeFlame), "no selectors": NewExemplarFinder(w, w.MergeFlame)} {
		r := profiles.ExemplarRequest{}
		if name == "no metrics" {
			r.Selectors = exemplarMetrics()
		}
		if _, err := f.Find(context.Background(), r); !errors.Is(err, profiles.ErrBadRequest) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// unreadExemplars is a source of exemplars whose selections fail.
type unreadExemplars struct{ *exemplarEnv }

func (u unreadExemplars) ExemplarQuerier(context.Context) (storage.ExemplarQuerier, error) {
	return u, nil
}

func (unreadExemplars) Select(int64, int64, ...[]*labels.Matcher) ([]exemplar.QueryResult, error) {
	return []exemplar.QueryResult{{Exemplars: []exemplar.Exemplar{exemplarAt(5, 1, "profile_id", first)}}}, errUnread
}

var errUnread = errors.New("unreadExemplars")

func TestFind_FailsIfExemplarsCannotBeRead(t *testing.T) {
	w := &exemplarEnv{}
	if a, err := NewExemplarFinder(unreadExemplars{w}, w.MergeFlame).Find(context.Background(), profiles.ExemplarRequest{Selectors: exemplarMetrics()}); !errors.Is(err, errUnread) || w.requests != nil {
		t.Errorf("%+v, %v", a, err)
	}
}
