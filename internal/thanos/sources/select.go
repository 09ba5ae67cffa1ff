package sources

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/grafana/regexp"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/annotations"
	"golang.org/x/sync/semaphore"

	"github.com/ferula-io/ferula/internal/remoteread"
	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/series/labelenc"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

// holdBytesMax limits the memory of one remote read for sorting series.
const holdBytesMax = 64 << 20

const (
	// defaultSelectionsMax is the maximum of remote reads of one Series request. They are
	// open concurrently; Prometheus' default limit is 10 for all clients.
	defaultSelectionsMax = 3
	// defaultReadsMax is the maximum of concurrent remote reads of the sidecar.
	defaultReadsMax = 8
)

// RawQuerier implements series.Source. It ignores the error of the last Refresh, because
// Prometheus may have recovered since then.
func (s *Prometheus) RawQuerier(_ context.Context, mint, maxt int64) (series.Querier, error) {
	mint = max(mint, s.minTime())
	if maxt < mint {
		return series.FromChunkQuerier(storage.NoopChunkedQuerier()), nil // not served
	}
	remote := s.remote(mint, maxt)
	if s.blocks == nil {
		return remote, nil
	}
	blocks, untilMS, err := s.blocks.Querier(mint, maxt)
	if err != nil {
		return remote, nil // Prometheus has the samples, or returns an error
	}
	q := &withBlocks{blocks: blocks, whole: remote}
	if maxt >= untilMS {
		q.head = s.remote(max(mint, untilMS), maxt)
	}
	return q, nil
}

func (s *Prometheus) remote(mint, maxt int64) *querier {
	return &querier{reads: s.reads, Querier: s.read.Querier(mint, maxt), Prometheus: s,
		external: s.ExternalLabels(), mint: mint, maxt: maxt}
}

// withBlocks selects samples from blocks, and later ones by remote read.
type withBlocks struct {
	blocks series.Querier
	head   *querier // of later samples; nil: none are requested
	whole  *querier // of the whole range
	listed bool     // remote is valid
	remote bool     // everything is read through whole
}

// LabelNames implements series.Querier. If series have labels with the names of external labels, remote read selects
// everything: series without these labels, or in another order, cannot be merged with those of blocks.
func (q *withBlocks) LabelNames(ctx context.Context, opts series.SelectOptions,
	matchers ...*labels.Matcher) ([]string, error) {
	names, err := q.blocks.LabelNames(ctx, opts, matchers...)
	if err != nil {
		return nil, err
	}
	q.listed, q.remote = true, false
	for _, name := range names {
		if q.whole.external.Has(name) {
			own := append(slices.Clone(matchers), labels.MustNewMatcher(labels.MatchNotEqual, name, ""))
			set := q.blocks.Select(ctx, series.SelectOptions{LabelsOnly: true}, own...)
			q.remote = q.remote || set.Next() || set.Err() != nil
		}
	}
	names = slices.DeleteFunc(names, q.whole.external.Has)
	if q.head != nil && !q.remote {
		more, err := q.head.LabelNames(ctx, opts, matchers...)
		if err != nil {
			return nil, err
		}
		q.remote = len(q.head.keptLabels) > 0
		names = append(names, more...)
		slices.Sort(names)
	}
	if q.remote {
		return q.whole.LabelNames(ctx, opts, matchers...)
	}
	return slices.Compact(names), nil
}

// Select implements series.Querier.
func (q *withBlocks) Select(ctx context.Context, opts series.SelectOptions, matchers ...*labels.Matcher) series.Set {
	if !q.listed {
		if _, err := q.LabelNames(ctx, opts, matchers...); err != nil {
			return series.Failed(err)
		}
	}
	switch {
	case q.remote:
		return q.whole.Select(ctx, opts, matchers...)
	case q.head == nil:
		return q.blocks.Select(ctx, opts, matchers...)
	}
	return series.Merge(q.blocks.Select(ctx, opts, matchers...), q.head.Select(ctx, opts, matchers...))
}

// Capabilities implements series.Querier.
func (*withBlocks) Capabilities() series.Capabilities { return series.Capabilities{} }

// Close implements series.Querier.
func (q *withBlocks) Close() error {
	err := errors.Join(q.blocks.Close(), q.whole.Close())
	if q.head != nil {
		err = errors.Join(err, q.head.Close())
	}
	return err
}

