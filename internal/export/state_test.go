package export

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	vfs "github.com/ferula-io/ferula/internal/files"
	"github.com/ferula-io/ferula/test/crashfs"
)

var stateOptions = Options{Request: "test", StartMS: 1, EndMS: 1000, Resume: true}

func stateWindow(n int) done {
	return done{window: n, series: 1, samples: int64(10 * n), bytes: 3, name: noBlock}
}

// writeStates adds two windows, resumes, and adds two more. It returns how many were added,
// and the first error.
func writeStates(files vfs.FS, dir string) (added int, err error) {
	for range 2 {
		st, err := openState(files, dir, stateOptions, false)
		if err != nil {
			return added, err
		}
		for range 2 {
			if err := st.add(stateWindow(added)); err != nil {
				st.close()
				return added, err
			}
			added++
		}
		st.close()
	}
	return added, nil
}

// stateSurvivals are the possible remainders of unsynced changes.
func stateSurvivals() map[string]crashfs.Survival {
	all := map[string]crashfs.Survival{}
	for _, names := range []bool{false, true} {
		for _, content := range []crashfs.Content{crashfs.Lost, crashfs.Kept, crashfs.Half, crashfs.Zeroed} {
			all[fmt.Sprintf("names %t, content %d", names, content)] = crashfs.Survival{
				Names: func() bool { return names }, Content: func() crashfs.Content { return content },
			}
		}
	}
	return all
}

// After a power cut at any call an export resumes after its last added window.
func TestState_AddedWindowsSurviveAPowerCutAtEveryCall(t *testing.T) {
	resumed := 0
	for n := 1; ; n++ {
		disk := t.TempDir()
		files, err := crashfs.New(disk, func(c crashfs.Call) error {
			if c.Number == n {
				return crashfs.ErrCrashed
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		added, err := writeStates(files, filepath.Join(disk, "out.partial"))
		if err != nil && !errors.Is(err, crashfs.ErrCrashed) {
			t.Fatal(err)
		}
		calls := files.Calls()
		files.Crash()
		for survival, s := range stateSurvivals() {
			what := fmt.Sprintf("%s, %s", calls[len(calls)-1], survival)
			after := t.TempDir()
			if err := files.After(after, s); err != nil {
				t.Fatal(err)
			}
			st, err := openState(vfs.Disk{}, filepath.Join(after, "out.partial"), stateOptions, false)
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			for i, d := range st.done {
				if d != stateWindow(i) {
					t.Errorf("%s: window %d is %+v", what, i, d)
				}
			}
			if len(st.done) != added && len(st.done) != added+1 { // a window whose sync failed may be there
				t.Errorf("%s: %d windows of %d", what, len(st.done), added)
			}
			resumed += len(st.done)
			next := len(st.done)
			if err := st.add(stateWindow(next)); err != nil {
				t.Errorf("%s: %v", what, err)
			}
			st.close()
			if st, err = openState(vfs.Disk{}, st.dir, stateOptions, false); err != nil || len(st.done) != next+1 {
				t.Fatalf("%s: the window added after resuming: %v", what, err)
			}
			st.close()
		}
		if len(calls) < n {
			break // the whole script ran
		}
	}
	if resumed == 0 {
		t.Error("no window was there after any power cut")
	}
}

// A failed call fails the step, and earlier windows remain.
func TestState_FailedCallsAreReported(t *testing.T) {
	failed := errors.New("no space left")
	var ops []string
	for n := 1; ; n++ {
		disk := t.TempDir()
		files, err := crashfs.New(disk, func(c crashfs.Call) error {
			if c.Number == n {
				ops = append(ops, c.Op)
				return failed
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		dir := filepath.Join(disk, "out.partial")
		added, err := writeStates(files, dir)
		if len(files.Calls()) < n {
			if err != nil || added != 4 {
				t.Fatalf("%d, %v", added, err)
			}
			break
		}
		if !errors.Is(err, failed) {
			t.Fatalf("call %d: %v", n, err)
		}
		st, err := openState(vfs.Disk{}, dir, stateOptions, false)
		if err != nil || len(st.done) < added {
			t.Fatalf("call %d: %d windows of %d, %v", n, len(st.done), added, err)
		}
		st.close()
	}
	for _, op := range []string{"mkdir", "syncdir", "create", "write", "sync", "rename"} {
		if !slices.Contains(ops, op) {
			t.Errorf("no %s among the calls: %q", op, ops)
		}
	}
}

func TestOpenState_FolderIsLocked(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "out.partial")
	first, err := openState(vfs.Disk{}, dir, stateOptions, false)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := openState(vfs.Disk{}, dir, stateOptions, false); !errors.Is(err, ErrOptions) {
		t.Errorf("a second run: %v", err)
	}
	if err := first.add(stateWindow(0)); err != nil { // the refused run has not replaced the file
		t.Fatal(err)
	}
	first.close()
	if first, err = openState(vfs.Disk{}, dir, stateOptions, false); err != nil || len(first.done) != 1 {
		t.Fatalf("%v", err)
	}
	first.close()
	if err := os.WriteFile(filepath.Join(dir, "00000.part"), []byte("left over"), 0o600); err != nil {
		t.Fatal(err)
	}
	if first, err = openState(vfs.Disk{}, dir, stateOptions, false); err != nil {
		t.Fatal(err)
	}
	defer first.close()
	if _, err := os.Stat(filepath.Join(dir, "00000.part")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a part without a line stayed: %v", err)
	}
}

func TestRun_AFileInPlaceOfAFolderIsNamed(t *testing.T) {
	o := options(t, newFixture(1, false), CSV, 1)
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	o.Output = filepath.Join(file, "deep", "out.csv")
	if _, err := Run(context.Background(), o); !errors.Is(err, syscall.ENOTDIR) || !strings.Contains(err.Error(), file) {
		t.Errorf("%v", err)
	}
	if info, err := os.Stat(file); err != nil || info.Size() != 0 {
		t.Error(info, err)
	}
}
