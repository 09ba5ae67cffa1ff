package promjson

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

// transcript returns everything a Scanner returns for a response, as text.
func transcript(s *Scanner) string {
	var b strings.Builder
	for s.Next() {
		metric := string(s.Metric())
		fmt.Fprintf(&b, "%s", metric)
		writePieces(&b, "values", s.NextValues)
		writePieces(&b, "histograms", s.NextHistograms)
		if s.Err() == nil && string(s.Metric()) != metric {
			fmt.Fprintf(&b, " then %s", s.Metric())
		}
		b.WriteByte('\n')
	}
	if s.Err() != nil {
		fmt.Fprintf(&b, "error: %v\n", s.Err())
		return b.String()
	}
	fmt.Fprintf(&b, "%+v\n%s\n", *s.Envelope(), s.Result())
	return b.String()
}

func writePieces(b *strings.Builder, name string, next func() []byte) {
	separator := " " + name + " "
	for p := next(); p != nil; p = next() {
		fmt.Fprintf(b, "%s%s", separator, p)
		separator = ","
	}
}

// readers return the input in reads of different sizes.
func readers(src []byte) map[string]io.Reader {
	return map[string]io.Reader{
		"whole":        bytes.NewReader(src),
		"byte by byte": iotest.OneByteReader(bytes.NewReader(src)),
		"halves":       iotest.HalfReader(bytes.NewReader(src)),
		"end at once":  iotest.DataErrReader(bytes.NewReader(src)),
		"sevens":       &cutReader{src, 7},
	}
}

type cutReader struct {
	src []byte
	n   int
}

func (r *cutReader) Read(p []byte) (int, error) {
	n := copy(p[:min(len(p), r.n)], r.src)
	r.src = r.src[n:]
	if n == 0 {
		return 0, io.EOF
	}
	return n, nil
}

// scanned returns the transcript of src, after asserting that neither the
// reader nor, with whole, the size of the buffer makes a difference.
func scanned(t *testing.T, src []byte, whole bool) string {
	t.Helper()
	s := NewScanner(nil, Options{MaxUnknownBytes: 1 << 16})
	s.ResetBytes(src)
	want := transcript(s)
	for _, size := range []int{16, 20, 64, 200, 1000, 1 << 16} {
		first := ""
		for name, r := range readers(src) {
			got := transcript(NewScanner(r, Options{BufferBytes: size, MaxUnknownBytes: 1 << 16}))
			if first == "" {
				first = got
			}
			if got != first {
				t.Fatalf("buffer of %d, read %s:\n%s\nnot\n%s\nof %q", size, name, got, first, src)
			}
			if whole && got != want {
				t.Fatalf("buffer of %d, read %s:\n%s\nnot\n%s\nof %q", size, name, got, want, src)
			}
		}
		for name, r := range readers(src) {
			if got := transcript(NewScanner(r, Options{BufferBytes: size, InitialBufferBytes: 16, MaxUnknownBytes: 1 << 16})); whole && got != want {
				t.Fatalf("buffer of 16 to %d, read %s:\n%s\nnot\n%s\nof %q", size, name, got, want, src)
			}
		}
	}
	return want
}

func TestScanner_ResponsesOfPrometheus(t *testing.T) {
	files, _ := filepath.Glob("testdata/*.json")
	if len(files) < 8 {
		t.Fatal("testdata is missing")
	}
	for _, file := range files {
		src := try(os.ReadFile(file)).must(t)
		got := scanned(t, src, true)
		want := try(os.ReadFile(strings.TrimSuffix(file, ".json") + ".scan")).must(t)
		check(t, file, got, string(want))
	}
}

func TestScanner_EveryPrefixIsAnError(t *testing.T) {
	src := try(os.ReadFile("testdata/matrix_histograms.json")).must(t)
	for n := range src {
		s := NewScanner(bytes.NewReader(src[:n]), Options{BufferBytes: 256})
		transcript(s)
		var e *Error
		if !errors.Is(s.Err(), io.ErrUnexpectedEOF) || !errors.As(s.Err(), &e) || e.Offset != int64(n) {
			t.Fatalf("prefix of %d bytes: %v", n, s.Err())
		}
	}
}

