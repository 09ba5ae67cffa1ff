package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/thanos-io/objstore"
	"github.com/thanos-io/objstore/providers/filesystem"

	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/series/labelenc"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

const hourMS = int64(time.Hour / time.Millisecond)

// newBucket returns a bucket in an empty directory.
func newBucket(t testing.TB) (*filesystem.Bucket, string) {
	t.Helper()
	dir := t.TempDir()
	b, err := filesystem.NewBucket(dir)
	if err != nil {
		t.Fatal(err)
	}
	return b, dir
}

// writeBlock writes a block with Prometheus' writer: n series per metric, a sample every
// 15 s in [fromMS, toMS).
func writeBlock(t testing.TB, dir string, fromMS, toMS int64, n int, external map[string]string) (id string) {
	t.Helper()
	w, err := tsdb.NewBlockWriter(slog.New(slog.DiscardHandler), dir, 1000*hourMS)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	ctx := context.Background()
	app := w.Appender(ctx)
	for i := range n {
		for _, lset := range []labels.Labels{
			labels.FromStrings("__name__", "requests_total", "instance", fmt.Sprintf("host-%04d", i), "job", fmt.Sprint("job-", i%3), "long", strings.Repeat("x", i%300)),
			labels.FromStrings("__name__", "up", "instance", fmt.Sprintf("host-%04d", i), "job", fmt.Sprint("job-", i%3)),
		} {
			for at := fromMS; at < toMS; at += 15_000 {
				if _, err := app.Append(0, lset, at, float64(at%1000)+float64(i)); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	if err := app.Commit(); err != nil {
		t.Fatal(err)
	}
	block, err := w.Flush(ctx)
	if err != nil {
		t.Fatal(err)
	}
	editMeta(t, dir, block.String(), func(meta map[string]any) {
		meta["thanos"] = map[string]any{"labels": external, "downsample": map[string]int{"resolution": 0}, "source": "sidecar"}
	})
	return block.String()
}

func editMeta(t testing.TB, dir, id string, edit func(meta map[string]any)) {
	t.Helper()
	file := filepath.Join(dir, id, "meta.json")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var meta map[string]any
	if err := json.Unmarshal(text, &meta); err != nil {
		t.Fatal(err)
	}
	edit(meta)
	if text, err = json.Marshal(meta); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

func openStore(t testing.TB, b objstore.BucketReader, o Options) *Store {
	t.Helper()
	if o.Dir == "" {
		o.Dir = t.TempDir()
	}
	if o.CacheBytes == 0 {
		o.CacheBytes = 8 << 20
	}
	o.Rules.IgnoreDeletedDelay = 24 * time.Hour
	s, err := Open(b, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := s.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s
}

// selected is a response: chunks by the text of the labels.
type selected map[string][]string

func collect(t testing.TB, set series.Set) selected {
	t.Helper()
	got := selected{}
	builder := labels.NewScratchBuilder(8)
	var last []byte
	for set.Next() {
		if last != nil && labelenc.Compare(last, set.Labels()) >= 0 {
			t.Fatalf("series are out of order")
		}
		last = bytes.Clone(set.Labels())
		lset, err := labelenc.Labels(set.Labels(), &builder)
		if err != nil {
			t.Fatal(err)
		}
		list := []string{}
		for _, c := range set.Chunks() {
			list = append(list, fmt.Sprintf("%d %d %d %x", c.MinMS, c.MaxMS, c.Encoding, c.Data))
		}
		got[lset.String()] = list
	}
	if err := set.Err(); err != nil {
		t.Fatal(err)
	}
	return got
}

func (s *Store) all(t testing.TB, r storeapi.SeriesRequest) (selected, []string) {
	t.Helper()
	selection, err := s.Select(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	defer selection.Close()
	got := collect(t, selection)
	var warnings []string
	for _, w := range selection.Warnings().AsErrors() {
		warnings = append(warnings, w.Error())
	}
	return got, warnings
}

// expected reads the same series with Prometheus' readers: whole chunks that overlap the
// range, with external labels.
func expected(t testing.TB, dir string, ids []string, external map[string]string, r storeapi.SeriesRequest) selected {
	t.Helper()
	want := selected{}
	for _, id := range ids {
		block, err := tsdb.OpenBlock(nil, filepath.Join(dir, id), nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		ir, err := block.Index()
		if err != nil {
			t.Fatal(err)
		}
		cr, err := block.Chunks()
		if err != nil {
			t.Fatal(err)
		}
		p, err := tsdb.PostingsForMatchers(t.Context(), ir, r.Matchers...)
		if err != nil {
			t.Fatal(err)
		}
		builder := labels.NewScratchBuilder(8)
		var metas []chunks.Meta
		for p.Next() {
			if err := ir.Series(p.At(), &builder, &metas); err != nil {
				t.Fatal(err)
			}
			list := []string{}
			for _, m := range metas {
				if m.MaxTime < r.MinMS || m.MinTime > r.MaxMS {
					continue
				}
				c, _, err := cr.ChunkOrIterable(m)
				if err != nil {
					t.Fatal(err)
				}
				list = append(list, fmt.Sprintf("%d %d %d %x", m.MinTime, m.MaxTime, c.Encoding(), c.Bytes()))
			}
			if len(list) == 0 {
				continue
			}
			lset := labels.NewBuilder(builder.Labels())
			for name, value := range external {
				lset.Set(name, value)
			}
			for _, name := range r.WithoutReplicaLabels {
				lset.Del(name)
			}
			key := lset.Labels().String()
			if r.SkipChunks {
				list = nil
			}
			for _, c := range list {
				if !slices.Contains(want[key], c) {
					want[key] = append(want[key], c)
				}
			}
			slices.Sort(want[key])
			if want[key] == nil {
				want[key] = []string{}
			}
		}
		for _, c := range []interface{ Close() error }{ir, cr, block} {
			if err := c.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
	return want
}

func same(t testing.TB, what string, got, want selected) {
	t.Helper()
	for _, list := range got {
		slices.Sort(list)
	}
	if len(got) != len(want) {
		t.Errorf("%s: %d series, want %d", what, len(got), len(want))
	}
	for _, key := range slices.Sorted(maps.Keys(want)) {
		if list, ok := got[key]; !ok || !slices.Equal(list, want[key]) {
			t.Errorf("%s: series %s has %d chunks, want %d; there: %v", what, key, len(list), len(want[key]), ok)
			return
		}
	}
}

func match(t testing.TB, selector ...string) (all []*labels.Matcher) {
	t.Helper()
	for _, one := range selector {
		for _, kind := range []struct {
			operator string
			kind     labels.MatchType
		}{{"!=", labels.MatchNotEqual}, {"=~", labels.MatchRegexp}, {"!~", labels.MatchNotRegexp}, {"=", labels.MatchEqual}} {
			if name, value, ok := strings.Cut(one, kind.operator); ok {
				m, err := labels.NewMatcher(kind.kind, name, value)
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, m)
				break
			}
		}
	}
	return all
}
