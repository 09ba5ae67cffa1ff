package role

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/grafana/regexp"
	"github.com/prometheus/prometheus/model/labels"

	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/wire/promapi"
	"github.com/ferula-io/ferula/internal/wire/remoteread"
	"github.com/ferula-io/ferula/internal/wire/storeapi"
)

// holdBytesMax is what one request may hold to bring series into order.
const holdBytesMax = 64 << 20

// selectionsMax bounds the requests to Prometheus that one Series request becomes.
const selectionsMax = 64

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
	return &besideQuerier{WithoutQuerier: q.(remoteread.WithoutQuerier), beside: b, external: b.ExternalLabels(), mint: mint, maxt: maxt}, nil
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
// and StoreAPI overrides, they come in no order. So they are selected value by
// value: within one selection the label is the same everywhere and can be taken
// away, and the selections are merged. Labels with too many values for that stay,
// and the server sorts, within its limit.
type besideQuerier struct {
	remoteread.WithoutQuerier
	*beside
	external   labels.Labels
	mint, maxt int64
	listed     bool    // what follows is known
	split      []split // labels that are selected value by value
	kept       []string
}

// split is an external label that series have themselves, with their values.
type split struct {
	name   string
	values []string
}

// LabelNames implements series.Querier: those of the series that Select gives.
func (q *besideQuerier) LabelNames(ctx context.Context) ([]string, error) {
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
		values, _, err := q.api.LabelValues(ctx, name, nil, q.mint, q.maxt, selectionsMax)
		if err != nil {
			return nil, toStore(err)
		}
		if n := len(values) + 2; selections*n <= selectionsMax {
			selections *= n
			q.split = append(q.split, split{name, values})
		} else {
			q.kept = append(q.kept, name)
		}
	}
	return slices.DeleteFunc(names, func(name string) bool { return q.external.Has(name) && !slices.Contains(q.kept, name) }), nil
}

// Select implements series.Querier.
func (q *besideQuerier) Select(ctx context.Context, matchers ...*labels.Matcher) series.Set {
	if !q.listed {
		if _, err := q.LabelNames(ctx); err != nil {
			return series.Failed(err)
		}
	}
	without := labels.NewBuilder(q.external)
	without.Del(q.kept...)
	var sets []series.Set
	q.selections(ctx, q.split, without, matchers, &sets)
	return refusals{series.Merge(sets...), q.beside}
}

// selections makes one for each combination of values of the labels in left.
func (q *besideQuerier) selections(ctx context.Context, left []split, without *labels.Builder, matchers []*labels.Matcher, sets *[]series.Set) {
	if len(left) == 0 {
		*sets = append(*sets, q.SelectWithout(ctx, without.Labels(), len(q.kept) == 0 && !q.unsorted.Load(), matchers...))
		return
	}
	name, external := left[0].name, q.external.Get(left[0].name)
	with := func(kind labels.MatchType, pattern, value string) {
		// A list of its own: what is appended would otherwise be shared.
		more := append(slices.Clone(matchers), labels.MustNewMatcher(kind, name, pattern))
		without.Set(name, value)
		q.selections(ctx, left[1:], without, more, sets)
	}
	with(labels.MatchEqual, "", external) // those that remote read has put it on
	// A matcher of an external label by equality is dropped by Prometheus, others are not.
	with(labels.MatchRegexp, regexp.QuoteMeta(external), external)
	for _, value := range left[0].values {
		if value != external {
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
