package columns_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/ferula-io/ferula/internal/promql/columns"
	"github.com/ferula-io/ferula/internal/series/labelenc"

	"github.com/ferula-io/ferula/internal/series"
)

// helped returns an engine whose queries get the help of n workers, as soon as they can.
func helped(opts promql.EngineOpts, n int) *columns.Engine {
	options := optionsOf(opts)
	options.Workers = columns.NewWorkers(n)
	return columns.Eager(columns.New(options))
}

func TestEngine_ReturnsTheSameWhateverItsParallelism(t *testing.T) {
	for name, late := range map[string]bool{"in order": false, "out of order": true} {
		t.Run(name, func(t *testing.T) {
			store := newWorld(t, late)
			for _, limit := range []int{50_000_000, 3000} {
				opts := engineOpts(limit)
				alone, two, seven := helped(opts, 0), helped(opts, 1), helped(opts, 6)
				eachSpan(slices.Concat(known, histograms), func(r request) {
					r.perStep = false
					want, _ := r.run(t, alone, store)
					for parallelism, engine := range map[int]*columns.Engine{2: two, 7: seven} {
						if got, _ := r.run(t, engine, store); got != want {
							t.Errorf("%s with parallelism %d: %s", r, parallelism, difference(got, want))
						}
					}
				})
			}
		})
	}
}

func TestEngine_QueriesAtOnceReturnTheSame(t *testing.T) {
	store := newWorld(t, false)
	engine := helped(engineOpts(50_000_000), 2)
	var all sync.WaitGroup
	for _, query := range []string{`sum by (ns) (rate(c_total[5m]))`, `sum(g) / count(g)`, `{__name__=~"c_total|g"}`, `topk(3, g) or avg(c_total)`, `deriv(g[10m]) + on (ns, i) irate(c_total[5m])`} {
		r := request{query: query, start: beginMS, end: beginMS + 5*hourMS, step: time.Minute}
		want, _ := r.run(t, engine, store)
		for range 3 {
			all.Go(func() {
				if got, _ := r.run(t, engine, store); got != want {
					t.Errorf("%s: %s", r, difference(got, want))
				}
			})
		}
	}
	all.Wait()
}

// endlessRaw is a storage with a raw interface whose selections never end.
type endlessRaw struct {
	storage.Queryable
	chunk  []byte
	cancel context.CancelFunc // called at series cancelAt
	read   atomic.Int64
	broken bool  // all chunks from series cancelAt are corrupt
	end    int64 // series; 0: no end
	atEnd  func()
	sets   [][]byte // encoded labels of the first series, so that to read them allocates nothing
	chunks []series.Chunk
}

const cancelAt = 1000

func newEndlessRaw(t *testing.T) *endlessRaw {
	t.Helper()
	c := chunkenc.NewXORChunk()
	app, err := c.Appender()
	if err != nil {
		t.Fatal(err)
	}
	for i := range int64(100) {
		app.Append(0, beginMS+i*15_000, float64(i))
	}
	return &endlessRaw{chunk: c.Bytes()}
}

func (e *endlessRaw) RawQuerier(context.Context, int64, int64) (series.Querier, error) { return e, nil }

func (e *endlessRaw) Select(context.Context, series.SelectOptions, ...*labels.Matcher) series.Set {
	return e
}

func (*endlessRaw) Capabilities() series.Capabilities {
	return series.Capabilities{OwnOrder: true}
}
func (*endlessRaw) LabelNames(context.Context, series.SelectOptions, ...*labels.Matcher) ([]string, error) {
	return nil, nil
}
func (*endlessRaw) Close() error { return nil }

func (e *endlessRaw) Next() bool {
	if e.end > 0 && e.read.Load() >= e.end {
		if e.read.Add(1) > e.end+1 {
			panic("Next after the end")
		}
		if e.atEnd != nil {
			e.atEnd()
		}
		return false
	}
	if e.read.Add(1) == cancelAt && e.cancel != nil {
		e.cancel()
	}
	return true
}

func (e *endlessRaw) Labels() []byte {
	if n := e.read.Load(); n <= int64(len(e.sets)) {
		return e.sets[n-1]
	}
	return labelenc.Append(nil, labels.FromStrings(labels.MetricName, "x", "i", fmt.Sprint(e.read.Load())))
}

