package e2e

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/ferula-io/ferula/internal/profiles/profilepb"
)

// client returns the command that runs a real SDK, from test/clients/build.sh, which
// pins its release.
func client(t *testing.T, name string) []string {
	t.Helper()
	out, err := exec.Command("../clients/build.sh", "-n", name).Output()
	if err != nil && peersWanted() {
		out, err = exec.Command("../clients/build.sh", name).Output()
	}
	needsPeer(t, "the client "+name, err == nil && len(out) > 0)
	return strings.Fields(string(out))
}

func TestPeerSDK_PushedProfilesAreQueryable(t *testing.T) {
	for _, tt := range []struct {
		name, service, function string
		types                   []string
	}{
		{"go", "go.client", "main.hotGo", []string{
			cpuType, "memory:alloc_space:bytes:space:bytes", "memory:inuse_space:bytes:space:bytes", "goroutines:goroutine:count:goroutine:count", "mutex:delay:nanoseconds:contentions:count",
		}},
		{"python", "python.client", "hot_python", []string{cpuType}},
		{"node", "node.client", "hotNode", []string{"wall:cpu:nanoseconds:wall:nanoseconds", "memory:inuse_space:bytes:inuse_space:bytes"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			command := client(t, tt.name)
			s := startServe(t, nil)
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			out, err := exec.CommandContext(ctx, command[0], append(command[1:], s.base)...).CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			var types struct{ ProfileTypes []struct{ ID string } }
			s.postJSON("querier.v1.QuerierService/ProfileTypes", map[string]any{}, &types)
			selector := `{service_name="` + tt.service + `",region="eu"}`
			for _, id := range tt.types {
				f := s.flame(id, selector)
				if f.Flamegraph.Total == "" || f.Flamegraph.Total == "0" {
					t.Errorf("the flame graph of %s is empty; profile types: %v\n%s", id, types.ProfileTypes, out)
				}
				if strings.Contains(id, ":cpu:nanoseconds") && !f.has(tt.function) {
					t.Errorf("no %s among %.500s of %s", tt.function, fmt.Sprint(f.Flamegraph.Names), id)
				}
			}
		})
	}
}

func TestPeerGoToolPprof_OpensMergedProfiles(t *testing.T) {
	goBinary, err := exec.LookPath("go")
	needsPeer(t, "go", err == nil && peersWanted())
	s := startServe(t, nil)
	if status, text := s.folded("name=shop", "main;work;sort 3\nmain;idle 1\n"); status != http.StatusOK {
		t.Fatal(status, text)
	}
	path := filepath.Join(t.TempDir(), "cpu.pb")
	if err := os.WriteFile(path, marshal(t, mergedMessage(t, s)), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(goBinary, "tool", "pprof", "-top", "-unit=ms", path).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "30ms") || !strings.Contains(string(out), "sort") || !strings.Contains(string(out), "Type: cpu") {
		t.Errorf("%v\n%s", err, out)
	}
}

