package gateway

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/util/annotations"
	"golang.org/x/sync/errgroup"

	"github.com/ferula-io/ferula/internal/blocks/pages"
	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/series/labelenc"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

// Selection is the series of a request: a series.Set whose chunks are as stored, not cut to
// the time range. The caller must call Close.
type Selection struct {
	series.Set
	store    *Store
	cancel   context.CancelFunc
	sets     []*blockSet
	warnings annotations.Annotations // of blocks that could not be opened
	closed   bool
}

// opening is a block that a request opens, with the matchers of the request that are not on external
// labels of the block.
type opening struct {
	block    *block
	matchers []*labels.Matcher
}

// Select selects series of all blocks.
func (s *Store) Select(ctx context.Context, r storeapi.SeriesRequest) (*Selection, error) {
	lowest, highest := s.opts.Rules.Range()
	r.MinMS, r.MaxMS = max(r.MinMS, lowest), min(r.MaxMS, highest)
	return s.open(ctx, r, s.chosen(r))
}

// chosen returns the blocks of a request. As in Thanos, a request whose matchers are all on
// external labels of a block selects no series of the block.
func (s *Store) chosen(r storeapi.SeriesRequest) (all []opening) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, g := range s.groups {
		matchers, ok := series.MatchExternal(g.labels, r.Matchers)
		if !ok || len(matchers) == 0 {
			continue
		}
		for _, b := range g.choose(r.MinMS, r.MaxMS, r.MaxResolutionMS) {
			all = append(all, opening{b, matchers})
		}
	}
	return all
}

func (s *Store) open(ctx context.Context, r storeapi.SeriesRequest, all []opening) (_ *Selection, err error) {
	if err := s.begin(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	selection := &Selection{store: s, cancel: cancel}
	defer func() {
		if err != nil {
			_ = selection.Close()
		}
	}()
	opened := make([]*blockSet, len(all))
	errs := make([]error, len(all))
	each(len(all), openedAtOnce, func(i int) { opened[i], errs[i] = s.openBlock(ctx, r, all[i]) })
	for i, set := range opened {
		if set != nil {
			selection.sets = append(selection.sets, set)
		} else if errs[i] != nil {
			s.failed(all[i].block, errs[i])
		}
	}
	for i, err := range errs {
		err = all[i].block.wrap(err)
		switch {
		case err == nil:
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case errors.Is(err, ErrLimit), errors.Is(err, pages.ErrBudget):
			return nil, err
		case r.AbortOnPartial:
			return nil, fmt.Errorf("%w: %w", ErrBlock, err)
		default:
			selection.warnings.Add(err)
		}
	}
	var merged []series.Set
	budget := series.NewSortBudget(r.SortBytesMax)
	for _, set := range selection.sets {
		set.start()
		merged = append(merged, series.SelectReplacingLabels(ctx, set, series.SelectOptions{},
			set.producer.block.external(), r.WithoutReplicaLabels, budget))
	}
	selection.Set = series.Merge(merged...)
	return selection, nil
}

// openedAtOnce is the number of blocks that one request opens concurrently.
const openedAtOnce = 16

// each calls f for 0 to n-1, up to atOnce concurrently.
func each(n, atOnce int, f func(i int)) {
	if n == 1 {
		f(0)
		return
	}
	var all errgroup.Group
	all.SetLimit(atOnce)
	for i := range n {
		all.Go(func() error { f(i); return nil })
	}
	_ = all.Wait() // f handles its errors
}

// openBlock finds the series of a block; nil if there are none.
func (s *Store) openBlock(ctx context.Context, r storeapi.SeriesRequest, o opening) (*blockSet, error) {
	h, err := o.block.acquire(ctx)
	if err != nil {
		return nil, err
	}
	postings, onLabels, err := h.expand(ctx, o.block.index, o.matchers, uint64(s.opts.PostingsBytes))
	if err != nil {
		o.block.release()
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	s.reading.Add(1)
	set := &blockSet{
		ctx: ctx, cancel: cancel, strict: r.AbortOnPartial, reader: s.cache.Reader(), closing: func() {
			s.reading.Add(-1)
		},
		producer: producer{
			block: o.block, header: h, postings: postings, onLabels: onLabels, minMS: r.MinMS, maxMS: r.MaxMS,
			labelsOnly: r.SkipChunks, slot: slot{gate: s.gate}, ahead: window{bytes: s.windowBytes}, reader: s.cache.Reader(),
			series: seriesMin,
		},
	}
	if r.Summaries != nil && !r.SkipChunks {
		s.useSide(ctx, &set.producer, r.Summaries)
	}
	return set, nil
}

// windowBytes returns how many bytes of chunks a block may read ahead next.
func (s *Store) windowBytes() int64 {
	return min(max(s.cache.BytesMax()/2/max(s.reading.Load(), 1), windowMin), windowMax)
}

// failed counts an error of a block. If an object is missing or corrupt, the next Sync checks
// whether the block is still in the bucket, and reads its meta.json again.
func (s *Store) failed(b *block, err error) {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return
	}
	s.counts.blockErrors.Inc()
	if s.from.IsObjNotFoundErr(err) || errors.Is(err, pages.ErrShort) || errors.Is(err, ErrCorrupt) {
		s.lister.Forget(b.meta.ID)
	}
}

// Warnings implements series.Set. It names the blocks that are missing in the result.
func (s *Selection) Warnings() annotations.Annotations {
	var all annotations.Annotations
	all.Merge(s.warnings)
	all.Merge(s.Set.Warnings())
	return all
}

// Close cancels the reads of all blocks and releases the blocks.
func (s *Selection) Close() error {
	if s.closed {
		return nil
	}
	s.closed = true
	s.cancel()
	for _, set := range s.sets {
		if set.warning != nil {
			s.store.failed(set.producer.block, set.warning)
		}
		set.close()
	}
	s.store.using.Done()
	return nil
}

// LabelNames implements storeapi.API: the names of the labels of all matching series, sorted, with the
// external labels.
func (s *Store) LabelNames(ctx context.Context, r storeapi.LabelsRequest) (names, warnings []string, err error) {
	defer func() { err = withStatus(err) }()
	found := map[string]bool{}
	r.Label = ""
	whole, parts := s.labelBlocks(r)
	warned, err := s.eachHeader(ctx, r, whole, func(b *block, h *header) {
		for _, name := range h.labelNames {
			add(found, []byte(name))
		}
		b.external().Range(func(l labels.Label) { found[l.Name] = true })
	})
	if err != nil {
		return nil, nil, err
	}
	more, err := s.eachSeries(ctx, r, parts, func(lset []byte) {
		for name := range labelenc.All(lset) {
			add(found, name)
		}
	})
	if err != nil {
		return nil, nil, err
	}
	for _, name := range r.WithoutReplicaLabels {
		delete(found, name)
	}
	return sorted(found), texts(warned.Merge(more)), nil
}

// LabelValues implements storeapi.API: the values of a label of all matching series, sorted.
func (s *Store) LabelValues(ctx context.Context, r storeapi.LabelsRequest) (values, warnings []string, err error) {
	defer func() { err = withStatus(err) }()
	label := r.Label
	if slices.Contains(r.WithoutReplicaLabels, label) {
		return nil, nil, nil
	}
	found := map[string]bool{}
	whole, parts := s.labelBlocks(r)
	warned, err := s.eachHeader(ctx, r, whole, func(b *block, h *header) {
		if own := b.external().Get(label); own != "" {
			found[own] = true
			return
		}
		h.each(label, func(value []byte, _ list) bool { add(found, value); return true })
	})
	if err != nil {
		return nil, nil, err
	}
	more, err := s.eachSeries(ctx, r, parts, func(lset []byte) { add(found, labelenc.Value(lset, label)) })
	if err != nil {
		return nil, nil, err
	}
	delete(found, "")
	return sorted(found), texts(warned.Merge(more)), nil
}

// labelBlocks returns the blocks in the time range of a request, as two lists. whole has the blocks whose
// external labels satisfy all matchers: the label names and values are read from their headers. A header
// also has the labels of series without samples in the time range; these are returned, too. parts has the
// blocks whose series must be matched. r.Label is the label whose values are wanted; "": names are wanted.
func (s *Store) labelBlocks(r storeapi.LabelsRequest) (whole []*block, parts []opening) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, g := range s.groups {
		matchers, ok := series.MatchExternal(g.labels, r.Matchers)
		if !ok {
			continue
		}
		if r.Label != "" && len(matchers) > 0 && !g.labels.Has(r.Label) {
			matchers = append(slices.Clone(matchers), labels.MustNewMatcher(labels.MatchNotEqual, r.Label, ""))
		}
		for _, list := range g.blocks {
			for _, b := range list {
				switch {
				case !b.overlaps(r.MinMS, r.MaxMS):
				case len(matchers) == 0:
					whole = append(whole, b)
				default:
					parts = append(parts, opening{b, matchers})
				}
			}
		}
	}
	return whole, parts
}

