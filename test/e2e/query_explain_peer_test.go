package e2e

import (
	"encoding/json"
	"fmt"
	"net/url"
	"testing"
)

// planNodes returns the number of nodes of a plan. It fails unless each has a name, perhaps children, and no other field.
func planNodes(t *testing.T, who string, v any) int {
	t.Helper()
	node, ok := v.(map[string]any)
	if name, _ := node["name"].(string); !ok || name == "" {
		t.Errorf("%s: a node without a name: %v", who, v)
	}
	fields, nodes := 1, 1
	if children, has := node["children"]; has {
		list, ok := children.([]any)
		if !ok || len(list) == 0 {
			t.Errorf("%s: children are %v", who, children)
		}
		for _, child := range list {
			nodes += planNodes(t, who, child)
		}
		fields++
	}
	if len(node) != fields {
		t.Errorf("%s: other fields: %v", who, node)
	}
	return nodes
}

func TestPeerThanosQuery_PlansHaveTheSameShape(t *testing.T) {
	theirs, ours := thanosQuery(t, nil), startQuery(t, nil, nil)
	plan := func(s *server, request string) (nodes int, status int) {
		t.Helper()
		status, body := s.get(request)
		var response struct {
			Status, ErrorType string
			Data              any
		}
		if err := json.Unmarshal([]byte(body), &response); err != nil {
			t.Fatalf("%s: %v: %s", request, err, body)
		}
		if status != 200 {
			if response.Status != "error" || response.ErrorType != "bad_data" {
				t.Errorf("%s: %d %s", request, status, body)
			}
			return 0, status
		}
		return planNodes(t, s.base+request, response.Data), status
	}
	for query, atLeast := range map[string]int{
		`up`: 1, `sum by (job) (rate(x{a="b"}[5m]))`: 2, `topk(3, x) / on (i) group_left () y`: 4, `max_over_time(x[1h:1m])`: 2, `histogram_quantile(0.9, sum by (le) (rate(b[5m])))`: 3, `1`: 1,
		`sum(`: 0, `nothing(x)`: 0, ``: 0,
	} {
		form := url.Values{"query": {query}, "engine": {"thanos"}, "dedup": {"true"}, "partial_response": {"true"}, "analyze": {"false"}}
		for _, request := range []string{"/api/v1/query_explain?time=60&" + form.Encode(), "/api/v1/query_range_explain?start=0&end=60&step=15&max_source_resolution=0s&" + form.Encode()} {
			_, want := plan(theirs, request)
			nodes, status := plan(ours.server, request)
			if status != want || (status == 200) != (atLeast > 0) || nodes < atLeast {
				t.Errorf("%s: %d with %d nodes, at least %d; Thanos %d", request, status, nodes, atLeast, want)
			}
		}
	}
	for _, request := range []string{"/api/v1/query_explain?query=up&engine=none", "/api/v1/query_explain?query=up&engine=thanos&time=x", "/api/v1/query_range_explain?query=up&engine=thanos", "/api/v1/query_range_explain?query=up&engine=thanos&start=9&end=1&step=1"} {
		_, want := plan(theirs, request)
		if _, got := plan(ours.server, request); got != want || got != 400 {
			t.Errorf("%s: %d, Thanos %d", request, got, want)
		}
	}
	_, body := ours.get("/api/v1/query?" + url.Values{"query": {"sum(up)"}, "analyze": {"true"}}.Encode())
	var analyzed struct {
		Data struct {
			Analysis struct {
				Name, ExecutionTime string
				Children            []any
			}
		}
	}
	if err := json.Unmarshal([]byte(body), &analyzed); err != nil || analyzed.Data.Analysis.Name != "sum(up)" || len(analyzed.Data.Analysis.Children) != 1 || planNodes(t, "analysis", analyzed.Data.Analysis.Children[0]) != 2 {
		t.Error(fmt.Sprint(err, body))
	}
}
