package gateway

import (
	"testing"

	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

// BenchmarkSelect reads all series of a metric in four blocks, cold (a new page cache) and
// warm.
func BenchmarkSelect(b *testing.B) {
	bucket, dir := newBucket(b)
	for i := range int64(4) {
		writeBlock(b, dir, 2*i*hourMS, 2*(i+1)*hourMS, 500, map[string]string{"cluster": "eu", "replica": "a"})
	}
	r := storeapi.SeriesRequest{MaxMS: 8 * hourMS, Matchers: match(b, "__name__=requests_total")}
	read := func(s *Store) {
		selection, err := s.Select(b.Context(), r)
		if err != nil {
			b.Fatal(err)
		}
		defer selection.Close()
		n := 0
		for selection.Next() {
			n++
		}
		if n != 500 || selection.Err() != nil {
			b.Fatal(n, selection.Err())
		}
	}
	b.Run("cold", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			b.StopTimer()
			s := openStore(b, bucket, Options{CacheBytes: 64 << 20})
			b.StartTimer()
			read(s)
		}
	})
	b.Run("warm", func(b *testing.B) {
		s := openStore(b, bucket, Options{CacheBytes: 64 << 20})
		b.ReportAllocs()
		for b.Loop() {
			read(s)
		}
	})
}
