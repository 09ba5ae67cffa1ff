package exposition

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strconv"
)

// WriteRequests encodes samples in text format as messages prometheus.WriteRequest of remote
// write 1.0:
//
//	WriteRequest { repeated TimeSeries timeseries = 1 }
//	TimeSeries   { repeated Label labels = 1; repeated Sample samples = 2 }
//	Label        { string name = 1; string value = 2 }
//	Sample       { double value = 1; int64 timestamp = 2 }
type WriteRequests struct {
	SeriesMax int   // of one message
	NowMS     int64 // timestamp of samples without their own
	// Send sends one message with this number of series. It must not retain the message.
	Send func(message []byte, series int) error

	message []byte
	series  []byte // scratch: the TimeSeries being encoded
	n       int    // series in message
	labels  []writeLabel
	text    []byte // of labels, unescaped
}

// writeLabel is a label whose name and value are text[name:value] and text[value:end].
type writeLabel struct{ name, value, end int }

// Page encodes the samples of page, which is in text format, and sends each full message. Flush
// sends the last one. Page stops at the first error of Send. It leaves out comments, malformed
// lines, and labels with an empty value.
func (w *WriteRequests) Page(page []byte) error {
	for text := range bytes.Lines(page) {
		x, ok := parseLine(bytes.TrimSpace(text))
		if !ok {
			continue
		}
		value, stamp, _ := bytes.Cut(x.value, []byte(" "))
		v, err := strconv.ParseFloat(string(value), 64)
		if err != nil {
			continue
		}
		ms := w.NowMS
		if len(stamp) > 0 {
			if ms, err = strconv.ParseInt(string(bytes.TrimSpace(stamp)), 10, 64); err != nil {
				continue
			}
		}
		w.add(&x, v, ms)
		if w.n >= w.SeriesMax {
			if err := w.Flush(); err != nil {
				return err
			}
		}
	}
	return nil
}

// Flush sends the remaining samples.
func (w *WriteRequests) Flush() error {
	if w.n == 0 {
		return nil
	}
	message, n := w.message, w.n
	w.message, w.n = w.message[:0], 0
	return w.Send(message, n)
}

func (w *WriteRequests) add(x *line, v float64, ms int64) {
	w.labels, w.text, w.series = w.labels[:0], w.text[:0], w.series[:0]
	w.label([]byte("__name__"), x.family)
	for text := x.labels; ; {
		name, value, rest, ok := NextLabel(text)
		if !ok {
			break
		}
		if len(value) > 0 {
			w.label(name, value)
		}
		text = rest
	}
	slices.SortFunc(w.labels, func(a, b writeLabel) int {
		return bytes.Compare(w.text[a.name:a.value], w.text[b.name:b.value])
	})
	for _, l := range w.labels {
		w.series = appendTag(w.series, 1, 2)
		start := len(w.series)
		w.series = appendBytes(w.series, 1, w.text[l.name:l.value])
		w.series = appendBytes(w.series, 2, w.text[l.value:l.end])
		w.series = lengthBefore(w.series, start)
	}
	w.series = appendTag(w.series, 2, 2)
	start := len(w.series)
	w.series = appendDouble(w.series, 1, v)
	w.series = appendUint(w.series, 2, uint64(ms))
	w.series = lengthBefore(w.series, start)
	w.message = appendBytes(w.message, 1, w.series)
	w.n++
}

func (w *WriteRequests) label(name, value []byte) {
	l := writeLabel{name: len(w.text)}
	w.text = AppendUnescaped(w.text, name)
	l.value = len(w.text)
	w.text = AppendUnescaped(w.text, value)
	l.end = len(w.text)
	w.labels = append(w.labels, l)
}

const (
	snappyBlock    = 1 << 16 // copies refer to bytes of the same block only
	snappyHashBits = 12
)

// AppendSnappy appends src in the block format of snappy: its length, and then literals and
// copies. It finds copies by a hash of four bytes.
func AppendSnappy(dst, src []byte) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(src)))
	for len(src) > 0 {
		n := min(len(src), snappyBlock)
		dst = appendSnappyBlock(dst, src[:n])
		src = src[n:]
	}
	return dst
}

func appendSnappyBlock(dst, b []byte) []byte {
	var last [1 << snappyHashBits]uint16 // last position of four bytes with this hash; other bytes may have the same hash
	literal := 0
	for at := 1; at+4 <= len(b); {
		word := binary.LittleEndian.Uint32(b[at:])
		hash := word * 0x9e3779b1 >> (32 - snappyHashBits)
		from := int(last[hash])
		last[hash] = uint16(at)
		if binary.LittleEndian.Uint32(b[from:]) != word {
			at += 1 + (at-literal)>>6 // skips faster through text without repetitions
			continue
		}
		n := 4
		for at+n < len(b) && b[from+n] == b[at+n] {
			n++
		}
		dst = appendLiteral(dst, b[literal:at])
		offset := at - from
		at += n
		literal = at
		for ; n > 0; n -= min(n, 64) {
			dst = append(dst, byte(min(n, 64)-1)<<2|2, byte(offset), byte(offset>>8))
		}
	}
	return appendLiteral(dst, b[literal:])
}

func appendLiteral(dst, b []byte) []byte {
	switch n := len(b) - 1; {
	case n < 0:
		return dst
	case n < 60:
		dst = append(dst, byte(n)<<2)
	case n < 1<<8:
		dst = append(dst, 60<<2, byte(n))
	default:
		dst = append(dst, 61<<2, byte(n), byte(n>>8))
	}
	return append(dst, b...)
}
