package promjson

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// reencode encodes a decoded response to a query.
func reencode(e *Encoder, a *Response, form int) error {
	switch a.ResultType {
	case "scalar":
		e.Scalar(a.Scalar.T, a.Scalar.F)
	case "string":
		e.Text(a.String.T, a.String.S)
	case "vector":
		e.BeginVector()
		for _, s := range a.Series {
			for _, p := range s.Values {
				e.Sample(Pairs(s.Labels), p.T, p.F)
			}
			for _, p := range s.Histograms {
				e.HistogramSample(Pairs(s.Labels), p.T, p.Count, p.Sum, slices.Values(p.Buckets))
			}
		}
	default:
		e.BeginMatrix()
		for i := range a.Series {
			reencodeSeries(e, &a.Series[i], form)
		}
	}
	return e.Close(a.Warnings, a.Infos)
}

// reencodeSeries encodes values in one of three forms.
func reencodeSeries(e *Encoder, s *Series, form int) {
	e.Series(Pairs(s.Labels))
	var ts []int64
	var vs []float64
	for _, p := range s.Values {
		ts, vs = append(ts, p.T), append(vs, p.F)
	}
	switch form {
	case 0:
		EncodeValues(e, s.Values)
	case 1:
		e.Columns(ts, vs)
	default:
		e.ValueSeq(func(yield func(int64, float64) bool) {
			for i := range ts {
				if !yield(ts[i], vs[i]) {
					return
				}
			}
		})
	}
	for _, p := range s.Histograms {
		e.Histogram(p.T, p.Count, p.Sum, slices.Values(p.Buckets))
	}
}

// The files of testdata were written by Prometheus. Encoding the decoded responses must
// give the same bytes.
func TestEncoder_ResponsesOfPrometheusBecomeTheSameBytes(t *testing.T) {
	files, _ := filepath.Glob("testdata/*.json")
	seen := 0
	for _, file := range files {
		want := try(os.ReadFile(file)).must(t)
		a, err := Decode(bytes.NewReader(want), Options{})
		if err != nil || a.ResultType == "" {
			continue // no response to a query
		}
		seen++
		for form := range 3 {
			for _, size := range []int{0, 1} {
				var got bytes.Buffer
				e := NewEncoder(&got, size)
				e.SetSteps(NewSteps(1700000000000, 15000, 3))
				noError(t, reencode(e, a, form))
				check(t, file, got.String(), string(want))
			}
		}
	}
	if seen < 7 {
		t.Errorf("only %d responses", seen)
	}
}

func TestEncoder_ResponsesOfOtherEndpoints(t *testing.T) {
	up := Pairs([]Label{{"__name__", "up"}, {"job", "a<b"}})
	for want, write := range map[string]func(e *Encoder){
		`{"status":"success"}`:                              func(*Encoder) {},
		`{"status":"success","data":[]}`:                    (*Encoder).BeginStrings,
		`{"status":"success","data":["__name__","\u003c"]}`: func(e *Encoder) { e.BeginStrings(); e.AddString("__name__"); e.AddString("<") },
		`{"status":"success","data":[{"__name__":"up","job":"a<b"},{}]}`: func(e *Encoder) {
			e.BeginLabelSets()
			e.LabelSet(up)
			e.LabelSet(nil)
		},
		`{"status":"success","data":[{"seriesLabels":{"__name__":"up","job":"a<b"},"exemplars":[` +
			`{"labels":{"trace_id":"x"},"value":"0.5","timestamp":1.500},{"labels":{},"value":"NaN","timestamp":2}]},` +
			`{"seriesLabels":{},"exemplars":[]}]}`: func(e *Encoder) {
			e.BeginExemplars()
			e.ExemplarSeries(up)
			e.Exemplar(SortedPairs(map[string]string{"trace_id": "x"}), 1500, 0.5)
			e.Exemplar(nil, 2000, math.NaN())
			e.ExemplarSeries(nil)
		},
		`{"status":"success","data":{"a":[{"type":"counter","unit":"","help":"h"},{"type":"gauge","unit":"","help":""}],"b":[{"type":"","unit":"s","help":""}]}}`: func(e *Encoder) {
			e.BeginMetadata()
			e.Metadata("a", "counter", "", "h")
			e.Metadata("a", "gauge", "", "")
			e.Metadata("b", "", "s", "")
		},
		`{"status":"success","data":{"resultType":"scalar","result":[1,"2"],"stats":{"n":1}}}`: func(e *Encoder) {
			e.Scalar(1000, 2)
			e.Member("stats", []byte(`{"n":1}`))
		},
		`{"status":"success","data":{"resultType":"matrix","result":[{"metric":{"a":"b"},"values":[[1,"2"]]}],"stats":1,"more":2}}`: func(e *Encoder) {
			e.BeginMatrix()
			e.RawSeries([]byte(`{"a":"b"}`))
			e.Columns([]int64{1000}, []float64{2})
			e.Member("stats", []byte("1"))
			e.Member("more", []byte("2"))
		},
		`{"status":"success","data":{"resultType":"matrix","result":[{"metric":{}}]}}`: func(e *Encoder) {
			e.BeginMatrix()
			e.Series(nil)
			e.Columns(nil, nil)
		},
	} {
		var got bytes.Buffer
		e := NewEncoder(&got, 0)
		write(e)
		noError(t, e.Close(nil, nil))
		check(t, "response", got.String(), want)
		if !json.Valid(got.Bytes()) {
			t.Errorf("not JSON: %s", got.Bytes())
		}
	}
}

