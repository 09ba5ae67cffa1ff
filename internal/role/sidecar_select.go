package role

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

// holdBytesMax is what one request may hold to bring series into order.
const holdBytesMax = 64 << 20

const (
	// defaultSelectionsMax is how many remote reads one Series request becomes at most, all of
	// which are open together. Prometheus admits 10 of all clients.
	defaultSelectionsMax = 3
	// defaultReadsMax is how many remote reads the sidecar has open at once.
	defaultReadsMax = 8
)

// RawQuerier implements series.Source. It asks a Prometheus that did not answer a
// moment ago, too: the request finds out sooner than the next look.
func (b *beside) RawQuerier(ctx context.Context, mint, maxt int64) (series.Querier, error) {
	mint = max(mint, b.minTime())
	if maxt < mint {
		return nothing{}, nil
	}
	q, err := b.read.RawQuerier(ctx, mint, maxt)
	if err != nil {
		return nil, err
	}
	return &besideQuerier{reads: b.reads, WithoutQuerier: q.(remoteread.WithoutQuerier), beside: b, external: b.ExternalLabels(), mint: mint, maxt: maxt}, nil
}

// nothing is a querier of a range that is not served.
type nothing struct{}

func (nothing) Select(context.Context, ...*labels.Matcher) series.Set { return series.Failed(nil) }
func (nothing) LabelNames(context.Context) ([]string, error)          { return nil, nil }
func (nothing) Close() error                                          { return nil }

// besideQuerier gives the series of Prometheus without its external labels, which
// remote read has put on and which the server of the StoreAPI puts on again: only
// without them are they in order as they come, and only so can one of them be
// left out.
//
// Where series have a label of that name themselves, which remote read prefers
// and StoreAPI overrides, they come in no order. If those that match have few values of
// it they are selected value by value: within one selection the label is the same
// everywhere and can be taken away, and the selections are merged. Else the label
// stays, and the server sorts, within its limit.
//
// A merge needs the first series of every selection before it gives one, and each
// holds a slot of Prometheus' limit on remote reads until it has ended. So a request
// waits until it may open all of its selections.
type besideQuerier struct {
	remoteread.WithoutQuerier
	*beside
	external   labels.Labels
	mint, maxt int64
	listed     bool    // what follows is known
	split      []split // labels that are selected value by value
	kept       []string
	reads      *semaphore.Weighted
	taken      int64 // of reads
}

// split is an external label that series have themselves, with their values.
type split struct {
	name   string
	values []string
}

// selections is how many selections a split takes: one for each value, and one for
// the series without the label.
func (s split) selections() int { return 1 + len(s.values) }

// LabelNames implements series.Querier: those of the series that Select gives.
func (q *besideQuerier) LabelNames(ctx context.Context) ([]string, error) {
	return q.LabelNamesOf(ctx)
}

// LabelNamesOf implements series.NamesOf. Select is for the same matchers.
func (q *besideQuerier) LabelNamesOf(ctx context.Context, matchers ...*labels.Matcher) ([]string, error) {
	// Of all series: that is one look into the index, and mostly no external label is
	// among them. With matchers Prometheus would go through every series that matches.
	names, _, err := q.api.LabelNames(ctx, nil, q.mint, q.maxt, 0)
	if err != nil {
		return nil, toStore(err)
	}
	q.split, q.kept, q.listed = nil, nil, true
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
			continue // none of the series that match has it
		}
		selections *= 1 + len(values)
		q.split = append(q.split, split{name, values})
		q.kept = append(q.kept, name)
		if selections > q.selectionsMax {
			selections = q.selectionsMax + 1 // it is too many already
		}
	}
	if selections <= q.selectionsMax {
		q.kept = nil
	} else {
		q.split = nil // one read, which the server sorts, since it replaces these labels
	}
	return slices.DeleteFunc(names, func(name string) bool { return q.external.Has(name) && !slices.Contains(q.kept, name) }), nil
}

// Select implements series.Querier.
func (q *besideQuerier) Select(ctx context.Context, matchers ...*labels.Matcher) series.Set {
	if !q.listed {
		if _, err := q.LabelNamesOf(ctx, matchers...); err != nil {
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
	without.Del(q.kept...)
	if len(q.kept) > 0 {
		return refusals{q.SelectUnordered(ctx, without.Labels(), matchers...), q.beside}
	}
	var sets []series.Set
	q.selections(ctx, q.split, without, matchers, &sets)
	return refusals{series.Merge(sets...), q.beside}
}

// Close implements series.Querier.
func (q *besideQuerier) Close() error {
	err := q.WithoutQuerier.Close()
	q.reads.Release(q.taken)
	q.taken = 0
	return err
}

// selections makes one for each combination of values of the labels in left.
func (q *besideQuerier) selections(ctx context.Context, left []split, without *labels.Builder, matchers []*labels.Matcher, sets *[]series.Set) {
	if len(left) == 0 {
		*sets = append(*sets, q.SelectWithout(ctx, without.Labels(), !q.unsorted.Load(), matchers...))
		return
	}
	name, external := left[0].name, q.external.Get(left[0].name)
	with := func(kind labels.MatchType, pattern, value string) {
		// A list of its own: what is appended would otherwise be shared.
		more := append(slices.Clone(matchers), labels.MustNewMatcher(kind, name, pattern))
		without.Set(name, value)
		q.selections(ctx, left[1:], without, more, sets)
	}
	// First those that remote read has put it on. Prometheus matches them without it,
	// others with it.
	if slices.Contains(left[0].values, external) {
		with(labels.MatchEqual, "", external) // those with it follow
	} else {
		with(labels.MatchRegexp, "|"+regexp.QuoteMeta(external), external)
	}
	for _, value := range left[0].values {
		if value == external {
			// A matcher of an external label by equality is dropped by Prometheus, others are not.
			with(labels.MatchRegexp, regexp.QuoteMeta(external), external)
		} else {
			with(labels.MatchEqual, value, value)
		}
	}
	without.Set(name, external)
}

// refusals gives the errors of remote read the meaning that a store gives them.
type refusals struct {
	series.Set
	*beside
}

// Err implements series.Set. External labels that are not there mean that the
// configuration has changed since it was asked for.
func (r refusals) Err() error {
	err := r.Set.Err()
	if errors.Is(err, remoteread.ErrLimit) && r.unsorted.CompareAndSwap(false, true) {
		return fmt.Errorf("%w: it sorts its series as Prometheus does not; asked again, they are sorted here: %w", storeapi.ErrUnavailable, err)
	}
	if errors.Is(err, remoteread.ErrLabelMissing) {
		select {
		case r.changed <- struct{}{}:
		default:
		}
		return fmt.Errorf("%w: its configuration has changed: %w", storeapi.ErrUnavailable, err)
	}
	return toStore(err)
}

// Ahead is that of the set, if it has it.
func (r refusals) Ahead() []byte {
	if next, ok := r.Set.(interface{ Ahead() []byte }); ok {
		return next.Ahead()
	}
	return nil
}

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
