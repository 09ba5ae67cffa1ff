package promjson

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// The types of a caller.
type (
	callersPoint struct {
		Value float64
		At    int64
	}
	callersHistogram struct {
		At    int64
		Count float64
		Upper []float64
	}
)

func callersTypes() Types[map[string]string, callersPoint, callersHistogram] {
	return Types[map[string]string, callersPoint, callersHistogram]{
		Labels: func(labels []Label) (map[string]string, error) {
			m := map[string]string{}
			for _, l := range labels {
				m[l.Name] = l.Value
			}
			return m, nil
		},
		Point: func(ms int64, v float64) callersPoint { return callersPoint{v, ms} },
		Histogram: func(ms int64, h *Histogram) (callersHistogram, error) {
			own := callersHistogram{At: ms, Count: h.Count}
			for _, b := range h.Buckets {
				own.Upper = append(own.Upper, b.Upper)
			}
			return own, nil
		},
	}
}

// own converts the result of Decode.
func own(a *Response) (list []SeriesOf[map[string]string, callersPoint, callersHistogram]) {
	types := callersTypes()
	for _, s := range a.Series {
		var c SeriesOf[map[string]string, callersPoint, callersHistogram]
		c.Labels, _ = types.Labels(s.Labels)
		for _, p := range s.Values {
			c.Values = append(c.Values, callersPoint{p.F, p.T})
		}
		for _, p := range s.Histograms {
			h, _ := types.Histogram(p.T, &p.Histogram)
			c.Histograms = append(c.Histograms, h)
		}
		list = append(list, c)
	}
	return list
}

// text compares values with NaN too.
func text(v any) string { return fmt.Sprintf("%+v", v) }

func TestTypes_DecodeAsDecode(t *testing.T) {
	files, _ := filepath.Glob("testdata/*.json")
	for _, file := range files {
		src := try(os.ReadFile(file)).must(t)
		want, wantErr := Decode(bytes.NewReader(src), Options{})
		for _, o := range []Options{{}, {BufferBytes: 256}, {Validate: true}} {
			got, err := callersTypes().Decode(bytes.NewReader(src), o)
			check(t, file, fmt.Sprint(err), fmt.Sprint(wantErr))
			if want == nil || got == nil {
				continue
			}
			check(t, file, text(got.Series), text(own(want)))
			check(t, file, text(got.Envelope)+text(got.Scalar)+text(got.String), text(want.Envelope)+text(want.Scalar)+text(want.String))
		}
	}
}

func TestTypes_AllInPartsOfMaxPoints(t *testing.T) {
	src := try(os.ReadFile("testdata/matrix_histograms.json")).must(t)
	whole := try(callersTypes().Decode(bytes.NewReader(src), Options{})).must(t)
	for most := 1; most < 8; most++ {
		types := callersTypes()
		types.MaxPoints = most
		var got []SeriesOf[map[string]string, callersPoint, callersHistogram]
		continued := false
		for part, err := range types.All(NewScanner(bytes.NewReader(src), Options{BufferBytes: 300})) {
			if err != nil {
				t.Fatal(err)
			}
			if n := len(part.Values) + len(part.Histograms); n > most || continued && n == 0 || part.Continued && n != most {
				t.Errorf("a part of %d points, at most %d", n, most)
			}
			if !continued {
				got = append(got, SeriesOf[map[string]string, callersPoint, callersHistogram]{Labels: part.Labels})
			}
			last := &got[len(got)-1]
			if !reflect.DeepEqual(last.Labels, part.Labels) {
				t.Errorf("a part with labels %v of %v", part.Labels, last.Labels)
			}
			last.Values, last.Histograms = append(last.Values, part.Values...), append(last.Histograms, part.Histograms...)
			continued = part.Continued
		}
		check(t, fmt.Sprint(most), text(got), text(whole.Series))
	}
}

