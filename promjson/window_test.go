package promjson

import (
	"fmt"
	"strings"
	"testing"
	"testing/iotest"
)

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
