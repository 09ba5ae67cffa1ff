package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ferula-io/ferula/internal/app"
)

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
		line, err := json.Marshal(withoutFields(e, drop))
		if err != nil {
			t.Fatal(err)
		}
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
func TestPeerThanosSidecar_TargetsAndRulesEqualPrometheus(t *testing.T) {
	prom := startPrometheusForSidecar(t, t.TempDir())
	theirs := thanosSidecar(t, prom)
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
		if _, body := q.get("/api/v1/targets?dedup=false"); !strings.Contains(body, `"replica":"r1"`) {
			t.Errorf("%s, not deduplicated: %s", name, body)
		}
		for _, path := range []string{"/api/v1/rules?type=x", "/api/v1/targets?state=x"} {
			if status, body := q.get(path); status != 400 {
				t.Errorf("%s: %d %s", path, status, body)
			}
		}
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
			if err := json.Unmarshal(text, &head); err != nil {
				t.Fatal(err)
			}
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

func TestPeerThanosSidecar_StatisticsEqualThanosQueryAndPrometheus(t *testing.T) {
	prom := startPrometheusForSidecar(t, t.TempDir())
	theirs := thanosSidecar(t, prom)
	sidecar := startSidecar(t, prom.base, nil)
	sidecar.waitReady()
	ofTheirs, ofOurs := startQuery(t, []string{theirs}, nil), startQuery(t, []string{sidecar.grpc}, nil)
	thanosOver := func(store string) *server {
		web := fmt.Sprintf("127.0.0.1:%d", freePort(t))
		startPeer(t, "http://"+web+"/-/ready", peerBinary(t, "thanos"), "query", "--endpoint="+store, "--http-address="+web, fmt.Sprintf("--grpc-address=127.0.0.1:%d", freePort(t)), "--log.level=warn")
		return &server{t: t, base: "http://" + web}
	}
	for _, c := range []struct {
		name      string
		got, want *server
	}{
		{"ferula query over Thanos' sidecar, as Thanos query", ofTheirs.server, thanosOver(theirs)},
		{"ferula query over ferula's sidecar, as Prometheus", ofOurs.server, prom.server},
		{"Thanos query over both", thanosOver(ofOurs.grpc), prom.server},
	} {
		eventually(t, 60*time.Second, c.name+" to have the same statistics", func() bool {
			got, want := tsdbStatistics(t, c.got), tsdbStatistics(t, c.want)
			return want["numSeries"] > 0 && len(want) > 10 && maps.Equal(got, want)
		})
	}
}
