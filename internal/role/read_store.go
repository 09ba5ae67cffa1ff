package role

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/ferula-io/ferula/internal/query/fanout"
	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/wire/storeapi"
)

// storeSource reads from one store; a missing part of an answer is a failure.
type storeSource struct {
	client       fanout.Client
	stallTimeout time.Duration // 0: none
}

// openStore connects when it is first asked.
func openStore(address string, opts StoreClientOptions, stallTimeout time.Duration) (*storeSource, error) {
	dial, err := opts.dialer()
	if err != nil {
		return nil, err
	}
	client, err := dial(address, false)
	return &storeSource{client, stallTimeout}, err
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
	ctx, cancel := context.WithCancelCause(ctx)
	guarded := &stallGuarded{ctx: ctx, cancel: cancel, after: q.source.stallTimeout}
	defer guarded.watch()() // it connects
	guarded.Stream = q.source.client.Series(ctx, storeapi.SeriesRequest{MinMS: q.mint, MaxMS: q.maxt, Matchers: matchers, AbortOnPartial: true})
	q.open = append(q.open, guarded)
	return guarded
}

// errStalled is the error of a store that sends nothing for too long.
var errStalled = errors.New("the store sends nothing")

// stallGuarded is a response that ends with errStalled if a series does not come in
// time. The time that the caller takes for a series does not count.
type stallGuarded struct {
	storeapi.Stream
	ctx    context.Context //nolint:containedctx // of the request
	cancel context.CancelCauseFunc
	after  time.Duration // 0: no limit
	timer  *time.Timer
}

// Next implements series.Set.
func (s *stallGuarded) Next() bool {
	defer s.watch()()
	return s.Stream.Next()
}

// watch starts the time, until what it returns is called.
func (s *stallGuarded) watch() (rest func()) {
	if s.after <= 0 {
		return func() {}
	}
	if s.timer == nil {
		s.timer = time.AfterFunc(s.after, func() { s.cancel(fmt.Errorf("%w for %s", errStalled, s.after)) })
	} else {
		s.timer.Reset(s.after)
	}
	return func() { s.timer.Stop() }
}

// Err implements series.Set.
func (s *stallGuarded) Err() error {
	err := s.Stream.Err()
	if cause := context.Cause(s.ctx); err != nil && errors.Is(cause, errStalled) {
		return cause
	}
	return err
}

// Close implements storeapi.Stream.
func (s *stallGuarded) Close() error {
	defer s.cancel(nil)
	return s.Stream.Close()
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