func TestTypes_ErrorsEndTheIteration(t *testing.T) {
	series := `{"metric":{"a":"b"},"values":[[1,"1"],[2,"2"]],"histograms":[[3,{"count":"1","sum":"1"}]]}`
	failed := errors.New("the caller's")
	none := callersTypes()
	none.Histogram = nil
	labels := callersTypes()
	labels.Labels = func([]Label) (map[string]string, error) { return nil, failed }
	histogram := callersTypes()
	histogram.Histogram = func(int64, *Histogram) (callersHistogram, error) { return callersHistogram{}, failed }
	var api *APIError
	for name, tt := range map[string]struct {
		types Types[map[string]string, callersPoint, callersHistogram]
		src   string
		want  error
	}{
		"histograms without a type": {none, matrixResponse(series), ErrHistograms},
		"labels":                    {labels, matrixResponse(series), failed},
		"a histogram":               {histogram, matrixResponse(series), failed},
		"a cut response":            {callersTypes(), matrixResponse(series)[:120], io.ErrUnexpectedEOF},
		"a point":                   {callersTypes(), matrixResponse(`{"metric":{},"values":[[1,"x"]]}`), ErrSyntax},
	} {
		if _, err := tt.types.Decode(strings.NewReader(tt.src), Options{}); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v", name, err)
		}
		n := 0
		for _, err := range tt.types.All(NewScanner(strings.NewReader(tt.src), Options{})) {
			if n++; err != nil && !errors.Is(err, tt.want) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if n != 1 {
			t.Errorf("%s: %d elements", name, n)
		}
	}
	a, err := callersTypes().Decode(strings.NewReader(`{"status":"error","errorType":"timeout","error":"slow"}`), Options{})
	if !errors.As(err, &api) || api.Type != "timeout" || a.ErrorType != "timeout" {
		t.Errorf("an error response: %v", err)
	}
	for range callersTypes().All(NewScanner(strings.NewReader(matrixResponse(series+","+series)), Options{})) {
		break // does not panic
	}
}

func TestScanner_PointsDoNotAllocate(t *testing.T) {
	var out bytes.Buffer
	noError(t, reencode(NewEncoder(&out, 0), wide(3, 3000), 0))
	s := NewScanner(nil, Options{})
	sum := 0.0
	if n := testing.AllocsPerRun(10, func() {
		s.ResetBytes(out.Bytes())
		for s.Next() {
			for _, v := range s.Points() {
				sum += v
			}
		}
		if s.Err() != nil {
			t.Fatal(s.Err())
		}
	}); n > 15 {
		t.Errorf("%v allocations for 9000 points", n)
	}
}

// A response of any length is decoded in the memory of the buffers.
func TestScanner_PointsOfAnEndlessSeries(t *testing.T) {
	const points = 200_000
	piece := strings.Repeat(`[1700000000,"0.25"],`, 100)
	body := io.MultiReader(strings.NewReader(`{"status":"success","data":{"resultType":"matrix","result":[{"metric":{},"values":[`),
		io.LimitReader(&repeated{piece: piece}, int64(len(piece)*points/100)), strings.NewReader(`[1700000001,"1"]]}]}}`))
	s := NewScanner(body, Options{BufferBytes: 8 << 10, MaxBufferBytes: 16 << 10})
	n := 0
	for s.Next() {
		for ms, v := range s.Points() {
			if n++; v != 0.25 && ms != 1700000001000 {
				t.Fatal(ms, v)
			}
		}
	}
	if s.Err() != nil || n != points+1 || len(s.buf) > 16<<10 {
		t.Errorf("%d points, a buffer of %d, %v", n, len(s.buf), s.Err())
	}
}

// repeated reads as a text without end.
type repeated struct {
	piece string
	at    int
}

func (r *repeated) Read(p []byte) (int, error) {
	n := copy(p, r.piece[r.at:])
	r.at = (r.at + n) % len(r.piece)
	return n, nil
}

func TestValidate_ErrorsHaveTheirOffset(t *testing.T) {
	series := func(rest string) string { return matrixResponse(`{"metric":{"a":"b"},` + rest + `}`) }
	for src, want := range map[string]string{
		series(`"values":[[1,"1"]]`):                                                       "",
		series(`"values":[[1,"1"],[2,"x"]]`):                                               "expected a float in quotes",
		series(`"values":[[1,"1"],[02,"1"]]`):                                              "not a number",
		series(`"values":[[1,"1"],[2.,"1"]]`):                                              "not a number",
		series(`"values":[[1,"1",2]]`):                                                     "expected ]",
		series(`"values":[[1,1]]`):                                                         "expected a string",
		series(`"histograms":[[1,{"count":"1","sum":"2"}]]`):                               "",
		series(`"histograms":[[1,{"count":"1","sum":"2","buckets":[4]}]]`):                 "expected [",
		series(`"x":[1e5,-0.5e-1,0,true,"\u00e4"]`):                                        "",
		series(`"x":01`):                                                                   "not a number",
		series(`"x":-`):                                                                    "not a number",
		series(`"x":1.5.2`):                                                                "not a number",
		series(`"x":1e+`):                                                                  "not a number",
		series(`"x":"\u12g4"`):                                                             "expected a hexadecimal digit",
		`{"status":"success","data":{"resultType":"scalar","result":[1,2]}}`:               "the result is not a scalar",
		`{"status":"success","data":{"resultType":"string","result":[1,"x"]}}`:             "",
		`{"status":"success","data":{"resultType":"string","result":[1]}}`:                 "the result is not a string",
		`{"status":"success","data":{"resultType":"tensor","result":[1,"2"]}}`:             "this is not the response to a query",
		series(`"x":` + strings.Repeat("[", maxDepth-1) + strings.Repeat("]", maxDepth-1)): "",
		series(`"x":` + strings.Repeat("[", 1000) + strings.Repeat("]", 1000)):             "nested too deep",
	} {
		for cut, r := range readers([]byte(src)) {
			err := Validate(r, Options{BufferBytes: 64, MaxBufferBytes: 4096})
			var e *Error
			if want == "" && err != nil || want != "" && (!errors.As(err, &e) || e.Reason != want || e.Offset <= 0 || e.Offset > int64(len(src))) {
				t.Errorf("%.200s, read %s: %v, want %q", src, cut, err, want)
			}
		}
	}
	src := series(`"values":[[1,"1"],[2,"x"]]`)
	var e *Error
	if err := Validate(strings.NewReader(src), Options{}); !errors.As(err, &e) || e.Offset != int64(strings.Index(src, `"]]`)+1) {
		t.Errorf("%v in %s", err, src)
	}
}

