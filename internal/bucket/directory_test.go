package bucket

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/thanos-io/objstore"
)

func openTestDirectory(t *testing.T, dir string) objstore.Bucket {
	t.Helper()
	b, err := Open([]byte("type: FILESYSTEM\nconfig: {directory: "+dir+"}\nprefix: eu\n"), "test", quiet, prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// entriesOf returns the number of entries, and the errors of a list and of an upload.
func entriesOf(b objstore.Bucket) (n int, list, upload error) {
	list = b.Iter(context.Background(), "", func(string) error { n++; return nil })
	return n, list, b.Upload(context.Background(), "new/x", strings.NewReader("x"))
}

func TestDirectory_ThatNeverExistedIsAnEmptyBucket(t *testing.T) {
	b := openTestDirectory(t, filepath.Join(t.TempDir(), "later"))
	for i, want := range []int{0, 1} {
		if n, list, upload := entriesOf(b); n != want || list != nil || upload != nil {
			t.Errorf("%d: %d entries, %v, %v", i, n, list, upload)
		}
	}
}

// The provider lists nothing then.
func TestDirectory_ThatIsAFileIsAnError(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, list, upload := entriesOf(openTestDirectory(t, file)); !errors.Is(list, ErrDirectoryLost) || !errors.Is(upload, ErrDirectoryLost) {
		t.Errorf("%v, %v", list, upload)
	}
}

// Without the check the store would serve nothing, without a warning, and a shipper would
// list blocks as shipped that are not in the bucket.
func TestDirectory_ThatVanishesIsAnError(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "mount")
	b := openTestDirectory(t, dir)
	if _, list, upload := entriesOf(b); list != nil || upload != nil {
		t.Fatal(list, upload)
	}
	if err := os.Rename(dir, dir+".away"); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, list, upload := entriesOf(b); !errors.Is(list, ErrDirectoryLost) || !errors.Is(upload, ErrDirectoryLost) {
			t.Errorf("%v, %v", list, upload)
		}
	}
	if err := os.Rename(dir+".away", dir); err != nil {
		t.Fatal(err)
	}
	if n, list, upload := entriesOf(b); n != 1 || list != nil || upload != nil {
		t.Errorf("%d entries, %v, %v", n, list, upload)
	}
}

