package summaries

import (
	"fmt"
	"math"

	"github.com/ferula-io/ferula/internal/blocks"
	"github.com/ferula-io/ferula/internal/series"
)

// Picker decides which chunks of a block are read as summaries, of one series after the other. Begin begins a series,
// Add takes its chunks in their order, Flush ends it.
type Picker struct {
	Opts         *series.Summaries
	Cursor       *Cursor // nil: there are no summaries, and only Begin and Add are called
	MinMS, MaxMS int64   // a chunk that is not within this range is not summarized
	// Read returns a chunk, of which two summaries are made if a window begins or ends within it; nil: none is. For an
	// error the chunk is not summarized.
	Read func(blocks.Chunk) (series.Chunk, error)
	// Emit gets a summary of one or more chunks, and the times of its samples, before the chunk at which Add returns
	// false, or in Flush.
	Emit func(s *series.Summary, minMS, maxMS int64)
	// Damaged gets the error of a file that must not be used any more.
	Damaged func(error)

	decoder Decoder
	ref     uint64
	state   int // of the current series
	series  Series
	read    int // summaries that were read

	current      series.Summary // not emitted yet; without samples there is none
	minMS, maxMS int64          // of its samples
	untilMS      int64          // later samples up to this time may extend it
}

// The states of a Picker.
const (
	notSought = iota
	absent
	found
)

// Begin begins a series. none: it has no summaries.
func (p *Picker) Begin(ref uint64, none bool) {
	p.ref, p.state, p.read, p.current.Count, p.untilMS = ref, notSought, 0, 0, math.MinInt64
	if none || p.Cursor == nil {
		p.state = absent
	}
}

// AddMany takes the first n of the next chunks, of which the first one is number i, for which it is fast. Add takes the
// others.
func (p *Picker) AddMany(chunks []blocks.Chunk, i int) (n int) {
	if p.state != found || p.read != i {
		return 0
	}
	for n < len(chunks) && chunks[n].MaxMS <= p.untilMS {
		n++
	}
	if n == 0 {
		return 0
	}
	if n = p.series.Extend(&p.current, n); n > 0 {
		p.read, p.maxMS = p.read+n, chunks[n-1].MaxMS
	}
	return n
}

// Add takes the next chunk, number i of the series in the index. If it returns false, the chunk must be read.
func (p *Picker) Add(c blocks.Chunk, i int) bool {
	if p.state == absent && p.current.Count == 0 {
		return false
	}
	if c.MaxMS <= p.untilMS {
		if all := p.find(i); all != nil && p.current.Extend(all, p.Opts.Rising) {
			p.maxMS = c.MaxMS
			return true
		}
	}
	if !p.begins(c, i) {
		p.Flush()
		return false
	}
	return true
}

// begins begins a summary with a chunk, or with the later part of it.
func (p *Picker) begins(c blocks.Chunk, i int) bool {
	enough, joined := p.Opts.Enough(c.MinMS, c.MaxMS), p.Opts.Joined()
	if p.state == absent || c.MinMS < p.MinMS || c.MaxMS > p.MaxMS || !enough && !joined && !p.Opts.Singles {
		return false
	}
	all := p.find(i)
	if all == nil || all.Falls && p.Opts.Rising {
		return false
	}
	if enough {
		p.extend(all, c.MinMS, c.MaxMS)
		return true
	}
	if (p.Opts.Singles || len(p.series.parts) > 0) && p.parts(c) {
		return true
	}
	splitMS := p.Opts.Until(c.MinMS)
	if p.Read == nil || !joined || all.Falls || splitMS >= c.MaxMS || !p.Opts.Enough(c.MinMS, splitMS) ||
		!p.Opts.Enough(splitMS+1, c.MaxMS) {
		return false
	}
	chunk, err := p.Read(c)
	if err != nil {
		return false // the reader of the chunk returns the error
	}
	head, tail, ends, ok := p.decoder.Split(chunk, splitMS, all)
	if ok {
		p.extend(&head, c.MinMS, ends[0])
		p.extend(&tail, ends[1], c.MaxMS)
	}
	return ok
}

// parts begins summaries with a chunk, or with its parts, of which windows have all samples or a single one.
func (p *Picker) parts(c blocks.Chunk) bool {
	parts := p.series.at(c.MinMS, c.MaxMS, !p.Opts.Joined())
	for i := range parts {
		one := &parts[i]
		if !p.Opts.EnoughOf(one.minMS, one.minMS+one.Second, one.maxMS-one.Late, one.maxMS) {
			return false
		}
	}
	for i := range parts {
		one := &parts[i]
		if one.maxMS < p.Opts.MinMS || one.minMS > p.Opts.MaxMS {
			continue
		}
		if p.extend(&one.Summary, one.minMS, one.maxMS); !p.Opts.Enough(one.minMS, one.maxMS) {
			p.untilMS = math.MinInt64 // its last sample must remain the last
		}
	}
	return len(parts) > 0
}

// find returns the summary of chunk i; nil if there is none.
func (p *Picker) find(i int) *series.Summary {
	if p.state == notSought {
		p.state = absent
		list, ok, err := p.Cursor.Seek(p.ref)
		if err != nil {
			p.Damaged(err)
		} else if ok {
			p.state, p.series = found, list
		}
	}
	for p.state == found && p.read <= i {
		if p.read++; !p.series.Next() {
			p.state = absent
			err := p.series.Err()
			if err == nil {
				err = fmt.Errorf("%w: series %d has fewer than %d", ErrCorrupt, p.ref, p.read)
			}
			p.Damaged(err)
		}
	}
	all := p.series.At()
	if p.state != found || all.Count == 0 || p.Opts.Fits != nil && !p.Opts.Fits(all) {
		return nil
	}
	return all
}

// extend adds samples to the current summary, or begins another one with them.
func (p *Picker) extend(by *series.Summary, minMS, maxMS int64) {
	if maxMS <= p.untilMS && p.current.Extend(by, p.Opts.Rising) {
		p.maxMS = maxMS
		return
	}
	p.Flush()
	p.current, p.minMS, p.maxMS = *by, minMS, maxMS
	if p.Opts.Joined() {
		p.untilMS = min(p.Opts.Until(maxMS), p.MaxMS)
	}
}

// Flush emits the current summary.
func (p *Picker) Flush() {
	if p.current.Count > 0 {
		p.Emit(&p.current, p.minMS, p.maxMS)
	}
	p.current.Count, p.untilMS = 0, math.MinInt64
}
