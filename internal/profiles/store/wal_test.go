package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/ferula-io/ferula/internal/files"
	"github.com/ferula-io/ferula/test/crashfs"
)

func frames(payloads ...string) (b []byte) {
	for _, p := range payloads {
		b = appendFrame(b, func(b []byte) []byte { return append(b, p...) })
	}
	return b
}

// reopen opens a log and returns its payloads.
func reopen(t *testing.T, dir string) (l *pushLog, payloads []string, torn []damage) {
	t.Helper()
	l, torn, err := openLog(files.Disk{}, dir, func(_ uint64, p []byte) error {
		payloads = append(payloads, string(p))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.close(); err != nil {
			t.Error(err)
		}
	})
	return l, payloads, torn
}

func TestLog_Open_ReplaysRecordsInOrder(t *testing.T) {
	dir := t.TempDir()
	l, payloads, torn := reopen(t, dir)
	if len(payloads) != 0 || len(torn) != 0 {
		t.Fatal(payloads, torn)
	}
	for _, b := range [][]byte{frames("a", "b"), frames("c")} {
		if err := l.append(b); err != nil {
			t.Fatal(err)
		}
	}
	before := l.number
	closed, err := l.cut()
	if err != nil || closed != before || l.number != before+1 || l.size != 0 {
		t.Fatalf("segment %d closed, %v; now segment %d of %d bytes, before %d", closed, err, l.number, l.size, before)
	}
	if err := l.append(frames("d")); err != nil {
		t.Fatal(err)
	}
	if _, payloads, _ = reopen(t, dir); !slices.Equal(payloads, []string{"a", "b", "c", "d"}) {
		t.Errorf("all: %v", payloads)
	}
	if err := removeSegments(files.Disk{}, dir, closed); err != nil {
		t.Fatal(err)
	}
	if _, payloads, _ = reopen(t, dir); !slices.Equal(payloads, []string{"d"}) {
		t.Errorf("the closed one is still there: %v", payloads)
	}
}

func TestLog_Open_TornEndIsSkippedAndReported(t *testing.T) {
	whole := frames("first", "second")
	for cut := range len(whole) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "00000001"), whole[:cut], 0o644); err != nil {
			t.Fatal(err)
		}
		_, payloads, torn := reopen(t, dir)
		want, left := []string{}, cut
		if cut >= len(frames("first")) {
			want, left = []string{"first"}, cut-len(frames("first"))
		}
		if !slices.Equal(payloads, want) || (left > 0) != (len(torn) == 1) || (left > 0 && torn[0].bytes != int64(left)) {
			t.Errorf("cut at %d: %v, %v", cut, payloads, torn)
		}
	}
}

func TestLog_Open_ChangedByteLosesOnlyItsRecord(t *testing.T) {
	whole := frames("first", "second")
	for at := range whole {
		dir := t.TempDir()
		broken := slices.Clone(whole)
		broken[at] ^= 0x10
		if err := os.WriteFile(filepath.Join(dir, "00000001"), broken, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "00000002"), frames("third"), 0o644); err != nil {
			t.Fatal(err)
		}
		_, payloads, torn := reopen(t, dir)
		want, kind, bytes := []string{"first", "third"}, tornEnd, len(frames("second"))
		if at < len(frames("first")) {
			want, kind, bytes = []string{"second", "third"}, gapBefore, len(frames("first"))
		}
		if !slices.Equal(payloads, want) || len(torn) != 1 || torn[0].kind != kind || torn[0].bytes != int64(bytes) {
			t.Errorf("byte %d: %v, %v", at, payloads, torn)
			continue
		}
		if kind == tornEnd {
			continue
		}
		if aside, err := os.ReadFile(torn[0].aside); err != nil || !slices.Equal(aside, broken[:bytes]) {
			t.Errorf("byte %d: %q is set aside, %v", at, aside, err)
		}
	}
}

// stubborn is a file that fails to write and then to be cut back.
type stubborn struct {
	files.File
	fail *bool
}

type stubbornDisk struct {
	files.Disk
	fail *bool
}

