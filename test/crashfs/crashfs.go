// Package crashfs is a file system for tests that can lose unsynced data.
//
// An FS changes a real directory, so that readers can use package os. In memory it holds two
// versions of every file and directory: the current version and the durable version. A fault
// function decides for every call whether it succeeds, fails, or is interrupted by a power
// cut. The method After writes to another directory what a disk could contain after the power
// cut. A Survival chooses among the possible contents. In each directory all unsynced names
// survive, or none. In each file all, half or none of the unsynced bytes survive, or they are
// zeros.
package crashfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/ferula-io/ferula/internal/files"
)

// ErrCrashed is returned by every call after the power cut.
var ErrCrashed = errors.New("power cut")

// Call is one call that changes files.
type Call struct {
	Number int // from 1
	Op     string
	Path   string
}

// String returns the call for messages of tests.
func (c Call) String() string { return fmt.Sprintf("call %d: %s %s", c.Number, c.Op, c.Path) }

// FS is a directory whose unsynced changes can be lost. Create it with New.
type FS struct {
	dir   string
	fault func(Call) error

	mu    sync.Mutex
	root  *node
	calls []Call
	down  bool
}

var _ files.FS = (*FS)(nil)

// node is a file or a directory.
type node struct {
	isDir         bool
	now, durable  map[string]*node // of a directory
	data, content []byte           // of a file: current and durable
}

func newDir() *node {
	return &node{isDir: true, now: map[string]*node{}, durable: map[string]*node{}}
}

// New creates an FS of an existing directory. What the directory contains now counts as
// durable. The FS calls fault, unless it is nil, under a lock before each call. If fault returns
// an error, the call returns that error and changes nothing, except that a write writes half of
// its bytes. If fault returns ErrCrashed, the power is cut.
func New(dir string, fault func(Call) error) (*FS, error) {
	f := &FS{dir: dir, fault: fault, root: newDir()}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		parent, name, err := f.parent(path)
		if err != nil {
			return err
		}
		n := newDir()
		if !e.IsDir() {
			n = &node{}
			//lint:ignore gosec the directory is one of a test
			if n.data, err = os.ReadFile(path); err != nil {
				return err
			}
			n.content = slices.Clone(n.data)
		}
		parent.now[name], parent.durable[name] = n, n
		return nil
	})
	return f, err
}

// Calls returns the calls so far.
func (f *FS) Calls() []Call {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.calls)
}

// Crash cuts the power now.
func (f *FS) Crash() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.down = true
}

// enter records a call and returns the error that the fault function chooses for it.
func (f *FS) enter(op, path string) error {
	if f.down {
		return ErrCrashed
	}
	rel, err := filepath.Rel(f.dir, path)
	if err != nil {
		return err
	}
	c := Call{Number: len(f.calls) + 1, Op: op, Path: rel}
	f.calls = append(f.calls, c)
	if f.fault == nil {
		return nil
	}
	if err := f.fault(c); err != nil {
		f.down = f.down || errors.Is(err, ErrCrashed)
		return &fs.PathError{Op: op, Path: path, Err: err}
	}
	return nil
}

func (f *FS) find(path string) (*node, error) {
	rel, err := filepath.Rel(f.dir, path)
	if err != nil {
		return nil, err
	}
	n := f.root
	if rel == "." {
		return n, nil
	}
	for name := range strings.SplitSeq(rel, string(filepath.Separator)) {
		if n = n.now[name]; n == nil {
			return nil, &fs.PathError{Op: "find", Path: path, Err: fs.ErrNotExist}
		}
	}
	return n, nil
}

func (f *FS) parent(path string) (*node, string, error) {
	n, err := f.find(filepath.Dir(path))
	return n, filepath.Base(path), err
}

// Create implements files.FS.
func (f *FS) Create(path string) (files.File, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.enter("create", path); err != nil {
		return nil, err
	}
	real, err := files.Disk{}.Create(path)
	if err != nil {
		return nil, err
	}
	parent, name, err := f.parent(path)
	if err != nil {
		return nil, errors.Join(err, real.Close())
	}
	n := &node{}
	parent.now[name] = n
	return &file{fs: f, path: path, real: real, node: n}, nil
}

// Mkdir implements files.FS.
func (f *FS) Mkdir(path string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.enter("mkdir", path); err != nil {
		return err
	}
	if err := (files.Disk{}).Mkdir(path); err != nil {
		return err
	}
	parent, name, err := f.parent(path)
	if err == nil {
		parent.now[name] = newDir()
	}
	return err
}

// Rename implements files.FS.
func (f *FS) Rename(from, to string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.enter("rename", from); err != nil {
		return err
	}
	if err := (files.Disk{}).Rename(from, to); err != nil {
		return err
	}
	old, oldName, err := f.parent(from)
	if err != nil {
		return err
	}
	parent, name, err := f.parent(to)
	if err == nil {
		parent.now[name] = old.now[oldName]
		delete(old.now, oldName)
	}
	return err
}

