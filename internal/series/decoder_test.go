package series

import (
	"errors"
	"math/rand/v2"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
)

// histogramChunk encodes histograms of which each has buckets buckets.
func histogramChunk(t testing.TB, enc chunkenc.Encoding, threshold float64, spans []histogram.Span) []byte {
	t.Helper()
	c, err := chunkenc.NewEmptyChunk(enc)
	if err != nil {
		t.Fatal(err)
	}
	app, err := c.Appender()
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, s := range spans {
		n += int(s.Length)
	}
	h := &histogram.Histogram{Schema: 3, ZeroThreshold: threshold, Count: uint64(n), Sum: 1, PositiveSpans: spans, PositiveBuckets: make([]int64, n)}
	for i := range 3 {
		if n > 0 {
			h.PositiveBuckets[0] = int64(i + 1)
		}
		if enc == chunkenc.EncFloatHistogram || enc == chunkenc.EncFloatHistogramST {
			_, _, app, err = app.AppendFloatHistogram(nil, 0, int64(i), h.ToFloat(nil), false)
		} else {
			_, _, app, err = app.AppendHistogram(nil, 0, int64(i), h, false)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return c.Bytes()
}

var histogramEncodings = []chunkenc.Encoding{chunkenc.EncHistogram, chunkenc.EncFloatHistogram, chunkenc.EncHistogramST, chunkenc.EncFloatHistogramST}

func TestDecoder_ReadsTheLayoutAsPrometheusDoes(t *testing.T) {
	for _, enc := range histogramEncodings {
		for _, threshold := range []float64{0, 0.25, 0.3} {
			for _, spans := range [][]histogram.Span{nil, {{Offset: 0, Length: 1}}, {{Offset: -70, Length: 5}, {Offset: 3000, Length: 300}}, {{Offset: 1 << 20, Length: 10_000}}} {
				data, want := histogramChunk(t, enc, threshold, spans), uint64(0)
				for _, s := range spans {
					want += uint64(s.Length)
				}
				if got := bucketsOf(data[3:]); got != want {
					t.Errorf("%s, threshold %v, %v: %d buckets", enc, threshold, spans, got)
				}
				c, err := Chunk{Encoding: enc, Data: data}.Decoder()
				if err != nil {
					t.Fatalf("%s, %v: %v", enc, spans, err)
				}
				n := 0
				it := c.Iterator(nil)
				for it.Next() != chunkenc.ValNone {
					n++
				}
				if n != 3 || it.Err() != nil {
					t.Errorf("%s, %v: %d samples, %v", enc, spans, n, it.Err())
				}
			}
		}
	}
}

// bomb is a chunk whose histograms announce four billion buckets.
func bomb() []byte {
	bits := "00000000" + // threshold
		"0" + // schema
		"10001" + // one span
		"11111110" + strings.Repeat("0", 24) + strings.Repeat("1", 32) + // of 1<<32-1 buckets
		"0" + // at 0
		"0" // no negative ones
	data := []byte{0, 1, 0} // one sample, no flags
	for bits += strings.Repeat("0", 80); len(bits) >= 8; bits = bits[8:] {
		v, _ := strconv.ParseUint(bits[:8], 2, 8)
		data = append(data, byte(v))
	}
	return data
}

func TestDecoder_RefusesHistogramsThatAnnounceMoreBucketsThanBits(t *testing.T) {
	if n := bucketsOf(bomb()[3:]); n != 1<<32-1 {
		t.Fatalf("the bomb has %d buckets", n)
	}
	for _, enc := range histogramEncodings {
		if _, err := (Chunk{Encoding: enc, Data: bomb()}).Decoder(); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", enc, err)
		}
	}
}

func TestDecoder_RefusesWhatHasNoHeader(t *testing.T) {
	for enc := range chunkenc.Encoding(9) {
		for n := range 4 {
			c, err := Chunk{Encoding: enc, Data: make([]byte, n)}.Decoder()
			if err != nil {
				if !errors.Is(err, ErrCorrupt) {
					t.Errorf("%s of %d bytes: %v", enc, n, err)
				}
				continue
			}
			it := c.Iterator(nil)
			for it.Next() != chunkenc.ValNone {
			}
		}
	}
}

func TestDecoder_ArbitraryChunksAllocateLittle(t *testing.T) {
	const limitBytes = 64 << 10
	source := rand.New(rand.NewPCG(1, 2))
	var before, after runtime.MemStats
	for range 3000 {
		data := make([]byte, 3+source.IntN(60))
		for i := range data {
			data[i] = byte(source.Uint32() | source.Uint32())
		}
		for _, enc := range histogramEncodings {
			runtime.ReadMemStats(&before)
			if c, err := (Chunk{Encoding: enc, Data: data}).Decoder(); err == nil {
				it := c.Iterator(nil)
				for it.Next() != chunkenc.ValNone {
				}
			}
			runtime.ReadMemStats(&after)
			if n := after.TotalAlloc - before.TotalAlloc; n > limitBytes {
				t.Errorf("%s of %d bytes: decoding %x allocates %d bytes", enc, len(data), data, n)
			}
		}
	}
}
