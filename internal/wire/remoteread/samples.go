package remoteread

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"

	"github.com/cespare/xxhash/v2"
	"github.com/golang/snappy"
	"github.com/prometheus/prometheus/prompb"
	"github.com/prometheus/prometheus/tsdb/chunkenc"

	codec "github.com/ferula-io/ferula/internal/codec/remoteread"
	"github.com/ferula-io/ferula/internal/invariant"
	"github.com/ferula-io/ferula/internal/series"
)

// errChanged means that the second pass did not find what the first one had.
var errChanged = errors.New("series changed while they were read")

// measured is a series of the first pass. Those of an open head may have grown
// when the second pass comes by, and others may have come: the second pass gives
// what the first one measured.
type measured struct {
	hash    uint64 // of the labels
	bytes   uint32 // of the encoded series, without its head
	samples uint32
}

// samplesQuery is a query between the passes, its view of the storage open.
type samplesQuery struct {
	query
	querier series.Querier
	fixed   bool // the second pass finds what the first one did
	series  []measured
	bytes   uint64 // of the encoded result
}

// samples answers with one snappy block around one message. Every length stands
// before what it measures, so all is gone through twice over one view: lengths
// first, for which chunk headers are enough where all samples are floats, and
// then bytes.
func (s *Server) samples(ctx context.Context, queries []query, out *sink) (err error) {
	reading := make([]samplesQuery, len(queries))
	defer func() {
		for _, q := range reading {
			if q.querier != nil {
				err = errors.Join(err, q.querier.Close())
			}
		}
	}()
	total, measured := uint64(0), 0
	for i := range reading {
		q := &reading[i]
		q.query = queries[i]
		if err := s.measure(ctx, q, total, measured); err != nil {
			return fmt.Errorf("query %d: %w", i, err)
		}
		total += codec.MessageSize(q.bytes)
		measured += len(q.series)
	}
	out.w.Header().Set("Content-Type", "application/x-protobuf")
	out.w.Header().Set("Content-Encoding", "snappy")
	out.buf = binary.AppendUvarint(out.buf, total)
	e := &encoder{out: out, plain: buffers.Get()}
	defer e.free()
	for i := range reading {
		*e.plain = codec.AppendMessageHead(*e.plain, reading[i].bytes)
		if err := s.write(ctx, &reading[i], e); err != nil {
			return fmt.Errorf("query %d: %w", i, err)
		}
	}
	if err := e.pack(len(*e.plain)); err != nil {
		return err
	}
	if e.total != total {
		return errChanged
	}
	return nil
}

// measure is the first pass. The queries before this one take total bytes and have
// measured series.
func (s *Server) measure(ctx context.Context, q *samplesQuery, total uint64, measured int) (err error) {
	if q.querier, err = series.Open(ctx, s.from, q.mint, q.maxt); err != nil {
		return err
	}
	set := series.SelectWithExternalLabels(ctx, q.querier, s.opts.ExternalLabels(), q.matchers...)
	if fixed, ok := q.querier.(series.Fixed); ok {
		q.fixed = fixed.Fixed()
	}
	var r chunkReader
	all := 0
	for n := 0; set.Next(); n++ {
		m, err := r.measureSeries(set, q.labelsOnly)
		if err != nil {
			return err
		}
		if all += int(m.samples); s.opts.SamplesMax > 0 && all > s.opts.SamplesMax {
			return badRequest{fmt.Errorf("exceeded sample limit (%d)", s.opts.SamplesMax)}
		}
		q.bytes += codec.MessageSize(uint64(m.bytes))
		if total+codec.MessageSize(q.bytes) > math.MaxUint32 {
			return badRequest{errors.New("the response has more than 4 GiB, where SAMPLES ends: request less, or STREAMED_XOR_CHUNKS")}
		}
		if !q.again(set) {
			if q.series = append(q.series, m); measured+len(q.series) > s.opts.MeasuredMax {
				return badRequest{fmt.Errorf("the queries have more than %d series of the head or with histograms, as many as SAMPLES may have: request less, or STREAMED_XOR_CHUNKS", s.opts.MeasuredMax)}
			}
		}
		if n%128 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
	}
	if err := set.Err(); err != nil {
		return err
	}
	s.warn(set)
	return nil
}

