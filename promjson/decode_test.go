package promjson

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"
)

// encode writes a as Prometheus does.
func (a *Response) encode() string {
	b := fmt.Appendf(nil, `{"status":"success","data":{"resultType":"%s","result":`, a.ResultType)
	switch a.ResultType {
	case "scalar":
		b = AppendScalarResult(b, a.Scalar.T, a.Scalar.F)
	case "string":
		b = AppendStringResult(b, a.String.T, a.String.S)
	default:
		b = append(b, '[')
		for i, s := range a.Series {
			if i > 0 {
				b = append(b, ',')
			}
			b = s.encode(b, a.ResultType == "vector")
		}
		b = append(b, ']')
	}
	o := output{buf: append(b, '}')}
	o.buf = append(make([]byte, 0, 1<<20), o.buf...)
	o.envelope(&a.Envelope)
	return string(o.buf) + "}"
}

func (s *Series) encode(b []byte, single bool) []byte {
	b = append(b, `{"metric":{`...)
	for i, l := range s.Labels {
		if i > 0 {
			b = append(b, ',')
		}
		b = AppendLabelString(b, l.Name)
		b = append(b, ':')
		b = AppendLabelString(b, l.Value)
	}
	b = append(b, '}')
	open, end, plural := "[", "]", "s"
	if single {
		open, end, plural = "", "", ""
	}
	if len(s.Values) > 0 {
		b = append(b, `,"value`+plural+`":`+open...)
		b = AppendPoints(b, nil, s.Values)
		b = append(b, end...)
	}
	for i, h := range s.Histograms {
		if i == 0 {
			b = append(b, `,"histogram`+plural+`":`+open...)
		} else {
			b = append(b, ',')
		}
		b = AppendTimestamp(append(b, '['), h.T)
		b = AppendHistogram(append(b, ','), h.Count, h.Sum, h.Buckets)
		b = append(b, ']')
	}
	if len(s.Histograms) > 0 {
		b = append(b, end...)
	}
	return append(b, '}')
}

func TestDecode_ResponsesOfPrometheusRoundTrip(t *testing.T) {
	for _, name := range []string{"matrix_floats", "matrix_histograms", "matrix_empty", "matrix_nolabels", "vector", "vector_empty", "scalar", "string"} {
		src := try(os.ReadFile("testdata/" + name + ".json")).must(t)
		for _, size := range []int{16, 100, 0} {
			a, err := Decode(bytes.NewReader(src), Options{BufferBytes: size})
			if err != nil {
				t.Fatal(name, err)
			}
			check(t, name, a.encode(), string(src))
		}
	}
}

func TestDecodePoints_AnyValidJSON(t *testing.T) {
	points := try(DecodePoints(nil, []byte(` [ 1 , "2" ] ,[1.5e0,"\u0031e3"],[-1.5,"-0"],[0,"NaN"],[0,"-Inf"],[0,"+Inf"],[0,"12345678901234567890"],[0,"0.1234567890123456789"],[1700000000.123,"9007199254740993"] `))).must(t)
	check(t, "points", fmt.Sprint(points), "[{1000 2} {1500 1000} {-1500 -0} {0 NaN} {0 -Inf} {0 +Inf} {0 1.2345678901234567e+19} {0 0.12345678901234568} {1700000000123 9.007199254740992e+15}]")
	histograms := try(DecodeHistograms(nil, []byte(`[1,{}],[2,{"sum":"1","x":[{}],"co\u0075nt":"2", "buckets" : [ ] }], [3,{"buckets":[ [ 3 , "1","2" ,"3"] ]}]`))).must(t)
	check(t, "histograms", fmt.Sprint(histograms), "[{1000 {0 0 []}} {2000 {2 1 []}} {3000 {0 0 [{3 1 2 3}]}}]")
}

