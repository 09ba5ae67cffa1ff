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

	"github.com/ferula-io/ferula/internal/codec/labelenc"
	"github.com/ferula-io/ferula/internal/codec/storepb"
	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/wire/storeapi"
)

// packedEncoding is that of a downsampled chunk on its way through the merge: all wanted
// aggregates of one span as one chunk (storepb.AppendPacked). So the raw seam knows
// nothing of aggregates, and the count of one replica never meets the sum of another.
const packedEncoding chunkenc.Encoding = storepb.PackedEncoding

// aggregated is a stream of a store that has downsampled data.
type aggregated interface {
	AggrChunks() []storeapi.AggrChunk
}

// guarded is what one store streams, watched: it ends with a warning instead of an
// error unless the request says otherwise, and is cut off when the store is silent
// for too long, which includes connecting to it. The call is made by the first Next,
// so that each goroutine waits for its own store only.
//
// Where labels are taken away here, series may become equal or come out of order.
// Both is passed on: they are joined where series are kept, and unsorted says that
// they must be sorted there.
type guarded struct {
	store   *store
	request storeapi.SeriesRequest
	stream  storeapi.Stream // nil: not yet called
	aggr    aggregated      // nil: has none
	wanted  []storeapi.Aggr
	abort   bool
	strip   []string // labels to take away, which the store cannot

	cancel  context.CancelCauseFunc
	ctx     context.Context
	timeout time.Duration
	timer   *time.Timer

	last     []byte // labels of the series before
	labels   []byte
	stripped []byte
	chunks   []series.Chunk
	all      []series.Chunk  // chunks, where there are downsampled ones too
	packed   []byte          // their data
	span     []storepb.Chunk // of the one that is being packed
	unsorted bool
	err      error
	warning  error
}