func TestValidate_EveryPrefixAndEveryLostByteOfAnArray(t *testing.T) {
	src := try(os.ReadFile("testdata/matrix_histograms.json")).must(t)
	for n := range src {
		if err := Validate(bytes.NewReader(src[:n]), Options{BufferBytes: 256}); err == nil {
			t.Fatalf("%d bytes are valid", n)
		}
		lost := slices.Concat(src[:n], src[n+1:])
		if err := Validate(bytes.NewReader(lost), Options{}); err == nil && !json.Valid(lost) {
			t.Fatalf("valid without byte %d", n)
		}
	}
}

func FuzzValidate(f *testing.F) {
	files, _ := filepath.Glob("testdata/*.json")
	for _, file := range files {
		src := try(os.ReadFile(file)).must(f)
		f.Add(src)
	}
	f.Add([]byte(matrixResponse(`{"metric":{"a":"b"},"values":[[1,"1"],[02,"1"]],"x":1e5}`)))
	f.Add([]byte(`{"status":"success","data":{"resultType":"string"}}`))
	f.Fuzz(func(t *testing.T, src []byte) {
		err := Validate(bytes.NewReader(src), Options{})
		small := Validate(bytes.NewReader(src), Options{BufferBytes: 16})
		if (err == nil) != (small == nil) {
			t.Fatalf("with large reads %v, with small ones %v", err, small)
		}
		if err != nil {
			var e *Error
			if !errors.As(err, &e) || e.Offset < 0 || e.Offset > int64(len(src)) {
				t.Fatalf("no offset: %v", err)
			}
			return
		}
		if !json.Valid(src) {
			t.Fatalf("not JSON: %q", src)
		}
		var api *APIError
		if _, err := Decode(bytes.NewReader(src), Options{}); err != nil && !errors.As(err, &api) {
			t.Fatalf("valid, but not decoded: %v", err)
		}
	})
}

func FuzzTypes(f *testing.F) {
	f.Add([]byte(matrixResponse(`{"metric":{"a":"b"},"values":[[1,"1"]],"histograms":[[2,{"count":"1","sum":"2","buckets":[[0,"1","2","3"]]}]]}`)), uint8(1))
	f.Add([]byte(`{"status":"success","data":{"resultType":"string","result":[1,"x"]}}`), uint8(0))
	f.Fuzz(func(t *testing.T, src []byte, most uint8) {
		want, wantErr := Decode(bytes.NewReader(src), Options{})
		got, err := callersTypes().Decode(bytes.NewReader(src), Options{BufferBytes: 32})
		if (err == nil) != (wantErr == nil) {
			t.Fatalf("%v, Decode %v", err, wantErr)
		}
		if err == nil && text(got.Series) != text(own(want)) {
			t.Fatalf("%v, Decode %v", got.Series, own(want))
		}
		types := callersTypes()
		types.MaxPoints = int(most)
		var joined []SeriesOf[map[string]string, callersPoint, callersHistogram]
		var failed error
		continued := false
		for part, err := range types.All(NewScanner(bytes.NewReader(src), Options{})) {
			if n := len(part.Values) + len(part.Histograms); most > 0 && n > int(most) {
				t.Fatalf("%d points, at most %d", n, most)
			}
			if failed = err; err != nil {
				continue
			}
			if !continued {
				joined = append(joined, SeriesOf[map[string]string, callersPoint, callersHistogram]{Labels: part.Labels})
			}
			last := &joined[len(joined)-1]
			last.Values, last.Histograms = append(last.Values, part.Values...), append(last.Histograms, part.Histograms...)
			continued = part.Continued
		}
		if wantErr == nil && (failed != nil || text(joined) != text(own(want))) {
			t.Fatalf("in parts %v, %v, whole %v", joined, failed, own(want))
		}
	})
}