func TestEncoder_FailReplacesWhatIsNotWritten(t *testing.T) {
	var got bytes.Buffer
	e := NewEncoder(&got, 0)
	e.BeginVector()
	e.Sample(nil, 0, 1)
	if e.Written() {
		t.Error("written at once")
	}
	if err := e.Fail("execution", `no "b"`); err != nil {
		t.Error(err)
	}
	check(t, "error", got.String(), `{"status":"error","errorType":"execution","error":"no \"b\""}`)
	if err := e.Close(nil, nil); !errors.Is(err, ErrOrder) {
		t.Errorf("Close after Fail: %v", err)
	}

	got.Reset()
	e.Reset(&got)
	e.BeginStrings()
	e.AddString(strings.Repeat("x", encoderBytes))
	e.AddString("y")
	begun := got.String()
	if err := e.Fail("execution", "too late"); !errors.Is(err, ErrPartlyWritten) || !e.Written() {
		t.Errorf("Fail after a write: %v", err)
	}
	e.AddString("z")
	if err := e.Close(nil, nil); !errors.Is(err, ErrPartlyWritten) {
		t.Errorf("Close: %v", err)
	}
	check(t, "what was written", got.String(), begun)
}

func TestEncoder_CallsOutOfOrderAreErrors(t *testing.T) {
	for name, write := range map[string]func(e *Encoder){
		"Series":    func(e *Encoder) { e.Series(nil) },
		"RawSeries": func(e *Encoder) { e.BeginVector(); e.RawSeries([]byte("{}")) },
		"Columns":   func(e *Encoder) { e.BeginMatrix(); e.Columns([]int64{1}, []float64{1}) },
		"EncodeValues": func(e *Encoder) {
			e.BeginMatrix()
			e.Series(nil)
			e.Histogram(1, 1, 1, nil)
			EncodeValues(e, []Point{{1, 1}})
		},
		"ValueSeq":        func(e *Encoder) { e.ValueSeq(func(yield func(int64, float64) bool) { yield(1, 1) }) },
		"Histogram":       func(e *Encoder) { e.BeginVector(); e.Histogram(1, 1, 1, nil) },
		"Sample":          func(e *Encoder) { e.BeginMatrix(); e.Sample(nil, 1, 1) },
		"HistogramSample": func(e *Encoder) { e.BeginMatrix(); e.Series(nil); e.HistogramSample(nil, 1, 1, 1, nil) },
		"BeginMatrix":     func(e *Encoder) { e.BeginMatrix(); e.BeginMatrix() },
		"Text":            func(e *Encoder) { e.Scalar(1, 1); e.Text(1, "") },
		"AddString":       func(e *Encoder) { e.BeginLabelSets(); e.AddString("") },
		"LabelSet":        func(e *Encoder) { e.BeginStrings(); e.LabelSet(nil) },
		"Exemplar":        func(e *Encoder) { e.BeginExemplars(); e.Exemplar(nil, 1, 1) },
		"ExemplarSeries":  func(e *Encoder) { e.BeginMetadata(); e.ExemplarSeries(nil) },
		"Metadata":        func(e *Encoder) { e.BeginExemplars(); e.Metadata("", "", "", "") },
		"Member":          func(e *Encoder) { e.BeginStrings(); e.Member("", nil) },
		"Close":           func(e *Encoder) { _ = e.Close(nil, nil) },
	} {
		var got bytes.Buffer
		e := NewEncoder(&got, 0)
		write(e)
		err := e.Close(nil, nil)
		if !errors.Is(err, ErrOrder) || !strings.HasSuffix(err.Error(), " "+name) {
			t.Errorf("%s: %v", name, err)
		}
		if name != "Close" && got.Len() > 0 {
			t.Errorf("%s: written in spite of it: %s", name, got.Bytes())
		}
	}
	e := NewEncoder(io.Discard, 0)
	e.BeginMatrix()
	e.Series(nil)
	e.Columns([]int64{1}, nil)
	if err := e.Close(nil, nil); err == nil || !strings.Contains(err.Error(), "1 timestamps and 0 values") {
		t.Errorf("columns of different lengths: %v", err)
	}
}

