package blocks

import (
	"context"
	"encoding/json"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
)

func smallSpec() Spec {
	return Spec{Metric: "m", Values: Floats15, Series: 1001, Samples: 4 * 480, StepMS: 15_000, StartMS: QuietStartMS, Seed: 7}
}

func TestEnsure_BlocksHoldEverySample(t *testing.T) {
	cache, s := t.TempDir(), smallSpec()
	dir, err := Ensure(context.Background(), cache, s)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := Ensure(context.Background(), cache, s); again != dir || err != nil {
		t.Errorf("the second time: %s, %v", again, err)
	}
	own := filepath.Join(cache, "own")
	for range 2 { // an existing directory is emptied
		if err := Copy(dir, own); err != nil {
			t.Fatal(err)
		}
	}
	db, err := tsdb.Open(own, slog.New(slog.DiscardHandler), nil, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := db.Compact(context.Background()); err != nil {
		t.Fatal(err)
	}
	blocks := db.Blocks()
	if len(blocks) != 4 {
		t.Fatalf("%d blocks, want 4, which no compactor touches", len(blocks))
	}
	for i, b := range blocks {
		meta := b.Meta()
		first, last := s.StartMS+int64(i)*blockMS, s.StartMS+int64(i+1)*blockMS
		if meta.MinTime < first || meta.MaxTime > last || meta.Stats.NumSamples != uint64(s.Series*480) {
			t.Errorf("block %d: %+v", i, meta)
		}
	}
	q, err := db.Querier(math.MinInt64, math.MaxInt64)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	set := q.Select(context.Background(), true, nil, labels.MustNewMatcher(labels.MatchEqual, labels.MetricName, "m"))
	series := map[string][]float64{}
	for set.Next() {
		var values []float64
		it := set.At().Iterator(nil)
		for it.Next() == chunkenc.ValFloat {
			_, v := it.At()
			values = append(values, v)
		}
		series[set.At().Labels().String()] = values
	}
	if set.Err() != nil || len(series) != s.Series {
		t.Fatalf("%d series, %v", len(series), set.Err())
	}
	for i := range s.Series {
		want := Sequence(s.Values, s.Seed, i, s.Samples)
		got := series[s.Labels(i).String()]
		if len(got) != len(want) || got[0] != want[0] || got[len(got)-1] != want[len(want)-1] {
			t.Fatalf("series %d: %d samples, want %d", i, len(got), len(want))
		}
	}
}

func TestEnsure_RecreatesAnIncompleteFolder(t *testing.T) {
	cache := t.TempDir()
	s := smallSpec()
	s.Series, s.Samples = 3, 10
	part := filepath.Join(cache, "blocks", s.key()+".part")
	if err := os.MkdirAll(filepath.Join(part, "rest"), 0o755); err != nil {
		t.Fatal(err)
	}
	dir, err := Ensure(context.Background(), cache, s)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "rest")); err == nil {
		t.Error("the files of the incomplete folder still exist")
	}
}

func TestSequence_ValuesAreOfTheirKind(t *testing.T) {
	kinds := map[ValueKind]func(before, v float64, text string) bool{
		Floats15: func(_, v float64, text string) bool {
			digits := strings.TrimLeft(strings.ReplaceAll(text, ".", ""), "0")
			return v >= 0.1 && v < 1e8 && len(digits) == 15
		},
		Decimals2: func(before, v float64, text string) bool {
			_, decimals, _ := strings.Cut(text, ".")
			return len(decimals) <= 2 && math.Abs(v-before) < 1.005
		},
		Integers: func(_, v float64, _ string) bool { return v >= 0 && v < 1000 && v == math.Trunc(v) },
		Counter:  func(before, v float64, _ string) bool { return v >= before && v < before+100 && v == math.Trunc(v) },
	}
	for kind, ok := range kinds {
		for series := range 20 {
			values := Sequence(kind, 1, series, 500)
			for i := 1; i < len(values); i++ {
				if text := strconv.FormatFloat(values[i], 'f', -1, 64); !ok(values[i-1], values[i], text) {
					t.Fatalf("%s: series %d: %s after %v", kind, series, text, values[i-1])
				}
			}
		}
	}
}