func (d stubbornDisk) Create(path string) (files.File, error) {
	f, err := d.Disk.Create(path)
	return stubborn{f, d.fail}, err
}

func (f stubborn) Write(p []byte) (int, error) {
	if *f.fail {
		n, err := f.File.Write(p[:len(p)/2])
		return n, errors.Join(err, errDisk)
	}
	return f.File.Write(p)
}

func (f stubborn) Truncate(size int64) error {
	if *f.fail {
		return errDisk
	}
	return f.File.Truncate(size)
}

func TestLog_Append_SegmentThatCannotBeTruncatedIsAbandoned(t *testing.T) {
	dir, fail := t.TempDir(), false
	l, _, err := openLog(stubbornDisk{fail: &fail}, dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 6 {
		fail = i%2 == 1
		if err := l.append(frames(fmt.Sprint("record ", i))); errors.Is(err, errDisk) != fail {
			t.Errorf("record %d: %v", i, err)
		} else if fail && (!strings.Contains(err.Error(), ": cut back: ") || l.file != nil) {
			t.Errorf("record %d: %v does not have both reasons, or the segment is open", i, err)
		}
	}
	if err := l.close(); err != nil {
		t.Fatal(err)
	}
	if _, payloads, _ := reopen(t, dir); !slices.Equal(payloads, []string{"record 0", "record 2", "record 4"}) {
		t.Errorf("%v", payloads)
	}
}

// openFailing opens a log of one segment with a refused record. Calls of op on a path that ends with
// suffix fail.
func openFailing(t *testing.T, op, suffix string) (payloads []string, damaged []damage, dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "wal")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "00000007"), frames("first", "bad", "last"), 0o600); err != nil {
		t.Fatal(err)
	}
	fs, err := crashfs.New(filepath.Dir(dir), func(c crashfs.Call) error {
		if c.Op == op && strings.HasSuffix(c.Path, suffix) {
			return errDisk
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	l, damaged, err := openLog(fs, dir, func(_ uint64, p []byte) error {
		if string(p) == "bad" {
			return errBad
		}
		payloads = append(payloads, string(p))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.close(); err != nil {
		t.Error(err)
	}
	return payloads, damaged, dir
}

// A disk that takes no copy does not stop the start. The damage has the reason.
func TestLog_Open_FailureToSetARecordAsideIsReported(t *testing.T) {
	for _, tt := range []struct {
		op, suffix string
		copied     bool
	}{
		{"mkdir", "aside", false},
		{"create", ".bytes.tmp", false},
		{"write", ".bytes.tmp", false},
		{"sync", ".bytes.tmp", false},
		{"rename", ".bytes.tmp", false},
		{"create", ".txt.tmp", true},
	} {
		name := tt.op + " " + tt.suffix
		payloads, damaged, _ := openFailing(t, tt.op, tt.suffix)
		if !slices.Equal(payloads, []string{"first", "last"}) || len(damaged) != 1 {
			t.Errorf("%s: %q, %+v", name, payloads, damaged)
			continue
		}
		d := damaged[0]
		if !errors.Is(d.err, errBad) || !errors.Is(d.err, errDisk) || !strings.Contains(d.err.Error(), "set aside: ") || (d.aside != "") != tt.copied {
			t.Errorf("%s: %+v", name, d)
		}
	}
}

func TestLog_Open_RecordIsNotSetAsideIfAFileHasTheName(t *testing.T) {
	dir := write(t, "00000007", frames("bad"))
	if err := os.WriteFile(filepath.Join(dir, "aside"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, damaged, err := refuse(t, dir, errBad)
	if err != nil || len(damaged) != 1 || damaged[0].aside != "" || !errors.Is(damaged[0].err, errBad) || !strings.Contains(damaged[0].err.Error(), "set aside: ") {
		t.Errorf("%+v, %v", damaged, err)
	}
}

// Remove would delete it.
func TestLog_Open_FailsIfAnUnreadableSegmentCannotBeMoved(t *testing.T) {
	for _, op := range []string{"mkdir", "rename"} {
		dir := filepath.Join(t.TempDir(), "wal")
		if err := os.MkdirAll(filepath.Join(dir, "00000003"), 0o700); err != nil { // reading a directory fails
			t.Fatal(err)
		}
		fs, err := crashfs.New(filepath.Dir(dir), func(c crashfs.Call) error {
			if c.Op == op && strings.Contains(c.Path, "aside") || c.Op == op && op == "rename" {
				return errDisk
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if _, damaged, err := openLog(fs, dir, nil); !errors.Is(err, errDisk) || !errors.Is(err, files.ErrIrregular) {
			t.Errorf("%s: %v, %+v", op, err, damaged)
		}
		if _, err := os.Stat(filepath.Join(dir, "00000003")); err != nil {
			t.Errorf("%s: %v", op, err)
		}
	}
}

// Few bytes before a record are skipped, and not more than these.
func TestLog_Open_ShortGapsEndAtTheNextRecord(t *testing.T) {
	for n := 1; n <= 20; n++ {
		gap := slices.Repeat([]byte{0xFF}, n)
		_, payloads, damaged := reopen(t, write(t, "00000001", slices.Concat(frames("a"), gap, frames("b"))))
		if !slices.Equal(payloads, []string{"a", "b"}) || len(damaged) != 1 || damaged[0].kind != gapBefore || damaged[0].at != int64(len(frames("a"))) || damaged[0].bytes != int64(n) {
			t.Errorf("%d bytes: %q, %+v", n, payloads, damaged)
		}
	}
}

// halfFile writes half of what it gets while it fails, and can be cut back.
type halfFile struct {
	stubborn
}

func (f halfFile) Truncate(size int64) error { return f.File.Truncate(size) }

func TestLog_Append_ContinuesInTheSegmentThatWasCutBack(t *testing.T) {
	dir, fail := t.TempDir(), false
	l, _, _ := reopen(t, dir)
	l.file = halfFile{stubborn{l.file, &fail}}
	number := l.number
	for i := range 6 {
		fail = i%2 == 1
		if err := l.append(frames(fmt.Sprint("record ", i))); errors.Is(err, errDisk) != fail {
			t.Errorf("record %d: %v", i, err)
		} else if fail && !strings.Contains(err.Error(), l.path(number)) {
			t.Errorf("%v does not name the segment", err)
		}
	}
	if l.number != number {
		t.Errorf("segment %d, it was %d", l.number, number)
	}
	if _, payloads, damaged := reopen(t, dir); !slices.Equal(payloads, []string{"record 0", "record 2", "record 4"}) || len(damaged) > 0 {
		t.Errorf("%q, %+v", payloads, damaged)
	}
}

// Frames of a failed Append are not there after a power cut, even if the failed sync
// completed, whichever call of Append fails.
func TestLog_Append_FailedFramesAreGoneAfterAPowerCut(t *testing.T) {
	for _, op := range []string{"write", "sync"} {
		dir, failing := t.TempDir(), false
		fs, err := crashfs.New(dir, func(c crashfs.Call) error {
			if failing && c.Op == op {
				failing = false
				return errDisk
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		l, _, err := openLog(fs, filepath.Join(dir, "wal"), nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.append(frames("first")); err != nil {
			t.Fatal(err)
		}
		failing = true
		if err := l.append(frames("refused")); !errors.Is(err, errDisk) {
			t.Fatalf("%s: %v", op, err)
		}
		fs.Crash()
		if err := l.close(); err != nil {
			t.Fatal(err)
		}
		after := t.TempDir()
		lost := crashfs.Survival{Names: func() bool { return false }, Content: func() crashfs.Content { return crashfs.Lost }}
		if err := fs.After(after, lost); err != nil {
			t.Fatal(err)
		}
		if _, payloads, torn := reopen(t, filepath.Join(after, "wal")); !slices.Equal(payloads, []string{"first"}) || len(torn) > 0 {
			t.Errorf("%s: %v, %v", op, payloads, torn)
		}
	}
}

func TestLog_Append_SegmentWithUnsyncedNameIsNotUsed(t *testing.T) {
	dir, failing := t.TempDir(), true
	fs, err := crashfs.New(dir, func(c crashfs.Call) error {
		if failing && c.Op == "syncdir" && filepath.Base(c.Path) == "wal" {
			return errDisk
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	l, _, err := openLog(fs, filepath.Join(dir, "wal"), nil)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := l.append(frames("refused")); !errors.Is(err, errDisk) {
			t.Fatal(err)
		}
	}
	failing = false
	if err := l.append(frames("accepted")); err != nil {
		t.Fatal(err)
	}
	if err := l.close(); err != nil {
		t.Fatal(err)
	}
	if _, payloads, _ := reopen(t, filepath.Join(dir, "wal")); !slices.Equal(payloads, []string{"accepted"}) {
		t.Error(payloads)
	}
}

// A payload of frame-like bytes and zeros does not make the search for the next record slow
// or find false records.
func TestLog_Open_SearchForTheNextRecordIsBounded(t *testing.T) {
	dir := t.TempDir()
	b := slices.Concat(frames("first"), slices.Repeat([]byte{0, 0, 1, 0}, 4<<20), frames("last"))
	if err := os.WriteFile(filepath.Join(dir, "00000001"), b, 0o644); err != nil {
		t.Fatal(err)
	}
	_, payloads, torn := reopen(t, dir)
	if len(payloads) == 0 || payloads[0] != "first" || len(torn) != 1 {
		t.Errorf("%d records, %v", len(payloads), torn)
	}
}

var errBad = errors.New("bad record")

// write makes a directory with one segment.
func write(t *testing.T, name string, b []byte) (dir string) {
	t.Helper()
	dir = t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// refuse opens a log whose record "bad" cannot be replayed.
func refuse(t *testing.T, dir string, refused error) (payloads []string, damaged []damage, err error) {
	t.Helper()
	l, damaged, err := openLog(files.Disk{}, dir, func(_ uint64, p []byte) error {
		if string(p) == "bad" {
			return refused
		}
		payloads = append(payloads, string(p))
		return nil
	})
	if err == nil {
		if err := l.close(); err != nil {
			t.Fatal(err)
		}
	}
	return payloads, damaged, err
}

func TestLog_Open_RefusedRecordIsCopiedAndNamed(t *testing.T) {
	dir := write(t, "00000007", frames("first", "bad", "last"))
	at, bad := int64(len(frames("first"))), frames("bad")
	aside := filepath.Join(dir, "aside", fmt.Sprintf("00000007-%d.bytes", at))
	for range 2 { // the second time the copy is there
		payloads, damaged, err := refuse(t, dir, errBad)
		if err != nil || !slices.Equal(payloads, []string{"first", "last"}) || len(damaged) != 1 {
			t.Fatalf("%q, %+v, %v", payloads, damaged, err)
		}
		d := damaged[0]
		if d.kind != refusedRecord || d.at != at || d.bytes != int64(len(bad)) || d.segment != filepath.Join(dir, "00000007") || d.aside != aside || !errors.Is(d.err, errBad) {
			t.Errorf("%+v", d)
		}
		if got, err := os.ReadFile(aside); err != nil || !slices.Equal(got, bad) {
			t.Errorf("%q, %v", got, err)
		}
		if got, err := os.ReadFile(strings.TrimSuffix(aside, ".bytes") + ".txt"); err != nil || string(got) != "bad record\n" {
			t.Errorf("%q, %v", got, err)
		}
	}
	// A copy of another length is replaced.
	if err := os.WriteFile(aside, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, damaged, err := refuse(t, dir, errBad); err != nil || damaged[0].aside != aside {
		t.Errorf("%+v, %v", damaged, err)
	}
	if got, err := os.ReadFile(aside); err != nil || !slices.Equal(got, bad) {
		t.Errorf("%q, %v", got, err)
	}
}

func TestLog_Open_StopErrorEndsTheReplay(t *testing.T) {
	dir := write(t, "00000007", frames("first", "bad", "last"))
	payloads, damaged, err := refuse(t, dir, stopError{errBad})
	if !errors.Is(err, errBad) || !slices.Equal(payloads, []string{"first"}) || damaged != nil {
		t.Errorf("%q, %+v, %v", payloads, damaged, err)
	}
	if want := fmt.Sprintf("record at byte %d: bad record", len(frames("first"))); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "00000007") {
		t.Errorf("%v, want %q", err, want)
	}
	if _, err := os.Stat(filepath.Join(dir, "aside")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a record was set aside: %v", err)
	}
}

func TestLog_Open_CopiesAreLimited(t *testing.T) {
	for _, more := range []int64{0, 1} {
		dir := write(t, "00000007", frames("bad"))
		if err := os.Mkdir(filepath.Join(dir, "aside"), 0o700); err != nil {
			t.Fatal(err)
		}
		full := filepath.Join(dir, "aside", "other.bytes")
		if err := os.WriteFile(full, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(full, asideBytesMax-int64(len(frames("bad")))+more); err != nil { // no block is written
			t.Fatal(err)
		}
		_, damaged, err := refuse(t, dir, errBad)
		if err != nil || len(damaged) != 1 || (damaged[0].aside != "") != (more == 0) || strings.Contains(damaged[0].err.Error(), "set aside: ") != (more > 0) || !errors.Is(damaged[0].err, errBad) {
			t.Errorf("%d bytes more than fit: %+v, %v", more, damaged, err)
		}
	}
}

func TestLog_Open_UnreadableSegmentIsMovedAside(t *testing.T) {
	t.Run("directory", func(t *testing.T) { movesAside(t, os.Mkdir) })
	// Opening it would block.
	t.Run("FIFO", func(t *testing.T) {
		movesAside(t, func(path string, mode os.FileMode) error { return syscall.Mkfifo(path, uint32(mode)) })
	})
}

func movesAside(t *testing.T, create func(path string, mode os.FileMode) error) {
	dir := t.TempDir()
	if err := create(filepath.Join(dir, "00000003"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "00000004"), frames("a"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, payloads, damaged := reopen(t, dir)
	if !slices.Equal(payloads, []string{"a"}) || len(damaged) != 1 || damaged[0].kind != unreadableSegment || damaged[0].aside != filepath.Join(dir, "aside", "3.segment") || damaged[0].err == nil {
		t.Fatalf("%q, %+v", payloads, damaged)
	}
	if _, err := os.Stat(damaged[0].aside); err != nil {
		t.Error(err)
	}
	if _, payloads, damaged = reopen(t, dir); !slices.Equal(payloads, []string{"a"}) || len(damaged) != 0 {
		t.Errorf("opened again: %q, %+v", payloads, damaged)
	}
}

// The reason may pass, such as a disk that is not mounted, or permissions. Then the segment is replayed.
func TestLog_Open_FailsWhileASegmentCannotBeOpened(t *testing.T) {
	dir, elsewhere := t.TempDir(), filepath.Join(t.TempDir(), "segment")
	if err := os.Symlink(elsewhere, filepath.Join(dir, "00000003")); err != nil {
		t.Fatal(err)
	}
	if _, damaged, err := openLog(files.Disk{}, dir, nil); !errors.Is(err, os.ErrNotExist) || len(damaged) > 0 {
		t.Fatalf("%v, %+v", err, damaged)
	}
	if err := os.WriteFile(elsewhere, frames("a"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, payloads, damaged := reopen(t, dir); !slices.Equal(payloads, []string{"a"}) || len(damaged) > 0 {
		t.Errorf("%q, %+v", payloads, damaged)
	}
}

func TestLog_Open_RecordsOfNoBytesOrTooManyAreDamage(t *testing.T) {
	header := func(size uint32) []byte { return binary.LittleEndian.AppendUint32(nil, size) }
	for name, b := range map[string][]byte{
		"no bytes":         append(header(0), make([]byte, 4)...),
		"longer":           append(header(5), make([]byte, 8)...),
		"beyond a limit":   append(header(recordMax+1), make([]byte, 8)...),
		"half a header":    header(1),
		"a wrong checksum": append(append(header(1), 1, 2, 3, 4), 'x'),
	} {
		_, payloads, damaged := reopen(t, write(t, "00000001", append(frames("a"), b...)))
		if !slices.Equal(payloads, []string{"a"}) || len(damaged) != 1 || damaged[0].kind != tornEnd || damaged[0].at != int64(len(frames("a"))) || damaged[0].bytes != int64(len(b)) || damaged[0].aside != "" {
			t.Errorf("%s: %q, %+v", name, payloads, damaged)
		}
		_, payloads, damaged = reopen(t, write(t, "00000001", slices.Concat(frames("a"), b, frames("b"))))
		if !slices.Equal(payloads, []string{"a", "b"}) || len(damaged) != 1 || damaged[0].kind != gapBefore || damaged[0].bytes != int64(len(b)) || damaged[0].aside == "" {
			t.Errorf("%s, before another: %q, %+v", name, payloads, damaged)
		}
	}
}

func TestLog_Append_SegmentIsFullAtItsSize(t *testing.T) {
	dir := t.TempDir()
	l, _, _ := reopen(t, dir)
	for _, tt := range []struct {
		size int64
		more uint64
	}{{segmentBytes - 1, 0}, {segmentBytes, 1}} {
		before := l.number
		l.size = tt.size
		if err := l.append(frames("a")); err != nil || l.number != before+tt.more {
			t.Errorf("%d bytes: segment %d after %d, %v", tt.size, l.number, before, err)
		}
	}
	if l.size != int64(len(frames("a"))) {
		t.Errorf("the new segment has %d bytes", l.size)
	}
}

func TestLog_Append_NumberThatExistsIsSkipped(t *testing.T) {
	dir := t.TempDir()
	l, _, _ := reopen(t, dir)
	first := l.number
	if err := os.WriteFile(l.path(first+1), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if n, err := l.cut(); !errors.Is(err, os.ErrExist) || n != 0 {
		t.Errorf("%d, %v", n, err)
	}
	if err := l.append(frames("a")); err != nil || l.number != first+2 {
		t.Errorf("segment %d after %d, %v", l.number, first, err)
	}
	if err := errors.Join(l.close(), l.close()); err != nil {
		t.Error(err)
	}
	if _, payloads, _ := reopen(t, dir); !slices.Equal(payloads, []string{"a"}) {
		t.Errorf("%q", payloads)
	}
}

func TestLog_Remove_RemovesSegmentsThroughANumber(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"00000001", "00000002", "00000003", "2", "x0000001"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := removeSegments(files.Disk{}, dir, 2); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 3 || entries[0].Name() != "00000003" {
		t.Errorf("%v, %v", entries, err)
	}
	if err := removeSegments(files.Disk{}, filepath.Join(dir, "none"), 2); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "00000001", "full"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "00000002"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := removeSegments(files.Disk{}, dir, 2); err == nil {
		t.Error("a segment that stays is no error")
	}
	if _, err := os.Stat(filepath.Join(dir, "00000002")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("one failure keeps the others: %v", err)
	}
}

func TestLog_Open_FailsWithoutADirectory(t *testing.T) {
	dir := write(t, "file", nil)
	if _, _, err := openLog(files.Disk{}, filepath.Join(dir, "file"), nil); err == nil {
		t.Error("a file is taken for a directory")
	}
}

// The payload of a damaged record may have the bytes of a record, and these were never appended.
func TestLog_Open_DamagedRecordIsSkippedAsAWhole(t *testing.T) {
	damaged := frames("a log: " + string(frames("inner")) + ", its end")
	damaged[headerBytes] ^= 1
	dir := write(t, "00000007", slices.Concat(frames("first"), damaged, frames("last")))
	payloads, found, err := refuse(t, dir, errBad)
	if err != nil || !slices.Equal(payloads, []string{"first", "last"}) {
		t.Errorf("%q, %v", payloads, err)
	}
	if len(found) != 1 || found[0].at != int64(len(frames("first"))) || found[0].bytes != int64(len(damaged)) {
		t.Errorf("%+v", found)
	}
}
