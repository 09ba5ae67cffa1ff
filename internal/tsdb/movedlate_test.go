package tsdb

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/tsdb/chunkenc"

	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/series/labelenc"
)

// committedSamples are the timestamps of the samples that were committed, by series.
type committedSamples struct {
	mu  sync.Mutex
	all map[string]map[int64]bool
	n   int
}

func (c *committedSamples) add(id string, ts int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.all[id] == nil {
		c.all[id] = map[int64]bool{}
	}
	if !c.all[id][ts] {
		c.n++
	}
	c.all[id][ts] = true
}

// copied returns a copy of the samples.
func (c *committedSamples) copied() map[string]map[int64]bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := map[string]map[int64]bool{}
	for id, times := range c.all {
		all[id] = map[int64]bool{}
		for ts := range times {
			all[id][ts] = true
		}
	}
	return all
}

// readTimes selects everything and returns the timestamps of each series.
func readTimes(q series.Querier) (map[string]map[int64]bool, error) {
	set := q.Select(context.Background(), series.SelectOptions{}, everything)
	all, builder := map[string]map[int64]bool{}, labels.NewScratchBuilder(4)
	for set.Next() {
		lset, err := labelenc.Labels(set.Labels(), &builder)
		if err != nil {
			return nil, err
		}
		seen := map[int64]bool{}
		all[lset.Get("id")] = seen
		for _, c := range set.Chunks() {
			chunk, err := chunkenc.FromData(c.Encoding, c.Data)
			if err != nil {
				return nil, err
			}
			for it := chunk.Iterator(nil); it.Next() != chunkenc.ValNone; {
				seen[it.AtT()] = true
			}
		}
	}
	return all, set.Err()
}

// Samples move from the head to blocks, in order and late ones separately, while they are read. Each reader sees all samples
// that were committed before it was opened.
func TestRawQuerier_LateSamplesAreSeenWhileTheyMoveToBlocks(t *testing.T) {
	s := openWorld(t, t.TempDir(), 24*time.Hour)
	db := s.db.Load()
	db.EnableCompactions()
	committed := &committedSamples{all: map[string]map[int64]bool{}}
	var done atomic.Bool
	var running sync.WaitGroup
	for range 2 {
		running.Go(func() {
			for !done.Load() && !t.Failed() {
				want := committed.copied()
				q, err := s.RawQuerier(context.Background(), startMS-24*hourMS, startMS+1000*hourMS)
				if err != nil {
					t.Error(err)
					return
				}
				for pass := range 2 {
					got, err := readTimes(q)
					if err != nil {
						t.Error(err)
					}
					for id, times := range want {
						missing := 0
						for ts := range times {
							if !got[id][ts] {
								missing++
							}
						}
						if missing > 0 {
							t.Errorf("pass %d: series %s lacks %d of %d samples, and has %d", pass, id, missing, len(times), len(got[id]))
						}
					}
				}
				if err := q.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	rng := rand.New(rand.NewPCG(1, 2))
	head := startMS
	for i := range 18 {
		var steps []func()
		id := fmt.Sprintf("c%d", i)
		for range 12 {
			ts := head - 20*60_000 + rng.Int64N(40*60_000)
			steps = append(steps, func() { appendOne(t, s, committed, id, ts) })
		}
		for k := range int64(30) {
			ts := head + k*120_000
			steps = append(steps, func() { appendOne(t, s, committed, "new", ts) })
		}
		for _, step := range steps {
			step()
		}
		head += hourMS
		if i%3 == 2 {
			if err := db.Compact(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
	}
	done.Store(true)
	running.Wait()
	if len(db.Blocks()) == 0 {
		t.Error("no block was written")
	}
}

func appendOne(t *testing.T, s *Store, committed *committedSamples, id string, ts int64) {
	t.Helper()
	app := s.Appender(context.Background())
	if _, err := app.Append(0, labels.FromStrings(labels.MetricName, "m", "id", id), ts, float64(ts%1000)); err != nil {
		_ = app.Rollback()
		return
	}
	if err := app.Commit(); err != nil {
		t.Fatal(err)
	}
	committed.add(id, ts)
}