// The requests are those of Grafana's data source, in its order.
func TestProfiles_CallsOfGrafanasDataSourceGetWellFormedResponses(t *testing.T) {
	s := startServe(t, nil)
	if status, text := s.folded("name=shop%7Bzone=a%7D", "main;work;sort 3\nmain;idle 1\n"); status != http.StatusOK {
		t.Fatal(status, text)
	}
	start, end := time.Now().Add(-time.Hour).UnixMilli(), time.Now().Add(time.Second).UnixMilli()
	types := unary[profilepb.ProfileTypesRequest, profilepb.ProfileTypesResponse](t, s, "ProfileTypes", &profilepb.ProfileTypesRequest{Start: start, End: end})
	if len(types.ProfileTypes) != 1 || types.ProfileTypes[0].ID != cpuType {
		t.Fatal(types)
	}
	names := unary[profilepb.LabelNamesRequest, profilepb.LabelNamesResponse](t, s, "LabelNames", &profilepb.LabelNamesRequest{Matchers: []string{`{__profile_type__="` + cpuType + `"}`}, Start: start, End: end})
	if !strings.Contains(fmt.Sprint(names.Names), "service_name zone") {
		t.Error(names)
	}
	values := unary[profilepb.LabelValuesRequest, profilepb.LabelValuesResponse](t, s, "LabelValues", &profilepb.LabelValuesRequest{Name: "zone", Matchers: []string{`{service_name="shop"}`}, Start: start, End: end})
	if len(values.Names) != 1 || values.Names[0] != "a" {
		t.Error(values)
	}
	sets := unary[profilepb.SeriesRequest, profilepb.SeriesResponse](t, s, "Series", &profilepb.SeriesRequest{LabelNames: []string{"service_name", "__profile_type__"}, Start: start, End: end})
	if len(sets.LabelsSet) != 1 || len(sets.LabelsSet[0].Labels) != 2 {
		t.Error(sets)
	}
	limit := int64(10)
	series := unary[profilepb.SelectSeriesRequest, profilepb.SelectSeriesResponse](t, s, "SelectSeries", &profilepb.SelectSeriesRequest{
		ProfileTypeID: cpuType, LabelSelector: "{}", Start: start, End: end, Step: 15, GroupBy: []string{"zone"}, Limit: &limit, ExemplarType: profilepb.ExemplarType_EXEMPLAR_TYPE_INDIVIDUAL,
	})
	if len(series.Series) != 1 || len(series.Series[0].Points) != 1 || len(series.Series[0].Points[0].Exemplars) != 1 {
		t.Fatal(series)
	}
	nodes := int64(16384)
	flame := unary[profilepb.SelectMergeStacktracesRequest, profilepb.SelectMergeStacktracesResponse](t, s, "SelectMergeStacktraces", &profilepb.SelectMergeStacktracesRequest{
		ProfileTypeID: cpuType, LabelSelector: `{service_name="shop"}`, Start: start, End: end, MaxNodes: &nodes, ProfileIdSelector: []string{series.Series[0].Points[0].Exemplars[0].ProfileId},
	})
	if flame.Flamegraph.Total != 40e6 || len(flame.Flamegraph.Levels) != 4 || flame.Flamegraph.Names[0] != "total" {
		t.Error(flame)
	}
	stats := unary[profilepb.GetProfileStatsRequest, profilepb.GetProfileStatsResponse](t, s, "GetProfileStats", &profilepb.GetProfileStatsRequest{})
	if !stats.DataIngested || stats.OldestProfileTime < start || stats.NewestProfileTime > end {
		t.Error(stats)
	}
	diff := unary[profilepb.DiffRequest, profilepb.DiffResponse](t, s, "Diff", &profilepb.DiffRequest{
		Left:  &profilepb.SelectMergeStacktracesRequest{ProfileTypeID: cpuType, LabelSelector: "{}", Start: start, End: end},
		Right: &profilepb.SelectMergeStacktracesRequest{ProfileTypeID: cpuType, LabelSelector: `{service_name="none"}`, Start: start, End: end},
	})
	if diff.Flamegraph.LeftTicks != 40e6 || diff.Flamegraph.RightTicks != 0 || len(diff.Flamegraph.Levels) != 4 {
		t.Error(diff)
	}
}

// unary calls the querier in protobuf, as Grafana's backend does.
func unary[Req, Res any](t *testing.T, s *server, method string, request *Req) *Res {
	t.Helper()
	c := connect.NewClient[Req, Res](http.DefaultClient, s.base+"/querier.v1.QuerierService/"+method)
	r := connect.NewRequest(request)
	r.Header().Set("X-Scope-OrgID", "anonymous")
	response, err := c.CallUnary(context.Background(), r)
	if err != nil {
		t.Fatalf("%s: %v", method, err)
	}
	return response.Msg
}
