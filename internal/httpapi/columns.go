package httpapi

import (
	"encoding/binary"
	"math"
	"net/http"
	"slices"

	"github.com/prometheus/prometheus/promql"

	"github.com/ferula-io/ferula/internal/httpbody"
)

// columnsType is the media type of a range query's result as columns: docs/formats/columns.md.
const columnsType = "application/vnd.ferula.columns.v1"

// columnsMagic are the first bytes of a body of columnsType.
const columnsMagic = "FERULAC1"

// Kinds of sections. A section is its kind and the length of its content, 4 bytes each, the content, and zeros up to
// a multiple of 8 bytes. Every number is little-endian.
const (
	sectionGrid   uint32 = iota + 1 // start, step: ms, 8 bytes each | number of steps, zero: 4 bytes each
	sectionSeries                   // some series: appendSeries
	sectionText                     // a piece of the JSON of the response, whose result has no series
	sectionEnd                      // number of series and of samples, 8 bytes each
)

const (
	sectionBytes     = 64 << 10 // a section of series ends after the series with which it reaches this size
	seriesPerSection = 256
	exactMaxMS       = 1 << 53 // a float64 represents timestamps up to this one exactly
)

// matrixColumns is the result of a range query that is written as columns. Its points belong to the engine.
type matrixColumns struct {
	matrix promql.Matrix
	grid   stepGrid
}

// stepGrid is the timestamps of a range query: start, start+step and so on, in ms. The zero stepGrid means an
// instant query.
type stepGrid struct {
	start, step int64
	count       int
}

// columnsOf returns a result as columns. It returns nil if the client does not accept them, or if they cannot
// express the result: native histograms, and samples between the steps.
func columnsOf(r *http.Request, res *promql.Result, grid stepGrid) *matrixColumns {
	m, ok := res.Value.(promql.Matrix)
	if !ok || grid.count == 0 || !acceptsColumns(r.Header.Values("Accept")) || !grid.hold(m) {
		return nil
	}
	return &matrixColumns{m, grid}
}

// acceptsColumns reports whether an Accept header names columnsType, and does not prefer JSON.
func acceptsColumns(accept []string) bool {
	ours := httpbody.WeightOf(accept, columnsType)
	return ours > 0 && ours >= httpbody.WeightOf(accept, jsonType)
}

// hold reports whether m has only float samples, each at a step of the grid and later than the sample before.
func (g stepGrid) hold(m promql.Matrix) bool {
	if g.start < -exactMaxMS || g.start > exactMaxMS || g.step <= 0 || g.step > exactMaxMS {
		return false
	}
	for i := range m {
		if len(m[i].Histograms) > 0 || !g.holdPoints(m[i].Floats) {
			return false
		}
	}
	return true
}

func (g stepGrid) holdPoints(points []promql.FPoint) bool {
	next, end := g.start, g.start+int64(g.count-1)*g.step
	for _, p := range points {
		// Most samples are at the next step, which needs no division.
		if p.T != next && (p.T < next || (p.T-g.start)%g.step != 0) || p.T > end {
			return false
		}
		next = p.T + g.step
	}
	return true
}

// run returns the length of the first run of points: how many are at consecutive steps from the first point on.
// points is not empty, so the length is at least 1.
func (g stepGrid) run(points []promql.FPoint) int {
	last := len(points) - 1
	if points[last].T-points[0].T == int64(last)*g.step {
		return len(points)
	}
	n := 1
	for points[n].T == points[n-1].T+g.step { // ends within points, because not all of them are at consecutive steps
		n++
	}
	return n
}

// begin appends what precedes the text: the grid and all series.
func (c *matrixColumns) begin(s *stream) {
	s.raw(columnsMagic)
	at := s.openSection(sectionGrid)
	s.b = binary.LittleEndian.AppendUint64(s.b, uint64(c.grid.start))
	s.b = binary.LittleEndian.AppendUint64(s.b, uint64(c.grid.step))
	s.b = binary.LittleEndian.AppendUint32(s.b, uint32(c.grid.count))
	s.b = binary.LittleEndian.AppendUint32(s.b, 0)
	s.closeSection(at)
	for m := c.matrix; len(m) > 0; {
		m = m[c.appendSeries(s, m):]
		if !s.flushIfFull() {
			break
		}
	}
	s.text = s.openSection(sectionText)
}

