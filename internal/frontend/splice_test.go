package frontend

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"sort"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	v1 "github.com/prometheus/prometheus/web/api/v1"

	"github.com/ferula-io/ferula/promjson"
)

// encodeMatrix encodes a response with Prometheus' own codec.
func encodeMatrix(t testing.TB, m promql.Matrix, warnings ...string) []byte {
	t.Helper()
	b, err := v1.JSONCodec{}.Encode(&v1.Response{
		Status:   "success",
		Data:     &v1.QueryData{ResultType: parser.ValueTypeMatrix, Result: m},
		Warnings: warnings,
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

var specialStrings = []string{"a", "b", "b!", "", "a\"b", "a\\", "é", "}]],[[", `,"values":[[`, "<&>", "\u2028", "\n", "\x01", "z"}

func randomLabels(r *rand.Rand) labels.Labels {
	b := labels.NewScratchBuilder(4)
	seen := map[string]bool{}
	for range r.IntN(4) {
		name := specialStrings[r.IntN(len(specialStrings))]
		if name == "" || seen[name] {
			continue
		}
		seen[name] = true
		b.Add(name, specialStrings[r.IntN(len(specialStrings))])
	}
	b.Sort()
	return b.Labels()
}

func randomValue(r *rand.Rand) float64 {
	switch r.IntN(8) {
	case 0:
		return math.NaN()
	case 1:
		return math.Inf(1 - 2*r.IntN(2))
	case 2:
		return float64(r.IntN(1000))
	case 3:
		return math.Float64frombits(r.Uint64())
	default:
		return r.NormFloat64() * 1e3
	}
}

func randomHistogram(r *rand.Rand) *histogram.FloatHistogram {
	h := &histogram.FloatHistogram{Schema: 1, Count: float64(r.IntN(100)), Sum: r.Float64(), ZeroThreshold: 0.01, ZeroCount: float64(r.IntN(3))}
	if n := r.IntN(4); n > 0 {
		h.PositiveSpans = []histogram.Span{{Offset: int32(r.IntN(5)), Length: uint32(n)}}
		for range n {
			h.PositiveBuckets = append(h.PositiveBuckets, float64(r.IntN(5)))
		}
	}
	return h
}

// randomMatrix has series with points at some of the times.
func randomMatrix(r *rand.Rand, times []int64) promql.Matrix {
	m := promql.Matrix{}
	seen := map[string]bool{}
	for range r.IntN(12) {
		ls := randomLabels(r)
		if seen[ls.String()] {
			continue
		}
		seen[ls.String()] = true
		s := promql.Series{Metric: ls}
		kind, density := r.IntN(3), r.Float64()
		for _, t := range times {
			switch {
			case r.Float64() > density:
			case kind == 0 || kind == 1 && r.IntN(2) == 0:
				s.Floats = append(s.Floats, promql.FPoint{T: t, F: randomValue(r)})
			default:
				s.Histograms = append(s.Histograms, promql.HPoint{T: t, H: randomHistogram(r)})
			}
		}
		if len(s.Floats)+len(s.Histograms) > 0 {
			m = append(m, s)
		}
	}
	sort.Sort(m)
	return m
}

// between returns the points of m in [from, to].
func between(m promql.Matrix, from, to int64) promql.Matrix {
	out := promql.Matrix{}
	for _, s := range m {
		part := promql.Series{Metric: s.Metric}
		for _, p := range s.Floats {
			if p.T >= from && p.T <= to {
				part.Floats = append(part.Floats, p)
			}
		}
		for _, p := range s.Histograms {
			if p.T >= from && p.T <= to {
				part.Histograms = append(part.Histograms, p)
			}
		}
		if len(part.Floats)+len(part.Histograms) > 0 {
			out = append(out, part)
		}
	}
	return out
}

// randomReader returns a reader of b with short reads or none.
func randomReader(r *rand.Rand, b []byte) io.Reader {
	var src io.Reader = bytes.NewReader(b)
	switch r.IntN(4) {
	case 0:
		return iotest.OneByteReader(src)
	case 1:
		return iotest.DataErrReader(src)
	case 2:
		return iotest.HalfReader(src)
	default:
		return src
	}
}

func TestSplice_EqualsTheWholeResponseByteForByte(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	cases := 4000
	if testing.Short() {
		cases = 400
	}
	for c := range cases {
		step := []int64{1, 10, 15_000, 37_500, 250}[r.IntN(5)]
		start := []int64{0, 1_700_000_000_000, -5_000, 1_234_567}[r.IntN(4)]
		var times []int64
		for i := range r.IntN(60) + 1 {
			times = append(times, start+int64(i)*step)
		}
		whole := randomMatrix(r, times)
		want := encodeMatrix(t, whole)

		s := newSplicing()
		s.readBytes, s.splicer.WriteBytes = []int{16, 100, 4096, 1 << 16}[r.IntN(4)], 1+r.IntN(5000)
		for range 2 { // the second time with reused scanners
			var parts []splicePart
			for i := 0; i < len(times); {
				j := min(i+1+r.IntN(len(times)), len(times))
				from, to := times[i], times[j-1]
				if r.IntN(3) == 0 { // a cached response that covers more and needs Cut
					body := encodeMatrix(t, between(whole, from-r.Int64N(20*step), to+r.Int64N(20*step)))
					parts = append(parts, splicePart{Body: randomReader(r, body), Cut: true, StartMS: from, EndMS: to})
				} else {
					parts = append(parts, splicePart{Body: randomReader(r, encodeMatrix(t, between(whole, from, to)))})
				}
				i = j
			}
			var got bytes.Buffer
			_, err := s.Write(&got, parts)
			check(t, err == nil, "case %d: %v", c, err)
			check(t, bytes.Equal(got.Bytes(), want), "case %d, %d parts:\ngot  %s\nwant %s", c, len(parts), got.Bytes(), want)
		}
	}
}

func splice(parts ...string) (string, error) {
	var list []splicePart
	for _, p := range parts {
		list = append(list, splicePart{Body: strings.NewReader(p)})
	}
	var out bytes.Buffer
	_, err := newSplicing().Write(&out, list)
	return out.String(), err
}

func matrixOf(series string) string {
	return `{"status":"success","data":{"resultType":"matrix","result":[` + series + `]}}`
}

func TestSplice_MergesWarningsAndInfos(t *testing.T) {
	got, err := splice(
		`{"status":"success","data":{"resultType":"matrix","result":[]},"warnings":["a","b"],"infos":["i"]}`,
		`{"warnings":["b","c<"],"infos":["i","j"],"status":"success","data":{"result":[],"resultType":"matrix"}}`,
	)
	want := `{"status":"success","data":{"resultType":"matrix","result":[]},"warnings":["a","b","c\u003c"],"infos":["i","j"]}`
	check(t, err == nil && got == want, "%v %s", err, got)
}

func TestSplice_ResponsesOfOtherServers(t *testing.T) {
	vm := `{"status":"success","isPartial":false,"data":{"resultType":"matrix","result":[{"metric":{"a":"1"},"values":[[10,"1"]]}]},"stats":{"seriesFetched": "1","executionTimeMsec":3}}`
	mimir := ` { "data" : { "result" : [ { "values" : [ [ 20 , "2" ] ] , "metric" : { "a" : "1" } } ] , "resultType" : "matrix" } , "status" : "success" } `
	thanos := `{"status":"success","data":{"resultType":"matrix","result":[{"metric":{"a":"1"},"values":[[30.000,"3e+00"]]}],"analysis":{"name":"x"}}}`
	got, err := splice(vm, mimir, thanos)
	want := matrixOf(`{"metric":{"a":"1"},"values":[[10,"1"],[ 20 , "2" ],[30.000,"3e+00"]]}`)
	want = strings.TrimSuffix(want, "}") + `,"isPartial":false,"stats":{"seriesFetched": "1","executionTimeMsec":3}}`
	check(t, err == nil && strings.ReplaceAll(got, " ", "") == strings.ReplaceAll(want, " ", ""), "%v %s", err, got)
	check(t, json.Valid([]byte(got)), "invalid JSON: %s", got)
}

func TestSplice_InvalidPartsAreErrors(t *testing.T) {
	a, b := `{"metric":{"a":"1"},"values":[[10,"1"]]}`, `{"metric":{"a":"2"},"values":[[10,"1"]]}`
	good := matrixOf(a)
	for name, tt := range map[string]struct {
		parts []string
		want  error
	}{
		"unsorted":                  {[]string{matrixOf(b + "," + a), matrixOf("")}, promjson.ErrUnsorted},
		"unsorted against the rest": {[]string{matrixOf(a + "," + b), matrixOf(strings.ReplaceAll(b+","+a, "10", "20"))}, promjson.ErrUnsorted},
		"a series twice":            {[]string{matrixOf(a + "," + a), matrixOf("")}, promjson.ErrUnsorted},
		"a vector":                  {[]string{good, `{"status":"success","data":{"resultType":"vector","result":[]}}`}, promjson.ErrSyntax},
		"points that overlap":       {[]string{good, good}, promjson.ErrOverlap},
		"points out of order":       {[]string{matrixOf(`{"metric":{"a":"1"},"values":[[20,"1"]]}`), good}, promjson.ErrOverlap},
		"cut off":                   {[]string{good[:len(good)-5]}, errAny},
		"empty":                     {[]string{""}, errAny},
		"no JSON":                   {[]string{"<html>"}, errAny},
		"no status":                 {[]string{`{"data":{"resultType":"matrix","result":[]}}`}, nil},
	} {
		got, err := splice(tt.parts...)
		var partErr *promjson.PartError
		check(t, errors.As(err, &partErr), "%s: %v %s", name, err, got)
		if tt.want != nil && tt.want != errAny {
			check(t, errors.Is(err, tt.want), "%s: %v", name, err)
		}
	}
	_, err := splice(good, `{"status":"error","errorType":"timeout","error":"too slow"}`)
	var apiErr *promjson.APIError
	check(t, errors.As(err, &apiErr) && apiErr.Type == "timeout" && apiErr.Message == "too slow", "%v", err)
}

var errAny = errors.New("any error of the scanner")

func TestSplice_WriteErrorIsReturned(t *testing.T) {
	s := newSplicing()
	s.splicer.WriteBytes = 1
	broken := errors.New("gone")
	_, err := s.Write(writerFunc(func(p []byte) (int, error) { return 0, broken }), []splicePart{{Body: strings.NewReader(matrixOf(`{"metric":{"a":"1"},"values":[[10,"1"]]}`))}})
	check(t, errors.Is(err, broken), "%v", err)
}

func TestSplice_StepAligned(t *testing.T) {
	s := newSplicing()
	for at, want := range map[int]bool{10: true, 40: true, 41: false, -20: true} {
		body := matrixOf(fmt.Sprintf(`{"metric":{"a":"1"},"values":[[%d,"1"]]}`, at))
		for _, cut := range []bool{false, true} {
			_, err := s.Write(io.Discard, []splicePart{{Body: strings.NewReader(body), Cut: cut, StartMS: -20_000, EndMS: 100_000, StepMS: 30_000}})
			check(t, err == nil && s.StepAligned(0) == want, "%d, cut %v: step aligned %v, %v", at, cut, s.StepAligned(0), err)
		}
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// halves returns a response split in two along time, and the whole response.
func halves(tb testing.TB, series, points int) (first, second, whole []byte) {
	tb.Helper()
	var m promql.Matrix
	r := rand.New(rand.NewPCG(7, 7))
	for i := range series {
		s := promql.Series{Metric: labels.FromStrings("__name__", "bench_metric", "instance", fmt.Sprintf("10.0.%d.%d:9100", i/256, i%256), "job", "node", "namespace", "default", "pod", fmt.Sprintf("pod-%05d", i), "zone", "eu-1", "cluster", "prod")}
		for j := range points {
			s.Floats = append(s.Floats, promql.FPoint{T: 1_700_000_000_000 + int64(j)*15_000, F: r.Float64() * 1e6})
		}
		m = append(m, s)
	}
	sort.Sort(m)
	middle := 1_700_000_000_000 + int64(points/2)*15_000
	return encodeMatrix(tb, between(m, 0, middle-1)), encodeMatrix(tb, between(m, middle, math.MaxInt64)), encodeMatrix(tb, m)
}

func BenchmarkSplice(b *testing.B) {
	first, second, whole := halves(b, 1000, 161)
	s := newSplicing()
	b.SetBytes(int64(len(whole)))
	b.ReportAllocs()
	for b.Loop() {
		n := 0
		count := writerFunc(func(p []byte) (int, error) { n += len(p); return len(p), nil })
		if _, err := s.Write(count, []splicePart{{Body: bytes.NewReader(first)}, {Body: bytes.NewReader(second)}}); err != nil || n != len(whole) {
			b.Fatal(n, err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/161_000, "ns/sample")
}

func TestSplice_AllocationsDoNotDependOnSeries(t *testing.T) {
	first, second, _ := halves(t, 500, 20)
	s := newSplicing()
	run := func() {
		if _, err := s.Write(io.Discard, []splicePart{{Body: bytes.NewReader(first)}, {Body: bytes.NewReader(second)}}); err != nil {
			t.Fatal(err)
		}
	}
	run()
	n := testing.AllocsPerRun(5, run)
	check(t, n < 40, "%v allocations for 500 series", n)
}
