package columns_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
)

// endless is a storage whose selections never end, and whose series have no end either.
type endless struct {
	begun chan struct{}
	seen  int
}

func (e *endless) Querier(int64, int64) (storage.Querier, error) {
	return endlessQuerier{storage.NoopQuerier(), e}, nil
}

type endlessQuerier struct {
	storage.Querier
	from *endless
}

func (q endlessQuerier) Select(context.Context, bool, *storage.SelectHints, ...*labels.Matcher) storage.SeriesSet {
	return &endlessSet{storage.EmptySeriesSet(), q.from}
}

type endlessSet struct {
	storage.SeriesSet
	from *endless
}

func (s *endlessSet) Next() bool {
	if s.from.seen++; s.from.seen == 100 {
		close(s.from.begun)
	}
	return true
}

func (s *endlessSet) At() storage.Series {
	return storage.NewListSeries(labels.FromStrings("a", "b"), nil)
}

func TestQuery_EndsWithItsContext(t *testing.T) {
	for _, query := range []string{`sum(rate(x[5m]))`, `x`, `topk(3, x)`, `x + y`} {
		from := &endless{begun: make(chan struct{})}
		_, engine := newEngines(1_000_000)
		q, err := request{query: query, start: beginMS, end: beginMS + hourMS, step: time.Second}.open(engine, storageOf(from.Querier))
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			<-from.begun
			q.Cancel()
		}()
		res := q.Exec(t.Context())
		var canceled promql.ErrQueryCanceled
		if !errors.As(res.Err, &canceled) {
			t.Errorf("%s: %v", query, res.Err)
		}
		q.Close()
	}
}

type storageOf func(mint, maxt int64) (storage.Querier, error)

func (s storageOf) Querier(mint, maxt int64) (storage.Querier, error) { return s(mint, maxt) }

func TestQuery_TimesOut(t *testing.T) {
	_, engine := newEngines(1000)
	from := &endless{begun: make(chan struct{})}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	q, err := engine.NewInstantQuery(ctx, storageOf(from.Querier), nil, `count(x)`, time.UnixMilli(beginMS))
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	var timeout promql.ErrQueryTimeout
	if res := q.Exec(ctx); !errors.As(res.Err, &timeout) {
		t.Errorf("%v", res.Err)
	}
}

func TestQuery_ErrorsOfTheStorage(t *testing.T) {
	broken := errors.New("disk is on fire")
	failing := storageOf(func(int64, int64) (storage.Querier, error) { return nil, broken })
	oracle, engine := newEngines(1000)
	for _, query := range []string{`x`, `sum(rate(x[5m])) / 2`, `x and y`} {
		r := request{query: query, start: beginMS, end: beginMS + hourMS, step: time.Minute}
		got, _ := r.run(t, engine, failing)
		if want, _ := r.run(t, oracle, failing); got != want {
			t.Errorf("%s: %s, want %s", query, got, want)
		}
		inSelect := storageOf(func(int64, int64) (storage.Querier, error) {
			return &storage.MockQuerier{SelectMockFunction: func(bool, *storage.SelectHints, ...*labels.Matcher) storage.SeriesSet {
				return storage.ErrSeriesSet(broken)
			}}, nil
		})
		got, _ = r.run(t, engine, inSelect)
		if want, _ := r.run(t, oracle, inSelect); got != want {
			t.Errorf("%s: selection fails: %s, want %s", query, got, want)
		}
		inSeries := storageOf(func(int64, int64) (storage.Querier, error) {
			return &storage.MockQuerier{SelectMockFunction: func(bool, *storage.SelectHints, ...*labels.Matcher) storage.SeriesSet {
				return oneSeries(&storage.SeriesEntry{Lset: labels.FromStrings("a", "b"), SampleIteratorFn: func(chunkenc.Iterator) chunkenc.Iterator {
					return failingIterator{chunkenc.NewNopIterator(), broken}
				}})
			}}, nil
		})
		got, _ = r.run(t, engine, inSeries)
		if want, _ := r.run(t, oracle, inSeries); got != want {
			t.Errorf("%s: series fails: %s, want %s", query, got, want)
		}
	}
}

// oneSeries returns a set of one series.
func oneSeries(s storage.Series) storage.SeriesSet {
	return &singleSet{storage.EmptySeriesSet(), s, true}
}

type singleSet struct {
	storage.SeriesSet
	series storage.Series
	more   bool
}

func (s *singleSet) Next() bool {
	more := s.more
	s.more = false
	return more
}

func (s *singleSet) At() storage.Series { return s.series }

type failingIterator struct {
	chunkenc.Iterator
	err error
}

func (f failingIterator) Err() error { return f.err }

func TestQuery_DescribesItself(t *testing.T) {
	store := newWorld(t, false)
	_, engine := newEngines(1000_000)
	const text = `sum by (ns) (rate(c_total[5m] offset 1m))`
	q, err := engine.NewRangeQuery(t.Context(), store, nil, text, time.UnixMilli(beginMS), time.UnixMilli(beginMS+hourMS), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	for _, when := range []string{"before", "after"} {
		stmt, ok := q.Statement().(*parser.EvalStmt)
		if !ok || q.String() != text || stmt.Expr.String() != text || stmt.Interval != time.Minute {
			t.Errorf("%s: %s, %v", when, q, q.Statement())
		}
		if when == "before" {
			if res := q.Exec(t.Context()); res.Err != nil {
				t.Fatal(res.Err)
			}
		}
	}
	q.Close()
	q.Close() // no effect
}

func TestEngine_RefusesWhatPrometheusDoes(t *testing.T) {
	oracle, engine := newEngines(1000)
	for _, query := range []string{`sum(`, `x[5m]`, `"a"`, `foo(x)`, `rate(x)`} {
		r := request{query: query, start: beginMS, end: beginMS + hourMS, step: time.Minute}
		got, _ := r.run(t, engine, nil)
		if want, _ := r.run(t, oracle, nil); got != want {
			t.Errorf("%s: %s, want %s", query, got, want)
		}
	}
}

// Prometheus evaluates an @ modifier in a subquery at another time if the subquery itself has @ and its first step is the first
// step of the query, or of the subquery around it.
func TestEngine_AtModifiersInASubqueryThatBeginsWhereTheQueryDoes(t *testing.T) {
	store, at := newWorld(t, false), beginMS+hourMS
	for _, r := range []request{
		{query: `max_over_time((g @ end())[30s:1m] @ end())`, start: at, end: at + 20_000, step: 5 * time.Second},
		{query: `sum_over_time((max_over_time((g @ end())[30s:] @ end()))[30s:])`, start: at + 17_244, end: at + 17_245, step: time.Millisecond},
	} {
		compare(t, r, store, store, 50_000_000)
		if by := compare(t, r, samplesOnly{store}, store, 50_000_000); by == "columns" {
			t.Errorf("%s evaluated by %q", r, by)
		}
	}
	// Without another @ nothing is at another time.
	r := request{query: `max_over_time(g[30s:1m] @ end())`, start: at, end: at + 20_000, step: 5 * time.Second}
	if by := compare(t, r, store, store, 50_000_000); by != "columns" {
		t.Errorf("%s evaluated by %q", r, by)
	}
}
