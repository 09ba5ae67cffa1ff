package fanout

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/util/annotations"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/ferula-io/ferula/internal/hint"
	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/series/labelenc"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
	"github.com/ferula-io/ferula/internal/thanos/storepb"
	"github.com/ferula-io/ferula/metrics"
)

// packedEncoding is the encoding of a downsampled chunk in this package: one chunk has all requested aggregates of one
// time range (storepb.AppendPacked). So series.Chunk needs no aggregates, and the count of one replica is never
// combined with the sum of another replica.
const packedEncoding chunkenc.Encoding = storepb.PackedEncoding

// aggregated is a stream of a store that may have downsampled data.
type aggregated interface {
	AggrChunks() []storeapi.AggrChunk
}

// deadlineStream is the response stream of one store, with a timeout and the request's policy for errors. An error
// of the store becomes a warning unless the request aborts on partial responses. Two errors always fail the request:
// the end of its context, and a response with more than BytesMax of the request. The call is cancelled if the store
// sends nothing for the response timeout, which includes connecting. The first Next makes the call, so that each
// goroutine waits for its own store only.
//
// If strip is set, removing these labels may make series equal or unsorted. The stream returns the series
// nevertheless: the consumer must merge equal series, and sort the series if unsorted is set.
type deadlineStream struct {
	store   *store
	request storeapi.SeriesRequest
	stream  storeapi.Stream       // nil until the first Next makes the call
	aggr    aggregated            // stream, if it may have downsampled data; else nil
	wanted  []storeapi.Aggr       // aggregates that the query needs
	abort   bool                  // a failure of the store fails the request (ABORT)
	strip   []string              // replica labels to remove here, if the store cannot remove them
	shard   *storeapi.ShardFilter // to apply here, if the store cannot shard; nil: none
	flags   hint.Flags
	metrics *instruments
	traffic traffic
	span    trace.Span // of the store; ended by close

	cancel  context.CancelCauseFunc
	ctx     context.Context
	timeout time.Duration // for each message; 0: none
	timer   *time.Timer   // cancels the call; runs while Next waits for the store

	last     []byte // labels of the previous series
	labels   []byte
	stripped []byte
	chunks   []series.Chunk
	all      []series.Chunk  // raw chunks and then packed chunks, of a series that has downsampled chunks
	packed   []byte          // data of the packed chunks
	packing  []storepb.Chunk // aggregates of the chunk being packed
	unsorted bool            // a series sorts before the previous one after labels were removed
	budget   *budget         // counts the stream's buffers; nil: the reader of the stream counts them
	held     int64           // bytes that budget has granted
	err      error           // ends the stream and fails the request
	warning  error           // ends the stream; the request has a partial response
}

func (g *deadlineStream) Next() bool {
	for g.next() {
		if g.shard == nil || g.shard.Matches(g.labels) {
			return true
		}
	}
	return false
}

// next moves to the next series of any shard. The first call sends the request.
func (g *deadlineStream) next() bool {
	if g.err != nil || g.warning != nil {
		return false
	}
	if g.timer != nil {
		g.timer.Reset(g.timeout)
	}
	if g.stream == nil {
		g.traffic.begun = time.Now()
		var ctx context.Context
		ctx, g.span = startSpan(g.ctx, "store", attribute.String("store", g.store.address))
		g.stream = g.store.client.Series(ctx, g.request)
		g.aggr, _ = g.stream.(aggregated)
	}
	more := g.stream.Next()
	if g.timer != nil {
		g.timer.Stop()
	}
	if !more {
		g.releaseHeld()
		if err := g.stream.Err(); err != nil {
			g.fail(err)
		} else if g.abort {
			g.refuseWarnings()
		}
		return false
	}
	if err := g.take(); err != nil {
		g.fail(err)
		return false
	}
	if g.budget == nil {
		return true
	}
	if err := g.hold(g.bufferedBytes()); err != nil {
		g.err = fmt.Errorf("store %s: %w", g.store.address, err)
	}
	return g.err == nil
}

// hold sets the bytes that the stream's buffers take from the budget. It may wait for memory that other queries
// hold. The response timeout does not run while it waits.
func (g *deadlineStream) hold(bytes int64) error {
	switch n := bytes - g.held; {
	case n > 0:
		if err := g.budget.take(g.ctx, n); err != nil {
			return err
		}
	case -n > budgetStep: // small differences between messages are not worth taking the lock of the budget
		g.budget.release(-n)
	default:
		return nil
	}
	g.held = bytes
	return nil
}

