package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	prometheustsdb "github.com/prometheus/prometheus/tsdb"

	"github.com/ferula-io/ferula/internal/app"
)

// queriedSidecar runs a Prometheus with external labels and a Thanos sidecar for it, and
// returns the sidecar's gRPC address.
func queriedSidecar(t *testing.T) (prometheus *server, store string) {
	t.Helper()
	data := t.TempDir()
	prometheus = startPrometheus(t, "global: {external_labels: {cluster: eu, replica: a}}\n", data, "--enable-feature=exemplar-storage")
	return prometheus, thanosSidecar(t, prometheus, data)
}

func TestPeerThanosSidecar_ResultsEqualPrometheus(t *testing.T) {
	prometheus, store := queriedSidecar(t)
	end := time.Now().Truncate(time.Minute)
	prometheus.writeAll(storeSamples(t, end))
	q := startQuery(t, []string{store}, func(o *app.QueryOptions) { o.Stores.ReplicaLabels = []string{"replica"} })
	q.waitFor("/api/v1/stores", `"sidecar":[{"name":"`+store, `"cluster":"eu"`)
	compared := 0
	for _, request := range storeRequests(end) {
		if strings.HasPrefix(request, "/api/v1/label") || strings.Contains(request, "sum+by") || strings.Contains(request, "histogram_quantile") || strings.Contains(request, "absent") {
			continue // labels include the external ones, and these functions drop them
		}
		_, want := prometheus.get(request)
		for _, dedup := range []string{"true", "false"} {
			_, got := q.get(request + "&dedup=" + dedup)
			if compared++; normalizedResponse(t, got, "cluster", "replica") != normalizedResponse(t, want) {
				t.Errorf("%s dedup=%s\nferula     %.600s\nPrometheus %.600s", request, dedup, got, want)
			}
		}
	}
	if compared < 30 {
		t.Fatalf("only %d responses compared", compared)
	}
}

// Both queriers read the same two stores. Counter resets are not compared where Thanos
// differs from Prometheus, which ferula follows: Thanos adjusts counters for resets
// before the engine reads them, so the engine extrapolates a rate after a reset
// differently even with a single replica.
func TestPeerThanosQuery_SameDeduplicationOfReplicas(t *testing.T) {
	end := time.Now().Truncate(time.Minute)
	stores := replicas(t, end)
	theirs := thanosQuery(t, stores, "--query.replica-label=replica")
	ours := startQuery(t, stores, func(o *app.QueryOptions) { o.Stores.ReplicaLabels = []string{"replica"} })
	again := thanosQuery(t, []string{ours.grpc}, "--query.replica-label=replica")
	compared := 0
	for _, query := range []string{
		"level", "counted_total", "rate(counted_total[5m])", "increase(counted_total[10m])", "irate(counted_total[5m])", "sum(rate(counted_total[3m]))", "avg_over_time(level[7m])",
		"count_over_time(level[5m])", "changes(level[20m])", "max_over_time(level[1m])", "delta(level[5m])", "level offset 10m", "count(level)", `rate(counted_total{z="1"}[2m])`, "last_over_time(counted_total[1m])",
	} {
		form := url.Values{"query": {query}, "start": {fmt.Sprint(end.Add(-35 * time.Minute).Unix())}, "end": {fmt.Sprint(end.Unix())}, "step": {"13"}}
		for _, dedup := range []string{"&dedup=true", "&dedup=false", "&replicaLabels[]=cluster", "&replicaLabels[]=cluster&replicaLabels[]=replica"} {
			if restarts := strings.Contains(query, "rate(") || strings.Contains(query, "increase("); restarts && !strings.HasSuffix(dedup, "true") && !strings.HasSuffix(dedup, "=replica") {
				continue
			}
			request := "/api/v1/query_range?" + form.Encode() + dedup
			_, want := theirs.get(request)
			_, got := ours.get(request)
			if compared++; normalizedResponse(t, got) != normalizedResponse(t, want) {
				t.Errorf("%s\nferula %.900s\nThanos %.900s", request, got, want)
			}
			_, got = again.get(request)
			if compared++; normalizedResponse(t, got) != normalizedResponse(t, want) {
				t.Errorf("%s\nThanos over ferula %.900s\nThanos %.900s", request, got, want)
			}
		}
	}
	if compared < 90 {
		t.Fatalf("only %d responses compared", compared)
	}
	for _, path := range []string{"/api/v1/series?match[]=counted_total", "/api/v1/series?match[]=level&dedup=false", "/api/v1/labels", "/api/v1/label/replica/values", "/api/v1/label/job/values"} {
		_, want := theirs.get(path)
		_, got := ours.get(path)
		if normalizedResponse(t, got) != normalizedResponse(t, want) {
			t.Errorf("%s\nferula %s\nThanos %s", path, got, want)
		}
	}
}

