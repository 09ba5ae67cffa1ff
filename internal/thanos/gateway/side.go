package gateway

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"time"

	"github.com/thanos-io/objstore"

	"github.com/ferula-io/ferula/internal/blocks/pages"
	"github.com/ferula-io/ferula/internal/blocks/summaries"
	"github.com/ferula-io/ferula/internal/bucket"
	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

// side is an object of package summaries beside a block. Thanos ignores it, and deletes it with the block.
type side struct {
	object *pages.Object
	table  summaries.Table
}

const (
	sideName = "/summaries" // after the ULID
	// sideEvery is the time after which an object is looked for again that was not there, or not usable.
	sideEvery = 15 * time.Minute
	tableMax  = 16 << 20 // limit of the bytes of a table, which are in memory
)

// sideOf returns the summaries of a block; nil if there are none.
func (s *Store) sideOf(ctx context.Context, b *block) *side {
	select {
	case b.loading <- struct{}{}:
	case <-ctx.Done():
		return nil
	}
	defer func() { <-b.loading }()
	b.mu.Lock()
	known, at := b.side, b.sideAt
	b.mu.Unlock()
	if known != nil || b.meta.ResolutionMS != bucket.Raw || time.Now().Before(at) {
		return known
	}
	found, err := b.openSide(ctx)
	if ctx.Err() == nil {
		s.setSide(b, nil, found, err)
	}
	return found
}

// setSide replaces the summaries of a block, unless another request has. err is why they are not used, if not nil.
func (s *Store) setSide(b *block, was, now *side, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.side != was {
		return
	}
	if b.side, b.sideAt = now, time.Now().Add(sideEvery); err != nil {
		s.sideFailed(b, err)
	}
}

func (s *Store) sideFailed(b *block, err error) {
	if s.counts.sideErrors.Inc(); !errors.Is(err, summaries.ErrVersion) || !s.outdated.Swap(true) {
		s.opts.Logger.Warn("A block is read without summaries of its chunks", "block", b.meta.ID, "retry_in", sideEvery,
			"err", err)
	}
}

func (b *block) openSide(ctx context.Context) (*side, error) {
	attributes, err := b.from.Attributes(ctx, b.meta.ID.String()+sideName)
	if err != nil && b.from.IsObjNotFoundErr(err) {
		return nil, nil
	}
	if err == nil && b.index == nil {
		err = b.find(ctx)
	}
	if err != nil {
		return nil, err
	}
	found := &side{object: b.cache.Object(b.from, b.meta.ID.String()+sideName, attributes.Size)}
	id, err := b.identity(ctx)
	if err != nil {
		return nil, err
	}
	found.table, err = summaries.OpenTable(uint64(attributes.Size), id, func(from, to uint64) ([]byte, error) {
		if to-from > tableMax {
			return nil, fmt.Errorf("%w: a table of %d bytes", summaries.ErrCorrupt, to-from)
		}
		src := make([]byte, to-from)
		_, err := found.object.ReadAt(ctx, src, int64(from), 0)
		return src, err
	})
	if err != nil {
		return nil, err
	}
	return found, nil
}

// identity returns what the summaries of the block are recognized by.
func (b *block) identity(ctx context.Context) (summaries.Block, error) {
	var end [4]byte
	if _, err := b.index.ReadAt(ctx, end[:], b.index.Size()-int64(len(end)), 0); err != nil {
		return summaries.Block{}, err
	}
	var sizes []uint64
	for _, segment := range b.segments {
		if segment != nil {
			sizes = append(sizes, uint64(segment.Size()))
		}
	}
	return summaries.NewBlock(b.meta.ID, uint64(b.index.Size()), end[:], sizes...), nil
}

// useSide lets a producer use the summaries of its block, if there are any.
func (s *Store) useSide(ctx context.Context, p *producer, wanted *series.Summaries) {
	p.side = s.sideOf(ctx, p.block)
	if p.side == nil {
		return
	}
	var group []byte
	minMS, maxMS := wanted.MinMS, p.maxMS
	if wanted.Joined() { // no other store has the same chunk, and cuts it
		minMS, maxMS = math.MinInt64, math.MaxInt64
	}
	p.picker = summaries.Picker{Opts: wanted, MinMS: minMS, MaxMS: maxMS,
		Cursor: p.side.table.Cursor(func(from, to uint64) ([]byte, error) {
			group = slices.Grow(group[:0], int(to-from))[:to-from]
			_, err := p.side.object.ReadAt(ctx, group, int64(from), 0)
			return group, err
		}),
		Emit: func(one *series.Summary, minMS, maxMS int64) {
			b := p.into
			from := len(b.sums)
			b.sums = series.AppendSummary(b.sums, *one)
			b.chunks = append(b.chunks, place{minMS, maxMS, inSums | uint64(from)<<8 | uint64(len(b.sums)-from)})
		},
		Damaged: func(err error) {
			if p.picker.Cursor = nil; ctx.Err() == nil {
				s.setSide(p.block, p.side, nil, err)
			}
		}}
}