// releaseHeld returns the bytes of the stream's buffers to the budget. It is called at the end of the stream, which
// frees the buffers.
func (g *deadlineStream) releaseHeld() {
	if g.held > 0 {
		g.budget.release(g.held)
		g.held = 0
	}
}

// take reads the current series of the stream, removes the labels in strip, and packs aggregates. A Stream
// guarantees that the labels are valid and sort after those of the previous series. This order may be lost when
// labels are removed.
func (g *deadlineStream) take() error {
	if g.traffic.series++; g.traffic.series == 1 {
		g.traffic.first = time.Since(g.traffic.begun)
	}
	g.labels = g.stream.Labels()
	g.traffic.bytes += len(g.labels)
	if len(g.strip) > 0 {
		g.stripped = appendWithout(g.stripped[:0], g.labels, g.strip)
		g.labels = g.stripped
		g.unsorted = g.unsorted || labelenc.Compare(g.last, g.labels) > 0
		g.last = append(g.last[:0], g.labels...)
	}
	g.chunks = g.stream.Chunks()
	g.traffic.samples += samplesOf(g.chunks)
	if g.aggr != nil {
		if more := g.aggr.AggrChunks(); len(more) > 0 {
			g.pack(more)
		}
	}
	for _, c := range g.chunks {
		if c.MinMS > c.MaxMS {
			return fmt.Errorf("%w: a chunk ends before it begins", storeapi.ErrCorrupt)
		}
		g.traffic.bytes += len(c.Data)
	}
	g.traffic.chunks += len(g.chunks)
	return nil
}

// pack adds the requested aggregates to the chunks. The aggregates of one time range become one chunk.
func (g *deadlineStream) pack(aggregates []storeapi.AggrChunk) {
	g.all, g.packed = append(g.all[:0], g.chunks...), g.packed[:0]
	for len(aggregates) > 0 {
		n, start := storeapi.SpanLen(aggregates), len(g.packed)
		g.packing = g.packing[:0]
		for _, c := range aggregates[:n] {
			if slices.Contains(g.wanted, c.Aggr) {
				g.traffic.samples += samplesOf([]series.Chunk{c.Chunk})
				g.packing = append(g.packing, storepb.Chunk{Aggr: c.Aggr, Encoding: uint8(c.Encoding), Data: c.Data})
			}
		}
		g.packed = storepb.AppendPacked(g.packed, g.packing)
		if end := len(g.packed); end > start {
			first := &aggregates[0]
			g.all = append(g.all, series.Chunk{MinMS: first.MinMS, MaxMS: first.MaxMS, Encoding: packedEncoding,
				Data: g.packed[start:end:end]})
		}
		aggregates = aggregates[n:]
	}
	if g.chunks = g.all; !slices.IsSortedFunc(g.chunks, compareChunks) {
		slices.SortStableFunc(g.chunks, compareChunks)
	}
}

// appendWithout appends a valid label set without the given names.
func appendWithout(dst, set []byte, names []string) []byte {
	for len(set) > 0 {
		name, _, rest, err := labelenc.Next(set)
		if err != nil {
			return dst
		}
		if !slices.Contains(names, string(name)) {
			dst = append(dst, set[:len(set)-len(rest)]...)
		}
		set = rest
	}
	return dst
}

// fail ends the stream with an error, or with a warning if the request allows partial responses.
func (g *deadlineStream) fail(err error) {
	awaitDeadline(g.ctx, err)
	if cause := context.Cause(g.ctx); errors.Is(cause, ErrStalled) {
		err = fmt.Errorf("%w: %s", ErrStalled, g.timeout)
	}
	g.metrics.failure(g.store.address, err)
	err = fmt.Errorf("store %s: %w", g.store.address, err)
	if g.request.BytesMax > 0 && errors.Is(err, storeapi.ErrBytesMax) { // a limit of the query, not a failure of the store
		g.err = fmt.Errorf("%w: the chunks and labels exceed the remaining bytes%s: %w", ErrLimit,
			g.flags.Of("BytesMax"), err)
		return
	}
	// ended: the request is over
	if ended := g.ctx.Err() != nil && !errors.Is(context.Cause(g.ctx), ErrStalled); g.abort || ended {
		g.err = err
		return
	}
	g.warning = err
}

