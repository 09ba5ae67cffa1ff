package storepb

import (
	"encoding/binary"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/ferula-io/ferula/internal/series"
)

// Labels as deltas, between two ferula processes:
//
//	delta batch  (0x0A len series)*
//	series       0x0A len delta  (0x12 len chunk)*    delta: see appendDelta
//
// A delta is the difference from the labels of the series before in the same message. The delta of the first series is
// the difference from an empty label set. So a message is read without the messages before it, and neither side has a
// table. Writers send deltas only to readers that request them.

// DeltaWriter encodes the series of a stream with deltas. The zero value is ready to use.
type DeltaWriter struct {
	previous []byte // labels of the series before in the same message, as the reader decodes them
	delta    []byte
}

// Begin begins a message.
func (w *DeltaWriter) Begin() { w.previous = w.previous[:0] }

// SeriesSizeMax returns an upper bound of the bytes that AppendSeries appends, plus chunksSize.
func (w *DeltaWriter) SeriesSizeMax(labelsLen, chunksSize int) int {
	return len(w.previous) + labelsLen + 32 + chunksSize
}

// AppendSeries appends the head of a series, as AppendSeriesHead does. labels is the encoded set.
func (w *DeltaWriter) AppendSeries(dst, labels []byte, chunksSize int) ([]byte, error) {
	var exact bool
	var err error
	if w.delta, exact, err = appendDelta(w.delta[:0], w.previous, labels); err != nil {
		return dst, err
	}
	if exact {
		w.previous = append(w.previous[:0], labels...)
	} else if w.previous, err = applyDelta(nil, w.previous, w.delta); err != nil {
		return dst, err
	}
	size := 1 + protowire.SizeVarint(uint64(len(w.delta))) + len(w.delta) + chunksSize
	dst = binary.AppendUvarint(append(dst, tagSeries), uint64(size))
	dst = binary.AppendUvarint(append(dst, tagSeries), uint64(len(w.delta)))
	return append(dst, w.delta...), nil
}

const deltaTagBytes = 3

// AppendDeltaHead reserves the header of a delta batch.
func AppendDeltaHead(dst []byte) []byte {
	return append(binary.AppendUvarint(dst, tagDeltaBatch), 0, 0, 0, 0)
}

// SealDeltaBatch ends a response that begins with AppendDeltaHead.
func SealDeltaBatch(buf []byte) {
	putPadded(buf[deltaTagBytes:], len(buf)-deltaTagBytes-paddedBytes)
}

// Begin begins a message.
func (d *Decoder) Begin() { d.previous = nil }

// labelArenaMax limits the bytes of the decoded labels of one message. A delta of a byte repeats the labels before it,
// however many these are.
const labelArenaMax = 64 << 20

// DeltaSeries decodes a series of a delta batch, whose labels it appends to the arena. The caller must not empty the
// arena before the next series of the message is decoded, because the labels of that series are a difference from these.
func (d *Decoder) DeltaSeries(src []byte, chunks []series.Chunk) (labels []byte, _ []series.Chunk, err error) {
	var delta []byte
	if len(src) > 0 && src[0] == tagSeries { // a delta has the same tag
		if delta, src, err = nextBody(tagSeries, src[1:]); err != nil {
			return nil, chunks, err
		}
	}
	start := len(d.Arena)
	if d.Arena, err = applyDelta(d.Arena, d.previous, delta); err == nil && len(d.Arena) > labelArenaMax {
		err = fmt.Errorf("%w: labels of a message have more than %d bytes", ErrCorrupt, labelArenaMax)
	}
	if err != nil {
		d.Arena = d.Arena[:start]
		return nil, chunks, err
	}
	d.previous = d.Arena[start:len(d.Arena):len(d.Arena)]
	chunks, rest, err := d.Chunks(src, chunks)
	if len(rest) > 0 {
		err = fmt.Errorf("%w: a delta after the chunks of its series", ErrCorrupt)
	}
	return d.previous, chunks, err
}
