package sim

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/model/labels"
	promqlengine "github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/ferula-io/ferula/internal/promql"
	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/series/labelenc"
	"github.com/ferula-io/ferula/internal/thanos/fanout"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

const (
	windowMS     = int64(5 * time.Minute / time.Millisecond) // of a downsampled value
	sampleStepMS = int64(30_000)
	downsampled  = "downsampled"
	replicaLabel = "replica"
)

// downsampledScenario is a querier in process over stores in memory. Each replica has
// downsampled chunks of its older windows and raw chunks of its newer ones, in one store
// or in two. Some windows may be both downsampled and raw.
type downsampledScenario struct {
	env      *environment
	rng      *rand.Rand
	engine   *promql.Engine
	replicas []*replicaData
	windows  int
	deduped  bool // the replica label is configured
	overlap  bool // some windows are downsampled and raw
	chained  bool // a querier reads another querier
	counter  bool // values only grow
	queries  *fanout.Fanout
}

// replicaData holds the values of one replica, by window.
type replicaData struct {
	name     string
	values   [][]float64 // by window, one per sampleStepMS
	offsetMS int64
	atEnd    bool // a downsampled value has the timestamp of its window's end
	aggrTo   int  // windows before this index are downsampled
	rawFrom  int  // windows from this index on are raw
}