func TestDecodePoints_RejectsBadPoints(t *testing.T) {
	for _, s := range []string{`[`, `[1`, `[1,`, `[1,2]`, `[1,"2"`, `[1,"2",3]`, `[1,"x"]`, `[1,""]`, `["1","2"]`, `[1,"2"],`, `,[1,"2"]`, `[1,"2"] [1,"2"]`,
		"[1,\"2\"]\x00", `[1,"1.2.3"]`, `[1,"-"]`, `[1,".5.5"]`, `{}`, `[1e999,"1"]`, `[1,"1]`} {
		if points, err := DecodePoints(nil, []byte(s)); !errors.Is(err, ErrSyntax) {
			t.Errorf("%q was decoded: %v, %v", s, points, err)
		}
	}
	for _, s := range []string{`[1,{]`, `[1,{"count":1}]`, `[1,{"buckets":{}}]`, `[1,{"buckets":[[4,"1","2","3"]]}]`, `[1,{"buckets":[[0,"1","2"]]}]`, `[1,{"x":[}]`, `[1,{"x":`, `[1,{}`, `[1,{},]`, `[1,{"count":"1",}]`, `[1,"2"]`,
		`[1,{}] [1,{}]`, `1`, `["1",{}]`, `[1,{"buckets":[1]}]`, `[1,{"buckets":[[0,1,"2","3"]]}]`, `[1,{"\x":1}]`} {
		if points, err := DecodeHistograms(nil, []byte(s)); !errors.Is(err, ErrSyntax) {
			t.Errorf("%q was decoded: %v, %v", s, points, err)
		}
	}
}

func TestDecode_ErrorHasTheOffset(t *testing.T) {
	src := `{"status":"success","data":{"resultType":"matrix","result":[{"metric":{"a":"b"},"values":[[1,"1"],[2,"2"],[3,"3"],[4,"bad"]]}]}}`
	for _, size := range []int{16, 64, 1000} {
		_, err := Decode(strings.NewReader(src), Options{BufferBytes: size})
		var e *Error
		if !errors.As(err, &e) || !errors.Is(err, ErrSyntax) || src[e.Offset-5:e.Offset] != `"bad"` {
			t.Errorf("buffer of %d: %v", size, err)
		}
	}
	a, err := Decode(strings.NewReader(`{"status":"error","errorType":"bad_data","error":"why"}`), Options{})
	var response *APIError
	if !errors.As(err, &response) || *response != (APIError{"error", "bad_data", "why"}) || a == nil || a.Error != "why" {
		t.Errorf("an error: %v", err)
	}
	for _, src := range []string{"", matrixResponse(`{"metric":{"a":1}}`), matrixResponse(`{"metric":{},"histograms":[[1,2]]}`), matrixResponse(`{"metric":{"a":"\u00zz"}}`),
		`{"status":"success","data":{"resultType":"scalar","result":[]}}`, `{"status":"success","data":{"resultType":"scalar","result":[1,"x"]}}`,
		`{"status":"success","data":{"resultType":"string","result":[1,2]}}`, `{"status":"success","data":{"resultType":"string","result":["1"]}}`} {
		if a, err := Decode(strings.NewReader(src), Options{}); err == nil {
			t.Errorf("%s was decoded: %+v", src, a)
		}
	}
}

