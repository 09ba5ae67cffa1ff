package tsdb

import (
	"context"
	"errors"
	"math"
	"strconv"
	"sync"
	"testing"

	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/model/exemplar"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
)

const capacity = "prometheus_tsdb_exemplar_max_exemplars"

// appendExemplars appends a sample with an exemplar at each time from from to to, by one of the two interfaces.
func appendExemplars(t *testing.T, s *Store, v2 bool, from, to int64) {
	t.Helper()
	var errs []error
	name := labels.FromStrings("__name__", "x")
	for ts := from; ts <= to; ts++ {
		e := exemplar.Exemplar{Labels: labels.FromStrings("trace_id", "t"), Value: float64(ts), Ts: ts, HasTs: true}
		if v2 {
			app := s.AppenderV2(t.Context())
			_, err := app.Append(0, name, 0, ts, 1, nil, nil, storage.AOptions{Exemplars: []exemplar.Exemplar{e}})
			errs = append(errs, err, app.Commit())
			continue
		}
		app := s.Appender(t.Context())
		ref, err := app.Append(0, name, ts, 1)
		_, also := app.AppendExemplar(ref, name, e)
		errs = append(errs, err, also, app.Commit())
	}
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// exemplarsOf returns the number of exemplars.
func exemplarsOf(t *testing.T, s *Store) (found int) {
	t.Helper()
	q, err := s.ExemplarQuerier(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	all, err := q.Select(0, math.MaxInt64, []*labels.Matcher{labels.MustNewMatcher(labels.MatchEqual, "__name__", "x")})
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range all {
		found += len(one.Exemplars)
	}
	return found
}

func TestExemplars_TakeMemoryFromTheFirstOn(t *testing.T) {
	for name, v2 := range map[string]bool{"appender": false, "second appender": true} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			open := func(wantMemory bool, wantFound int) *Store {
				s := newStore(t, Options{Dir: dir, MaxExemplars: 3})
				if err := s.Open(); err != nil {
					t.Fatal(err)
				}
				if got := s.exemplars.grown.Load(); got != wantMemory || gaugeOf(t, s, capacity) != 3 {
					t.Errorf("memory after the start: %v, capacity %v", got, gaugeOf(t, s, capacity))
				}
				if got := exemplarsOf(t, s); got != wantFound {
					t.Errorf("%d exemplars after the start, want %d", got, wantFound)
				}
				return s
			}
			for range 2 { // the second start has a log, but no exemplar either
				if err := open(false, 0).Close(); err != nil {
					t.Fatal(err)
				}
			}
			s := open(false, 0)
			appendExemplars(t, s, v2, 1, 2)
			if got := exemplarsOf(t, s); got != 2 {
				t.Errorf("%d exemplars, want both", got)
			}
			appendExemplars(t, s, v2, 3, 5)
			if got := exemplarsOf(t, s); got != 3 || gaugeOf(t, s, capacity) != 3 {
				t.Errorf("%d exemplars of 5, want 3", got)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			open(true, 3)
		})
	}
}

func TestExemplars_CapacityOfAReloadHoldsBeforeAndAfterTheFirst(t *testing.T) {
	s := newStore(t, Options{MaxExemplars: 1})
	if err := s.Open(); err != nil {
		t.Fatal(err)
	}
	reload := func(exemplars int64) {
		t.Helper()
		section := config.StorageConfig{ExemplarsConfig: &config.ExemplarsConfig{MaxExemplars: exemplars}}
		if err := s.ApplyConfig(&config.Config{StorageConfig: section}); err != nil {
			t.Fatal(err)
		}
	}
	reload(2)
	if s.exemplars.grown.Load() || gaugeOf(t, s, capacity) != 2 {
		t.Errorf("before the first exemplar: memory %v, capacity %v", s.exemplars.grown.Load(), gaugeOf(t, s, capacity))
	}
	appendExemplars(t, s, true, 1, 3)
	if got := exemplarsOf(t, s); got != 2 {
		t.Errorf("%d exemplars, want 2", got)
	}
	reload(4)
	appendExemplars(t, s, true, 4, 9)
	if got := exemplarsOf(t, s); got != 4 {
		t.Errorf("%d exemplars, want 4", got)
	}
	reload(0)
	appendExemplars(t, s, true, 10, 11)
	if got := exemplarsOf(t, s); got != 0 {
		t.Errorf("%d exemplars, want none", got)
	}
}

func TestExemplars_AppendsReloadsAndQueriesGoOnAtOnce(t *testing.T) {
	s := newStore(t, Options{MaxExemplars: 2})
	if err := s.Open(); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range 2 {
		wg.Go(func() {
			for ts := range int64(40) {
				name := labels.FromStrings("__name__", "x", "i", strconv.Itoa(i))
				e := exemplar.Exemplar{Labels: labels.FromStrings("trace_id", "t"), Value: 1, Ts: ts, HasTs: true}
				app := s.AppenderV2(t.Context())
				_, err := app.Append(0, name, 0, ts, 1, nil, nil, storage.AOptions{Exemplars: []exemplar.Exemplar{e}})
				if err := errors.Join(err, app.Commit()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for size := range int64(20) {
		section := config.StorageConfig{ExemplarsConfig: &config.ExemplarsConfig{MaxExemplars: 1 + size%3*40}}
		if err := s.ApplyConfig(&config.Config{StorageConfig: section}); err != nil {
			t.Error(err)
		}
		exemplarsOf(t, s)
	}
	wg.Wait()
	if got, want := exemplarsOf(t, s), gaugeOf(t, s, capacity); got == 0 || got > int(want) {
		t.Errorf("%d exemplars with a capacity for %v", got, want)
	}
}
