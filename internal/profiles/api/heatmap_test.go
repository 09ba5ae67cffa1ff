package api

import (
	"encoding/binary"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/ferula-io/ferula/internal/profiles"
)

// Requests as Grafana's data source and its application for profiles send them.
func TestServer_RecordedRequestsOfGrafana(t *testing.T) {
	s, base := serve(t, "")
	const span = "00000000000000ff"
	for _, tt := range []struct {
		path, body, want string
		check            func() bool
	}{
		{querierPath + "SelectMergeSpanProfile",
			`{"profileTypeID":"` + cpu + `","labelSelector":"{service_name=\"a\"}","spanSelector":["` + span + `"],"start":"1","end":"60000","maxNodes":"16384"}`, `"flamegraph"`,
			func() bool {
				r := s.request.(profiles.MergeRequest)
				return slices.Equal(r.Spans, []uint64{255}) && r.MaxNodes == 16384 && len(r.Matchers) == 1
			}},
		{querierPath + "SelectHeatmap",
			`{"profileTypeID":"` + cpu + `","labelSelector":"{}","start":"1","end":"60000","step":15,"queryType":"HEATMAP_QUERY_TYPE_SPAN","exemplarType":"EXEMPLAR_TYPE_SPAN","limit":"10"}`,
			`"spanId":"0000000000000abc"`, func() bool {
				r := s.request.(profiles.HeatmapRequest)
				return r.Spans && r.Exemplars && r.StepMS == 15_000 && r.Limit == 10
			}},
		{querierPath + "SelectMergeStacktraces",
			`{"profileTypeID":"` + cpu + `","labelSelector":"{}","start":"1","end":"60000","maxNodes":"-1","spanSelector":["` + span + `"],"traceIdSelector":["` + strings.Repeat("1", 32) + `"]}`,
			`"flamegraph"`, func() bool {
				r := s.request.(profiles.MergeRequest)
				return len(r.Spans) == 1 && len(r.Traces) == 1 && r.MaxNodes == 0
			}},
		{querierPath + "SelectMergeProfile",
			`{"profileTypeID":"` + cpu + `","labelSelector":"{}","start":"1","end":"60000","stackTraceSelector":{"goPgo":{"keepLocations":5,"aggregateCallees":true}}}`,
			`"timeNanos"`, func() bool {
				r := s.request.(profiles.MergeRequest)
				return r.PGO != nil && *r.PGO == profiles.PGO{KeepFrames: 5, AggregateCallees: true} && r.MaxNodes == 0
			}},
		{settingsPath + "Get", `{}`, `{}`, func() bool { return true }},
	} {
		status, body := post(t, base+tt.path, tt.body)
		body = strings.ReplaceAll(body, `": "`, `":"`)
		if status != http.StatusOK || !strings.Contains(body, tt.want) || !tt.check() {
			t.Errorf("%s: %d %.400s, request %+v", tt.path, status, body, s.request)
		}
	}
	if status, body := post(t, base+settingsPath+"Set", `{"setting":{"name":"a","value":"b"}}`); status != http.StatusNotImplemented || !strings.Contains(body, "unimplemented") {
		t.Errorf("Set: %d %s", status, body)
	}
}

// treeOf decodes PROFILE_FORMAT_TREE to self values by stack.
func treeOf(t *testing.T, b []byte) map[string]int64 {
	t.Helper()
	number := func() int {
		v, n := binary.Uvarint(b)
		if n <= 0 {
			t.Fatal("cut short")
		}
		b = b[n:]
		return int(v)
	}
	sums := map[string]int64{}
	var node func(path string)
	node = func(path string) {
		size := number()
		name := string(b[:size])
		b = b[size:]
		if path += ";" + name; path == ";" {
			path = ""
		}
		if self := number(); self > 0 {
			sums[strings.TrimPrefix(path, ";")] += int64(self)
		}
		for range number() {
			node(path)
		}
	}
	node("")
	if len(b) > 0 {
		t.Fatalf("%d bytes too many", len(b))
	}
	return sums
}

func TestTree_HasTheSelfValuesOfTheFlameGraph(t *testing.T) {
	f := &profiles.FlameGraph{
		Names: []string{"total", "main", "a", "b", "other"}, Total: 10,
		Levels: [][]int64{{0, 10, 0, 0}, {0, 7, 1, 1, 0, 3, 3, 4}, {0, 4, 4, 2, 0, 2, 2, 3}},
	}
	got := treeOf(t, Tree(f))
	if len(got) != 4 || got["main"] != 1 || got["main;a"] != 4 || got["main;b"] != 2 || got["other"] != 3 {
		t.Errorf("%v", got)
	}
	if b := Tree(&profiles.FlameGraph{Names: []string{"total"}, Levels: [][]int64{{0, 0, 0, 0}}}); len(b) != 0 {
		t.Errorf("%x", b)
	}
}

// A function may be just below the limit of nodes on one side and just above it on the other.
// The diff must not show it as if one side did not have it.
func TestDiff_CutsBothSidesAlike(t *testing.T) {
	side := func(a, b int64) *profiles.FlameGraph {
		return &profiles.FlameGraph{
			Names: []string{"total", "a", "b", "c"}, Total: a + b + 1, Levels: [][]int64{{0, a + b + 1, 0, 0}, {0, a, a, 1, 0, b, b, 2, 0, 1, 1, 3}},
		}
	}
	d := Diff(side(100, 99), side(99, 100), 3)
	if len(d.Levels) != 2 || len(d.Levels[1]) != 3*diffWidth || !slices.Contains(d.Names, "a") || !slices.Contains(d.Names, "b") || slices.Contains(d.Names, "c") {
		t.Fatalf("%+v", d)
	}
	for at := 0; at < len(d.Levels[1]); at += diffWidth {
		if level := d.Levels[1][at:]; level[1] == 0 || level[4] == 0 {
			t.Errorf("%s is on one side only: %v", d.Names[level[6]], level)
		}
	}
	if d.LeftTicks != 200 || d.RightTicks != 200 {
		t.Errorf("%d and %d ticks", d.LeftTicks, d.RightTicks)
	}
}