// eachHeader loads the headers of blocks concurrently. It calls f with each block and its header, one
// call at a time.
func (s *Store) eachHeader(ctx context.Context, r storeapi.LabelsRequest, all []*block,
	f func(b *block, h *header)) (warnings annotations.Annotations, err error) {
	if err := s.begin(); err != nil {
		return nil, err
	}
	defer s.using.Done()
	var mu sync.Mutex
	each(len(all), openedAtOnce, func(i int) {
		h, failed := all[i].acquire(ctx)
		mu.Lock()
		defer mu.Unlock()
		if failed == nil {
			defer all[i].release()
			f(all[i], h)
			return
		}
		s.failed(all[i], failed)
		if failed = all[i].wrap(failed); r.AbortOnPartial || ctx.Err() != nil {
			err = fmt.Errorf("%w: %w", ErrBlock, failed)
		} else {
			warnings.Add(failed)
		}
	})
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return warnings, err
}

// eachSeries calls f with the labels of all series of a selection.
func (s *Store) eachSeries(ctx context.Context, r storeapi.LabelsRequest, parts []opening,
	f func(lset []byte)) (annotations.Annotations, error) {
	if len(parts) == 0 {
		return nil, nil
	}
	selection, err := s.open(ctx, storeapi.SeriesRequest{MinMS: r.MinMS, MaxMS: r.MaxMS, SkipChunks: true,
		WithoutReplicaLabels: r.WithoutReplicaLabels, AbortOnPartial: r.AbortOnPartial}, parts)
	if err != nil {
		return nil, err
	}
	//lint:ignore errcheck the selection was read to its end or failed
	defer selection.Close()
	for selection.Next() {
		f(selection.Labels())
	}
	return selection.Warnings(), selection.Err()
}
