package bucket

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/thanos-io/objstore"
)

// openBelow returns the files below a directory that this process has open.
func openBelow(t *testing.T, dir string) (names []string) {
	t.Helper()
	const descriptors = "/proc/self/fd"
	entries, err := os.ReadDir(descriptors)
	if err != nil {
		t.Skip("the open files are not listed:", err)
	}
	for _, e := range entries {
		if name, err := os.Readlink(filepath.Join(descriptors, e.Name())); err == nil && strings.HasPrefix(name, dir) {
			names = append(names, name)
		}
	}
	return names
}

func TestShipper_ClosesTheFilesOfEachBlock(t *testing.T) {
	dir, to := t.TempDir(), objstore.NewInMemBucket()
	makeBlock(t, dir, 0)
	if _, err := newShipper(t, &faulty{Bucket: to, at: 3, half: true}, dir, nil).Sync(context.Background()); err == nil {
		t.Error("the fault had no effect")
	}
	if names := openBelow(t, dir); len(names) > 0 {
		t.Errorf("open after a failure: %q", names)
	}
	mustSync(t, newShipper(t, to, dir, nil), 1)
	if names := openBelow(t, dir); len(names) > 0 {
		t.Errorf("open after an upload: %q", names)
	}
}
