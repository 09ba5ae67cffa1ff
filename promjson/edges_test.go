package promjson

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"
)

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
	if err := e.Close(nil, nil); err != nil {
		t.Fatal(err)
	}
	if text := b.String(); !strings.Contains(text, `"buckets":[[0,"2","3","3"]]}`) || strings.Count(text, "buckets") != 1 {
		t.Error(text)
	}
}
