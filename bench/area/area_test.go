package area

import (
	"errors"
	"math"
	"slices"
	"testing"

	"github.com/prometheus/common/model"
)

func TestRecorder_MedianCounts(t *testing.T) {
	var rec Recorder
	for i, v := range []float64{3, 1.6, 2} {
		rec.Add(i+1, "peer", "cpu", Seconds, 2*v)
		rec.Add(i+1, "ferula", "cpu", Seconds, v)
	}
	rec.Add(1, "ferula", "bytes", Bytes, 0)
	rec.Add(1, "peer", "bytes", Bytes, 0)
	if got := rec.Median("ferula", "cpu"); got != 2 {
		t.Errorf("median: got %v, want 2", got)
	}
	if got := rec.Spread("ferula", "cpu"); got != 0.5 {
		t.Errorf("spread: got %v, want 0.5", got)
	}
	if got := rec.Spread("ferula", "bytes"); !math.IsNaN(got) {
		t.Errorf("spread around 0: got %v, want NaN", got)
	}
	rec.Add(1, "even", "cpu", Seconds, 4)
	rec.Add(2, "even", "cpu", Seconds, 2)
	if got := rec.Median("even", "cpu"); got != 3 {
		t.Errorf("median of two: got %v, want 3", got)
	}
	if got := rec.Over("ferula", "peer", "cpu"); got != 0.5 {
		t.Errorf("over: got %v, want 0.5", got)
	}
	for what, got := range map[string]float64{
		"never read":     rec.Median("ferula", "allocs"),
		"no such side":   rec.Over("relay", "peer", "cpu"),
		"nothing over 0": rec.Over("ferula", "peer", "bytes"),
	} {
		if !math.IsNaN(got) {
			t.Errorf("%s: got %v, want NaN", what, got)
		}
	}
	if got := rec.Kinds(); !slices.Equal(got, []string{"cpu", "bytes"}) {
		t.Errorf("kinds: %v", got)
	}
}

func TestOutcome_UnmeasuredGoalIsNaN(t *testing.T) {
	var o Outcome
	o.Measure("a/b", 0.25, "cpu")
	if o.Figure("a/b") != 0.25 || !math.IsNaN(o.Figure("a/c")) {
		t.Errorf("got %v and %v", o.Figure("a/b"), o.Figure("a/c"))
	}
}

func TestSameBytes_RejectsUnequalAndEmptyResponses(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want error
	}{
		{"same", "same", nil}, {"", "", ErrEmpty}, {"x", "", ErrEmpty}, {"some", "same", ErrUnequal}, {"same", "same!", ErrUnequal},
	} {
		if err := SameBytes("test", []byte(c.a), []byte(c.b)); !errors.Is(err, c.want) {
			t.Errorf("%q, %q: got %v, want %v", c.a, c.b, err, c.want)
		}
	}
}

func TestWorst_IsTheGreatestOrMissing(t *testing.T) {
	if got := Worst(0.2, 0.3, 0.1); got != 0.3 {
		t.Errorf("got %v", got)
	}
	if got := Worst(0.2, math.NaN()); !math.IsNaN(got) {
		t.Errorf("with a missing figure: got %v", got)
	}
}

func matrixForTest(change func(m model.Matrix) model.Matrix) model.Matrix {
	m := model.Matrix{}
	for i, name := range []model.LabelValue{"a", "b"} {
		s := &model.SampleStream{Metric: model.Metric{"pod": name}}
		for j := range 5 {
			s.Values = append(s.Values, model.SamplePair{Timestamp: model.Time(1000 * j), Value: model.SampleValue(1e6 * (i + j))})
		}
		m = append(m, s)
	}
	return change(m)
}

