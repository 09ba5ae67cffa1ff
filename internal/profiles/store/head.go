package store

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strconv"
	"sync"

	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/block"
	"github.com/ferula-io/ferula/internal/profiles/pprof"
	"github.com/ferula-io/ferula/internal/series/labelenc"
)

const (
	arenaChunkMin = 16 << 10
	arenaChunk    = 1 << 20
)

// head has the profiles that are in the log and not in a block yet. One goroutine appends.
// Appended data never changes, so a reader copies the slice headers under the lock and reads
// the data without it.
type head struct {
	mu      sync.RWMutex
	drop    map[string]bool
	symbols *block.Builder
	types   []profiles.Type
	ofTypes [][]byte // by type: its labels
	series  []block.Series
	bySet   map[string]uint32 // series by Series.Labels
	byType  map[profiles.Type]uint32

	seriesCol, timeCol, valueCol, profileCol []byte
	idCol                                    []byte
	at                                       []uint64 // by row: position of its samples in chunks; see store
	// by row: number of the previous row of the same profile, plus 1; 0: none
	previous     []uint32
	chunks       [][]byte // arena of encoded samples
	last         map[block.Key]lastRow
	spans        block.TraceSpansBuilder
	shared       []block.Key // profiles whose rows arrived in several pushes
	isShared     map[block.Key]bool
	splits       bool // a profile has several rows of a type; see block.Span.MultiRow
	minNS, maxNS int64
	bytes        int
	spansDropped int   // number of spans beyond spansMax; used by the writer only
	charged      int64 // bytes charged to the budget; used by the writer only

	*scratch // set while a profile is applied
}

// scratch is the working memory of apply. Heads share a pool of them.
type scratch struct {
	lineFrame []uint32 // by line of the profile: its frame in the head + 1
	texts     []uint32 // by string of the profile: its number in the head + 1
	locFrame  []uint32 // by location without lines: its frame in the head + 1
	pairs     []pair
	nodes     []uint32 // by sample of the profile: node of its stack in the head
	// samples of one label set, sorted by stack: its node in the upper 32 bits, number of the sample in the lower
	order     []uint64
	refs      []uint32 // by label set and sample type of the profile: series in the head + 1; 0: no row
	stored    []bool   // by series in the head: the profile has a row of this series
	frames    []uint32 // of a stack, root first
	used      []uint32 // by location of the profile: 1 if a stack has the location
	split     profiles.Splitter
	spanOrder []uint32
	sorter    sampleSorter
	encoded   []byte
	seriesKey []byte
}

var scratches = sync.Pool{New: func() any { return &scratch{} }}

// scratchMax is the number of elements up to which a slice is reused.
const scratchMax = 256 << 10

func (s *scratch) release() {
	if max(cap(s.lineFrame), cap(s.texts), cap(s.locFrame), cap(s.pairs), cap(s.nodes), cap(s.order), cap(s.refs),
		cap(s.stored)/4, cap(s.encoded)) <= scratchMax {
		scratches.Put(s)
	}
}

// lastRow is the last row of a profile, and the profile's number.
type lastRow struct{ row, profile uint32 }

type pair struct {
	stack uint32
	value int64
}

// newHead returns a head that does not store the labels of samples in drop.
func newHead(drop map[string]bool) *head {
	return &head{
		drop:    drop,
		symbols: block.NewBuilder(), bySet: map[string]uint32{}, byType: map[profiles.Type]uint32{},
		last: map[block.Key]lastRow{}, isShared: map[block.Key]bool{}, minNS: math.MaxInt64, maxNS: math.MinInt64,
	}
}

func (h *head) rows() int { return len(h.at) }

// count returns the number of rows. The caller does not hold the lock.
func (h *head) count() int {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return len(h.at)
}

// size estimates the memory of the head in bytes.
func (h *head) size() int {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return h.bytes + h.symbols.Bytes() + h.spans.Bytes()
}

// seal frees the tables that only apply uses, before the head is written as a block. The tables take more memory
// than the symbols, and writing a block needs memory, too. Nothing may be applied to a sealed head.
func (h *head) seal() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.symbols.Seal()
	h.bySet, h.byType, h.isShared = nil, nil, nil
}