func (e *endlessRaw) Chunks() []series.Chunk {
	data := e.chunk
	if e.broken && e.read.Load() >= cancelAt {
		data = data[:10]
	}
	e.chunks = append(e.chunks[:0], series.Chunk{MinMS: beginMS, MaxMS: beginMS + 99*15_000, Encoding: chunkenc.EncXOR, Data: data})
	return e.chunks
}
func (*endlessRaw) Err() error                        { return nil }
func (*endlessRaw) Warnings() annotations.Annotations { return nil }

// Each of the helping goroutines, and the query's own, has two batches of two series at most.
func mostAhead(parallelism int) int64 { return int64(parallelism * 2 * 2) }

func TestQuery_ReadsNoMoreOnceItIsCanceled(t *testing.T) {
	for _, parallelism := range []int{1, 2, 7} {
		for _, query := range []string{`sum(rate(x[5m]))`, `count(x)`, `topk(3, x)`} {
			from := newEndlessRaw(t)
			q, err := request{query: query, start: beginMS, end: beginMS + hourMS, step: time.Minute}.open(helped(engineOpts(1_000_000_000), parallelism-1), from)
			if err != nil {
				t.Fatal(err)
			}
			from.cancel = q.Cancel
			var canceled promql.ErrQueryCanceled
			if res := q.Exec(t.Context()); !errors.As(res.Err, &canceled) {
				t.Errorf("%s: %v", query, res.Err)
			}
			q.Close()
			if n := from.read.Load() - cancelAt; n > mostAhead(parallelism) {
				t.Errorf("%s with parallelism %d: %d series read after the cancellation", query, parallelism, n)
			}
		}
	}
}

func TestQuery_ReadsNoMoreOnceItFailed(t *testing.T) {
	for _, parallelism := range []int{1, 2, 7} {
		from := newEndlessRaw(t)
		from.broken = true
		q, err := request{query: `sum(rate(x[5m]))`, start: beginMS, end: beginMS + hourMS, step: time.Minute}.open(helped(engineOpts(1_000_000_000), parallelism-1), from)
		if err != nil {
			t.Fatal(err)
		}
		if res := q.Exec(t.Context()); !errors.Is(res.Err, series.ErrCorrupt) {
			t.Errorf("%v", res.Err)
		}
		q.Close()
		if n := from.read.Load() - cancelAt; n > mostAhead(parallelism) {
			t.Errorf("parallelism %d: %d series read after the corrupt one", parallelism, n)
		}
	}
}

func TestQuery_ReadsNoMoreAfterTheEnd(t *testing.T) {
	for end := range int64(12) {
		from := newEndlessRaw(t)
		from.end = end + 1
		for _, parallelism := range []int{1, 3} {
			from.read.Store(0)
			got, _ := request{query: `count(x)`, start: beginMS}.run(t, helped(engineOpts(1000), parallelism-1), from)
			if want := fmt.Sprintf("%d/", end+1); !strings.Contains(got, want) {
				t.Errorf("parallelism %d: %s, want %s", parallelism, got, want)
			}
		}
	}
}

// selections is a storage with a raw interface whose sets several goroutines may read.
type selections struct {
	storage.Queryable
	open func(name string) series.Set
}

func (s selections) RawQuerier(context.Context, int64, int64) (series.Querier, error) { return s, nil }

func (s selections) Select(_ context.Context, _ series.SelectOptions, matchers ...*labels.Matcher) series.Set {
	return s.open(matchers[len(matchers)-1].Value)
}

func (selections) Capabilities() series.Capabilities {
	return series.Capabilities{OwnOrder: true, Concurrent: true}
}
func (selections) LabelNames(context.Context, series.SelectOptions, ...*labels.Matcher) ([]string, error) {
	return nil, nil
}
func (selections) Close() error { return nil }

// hookedSet calls a function before each series.
type hookedSet struct {
	*endlessRaw
	before func()
}

func (h hookedSet) Next() bool {
	h.before()
	return h.endlessRaw.Next()
}

func TestQuery_ReadsBothOperandsAtTheSameTime(t *testing.T) {
	for _, query := range []string{`x + y`, `sum(x) / sum(y)`, `x and y`, `rate(x[5m]) / on (i) group_left () (-y * 2)`, `max_over_time((x + y)[5m:1m])`, `(sum(x @ 1767225900) + 1) > sum(y @ 1767225900)`} {
		var both sync.WaitGroup
		both.Add(2)
		met := make(chan struct{})
		go func() { both.Wait(); close(met) }()
		from := selections{open: func(name string) series.Set {
			set := newEndlessRaw(t)
			set.end = 5
			return hookedSet{set, sync.OnceFunc(func() {
				both.Done()
				select {
				case <-met:
				case <-time.After(30 * time.Second):
					t.Errorf("%s: %s is read alone", query, name)
				}
			})}
		}}
		r := request{query: query, start: beginMS, end: beginMS + 20*60_000, step: time.Minute}
		if got, by := r.run(t, helped(engineOpts(50_000_000), 1), from); by != "columns" || strings.Contains(got, "error") {
			t.Errorf("%s by %s: %s", query, by, got)
		}
	}
}

