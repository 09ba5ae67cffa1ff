package prometheusstore

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/grafana/regexp"
	"github.com/prometheus/prometheus/model/labels"
	"golang.org/x/sync/semaphore"

	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/wire/promapi"
	"github.com/ferula-io/ferula/internal/wire/remoteread"
	"github.com/ferula-io/ferula/internal/wire/storeapi"
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

// RawQuerier implements series.Source. It does not check the error of the last poll:
// Prometheus may have recovered since.
func (s *Store) RawQuerier(ctx context.Context, mint, maxt int64) (series.Querier, error) {
	mint = max(mint, s.minTime())
	if maxt < mint {
		return emptyQuerier{}, nil
	}
	q, err := s.read.RawQuerier(ctx, mint, maxt)
	if err != nil {
		return nil, err
	}
	return &querier{reads: s.reads, WithoutQuerier: q.(remoteread.WithoutQuerier), Store: s, external: s.ExternalLabels(), mint: mint, maxt: maxt}, nil
}

// emptyQuerier is the querier of a time range that is not served. It returns no series.
type emptyQuerier struct{}

func (emptyQuerier) Select(context.Context, ...*labels.Matcher) series.Set { return series.Failed(nil) }
func (emptyQuerier) LabelNames(context.Context) ([]string, error)          { return nil, nil }
func (emptyQuerier) Close() error                                          { return nil }

// querier selects series by remote read and removes the external labels that
// Prometheus adds. The StoreAPI server adds them again. Without external labels the series
// arrive in order, and the server can add all external labels except a replica label.
//
// A series can have a label of its own with the name of an external label. Remote read
// keeps the series' label, StoreAPI overrides it, so that these series arrive out of
// order. If the matching series have few values of such a label, each value is selected
// separately: within one selection the label is constant and can be removed, and the
// selections are merged. Otherwise the label is kept and the server sorts the series,
// within its limit.
//
// A merge needs the first series of every selection before it returns one, and each
// selection holds a slot of Prometheus' remote read limit until it has ended. A request
// therefore acquires the slots of all its selections at once.
type querier struct {
	remoteread.WithoutQuerier
	*Store
	external   labels.Labels
	mint, maxt int64
	listed     bool    // split and keptLabels are valid
	split      []split // labels whose values are selected separately
	keptLabels []string
	reads      *semaphore.Weighted
	taken      int64 // acquired slots of reads
}

// split is an external label that series also have themselves, with the series' values.
type split struct {
	name   string
	values []string
}

// selections returns the number of selections of a split: one per value and one for the
// series without the label.
func (s split) selections() int { return 1 + len(s.values) }

// LabelNames implements series.Querier. It returns the names in the series of Select.
func (q *querier) LabelNames(ctx context.Context) ([]string, error) {
	return q.LabelNamesMatching(ctx)
}

// LabelNamesMatching implements series.LabelNamesMatcher. Select must be called with the same matchers.
func (q *querier) LabelNamesMatching(ctx context.Context, matchers ...*labels.Matcher) ([]string, error) {
	// The label names of all series are one index lookup, and usually contain no external label.
	// With matchers, Prometheus would read every matching series.
	names, _, err := q.api.LabelNames(ctx, nil, q.mint, q.maxt, 0)
	if err != nil {
		return nil, toStore(err)
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
			selections = q.selectionsMax + 1 // over the limit
		}
	}
	if selections <= q.selectionsMax {
		q.keptLabels = nil
	} else {
		q.split = nil // one remote read; the server replaces these labels and sorts
	}
	q.listed = true
	return slices.DeleteFunc(names, func(name string) bool { return q.external.Has(name) && !slices.Contains(q.keptLabels, name) }), nil
}

// Select implements series.Querier.
func (q *querier) Select(ctx context.Context, matchers ...*labels.Matcher) series.Set {
	if !q.listed {
		if _, err := q.LabelNamesMatching(ctx, matchers...); err != nil {
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
		return errorMapper{q.SelectUnordered(ctx, without.Labels(), matchers...), q.Store}
	}
	var sets []series.Set
	q.selections(ctx, q.split, without, matchers, &sets)
	return errorMapper{series.Merge(sets...), q.Store}
}

// Close implements series.Querier.
func (q *querier) Close() error {
	err := q.WithoutQuerier.Close()
	q.reads.Release(q.taken)
	q.taken = 0
	return err
}

// selections appends to sets one selection for each combination of the values of the
// labels in left.
func (q *querier) selections(ctx context.Context, left []split, without *labels.Builder, matchers []*labels.Matcher, sets *[]series.Set) {
	if len(left) == 0 {
		*sets = append(*sets, q.SelectWithout(ctx, without.Labels(), !q.unsorted.Load(), matchers...))
		return
	}
	name, external := left[0].name, q.external.Get(left[0].name)
	with := func(kind labels.MatchType, pattern, value string) {
		// Cloned, since appending to a shared slice would overwrite matchers of other calls.
		more := append(slices.Clone(matchers), labels.MustNewMatcher(kind, name, pattern))
		without.Set(name, value)
		q.selections(ctx, left[1:], without, more, sets)
	}
	// First the series to which remote read adds the label. Prometheus matches them as
	// series without the label.
	if slices.Contains(left[0].values, external) {
		with(labels.MatchEqual, "", external) // the series with this value follow
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
	*Store
}

// Err implements series.Set. A missing external label means that the configuration of Prometheus has changed since the
// last refresh. Err then triggers another refresh.
func (r errorMapper) Err() error {
	err := r.Set.Err()
	if errors.Is(err, remoteread.ErrLimit) && r.unsorted.CompareAndSwap(false, true) {
		return fmt.Errorf("%w: the server returns series out of order; the sidecar sorts them from the next request on: %w", storeapi.ErrUnavailable, err)
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

// Ahead returns the result of the set's Ahead; nil if it has no such method.
func (r errorMapper) Ahead() []byte {
	if next, ok := r.Set.(interface{ Ahead() []byte }); ok {
		return next.Ahead()
	}
	return nil
}

// toStore maps errors of remote read and of the HTTP API to errors of package storeapi.
func toStore(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, remoteread.ErrUnavailable), errors.Is(err, promapi.ErrUnavailable):
		return fmt.Errorf("%w: %w", storeapi.ErrUnavailable, err)
	case errors.Is(err, remoteread.ErrLimit):
		return fmt.Errorf("%w: %w", storeapi.ErrLimit, err)
	case errors.Is(err, remoteread.ErrRefused), errors.Is(err, promapi.ErrRefused):
		return fmt.Errorf("%w: %w", storeapi.ErrBadRequest, err)
	}
	return err
}
