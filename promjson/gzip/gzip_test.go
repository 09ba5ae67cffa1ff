package gzip

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
)

// matrix is a response with points of one kind, with or without milliseconds in its timestamps.
func matrix(kind string, series, points int, fraction string) []byte {
	b := []byte(`{"status":"success","data":{"resultType":"matrix","result":[`)
	for i := range series {
		if i > 0 {
			b = append(b, ',')
		}
		b = fmt.Appendf(b, `{"metric":{"__name__":"requests","instance":"10.0.%d.%d:8080","job":"job-%d","pod":"pod-%d"},"values":[`, i/256, i%256, i%50, i)
		rng := rand.New(rand.NewPCG(1, uint64(i)))
		last, scale := float64(rng.IntN(100_000)), math.Pow10(7+rng.IntN(9))
		first := true
		for j := range points {
			if kind == "gaps" && rng.IntN(10) == 0 {
				continue
			}
			if !first {
				b = append(b, ',')
			}
			first = false
			b = append(b, '[')
			b = strconv.AppendInt(b, 1_700_000_000+int64(j)*180, 10)
			b = append(b, fraction...)
			b = append(b, `,"`...)
			switch kind {
			case "floats", "gaps":
				last = float64((1e13+rng.Int64N(9e13))*10+1+rng.Int64N(9)) / scale
			case "decimals":
				last = math.Round(last*100+float64(rng.IntN(201)-100)) / 100
			case "integers":
				last = float64(rng.IntN(1000))
			case "counters":
				last += float64(rng.IntN(100))
			case "constants":
				last = float64(i % 3)
			}
			b = strconv.AppendFloat(b, last, 'f', -1, 64)
			b = append(b, `"]`...)
		}
		b = append(b, `]}`...)
	}
	return append(b, `]}}`...)
}

var kinds = []string{"floats", "gaps", "decimals", "integers", "counters", "constants"}

// others are inputs that are not matrices.
func others() map[string][]byte {
	rng := rand.New(rand.NewPCG(7, 7))
	random := make([]byte, 300_000)
	for i := range random {
		random[i] = byte(rng.Uint32())
	}
	histograms := strings.Repeat(`[1700000000,{"count":"5","sum":"18.4","buckets":[[3,"-0.001","0.001","5"]]}],`, 3000)
	vector := []byte(`{"status":"success","data":{"resultType":"vector","result":[`)
	for i := range 5000 {
		vector = fmt.Appendf(vector, `{"metric":{"__name__":"up","instance":"10.0.%d.%d:9100"},"value":[1700000000.123,"%d"]},`, i/256, i%256, i&1)
	}
	return map[string][]byte{
		"nothing":            nil,
		"a byte":             {'a'},
		"one byte often":     bytes.Repeat([]byte{'a'}, 400_000),
		"random":             random,
		"zeros and random":   append(make([]byte, 200_000), random...),
		"histograms":         []byte(`{"values":[[` + histograms[1:]),
		"a vector":           vector,
		"only quotes":        bytes.Repeat([]byte(`"`), 200_000),
		"only brackets":      bytes.Repeat([]byte(`[`), 200_000),
		"points without end": []byte(`[[` + strings.Repeat(`1,"1"],[`, 50_000)),
		"long values":        []byte(`[[1,"1"],[2,"` + strings.Repeat("1", 100_000) + `"],[3,"1"]]`),
		"UTF-8":              []byte(strings.Repeat(`{"metric":{"ü":"日本語"},"values":[[1,"1"],[2,"1"]]},`, 5000)),
	}
}

