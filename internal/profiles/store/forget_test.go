package store

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ferula-io/ferula/internal/profiles"
)

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
