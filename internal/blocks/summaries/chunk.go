package summaries

import (
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