func TestLabels_AreUniqueAndDeterministic(t *testing.T) {
	s := smallSpec()
	seen := map[string]bool{}
	for i := range 20_000 {
		seen[s.Labels(i).String()] = true
	}
	if len(seen) != 20_000 {
		t.Errorf("%d different series of 20000", len(seen))
	}
	if got := s.Labels(0).Len(); got != 8 {
		t.Errorf("%d labels, want 8", got)
	}
	other := s
	other.Seed++
	if s.key() == other.key() || s.key() != smallSpec().key() {
		t.Errorf("keys: %s, %s, %s", s.key(), other.key(), smallSpec().key())
	}
}

func TestEnsure_SecondMetricHasTheSameLabels(t *testing.T) {
	cache, s := t.TempDir(), smallSpec()
	s.Series, s.Second, s.PerPod, s.Samples = 7, "n", 1, 10
	dir, err := Ensure(context.Background(), cache, s)
	if err != nil {
		t.Fatal(err)
	}
	db, err := tsdb.Open(dir, slog.New(slog.DiscardHandler), nil, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	q, err := db.Querier(math.MinInt64, math.MaxInt64)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	set := q.Select(context.Background(), true, nil, labels.MustNewMatcher(labels.MatchRegexp, labels.MetricName, "m|n"))
	seen, values := map[string]int{}, map[float64]bool{}
	for set.Next() {
		it := set.At().Iterator(nil)
		n := 0
		for ; it.Next() == chunkenc.ValFloat; n++ {
			_, v := it.At()
			values[v] = true
		}
		if n != s.Samples {
			t.Errorf("%s: %d samples", set.At().Labels(), n)
		}
		seen[labels.NewBuilder(set.At().Labels()).Del(labels.MetricName).Labels().Get("instance")]++
	}
	if set.Err() != nil || len(seen) != 7 || len(values) != 2*7*10 {
		t.Errorf("%v: %d instances, %d values", set.Err(), len(seen), len(values))
	}
	for instance, n := range seen {
		if n != 2 {
			t.Errorf("%s has %d metrics", instance, n)
		}
	}
}

func TestLinkToBucket_BlocksHaveTheSectionOfAShipper(t *testing.T) {
	s := smallSpec()
	s.Series = 3
	dir, err := Ensure(context.Background(), t.TempDir(), s)
	if err != nil {
		t.Fatal(err)
	}
	found, err := List(dir)
	if err != nil || len(found) != 4 {
		t.Fatalf("%d blocks, %v", len(found), err)
	}
	bucket, id := t.TempDir(), filepath.Base(found[0])
	if err := LinkToBucket(found[0], bucket, id, map[string]string{"replica": "a"}); err != nil {
		t.Fatal(err)
	}
	var meta struct {
		ULID    string
		MinTime int64
		Thanos  struct {
			Labels map[string]string
			Files  []file
		}
	}
	text, err := os.ReadFile(filepath.Join(bucket, id, "meta.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &meta); err != nil {
		t.Fatal(err)
	}
	if meta.ULID != id || meta.MinTime < s.StartMS || meta.MinTime >= s.StartMS+blockMS || meta.Thanos.Labels["replica"] != "a" || len(meta.Thanos.Files) != 2 {
		t.Errorf("got %+v", meta)
	}
	for _, f := range meta.Thanos.Files {
		if info, err := os.Stat(filepath.Join(bucket, id, f.Name)); err != nil || info.Size() != f.Bytes {
			t.Errorf("%s: %v", f.Name, err)
		}
	}
	if own, err := os.ReadFile(filepath.Join(found[0], "meta.json")); err != nil || strings.Contains(string(own), "thanos") {
		t.Errorf("the original's meta.json was changed: %s, %v", own, err)
	}
}
