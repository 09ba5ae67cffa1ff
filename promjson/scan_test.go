package promjson

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
)

// transcript returns everything a Scanner returns for a response, as text.
func transcript(s *Scanner) string {
	var b strings.Builder
	for s.Next() {
		metric := string(s.Metric())
		fmt.Fprintf(&b, "%s", metric)
		writePieces(&b, "values", s.NextValues)
		writePieces(&b, "histograms", s.NextHistograms)
		if s.Err() == nil && string(s.Metric()) != metric {
			fmt.Fprintf(&b, " then %s", s.Metric())
		}
		b.WriteByte('\n')
	}
	if s.Err() != nil {
		fmt.Fprintf(&b, "error: %v\n", s.Err())
		return b.String()
	}
	fmt.Fprintf(&b, "%+v\n%s\n", *s.Envelope(), s.Result())
	return b.String()
}

func writePieces(b *strings.Builder, name string, next func() []byte) {
	separator := " " + name + " "
	for p := next(); p != nil; p = next() {
		fmt.Fprintf(b, "%s%s", separator, p)
		separator = ","
	}
}

// readers return the input in reads of different sizes.
func readers(src []byte) map[string]io.Reader {
	return map[string]io.Reader{
		"whole":        bytes.NewReader(src),
		"byte by byte": iotest.OneByteReader(bytes.NewReader(src)),
		"halves":       iotest.HalfReader(bytes.NewReader(src)),
		"end at once":  iotest.DataErrReader(bytes.NewReader(src)),
		"sevens":       &cutReader{src, 7},
	}
}

type cutReader struct {
	src []byte
	n   int
}

func (r *cutReader) Read(p []byte) (int, error) {
	n := copy(p[:min(len(p), r.n)], r.src)
	r.src = r.src[n:]
	if n == 0 {
		return 0, io.EOF
	}
	return n, nil
}

// scanned returns the transcript of src, after asserting that neither the
// reader nor, with whole, the size of the buffer makes a difference.
func scanned(t *testing.T, src []byte, whole bool) string {
	t.Helper()
	s := NewScanner(nil, Options{MaxUnknownBytes: 1 << 16})
	s.ResetBytes(src)
	want := transcript(s)
	for _, size := range []int{16, 20, 64, 200, 1000, 1 << 16} {
		first := ""
		for name, r := range readers(src) {
			got := transcript(NewScanner(r, Options{BufferBytes: size, MaxUnknownBytes: 1 << 16}))
			if first == "" {
				first = got
			}
			if got != first {
				t.Fatalf("buffer of %d, read %s:\n%s\nnot\n%s\nof %q", size, name, got, first, src)
			}
			if whole && got != want {
				t.Fatalf("buffer of %d, read %s:\n%s\nnot\n%s\nof %q", size, name, got, want, src)
			}
		}
		for name, r := range readers(src) {
			if got := transcript(NewScanner(r, Options{BufferBytes: size, InitialBufferBytes: 16, MaxUnknownBytes: 1 << 16})); whole && got != want {
				t.Fatalf("buffer of 16 to %d, read %s:\n%s\nnot\n%s\nof %q", size, name, got, want, src)
			}
		}
	}
	return want
}

func TestScanner_ResponsesOfPrometheus(t *testing.T) {
	files, _ := filepath.Glob("testdata/*.json")
	if len(files) < 8 {
		t.Fatal("testdata is missing")
	}
	for _, file := range files {
		src, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		got := scanned(t, src, true)
		want, err := os.ReadFile(strings.TrimSuffix(file, ".json") + ".scan")
		if err != nil {
			t.Fatal(err)
		}
		check(t, file, got, string(want))
	}
}

