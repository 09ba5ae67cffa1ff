package tsdb

import (
	"context"
	"fmt"

	"github.com/prometheus/prometheus/model/labels"
)

// DeleteSeries marks the samples of the selected series from mint to maxt, both in ms and
// inclusive, as deleted. Queries no longer return them. The next compaction of their block,
// or CleanTombstones, removes them from the disk.
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

// CleanTombstones rewrites each block that has deleted samples, without these samples.
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

// Snapshot hard-links the files of the blocks into directory dir. With withHead it also
// writes the samples of the head there, as a block.
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
