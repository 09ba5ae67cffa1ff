package summaries

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/tsdb/chunkenc"

	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/series/xor"
)

// memory is a file in memory.
type memory struct {
	bytes []byte
	at    int
}

func (m *memory) Write(p []byte) (int, error) {
	m.bytes = append(m.bytes[:m.at], append(p[:len(p):len(p)], m.bytes[min(len(m.bytes), m.at+len(p)):]...)...)
	m.at += len(p)
	return len(p), nil
}

func (m *memory) Seek(offset int64, whence int) (int64, error) {
	if whence != io.SeekStart {
		return 0, errors.ErrUnsupported
	}
	m.at = int(offset)
	return offset, nil
}

var block = NewBlock([16]byte{1, 2, 3}, 4711, []byte{9, 8, 7, 6}, 100, 200)

// fileOf writes the summaries of series 2, 4, 6 and so on.
func fileOf(t testing.TB, all [][]series.Summary) []byte {
	t.Helper()
	var m memory
	w, err := NewWriter(&m, block)
	if err != nil {
		t.Fatal(err)
	}
	for i, list := range all {
		if err := w.Series(uint64(2*i + 2)); err != nil {
			t.Fatal(err)
		}
		for _, s := range list {
			w.Chunk(s)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if int64(len(m.bytes)) != w.Bytes() {
		t.Fatalf("%d bytes, not %d", len(m.bytes), w.Bytes())
	}
	return m.bytes
}

// shapes are values of series: each returns the next value after v.
var shapes = []func(r *rand.Rand, v float64) float64{
	func(r *rand.Rand, v float64) float64 { return v + float64(r.IntN(3000)) },            // a counter
	func(r *rand.Rand, v float64) float64 { return v },                                    // constant
	func(r *rand.Rand, v float64) float64 { return float64(r.IntN(2)) },                   // up
	func(r *rand.Rand, v float64) float64 { return v + float64(r.IntN(101)-50) },          // a gauge of integers
	func(r *rand.Rand, v float64) float64 { return r.NormFloat64() },                      // of floats
	func(r *rand.Rand, v float64) float64 { return v + r.Float64() },                      // a counter of floats
	func(r *rand.Rand, v float64) float64 { return float64(r.Int64()) },                   // beyond the exact integers
	func(r *rand.Rand, v float64) float64 { return math.Float64frombits(r.Uint64()) },     // anything
	func(r *rand.Rand, v float64) float64 { return math.Inf(r.IntN(2)*2 - 1) },            // infinite
	func(r *rand.Rand, v float64) float64 { return float64(r.Int64N(2<<52) - 1<<52) },     // the greatest exact integers
	func(r *rand.Rand, v float64) float64 { return math.Copysign(0, float64(r.IntN(9))) }, // mostly zero
}

func randomSummaries(r *rand.Rand, chunks int) (list []series.Summary) {
	shape, v := shapes[r.IntN(len(shapes))], float64(r.IntN(1000))
	for range chunks {
		if r.IntN(9) == 0 {
			shape = shapes[r.IntN(len(shapes))]
		}
		n := 120
		if r.IntN(4) == 0 {
			n = r.IntN(121)
		}
		var points []promql.FPoint
		for range n {
			v = shape(r, v)
			points = append(points, promql.FPoint{F: v})
		}
		s, ok := series.SummaryOf(points)
		if !ok {
			s = series.Summary{}
		}
		list = append(list, s)
	}
	return list
}

func equal(a, b series.Summary) bool {
	return bytes.Equal(series.AppendSummary(nil, a), series.AppendSummary(nil, b))
}

func checkSeries(t *testing.T, c *Cursor, ref uint64, want []series.Summary) {
	t.Helper()
	s, ok, err := c.Seek(ref)
	if err != nil {
		t.Fatal(err)
	}
	some := false
	for _, one := range want {
		some = some || one.Count > 0
	}
	if ok != some {
		t.Fatalf("series %d found: %t, not %t", ref, ok, some)
	}
	if !ok {
		return
	}
	for i, one := range want {
		if !s.Next() {
			t.Fatalf("series %d ends before chunk %d: %v", ref, i, s.Err())
		}
		if !equal(*s.At(), one) {
			t.Fatalf("series %d, chunk %d: %+v, not %+v", ref, i, *s.At(), one)
		}
	}
	if s.Next() || s.Err() != nil {
		t.Fatalf("series %d goes on: %v", ref, s.Err())
	}
}

func TestReader_ReturnsWhatWasWritten(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 8 {
		var all [][]series.Summary
		for range r.IntN(300) {
			all = append(all, randomSummaries(r, r.IntN(60)))
		}
		reader, err := Open(fileOf(t, all), block)
		if err != nil {
			t.Fatal(err)
		}
		forward, random := reader.Cursor(), reader.Cursor()
		for i, list := range all {
			if r.IntN(3) > 0 {
				checkSeries(t, forward, uint64(2*i+2), list)
			}
			at := r.IntN(len(all))
			checkSeries(t, random, uint64(2*at+2), all[at])
			checkSeries(t, random, uint64(2*r.IntN(len(all)+1)+1), nil)
		}
	}
}

// A chunk is cut at full hours: its parts have the summaries and the times of their samples, and add up to it.
func TestDecoder_CutsChunksAtFullHours(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 12))
	var d Decoder
	cuts := 0
	for range 300 {
		var chunks []series.Chunk
		var all [][]promql.FPoint
		for ms, n := r.Int64N(1e12), r.IntN(20); len(chunks) < n; ms += 1 + r.Int64N(hourMS) {
			if r.IntN(3) == 0 {
				ms = hour(ms) // a sample at the cut is of the part before
			}
			var points []promql.FPoint
			shape, v, step := shapes[r.IntN(len(shapes))], 0.0, 1+r.Int64N(2*hourMS/100)
			for range 1 + r.IntN(120) {
				v = shape(r, v)
				points = append(points, promql.FPoint{T: ms, F: v})
				if ms += step; r.IntN(50) == 0 {
					ms += r.Int64N(hourMS)
				}
			}
			all = append(all, points)
			chunks = append(chunks, series.Chunk{MinMS: points[0].T, MaxMS: points[len(points)-1].T, Encoding: chunkenc.EncXOR, Data: xor.AppendChunk(nil, points)})
		}
		var m memory
		w, err := NewWriter(&m, block)
		if err == nil {
			err = w.Series(2)
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range chunks {
			d.Cut(c, w)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		reader, err := Open(m.bytes, block)
		if err != nil {
			t.Fatal(err)
		}
		list, ok, err := reader.Cursor().Seek(2)
		for i, points := range all {
			want, has := series.SummaryOf(points)
			if !ok && !has {
				continue
			}
			if !list.Next() || has != (list.At().Count > 0) || has && (!equal(*list.At(), want) || list.At().Gap != want.Gap) {
				t.Fatalf("chunk %d: %+v, not %+v: %v, %v", i, *list.At(), want, list.Err(), err)
			}
			if !has {
				continue
			}
			parts := list.at(chunks[i].MinMS, chunks[i].MaxMS, false)
			for j, p := range parts {
				n := 0
				for n < len(points) && points[n].T <= p.maxMS {
					n++
				}
				if n == 0 || points[0].T != p.minMS || points[n-1].T != p.maxMS || len(parts) > 1 && hour(p.minMS) != hour(p.maxMS) {
					t.Fatalf("part %d is from %d to %d", j, p.minMS, p.maxMS)
				}
				want, _ := series.SummaryOf(points[:n])
				if !equal(p.Summary, want) || p.Second != want.Second || p.Late != want.Late {
					t.Fatalf("part %d: %+v, not %+v", j, p.Summary, want)
				}
				points = points[n:]
			}
			if len(points) > 0 {
				t.Fatalf("%d samples are in no part", len(points))
			}
			cuts += len(parts) - 1
		}
	}
	if cuts < 300 {
		t.Errorf("%d cuts", cuts)
	}
}

// Sums of adjacent summaries are those of one summary after the other, whatever is summed at once.
func TestSeries_ExtendAddsWhatNextReads(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	summed := 0
	for range 400 {
		all := [][]series.Summary{randomSummaries(r, 1+r.IntN(80))}
		reader, err := Open(fileOf(t, all), block)
		if err != nil {
			t.Fatal(err)
		}
		cursor := reader.Cursor()
		list, ok, err := cursor.Seek(2)
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; ok && i < len(all[0]); {
			if !list.Next() || !equal(*list.At(), all[0][i]) {
				t.Fatalf("chunk %d: %+v, not %+v", i, *list.At(), all[0][i])
			}
			if i++; list.At().Count == 0 {
				continue
			}
			got, most := *list.At(), r.IntN(20)
			if r.IntN(20) == 0 {
				got.Count = math.MaxInt32 - r.IntN(300)
			}
			want := got
			n := list.Extend(&got, most)
			for range n {
				if !want.Extend(&all[0][i], true) {
					t.Fatalf("chunk %d was added", i)
				}
				i++
			}
			if n > most || !equal(got, want) {
				t.Fatalf("with chunk %d: %d of %d added: %+v, not %+v", i-1, n, most, got, want)
			}
			summed += n
		}
	}
	if summed < 100 {
		t.Errorf("%d summaries were added", summed)
	}
}

func TestReader_ForeignAndDamagedFilesAreErrors(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	all := [][]series.Summary{}
	for range 200 {
		all = append(all, randomSummaries(r, 60))
	}
	whole := fileOf(t, all)
	read := func(file []byte, of Block) error {
		reader, err := Open(file, of)
		if err != nil {
			return err
		}
		c := reader.Cursor()
		for i := range all {
			s, _, err := c.Seek(uint64(2*i + 2))
			if err != nil {
				return err
			}
			for s.Next() {
			}
			if s.Err() != nil {
				return s.Err()
			}
		}
		return nil
	}
	if err := read(whole, block); err != nil {
		t.Fatal(err)
	}
	check := func(what string, file []byte, of Block) {
		t.Helper()
		if err := read(file, of); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", what, err)
		}
	}
	check("another ULID", whole, NewBlock([16]byte{1}, 4711, []byte{9, 8, 7, 6}, 100, 200))
	check("another index", whole, NewBlock([16]byte{1, 2, 3}, 4711, []byte{9, 8, 7, 5}, 100, 200))
	check("a longer index", whole, NewBlock([16]byte{1, 2, 3}, 4712, []byte{9, 8, 7, 6}, 100, 200))
	check("fewer segments", whole, NewBlock([16]byte{1, 2, 3}, 4711, []byte{9, 8, 7, 6}, 300))
	check("other segments", whole, NewBlock([16]byte{1, 2, 3}, 4711, []byte{9, 8, 7, 6}, 100, 201))
	check("longer", append(bytes.Clone(whole), 0), block)
	for range 300 {
		check("cut", whole[:r.IntN(len(whole))], block)
		damaged := bytes.Clone(whole)
		at := r.IntN(len(whole))
		damaged[at] ^= 1 << r.IntN(8)
		check("a bit", damaged, block)
	}
	newer := bytes.Clone(whole)
	newer[len(magic)]++
	check("newer", newer, block)
}

// Readers hold a group in memory: a table whose checksum is right must not make them allocate anything.
func TestTable_GroupOfTooManyBytesIsAnError(t *testing.T) {
	table := func(end uint64, offsets ...uint64) error {
		var src []byte
		for i, at := range offsets {
			src = binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint32(src, uint32(i+1)), at)
		}
		_, err := header{TableAt: end, Groups: uint32(len(offsets))}.table(appendChecksum(src, 0))
		return err
	}
	if err := table(headerBytes+2*groupMax, headerBytes, headerBytes+groupMax); err != nil {
		t.Error(err)
	}
	for _, end := range []uint64{headerBytes + 2*groupMax + 1, 1 << 40, 1 << 60} {
		if err := table(end, headerBytes, headerBytes+groupMax); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%d bytes: %v", end-headerBytes-groupMax, err)
		}
	}
	if err := table(1<<40, headerBytes, 1<<39); !errors.Is(err, ErrCorrupt) {
		t.Error(err)
	}
}