func TestScanner_EveryPrefixIsAnError(t *testing.T) {
	src, err := os.ReadFile("testdata/matrix_histograms.json")
	if err != nil {
		t.Fatal(err)
	}
	for n := range src {
		s := NewScanner(bytes.NewReader(src[:n]), Options{BufferBytes: 256})
		transcript(s)
		var e *Error
		if !errors.Is(s.Err(), io.ErrUnexpectedEOF) || !errors.As(s.Err(), &e) || e.Offset != int64(n) {
			t.Fatalf("prefix of %d bytes: %v", n, s.Err())
		}
	}
}

func FuzzScanner(f *testing.F) {
	files, _ := filepath.Glob("testdata/*.json")
	for _, file := range files {
		src, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(src)
	}
	f.Add([]byte(` {"data" : {"result":[ {"values" : [ [1,"2"] ,[3,"4"]], "metric":{"a\u0020":"}"}}],"resultType":"matrix"}, "isPartial":[{}] } `))
	f.Add([]byte(`{"status":"success","data":{"resultType":"matrix","result":[{"metric":{},"values":[[1,"2"],[3,"4"],[5,"6"],[7,"8"],[9,"10"]],"x":[1]}]}}`))
	f.Fuzz(func(t *testing.T, src []byte) {
		got := scanned(t, src, false)
		if strings.Contains("\n"+got, "\nerror: ") && !strings.Contains(got, "\nerror: promjson: byte ") && !strings.HasPrefix(got, "error: promjson: byte ") {
			t.Fatalf("no offset: %s", got)
		}
	})
}

// sizedReader records the sizes of its reads.
type sizedReader struct {
	r     io.Reader
	sizes []int
}

func (r *sizedReader) Read(p []byte) (int, error) {
	r.sizes = append(r.sizes, len(p))
	return r.r.Read(p)
}

func TestScanner_BufferGrowsOnlyWhenReadsFillIt(t *testing.T) {
	long := `{"status":"success","data":{"resultType":"matrix","result":[{"metric":{},"values":[` + strings.Repeat(`[1,"1"],`, 1000) + `[2,"2"]]}]}}`
	options := Options{InitialBufferBytes: 64, BufferBytes: 1024}
	full := &sizedReader{r: strings.NewReader(long)}
	s := NewScanner(full, options)
	transcript(s)
	if s.Err() != nil || len(s.buf) != 1024 {
		t.Errorf("reads that fill the buffer: %d bytes, %v", len(s.buf), s.Err())
	}
	check(t, "first read", fmt.Sprint(full.sizes[0]), "64")
	trickle := &sizedReader{r: &cutReader{[]byte(long), 20}}
	s = NewScanner(trickle, options)
	transcript(s)
	if s.Err() != nil || len(s.buf) != 64 {
		t.Errorf("short reads: %d bytes, %v", len(s.buf), s.Err())
	}
	s.Reset(strings.NewReader(long))
	transcript(s)
	was := &s.buf[0]
	s.Reset(strings.NewReader(long))
	if transcript(s); &s.buf[0] != was || len(s.buf) != 1024 {
		t.Error("a buffer that has grown is not used again")
	}
}

func TestOptions_BuffersFitEachOther(t *testing.T) {
	for _, tt := range []struct{ in, want Options }{
		{Options{}, Options{BufferBytes: 64 << 10, InitialBufferBytes: 64 << 10, MaxBufferBytes: 1 << 20, MaxTextBytes: 1 << 20}},
		{Options{BufferBytes: 1, InitialBufferBytes: 1}, Options{BufferBytes: 16, InitialBufferBytes: 16, MaxBufferBytes: 1 << 20, MaxTextBytes: 1 << 20}},
		{Options{BufferBytes: 100, InitialBufferBytes: 1000, MaxBufferBytes: 10}, Options{BufferBytes: 100, InitialBufferBytes: 100, MaxBufferBytes: 100, MaxTextBytes: 1 << 20}},
	} {
		if got := tt.in.withDefaults(); got != tt.want {
			t.Errorf("%+v: %+v, want %+v", tt.in, got, tt.want)
		}
	}
}
