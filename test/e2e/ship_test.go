package e2e

import (
	"encoding/json"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/tsdb/chunks"

	"github.com/ferula-io/ferula/internal/app"
	"github.com/ferula-io/ferula/test/chunksample"
)

// twoHours is the duration of a block that is shipped.
const twoHours = 2 * time.Hour

// writeBlock writes a level-1 block of two hours and returns its ULID. back 0 is the last
// complete block range before now, 1 the one before. Each series has a sample per minute.
func writeBlock(t *testing.T, dir string, back int, series ...labels.Labels) string {
	t.Helper()
	start := time.Now().Truncate(twoHours).Add(-time.Duration(back+1) * twoHours).UnixMilli()
	var list []storage.Series
	for i, lset := range series {
		var points []chunks.Sample
		for at := start; at < start+twoHours.Milliseconds(); at += 60_000 {
			points = append(points, chunksample.Float{MS: at, Value: float64(i) + float64(at%7200_000)/1e6})
		}
		list = append(list, storage.NewListSeries(lset, points))
	}
	path, err := tsdb.CreateBlock(list, dir, twoHours.Milliseconds(), slog.New(slog.NewTextHandler(io.Discard, nil)))
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Base(path)
}

func shipping(file, bucket string, text string) func(*app.ServeOptions) {
	return func(o *app.ServeOptions) {
		o.ConfigFile = file
		o.Store.MinBlockDuration, o.Store.MaxBlockDuration = twoHours, twoHours
		o.Ship.Bucket = text
		if text == "" {
			o.Ship.Bucket = "type: FILESYSTEM\nconfig: {directory: " + bucket + "}\n"
		}
	}
}

func TestServe_ShipsItsBlocks(t *testing.T) {
	dir, bucket := t.TempDir(), t.TempDir()
	id := writeBlock(t, dir, 1, labels.FromStrings("__name__", "shipped", "a", "1"))
	file := writeFile(t, filepath.Join(t.TempDir(), "prometheus.yml"), "global: {external_labels: {cluster: eu}}\nscrape_configs: []\n")
	s := startServe(t, func(o *app.ServeOptions) {
		shipping(file, bucket, "")(o)
		o.Store.Dir = dir
		o.Ship.Shipper.Interval = 200 * time.Millisecond
		o.Profiles.Self, o.Profiles.Every, o.Profiles.Store.HeadAge = true, 50*time.Millisecond, time.Second
	})
	eventually(t, 60*time.Second, "the block to be shipped", func() bool {
		_, body := s.get("/-/ready")
		return strings.Contains(body, "Shipping last succeeded")
	})
	text, err := os.ReadFile(filepath.Join(bucket, id, "meta.json"))
	if err != nil || !strings.Contains(string(text), `"cluster": "eu"`) || !strings.Contains(string(text), `"source": "ferula"`) {
		t.Errorf("%s, %v", text, err)
	}
	eventually(t, 60*time.Second, "a block of profiles to be shipped", func() bool {
		found, _ := filepath.Glob(filepath.Join(bucket, "profiles", "*", "*", "index"))
		return len(found) > 0
	})
	for _, name := range []string{"index", "chunks/000001"} {
		want, err := os.ReadFile(filepath.Join(dir, id, name))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(filepath.Join(bucket, id, name)); err != nil || string(got) != string(want) {
			t.Errorf("%s differs: %v", name, err)
		}
	}
	if _, metrics := s.get("/metrics"); !strings.Contains(metrics, "thanos_shipper_uploads_total 1") || !strings.Contains(metrics, "thanos_objstore_bucket_operations_total") {
		t.Error("the upload is not counted")
	}
}

