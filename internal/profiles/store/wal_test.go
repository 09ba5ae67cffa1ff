package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/ferula-io/ferula/internal/files"
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
	closed, err := l.cut()
	if err != nil {
		t.Fatal(err)
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
		}
	}
	if err := l.close(); err != nil {
		t.Fatal(err)
	}
	if _, payloads, _ := reopen(t, dir); !slices.Equal(payloads, []string{"record 0", "record 2", "record 4"}) {
		t.Errorf("%v", payloads)
	}
}
