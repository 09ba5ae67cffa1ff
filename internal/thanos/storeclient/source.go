package storeclient

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/thanos/fanout"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

// Source is a series.Source that reads from one store. It requests that the store returns an
// error instead of a partial response.
type Source struct {
	client       fanout.Client
	stallTimeout time.Duration // 0: none
}

// Open creates the source of a store. The source connects with its first request. stallTimeout
// is how long the store may send nothing during a request; 0: no limit.
func Open(address string, opts Options, stallTimeout time.Duration) (*Source, error) {
	dial, err := opts.Dialer()
	if err != nil {
		return nil, err
	}
	client, err := dial(fanout.Address{Name: address})
	return &Source{client, stallTimeout}, err
}

// Close closes the connection.
func (s *Source) Close() error { return s.client.Close() }

// RawQuerier implements series.Source; mint and maxt are inclusive, in ms.
func (s *Source) RawQuerier(_ context.Context, mint, maxt int64) (series.Querier, error) {
	return &querier{source: s, mint: mint, maxt: maxt}, nil
}

// querier owns its open streams and closes them.
type querier struct {
	source     *Source
	mint, maxt int64
	open       []storeapi.Stream
}

// Select implements series.Querier.
func (q *querier) Select(ctx context.Context, opts series.SelectOptions, matchers ...*labels.Matcher) series.Set {
	ctx, cancel := context.WithCancelCause(ctx)
	stream := &deadlineStream{ctx: ctx, cancel: cancel, after: q.source.stallTimeout}
	defer stream.startTimer()() // the call of Series may connect to the store
	stream.Stream = q.source.client.Series(ctx, storeapi.SeriesRequest{MinMS: q.mint, MaxMS: q.maxt, Matchers: matchers,
		SkipChunks: opts.LabelsOnly, AbortOnPartial: true})
	q.open = append(q.open, stream)
	return stream
}

// errStalled is the error of a store that sends nothing for too long.
var errStalled = errors.New("the store sends no data")

func stalledFor(after time.Duration) error { return fmt.Errorf("%w for %s", errStalled, after) }

// deadlineStream is a stream that ends with errStalled if the next series takes longer
// than a timeout. The time between two calls of Next does not count.
type deadlineStream struct {
	storeapi.Stream
	ctx    context.Context // of the request
	cancel context.CancelCauseFunc
	after  time.Duration // 0: no limit
	timer  *time.Timer
}

// Next implements series.Set.
func (s *deadlineStream) Next() bool {
	defer s.startTimer()()
	return s.Stream.Next()
}

// startTimer cancels the request after the timeout unless the returned function is
// called before.
func (s *deadlineStream) startTimer() (stop func()) {
	if s.after <= 0 {
		return func() {}
	}
	if s.timer == nil {
		s.timer = time.AfterFunc(s.after, func() { s.cancel(stalledFor(s.after)) })
	} else {
		s.timer.Reset(s.after)
	}
	return func() { s.timer.Stop() }
}

// Err implements series.Set.
func (s *deadlineStream) Err() error {
	err := s.Stream.Err()
	if cause := context.Cause(s.ctx); err != nil && errors.Is(cause, errStalled) {
		return cause
	}
	return err
}

// Close implements storeapi.Stream.
func (s *deadlineStream) Close() error {
	defer s.cancel(nil)
	return s.Stream.Close()
}

// LabelNames implements series.Querier.
func (q *querier) LabelNames(ctx context.Context, _ series.SelectOptions, _ ...*labels.Matcher) ([]string, error) {
	if after := q.source.stallTimeout; after > 0 { // the response is one message
		// This is no deadline of the context, because gRPC would send the deadline to the store, and the store's
		// DeadlineExceeded could arrive before errStalled.
		var cancel context.CancelCauseFunc
		ctx, cancel = context.WithCancelCause(ctx)
		defer cancel(nil)
		defer time.AfterFunc(after, func() { cancel(stalledFor(after)) }).Stop()
	}
	names, _, err := q.source.client.LabelNames(ctx, storeapi.LabelsRequest{MinMS: q.mint, MaxMS: q.maxt,
		AbortOnPartial: true})
	if cause := context.Cause(ctx); err != nil && errors.Is(cause, errStalled) {
		return nil, cause
	}
	return names, err
}

// Capabilities implements series.Querier.
func (*querier) Capabilities() series.Capabilities { return series.Capabilities{} }

// Close implements series.Querier.
func (q *querier) Close() error {
	var errs []error
	for _, set := range q.open {
		errs = append(errs, set.Close())
	}
	q.open = nil
	return errors.Join(errs...)
}