// listedStores returns the stores of /api/v1/stores with their label sets, sorted.
func listedStores(t *testing.T, s *server) string {
	t.Helper()
	_, body := s.get("/api/v1/stores")
	var response struct {
		Data map[string][]struct {
			Name      string
			LabelSets []map[string]string
			LastError any
		}
	}
	if err := json.Unmarshal([]byte(body), &response); err != nil {
		t.Fatalf("%v: %s", err, body)
	}
	var lines []string
	for component, stores := range response.Data {
		for _, store := range stores {
			var sets []string
			for _, set := range store.LabelSets {
				sets = append(sets, fmt.Sprint(set))
			}
			slices.Sort(sets)
			lines = append(lines, fmt.Sprint(component, " ", store.Name, " ", sets, " ", store.LastError))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func TestPeerThanosQuery_SelectorsListAndReadTheSameStores(t *testing.T) {
	end := time.Now().Truncate(time.Minute)
	var stores []string
	for _, cluster := range []string{"eu", "us"} {
		s, address := grpcServe(t, "global: {external_labels: {cluster: "+cluster+"}}\nscrape_configs: []\n", nil)
		s.writeAll(storeSamples(t, end))
		stores = append(stores, address)
	}
	// A store with the label sets of both.
	both := startQuery(t, stores, nil)
	eventually(t, 60*time.Second, "the querier below to know its stores", func() bool {
		return strings.Count(listedStores(t, both.server), "cluster:") == 2
	})
	all := append(slices.Clone(stores), both.grpc)
	query := "/api/v1/query?" + url.Values{"query": {`count by (cluster) ({__name__=~"requests_total|temperature"})`}, "time": {fmt.Sprint(end.Unix())}}.Encode()
	for rules, want := range map[string]int{ // number of label sets
		"[{action: keep, source_labels: [cluster], regex: eu}]":                                                                              2,
		"[{action: drop, source_labels: [cluster], regex: eu}]":                                                                              2,
		"[{action: keep, source_labels: [cluster], regex: '.*'}]":                                                                            4,
		"[{action: keep, source_labels: [cluster], regex: none}]":                                                                            0,
		"[{action: hashmod, source_labels: [cluster], modulus: 2, target_label: shard}, {action: keep, source_labels: [shard], regex: '0'}]": -1,
	} {
		args := []string{"--selector.relabel-config=" + rules}
		for _, store := range all {
			args = append(args, "--endpoint="+store)
		}
		theirs := thanosQuery(t, nil, args...)
		ours := startQuery(t, all, func(o *app.QueryOptions) { o.Relabel = rules })
		list := ""
		eventually(t, 60*time.Second, "the same list of stores with "+rules, func() bool {
			list = listedStores(t, theirs)
			return list == listedStores(t, ours.server) && (want < 0 || strings.Count(list, "cluster:") == want)
		})
		_, theirBody := theirs.get(query)
		if _, body := ours.get(query); normalizedResponse(t, body) != normalizedResponse(t, theirBody) {
			t.Errorf("%s over\n%s\nferula %s\nThanos %s", rules, list, body, theirBody)
		}
	}
}

// responseList returns the elements of a list in a response's data as JSON, in their
// order, without the fields in drop at any depth.
func responseList(t *testing.T, body, list string, drop ...string) (lines []string) {
	t.Helper()
	var got struct {
		Status   string
		Data     map[string]json.RawMessage
		Warnings []string
	}
	if err := json.Unmarshal([]byte(body), &got); err != nil || got.Status != "success" || len(got.Warnings) > 0 {
		t.Fatalf("%v %.600s", err, body)
	}
	var elements []any
	if err := json.Unmarshal(got.Data[list], &elements); err != nil {
		t.Fatalf("%s: %v %.600s", list, err, body)
	}
	for _, e := range elements {
		line := try(json.Marshal(withoutFields(e, drop))).must(t)
		lines = append(lines, string(line))
	}
	return lines
}

func withoutFields(v any, drop []string) any {
	switch v := v.(type) {
	case map[string]any:
		for name := range v {
			if slices.Contains(drop, name) {
				delete(v, name)
			} else {
				v[name] = withoutFields(v[name], drop)
			}
		}
	case []any:
		for i := range v {
			v[i] = withoutFields(v[i], drop)
		}
	}
	return v
}

// The comparison leaves out fields that change with every scrape, external labels, and
// fields that Thanos' services do not forward.
func TestPeerThanosSidecar_MetadataTargetsRulesAndStatisticsEqualPrometheus(t *testing.T) {
	dir := t.TempDir()
	prom := startPrometheusForSidecar(t, dir)
	theirs := thanosSidecar(t, prom, dir)
	ours := startSidecar(t, prom.base, nil)
	ours.waitReady()
	eventually(t, 60*time.Second, "rules and targets", func() bool {
		_, rules := prom.get("/api/v1/rules")
		_, targets := prom.get("/api/v1/targets")
		return strings.Contains(rules, `"state":"pending"`) && strings.Contains(targets, `"health":"up"`)
	})
	volatile := []string{"evaluationTime", "lastEvaluation", "lastScrape", "lastScrapeDuration", "scrapeInterval", "scrapeTimeout", "cluster", "replica", "alertmanagers"}
	for name, stores := range map[string][]string{"Thanos' sidecar": {theirs}, "ferula's sidecar": {ours.grpc}, "both": {theirs, ours.grpc}} {
		q := startQuery(t, stores, func(o *app.QueryOptions) { o.Stores.ReplicaLabels = []string{"replica"} })
		eventually(t, 60*time.Second, name+" to be known", func() bool {
			_, body := q.get("/api/v1/stores")
			return strings.Count(body, `"replica":"r1"`) == len(stores)
		})
		for _, c := range []struct {
			path, list string
			want       int
		}{
			{"/api/v1/targets", "activeTargets", 1}, {"/api/v1/targets?state=active", "activeTargets", 1}, {"/api/v1/targets?state=dropped", "activeTargets", 0},
			{"/api/v1/targets", "droppedTargets", 0},
			{"/api/v1/rules", "groups", 1}, {"/api/v1/rules?type=alert", "groups", 1}, {"/api/v1/rules?type=record", "groups", 1},
			{"/api/v1/alerts", "alerts", 1}, {"/api/v1/rules?rule_name[]=Always", "groups", 1}, {"/api/v1/rules?rule_group[]=some", "groups", 1}, {"/api/v1/rules?rule_group[]=none", "groups", 0}, {"/api/v1/rules?file[]=none", "groups", 0},
		} {
			_, body := prom.get(c.path)
			want := responseList(t, body, c.list, volatile...)
			_, body = q.get(c.path)
			got := responseList(t, body, c.list, volatile...)
			if len(want) != c.want || fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("%s, %s\nferula     %s\nPrometheus %s", name, c.path, got, want)
			}
		}
		_, body := q.get("/api/v1/targets")
		if !strings.Contains(body, `"cluster":"eu"`) || strings.Contains(body, `"replica"`) || strings.Contains(body, `"lastScrape":"0001`) {
			t.Errorf("%s: %s", name, body)
		}
		q.expect("/api/v1/targets?dedup=false", 0, `"replica":"r1"`)
		for _, path := range []string{"/api/v1/rules?type=x", "/api/v1/targets?state=x"} {
			q.expect(path, 400)
		}
		for _, path := range []string{"/api/v1/metadata", "/api/v1/metadata?metric=go_info", "/api/v1/metadata?metric=nothing"} {
			want, got := unchanged(t, prom, q.server, path, path)
			if normalizedResponse(t, got) != normalizedResponse(t, want) {
				t.Errorf("%s, %s\nferula     %.400s\nPrometheus %.400s", name, path, got, want)
			}
		}
		if _, body := q.get("/api/v1/metadata?limit=3"); strings.Count(body, `"type"`) != 3 {
			t.Errorf("%s: limit: %s", name, body)
		}
	}
	over := func(store string) *server { return startQuery(t, []string{store}, nil).server }
	thanosOver := func(store string) *server { return startThanos(t, "query", "--endpoint="+store) }
	ofOurs := over(ours.grpc)
	for _, c := range []struct {
		name      string
		got, want *server
	}{
		{"ferula query over Thanos' sidecar, as Thanos query", over(theirs), thanosOver(theirs)},
		{"ferula query over ferula's sidecar, as Prometheus", ofOurs, prom},
		{"Thanos query over both", thanosOver(ofOurs.grpc), prom},
	} {
		eventually(t, 60*time.Second, c.name+" to have the same statistics", func() bool {
			got, want := tsdbStatistics(t, c.got), tsdbStatistics(t, c.want)
			return want["numSeries"] > 0 && len(want) > 10 && maps.Equal(got, want)
		})
	}
}

// tsdbStatistics returns the values of /api/v1/status/tsdb by list and name, without the
// time of the last sample.
func tsdbStatistics(t *testing.T, s *server) map[string]float64 {
	t.Helper()
	_, body := s.get("/api/v1/status/tsdb?limit=10000")
	var got struct {
		Status   string
		Data     map[string]json.RawMessage
		Warnings []string
	}
	if err := json.Unmarshal([]byte(body), &got); err != nil {
		t.Fatalf("%v %.600s", err, body)
	}
	if got.Status != "success" || len(got.Warnings) > 0 { // a store is not known yet
		return nil
	}
	all := map[string]float64{}
	for key, text := range got.Data {
		var head map[string]float64
		var list []struct {
			Name  string
			Value float64
		}
		if key == "headStats" {
			noError(t, json.Unmarshal(text, &head))
			delete(head, "maxTime")
			maps.Copy(all, head)
		} else if err := json.Unmarshal(text, &list); err != nil {
			t.Fatalf("%s: %v", key, err)
		}
		for _, s := range list {
			all[key+" "+s.Name] = s.Value
		}
	}
	return all
}

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

// downsampledBucket creates a bucket with a block of 48 h per replica, lets Thanos
// downsample them to 5 minutes, and returns its directory. Samples of the replicas have
// the same timestamps, like those of recording rules, and different values.
func downsampledBucket(t *testing.T, from time.Time, replicas ...string) (bucket string) {
	t.Helper()
	bucket = t.TempDir()
	for i, replica := range replicas {
		replicaBlock(t, bucket, from, replica, float64(i))
	}
	startThanos(t, "tools", "bucket", "downsample", "--objstore.config="+filesystem(bucket), "--data-dir="+t.TempDir())
	eventually(t, 60*time.Second, "Thanos to downsample the blocks", func() bool {
		metas, _ := filepath.Glob(filepath.Join(bucket, "*", "meta.json"))
		return len(metas) == 2*len(replicas)
	})
	return bucket
}

// replicaBlock writes the block of one replica; off is added to its values.
func replicaBlock(t *testing.T, bucket string, from time.Time, replica string, off float64) {
	t.Helper()
	ctx := context.Background()
	w := try(prometheustsdb.NewBlockWriter(slog.New(slog.DiscardHandler), bucket, (100 * time.Hour).Milliseconds())).must(t)
	defer w.Close()
	app := w.Appender(ctx)
	for i := range 48 * 60 {
		at := from.Add(time.Duration(i) * time.Minute).UnixMilli()
		counted := float64(i%1500)*7 + off // the counter resets every 1500 samples
		for _, s := range []struct {
			lset labels.Labels
			v    float64
		}{
			{labels.FromStrings("__name__", "counted_total", "job", "a"), counted},
			{labels.FromStrings("__name__", "counted_total", "job", "b"), float64(i)*3 + off},
			{labels.FromStrings("__name__", "level", "room", "x"), math.Round(1000*math.Sin(float64(i)/50)) + off},
			{labels.FromStrings("__name__", "level", "room", "y"), float64(i%37) + off},
		} {
			try(app.Append(0, s.lset, at, s.v)).must(t)
		}
	}
	noError(t, app.Commit())
	id := try(w.Flush(ctx)).must(t)
	setThanosMeta(t, filepath.Join(bucket, id.String(), "meta.json"), map[string]string{"cluster": "eu", "replica": replica})
}

// setThanosMeta adds the part of Thanos to a meta.json.
func setThanosMeta(t *testing.T, file string, external map[string]string) {
	t.Helper()
	text := try(os.ReadFile(file)).must(t)
	var meta map[string]any
	noError(t, json.Unmarshal(text, &meta))
	meta["thanos"] = map[string]any{"labels": external, "downsample": map[string]int{"resolution": 0}, "source": "test"}
	noError(t, os.WriteFile(file, try(json.Marshal(meta)).must(t), 0o600))
}

func filesystem(dir string) string { return "{type: FILESYSTEM, config: {directory: " + dir + "}}" }

// Both queriers read the same store gateway, which serves raw and downsampled blocks.
func TestPeerThanosQuery_SameResultsOfDownsampledBlocks(t *testing.T) {
	from := time.Now().Add(-72 * time.Hour).Truncate(2 * time.Hour)
	compareCoarse(t, from, thanosStore(t, downsampledBucket(t, from, "a")), false)
}

// Both replicas have chunks of the same time ranges. avg_over_time must divide sum and
// count of the same replica, and a Thanos querier must read them through ferula's.
func TestPeerThanosQuery_SameResultsOfDownsampledReplicas(t *testing.T) {
	from := time.Now().Add(-72 * time.Hour).Truncate(2 * time.Hour)
	bucket := downsampledBucket(t, from, "a", "b")
	store := thanosStore(t, bucket)
	ours := compareCoarse(t, from, store, true)
	onTop := thanosQuery(t, []string{ours.grpc}, "--query.replica-label=replica")
	form := url.Values{
		"query": {"avg_over_time(level[1h])"}, "start": {fmt.Sprint(from.Add(3 * time.Hour).Unix())}, "end": {fmt.Sprint(from.Add(45 * time.Hour).Unix())}, "step": {"1800"},
		"max_source_resolution": {"5m"},
	}
	status, got := onTop.get("/api/v1/query_range?" + form.Encode())
	if _, want := ours.get("/api/v1/query_range?" + form.Encode()); status != 200 || normalizedResponse(t, got) != normalizedResponse(t, want) {
		t.Errorf("Thanos on top: %d %.700s\nferula %.700s", status, got, want)
	}
	// Series are also listed when only downsampled blocks remain.
	metas, _ := filepath.Glob(filepath.Join(bucket, "*", "meta.json"))
	for _, file := range metas {
		if text, err := os.ReadFile(file); err != nil {
			t.Fatal(err)
		} else if strings.Contains(strings.ReplaceAll(string(text), " ", ""), `"resolution":0`) {
			noError(t, os.RemoveAll(filepath.Dir(file)))
		}
	}
	coarse := startQuery(t, []string{thanosStore(t, bucket)}, nil)
	list := "/api/v1/series?" + url.Values{"match[]": {"level"}, "start": form["start"], "end": form["end"]}.Encode()
	eventually(t, 60*time.Second, "the series to be listed", func() bool {
		_, body := coarse.get(list)
		return strings.Count(body, `"__name__":"level"`) == 4
	})
}

// thanosStore runs a Thanos store gateway and returns its gRPC address.
func thanosStore(t *testing.T, bucket string) (store string) {
	t.Helper()
	return startThanos(t, "store", "--objstore.config="+filesystem(bucket), "--data-dir="+t.TempDir()).grpc
}

// compareCoarse compares the results of both queriers over a store at every resolution.
// With replicas, both deduplicate by the label "replica".
func compareCoarse(t *testing.T, from time.Time, store string, replicas bool) *querier {
	t.Helper()
	var args []string
	if replicas {
		args = append(args, "--query.replica-label=replica")
	}
	theirs := thanosQuery(t, []string{store}, args...)
	ours := startQuery(t, []string{store}, func(o *app.QueryOptions) {
		if replicas {
			o.Stores.ReplicaLabels = []string{"replica"}
		}
	})
	ours.waitFor("/api/v1/stores", `"store":[`, `"cluster":"eu"`)
	compared, coarse := 0, 0
	for _, query := range []string{
		"level", "avg_over_time(level[1h])", "min_over_time(level[1h])", "max_over_time(level[1h])", "sum_over_time(level[1h])", "count_over_time(level[1h])", "max(level)", "min(level)", "sum(level)", "count(level)",
		"rate(counted_total[1h])", "increase(counted_total[2h])", "irate(counted_total[1h])", "sum(rate(counted_total[30m]))", "delta(level[3h])", "counted_total",
	} {
		var fine string
		for _, resolution := range []string{"0s", "5m", "1h", "auto"} {
			form := url.Values{
				"query": {query}, "start": {fmt.Sprint(from.Add(3 * time.Hour).Unix())}, "end": {fmt.Sprint(from.Add(45 * time.Hour).Unix())}, "step": {"1800"},
				"max_source_resolution": {resolution},
			}
			request := "/api/v1/query_range?" + form.Encode()
			_, want := theirs.get(request)
			_, got := ours.get(request)
			// Over counter resets in raw data ferula follows Prometheus' rates, not Thanos'.
			if resolution == "0s" {
				fine = got
				if !replicas && (strings.Contains(query, "rate(") || strings.Contains(query, "increase(")) {
					continue
				}
			}
			if compared++; normalizedResponse(t, got) != normalizedResponse(t, want) {
				t.Errorf("%s at %s\nferula %.700s\nThanos %.700s", query, resolution, got, want)
			}
			if got != fine {
				coarse++
			}
		}
	}
	if compared < 50 || coarse < 20 {
		t.Errorf("%d responses compared, %d of them of downsampled data", compared, coarse)
	}
	return ours
}
