package e2e

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	prometheustsdb "github.com/prometheus/prometheus/tsdb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	role "github.com/ferula-io/ferula/internal/app"
	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/thanos/gateway"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

// startStore runs `ferula store` over a bucket's directory and returns its gRPC address.
func startStore(t *testing.T, bucket string) string {
	t.Helper()
	return startStoreOver(t, filesystem(bucket))
}

// startStoreOver runs a store over the bucket of a configuration, and returns its gRPC address.
func startStoreOver(t *testing.T, config string) string {
	t.Helper()
	return startGateway(t, config).GRPCAddr().String()
}

// startGateway runs a store over the bucket of a configuration until the test ends, and waits until it is ready.
func startGateway(t *testing.T, config string) *role.Store {
	t.Helper()
	s, err := role.NewStore(role.StoreOptions{
		Web: role.WebOptions{ListenAddress: "127.0.0.1:0"}, GRPC: role.GRPCOptions{ListenAddress: "127.0.0.1:0"}, Bucket: config,
		Store:  gateway.Options{Dir: t.TempDir(), CacheBytes: 16 << 20, ReadsMax: 20, Rules: gateway.Rules{IgnoreDeletedDelay: 24 * time.Hour}},
		Logger: slog.New(slog.NewTextHandler(testLog{t}, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the store stopped with %v", err)
		}
	})
	(&server{t: t, base: "http://" + s.Addr().String(), ready: "/-/ready"}).waitReady()
	return s
}

// coarseBlock writes a block of 11 days with few samples, which Thanos downsamples twice,
// and native histograms.
func coarseBlock(t *testing.T, bucket string, from time.Time, external map[string]string) {
	t.Helper()
	w, err := prometheustsdb.NewBlockWriter(slog.New(slog.DiscardHandler), bucket, (1000 * time.Hour).Milliseconds())
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	app := w.Appender(t.Context())
	for i := range 11 * 24 * 12 {
		at := from.Add(time.Duration(i) * 5 * time.Minute).UnixMilli()
		for job := range 3 {
			if _, err := app.Append(0, labels.FromStrings("__name__", "slow_total", "job", fmt.Sprint(job)), at, float64(i*job)); err != nil {
				t.Fatal(err)
			}
		}
		if i%10 == 0 {
			h := &histogram.FloatHistogram{Schema: 1, Count: float64(10 + i), Sum: float64(i), ZeroThreshold: 1e-9, ZeroCount: 4, PositiveSpans: []histogram.Span{{Offset: 0, Length: 2}}, PositiveBuckets: []float64{3, float64(3 + i)}}
			if _, err := app.AppendHistogram(0, labels.FromStrings("__name__", "slow_seconds"), at, nil, h); err != nil {
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
	setThanosMeta(t, filepath.Join(bucket, id.String(), "meta.json"), external)
}

// storeBucket is a bucket with raw and downsampled blocks of two replicas that overlap, a
// long block downsampled twice, and a block marked for deletion.
func storeBucket(t *testing.T, from time.Time) string {
	t.Helper()
	thanos := peerBinary(t, "thanos")
	bucket := t.TempDir()
	replicaBlock(t, bucket, from, "a", 0)
	replicaBlock(t, bucket, from, "b", 1)
	coarseBlock(t, bucket, from.Add(-10*24*time.Hour), map[string]string{"cluster": "us", "replica": "a"})
	for round, blocks := range []int{6, 7} { // the second round downsamples what the first made
		web := fmt.Sprintf("127.0.0.1:%d", freePort(t))
		startPeer(t, "http://"+web+"/-/healthy", thanos, "tools", "bucket", "downsample", "--objstore.config="+filesystem(bucket), "--data-dir="+t.TempDir(), "--http-address="+web, "--log.level=warn", "--wait-interval=1s")
		eventually(t, 90*time.Second, fmt.Sprint("Thanos to downsample the blocks, round ", round), func() bool {
			metas, _ := filepath.Glob(filepath.Join(bucket, "*", "meta.json"))
			return len(metas) >= blocks
		})
	}
	replicaBlock(t, bucket, from.Add(30*time.Hour), "a", 5) // overlaps, raw only
	before, _ := filepath.Glob(filepath.Join(bucket, "*", "meta.json"))
	replicaBlock(t, bucket, from, "deleted", 9)
	after, _ := filepath.Glob(filepath.Join(bucket, "*", "meta.json"))
	for _, file := range after {
		if !slices.Contains(before, file) {
			mark := fmt.Sprintf(`{"id":%q,"version":1,"deletion_time":%d}`, filepath.Base(filepath.Dir(file)), time.Now().Add(-30*time.Hour).Unix())
			if err := os.WriteFile(filepath.Join(filepath.Dir(file), "deletion-mark.json"), []byte(mark), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	return bucket
}

// gatewaySeries returns a response as sorted chunks by series.
func gatewaySeries(t *testing.T, address string, r storeapi.SeriesRequest) (map[string][]string, error) {
	t.Helper()
	conn, err := grpc.NewClient(address, append(storeapi.GRPCDialOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	set := storeapi.NewClient(conn, storeapi.ClientOptions{}).Series(t.Context(), r)
	defer set.Close()
	got := map[string][]string{}
	for set.Next() {
		key := string(set.Labels())
		for _, c := range set.Chunks() {
			parts, err := c.AppendParts(nil)
			if err != nil {
				t.Error(err)
			}
			for _, p := range parts {
				got[key] = append(got[key], fmt.Sprintf("%s %d %d %d %x", p.Aggr, c.MinMS, c.MaxMS, p.Encoding, p.Data))
			}
		}
		if got[key] == nil {
			got[key] = []string{}
		}
		slices.Sort(got[key])
	}
	if len(set.Warnings()) > 0 {
		t.Errorf("%s: %v", address, set.Warnings())
	}
	return got, set.Err()
}

func TestPeerThanosStore_SameSeriesOfOneBucket(t *testing.T) {
	from := time.Now().Add(-72 * time.Hour).Truncate(2 * time.Hour)
	bucket := storeBucket(t, from)
	theirs, ours := thanosStore(t, bucket), startStore(t, bucket)
	ms := func(hours int) int64 { return from.Add(time.Duration(hours) * time.Hour).UnixMilli() }
	one := func(kind labels.MatchType, name, value string) *labels.Matcher {
		return labels.MustNewMatcher(kind, name, value)
	}
	name := func(value string) *labels.Matcher { return one(labels.MatchEqual, "__name__", value) }
	matchers := [][]*labels.Matcher{
		{name("level")}, {name("counted_total"), one(labels.MatchEqual, "replica", "b")}, {one(labels.MatchRegexp, "__name__", ".+")},
		{one(labels.MatchNotEqual, "job", "a"), one(labels.MatchRegexp, "__name__", "counted.*|slow.*")}, {one(labels.MatchEqual, "cluster", "us")},
		{one(labels.MatchRegexp, "cluster", "u."), one(labels.MatchNotEqual, "__name__", "level")}, {name("slow_seconds")}, {name("level"), one(labels.MatchRegexp, "room", "x|z|")},
		{name("level"), one(labels.MatchEqual, "job", "")}, {name("nothing")},
	}
	aggregates := [][]storeapi.Aggr{{series.Raw}, {series.Count, series.Sum}, {series.Counter}, {series.Min, series.Max}, {series.Sum, series.Count, series.Max, series.Min, series.Counter}}
	compared, filled, coarse := 0, 0, 0
	for i, m := range matchers {
		for j, span := range [][2]int64{{ms(-1000), ms(1000)}, {ms(1), ms(3)}, {ms(20), ms(47)}, {ms(47), ms(80)}, {ms(-300), ms(-100)}, {ms(5), ms(5)}} {
			for k, resolution := range []int64{0, 300_000, 3_600_000, 60_000, math.MaxInt64} {
				r := storeapi.SeriesRequest{MinMS: span[0], MaxMS: span[1], Matchers: m, MaxResolutionMS: resolution, Aggregates: aggregates[(i+j+k)%len(aggregates)]}
				switch (i + 2*j + 3*k) % 5 {
				case 1:
					r.WithoutReplicaLabels = []string{"replica"}
				case 2:
					r.SkipChunks = true
				case 3:
					r.Shard = &storeapi.Shard{Index: 1, Total: 2, By: true, Labels: []string{"job", "room"}}
				case 4:
					r.WithoutReplicaLabels = []string{"replica", "room"}
				}
				want, theirErr := gatewaySeries(t, theirs, r)
				got, err := gatewaySeries(t, ours, r)
				if err != nil {
					t.Fatalf("%v: %v", r, err)
				}
				if theirErr != nil && strings.Contains(theirErr.Error(), "does not exist") {
					continue // Thanos fails for the minimum of native histograms
				} else if theirErr != nil {
					t.Fatal(theirErr)
				}
				if r.Aggregates[0] == series.Raw {
					// Of downsampled blocks Thanos sends chunks without data, or nothing is left of a series.
					maps.DeleteFunc(want, func(_ string, chunks []string) bool { return len(chunks) == 0 && !r.SkipChunks })
				}
				compared++
				if len(want) > 0 {
					filled++
				}
				for key, chunks := range want {
					if len(chunks) > 0 && !strings.HasPrefix(chunks[0], "raw") {
						coarse++
					}
					if !slices.Equal(chunks, got[key]) {
						t.Fatalf("%v: series %q has %d chunks, Thanos %d", r, key, len(got[key]), len(chunks))
					}
				}
				if len(got) != len(want) {
					t.Fatalf("%v: %d series, Thanos %d: %q", r, len(got), len(want), slices.Sorted(maps.Keys(got)))
				}
			}
		}
	}
	if compared < 250 || filled < 150 || coarse < 100 {
		t.Errorf("%d responses compared, %d with series, %d downsampled", compared, filled, coarse)
	}
}

// Both queriers read ferula's store.
func TestPeerThanosQuery_SameResultsThroughFerulasStore(t *testing.T) {
	from := time.Now().Add(-72 * time.Hour).Truncate(2 * time.Hour)
	compareCoarse(t, from, startStore(t, downsampledBucket(t, from, "a", "b")), true)
}