// awaitDeadline waits until the context has ended if a store's error means that its deadline has passed. Stores have
// the deadline of the request, so the error of a store that stalls can arrive just before the timer of the request
// fires. It would be a failure of the store, and the response partial, although the request has timed out.
func awaitDeadline(ctx context.Context, err error) {
	if deadline, ok := ctx.Deadline(); ok && errors.Is(err, context.DeadlineExceeded) && !time.Now().Before(deadline) {
		<-ctx.Done()
	}
}

// refuseWarnings fails the stream if the store has sent warnings, because they mean partial data. The error names
// one of the warnings.
func (g *deadlineStream) refuseWarnings() {
	for _, warning := range g.stream.Warnings() {
		g.fail(warning)
		return
	}
}

// buffered is a stream that reports the memory of its buffers.
type buffered interface {
	BufferedBytes() int64
}

// bufferedBytes returns the memory of received messages. The stream holds this memory until
// the stream ends, in addition to the copies of the consumer.
func (g *deadlineStream) bufferedBytes() int64 {
	if b, ok := g.stream.(buffered); ok {
		return b.BufferedBytes()
	}
	return 0
}

func (g *deadlineStream) Labels() []byte         { return g.labels }
func (g *deadlineStream) Chunks() []series.Chunk { return g.chunks }
func (g *deadlineStream) Err() error             { return g.err }

func (g *deadlineStream) Warnings() annotations.Annotations {
	var all annotations.Annotations
	if g.stream != nil {
		all.Merge(g.stream.Warnings())
	}
	if g.warning != nil {
		all.Add(g.warning)
	}
	return all
}

// close ends the call. The reader of the stream must have stopped.
func (g *deadlineStream) close() {
	if g.timer != nil {
		g.timer.Stop()
	}
	if g.stream != nil {
		_ = g.stream.Close() // the rest of the stream is not needed
	}
	g.releaseHeld()
	g.cancel(context.Canceled)
	g.store.metrics.observe(g.traffic)
	analyze(g.ctx, g.store.address, g.traffic)
	g.endSpan()
	_ = g.store.release()
}

// compareChunks orders chunks by time, and chunks of the same range and encoding by descending bytes.
// The order decides which of two replicas with the same timestamps wins, as in Thanos.
func compareChunks(a, b series.Chunk) int {
	if c := cmp.Or(cmp.Compare(a.MinMS, b.MinMS), cmp.Compare(a.MaxMS, b.MaxMS),
		cmp.Compare(a.Encoding, b.Encoding)); c != 0 {
		return c
	}
	if a.Encoding == packedEncoding {
		return comparePacked(a.Data, b.Data)
	}
	return bytes.Compare(b.Data, a.Data)
}

// comparePacked orders packed chunks of the same time range by their first differing aggregate. It
// ignores the length fields of the packed encoding. If one chunk has fewer aggregates, or is corrupt, the remaining
// bytes decide.
func comparePacked(a, b []byte) int {
	for len(a) > 0 && len(b) > 0 {
		x, restA, errA := storepb.NextPacked(a)
		y, restB, errB := storepb.NextPacked(b)
		if errA != nil || errB != nil {
			break
		}
		if c := cmp.Or(cmp.Compare(x.Aggr, y.Aggr), cmp.Compare(x.Encoding, y.Encoding),
			bytes.Compare(y.Data, x.Data)); c != 0 {
			return c
		}
		a, b = restA, restB
	}
	return bytes.Compare(b, a)
}

// fanoutStreams are the response streams of all stores of a request.
type fanoutStreams struct {
	ctx     context.Context // of all the streams
	cancel  context.CancelCauseFunc
	streams []*deadlineStream
	missing []error // one for each store that may have data and is not queried
	atSteps bool    // the requests have steps: the stores may leave out samples
}