func FuzzScanner(f *testing.F) {
	files, _ := filepath.Glob("testdata/*.json")
	for _, file := range files {
		src := try(os.ReadFile(file)).must(f)
		f.Add(src)
	}
	f.Add([]byte(` {"data" : {"result":[ {"values" : [ [1,"2"] ,[3,"4"]], "metric":{"a\u0020":"}"}}],"resultType":"matrix"}, "isPartial":[{}] } `))
	f.Add([]byte(`{"status":"success","data":{"resultType":"matrix","result":[{"metric":{},"values":[[1,"2"],[3,"4"],[5,"6"],[7,"8"],[9,"10"]],"x":[1]}]}}`))
	f.Fuzz(func(t *testing.T, src []byte) {
		got := scanned(t, src, false)
		if strings.Contains("\n"+got, "\nerror: ") && !strings.Contains(got, "\nerror: promjson: byte ") && !strings.HasPrefix(got, "error: promjson: byte ") {
			t.Fatalf("no offset: %s", got)
		}
	})
}

// sizedReader records the sizes of its reads.
type sizedReader struct {
	r     io.Reader
	sizes []int
}

func (r *sizedReader) Read(p []byte) (int, error) {
	r.sizes = append(r.sizes, len(p))
	return r.r.Read(p)
}

func TestScanner_BufferGrowsOnlyWhenReadsFillIt(t *testing.T) {
	long := `{"status":"success","data":{"resultType":"matrix","result":[{"metric":{},"values":[` + strings.Repeat(`[1,"1"],`, 1000) + `[2,"2"]]}]}}`
	options := Options{InitialBufferBytes: 64, BufferBytes: 1024}
	full := &sizedReader{r: strings.NewReader(long)}
	s := NewScanner(full, options)
	transcript(s)
	if s.Err() != nil || len(s.buf) != 1024 {
		t.Errorf("reads that fill the buffer: %d bytes, %v", len(s.buf), s.Err())
	}
	check(t, "first read", fmt.Sprint(full.sizes[0]), "64")
	trickle := &sizedReader{r: &cutReader{[]byte(long), 20}}
	s = NewScanner(trickle, options)
	transcript(s)
	if s.Err() != nil || len(s.buf) != 64 {
		t.Errorf("short reads: %d bytes, %v", len(s.buf), s.Err())
	}
	s.Reset(strings.NewReader(long))
	transcript(s)
	was := &s.buf[0]
	s.Reset(strings.NewReader(long))
	if transcript(s); &s.buf[0] != was || len(s.buf) != 1024 {
		t.Error("a buffer that has grown is not used again")
	}
}

func TestOptions_BuffersFitEachOther(t *testing.T) {
	for _, tt := range []struct{ in, want Options }{
		{Options{}, Options{BufferBytes: 64 << 10, InitialBufferBytes: 64 << 10, MaxBufferBytes: 1 << 20, MaxTextBytes: 1 << 20}},
		{Options{BufferBytes: 1, InitialBufferBytes: 1}, Options{BufferBytes: 16, InitialBufferBytes: 16, MaxBufferBytes: 1 << 20, MaxTextBytes: 1 << 20}},
		{Options{BufferBytes: 100, InitialBufferBytes: 1000, MaxBufferBytes: 10}, Options{BufferBytes: 100, InitialBufferBytes: 100, MaxBufferBytes: 100, MaxTextBytes: 1 << 20}},
	} {
		if got := tt.in.withDefaults(); got != tt.want {
			t.Errorf("%+v: %+v, want %+v", tt.in, got, tt.want)
		}
	}
}