// again tells whether the second pass measures a series anew instead of looking
// it up: if that takes chunk headers only, and nobody writes to the series.
func (q *samplesQuery) again(set series.Set) bool {
	return q.fixed && !slices.ContainsFunc(set.Chunks(), func(c series.Chunk) bool { return !headerSays(c) })
}

// write is the second pass.
func (s *Server) write(ctx context.Context, q *samplesQuery, e *encoder) error {
	set := series.SelectWithExternalLabels(ctx, q.querier, s.opts.ExternalLabels(), q.matchers...)
	rest := q.series
	for (q.fixed || len(rest) > 0) && set.Next() {
		var m measured
		if q.again(set) {
			var err error
			if m, err = e.measureSeries(set, q.labelsOnly); err != nil {
				return err
			}
		} else {
			if len(rest) == 0 {
				return errChanged
			}
			if m = rest[0]; xxhash.Sum64(set.Labels()) != m.hash {
				continue // it was not there before
			}
			rest = rest[1:]
		}
		*e.plain = append(codec.AppendMessageHead(*e.plain, uint64(m.bytes)), set.Labels()...)
		begun := e.total + uint64(len(*e.plain)) - uint64(len(set.Labels()))
		left := int(m.samples)
		for _, c := range set.Chunks() {
			if left == 0 {
				break
			}
			var err error
			if left, err = e.chunk(c, left); err != nil {
				return err
			}
		}
		if left > 0 || e.total+uint64(len(*e.plain)) != begun+uint64(m.bytes) {
			return errChanged
		}
		if err := e.packFull(); err != nil {
			return err
		}
	}
	if err := set.Err(); err != nil {
		return err
	}
	if len(rest) > 0 {
		return errChanged
	}
	return nil
}

// chunkReader opens chunks one after the other.
type chunkReader struct {
	xor  chunkenc.XORChunk
	iter chunkenc.Iterator
}

func (r *chunkReader) open(c series.Chunk) (chunkenc.Iterator, error) {
	if len(c.Data) < 3 && !(c.Encoding == chunkenc.EncXOR && len(c.Data) == 2) {
		return nil, fmt.Errorf("a chunk of %d bytes", len(c.Data))
	}
	if c.Encoding == chunkenc.EncXOR {
		r.xor.Reset(c.Data)
		r.iter = r.xor.Iterator(r.iter)
		return r.iter, nil
	}
	chunk, err := chunkenc.FromData(c.Encoding, c.Data)
	if err != nil {
		return nil, err
	}
	r.iter = chunk.Iterator(r.iter)
	return r.iter, nil
}

// measureSeries measures the series at hand, all of its chunks.
func (r *chunkReader) measureSeries(set series.Set, labelsOnly bool) (m measured, err error) {
	m.hash = xxhash.Sum64(set.Labels())
	size := uint64(len(set.Labels()))
	if !labelsOnly {
		for _, c := range set.Chunks() {
			n, bytes, err := r.measure(c)
			if err != nil {
				return m, err
			}
			m.samples += uint32(n)
			size += bytes
		}
	}
	if size > math.MaxUint32 {
		return m, badRequest{fmt.Errorf("a series has %d bytes of samples: ask for STREAMED_XOR_CHUNKS", size)}
	}
	m.bytes = uint32(size)
	return m, nil
}

// headerSays tells whether measure needs no more of a chunk than its header: a
// chunk of floats begins with their number, and all take the same.
func headerSays(c series.Chunk) bool {
	floats := c.Encoding == chunkenc.EncXOR || c.Encoding == chunkenc.EncXOR2
	return floats && len(c.Data) >= 2 && c.MinMS >= codec.FloatFromMS && c.MaxMS <= codec.FloatToMS
}

// measure counts the samples of a chunk and the bytes that they take.
func (r *chunkReader) measure(c series.Chunk) (n int, bytes uint64, err error) {
	if headerSays(c) {
		n = int(binary.BigEndian.Uint16(c.Data))
		return n, uint64(n) * codec.FloatBytes, nil
	}
	it, err := r.open(c)
	if err != nil {
		return 0, 0, err
	}
	for kind := it.Next(); kind != chunkenc.ValNone; kind = it.Next() {
		n++
		if kind == chunkenc.ValFloat {
			bytes += uint64(codec.FloatSize(it.AtT()))
			continue
		}
		h, err := protoHistogram(it, kind)
		if err != nil {
			return 0, 0, err
		}
		bytes += uint64(codec.HistogramSize(h.Size()))
	}
	return n, bytes, it.Err()
}

