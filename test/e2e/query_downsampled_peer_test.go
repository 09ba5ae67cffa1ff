package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	prometheustsdb "github.com/prometheus/prometheus/tsdb"
)

// downsampledBucket makes a bucket with a block of 48 h that Thanos has downsampled
// to 5 minutes, and gives its folder.
func downsampledBucket(t *testing.T, from time.Time) (bucket string) {
	t.Helper()
	thanos := peerBinary(t, "thanos")
	bucket = t.TempDir()
	ctx := context.Background()
	w, err := prometheustsdb.NewBlockWriter(slog.New(slog.DiscardHandler), bucket, (100 * time.Hour).Milliseconds())
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	app := w.Appender(ctx)
	for i := range 48 * 60 {
		at := from.Add(time.Duration(i) * time.Minute).UnixMilli()
		counted := float64(i%1500) * 7 // restarts now and then
		for _, s := range []struct {
			lset labels.Labels
			v    float64
		}{
			{labels.FromStrings("__name__", "counted_total", "job", "a"), counted},
			{labels.FromStrings("__name__", "counted_total", "job", "b"), float64(i) * 3},
			{labels.FromStrings("__name__", "level", "room", "x"), math.Round(1000 * math.Sin(float64(i)/50))},
			{labels.FromStrings("__name__", "level", "room", "y"), float64(i % 37)},
		} {
			if _, err := app.Append(0, s.lset, at, s.v); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := app.Commit(); err != nil {
		t.Fatal(err)
	}
	id, err := w.Flush(ctx)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(bucket, id.String(), "meta.json")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var meta map[string]any
	if err := json.Unmarshal(text, &meta); err != nil {
		t.Fatal(err)
	}
	meta["thanos"] = map[string]any{"labels": map[string]string{"cluster": "eu", "replica": "a"}, "downsample": map[string]int{"resolution": 0}, "source": "test"}
	if text, err = json.Marshal(meta); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	web := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	startPeer(t, "http://"+web+"/-/healthy", thanos, "tools", "bucket", "downsample", "--objstore.config="+filesystem(bucket), "--data-dir="+t.TempDir(), "--http-address="+web, "--log.level=warn")
	eventually(t, 60*time.Second, "Thanos to downsample the block", func() bool {
		metas, _ := filepath.Glob(filepath.Join(bucket, "*", "meta.json"))
		return len(metas) == 2
	})
	return bucket
}

func filesystem(dir string) string { return "{type: FILESYSTEM, config: {directory: " + dir + "}}" }

// Both queriers read the same store gateway over a block and its downsampled twin.
func TestPeerThanosMakesTheSameOfDownsampledData(t *testing.T) {
	from := time.Now().Add(-72 * time.Hour).Truncate(2 * time.Hour)
	bucket := downsampledBucket(t, from)
	web, store := fmt.Sprintf("127.0.0.1:%d", freePort(t)), fmt.Sprintf("127.0.0.1:%d", freePort(t))
	startPeer(t, "http://"+web+"/-/ready", peerBinary(t, "thanos"), "store", "--objstore.config="+filesystem(bucket), "--data-dir="+t.TempDir(),
		"--http-address="+web, "--grpc-address="+store, "--log.level=warn")
	theirs := thanosQuery(t, []string{store})
	ours := startQuery(t, []string{store}, nil)
	eventually(t, 20*time.Second, "the gateway to be known", func() bool {
		_, body := ours.get("/api/v1/stores")
		return strings.Contains(body, `"store":[`) && strings.Contains(body, `"cluster":"eu"`)
	})
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
			// Of raw counters that restart ferula's rates are Prometheus'.
			if resolution == "0s" {
				fine = got
				if strings.Contains(query, "rate(") || strings.Contains(query, "increase(") {
					continue
				}
			}
			if compared++; meaning(t, got) != meaning(t, want) {
				t.Errorf("%s at %s\nferula %.700s\nThanos %.700s", query, resolution, got, want)
			}
			if got != fine {
				coarse++
			}
		}
	}
	if compared < 50 || coarse < 20 {
		t.Errorf("%d answers compared, %d of them of coarse data", compared, coarse)
	}
}
