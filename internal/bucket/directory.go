package bucket

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/thanos-io/objstore"
	"github.com/thanos-io/objstore/providers/filesystem"
)

// ErrDirectoryLost is returned by a FILESYSTEM bucket whose directory is a file, or existed before and is
// gone. Usually the file system of the directory is no longer mounted. Without this error the provider
// would list no blocks, and would write new blocks to the disk under the mount point.
var ErrDirectoryLost = errors.New("the directory of the bucket is gone")

// directory is a bucket in a local directory. A directory that has never existed is an empty
// bucket.
type directory struct {
	*filesystem.Bucket
	dir string

	mu     sync.Mutex
	device string // of the file system; "": the directory was not seen yet
}

func newDirectory(dir string) (*directory, error) {
	b, err := filesystem.NewBucket(dir)
	if err != nil {
		return nil, err
	}
	return &directory{Bucket: b, dir: dir}, nil
}

// check returns ErrDirectoryLost if the directory has vanished, or if it is empty and on another
// file system than before.
func (f *directory) check() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	info, err := os.Stat(f.dir)
	if errors.Is(err, fs.ErrNotExist) && f.device != "" {
		return fmt.Errorf("%w: %s does not exist any more", ErrDirectoryLost, f.dir)
	}
	if err != nil {
		return nil // the provider returns the error, or the directory does not exist yet
	}
	if !info.IsDir() {
		return fmt.Errorf("%w: %s is not a directory", ErrDirectoryLost, f.dir) // the provider would list nothing
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nil
	}
	device := fmt.Sprint(stat.Dev)
	if f.device != "" && f.device != device {
		if empty, err := isEmptyDir(f.dir); err == nil && empty {
			return fmt.Errorf("%w: %s is empty and on another file system than before", ErrDirectoryLost, f.dir)
		}
	}
	f.device = device
	return nil
}

// Iter implements objstore.Bucket.
func (f *directory) Iter(ctx context.Context, dir string, do func(string) error, o ...objstore.IterOption) error {
	if err := f.check(); err != nil {
		return err
	}
	entries, err := f.entries(ctx, dir)
	if err != nil {
		return err
	}
	if objstore.ApplyIterOptions(o...).Recursive {
		return f.walk(ctx, dir, entries, do)
	}
	return f.list(dir, entries, do)
}

// entries returns the entries of a directory: none if the directory does not exist, or is a file.
func (f *directory) entries(ctx context.Context, dir string) ([]os.DirEntry, error) {
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	abs := filepath.Join(f.dir, dir)
	info, err := os.Stat(abs)
	if err == nil && !info.IsDir() {
		return nil, nil
	}
	var entries []os.DirEntry
	if err == nil {
		entries, err = os.ReadDir(abs)
	}
	if errors.Is(err, fs.ErrNotExist) { // it may have been deleted meanwhile, or all of the bucket is gone
		return nil, f.check()
	}
	return entries, err
}

// list lists one directory as the provider does: sorted, without empty directories. It differs from the provider in
// two ways. The provider opens and reads each directory to see whether it is empty, which took most of the time to
// list a bucket with many blocks; list calls isEmptyDir. The provider fails at a directory without permission to
// read it, such as lost+found in the root of a disk; list lists this directory, and only a caller that reads its
// objects gets an error.
func (f *directory) list(dir string, entries []os.DirEntry, do func(string) error) error {
	for _, e := range entries {
		name := filepath.Join(dir, e.Name())
		if e.IsDir() {
			empty, err := isEmptyDir(filepath.Join(f.dir, name))
			if err != nil && !errors.Is(err, fs.ErrPermission) {
				return err
			}
			if empty {
				continue
			}
			name += objstore.DirDelim
		}
		if err := do(name); err != nil {
			return err
		}
	}
	return nil
}

// walk lists a directory and the directories below it as the provider does. Of a directory without permission to
// read it, walk lists the name, with a slash at its end.
func (f *directory) walk(ctx context.Context, dir string, entries []os.DirEntry, do func(string) error) error {
	for _, e := range entries {
		name := filepath.Join(dir, e.Name())
		if e.IsDir() {
			inner, err := f.entries(ctx, name)
			if err == nil {
				err = f.walk(ctx, name, inner, do)
			} else if errors.Is(err, fs.ErrPermission) {
				err = do(name + objstore.DirDelim)
			}
			if err != nil {
				return err
			}
			continue
		}
		if err := do(name); err != nil {
			return err
		}
	}
	return nil
}

// isEmptyDir reports whether a directory has no entries, or was deleted. A directory with more than two hard links
// has a subdirectory, so isEmptyDir does not open it. The directory of each block has one: chunks. Some file systems
// do not count these links; there isEmptyDir reads the directory.
func isEmptyDir(name string) (bool, error) {
	var stat syscall.Stat_t
	if err := syscall.Stat(name, &stat); err == nil && stat.Nlink > 2 {
		return false, nil
	}
	d, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	//lint:ignore errcheck the directory is only read
	defer d.Close()
	_, err = d.Readdirnames(1)
	if errors.Is(err, io.EOF) || errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	return false, err
}

// IsAccessDeniedErr implements objstore.Bucket. The provider knows no such errors.
func (f *directory) IsAccessDeniedErr(err error) bool { return errors.Is(err, fs.ErrPermission) }

func (f *directory) IterWithAttributes(ctx context.Context, dir string, do func(objstore.IterObjectAttributes) error,
	o ...objstore.IterOption) error {
	if err := f.check(); err != nil {
		return err
	}
	return f.Bucket.IterWithAttributes(ctx, dir, do, o...)
}

// regular returns an error if an object does not exist, or is neither a regular file nor a directory. Opening a FIFO
// would block until another process opens it, even if the context is done.
func (f *directory) regular(name string) error {
	info, err := os.Stat(filepath.Join(f.dir, name))
	if err == nil && !info.Mode().IsRegular() && !info.IsDir() {
		return fmt.Errorf("%w: %s is not a regular file", ErrCorrupt, name)
	}
	if errors.Is(err, fs.ErrNotExist) { // a list that began before the directory was lost must not miss its objects
		return cmp.Or(f.check(), err)
	}
	return err
}

// Get implements objstore.Bucket. For a missing object it makes one system call; the provider would also record a
// stack trace. Missing objects are frequent: a store looks for a deletion mark of each block, and most blocks have
// none.
func (f *directory) Get(ctx context.Context, name string) (io.ReadCloser, error) {
	return f.GetRange(ctx, name, 0, -1)
}

func (f *directory) GetRange(ctx context.Context, name string, off, length int64) (io.ReadCloser, error) {
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err := f.regular(name); err != nil {
		return nil, err
	}
	return f.Bucket.GetRange(ctx, name, off, length)
}

func (f *directory) Upload(ctx context.Context, name string, r io.Reader, o ...objstore.ObjectUploadOption) error {
	if err := f.check(); err != nil {
		return err
	}
	// of other errors, the provider creates a missing object and returns the rest
	if err := f.regular(name); errors.Is(err, ErrCorrupt) {
		return err
	}
	if err := f.Bucket.Upload(ctx, name, r, o...); err != nil {
		return err
	}
	return f.check() // remembers the file system of a directory that this upload created
}
