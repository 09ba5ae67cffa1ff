package promjson

import (
	"bytes"
	"math"
	"math/rand/v2"
	"testing"
)

// plainPoints is AppendPoints in its simplest form.
func plainPoints(dst []byte, points []Point) []byte {
	for i, p := range points {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, '[')
		dst = appendAnyTimestamp(dst, p.T)
		dst = append(dst, ',', '"')
		dst = appendStrconv(dst, p.F)
		dst = append(dst, '"', ']')
	}
	return dst
}

// randomValue is of any class, often the one before.
func randomValue(last float64) float64 {
	switch rand.IntN(9) {
	case 0, 1:
		return last
	case 2:
		return float64(rand.IntN(20000)) - 100
	case 3:
		return float64(rand.Uint64() >> rand.UintN(60))
	case 4:
		return math.Copysign(0, float64(rand.IntN(2))-0.5)
	case 5:
		return math.Float64frombits(rand.Uint64())
	case 6:
		return []float64{math.NaN(), math.Inf(1), math.Inf(-1), 1e21, 1e-7, -math.MaxFloat64, -1.2345678901234567e-6}[rand.IntN(7)]
	case 7:
		return float64(rand.IntN(1000000)) / 1000
	}
	return rand.NormFloat64()
}

func TestAppendPoints_OnAndOffTheStepsAreEncodedAlike(t *testing.T) {
	for range 3000 {
		start := []int64{0, -5000, 1700000000000, 1700000000123, math.MinInt64, math.MaxInt64 - 5000, 999999990000}[rand.IntN(7)]
		step := []int64{-1, 0, 1, 15, 1000, 15000, math.MaxInt64}[rand.IntN(7)]
		g := NewSteps(start, step, rand.IntN(300)-10)
		for range 3 {
			var points []Point
			at, v := start, 1.0
			for range rand.IntN(300) {
				v = randomValue(v)
				points = append(points, Point{at, v})
				switch rand.IntN(30) {
				case 0:
					at += step * rand.Int64N(10) // A gap.
				case 1:
					at += rand.Int64N(20) // Off the grid.
				case 2:
					at = start + step*rand.Int64N(300) // Anywhere, and back in time.
				default:
					at += step
				}
			}
			want := string(plainPoints(nil, points))
			check(t, "points", string(AppendPoints(nil, g, points)), want)
			check(t, "points without a grid", string(AppendPoints(nil, nil, points)), want)
		}
	}
}

func TestSteps_AreBoundedAndReset(t *testing.T) {
	points := make([]Point, 3*maxSteps)
	for i := range points {
		points[i].T = int64(i) * 1000
	}
	g := NewSteps(0, 1000, len(points))
	got := AppendPoints(nil, g, points)
	check(t, "points beyond the limit", string(got), string(plainPoints(nil, points)))
	if len(g.encoded) > maxSteps {
		t.Errorf("%d steps are encoded", len(g.encoded))
	}
	g.Reset(500, 10, 100)
	points = []Point{{500, 1}, {510, 2}, {520, 3}}
	check(t, "points after a reset", string(AppendPoints(nil, g, points)), string(plainPoints(nil, points)))
}

func TestAppendPoints_LeavesDstUntouched(t *testing.T) {
	points := []Point{{1000, 0.5}, {2000, 2}}
	dst := append(make([]byte, 0, 8), "kept:"...)
	check(t, "text", string(AppendPoints(dst, nil, points)), `kept:[1,"0.5"],[2,"2"]`)
	check(t, "prefix", string(dst), "kept:")
}

func TestAppendPoints_DoesNotAllocate(t *testing.T) {
	points := make([]Point, 1000)
	for i := range points {
		points[i] = Point{int64(i) * 15000, randomValue(1)}
	}
	g := NewSteps(0, 15000, len(points))
	buckets := []Bucket{{Closed, -1, 1, 2}, {LeftOpen, 1, 2, 0.5}}
	buf := make([]byte, 0, MaxPointLen*len(points))
	small := make([]byte, 0, 26)
	for name, f := range map[string]func(){
		"points":         func() { AppendPoints(buf, g, points) },
		"off the grid":   func() { AppendPoints(buf, nil, points) },
		"piece by piece": func() { AppendPoints(buf[:0:MaxPointLen*101], g, points[300:400]) },
		"float":          func() { AppendFloat(small, -1.2345678901234567e-6) },
		"time":           func() { AppendTimestamp(small, 1700000000001) },
		"label":          func() { AppendLabelString(buf, "10.0.0.1:9090 \"quoted\"") },
		"string":         func() { AppendString(buf, "<10.0.0.1:9090>") },
		"histogram":      func() { AppendHistogram(buf, 5, 0.1, buckets) },
	} {
		if n := testing.AllocsPerRun(10, f); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

func TestAppendPoints_HundredthsEqualStrconv(t *testing.T) {
	values := []float64{0.01, 0.07, 0.1, -0.5, 1.5, 9.99, 10.01, 99.9, 100.25, 999999.99, 1000000.01, 1234567.89, -999999.99, 0.005, 0.015,
		math.Nextafter(0.07, 1), math.Nextafter(57.34, 0), 0, math.Copysign(0, -1), 3, -3, math.NaN(), math.Inf(1), math.Inf(-1), 1e300, 5e-324}
	for range 200_000 {
		v := float64(rand.Uint64N(1<<(1+rand.UintN(33)))) / 100
		values = append(values, v, -v, math.Nextafter(v, 0), v+rand.Float64()/1e6)
	}
	for i, v := range values {
		// After a value with two decimals, the encoder first tries two decimals for the next value.
		got := AppendPoints(nil, nil, []Point{{0, 1}, {1000, 0.25 + float64(i%3)}, {2000, v}})
		want := `,[2,"` + string(appendStrconv(nil, v)) + `"]`
		if !bytes.HasSuffix(got, []byte(want)) {
			t.Fatalf("%v: got %s, want the end %s", v, got, want)
		}
	}
}