func TestSameMatrix_UnequalResultsAreErrors(t *testing.T) {
	same := func(m model.Matrix) model.Matrix { return m }
	for name, c := range map[string]struct {
		change    func(m model.Matrix) model.Matrix
		tolerance float64
		want      error
	}{
		"the same":                   {same, 0, nil},
		"another order of additions": {func(m model.Matrix) model.Matrix { m[1].Values[3].Value *= 1 + 1e-12; return m }, 1e-9, nil},
		"not the same bits":          {func(m model.Matrix) model.Matrix { m[1].Values[3].Value *= 1 + 1e-12; return m }, 0, ErrUnequal},
		"another value":              {func(m model.Matrix) model.Matrix { m[1].Values[3].Value *= 1 + 1e-8; return m }, 1e-9, ErrUnequal},
		"no number":                  {func(m model.Matrix) model.Matrix { m[1].Values[3].Value = model.SampleValue(math.NaN()); return m }, 1e-9, ErrUnequal},
		"another time":               {func(m model.Matrix) model.Matrix { m[0].Values[0].Timestamp++; return m }, 0, ErrUnequal},
		"a point less":               {func(m model.Matrix) model.Matrix { m[0].Values = m[0].Values[1:]; return m }, 0, ErrUnequal},
		"a series less":              {func(m model.Matrix) model.Matrix { return m[1:] }, 0, ErrUnequal},
		"no series":                  {func(model.Matrix) model.Matrix { return nil }, 0, ErrUnequal},
		"another label":              {func(m model.Matrix) model.Matrix { m[0].Metric["replica"] = "a"; return m }, 0, ErrUnequal},
	} {
		if err := SameMatrix(name, matrixForTest(c.change), matrixForTest(same), c.tolerance); !errors.Is(err, c.want) {
			t.Errorf("%s: got %v, want %v", name, err, c.want)
		}
	}
	if err := SameMatrix("both empty", nil, nil, 0); !errors.Is(err, ErrEmpty) {
		t.Errorf("both empty: got %v", err)
	}
}

func TestCheck_RefusesIncompleteResponses(t *testing.T) {
	const begin, end = `{"status":"success","data":{"resultType":"matrix","result":[`, `]}}`
	one := `{"metric":{"a":"1"},"values":[[1.5,"NaN"],[3.007,"-0"]]}`
	q := Query{What: "two points", Points: 2, Series: 1}
	if err := q.Check([]byte(begin + one + end)); err != nil {
		t.Error(err)
	}
	m, err := DecodeMatrix([]byte(begin + `{"metric":{"a":"2"},"values":[]},` + one + end))
	if err != nil || m[0].Metric["a"] != "1" || m[0].Values[0].Timestamp != 1500 || m[0].Values[1].Timestamp != 3007 ||
		!math.IsNaN(float64(m[0].Values[0].Value)) || !math.Signbit(float64(m[0].Values[1].Value)) {
		t.Errorf("%v, %v", m, err)
	}
	for _, body := range []string{
		``, `{}`, `{"status":"error"}`, begin + end, begin + one + "," + one + end, begin + `{"metric":{},"values":[[1,"1"]]}` + end,
		`{"status":"success","warnings":["a store is down"],"data":{"resultType":"matrix","result":[` + one + end,
		`{"status":"success","data":{"resultType":"vector","result":[]}}`, begin + `{"metric":{},"values":[[1,"x"],[2,"1"]]}` + end,
	} {
		if err := q.Check([]byte(body)); err == nil {
			t.Errorf("%q is accepted", body)
		}
	}
}

func TestSameLength_IsThatOfTheFirstResponse(t *testing.T) {
	b := New(Area{Sides: []string{"a", "b"}}, Env{})
	for _, c := range []struct {
		side string
		n    int64
		want error
	}{{"a", 7, nil}, {"b", 9, nil}, {"a", 7, nil}, {"a", 9, ErrUnequal}, {"b", 0, ErrEmpty}} {
		if err := b.SameLength(c.side, "x", c.n); !errors.Is(err, c.want) {
			t.Errorf("%+v: got %v", c, err)
		}
	}
}