func TestServe_UnsafeShippingOptionsAreRefused(t *testing.T) {
	labelled := writeFile(t, filepath.Join(t.TempDir(), "prometheus.yml"), "global: {external_labels: {cluster: eu}}\nscrape_configs: []\n")
	bare := writeFile(t, filepath.Join(t.TempDir(), "prometheus.yml"), "scrape_configs: []\n")
	for what, change := range map[string]func(*app.ServeOptions){
		"external":           shipping(bare, t.TempDir(), ""),
		"min-block-duration": func(o *app.ServeOptions) { shipping(labelled, t.TempDir(), "")(o); o.Store.MaxBlockDuration = 0 },
		"must both be 2h": func(o *app.ServeOptions) {
			shipping(labelled, t.TempDir(), "")(o)
			o.Store.MinBlockDuration = time.Hour
		},
		"not supported": shipping(labelled, "", "type: COS\nconfig: {}\n"),
	} {
		opts := app.ServeOptions{Web: app.WebOptions{ListenAddress: "127.0.0.1:0"}, Logger: slog.New(slog.DiscardHandler)}
		change(&opts)
		opts.Store.Dir = t.TempDir()
		if _, err := app.NewServe(opts); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestServe_BucketOutageIsReportedAndShippingRecovers(t *testing.T) {
	dir, nowhere := t.TempDir(), filepath.Join(t.TempDir(), "file")
	writeFile(t, nowhere, "a file where the bucket's folder should be")
	writeBlock(t, dir, 1, labels.FromStrings("__name__", "waits"))
	file := writeFile(t, filepath.Join(t.TempDir(), "prometheus.yml"), "global: {external_labels: {cluster: eu}}\nscrape_configs: []\n")
	s := startServe(t, func(o *app.ServeOptions) {
		shipping(file, nowhere, "")(o)
		o.Store.Dir = dir
		o.Ship.Shipper.RetryMin = 50 * time.Millisecond
	})
	eventually(t, 60*time.Second, "the failure in /-/ready", func() bool {
		status, body := s.get("/-/ready")
		return status == 200 && strings.Contains(body, "Shipping has failed since") && strings.Contains(body, "waiting: 1")
	})
	if err := os.Remove(nowhere); err != nil {
		t.Fatal(err)
	}
	eventually(t, 60*time.Second, "the block to be shipped after all", func() bool {
		_, body := s.get("/-/ready")
		return strings.Contains(body, "Shipping last succeeded")
	})
}

func TestServe_ShipsOutOfOrderSamples(t *testing.T) {
	dir, bucket := t.TempDir(), t.TempDir()
	file := writeFile(t, filepath.Join(t.TempDir(), "prometheus.yml"),
		"global: {external_labels: {cluster: eu}}\nscrape_configs: []\nstorage: {tsdb: {out_of_order_time_window: 1d}}\n")
	s := startServe(t, func(o *app.ServeOptions) {
		shipping(file, bucket, "")(o)
		o.Store.Dir = dir
		o.Ship.Shipper.Interval = time.Second
	})
	start := time.Now().Truncate(twoHours).Add(-4 * twoHours)
	sampleAt := func(minutes int) []byte {
		return encoded(t, v1(v1Series(start.Add(time.Duration(minutes)*time.Minute).UnixMilli(), float64(minutes), "__name__", "late")))
	}
	var bodies [][]byte
	for minutes := 0; minutes <= 170; minutes += 10 { // 12 samples in the first two hours
		bodies = append(bodies, sampleAt(minutes))
	}
	// An out-of-order sample, and one that makes the head long enough to be compacted.
	s.writeAll(append(bodies, sampleAt(5), sampleAt(190)))
	eventually(t, 60*time.Second, "all 13 samples of the first two hours to be shipped", func() bool {
		found, err := filepath.Glob(filepath.Join(bucket, "*", "meta.json"))
		if err != nil {
			t.Fatal(err)
		}
		var samples uint64
		for _, path := range found {
			text, err := os.ReadFile(path)
			var meta tsdb.BlockMeta
			if err == nil {
				err = json.Unmarshal(text, &meta)
			}
			if err != nil {
				return false // it is being written
			}
			samples += meta.Stats.NumSamples
		}
		return samples == 13
	})
}

// The database deletes blocks beyond the retention when it opens, before the first sync.
func TestServe_UnshippedBlocksThatTheStartDeletesAreCountedAsLost(t *testing.T) {
	dir, bucket := t.TempDir(), t.TempDir()
	old, recent := oldAndNew(t, dir)
	file := writeFile(t, filepath.Join(t.TempDir(), "prometheus.yml"), "global: {external_labels: {cluster: eu}}\nscrape_configs: []\n")
	s := startServe(t, func(o *app.ServeOptions) {
		shipping(file, bucket, "")(o)
		o.Store.Dir = dir
		o.Ship.Shipper.Interval = 200 * time.Millisecond
	})
	eventually(t, 60*time.Second, "the recent block to be shipped", func() bool { return blockExists(t, bucket, recent) })
	if blockExists(t, dir, old) {
		t.Fatal("the old block was not deleted")
	}
	eventually(t, 30*time.Second, "the lost block to be counted", func() bool {
		_, page := s.get("/metrics")
		return strings.Contains(page, "ferula_shipper_blocks_lost_total 1\n")
	})
}
