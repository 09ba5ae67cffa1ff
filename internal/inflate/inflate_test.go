package inflate

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"testing"

	klauspost "github.com/klauspost/compress/gzip"
)

// compressed returns members of compress/gzip.
func compressed(t testing.TB, level int, parts ...[]byte) []byte {
	t.Helper()
	var b bytes.Buffer
	for i, part := range parts {
		w, err := gzip.NewWriterLevel(&b, level)
		must(t, err)
		if i%2 == 1 {
			w.Name, w.Comment, w.Extra = "name", "comment", []byte("extra")
		}
		if _, err := w.Write(part); err != nil {
			t.Fatal(err)
		}
		must(t, w.Close())
	}
	return b.Bytes()
}

// texts are inputs of different kinds: empty, incompressible, repetitive, like a profile.
func texts() map[string][]byte {
	r := rand.New(rand.NewPCG(1, 2))
	random := make([]byte, 100_000)
	for i := range random {
		random[i] = byte(r.Uint32())
	}
	var functions, varints []byte
	for i := range 3000 {
		functions = fmt.Appendf(functions, "\x32\x42github.com/example/project/internal/package%02d.(*Type%02d).Method%03d", i%37, i%53, i)
	}
	for range 20_000 {
		varints = append(varints, 0x08, byte(r.ExpFloat64()*20), 0x10, byte(r.IntN(256))|0x80, byte(r.IntN(3)))
	}
	runs := bytes.Repeat([]byte{'a'}, 70_000)
	runs = append(runs, bytes.Repeat([]byte("ab"), 1000)...)
	runs = append(runs, bytes.Repeat([]byte("abcdefg"), 1000)...)
	skewed := make([]byte, 200_000) // codes of up to 15 bits
	for i := range skewed {
		skewed[i] = byte(min(255, int(r.ExpFloat64()*9)))
	}
	return map[string][]byte{
		"empty": nil, "one byte": {7}, "short": []byte("hello, hello, hello"), "random": random, "functions": functions, "varints": varints,
		"runs": runs, "skewed": skewed, "all": bytes.Join([][]byte{random, functions, varints, runs, skewed}, nil),
	}
}

func TestGzip_EqualsWhatWasCompressed(t *testing.T) {
	var f Inflater
	for name, text := range texts() {
		for level := gzip.HuffmanOnly; level <= gzip.BestCompression; level++ {
			src := compressed(t, level, text)
			for _, prefix := range []string{"", "kept"} {
				got, err := f.Gzip([]byte(prefix), src, len(text))
				if err != nil || string(got[:len(prefix)]) != prefix || !bytes.Equal(got[len(prefix):], text) {
					t.Fatalf("%s, level %d: %d bytes of %d, %v", name, level, len(got)-len(prefix), len(text), err)
				}
			}
			if len(text) > 0 {
				if _, err := f.Gzip(nil, src, len(text)-1); !errors.Is(err, ErrGzipLimit) {
					t.Fatalf("%s, level %d: one byte beyond the limit: %v", name, level, err)
				}
			}
		}
	}
}

func TestGzip_MembersFollowEachOther(t *testing.T) {
	var f Inflater
	all := texts()
	src := compressed(t, gzip.DefaultCompression, all["functions"], all["empty"], all["runs"], all["short"])
	want := bytes.Join([][]byte{all["functions"], all["runs"], all["short"]}, nil)
	if got, err := f.Gzip(nil, src, len(want)); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d bytes of %d, %v", len(got), len(want), err)
	}
	if _, err := f.Gzip(nil, src, len(want)-1); !errors.Is(err, ErrGzipLimit) {
		t.Errorf("one byte beyond the limit: %v", err)
	}
	if _, err := f.Gzip(nil, append(bytes.Clone(src), 0), len(want)); !errors.Is(err, ErrGzip) {
		t.Errorf("garbage after the last member: %v", err)
	}
}

func TestGzip_TruncatedAndChangedInputIsCorrupt(t *testing.T) {
	var f Inflater
	for name, text := range map[string][]byte{"short": texts()["short"], "functions": texts()["functions"][:4000], "stored": texts()["random"][:300]} {
		src := compressed(t, gzip.DefaultCompression, text)
		for n := range src {
			if _, err := f.Gzip(nil, src[:n], 1<<20); !errors.Is(err, ErrGzip) {
				t.Fatalf("%s: %d of %d bytes: %v", name, n, len(src), err)
			}
		}
		for i := range src {
			for bit := range 8 {
				bad := bytes.Clone(src)
				bad[i] ^= 1 << bit
				compareGzip(t, &f, bad)
			}
		}
	}
}