// apply adds the rows of a profile that do not exist yet. older looks for rows of the profile outside of this head:
// in blocks, and in the head that is being written as a block. older calls row with the labels of each row that it
// finds, and reports whether it has found any.
func (h *head) apply(p *profiles.RawProfile, timeNS int64,
	older func(key block.Key, row func(labels []byte)) (profile bool)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	decoded := p.Profile
	h.scratch = scratches.Get().(*scratch)
	defer func() {
		h.release()
		h.scratch = nil
	}()
	h.resolveNodes(decoded)
	h.split.Drop = h.drop
	h.split.Split(p.Labels, decoded)
	key := block.Key{ID: p.ID, TimeNS: timeNS}
	known, again := h.last[key]
	number := known.profile
	if !again {
		number = uint32(len(h.last))
	}
	h.findRefs(p.Labels, decoded)
	shared, seen := h.findStored(key, older) || again, 0
	for i := range h.split.Sets {
		h.sortSamples(decoded, i)
		for t := range decoded.SampleTypes {
			ref := h.refs[i*len(decoded.SampleTypes)+t] - 1
			if ref == noRow || h.stored[ref] {
				continue
			}
			h.stored[ref] = true
			h.addRow(key, number, ref, h.gather(decoded, t))
			h.addSpans(decoded, i, t)
			seen++
		}
	}
	if seen > len(decoded.SampleTypes) || (again && seen > 0) {
		h.splits = true
	}
	if shared && seen > 0 && !h.isShared[key] {
		h.isShared[key] = true
		h.shared = append(h.shared, key)
		h.bytes += 2 * lastRowBytes
	}
	if seen > 0 {
		h.minNS, h.maxNS = min(h.minNS, timeNS), max(h.maxNS, timeNS)
	}
}

// findRefs finds the series of the rows that a profile may have: one for each label set of samples and each sample
// type of which there are values other than 0.
func (h *head) findRefs(plain []byte, p *pprof.Profile) {
	types := len(p.SampleTypes)
	h.refs = block.Zeros(h.refs, len(h.split.Sets)*types)
	for i := range p.Samples {
		set := 0
		if len(h.split.Sets) > 1 {
			set = h.split.Of[i]
		}
		for t, v := range p.Values(&p.Samples[i]) {
			if v != 0 {
				h.refs[set*types+t] = 1
			}
		}
	}
	for i, some := range h.refs {
		if some != 0 {
			h.refs[i] = h.seriesOf(h.split.Sets[i/types], h.typeOf(plain, p, i%types)) + 1
		}
	}
}

// findStored finds the series of which the profile has rows already, and reports whether older has found rows of the
// profile. It visits each row of the profile once for all series, because a client may send very many rows under one
// ID.
func (h *head) findStored(key block.Key, older func(key block.Key, row func(labels []byte)) (profile bool)) bool {
	h.stored = block.Zeros(h.stored, len(h.series))
	if l, ok := h.last[key]; ok {
		for row := l.row + 1; row != 0; row = h.previous[row-1] {
			h.stored[binary.LittleEndian.Uint32(h.seriesCol[4*(row-1):])] = true
		}
	}
	var byLabels map[string]uint32 // the series that the profile may have
	return older(key, func(labels []byte) {
		if byLabels == nil {
			byLabels = map[string]uint32{}
			for _, ref := range h.refs {
				if ref != 0 {
					byLabels[string(h.series[ref-1].Labels)] = ref - 1
				}
			}
		}
		if ref, ok := byLabels[string(labels)]; ok {
			h.stored[ref] = true
		}
	})
}

func (h *head) addRow(key block.Key, number, ref uint32, value int64) {
	row, previous := uint32(len(h.at)), uint32(0)
	if l, ok := h.last[key]; ok {
		previous = l.row + 1
	} else {
		h.bytes += lastRowBytes
	}
	h.last[key] = lastRow{row, number}
	le := binary.LittleEndian
	h.seriesCol = le.AppendUint32(h.seriesCol, ref)
	h.timeCol = le.AppendUint64(h.timeCol, uint64(key.TimeNS))
	h.valueCol = le.AppendUint64(h.valueCol, uint64(value))
	h.profileCol = le.AppendUint32(h.profileCol, number)
	h.idCol = append(h.idCol, key.ID[:]...)
	h.previous = append(h.previous, previous)
	h.at = append(h.at, h.store(h.encoded))
	h.bytes += rowBytes
}

