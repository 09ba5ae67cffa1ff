package promjson

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

const (
	benchSteps = 161
	benchStart = 1700000000000
	benchStep  = 15000
)

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
		b.SetBytes(int64(len(src)))
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
	}
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
