// Package files is an interface to the file system calls that make data durable.
//
// The content of a file is durable after Sync, and its name after SyncDir of its directory.
// Stores create, rename and remove files through an FS, so that tests can drop unsynced data
// or fail any call (test/crashfs). Reading is not part of the interface: readers use
// package os.
package files

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// ErrLocked is the error of LockDir if the directory is locked already.
var ErrLocked = errors.New("another process uses this directory")

// File is a file open for writing.
type File interface {
	io.Writer
	Truncate(size int64) error
	Seek(offset int64, whence int) (int64, error)
	Sync() error
	Close() error
}

// FS contains the calls that change directories.
type FS interface {
	// Create creates a file, which must not exist.
	Create(path string) (File, error)
	Mkdir(path string) error
	Rename(from, to string) error
	Remove(path string) error
	RemoveAll(path string) error
	// SyncDir makes the names in a directory durable.
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

// MakeDir creates a directory in an existing parent, unless it exists, and makes its name
// durable in both cases: the process that created it may have crashed before SyncDir.
func MakeDir(fs FS, path string) error {
	if err := fs.Mkdir(path); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return fs.SyncDir(filepath.Dir(path))
}

// WriteFile writes a whole file and makes content and name durable. An existing file is
// replaced atomically.
func WriteFile(fs FS, path string, content []byte) error {
	return WriteFileWith(fs, path, func(f File) error {
		_, err := f.Write(content)
		return err
	})
}

// WriteFileWith is WriteFile for content that write writes. If write fails, the file stays as it was.
func WriteFileWith(fs FS, path string, write func(File) error) error {
	tmp := path + ".tmp"
	if err := removeIfExists(fs, tmp); err != nil {
		return err
	}
	f, err := fs.Create(tmp)
	if err != nil {
		return err
	}
	if err = write(f); err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = fs.Rename(tmp, path)
	}
	if err != nil {
		return errors.Join(err, removeIfExists(fs, tmp))
	}
	return fs.SyncDir(filepath.Dir(path))
}

// ErrIrregular is the error of ReadFile for a directory, a FIFO, a socket or a device.
var ErrIrregular = errors.New("not a regular file")

// ReadFile reads a regular file. Opening a FIFO would block until another process writes to the FIFO.
func ReadFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: %w", path, ErrIrregular)
	}
	return os.ReadFile(path)
}

func removeIfExists(fs FS, path string) error {
	if err := fs.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// Space returns the free bytes and the size of the file system of path. The free bytes are those that an unprivileged
// process can use. The size is 0 if the file system does not report it.
func Space(path string) (free, size int64, err error) {
	var stat syscall.Statfs_t
	if err := syscall.Statfs(path, &stat); err != nil {
		return 0, 0, fmt.Errorf("free space of %s: %w", path, err)
	}
	return int64(stat.Bavail) * int64(stat.Bsize), int64(stat.Blocks) * int64(stat.Bsize), nil
}

// LockDir locks a directory against other processes until the returned value is closed, or
// this process ends. It creates no file. ErrLocked is returned if the directory is locked
// already.
func LockDir(path string) (io.Closer, error) {
	d, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(d.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		if errors.Is(err, syscall.EWOULDBLOCK) {
			err = ErrLocked
		}
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), d.Close())
	}
	return d, nil
}

// TempDir makes a directory in parent, "" for the system's temporary one, which remove removes. It first removes those
// with the same prefix that killed processes have left: nobody locks them. Where nothing can be locked they stay.
func TempDir(parent, prefix string) (path string, remove func() error, err error) {
	parent = cmp.Or(parent, os.TempDir())
	entries, _ := os.ReadDir(parent) // what cannot be listed or removed is no reason to fail
	for _, entry := range entries {
		if !entry.IsDir() || !strings.HasPrefix(entry.Name(), prefix) {
			continue
		}
		if info, err := entry.Info(); err != nil || time.Since(info.ModTime()) < time.Minute {
			continue // a process may be about to lock it
		}
		left := filepath.Join(parent, entry.Name())
		if lock, err := LockDir(left); err == nil {
			_ = errors.Join(os.RemoveAll(left), lock.Close())
		}
	}
	if path, err = os.MkdirTemp(parent, prefix); err != nil {
		return "", nil, err
	}
	lock, err := LockDir(path)
	if err != nil {
		lock = io.NopCloser(nil)
	}
	return path, func() error { return errors.Join(os.RemoveAll(path), lock.Close()) }, nil
}

// Discard removes a directory with its content. After a crash the directory is complete, has
// the temporary name, or is gone. Discard also removes anything under the temporary name.
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
		return err // the content stays until the rename is durable
	}
	return fs.RemoveAll(temporary)
}
