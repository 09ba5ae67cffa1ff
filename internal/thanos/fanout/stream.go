package fanout

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/prometheus/util/annotations"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

// storeStream is the response of one store. The first Next sends the request, so that each
// goroutine waits for its own store only.
//
// An error of the store becomes a warning unless the request aborts on partial responses. Three errors always fail the
// request: the end of its context, a response with more than BytesMax of the request, and memory that is exceeded.
//
// If replica labels are removed here, series may become equal or unsorted. The stream returns the series
// nevertheless: the consumer must merge equal series, and sort the series if replica.unsorted is set.
type storeStream struct {
	fanout  *Fanout
	store   *store
	request storeapi.SeriesRequest
	call    call
	stream  storeapi.Stream // nil until the first Next sends the request

	replica labelRemover          // removes replica labels that the store cannot remove
	shard   *storeapi.ShardFilter // selects the shard that the store cannot select; nil: none
	memory  streamMemory
	traffic traffic
	reading *series.Reading // of the query; may be nil
	span    trace.Span      // ended by close

	labels  []byte
	chunks  []series.Chunk
	err     error // ends the stream and fails the request
	warning error // ends the stream; the request has a partial response
}

func (s *storeStream) Next() bool {
	for s.next() {
		if s.shard == nil || s.shard.Matches(s.labels) {
			return true
		}
	}
	return false
}

// next moves to the next series of any shard.
func (s *storeStream) next() bool {
	if s.err != nil || s.warning != nil {
		return false
	}
	if !s.receive() {
		s.end()
		return false
	}
	if err := s.take(); err != nil {
		s.fail(err)
		return false
	}
	if s.memory.budget == nil {
		return true
	}
	if err := s.memory.set(s.call.ctx, s.stream.BufferedBytes()); err != nil {
		s.err = s.named(err)
		return false
	}
	return true
}

// receive moves the store's stream to its next series. The first call sends the request.
func (s *storeStream) receive() bool {
	s.call.expect()
	if s.stream == nil {
		s.send()
	}
	more := s.stream.Next()
	s.call.received()
	return more
}

func (s *storeStream) send() {
	var ctx context.Context
	s.traffic.begun = time.Now()
	s.reading = series.ReadingOf(s.call.ctx)
	ctx, s.span = startSpan(s.call.ctx, "store", attribute.String("store", s.store.address))
	s.stream = s.store.client.Series(ctx, s.request)
}

// take reads the current series of the store's stream, and removes replica labels. A
// storeapi.Stream guarantees that the labels are valid and sort after the labels of the previous series.
func (s *storeStream) take() error {
	s.traffic.series++
	if s.traffic.series == 1 {
		s.traffic.first = time.Since(s.traffic.begun)
	}
	received := s.stream.Labels()
	s.traffic.bytes += len(received)
	s.labels = s.replica.remove(received)
	s.chunks = s.stream.Chunks()
	samples, size := series.SamplesOf(s.chunks), 0
	for _, c := range s.chunks {
		if c.MinMS > c.MaxMS {
			return fmt.Errorf("%w: a chunk ends before it begins", storeapi.ErrCorrupt)
		}
		size += len(c.Data)
	}
	s.traffic.samples, s.traffic.bytes = s.traffic.samples+samples, s.traffic.bytes+size
	s.traffic.chunks += len(s.chunks)
	s.reading.Add(samples, size)
	return nil
}

// end handles the end of the store's stream. Warnings mean partial data, so they fail a request that aborts
// on partial responses. The error names one of the warnings.
func (s *storeStream) end() {
	s.memory.release()
	if err := s.stream.Err(); err != nil {
		s.fail(err)
		return
	}
	if !s.request.AbortOnPartial {
		return
	}
	for _, warning := range s.stream.Warnings() {
		s.fail(warning)
		return
	}
}

// fail ends the stream with an error, or with a warning if the request allows partial responses.
func (s *storeStream) fail(err error) {
	awaitDeadline(s.call.ctx, err)
	if s.call.stalled() {
		err = fmt.Errorf("%w: %s", ErrStalled, s.call.timeout)
	}
	s.fanout.endpoints.metrics.failure(s.store.address, err)
	err = s.named(err)
	switch {
	case s.request.BytesMax > 0 && errors.Is(err, storeapi.ErrBytesMax): // a limit of the query, no failure of the store
		s.err = fmt.Errorf("%w: the chunks and labels exceed the remaining bytes%s: %w", ErrLimit,
			s.fanout.opts.Flags.Of("BytesMax"), err)
	case s.request.AbortOnPartial, s.call.over():
		s.err = err
	default:
		s.warning = err
	}
}

func (s *storeStream) named(err error) error { return fmt.Errorf("store %s: %w", s.store.address, err) }

// awaitDeadline waits until the context has ended if a store's error means that its deadline has passed. Stores have
// the deadline of the request, so the error of a store that stalls can arrive just before the timer of the request
// fires. It would be a failure of the store, and the response partial, although the request has timed out.
func awaitDeadline(ctx context.Context, err error) {
	if deadline, ok := ctx.Deadline(); ok && errors.Is(err, context.DeadlineExceeded) && !time.Now().Before(deadline) {
		<-ctx.Done()
	}
}

func (s *storeStream) Labels() []byte         { return s.labels }
func (s *storeStream) Chunks() []series.Chunk { return s.chunks }
func (s *storeStream) Err() error             { return s.err }

func (s *storeStream) Warnings() annotations.Annotations {
	var all annotations.Annotations
	if s.stream != nil {
		all.Merge(s.stream.Warnings())
	}
	if s.warning != nil {
		all.Add(s.warning)
	}
	return all
}

// close ends the call. The reader of the stream must have stopped.
func (s *storeStream) close() {
	s.call.received()
	if s.stream != nil {
		_ = s.stream.Close() // the rest of the stream is not needed
	}
	s.memory.release()
	s.call.cancel(context.Canceled)
	s.store.metrics.observe(s.traffic)
	analyze(s.call.ctx, s.store.address, s.traffic)
	s.endSpan()
	_ = s.store.release()
}
