package tsdb

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/oklog/ulid/v2"
	"github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/tsdb/tombstones"
	"github.com/prometheus/prometheus/tsdb/wlog"

	"github.com/ferula-io/ferula/internal/series"
)

// ErrNotServed is returned for a range whose samples must be read from the database's server instead of its directory.
var ErrNotServed = errors.New("the blocks in the directory are not what the server serves")

// ServedBlocks reads the blocks of a database that another process serves, and writes nothing in its directory. It
// returns exactly the samples that the server has, or ErrNotServed.
//
// Blocks are read only while the directory has the same blocks as at the last call of Confirm, which compares them
// with what the server says that it has. The server may compact and delete blocks at any time. It is safe for
// concurrent use.
type ServedBlocks struct {
	dir      string
	logger   *slog.Logger
	mappings mappings

	mu      sync.Mutex
	blocks  []tsdb.BlockMeta // in the directory, sorted by ULID; nil: unknown
	bytes   int64            // their size
	untilMS int64            // samples from here on are not read from blocks
	logged  string           // the last reason that was logged
}

// NewServedBlocks returns a reader of the directory of a database. Without Confirm it reads nothing.
func NewServedBlocks(dir string, logger *slog.Logger) *ServedBlocks {
	return &ServedBlocks{dir: dir, logger: logger, logged: "?"}
}

// Confirm compares the blocks in the directory with the size of all blocks of the server, in bytes. Only the server's
// own directory has the same size: samples of two servers are not compressed to the same number of bytes. headMS is the
// lowest time of which the server's head has or accepts samples, read before or together with the size; math.MaxInt64
// if it has none. unfit is a reason not to read blocks; nil: none.
func (d *ServedBlocks) Confirm(bytes, headMS int64, unfit error) {
	blocks, err := []tsdb.BlockMeta(nil), unfit
	if err == nil {
		blocks, err = d.list(bytes)
	}
	endMS := int64(math.MinInt64)
	for i := range blocks {
		endMS = max(endMS, blocks[i].MaxTime)
	}
	if endMS > headMS {
		err = fmt.Errorf("%w: they reach into its head", ErrNotServed)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.blocks, d.bytes, d.untilMS = blocks, bytes, endMS
	if err != nil {
		d.untilMS = math.MinInt64
	}
	d.report(err)
}

// report logs a reason not to read blocks, nil if there is none, unless it is the last one. d.mu is held.
func (d *ServedBlocks) report(err error) {
	reason := ""
	if err != nil {
		reason = err.Error()
	}
	if reason == d.logged || err == nil && len(d.blocks) == 0 { // a new server has no blocks
		return
	}
	if d.logged = reason; err != nil {
		d.logger.Info("Blocks are read through Prometheus, not from its directory", "dir", d.dir, "reason", err)
		return
	}
	d.logger.Info("Blocks are read from the directory of Prometheus", "dir", d.dir, "blocks", len(d.blocks))
}

// list returns the blocks in the directory if their files have so many bytes. It opens them only if the blocks or the
// size have changed: to read the indexes of many blocks at each poll would cost CPU.
func (d *ServedBlocks) list(bytes int64) (blocks []tsdb.BlockMeta, err error) {
	d.mu.Lock()
	known, knownBytes := d.blocks, d.bytes
	d.mu.Unlock()
	if len(known) > 0 && bytes == knownBytes && d.unchanged(known) == nil {
		return known, nil
	}
	ids, err := d.ids()
	if err != nil {
		return nil, err
	}
	sum := int64(0)
	for _, id := range ids {
		b, err := tsdb.OpenBlock(d.logger, filepath.Join(d.dir, id.String()), nil, nil)
		if err == nil {
			blocks, sum = append(blocks, b.Meta()), sum+b.Size()
			err = b.Close()
		}
		if err != nil {
			return nil, fmt.Errorf("block %s: %w", id, err)
		}
	}
	if sum != bytes {
		return nil, fmt.Errorf("%w: its blocks have %d bytes, those of the server %d", ErrNotServed, sum, bytes)
	}
	return blocks, d.unchanged(blocks)
}

// ids lists the blocks in the directory, sorted.
func (d *ServedBlocks) ids() (ids []ulid.ULID, err error) {
	entries, err := os.ReadDir(d.dir)
	for _, entry := range entries {
		if id, e := ulid.ParseStrict(entry.Name()); e == nil {
			ids = append(ids, id)
		}
	}
	return ids, err
}

// Querier opens the blocks of a range, in ms, inclusive, of which the result has all samples before
// untilMS; later ones are to be read from the server.
func (d *ServedBlocks) Querier(mint, maxt int64) (_ series.Querier, untilMS int64, err error) {
	d.mu.Lock()
	blocks, untilMS := d.blocks, d.untilMS
	d.mu.Unlock()
	if mint >= untilMS {
		return nil, 0, ErrNotServed
	}
	maxt = min(maxt, untilMS-1)
	q := &rawQuerier{mint: mint, maxt: maxt}
	defer func() {
		if err != nil {
			d.logger.Debug("A request is read through Prometheus, not from its blocks", "dir", d.dir, "reason", err)
			err = errors.Join(err, q.Close())
		}
		if err != nil && !errors.Is(err, ErrNotServed) {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.report(err)
		}
	}()
	byTime := slices.Clone(blocks)
	slices.SortFunc(byTime, func(a, b tsdb.BlockMeta) int { return cmp.Compare(a.MinTime, b.MinTime) })
	endMS := int64(math.MinInt64)
	for _, b := range byTime {
		if b.MinTime > maxt || b.MaxTime <= mint {
			continue
		}
		if b.MinTime < endMS {
			return nil, 0, fmt.Errorf("%w: they overlap", ErrNotServed)
		}
		endMS = b.MaxTime
		dir := filepath.Join(d.dir, b.ULID.String())
		block, err := d.mappings.open(dir, func() (tombstones.Reader, error) {
			r, _, err := tombstones.ReadTombstones(dir)
			return r, err
		}, mint, maxt)
		if err != nil {
			return nil, 0, err
		}
		block.gone = func() bool {
			_, err := os.Stat(dir)
			return err != nil
		}
		q.blocks = append(q.blocks, block)
	}
	return q, untilMS, d.unchanged(blocks)
}

// unchanged returns ErrNotServed unless the directory has just these blocks, and all samples outside of them are in the
// head, in order. It is called after the blocks were opened: the server deletes a block before it deletes samples from
// the block that replaces it.
func (d *ServedBlocks) unchanged(blocks []tsdb.BlockMeta) error {
	// Before the blocks are listed: late samples are in this log until they are in a block.
	late, err := segmentBytes(filepath.Join(d.dir, wlog.WblDirName))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if len(late) > 0 {
		return fmt.Errorf("%w: the head has out-of-order samples", ErrNotServed)
	}
	ids, err := d.ids()
	if err == nil && !slices.EqualFunc(ids, blocks, func(id ulid.ULID, b tsdb.BlockMeta) bool { return id == b.ULID }) {
		err = fmt.Errorf("%w: they have changed", ErrNotServed)
	}
	return err
}

// Close closes the mappings of blocks. Those that are being read are closed by the last Close of their queriers.
func (d *ServedBlocks) Close() error {
	if d == nil {
		return nil
	}
	return d.mappings.close()
}