// fetchGroups requests the summaries of the next series, of about a number of bytes. It returns the end of the series.
func (p *producer) fetchGroups(ctx context.Context, bytesMax int64) (end int) {
	var spans []pages.Span
	last, bytes := -1, int64(0)
	for end = p.at; end < len(p.refs) && bytes < bytesMax; end++ {
		if group := p.side.table.Find(uint64(p.refs[end])); group > last {
			from, to := p.side.table.Range(group)
			spans = appendSpan(spans, pages.Span{Off: int64(from), Len: int64(to - from)})
			last, bytes = group, bytes+int64(to-from)
		}
	}
	_ = p.side.object.Fetch(ctx, spans) // a reader that misses a page requests it again, and gets the error
	return end
}

// Summarize makes the missing and the unusable summaries of all blocks with raw samples, and uploads them. With dry it
// only reports the blocks. The summaries of other blocks are made even if those of one fail.
func (s *Store) Summarize(ctx context.Context, to objstore.Bucket, dry bool,
	report func(m *bucket.Meta, bytes int64)) error {
	if err := s.begin(); err != nil {
		return err
	}
	defer s.using.Done()
	var errs []error
	all := s.Blocks()
	slices.SortFunc(all, func(a, b *bucket.Meta) int {
		return cmp.Or(cmp.Compare(a.MinMS, b.MinMS), a.ID.Compare(b.ID))
	})
	for _, m := range all {
		s.mu.RLock()
		b := s.blocks[m.ID]
		s.mu.RUnlock()
		if m.ResolutionMS != bucket.Raw || b == nil {
			continue
		}
		found, err := b.openSide(ctx)
		if found != nil {
			continue
		}
		var bytes int64
		if err != nil && ctx.Err() == nil {
			if !errors.Is(err, summaries.ErrVersion) {
				s.opts.Logger.Warn("A block has unusable summaries", "block", m.ID, "err", err)
			}
			err = nil
		}
		if !dry {
			bytes, err = s.summarize(ctx, to, b)
		}
		if ctx.Err() != nil {
			return errors.Join(append(errs, context.Cause(ctx))...)
		}
		if err != nil {
			errs = append(errs, b.wrap(err))
			continue
		}
		report(m, bytes)
	}
	return errors.Join(errs...)
}

// summarize makes the summaries of a block in a temporary file, and uploads it.
func (s *Store) summarize(ctx context.Context, to objstore.Bucket, b *block) (bytes int64, err error) {
	file, err := os.CreateTemp(s.opts.Dir, "summaries-*.tmp")
	if err != nil {
		return 0, err
	}
	defer func() {
		_ = file.Close() // it is removed
		err = errors.Join(err, os.Remove(file.Name()))
	}()
	set, err := s.openBlock(ctx, storeapi.SeriesRequest{MinMS: math.MinInt64, MaxMS: math.MaxInt64, AbortOnPartial: true},
		opening{block: b})
	if err != nil {
		return 0, err
	}
	defer set.close()
	id, err := b.identity(ctx)
	if err != nil {
		return 0, err
	}
	w, err := summaries.NewWriter(file, id)
	if err != nil {
		return 0, err
	}
	if err := set.summarize(w); err != nil {
		return 0, err
	}
	// The compactor may have deleted the block. It also deletes what is left of blocks without a meta.json, after days.
	if there, err := to.Exists(ctx, b.meta.ID.String()+"/meta.json"); err != nil || !there {
		return 0, cmp.Or(err, errGone)
	}
	if _, err := file.Seek(0, 0); err != nil {
		return 0, err
	}
	return w.Bytes(), to.Upload(ctx, b.meta.ID.String()+sideName, file)
}

var errGone = errors.New("it was deleted from the bucket")

// summarize writes the summaries of all series of a block. Those whose chunks overlap have none.
func (s *blockSet) summarize(w *summaries.Writer) error {
	var decoder summaries.Decoder
	s.start()
	for s.Next() {
		overlap := false
		for i := 1; i < len(s.chunks); i++ {
			overlap = overlap || s.chunks[i].MinMS <= s.chunks[i-1].MaxMS
		}
		if overlap {
			continue
		}
		if err := w.Series(uint64(s.current.refs[s.i])); err != nil {
			return err
		}
		for _, c := range s.chunks {
			decoder.Cut(c, w)
		}
	}
	if s.err != nil {
		return s.err
	}
	return w.Close()
}
