package exposition

import (
	"encoding/binary"
	"math"
	"slices"
)

// The functions below encode io.prometheus.client.MetricFamily. They append a message first, and
// then insert its length before it.

func (e *Encoder) beginMessage(help, unit []byte) {
	b := appendBytes(e.Page, 1, e.name)
	if len(help) > 0 {
		b = appendBytes(b, 2, help)
	}
	b = appendUint(b, 3, uint64(e.kind))
	if len(unit) > 0 {
		// The order of fields is free: field 5 may precede the metrics, which are field 4.
		b = appendBytes(b, 5, unit)
	}
	e.Page = b
}

// addMessage appends a Metric message. A double field has 9 bytes, so messages with one or two of
// them have the constant lengths 9 and 18.
func (e *Encoder) addMessage(m *Metric) {
	b := append(e.Page, 4<<3|2)
	metric := len(b)
	b = e.appendPairs(b, m.Labels)
	switch e.kind {
	case Counter:
		b = append(b, 3<<3|2)
		from := len(b)
		b = appendDouble(b, 1, m.Value)
		b = e.appendExemplar(b, 2, m, m.Exemplar)
		b = lengthBefore(appendTime(b, 3, m.CreatedMS), from)
	case Summary:
		b = append(b, 4<<3|2)
		from := len(b)
		b = appendDouble(appendUint(b, 1, m.Count), 2, m.Sum)
		for _, q := range m.Quantiles {
			b = append(b, 3<<3|2, 18)
			b = appendDouble(appendDouble(b, 1, q.Phi), 2, q.Value)
		}
		b = lengthBefore(appendTime(b, 4, m.CreatedMS), from)
	case Histogram:
		b = append(b, 7<<3|2)
		from := len(b)
		b = lengthBefore(e.appendHistogram(b, m), from)
	case Gauge:
		b = appendDouble(append(b, 2<<3|2, 9), 1, m.Value)
	default:
		b = appendDouble(append(b, 5<<3|2, 9), 1, m.Value)
	}
	if m.TimestampMS != 0 {
		b = appendUint(b, 6, uint64(m.TimestampMS))
	}
	e.Page = lengthBefore(b, metric)
}

func (e *Encoder) appendHistogram(b []byte, m *Metric) []byte {
	b = appendDouble(appendUint(b, 1, m.Count), 2, m.Sum)
	for i := range m.Buckets {
		if m.Native.Is && math.IsInf(m.Buckets[i].Upper, 1) && m.Buckets[i].Exemplar.AtMS == 0 {
			continue
		}
		b = append(b, 3<<3|2)
		from := len(b)
		b = appendDouble(appendUint(b, 1, m.Buckets[i].Count), 2, m.Buckets[i].Upper)
		b = lengthBefore(e.appendExemplar(b, 3, m, m.Buckets[i].Exemplar), from)
	}
	if m.Native.Is {
		b = e.appendNative(b, m)
	}
	return appendTime(b, 15, m.CreatedMS)
}

// Field numbers of native buckets: spans of indexes, and deltas of counts.
const (
	negativeSpan, negativeDelta = 9, 10
	positiveSpan, positiveDelta = 12, 13
)

func (e *Encoder) appendNative(b []byte, m *Metric) []byte {
	n := &m.Native
	b = appendUint(b, 5, zigzag(int64(n.Schema)))
	b = appendUint(appendDouble(b, 6, n.ZeroThreshold), 7, n.ZeroCount)
	if len(n.NegativeIndexes) > 0 {
		b = appendNativeSide(b, n.NegativeIndexes, n.NegativeCounts, negativeSpan, negativeDelta)
	}
	b = appendNativeSide(b, n.Indexes, n.Counts, positiveSpan, positiveDelta)
	if len(n.Indexes)+len(n.NegativeIndexes) == 0 && n.ZeroThreshold == 0 && n.ZeroCount == 0 {
		b = appendSpan(b, positiveSpan, 0, 0) // marks the histogram as native
	}
	for i := range m.Buckets {
		b = e.appendExemplar(b, 16, m, m.Buckets[i].Exemplar)
	}
	for _, x := range m.Exemplars {
		b = e.appendExemplar(b, 16, m, x)
	}
	return b
}