// A small input may not claim or fill much memory.
func TestGzip_ABombEndsAtTheLimit(t *testing.T) {
	var f Inflater
	src := compressed(t, gzip.BestCompression, make([]byte, 64<<20))
	got, err := f.Gzip(nil, src, 1<<20)
	if !errors.Is(err, ErrGzipLimit) || cap(got) > 3<<20 {
		t.Errorf("%v with a buffer of %d bytes", err, cap(got))
	}
	small := compressed(t, gzip.BestCompression, []byte("x"))
	for i := range 4 {
		small[len(small)-4+i] = 0xFF
	}
	if got, err := f.Gzip(nil, small, 1<<30); !errors.Is(err, ErrGzip) || cap(got) > 1<<20 {
		t.Errorf("%v with a buffer of %d bytes", err, cap(got))
	}
}

func TestGzip_DoesNotAllocate(t *testing.T) {
	var f Inflater
	src := compressed(t, gzip.DefaultCompression, texts()["all"])
	var buf []byte
	run := func() {
		var err error
		if buf, err = f.Gzip(buf[:0], src, 1<<30); err != nil {
			t.Fatal(err)
		}
	}
	run()
	if n := testing.AllocsPerRun(10, run); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// compareGzip compares the result with that of compress/gzip. Within the limit, both accept the
// same inputs.
func compareGzip(t *testing.T, f *Inflater, src []byte) {
	t.Helper()
	const limit = 1 << 20
	var want []byte
	r, wantErr := gzip.NewReader(bytes.NewReader(src))
	if wantErr == nil {
		want, wantErr = io.ReadAll(io.LimitReader(r, limit+1))
	}
	got, err := f.Gzip(nil, src, limit)
	switch {
	case len(want) > limit:
		if err == nil {
			t.Fatalf("%x: more than the limit is accepted", src)
		}
	case (err == nil) != (wantErr == nil):
		t.Fatalf("%x: %v, compress/gzip returns %v", src, err, wantErr)
	case err == nil && !bytes.Equal(got, want):
		t.Fatalf("%x: got %x, want %x", src, got, want)
	case err != nil && !errors.Is(err, ErrGzip) && !errors.Is(err, ErrGzipLimit):
		t.Fatalf("%x: %v", src, err)
	}
}

func FuzzGzip(f *testing.F) {
	for _, text := range texts() {
		for _, level := range []int{gzip.HuffmanOnly, gzip.NoCompression, gzip.BestSpeed, gzip.BestCompression} {
			f.Add(compressed(f, level, text[:min(len(text), 2000)]))
		}
	}
	f.Add(compressed(f, gzip.DefaultCompression, []byte("one"), []byte("two")))
	var own Inflater
	f.Fuzz(func(t *testing.T, src []byte) {
		compareGzip(t, &own, src)
		// Checksums reject most changes, so the deflate stream is also compared without them.
		withSums := src
		if body, err := header(src); err == nil {
			out, rest, err := own.inflate(nil, body, 1<<20)
			own.src = nil
			if err == nil && len(rest) >= 8 {
				withSums = append(bytes.Clone(src[:len(src)-len(rest)]), sums(out)...)
			}
		}
		compareGzip(t, &own, withSums)
	})
}

// sums returns the trailer of a member.
func sums(out []byte) []byte {
	return binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, crc32.ChecksumIEEE(out)), uint32(len(out)))
}

func BenchmarkGzip(b *testing.B) {
	for _, name := range []string{"functions", "varints", "short"} {
		text := texts()[name]
		src := compressed(b, gzip.DefaultCompression, text)
		var buf []byte
		b.Run(name+"/inflate", func(b *testing.B) {
			var f Inflater
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				var err error
				if buf, err = f.Gzip(buf[:0], src, 1<<30); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(name+"/klauspost", func(b *testing.B) {
			var in bytes.Reader
			r := new(klauspost.Reader)
			buf := make([]byte, len(text)+1)
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				in.Reset(src)
				must(b, r.Reset(&in))
				if n, err := io.ReadFull(r, buf); n != len(text) || !errors.Is(err, io.ErrUnexpectedEOF) {
					b.Fatal(n, err)
				}
			}
		})
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
