package fanout

import (
	"fmt"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
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
			if s.Address != fmt.Sprint("s", i) || s.Selections != n+1 || s.Series != n+1 || s.Chunks != n+1 || s.Bytes <= 0 || s.Duration <= 0 {
				t.Errorf("after %d selections: %+v", n+1, s)
			}
		}
	}
	if err := q.Close(); err != nil {
		t.Error(err)
	}
}