func TestParseShort_IsExact(t *testing.T) {
	for range 300000 {
		s := strconv.FormatFloat(randomValue(1), 'f', rand.IntN(22)-1, 64)
		want, _ := strconv.ParseFloat(s, 64)
		v, n := parseShort([]byte(s + `"`))
		if n != 0 && (n != len(s) || math.Float64bits(v) != math.Float64bits(want)) {
			t.Fatalf("%s: got %v, %d", s, v, n)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"status":"success","data":{"resultType":"matrix","result":[{"metric":{"a":"b"},"values":[[1,"1"]],"histograms":[[2,{"count":"1","sum":"2","buckets":[[0,"1","2","3"]]}]]}]}}`))
	f.Add([]byte(`{"status":"success","data":{"resultType":"string","result":[1,"x"]}}`))
	f.Fuzz(func(t *testing.T, src []byte) {
		a, err := Decode(bytes.NewReader(src), Options{})
		if err != nil {
			return
		}
		switch a.ResultType {
		case "matrix", "vector", "scalar", "string":
		default:
			return
		}
		if max(a.Scalar.T, a.String.T) > 1<<50 || min(a.Scalar.T, a.String.T) < -1<<50 {
			return // Such times are written as floats.
		}
		// Decoded values are encoded and decoded again. The first pass may repair invalid
		// UTF-8.
		text := ""
		for range 2 {
			text = a.encode()
			if a, err = Decode(strings.NewReader(text), Options{}); err != nil {
				t.Fatalf("%q became %s: %v", src, text, err)
			}
		}
		if again := a.encode(); again != text {
			t.Fatalf("%q became %s and then %s", src, text, again)
		}
	})
}

// A successful response of another endpoint is not taken for an empty result of a query.
func TestDecode_ResponsesOfOtherEndpointsAreErrors(t *testing.T) {
	for _, src := range []string{
		`{"status":"success","data":["job"]}`, `{"status":"success"}`, `{"status":"success","data":{}}`, `{"status":"success","data":null}`,
		`{"status":"success","data":{"up":[{"type":"gauge","unit":"","help":""}]},"warnings":["w"]}`, `{"status":"success","data":{"result":[]}}`,
	} {
		_, err := Decode(strings.NewReader(src), Options{})
		_, own := callersTypes().Decode(strings.NewReader(src), Options{})
		var last error
		for _, e := range callersTypes().All(NewScanner(strings.NewReader(src), Options{})) {
			last = e
		}
		for what, err := range map[string]error{"Decode": err, "Types.Decode": own, "All": last, "Validate": Validate(strings.NewReader(src), Options{})} {
			var e *Error
			if !errors.As(err, &e) || e.Reason != "the response has no resultType" || e.Offset != int64(len(src)) {
				t.Errorf("%s of %s: %v", what, src, err)
			}
		}
	}
	for _, src := range []string{`{"status":"success","data":{"resultType":"matrix","result":null}}`, `{"status":"success","data":{"resultType":"vector","result":[]}}`} {
		if _, err := Decode(strings.NewReader(src), Options{}); err != nil || Validate(strings.NewReader(src), Options{}) != nil {
			t.Errorf("%s: %v", src, err)
		}
	}
}

// The functions that decode one piece or one metric agree with each other, and their errors have an offset.
func FuzzPieces(f *testing.F) {
	f.Add([]byte(`[1,"2"] , [3.5,"NaN"]`))
	f.Add([]byte(`[1,{"count":"1","sum":"2","buckets":[[0,"1","2","3"]]}],[2,{"count":"0","sum":"0"}]`))
	f.Add([]byte(`{"a":"b","__name__":"\u00e4"}`))
	f.Fuzz(func(t *testing.T, src []byte) {
		check := func(what string, err error) bool {
			var e *Error
			if err != nil && (!errors.As(err, &e) || e.Offset < 0 || e.Offset > int64(len(src))) {
				t.Fatalf("%s: no offset in %q: %v", what, src, err)
			}
			return err == nil
		}
		times := func(first, last int64) {
			if ms, err := FirstTime(src); err != nil || ms != first {
				t.Fatalf("%q begins at %d, %v, want %d", src, ms, err, first)
			}
			if ms, err := LastTime(src); err != nil || ms != last {
				t.Fatalf("%q ends at %d, %v, want %d", src, ms, err, last)
			}
		}
		points, err := DecodePoints(nil, src)
		ts, vs, columnsErr := DecodeColumns(nil, nil, src)
		if check("DecodePoints", err) != check("DecodeColumns", columnsErr) || len(ts) != len(points) || len(vs) != len(points) {
			t.Fatalf("%q: %v, in columns %v %v: %v, %v", src, points, ts, vs, err, columnsErr)
		}
		for i, p := range points {
			if ts[i] != p.T || vs[i] != p.F && (vs[i] == vs[i] || p.F == p.F) {
				t.Fatalf("%q: %v, in columns %v %v", src, points, ts, vs)
			}
		}
		if n := len(points); err == nil && n > 0 {
			times(points[0].T, points[n-1].T)
		}
		histograms, err := DecodeHistograms(nil, src)
		if n := len(histograms); check("DecodeHistograms", err) && n > 0 {
			times(histograms[0].T, histograms[n-1].T)
		}
		_, err = FirstTime(src)
		check("FirstTime", err)
		_, err = LastTime(src)
		check("LastTime", err)
		if labels, err := DecodeLabels(nil, src); check("DecodeLabels", err) {
			again, err := DecodeLabels(nil, AppendLabels(nil, labels))
			if err != nil || len(again) != len(labels) {
				t.Fatalf("%q became %v and then %v: %v", src, labels, again, err)
			}
		}
	})
}

// A timestamp that equals the expected text is not parsed: the expected one must be right at carries, where the first two digits
// change, and after steps that differ.
func TestDecodePoints_ExpectedTimestampsEqualParsedOnes(t *testing.T) {
	var series [][]int64
	for _, start := range []int64{1000000000, 1699999999, 1700000000, 1799999980, 1799999999, 9999999000, 1099999990} {
		for _, step := range []int64{0, 1, 9, 10, 15, 59, 99, 180, 999, 86400, 99999999, 100000000, 100000005, 123456789, -1, -15, -100000000} {
			var ts []int64
			for i := range int64(12) {
				ts = append(ts, start+i*step)
			}
			series = append(series, ts, append(ts[:5:5], ts[0], ts[3], ts[4]-200000000+1, ts[4]+1, ts[5]))
			// The text that has the digits of the expected time, after a carry out of the last eight.
			series = append(series, []int64{start, start + step, (start+2*step)%1e8 + start/1e8*1e8, start + 3*step})
		}
	}
	series = append(series, []int64{1700000025, 1700000010, 1799999995, 1799999980}) // the same after a borrow
	for range 2000 {
		ts, at := []int64{}, int64(1e9+rand.IntN(8e9))
		for range 10 {
			ts = append(ts, at)
			at += []int64{15, 15, 15, rand.Int64N(1e8), -rand.Int64N(1e8), 1e8 + rand.Int64N(1e8)}[rand.IntN(6)]
		}
		series = append(series, ts)
	}
	pad := `,[1,"1"],[1,"1"],[1,"1"],[1,"1"],[1,"1"],[1,"1"],[1,"1"]` // so that all points have the bytes that plainPoint needs
	for _, ts := range series {
		var piece []byte
		for i, at := range ts {
			piece = strconv.AppendInt(append(piece, ",["...), at, 10)
			piece = strconv.AppendInt(append(piece, `,"`...), int64(i), 10)
			piece = append(piece, `"]`...)
		}
		points, err := DecodePoints(nil, append(piece[1:], pad...))
		if err != nil {
			t.Fatalf("%d: %v", ts, err)
		}
		for i, at := range ts {
			if points[i] != (Point{at * 1000, float64(i)}) {
				t.Fatalf("%d: point %d is %v", ts, i, points[i])
			}
		}
	}
	nul := "[" + strings.Repeat("\x00", 10) + `,"1"]` + pad
	if points, err := DecodePoints(nil, []byte(nul)); err == nil {
		t.Errorf("a timestamp of zero bytes: %v", points)
	}
}

