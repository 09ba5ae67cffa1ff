package summaries

import (
	"slices"

	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/tsdb/chunkenc"

	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/series/xor"
)

// Decoder makes summaries of chunks. It reuses a buffer.
type Decoder struct{ points []promql.FPoint }

// Summary returns the summary of a chunk, without samples if there is none: of a chunk of another encoding than XOR,
// and of one whose bytes are not what the index says. Whoever reads that chunk returns the error.
func (d *Decoder) Summary(c series.Chunk) (s series.Summary) {
	if c.Encoding != chunkenc.EncXOR {
		return s
	}
	var err error
	d.points, err = xor.AppendPoints(d.points[:0], c.Data, xor.Ascending)
	if err != nil || len(d.points) == 0 || d.points[0].T != c.MinMS || d.points[len(d.points)-1].T != c.MaxMS {
		return s
	}
	if all, ok := series.SummaryOf(d.points); ok {
		return all
	}
	return s
}

// Cut writes the summaries of a chunk, which is cut at full hours, where windows end. A chunk of more than two hours
// has few samples, and is not cut.
func (d *Decoder) Cut(c series.Chunk, w *Writer) {
	all := d.Summary(c)
	last := part{Summary: all}
	if all.Count > 0 && c.MinMS >= 0 && c.MaxMS-c.MinMS <= 2*hourMS {
		from := 0
		for i := 1; i < len(d.points); i++ {
			if at := hour(d.points[from].T); d.points[i].T > at {
				one, _ := series.SummaryOf(d.points[from:i])
				w.part(part{Summary: one, end: at - d.points[i-1].T, start: d.points[i].T - at}, all.Gap)
				from = i
			}
		}
		last.Summary, _ = series.SummaryOf(d.points[from:])
	}
	w.part(last, all.Gap)
}

// Split returns the summaries of two parts of a chunk: of the samples up to a time, which is before its last sample,
// and of the later ones; and the times at which the first part ends and the second begins. all is the summary of the
// chunk, in which no value falls. Split decodes the first part only. ok is false if the chunk is not what its index or
// its summary says.
func (d *Decoder) Split(c series.Chunk, at int64, all *series.Summary) (
	head, tail series.Summary, ends [2]int64, ok bool) {
	var r xor.Reader
	if c.Encoding != chunkenc.EncXOR || r.Reset(c.Data, xor.Ascending) != nil || r.Samples() != all.Count {
		return head, tail, ends, false
	}
	// First as many samples as there are up to that time if all intervals are equal, and one more; then a few at once.
	share := float64(uint64(at-c.MinMS)) / float64(uint64(c.MaxMS-c.MinMS))
	batch := min(all.Count, 2+int(min(share, 1)*float64(all.Count-1)))
	d.points = d.points[:0]
	for len(d.points) == 0 || d.points[len(d.points)-1].T <= at {
		from := len(d.points)
		d.points = slices.Grow(d.points, batch)[:from+batch]
		n, err := xor.Read(&r, d.points[from:])
		if n == 0 || err != nil {
			return head, tail, ends, false
		}
		d.points, batch = d.points[:from+n], 16
	}
	n, changes, before := 0, 0, all.First
	for ; d.points[n].T <= at; n++ {
		if d.points[n].F != before {
			changes++
		}
		before = d.points[n].F
	}
	if n == 0 || d.points[0].T != c.MinMS {
		return head, tail, ends, false
	}
	next := d.points[n]
	head = series.Summary{Count: n, Changes: changes, First: all.First, Last: before, Min: all.First, Max: before}
	if next.F != before {
		changes++
	}
	tail = series.Summary{Count: all.Count - n, Changes: all.Changes - changes, First: next.F, Last: all.Last, Min: next.F,
		Max: all.Last}
	return head, tail, [2]int64{d.points[n-1].T, next.T}, uint(tail.Changes) < uint(tail.Count)
}
