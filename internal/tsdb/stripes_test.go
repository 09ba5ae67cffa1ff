package tsdb

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ferula-io/ferula/metrics"
)

func TestStripes_FollowTheNumberOfSeries(t *testing.T) {
	const newest, older, compacted = "01K0000000000000000000000B", "01K0000000000000000000000A", "01K0000000000000000000000C"
	block := func(dir, id string, maxMS, series int) {
		writeFile(t, filepath.Join(dir, id, "meta.json"), fmt.Sprintf(`{"maxTime":%d,"stats":{"numSeries":%d}}`, maxMS, series))
	}
	for _, tt := range []struct {
		name     string
		expected int
		prepare  func(dir string)
		want     int
	}{
		{"new, nothing to scrape", 0, nil, 1 << 10},
		{"new, as many as fit into the least number", 8 << 10, nil, 1 << 10},
		{"new, one more", 8<<10 + 1, nil, 1 << 11},
		{"new, a million", 1_000_000, nil, 1 << 17},
		{"new, more than a guess may have", 50_000_000, nil, 1 << 17},
		{"a log of 40 MB", 1000, func(dir string) {
			writeFile(t, filepath.Join(dir, "wal", "00000000"), "")
			if err := os.Truncate(filepath.Join(dir, "wal", "00000000"), 40_000_000); err != nil {
				t.Fatal(err)
			}
		}, 1 << 15},
		{"the block that ends last", 1_000_000, func(dir string) {
			block(dir, older, 1000, 900_000)
			block(dir, newest, 2000, 60_000)
			block(dir, compacted, 1500, 2_000_000)
		}, 1 << 13},
		{"two blocks that end at the same time", 0, func(dir string) {
			block(dir, older, 1000, 5_000_000)
			block(dir, newest, 1000, 10)
		}, 1 << 20},
		{"more series than anybody has", 0, func(dir string) { block(dir, newest, 1, 1<<40) }, 1 << 20},
		{"a block without meta.json, and a damaged one", 1_000_000, func(dir string) {
			writeFile(t, filepath.Join(dir, older, "index"), "")
			writeFile(t, filepath.Join(dir, newest, "meta.json"), `{"maxTime":7,"stats":{"numSeries":`)
		}, 1 << 17},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			if tt.prepare != nil {
				tt.prepare(dir)
			}
			s, err := New(Options{Dir: dir, ExpectedSeries: tt.expected}, slog.New(slog.DiscardHandler),
				prometheus.NewRegistry(), metrics.NewSet())
			if err != nil {
				t.Fatal(err)
			}
			if got := s.stripes(); got != tt.want {
				t.Errorf("%d stripes, want %d", got, tt.want)
			}
		})
	}
}

func writeFile(t *testing.T, path, content string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(content), 0o600)); err != nil {
		t.Fatal(err)
	}
}