func TestDecodePoints_FloatsEqualStrconv(t *testing.T) {
	pad := `,[1700000000,"1"],[1700000000,"1"],[1700000000,"1"]`
	values := []string{"0", "-0", "7", "12345678", "123456789", "1234567890123456", "9007199254740993", "123456789012345678", "0.1", "-0.07", "12345678.12345678",
		"12345678.5", "0.12345678", "0.123456789012345", "0.1234567890123456789", "99999999.99999999", "1e-07", "NaN", "+Inf", "-Inf", "1.7976931348623157e+308"}
	for range 100_000 {
		switch v := math.Float64frombits(rand.Uint64()); rand.IntN(3) {
		case 0:
			values = append(values, string(AppendFloat(nil, math.Trunc(rand.NormFloat64()*math.Pow10(rand.IntN(17))))))
		case 1:
			values = append(values, string(AppendFloat(nil, math.Round(rand.NormFloat64()*math.Pow10(rand.IntN(17)))/math.Pow10(rand.IntN(17)))))
		default:
			values = append(values, string(AppendFloat(nil, v)))
		}
	}
	for _, value := range values {
		want := try(strconv.ParseFloat(value, 64)).must(t)
		for _, piece := range []string{`[1712345678,"` + value + `"]`, `[1712345678,"` + value + `"]` + pad, pad[1:] + `,[1712345678,"` + value + `"]` + pad} {
			points, err := DecodePoints(nil, []byte(piece))
			if err != nil {
				t.Fatalf("%s: %v", piece, err)
			}
			got := points[len(points)/2].F
			at := points[len(points)/2].T
			if len(points) == 4 {
				got, at = points[0].F, points[0].T
			}
			if math.Float64bits(got) != math.Float64bits(want) && !(math.IsNaN(got) && math.IsNaN(want)) || at != 1712345678000 {
				t.Fatalf("%s: got %v at %d, want %v", piece, got, at, want)
			}
		}
	}
	for _, wrong := range []string{`[1712345678,"1"`, `[17123x5678,"1"]`, `[1712345678,"1.x"]`, `[1712345678,"."]`, `[1712345678,""]`, `[1712345678,"--1"]`, `[1712345678,"1"}`, `1712345678,"1"]`} {
		if points, err := DecodePoints(nil, []byte(wrong+pad)); err == nil {
			t.Errorf("%s: got %v, want an error", wrong, points)
		}
	}
}