func TestWriter_SeriesOutOfOrderIsAnError(t *testing.T) {
	w, err := NewWriter(&memory{}, block)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Series(8); err != nil {
		t.Fatal(err)
	}
	if err := w.Series(8); err == nil {
		t.Error("the same series is accepted")
	}
	if err := w.Series(1 << 32); err == nil {
		t.Error("a reference beyond the format is accepted")
	}
}

// A file is at most 4 % of its block.
func TestWriter_BytesOfAChunk(t *testing.T) {
	for _, test := range []struct {
		name string
		most float64
		next func(r *rand.Rand, v float64) float64
	}{
		{name: "counter", most: 7.5, next: shapes[0]},
		{name: "constant", most: 2.2, next: shapes[1]},
		{name: "gauge of integers", most: 9.5, next: shapes[3]},
		{name: "gauge of floats", most: 35, next: shapes[4]},
		{name: "counter of floats", most: 17, next: shapes[5]},
	} {
		r := rand.New(rand.NewPCG(5, 6))
		const chunks = 1000
		var list []series.Summary
		v, encoded := 4e6, 0
		for i := range chunks {
			var points []promql.FPoint
			for j := range 120 {
				v = test.next(r, v)
				points = append(points, promql.FPoint{T: int64(i*120+j) * 15000, F: v})
			}
			encoded += len(xor.AppendChunk(nil, points)) + 6 + 8 // length, encoding and checksum; its entry in the index
			s, _ := series.SummaryOf(points)
			list = append(list, s)
		}
		file := fileOf(t, [][]series.Summary{list})
		size, share := float64(len(file))/chunks, float64(len(file))/float64(encoded)
		report := t.Logf
		if size > test.most || share > 0.04 {
			report = t.Errorf
		}
		report("%s: %.1f bytes a chunk, %.1f %% of a chunk", test.name, size, 100*share)
	}
}

