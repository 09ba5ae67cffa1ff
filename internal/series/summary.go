package series

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"

	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
)

// Summarized is the encoding of a chunk whose samples are not read: its data is a Summary. A querier returns such
// chunks only for SelectOptions.Summaries.
const Summarized = chunkenc.Encoding(0xfe)

// IsSummarized reports whether the data of a chunk is a Summary.
func IsSummarized(c Chunk) bool { return c.Encoding == Summarized }

// Summaries state which chunks of a selection may be Summarized.
type Summaries struct {
	Windows
	// Apart: each summary is of one chunk. Otherwise a querier may return one summary of adjacent chunks, as far as Until
	// allows, and summaries of parts of a chunk.
	Apart bool
	// Rising: samples of which one has a lesser value than the one before must not be Summarized.
	Rising bool
	// Fits reports whether the summary of a chunk is enough where Windows allow it; nil: each one is. It excludes that
	// summaries are joined. It must be safe for concurrent use.
	Fits func(*Summary) bool
	// Keeps: of chunks with such summaries, only those are Summarized that Edges leaves; nil: there are none.
	Keeps  func(*Summary) bool
	LeadMS int64
	// Lasts: the last two samples of each window must not be Summarized. Edges reads them.
	Lasts bool
}

// HasEdges reports whether the querier must call Edges for each series.
func (s *Summaries) HasEdges() bool { return s.Keeps != nil || s.Lasts }

// Joined reports whether a summary may be of several chunks, or of a part of one.
func (s *Summaries) Joined() bool { return s.Fits == nil && !s.Apart }

// Edges reads the chunks at both ends of each run of a series: Kept chunks at most RangeMS apart. The first end has the
// samples of LeadMS, and those until RangeMS after MinMS; the last end has those of LeadMS and RangeMS, and after
// MaxMS. With Lasts it reads instead the chunks before an end of a window, and before a chunk that may have stale
// markers only.
func (s *Summaries) Edges(chunks []Chunk, read func(i int) (Chunk, error)) (err error) {
	for i := 0; i < len(chunks) && s.Lasts; i++ {
		end, more := s.Ends.NotBefore(chunks[i].MaxMS), i+1 < len(chunks)
		if !IsSummarized(chunks[i]) || end > s.Ends.LastMS ||
			more && end >= chunks[i+1].MinMS && IsSummarized(chunks[i+1]) {
			continue
		}
		if chunks[i], err = read(i); err != nil {
			return err
		}
	}
	for i := 0; i < len(chunks); i++ {
		end := i
		for end < len(chunks) && chunks[end].Kept && (end == i || chunks[end].MinMS <= chunks[end-1].MaxMS+s.RangeMS) {
			end++
		}
		if end == i {
			continue
		}
		sinceMS := max(chunks[i].MinMS, s.MinMS+s.RangeMS) + s.LeadMS
		untilMS := min(chunks[end-1].MaxMS, s.MaxMS) - s.RangeMS - s.LeadMS
		for ; i < end; i++ {
			if chunks[i].MinMS >= sinceMS && chunks[i].MaxMS <= untilMS {
				continue
			}
			if chunks[i], err = read(i); err != nil {
				return err
			}
		}
		i-- // the chunk that ended the run may begin another
	}
	return nil
}

// Anywhere are the ends of no window: any chunk may be Summarized.
var Anywhere = Steps{FirstMS: math.MaxInt64, LastMS: math.MaxInt64 - 1, StepMS: 1}

// Windows are where the consumer of a selection uses samples. Times are in ms.
type Windows struct {
	Ends         Steps // of the windows, inclusive
	RangeMS      int64 // length of a window, whose start is exclusive
	MinMS, MaxMS int64 // of the selection, inclusive
	Whole        bool  // a summary is enough for chunks in windows
	Starts       bool  // the start of a window counts, not only its end
	// Singles: with Starts, a summary is also enough of samples of which windows have only the first or only the last.
	Singles bool
}

// Enough reports whether a summary is enough of the samples from minMS to maxMS: no window touches them, each window
// that touches them covers them all, or they are outside the selection's range.
func (w *Windows) Enough(minMS, maxMS int64) bool { return w.EnoughOf(minMS, minMS, maxMS, maxMS) }

// EnoughOf is Enough for samples of which the times of the second and of the last but one are known, too, for Singles.
func (w *Windows) EnoughOf(minMS, secondMS, lateMS, maxMS int64) bool {
	end := w.Ends.NotBefore(minMS)
	if end > w.Ends.LastMS || end-w.RangeMS >= maxMS || maxMS < w.MinMS || minMS > w.MaxMS {
		return true
	}
	if !w.Singles {
		secondMS, lateMS = minMS, maxMS
	} else if end < secondMS { // a window that ends there has the first sample only
		end = w.Ends.NotBefore(secondMS)
	}
	if !w.Whole || end < maxMS && end <= w.Ends.LastMS || minMS < w.MinMS && w.MinMS <= lateMS || maxMS > w.MaxMS {
		return false
	}
	if !w.Starts {
		return true
	}
	start := w.Ends.NotBefore(minMS+w.RangeMS) - w.RangeMS
	return start >= lateMS || start > w.Ends.LastMS-w.RangeMS
}

