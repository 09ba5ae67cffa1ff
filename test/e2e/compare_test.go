package e2e

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/ferula-io/ferula/internal/app"
	"github.com/ferula-io/ferula/internal/compare"
)

// compared runs `ferula compare` on queries of files over the half hour before end.
func compared(t *testing.T, wire, left, right string, end time.Time, files ...string) *compare.Report {
	t.Helper()
	queries, skipped, err := compare.Load(files)
	noError(t, err)
	return try(app.Compare(t.Context(), app.CompareOptions{
		Wire: wire, Left: app.CompareSide{Address: left}, Right: app.CompareSide{Address: right},
		Compare: compare.Options{Queries: queries, Skipped: skipped, Mode: compare.Auto, End: end, Range: 30 * time.Minute,
			Step: 30 * time.Second, Timeout: time.Minute, BytesMax: 64 << 20, QueriesMax: 1000, Concurrency: 2, Now: time.Now},
	})).must(t)
}

// sharedQueries writes files with queries of sharedSamples.
func sharedQueries(t *testing.T) []string {
	t.Helper()
	return []string{
		writeFile(t, filepath.Join(t.TempDir(), "list"), `
requests_total
sort_desc(requests_total)
sum by (job) (rate(requests_total[5m]))
temperature
nofunction(x)
histogram_quantile(0.9, size_bucket)
rate(temperature[5m])
`),
		writeFile(t, filepath.Join(t.TempDir(), "rules.yml"), `
groups: [{name: g, rules: [{record: a:b, expr: sum(requests_total)}, {alert: A, expr: absent(nothing)}]}]
`),
		writeFile(t, filepath.Join(t.TempDir(), "dashboard.json"), `{"title": "d", "templating": {"list": [
 {"name": "job", "type": "query", "query": "label_values(requests_total, job)", "includeAll": true, "current": {"value": "$__all"}}]},
 "panels": [{"title": "p", "targets": [{"refId": "A", "expr": "sum by (code) (rate(requests_total{job=~\"$job\"}[$__rate_interval]))"}]}]}`),
	}
}

// complain lists what differs.
func complain(t *testing.T, report *compare.Report) {
	t.Helper()
	for _, q := range report.Results {
		if len(q.Differences) > 0 || q.NotCompared != "" {
			t.Errorf("%s %s: %s %+v", q.Source, q.Expr, q.NotCompared, q.Differences)
		}
	}
}

func TestCompare_EveryWireFindsTheSampleThatOneServerLacks(t *testing.T) {
	const config = "scrape_configs: []\n"
	left, leftStore := grpcServe(t, config, idle(t))
	right, rightStore := grpcServe(t, config, idle(t))
	end := time.Now().Truncate(time.Minute)
	for _, s := range []*server{left, right} {
		s.writeAll(sharedSamples(t, end))
	}
	sides := map[string][2]string{app.WireQuery: {left.base, right.base}, app.WireRemoteRead: {left.base, right.base},
		app.WireRemoteReadSamples: {left.base, right.base}, app.WireStoreAPI: {leftStore, rightStore}}
	for wire, s := range sides {
		files := sharedQueries(t)
		if wire == app.WireStoreAPI {
			files = files[:2] // it has no labels for the variables of dashboards
		}
		report := compared(t, wire, s[0], s[1], end, files...)
		if complain(t, report); report.Compared < 3 || report.SameBytes != report.Compared {
			t.Errorf("%s: %+v", wire, report)
		}
	}
	left.writeAll([][]byte{encoded(t, v1(v1Series(end.UnixMilli()+1, 5, "__name__", "requests_total", "job", "a", "code", "200")))})
	want := fmt.Sprintf(`{__name__="requests_total", code="200", job="a"} %d 5 `, end.UnixMilli()+1)
	for wire, s := range sides {
		report := compared(t, wire, s[0], s[1], end.Add(time.Minute), writeFile(t, filepath.Join(t.TempDir(), "list"), "requests_total[5m]\n"))
		var got []string
		for _, d := range report.Results[0].Differences {
			got = append(got, fmt.Sprintf("%s %d %s %s", d.Series, d.TimeMS, d.Left, d.Right))
		}
		if !slices.Equal(got, []string{want}) {
			t.Errorf("%s: %q, want %q", wire, got, want)
		}
	}
}

func TestPeerPrometheus_CompareFindsNoDifference(t *testing.T) {
	ours, peer := startServe(t, idle(t)), startPrometheus(t, "", "")
	end := time.Now().Truncate(time.Minute)
	// The same requests for both: the sums of floats depend on the order in which series were created.
	requests := slices.Concat(shopSamples(t, end), sharedSamples(t, end))
	for _, s := range []*server{ours, peer} {
		s.writeAll(requests)
	}
	shapes := ""
	for _, shape := range promQLShapes(t) {
		shapes += shape.query + "\n"
	}
	files := append(sharedQueries(t), writeFile(t, filepath.Join(t.TempDir(), "shapes"), shapes))
	for _, wire := range []string{app.WireQuery, app.WireRemoteRead, app.WireRemoteReadSamples} {
		report := compared(t, wire, peer.base, ours.base, end, files...)
		if complain(t, report); report.Compared < 10 || report.Left.Program == report.Right.Program {
			t.Errorf("%s: %d compared, %q and %q", wire, report.Compared, report.Left.Program, report.Right.Program)
		}
		if wire == app.WireQuery && (report.Left.CPUSeconds == nil || report.Compared < 100) {
			t.Errorf("%d compared, CPU %v", report.Compared, report.Left.CPUSeconds)
		}
	}
}
