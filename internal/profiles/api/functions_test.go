package api

import (
	"encoding/json"
	"net/http"
	"slices"
	"testing"

	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/profilepb"
)

func TestFunctions_RecursionCountsOnceInTotals(t *testing.T) {
	// total 10: main 8 (self 2) calls work 4 and, behind a gap, main 2, which calls work 2; idle 2.
	costs := Functions(&profiles.FlameGraph{
		Names:  []string{"total", "main", "work", "idle"},
		Levels: [][]int64{{0, 10, 0, 0}, {0, 8, 2, 1, 0, 2, 2, 3}, {0, 4, 4, 2, 1, 2, 0, 1}, {5, 2, 2, 2}},
		Total:  10,
	})
	want := []profilepb.FunctionCost{{Name: "main", Self: 2, Total: 8}, {Name: "work", Self: 6, Total: 6}, {Name: "idle", Self: 2, Total: 2}}
	if !slices.Equal(costs, want) {
		t.Errorf("got %+v, want %+v", costs, want)
	}
	for _, f := range []*profiles.FlameGraph{{}, {Names: []string{"total"}, Levels: [][]int64{{0, 5, 0, 7}}}, {Names: []string{"total"}, Levels: [][]int64{{0, 5, 0, 0}, {0, 3}, {0, 2, 2, 0}}}} {
		if costs := Functions(f); len(costs) != 0 {
			t.Errorf("%+v: got %+v, want none", f, costs)
		}
	}
}

func TestServer_FunctionsAreOfWholeStacksWhateverTheLimitOfNodes(t *testing.T) {
	s, base := serve(t, "")
	request := func(more string) string {
		return `{"profileTypeID":"` + cpu + `","labelSelector":"{}","start":"1","end":"60000"` + more + `}`
	}
	type response struct {
		Functions []struct{ Name, Self, Total string }
		Total     string
		Count     string
	}
	for _, tt := range []struct {
		more string
		most int
	}{{"", 3}, {`,"maxNodes":"1"`, 1}, {`,"maxNodes":"-1"`, 3}} {
		status, body := post(t, base+querierPath+"SelectFunctions", request(tt.more))
		var r response
		if err := json.Unmarshal([]byte(body), &r); err != nil || status != http.StatusOK {
			t.Fatalf("%s: %d %v %s", tt.more, status, err, body)
		}
		if got := s.request.(profiles.MergeRequest); got.MaxNodes != 0 {
			t.Errorf("%s: the querier cut the stacks to %d nodes", tt.more, got.MaxNodes)
		}
		if len(r.Functions) != tt.most || r.Count != "3" || r.Total != "1000" || r.Functions[0].Name != "main" || r.Functions[0].Total != "1000" || r.Functions[0].Self != "599" {
			t.Errorf("%s: %+v", tt.more, r)
		}
	}
	for _, more := range []string{`,"format":"PROFILE_FORMAT_DOT"`, `,"maxNodes":"-2"`} {
		if status, body := post(t, base+querierPath+"SelectFunctions", request(more)); status != http.StatusBadRequest {
			t.Errorf("%s: %d %s", more, status, body)
		}
	}
}
