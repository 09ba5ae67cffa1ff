package bucket

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"github.com/oklog/ulid/v2"

	"github.com/ferula-io/ferula/test/crashfs"
)

// After a power cut at any call the file has the last written list, or the one that was
// being written.
func TestWriteState_ListSurvivesAPowerCutAtEveryCall(t *testing.T) {
	lists := [][]ulid.ULID{nil, {ulid.Make()}, {ulid.Make(), ulid.Make()}, {ulid.Make()}}
	for n := 1; ; n++ {
		dir := t.TempDir()
		files, err := crashfs.New(dir, func(c crashfs.Call) error {
			if c.Number == n {
				return crashfs.ErrCrashed
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		written := 0 // index of the last written list; the first is that of no file
		for _, list := range lists[1:] {
			if err := writeState(files, filepath.Join(dir, "thanos.shipper.json"), list); err != nil {
				break
			}
			written++
		}
		calls := files.Calls()
		files.Crash()
		for _, names := range []bool{false, true} {
			for _, content := range []crashfs.Content{crashfs.Lost, crashfs.Kept, crashfs.Half, crashfs.Zeroed} {
				what := fmt.Sprintf("%s, names %t, content %d", calls[len(calls)-1], names, content)
				after := t.TempDir()
				survival := crashfs.Survival{Names: func() bool { return names }, Content: func() crashfs.Content { return content }}
				if err := files.After(after, survival); err != nil {
					t.Fatal(err)
				}
				got, err := readState(filepath.Join(after, "thanos.shipper.json"))
				if err != nil {
					t.Fatalf("%s: %v", what, err)
				}
				if !slices.Equal(got, lists[written]) && !slices.Equal(got, lists[min(written+1, len(lists)-1)]) {
					t.Errorf("%s: %v, %d lists were written", what, got, written)
				}
			}
		}
		if len(calls) < n {
			if written != len(lists)-1 {
				t.Fatal("not every list was written")
			}
			return
		}
	}
}

func TestWriteState_FailureKeepsTheOldList(t *testing.T) {
	full := errors.New("no space left")
	for _, op := range []string{"create", "write", "sync", "rename"} {
		dir, failing := t.TempDir(), false
		files, err := crashfs.New(dir, func(c crashfs.Call) error {
			if failing && c.Op == op {
				return full
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		path, old := filepath.Join(dir, "thanos.shipper.json"), []ulid.ULID{ulid.Make()}
		if err := writeState(files, path, old); err != nil {
			t.Fatal(err)
		}
		failing = true
		if err := writeState(files, path, nil); !errors.Is(err, full) {
			t.Errorf("%s: %v", op, err)
		}
		failing = false
		if ids, err := readState(path); err != nil || !slices.Equal(ids, old) {
			t.Errorf("%s: the old list is gone: %v, %v", op, ids, err)
		}
		if err := writeState(files, path, nil); err != nil {
			t.Errorf("%s: the next list: %v", op, err)
		}
	}
}
