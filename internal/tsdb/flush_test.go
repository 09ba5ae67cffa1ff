package tsdb

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
)

const flushWidthMS = int64(2 * time.Hour / time.Millisecond)

// appendTimes appends samples of two series, and checks which are refused.
func appendTimes(t *testing.T, s *Store, times ...int64) (refused []int64) {
	t.Helper()
	for _, ts := range times {
		app := s.Appender(t.Context())
		var err error
		for _, id := range []string{"a", "b"} {
			_, one := app.Append(0, labels.FromStrings("__name__", "m", "id", id), ts, float64(ts))
			err = errors.Join(err, one)
		}
		if err != nil {
			refused = append(refused, ts)
			if err := app.Rollback(); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if err := app.Commit(); err != nil {
			t.Fatal(err)
		}
	}
	return refused
}

// readOnce returns the timestamps of a series, and fails if one is returned twice.
func readOnce(t *testing.T, q storage.Querier, err error) (times []int64) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	set := q.Select(t.Context(), true, nil, labels.MustNewMatcher(labels.MatchEqual, "id", "a"))
	for set.Next() {
		it := set.At().Iterator(nil)
		for it.Next() != chunkenc.ValNone {
			times = append(times, it.AtT())
		}
	}
	if err := set.Err(); err != nil {
		t.Fatal(err)
	}
	if len(slices.Compact(slices.Clone(times))) != len(times) {
		t.Errorf("samples are returned twice: %d", times)
	}
	return times
}

// blockTimes returns the timestamps of a series by block. It fails if the in-order blocks overlap, exceed a block range,
// or if two blocks have the same sample.
func blockTimes(t *testing.T, dir string) (all []int64, blocks []tsdb.BlockMeta) {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "*", "meta.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range found {
		b, err := tsdb.OpenBlock(slog.New(slog.DiscardHandler), filepath.Dir(path), nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		q, err := tsdb.NewBlockQuerier(b, 0, 1<<62)
		all = append(all, readOnce(t, q, err)...)
		blocks = append(blocks, b.Meta())
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
	}
	slices.Sort(all)
	if len(slices.Compact(slices.Clone(all))) != len(all) {
		t.Errorf("blocks have the same samples: %d", all)
	}
	inOrder := slices.DeleteFunc(slices.Clone(blocks), func(m tsdb.BlockMeta) bool { return m.Compaction.FromOutOfOrder() })
	slices.SortFunc(inOrder, func(a, b tsdb.BlockMeta) int { return cmp.Compare(a.MinTime, b.MinTime) })
	if overlaps := tsdb.OverlappingBlocks(inOrder); len(overlaps) > 0 {
		t.Error(overlaps)
	}
	for _, m := range inOrder {
		if m.MinTime/flushWidthMS != (m.MaxTime-1)/flushWidthMS {
			t.Errorf("a block exceeds its range: %d to %d", m.MinTime, m.MaxTime)
		}
	}
	return all, blocks
}

// openAt opens a store in a directory.
func openAt(t *testing.T, o Options) *Store {
	t.Helper()
	s := newStore(t, o)
	if err := s.Open(); err != nil {
		t.Fatal(err)
	}
	return s
}

func closeToBlocks(t *testing.T, s *Store) {
	t.Helper()
	if written, err := s.CloseToBlocks(t.Context()); !written || err != nil {
		t.Fatal(written, err)
	}
}

