package e2e

import (
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ferula-io/ferula/internal/app"
)

// Sidecar, querier and query frontend of ferula replace those of Thanos in several
// combinations, over one Prometheus and its shipped blocks. Each combination must return
// the results of Prometheus.
func TestPeerThanos_EveryComponentIsInterchangeable(t *testing.T) {
	dir, bucket := t.TempDir(), t.TempDir()
	mint, maxt := writeSidecarBlocks(t, dir, 4)
	prom := startPrometheusForSidecar(t, dir)
	objects := "type: FILESYSTEM\nconfig: {directory: " + bucket + "}\n"
	side := startSidecar(t, prom.base, func(o *app.SidecarOptions) { o.TSDBDir, o.Ship.Bucket = dir, objects })
	side.waitReady()
	eventually(t, 60*time.Second, "the blocks to be shipped", func() bool {
		_, body := side.get("/-/ready")
		return strings.Contains(body, "Shipping last succeeded")
	})
	thanos := func(args ...string) (http, grpc string) {
		http, grpc = fmt.Sprintf("127.0.0.1:%d", freePort(t)), fmt.Sprintf("127.0.0.1:%d", freePort(t))
		args = append(args, "--http-address="+http, "--log.level=warn")
		if args[0] != "query-frontend" {
			args = append(args, "--grpc-address="+grpc)
		}
		startPeer(t, "http://"+http+"/-/ready", peerBinary(t, "thanos"), args...)
		return "http://" + http, grpc
	}
	theirSide := thanosSidecar(t, prom)
	_, gateway := thanos("store", "--data-dir="+t.TempDir(), "--objstore.config-file="+writeFile(t, filepath.Join(t.TempDir(), "objstore.yml"), objects))
	theirQuery, theirStore := thanos("query", "--query.replica-label=replica", "--endpoint="+theirSide)
	theirWhole, _ := thanos("query", "--query.replica-label=replica", "--endpoint="+side.grpc, "--endpoint="+gateway)
	query := func(stores ...string) *querier {
		return startQuery(t, stores, func(o *app.QueryOptions) { o.Stores.ReplicaLabels = []string{"replica"} })
	}
	ourQuery := query(side.grpc)
	theirFront, _ := thanos("query-frontend", "--query-frontend.downstream-url="+ourQuery.base, "--no-query-range.align-range-with-step", "--query-range.split-interval=2h")
	front := func(of string) string {
		return startFrontend(t, of, func(o *app.QueryFrontendOptions) { o.Frontend.Split.Interval = twoHours }).base
	}
	compared := 0
	for what, base := range map[string]string{
		"ferula query over ferula's sidecar":                       ourQuery.base,
		"ferula query over Thanos' sidecar":                        query(theirSide).base,
		"ferula query over Thanos' store gateway":                  query(gateway).base,
		"ferula query over Thanos' query":                          query(theirStore).base,
		"ferula query over ferula's sidecar and the store gateway": query(side.grpc, gateway).base,
		"Thanos query over ferula's sidecar and the store gateway": theirWhole,
		"ferula's frontend for Thanos query":                       front(theirQuery),
		"Thanos' frontend for ferula query":                        theirFront,
		"ferula's frontend for ferula query":                       front(ourQuery.base),
	} {
		s := &server{t: t, base: base}
		for _, request := range stackRequests(mint, maxt) {
			_, want := prom.get(request)
			var got string
			// A querier may not know its stores yet.
			for range 100 {
				if _, got = s.get(request); normalizedResponse(t, got, "cluster") == normalizedResponse(t, want) {
					break
				}
				time.Sleep(100 * time.Millisecond)
			}
			if compared++; normalizedResponse(t, got, "cluster") != normalizedResponse(t, want) || strings.Count(got, `"metric"`) == 0 {
				t.Errorf("%s: %s\n%.500s\nPrometheus\n%.500s", what, request, got, want)
				break
			}
		}
	}
	if compared < 50 {
		t.Fatalf("only %d responses compared", compared)
	}
}

// stackRequests are the queries that every combination gets. The comparison removes
// external labels from the results, so no query may depend on them.
func stackRequests(mint, maxt int64) []string {
	var requests []string
	start, end := mint/1000+3600, maxt/1000-1800
	for _, q := range []string{"blocks", `blocks{a=~"[1-3]"}`, "sum by (a) (blocks)", "count(blocks)", "max_over_time(blocks[20m])", "topk(3, blocks)", "blocks offset 1h"} {
		form := url.Values{"query": {q}, "start": {fmt.Sprint(start)}, "end": {fmt.Sprint(end)}, "step": {"137"}}
		requests = append(requests, "/api/v1/query_range?"+form.Encode())
		form = url.Values{"query": {q}, "time": {fmt.Sprint(end)}}
		requests = append(requests, "/api/v1/query?"+form.Encode())
	}
	return requests
}