func (g *guarded) Next() bool {
	if g.err != nil || g.warning != nil {
		return false
	}
	if g.timer != nil {
		g.timer.Reset(g.timeout)
	}
	if g.stream == nil {
		g.stream = g.store.client.Series(g.ctx, g.request)
		g.aggr, _ = g.stream.(aggregated)
	}
	more := g.stream.Next()
	if g.timer != nil {
		g.timer.Stop()
	}
	if !more {
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
	return true
}

// take takes the series that has come. Its labels are valid, and behind those of the
// one before, as streams promise; without the labels to be taken away they may not be.
func (g *guarded) take() error {
	g.labels = g.stream.Labels()
	if len(g.strip) > 0 {
		g.stripped = appendWithout(g.stripped[:0], g.labels, g.strip)
		g.labels = g.stripped
		g.unsorted = g.unsorted || labelenc.Compare(g.last, g.labels) > 0
		g.last = append(g.last[:0], g.labels...)
	}
	g.chunks = g.stream.Chunks()
	if g.aggr != nil {
		if more := g.aggr.AggrChunks(); len(more) > 0 {
			g.pack(more)
		}
	}
	for _, c := range g.chunks {
		if c.MinMS > c.MaxMS {
			return fmt.Errorf("%w: a chunk ends before it begins", storeapi.ErrCorrupt)
		}
	}
	return nil
}

// pack adds the wanted aggregates to the chunks, those of one span as one chunk.
func (g *guarded) pack(aggregates []storeapi.AggrChunk) {
	g.all, g.packed = append(g.all[:0], g.chunks...), g.packed[:0]
	for len(aggregates) > 0 {
		n, start := storeapi.SpanLen(aggregates), len(g.packed)
		g.span = g.span[:0]
		for _, c := range aggregates[:n] {
			if slices.Contains(g.wanted, c.Aggr) {
				g.span = append(g.span, storepb.Chunk{Aggr: c.Aggr, Encoding: uint8(c.Encoding), Data: c.Data})
			}
		}
		g.packed = storepb.AppendPacked(g.packed, g.span)
		if end := len(g.packed); end > start {
			first := &aggregates[0]
			g.all = append(g.all, series.Chunk{MinMS: first.MinMS, MaxMS: first.MaxMS, Encoding: packedEncoding, Data: g.packed[start:end:end]})
		}
		aggregates = aggregates[n:]
	}
	if g.chunks = g.all; !slices.IsSortedFunc(g.chunks, compareChunks) {
		slices.SortStableFunc(g.chunks, compareChunks)
	}
}

// appendWithout appends a valid set without the labels of some names.
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

// fail ends the stream.
func (g *guarded) fail(err error) {
	if cause := context.Cause(g.ctx); errors.Is(cause, ErrStalled) {
		err = fmt.Errorf("it %w: %s", ErrStalled, g.timeout)
	}
	err = fmt.Errorf("store %s: %w", g.store.address, err)
	if g.request.BytesMax > 0 && errors.Is(err, storeapi.ErrBytesMax) { // a limit of the query, and no failure of the store
		g.err = fmt.Errorf("%w: more bytes of chunks and labels than are left: %w", ErrLimit, err)
		return
	}
	if parent := g.ctx.Err(); g.abort || parent != nil && !errors.Is(context.Cause(g.ctx), ErrStalled) {
		g.err = err
		return
	}
	g.warning = err
}

// refuseWarnings makes what a store warns of an error: it says that it misses a part.
func (g *guarded) refuseWarnings() {
	for _, warning := range g.stream.Warnings() {
		g.fail(warning)
		return
	}
}

func (g *guarded) Labels() []byte         { return g.labels }
func (g *guarded) Chunks() []series.Chunk { return g.chunks }
func (g *guarded) Err() error             { return g.err }

func (g *guarded) Warnings() annotations.Annotations {
	var all annotations.Annotations
	if g.stream != nil {
		all.Merge(g.stream.Warnings())
	}
	if g.warning != nil {
		all.Add(g.warning)
	}
	return all
}

// close ends the call. Whoever reads the stream has stopped.
func (g *guarded) close() {
	if g.timer != nil {
		g.timer.Stop()
	}
	if g.stream != nil {
		_ = g.stream.Close() // nothing of it is wanted any more
	}
	g.cancel(context.Canceled)
	_ = g.store.release()
}

// compareChunks orders chunks by time. Of chunks of the same span those with greater
// bytes come first, which decides who of two replicas that scraped at the same
// moments is preferred, as Thanos decides it.
func compareChunks(a, b series.Chunk) int {
	if c := cmp.Or(cmp.Compare(a.MinMS, b.MinMS), cmp.Compare(a.MaxMS, b.MaxMS), cmp.Compare(a.Encoding, b.Encoding)); c != 0 {
		return c
	}
	if a.Encoding == packedEncoding {
		return comparePacked(a.Data, b.Data)
	}
	return bytes.Compare(b.Data, a.Data)
}

// comparePacked orders downsampled chunks of the same span by their first aggregate
// that differs; lengths, which stand before the data, do not count.
func comparePacked(a, b []byte) int {
	for len(a) > 0 && len(b) > 0 {
		x, restA, errA := storepb.NextPacked(a)
		y, restB, errB := storepb.NextPacked(b)
		if errA != nil || errB != nil {
			break
		}
		if c := cmp.Or(cmp.Compare(x.Aggr, y.Aggr), cmp.Compare(x.Encoding, y.Encoding), bytes.Compare(y.Data, x.Data)); c != 0 {
			return c
		}
		a, b = restA, restB
	}
	return bytes.Compare(b, a)
}

// fanned are the streams of all the stores of a request.
type fanned struct {
	ctx     context.Context //nolint:containedctx // that of all the streams
	cancel  context.CancelCauseFunc
	streams []*guarded
	missing []error
}

// fan chooses the stores that may hold something, and prepares their streams; they are
// closed by the caller.
func (f *Fanout) fan(ctx context.Context, r Request, sr storeapi.SeriesRequest) (*fanned, error) {
	c, err := f.endpoints.choose(r, func(info *storeapi.Info) bool { return mayHold(info, sr.MinMS, sr.MaxMS, sr.Matchers) })
	if err != nil {
		return nil, err
	}
	sr.AbortOnPartial = r.AbortOnPartial
	all := &fanned{missing: c.missing}
	all.ctx, all.cancel = context.WithCancelCause(ctx)
	for i, s := range c.stores {
		g := &guarded{store: s, request: sr, wanted: sr.Aggregates, abort: r.AbortOnPartial, timeout: f.opts.ResponseTimeout}
		g.ctx, g.cancel = context.WithCancelCause(all.ctx)
		if g.timeout > 0 {
			g.timer = time.AfterFunc(g.timeout, func() { g.cancel(ErrStalled) })
			g.timer.Stop()
		}
		if info := c.infos[i]; len(sr.WithoutReplicaLabels) > 0 && (info == nil || info.Store == nil || !info.Store.WithoutReplicaLabels) {
			g.strip = sr.WithoutReplicaLabels
			g.request.WithoutReplicaLabels = nil
			g.request.Limit = 0 // several of its series may become one
		}
		all.streams = append(all.streams, g)
	}
	return all, nil
}

func (a *fanned) close() {
	a.cancel(context.Canceled)
	for _, g := range a.streams {
		g.close()
	}
	a.streams = nil
}

// merged is what all the stores of a request give, in order of labels.
type merged struct {
	series.Set
	*fanned
	ahead []*ahead
}

// merge asks the stores for a further querier. Each is read ahead by a goroutine of its
// own, so that none waits for what another one sends.
func (f *Fanout) merge(ctx context.Context, r Request, sr storeapi.SeriesRequest) (*merged, error) {
	all, err := f.fan(ctx, r, sr)
	if err != nil {
		return nil, err
	}
	m := &merged{fanned: all}
	sets := make([]series.Set, 0, len(all.streams))
	for _, g := range all.streams {
		var set series.Set = g
		if names := g.strip; len(names) > 0 {
			g.strip = nil
			set = series.WithoutLabels(g, names, int(f.opts.SortBytesMax))
		}
		if len(all.streams) > 1 {
			a := readAhead(g.ctx, set, func(err error) error { return fmt.Errorf("store %s: %w", g.store.address, err) }, f.endpoints.opts.Logger)
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

func (m *merged) close() {
	m.cancel(context.Canceled)
	for _, a := range m.ahead {
		<-a.done
	}
	m.fanned.close()
}
