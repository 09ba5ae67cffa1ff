package bucket

import (
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
// gone: its file system is no longer mounted. Without this error the provider would list no
// blocks, and would write new blocks to the disk under the mount point.
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
	if f.device != "" && f.device != device && isEmpty(f.dir) {
		return fmt.Errorf("%w: %s is empty and on another file system than before", ErrDirectoryLost, f.dir)
	}
	f.device = device
	return nil
}

func isEmpty(dir string) bool {
	d, err := os.Open(dir)
	if err != nil {
		return false
	}
	//lint:ignore errcheck the directory is only read
	defer d.Close()
	_, err = d.Readdirnames(1)
	return errors.Is(err, io.EOF)
}

// Iter implements objstore.Bucket.
func (f *directory) Iter(ctx context.Context, dir string, do func(string) error, o ...objstore.IterOption) error {
	if err := f.check(); err != nil {
		return err
	}
	return f.Bucket.Iter(ctx, dir, do, o...)
}

// IterWithAttributes implements objstore.Bucket.
func (f *directory) IterWithAttributes(ctx context.Context, dir string, do func(objstore.IterObjectAttributes) error, o ...objstore.IterOption) error {
	if err := f.check(); err != nil {
		return err
	}
	return f.Bucket.IterWithAttributes(ctx, dir, do, o...)
}

// regular returns an error if an object exists and is no regular file: to open a FIFO would block until another process opens
// it, whatever the context.
func (f *directory) regular(name string) error {
	info, err := os.Stat(filepath.Join(f.dir, name))
	if err == nil && !info.Mode().IsRegular() && !info.IsDir() {
		return fmt.Errorf("%w: %s is not a regular file", ErrCorrupt, name)
	}
	return nil // the provider returns the error, or the object does not exist yet
}

// Get implements objstore.Bucket.
func (f *directory) Get(ctx context.Context, name string) (io.ReadCloser, error) {
	if err := f.regular(name); err != nil {
		return nil, err
	}
	return f.Bucket.Get(ctx, name)
}

// GetRange implements objstore.Bucket.
func (f *directory) GetRange(ctx context.Context, name string, off, length int64) (io.ReadCloser, error) {
	if err := f.regular(name); err != nil {
		return nil, err
	}
	return f.Bucket.GetRange(ctx, name, off, length)
}

// Upload implements objstore.Bucket.
func (f *directory) Upload(ctx context.Context, name string, r io.Reader, o ...objstore.ObjectUploadOption) error {
	if err := errors.Join(f.check(), f.regular(name)); err != nil {
		return err
	}
	if err := f.Bucket.Upload(ctx, name, r, o...); err != nil {
		return err
	}
	return f.check() // remembers the file system of a directory that this upload created
}
