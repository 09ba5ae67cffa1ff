// Package vfs is the file calls that make data durable, as an interface.
//
// A file's content is durable once Sync has returned, and its name once SyncDir of
// its folder has. Stores that promise durability create, rename and remove through
// an FS, so that tests can take away what was not synced, or let any call fail
// (crashfs). Reading is not part of it: readers use package os.
package vfs

import (
	"errors"
	"io"
	"os"
	"path/filepath"
)

// File is a file that is being written.
type File interface {
	io.Writer
	Truncate(size int64) error
	Seek(offset int64, whence int) (int64, error)
	Sync() error
	Close() error
}

// FS is the calls that change folders.
type FS interface {
	// Create makes a file that must not exist.
	Create(path string) (File, error)
	Mkdir(path string) error
	Rename(from, to string) error
	Remove(path string) error
	RemoveAll(path string) error
	// SyncDir makes the names in a folder durable.
	SyncDir(path string) error
}

// Disk is the real file system.
type Disk struct{}

var _ FS = Disk{}

// Create implements FS.
func (Disk) Create(path string) (File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	return f, nil
}

// Mkdir implements FS.
func (Disk) Mkdir(path string) error { return os.Mkdir(path, 0o755) }

// Rename implements FS.
func (Disk) Rename(from, to string) error { return os.Rename(from, to) }

// Remove implements FS.
func (Disk) Remove(path string) error { return os.Remove(path) }

// RemoveAll implements FS.
func (Disk) RemoveAll(path string) error { return os.RemoveAll(path) }

// SyncDir implements FS.
func (Disk) SyncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// MakeDir makes a folder in one that exists, unless it is there already, and makes
// its name durable in either case: whoever made it may have crashed before that.
func MakeDir(fs FS, path string) error {
	if err := fs.Mkdir(path); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return fs.SyncDir(filepath.Dir(path))
}

// WriteFile makes a whole file, content and name durable. What is there under the
// name is replaced at once or not at all.
func WriteFile(fs FS, path string, content []byte) error {
	tmp := path + ".tmp"
	if err := removeIfThere(fs, tmp); err != nil {
		return err
	}
	f, err := fs.Create(tmp)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = fs.Rename(tmp, path)
	}
	if err != nil {
		return errors.Join(err, removeIfThere(fs, tmp))
	}
	return fs.SyncDir(filepath.Dir(path))
}

func removeIfThere(fs FS, path string) error {
	if err := fs.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// Discard removes a folder with its content such that a crash leaves it whole, or
// under the temporary name, or nothing. Whatever is under the temporary name is
// removed as well.
func Discard(fs FS, path, temporary string) error {
	if err := fs.RemoveAll(temporary); err != nil {
		return err
	}
	if err := fs.Rename(path, temporary); err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return err
	}
	if err := fs.SyncDir(filepath.Dir(path)); err != nil {
		return err // what is in it stays until the name is known to be gone
	}
	return fs.RemoveAll(temporary)
}
