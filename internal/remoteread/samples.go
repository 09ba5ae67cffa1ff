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
	"github.com/klauspost/compress/s2"
	"github.com/prometheus/prometheus/prompb"
	"github.com/prometheus/prometheus/tsdb/chunkenc"

	"github.com/ferula-io/ferula/internal/invariant"
	"github.com/ferula-io/ferula/internal/series"
)

// errChanged is returned when the second pass finds other series than the first.
var errChanged = errors.New("series changed while they were read")

// measuredSeries is the result of the first pass for a series. The head may get more series and
// samples before the second pass. The second pass sends only the measured series, and of each the
// measured number of samples. If an out-of-order sample was added in between, these are not the
// measured samples: for example, of the samples at 10 and 30 with a new one at 20, it would send 10
// and 20. The second pass detects that, because the last timestamp is not lastMS.
type measuredSeries struct {
	hash    uint64 // of the labels
	lastMS  int64  // timestamp of the last sample
	bytes   uint32 // of the encoded series, without tag and length
	samples uint32
}

// samplesQuery is the state of a query between the two passes. Its querier stays open.
type samplesQuery struct {
	query
	querier series.Querier
	fixed   bool             // the storage is immutable: both passes read the same series
	series  []measuredSeries // without the series that the second pass measures again (measuredTwice)
	bytes   uint64           // of the encoded result
}

