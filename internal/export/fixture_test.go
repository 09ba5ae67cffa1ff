package export

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/parquet-go/parquet-go"
	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/tsdbutil"
	"github.com/prometheus/prometheus/util/annotations"
	"go.uber.org/goleak"

	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/series/labelenc"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("go.opencensus.io/stats/view.(*worker).start"))
}

const (
	hourMS  = int64(3600_000)
	startMS = int64(1767225600_000) // a multiple of 2h
)

// point is a float or a histogram.
type point struct {
	t int64
	v float64
	h *histogram.Histogram
	f *histogram.FloatHistogram
}

type testSeries struct {
	labels labels.Labels
	points []point
}

// fixture is a source of given series, in chunks of chunkLen samples that are not cut at the
// ends of a window, as on some servers. Chunks of a series overlap by overlap samples.
type fixture struct {
	series            []testSeries // sorted by labels
	chunkLen, overlap int

	opened int
	fail   func(opened, series int) error // called before each series
}

func (w *fixture) RawQuerier(_ context.Context, mint, maxt int64) (series.Querier, error) {
	w.opened++
	if w.fail != nil {
		if err := w.fail(w.opened, -1); err != nil {
			return nil, err
		}
	}
	return &fixtureQuerier{w, mint, maxt}, nil
}

type fixtureQuerier struct {
	*fixture
	mint, maxt int64
}

func (*fixtureQuerier) Capabilities() series.Capabilities { return series.Capabilities{} }
func (q *fixtureQuerier) LabelNames(context.Context, series.SelectOptions, ...*labels.Matcher) ([]string, error) {
	return nil, nil
}
func (q *fixtureQuerier) Close() error { return nil }

func (q *fixtureQuerier) Select(_ context.Context, _ series.SelectOptions, matchers ...*labels.Matcher) series.Set {
	set := &fixtureSet{q: q}
	for _, s := range q.series {
		if !slices.ContainsFunc(matchers, func(m *labels.Matcher) bool { return !m.Matches(s.labels.Get(m.Name)) }) {
			set.series = append(set.series, s)
		}
	}
	return set
}

type fixtureSet struct {
	q      *fixtureQuerier
	series []testSeries
	n      int
	labels []byte
	chunks []series.Chunk
	err    error
}

func (s *fixtureSet) Next() bool {
	for _, c := range s.chunks {
		for i := range c.Data {
			c.Data[i] = 0xDB
		}
	}
	for s.err == nil && s.n < len(s.series) {
		if s.q.fail != nil {
			if s.err = s.q.fail(s.q.opened, s.n); s.err != nil {
				return false
			}
		}
		one := s.series[s.n]
		s.n++
		s.labels = labelenc.Append(s.labels[:0], one.labels)
		if s.chunks = s.q.encode(one.points); len(s.chunks) > 0 {
			return true
		}
	}
	return false
}

func (s *fixtureSet) Labels() []byte                  { return s.labels }
func (s *fixtureSet) Chunks() []series.Chunk          { return s.chunks }
func (s *fixtureSet) Err() error                      { return s.err }
func (*fixtureSet) Warnings() annotations.Annotations { return nil }

// encode encodes the points near the window.
func (q *fixtureQuerier) encode(points []point) []series.Chunk {
	var all []series.Chunk
	for i := 0; i < len(points); {
		n := 1
		for i+n < len(points) && n < q.chunkLen && points[i+n].chunk() == points[i].chunk() {
			n++
		}
		if points[i].t <= q.maxt && points[i+n-1].t >= q.mint {
			all = append(all, encodeChunk(points[i:i+n]))
		}
		if n > q.overlap && i+n < len(points) && points[i+n].chunk() == points[i].chunk() {
			n -= q.overlap
		}
		i += n
	}
	return all
}

// chunk is equal for points of one chunk.
func (p point) chunk() string {
	if p.h != nil {
		return fmt.Sprint(p.kind(), p.h.Schema, value.IsStaleNaN(p.h.Sum))
	}
	return p.kind().String()
}

func (p point) kind() chunkenc.ValueType {
	switch {
	case p.h != nil:
		return chunkenc.ValHistogram
	case p.f != nil:
		return chunkenc.ValFloatHistogram
	}
	return chunkenc.ValFloat
}

func encodeChunk(points []point) series.Chunk {
	chunk, err := points[0].kind().NewChunk(false, false)
	if err != nil {
		panic(err)
	}
	app, err := chunk.Appender()
	if err != nil {
		panic(err)
	}
	for _, p := range points {
		switch {
		case p.h != nil:
			_, _, app, err = app.AppendHistogram(nil, 0, p.t, p.h, true)
		case p.f != nil:
			_, _, app, err = app.AppendFloatHistogram(nil, 0, p.t, p.f, true)
		default:
			app.Append(0, p.t, p.v)
		}
		if err != nil {
			panic(err)
		}
	}
	return series.Chunk{MinMS: points[0].t, MaxMS: points[len(points)-1].t, Encoding: chunk.Encoding(), Data: slices.Clone(chunk.Bytes())}
}

