package sources

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"slices"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	promtsdb "github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/tsdb/chunks"

	"github.com/ferula-io/ferula/internal/series/labelenc"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
	"github.com/ferula-io/ferula/internal/tsdb"
	"github.com/ferula-io/ferula/test/chunksample"
)

// newBlocks returns a server with a block of 2 h before startMS, which has all series, and two stores of it: one that
// reads the block, and one that does not.
func newBlocks(t *testing.T, all ...labels.Labels) (from *server, direct, remote *Prometheus) {
	t.Helper()
	dir, quiet := t.TempDir(), slog.New(slog.DiscardHandler)
	var list []storage.Series
	for i, lset := range all {
		var samples []chunks.Sample
		for at := int64(startMS - 120*60_000); at < startMS; at += 60_000 {
			samples = append(samples, chunksample.Float{MS: at, Value: float64(i)})
		}
		list = append(list, storage.NewListSeries(lset, samples))
	}
	if _, err := promtsdb.CreateBlock(list, dir, 24*3600_000, quiet); err != nil {
		t.Fatal(err)
	}
	from = newServerOn(t, dir, euA)
	blocks := tsdb.NewServedBlocks(dir, quiet)
	t.Cleanup(func() { _ = blocks.Close() })
	direct = newStore(t, from, func(o *PrometheusOptions) { o.Blocks = blocks })
	return from, direct, newStore(t, from, nil)
}

// lines returns a line for each series of a response: its labels and the times of its chunks.
func lines(t *testing.T, s *Prometheus, r storeapi.SeriesRequest) (all []string) {
	t.Helper()
	set := s.Series(context.Background(), r)
	var builder labels.ScratchBuilder
	for set.Next() {
		lset, err := labelenc.Labels(set.Labels(), &builder)
		if err != nil {
			t.Fatal(err)
		}
		line := lset.String()
		for _, c := range set.Chunks() {
			line += fmt.Sprintf(" %d-%d:%x", c.MinMS, c.MaxMS, c.Data)
		}
		all = append(all, line)
	}
	if err := set.Err(); err != nil {
		t.Fatal(err)
	}
	if err := set.Close(); err != nil {
		t.Fatal(err)
	}
	return all
}

func TestPrometheus_SeriesOfBlocksAndHeadEqualThoseByRemoteRead(t *testing.T) {
	whole := storeapi.SeriesRequest{MinMS: math.MinInt64, MaxMS: math.MaxInt64, Matchers: []*labels.Matcher{ofM}}
	before := whole
	before.MaxMS = startMS - 60_000 // the end of the block
	within := whole
	within.MinMS, within.MaxMS = startMS-30*60_000+1, startMS
	namesOnly := whole
	namesOnly.SkipChunks = true
	deduplicated := whole
	deduplicated.WithoutReplicaLabels = []string{"replica"}
	for what, c := range map[string]struct {
		block, head []labels.Labels
		reads       int // remote reads of the whole range
	}{
		"blocks only":            {[]labels.Labels{metric("job", "a"), metric("job", "b")}, nil, 1},
		"both":                   {[]labels.Labels{metric("job", "a"), metric("job", "b")}, []labels.Labels{metric("a", "0"), metric("job", "b"), metric("job", "c")}, 1},
		"own labels in the head": {[]labels.Labels{metric("job", "a"), metric("zone", "b")}, []labels.Labels{metric("job", "a"), metric("cluster", "us", "job", "b"), metric("cluster", "us", "zone", "b")}, 2},
		"many in the head":       {[]labels.Labels{metric("job", "a"), metric("zone", "b")}, []labels.Labels{metric("cluster", "1", "job", "b"), metric("cluster", "2"), metric("cluster", "3"), metric("cluster", "4")}, 1},
		"own labels in blocks":   {[]labels.Labels{metric("cluster", "us", "job", "a"), metric("job", "a"), metric("zone", "b")}, []labels.Labels{metric("job", "a")}, 2},
		"of other series":        {[]labels.Labels{labels.FromStrings("__name__", "k", "cluster", "us"), metric("job", "a")}, []labels.Labels{metric("job", "a")}, 1},
	} {
		t.Run(what, func(t *testing.T) {
			from, direct, remote := newBlocks(t, c.block...)
			if len(c.head) > 0 {
				from.add(t, c.head...)
			}
			for name, r := range map[string]storeapi.SeriesRequest{"whole": whole, "before the head": before, "within": within, "names only": namesOnly, "without the replica": deduplicated} {
				want := lines(t, remote, r)
				from.takeReads()
				got := lines(t, direct, r)
				if !slices.Equal(got, want) || len(got) == 0 {
					t.Errorf("%s:\n%.400q\nby remote read\n%.400q", name, got, want)
				}
				n := from.takeReads()
				if name == "whole" && n != c.reads || name == "before the head" && what != "own labels in blocks" && n != 0 {
					t.Errorf("%s: %d remote reads", name, n)
				}
			}
		})
	}
}

func TestPrometheus_BlocksAreReadWhileTheLastRefreshConfirmsThem(t *testing.T) {
	from, direct, _ := newBlocks(t, metric("job", "a"))
	ctx, r := context.Background(), storeapi.SeriesRequest{MinMS: startMS - 3600_000, MaxMS: startMS - 60_000, Matchers: []*labels.Matcher{ofM}}
	expect := func(what string, reads int) {
		t.Helper()
		if got := lines(t, direct, r); len(got) != 1 || from.takeReads() != reads {
			t.Errorf("%s: %q, %d remote reads expected", what, got, reads)
		}
	}
	expect("confirmed", 0)
	from.set(euA, http.StatusServiceUnavailable)
	if direct.Refresh(ctx) == nil {
		t.Error("refreshed")
	}
	from.set(euA, 0)
	expect("after a failure", 1)
	if err := direct.Refresh(ctx); err != nil {
		t.Error(err)
	}
	expect("confirmed again", 0)
	from.mu.Lock()
	from.far = true
	from.mu.Unlock()
	if err := direct.Refresh(ctx); err != nil {
		t.Error(err)
	}
	expect("with samples of another server", 1)
}

// The head accepts samples that are older than its oldest, up to half the range of a block before its newest. Only when
// blocks end before, the server gets no further samples of their time.
func TestPrometheus_BlocksOfTimesThatTheHeadAcceptsAreNotRead(t *testing.T) {
	from, direct, _ := newBlocks(t, metric("job", "a"))
	r := storeapi.SeriesRequest{MinMS: startMS - 3600_000, MaxMS: startMS - 60_000, Matchers: []*labels.Matcher{ofM}}
	for _, c := range []struct {
		blocks string
		maxMS  int64 // of the head
		reads  int
	}{{"2h", startMS, 1}, {"2h", startMS + 3540_000, 1}, {"x", startMS + 3540_001, 1}, {"2h", startMS + 3540_001, 0}} {
		from.blocks = c.blocks
		from.addAt(t, c.maxMS, metric("job", "b"))
		if err := direct.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := lines(t, direct, r); len(got) != 1 || from.takeReads() != c.reads {
			t.Errorf("%+v: %q", c, got)
		}
	}
}
