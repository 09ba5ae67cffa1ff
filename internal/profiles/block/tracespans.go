package block

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"sort"

	"github.com/ferula-io/ferula/internal/profiles"
)

// SpansFile has the spans of traces that samples belong to. A block without such spans does not
// have the file. Scans and merges of profiles do not read it.
const SpansFile = "spans"

const (
	spansMagic     = "ferulaS\x01"
	traceSpanBytes = 32
	traceBytes     = 16
)

// Sections of SpansFile.
const (
	sectionTraceSpans = iota + 1
	sectionTraces
	sectionSpanSamples
	sectionSpansEnd = sectionEnd
)

// TraceSpan is one span of a trace, with its part of the samples of one row.
type TraceSpan struct {
	ID    uint64
	Total int64  // sum of the samples
	At    uint64 // offset of the samples in TraceSpans
	Row   uint32
	Trace uint32 // number of the trace + 1; 0: unknown
}

// TraceSpans are the spans of a source: shared and immutable, valid while the caller has a
// reference to the source.
type TraceSpans struct {
	entries, traces, samples []byte
	sorted                   bool // by ID and row
}

// Len returns the number of spans. A span with samples in several rows counts once for each
// row.
func (s *TraceSpans) Len() int { return len(s.entries) / traceSpanBytes }

// Span returns a span by its position.
func (s *TraceSpans) Span(i int) TraceSpan {
	le, b := binary.LittleEndian, s.entries[traceSpanBytes*i:]
	return TraceSpan{ID: le.Uint64(b), Total: int64(le.Uint64(b[8:])), At: le.Uint64(b[16:]), Row: le.Uint32(b[24:]),
		Trace: le.Uint32(b[28:])}
}

// TraceID returns the trace of a span; zero if it is unknown.
func (s *TraceSpans) TraceID(span TraceSpan) (id profiles.TraceID) {
	if span.Trace > 0 {
		copy(id[:], s.traces[traceBytes*(int(span.Trace)-1):])
	}
	return id
}

// Find calls f with the spans that have one of the IDs or belong to one of the traces, once each.
func (s *TraceSpans) Find(ids []uint64, traces []profiles.TraceID, f func(TraceSpan) error) error {
	wanted := map[uint32]bool{}
	for i := range len(s.traces) / traceBytes {
		if slices.Contains(traces, profiles.TraceID(s.traces[traceBytes*i:])) {
			wanted[uint32(i)+1] = true
		}
	}
	if len(wanted) == 0 && s.sorted {
		return s.search(ids, f)
	}
	byID := make(map[uint64]bool, len(ids))
	for _, id := range ids {
		byID[id] = true
	}
	for i := range s.Len() {
		if span := s.Span(i); byID[span.ID] || wanted[span.Trace] {
			if err := f(span); err != nil {
				return err
			}
		}
	}
	return nil
}

// search is Find for IDs in sorted spans.
func (s *TraceSpans) search(ids []uint64, f func(TraceSpan) error) error {
	for _, id := range slices.Compact(slices.Sorted(slices.Values(ids))) {
		at := sort.Search(s.Len(), func(i int) bool { return s.Span(i).ID >= id })
		for ; at < s.Len() && s.Span(at).ID == id; at++ {
			if err := f(s.Span(at)); err != nil {
				return err
			}
		}
	}
	return nil
}

// Samples appends a span's stacks, ascending, and their values.
func (s *TraceSpans) Samples(span TraceSpan, stacks []uint32, values []int64) ([]uint32, []int64, error) {
	if span.At > uint64(len(s.samples)) {
		return stacks, values, corruptf("samples of span %016x are outside the file", span.ID)
	}
	d := decoder{b: s.samples[span.At:]}
	var last uint64
	for range d.count(2) {
		last += d.uvarint()
		value := d.uvarint()
		if d.err != nil || last > 1<<32-1 || int64(value) < 0 {
			return stacks, values, corruptf("samples of span %016x", span.ID)
		}
		stacks, values = append(stacks, uint32(last)), append(values, int64(value))
	}
	return stacks, values, d.err
}

// TraceSpansBuilder collects spans. Bytes that were added never change, so results of Spans stay valid.
type TraceSpansBuilder struct {
	spans   TraceSpans
	byTrace map[profiles.TraceID]uint32
}

// Bytes estimates the memory.
func (b *TraceSpansBuilder) Bytes() int {
	return cap(b.spans.entries) + cap(b.spans.traces) + cap(b.spans.samples) + 48*len(b.byTrace)
}

// Add adds a row's samples of one span. Stacks ascend. A zero trace is unknown.
func (b *TraceSpansBuilder) Add(id uint64, trace profiles.TraceID, row uint32, stacks []uint32, values []int64) {
	var total int64
	at := len(b.spans.samples)
	samples := binary.AppendUvarint(b.spans.samples, uint64(len(stacks)))
	last := uint32(0)
	for i, stack := range stacks {
		samples = binary.AppendUvarint(binary.AppendUvarint(samples, uint64(stack-last)), uint64(values[i]))
		last, total = stack, AddValues(total, values[i])
	}
	b.spans.samples = samples
	le, e := binary.LittleEndian, b.spans.entries
	e = le.AppendUint64(le.AppendUint64(le.AppendUint64(e, id), uint64(total)), uint64(at))
	b.spans.entries = le.AppendUint32(le.AppendUint32(e, row), b.trace(trace))
}

