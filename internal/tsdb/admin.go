package tsdb

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/tsdb"
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

// WriteMeta writes the meta.json of a block to its directory, and syncs the file.
func WriteMeta(dir string, meta tsdb.BlockMeta) error {
	text, err := json.MarshalIndent(meta, "", "\t")
	if err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(dir, "meta.json"))
	if err != nil {
		return err
	}
	_, err = f.Write(append(text, '\n'))
	return errors.Join(err, f.Sync(), f.Close())
}
