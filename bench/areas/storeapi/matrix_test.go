package storeapi

import (
	"io"
	"math"
	"net"
	"slices"
	"testing"

	"github.com/ferula-io/ferula/bench/area"
	"github.com/ferula-io/ferula/bench/streams"
)

func TestMatrixCells_AreThoseOfTheFoundingBenchmark(t *testing.T) {
	cells := matrixCells()
	for _, samples := range []int{100, 240} {
		for _, series := range []int{100, 1000, 10_000, 100_000} {
			for _, batch := range []int{1, 10, 100, 1000, 10_000} {
				if got := slices.Contains(cells, matrixCell{samples, series, batch}); got != (batch <= series) {
					t.Errorf("%d samples, %d series, batch %d: %v", samples, series, batch, got)
				}
			}
			if !slices.Contains(cells, matrixCell{samples, series, thanosBatch}) {
				t.Errorf("%d samples, %d series: no batch of %d", samples, series, thanosBatch)
			}
		}
	}
}

func TestGeometricMeans_AreOfTheMediansOfAllCells(t *testing.T) {
	b := &bench{out: &area.Outcome{}, sides: []side{{name: thanos}, {name: floor, task: streams.Task{Noop: true}}, {name: ferula}}}
	for i, c := range matrixCells() {
		for _, figure := range matrixFigures {
			for round, factor := range []float64{1, 1, 50} { // the median ignores the third round
				b.out.Recorder.Add(round+1, thanos, figure.what+c.String(), figure.unit, factor*math.Pow(4, float64(i%2)))
				b.out.Recorder.Add(round+1, ferula, figure.what+c.String(), figure.unit, 3*factor)
			}
		}
	}
	if len(matrixCells())%2 != 0 {
		t.Fatal("the cells of the two values are not equally many")
	}
	b.geometricMeans()
	for _, figure := range matrixFigures {
		what := figure.what + meanWhat
		if got := b.out.Recorder.Median(thanos, what); math.Abs(got-2) > 1e-9 {
			t.Errorf("%s: %v of Thanos, want 2", what, got)
		}
		if got := b.out.Recorder.Median(ferula, what); math.Abs(got-3) > 1e-9 {
			t.Errorf("%s: %v of ferula, want 3", what, got)
		}
		if got := b.out.Recorder.Median(floor, what); !math.IsNaN(got) {
			t.Errorf("%s: %v of the floor", what, got)
		}
	}
}

// oneConn is a listener with one connection, which writes at most five bytes.
type oneConn struct {
	net.Listener
	net.Conn
	onWrite func()
}

func (c *oneConn) Accept() (net.Conn, error) { return c, nil }
func (*oneConn) Addr() net.Addr              { return nil }
func (*oneConn) Close() error                { return nil }

func (c *oneConn) Write(p []byte) (int, error) {
	c.onWrite()
	if len(p) > 5 {
		return 5, io.ErrShortWrite
	}
	return len(p), nil
}

// A client that has received the last byte reads the counter, perhaps before Write returns.
func TestCounter_HasTheBytesBeforeTheReaderHasThem(t *testing.T) {
	inner := &oneConn{}
	counter := &streams.Counter{Listener: inner}
	conn, err := counter.Accept()
	if err != nil {
		t.Fatal(err)
	}
	during := int64(0)
	inner.onWrite = func() { during = counter.Bytes.Load() }
	if n, err := conn.Write([]byte("abc")); n != 3 || err != nil || during != 3 || counter.Bytes.Load() != 3 {
		t.Errorf("%d bytes written, %v; counted %d during the write and %d after it, want 3", n, err, during, counter.Bytes.Load())
	}
	if n, err := conn.Write([]byte("abcdefg")); n != 5 || err == nil || counter.Bytes.Load() != 8 {
		t.Errorf("%d bytes written, %v; counted %d in all, want 8", n, err, counter.Bytes.Load())
	}
}