// fan chooses the stores that may have data and creates their streams. It sends no request yet. The
// caller closes the streams.
func (f *Fanout) fan(ctx context.Context, r Request, sr storeapi.SeriesRequest) (*fanoutStreams, error) {
	var ok bool
	// the matchers exclude the querier's own labels
	if sr.Matchers, ok = f.endpoints.opts.Selector.restrict(sr.Matchers); !ok {
		none := &fanoutStreams{}
		none.ctx, none.cancel = context.WithCancelCause(ctx)
		return none, nil
	}
	if len(sr.Matchers) == 0 && !f.endpoints.opts.Selector.Labels.IsEmpty() {
		return nil, fmt.Errorf("%w: no matchers except on the querier's own labels", storeapi.ErrBadRequest)
	}
	c, err := f.endpoints.chooseData(r, func(info *storeapi.Info) bool {
		return mayHold(info, sr.MinMS, sr.MaxMS, sr.Matchers)
	})
	if err != nil {
		return nil, err
	}
	sr.AbortOnPartial = r.AbortOnPartial
	if sr.Steps != nil && f.needsWhole(c.infos, sr) {
		sr.Steps = nil
	}
	sr.JoinChunks = sr.JoinChunks && sr.Steps != nil && !sameDataTwice(c.infos, sr)
	all := &fanoutStreams{missing: c.missing, atSteps: sr.Steps != nil}
	all.ctx, all.cancel = context.WithCancelCause(storeapi.WithTenant(ctx, r.Tenant))
	for i, s := range c.stores {
		g := &deadlineStream{store: s, request: sr, wanted: sr.Aggregates, abort: r.AbortOnPartial,
			timeout: f.opts.ResponseTimeout, flags: f.opts.Flags, metrics: f.endpoints.metrics}
		g.request.Matchers = both(sr.Matchers, c.matchers[i])
		g.ctx, g.cancel = context.WithCancelCause(all.ctx)
		if g.timeout > 0 {
			g.timer = time.AfterFunc(g.timeout, func() { g.cancel(ErrStalled) })
			g.timer.Stop()
		}
		if info := c.infos[i]; len(sr.WithoutReplicaLabels) > 0 &&
			(info == nil || info.Store == nil || !info.Store.WithoutReplicaLabels) {
			g.strip = sr.WithoutReplicaLabels
			g.request.WithoutReplicaLabels = nil
			g.request.Limit = 0 // replicas are merged into one series, so more than Limit may be needed from the store
		}
		if info := c.infos[i]; sr.Shard != nil && (len(g.strip) > 0 || info == nil || info.Store == nil ||
			!info.Store.Sharding) {
			g.shard = storeapi.NewShardFilter(sr.Shard) // the store would hash the replica labels, or ignore the shard
			g.request.Shard, g.request.Limit = nil, 0
		}
		all.streams = append(all.streams, g)
	}
	return all, nil
}

func (a *fanoutStreams) close() {
	a.cancel(context.Canceled)
	for _, g := range a.streams {
		g.close()
	}
	a.streams = nil
}

// merged merges the series of all stores of a request, sorted by labels.
type merged struct {
	series.Set
	*fanoutStreams
	ahead   []*readAheadSet
	partial *metrics.Counter
}

// merge queries the stores for another querier. With several stores, a goroutine reads ahead from each, so that the
// stores send at the same time. A goroutine stops reading while aheadPages pages of its store wait for the merge, or
// while its store has more than neededPages pages and no memory is free.
func (f *Fanout) merge(ctx context.Context, r Request, sr storeapi.SeriesRequest) (*merged, error) {
	all, err := f.fan(ctx, r, sr)
	if err != nil {
		return nil, err
	}
	m := &merged{fanoutStreams: all, partial: f.endpoints.metrics.partial.With(forwarded)}
	sets := make([]series.Set, 0, len(all.streams))
	needed := int64(len(all.streams)) * neededBytes
	f.budget.keepFree(needed) // the first stores must not take the memory of stores whose goroutine is not started yet
	defer f.budget.keepFree(-needed)
	for _, g := range all.streams {
		g.budget = &f.budget
		var set series.Set = g
		if names := g.strip; len(names) > 0 {
			g.strip, g.shard = nil, nil // the server applies the shard to the merged series
			set = series.WithoutLabels(g, names, int(f.opts.SortBytesMax))
		}
		if len(all.streams) > 1 {
			a := readAhead(g.ctx, set, &f.budget, func(err error) error {
				return fmt.Errorf("store %s: %w", g.store.address, err)
			}, func(p any) error { return f.endpoints.panicked(g.store.address, p) })
			m.ahead, set = append(m.ahead, a), a
		}
		sets = append(sets, set)
	}
	m.Set = series.Merge(sets...)
	return m, nil
}

func (m *merged) Warnings() annotations.Annotations {
	var all annotations.Annotations
	for _, err := range m.missing {
		all.Add(err)
	}
	all.Merge(m.Set.Warnings())
	return all
}

// close cancels the requests, waits for all goroutines of the merge and releases their memory.
func (m *merged) close() {
	m.cancel(context.Canceled)
	for _, a := range m.ahead {
		a.close()
	}
	if len(m.Warnings()) > 0 {
		m.partial.Inc()
	}
	m.fanoutStreams.close()
}
