package profile

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"

	"github.com/oklog/ulid/v2"

	"github.com/ferula-io/ferula/internal/codec/pprof"
	"github.com/ferula-io/ferula/internal/series/profiles"
	"github.com/ferula-io/ferula/internal/store/profile/block"
	"github.com/ferula-io/ferula/internal/store/profile/wal"
)

// replayer puts the records of a log into a head that is not in use yet.
type replayer struct {
	tenant  *tenant
	decoder pprof.Profile
	limits  pprof.Limits
	segment uint64
}

// replay opens the log. Its records have passed all limits once and are not counted
// again, since limits may have been lowered; only stacks are cut, as those of pushes.
// What cannot be used is set aside.
func (t *tenant) replay(through uint64) error {
	r := &replayer{tenant: t, limits: pprof.Unlimited()}
	r.limits.Depth = t.store.opts.Limits.Depth
	log, damaged, err := wal.Open(t.store.fs, t.logDir(), through, r.record)
	for i := range damaged {
		t.store.report(t.name, &damaged[i])
	}
	t.log = log
	return err
}

func (t *tenant) logDir() string { return filepath.Join(t.dir, "wal") }

// report says once what a start found in the log.
func (s *Store) report(tenant string, d *wal.Damage) {
	args := []any{"tenant", tenant, "segment", d.Segment, "at", d.At, "bytes", d.Bytes, "aside", d.Aside, "err", d.Err}
	switch d.Kind {
	case wal.Torn:
		s.metrics.torn.Inc()
		s.logger.Warn("A segment of the log of profiles ends in bytes that are no record: a write cut short by a crash, which was not acknowledged, or damage", args...)
	case wal.Gap:
		s.metrics.gaps.Inc()
		s.logger.Error("A part of the log of profiles is damaged: pushes in it that were acknowledged are lost, those behind it are there", args...)
	case wal.Refused:
		s.metrics.setAside.Inc()
		s.logger.Error("A record of the log of profiles cannot be used and is set aside", args...)
	case wal.Unreadable:
		s.metrics.gaps.Inc()
		s.logger.Error("A segment of the log of profiles cannot be read", args...)
	}
}

// record replays a push. Of one of which some profiles cannot be used the others are.
func (r *replayer) record(segment uint64, record []byte) error {
	r.segment = segment
	t := r.tenant
	var bad []error
	n := 0
	err := readRecord(record, func(p *profiles.RawProfile) error {
		n++
		err := r.decoder.Decode(p.Raw, r.limits)
		if err == nil {
			p.Profile = &r.decoder
			err = r.makeRoom(costOf(*p))
		}
		var stop *wal.StopError
		switch {
		case errors.As(err, &stop):
			return err
		case err != nil:
			bad = append(bad, fmt.Errorf("profile %d: %w", n, err))
			return nil
		}
		t.apply(p)
		t.store.budget.charge(t.head)
		t.dropIfEmpty()
		return nil
	})
	return errors.Join(append(bad, err)...)
}

// makeRoom writes heads as blocks until a profile fits into the budget.
func (r *replayer) makeRoom(need int64) error {
	t, s := r.tenant, r.tenant.store
	if need > s.budget.max {
		return s.noRoom(need)
	}
	fits := func() bool { return s.budget.used.Load()+need <= s.budget.max }
	if t.head.rows() > 0 && (!fits() || s.budget.tight() || t.head.size() >= s.opts.HeadBytes) {
		if err := r.flush(); err != nil {
			return &wal.StopError{Err: err}
		}
	}
	others := slices.Collect(maps.Values(s.tenants)) // the lock is held
	for ; !fits() && len(others) > 0; others = others[1:] {
		if err := others[0].flush(context.Background(), false); err != nil {
			s.logger.Error("A head of profiles could not be written as a block", "tenant", others[0].name, "err", err)
		}
	}
	if !fits() {
		return &wal.StopError{Err: s.noRoom(need)}
	}
	return nil
}

// flush writes what has been replayed as a block. The block has rows of the segment
// that is being read, but only those before it are done with: should that one be
// replayed again, its rows are found in the block and not added a second time.
func (r *replayer) flush() error {
	t := r.tenant
	meta := block.Meta{Through: r.segment - 1}
	b, err := t.writeBlock(ulid.MustNewDefault(t.store.now()), meta, func(w *block.Writer) (*block.Content, error) {
		return writeHead(context.Background(), w, t.head.view())
	})
	if err != nil {
		return fmt.Errorf("write what was replayed as a block: %w", err)
	}
	t.blocks = append(t.blocks, b)
	slices.SortFunc(t.blocks, byAge)
	t.writing = ulid.ULID{}
	t.store.budget.discharge(t.head)
	t.head = newHead()
	t.store.metrics.flushes.Inc()
	return wal.Remove(t.store.fs, t.logDir(), meta.Through)
}