func (b *TraceSpansBuilder) trace(id profiles.TraceID) uint32 {
	if id == (profiles.TraceID{}) {
		return 0
	}
	n, ok := b.byTrace[id]
	if !ok {
		if b.byTrace == nil {
			b.byTrace = map[profiles.TraceID]uint32{}
		}
		b.spans.traces = append(b.spans.traces, id[:]...)
		n = uint32(len(b.spans.traces) / traceBytes)
		b.byTrace[id] = n
	}
	return n
}

// Spans returns the spans that were added so far; nil if there are none.
func (b *TraceSpansBuilder) Spans() *TraceSpans {
	if len(b.spans.entries) == 0 {
		return nil
	}
	s := b.spans
	return &s
}

func (s *TraceSpans) encode() ([]byte, error) {
	order := make([]int, s.Len())
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int {
		x, y := s.Span(a), s.Span(b)
		return cmp.Or(cmp.Compare(x.ID, y.ID), cmp.Compare(x.Row, y.Row), cmp.Compare(a, b))
	})
	entries := make([]byte, 0, len(s.entries))
	for _, i := range order {
		entries = append(entries, s.entries[traceSpanBytes*i:traceSpanBytes*(i+1)]...)
	}
	file, err := []byte(spansMagic), error(nil)
	for _, section := range []struct {
		kind uint32
		body []byte
	}{{sectionTraceSpans, entries}, {sectionTraces, s.traces}, {sectionSpanSamples, s.samples}, {sectionSpansEnd, nil}} {
		if file, err = appendSection(file, section.kind, plain, section.body); err != nil {
			return nil, err
		}
	}
	return file, nil
}

// decodeTraceSpans decodes SpansFile, which the result aliases.
func decodeTraceSpans(file []byte, rows uint64) (*TraceSpans, error) {
	found, err := sectionsOf(SpansFile, file, spansMagic, sectionSpanSamples)
	if err != nil {
		return nil, err
	}
	s := &TraceSpans{sorted: true}
	for kind, body := range map[uint32]*[]byte{sectionTraceSpans: &s.entries, sectionTraces: &s.traces,
		sectionSpanSamples: &s.samples} {
		section, ok := found[kind]
		if !ok || section.compression != plain {
			return nil, corruptf("%s: section %d is missing", SpansFile, kind)
		}
		if *body, err = section.open(int(kind)); err != nil {
			return nil, fmt.Errorf("%s: %w", SpansFile, err)
		}
	}
	if len(s.entries)%traceSpanBytes != 0 || len(s.traces)%traceBytes != 0 {
		return nil, corruptf("%s: %d bytes of spans, %d of traces", SpansFile, len(s.entries), len(s.traces))
	}
	for i := range s.Len() {
		if span := s.Span(i); uint64(span.Row) >= rows || int(span.Trace) > len(s.traces)/traceBytes ||
			span.At >= uint64(len(s.samples)) || span.Total < 0 {
			return nil, corruptf("%s: span %d refers to row %d, trace %d, samples at %d", SpansFile, i, span.Row,
				span.Trace, span.At)
		}
	}
	return s, nil
}

// SpansBytes returns the size of SpansFile; 0 if there is none.
func (r *Reader) SpansBytes() int64 { return int64(r.meta.SpansBytes) }

// ReadSpansFrom sets the SpansFile of a block that is not on disk.
func (r *Reader) ReadSpansFrom(from io.ReaderAt) { r.remote.spans = from }

// TraceSpans implements Source. The spans of a block on disk stay mapped. Every call for a remote
// block reads its spans again.
func (r *Reader) TraceSpans() (*TraceSpans, error) {
	if r.meta.SpansBytes == 0 {
		return nil, nil
	}
	if r.remote != nil {
		return r.remoteTraceSpans()
	}
	r.spansMu.Lock()
	defer r.spansMu.Unlock()
	if r.traceSpans != nil || r.spansErr != nil {
		return r.traceSpans, r.spansErr
	}
	if r.closed.Load() {
		return nil, errors.New("the block is closed")
	}
	file, err := mapFile(r.dir, SpansFile)
	if err == nil {
		r.spansFile = file
		r.traceSpans, err = decodeTraceSpans(file.Bytes(), r.meta.Rows)
	}
	r.spansErr = err
	return r.traceSpans, err
}

func (r *Reader) remoteTraceSpans() (*TraceSpans, error) {
	if r.remote.spans == nil {
		return nil, fmt.Errorf("%w: %s is not readable", profiles.ErrUnavailable, SpansFile)
	}
	if r.meta.SpansBytes > sectionMax {
		return nil, corruptf("%s has %d bytes", SpansFile, r.meta.SpansBytes)
	}
	file := make([]byte, r.meta.SpansBytes)
	if n, err := r.remote.spans.ReadAt(file, 0); n < len(file) {
		return nil, fmt.Errorf("%w: %s: %w", profiles.ErrUnavailable, SpansFile, err)
	}
	return decodeTraceSpans(file, r.meta.Rows)
}
