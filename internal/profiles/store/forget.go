package store

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/ferula-io/ferula/internal/profiles"
)

// errForgotten is returned to a push whose tenant is being forgotten; Append retries it with
// a new tenant.
var errForgotten = fmt.Errorf("%w: the tenant is being forgotten", profiles.ErrUnavailable)

// tenantIdle is how long after its last push a tenant without profiles is forgotten.
const tenantIdle = time.Hour

// forget closes tenants that have no profiles and receive no pushes, and removes their
// directories.
func (s *Store) forget() {
	for _, t := range s.list() {
		if t.idle(false) {
			_, _, _ = s.changing.Do(t.name, func() (any, error) { return nil, s.forgetTenant(t) })
		}
	}
}

// forgetTenant removes a tenant if it is still idle. It returns errForgotten to the pushes that have waited.
func (s *Store) forgetTenant(t *tenant) error {
	if !t.idle(true) { // a push has arrived: the tenant stays
		return errForgotten
	}
	s.mu.Lock()
	closed := s.closed
	if !closed {
		delete(s.tenants, t.name)
	}
	s.mu.Unlock()
	if closed {
		return errForgotten // Close closes it
	}
	if err := errors.Join(t.close(errForgotten), s.removeTenant(t)); err != nil {
		s.logger.Warn("Removing the directory of a tenant without profiles failed", "tenant", t.name, "err", err)
	}
	return errForgotten
}

// idle reports whether a tenant is empty and has had no push for tenantIdle. If end is set, idle closes the queue of such
// a tenant.
func (t *tenant) idle(end bool) bool {
	t.flushMu.Lock()
	defer t.flushMu.Unlock()
	t.queueMu.Lock()
	defer t.queueMu.Unlock()
	t.mu.RLock()
	head, empty := t.head, t.flushing == nil && len(t.blocks) == 0 && len(t.broken) == 0
	t.mu.RUnlock()
	idle := empty && head.count() == 0 && len(t.queue.waiting) == 0 && t.store.now().Sub(t.used) >= tenantIdle
	if idle && end {
		t.closing = errForgotten
	}
	return idle
}

// removeTenant removes a tenant's directory unless it has records that were set aside.
func (s *Store) removeTenant(t *tenant) error {
	entries, err := os.ReadDir(t.logDir())
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			return nil // an operator has to inspect the records set aside
		}
	}
	if err := s.fs.RemoveAll(t.logDir()); err != nil {
		return err
	}
	return errors.Join(s.fs.Remove(t.dir), s.fs.SyncDir(s.root()))
}
