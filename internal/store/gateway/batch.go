package gateway

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/ferula-io/ferula/internal/codec/blockindex"
	"github.com/ferula-io/ferula/internal/codec/labelenc"
	"github.com/ferula-io/ferula/internal/pages"
)

// batch is the decoded entries of some series of one block. Each entry ends where the next
// one begins.
type batch struct {
	labels  []byte
	numbers []uint64 // of the labels: number of the name's symbol above that of the value's
	chunks  []place
	entries []parts
	last    bool // no series follow
	err     error
}

// parts is where a series ends in the lists of its batch.
type parts struct{ labels, numbers, chunks int }

// place is a chunk in the bucket.
type place struct {
	minMS, maxMS int64
	ref          uint64 // number of the segment and offset in it
}

const (
	seriesAlign    = 16
	seriesMin      = 32 // series of the first batch
	seriesMax      = 1024
	labelsBytes    = 128 << 10 // of a batch, about; as much for its chunks' places
	placeBytes     = 24
	entryMax       = 16 << 20
	segmentHeader  = 8
	chunkLengthMax = 5
)

func (b *batch) reset() {
	b.labels, b.numbers, b.chunks, b.entries = b.labels[:0], b.numbers[:0], b.chunks[:0], b.entries[:0]
	b.last, b.err = false, nil
}

// producer reads the batches of one block, in order.
type producer struct {
	block      *block
	header     *header
	postings   refs
	onLabels   []*labels.Matcher
	minMS      int64
	maxMS      int64
	labelsOnly bool
	slot       slot

	reader *pages.Reader
	ahead  window
	refs   []uint32 // series whose entries were fetched
	at     int      // of the next batch
	ended  bool     // refs has the last series
	spans  []pages.Span
	series int // of the next batch
}

// fill reads the next batch into b: entries are decoded, and the pages of the chunks are
// present or on their way.
func (p *producer) fill(ctx context.Context, b *batch) {
	b.reset()
	if b.err = p.slot.take(ctx); b.err != nil {
		return
	}
	defer p.slot.release()
	defer p.postings.release()
	defer p.reader.Release()
	for len(b.entries) == 0 && !b.last && b.err == nil {
		b.err = p.fillSome(ctx, b)
	}
}

func (p *producer) fillSome(ctx context.Context, b *batch) error {
	if p.at == len(p.refs) {
		if err := p.fetchEntries(ctx); err != nil {
			return err
		}
		if len(p.refs) == 0 {
			b.last = true
			return ctx.Err()
		}
	}
	n := min(p.series, len(p.refs)-p.at)
	if !p.labelsOnly {
		n = p.lookAhead(ctx, n)
	}
	for _, ref := range p.refs[p.at : p.at+n] {
		if err := p.decode(ctx, ref, b); err != nil {
			return fmt.Errorf("series %d: %w", ref, err)
		}
	}
	p.at += n
	b.last = p.ended && p.at == len(p.refs)
	p.adapt(len(b.entries), max(len(b.chunks)*placeBytes, len(b.labels))/labelsBytes)
	return nil
}

// adapt sets the size of the next batch: twice the last one, or less if that was large.
func (p *producer) adapt(entries, times int) {
	if times >= 1 {
		p.series = max(entries/(times+1), 1)
		return
	}
	p.series = min(2*p.series, seriesMax)
}

// decode decodes the entry of a series. It is left out if it has no chunks in the range or
// does not match.
func (p *producer) decode(ctx context.Context, ref uint32, b *batch) error {
	body, err := p.entry(ctx, ref)
	if err != nil {
		return err
	}
	was := parts{len(b.labels), len(b.numbers), len(b.chunks)}
	r := blockindex.Varints{Src: body}
	for range r.LabelCount() {
		nameNumber, valueNumber := r.Label()
		name, okName := p.header.symbol(nameNumber)
		value, okValue := p.header.symbol(valueNumber)
		if r.Bad || !okName || !okValue {
			return fmt.Errorf("%w: unknown symbol", ErrCorrupt)
		}
		b.labels = labelenc.AppendSymbols(b.labels, name, value)
		b.numbers = append(b.numbers, nameNumber<<32|valueNumber)
	}
	if b.chunks, err = p.places(&r, b.chunks); err != nil {
		return err
	}
	if len(b.chunks) == was.chunks || !p.matches(b.labels[was.labels:]) {
		b.labels, b.numbers, b.chunks = b.labels[:was.labels], b.numbers[:was.numbers], b.chunks[:was.chunks]
		return nil
	}
	b.entries = append(b.entries, parts{len(b.labels), len(b.numbers), len(b.chunks)})
	return nil
}

// entry returns the verified body of a series entry, borrowed until the reader's Release.
func (p *producer) entry(ctx context.Context, ref uint32) ([]byte, error) {
	off := int64(ref) * seriesAlign
	if off < int64(p.header.toc.series) {
		return nil, fmt.Errorf("%w: outside the series", ErrCorrupt)
	}
	src, err := p.reader.At(ctx, p.block.index, off)
	if err != nil {
		return nil, err
	}
	size, n := binary.Uvarint(src)
	if n == 0 { // the length lies in two pages
		if src, err = p.reader.Bytes(ctx, p.block.index, off, int(min(binary.MaxVarintLen32, p.block.index.Size()-off))); err != nil {
			return nil, err
		}
		size, n = binary.Uvarint(src)
	}
	if n <= 0 || size > entryMax {
		return nil, fmt.Errorf("%w: length of the entry", ErrCorrupt)
	}
	whole := n + int(size) + crc32.Size
	if whole > len(src) {
		if src, err = p.reader.Bytes(ctx, p.block.index, off, whole); err != nil {
			return nil, err
		}
	}
	body := src[n : n+int(size)]
	if crc32.Checksum(body, castagnoli) != binary.BigEndian.Uint32(src[n+int(size):]) {
		return nil, fmt.Errorf("%w: checksum of the entry", ErrCorrupt)
	}
	return body, nil
}

// places appends the chunks of an entry that overlap the range; one at most if only labels
// are wanted.
func (p *producer) places(r *blockindex.Varints, into []place) ([]place, error) {
	list := blockindex.NewChunks(*r)
	for list.Next() {
		c := list.At()
		if c.MinMS > p.maxMS {
			break
		}
		if c.MaxMS >= p.minMS {
			into = append(into, place{c.MinMS, c.MaxMS, c.Ref})
			if p.labelsOnly {
				break
			}
		}
	}
	if err := list.Err(); err != nil {
		return into, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return into, nil
}

func (p *producer) matches(lset []byte) bool {
	for _, m := range p.onLabels {
		if !m.Matches(valueOf(lset, m.Name)) {
			return false
		}
	}
	return true
}

// valueOf returns the value of a label; "" if the set does not have it.
func valueOf(lset []byte, name string) string {
	for len(lset) > 0 {
		n, value, rest, err := labelenc.Next(lset)
		if err != nil {
			return ""
		}
		if string(n) == name {
			return string(value)
		}
		lset = rest
	}
	return ""
}

func (b *block) segment(number uint64) (*pages.Object, error) {
	if number >= uint64(len(b.segments)) || b.segments[number] == nil {
		return nil, fmt.Errorf("%w: there is no segment %d", ErrCorrupt, number+1)
	}
	return b.segments[number], nil
}
