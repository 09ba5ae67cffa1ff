package bucket

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/oklog/ulid/v2"
	"github.com/thanos-io/objstore"

	"github.com/ferula-io/ferula/metrics"
)

// profileBlocks creates directories that look like profile blocks.
func profileBlocks(t *testing.T, dir string, names ...string) {
	t.Helper()
	for _, name := range names {
		for _, file := range profileFiles {
			path := filepath.Join(dir, name, file)
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(name+file), 0o600)); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestProfileShipper_KilledAtAnyStepShipsEveryBlock(t *testing.T) {
	one, two := "anonymous/"+ulid.Make().String(), "team-a/"+ulid.Make().String()
	for _, half := range []bool{false, true} {
		for step := 1; ; step++ {
			dir, to := t.TempDir(), objstore.NewInMemBucket()
			profileBlocks(t, dir, one, two, "anonymous/tmp-1")
			_, err := NewProfileShipper(&faulty{Bucket: to, at: step, half: half}, ShipOptions{Dir: dir}, quiet, metrics.NewSet()).Sync(context.Background())
			if err == nil {
				if step < 8 {
					t.Fatalf("only %d steps", step)
				}
				break
			}
			if !errors.Is(err, errFault) {
				t.Fatal(err)
			}
			s := NewProfileShipper(to, ShipOptions{Dir: dir}, quiet, metrics.NewSet())
			if _, err := s.Sync(context.Background()); err != nil {
				t.Fatal(err)
			}
			if n, err := s.Sync(context.Background()); n != 0 || err != nil {
				t.Errorf("%d blocks are uploaded again, %v", n, err)
			}
			all := objects(t, to)
			if len(all) != 4 {
				t.Fatalf("step %d: %s", step, names(all))
			}
			for name, text := range all {
				rest, ok := strings.CutPrefix(name, "profiles/")
				if want := filepath.Dir(rest) + filepath.Base(rest); !ok || string(text) != want {
					t.Errorf("step %d: %s is %q", step, name, text)
				}
			}
		}
	}
}

// A compactor may have replaced and deleted a block that is still on the disk.
func TestProfileShipper_ReplacedBlocksAreNotUploaded(t *testing.T) {
	replaced, other := ulid.Make(), ulid.Make()
	dir, to, ctx := t.TempDir(), objstore.NewInMemBucket(), context.Background()
	profileBlocks(t, dir, "a/"+replaced.String(), "a/"+other.String())
	s := NewProfileShipper(to, ShipOptions{Dir: dir}, quiet, metrics.NewSet())
	listed := false
	s.SkipReplaced(func(tenant string, id ulid.ULID) (bool, error) {
		if !listed {
			return false, errFault
		}
		return tenant == "a" && id == replaced, nil
	})
	if n, err := s.Sync(ctx); n != 0 || err != nil || s.waiting.Get() != 2 || len(to.Objects()) != 0 {
		t.Errorf("before the bucket is listed: %d, %v, %v wait", n, err, s.waiting.Get())
	}
	listed = true
	for want := 1; want >= 0; want-- {
		if n, err := s.Sync(ctx); n != want || err != nil || s.waiting.Get() != 0 {
			t.Errorf("%d, %v, %v wait", n, err, s.waiting.Get())
		}
	}
	if all := objects(t, to); len(all) != 2 || all[ProfileBlock("a", other)+"/index"] == nil {
		t.Error(names(all))
	}
}

func TestProfileShipper_WithoutProfilesShipsNothing(t *testing.T) {
	s := NewProfileShipper(objstore.NewInMemBucket(), ShipOptions{Dir: filepath.Join(t.TempDir(), "none")}, quiet, metrics.NewSet())
	if n, err := s.Sync(context.Background()); n != 0 || err != nil {
		t.Error(n, err)
	}
}

// A directory that cannot be listed is an error, not a directory without blocks. The tests may run
// as a user that may read everything, so the directory's path is longer than the system allows.
func TestProfileShipper_UnreadableTenantDirectoryIsAnError(t *testing.T) {
	dir := t.TempDir()
	for len(dir) < 4000 {
		dir = filepath.Join(dir, strings.Repeat("d", min(200, 4089-len(dir))))
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Skip(err)
		}
	}
	t.Chdir(dir)
	if err := os.Mkdir("a-tenant-with-a-name-that-is-beyond-the-limit-of-paths-together-with-the-folders-it-is-in-"+strings.Repeat("x", 60), 0o700); err != nil {
		t.Fatal(err)
	}
	s := NewProfileShipper(objstore.NewInMemBucket(), ShipOptions{Dir: dir}, quiet, metrics.NewSet())
	if found, err := s.blocks(); !errors.Is(err, syscall.ENAMETOOLONG) {
		t.Errorf("%d blocks, %v", len(found), err)
	}
}