// querier selects series by remote read and removes the external labels that Prometheus adds.
// The StoreAPI server then adds the external labels that the request does not exclude (a
// querier excludes replica labels). Series without external labels stay sorted while labels are
// added or left out; series with them would have to be sorted again.
//
// A series can have its own label with the name of an external label. Remote read returns the
// value of the series' own label, and StoreAPI must replace it by the external label. The new
// labels have another order. If the matching series have few values of their own label, querier
// selects each value separately. Within one selection the label is constant, so it can be
// removed, and the selections can be merged. Otherwise querier keeps the label, and the server
// replaces it and sorts the series, up to its limit of bytes.
//
// A merge reads the first series of every selection before it returns a series, and each
// selection holds one of Prometheus' slots for remote reads until the selection has ended. Two
// requests that each held some of their slots could wait for each other. A request therefore
// acquires the slots of all its selections at once.
type querier struct {
	*remoteread.Querier
	*Prometheus
	external   labels.Labels
	mint, maxt int64
	listed     bool    // split and keptLabels are valid
	split      []split // labels whose values are selected separately
	// names of external labels that are not removed, because the series' own labels have too many values
	keptLabels []string
	reads      *semaphore.Weighted
	taken      int64 // acquired slots of reads
}

// split is the name of an external label that series also have as their own label. values are the values of the series'
// own label.
type split struct {
	name   string
	values []string
}

// selections returns the number of selections of a split: one per value and one for the
// series without the label.
func (s split) selections() int { return 1 + len(s.values) }

// LabelNames implements series.Querier. Unless only labels are selected, Select must be called with the same matchers.
func (q *querier) LabelNames(ctx context.Context, opts series.SelectOptions,
	matchers ...*labels.Matcher) ([]string, error) {
	// The label names of all series are one index lookup, and usually contain no external label.
	// With matchers, Prometheus would read every matching series.
	names, _, err := q.api.LabelNames(ctx, nil, q.mint, q.maxt, 0)
	if err != nil || opts.LabelsOnly {
		return names, toStore(err)
	}
	q.split, q.keptLabels = nil, nil
	selections := 1
	for _, name := range names {
		if !q.external.Has(name) {
			continue
		}
		values, _, err := q.api.LabelValues(ctx, name, matchers, q.mint, q.maxt, int64(q.selectionsMax))
		if err != nil {
			return nil, toStore(err)
		}
		if len(values) == 0 {
			continue // no matching series has it
		}
		selections *= 1 + len(values)
		q.split = append(q.split, split{name, values})
		q.keptLabels = append(q.keptLabels, name)
		if selections > q.selectionsMax {
			selections = q.selectionsMax + 1 // the product of more labels must not overflow
		}
	}
	if selections <= q.selectionsMax {
		q.keptLabels = nil
	} else {
		q.split = nil // one remote read; the server replaces the labels in keptLabels and sorts the series
	}
	q.listed = true
	return slices.DeleteFunc(names, func(name string) bool {
		return q.external.Has(name) && !slices.Contains(q.keptLabels, name)
	}), nil
}

// Select implements series.Querier. Labels only are read from Prometheus' series endpoint, which
// returns them without external labels.
func (q *querier) Select(ctx context.Context, opts series.SelectOptions, matchers ...*labels.Matcher) series.Set {
	if opts.LabelsOnly {
		return sortedLabels(q.sortBytes, func(f func(labels.Labels) error) ([]string, error) {
			return q.api.Series(ctx, matchers, q.mint, q.maxt, f)
		})
	}
	if !q.listed {
		if _, err := q.LabelNames(ctx, opts, matchers...); err != nil {
			return series.Failed(err)
		}
	}
	n := int64(1)
	for _, s := range q.split {
		n *= int64(s.selections())
	}
	if err := q.reads.Acquire(ctx, n); err != nil {
		return series.Failed(err)
	}
	q.taken += n
	without := labels.NewBuilder(q.external)
	without.Del(q.keptLabels...)
	if len(q.keptLabels) > 0 {
		return errorMapper{q.SelectUnordered(ctx, without.Labels(), matchers...), q.Prometheus}
	}
	var sets []series.Set
	q.selections(ctx, q.split, without, matchers, &sets)
	return errorMapper{series.Merge(sets...), q.Prometheus}
}

