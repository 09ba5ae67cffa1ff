package gateway

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"slices"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/ferula-io/ferula/internal/blocks"
	"github.com/ferula-io/ferula/internal/blocks/pages"
	"github.com/ferula-io/ferula/internal/blocks/summaries"
	"github.com/ferula-io/ferula/internal/series/labelenc"
)

// batch is the decoded index entries of some series of one block. entries[i] has the ends of
// series i in labels, numbers and chunks: there series i+1 begins.
type batch struct {
	labels  []byte
	numbers []uint64 // of each label: symbol number of the name << 32 | symbol number of the value
	chunks  []place
	sums    []byte   // summaries, to which places refer
	refs    []uint32 // of each series
	entries []parts
	last    bool // no series follow
	err     error
}

// parts are the ends of one series in the lists of its batch.
type parts struct{ labels, numbers, chunks int }

// place is the location of a chunk in the bucket.
type place struct {
	minMS, maxMS int64
	ref          uint64 // number of the segment and offset in it; with inSums: offset in batch.sums << 8 | bytes
}

const inSums = 1 << 63

const (
	seriesAlign    = 16
	seriesMin      = 32 // series of the first batch
	seriesMax      = 1024
	labelsBytes    = 128 << 10 // target bytes of the labels of a batch, and of the places of its chunks
	placeBytes     = 24
	entryMax       = 16 << 20
	seriesLabels   = 1 << 20 // limit of the bytes of one series' labels, which may repeat long symbols
	seriesChunks   = 1 << 20 // limit of the chunks of one series
	batchMax       = 4 << 20 // bytes of labels, and of chunks' places, after which a batch takes no further series
	segmentHeader  = 8
	chunkLengthMax = 5
)

func (b *batch) reset() {
	b.labels, b.numbers, b.chunks, b.entries = b.labels[:0], b.numbers[:0], b.chunks[:0], b.entries[:0]
	b.sums, b.refs = b.sums[:0], b.refs[:0]
	b.last, b.err = false, nil
}

// producer reads the batches of one block, in order.
type producer struct {
	block    *block
	header   *header
	postings refs
	// matchers that are applied to the labels of each series; postings has the result of the other matchers
	onLabels   []*labels.Matcher
	minMS      int64
	maxMS      int64
	labelsOnly bool // Request.LabelsOnly
	side       *side
	picker     summaries.Picker // of side
	into       *batch           // of picker
	slot       slot

	reader *pages.Reader
	ahead  window
	refs   []uint32 // series whose entries were fetched
	at     int      // index in refs at which the next batch begins
	ended  bool     // refs has the last series
	spans  []pages.Span
	series int      // limit of the series of the next batch
	last   []uint64 // label numbers of the last series of the batches before; nil: none
}

// fill reads the next batch into b: entries are decoded, and the pages of the chunks are
// requested or cached.
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
	for i, ref := range p.refs[p.at : p.at+n] {
		had := len(b.entries)
		err := p.decode(ctx, ref, b)
		if err == nil && len(b.entries) > had {
			err = p.checkOrder(b)
		}
		if err != nil {
			return fmt.Errorf("series %d: %w", ref, err)
		}
		if len(b.labels) > batchMax || len(b.chunks)*placeBytes+len(b.sums) > batchMax {
			n = i + 1
			break
		}
	}
	if len(b.entries) > 0 {
		p.last = append(p.last[:0], b.seriesNumbers(len(b.entries)-1)...)
	}
	p.at += n
	b.last = p.ended && p.at == len(p.refs)
	p.adapt(len(b.entries), max(len(b.chunks)*placeBytes, len(b.labels))/labelsBytes)
	return nil
}

// seriesNumbers returns the numbers of a series' labels.
func (b *batch) seriesNumbers(i int) []uint64 {
	from := 0
	if i > 0 {
		from = b.entries[i-1].numbers
	}
	return b.numbers[from:b.entries[i].numbers]
}

// checkOrder returns an error unless the last series of a batch sorts after the series before it.
// Symbols are sorted, so symbol numbers sort as the labels do. The merge of blocks relies on this
// order. The error names the block: a client that receives unsorted series could not know which block
// is corrupt.
func (p *producer) checkOrder(b *batch) error {
	n, last := len(b.entries), p.last
	if n > 1 {
		last = b.seriesNumbers(n - 2)
	}
	if last != nil && slices.Compare(last, b.seriesNumbers(n-1)) >= 0 {
		return fmt.Errorf("%w: its labels do not follow the labels of the previous series", ErrCorrupt)
	}
	return nil
}

