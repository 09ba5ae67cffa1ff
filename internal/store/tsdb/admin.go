package tsdb

import (
	"context"
	"fmt"

	"github.com/prometheus/prometheus/model/labels"
)

// DeleteSeries marks the samples of the selected series from mint to maxt, both in ms and
// inclusive, as deleted. They are gone for readers at once and from the disk with the next
// compaction of their block, or with CleanTombstones.
func (s *Store) DeleteSeries(ctx context.Context, mint, maxt int64, matchers ...*labels.Matcher) error {
	db := s.db.Load()
	if db == nil {
		return ErrNotReady
	}
	if err := db.Delete(ctx, mint, maxt, matchers...); err != nil {
		return fmt.Errorf("delete series: %w", err)
	}
	return nil
}

// CleanTombstones writes the blocks with deleted samples again, without them.
func (s *Store) CleanTombstones() error {
	db := s.db.Load()
	if db == nil {
		return ErrNotReady
	}
	if err := db.CleanTombstones(); err != nil {
		return fmt.Errorf("clean tombstones: %w", err)
	}
	return nil
}

// Snapshot links the blocks into a folder, and with withHead writes the samples of the head
// there as a block.
func (s *Store) Snapshot(dir string, withHead bool) error {
	db := s.db.Load()
	if db == nil {
		return ErrNotReady
	}
	if err := db.Snapshot(dir, withHead); err != nil {
		return fmt.Errorf("snapshot to %s: %w", dir, err)
	}
	return nil
}
