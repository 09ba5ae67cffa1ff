package stack

import (
	"context"
	"errors"
	"math"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"

	"github.com/ferula-io/ferula/bench/area"
	"github.com/ferula-io/ferula/bench/blocks"
	"github.com/ferula-io/ferula/bench/proc"
)

var two = rangeQuery{what: "two", expr: "m", series: 2}

// matrixForTest returns two series; change may change them.
func matrixForTest(change func(m promql.Matrix) promql.Matrix) promql.Matrix {
	var m promql.Matrix
	for i, name := range []string{"a", "b"} {
		s := promql.Series{Metric: labels.FromStrings("pod", name)}
		for j := range int64(points) {
			s.Floats = append(s.Floats, promql.FPoint{T: queryStartMS + j*queryStepMS, F: 1e6 * float64(int64(i)+j)})
		}
		m = append(m, s)
	}
	if change != nil {
		m = change(m)
	}
	return m
}

func TestSameMatrix_UnequalResponsesAreErrors(t *testing.T) {
	for name, c := range map[string]struct {
		change func(m promql.Matrix) promql.Matrix
		want   error
	}{
		"the same":                   {nil, nil},
		"another order of additions": {func(m promql.Matrix) promql.Matrix { m[1].Floats[3].F *= 1 + 1e-12; return m }, nil},
		"another value":              {func(m promql.Matrix) promql.Matrix { m[1].Floats[3].F *= 1 + 1e-8; return m }, area.ErrUnequal},
		"no number":                  {func(m promql.Matrix) promql.Matrix { m[1].Floats[3].F = math.NaN(); return m }, area.ErrUnequal},
		"another time":               {func(m promql.Matrix) promql.Matrix { m[0].Floats[0].T++; return m }, area.ErrUnequal},
		"a point less":               {func(m promql.Matrix) promql.Matrix { m[0].Floats = m[0].Floats[1:]; return m }, area.ErrUnequal},
		"the points of the store":    {func(m promql.Matrix) promql.Matrix { m[0].Floats = m[0].Floats[:points/2]; return m }, area.ErrUnequal},
		"a series less":              {func(m promql.Matrix) promql.Matrix { return m[1:] }, area.ErrUnequal},
		"no series":                  {func(promql.Matrix) promql.Matrix { return nil }, area.ErrUnequal},
		"a label that is not removed": {func(m promql.Matrix) promql.Matrix {
			m[0].Metric = labels.FromStrings("pod", "a", "replica", "a")
			return m
		}, area.ErrUnequal},
	} {
		if err := sameMatrix(two, matrixForTest(c.change), matrixForTest(nil)); !errors.Is(err, c.want) {
			t.Errorf("%s: got %v, want %v", name, err, c.want)
		}
	}
	gap := func(m promql.Matrix) promql.Matrix { m[0].Floats = m[0].Floats[1:]; return m }
	if err := sameMatrix(two, matrixForTest(gap), matrixForTest(gap)); !errors.Is(err, area.ErrEmpty) {
		t.Errorf("a gap in both: got %v", err)
	}
	if err := sameMatrix(two, nil, nil); !errors.Is(err, area.ErrUnequal) {
		t.Errorf("both empty: got %v", err)
	}
}

func TestMatrixOf_RemovesTheExternalLabelAndSorts(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Write([]byte(`{"status":"success","data":{"resultType":"matrix","result":[
			{"metric":{"pod":"b","prometheus":"bench"},"values":[[1,"1"]]},{"metric":{"pod":"a","prometheus":"bench"},"values":[[1,"2"]]}]}}`))
	}))
	t.Cleanup(srv.Close)
	m, err := matrixOf(context.Background(), proc.NewClient(srv.URL), two)
	if err != nil || len(m) != 2 {
		t.Fatalf("%v, %v", m, err)
	}
	if !labels.Equal(m[0].Metric, labels.FromStrings("pod", "a")) || m[0].Floats[0].F != 2 {
		t.Errorf("got %v", m)
	}
}

func TestConclude_TakesTheWorseLayout(t *testing.T) {
	b := &bench{out: &area.Outcome{}}
	add := func(side, what string, v float64) { b.out.Recorder.Add(1, side, what, area.Seconds, v) }
	for what, v := range map[string][2]float64{ // ferula's, without and with a store; Thanos' are 10
		cpuOfAll(whole): {1, 2}, cpuOfAll(sums): {4, 3}, peakOfAll: {1, 1}, latencyOf(clientsMax): {0.5, 0.25},
	} {
		for i, prefix := range []string{"", withStore} {
			add(allThanos, prefix+what, 10)
			add(allFerula, prefix+what, v[i])
		}
	}
	b.conclude()
	for goal, want := range map[string]float64{"stack/every-point": 0.2, "stack/sum-by": 0.4, "stack/anon": 0.1, "stack/latency-16": 0.05} {
		if got := b.out.Figure(goal); math.Abs(got-want) > 1e-9 {
			t.Errorf("%s: got %v, want %v", goal, got, want)
		}
	}
	half := &bench{out: &area.Outcome{}}
	half.out.Recorder.Add(1, allThanos, peakOfAll, area.Bytes, 10)
	half.out.Recorder.Add(1, allFerula, peakOfAll, area.Bytes, 1)
	half.conclude()
	if got := half.out.Figure("stack/anon"); !math.IsNaN(got) {
		t.Errorf("with one layout only: got %v", got)
	}
}

func TestDistribute_EachBlockIsInOnePlace(t *testing.T) {
	tiny := spec
	tiny.Series = 2
	from, err := blocks.Ensure(context.Background(), t.TempDir(), tiny)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	b := &bench{data: filepath.Join(dir, "data")}
	for bucket, want := range map[string][2]int{"": {4, 0}, filepath.Join(dir, "bucket"): {2, 2}} {
		for range 2 { // a second run begins with new directories
			if err := b.distribute(from, bucket); err != nil {
				t.Fatal(err)
			}
		}
		local, err := blocks.List(b.data)
		if err != nil || len(local) != want[0] {
			t.Errorf("bucket %q: %d blocks at Prometheus, want %d, %v", bucket, len(local), want[0], err)
		}
		if bucket == "" {
			continue
		}
		remote, err := blocks.List(bucket)
		if err != nil || len(remote) != want[1] {
			t.Fatalf("%d blocks in the bucket, want %d, %v", len(remote), want[1], err)
		}
		all, err := blocks.List(from)
		if err != nil || filepath.Base(remote[0]) != filepath.Base(all[0]) || filepath.Base(local[0]) != filepath.Base(all[2]) {
			t.Errorf("the bucket does not have the older blocks: %v, %v", remote, err)
		}
	}
}

func TestLayouts_BothHaveTheStacksThatAreCompared(t *testing.T) {
	for _, l := range layouts("bucket") {
		first, last := l.stacks[0], l.stacks[len(l.stacks)-1]
		if first.name != allThanos || first.ferula != [parts]bool{} || last.name != allFerula || last.ferula != everyPart {
			t.Errorf("%q: from %+v to %+v", l.prefix, first, last)
		}
		if (l.prefix == withStore) != (l.bucket != "") {
			t.Errorf("%q with bucket %q", l.prefix, l.bucket)
		}
	}
}