// Remove implements files.FS.
func (f *FS) Remove(path string) error { return f.remove("remove", path, files.Disk{}.Remove) }

// RemoveAll implements files.FS. It removes the names from every directory below path, too. After
// a power cut each of these directories may have its names again, or not.
func (f *FS) RemoveAll(path string) error {
	return f.remove("removeall", path, files.Disk{}.RemoveAll)
}

func (f *FS) remove(op, path string, remove func(string) error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.enter(op, path); err != nil {
		return err
	}
	if err := remove(path); err != nil {
		return err
	}
	parent, name, err := f.parent(path)
	if errors.Is(err, fs.ErrNotExist) && op == "removeall" {
		return nil
	}
	if err != nil {
		return err
	}
	if n := parent.now[name]; n != nil {
		n.empty()
		delete(parent.now, name)
	}
	return nil
}

func (n *node) empty() {
	for name, child := range n.now {
		child.empty()
		delete(n.now, name)
	}
}

// SyncDir implements files.FS.
func (f *FS) SyncDir(path string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.enter("syncdir", path); err != nil {
		return err
	}
	n, err := f.find(path)
	if err != nil {
		return err
	}
	n.durable = map[string]*node{}
	for name, child := range n.now {
		n.durable[name] = child
	}
	return nil
}

type file struct {
	fs   *FS
	path string
	real files.File
	node *node
	at   int
}

// Write implements files.File.
func (f *file) Write(p []byte) (int, error) {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if f.fs.down {
		return 0, ErrCrashed
	}
	fault := f.fs.enter("write", f.path)
	if fault != nil {
		p = p[:len(p)/2]
	}
	n, err := f.real.Write(p)
	if grow := f.at + n - len(f.node.data); grow > 0 {
		f.node.data = append(f.node.data, make([]byte, grow)...)
	}
	copy(f.node.data[f.at:], p[:n])
	f.at += n
	if fault != nil {
		err = fault
	}
	return n, err
}

// Truncate implements files.File.
func (f *file) Truncate(size int64) error {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if err := f.fs.enter("truncate", f.path); err != nil {
		return err
	}
	if err := f.real.Truncate(size); err != nil {
		return err
	}
	f.node.data = append(slices.Clone(f.node.data[:min(int(size), len(f.node.data))]),
		make([]byte, max(0, int(size)-len(f.node.data)))...)
	return nil
}

// Seek implements files.File; it changes no file and is not counted.
func (f *file) Seek(offset int64, whence int) (int64, error) {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	at, err := f.real.Seek(offset, whence)
	if err == nil {
		f.at = int(at)
	}
	return at, err
}

// Sync implements files.File.
func (f *file) Sync() error {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	err := f.fs.enter("sync", f.path)
	if err == nil || !f.fs.down {
		f.node.content = slices.Clone(f.node.data) // a failed sync may have synced
	}
	return err
}

// Close implements files.File; it makes nothing durable and is not counted.
func (f *file) Close() error { return f.real.Close() }

// Survival chooses which unsynced changes survive a power cut.
type Survival struct {
	Names   func() bool    // called for each directory: whether its unsynced names survive
	Content func() Content // called for each file
}

// Content is what remains of the unsynced bytes of a file.
type Content int

// The possible contents.
const (
	Lost   Content = iota // only the synced bytes
	Kept                  // all unsynced bytes
	Half                  // half of the unsynced bytes
	Zeroed                // zeros instead of the unsynced bytes
)

// After writes the state after a power cut to an existing directory.
func (f *FS) After(dir string, s Survival) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return after(f.root, dir, s)
}

func after(n *node, dir string, s Survival) error {
	names := n.durable
	if s.Names() {
		names = n.now
	}
	sorted := make([]string, 0, len(names))
	for name := range names {
		sorted = append(sorted, name)
	}
	slices.Sort(sorted)
	for _, name := range sorted {
		child, path := names[name], filepath.Join(dir, name)
		if !child.isDir {
			if err := os.WriteFile(path, child.left(s.Content()), 0o644); err != nil {
				return err
			}
			continue
		}
		if err := os.Mkdir(path, 0o755); err != nil {
			return err
		}
		if err := after(child, path, s); err != nil {
			return err
		}
	}
	return nil
}

// left returns the bytes that a file has after a power cut.
func (n *node) left(c Content) []byte {
	synced := len(n.content)
	if len(n.data) <= synced && c != Kept {
		return n.content // truncated, or nothing appended
	}
	switch c {
	case Kept:
		return n.data
	case Half:
		return append(slices.Clone(n.content), n.data[synced:synced+(len(n.data)-synced)/2]...)
	case Zeroed:
		return append(slices.Clone(n.content), make([]byte, len(n.data)-synced)...)
	}
	return n.content
}
