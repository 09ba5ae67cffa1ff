package compact

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/oklog/ulid/v2"
	"golang.org/x/sync/errgroup"

	"github.com/ferula-io/ferula/internal/bucket"
	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/block"
	"github.com/ferula-io/ferula/internal/profiles/store"
)

// load reads the metas of the blocks that the last iteration did not read. It fills t.blocks, t.broken and
// t.partial. A block with an index or a meta that is not valid is broken. A block that is deleted while load
// runs is left out. A failed request is an error.
func (t *tenant) load(ctx context.Context, listed []*bucket.StoredProfile) error {
	loaded, broken := make([]*stored, len(listed)), make([]*brokenBlock, len(listed))
	reads, ctx := errgroup.WithContext(ctx)
	reads.SetLimit(readsMax)
	for i, s := range listed {
		if s.Unread != nil {
			return fmt.Errorf("list %s: %w", s.Name(), s.Unread)
		}
		if !s.Complete() {
			t.partial = append(t.partial, s)
			continue
		}
		if old := t.known[s.ID]; old != nil && old.Tenant == s.Tenant {
			loaded[i] = &stored{s, old.meta, old.bytes, old.head}
			continue
		}
		reads.Go(func() (err error) {
			loaded[i], broken[i], err = t.read(ctx, s)
			if err != nil && t.store.IsNotFound(err) {
				return nil
			}
			return err
		})
	}
	if err := reads.Wait(); err != nil {
		return err
	}
	for i := range listed {
		if loaded[i] != nil {
			t.blocks = append(t.blocks, loaded[i])
		}
		if broken[i] != nil {
			t.broken = append(t.broken, broken[i])
		}
	}
	return nil
}

// read reads the meta of a block and checks that its files are complete.
func (t *tenant) read(ctx context.Context, s *bucket.StoredProfile) (*stored, *brokenBlock, error) {
	indexBytes, rowsBytes, err := t.store.Sizes(ctx, s)
	if err != nil {
		return nil, nil, err
	}
	head, err := t.store.ReadIndex(ctx, s, 0, min(indexBytes, block.HeadBytes))
	if err != nil {
		return nil, nil, err
	}
	meta, err := block.MetaOf(head)
	if err != nil {
		return nil, &brokenBlock{s, nil, err}, nil
	}
	if meta.ULID != s.ID || meta.RowsBytes != uint64(rowsBytes) {
		return nil, &brokenBlock{s, &meta, fmt.Errorf("%w: its meta has ULID %s and %d bytes of rows, want %d",
			profiles.ErrCorrupt, ulid.ULID(meta.ULID), meta.RowsBytes, rowsBytes)}, nil
	}
	tail := head[max(0, len(head)-block.TailBytes):]
	if int64(len(head)) < indexBytes {
		if tail, err = t.store.ReadIndex(ctx, s, indexBytes-block.TailBytes, block.TailBytes); err != nil {
			return nil, nil, err
		}
	}
	if !block.IsWhole(tail) {
		return nil, &brokenBlock{s, &meta, fmt.Errorf("%w: its index is cut short", profiles.ErrCorrupt)}, nil
	}
	if head, err = block.Head(head); err != nil {
		return nil, &brokenBlock{s, nil, err}, nil
	}
	return &stored{s, meta, indexBytes + rowsBytes, slices.Clone(head)}, nil, nil
}

