package promjson

import (
	"bytes"
	"fmt"
	"io"
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
			g := NewSteps(benchStart, benchStep, benchSteps)
			buf := make([]byte, 0, 128<<10)
			size := 0
			done := reportCPU(b, len(matrix)*benchSteps, "cpu-ns/sample")
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
			done()
		})
	}
}

// benchResponse is a matrix of n series with the usual steps.
func benchResponse(n, from, steps int) []byte {
	r := rand.New(rand.NewPCG(1, 2))
	values := make([]float64, benchSteps)
	dst := []byte(`{"status":"success","data":{"resultType":"matrix","result":[`)
	for i := range n {
		if i > 0 {
			dst = append(dst, ',')
		}
		for j := range values {
			values[j] = math.Round(r.Float64()*1e15) / 1e12
		}
		dst = fmt.Appendf(dst, `{"metric":{"__name__":"http_requests_total","code":"200","handler":"/api/v1/query_range","instance":"10.0.0.1:9090","job":"prometheus","method":"get","pod":"prometheus-%06d"},"values":[`, i)
		var points []Point
		for j := from; j < from+steps; j++ {
			points = append(points, Point{benchStart + int64(j)*benchStep, values[j]})
		}
		dst = AppendPoints(dst, nil, points)
		dst = append(dst, "]}"...)
	}
	return append(dst, "]}}"...)
}

func BenchmarkScan(b *testing.B) {
	const series = 11000
	src := benchResponse(series, 0, benchSteps)
	run := func(b *testing.B, s *Scanner, reset func()) {
		b.ReportAllocs()
		done := reportCPU(b, series*benchSteps, "cpu-ns/sample")
		for b.Loop() {
			reset()
			n, size := 0, 0
			for s.Next() {
				n++
				for p := s.NextValues(); p != nil; p = s.NextValues() {
					size += len(p)
				}
			}
			if s.Err() != nil || n != series {
				b.Fatal(n, s.Err())
			}
		}
		done()
	}
	b.Run("memcpy", func(b *testing.B) {
		dst := make([]byte, len(src))
		done := reportCPU(b, series*benchSteps, "cpu-ns/sample")
		for b.Loop() {
			copy(dst, src)
		}
		done()
	})
	b.Run("bytes", func(b *testing.B) {
		s := NewScanner(nil, Options{})
		run(b, s, func() { s.ResetBytes(src) })
	})
	for _, size := range []int{64 << 10, 1 << 20} {
		b.Run(fmt.Sprintf("reader/%dKiB", size>>10), func(b *testing.B) {
			s, r := NewScanner(nil, Options{BufferBytes: size}), bytes.NewReader(src)
			run(b, s, func() { r.Reset(src); s.Reset(r) })
		})
	}
}

func BenchmarkSplice(b *testing.B) {
	const series = 11000
	whole := benchResponse(series, 0, benchSteps)
	halves := [][]byte{benchResponse(series, 0, 81), benchResponse(series, 81, 80)}
	run := func(b *testing.B, size int) {
		var sp Splicer
		var got bytes.Buffer
		inputs := []*bytes.Reader{bytes.NewReader(nil), bytes.NewReader(nil)}
		parts := []*Scanner{NewScanner(nil, Options{BufferBytes: size}), NewScanner(nil, Options{BufferBytes: size})}
		splice := func(w io.Writer) {
			for i, half := range halves {
				if size == 0 {
					parts[i].ResetBytes(half)
				} else {
					inputs[i].Reset(half)
					parts[i].Reset(inputs[i])
				}
			}
			try(sp.Splice(w, parts...)).must(b)
		}
		if splice(&got); !bytes.Equal(got.Bytes(), whole) {
			b.Fatal("the response differs")
		}
		got = bytes.Buffer{}
		b.ReportAllocs()
		done := reportCPU(b, series*benchSteps, "cpu-ns/sample")
		for b.Loop() {
			splice(io.Discard)
		}
		done()
	}
	b.Run("memcpy", func(b *testing.B) {
		dst := make([]byte, len(whole))
		done := reportCPU(b, series*benchSteps, "cpu-ns/sample")
		for b.Loop() {
			copy(dst, whole)
		}
		done()
	})
	b.Run("bytes", func(b *testing.B) { run(b, 0) })
	b.Run("reader/16KiB", func(b *testing.B) { run(b, 16<<10) })
	b.Run("reader/32KiB", func(b *testing.B) { run(b, 32<<10) })
	b.Run("reader/64KiB", func(b *testing.B) { run(b, 64<<10) })
	b.Run("reader/1024KiB", func(b *testing.B) { run(b, 1<<20) })
}

func BenchmarkLabelString(b *testing.B) {
	labels := []string{"__name__", "http_requests_total", "code", "200", "handler", "/api/v1/query_range", "instance", "10.0.0.1:9090", "job", "prometheus", "method", "get", "pod", "prometheus-0"}
	buf := make([]byte, 0, 1000)
	b.ReportAllocs()
	for b.Loop() {
		buf = buf[:0]
		for _, s := range labels {
			buf = AppendLabelString(buf, s)
		}
	}
}

func BenchmarkScanHistograms(b *testing.B) {
	var buckets []Bucket
	for i := range 40 {
		buckets = append(buckets, Bucket{LeftOpen, math.Pow(1.1, float64(i)), math.Pow(1.1, float64(i+1)), float64(i * i)})
	}
	src := []byte(`{"status":"success","data":{"resultType":"matrix","result":[`)
	for i := range 20 {
		if i > 0 {
			src = append(src, ',')
		}
		src = fmt.Appendf(src, `{"metric":{"pod":"%02d"},"histograms":[`, i)
		for j := range benchSteps {
			if j > 0 {
				src = append(src, ',')
			}
			src = append(AppendTimestamp(append(src, '['), benchStart+int64(j)*benchStep), ',')
			src = append(AppendHistogram(src, 100, 18.4, buckets), ']')
		}
		src = append(src, "]}"...)
	}
	src = append(src, "]}}"...)
	b.SetBytes(int64(len(src)))
	s, r := NewScanner(nil, Options{}), bytes.NewReader(nil)
	for b.Loop() {
		r.Reset(src)
		s.Reset(r)
		for s.Next() {
			for s.NextHistograms() != nil {
			}
		}
		if s.Err() != nil {
			b.Fatal(s.Err())
		}
	}
}
