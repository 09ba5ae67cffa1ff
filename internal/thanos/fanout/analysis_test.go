package fanout

import (
	"fmt"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"

	"github.com/ferula-io/ferula/internal/series"
)

// The page that explains a query has a line for each store.
func TestWithAnalysis_TrafficOfSelectionsAddsUpByStore(t *testing.T) {
	f, _ := newTestFanout(t, Options{}, holding(t, "x"), holding(t, "y"))
	ctx, analysis := WithAnalysis(t.Context())
	q, err := f.Queryable(Request{}).Querier(0, 10)
	if err != nil {
		t.Fatal(err)
	}
	for n := range 2 {
		set := q.Select(ctx, true, nil, labels.MustNewMatcher(labels.MatchRegexp, "__name__", strings.Repeat(".*", n+1))) // equal ones are requested once
		for set.Next() {
			_ = set.At()
		}
		if set.Err() != nil {
			t.Fatal(set.Err())
		}
		stores := analysis.Stores()
		if len(stores) != 2 {
			t.Fatalf("%+v", stores)
		}
		for i, s := range stores {
			if s.Address != fmt.Sprint("s", i) || s.Selections != n+1 || s.Series != n+1 || s.Chunks != n+1 || s.Samples != n+1 || s.Bytes <= 0 || s.Duration <= 0 {
				t.Errorf("after %d selections: %+v", n+1, s)
			}
		}
	}
	if err := q.Close(); err != nil {
		t.Error(err)
	}
}

// A store may send chunks of any bytes. Chunks without a header count as chunks without samples.
func TestWithAnalysis_SamplesAreCountedByHeaders(t *testing.T) {
	many := make([]sample, 120)
	for i := range many {
		many[i] = sample{int64(i), float64(i), false}
	}
	headless := series.Chunk{MinMS: 500, MaxMS: 500, Encoding: chunkenc.EncXOR, Data: []byte{9}}
	raw := &fakeStore{series: []one{{labels: named("m"), chunks: []series.Chunk{encode(t, many), encode(t, []sample{{400, 1, false}, {401, 1, false}}), headless}}}}
	f, _ := newTestFanout(t, Options{}, raw, downsampledStore(t))
	for name, tt := range map[string]struct {
		function string
		want     [2]int
	}{
		"counts":           {"count_over_time", [2]int{122, 2 + 3}},
		"counts and sums":  {"avg_over_time", [2]int{122, 2 + 2*3}},
		"counters, longer": {"rate", [2]int{122, 2 + 4 + 3}},
	} {
		ctx, analysis := WithAnalysis(t.Context())
		q, err := f.Queryable(Request{MaxResolutionMS: fineMS}).Querier(0, 1_000_000)
		if err != nil {
			t.Fatal(err)
		}
		set := q.Select(ctx, true, &storage.SelectHints{Start: 0, End: 1_000_000, Func: tt.function}, labels.MustNewMatcher(labels.MatchEqual, "__name__", "m"))
		for set.Next() {
			_ = set.At()
		}
		if err := q.Close(); err != nil {
			t.Error(err)
		}
		for i, s := range analysis.Stores() {
			if s.Samples != tt.want[i] {
				t.Errorf("%s: store %d has %d samples, want %d", name, i, s.Samples, tt.want[i])
			}
		}
	}
}