func TestScanner_LimitsAreErrors(t *testing.T) {
	long := strings.Repeat("x", 3000)
	points := strings.Repeat(`[1,"2"],`, 1000) + `[1,"2"]`
	histogram := `[1,{"count":"1","sum":"2","buckets":[` + strings.Repeat(`[0,"1","2","3"],`, 300) + `[0,"1","2","3"]]}]`
	for name, c := range map[string]struct {
		src  string
		want error
	}{
		"a metric":                  {matrixResponse(`{"metric":{"a":"` + long + `"},"values":[[1,"2"]]}`), ErrLimit},
		"a metric below the limit":  {matrixResponse(`{"metric":{"a":"` + long[:1500] + `"},"values":[[1,"2"]]}`), nil},
		"a name":                    {`{"` + long + `":1}`, ErrLimit},
		"a histogram":               {matrixResponse(`{"metric":{},"histograms":[` + histogram + `]}`), ErrLimit},
		"values":                    {matrixResponse(`{"metric":{},"values":[` + points + `]}`), nil},
		"values before the metric":  {matrixResponse(`{"values":[` + points + `],"metric":{}}`), ErrLimit},
		"values behind histograms":  {matrixResponse(`{"metric":{},"histograms":[` + points + `],"values":[[1,"2"]]}`), ErrLimit},
		"histograms behind values":  {matrixResponse(`{"metric":{},"values":[` + points + `],"histograms":[` + points + `]}`), nil},
		"a warning":                 {`{"warnings":["` + long[:1500] + `"]}`, ErrLimit},
		"many warnings":             {`{"warnings":["` + strings.Repeat(`","`, 100) + `"]}`, ErrLimit},
		"an error":                  {`{"error":"` + long[:1500] + `"}`, ErrLimit},
		"a string result":           {`{"data":{"result":[1,"` + long[:1500] + `"]}}`, ErrLimit},
		"depth":                     {`{"x":` + strings.Repeat("[", maxDepth+1), ErrSyntax},
		"depth below the limit":     {`{"x":` + strings.Repeat("[", maxDepth) + strings.Repeat("]", maxDepth) + `}`, nil},
		"an unknown member":         {`{"x":["` + strings.Repeat(long, 100) + `"]}`, nil},
		"an unknown member of data": {`{"data":{"x":["` + strings.Repeat(long, 100) + `"]}}`, nil},
	} {
		o := Options{BufferBytes: 128, MaxBufferBytes: 2048, MaxTextBytes: 1000, MaxUnknownBytes: 1000}
		for cut, r := range readers([]byte(c.src)) {
			s := NewScanner(r, o)
			transcript(s)
			if !errors.Is(s.Err(), c.want) {
				t.Errorf("%s, read %s: %v", name, cut, s.Err())
			}
			if len(s.buf) > o.MaxBufferBytes {
				t.Errorf("%s: the buffer has grown to %d", name, len(s.buf))
			}
		}
	}
}

func TestScanner_UnknownMembersUpToTheLimit(t *testing.T) {
	src := `{"a":1,"status":"success","b":{"c":["long enough"]},"data":{"d":[2],"resultType":"matrix","result":[],"e":null},"f":"x"}`
	for limit, want := range map[int]string{
		0:    "",
		4:    "a=1",
		6:    "a=1 d=[2]!",
		11:   `a=1 d=[2]! e=null!`,
		1000: `a=1 b={"c":["long enough"]} d=[2]! e=null! f="x"`,
	} {
		s := NewScanner(iotestOneByte(src), Options{BufferBytes: 16, MaxUnknownBytes: limit})
		for s.Next() {
		}
		var got []string
		for _, m := range s.Envelope().Unknown {
			in := ""
			if m.InData {
				in = "!"
			}
			got = append(got, fmt.Sprintf("%s=%s%s", m.Name, m.Value, in))
		}
		check(t, fmt.Sprint(limit, s.Err()), strings.Join(got, " "), want)
	}
}

func iotestOneByte(s string) io.Reader { return &cutReader{[]byte(s), 1} }

// endless is a response with one series of many points.
type endless struct {
	head, tail string
	points     int
}

func (r *endless) Read(p []byte) (int, error) {
	n := 0
	for n < len(p) {
		switch {
		case r.head != "":
			k := copy(p[n:], r.head)
			r.head = r.head[k:]
			n += k
		case r.points > 0:
			r.points--
			r.head = `[1700000000.123,"0.123456789012345"],`
			if r.points == 0 {
				r.head = r.head[:len(r.head)-1]
			}
		case r.tail != "":
			r.head, r.tail = r.tail, ""
		default:
			return n, io.EOF
		}
	}
	return n, nil
}