// compress writes data in pieces of the given sizes, in turn.
func compress(t testing.TB, z *Writer, data []byte, flush bool, pieces ...int) []byte {
	t.Helper()
	var out bytes.Buffer
	z.Reset(&out)
	for i := 0; len(data) > 0; i++ {
		n := len(data)
		if len(pieces) > 0 {
			n = min(n, max(1, pieces[i%len(pieces)]))
		}
		if written, err := z.Write(data[:n]); written != n || err != nil {
			t.Fatalf("%d of %d written: %v", written, n, err)
		}
		data = data[n:]
		if flush {
			if err := z.Flush(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func decompress(t testing.TB, zipped []byte) []byte {
	t.Helper()
	r, err := gzip.NewReader(bytes.NewReader(zipped))
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestWriter_EveryInputRoundTrips(t *testing.T) {
	inputs := others()
	for _, kind := range kinds {
		inputs[kind] = matrix(kind, 150, 161, "")
		inputs[kind+", long"] = matrix(kind, 12, 3000, ".123")
		inputs[kind+", one point"] = matrix(kind, 3000, 1, ".500")
	}
	z := NewWriter(nil) // one for all: nothing of a stream shows in the next
	for name, data := range inputs {
		for _, pieces := range [][]int{nil, {256 << 10}, {1000, 7, 70_000}, {dataBytes + windowBytes}, {dataBytes}} {
			if got := decompress(t, compress(t, z, data, false, pieces...)); !bytes.Equal(got, data) {
				t.Errorf("%s in pieces of %v: other bytes", name, pieces)
			}
		}
		if got := decompress(t, compress(t, z, data, true, 10_007)); !bytes.Equal(got, data) {
			t.Errorf("%s, flushed: other bytes", name)
		}
	}
}

func TestWriter_IsNoLargerThanTheStandardLibrary(t *testing.T) {
	z := NewWriter(nil)
	for _, kind := range kinds {
		for _, shape := range []struct {
			series, points int
			fraction       string
		}{{1000, 161, ""}, {60, 1500, ".123"}, {3000, 10, ".123"}, {5000, 1, ""}} {
			data := matrix(kind, shape.series, shape.points, shape.fraction)
			var standard bytes.Buffer
			s := gzip.NewWriter(&standard)
			if _, err := s.Write(data); err != nil || s.Close() != nil {
				t.Fatal(err)
			}
			own := compress(t, z, data, false)
			ratio := float64(len(own)) / float64(standard.Len())
			t.Logf("%s, %d x %d: %d bytes, %d of the standard library's default level: %.3f", kind, shape.series, shape.points, len(own), standard.Len(), ratio)
			most := 1.05
			if kind == "constants" && shape.points <= 10 {
				most = 1.35 // of what is small in any case
			}
			if ratio > most {
				t.Errorf("%s, %d x %d: %d bytes, the standard library has %d", kind, shape.series, shape.points, len(own), standard.Len())
			}
		}
	}
}

// A block may end within a point. The next one begins with that point and is not searched as text.
func TestFinder_PointsContinueInTheNextBlock(t *testing.T) {
	data := matrix("counters", 1, 200, "")
	buf := append(bytes.Clone(data), make([]byte, slackBytes)...)
	for end := 1000; end < 1100; end++ {
		var f finder
		f.reset()
		next := f.run(buf, 0, end, false)
		if !f.inPoints || next > end || end-next > 2*tailBytes {
			t.Fatalf("a block of %d bytes: %d were taken, within points: %v", end, next, f.inPoints)
		}
	}
}

func TestWriter_IncompressibleInputGrowsByFewBytes(t *testing.T) {
	data := others()["random"]
	if n := len(compress(t, NewWriter(nil), data, false)); n > len(data)+len(data)/1000+64 {
		t.Errorf("%d bytes of %d", n, len(data))
	}
}

func TestWriter_FlushedBytesCanBeRead(t *testing.T) {
	var out bytes.Buffer
	z := NewWriter(&out)
	sent := 0
	data := matrix("floats", 20, 100, "")
	for _, n := range []int{1, 100, 20_000, 0, 3} {
		if _, err := z.Write(data[sent : sent+n]); err != nil {
			t.Fatal(err)
		}
		sent += n
		if err := z.Flush(); err != nil {
			t.Fatal(err)
		}
		r, err := gzip.NewReader(bytes.NewReader(out.Bytes()))
		if err != nil {
			t.Fatal(err)
		}
		got := make([]byte, sent)
		if _, err := io.ReadFull(r, got); err != nil || !bytes.Equal(got, data[:sent]) {
			t.Fatalf("%d bytes written and flushed: %v", sent, err)
		}
	}
}

// failing is a destination that fails after some bytes.
type failing struct{ after int }

var errDestination = errors.New("destination failed")

func (f *failing) Write(p []byte) (int, error) {
	if f.after -= len(p); f.after < 0 {
		return 0, errDestination
	}
	return len(p), nil
}

// short is a destination that writes half of each piece, without an error.
type short struct{}

func (short) Write(p []byte) (int, error) { return len(p) / 2, nil }

func TestWriter_ErrorOfTheDestinationStays(t *testing.T) {
	data := others()["random"]
	z := NewWriter(&failing{after: 100_000})
	_, err := z.Write(data)
	if !errors.Is(err, errDestination) {
		t.Fatalf("Write: %v", err)
	}
	if _, err := z.Write([]byte("x")); !errors.Is(err, errDestination) {
		t.Errorf("second Write: %v", err)
	}
	if err := z.Flush(); !errors.Is(err, errDestination) {
		t.Errorf("Flush: %v", err)
	}
	if err := z.Close(); !errors.Is(err, errDestination) {
		t.Errorf("Close: %v", err)
	}
	z.Reset(short{})
	if _, err := z.Write(data); !errors.Is(err, io.ErrShortWrite) {
		t.Errorf("short write: %v", err)
	}
}

func TestWriter_WriteAfterCloseFails(t *testing.T) {
	var out bytes.Buffer
	z := NewWriter(&out)
	if err := errors.Join(z.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	if n := out.Len(); n != 20 || len(decompress(t, out.Bytes())) != 0 {
		t.Errorf("an empty stream of %d bytes", n)
	}
	if _, err := z.Write([]byte("x")); !errors.Is(err, errClosed) {
		t.Errorf("Write after Close: %v", err)
	}
}

func TestWriter_DoesNotAllocateOnceWarm(t *testing.T) {
	data := matrix("floats", 200, 161, "")
	z := NewWriter(io.Discard)
	if n := testing.AllocsPerRun(5, func() {
		z.Reset(io.Discard)
		_, _ = z.Write(data)
		_ = z.Close()
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestHuffman_CodesAreCompleteAndWithinTheLimit(t *testing.T) {
	var h huffman
	rng := rand.New(rand.NewPCG(3, 3))
	for round := range 3000 {
		limit := []int{7, 15}[round&1]
		counts := make([]uint32, 1+rng.IntN(map[int]int{7: 19, 15: symbolsMax}[limit]))
		used := 0
		grow := 1.0
		for i := range counts {
			if rng.IntN(3) > 0 {
				counts[i] = uint32(min(grow, 1<<30))
				grow *= 1 + rng.Float64() // up to Fibonacci-like counts, which have the longest codes
				used++
			}
		}
		lengths := make([]uint8, len(counts))
		h.limited(lengths, counts, limit)
		room := 0
		for i, l := range lengths {
			if int(l) > limit || l == 0 && counts[i] > 0 {
				t.Fatalf("symbol %d of count %d has %d bits, limit %d", i, counts[i], l, limit)
			}
			if l > 0 {
				room += 1 << (limit - int(l))
			}
		}
		if complete := room == 1<<limit; !complete && used > 1 {
			t.Fatalf("%d symbols use %d of %d", used, room, 1<<limit)
		}
	}
}

func FuzzWriter(f *testing.F) {
	f.Add(matrix("floats", 3, 20, ".5"), uint16(100), false)
	f.Add(matrix("constants", 5, 20, ""), uint16(9), true)
	for _, data := range others() {
		f.Add(data[:min(len(data), 2000)], uint16(500), false)
	}
	z := NewWriter(nil)
	f.Fuzz(func(t *testing.T, data []byte, piece uint16, flush bool) {
		size := max(int(piece)*16, len(data)/16)
		if got := decompress(t, compress(t, z, data, flush, size)); !bytes.Equal(got, data) {
			t.Fatal("other bytes")
		}
		// Repeated, so that blocks end within and matches reach across.
		long := bytes.Repeat(data, min(20, 1+300_000/(len(data)+1)))
		if got := decompress(t, compress(t, z, long, false, size)); !bytes.Equal(got, long) {
			t.Fatal("other bytes of the repeated input")
		}
	})
}

func BenchmarkWriter(b *testing.B) {
	for _, kind := range kinds {
		for _, shape := range []struct {
			series, points int
		}{{1000, 161}, {100, 1500}, {10_000, 1}} {
			data := matrix(kind, shape.series, shape.points, "")
			b.Run(fmt.Sprintf("%s-%dx%d", kind, shape.series, shape.points), func(b *testing.B) {
				z := NewWriter(io.Discard)
				b.SetBytes(int64(len(data)))
				for b.Loop() {
					z.Reset(io.Discard)
					_, _ = z.Write(data)
					_ = z.Close()
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(shape.series*shape.points), "ns/sample")
			})
		}
	}
}

func ExampleWriter() {
	var out bytes.Buffer
	z := NewWriter(&out)
	_, _ = io.WriteString(z, `{"status":"success","data":{"resultType":"matrix","result":[]}}`)
	_ = z.Close()
	r, _ := gzip.NewReader(&out)
	text, _ := io.ReadAll(r)
	fmt.Println(string(text))
	// Output: {"status":"success","data":{"resultType":"matrix","result":[]}}
}

// Characters that have no short code in pairs, at every place among eight literals.
func TestCoder_RareCharactersAmongDigitsRoundTrip(t *testing.T) {
	z := NewWriter(nil)
	for _, rare := range []string{"+", "-", "*", "/", ",", "x", "\x80", "\xff"} {
		rng := rand.New(rand.NewPCG(3, 3))
		data := []byte(`{"values":[`)
		for i := range 3000 {
			value := strconv.FormatUint(1e16+rng.Uint64N(9e16), 10)
			if i%500 < 20 {
				at := i % 17
				value = value[:at] + rare + value[at+1:]
			}
			data = fmt.Appendf(data, `[%d,"%s"],`, 1_700_000_000+i*180, value)
		}
		data = append(bytes.Replace(data, []byte("["), []byte("[["), 1), "]}"...)
		if got := decompress(t, compress(t, z, data, false)); !bytes.Equal(got, data) {
			t.Errorf("%q: other bytes", rare)
		}
	}
}