// newFixture has series of all kinds over hours: special values, staleness markers, unusual
// labels, and optionally histograms.
func newFixture(hours int64, histograms bool) *fixture {
	w := &fixture{chunkLen: 120}
	awkward := []string{"plain", `quote " and \ backslash`, "two\nlines", "comma, and 'apostrophe'", "ümläut 日本語 😀", " space ", "a=b{c}"}
	special := []float64{math.NaN(), math.Inf(1), math.Inf(-1), math.Copysign(0, -1), math.Float64frombits(value.StaleNaN), math.MaxFloat64, math.SmallestNonzeroFloat64}
	for i, text := range awkward {
		s := testSeries{labels: labels.FromStrings("__name__", fmt.Sprintf("m%d_total", i%3), "job", "node", "text", text)}
		for n, t := 0, startMS-hourMS+int64(i)*100; t < startMS+hours*hourMS; n, t = n+1, t+60_000 {
			v := float64(n*i) / 7
			if n%50 < len(special) {
				v = special[n%50]
			}
			s.points = append(s.points, point{t: t, v: v})
		}
		w.series = append(w.series, s)
	}
	w.series = append(w.series,
		testSeries{labels.FromStrings("__name__", "later", "job", "node"), []point{{t: startMS + hours*hourMS - 1, v: 1}}},
		testSeries{labels.FromStrings("__name__", "never", "job", "node"), []point{{t: startMS - 2*hourMS, v: 1}, {t: startMS + 100*hourMS, v: 2}}},
		testSeries{labels.FromStrings("__name__", "utf.8", "dotted.label", "x", "job", "node"), []point{{t: startMS + 1, v: 1}}},
	)
	if histograms {
		var ints, floats testSeries
		ints.labels, floats.labels = labels.FromStrings("__name__", "hist", "job", "node"), labels.FromStrings("__name__", "hist", "job", "node", "kind", "float")
		for n := range int64(hours * 60) {
			t := startMS + n*60_000
			switch {
			case n%40 == 20:
				ints.points = append(ints.points, point{t: t, v: float64(n)})
			case n%40 == 21:
				ints.points = append(ints.points, point{t: t, h: &histogram.Histogram{Sum: math.Float64frombits(value.StaleNaN)}})
			case n%40 > 30:
				ints.points = append(ints.points, point{t: t, h: tsdbutil.GenerateTestCustomBucketsHistogram(n)})
			default:
				ints.points = append(ints.points, point{t: t, h: tsdbutil.GenerateTestHistogram(n)})
			}
			floats.points = append(floats.points, point{t: t, f: tsdbutil.GenerateTestGaugeFloatHistogram(n)})
		}
		w.series = append(w.series, ints, floats)
	}
	w.order()
	return w
}

func (w *fixture) order() {
	slices.SortFunc(w.series, func(a, b testSeries) int { return labels.Compare(a.labels, b.labels) })
}

// want returns the expected lines of an export of the range, one per sample, sorted by
// window, labels and timestamp; without staleness markers if the format has none.
func (w *fixture) want(mint, maxt int64, length time.Duration, staleness bool) []string {
	var lines []string
	for _, win := range windows(mint, maxt, length) {
		for _, s := range w.series {
			for _, p := range s.points {
				if line := p.text(s.labels); p.t >= win.mint && p.t <= win.maxt && (staleness || !strings.HasSuffix(line, "stale")) {
					lines = append(lines, line)
				}
			}
		}
	}
	return lines
}

func (p point) text(lset labels.Labels) string {
	f := p.f
	if p.h != nil {
		f = p.h.ToFloat(nil)
	}
	return textOf(lset, p.t, p.v, f)
}

func textOf(lset labels.Labels, t int64, v float64, f *histogram.FloatHistogram) string {
	switch {
	case f != nil && !value.IsStaleNaN(f.Sum):
		f = f.Copy().Compact(0)
		if f.CounterResetHint != histogram.GaugeType { // depends on where chunks begin
			f.CounterResetHint = histogram.UnknownCounterReset
		}
		return fmt.Sprint(lset, " ", t, " ", f.TestExpression(), " ", f.ZeroThreshold)
	case f != nil || value.IsStaleNaN(v):
		return fmt.Sprint(lset, " ", t, " stale")
	case math.IsNaN(v):
		return fmt.Sprint(lset, " ", t, " NaN")
	}
	return fmt.Sprint(lset, " ", t, " ", strconv.FormatUint(math.Float64bits(v), 16))
}