// samples responds with one snappy block that holds one message. In protobuf every length
// precedes its value, so samples reads the series twice, with one querier. The first pass computes
// the sizes of the encoded series; of float chunks it needs only the headers. The second pass sends
// the samples.
func (s *Server) samples(ctx context.Context, queries []query, out *responseWriter) (err error) {
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
		if err := s.measure(ctx, q, total, measured, out); err != nil {
			return fmt.Errorf("query %d: %w", i, err)
		}
		total += messageSize(q.bytes)
		measured += len(q.series)
	}
	out.w.Header().Set("Content-Type", "application/x-protobuf")
	out.w.Header().Set("Content-Encoding", "snappy")
	out.buf = binary.AppendUvarint(out.buf, total)
	e := &encoder{out: out, plain: buffers.Get()}
	defer e.free()
	for i := range reading {
		*e.plain = appendMessageHead(*e.plain, reading[i].bytes)
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

// measure is the first pass. total and measured are the encoded bytes and the series of the queries before q.
func (s *Server) measure(ctx context.Context, q *samplesQuery, total uint64, measured int,
	out *responseWriter) (err error) {
	if q.querier, err = series.Open(ctx, s.from, q.mint, q.maxt); err != nil {
		return err
	}
	set := series.SelectWithExternalLabels(ctx, q.querier, s.opts.ExternalLabels(), q.matchers...)
	q.fixed = q.querier.Capabilities().Immutable
	var r chunkReader
	all := 0
	for n := 0; set.Next(); n++ {
		m, err := r.measureSeries(set, q.labelsOnly)
		if err != nil {
			return err
		}
		if all += int(m.samples); s.opts.SamplesMax > 0 && all > s.opts.SamplesMax {
			return badRequest{fmt.Errorf("exceeded sample limit (%d)%s", s.opts.SamplesMax, s.opts.Flags.Of("SamplesMax"))}
		}
		q.bytes += messageSize(uint64(m.bytes))
		if total+messageSize(q.bytes) > math.MaxUint32 {
			return badRequest{errors.New("the response exceeds 4 GiB, the limit of SAMPLES: " +
				"select fewer series, or request STREAMED_XOR_CHUNKS")}
		}
		if !q.measuredTwice(set) {
			if q.series = append(q.series, m); measured+len(q.series) > s.opts.HeldSeriesMax {
				return badRequest{fmt.Errorf("the queries match more than %d series of the head or with histograms, "+
					"the limit of SAMPLES: select fewer series, or request STREAMED_XOR_CHUNKS", s.opts.HeldSeriesMax)}
			}
		}
		if n%128 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
	}
	if err := set.Err(); err != nil {
		return err
	}
	if err := s.missing(set, out); err != nil {
		return err
	}
	s.warn(set)
	return nil
}

// measuredTwice reports whether the second pass measures the current series again, so that its
// size is not stored. This requires that the series cannot grow and that chunk headers suffice.
func (q *samplesQuery) measuredTwice(set series.Set) bool {
	return q.fixed && !slices.ContainsFunc(set.Chunks(), func(c series.Chunk) bool { return !measuredByHeader(c) })
}

// write is the second pass.
func (s *Server) write(ctx context.Context, q *samplesQuery, e *encoder) error {
	set := series.SelectWithExternalLabels(ctx, q.querier, s.opts.ExternalLabels(), q.matchers...)
	rest := q.series
	for (q.fixed || len(rest) > 0) && set.Next() {
		var m measuredSeries
		if q.measuredTwice(set) {
			var err error
			if m, err = e.measureSeries(set, q.labelsOnly); err != nil {
				return err
			}
		} else {
			if len(rest) == 0 {
				return errChanged
			}
			if m = rest[0]; xxhash.Sum64(set.Labels()) != m.hash {
				continue // added since the first pass
			}
			rest = rest[1:]
		}
		*e.plain = append(appendMessageHead(*e.plain, uint64(m.bytes)), set.Labels()...)
		begun := e.total + uint64(len(*e.plain)) - uint64(len(set.Labels()))
		left := int(m.samples)
		e.lastMS = 0
		for _, c := range set.Chunks() {
			if left == 0 {
				break
			}
			var err error
			if left, err = e.chunk(c, left); err != nil {
				return err
			}
		}
		if left > 0 || e.lastMS != m.lastMS || e.total+uint64(len(*e.plain)) != begun+uint64(m.bytes) {
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

// chunkReader decodes one chunk at a time.
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
	chunk, err := c.Decoder()
	if err != nil {
		return nil, err
	}
	r.iter = chunk.Iterator(r.iter)
	return r.iter, nil
}

// measureSeries measures all chunks of the current series.
func (r *chunkReader) measureSeries(set series.Set, labelsOnly bool) (m measuredSeries, err error) {
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
			if n > 0 {
				m.lastMS = c.MaxMS
			}
		}
	}
	if size > math.MaxUint32 {
		return m, badRequest{fmt.Errorf("a series has %d bytes of samples: request STREAMED_XOR_CHUNKS", size)}
	}
	m.bytes = uint32(size)
	return m, nil
}

// measuredByHeader reports whether the header of a chunk suffices for measure. A float chunk
// begins with its number of samples. All samples with timestamps from floatFromMS to floatToMS
// have the same encoded size (floatBytes).
func measuredByHeader(c series.Chunk) bool {
	floats := c.Encoding == chunkenc.EncXOR || c.Encoding == chunkenc.EncXOR2
	return floats && len(c.Data) >= 2 && c.MinMS >= floatFromMS && c.MaxMS <= floatToMS
}

// measure returns the number of samples of a chunk and the size of their encoding.
func (r *chunkReader) measure(c series.Chunk) (n int, bytes uint64, err error) {
	if measuredByHeader(c) {
		n = int(binary.BigEndian.Uint16(c.Data))
		return n, uint64(n) * floatBytes, nil
	}
	it, err := r.open(c)
	if err != nil {
		return 0, 0, err
	}
	for kind := it.Next(); kind != chunkenc.ValNone; kind = it.Next() {
		n++
		if kind == chunkenc.ValFloat {
			bytes += uint64(floatSize(it.AtT()))
			continue
		}
		h, err := protoHistogram(it, kind)
		if err != nil {
			return 0, 0, err
		}
		bytes += uint64(histogramSize(h.Size()))
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

// fragmentBytes is the input of one compression step. Snappy's encoders copy within
// 64 KiB only. So pack can compress fragments one by one and join the results, each without its
// length, as if one call had compressed the whole response.
const fragmentBytes = 64 << 10

// compareEvery is the number of fragments after which compress compares its encoders again.
const compareEvery = 32

// headBytesMax is the longest length prefix of a fragment.
const headBytesMax = 3

// encoder compresses a response and writes it to a responseWriter.
type encoder struct {
	chunkReader
	out   *responseWriter
	plain *[]byte
	total uint64 // plain bytes compressed so far

	fragments int  // compressed so far
	fast      bool // compress uses the faster encoder

	lastMS int64 // timestamp of the last sample of the current series
}

func (e *encoder) free() {
	buffers.Put(e.plain)
}

// chunk appends at most left samples of a chunk. It returns left minus their number.
func (e *encoder) chunk(c series.Chunk, left int) (int, error) {
	if c.Encoding == chunkenc.EncXOR {
		plain, n, err := appendXORFloats(*e.plain, c.Data, left, c.MinMS, c.MaxMS)
		*e.plain = plain
		if err == nil {
			err = e.setLast(c, n)
		}
		if err != nil {
			return left, err
		}
		return left - n, e.packFull()
	}
	it, err := e.open(c)
	if err != nil {
		return left, err
	}
	plain, before := *e.plain, left
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
			plain = appendFloat(plain, t, v)
			continue
		}
		h, err := protoHistogram(it, kind)
		if err != nil {
			return left, err
		}
		size := h.Size()
		plain = appendHistogramHead(plain, size)
		plain = append(plain, make([]byte, size)...)
		if _, err := h.MarshalToSizedBuffer(plain[len(plain)-size:]); err != nil {
			return left, err
		}
	}
	*e.plain = plain
	if err := it.Err(); err != nil {
		return left, err
	}
	if err := e.setLast(c, before-left); err != nil {
		return left, err
	}
	return left, e.packFull()
}

// setLast sets lastMS to the timestamp of the nth sample of a chunk.
func (e *encoder) setLast(c series.Chunk, n int) error {
	if n == 0 {
		return nil
	}
	if e.lastMS = c.MaxMS; n == int(binary.BigEndian.Uint16(c.Data)) {
		return nil
	}
	it, err := e.open(c) // the chunk has grown
	if err != nil {
		return err
	}
	for range n {
		if it.Next() == chunkenc.ValNone {
			return errors.Join(it.Err(), errChanged)
		}
	}
	e.lastMS = it.AtT()
	return nil
}

// packFull compresses the full fragments. The rest stays in plain.
func (e *encoder) packFull() error {
	return e.pack(len(*e.plain) / fragmentBytes * fragmentBytes)
}

// pack compresses the first n plain bytes, fragment by fragment, directly into the buffer of the
// response. An encoder writes the length of the fragment first, which must not be sent. So the
// output begins that many bytes before the end of the buffer, and pack restores the bytes that the
// length has overwritten.
func (e *encoder) pack(n int) error {
	if n == 0 {
		return nil
	}
	plain := *e.plain
	for at := 0; at < n; at += fragmentBytes {
		fragment := plain[at:min(n, at+fragmentBytes)]
		if err := e.out.grow(headBytesMax + snappy.MaxEncodedLen(fragmentBytes)); err != nil {
			return err
		}
		head := (bits.Len(uint(len(fragment))) + 6) / 7 // length of a uvarint
		var before [headBytesMax]byte
		out, end := e.out.buf, len(e.out.buf)
		start := max(0, end-head) // 0 if the buffer is empty, at first or after a flush
		copy(before[:], out[start:end])
		dst := out[start:cap(out)]
		invariant.Check(len(dst) >= snappy.MaxEncodedLen(len(fragment)), "no space for a fragment of %d bytes", len(fragment))
		invariant.Check(end == 0 || end >= head, "%d bytes before a fragment", end)
		packed := e.compress(dst, fragment)
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

// compress encodes a fragment, within dst. For values of full precision s2's encoder takes half the time, and its
// result is hardly longer. For values of few digits the result is a fifth longer, and the time about the same.
func (e *encoder) compress(dst, fragment []byte) []byte {
	e.fragments++
	switch {
	case e.fragments%compareEvery == 1:
		size := len(s2.EncodeSnappy(dst, fragment))
		packed := snappy.Encode(dst, fragment)
		e.fast = size <= len(packed)+len(packed)/32
		return packed
	case e.fast:
		return s2.EncodeSnappy(dst, fragment)
	}
	return snappy.Encode(dst, fragment)
}
