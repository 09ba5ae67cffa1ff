package promjson

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"
)

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
			if _, err := fmt.Sscanf(want, "%d:", &at); err != nil {
				t.Fatal(err)
			}
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