func protoHistogram(it chunkenc.Iterator, kind chunkenc.ValueType) (prompb.Histogram, error) {
	switch kind {
	case chunkenc.ValHistogram:
		t, h := it.AtHistogram(nil)
		return prompb.FromIntHistogram(t, h), nil
	case chunkenc.ValFloatHistogram:
		t, h := it.AtFloatHistogram(nil)
		return prompb.FromFloatHistogram(t, h), nil
	}
	return prompb.Histogram{}, fmt.Errorf("a chunk has values of kind %s", kind)
}

// fragmentBytes is what a snappy block is compressed by: matches reach no
// further back, so fragments encoded on their own, each without its length, make
// the same block as all of them at once.
const fragmentBytes = 64 << 10

// headBytesMax is the longest length that a fragment may begin with.
const headBytesMax = 3

// encoder takes an answer in plain bytes and gives it compressed to a sink.
type encoder struct {
	chunkReader
	out   *sink
	plain *[]byte
	total uint64 // packed, in plain bytes
}

func (e *encoder) free() {
	buffers.Put(e.plain)
}

// chunk appends at most left samples of a chunk, and returns how many are left.
func (e *encoder) chunk(c series.Chunk, left int) (int, error) {
	if c.Encoding == chunkenc.EncXOR {
		plain, n, err := codec.AppendXORFloats(*e.plain, c.Data, left, c.MinMS, c.MaxMS)
		*e.plain = plain
		if err != nil {
			return left, err
		}
		return left - n, e.packFull()
	}
	it, err := e.open(c)
	if err != nil {
		return left, err
	}
	plain := *e.plain
	for left > 0 {
		kind := it.Next()
		if kind == chunkenc.ValNone {
			break
		}
		left--
		if kind == chunkenc.ValFloat {
			t, v := it.At()
			if t < c.MinMS || t > c.MaxMS {
				return left, fmt.Errorf("a chunk from %d to %d has a sample at %d", c.MinMS, c.MaxMS, t)
			}
			plain = codec.AppendFloat(plain, t, v)
			continue
		}
		h, err := protoHistogram(it, kind)
		if err != nil {
			return left, err
		}
		size := h.Size()
		plain = codec.AppendHistogramHead(plain, size)
		plain = append(plain, make([]byte, size)...)
		if _, err := h.MarshalToSizedBuffer(plain[len(plain)-size:]); err != nil {
			return left, err
		}
	}
	*e.plain = plain
	if err := it.Err(); err != nil {
		return left, err
	}
	return left, e.packFull()
}

// packFull compresses the full fragments and keeps the rest.
func (e *encoder) packFull() error {
	return e.pack(len(*e.plain) / fragmentBytes * fragmentBytes)
}

// pack compresses the first n plain bytes, straight into the sink's buffer: the
// length that every fragment begins with comes to lie over the bytes before it,
// which are put back.
func (e *encoder) pack(n int) error {
	plain := *e.plain
	for at := 0; at < n; at += fragmentBytes {
		fragment := plain[at:min(n, at+fragmentBytes)]
		if err := e.out.tail(headBytesMax + snappy.MaxEncodedLen(fragmentBytes)); err != nil {
			return err
		}
		head := (bits.Len(uint(len(fragment))) + 6) / 7 // bytes of a uvarint
		var before [headBytesMax]byte
		out, end := e.out.buf, len(e.out.buf)
		start := max(0, end-head) // 0 if the sink has nothing, or has just written it
		copy(before[:], out[start:end])
		dst := out[start:cap(out)]
		invariant.Check(len(dst) >= snappy.MaxEncodedLen(len(fragment)), "no room for a fragment of %d bytes", len(fragment))
		invariant.Check(end == 0 || end >= head, "%d bytes before a fragment", end)
		packed := snappy.Encode(dst, fragment)
		if end == 0 {
			e.out.buf = out[:copy(dst, packed[head:])]
		} else {
			copy(dst, before[:head])
			e.out.buf = out[:start+len(packed)]
		}
		e.total += uint64(len(fragment))
	}
	*e.plain = append(plain[:0], plain[n:]...)
	return nil
}