// Capabilities implements series.Querier.
func (*querier) Capabilities() series.Capabilities { return series.Capabilities{} }

// sortedLabels returns the label sets that list passes to its argument, in any order.
func sortedLabels(bytesMax int, list func(func(labels.Labels) error) (warnings []string, err error)) series.Set {
	return series.Sorted(series.NewSortBudget(bytesMax), "the labels of the matching series need",
		func(keep func([]byte, []series.Chunk) error) (all annotations.Annotations, err error) {
			var lset []byte
			warnings, err := list(func(one labels.Labels) error {
				lset = labelenc.Append(lset[:0], one)
				return keep(lset, nil)
			})
			for _, warning := range warnings {
				all.Add(errors.New(warning))
			}
			return all, toStore(err)
		})
}

// Close implements series.Querier.
func (q *querier) Close() error {
	err := q.Querier.Close()
	q.reads.Release(q.taken)
	q.taken = 0
	return err
}

// selections appends to sets one selection for each combination of the values of the
// labels in left.
func (q *querier) selections(ctx context.Context, left []split, without *labels.Builder, matchers []*labels.Matcher,
	sets *[]series.Set) {
	if len(left) == 0 {
		*sets = append(*sets, q.SelectWithout(ctx, without.Labels(), !q.unsorted.Load(), matchers...))
		return
	}
	name, external := left[0].name, q.external.Get(left[0].name)
	// with adds the selections of the series whose own label matches pattern. value is the value of the label in the
	// response of Prometheus, from which it is removed.
	with := func(kind labels.MatchType, pattern, value string) {
		// Cloned, since appending to a shared slice would overwrite matchers of other calls.
		more := append(slices.Clone(matchers), labels.MustNewMatcher(kind, name, pattern))
		without.Set(name, value)
		q.selections(ctx, left[1:], without, more, sets)
	}
	// First the series to which remote read adds the label. Prometheus matches them as
	// series without the label.
	if slices.Contains(left[0].values, external) {
		with(labels.MatchEqual, "", external) // the loop below selects the series whose own label has the external value
	} else {
		with(labels.MatchRegexp, "|"+regexp.QuoteMeta(external), external)
	}
	for _, value := range left[0].values {
		if value == external {
			// Prometheus drops an equality matcher of an external label, but no regexp matcher.
			with(labels.MatchRegexp, regexp.QuoteMeta(external), external)
		} else {
			with(labels.MatchEqual, value, value)
		}
	}
	without.Set(name, external)
}

// errorMapper maps the errors of remote read to errors of package storeapi.
type errorMapper struct {
	series.Set
	*Prometheus
}

// Err implements series.Set. If a series lacks an external label, the configuration of Prometheus has changed since the
// last Refresh. Err then sends a value to Prometheus.Changed.
func (r errorMapper) Err() error {
	err := r.Set.Err()
	if errors.Is(err, remoteread.ErrLimit) && r.unsorted.CompareAndSwap(false, true) {
		return fmt.Errorf("%w: the server returns series out of order; the sidecar sorts them from the next request on: %w",
			storeapi.ErrUnavailable, err)
	}
	if errors.Is(err, remoteread.ErrLabelMissing) {
		select {
		case r.changed <- struct{}{}:
		default:
		}
		return fmt.Errorf("%w: the configuration of Prometheus has changed: %w", storeapi.ErrUnavailable, err)
	}
	return toStore(err)
}

// Ahead implements series.Ahead. It returns nil if the set does not implement it.
func (r errorMapper) Ahead() []byte {
	if next, ok := r.Set.(series.Ahead); ok {
		return next.Ahead()
	}
	return nil
}

// toStore maps errors of remote read and of the HTTP API to errors of package storeapi.
func toStore(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, remoteread.ErrUnavailable), errors.Is(err, errUnavailable):
		return fmt.Errorf("%w: %w", storeapi.ErrUnavailable, err)
	case errors.Is(err, remoteread.ErrLimit):
		return fmt.Errorf("%w: %w", storeapi.ErrLimit, err)
	case errors.Is(err, remoteread.ErrRefused), errors.Is(err, errRefused):
		return fmt.Errorf("%w: %w", storeapi.ErrBadRequest, err)
	}
	return err
}