// The error is that of the operand that would fail first if the operands were evaluated one after the other. The other
// operand ends.
func TestQuery_EndsBothOperandsWithTheFirstError(t *testing.T) {
	endless := func() *endlessRaw { return newEndlessRaw(t) }
	broken := func() *endlessRaw { set := newEndlessRaw(t); set.broken = true; return set }
	short := func() *endlessRaw { set := newEndlessRaw(t); set.end = 3; return set }
	panicking := func() series.Set {
		return hookedSet{endless(), func() { panic("a fault of the set") }}
	}
	for _, c := range []struct {
		x, y func() series.Set
		want string
	}{
		{func() series.Set { return broken() }, func() series.Set { return endless() }, "corrupt"},
		{func() series.Set { return short() }, func() series.Set { return broken() }, "corrupt"},
		{func() series.Set { return broken() }, panicking, "corrupt"},
		{func() series.Set { return short() }, panicking, "a fault of the set"},
		{panicking, func() series.Set { return endless() }, "a fault of the set"},
	} {
		for _, query := range []string{`sum(rate(x[5m])) / sum(y)`, `count(x) or count(y)`} {
			from := selections{open: func(name string) series.Set {
				if name == "x" {
					return c.x()
				}
				return c.y()
			}}
			q, err := request{query: query, start: beginMS, end: beginMS + hourMS, step: time.Minute}.open(helped(engineOpts(1_000_000_000), 2), from)
			if err != nil {
				t.Fatal(err)
			}
			if res := q.Exec(t.Context()); res.Err == nil || !strings.Contains(res.Err.Error(), c.want) {
				t.Errorf("%s: %v, want %s", query, res.Err, c.want)
			}
			q.Close()
		}
	}
}

func TestQuery_EndsBothOperandsWithItsContext(t *testing.T) {
	var x, y *endlessRaw
	for _, query := range []string{`sum(x) / sum(y)`, `sum(y) / sum(x)`} {
		x, y = newEndlessRaw(t), newEndlessRaw(t)
		q, err := request{query: query, start: beginMS, end: beginMS + hourMS, step: time.Minute}.open(helped(engineOpts(1_000_000_000), 2), selections{open: func(name string) series.Set {
			if name == "x" {
				return x
			}
			return y
		}})
		if err != nil {
			t.Fatal(err)
		}
		x.cancel = q.Cancel
		var canceled promql.ErrQueryCanceled
		if res := q.Exec(t.Context()); !errors.As(res.Err, &canceled) {
			t.Errorf("%s: %v", query, res.Err)
		}
		q.Close()
		if n := x.read.Load() - cancelAt; n > mostAhead(3) {
			t.Errorf("%s: %d series read after the cancellation", query, n)
		}
	}
}

// Neither operator goes through all of its series once the query has ended: each of them would take some allocations.
func TestQuery_MatchesNoMoreOnceItIsCanceled(t *testing.T) {
	const many = 20_000
	for _, query := range []string{`x + y`, `x > on (i) group_left () y`, `x and y`, `x unless y`, `x or y`} {
		var before, after runtime.MemStats
		ctx, cancel := context.WithCancel(t.Context())
		sets := map[string]*endlessRaw{"x": newEndlessRaw(t), "y": newEndlessRaw(t)}
		sets["x"].end, sets["y"].end = many, many
		sets["y"].atEnd = func() {
			cancel()
			runtime.ReadMemStats(&before)
		}
		q, err := helped(engineOpts(1_000_000_000), 0).NewInstantQuery(ctx, selections{open: func(name string) series.Set { return sets[name] }}, nil, query, time.UnixMilli(beginMS))
		if err != nil {
			t.Fatal(err)
		}
		var canceled promql.ErrQueryCanceled
		if res := q.Exec(ctx); !errors.As(res.Err, &canceled) {
			t.Errorf("%s: %v", query, res.Err)
		}
		runtime.ReadMemStats(&after)
		q.Close()
		if n := after.Mallocs - before.Mallocs; n > many/4 {
			t.Errorf("%s: %d allocations after the cancellation", query, n)
		}
	}
}