// limitedWriter fails after n writes.
type limitedWriter struct {
	n, after int
	short    bool
	largest  int
}

var errLimited = errors.New("no more")

func (w *limitedWriter) Write(p []byte) (int, error) {
	w.largest = max(w.largest, len(p))
	if w.n--; w.n >= 0 {
		return len(p), nil
	}
	w.after++
	if w.short {
		return len(p) - 1, nil
	}
	return 0, errLimited
}

func TestEncoder_FirstErrorOfTheWriterStays(t *testing.T) {
	a := wide(3, 5000)
	for _, short := range []bool{false, true} {
		for n := range 20 {
			w := &limitedWriter{n: n, short: short}
			e := NewEncoder(w, 4096)
			err := reencode(e, a, n%3)
			want := errLimited
			if short {
				want = io.ErrShortWrite
			}
			if !errors.Is(err, want) || !errors.Is(e.Close(nil, nil), want) || !errors.Is(e.Err(), want) {
				t.Fatalf("after %d writes: %v", n, err)
			}
			if w.after != 1 {
				t.Errorf("%d writes after the error", w.after-1)
			}
		}
	}
}

func TestEncoder_FlushReturnsTheFirstErrorAgain(t *testing.T) {
	e := NewEncoder(&limitedWriter{}, 4096)
	if err := reencode(e, wide(3, 5000), 0); !errors.Is(err, errLimited) {
		t.Fatal(err)
	}
	for range 2 {
		if err := e.Flush(); !errors.Is(err, errLimited) {
			t.Errorf("Flush after an error: %v", err)
		}
	}
}

// wide returns a matrix with series of so many values, and a histogram with as many buckets.
func wide(series, points int) *Response {
	a := &Response{Envelope: Envelope{Status: "success", ResultType: "matrix"}}
	for i := range series {
		s := Series{Labels: []Label{{"i", fmt.Sprint(i)}}}
		h := HistogramPoint{T: 5, Histogram: Histogram{Count: 1, Sum: 2}}
		for j := range points {
			s.Values = append(s.Values, Point{int64(j) * 1000, float64(j) / 7})
			h.Buckets = append(h.Buckets, Bucket{LeftOpen, float64(j), float64(j + 1), 1})
		}
		s.Histograms = []HistogramPoint{h}
		a.Series = append(a.Series, s)
	}
	return a
}

func TestEncoder_MemoryIsItsBuffer(t *testing.T) {
	const limit = 4096
	w := &limitedWriter{n: 1 << 30}
	e := NewEncoder(w, limit)
	a := wide(2, 20000)
	a.Warnings = slices.Repeat([]string{"w"}, 10000)
	for form := range 3 {
		e.Reset(w)
		noError(t, reencode(e, a, form))
	}
	e.Reset(w)
	e.BeginLabelSets()
	e.LabelSet(func(yield func(string, string) bool) {
		for i := range 10000 {
			if !yield(fmt.Sprint(i), "v") {
				return
			}
		}
	})
	noError(t, e.Close(nil, nil))
	if most := limit + (pointsPerPiece+1)*MaxPointLen; w.largest > most || cap(e.b) > 2*most {
		t.Errorf("a write of %d bytes, a buffer of %d", w.largest, cap(e.b))
	}
	e.Reset(w)
	e.BeginStrings()
	e.AddString(strings.Repeat("x", 1<<20))
	noError(t, e.Close(nil, nil))
	if e.Reset(w); cap(e.b) > keptBuffers*limit {
		t.Errorf("a buffer of %d bytes is kept", cap(e.b))
	}
}