// testdata was written by the codec of Prometheus 3.15 (web/api/v1): responses in
// *.json, single values in encode.txt, one a line as kind, input and output.
func TestAppend_ValuesEqualPrometheus(t *testing.T) {
	src := try(os.ReadFile("testdata/encode.txt")).must(t)
	for line := range strings.Lines(string(src)) {
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), "\t", 3)
		kind, in, want := f[0], f[1], f[2]
		var got []byte
		switch kind {
		case "float":
			got = append(AppendFloat([]byte{'"'}, hexFloat(t, in)), '"')
		case "time":
			got = AppendTimestamp(nil, decimal(t, in))
			check(t, "roomy "+in, string(AppendTimestamp(make([]byte, 0, 64), decimal(t, in))), want)
		case "label":
			got = AppendLabelString(nil, unquoted(t, in))
		case "string":
			got = AppendString(nil, unquoted(t, in))
		case "stringresult":
			got = AppendStringResult(nil, 1700000015500, unquoted(t, in))
		case "scalar":
			ms, v, _ := strings.Cut(in, ":")
			got = AppendScalarResult(nil, decimal(t, ms), hexFloat(t, v))
		default:
			t.Fatalf("unknown kind %q", kind)
		}
		check(t, kind+" "+in, string(got), want)
	}
}

func hexFloat(t *testing.T, s string) float64 {
	t.Helper()
	u := try(strconv.ParseUint(s, 16, 64)).must(t)
	return math.Float64frombits(u)
}

func decimal(t *testing.T, s string) int64 {
	t.Helper()
	i := try(strconv.ParseInt(s, 10, 64)).must(t)
	return i
}

func unquoted(t *testing.T, s string) string {
	t.Helper()
	u := try(strconv.Unquote(s)).must(t)
	return u
}

// windowed returns a transcript of a response read through a window.
func windowed(t *testing.T, response string, w Window, size int) string {
	t.Helper()
	s := NewScanner(iotest.HalfReader(strings.NewReader(response)), Options{BufferBytes: size})
	s.SetWindow(w)
	var b strings.Builder
	for s.Next() {
		fmt.Fprintf(&b, "%s v", s.Metric())
		for p := s.NextValues(); p != nil; p = s.NextValues() {
			fmt.Fprintf(&b, " %s", p)
		}
		b.WriteString(" h")
		for p := s.NextHistograms(); p != nil; p = s.NextHistograms() {
			fmt.Fprintf(&b, " %s", p)
		}
		b.WriteString("\n")
	}
	if s.Err() != nil {
		t.Fatal(s.Err())
	}
	return b.String()
}

func TestWindow_DropsPointsAndSeriesOutside(t *testing.T) {
	const response = `{"status":"success","data":{"resultType":"matrix","result":[` +
		`{"metric":{"a":"1"},"values":[[1,"1"],[2,"2"],[3,"3"]]},` +
		`{"metric":{"a":"2"},"values":[[9,"9"]]},` +
		`{"metric":{"a":"3"},"values":[[0,"0"]],"histograms":[[2,{"count":"1","sum":"2","buckets":[[0,"1","2","1"]]}],[9,{"count":"1","sum":"2"}]]},` +
		`{"metric":{"a":"4"},"values":[[2,"2"],[9,"9"]],"histograms":[[0,{"count":"1","sum":"2"}]]}` +
		`]}}`
	const want = `{"a":"1"} v [2,"2"],[3,"3"] h` + "\n" +
		`{"a":"3"} v h [2,{"count":"1","sum":"2","buckets":[[0,"1","2","1"]]}]` + "\n" +
		`{"a":"4"} v [2,"2"] h` + "\n"
	for _, size := range []int{16, 64, 4096} {
		got := strings.ReplaceAll(windowed(t, response, Window{StartMS: 2000, EndMS: 3000}, size), `"] [`, `"],[`)
		if got != want {
			t.Errorf("buffer of %d:\ngot  %s\nwant %s", size, got, want)
		}
	}
	if got := windowed(t, response, Window{StartMS: 4000, EndMS: 5000}, 64); got != "" {
		t.Errorf("points between: %s", got)
	}
}

