package tsdb

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/prometheus/tsdb"
)

// A series that has left the head and returned has a second reference. Its out-of-order samples must remain after a kill, a shutdown
// with a snapshot, and a start from it.
func TestStore_SnapshotKeepsOutOfOrderSamplesOfASecondReference(t *testing.T) {
	o := Options{Dir: t.TempDir(), Retention: -1, OutOfOrderWindow: 24 * time.Hour, MinBlockDuration: 2 * time.Hour, SnapshotOnShutdown: true, NoLockfile: true}
	s := newStore(t, o)
	if err := s.Open(); err != nil {
		t.Fatal(err)
	}
	db := s.db.Load()
	db.DisableCompactions()
	appendAt(t, s, "lasting", startMS)
	appendAt(t, s, "again", startMS+hourMS)
	for at := startMS + hourMS; at < startMS+8*hourMS; at += 60_000 {
		appendAt(t, s, "lasting", at)
	}
	db.EnableCompactions()
	if err := db.Compact(context.Background()); err != nil {
		t.Fatal(err)
	}
	if n := db.Head().NumSeries(); n != 1 {
		t.Fatalf("the head has %d series", n)
	}
	appendAt(t, s, "again", startMS+8*hourMS) // a new reference
	appendAt(t, s, "again", startMS+7*hourMS) // out of order
	want := fmt.Sprint(timesOf(t, s, "again"))
	for i := range 4 {
		dir := o.Dir
		if i == 0 {
			dir = copyOf(t, o.Dir) // as a killed server leaves it
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		o.Dir = dir
		s = newStore(t, o)
		if err := s.Open(); err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(timesOf(t, s, "again")); got != want {
			t.Errorf("start %d: %v, want %v", i, got, want)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// A snapshot is not deleted if it has the series of all out-of-order samples, or if the write-ahead log behind it has them.
func TestStore_SnapshotWithAllReferencesIsUsed(t *testing.T) {
	o := Options{Dir: t.TempDir(), Retention: -1, OutOfOrderWindow: 24 * time.Hour, MinBlockDuration: 2 * time.Hour, SnapshotOnShutdown: true, NoLockfile: true}
	for _, id := range []string{"first", "second"} {
		s := newStore(t, o)
		if err := s.Open(); err != nil {
			t.Fatal(err)
		}
		appendAt(t, s, id, startMS+hourMS)
		appendAt(t, s, id, startMS) // out of order
		dir := o.Dir
		if id == "second" {
			dir = copyOf(t, o.Dir) // as a killed server leaves it: the series is not in the snapshot
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		o.Dir = dir
	}
	s := newStore(t, o)
	if err := s.Open(); err != nil {
		t.Fatal(err)
	}
	if snapshot, _, _, err := tsdb.LastChunkSnapshot(o.Dir); err != nil {
		t.Errorf("snapshot %q: %v", snapshot, err)
	}
	if got := fmt.Sprint(timesOf(t, s, "first"), timesOf(t, s, "second")); got != "[first 0 first 3600] [second 0 second 3600]" {
		t.Error(got)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// With the feature, a checkpoint may lack series whose samples the log still has: only the snapshot has them. A start without the
// feature must not lose these samples, and later ones must not use the snapshot once the log is complete.
func TestStore_SamplesRemainWhenTheFeatureIsTurnedOff(t *testing.T) {
	o := Options{Dir: t.TempDir(), Retention: -1, MinBlockDuration: 2 * time.Hour, SnapshotOnShutdown: true, NoLockfile: true}
	open := func() *Store {
		t.Helper()
		s := newStore(t, o)
		if err := s.Open(); err != nil {
			t.Fatal(err)
		}
		s.db.Load().DisableCompactions()
		return s
	}
	stop := func(s *Store) {
		t.Helper()
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	lasting := func(s *Store, mint, maxt int64) {
		t.Helper()
		var times []int64
		for at := mint; at < maxt; at += 60_000 {
			times = append(times, at)
		}
		appendAt(t, s, "lasting", times...)
	}
	s := open()
	appendAt(t, s, "again", startMS)
	lasting(s, startMS, startMS+8*hourMS)
	compact(t, s)
	appendAt(t, s, "again", startMS+8*hourMS+60_000) // a second reference
	o.Dir = copyOf(t, o.Dir)                         // as a killed server leaves it
	stop(s)
	for range 8 { // each start begins a segment of the log
		stop(open())
	}
	s = open()
	lasting(s, startMS+8*hourMS, startMS+9*hourMS+10*60_000)
	compact(t, s) // with a checkpoint
	want := fmt.Sprint(timesOf(t, s, "again"))
	stop(s)
	o.SnapshotOnShutdown = false
	for i := range 3 {
		s = open()
		if got := fmt.Sprint(timesOf(t, s, "again")); got != want {
			t.Errorf("start %d: %v, want %v", i, got, want)
		}
		stop(s)
	}
	s = open()
	lasting(s, startMS+9*hourMS+10*60_000, startMS+14*hourMS)
	compact(t, s)
	stop(s)
	for range 8 {
		stop(open())
	}
	s = open()
	lasting(s, startMS+14*hourMS, startMS+18*hourMS)
	compact(t, s)
	stop(s)
	s = open()
	if _, _, _, err := tsdb.LastChunkSnapshot(o.Dir); err == nil {
		t.Error("a snapshot that is not needed remains")
	}
	if got := fmt.Sprint(timesOf(t, s, "again")); got != want {
		t.Errorf("at the end: %v, want %v", got, want)
	}
	stop(s)
}