func TestEncoder_DoesNotAllocateWhenWarm(t *testing.T) {
	e := NewEncoder(io.Discard, 0)
	labels := Pairs([]Label{{"__name__", "up"}, {"job", "x"}})
	ts, vs := make([]int64, 500), make([]float64, 500)
	for i := range ts {
		ts[i], vs[i] = int64(i)*1000, float64(i)/3
	}
	buckets := slices.Values([]Bucket{{LeftOpen, 0, 1, 2}})
	var points iter.Seq2[int64, float64] = func(yield func(int64, float64) bool) {
		for i := range ts {
			if !yield(ts[i], vs[i]) {
				return
			}
		}
	}
	g := NewSteps(0, 1000, 500)
	if n := testing.AllocsPerRun(20, func() {
		e.Reset(io.Discard)
		e.SetSteps(g)
		e.BeginMatrix()
		for range 20 {
			e.Series(labels)
			e.Columns(ts, vs)
			e.ValueSeq(points)
			e.Histogram(1, 2, 3, buckets)
		}
		noError(t, e.Close(nil, nil))
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestAppendColumns_AsPoints(t *testing.T) {
	for _, n := range []int{0, 1, 63, 64, 65, 128, 200} {
		var points []Point
		var ts []int64
		var vs []float64
		for i := range n {
			p := Point{int64(i) * 1500, float64(i%5) / 3}
			points, ts, vs = append(points, p), append(ts, p.T), append(vs, p.F)
		}
		g := NewSteps(0, 1500, n)
		want := string(AppendPoints(nil, g, points))
		check(t, "columns", string(AppendColumns([]byte("x"), g, ts, vs)), "x"+want)
		check(t, "iterator", string(AppendPointSeq(nil, g, func(yield func(int64, float64) bool) {
			for i := range ts {
				if !yield(ts[i], vs[i]) {
					return
				}
			}
		})), want)
		gotT, gotV, err := DecodeColumns([]int64{7}, []float64{8}, []byte(want))
		if err != nil || !slices.Equal(gotT[1:], ts) || !slices.Equal(gotV[1:], vs) || gotT[0] != 7 {
			t.Errorf("%d points are decoded to %v %v, %v", n, gotT, gotV, err)
		}
	}
	defer func() {
		if recover() == nil {
			t.Error("columns of different lengths")
		}
	}()
	AppendColumns(nil, nil, []int64{1}, nil)
}

func TestAppendMetric_FromPairsOfAnyOrigin(t *testing.T) {
	want := `{"__name__":"up","job":"a\"b"}`
	check(t, "pairs", string(AppendMetric(nil, Pairs([]Label{{"__name__", "up"}, {"job", `a"b`}}))), want)
	check(t, "slice", string(AppendLabels(nil, []Label{{"__name__", "up"}, {"job", `a"b`}})), want)
	type name string
	check(t, "map", string(AppendMetric(nil, SortedPairs(map[name]string{"job": `a"b`, "__name__": "up"}))), want)
	check(t, "none", string(AppendMetric(nil, Pairs(nil))), `{}`)
}

func FuzzEncoder(f *testing.F) {
	f.Add("up", "a<b", int64(1700000000500), 0.1, uint16(3), uint8(0))
	f.Add("\xff", "\u2028", int64(-1), 1e300, uint16(700), uint8(1))
	f.Add("", "", int64(0), math.Copysign(0, -1), uint16(0), uint8(2))
	f.Fuzz(func(t *testing.T, name, value string, ms int64, v float64, points uint16, form uint8) {
		if ms > 1<<50 || ms < -1<<50 {
			return
		}
		a := &Response{Envelope: Envelope{Status: "success", ResultType: "matrix", Warnings: []string{value}}}
		s := Series{Labels: []Label{{name, value}}}
		for i := range int64(points) {
			s.Values = append(s.Values, Point{ms + i*1000, v * float64(i)})
		}
		h := HistogramPoint{T: ms, Histogram: Histogram{Count: v, Sum: -v, Buckets: []Bucket{{int(form % 4), v, v + 1, 1}}}}
		s.Histograms = append(s.Histograms, h)
		a.Series = append(a.Series, s, Series{Values: []Point{{ms, v}}})
		var out bytes.Buffer
		e := NewEncoder(&out, 600)
		noError(t, reencode(e, a, int(form%3)))
		if err := Validate(bytes.NewReader(out.Bytes()), Options{}); err != nil {
			t.Fatalf("%v: %s", err, out.Bytes())
		}
		if !json.Valid(out.Bytes()) {
			t.Fatalf("not JSON: %s", out.Bytes())
		}
		b := try(Decode(bytes.NewReader(out.Bytes()), Options{})).must(t)
		if got, want := fmt.Sprintf("%#v", b.Series), fmt.Sprintf("%#v", a.Series); got != want {
			t.Fatalf("%s became %s", want, got)
		}
	})
}

func check(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s:\n got %s\nwant %s", what, got, want)
	}
}

func TestAppendTimestamp_SecondsWithThreeDigitsOrNone(t *testing.T) {
	for ms, want := range map[int64]string{
		0: "0", 1: "0.001", 10: "0.010", 100: "0.100", 1000: "1", 1001: "1.001", 1010: "1.010", 1100: "1.100",
		1700000000000: "1700000000", 1700000015500: "1700000015.500", 12345678123456555: "12345678123456.555",
		-1: "-0.001", -1000: "-1", -1010: "-1.010", -12345678123456555: "-12345678123456.555",
		math.MaxInt64: "9223372036854775.807", -math.MaxInt64: "-9223372036854775.807",
		math.MinInt64: "-9223372036854775.808",
	} {
		check(t, "timestamp", string(AppendTimestamp(nil, ms)), want)
	}
}

func TestAppendLabelString_EscapesQuoteBackslashAndControls(t *testing.T) {
	for s, want := range map[string]string{
		"":             `""`,
		"node":         `"node"`,
		`a"b\c`:        `"a\"b\\c"`,
		"\x00\b\t\n":   `"\u0000\u0008\t\n"`,
		"\f\r\x1f\x7f": `"\u000c\r\u001f` + "\x7f\"",
		"<a>&\u2028":   "\"<a>&\u2028\"",
		"\xff\xc3ä":    "\"\xff\xc3ä\"",
	} {
		check(t, "label string", string(AppendLabelString(nil, s)), want)
	}
}

func TestAppendString_EscapesMarkupAndInvalidUTF8(t *testing.T) {
	for s, want := range map[string]string{
		"":                  `""`,
		`a"b\c`:             `"a\"b\\c"`,
		"\x00\b\t\n":        `"\u0000\u0008\t\n"`,
		"<a>&\u2028\u2029ä": `"\u003ca\u003e\u0026\u2028\u2029ä"`,
		"x\xffy\xc3":        `"x\ufffdy\ufffd"`,
		"\ufffd":            "\"\ufffd\"",
	} {
		check(t, "string", string(AppendString(nil, s)), want)
	}
}

type otherPoint struct {
	T int64
	F float64
}

func TestAppendPoints_PointsOfAnyPackageInPieces(t *testing.T) {
	points := []otherPoint{{1000, 1}, {2500, math.NaN()}, {3000, math.Inf(-1)}, {4000, 1e21}, {5000, 1e-7}}
	want := `[1,"1"],[2.500,"NaN"],[3,"-Inf"],[4,"1e+21"],[5,"1e-07"]`
	g := NewSteps(1000, 1000, 4)
	for _, grid := range []*Steps{nil, new(Steps), g} {
		for cut := 1; cut < len(points); cut++ {
			dst := AppendPoints(nil, grid, points[:cut])
			dst = append(dst, ',')
			dst = AppendPoints(dst, grid, points[cut:])
			check(t, "points", string(dst), want)
		}
	}
	check(t, "no points", string(AppendPoints(nil, g, points[:0])), "")
}

func TestAppendHistogram_OmitsEmptyBuckets(t *testing.T) {
	buckets := []Bucket{{Closed, -0.001, 0.001, 0}, {LeftOpen, 0.001, 1, 2}, {RightOpen, -2, -1, 0.5}}
	check(t, "histogram", string(AppendHistogram(nil, 5, 18.4, buckets)),
		`{"count":"5","sum":"18.4","buckets":[[0,"0.001","1","2"],[1,"-2","-1","0.5"]]}`)
	check(t, "histogram without buckets", string(AppendHistogram(nil, 0, math.NaN(), buckets[:1])),
		`{"count":"0","sum":"NaN"}`)
	check(t, "boundaries", string([]byte{byte('0' + Boundaries(false, true)), byte('0' + Boundaries(true, false)),
		byte('0' + Boundaries(false, false)), byte('0' + Boundaries(true, true))}), "0123")
}
