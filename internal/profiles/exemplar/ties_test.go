package exemplar

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
		"equal":                     {[]exemplar.QueryResult{series("a", at(5, 1, "profile_id", first)), series("b", at(5, 1, "profile_id", first))}, 0, "a", 5},
		"equal, near a timestamp":   {[]exemplar.QueryResult{series("a", at(5, 1, "profile_id", first)), series("b", at(5, 2, "profile_id", first))}, 7, "a", 5},
		"later":                     {[]exemplar.QueryResult{series("a", at(5, 1, "profile_id", first)), series("b", at(6, 1, "profile_id", first))}, 0, "b", 6},
		"earlier":                   {[]exemplar.QueryResult{series("a", at(6, 1, "profile_id", first)), series("b", at(5, 1, "profile_id", first))}, 0, "a", 6},
		"as near, later":            {[]exemplar.QueryResult{series("a", at(5, 1, "profile_id", first)), series("b", at(9, 1, "profile_id", first))}, 7, "b", 9},
		"as near, earlier":          {[]exemplar.QueryResult{series("a", at(9, 1, "profile_id", first)), series("b", at(5, 1, "profile_id", first))}, 7, "a", 9},
		"a profile ID over a value": {[]exemplar.QueryResult{series("a", at(5, 1, "profile_id", first)), series("b", at(6, 9))}, 0, "a", 5},
		"a value before its ID":     {[]exemplar.QueryResult{series("a", at(6, 9)), series("b", at(5, 1, "profileId", first))}, 0, "b", 5},
	} {
		w := &testEnv{results: tt.results}
		a, err := New(w, w).Find(context.Background(), Request{Selectors: metrics(), NearMS: tt.near, Match: []string{"s"}})
		if err != nil || a.Series.Get("s") != tt.series || a.Exemplar.Ts != tt.ms || a.By != "profile_id" {
			t.Errorf("%s: %+v, %v", name, a, err)
		}
	}
}

func TestFind_RangesOfTheSearch(t *testing.T) {
	w := &testEnv{results: []exemplar.QueryResult{{SeriesLabels: labels.FromStrings("s", "a"), Exemplars: []exemplar.Exemplar{at(10_000_000, 1)}}}}
	for _, tt := range []struct {
		window, startMS int64
	}{{0, 10_000_000 - 15_000}, {7, 10_000_000 - 7}} {
		a, err := New(w, w).Find(context.Background(), Request{Selectors: metrics(), Match: []string{"s"}, WindowMS: tt.window})
		if err != nil || a.By != "time" || w.requests.StartMS != tt.startMS || w.requests.EndMS != 10_000_000 || w.requests.IDs != nil {
			t.Errorf("%+v, %+v, %v", a, w.requests, err)
		}
	}
	w = &testEnv{results: []exemplar.QueryResult{{Exemplars: []exemplar.Exemplar{at(10_000_000, 1, "profile_id", first)}}}}
	if _, err := New(w, w).Find(context.Background(), Request{Selectors: metrics()}); err != nil || w.requests.StartMS != 10_000_000-3_600_000 || w.requests.EndMS != 10_000_000+3_600_000 {
		t.Errorf("%+v, %v", w.requests, err)
	}
}

func TestFind_NeedsAProfileOrMetrics(t *testing.T) {
	w := &testEnv{}
	for name, f := range map[string]*Finder{"no metrics": New(nil, w), "no selectors": New(w, w)} {
		r := Request{}
		if name == "no metrics" {
			r.Selectors = metrics()
		}
		if _, err := f.Find(context.Background(), r); !errors.Is(err, profiles.ErrBadRequest) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// unread is a source of exemplars whose selections fail.
type unread struct{ *testEnv }

func (u unread) ExemplarQuerier(context.Context) (storage.ExemplarQuerier, error) { return u, nil }

func (unread) Select(int64, int64, ...[]*labels.Matcher) ([]exemplar.QueryResult, error) {
	return []exemplar.QueryResult{{Exemplars: []exemplar.Exemplar{at(5, 1, "profile_id", first)}}}, errUnread
}

var errUnread = errors.New("unread")

func TestFind_FailsIfExemplarsCannotBeRead(t *testing.T) {
	w := &testEnv{}
	if a, err := New(unread{w}, w).Find(context.Background(), Request{Selectors: metrics()}); !errors.Is(err, errUnread) || w.requests != nil {
		t.Errorf("%+v, %v", a, err)
	}
}