func TestDirectory_WhoseFileSystemIsUnmountedIsAnError(t *testing.T) {
	dir := t.TempDir()
	mount := func() {
		t.Helper()
		if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
			t.Skipf("mount a file system for the test: %v", err)
		}
	}
	unmount := func() {
		t.Helper()
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Fatal(err)
		}
	}
	mount()
	b := openTestDirectory(t, dir)
	_, list, upload := entriesOf(b)
	unmount()
	if list != nil || upload != nil {
		t.Fatal(list, upload)
	}
	for range 2 {
		if _, list, upload := entriesOf(b); !errors.Is(list, ErrDirectoryLost) || !errors.Is(upload, ErrDirectoryLost) {
			t.Errorf("%v, %v", list, upload)
		}
	}
	mount() // another file system, which is not empty
	defer unmount()
	if err := os.Mkdir(filepath.Join(dir, "eu"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, list, upload := entriesOf(b); list != nil || upload != nil {
		t.Error(list, upload)
	}
}

// A link in place of a mount needs no privilege.
func TestDirectory_OnAnotherFileSystemThatIsEmptyIsAnError(t *testing.T) {
	one, other := t.TempDir(), t.TempDir()
	if shared, err := os.MkdirTemp("/dev/shm", "bucket"); err == nil {
		t.Cleanup(func() { _ = os.RemoveAll(shared) })
		other = shared
	}
	device := func(dir string) uint64 {
		t.Helper()
		var stat syscall.Stat_t
		if err := syscall.Stat(dir, &stat); err != nil {
			t.Fatal(err)
		}
		return uint64(stat.Dev)
	}
	if device(one) == device(other) {
		t.Skip("there is one file system only")
	}
	dir := filepath.Join(t.TempDir(), "link")
	point := func(to string) {
		t.Helper()
		_ = os.Remove(dir)
		if err := os.Symlink(to, dir); err != nil {
			t.Fatal(err)
		}
	}
	point(one)
	b := openTestDirectory(t, dir)
	if _, list, upload := entriesOf(b); list != nil || upload != nil {
		t.Fatal(list, upload)
	}
	point(other)
	for range 2 {
		if _, list, upload := entriesOf(b); !errors.Is(list, ErrDirectoryLost) || !errors.Is(upload, ErrDirectoryLost) {
			t.Errorf("%v, %v", list, upload)
		}
	}
	if entries, err := os.ReadDir(other); err != nil || len(entries) > 0 {
		t.Errorf("the other file system has %v, %v", entries, err)
	}
	if err := os.Mkdir(filepath.Join(other, "eu"), 0o700); err != nil { // moved on purpose
		t.Fatal(err)
	}
	if _, list, upload := entriesOf(b); list != nil || upload != nil {
		t.Error(list, upload)
	}
}

// A list and a missing object must be as those of the provider, which is slow at both.
func TestDirectory_ListIsThatOfTheProvider(t *testing.T) {
	dir := t.TempDir()
	for _, sub := range []string{"empty", "files", "sub/empty", "sub/full", "z"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{"a", "files/1", "files/2", "sub/full/x", "z/y"} {
		if err := os.WriteFile(filepath.Join(dir, file), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("files", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	ours, err := newDirectory(dir)
	if err != nil {
		t.Fatal(err)
	}
	list := func(b objstore.BucketReader, sub string, o ...objstore.IterOption) (names []string) {
		if err := b.Iter(t.Context(), sub, func(name string) error { names = append(names, name); return nil }, o...); err != nil {
			t.Fatal(err)
		}
		return names
	}
	for _, sub := range []string{"", "files", "files/", "sub", "sub/empty", "missing", "a", "link"} {
		for _, o := range [][]objstore.IterOption{nil, {objstore.WithRecursiveIter()}} {
			if got, want := list(ours, sub, o...), list(ours.Bucket, sub, o...); !slices.Equal(got, want) {
				t.Errorf("%q, %d options: %q, want %q", sub, len(o), got, want)
			}
		}
	}
	stop := errors.New("stop")
	if err := ours.Iter(t.Context(), "", func(string) error { return stop }); !errors.Is(err, stop) {
		t.Error(err)
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	if err := ours.Iter(canceled, "", func(string) error { return nil }); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if _, err := ours.Get(canceled, "a"); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// A disk of its own has a directory lost+found, which only root may read. It must not keep a store from its blocks.
func TestDirectory_ListHasDirectoriesThatMustNotBeRead(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "eu")
	for _, sub := range []string{"block", "lost+found"} {
		if err := errors.Join(os.MkdirAll(filepath.Join(dir, sub), 0o755), os.WriteFile(filepath.Join(dir, sub, "meta.json"), nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	denied := filepath.Join(dir, "lost+found")
	if err := os.Chmod(denied, 0); err != nil {
		t.Fatal(err)
	}
	b := openTestDirectory(t, root)
	var names []string
	var list, get error
	withoutRoot(t, func() {
		list = b.Iter(t.Context(), "", func(name string) error { names = append(names, name); return nil })
		_, get = b.Get(t.Context(), "lost+found/meta.json")
	})
	if list != nil || !slices.Equal(names, []string{"block/", "lost+found/"}) {
		t.Errorf("%q, %v", names, list)
	}
	if get == nil || !b.IsAccessDeniedErr(get) || b.IsObjNotFoundErr(get) {
		t.Errorf("%v is not an error of access", get)
	}
	if err := os.Chmod(denied, 0o700); err != nil { // so that it can be removed
		t.Error(err)
	}
}

// withoutRoot calls f on a thread that may not read what the modes of files deny, also if this process runs as root. The owner of
// the files stays the same, so it reaches a directory for temporary files that is closed to others.
func withoutRoot(t *testing.T, f func()) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		err := dropCapabilities(1<<capDACOverride | 1<<capDACReadSearch)
		if err == nil {
			f()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// Capabilities to read files in spite of their modes, and the version of capget and capset: see capabilities(7), capget(2).
const (
	capDACOverride   = 1
	capDACReadSearch = 2
	capVersion3      = 0x20080522
)

// dropCapabilities makes capabilities of the calling thread ineffective.
func dropCapabilities(mask uint32) error {
	header := struct {
		version uint32
		pid     int32
	}{version: capVersion3}
	var data [2]struct{ effective, permitted, inheritable uint32 }
	for _, call := range []uintptr{syscall.SYS_CAPGET, syscall.SYS_CAPSET} {
		if _, _, errno := syscall.RawSyscall(call, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&data)), 0); errno != 0 {
			return errno
		}
		data[0].effective &^= mask
	}
	return nil
}

func TestDirectory_MissingObjectIsNotFound(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "eu", "block"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "eu", "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	b := openTestDirectory(t, dir)
	for name, missing := range map[string]bool{"block/deletion-mark.json": true, "none/meta.json": true, "file/meta.json": false} {
		_, whole := b.Get(t.Context(), name)
		_, part := b.GetRange(t.Context(), name, 1, 2)
		for _, err := range []error{whole, part} {
			if err == nil || b.IsObjNotFoundErr(err) != missing {
				t.Errorf("%s: %v, want it missing: %t", name, err, missing)
			}
		}
	}
}

// A list that began before the directory was lost would otherwise find that the blocks have no meta.json, and a store
// would no longer serve them.
func TestDirectory_LostDuringAListIsAnErrorOfItsReads(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "bucket")
	if err := os.MkdirAll(filepath.Join(dir, "block", "chunks"), 0o755); err != nil {
		t.Fatal(err)
	}
	b, err := newDirectory(dir)
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	if _, err := b.Get(ctx, "block/meta.json"); !b.IsObjNotFoundErr(err) {
		t.Errorf("an object that does not exist: %v", err)
	}
	if err := b.Iter(ctx, "", func(string) error { return os.Rename(dir, dir+".away") }); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Get(ctx, "block/meta.json"); !errors.Is(err, ErrDirectoryLost) || b.IsObjNotFoundErr(err) {
		t.Errorf("an object: %v", err)
	}
}
