package storeapi

import (
	"fmt"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"google.golang.org/grpc/mem"

	"github.com/ferula-io/ferula/internal/codec/labelenc"
	pb "github.com/ferula-io/ferula/internal/codec/storepb/thanospb"
	"github.com/ferula-io/ferula/internal/series"
)

// benchSeries are series of nine labels with symbols. Neighbours differ in a few labels.
type benchSeries struct {
	sets    [][]byte
	numbers [][]uint64
	chunks  []series.Chunk
	at      int
}

func newBenchSeries(b *testing.B, n int) *benchSeries {
	s := &benchSeries{chunks: []series.Chunk{xor(b, 1000, 100)}}
	known := map[string]uint64{}
	for i := range n {
		lset := labels.FromStrings("__name__", "container_network_receive_bytes_total", "cluster", "eu-west-1-production", "container", fmt.Sprintf("container-%d", i*10/n),
			"endpoint", "https-metrics", "instance", fmt.Sprintf("10.32.%05d:10250", i%(n/10)), "job", "kubernetes-pods", "namespace", fmt.Sprintf("team-%02d", i%20),
			"node", fmt.Sprintf("ip-10-0-%03d.eu-west-1.compute.internal", i%100), "pod", fmt.Sprintf("service-%03d-abcdef01-%05d", i%250, i%(n/10)))
		s.sets = append(s.sets, labelenc.Append(nil, lset))
		var numbers []uint64
		lset.Range(func(l labels.Label) {
			if _, ok := known[l.Name+l.Value]; !ok {
				known[l.Name+l.Value] = uint64(len(known))
			}
			numbers = append(numbers, known[l.Name+l.Value])
		})
		s.numbers = append(s.numbers, numbers)
	}
	return s
}

func (s *benchSeries) LabelRefs() []uint64 { return s.numbers[s.at] }

// benchSet is a set with symbols.
type benchSet struct {
	series.Set
	*benchSeries
}

// discard frees the messages that are sent to it.
type discard struct {
	memoryStream
	keep bool
}

func (d *discard) SendMsg(m any) error {
	if d.keep {
		return d.memoryStream.SendMsg(m)
	}
	data, err := m.(*outFrame).take()
	data.Free()
	return err
}

func (s *benchSeries) encode(b *testing.B, to *discard, symbols bool) {
	out := newBatchWriter(to, &pb.SeriesRequest{ResponseBatchSize: 1 << 16, Extension: &pb.Extension{Symbols: symbols}}, benchSet{&rowSet{}, s})
	for s.at = range s.sets {
		if err := out.add(s.sets[s.at], s.chunks, nil); err != nil {
			b.Fatal(err)
		}
	}
	if err := out.flush(); err != nil {
		b.Fatal(err)
	}
}

func BenchmarkEncode(b *testing.B) {
	s := newBenchSeries(b, 100_000)
	for _, symbols := range []bool{false, true} {
		b.Run(fmt.Sprintf("symbols=%v", symbols), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				s.encode(b, &discard{}, symbols)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(s.sets)), "ns/series")
		})
	}
}

func BenchmarkDecode(b *testing.B) {
	s := newBenchSeries(b, 100_000)
	for _, symbols := range []bool{false, true} {
		b.Run(fmt.Sprintf("symbols=%v", symbols), func(b *testing.B) {
			to := &discard{keep: true}
			s.encode(b, to, symbols)
			var pieces []mem.BufferSlice
			for _, m := range to.messages {
				pieces = append(pieces, mem.BufferSlice{mem.SliceBuffer(m)})
			}
			codec := Codec()
			b.ReportAllocs()
			for b.Loop() {
				set := &SeriesSet{stream: reader{&memoryStream{pieces: pieces}, codec}, cancel: func() {}}
				n := 0
				for set.Next() {
					n++
				}
				if set.Err() != nil || n != len(s.sets) {
					b.Fatal(n, set.Err())
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(s.sets)), "ns/series")
		})
	}
}
