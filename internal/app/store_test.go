package app

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/tsdb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/ferula-io/ferula/internal/thanos/gateway"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

// bucketBlock writes a block with one series a room and n rooms into a bucket's directory.
func bucketBlock(t *testing.T, dir string, rooms ...string) {
	t.Helper()
	w, err := tsdb.NewBlockWriter(slog.New(slog.DiscardHandler), dir, math.MaxInt32)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	app := w.Appender(t.Context())
	for _, room := range rooms {
		for i := range int64(300) {
			if _, err := app.Append(0, labels.FromStrings("__name__", "level", "room", room), i*15_000, float64(i)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := app.Commit(); err != nil {
		t.Fatal(err)
	}
	id, err := w.Flush(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, id.String(), "meta.json")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var meta map[string]any
	if err := json.Unmarshal(text, &meta); err != nil {
		t.Fatal(err)
	}
	meta["thanos"] = map[string]any{"labels": map[string]string{"cluster": "eu"}, "source": "sidecar"}
	if text, err = json.Marshal(meta); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

// startStore runs a store and returns its addresses.
func startStore(t *testing.T, bucket string, change func(*StoreOptions)) (web, grpcAddress string) {
	t.Helper()
	o := StoreOptions{
		Web: WebOptions{ListenAddress: "127.0.0.1:0"}, GRPC: GRPCOptions{ListenAddress: "127.0.0.1:0"}, Bucket: "{type: FILESYSTEM, config: {directory: " + bucket + "}}",
		Store: gateway.Options{Dir: t.TempDir(), CacheBytes: 4 << 20}, Logger: slog.New(slog.DiscardHandler),
	}
	if change != nil {
		change(&o)
	}
	s, err := NewStore(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	web = "http://" + s.Addr().String()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if status, _ := httpGet(t, web+"/-/ready"); status == 200 {
			return web, s.GRPCAddr().String()
		}
		if time.Now().After(deadline) {
			t.Fatal("the store is not ready")
		}
	}
}

func httpGet(t *testing.T, url string) (int, string) {
	t.Helper()
	response, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(body)
}

func TestStore_ServesTheBlocksOfABucket(t *testing.T) {
	bucket := t.TempDir()
	bucketBlock(t, bucket, "x", "y", "z")
	web, address := startStore(t, bucket, nil)
	conn, err := grpc.NewClient(address, append(storeapi.GRPCDialOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	client := storeapi.NewClient(conn, storeapi.ClientOptions{})
	info, err := client.Info(t.Context())
	if err != nil || info.Component != "store" || len(info.LabelSets) != 1 || info.Store == nil || info.Store.MinMS != 0 || info.Store.MaxMS != 299*15_000+1 || !info.Store.Sharding || !info.Store.WithoutReplicaLabels {
		t.Errorf("info: %+v %+v, %v", info, info.Store, err)
	}
	for _, matchers := range [][]*labels.Matcher{
		{labels.MustNewMatcher(labels.MatchEqual, "__name__", "level"), labels.MustNewMatcher(labels.MatchRegexp, "room", "x|z")},
		{labels.MustNewMatcher(labels.MatchEqual, "cluster", "eu"), labels.MustNewMatcher(labels.MatchNotEqual, "room", "y")},
	} {
		set := client.Series(t.Context(), storeapi.SeriesRequest{MaxMS: 1 << 40, Matchers: matchers})
		var rooms []string
		for set.Next() {
			if !bytes.Contains(set.Labels(), []byte("cluster")) {
				t.Errorf("no external label: %q", set.Labels())
			}
			rooms = append(rooms, string(set.Labels()[len(set.Labels())-1]))
			if len(set.Chunks()) != 3 {
				t.Errorf("%d chunks", len(set.Chunks()))
			}
		}
		if err := set.Err(); err != nil || len(set.Warnings()) > 0 {
			t.Error(err, set.Warnings())
		}
		set.Close()
		if strings.Join(rooms, " ") != "x z" {
			t.Errorf("series of %q", rooms)
		}
	}
	names, _, err := client.LabelNames(t.Context(), storeapi.LabelsRequest{MaxMS: 1 << 40})
	if err != nil || strings.Join(names, " ") != "__name__ cluster room" {
		t.Error(names, err)
	}
	values, _, err := client.LabelValues(t.Context(), storeapi.LabelsRequest{Label: "room", MaxMS: 1 << 40})
	if err != nil || strings.Join(values, " ") != "x y z" {
		t.Error(values, err)
	}
	if status, body := httpGet(t, web+"/api/v1/blocks"); status != 200 || !json.Valid([]byte(body)) || !strings.Contains(body, `"cluster":"eu"`) {
		t.Error(status, body)
	}
	if status, body := httpGet(t, web+"/blocks"); status != 200 || !strings.Contains(body, `<div id="app">`) {
		t.Error(status, "no page of blocks:", body)
	}
	for path, member := range map[string]string{"features": `"blocks":true`, "buildinfo": `"program":"ferula `} {
		if status, body := httpGet(t, web+"/api/v1/status/"+path); status != 200 || !json.Valid([]byte(body)) || !strings.Contains(body, member) {
			t.Error(path, status, body)
		}
	}
	if status, body := httpGet(t, web+"/metrics"); status != 200 || !strings.Contains(body, "thanos_bucket_store_blocks_loaded 1") {
		t.Error(status, "metrics without the number of blocks")
	}
}

func TestStore_RelabellingSelectsBlocks(t *testing.T) {
	bucket := t.TempDir()
	bucketBlock(t, bucket, "x")
	for rule, blocks := range map[string]int{
		"[{action: keep, source_labels: [cluster], regex: eu}]":                                                                                 1,
		"[{action: drop, source_labels: [cluster], regex: eu}]":                                                                                 0,
		"[{action: hashmod, source_labels: [__block_id], modulus: 1, target_label: shard}, {action: keep, source_labels: [shard], regex: '0'}]": 1,
	} {
		web, _ := startStore(t, bucket, func(o *StoreOptions) { o.Relabel = rule })
		if _, body := httpGet(t, web+"/api/v1/blocks"); strings.Count(body, `"ulid"`) != blocks {
			t.Errorf("%s: %s", rule, body)
		}
	}
	for _, rule := range []string{
		"[{action: labeldrop, regex: a}]", "[null]", "nonsense", "[{action: hashmod, source_labels: [cluster], target_label: shard}]",
		"[{action: hashmod, source_labels: [cluster], modulus: 2}]", "[{action: keep, source_label: [cluster], regex: eu}]",
	} {
		if _, err := NewStore(StoreOptions{Relabel: rule, Logger: slog.New(slog.DiscardHandler)}); err == nil || !strings.Contains(err.Error(), "selector.relabel-config") {
			t.Errorf("store: %s: %v", rule, err)
		}
		if _, err := NewQuery(QueryOptions{Relabel: rule, Logger: slog.New(slog.DiscardHandler)}); err == nil || !strings.Contains(err.Error(), "selector.relabel-config") {
			t.Errorf("query: %s: %v", rule, err)
		}
	}
}

func TestPauseAfter_RepeatsAFailedListSooner(t *testing.T) {
	for _, tt := range []struct {
		interval, took time.Duration
		failures       int
		want           time.Duration
	}{
		{15 * time.Minute, 0, 0, 15 * time.Minute},
		{15 * time.Minute, time.Minute, 0, 14 * time.Minute},
		{time.Minute, time.Hour, 0, 0},
		{15 * time.Minute, time.Hour, 1, 15 * time.Second},
		{15 * time.Minute, 0, 2, 30 * time.Second},
		{15 * time.Minute, 0, 100, 15 * time.Minute},
		{5 * time.Second, 0, 1, 5 * time.Second},
	} {
		if got := pauseAfter(tt.interval, tt.took, tt.failures); got != tt.want {
			t.Errorf("%+v: %s", tt, got)
		}
	}
}