func newDownsampledScenario(e *environment, _ string, rng *rand.Rand) (scenario, error) {
	w := &downsampledScenario{env: e, rng: rng, windows: 24 + rng.IntN(24)}
	w.deduped, w.overlap = rng.IntN(3) > 0, rng.IntN(2) == 0
	w.chained, w.counter = rng.IntN(2) == 0, rng.IntN(3) == 0
	equal := rng.IntN(2) == 0
	to := 8 + rng.IntN(w.windows-12)
	for i := range 1 + rng.IntN(3) {
		r := &replicaData{name: fmt.Sprint("r", i), aggrTo: to}
		if !equal {
			r.aggrTo = 8 + rng.IntN(w.windows-12)
		}
		if r.rawFrom = r.aggrTo; w.overlap {
			r.rawFrom = rng.IntN(r.aggrTo)
		}
		r.offsetMS = int64(i) * pick(rng, int64(0), 1000)
		r.atEnd = w.deduped
		r.measure(rng, w.windows, w.counter)
		w.replicas = append(w.replicas, r)
	}
	var err error
	w.engine, err = promql.New(promql.Options{}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	return w, err
}

// measure generates the values of a replica.
func (r *replicaData) measure(rng *rand.Rand, windows int, counter bool) {
	last, growth := 1e6, 6.0 // replicas scrape the same counter
	for range windows {
		var values []float64
		for range windowMS / sampleStepMS {
			if last += growth; counter {
				values = append(values, last)
			} else {
				values = append(values, float64(1+rng.IntN(1000)))
			}
		}
		r.values = append(r.values, values)
	}
}

func (r *replicaData) sampleMS(window, i int) int64 {
	return int64(window)*windowMS + int64(i)*sampleStepMS + r.offsetMS
}

// stampMS returns the timestamp of a window's downsampled value. In blocks of Thanos it is the
// last millisecond of the window or, for the last window of a chunk, the timestamp of the last
// sample. Without deduplication the scenario always uses the timestamp of the last sample:
// otherwise a window in which the raw samples end would be counted twice, because its
// downsampled value would follow them.
func (r *replicaData) stampMS(window int) int64 {
	if r.atEnd {
		return int64(window+1)*windowMS - 1
	}
	return r.sampleMS(window, len(r.values[window])-1)
}

// start builds the stores and the querier.
func (w *downsampledScenario) start() error {
	var stores []fanout.Client
	for _, r := range w.replicas {
		bucket, sidecar, err := w.stores(r, w.rng.IntN(2) == 0)
		if err != nil {
			return err
		}
		if stores = append(stores, bucket); sidecar != nil {
			stores = append(stores, sidecar)
		}
	}
	w.queries = w.querier(stores)
	if w.chained {
		w.queries = w.querier([]fanout.Client{sourceClient{w.queries.Source()}})
	}
	return nil
}

func (w *downsampledScenario) querier(stores []fanout.Client) *fanout.Fanout {
	options := fanout.EndpointsOptions{Dial: func(a fanout.Address) (fanout.Client, error) {
		address := a.Name
		var i int
		_, err := fmt.Sscanf(address, "s%d", &i)
		return stores[i], err
	}}
	for i := range stores {
		options.Static = append(options.Static, fanout.Address{Name: fmt.Sprint("s", i)})
	}
	endpoints := fanout.NewEndpoints(options)
	endpoints.Update(w.env.ctx)
	return fanout.New(endpoints, fanout.Options{})
}

// stores returns a replica's data as one store, or as a bucket and a sidecar.
func (w *downsampledScenario) stores(r *replicaData, apart bool) (bucket, sidecar *fakeStore, err error) {
	one := fakeSeries{labels: labels.FromStrings("__name__", downsampled, replicaLabel, r.name)}
	for from := r.rawFrom; from < w.windows; {
		to := min(w.windows, from+1+w.rng.IntN(4))
		var times []int64
		var values []float64
		for at := from; at < to; at++ {
			for i, v := range r.values[at] {
				times, values = append(times, r.sampleMS(at, i)), append(values, v)
			}
		}
		c, err := floatChunk(times, values)
		if err != nil {
			return nil, nil, err
		}
		one.raw = append(one.raw, c)
		from = to
	}
	for from := 0; from < r.aggrTo; {
		to := min(r.aggrTo, from+1+w.rng.IntN(6))
		c, err := r.downsample(from, to)
		if err != nil {
			return nil, nil, err
		}
		one.aggr = append(one.aggr, c)
		from = to
	}
	bucket = &fakeStore{mintMS: math.MinInt64, maxtMS: math.MaxInt64, series: []fakeSeries{one}}
	if !apart {
		return bucket, nil, nil
	}
	sidecar = &fakeStore{mintMS: math.MinInt64, maxtMS: math.MaxInt64, series: []fakeSeries{{labels: one.labels, raw: one.raw}}}
	bucket.series[0].raw = nil
	return bucket, sidecar, nil
}

// downsample returns the aggregates of the windows [from, to) as chunks of one span. The
// timestamp of each is stampMS.
func (r *replicaData) downsample(from, to int) (series.Chunk, error) {
	var times []int64
	columns := map[series.Aggr][]float64{}
	for at := from; at < to; at++ {
		v := r.values[at]
		times = append(times, r.stampMS(at))
		columns[series.Count] = append(columns[series.Count], float64(len(v)))
		columns[series.Sum] = append(columns[series.Sum], sum(v))
		columns[series.Min] = append(columns[series.Min], slices.Min(v))
		columns[series.Max] = append(columns[series.Max], slices.Max(v))
		columns[series.Counter] = append(columns[series.Counter], v[len(v)-1])
	}
	var parts []series.Part
	for _, aggr := range sortedKeys(columns) {
		at, values := slices.Clone(times), columns[aggr]
		if aggr == series.Counter { // chunks of counters repeat the last value at their end
			at, values = append(at, at[len(at)-1]), append(values, values[len(values)-1])
		}
		c, err := floatChunk(at, values)
		if err != nil {
			return series.Chunk{}, err
		}
		parts = append(parts, series.Part{Aggr: aggr, Encoding: c.Encoding, Data: c.Data})
	}
	return series.Chunk{MinMS: times[0], MaxMS: times[len(times)-1], Encoding: series.Aggregated,
		Data: series.AppendAggregated(nil, parts)}, nil
}

func sum(values []float64) float64 {
	total := 0.0
	for _, v := range values {
		total += v
	}
	return total
}

func floatChunk(times []int64, values []float64) (series.Chunk, error) {
	chunk := chunkenc.NewXORChunk()
	app, err := chunk.Appender()
	if err != nil {
		return series.Chunk{}, err
	}
	for i, ms := range times {
		app.Append(0, ms, values[i])
	}
	return series.Chunk{MinMS: times[0], MaxMS: times[len(times)-1], Encoding: chunk.Encoding(), Data: chunk.Bytes()}, nil
}

func (w *downsampledScenario) stop() error { return w.engine.Close() }

// steps returns a step for each query; each has another function.
func (w *downsampledScenario) steps() []step {
	var list []step
	for _, function := range []string{"sum_over_time", "count_over_time", "avg_over_time", "min_over_time", "max_over_time", "rate"} {
		list = append(list, step{function, func() error { return w.compare(function) }})
	}
	return list
}

// check has nothing to compare: each step compares its own query.
func (w *downsampledScenario) check() error { return nil }

// compare evaluates a function at the end of each window, over that window.
func (w *downsampledScenario) compare(function string) error {
	minutes := 5
	if function == "rate" {
		minutes = 10
	}
	request := fanout.Request{MaxResolutionMS: windowMS, AbortOnPartial: true}
	if w.deduped {
		request.ReplicaLabels = []string{replicaLabel}
	}
	expr := fmt.Sprintf("%s(%s[%dm])", function, downsampled, minutes)
	at := func(window int) time.Time { return time.UnixMilli(int64(window+1)*windowMS - 1) }
	q, err := w.engine.NewRangeQuery(w.env.ctx, w.queries.Queryable(request), nil, expr, at(0), at(w.windows-1), time.Duration(windowMS)*time.Millisecond)
	if err != nil {
		return err
	}
	defer q.Close()
	result := q.Exec(w.env.ctx)
	if result.Err != nil {
		return fmt.Errorf("%s: %w", expr, result.Err)
	}
	matrix, err := result.Matrix()
	if err != nil {
		return err
	}
	want := len(w.replicas)
	if w.deduped {
		want = 1
	}
	if len(matrix) != want {
		return fmt.Errorf("%s returns %d series, want %d", expr, len(matrix), want)
	}
	for _, s := range matrix {
		if err := w.compareSeries(function, s); err != nil {
			return fmt.Errorf("%s {%s}, replicas %s: %w", expr, s.Metric, w.describe(), err)
		}
		w.env.proved(len(s.Floats))
	}
	return nil
}

func (w *downsampledScenario) describe() string {
	text := ""
	for _, r := range w.replicas {
		text += fmt.Sprintf("[%s downsampled to window %d, raw from %d, +%d ms]", r.name, r.aggrTo, r.rawFrom, r.offsetMS)
	}
	return text
}

func (w *downsampledScenario) compareSeries(function string, s promqlengine.Series) error {
	candidates := w.replicas
	if !w.deduped {
		candidates = slices.DeleteFunc(slices.Clone(w.replicas), func(r *replicaData) bool { return r.name != s.Metric.Get(replicaLabel) })
	}
	points := map[int64]float64{}
	for _, p := range s.Floats {
		points[(p.T+1)/windowMS-1] = p.F
	}
	if function == "rate" {
		return w.compareRates(candidates, points)
	}
	for window := range w.windows {
		got, ok := points[int64(window)]
		exact := w.exact(window)
		if !ok && !exact {
			continue // deduplication may switch to the other replica here
		}
		if !ok {
			return fmt.Errorf("window %d has no value", window)
		}
		low, high, match := math.Inf(1), math.Inf(-1), false
		most := 1 + 1e-9
		if !exact { // raw samples of one replica, then the downsampled value of another, as in Thanos
			most = 2
		}
		for _, r := range candidates {
			v := apply(function, r.values[window])
			match = match || math.Abs(got-v) <= 1e-9*math.Abs(v)
			// PromQL counts a downsampled value as one sample, as it does in Thanos.
			match = match || function == "count_over_time" && got == 1 && window < r.aggrTo
			low, high = min(low, v), max(high, v)
		}
		switch {
		case exact && !match:
			return fmt.Errorf("window %d is %v, which is of none of its replicas (%v to %v)", window, got, low, high)
		case (function == "sum_over_time" || function == "count_over_time") && got > high*most:
			return fmt.Errorf("window %d is %v, more than any replica has (%v)", window, got, high)
		}
	}
	return nil
}

// exact reports whether the value of a window must be that of one replica. Where a series
// changes from downsampled to raw samples, deduplication may leave out samples.
func (w *downsampledScenario) exact(window int) bool {
	if !w.deduped {
		return true
	}
	rawFrom, aggrTo := w.windows, 0
	for _, r := range w.replicas {
		rawFrom, aggrTo = min(rawFrom, r.rawFrom), max(aggrTo, r.aggrTo)
	}
	return window < rawFrom-1 || rawFrom >= aggrTo && window >= aggrTo+handover
}

const handover = 4 // windows around the change from downsampled to raw samples

func apply(function string, values []float64) float64 {
	switch function {
	case "sum_over_time":
		return sum(values)
	case "count_over_time":
		return float64(len(values))
	case "avg_over_time":
		return sum(values) / float64(len(values))
	case "min_over_time":
		return slices.Min(values)
	default:
		return slices.Max(values)
	}
}

// compareRates checks that a counter that grows steadily never seems to grow faster
// than its fastest replica.
func (w *downsampledScenario) compareRates(candidates []*replicaData, points map[int64]float64) error {
	if !w.counter {
		return nil
	}
	fastest := 0.0
	for _, r := range candidates {
		fastest = max(fastest, (r.values[0][1]-r.values[0][0])/(float64(sampleStepMS)/1000))
	}
	for window := range w.windows {
		if got := points[int64(window)]; got < 0 || w.exact(window) && got > 1.2*fastest {
			return fmt.Errorf("window %d grows by %v per second, but no replica by more than %v", window, got, fastest)
		}
	}
	return nil
}

// noLabels is a store without lists of labels.
type noLabels struct{ storeapi.NoServices }

func (noLabels) LabelNames(context.Context, storeapi.LabelsRequest) (names, warnings []string, err error) {
	return nil, nil, nil
}

func (noLabels) LabelValues(context.Context, storeapi.LabelsRequest) (values, warnings []string, err error) {
	return nil, nil, nil
}

// noExtras is a stream without warnings and buffers.
type noExtras struct{}

func (noExtras) Warnings() annotations.Annotations { return nil }
func (noExtras) BufferedBytes() int64              { return 0 }
func (noExtras) Close() error                      { return nil }

// fakeSeries is one series of a fakeStore.
type fakeSeries struct {
	labels labels.Labels
	raw    []series.Chunk
	aggr   []series.Chunk // downsampled
}

// fakeStore is a StoreAPI in memory. As in a real one, each Next overwrites the bytes
// that the stream has returned.
type fakeStore struct {
	noLabels
	mintMS, maxtMS int64
	series         []fakeSeries // sorted by labels
}

var _ fanout.Client = (*fakeStore)(nil)

func (f *fakeStore) Info(context.Context) (storeapi.Info, error) {
	return storeapi.Info{Component: "store", Store: &storeapi.StoreInfo{TimeRange: storeapi.TimeRange{MinMS: f.mintMS, MaxMS: f.maxtMS}}}, nil
}

func (f *fakeStore) Series(ctx context.Context, r storeapi.SeriesRequest) storeapi.Stream {
	s := &fakeStream{ctx: ctx, request: r}
	for _, one := range f.series {
		if !slices.ContainsFunc(r.Matchers, func(m *labels.Matcher) bool { return !m.Matches(one.labels.Get(m.Name)) }) {
			s.rest = append(s.rest, one)
		}
	}
	return s
}

func (f *fakeStore) Close() error { return nil }

// fakeStream is the response of a fakeStore.
type fakeStream struct {
	noExtras
	ctx     context.Context //nolint:containedctx // a stream belongs to one request
	request storeapi.SeriesRequest
	rest    []fakeSeries

	labels []byte
	chunks []series.Chunk
}

func (s *fakeStream) Next() bool {
	clear(s.labels)
	for _, c := range s.chunks {
		clear(c.Data)
	}
	if s.ctx.Err() != nil || len(s.rest) == 0 {
		return false
	}
	one := s.rest[0]
	s.rest = s.rest[1:]
	s.labels = labelenc.Append(s.labels[:0], one.labels)
	s.chunks = nil
	inRange := func(c series.Chunk) bool { return c.MinMS <= s.request.MaxMS && c.MaxMS >= s.request.MinMS }
	for _, c := range one.raw {
		if inRange(c) {
			c.Data = slices.Clone(c.Data)
			s.chunks = append(s.chunks, c)
		}
	}
	for _, c := range one.aggr {
		if inRange(c) && s.request.MaxResolutionMS >= windowMS {
			parts, _ := c.AppendParts(nil)
			c.Data = series.AppendAggregated(nil, series.AggrsOf(s.request.Aggregates).Of(parts))
			s.chunks = append(s.chunks, c)
		}
	}
	slices.SortStableFunc(s.chunks, func(a, b series.Chunk) int { return cmp.Compare(a.MinMS, b.MinMS) })
	return true
}

func (s *fakeStream) Labels() []byte         { return s.labels }
func (s *fakeStream) Chunks() []series.Chunk { return s.chunks }
func (s *fakeStream) Err() error             { return s.ctx.Err() }

// sourceClient makes a querier's StoreAPI a client of a further querier.
type sourceClient struct{ *fanout.Source }

func (sourceClient) Close() error { return nil }
