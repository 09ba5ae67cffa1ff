package e2e

import (
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ferula-io/ferula/internal/app"
)

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
