package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ferula-io/ferula/internal/files"
	"github.com/ferula-io/ferula/internal/files/crashfs"
)

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

func TestLog_Append_ErrorOfASegmentThatCannotBeCutBackHasBothReasons(t *testing.T) {
	dir, fail := t.TempDir(), true
	l, _, _ := reopen(t, dir)
	l.file = stubborn{l.file, &fail}
	err := l.append(frames("a"))
	if !errors.Is(err, errDisk) || !strings.Contains(err.Error(), ": cut back: ") || l.file != nil {
		t.Errorf("%v", err)
	}
}

// The number of the segment that Cut closes has all records appended before.
func TestLog_Cut_ReturnsTheClosedSegment(t *testing.T) {
	dir := t.TempDir()
	l, _, _ := reopen(t, dir)
	before := l.number
	if err := l.append(frames("a")); err != nil {
		t.Fatal(err)
	}
	if n, err := l.cut(); err != nil || n != before || l.number != before+1 || l.size != 0 {
		t.Errorf("%d, %v; now segment %d of %d bytes, before %d", n, err, l.number, l.size, before)
	}
}
