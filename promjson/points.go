package promjson

// Point is one float sample: T in milliseconds since the epoch, and its value.
type Point struct {
	T int64
	F float64
}

// PointLike is any struct with the fields of Point, so that slices of another
// package's points (promql.FPoint, say) are encoded as they are.
type PointLike interface {
	~struct {
		T int64
		F float64
	}
}

// Grid holds what the series of one range query share: the times start,
// start+step, ... of its steps. A caller keeps one Grid through a whole matrix.
// The zero Grid has no times. A Grid is not safe for concurrent use.
type Grid struct {
	start, step int64
	count       int
}

// NewGrid returns the grid of count times from startMS in steps of stepMS.
func NewGrid(startMS, stepMS int64, count int) *Grid {
	g := new(Grid)
	g.Reset(startMS, stepMS, count)
	return g
}

// Reset gives g other times and keeps its memory.
func (g *Grid) Reset(startMS, stepMS int64, count int) {
	*g = Grid{start: startMS, step: stepMS, count: count}
}

// AppendPoints appends points as [t,"v"],[t,"v"] with commas between them, that
// is the inside of a "values" array. Times on the grid are cheap, others are
// right too; g may be nil. A long series can be encoded piece by piece so that
// the caller can write dst out in between: he puts the comma between pieces.
func AppendPoints[P PointLike](dst []byte, g *Grid, points []P) []byte {
	for i := range points {
		p := Point(points[i])
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, '[')
		dst = AppendTimestamp(dst, p.T)
		dst = append(dst, ',', '"')
		dst = AppendFloat(dst, p.F)
		dst = append(dst, '"', ']')
	}
	return dst
}
