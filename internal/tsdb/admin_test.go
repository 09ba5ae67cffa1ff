package tsdb

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/model/exemplar"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/metadata"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/tsdb/wlog"
)

func TestAdmin_DeletesCleansAndSnapshots(t *testing.T) {
	s := newStore(t, Options{Retention: -1})
	ctx := context.Background()
	all := labels.MustNewMatcher(labels.MatchEqual, "__name__", "m")
	for name, err := range map[string]error{"DeleteSeries": s.DeleteSeries(ctx, 0, 1, all), "CleanTombstones": s.CleanTombstones(), "Snapshot": s.Snapshot(t.TempDir(), true)} {
		if !errors.Is(err, ErrNotReady) {
			t.Errorf("%s before Open: %v", name, err)
		}
	}
	if err := s.Open(); err != nil {
		t.Fatal(err)
	}
	app := s.Appender(ctx)
	for i := range int64(10) {
		if _, err := app.Append(0, labels.FromStrings("__name__", "m"), startMS+i*1000, float64(i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := app.Commit(); err != nil {
		t.Fatal(err)
	}
	if err := s.DeleteSeries(ctx, startMS+2000, startMS+4000, all); err != nil || countSamples(t, s) != 7 {
		t.Errorf("%d samples, %v", countSamples(t, s), err)
	}
	dir := t.TempDir()
	if err := s.Snapshot(dir, true); err != nil {
		t.Error(err)
	}
	if metas, err := filepath.Glob(filepath.Join(dir, "*", "meta.json")); err != nil || len(metas) != 1 {
		t.Errorf("%q, %v", metas, err)
	}
	without := t.TempDir()
	if err := s.Snapshot(without, false); err != nil {
		t.Error(err)
	}
	if metas, err := filepath.Glob(filepath.Join(without, "*", "meta.json")); err != nil || len(metas) != 0 {
		t.Errorf("without the head: %q, %v", metas, err)
	}
	if err := s.CleanTombstones(); err != nil || countSamples(t, s) != 7 {
		t.Errorf("%d samples, %v", countSamples(t, s), err)
	}
	if err := s.Snapshot(s.opts.Dir, true); err == nil || !strings.Contains(err.Error(), "snapshot to "+s.opts.Dir) {
		t.Errorf("into the directory of the store: %v", err)
	}
	canceled, cancel := context.WithCancel(ctx)
	cancel()
	if err := s.DeleteSeries(canceled, startMS, startMS+9000, all); err != nil && !strings.HasPrefix(err.Error(), "delete series: ") {
		t.Error(err)
	}
}

func TestNotReady_EveryCallOfAnAppenderFails(t *testing.T) {
	want := errors.New("the log is replayed")
	v1, v2 := storage.Appender(notReady{want}), storage.AppenderV2(notReadyV2{want})
	set := labels.FromStrings("a", "b")
	v1.SetOptions(nil)
	for name, call := range map[string]func() (storage.SeriesRef, error){
		"Append":                      func() (storage.SeriesRef, error) { return v1.Append(1, set, 1, 1) },
		"AppendExemplar":              func() (storage.SeriesRef, error) { return v1.AppendExemplar(1, set, exemplar.Exemplar{}) },
		"AppendHistogram":             func() (storage.SeriesRef, error) { return v1.AppendHistogram(1, set, 1, nil, nil) },
		"AppendHistogramSTZeroSample": func() (storage.SeriesRef, error) { return v1.AppendHistogramSTZeroSample(1, set, 1, 1, nil, nil) },
		"UpdateMetadata":              func() (storage.SeriesRef, error) { return v1.UpdateMetadata(1, set, metadata.Metadata{}) },
		"AppendSTZeroSample":          func() (storage.SeriesRef, error) { return v1.AppendSTZeroSample(1, set, 1, 1) },
		"Append of V2":                func() (storage.SeriesRef, error) { return v2.Append(1, set, 0, 1, 1, nil, nil, storage.AOptions{}) },
		"Commit":                      func() (storage.SeriesRef, error) { return 0, v1.Commit() },
		"Commit of V2":                func() (storage.SeriesRef, error) { return 0, v2.Commit() },
	} {
		if ref, err := call(); ref != 0 || !errors.Is(err, want) {
			t.Errorf("%s: %d, %v", name, ref, err)
		}
	}
	if err := errors.Join(v1.Rollback(), v2.Rollback()); err != nil {
		t.Error(err)
	}
}

// openBelow returns the number of mappings of files below a directory, and skips the test on
// systems without /proc.
func openBelow(t *testing.T, dir string) (n int) {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Skip(err)
	}
	for line := range strings.Lines(string(maps)) {
		if strings.Contains(line, dir) {
			n++
		}
	}
	return n
}

func TestMapBlock_FailuresCloseTheFiles(t *testing.T) {
	for name, breaks := range map[string]func(dir string) error{
		"no index":           func(dir string) error { return os.Remove(filepath.Join(dir, "index")) },
		"no chunks":          func(dir string) error { return os.RemoveAll(filepath.Join(dir, "chunks")) },
		"half an index":      func(dir string) error { return os.Truncate(filepath.Join(dir, "index"), 20) },
		"a folder of chunks": func(dir string) error { return os.Mkdir(filepath.Join(dir, "chunks", "000009"), 0o700) },
	} {
		s, dir := oneBlock(t)
		copied := t.TempDir()
		if err := errors.Join(s.Close(), os.CopyFS(copied, os.DirFS(dir)), breaks(copied)); err != nil {
			t.Fatal(err)
		}
		if m, err := mapBlock(copied); m != nil && err == nil || err == nil || openBelow(t, copied) != 0 {
			t.Errorf("%s: %v, %d files are mapped", name, err, openBelow(t, copied))
		}
	}
}

func TestMappings_AreSharedAndClosed(t *testing.T) {
	s, dir := oneBlock(t)
	copied := t.TempDir()
	if err := errors.Join(s.Close(), os.CopyFS(copied, os.DirFS(dir)), os.WriteFile(filepath.Join(copied, "chunks", "x.tmp"), []byte("x"), 0o600)); err != nil {
		t.Fatal(err)
	}
	p := &mappings{}
	acquire := func() *mapped {
		t.Helper()
		m, err := p.acquire(copied)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	expect := func(what string, mapped bool, blocks int) {
		t.Helper()
		if got := openBelow(t, copied) > 0; got != mapped || len(p.byDir) != blocks {
			t.Errorf("%s: mapped %v, %d blocks", what, got, len(p.byDir))
		}
	}
	release := func(m *mapped, gone bool) {
		t.Helper()
		if err := p.release(copied, m, gone); err != nil {
			t.Error(err)
		}
	}
	a, b := acquire(), acquire()
	if a != b || a.readers != 2 || len(a.segments) != 1 {
		t.Errorf("%d readers, %d segments", a.readers, len(a.segments))
	}
	release(a, true) // another reader is left
	expect("one reader", true, 1)
	if p.timer != nil {
		t.Error("a mapping that is read waits for its end")
	}
	release(b, false)
	expect("idle", true, 1)
	if p.timer == nil || a.readers != 0 {
		t.Error("an idle mapping is never closed")
	}
	if err := p.prune(nil); err != nil {
		t.Error(err)
	}
	expect("pruned", false, 0)
	a = acquire()
	if err := p.prune(nil); err != nil { // it is read
		t.Error(err)
	}
	expect("read while it is pruned", true, 1)
	p.sweep()
	expect("read while idle ones are closed", true, 1)
	release(a, false)
	p.sweep()
	expect("idle for a short time", true, 1)
	a.idleAt = time.Now().Add(-mappedIdle)
	p.sweep()
	expect("idle for long", false, 0)
	a = acquire()
	release(a, true)
	expect("gone", false, 0)
	a, b = acquire(), nil
	if err := p.close(); err != nil {
		t.Error(err)
	}
	expect("read while the store is closed", true, 1)
	if m, err := p.acquire(copied); m != b || !errors.Is(err, ErrNotReady) {
		t.Errorf("after close: %v", err)
	}
	release(a, false)
	expect("closed", false, 0)
	p = &mappings{}
	release(acquire(), false)
	if err := p.close(); err != nil {
		t.Error(err)
	}
	expect("closed while idle", false, 0)
	if _, err := (&mappings{}).acquire(filepath.Join(copied, "none")); err == nil || !strings.HasPrefix(err.Error(), "block none: ") {
		t.Error(err)
	}
}

// segmentFiles writes files of a log.
func segmentFiles(t *testing.T, files map[string]string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func names(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, e := range entries {
		list = append(list, strings.TrimPrefix(e.Name(), "0000000"))
	}
	return strings.Join(list, " ")
}

func TestCloseGap_SetsSegmentsBehindItAside(t *testing.T) {
	for _, tt := range []struct {
		numbers string
		want    string
	}{
		{"", ""}, {"3", "3"}, {"3 4 5", "3 4 5"}, {"3 5", "3 5" + asideSuffix}, {"3 4 6 7", "3 4 6" + asideSuffix + " 7" + asideSuffix}, {"1 3 5", "1 3" + asideSuffix + " 5" + asideSuffix},
	} {
		files := map[string]string{}
		for n := range strings.FieldsSeq(tt.numbers) {
			files["0000000"+n] = "x"
		}
		dir := segmentFiles(t, files)
		if found, err := closeGap(dir, slog.New(slog.DiscardHandler)); err != nil || names(t, dir) != tt.want ||
			found != strings.Contains(tt.want, asideSuffix) {
			t.Errorf("%s: %s, %v", tt.numbers, names(t, dir), err)
		}
	}
	if _, err := closeGap(filepath.Join(t.TempDir(), "none"), slog.New(slog.DiscardHandler)); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

func TestWentOn_LaterSegmentsWithRecords(t *testing.T) {
	dir := segmentFiles(t, map[string]string{"00000001": "x", "00000002": "x", "00000003": "", "00000004": ""})
	all := []int{1, 2, 3, 4}
	for index, want := range map[int]bool{0: true, 1: true, 2: false, 3: false, 4: false, 5: false} {
		if got, err := hasLaterRecords(dir, all, index); got != want || err != nil {
			t.Errorf("behind %d: %v, %v", index, got, err)
		}
	}
	if got, err := hasLaterRecords(dir, []int{9}, 1); !got || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a segment that is gone: %v, %v", got, err)
	}
}

func TestDiffers_ComparesRecords(t *testing.T) {
	write := func(records ...string) string {
		t.Helper()
		dir := t.TempDir()
		w, err := wlog.New(slog.New(slog.DiscardHandler), prometheus.NewRegistry(), dir, "")
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range records {
			err = errors.Join(err, w.Log([]byte(r)))
		}
		if err := errors.Join(err, w.Close()); err != nil {
			t.Fatal(err)
		}
		return wlog.SegmentName(dir, 0)
	}
	whole := write("a", "b", "c")
	for want, copies := range map[bool][]string{false: {write(), write("a"), write("a", "b", "c"), filepath.Join(t.TempDir(), "none")}, true: {write("b"), write("a", "c"), write("a", "b", "c", "d")}} {
		for i, copied := range copies {
			if got, err := differs(copied, whole); got != want || err != nil {
				t.Errorf("%v %d: %v, %v", want, i, got, err)
			}
		}
	}
	if _, err := differs(whole, filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	if n, err := filepath.Glob("/proc/self/fd/*"); err == nil {
		for _, fd := range n {
			if to, err := os.Readlink(fd); err == nil && to == whole {
				t.Error("a segment is open")
			}
		}
	}
}

func TestCheckCheckpoint_OnlyDamageIsAnError(t *testing.T) {
	if err := checkCheckpoint(t.TempDir()); err != nil {
		t.Errorf("no checkpoint: %v", err)
	}
	if err := checkCheckpoint(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("a log that is not there has no fault")
	}
}

func TestUploadedBlocks_AreReadAgainAfterAMinute(t *testing.T) {
	path := filepath.Join(t.TempDir(), "list")
	u := &uploadedBlocks{path: path, logger: slog.New(slog.DiscardHandler), listed: map[string]bool{}, expires: time.Now().Add(time.Hour)}
	meta := &tsdb.BlockMeta{Compaction: tsdb.BlockMetaCompaction{Level: 1}}
	if err := os.WriteFile(path, []byte(`{"uploaded":["`+meta.ULID.String()+`"]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if !u.excluded(meta) {
		t.Error("the list is read again at once")
	}
	u.expires = time.Now().Add(-time.Second)
	if u.excluded(meta) || !u.listed[meta.ULID.String()] || time.Until(u.expires) < uploadedReadEvery-30*time.Second {
		t.Errorf("%v, until %s", u.listed, u.expires)
	}
}

func TestLateBlock_BeforeTheDatabaseIsOpen(t *testing.T) {
	s := newStore(t, Options{})
	late := &tsdb.BlockMeta{MaxTime: 5}
	if s.lateBlock(late) {
		t.Error("a block of samples in order waits")
	}
	late.Compaction.SetOutOfOrder()
	if !s.lateBlock(late) {
		t.Error("a block of late samples does not wait")
	}
}