func TestWindow_StepAligned(t *testing.T) {
	for at, want := range map[string]bool{"10": true, "10.5": false, "40": true, "-20": true} {
		s := NewScanner(strings.NewReader(`{"status":"success","data":{"resultType":"matrix","result":[{"metric":{},"values":[[`+at+`,"1"]]}]}}`), Options{})
		s.SetWindow(Window{StartMS: -50_000, EndMS: 100_000, StepMS: 30_000})
		for s.Next() {
		}
		if s.Err() != nil || s.StepAligned() != want {
			t.Errorf("%s: on grid %v, %v", at, s.StepAligned(), s.Err())
		}
	}
}

func TestWindow_BadTimestampIsAnError(t *testing.T) {
	for _, bad := range []string{`[[1,"1"],[?,"1"],[9,"9"]]`, `[[5,"1"],[6,"1"],[?,"9"]]`} {
		src := `{"status":"success","data":{"resultType":"matrix","result":[{"metric":{},"values":` + bad + `}]}}`
		s := NewScanner(strings.NewReader(src), Options{})
		s.SetWindow(Window{StartMS: 5000, EndMS: 6000})
		for s.Next() {
		}
		if e, ok := s.Err().(*Error); !ok || src[e.Offset] != '?' {
			t.Errorf("%s: %v", bad, s.Err())
		}
	}
	s := NewScanner(strings.NewReader(`{"status":"success","data":{"resultType":"matrix","result":[{"metric":{},"values":[["x","1"]]}]}}`), Options{})
	s.SetWindow(Window{StartMS: 0, EndMS: 1})
	for s.Next() {
	}
	if e, ok := s.Err().(*Error); !ok || e.Offset < 60 {
		t.Errorf("%v", s.Err())
	}
}

// plainPoints is AppendPoints in its simplest form.
func plainPoints(dst []byte, points []Point) []byte {
	for i, p := range points {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, '[')
		dst = appendAnyTimestamp(dst, p.T)
		dst = append(dst, ',', '"')
		dst = appendStrconv(dst, p.F)
		dst = append(dst, '"', ']')
	}
	return dst
}

// randomValue is of any class, often the one before.
func randomValue(last float64) float64 {
	switch rand.IntN(9) {
	case 0, 1:
		return last
	case 2:
		return float64(rand.IntN(20000)) - 100
	case 3:
		return float64(rand.Uint64() >> rand.UintN(60))
	case 4:
		return math.Copysign(0, float64(rand.IntN(2))-0.5)
	case 5:
		return math.Float64frombits(rand.Uint64())
	case 6:
		return []float64{math.NaN(), math.Inf(1), math.Inf(-1), 1e21, 1e-7, -math.MaxFloat64, -1.2345678901234567e-6}[rand.IntN(7)]
	case 7:
		return float64(rand.IntN(1000000)) / 1000
	}
	return rand.NormFloat64()
}

func TestAppendPoints_OnAndOffTheStepsAreEncodedAlike(t *testing.T) {
	for range 3000 {
		start := []int64{0, -5000, 1700000000000, 1700000000123, math.MinInt64, math.MaxInt64 - 5000, 999999990000}[rand.IntN(7)]
		step := []int64{-1, 0, 1, 15, 1000, 15000, math.MaxInt64}[rand.IntN(7)]
		g := NewSteps(start, step, rand.IntN(300)-10)
		for range 3 {
			var points []Point
			at, v := start, 1.0
			for range rand.IntN(300) {
				v = randomValue(v)
				points = append(points, Point{at, v})
				switch rand.IntN(30) {
				case 0:
					at += step * rand.Int64N(10) // A gap.
				case 1:
					at += rand.Int64N(20) // Off the grid.
				case 2:
					at = start + step*rand.Int64N(300) // Anywhere, and back in time.
				default:
					at += step
				}
			}
			want := string(plainPoints(nil, points))
			check(t, "points", string(AppendPoints(nil, g, points)), want)
			check(t, "points without a grid", string(AppendPoints(nil, nil, points)), want)
		}
	}
}

