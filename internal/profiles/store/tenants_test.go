package store

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ferula-io/ferula/internal/files"
	"github.com/ferula-io/ferula/internal/profiles"
)

// heldDisk blocks the creation and removal of files of the tenant "slow".
type heldDisk struct {
	files.Disk
	reached chan string   // the operations
	blocked chan struct{} // closed to let them go on
}

func (d heldDisk) wait(op, path string) {
	if strings.Contains(path, "/profiles/slow/") {
		d.reached <- op
		<-d.blocked
	}
}

func (d heldDisk) Create(path string) (files.File, error) {
	d.wait("create", path)
	return d.Disk.Create(path)
}

func (d heldDisk) RemoveAll(path string) error {
	d.wait("remove", path)
	return d.Disk.RemoveAll(path)
}

// A tenant whose disk is slow to open, create or remove its directory does not hold up the others.
func TestStore_SlowTenantDoesNotBlockOthers(t *testing.T) {
	for name, tt := range map[string]struct {
		op      string
		prepare func(t *testing.T, dir string)
		run     func(s *Store) error
	}{
		"opened again": {"create", func(t *testing.T, dir string) {
			path := filepath.Dir(writeLog(t, dir, "slow"))
			if err := errors.Join(os.RemoveAll(path), os.WriteFile(path, nil, 0o600)); err != nil { // a file in its place
				t.Fatal(err)
			}
		}, func(s *Store) error {
			err := os.Remove(filepath.Join(s.root(), "slow", "wal"))
			s.failed["slow"].retry.wait = 0
			s.reopen(false)
			return err
		}},
		"created": {"create", nil, func(s *Store) error {
			return s.Append(context.Background(), "slow", []profiles.RawProfile{numbered(0)})
		}},
		"forgotten": {"remove", func(t *testing.T, dir string) { writeLog(t, dir, "slow") }, func(s *Store) error {
			s.forget()
			return nil
		}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if tt.prepare != nil {
				tt.prepare(t, dir)
			}
			disk := heldDisk{reached: make(chan string, 10), blocked: make(chan struct{})}
			clock := stoppedAt(numbered(0).TimeNS)
			s := openTest(t, dir, func(s *Store) { s.now, s.every = clock.now, time.Hour })
			if err := s.Append(t.Context(), "fast", []profiles.RawProfile{numbered(0)}); err != nil {
				t.Fatal(err)
			}
			clock.Add(int64(tenantIdle))
			s.fs = disk
			done := make(chan error, 2)
			go func() { done <- tt.run(s) }()
			if op := <-disk.reached; op != tt.op {
				t.Errorf("%s blocks", op)
			}
			go func() {
				err := s.Append(t.Context(), "fast", []profiles.RawProfile{numbered(1)})
				err = errors.Join(err, s.Append(t.Context(), "new", []profiles.RawProfile{numbered(1)}))
				v, viewErr := s.View(t.Context(), "fast", 0, timeMax)
				if viewErr == nil {
					v.Close()
				}
				done <- errors.Join(err, viewErr)
			}()
			select {
			case err := <-done:
				if err != nil {
					t.Error(err)
				}
			case <-time.After(20 * time.Second):
				t.Error("another tenant waits")
			}
			close(disk.blocked)
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
}

// openHeld opens a store with the tenants "t" and "slow", and returns while "slow" is being opened.
func openHeld(t *testing.T, disk heldDisk) *Store {
	t.Helper()
	dir := t.TempDir()
	writeLog(t, dir, "t", recordOf(numbered(0)))
	writeLog(t, dir, "slow", recordOf(numbered(0)))
	if err := os.Mkdir(filepath.Join(dir, "profiles", "slow", temporary+"block"), 0o755); err != nil {
		t.Fatal(err)
	}
	s := openTest(t, dir, func(s *Store) { s.fs, s.openWait = disk, 0 })
	<-disk.reached
	eventually(t, func() bool { return len(s.list()) == 1 })
	return s
}

// A tenant whose disk is slow at the start holds up neither Open nor the other tenants.
func TestOpen_SlowTenantDoesNotBlockOthers(t *testing.T) {
	disk := heldDisk{reached: make(chan string, 10), blocked: make(chan struct{})}
	s := openHeld(t, disk)
	once(t, stored(t, s), 1)
	if err := s.Append(t.Context(), "t", []profiles.RawProfile{numbered(1)}); err != nil {
		t.Error(err)
	}
	_, viewErr := s.View(t.Context(), "slow", 0, timeMax)
	for _, err := range []error{viewErr, s.Append(t.Context(), "slow", []profiles.RawProfile{numbered(1)})} {
		if !errors.Is(err, profiles.ErrUnavailable) || !strings.Contains(err.Error(), "is being replayed") {
			t.Errorf("the slow tenant: %v", err)
		}
	}
	if got := s.Tenants(); !slices.Equal(got, []string{"slow", "t"}) {
		t.Errorf("the tenants are %v", got)
	}
	close(disk.blocked)
	<-s.replayed
	v, err := s.View(t.Context(), "slow", 0, timeMax)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	if len(v.Sources) != 1 || v.Sources[0].Rows() != 1 {
		t.Errorf("%d sources of the slow tenant", len(v.Sources))
	}
	if n := s.metrics.tenantsFailed.Get(); n != 0 {
		t.Errorf("%d failures are counted", n)
	}
}

// A replay ends when the store is closed.
func TestClose_EndsReplays(t *testing.T) {
	disk := heldDisk{reached: make(chan string, 10), blocked: make(chan struct{})}
	s := openHeld(t, disk)
	closed := make(chan error, 1)
	go func() { closed <- s.Close() }()
	<-s.stop
	close(disk.blocked)
	if err := <-closed; err != nil {
		t.Error(err)
	}
	if err := s.failed["slow"].err; !errors.Is(err, errClosed) {
		t.Errorf("the replay: %v", err)
	}
}

// Pushes of one new tenant create it once, also while Close is called.
func TestAppend_TenantIsCreatedOnce(t *testing.T) {
	disk := heldDisk{reached: make(chan string, 10), blocked: make(chan struct{})}
	s := openTest(t, t.TempDir(), func(s *Store) { s.fs, s.opts.TenantsMax = disk, 1 })
	done := make(chan error, 4)
	for n := range uint64(4) {
		go func() { done <- s.Append(context.Background(), "slow", []profiles.RawProfile{numbered(n)}) }()
	}
	<-disk.reached
	if err := s.Append(t.Context(), "other", []profiles.RawProfile{numbered(0)}); !errors.Is(err, profiles.ErrLimit) {
		t.Errorf("another tenant, one of which is allowed: %v", err)
	}
	close(disk.blocked)
	for range 4 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	v, err := s.View(t.Context(), "slow", 0, timeMax)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	if len(v.Sources) != 1 || v.Sources[0].Rows() != 4 {
		t.Errorf("%d sources", len(v.Sources))
	}
}

func TestClose_WaitsForATenantThatIsBeingCreated(t *testing.T) {
	disk := heldDisk{reached: make(chan string, 10), blocked: make(chan struct{})}
	s := openTest(t, t.TempDir(), func(s *Store) { s.fs = disk })
	pushed, closed := make(chan error, 1), make(chan error, 1)
	go func() { pushed <- s.Append(context.Background(), "slow", []profiles.RawProfile{numbered(0)}) }()
	<-disk.reached
	go func() { closed <- s.Close() }()
	<-s.stop // Close has begun
	select {
	case err := <-closed:
		t.Errorf("it was closed before: %v", err)
	default:
	}
	close(disk.blocked)
	if err := <-closed; err != nil {
		t.Error(err)
	}
	if err := <-pushed; !errors.Is(err, profiles.ErrUnavailable) {
		t.Errorf("the push: %v", err)
	}
}

// TestOpen_DirectoryInUse: a second store would delete log segments that the first one still
// needs.
func TestOpen_DirectoryInUse(t *testing.T) {
	open := func(opts Options) (*Store, error) {
		s, err := New(opts, quiet, nil)
		if err != nil {
			t.Fatal(err)
		}
		return s, s.Open()
	}
	dir := t.TempDir()
	first, err := open(Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	second, err := open(Options{Dir: dir})
	if !errors.Is(err, files.ErrLocked) {
		t.Fatalf("opening a directory in use: %v", err)
	}
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}
	if third, err := open(Options{Dir: dir}); !errors.Is(err, files.ErrLocked) {
		t.Fatalf("the store that was refused has released the lock: %v", errors.Join(err, third.Close()))
	}
	unlocked, err := open(Options{Dir: dir, NoLock: true})
	if err := errors.Join(err, unlocked.Close()); err != nil {
		t.Fatal(err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := open(Options{Dir: dir})
	if err := errors.Join(err, again.Close()); err != nil {
		t.Fatalf("opening a directory that was closed: %v", err)
	}
}

func TestForget_IdleTenantIsRemovedAndMayReturn(t *testing.T) {
	dir, ctx := t.TempDir(), context.Background()
	var now atomic.Int64
	now.Store(time.Unix(1_700_000_000, 0).UnixNano())
	s := openTest(t, dir, func(s *Store) {
		s.opts.TenantsMax, s.opts.Retention = 1, 30*time.Minute
		s.now = func() time.Time { return time.Unix(0, now.Load()) }
	})
	push := func(tenant string) error { return s.Append(ctx, tenant, []profiles.RawProfile{numbered(1)}) }
	bad := numbered(1)
	bad.Raw = []byte("hello")
	if err := s.Append(ctx, "refused", []profiles.RawProfile{bad}); err == nil || len(s.list()) != 0 {
		t.Fatalf("a refused push created a tenant: %v", err)
	}
	if err := push("one"); err != nil {
		t.Fatal(err)
	}
	if err := push("two"); !errors.Is(err, profiles.ErrLimit) {
		t.Fatalf("one past the limit: %v", err)
	}
	one, err := s.tenant("one", false)
	if err != nil {
		t.Fatal(err)
	}
	forget := func() {
		t.Helper()
		if err := errors.Join(s.Flush(ctx), one.retain()); err != nil {
			t.Fatal(err)
		}
		s.forget()
	}
	if forget(); len(s.list()) != 1 {
		t.Fatal("a tenant with profiles was forgotten")
	}
	now.Add(int64(40 * time.Minute)) // its block is removed by retention
	if forget(); len(s.list()) != 1 {
		t.Fatal("a tenant with a push within the hour was forgotten")
	}
	now.Add(int64(40 * time.Minute))
	if forget(); len(s.list()) != 0 {
		t.Fatal("an idle tenant without profiles was not forgotten")
	}
	if _, err := os.Stat(filepath.Join(dir, "profiles", "one")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its directory: %v", err)
	}
	if err := one.append(ctx, []profiles.RawProfile{numbered(2)}); !errors.Is(err, errForgotten) {
		t.Errorf("a push that had found the tenant before: %v", err)
	}
	if err := push("two"); err != nil {
		t.Errorf("another tenant in its slot: %v", err)
	}
}

func TestStore_TenantsOfAllNamesAreReopened(t *testing.T) {
	dir, ctx := t.TempDir(), context.Background()
	names := []string{"a!b*(c)'", ".ops", "plain"}
	s := openTest(t, dir, nil)
	for _, name := range names {
		if err := s.Append(ctx, name, []profiles.RawProfile{numbered(1)}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	root := filepath.Join(dir, "profiles")
	if err := os.Mkdir(filepath.Join(root, ".snapshot"), 0o755); err != nil { // not a tenant's directory
		t.Fatal(err)
	}
	s = openTest(t, dir, nil)
	for _, name := range names {
		v, err := s.View(ctx, name, 0, timeMax)
		if err != nil || len(v.Sources) != 1 {
			t.Errorf("%s: %v, %v", name, v, err)
			continue
		}
		v.Close()
	}
	if got := len(s.list()); got != len(names) {
		t.Errorf("%d tenants", got)
	}
	if _, err := os.Stat(filepath.Join(root, "%2Eops")); err != nil {
		t.Error(err)
	}
}
