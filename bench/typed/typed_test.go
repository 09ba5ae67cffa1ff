package typed

import (
	"bytes"
	"errors"
	"io"
	"math"
	"strings"
	"testing"

	"github.com/ferula-io/ferula/bench/canned"
)

func TestBothCodecsWriteWhatPrometheusWritesAtWholeSeconds(t *testing.T) {
	a, err := canned.Render(canned.Spec{Query: "m", Series: 50, Copies: 2, Points: 9, StartMS: 1_700_000_000_000, StepMS: 1000, CutMS: 1_700_000_004_000})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range Codecs() {
		var joined, again bytes.Buffer
		if err := c.Join(&joined, bytes.NewReader(a.Halves[0].Plain), bytes.NewReader(a.Halves[1].Plain)); err != nil {
			t.Fatalf("%s: %v", c.Name, err)
		}
		if !bytes.Equal(joined.Bytes(), a.Whole.Plain) {
			t.Errorf("%s: two halves are joined to other bytes: %.300s, want %.300s", c.Name, joined.Bytes(), a.Whole.Plain)
		}
		if err := c.Join(&again, bytes.NewReader(a.Whole.Plain)); err != nil || !bytes.Equal(again.Bytes(), a.Whole.Plain) {
			t.Errorf("%s: one part is encoded to other bytes, %v", c.Name, err)
		}
	}
}

func TestSeriesOfOnePartOnlyAreKept(t *testing.T) {
	const begin, end = `{"status":"success","data":{"resultType":"matrix","result":[`, `]}}`
	first := begin + `{"metric":{"a":"1"},"values":[[1,"1"]]},{"metric":{"a":"3"},"values":[[1,"3"]]}` + end
	second := begin + `{"metric":{"a":"2"},"values":[[2,"2"]]},{"metric":{"a":"3"},"values":[[2,"4"]]}` + end
	want := begin + `{"metric":{"a":"1"},"values":[[1,"1"]]},{"metric":{"a":"2"},"values":[[2,"2"]]},{"metric":{"a":"3"},"values":[[1,"3"],[2,"4"]]}` + end
	for _, c := range Codecs() {
		var got bytes.Buffer
		if err := c.Join(&got, strings.NewReader(first), strings.NewReader(second)); err != nil || got.String() != want {
			t.Errorf("%s: %v\n%s\n%s", c.Name, err, got.String(), want)
		}
	}
}

func TestWhatIsNoMatrixIsAnError(t *testing.T) {
	for _, text := range []string{
		`{"status":"error","errorType":"bad_data","error":"no"}`,
		`{"status":"success","data":{"resultType":"scalar","result":[]}}`,
		`{"status":"success"}`,
	} {
		for _, c := range Codecs() {
			if err := c.Join(io.Discard, strings.NewReader(text)); !errors.Is(err, ErrNotMatrix) {
				t.Errorf("%s: %q: got %v, want ErrNotMatrix", c.Name, text, err)
			}
		}
	}
	for _, text := range []string{`[]`, `{"status":"success","data":{"resultType":"matrix","result":[{"metric":{},"values":[[1,"x"]]}]}}`} {
		for _, c := range Codecs() {
			if err := c.Join(io.Discard, strings.NewReader(text)); err == nil {
				t.Errorf("%s: %q was accepted as a response", c.Name, text)
			}
		}
	}
}

func TestSpecialValuesAreDecoded(t *testing.T) {
	m, err := Decode(strings.NewReader(`{"data":{"result":[{"values":[[1.5,"NaN"],[2,"-Inf"],[3.007,"-0"],[4,"1e-07"]],"metric":{"b":"x\"y","a":"<"}}],"resultType":"matrix"},"status":"success"}`))
	if err != nil || len(m) != 1 || len(m[0].Floats) != 4 {
		t.Fatalf("got %v, %v", m, err)
	}
	f := m[0].Floats
	if !math.IsNaN(f[0].F) || f[0].T != 1500 || !math.IsInf(f[1].F, -1) || !math.Signbit(f[2].F) || f[2].T != 3007 || f[3].F != 1e-7 {
		t.Errorf("got %v", f)
	}
	if got := m[0].Metric.String(); got != `{a="<", b="x\"y"}` {
		t.Errorf("got %s", got)
	}
}