// adapt sets the limit of the series of the next batch. entries is the number of series of the last
// batch, and times its size divided by labelsBytes, rounded down. If times is 0, the limit doubles, up
// to seriesMax. Otherwise the limit becomes so low that the next batch should have less than labelsBytes.
func (p *producer) adapt(entries, times int) {
	if times >= 1 {
		p.series = max(entries/(times+1), 1)
		return
	}
	p.series = min(2*p.series, seriesMax)
}

// decode appends the entry of a series to b, unless the series has no chunks in the range or
// does not match.
func (p *producer) decode(ctx context.Context, ref uint32, b *batch) error {
	body, err := p.entry(ctx, ref)
	if err != nil {
		return err
	}
	was := parts{len(b.labels), len(b.numbers), len(b.chunks)}
	r := blocks.Varints{Src: body}
	for range r.LabelCount() {
		nameNumber, valueNumber := r.Label()
		name, okName := p.header.symbol(nameNumber)
		value, okValue := p.header.symbol(valueNumber)
		switch before := len(b.numbers); {
		case r.Bad || !okName || !okValue:
			return fmt.Errorf("%w: unknown symbol", ErrCorrupt)
		case len(name) == 1: // its length, which is 0
			return fmt.Errorf("%w: a label has no name", ErrCorrupt)
		case before > was.numbers && b.numbers[before-1]>>32 >= nameNumber:
			return fmt.Errorf("%w: labels are out of order", ErrCorrupt)
		case len(b.labels)-was.labels+len(name)+len(value) > seriesLabels:
			return fmt.Errorf("%w: more than %d bytes of labels", ErrCorrupt, seriesLabels)
		}
		b.labels = labelenc.AppendSymbols(b.labels, name, value)
		b.numbers = append(b.numbers, nameNumber<<32|valueNumber)
	}
	p.into = b
	p.picker.Begin(uint64(ref), false)
	if err = p.places(&r, b); err != nil {
		return err
	}
	if len(b.chunks) == was.chunks || !p.matches(b.labels[was.labels:]) {
		b.labels, b.numbers, b.chunks = b.labels[:was.labels], b.numbers[:was.numbers], b.chunks[:was.chunks]
		return nil
	}
	b.entries = append(b.entries, parts{len(b.labels), len(b.numbers), len(b.chunks)})
	b.refs = append(b.refs, ref)
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
		if src, err = p.reader.Bytes(ctx, p.block.index, off,
			int(min(binary.MaxVarintLen32, p.block.index.Size()-off))); err != nil {
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

// places appends the chunks of an entry that overlap the time range, or their summaries. If only labels are wanted,
// it appends at most one.
func (p *producer) places(r *blocks.Varints, b *batch) error {
	list := blocks.NewChunks(*r)
	for n := 0; list.Next(); n++ {
		if n == seriesChunks {
			return fmt.Errorf("%w: more than %d chunks", ErrCorrupt, seriesChunks)
		}
		c := list.At()
		if c.MaxMS < c.MinMS {
			return fmt.Errorf("%w: a chunk ends before it begins", ErrCorrupt)
		}
		if c.MinMS > p.maxMS {
			break
		}
		if c.MaxMS >= p.minMS && !p.picker.Add(c, n) {
			b.chunks = append(b.chunks, place{c.MinMS, c.MaxMS, c.Ref})
			if p.labelsOnly {
				break
			}
		}
	}
	p.picker.Flush()
	if err := list.Err(); err != nil {
		return fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return nil
}

func (p *producer) matches(lset []byte) bool {
	for _, m := range p.onLabels {
		if !m.Matches(string(labelenc.Value(lset, m.Name))) {
			return false
		}
	}
	return true
}

func (b *block) segment(number uint64) (*pages.Object, error) {
	if number >= uint64(len(b.segments)) || b.segments[number] == nil {
		return nil, fmt.Errorf("%w: there is no segment %d", ErrCorrupt, number+1)
	}
	return b.segments[number], nil
}