func TestCloseToBlocks_EverySampleIsInOneBlockAndReturnedOnceAfterTheStart(t *testing.T) {
	for _, o := range []Options{{}, {OutOfOrderWindow: time.Hour}, {SnapshotOnShutdown: true},
		{SnapshotOnShutdown: true, OutOfOrderWindow: time.Hour}} {
		t.Run(fmt.Sprintf("late %s, snapshot %v", o.OutOfOrderWindow, o.SnapshotOnShutdown), func(t *testing.T) {
			o.Dir, o.KeepOverlappingBlocks = t.TempDir(), true
			s := openAt(t, o)
			start := time.Now().Add(-8*time.Hour).UnixMilli() / flushWidthMS * flushWidthMS
			minute := time.Minute.Milliseconds()
			var want []int64
			for i := range int64(160) { // it ends within the second range
				want = append(want, start+10*minute+i*minute)
			}
			appendTimes(t, s, want...)
			if o.OutOfOrderWindow > 0 {
				late := want[len(want)-1] - 20*minute - 1
				appendTimes(t, s, late)
				want = append(want, late)
				slices.Sort(want)
			}
			end := want[len(want)-1]
			for range 2 { // the second time nothing was appended
				closeToBlocks(t, s)
				if got, _ := blockTimes(t, o.Dir); !slices.Equal(got, want) {
					t.Fatalf("blocks have %d samples of %d", len(got), len(want))
				}
				s = openAt(t, o)
				q, err := s.Querier(0, 1<<62)
				if got := readOnce(t, q, err); !slices.Equal(got, want) {
					t.Fatalf("%d samples of %d after the start", len(got), len(want))
				}
			}
			if o.OutOfOrderWindow == 0 {
				if refused := appendTimes(t, s, end-1, end); len(refused) != 2 {
					t.Errorf("samples before the end of the last block: only %d are refused", refused)
				}
			}
			more := []int64{end + 1, end + minute, end + 200*minute, end + 240*minute, end + 300*minute}
			if refused := appendTimes(t, s, more...); len(refused) > 0 {
				t.Errorf("refused after the start: %d", refused)
			}
			want = append(want, more...)
			if err := s.db.Load().Compact(t.Context()); err != nil { // the regular compaction of the head
				t.Fatal(err)
			}
			q, err := s.Querier(0, 1<<62)
			if got := readOnce(t, q, err); !slices.Equal(got, want) {
				t.Errorf("%d samples of %d after the compaction", len(got), len(want))
			}
			closeToBlocks(t, s)
			if got, _ := blockTimes(t, o.Dir); !slices.Equal(got, want) {
				t.Errorf("blocks have %d samples of %d", len(got), len(want))
			}
		})
	}
}

