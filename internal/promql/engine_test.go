package promql_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/storage"
	"go.uber.org/goleak"

	ferulapromql "github.com/ferula-io/ferula/internal/promql"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newEngine(t *testing.T, opts ferulapromql.Options) *ferulapromql.Engine {
	t.Helper()
	e, err := ferulapromql.New(opts, slog.New(slog.DiscardHandler), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() })
	return e
}

// The scripts enable experimental features only in their own engine, so the test enables
// them here.
func TestEngine_PassesPrometheusScripts(t *testing.T) {
	promqltest.RunBuiltinTests(t, newEngine(t, ferulapromql.Options{
		MaxSamples:             10_000_000,
		TrackerDir:             t.TempDir(),
		ExperimentalFunctions:  true,
		ExtendedRangeSelectors: true,
		BinopFillModifiers:     true,
		UseStartTimestamps:     true,
		DelayedNameRemoval:     true,
	}))
}

func TestEngine_ExperimentalFunctionsAreRefusedByDefault(t *testing.T) {
	e := newEngine(t, ferulapromql.Options{})
	_, err := e.NewInstantQuery(context.Background(), storage.QueryableFunc(nil), nil, `mad_over_time(x[1m])`, time.Unix(0, 0))
	if err == nil || !strings.Contains(err.Error(), "not enabled") {
		t.Fatalf("got %v", err)
	}
}

func TestEngine_SubqueryStepDefaultsToTheEvaluationInterval(t *testing.T) {
	e := newEngine(t, ferulapromql.Options{})
	e.SetEvaluationInterval(5 * time.Second)
	q := storage.QueryableFunc(func(_, _ int64) (storage.Querier, error) { return storage.NoopQuerier(), nil })
	query, err := e.NewInstantQuery(context.Background(), q, nil, `count_over_time(vector(1)[1m:])`, time.Unix(600, 0))
	if err != nil {
		t.Fatal(err)
	}
	defer query.Close()
	res := query.Exec(context.Background())
	if res.Err != nil {
		t.Fatal(res.Err)
	}
	v, err := res.Vector()
	if err != nil || len(v) != 1 || v[0].F != 12 {
		t.Fatalf("got %v, %v: want the 12 steps of 5s in a minute", v, err)
	}
}

func TestEngine_QueriesBeyondTheConcurrencyLimitWait(t *testing.T) {
	e := newEngine(t, ferulapromql.Options{MaxConcurrency: 1})
	started, release := make(chan struct{}), make(chan struct{})
	slow := storage.QueryableFunc(func(_, _ int64) (storage.Querier, error) {
		close(started)
		<-release
		return storage.NoopQuerier(), nil
	})
	done := make(chan error, 1)
	go func() {
		q, err := e.NewInstantQuery(context.Background(), slow, nil, `up`, time.Unix(0, 0))
		if err == nil {
			err = q.Exec(context.Background()).Err
		}
		done <- err
	}()
	<-started
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	q, err := e.NewInstantQuery(ctx, slow, nil, `up`, time.Unix(0, 0))
	if err == nil {
		err = q.Exec(ctx).Err
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("got %v, want the error of the context that waited in the queue", err)
	}
	close(release)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// querier selects series.
type querier struct {
	storage.Querier
	series storage.SeriesSet
}

func (q querier) Select(context.Context, bool, *storage.SelectHints, ...*labels.Matcher) storage.SeriesSet {
	return q.series
}

func (querier) Close() error { return nil }

// wrong are series with a bug.
type wrong struct{ storage.SeriesSet }

func (wrong) Next() bool { return []bool{}[len("x")] }

// The engine's evaluator recovers a panic, and logs it only.
func TestEngine_CountsQueriesThatPanic(t *testing.T) {
	panicked := 0
	e := newEngine(t, ferulapromql.Options{Panicked: func() { panicked++ }})
	for _, series := range []storage.SeriesSet{wrong{}, storage.ErrSeriesSet(errors.New("the disk is gone"))} {
		from := storage.QueryableFunc(func(_, _ int64) (storage.Querier, error) { return querier{series: series}, nil })
		for _, eval := range []func() (promql.Query, error){
			func() (promql.Query, error) { return e.NewInstantQuery(t.Context(), from, nil, `up`, time.Unix(0, 0)) },
			func() (promql.Query, error) {
				return e.NewRangeQuery(t.Context(), from, nil, `up`, time.Unix(0, 0), time.Unix(9, 0), time.Second)
			},
		} {
			q, err := eval()
			if err != nil {
				t.Fatal(err)
			}
			if res := q.Exec(t.Context()); res.Err == nil {
				t.Error("no error")
			}
			q.Close()
		}
		if panicked != 2 {
			t.Errorf("%d panics are counted, want 2", panicked)
		}
	}
}

// The log of running queries is not worth a start that fails again and again.
func TestNew_AFullDiskIsNoError(t *testing.T) {
	dir := t.TempDir()
	if err := os.Symlink("/dev/full", filepath.Join(dir, "queries.active")); err != nil {
		t.Fatal(err)
	}
	e := newEngine(t, ferulapromql.Options{TrackerDir: dir, MaxConcurrency: 3})
	if _, all := e.SlotsInUse(); all != 3 {
		t.Errorf("%d slots", all)
	}
}

func TestOptions_ValidateReportsAllErrors(t *testing.T) {
	_, err := ferulapromql.New(ferulapromql.Options{MaxSamples: -1, Timeout: -1, LookbackDelta: -1}, slog.New(slog.DiscardHandler), nil)
	for _, want := range []string{"max-samples", "timeout", "lookback-delta"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Fatalf("%v does not name %s", err, want)
		}
	}
}

func TestEngine_BareHasItsOwnLimitOfSamples(t *testing.T) {
	e := newEngine(t, ferulapromql.Options{MaxSamples: 100})
	nothing := storage.QueryableFunc(func(_, _ int64) (storage.Querier, error) { return storage.NoopQuerier(), nil })
	for limit, ok := range map[int]bool{100: false, 10_000: true} {
		q, err := e.Bare(limit).NewInstantQuery(context.Background(), nothing, nil, `max_over_time(vector(1)[1000s:1s])`, time.Unix(10_000, 0))
		if err != nil {
			t.Fatal(err)
		}
		if err := q.Exec(context.Background()).Err; (err == nil) != ok {
			t.Errorf("a limit of %d samples: %v", limit, err)
		}
		q.Close()
	}
}
