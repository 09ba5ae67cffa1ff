package sources

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/model/exemplar"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/rules"

	"github.com/ferula-io/ferula/internal/precheck"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
	"github.com/ferula-io/ferula/internal/tsdb"
	"github.com/ferula-io/ferula/metrics"
)

var localExternal = labels.FromStrings("cluster", "eu")

// newSource returns a source whose storage is open and has two series of m, one with an
// exemplar.
func newSource(t *testing.T) *Local {
	t.Helper()
	s := closedSource(t)
	if err := s.store.Open(); err != nil {
		t.Fatal(err)
	}
	app := s.store.Appender(context.Background())
	for _, job := range []string{"a", "b"} {
		lset := labels.FromStrings("__name__", "m", "job", job)
		ref, err := app.Append(0, lset, startMS, 1)
		if err == nil && job == "a" {
			_, err = app.AppendExemplar(ref, lset, exemplar.Exemplar{Labels: labels.FromStrings("trace_id", "1"), Value: 1, Ts: startMS, HasTs: true})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := app.Commit(); err != nil {
		t.Fatal(err)
	}
	return s
}

func closedSource(t *testing.T) *Local {
	t.Helper()
	store, err := tsdb.New(tsdb.Options{Dir: t.TempDir()}, slog.New(slog.DiscardHandler), prometheus.NewRegistry(), metrics.NewSet())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	return NewLocal(store, parser.NewParser(parser.Options{}), func() labels.Labels { return localExternal }, func() []*rules.Group { return nil })
}

func TestLocal_InfoHasNoUpperBoundAndTheExternalLabels(t *testing.T) {
	s := newSource(t)
	info, err := s.Info(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if info.Store == nil || info.Store.TimeRange != (storeapi.TimeRange{MinMS: startMS, MaxMS: math.MaxInt64}) || len(info.LabelSets) != 1 || !labels.Equal(info.LabelSets[0], localExternal) || len(info.Store.TSDBs) != 1 {
		t.Errorf("%+v", info)
	}
	s.external = labels.EmptyLabels
	if info, err = s.Info(context.Background()); err != nil || info.LabelSets != nil || info.Store.TSDBs != nil {
		t.Errorf("without localExternal labels: %+v, %v", info, err)
	}
}

func TestLocal_BeforeTheReplayEveryCallFails(t *testing.T) {
	s, ctx := closedSource(t), context.Background()
	_, infoErr := s.Info(ctx)
	_, _, namesErr := s.LabelNames(ctx, storeapi.LabelsRequest{MaxMS: math.MaxInt64})
	matchers := []*labels.Matcher{labels.MustNewMatcher(labels.MatchEqual, "__name__", "m")}
	seriesErr := s.Series(ctx, storeapi.SeriesRequest{MaxMS: math.MaxInt64, Matchers: matchers}).Err()
	_, _, exemplarsErr := s.Exemplars(ctx, storeapi.ExemplarsRequest{Query: "m"})
	for _, err := range []error{infoErr, namesErr, seriesErr, exemplarsErr} {
		if !errors.Is(err, tsdb.ErrNotReady) {
			t.Error(err)
		}
	}
}

func TestLocal_ListsLabels(t *testing.T) {
	s, ctx := newSource(t), context.Background()
	all := storeapi.LabelsRequest{MinMS: startMS, MaxMS: startMS}
	names, _, err := s.LabelNames(ctx, all)
	if err != nil || !slices.Equal(names, []string{"__name__", "job"}) {
		t.Error(names, err)
	}
	all.Label = "job"
	values, _, err := s.LabelValues(ctx, all)
	if err != nil || !slices.Equal(values, []string{"a", "b"}) {
		t.Error(values, err)
	}
	all.Limit = 1
	values, _, err = s.LabelValues(ctx, all)
	if err != nil || !slices.Equal(values, []string{"a"}) {
		t.Error(values, err)
	}
	all.Limit, all.Matchers = 0, []*labels.Matcher{labels.MustNewMatcher(labels.MatchEqual, "job", "b")}
	if values, _, err = s.LabelValues(ctx, all); err != nil || !slices.Equal(values, []string{"b"}) {
		t.Error(values, err)
	}
}

func TestLocal_SeriesHaveTheExternalLabels(t *testing.T) {
	s, ctx := newSource(t), context.Background()
	set, n := s.Series(ctx, storeapi.SeriesRequest{MinMS: startMS, MaxMS: startMS, Matchers: []*labels.Matcher{labels.MustNewMatcher(labels.MatchEqual, "__name__", "m")}}), 0
	for set.Next() {
		if n++; !bytes.Contains(set.Labels(), []byte("cluster")) {
			t.Errorf("%q", set.Labels())
		}
	}
	if err := errors.Join(set.Err(), set.Close()); err != nil || n != 2 {
		t.Error(n, err)
	}
}

func TestLocal_ExemplarsOfSelectorsThatMatchTheExternalLabels(t *testing.T) {
	s, ctx := newSource(t), context.Background()
	for query, want := range map[string]int{
		`m`:                              1,
		`m{cluster="eu",job="a"}`:        1,
		`m{cluster="us"}`:                0,
		`m{job="b"}`:                     0,
		`m{cluster="us"} / m{job=~".+"}`: 1,
	} {
		found, _, err := s.Exemplars(ctx, storeapi.ExemplarsRequest{Query: query, MinMS: startMS, MaxMS: startMS})
		if err != nil || len(found) != want {
			t.Errorf("%s: %v, %v", query, found, err)
		}
	}
	deep := strings.Repeat("(", precheck.LevelsMax+1) + "m" + strings.Repeat(")", precheck.LevelsMax+1)
	for _, query := range []string{"m{", deep} {
		if _, _, err := s.Exemplars(ctx, storeapi.ExemplarsRequest{Query: query, MaxMS: startMS}); !errors.Is(err, storeapi.ErrBadRequest) {
			t.Errorf("%.20s: %v", query, err)
		}
	}
}

func TestLocal_StatisticsOfTheHead(t *testing.T) {
	s := newSource(t)
	info, err := s.Info(t.Context())
	if err != nil || !info.Status {
		t.Errorf("%+v %v", info, err)
	}
	all, _, err := s.TSDBStatistics(t.Context(), storeapi.StatusRequest{Limit: 1})
	if err != nil || len(all) != 1 || all[0].Series != 2 || all[0].MinMS != startMS || all[0].MaxMS != startMS || !slices.Equal(all[0].SeriesByMetric, []storeapi.Statistic{{Name: "m", Value: 2}}) || len(all[0].SeriesByPair) != 1 {
		t.Errorf("%+v %v", all, err)
	}
	other := []*labels.Matcher{labels.MustNewMatcher(labels.MatchEqual, "cluster", "us")}
	if all, _, err = s.TSDBStatistics(t.Context(), storeapi.StatusRequest{Limit: 1, Matchers: other}); err != nil || len(all) != 0 {
		t.Errorf("of another cluster: %+v %v", all, err)
	}
	if _, _, err = closedSource(t).TSDBStatistics(t.Context(), storeapi.StatusRequest{Limit: 1}); !errors.Is(err, tsdb.ErrNotReady) {
		t.Error(err)
	}
}