func TestScanner_LargeSeriesTakesLittleMemory(t *testing.T) {
	for name, tail := range map[string]string{
		"encoding of Prometheus": `]}]}}`,
		"with spaces":            ` ] } ] } }`,
		"with histograms":        `],"histograms":[[1,{}]]}]}}`,
	} {
		const points = 1 << 20 // 39 MB.
		r := &endless{`{"status":"success","data":{"resultType":"matrix","result":[{"metric":{"a":"b"},"values":[`, tail, points}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		s := NewScanner(r, Options{})
		n := 0
		for s.Next() {
			for p := s.NextValues(); p != nil; p = s.NextValues() {
				n += bytes.Count(p, []byte{'['})
			}
		}
		runtime.ReadMemStats(&after)
		if s.Err() != nil || n != points {
			t.Errorf("%s: %d points, %v", name, n, s.Err())
		}
		if size := after.TotalAlloc - before.TotalAlloc; size > 200<<10 {
			t.Errorf("%s: allocated %d bytes", name, size)
		}
	}
}

func TestScanner_ErrorHasTheOffset(t *testing.T) {
	for src, want := range map[string]string{
		``:                      `promjson: byte 0: unexpected EOF`,
		`x`:                     `promjson: byte 0: malformed response: expected {`,
		`{"status":1}`:          `promjson: byte 10: malformed response: expected a string`,
		`{"status":"success"`:   `promjson: byte 19: unexpected EOF`,
		`{"status":"success"}}`: `promjson: byte 20: malformed response: expected the end`,
		`{"status":"success",}`: `promjson: byte 20: malformed response: expected a string`,
		`{"status":"\x"}`:       `promjson: byte 12: malformed response: an unknown escape`,
		`{"x":[1,}`:             `promjson: byte 8: malformed response: expected a value`,
		`{"x":tru}`:             `promjson: byte 8: malformed response: neither true, false nor null`,
		`{"x":{1:2}}`:           `promjson: byte 6: malformed response: expected a key`,
		`{"x":{"a",}}`:          `promjson: byte 9: malformed response: expected a colon`,
		`{"x":[1}`:              `promjson: byte 7: malformed response: expected a comma or the closing bracket`,
		`{"data":{"result":1}}`: `promjson: byte 18: malformed response: neither true, false nor null`,
		`{"data":{"resultType":"scalar","result":[{"metric":{}}]}}`:       `promjson: byte 57: malformed response: the result is not a scalar`,
		`{"data":{"result":[],"result":[]}}`:                              `promjson: byte 30: malformed response: duplicate result`,
		`{"\x":1}`:                                                        `promjson: byte 3: malformed response: an unknown escape`,
		`{"st\u00zz":1}`:                                                  `promjson: byte 8: malformed response: expected a hexadecimal digit`,
		`{"error":"\u00zz"}`:                                              `promjson: byte 14: malformed response: expected a hexadecimal digit`,
		`{"warnings":1}`:                                                  `promjson: byte 12: malformed response: expected [`,
		`{"warnings":["" ""]}`:                                            `promjson: byte 16: malformed response: expected a comma or the closing bracket`,
		`{"data":{},"data":{}}`:                                           `promjson: byte 18: malformed response: duplicate data`,
		matrixResponse(`1`):                                               `promjson: byte 64: malformed response: the result is not a matrix`,
		matrixResponse(`{}`):                                              `promjson: byte 62: malformed response: a series without a metric`,
		matrixResponse(`{"metric":1}`):                                    `promjson: byte 70: malformed response: expected {`,
		matrixResponse(`{"metric":{},"metric":{}}`):                       `promjson: byte 82: malformed response: duplicate member`,
		matrixResponse(`{"metric":{"a":1},"values":[]}`):                  `promjson: byte 75: malformed response: metric: expected a string`,
		matrixResponse(`{"metric":{},"values":[1]}`):                      `promjson: byte 83: malformed response: expected a point`,
		matrixResponse(`{"metric":{},"values":[[1,"2"],]}`):               `promjson: byte 91: malformed response: expected a point`,
		matrixResponse(`{"metric":{},"values": [[1,"2"][1,"2"]]}`):        `promjson: byte 91: malformed response: expected a comma or the closing bracket`,
		matrixResponse(`{"metric":{},"values":[]}{}`):                     `promjson: byte 85: malformed response: expected ,`,
		matrixResponse(`{"metric":{},"values":[[1,"2"]],"values":[]}`):    `promjson: byte 101: malformed response: duplicate member`,
		matrixResponse(`{"metric":{},"histograms":[[1,{"a":"` + "\n}]]}"): `promjson: byte 96: malformed response: a control character in a string`,
	} {
		got := strings.TrimSuffix(scanned(t, []byte(src), true), "\n")
		got = got[strings.LastIndexByte(got, '\n')+1:]
		check(t, src, got, "error: "+want)
	}
}

