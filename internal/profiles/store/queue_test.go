package store

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"

	"github.com/ferula-io/ferula/internal/files"
	"github.com/ferula-io/ferula/internal/profiles"
)

// slowDisk is a disk whose Sync blocks until the test proceeds.
type slowDisk struct {
	files.Disk
	syncing chan struct{} // receives when a Sync begins
	proceed chan struct{} // closed: Syncs return
}

type slowFile struct {
	files.File
	disk *slowDisk
}

func newSlowDisk() *slowDisk {
	return &slowDisk{syncing: make(chan struct{}, 100), proceed: make(chan struct{})}
}

func (d *slowDisk) Create(path string) (files.File, error) {
	f, err := d.Disk.Create(path)
	return slowFile{f, d}, err
}

func (f slowFile) Sync() error {
	f.disk.syncing <- struct{}{}
	<-f.disk.proceed
	return f.File.Sync()
}

// waitFor yields until ok; the test's timeout ends it.
func waitFor(ok func() bool) {
	for !ok() {
		runtime.Gosched()
	}
}

// busy returns a store whose first push is being synced and whose second one is queued.
func busy(t *testing.T, change func(*Store)) (s *Store, tenant *tenant, disk *slowDisk, results chan error) {
	t.Helper()
	disk, results = newSlowDisk(), make(chan error, 2)
	s = openTest(t, t.TempDir(), func(s *Store) {
		s.fs = disk
		if change != nil {
			change(s)
		}
	})
	push := func(n uint64) { results <- s.Append(context.Background(), "t", []profiles.RawProfile{numbered(n)}) }
	go push(1)
	<-disk.syncing
	go push(2)
	tenant, err := s.tenant("t", false)
	if err != nil {
		t.Fatal(err)
	}
	waitFor(func() bool {
		tenant.queueMu.Lock()
		defer tenant.queueMu.Unlock()
		return len(tenant.queue.waiting) == 1
	})
	return s, tenant, disk, results
}

func TestAppend_QueueForASlowDiskIsLimited(t *testing.T) {
	s, _, disk, results := busy(t, func(s *Store) { s.opts.pendingBytes = 1 })
	err := s.Append(context.Background(), "t", []profiles.RawProfile{numbered(3)})
	if !errors.Is(err, profiles.ErrUnavailable) || !strings.Contains(err.Error(), "queued for the disk") {
		t.Errorf("one past the limit: %v", err)
	}
	close(disk.proceed)
	if err := errors.Join(<-results, <-results); err != nil {
		t.Error(err)
	}
	if counts := stored(t, s); counts[1] != 1 || counts[2] != 1 || counts[3] != 0 {
		t.Errorf("stored: %v", counts)
	}
}

func TestClose_QueuedPushIsStored(t *testing.T) {
	for range 20 { // the committer may see the close or the push first
		s, tenant, disk, results := busy(t, nil)
		closed := make(chan error, 1)
		go func() { closed <- s.Close() }()
		waitFor(func() bool {
			tenant.queueMu.Lock()
			defer tenant.queueMu.Unlock()
			return tenant.closing != nil
		})
		if err := tenant.append(context.Background(), []profiles.RawProfile{numbered(3)}); !errors.Is(err, profiles.ErrUnavailable) {
			t.Fatalf("a push after close: %v", err)
		}
		close(disk.proceed)
		if err := errors.Join(<-results, <-results, <-closed); err != nil {
			t.Fatal(err)
		}
		if counts := stored(t, openTest(t, s.opts.Dir, nil)); counts[1] != 1 || counts[2] != 1 {
			t.Fatalf("stored: %v", counts)
		}
	}
}