// Untouched reports whether no window touches a chunk.
func (w *Windows) Untouched(minMS, maxMS int64) bool {
	end := w.Ends.NotBefore(minMS)
	return end > w.Ends.LastMS || end-w.RangeMS >= maxMS
}

// Until returns the first start or end of a window, or end of the selection's range, at or after a time: a summary of
// samples up to the one time may include later samples up to the other.
func (w *Windows) Until(ms int64) int64 {
	edge := int64(math.MaxInt64)
	switch {
	case ms < w.MinMS:
		edge = w.MinMS - 1
	case ms <= w.MaxMS:
		edge = w.MaxMS
	}
	if end := w.Ends.NotBefore(ms); end <= w.Ends.LastMS {
		edge = min(edge, end)
	}
	if w.RangeMS > 0 {
		if start := w.Ends.NotBefore(ms+w.RangeMS) - w.RangeMS; start <= w.Ends.LastMS-w.RangeMS {
			edge = min(edge, start)
		}
	}
	return edge
}

// Summary is what float samples, for example of a chunk, contribute to a window that covers them all. Samples with a
// NaN (a stale marker is one) or with a negative zero have none: there results depend on their order.
type Summary struct {
	Count       int  // samples, at least 1
	Changes     int  // samples that differ from the sample before, the first one excepted
	Falls       bool // a value is less than the value before
	First, Last float64
	Min, Max    float64
	// Gap: no two successive samples are further apart than 1<<Gap ms. It is not in the data of a chunk, nor extended.
	Gap byte
	// The ms from the first sample to the second, and from the last but one to the last. The data of a chunk lacks them.
	Second, Late int64
}

// GapMax is the greatest Summary.Gap.
const GapMax = 62

// GapMS returns a time that is not less than the time between any two successive samples.
func (s *Summary) GapMS() int64 { return 1 << min(s.Gap, GapMax) }

// SummaryOf returns the summary of the samples of a chunk; ok is false if it has none.
func SummaryOf(points []promql.FPoint) (s Summary, ok bool) {
	if len(points) == 0 {
		return s, false
	}
	first := points[0].F
	s = Summary{Count: len(points), First: first, Last: points[len(points)-1].F, Min: first, Max: first}
	before, at, gap := first, points[0].T, int64(0)
	for i, p := range points {
		if math.IsNaN(p.F) || p.F == 0 && math.Signbit(p.F) {
			return s, false
		}
		if p.F != before {
			s.Changes++
		}
		s.Falls = s.Falls || p.F < before
		s.Min, s.Max, before = min(s.Min, p.F), max(s.Max, p.F), p.F
		if s.Late = p.T - at; i == 1 {
			s.Second = s.Late
		}
		gap, at = max(gap, s.Late), p.T
	}
	s.Gap = byte(min(bits.Len64(uint64(max(gap, 1)-1)), GapMax))
	return s, true
}

// Extend adds the summary of later samples. It returns false, and changes nothing, if there are too many samples, or if
// with rising a value falls.
func (s *Summary) Extend(by *Summary, rising bool) bool {
	falls := by.Falls || by.First < s.Last
	if falls && rising || s.Count > math.MaxInt32-by.Count {
		return false
	}
	if by.First != s.Last {
		s.Changes++
	}
	if by.Min < s.Min {
		s.Min = by.Min
	}
	if by.Max > s.Max {
		s.Max = by.Max
	}
	s.Count, s.Changes, s.Falls = s.Count+by.Count, s.Changes+by.Changes, s.Falls || falls
	s.Last, s.Late = by.Last, by.Late
	return true
}

// AppendSummary appends a summary as the data of a Summarized chunk:
//
//	uvarint(count) uvarint(2*changes + falls) first last min max   floats: 8 bytes, little-endian
func AppendSummary(dst []byte, s Summary) []byte {
	dst = binary.AppendUvarint(dst, uint64(s.Count))
	changes := uint64(s.Changes) << 1
	if s.Falls {
		changes |= 1
	}
	dst = binary.AppendUvarint(dst, changes)
	for _, f := range [...]float64{s.First, s.Last, s.Min, s.Max} {
		dst = binary.LittleEndian.AppendUint64(dst, math.Float64bits(f))
	}
	return dst
}

// Summary returns the summary in the data of a Summarized chunk. Its errors are ErrCorrupt.
func (c *Chunk) Summary() (s Summary, err error) {
	count, n := binary.Uvarint(c.Data)
	if n <= 0 || count == 0 || count > math.MaxInt32 {
		return s, fmt.Errorf("%w: summary of a chunk has no number of samples", ErrCorrupt)
	}
	changes, m := binary.Uvarint(c.Data[n:])
	floats := c.Data[n+max(m, 0):]
	if m <= 0 || changes>>1 >= count || len(floats) != 32 {
		return s, fmt.Errorf("%w: summary of a chunk is cut short", ErrCorrupt)
	}
	at := func(i int) float64 { return math.Float64frombits(binary.LittleEndian.Uint64(floats[8*i:])) }
	return Summary{Count: int(count), Changes: int(changes >> 1), Falls: changes&1 == 1,
		First: at(0), Last: at(1), Min: at(2), Max: at(3)}, nil
}