func TestScanner_UnusualValidResponses(t *testing.T) {
	long := strings.Repeat(`[1,"2"],`, 100) + `[1,"2"]`
	for src, want := range map[string]string{
		matrixResponse(`{"metric":{},"values":null,"histograms":null}`):                     "{}",
		matrixResponse(`{"metric":{},"values":[],"histograms":[]}`):                         "{}",
		matrixResponse(`{"metric":{},"values":[` + long + `],"x":{},"histograms":null}`):    "{} values " + long,
		matrixResponse(`{"metric":{},"values":[` + long + `],"histograms":[[1,{}]]}`):       "{} values " + long + " histograms [1,{}]",
		matrixResponse(`{"metric":{},"values":[` + long + `] , "histograms" : [ [1,{}] ]}`): "{} values " + long + " histograms [1,{}]",
		matrixResponse(`{"metric":{},"values":[`+long+`]}`, `{"metric":{"a":"b"}}`):         "{} values " + long + "\n" + `{"a":"b"}`,
		`{"status":null,"data":null,"warnings":null,"infos":["\f\r"]}`:                      "",
		`{"data":{"result":null}}`: "",
	} {
		got := scanned(t, []byte(src), true)
		if i := strings.LastIndex(strings.TrimRight(got, "\n"), "\n"); i >= 0 {
			got = got[:i]
		} else {
			got = ""
		}
		check(t, src, got, want)
	}
}

func TestScanner_UnreadPiecesAreSkipped(t *testing.T) {
	long := strings.Repeat(`[1,"2"],`, 100) + `[1,"2"]`
	src := matrixResponse(`{"metric":{"a":"1"},"values":[`+long+`],"histograms":[[1,{}]]}`, `{"metric":{"a":"2"},"histograms":[[2,{}]]}`, `{"metric":{"a":"3"},"values":[`+long+`]}`)
	for _, size := range []int{16, 100, 10000} {
		s := NewScanner(strings.NewReader(src), Options{BufferBytes: size})
		got := ""
		for s.Next() {
			got += string(s.Metric())
		}
		check(t, fmt.Sprint("metrics ", s.Err()), got, `{"a":"1"}{"a":"2"}{"a":"3"}`)
		s.Reset(strings.NewReader(src))
		got = ""
		for s.Next() {
			for p := s.NextHistograms(); p != nil; p = s.NextHistograms() {
				got += string(p)
			}
		}
		check(t, fmt.Sprint("histograms ", s.Err()), got, `[1,{}][2,{}]`)
	}
}

func TestScanner_ErrorInAStreamedSeriesHasTheOffset(t *testing.T) {
	head := `{"status":"success","data":{"resultType":"matrix","result":[{"metric":{},"values":[` + strings.Repeat(`[1,"2"],`, 100) + `[1,"2"]`
	for tail, want := range map[string]string{
		`,]`:                                 "1: malformed response: expected a point",
		` 1`:                                 "1: malformed response: expected a comma or the closing bracket",
		`],"values":[]`:                      "11: malformed response: duplicate member",
		`],"metric":{}`:                      "11: malformed response: duplicate member",
		`],"histograms":1`:                   "15: malformed response: expected [",
		`],"x":}`:                            "6: malformed response: expected a value",
		`],x`:                                "2: malformed response: expected a string",
		`],"histograms":[[1,{}`:              "21: unexpected EOF",
		`],"histograms":[],"histograms":[]}`: "31: malformed response: duplicate member",
		`],"histograms":[` + strings.Repeat(`[1,{}],`, 40) + `[1,{}]],"histograms":[]}`: "317: malformed response: duplicate member",
	} {
		for cut, r := range readers([]byte(head + tail)) {
			s := NewScanner(r, Options{BufferBytes: 64})
			transcript(s)
			at := 0
			try(fmt.Sscanf(want, "%d:", &at)).must(t)
			check(t, tail+" read "+cut, fmt.Sprint(s.Err()), fmt.Sprintf("promjson: byte %d%s", len(head)+at, want[strings.IndexByte(want, ':'):]))
		}
	}
}