func TestDecoder_SummaryOfAChunk(t *testing.T) {
	points := []promql.FPoint{{T: 10, F: 1}, {T: 20, F: 3}, {T: 30, F: 2}}
	good := series.Chunk{MinMS: 10, MaxMS: 30, Encoding: chunkenc.EncXOR, Data: xor.AppendChunk(nil, points)}
	want, _ := series.SummaryOf(points)
	var d Decoder
	if s := d.Summary(good); !equal(s, want) {
		t.Errorf("%+v, not %+v", s, want)
	}
	for name, change := range map[string]func(c *series.Chunk){
		"cut":        func(c *series.Chunk) { c.Data = c.Data[:len(c.Data)-3] },
		"earlier":    func(c *series.Chunk) { c.MinMS-- },
		"later":      func(c *series.Chunk) { c.MaxMS++ },
		"histograms": func(c *series.Chunk) { c.Encoding = chunkenc.EncHistogram },
		"descending": func(c *series.Chunk) {
			c.Data = xor.AppendChunk(nil, []promql.FPoint{{T: 10}, {T: 40}, {T: 30}})
		},
		"empty": func(c *series.Chunk) { c.Data = binary.BigEndian.AppendUint16(nil, 0) },
		"NaN": func(c *series.Chunk) {
			c.Data = xor.AppendChunk(nil, []promql.FPoint{{T: 10}, {T: 30, F: math.NaN()}})
		},
	} {
		c := good
		if change(&c); d.Summary(c).Count != 0 {
			t.Errorf("%s: %+v", name, d.Summary(c))
		}
	}
}