// end appends what follows the text. A body without it is not complete.
func (c *matrixColumns) end(s *stream) {
	samples := 0
	for i := range c.matrix {
		samples += len(c.matrix[i].Floats)
	}
	s.closeSection(s.text)
	s.text = 0
	at := s.openSection(sectionEnd)
	s.b = binary.LittleEndian.AppendUint64(s.b, uint64(len(c.matrix)))
	s.b = binary.LittleEndian.AppendUint64(s.b, uint64(samples))
	s.closeSection(at)
}

// appendSeries appends a section with the first series of m, and returns their number:
//
//	series | runs | samples | bytes of the labels     4 bytes each
//	JSON array of the label sets, padded to a multiple of 8 bytes
//	number of runs of each series                     4 bytes each
//	first step | number of samples of each run        4 bytes each
//	padding to a multiple of 8 bytes
//	samples of each run, in order                     8 bytes each, float64
//
// A run is samples at consecutive steps. A step in no run has no sample.
func (c *matrixColumns) appendSeries(s *stream, m promql.Matrix) int {
	at := s.openSection(sectionSeries)
	s.b = append(s.b, make([]byte, 16)...)
	s.raw("[")
	series, samples := 0, 0
	for ; series < min(len(m), seriesPerSection) && len(s.b)-at+8*samples < sectionBytes; series++ {
		s.comma(series)
		s.labels(m[series].Metric)
		samples += len(m[series].Floats)
	}
	s.raw("]")
	m = m[:series]
	textBytes := len(s.b) - at - 16
	s.pad()
	runs := c.appendRuns(s, m)
	s.pad()
	for i, n := range []int{series, runs, samples, textBytes} {
		binary.LittleEndian.PutUint32(s.b[at+4*i:], uint32(n))
	}
	s.b = slices.Grow(s.b, 8*samples)
	for i := range m {
		for _, p := range m[i].Floats {
			s.b = binary.LittleEndian.AppendUint64(s.b, math.Float64bits(p.F))
		}
	}
	s.closeSection(at)
	return series
}

// appendRuns appends the number of runs of each series, and the runs.
func (c *matrixColumns) appendRuns(s *stream, m promql.Matrix) (runs int) {
	counts := len(s.b)
	s.b = append(s.b, make([]byte, 4*len(m))...)
	for i := range m {
		before := runs
		for points := m[i].Floats; len(points) > 0; runs++ {
			n := c.grid.run(points)
			s.b = binary.LittleEndian.AppendUint32(s.b, uint32((points[0].T-c.grid.start)/c.grid.step))
			s.b = binary.LittleEndian.AppendUint32(s.b, uint32(n))
			points = points[n:]
		}
		binary.LittleEndian.PutUint32(s.b[counts+4*i:], uint32(runs-before))
	}
	return runs
}

// openSection appends the header of a section, and returns the offset of its content in s.b. s.b begins where the
// body or a section begins. So an offset in s.b is a multiple of 8 if the offset in the body is, and pad can count
// in s.b.
func (s *stream) openSection(kind uint32) int {
	s.b = binary.LittleEndian.AppendUint32(s.b, kind)
	s.b = binary.LittleEndian.AppendUint32(s.b, 0)
	return len(s.b)
}

func (s *stream) closeSection(at int) {
	binary.LittleEndian.PutUint32(s.b[at-4:], uint32(len(s.b)-at))
	s.pad()
}

// pad appends zeros up to a multiple of 8 bytes.
func (s *stream) pad() {
	const zeros = "\x00\x00\x00\x00\x00\x00\x00"
	s.raw(zeros[:-len(s.b)&7])
}
