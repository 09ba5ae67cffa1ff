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

	role "github.com/ferula-io/ferula/internal/app"
)

// downsampledBucket creates a bucket with a block of 48 h per replica, lets Thanos
// downsample them to 5 minutes, and returns its directory. Samples of the replicas have
// the same timestamps, like those of recording rules, and different values.
func downsampledBucket(t *testing.T, from time.Time, replicas ...string) (bucket string) {
	t.Helper()
	thanos := peerBinary(t, "thanos")
	bucket = t.TempDir()
	for i, replica := range replicas {
		replicaBlock(t, bucket, from, replica, float64(i))
	}
	web := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	startPeer(t, "http://"+web+"/-/healthy", thanos, "tools", "bucket", "downsample", "--objstore.config="+filesystem(bucket), "--data-dir="+t.TempDir(), "--http-address="+web, "--log.level=warn")
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
	w, err := prometheustsdb.NewBlockWriter(slog.New(slog.DiscardHandler), bucket, (100 * time.Hour).Milliseconds())
	if err != nil {
		t.Fatal(err)
	}
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
	setThanosMeta(t, filepath.Join(bucket, id.String(), "meta.json"), map[string]string{"cluster": "eu", "replica": replica})
}

// setThanosMeta adds the part of Thanos to a meta.json.
func setThanosMeta(t *testing.T, file string, external map[string]string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var meta map[string]any
	if err := json.Unmarshal(text, &meta); err != nil {
		t.Fatal(err)
	}
	meta["thanos"] = map[string]any{"labels": external, "downsample": map[string]int{"resolution": 0}, "source": "test"}
	if text, err = json.Marshal(meta); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
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
			if err := os.RemoveAll(filepath.Dir(file)); err != nil {
				t.Fatal(err)
			}
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
	web := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	store = fmt.Sprintf("127.0.0.1:%d", freePort(t))
	startPeer(t, "http://"+web+"/-/ready", peerBinary(t, "thanos"), "store", "--objstore.config="+filesystem(bucket), "--data-dir="+t.TempDir(),
		"--http-address="+web, "--grpc-address="+store, "--log.level=warn")
	return store
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
	ours := startQuery(t, []string{store}, func(o *role.QueryOptions) {
		if replicas {
			o.Stores.ReplicaLabels = []string{"replica"}
		}
	})
	eventually(t, 60*time.Second, "the gateway to be known", func() bool {
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
