package tsdb

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
)

// Prometheus' database deletes out-of-order chunks that a series gets while the chunks of others are collected for a compaction.
func TestStore_LateSamplesAreKeptWhileOthersMoveToBlocks(t *testing.T) {
	const series, rounds, late = 20_000, 3, 40 // more than one chunk of out-of-order samples holds
	s := newStore(t, Options{Retention: -1, OutOfOrderWindow: 24 * time.Hour, MinBlockDuration: 2 * time.Hour, NoLockfile: true})
	if err := s.Open(); err != nil {
		t.Fatal(err)
	}
	db := s.db.Load()
	db.DisableCompactions()
	write := func(from, to int, times ...int64) {
		app := s.Appender(context.Background())
		for i := from; i < to; i++ {
			for _, at := range times {
				if _, err := app.Append(0, labels.FromStrings("__name__", "m", "i", strconv.Itoa(i)), at, 1); err != nil {
					t.Error(err)
				}
			}
		}
		if err := app.Commit(); err != nil {
			t.Error(err)
		}
	}
	order := rand.New(rand.NewPCG(1, 2)).Perm(series / 2)
	written := map[string]int{}
	for round := range int64(rounds) {
		at := startMS + round*4*hourMS
		write(0, series, at, at+4*hourMS-1)
		write(series/2, series, at+hourMS) // the compaction has many series to collect
		stop := make(chan struct{})
		var writing sync.WaitGroup
		writing.Go(func() {
			for _, i := range order[round*series/2/rounds : (round+1)*series/2/rounds] {
				select {
				case <-stop:
					return
				default:
				}
				var times []int64
				for k := range int64(late) {
					times = append(times, at+3*hourMS+k*1000)
				}
				write(i, i+1, times...)
				written[strconv.Itoa(i)] += late
			}
		})
		if err := db.Compact(context.Background()); err != nil {
			t.Fatal(err)
		}
		close(stop)
		writing.Wait()
	}
	q, err := s.Querier(0, startMS+100*hourMS)
	if err != nil {
		t.Fatal(err)
	}
	set, missing, checked := q.Select(context.Background(), false, nil, labels.MustNewMatcher(labels.MatchEqual, "__name__", "m")), 0, 0
	for set.Next() {
		n := 0
		for it := set.At().Iterator(nil); it.Next() != chunkenc.ValNone; {
			n++
		}
		if want := written[set.At().Labels().Get("i")]; want > 0 {
			checked++
			if n < want+2*rounds {
				missing++
			}
		}
	}
	if set.Err() != nil {
		t.Fatal(set.Err())
	}
	if missing > 0 || checked == 0 {
		t.Errorf("%d of %d series lack late samples", missing, checked)
	}
	if err := errors.Join(q.Close(), s.Close()); err != nil {
		t.Fatal(err)
	}
}

func TestLateGate_ClosesOnlyBetweenItsMessages(t *testing.T) {
	s := newStore(t, Options{OutOfOrderWindow: time.Hour})
	logger := slog.New(gateHandler{slog.DiscardHandler, s.gate}).With("component", "tsdb")
	waits := func() bool {
		if !s.gate.commits.TryRLock() {
			return true
		}
		s.gate.commits.RUnlock()
		return false
	}
	for _, step := range []struct {
		message, caller string
		closed          bool
	}{
		{messageTruncated, "truncateOOO", false},
		{messageTruncated, "truncateMemory", true},
		{messageCheckpoint, "", false},
		{messageCheckpointDone, "", true},
		{messageTruncated, "truncateMemory", true},
		{messageCollected, "", false},
		{messageCollected, "", false},
	} {
		logger.Info(step.message, "caller", step.caller)
		if waits() != step.closed {
			t.Errorf("after %q: closed %v", step.message, !step.closed)
		}
	}
	without := newStore(t, Options{})
	without.gate.observe(messageTruncated, "truncateMemory")
	if !without.gate.commits.TryRLock() {
		t.Error("closed without out-of-order samples")
	}
}
