package stack

import (
	"context"
	"errors"
	"math"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/common/model"

	"github.com/ferula-io/ferula/bench/area"
	"github.com/ferula-io/ferula/bench/blocks"
	"github.com/ferula-io/ferula/bench/proc"
)

func TestCompare_WithoutTheExternalLabelTheSeriesAreThoseOfPrometheus(t *testing.T) {
	response := ""
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte(response)) }))
	t.Cleanup(srv.Close)
	server := &proc.Server{Client: proc.NewClient(srv.URL)}
	two := area.Query{What: "two", Series: 2, Points: 1}
	point := func(v float64) []model.SamplePair {
		return []model.SamplePair{{Timestamp: 1000, Value: model.SampleValue(v)}}
	}
	b := &bench{Bench: area.New(Area, area.Env{}), want: map[string]model.Matrix{"two": {
		{Metric: model.Metric{"pod": "a"}, Values: point(2)}, {Metric: model.Metric{"pod": "b"}, Values: point(1)},
	}}}
	for series, want := range map[string]error{
		`{"metric":{"pod":"b","prometheus":"bench"},"values":[[1,"1"]]},{"metric":{"pod":"a","prometheus":"bench"},"values":[[1,"2"]]}`: nil,
		`{"metric":{"pod":"a"},"values":[[1,"2"]]},{"metric":{"pod":"b","replica":"a"},"values":[[1,"1"]]}`:                             area.ErrUnequal,
		`{"metric":{"pod":"a"},"values":[[1,"2"]]},{"metric":{"pod":"b"},"values":[[1,"1.1"]]}`:                                         area.ErrUnequal,
		`{"metric":{"pod":"a"},"values":[[1,"2"]]}`:                                                                                     area.ErrUnequal,
	} {
		response = `{"status":"success","data":{"resultType":"matrix","result":[` + series + `]}}`
		if err := b.compare(context.Background(), server, two); !errors.Is(err, want) {
			t.Errorf("%s: got %v, want %v", series, err, want)
		}
	}
}

func TestConclude_TakesTheWorseLayout(t *testing.T) {
	b := &bench{Bench: area.New(Area, area.Env{})}
	for what, v := range map[string][2]float64{ // ferula's, without and with a store; Thanos' are 10
		cpuOfAll(whole()): {1, 2}, cpuOfAll(sums()): {4, 3}, peakOfAll: {1, 1}, latencyOf(few(), clientsMax): {0.5, 0.25},
		cpuOfAll(sumsWithin()): {},
	} {
		for i, prefix := range []string{"", withStore, overlap} {
			b.Add(1, allThanos, prefix+what, area.Seconds, 10)
			b.Add(1, allFerula, prefix+what, area.Seconds, append(v[:], 9)[i])
		}
	}
	b.conclude()
	for goal, want := range map[string]float64{"stack/every-point": 0.2, "stack/sum-by": 0.4, "stack/anon": 0.1, "stack/latency-16": 0.05, "stack/overlap-sum-by": 0.9} {
		if got := b.Figure(goal); math.Abs(got-want) > 1e-9 {
			t.Errorf("%s: got %v, want %v", goal, got, want)
		}
	}
	half := &bench{Bench: area.New(Area, area.Env{})}
	half.Add(1, allThanos, peakOfAll, area.Bytes, 10)
	half.Add(1, allFerula, peakOfAll, area.Bytes, 1)
	half.conclude()
	if got := half.Figure("stack/anon"); !math.IsNaN(got) {
		t.Errorf("with one layout only: got %v", got)
	}
}

func TestDistribute_GivesEachPlaceTheBlocksOfTheLayout(t *testing.T) {
	tiny := spec()
	tiny.Series = 2
	from, err := blocks.Ensure(context.Background(), t.TempDir(), tiny)
	if err != nil {
		t.Fatal(err)
	}
	data, bucket := filepath.Join(t.TempDir(), "data"), filepath.Join(t.TempDir(), "bucket")
	names := func(dir string) (names []string) {
		list, err := blocks.List(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range list {
			names = append(names, filepath.Base(block))
		}
		return names
	}
	all := names(from)
	for range 2 { // a second run begins with new directories
		for i, l := range layouts(bucket) {
			if err := distribute(from, data, l); err != nil {
				t.Fatal(err)
			}
			want := [][2][]string{{all, nil}, {all[2:], all[:2]}, {all, all[:3]}, {all, nil}, {all[2:], all[:2]}}[i]
			if local := names(data); !slices.Equal(local, want[0]) {
				t.Errorf("%q: Prometheus has %v of %v", l.prefix, local, all)
			}
			if remote := names(l.bucket); l.bucket != "" && !slices.Equal(remote, want[1]) {
				t.Errorf("%q: the bucket has %v of %v", l.prefix, remote, all)
			}
		}
	}
}

func TestLayouts_AllHaveTheStacksThatAreCompared(t *testing.T) {
	for _, l := range layouts("bucket") {
		first, last := l.stacks[0], l.stacks[len(l.stacks)-1]
		if first.name != allThanos || first.ferula != [parts]bool{} || last.name != allFerula || last.ferula != everyPart {
			t.Errorf("%q: from %+v to %+v", l.prefix, first, last)
		}
		if (strings.Contains(l.prefix, "store") || l.late.Series > 0) != (l.bucket != "") {
			t.Errorf("%q with bucket %q", l.prefix, l.bucket)
		}
	}
}