// compact merges a group of blocks and uploads the new block. A corrupt block is no error: it is left out of
// further groups. If another process has deleted a block of the group, compact does nothing, and the next
// iteration plans the remaining blocks again. changed reports whether t.plan may now return other groups.
func (t *tenant) compact(ctx context.Context, g group) (changed bool, err error) {
	t.metrics.started.Inc()
	dir, err := os.MkdirTemp(t.opts.Dir, groupDir)
	if err != nil {
		return false, err
	}
	defer func() {
		err = errors.Join(err, os.RemoveAll(dir))
		if err != nil {
			t.metrics.failures.Inc()
		}
	}()
	var run []*block.Reader
	defer func() {
		for _, r := range run {
			err = errors.Join(err, r.Close())
		}
	}()
	for _, s := range g.blocks {
		r, err := t.open(ctx, s, filepath.Join(dir, s.ID.String()))
		if t.store.IsNotFound(err) {
			t.logger.Info("A profile block has vanished; its group is skipped", "block", s.Name())
			t.blocks = slices.DeleteFunc(t.blocks, func(b *stored) bool { return b == s })
			return false, nil
		}
		if errors.Is(err, profiles.ErrCorrupt) {
			t.skip(s, err)
			return true, nil
		}
		if err != nil {
			return false, fmt.Errorf("%s: %w", s.Name(), err)
		}
		run = append(run, r)
	}
	id, out := ulid.MustNewDefault(t.opts.Now()), filepath.Join(dir, "out")
	if err := os.Mkdir(out, 0o755); err != nil {
		return false, err
	}
	if err := store.Merge(ctx, out, id, run); err != nil {
		if !errors.Is(err, profiles.ErrCorrupt) {
			return false, fmt.Errorf("compact %d blocks: %w", len(run), err)
		}
		return true, t.findCorrupt(ctx, dir, g, run, err)
	}
	return true, t.upload(ctx, id, out, g)
}

// open downloads a block and opens it.
func (t *tenant) open(ctx context.Context, s *stored, dir string) (*block.Reader, error) {
	if err := t.store.Download(ctx, s.StoredProfile, dir); err != nil {
		return nil, err
	}
	return block.Open(dir)
}

// findCorrupt leaves the corrupt blocks of a group out of further compactions. It finds them by merging each block
// alone. If no block fails alone, it leaves out all blocks of the group, because their merge would fail again.
// failed is the error of the merge of all blocks.
func (t *tenant) findCorrupt(ctx context.Context, dir string, g group, run []*block.Reader, failed error) error {
	found := false
	for i, s := range g.blocks {
		alone := filepath.Join(dir, fmt.Sprint("alone-", i))
		if err := os.Mkdir(alone, 0o755); err != nil {
			return err
		}
		err := store.Merge(ctx, alone, s.ID, run[i:i+1])
		if errors.Is(err, profiles.ErrCorrupt) {
			t.skip(s, err)
			found = true
		} else if err != nil {
			return err
		}
		if err := os.RemoveAll(alone); err != nil {
			return err
		}
	}
	if !found {
		for _, s := range g.blocks {
			t.skip(s, failed)
		}
	}
	return nil
}

// skip leaves a block out of further compactions of this process.
func (t *tenant) skip(s *stored, err error) {
	t.metrics.failures.Inc()
	t.corrupt[s.ID] = true
	t.logger.Warn("A profile block is not compacted", "block", s.Name(), "err", err)
}

// upload uploads the block that was merged from a group, and adds it to the tenant's blocks. It uploads nothing in two
// cases. If the merged block does not have all rows of a block of the group, upload leaves this block of the group
// out of further compactions. If the index of the merged block is too large, it leaves out all blocks of the group.
func (t *tenant) upload(ctx context.Context, id ulid.ULID, dir string, g group) error {
	merged, err := block.Open(dir)
	if err != nil {
		return err
	}
	s, wrong := &stored{meta: merged.Meta(), bytes: merged.Bytes() - merged.SpansBytes()}, false
	s.head, err = merged.Head()
	if err := errors.Join(err, merged.Close()); err != nil {
		return err
	}
	for _, o := range g.blocks {
		if !s.meta.Replaces(&o.meta) { // each iteration would merge o again
			t.skip(o, fmt.Errorf("%w: its rows are not in the range of its meta", profiles.ErrCorrupt))
			wrong = true
		}
	}
	if wrong {
		return nil
	}
	if s.indexBytes() > block.IndexMax {
		for _, s := range g.blocks {
			t.skip(s, fmt.Errorf("%w: merged, the index has %d bytes, more than %d", profiles.ErrLimit, merged.IndexBytes(),
				block.IndexMax))
		}
		return nil
	}
	if s.StoredProfile, err = t.store.Upload(ctx, t.name, id, dir); err != nil {
		return err
	}
	t.blocks = append(t.blocks, s)
	t.metrics.compactions.Inc()
	if g.vertical {
		t.metrics.vertical.Inc()
	}
	t.metrics.completed.Inc()
	t.logger.Info("Compacted profile blocks", "block", s.Name(), "blocks", len(g.blocks), "bytes", s.bytes, "overlapping",
		g.vertical)
	return nil
}