// Memory of a row without its samples, and of a profile without its rows.
const (
	rowBytes     = 70
	lastRowBytes = 64
)

// store copies a row's samples into the arena. It returns the number of the chunk in the
// upper 32 bits and the offset in the chunk in the lower.
func (h *head) store(b []byte) uint64 {
	last := len(h.chunks) - 1
	if last < 0 || cap(h.chunks[last])-len(h.chunks[last]) < len(b) {
		size := arenaChunkMin
		if last >= 0 {
			size = min(2*cap(h.chunks[last]), arenaChunk)
		}
		size = max(size, len(b))
		h.chunks = append(h.chunks, make([]byte, 0, size))
		h.bytes += size
		last++
	}
	at := len(h.chunks[last])
	h.chunks[last] = append(h.chunks[last], b...)
	return uint64(last)<<32 | uint64(at)
}

// sortSamples sorts the samples of label set h.split.Sets[part] by stack, into h.order. Rows of all sample types use
// this order.
func (h *head) sortSamples(p *pprof.Profile, part int) {
	h.order = h.order[:0]
	for i := range p.Samples {
		if len(h.split.Sets) == 1 || h.split.Of[i] == part {
			h.order = append(h.order, uint64(h.nodes[i])<<32|uint64(i))
		}
	}
	slices.Sort(h.order)
}

// gather sums the samples in h.order by stack, for sample type t. It encodes the sums into h.encoded, sorted by
// stack, without samples of value 0. It returns the total.
func (h *head) gather(p *pprof.Profile, t int) (total int64) {
	h.pairs = h.pairs[:0]
	for _, o := range h.order {
		stack, v := uint32(o>>32), p.Values(&p.Samples[uint32(o)])[t]
		if v == 0 {
			continue
		}
		total = block.AddValues(total, v)
		if n := len(h.pairs); n > 0 && h.pairs[n-1].stack == stack {
			h.pairs[n-1].value = block.AddValues(h.pairs[n-1].value, v)
			continue
		}
		h.pairs = append(h.pairs, pair{stack, v})
	}
	h.encoded = binary.AppendUvarint(h.encoded[:0], uint64(len(h.pairs)))
	var last uint32
	for _, s := range h.pairs {
		h.encoded = binary.AppendUvarint(h.encoded, uint64(s.stack-last))
		h.encoded = binary.AppendUvarint(h.encoded, uint64(s.value))
		last = s.stack
	}
	return total
}

// spansMax is the limit of spans of one row. Further spans are dropped; their samples are
// kept.
const spansMax = 4096

// addSpans adds the trace spans of the last row. The samples of the spans belong to label set
// h.split.Sets[part], with the values of sample type t.
func (h *head) addSpans(p *pprof.Profile, part, t int) {
	spans := h.split.Spans
	if len(spans) == 0 {
		return
	}
	h.spanOrder = h.spanOrder[:0]
	for i := range p.Samples {
		if spans[i].ID != 0 && (len(h.split.Sets) == 1 || h.split.Of[i] == part) && p.Values(&p.Samples[i])[t] != 0 {
			h.spanOrder = append(h.spanOrder, uint32(i))
		}
	}
	slices.SortFunc(h.spanOrder, func(a, b uint32) int {
		x, y := &spans[a], &spans[b]
		return cmp.Or(cmp.Compare(x.ID, y.ID), bytes.Compare(x.Trace[:], y.Trace[:]), cmp.Compare(h.nodes[a], h.nodes[b]))
	})
	row, n := uint32(len(h.at)-1), 0
	for from := 0; from < len(h.spanOrder); n++ {
		span := spans[h.spanOrder[from]]
		stacks, values := h.sorter.stacks[:0], h.sorter.values[:0]
		for ; from < len(h.spanOrder) && spans[h.spanOrder[from]] == span; from++ {
			i := h.spanOrder[from]
			stack, value := h.nodes[i], p.Values(&p.Samples[i])[t]
			if k := len(stacks); k > 0 && stacks[k-1] == stack {
				values[k-1] = block.AddValues(values[k-1], value)
				continue
			}
			stacks, values = append(stacks, stack), append(values, value)
		}
		h.sorter.stacks, h.sorter.values = stacks, values
		if n < spansMax {
			h.spans.Add(span.ID, span.Trace, row, stacks, values)
		} else {
			h.spansDropped++
		}
	}
}