func TestScanner_ReaderErrorIsReturned(t *testing.T) {
	src := matrixResponse(`{"metric":{},"values":[[1,"2"]]}`)
	r := io.MultiReader(strings.NewReader(src[:80]), &failingReader{})
	s := NewScanner(r, Options{})
	for s.Next() {
		t.Error("a series")
	}
	var e *Error
	if !errors.Is(s.Err(), io.ErrClosedPipe) || !errors.As(s.Err(), &e) || e.Offset != 80 {
		t.Error(s.Err())
	}
	if s.Next() || s.NextValues() != nil || s.NextHistograms() != nil {
		t.Error("it goes on")
	}
	s.Reset(strings.NewReader(src))
	if !s.Next() || s.Err() != nil {
		t.Error("not after a reset either", s.Err())
	}
	s = NewScanner(idleReader{}, Options{})
	if s.Next() || !errors.Is(s.Err(), io.ErrNoProgress) {
		t.Error(s.Err())
	}
}

type failingReader struct{}

func (*failingReader) Read([]byte) (int, error) { return 0, io.ErrClosedPipe }

type idleReader struct{}

func (idleReader) Read([]byte) (int, error) { return 0, nil }

const twoSeries = `{"status":"success","data":{"resultType":"matrix","result":[` +
	`{"metric":{"a":"1"},"values":[[1,"1"],[2,"2"],[3,"3"]],"histograms":[[4,{"count":"1","sum":"2"}],[5,{"count":"1","sum":"2"}]]},` +
	`{"metric":{"a":"2"},"values":[[1,"1"]]}]}}`

// A caller may end each of the iterations at any element.
func TestTypes_TheCallerEndsTheIteration(t *testing.T) {
	for limit := range 3 { // 0: whole series
		types := callersTypes()
		types.MaxPoints = limit
		total := 0
		for range types.All(NewScanner(strings.NewReader(twoSeries), Options{})) {
			total++
		}
		for stop := 1; stop <= total; stop++ {
			n := 0
			for _, err := range types.All(NewScanner(strings.NewReader(twoSeries), Options{})) {
				if n++; err != nil || n == stop {
					break
				}
			}
			if n != stop {
				t.Errorf("at most %d points: ended after %d elements, not %d", limit, n, stop)
			}
		}
		if want := []int{2, 6, 4}[limit]; total != want {
			t.Errorf("at most %d points: %d elements, want %d", limit, total, want)
		}
	}
}

func TestScanner_TheCallerEndsPointsAndHistograms(t *testing.T) {
	s := NewScanner(strings.NewReader(twoSeries), Options{})
	if !s.Next() {
		t.Fatal(s.Err())
	}
	for ms := range s.Points() {
		if ms != 1000 {
			t.Errorf("first value at %d", ms)
		}
		break
	}
	n := 0
	for ms := range s.Histograms() {
		if n++; ms != 4000 {
			t.Errorf("first histogram at %d", ms)
		}
		break
	}
	if n != 1 || s.Err() != nil || !s.Next() || s.Next() || s.Err() != nil {
		t.Errorf("%d histograms, %v", n, s.Err())
	}
}

func TestTypes_ErrorsOfTheCallersTypes(t *testing.T) {
	own := errors.New("of the caller")
	for name, change := range map[string]func(*Types[map[string]string, callersPoint, callersHistogram]){
		"labels": func(types *Types[map[string]string, callersPoint, callersHistogram]) {
			types.Labels = func([]Label) (map[string]string, error) { return nil, own }
		},
		"histogram": func(types *Types[map[string]string, callersPoint, callersHistogram]) {
			types.Histogram = func(int64, *Histogram) (callersHistogram, error) { return callersHistogram{}, own }
		},
	} {
		types := callersTypes()
		change(&types)
		if _, err := types.Decode(strings.NewReader(twoSeries), Options{}); !errors.Is(err, own) {
			t.Errorf("%s: %v", name, err)
		}
		n := 0
		for series, err := range types.All(NewScanner(strings.NewReader(twoSeries), Options{})) {
			if n++; !errors.Is(err, own) || series.Labels != nil || series.Values != nil {
				t.Errorf("%s: %+v, %v", name, series, err)
			}
		}
		if n != 1 {
			t.Errorf("%s: %d elements", name, n)
		}
	}
	types := callersTypes()
	types.Histogram = nil
	if _, err := types.Decode(strings.NewReader(twoSeries), Options{}); !errors.Is(err, ErrHistograms) {
		t.Errorf("no conversion of histograms: %v", err)
	}
}

