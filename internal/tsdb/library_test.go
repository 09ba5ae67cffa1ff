package tsdb

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/tsdb/record"
	"github.com/prometheus/prometheus/tsdb/wlog"

	"github.com/ferula-io/ferula/metrics"
)

// The tests in this file fail if Prometheus' library no longer does what a workaround here relies on.

// libraryDatabase opens the library's own database with snapshots, appends a sample to each of n series and closes it.
func libraryDatabase(t *testing.T, dir string, n int) (refs []uint64) {
	t.Helper()
	opts := tsdb.DefaultOptions()
	opts.EnableMemorySnapshotOnShutdown, opts.EnableFastStartup = true, true
	db, err := tsdb.Open(dir, slog.New(slog.DiscardHandler), prometheus.NewRegistry(), opts, nil)
	if err != nil {
		t.Fatal(err)
	}
	app := db.Appender(context.Background())
	for i := range n {
		ref, err := app.Append(0, labels.FromStrings("__name__", "m", "i", string(rune('a'+i))), startMS, 1)
		if err != nil {
			t.Fatal(err)
		}
		refs = append(refs, uint64(ref))
	}
	if err := errors.Join(app.Commit(), db.Close()); err != nil {
		t.Fatal(err)
	}
	return refs
}

// Prometheus reads and writes the fields of seriesState, and no others.
func TestStore_SeriesStateIsReadByPrometheus(t *testing.T) {
	dir := t.TempDir()
	libraryDatabase(t, dir, 3)
	path := filepath.Join(dir, "wal", seriesStateFile)
	read := func() (state seriesState) {
		t.Helper()
		file, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		decoder := json.NewDecoder(file)
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&state); err != nil {
			t.Fatal(err)
		}
		return state
	}
	state := read()
	if want := (seriesState{LastSeriesID: 3, LastWALSegment: state.LastWALSegment, CleanShutdown: true}); state != want {
		t.Errorf("%+v, want %+v", state, want)
	}
	state.LastSeriesID = 1000
	if err := writeSeriesState(path, state); err != nil {
		t.Fatal(err)
	}
	if refs := libraryDatabase(t, dir, 4); refs[3] != 1001 {
		t.Errorf("the new series has the reference %d", refs[3])
	}
	if state := read(); state.LastSeriesID != 1001 {
		t.Errorf("%+v", state)
	}
}

func TestSnapshot_RecordsOfSeriesHaveTheirReference(t *testing.T) {
	dir := t.TempDir()
	want := libraryDatabase(t, dir, 3)
	snapshot, _, _, err := tsdb.LastChunkSnapshot(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []uint64
	whole := eachRecord(wlog.SegmentRange{Dir: snapshot, First: -1, Last: -1}, func(_ *record.Decoder, r []byte) {
		if r[0] == snapshotSeries {
			got = append(got, binary.BigEndian.Uint64(r[1:]))
		}
	})
	slices.Sort(got)
	if !whole || !slices.Equal(got, want) {
		t.Errorf("references %d, want %d", got, want)
	}
}

func TestWatchedRegisterer_TheDatabaseHasTheCounters(t *testing.T) {
	g := newWriteGuard("", -1, nil)
	r := &watchedRegisterer{Registerer: prometheus.NewRegistry(), guard: g}
	opts := tsdb.DefaultOptions()
	opts.OutOfOrderTimeWindow = hourMS
	db, err := tsdb.Open(t.TempDir(), slog.New(slog.DiscardHandler), r, opts, nil)
	if err != nil {
		t.Fatal(err)
	}
	if limits := metricsOf[prometheus.Gauge](r, exemplarsMax); len(limits) != 1 {
		t.Errorf("%d gauges of the limit of exemplars", len(limits))
	}
	if len(g.failures) != 2 || len(r.repairs()) != 1 {
		t.Errorf("%d counters of failed writes, want one for each log; %d of repairs, want 1", len(g.failures), len(r.repairs()))
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

// A view hides what is committed after it was opened: in a chunk that it reads, and in later ones.
func TestRawHead_HidesLaterCommits(t *testing.T) {
	s, err := New(Options{Dir: t.TempDir(), Retention: -1, SamplesPerChunk: 10}, slog.New(slog.DiscardHandler), prometheus.NewRegistry(), metrics.NewSet())
	if err := errors.Join(err, s.Open()); err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	commit := func(from, to int64) (times []int64) {
		for at := from; at < to; at++ { // each commit forgets the append IDs that no reader needs
			app := s.Appender(context.Background())
			if _, err := app.Append(0, labels.FromStrings("__name__", "m", "id", "a"), startMS+at, 1); err != nil {
				t.Fatal(err)
			}
			if err := app.Commit(); err != nil {
				t.Fatal(err)
			}
			times = append(times, startMS+at)
		}
		return times
	}
	want := commit(0, 25)
	q, err := s.RawQuerier(context.Background(), 0, startMS+hourMS)
	if err != nil {
		t.Fatal(err)
	}
	commit(25, 60)
	all, err := readTimes(q)
	if got := slices.Sorted(maps.Keys(all["a"])); err != nil || !slices.Equal(got, want) {
		t.Errorf("the view has %d samples, want %d: %v", len(got), len(want), err)
	}
	if err := q.Close(); err != nil {
		t.Fatal(err)
	}
}
