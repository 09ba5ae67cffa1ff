package role

import (
	"context"
	"errors"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/ferula-io/ferula/internal/query/fanout"
	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/wire/storeapi"
)

// storeSource reads from one store; a missing part of an answer is a failure.
type storeSource struct{ client fanout.Client }

// openStore connects when it is first asked.
func openStore(address string, opts StoreClientOptions) (*storeSource, error) {
	dial, err := opts.dialer()
	if err != nil {
		return nil, err
	}
	client, err := dial(address, false)
	return &storeSource{client}, err
}

// Close closes the connection.
func (s *storeSource) Close() error { return s.client.Close() }

// RawQuerier implements series.Source; mint and maxt are inclusive, in ms.
func (s *storeSource) RawQuerier(_ context.Context, mint, maxt int64) (series.Querier, error) {
	return &storeQuerier{source: s, mint: mint, maxt: maxt}, nil
}

// storeQuerier owns the answers that are being read.
type storeQuerier struct {
	source     *storeSource
	mint, maxt int64
	open       []storeapi.Stream
}

// Select implements series.Querier.
func (q *storeQuerier) Select(ctx context.Context, matchers ...*labels.Matcher) series.Set {
	set := q.source.client.Series(ctx, storeapi.SeriesRequest{MinMS: q.mint, MaxMS: q.maxt, Matchers: matchers, AbortOnPartial: true})
	q.open = append(q.open, set)
	return set
}

// LabelNames implements series.Querier.
func (q *storeQuerier) LabelNames(ctx context.Context) ([]string, error) {
	names, _, err := q.source.client.LabelNames(ctx, storeapi.LabelsRequest{MinMS: q.mint, MaxMS: q.maxt, AbortOnPartial: true})
	return names, err
}

// Close implements series.Querier.
func (q *storeQuerier) Close() error {
	var errs []error
	for _, set := range q.open {
		errs = append(errs, set.Close())
	}
	q.open = nil
	return errors.Join(errs...)
}