// A summary that is not of its chunk makes no parts that readers of summaries refuse.
func TestDecoder_SplitByTheSummaryOfAnotherChunk(t *testing.T) {
	var points []promql.FPoint
	for i := range 100 {
		points = append(points, promql.FPoint{T: int64(10 * i), F: float64(i)})
	}
	c := series.Chunk{MaxMS: 990, Encoding: chunkenc.EncXOR, Data: xor.AppendChunk(nil, points)}
	good, _ := series.SummaryOf(points)
	var d Decoder
	for changes, want := range map[int]bool{good.Changes: true, 50: true, 0: false, 49: false} {
		all := good
		all.Changes = changes
		head, tail, _, ok := d.Split(c, 495, &all)
		if ok != want {
			t.Errorf("%d changes: %v: %+v %+v", changes, ok, head, tail)
		}
		for _, part := range []series.Summary{head, tail} {
			one := series.Chunk{Encoding: series.Summarized, Data: series.AppendSummary(nil, part)}
			if _, err := one.Summary(); ok && err != nil {
				t.Errorf("%d changes: %+v: %v", changes, part, err)
			}
		}
	}
}

func FuzzOpen(f *testing.F) {
	r := rand.New(rand.NewPCG(7, 8))
	f.Add(fileOf(f, [][]series.Summary{randomSummaries(r, 20), randomSummaries(r, 3)}), uint64(4), []byte{})
	f.Add(fileOf(f, nil), uint64(1), []byte{present | newCount | floats, 3, 0x88})
	f.Add(fileOf(f, nil), uint64(1), []byte{times, 1, 2, 3, 4, cut, present | newCount | flat, 3, 9, cut, present | flat, present | flat})
	late := binary.AppendUvarint([]byte{times, 1, 2, 0}, math.MaxInt64) // a sum of times overflows
	f.Add(fileOf(f, nil), uint64(hourMS), append(late, cut, present|newCount|flat, 3, 9, 2, present|flat, 2))
	f.Fuzz(func(t *testing.T, file []byte, ref uint64, section []byte) {
		if reader, err := Open(file, block); err == nil {
			c := reader.Cursor()
			if s, _, err := c.Seek(ref); err == nil {
				for s.Next() {
				}
			}
		} else if !errors.Is(err, ErrCorrupt) {
			t.Fatal(err)
		}
		// a group and a series whose checksums are right
		g := Group{rest: section}
		for i := range uint64(4) {
			s, _, err := g.Seek(ref + i)
			for s.Next() {
			}
			if err != nil && !errors.Is(err, ErrCorrupt) || s.Err() != nil && !errors.Is(s.Err(), ErrCorrupt) {
				t.Fatal(err, s.Err())
			}
		}
		s := Series{}
		s.r.Src = section
		for n := 0; s.Next(); n++ {
			if n > len(section) || s.At().Count < 0 {
				t.Fatal(s.At())
			}
			from := int64(ref)
			for _, p := range s.at(from, math.MaxInt64, false) {
				if p.minMS < from || p.maxMS < p.minMS {
					t.Fatal(p)
				}
				from = p.maxMS
			}
		}
	})
}

func BenchmarkSeries(b *testing.B) {
	r := rand.New(rand.NewPCG(9, 10))
	for _, shape := range []struct {
		name string
		next func(r *rand.Rand, v float64) float64
	}{{"counter", shapes[0]}, {"floats", shapes[4]}} {
		var all [][]series.Summary
		for range 20 {
			var list []series.Summary
			v := 1e6
			for range 1488 {
				var points []promql.FPoint
				for range 120 {
					v = shape.next(r, v)
					points = append(points, promql.FPoint{F: v})
				}
				s, _ := series.SummaryOf(points)
				list = append(list, s)
			}
			all = append(all, list)
		}
		file := fileOf(b, all)
		b.Run(shape.name, func(b *testing.B) {
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				reader, err := Open(file, block)
				if err != nil {
					b.Fatal(err)
				}
				c := reader.Cursor()
				for i := range all {
					s, _, err := c.Seek(uint64(2*i + 2))
					if err != nil {
						b.Fatal(err)
					}
					for s.Next() {
						n++
					}
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n), "ns/chunk")
		})
	}
}