func TestScanner_UnknownEscapesAreErrors(t *testing.T) {
	for _, src := range []string{
		`{"status":"su\qccess"}`,
		`{"sta\qtus":"success"}`,
		`{"status":"success","warnings":["a\q"]}`,
		`{"status":"success","data":{"resultType":"matrix","result":[{"metric":{"a":"\q"},"values":[[1,"2"]]}]}}`,
	} {
		if _, err := Decode(strings.NewReader(src), Options{}); !errors.Is(err, ErrSyntax) {
			t.Errorf("%s: %v", src, err)
		}
	}
	var failed error
	for text, err := range NewScanner(strings.NewReader(`{"status":"success","data":["ok","a\q"]}`), Options{}).Strings() {
		if failed = err; err == nil && text != "ok" {
			t.Errorf("%q", text)
		}
	}
	if !errors.Is(failed, ErrSyntax) {
		t.Error(failed)
	}
	for _, raw := range []string{`a\`, `a\q`, `\u12`} {
		if got, ok := appendUnescaped(nil, []byte(raw)); ok {
			t.Errorf("%s is %q", raw, got)
		}
	}
}

func TestPairs_TheCallerEndsThem(t *testing.T) {
	labels := []Label{{"a", "1"}, {"b", "2"}}
	for range 2 {
		n := 0
		for name, value := range Pairs(labels) {
			if n++; name != "a" || value != "1" {
				t.Errorf("%s=%s", name, value)
			}
			break
		}
		for name, value := range SortedPairs(map[string]string{"b": "2", "a": "1"}) {
			if n++; name != "a" || value != "1" {
				t.Errorf("sorted: %s=%s", name, value)
			}
			break
		}
		if n != 2 {
			t.Errorf("%d pairs", n)
		}
	}
	if got := string(AppendLabels([]byte("x"), labels)); got != `x{"a":"1","b":"2"}` {
		t.Error(got)
	}
	if got := string(AppendLabels(nil, nil)); got != "{}" {
		t.Error(got)
	}
}

// countingReader returns a wrong count once.
type countingReader int

func (r countingReader) Read(p []byte) (int, error) {
	if r < 0 {
		return -1, nil
	}
	return len(p) + 1, nil
}

func TestScanner_PanicsAtAReaderThatMiscounts(t *testing.T) {
	for _, r := range []countingReader{-1, 1} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("a count of %d is accepted", r)
				}
			}()
			NewScanner(r, Options{}).Next()
		}()
	}
}

func TestSecondAndLastPoint_OfValuesAndHistograms(t *testing.T) {
	for _, points := range [][]string{
		{`[1,"2"]`}, {`[1,"2"]`, `[2,"3"]`}, {`[1,"2"]`, ` [2,"3"]`, `[3,"4"]`},
		{`[1,{"buckets":[[0,"1"],[0,"2"]]}]`, `[2,{"buckets":[[0,"1"]]}]`},
	} {
		text := strings.Join(points, ",")
		second, last := len(text), strings.LastIndex(text, strings.TrimSpace(points[len(points)-1]))
		if len(points) > 1 {
			second = strings.Index(text, strings.TrimSpace(points[1]))
		}
		if got := secondPoint([]byte(text)); got != second {
			t.Errorf("%s: second at %d, want %d", text, got, second)
		}
		if got := lastPoint([]byte(text)); got != last {
			t.Errorf("%s: last at %d, want %d", text, got, last)
		}
	}
}

func TestEncoder_EmptyBucketsAreLeftOut(t *testing.T) {
	var b bytes.Buffer
	e := NewEncoder(&b, 0)
	e.BeginMatrix()
	e.Series(Pairs([]Label{{"a", "1"}}))
	e.Histogram(1000, 3, 4, slices.Values([]Bucket{{Lower: 1, Upper: 2}, {Lower: 2, Upper: 3, Count: 3}, {Lower: 3, Upper: 4}}))
	e.Histogram(2000, 0, 0, slices.Values([]Bucket{{Lower: 1, Upper: 2}}))
	noError(t, e.Close(nil, nil))
	if text := b.String(); !strings.Contains(text, `"buckets":[[0,"2","3","3"]]}`) || strings.Count(text, "buckets") != 1 {
		t.Error(text)
	}
}
