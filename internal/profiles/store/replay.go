package store

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/oklog/ulid/v2"

	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/block"
	"github.com/ferula-io/ferula/internal/profiles/pprof"
)

// replayer applies the records of a log to a head that is not in use yet.
type replayer struct {
	tenant  *tenant
	decoder pprof.Profile
	limits  pprof.Limits
	segment uint64
}

// replay opens the log and applies its records to the head. Rows that a block has already are found there and not
// added again: a crash between the writing of a block and the removal of its segments leaves such records. So no block,
// which may come from another server, decides which segments are read. replay does not check limits: the records were
// within the limits when they were pushed, and the limits may have been lowered since. Only stacks are truncated, as
// for pushes. Unusable records are set aside.
func (t *tenant) replay() error {
	r := &replayer{tenant: t, limits: pprof.Unlimited()}
	r.limits.Depth = t.store.opts.Limits.Depth
	log, damaged, err := openLog(t.store.fs, t.logDir(), r.record)
	for i := range damaged {
		t.store.report(t.name, &damaged[i])
	}
	t.log = log
	return err
}

func (t *tenant) logDir() string { return filepath.Join(t.dir, "wal") }

// report logs damage that replay found in the log.
func (s *Store) report(tenant string, d *damage) {
	args := []any{"tenant", tenant, "segment", d.segment, "at", d.at, "bytes", d.bytes, "aside", d.aside, "err", d.err}
	switch d.kind {
	case tornEnd:
		s.metrics.torn.Inc()
		s.logger.Warn("A segment of the profile WAL ends within a record: an unacknowledged write cut short by a crash, or damage", args...)
	case gapBefore:
		s.metrics.gaps.Inc()
		s.logger.Error("A part of the profile WAL is damaged: acknowledged pushes in it are lost, later ones are replayed",
			args...)
	case refusedRecord:
		s.metrics.setAside.Inc()
		s.logger.Error("A record of the profile WAL cannot be replayed and is set aside", args...)
	case unreadableSegment:
		s.metrics.gaps.Inc()
		s.logger.Error("A segment of the profile WAL cannot be read", args...)
	}
}

// record replays a push. If some of its profiles are unusable the others are applied.
func (r *replayer) record(segment uint64, record []byte) error {
	r.segment = segment
	t := r.tenant
	if isClosed(t.store.stop) {
		return stopError{errClosed}
	}
	var bad []error
	n := 0
	err := readRecord(record, func(p *profiles.RawProfile) error {
		n++
		err := r.decoder.Decode(p.Raw, r.limits)
		need := int64(0)
		if err == nil {
			p.Profile = &r.decoder
			need = costOf(*p)
			err = r.reserve(need)
		}
		switch {
		case errors.As(err, new(stopError)):
			return err
		case err != nil:
			bad = append(bad, fmt.Errorf("profile %d: %w", n, err))
			return nil
		}
		t.apply(p)
		t.store.memory.charge(t.head)
		t.store.memory.heads.Add(-need)
		t.dropIfEmpty()
		return nil
	})
	return errors.Join(append(bad, err)...)
}

// reserve takes the memory of a profile from the budget, and writes heads as blocks until it fits. A profile that exceeds
// the whole budget was accepted when the budget was larger: it is applied after all heads were written.
func (r *replayer) reserve(need int64) error {
	t, s := r.tenant, r.tenant.store
	full := s.memory.underPressure() || t.head.size() >= s.opts.HeadBytes
	reserved := !full && s.memory.take(need)
	if !reserved && t.head.rows() > 0 {
		if err := r.flush(); err != nil {
			return stopError{err}
		}
	}
	reserved = reserved || s.memory.take(need)
	for others := s.list(); !reserved && len(others) > 0; others = others[1:] {
		if err := others[0].flush(context.Background(), false); err != nil {
			s.logger.Error("Writing a profile head as a block failed", "tenant", others[0].name, "err", err)
		}
		reserved = s.memory.take(need)
	}
	switch {
	case !reserved && need <= s.memory.headsMax:
		return stopError{s.memoryError(need)}
	case !reserved:
		s.memory.heads.Add(need)
	}
	return nil
}

// flush writes the replayed records as a block. The block has rows of the segment that is
// being read, but only the segments before it are complete. If that segment is replayed
// again, its rows are found in the block and not added twice.
func (r *replayer) flush() error {
	t := r.tenant
	t.head.seal()
	id := ulid.MustNewDefault(t.store.now())
	b, err := t.writeBlock(id, func(w *block.Writer) (*block.Content, error) {
		return writeHead(context.Background(), w, t.head.view())
	})
	if err != nil {
		return fmt.Errorf("write replayed records as a block: %w", err)
	}
	t.blocks = append(t.blocks, b)
	slices.SortFunc(t.blocks, byAge)
	t.writing = ulid.ULID{}
	t.store.memory.discharge(t.head)
	t.head = t.store.newHead()
	t.store.metrics.flushes.Inc()
	return removeSegments(t.store.fs, t.logDir(), r.segment-1)
}