// A kill may leave only some of the blocks, or a block that is not complete.
func TestCloseToBlocks_KillBetweenBlocksLosesNothing(t *testing.T) {
	o := Options{Dir: t.TempDir()}
	s := openAt(t, o)
	start := time.Now().Add(-8*time.Hour).UnixMilli() / flushWidthMS * flushWidthMS
	var want []int64
	for i := range int64(170) {
		want = append(want, start+i*time.Minute.Milliseconds())
	}
	appendTimes(t, s, want...)
	closeToBlocks(t, s)
	_, blocks := blockTimes(t, o.Dir)
	if len(blocks) != 2 {
		t.Fatalf("%d blocks", len(blocks))
	}
	slices.SortFunc(blocks, func(a, b tsdb.BlockMeta) int { return cmp.Compare(a.MinTime, b.MinTime) })
	for _, b := range slices.Backward(blocks) { // the last is lost first
		dir := filepath.Join(o.Dir, b.ULID.String())
		if err := os.Rename(dir, dir+".tmp-for-creation"); err != nil {
			t.Fatal(err)
		}
		s := openAt(t, o)
		q, err := s.Querier(0, 1<<62)
		if got := readOnce(t, q, err); !slices.Equal(got, want) {
			t.Errorf("%d samples of %d", len(got), len(want))
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	s = openAt(t, o)
	closeToBlocks(t, s)
	if got, _ := blockTimes(t, o.Dir); !slices.Equal(got, want) {
		t.Errorf("blocks have %d samples of %d", len(got), len(want))
	}
}

// onMessage calls f when a message is logged.
type onMessage struct {
	slog.Handler
	message string
	f       func()
}

func (h onMessage) Enabled(context.Context, slog.Level) bool { return true }

func (h onMessage) Handle(_ context.Context, r slog.Record) error {
	if r.Message == h.message {
		h.f()
	}
	return nil
}

func TestCloseToBlocks_ContextThatEndsBetweenBlocksLosesAndDoublesNothing(t *testing.T) {
	o := Options{Dir: t.TempDir(), OutOfOrderWindow: time.Hour, KeepOverlappingBlocks: true}
	s := openAt(t, o)
	start := time.Now().Add(-8*time.Hour).UnixMilli() / flushWidthMS * flushWidthMS
	var want []int64
	for i := range int64(170) {
		want = append(want, start+i*time.Minute.Milliseconds())
	}
	late := want[len(want)-1] - 1
	appendTimes(t, s, append(want, late)...)
	want = slices.Insert(want, len(want)-1, late)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	s.logger = slog.New(onMessage{slog.DiscardHandler, "write block completed", cancel})
	if written, err := s.CloseToBlocks(ctx); written || err != nil {
		t.Fatal(written, err)
	}
	if _, blocks := blockTimes(t, o.Dir); len(blocks) != 1 {
		t.Errorf("%d blocks", len(blocks))
	}
	for range 2 {
		s = openAt(t, o)
		q, err := s.Querier(0, 1<<62)
		if got := readOnce(t, q, err); !slices.Equal(got, want) {
			t.Errorf("%d samples of %d", len(got), len(want))
		}
		closeToBlocks(t, s)
		if got, _ := blockTimes(t, o.Dir); !slices.Equal(got, want) {
			t.Errorf("blocks have %d samples of %d", len(got), len(want))
		}
	}
}

// Otherwise all samples would be refused after the start, until the time of the one in the future.
func TestCloseToBlocks_SamplesOfTheFutureStayInTheHead(t *testing.T) {
	o := Options{Dir: t.TempDir()}
	s := openAt(t, o)
	now := time.Now().UnixMilli()
	past, future := now-time.Minute.Milliseconds(), now+20*time.Minute.Milliseconds()
	appendTimes(t, s, past, future)
	closeToBlocks(t, s)
	if got, _ := blockTimes(t, o.Dir); !slices.Equal(got, []int64{past}) {
		t.Errorf("blocks have %d", got)
	}
	s = openAt(t, o)
	q, err := s.Querier(0, 1<<62)
	if got := readOnce(t, q, err); !slices.Equal(got, []int64{past, future}) {
		t.Errorf("%d", got)
	}
	app := s.Appender(t.Context())
	_, err = app.Append(0, labels.FromStrings("__name__", "m", "id", "c"), time.Now().UnixMilli()+1, 1)
	if err := errors.Join(err, app.Commit()); err != nil {
		t.Error(err)
	}
}

func TestCloseToBlocks_AppendersFailOnceItHasBegun(t *testing.T) {
	o := Options{Dir: t.TempDir()}
	s := openAt(t, o)
	now := time.Now().UnixMilli()
	appendTimes(t, s, now-2)
	open := s.Appender(t.Context())
	if _, err := open.Append(0, labels.FromStrings("__name__", "m", "id", "a"), now-1, 1); err != nil {
		t.Fatal(err)
	}
	closeToBlocks(t, s)
	if err := open.Commit(); err == nil {
		t.Error("a commit after the close succeeds")
	}
	if refused := appendTimes(t, s, now); len(refused) != 1 {
		t.Error("an append after the close succeeds")
	}
	if got, _ := blockTimes(t, o.Dir); !slices.Equal(got, []int64{now - 2}) {
		t.Errorf("%d", got)
	}
}

func TestCloseToBlocks_SamplesStayInTheLogIfTheyCannotBeWritten(t *testing.T) {
	canceled, cancel := context.WithCancel(context.Background())
	cancel()
	for reason, change := range map[string]func(*Store) context.Context{
		"context canceled": func(*Store) context.Context { return canceled },
		"no space left": func(s *Store) context.Context {
			s.guard.plenty.Store(0)
			s.guard.free = func(string) (int64, int64, error) { return 1, 1 << 40, nil }
			return context.Background()
		},
	} {
		t.Run(reason, func(t *testing.T) {
			o := Options{Dir: t.TempDir()}
			s := openAt(t, o)
			times := []int64{time.Now().UnixMilli() - 1}
			appendTimes(t, s, times...)
			var log bytes.Buffer
			s.logger = slog.New(slog.NewTextHandler(&log, nil))
			written, err := s.CloseToBlocks(change(s))
			if written || err != nil || !strings.Contains(log.String(), reason) {
				t.Errorf("%v, %v, %s", written, err, log.String())
			}
			if got, _ := blockTimes(t, o.Dir); len(got) > 0 {
				t.Errorf("%d", got)
			}
			s = openAt(t, o)
			q, err := s.Querier(0, 1<<62)
			if got := readOnce(t, q, err); !slices.Equal(got, times) {
				t.Errorf("%d", got)
			}
		})
	}
}

func TestCloseToBlocks_StoreThatIsNotOpenHasNone(t *testing.T) {
	if written, err := newStore(t, Options{}).CloseToBlocks(t.Context()); written || err != nil {
		t.Error(written, err)
	}
}