func matchers(t testing.TB, pairs ...string) []*labels.Matcher {
	t.Helper()
	var all []*labels.Matcher
	for i := 0; i+1 < len(pairs); i += 2 {
		m, err := labels.NewMatcher(labels.MatchRegexp, pairs[i], pairs[i+1])
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, m)
	}
	return all
}

// options exports all hours of a fixture to a file of the format.
func options(t testing.TB, w series.Source, format string, hours int64) Options {
	t.Helper()
	return Options{
		Source: w, Matchers: [][]*labels.Matcher{matchers(t, "job", "node")},
		StartMS: startMS, EndMS: startMS + hours*hourMS - 1,
		Output: filepath.Join(t.TempDir(), "out."+format), Format: format, Request: "test",
		RetryAfter: time.Millisecond, Now: time.Now, Random: bytes.NewReader(make([]byte, 1<<16)),
	}
}

func mustRun(t testing.TB, o Options) Summary {
	t.Helper()
	sum, err := Run(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	return sum
}

// decode decodes an export, one line per sample, in file order.
func decode(t testing.TB, format, path string) []string {
	t.Helper()
	if format == Blocks {
		return decodeBlocks(t, path)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := map[string]func([]byte) ([]string, error){
		CSV: decodeCSV, JSONLines: decodeJSON, Parquet: decodeParquet, OpenMetrics: decodeOpenMetrics,
	}[format](text)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return lines
}

func labelsOf(text string) (labels.Labels, error) {
	var m map[string]string
	err := json.Unmarshal([]byte(text), &m)
	return labels.FromMap(m), err
}

// sampleText is a row of Parquet or CSV.
func sampleText(name, lset string, t int64, v *float64, h *string) (string, error) {
	l, err := labelsOf(lset)
	if err != nil || l.Get("__name__") != name {
		return "", fmt.Errorf("name %q, labels %s: %v", name, lset, err)
	}
	if h != nil {
		f, err := histogramOf([]byte(*h))
		return textOf(l, t, 0, f), err
	}
	if v == nil {
		return textOf(l, t, math.Float64frombits(value.StaleNaN), nil), nil
	}
	return textOf(l, t, *v, nil), nil
}

func decodeParquet(text []byte) ([]string, error) {
	r := parquet.NewGenericReader[parquetRow](bytes.NewReader(text))
	defer r.Close()
	var lines []string
	rows := make([]parquetRow, 100)
	for {
		n, err := r.Read(rows)
		for _, row := range rows[:n] {
			line, err := sampleText(row.Name, row.Labels, row.Timestamp, row.Value, row.Histogram)
			if err != nil {
				return nil, err
			}
			lines = append(lines, line)
		}
		if errors.Is(err, io.EOF) {
			return lines, nil
		} else if err != nil {
			return nil, err
		}
	}
}

func decodeCSV(text []byte) ([]string, error) {
	records, err := csv.NewReader(bytes.NewReader(text)).ReadAll()
	if err != nil {
		return nil, err
	}
	if strings.Join(records[0], ",")+"\n" != csvHeader {
		return nil, fmt.Errorf("header %q", records[0])
	}
	var lines []string
	for _, r := range records[1:] {
		t, err := strconv.ParseInt(r[2], 10, 64)
		if err != nil {
			return nil, err
		}
		var v *float64
		if r[3] != "" {
			f, err := strconv.ParseFloat(r[3], 64)
			if err != nil {
				return nil, err
			}
			v = &f
		}
		var h *string
		if r[4] != "" {
			h = &r[4]
		}
		line, err := sampleText(r[0], r[1], t, v, h)
		if err != nil {
			return nil, err
		}
		lines = append(lines, line)
	}
	return lines, nil
}

func decodeJSON(text []byte) ([]string, error) {
	var lines []string
	for line := range bytes.Lines(text) {
		var one struct {
			Metric             map[string]string
			Values, Histograms [][2]json.RawMessage
		}
		if err := json.Unmarshal(line, &one); err != nil {
			return nil, fmt.Errorf("%s: %w", line, err)
		}
		lset := labels.FromMap(one.Metric)
		type timed struct {
			t    int64
			text string
		}
		var all []timed
		for i, p := range append(slices.Clone(one.Values), one.Histograms...) {
			seconds, err := strconv.ParseFloat(string(p[0]), 64)
			if err != nil {
				return nil, err
			}
			t, v, f := int64(math.Round(seconds*1000)), math.Float64frombits(value.StaleNaN), (*histogram.FloatHistogram)(nil)
			switch {
			case string(p[1]) == "null":
			case i >= len(one.Values):
				if f, err = histogramOf(p[1]); err != nil {
					return nil, err
				}
			default:
				if v, err = strconv.ParseFloat(strings.Trim(string(p[1]), `"`), 64); err != nil {
					return nil, err
				}
			}
			all = append(all, timed{t, textOf(lset, t, v, f)})
		}
		slices.SortFunc(all, func(a, b timed) int { return int(a.t - b.t) })
		for _, one := range all {
			lines = append(lines, one.text)
		}
	}
	return lines, nil
}

// histogramOf returns the histogram of its own fields.
func histogramOf(text []byte) (*histogram.FloatHistogram, error) {
	var j struct {
		Count         string
		Sum           string
		Schema        int32
		ZeroThreshold string     `json:"zero_threshold"`
		ZeroCount     string     `json:"zero_count"`
		Negative      [][2]int64 `json:"negative_spans"`
		NegativeCount []string   `json:"negative_counts"`
		Positive      [][2]int64 `json:"positive_spans"`
		PositiveCount []string   `json:"positive_counts"`
		Custom        []string   `json:"custom_values"`
		CounterReset  string     `json:"counter_reset"`
		Buckets       [][4]any
	}
	if err := json.Unmarshal(text, &j); err != nil {
		return nil, fmt.Errorf("%s: %w", text, err)
	}
	number := func(text string) float64 {
		f, err := strconv.ParseFloat(text, 64)
		if err != nil {
			panic(err)
		}
		return f
	}
	numbers := func(texts []string) (all []float64) {
		for _, text := range texts {
			all = append(all, number(text))
		}
		return all
	}
	spans := func(pairs [][2]int64) (all []histogram.Span) {
		for _, p := range pairs {
			all = append(all, histogram.Span{Offset: int32(p[0]), Length: uint32(p[1])})
		}
		return all
	}
	f := &histogram.FloatHistogram{
		Count: number(j.Count), Sum: number(j.Sum), Schema: j.Schema, ZeroThreshold: number(j.ZeroThreshold), ZeroCount: number(j.ZeroCount),
		NegativeSpans: spans(j.Negative), NegativeBuckets: numbers(j.NegativeCount), PositiveSpans: spans(j.Positive), PositiveBuckets: numbers(j.PositiveCount),
		CustomValues: numbers(j.Custom), CounterResetHint: histogram.CounterResetHint(slices.Index(resetHints[:], j.CounterReset)),
	}
	return f, f.Validate()
}

func decodeOpenMetrics(text []byte) ([]string, error) {
	var lines []string
	p := textparse.NewOpenMetricsParser(text, labels.NewSymbolTable())
	seen, last := map[string]bool{}, ""
	for {
		entry, err := p.Next()
		if errors.Is(err, io.EOF) {
			return lines, nil
		} else if err != nil {
			return nil, err
		}
		if entry != textparse.EntrySeries {
			return nil, fmt.Errorf("entry %v", entry)
		}
		_, t, v := p.Series()
		if t == nil {
			return nil, errors.New("a sample without a time")
		}
		var lset labels.Labels
		p.Labels(&lset)
		name := lset.Get("__name__")
		if name != last && seen[name] {
			return nil, fmt.Errorf("family %s comes twice", name)
		}
		seen[name], last = true, name
		lines = append(lines, textOf(lset, *t, v, nil))
	}
}

// decodeBlocks reads every block, in time order.
func decodeBlocks(t testing.TB, dir string) []string {
	t.Helper()
	db, err := tsdb.OpenDBReadOnly(dir, t.TempDir(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	blocks, err := db.Blocks()
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for i, b := range blocks {
		meta := b.Meta()
		if i > 0 && meta.MinTime < blocks[i-1].Meta().MaxTime {
			t.Errorf("block %s overlaps the one before", meta.ULID)
		}
		q, err := tsdb.NewBlockQuerier(b, math.MinInt64, math.MaxInt64)
		if err != nil {
			t.Fatal(err)
		}
		set, before := q.Select(context.Background(), true, nil, labels.MustNewMatcher(labels.MatchRegexp, "__name__", ".*")), len(lines)
		for set.Next() {
			for it := set.At().Iterator(nil); ; {
				kind := it.Next()
				if kind == chunkenc.ValNone {
					break
				}
				if it.AtT() < meta.MinTime || it.AtT() >= meta.MaxTime {
					t.Errorf("block %s has a sample at %d", meta.ULID, it.AtT())
				}
				if kind == chunkenc.ValFloat {
					at, v := it.At()
					lines = append(lines, textOf(set.At().Labels(), at, v, nil))
				} else {
					at, f := it.AtFloatHistogram(nil)
					lines = append(lines, textOf(set.At().Labels(), at, 0, f))
				}
			}
		}
		if err := errors.Join(set.Err(), q.Close()); err != nil {
			t.Fatal(err)
		}
		if got := len(lines) - before; uint64(got) != meta.Stats.NumSamples {
			t.Errorf("block %s has %d samples, its meta.json %d", meta.ULID, got, meta.Stats.NumSamples)
		}
	}
	return lines
}
