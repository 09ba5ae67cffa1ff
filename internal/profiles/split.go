package profiles

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"slices"

	"github.com/ferula-io/ferula/internal/profiles/pprof"
	"github.com/ferula-io/ferula/internal/series/labelenc"
)

// SplitsMax is the maximum number of label sets into which a profile is split by the labels of its samples. A sample
// whose labels would make a further label set loses them: it gets only the labels of the profile.
const SplitsMax = 128

// SampleLabelMax is the maximum size in bytes of a label of a sample, name and value together. Larger labels are
// dropped, because they would become labels of series, whose sizes are limited.
const SampleLabelMax = 16 << 10

// Labels of samples that identify one request. They are never labels of a series.
const (
	SampleProfileID = "profile_id"
	SampleSpanID    = "span_id"
	SampleTraceID   = "trace_id"
)

// Span is a span of a trace. If the ID is zero there is no span. If Trace is zero the trace is unknown.
type Span struct {
	ID    uint64
	Trace TraceID
}

// IDText returns the span's ID in hexadecimal digits; "" if there is no span.
func (s *Span) IDText() string {
	if s.ID == 0 {
		return ""
	}
	return fmt.Sprintf("%016x", s.ID)
}

// TraceText returns the trace's ID in hexadecimal digits; "" if the trace is unknown.
func (s *Span) TraceText() string {
	if s.Trace == (TraceID{}) {
		return ""
	}
	return hex.EncodeToString(s.Trace[:])
}

// Splitter groups the samples of a profile by their text labels. It ignores labels that identify one request, labels
// that begin with two underscores, and the labels in Drop. Its memory is reused.
type Splitter struct {
	Drop map[string]bool // names of further labels to drop; may be shared

	Sets     [][]byte // encoded: labels of the profile and of the samples; valid until the next Split
	Of       []int    // by sample: index in Sets; empty if the samples have no labels
	Spans    []Span   // by sample: the span that it belongs to; empty if no sample belongs to a span
	Overflow int      // samples with labels that were dropped because of SplitsMax or SampleLabelMax

	bySet   map[string]int // by encoded labels of a sample
	sorted  []pprof.Label
	encoded []byte
}

// Split groups the samples of p, which was pushed with the labels plain. Every set in Sets has
// samples, except the only set of a profile without samples.
func (s *Splitter) Split(plain []byte, p *pprof.Profile) {
	s.Sets, s.Of, s.Overflow = append(s.Sets[:0], plain), s.Of[:0], 0
	s.Spans = s.Spans[:0]
	if !p.HasLabels() {
		return
	}
	if s.bySet == nil {
		s.bySet = map[string]int{}
	}
	clear(s.bySet)
	for i := range p.Samples {
		large, before := s.encode(p, p.Labels(&p.Samples[i])), s.Overflow
		s.Of = append(s.Of, s.set(plain))
		if large {
			s.Overflow = before + 1
		}
		if span := spanOf(p, p.Labels(&p.Samples[i])); span.ID != 0 {
			s.Spans = append(slices.Grow(s.Spans, len(p.Samples)), make([]Span, i-len(s.Spans))...)
			s.Spans = append(s.Spans, span)
		}
	}
	if n := len(s.Spans); n > 0 {
		s.Spans = append(s.Spans, make([]Span, len(p.Samples)-n)...)
	}
	if len(s.Sets) > 1 && !slices.Contains(s.Of, 0) {
		s.Sets = slices.Delete(s.Sets, 0, 1)
		for i := range s.Of {
			s.Of[i]--
		}
	}
}

// set returns the index in Sets of the labels of the profile with s.encoded. It appends the set if it is new.
func (s *Splitter) set(plain []byte) int {
	if len(s.encoded) == 0 {
		return 0
	}
	if n, ok := s.bySet[string(s.encoded)]; ok {
		return n
	}
	if len(s.Sets) >= SplitsMax {
		s.Overflow++
		return 0
	}
	n := 0
	merged, err := labelenc.AppendMerged(nil, plain, s.encoded)
	if err == nil && !bytes.Equal(merged, plain) {
		n = len(s.Sets)
		s.Sets = append(s.Sets, merged)
	}
	s.bySet[string(s.encoded)] = n
	return n
}

// encode sets s.encoded to the labels of a sample that are stored, sorted by name. It reports whether a label was
// dropped because it is too large.
func (s *Splitter) encode(p *pprof.Profile, labels []pprof.Label) (large bool) {
	s.encoded = s.encoded[:0]
	if len(labels) == 0 {
		return false
	}
	s.sorted = append(s.sorted[:0], labels...)
	slices.SortStableFunc(s.sorted, func(a, b pprof.Label) int {
		return bytes.Compare(p.ValidText(a.Key), p.ValidText(b.Key))
	})
	last := ""
	for _, l := range s.sorted {
		name, value := p.ValidText(l.Key), p.ValidText(l.Text)
		switch {
		case len(name) == 0 || len(value) == 0 || string(name) == last || bytes.HasPrefix(name, []byte("__")) ||
			s.Drop[string(name)]:
			continue
		case string(name) == SampleProfileID || string(name) == SampleSpanID || string(name) == SampleTraceID:
			continue
		case len(name)+len(value) > SampleLabelMax:
			large = true
			continue
		}
		last = string(name)
		s.encoded = labelenc.AppendLabel(s.encoded, last, string(value))
	}
	return large
}

// spanOf returns the span that the labels of a sample name. Older SDKs name the label of the span's ID profile_id.
func spanOf(p *pprof.Profile, labels []pprof.Label) (span Span) {
	for _, l := range labels {
		name, value := p.Text(l.Key), p.Text(l.Text)
		switch {
		case string(name) == SampleTraceID:
			span.Trace, _ = ParseTraceID(string(value)) // an invalid one is unknown
		case string(name) == SampleSpanID, string(name) == SampleProfileID && span.ID == 0:
			if id, err := ParseSpanID(string(value)); err == nil {
				span.ID = id
			}
		}
	}
	return span
}
