package promjson

import (
	"math"
	"math/rand/v2"
	"testing"
)

const (
	benchSteps = 161
	benchStart = 1700000000000
	benchStep  = 15000
)

var benchMetric = []byte(`{"metric":{"__name__":"http_requests_total","code":"200","handler":"/api/v1/query_range","instance":"10.0.0.1:9090","job":"prometheus","method":"get","pod":"prometheus-0"},"values":[`)

func BenchmarkPoints(b *testing.B) {
	for name, f := range map[string]func() float64{
		"15digits": func() float64 { return math.Round(rand.Float64()*1e15) / 1e12 },
		"17digits": func() float64 { return rand.Float64() * 100 },
		"short":    func() float64 { return float64(rand.IntN(10000)) / 100 },
		"constant": func() float64 { return 0.123456789 },
		"ints1000": func() float64 { return float64(rand.IntN(1000)) },
		"ints1e9":  func() float64 { return float64(rand.IntN(1e9)) },
	} {
		matrix := make([][]Point, 1100)
		for i := range matrix {
			for j := range benchSteps {
				matrix[i] = append(matrix[i], Point{benchStart + int64(j)*benchStep, f()})
			}
		}
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			g := NewGrid(benchStart, benchStep, benchSteps)
			buf := make([]byte, 0, 128<<10)
			size := 0
			for b.Loop() {
				for _, points := range matrix {
					buf = append(buf, benchMetric...)
					buf = AppendPoints(buf, g, points)
					buf = append(buf, "]},"...)
					if len(buf) >= 64<<10 {
						size += len(buf)
						buf = buf[:0]
					}
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(matrix)*benchSteps), "ns/sample")
		})
	}
}