func TestSteps_AreBoundedAndReset(t *testing.T) {
	points := make([]Point, 3*maxSteps)
	for i := range points {
		points[i].T = int64(i) * 1000
	}
	g := NewSteps(0, 1000, len(points))
	got := AppendPoints(nil, g, points)
	check(t, "points beyond the limit", string(got), string(plainPoints(nil, points)))
	if len(g.encoded) > maxSteps {
		t.Errorf("%d steps are encoded", len(g.encoded))
	}
	g.Reset(500, 10, 100)
	points = []Point{{500, 1}, {510, 2}, {520, 3}}
	check(t, "points after a reset", string(AppendPoints(nil, g, points)), string(plainPoints(nil, points)))
}

func TestAppendPoints_LeavesDstUntouched(t *testing.T) {
	points := []Point{{1000, 0.5}, {2000, 2}}
	dst := append(make([]byte, 0, 8), "kept:"...)
	check(t, "text", string(AppendPoints(dst, nil, points)), `kept:[1,"0.5"],[2,"2"]`)
	check(t, "prefix", string(dst), "kept:")
}

func TestAppendPoints_DoesNotAllocate(t *testing.T) {
	points := make([]Point, 1000)
	for i := range points {
		points[i] = Point{int64(i) * 15000, randomValue(1)}
	}
	g := NewSteps(0, 15000, len(points))
	buckets := []Bucket{{Closed, -1, 1, 2}, {LeftOpen, 1, 2, 0.5}}
	buf := make([]byte, 0, MaxPointLen*len(points))
	small := make([]byte, 0, 26)
	for name, f := range map[string]func(){
		"points":         func() { AppendPoints(buf, g, points) },
		"off the grid":   func() { AppendPoints(buf, nil, points) },
		"piece by piece": func() { AppendPoints(buf[:0:MaxPointLen*101], g, points[300:400]) },
		"float":          func() { AppendFloat(small, -1.2345678901234567e-6) },
		"time":           func() { AppendTimestamp(small, 1700000000001) },
		"label":          func() { AppendLabelString(buf, "10.0.0.1:9090 \"quoted\"") },
		"string":         func() { AppendString(buf, "<10.0.0.1:9090>") },
		"histogram":      func() { AppendHistogram(buf, 5, 0.1, buckets) },
	} {
		if n := testing.AllocsPerRun(10, f); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

func TestAppendPoints_HundredthsEqualStrconv(t *testing.T) {
	values := []float64{0.01, 0.07, 0.1, -0.5, 1.5, 9.99, 10.01, 99.9, 100.25, 999999.99, 1000000.01, 1234567.89, -999999.99, 0.005, 0.015,
		math.Nextafter(0.07, 1), math.Nextafter(57.34, 0), 0, math.Copysign(0, -1), 3, -3, math.NaN(), math.Inf(1), math.Inf(-1), 1e300, 5e-324}
	for range 200_000 {
		v := float64(rand.Uint64N(1<<(1+rand.UintN(33)))) / 100
		values = append(values, v, -v, math.Nextafter(v, 0), v+rand.Float64()/1e6)
	}
	for i, v := range values {
		// After a value with two decimals, the encoder first tries two decimals for the next value.
		got := AppendPoints(nil, nil, []Point{{0, 1}, {1000, 0.25 + float64(i%3)}, {2000, v}})
		want := `,[2,"` + string(appendStrconv(nil, v)) + `"]`
		if !bytes.HasSuffix(got, []byte(want)) {
			t.Fatalf("%v: got %s, want the end %s", v, got, want)
		}
	}
}

type tried[T any] struct {
	value T
	err   error
}

func try[T any](value T, err error) tried[T] { return tried[T]{value, err} }

// must returns the value. An error ends the test.
func (r tried[T]) must(t testing.TB) T {
	t.Helper()
	noError(t, r.err)
	return r.value
}

func noError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