// appendNativeSide writes the positive or the negative buckets: spans of consecutive buckets, and
// each count as the difference from the previous one. Up to two empty buckets between others are
// written as buckets, because another span would take more bytes.
func appendNativeSide(b []byte, indexes []int32, counts []uint64, span, delta byte) []byte {
	const gapMax = 2
	next := int32(0) // the index after the previous span
	for i := 0; i < len(indexes); {
		from, length := indexes[i], uint64(0)
		for ; i < len(indexes); i++ {
			gap := int64(indexes[i]) - int64(from) - int64(length)
			if gap > gapMax {
				break
			}
			length += uint64(gap) + 1
		}
		b = appendSpan(b, span, int64(from)-int64(next), length)
		next = from + int32(length)
	}
	before := uint64(0)
	for i, index := range indexes {
		gap := int64(0)
		if i > 0 {
			gap = int64(index) - int64(indexes[i-1]) - 1
		}
		if gap <= gapMax {
			for range gap {
				b = appendUint(b, delta, zigzag(-int64(before)))
				before = 0
			}
		}
		b = appendUint(b, delta, zigzag(int64(counts[i]-before)))
		before = counts[i]
	}
	return b
}

func appendSpan(b []byte, field byte, offset int64, length uint64) []byte {
	b = append(b, field<<3|2)
	from := len(b)
	return lengthBefore(appendUint(appendUint(b, 1, zigzag(offset)), 2, length), from)
}

func (e *Encoder) appendExemplar(b []byte, field byte, m *Metric, x Exemplar) []byte {
	if x.AtMS == 0 {
		return b
	}
	b = appendTag(b, field, 2)
	from := len(b)
	b = appendDouble(e.appendPairs(b, m.texts[x.from:x.to]), 2, x.Value)
	return lengthBefore(appendTime(b, 3, x.AtMS), from)
}

// appendPairs writes labels as LabelPair messages, field 1.
func (e *Encoder) appendPairs(b, text []byte) []byte {
	for {
		name, value, rest, ok := NextLabel(text)
		if !ok {
			return b
		}
		text = rest
		b = append(b, 1<<3|2)
		from := len(b)
		e.text = AppendEscaped(e.text[:0], name, e.Form.Scheme)
		b = appendBytes(b, 1, e.text)
		if isPlain(value) {
			b = appendBytes(b, 2, value)
		} else {
			e.text = AppendUnescaped(e.text[:0], value)
			b = appendBytes(b, 2, e.text)
		}
		b = lengthBefore(b, from)
	}
}

// appendTime writes a Unix time in milliseconds as google.protobuf.Timestamp; nothing for 0.
func appendTime(b []byte, field byte, ms int64) []byte {
	if ms == 0 {
		return b
	}
	b = appendTag(b, field, 2)
	from := len(b)
	b = appendUint(b, 1, uint64(ms/1000))
	if nanos := ms % 1000 * 1e6; nanos != 0 {
		b = appendUint(b, 2, uint64(nanos))
	}
	return lengthBefore(b, from)
}

func appendTag(b []byte, field, wire byte) []byte {
	return binary.AppendUvarint(b, uint64(field)<<3|uint64(wire))
}

func appendUint(b []byte, field byte, n uint64) []byte {
	return binary.AppendUvarint(appendTag(b, field, 0), n)
}

func appendDouble(b []byte, field byte, v float64) []byte {
	return binary.LittleEndian.AppendUint64(append(b, field<<3|1), math.Float64bits(v))
}

func appendBytes(b []byte, field byte, text []byte) []byte {
	return append(binary.AppendUvarint(append(b, field<<3|2), uint64(len(text))), text...)
}

func zigzag(n int64) uint64 { return uint64(n<<1) ^ uint64(n>>63) }

// lengthBefore inserts the length of the message b[from:] before it.
func lengthBefore(b []byte, from int) []byte {
	var text [binary.MaxVarintLen64]byte
	n := binary.PutUvarint(text[:], uint64(len(b)-from))
	b = slices.Grow(b, n)[:len(b)+n]
	copy(b[from+n:], b[from:len(b)-n])
	copy(b[from:], text[:n])
	return b
}
