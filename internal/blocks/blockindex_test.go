package blocks

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/tsdb/fileutil"
	"github.com/prometheus/prometheus/tsdb/index"
)

// written returns the bodies of series entries that Prometheus' writer has written.
func written(t testing.TB, metas ...[]chunks.Meta) (bodies [][]byte) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "index")
	w, err := index.NewWriter(context.Background(), file)
	if err != nil {
		t.Fatal(err)
	}
	for _, symbol := range []string{"", "name", "value"} {
		if err := w.AddSymbol(symbol); err != nil {
			t.Fatal(err)
		}
	}
	for i, list := range metas {
		lset := labels.FromStrings("name", "value")
		if i == 0 {
			lset = labels.FromStrings("name", "name")
		}
		if err := w.AddSeries(0, lset, list...); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	mapping, err := fileutil.OpenMmapFile(file)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = mapping.Close() })
	toc, err := index.NewTOCFromByteSlice(slice(mapping.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	for at := toc.Series; len(bodies) < len(metas); {
		at = (at + 15) / 16 * 16
		size, n := binary.Uvarint(mapping.Bytes()[at:])
		bodies = append(bodies, mapping.Bytes()[at+uint64(n):][:size])
		at += uint64(n) + size + 4
	}
	return bodies
}

type slice []byte

func (b slice) Len() int                           { return len(b) }
func (b slice) Range(start, end int) []byte        { return b[start:end] }
func (b slice) Sub(start, end int) index.ByteSlice { return b[start:end] }

// decode also checks that AppendWithin appends the chunks of Next.
func decode(t testing.TB, body []byte) (names []uint64, all []Chunk, err error) {
	t.Helper()
	r := Varints{Src: body}
	for range r.LabelCount() {
		name, value := r.Label()
		names = append(names, name, value)
	}
	c := NewChunks(r)
	for c.Next() {
		all = append(all, c.At())
	}
	for i := range all {
		for _, within := range [][2]int64{{math.MinInt64, math.MaxInt64}, {all[i].MinMS, all[i].MaxMS}, {all[i].MaxMS + 1, all[len(all)-1].MinMS}} {
			checkWithin(t, NewChunks(r), all, within[0], within[1], c.Err())
		}
	}
	return names, all, c.Err()
}

func checkWithin(t testing.TB, c Chunks, all []Chunk, mint, maxt int64, end error) {
	t.Helper()
	var want []Chunk
	earlier, cut := 0, false
	for _, one := range all {
		if cut = one.MinMS > maxt; cut {
			break
		}
		if one.MaxMS >= mint {
			want = append(want, one)
		} else if len(want) == 0 {
			earlier++
		}
	}
	got, skipped := c.AppendWithin(nil, mint, maxt)
	if skipped != earlier || !slices.Equal(got, want) {
		t.Fatalf("from %d to %d: %d chunks after %d, not %d after %d", mint, maxt, len(got), skipped, len(want), earlier)
	}
	if !cut && fmt.Sprint(c.Err()) != fmt.Sprint(end) {
		t.Fatalf("from %d to %d: error %v, not %v", mint, maxt, c.Err(), end)
	}
}

func TestChunks_ManyAreReadAtOnce(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 10 {
		var want []chunks.Meta
		at, ref, length := rng.Int64N(1<<41), chunks.ChunkRef(8), int64(1_785_000)
		for range 1 + rng.IntN(200) {
			if rng.IntN(8) == 0 {
				length = rng.Int64N(1 << rng.IntN(40))
			}
			want = append(want, chunks.Meta{Ref: ref, MinTime: at, MaxTime: at + length})
			at, ref = at+length+15_000, ref+chunks.ChunkRef(rng.Int64N(1<<rng.IntN(36)))
		}
		_, all, err := decode(t, written(t, nil, want)[1])
		if err != nil || len(all) != len(want) {
			t.Fatalf("%d chunks, not %d: %v", len(all), len(want), err)
		}
		for i, m := range want {
			if all[i] != (Chunk{m.MinTime, m.MaxTime, uint64(m.Ref)}) {
				t.Fatalf("chunk %d is %+v, not %+v", i, all[i], m)
			}
		}
	}
}

func TestEntriesAreDecodedAsPrometheusWroteThem(t *testing.T) {
	want := []chunks.Meta{
		{Ref: 8, MinTime: -50, MaxTime: 10}, {Ref: 1 << 32, MinTime: 11, MaxTime: 11}, {Ref: 1<<32 + 9, MinTime: 300, MaxTime: 1 << 50},
	}
	bodies := written(t, nil, want)
	names, all, err := decode(t, bodies[1])
	if err != nil || len(names) != 2 || names[0] != 1 || names[1] != 2 || len(all) != len(want) {
		t.Fatalf("labels %v, chunks %v, error %v", names, all, err)
	}
	for i, m := range want {
		if got := all[i]; got != (Chunk{m.MinTime, m.MaxTime, uint64(m.Ref)}) {
			t.Errorf("chunk %d is %+v, want %+v", i, got, m)
		}
	}
	if _, all, err := decode(t, bodies[0]); err != nil || len(all) != 0 {
		t.Errorf("an entry without chunks has %v, error %v", all, err)
	}
	skipped := Varints{Src: bodies[1]}
	skipped.SkipLabels()
	if c := NewChunks(skipped); !c.Next() || c.At().MinMS != -50 {
		t.Errorf("after skipped labels the first chunk is %+v", c.At())
	}
}

func TestEntriesThatAreCutShortAreCorrupt(t *testing.T) {
	whole := written(t, nil, []chunks.Meta{{Ref: 8, MaxTime: 1000}, {Ref: 900, MinTime: 1001, MaxTime: 2000}})[1]
	for n := range len(whole) {
		r := Varints{Src: whole[:n]}
		r.SkipLabels()
		c := NewChunks(r)
		for c.Next() {
		}
		if !errors.Is(c.Err(), ErrCorrupt) && !r.Bad {
			t.Errorf("%d of %d bytes: no error", n, len(whole))
		}
	}
	r := Varints{Src: binary.AppendUvarint(nil, 1<<40)}
	if c := NewChunks(r); c.Next() || !errors.Is(c.Err(), ErrCorrupt) {
		t.Errorf("2^40 chunks: error %v", c.Err())
	}
}

// Three numbers of all lengths, with bytes behind them or none, are those of three single reads.
func TestVarints_ThreeNumbersAtOnce(t *testing.T) {
	for a := range 64 {
		for b := range 64 {
			for c := range 64 {
				want := [3]uint64{1<<a + 5, 1<<b - 1, 1<<c | 1}
				src := []byte{}
				for _, v := range want {
					src = binary.AppendUvarint(src, v)
				}
				n := len(src)
				for _, behind := range []int{0, 1, 9} {
					r := Varints{Src: append(src[:n:n], make([]byte, behind)...)}
					x, y, z := r.Three()
					if got := [3]uint64{x, y, z}; got != want || r.Bad || len(r.Src) != behind {
						t.Fatalf("%v are read as %v, %d of %d bytes are left", want, got, len(r.Src), behind)
					}
				}
				r := Varints{Src: src[:n-1]}
				if r.Three(); !r.Bad {
					t.Fatalf("%v without the last byte are read", want)
				}
			}
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, body := range written(f, nil, []chunks.Meta{{Ref: 8, MinTime: -5, MaxTime: 10}, {Ref: 77, MinTime: 11, MaxTime: 12}}) {
		f.Add(body)
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		_, all, err := decode(t, body)
		if len(all) > len(body) {
			t.Fatalf("%d chunks of %d bytes", len(all), len(body))
		}
		if err != nil && !errors.Is(err, ErrCorrupt) {
			t.Fatal(err)
		}
	})
}