// resolveNodes finds the node of every sample's stack.
func (h *head) resolveNodes(p *pprof.Profile) {
	h.lineFrame = block.Zeros(h.lineFrame, len(p.Lines))
	h.locFrame = block.Zeros(h.locFrame, len(p.Locations))
	h.texts = block.Zeros(h.texts, p.Strings())
	h.nodes = block.Zeros(h.nodes, len(p.Samples))
	h.used = block.Zeros(h.used, len(p.Locations))
	for _, at := range p.Stacks() {
		h.used[at] = 1
	}
	for at := range p.Locations { // in the profile's order, which profiles of one program share
		if l := &p.Locations[at]; h.used[at] != 0 {
			for k := l.From; k < l.To; k++ {
				h.lineFrame[k] = h.frame(p, &p.Lines[k]) + 1
			}
		}
	}
	for i := range p.Samples {
		h.frames = h.frames[:0]
		stack := p.Stack(&p.Samples[i])
		for j := len(stack) - 1; j >= 0; j-- {
			l := &p.Locations[stack[j]]
			if l.From == l.To {
				if h.locFrame[stack[j]] == 0 {
					h.locFrame[stack[j]] = h.unnamed(p, l) + 1
				}
				h.frames = append(h.frames, h.locFrame[stack[j]]-1)
				continue
			}
			for k := l.To; k > l.From; k-- {
				h.frames = append(h.frames, h.lineFrame[k-1]-1)
			}
		}
		h.nodes[i] = h.symbols.Stack(h.frames)
	}
}

// text returns the number in the head of string i of the profile, and caches the number.
func (h *head) text(p *pprof.Profile, i uint32) uint32 {
	if h.texts[i] == 0 {
		n, ok := h.symbols.Next(p.Text(i))
		if !ok {
			n = h.symbols.String(p.ValidText(i))
		}
		h.texts[i] = n + 1
	}
	return h.texts[i] - 1
}

func (h *head) frame(p *pprof.Profile, line *pprof.Line) uint32 {
	f := &p.Functions[line.Function]
	own := block.Function{Name: h.text(p, f.Name), System: h.text(p, f.System), File: h.text(p, f.File),
		StartLine: f.StartLine}
	if own.Name == 0 {
		own.Name = own.System
	}
	return h.symbols.Frame(h.symbols.Function(own), uint32(max(0, min(line.Line, math.MaxInt32))))
}

// unnamed returns the frame of an address without functions.
func (h *head) unnamed(p *pprof.Profile, l *pprof.Location) uint32 {
	var file uint32
	if l.Mapping >= 0 {
		file = h.symbols.String(p.ValidText(p.Mappings[l.Mapping].File))
	}
	name := h.symbols.String(strconv.AppendUint([]byte("0x"), l.Address, 16))
	return h.symbols.Frame(h.symbols.Function(block.Function{Name: name, System: name, File: file}), 0)
}

func (h *head) typeOf(plain []byte, p *pprof.Profile, t int) uint32 {
	st := p.SampleTypes[t]
	key := profiles.Type{
		Name: string(labelenc.Value(plain, profiles.LabelName)), SampleType: string(p.ValidText(st.Type)),
		SampleUnit: string(p.ValidText(st.Unit)),
		PeriodType: string(p.ValidText(p.PeriodType.Type)), PeriodUnit: string(p.ValidText(p.PeriodType.Unit)),
	}
	n, ok := h.byType[key]
	if !ok {
		n = uint32(len(h.types))
		h.byType[key] = n
		h.types, h.ofTypes = append(h.types, key), append(h.ofTypes, block.TypeLabels(key))
	}
	return n
}

func (h *head) seriesOf(plain []byte, t uint32) uint32 {
	h.seriesKey = append(binary.AppendUvarint(h.seriesKey[:0], uint64(t)), plain...)
	if n, ok := h.bySet[string(h.seriesKey)]; ok {
		return n
	}
	n := uint32(len(h.series))
	h.bySet[string(h.seriesKey)] = n
	h.series = append(h.series, block.NewSeries(t, h.ofTypes[t], plain))
	h.bytes += costSeries + costLabels*len(plain) + len(h.ofTypes[t])
	return n
}

// headView is a snapshot of a head.
type headView struct {
	rows         int
	types        []profiles.Type
	series       []block.Series
	cols         block.Columns
	idCol        []byte
	at           []uint64 // this field and the next two are as in head
	previous     []uint32
	chunks       [][]byte
	symbols      block.Symbols
	spans        *block.TraceSpans
	shared       []block.Key
	splits       bool
	minNS, maxNS int64
	rowSpans     [1]block.Span
}

var _ block.Source = (*headView)(nil)

func (h *head) view() *headView {
	h.mu.RLock()
	defer h.mu.RUnlock()
	n := len(h.at)
	v := &headView{
		rows: n, types: h.types, series: h.series, idCol: h.idCol, at: h.at, previous: h.previous,
		chunks:  slices.Clone(h.chunks),
		cols:    block.Columns{N: n, Series: h.seriesCol, Time: h.timeCol, Value: h.valueCol, Profile: h.profileCol},
		symbols: h.symbols.Symbols, spans: h.spans.Spans(), shared: h.shared, splits: h.splits, minNS: h.minNS,
		maxNS: h.maxNS,
	}
	v.rowSpans[0] = block.Span{Type: -1, Hi: n, MultiRow: h.splits}
	return v
}

func (v *headView) Name() string                       { return "head" }
func (v *headView) Bounds() (int64, int64)             { return v.minNS, v.maxNS }
func (v *headView) Rows() int                          { return v.rows }
func (v *headView) Types() []profiles.Type             { return v.types }
func (v *headView) Series() ([]block.Series, error)    { return v.series, nil }
func (v *headView) Spans() ([]block.Span, error)       { return v.rowSpans[:], nil }
func (v *headView) Columns(int) (block.Columns, error) { return v.cols, nil }
func (v *headView) IDs(int) ([]byte, error)            { return v.idCol, nil }
func (v *headView) ID(row int) (profiles.ID, error)    { return v.id(row), nil }
func (v *headView) Shared() []block.Key                { return v.shared }
func (v *headView) Parts() []block.Part                { return []block.Part{block.WholePart()} }
func (v *headView) PartOf(int) (part, end int)         { return 0, v.rows }

// PartSymbols implements block.Source.
func (v *headView) PartSymbols(int) (*block.Symbols, error) { return &v.symbols, nil }

// TraceSpans implements block.Source.
func (v *headView) TraceSpans() (*block.TraceSpans, error) { return v.spans, nil }

// Find implements block.Source.
func (v *headView) Find(id profiles.ID, f func(row int)) error {
	for row := range v.rows {
		if v.id(row) == id {
			f(row)
		}
	}
	return nil
}

func (v *headView) id(row int) profiles.ID { return profiles.ID(v.idCol[16*row:]) }

// batchRows is the number of rows between two checks of the context.
const batchRows = 1024

func (v *headView) Samples(ctx context.Context, rows []int,
	f func(row int, stacks []uint32, values []int64) error) error {
	var stacks []uint32
	var values []int64
	for i, row := range rows {
		if i%batchRows == 0 {
			if err := ctx.Err(); err != nil {
				return err
			}
		}
		b := v.chunks[v.at[row]>>32][uint32(v.at[row]):]
		n, size := binary.Uvarint(b)
		b = b[size:]
		stacks, values = stacks[:0], values[:0]
		var last uint32
		for range n {
			delta, size := binary.Uvarint(b)
			value, size2 := binary.Uvarint(b[size:])
			if size <= 0 || size2 <= 0 {
				return fmt.Errorf("%w: head: samples of row %d", profiles.ErrCorrupt, row)
			}
			b = b[size+size2:]
			last += uint32(delta)
			stacks, values = append(stacks, last), append(values, int64(value))
		}
		if err := f(row, stacks, values); err != nil {
			return err
		}
	}
	return nil
}
