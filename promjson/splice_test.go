package promjson

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
)

// pointTime is the time of a point of a model.
func pointTime(t *testing.T, point string) int64 {
	t.Helper()
	ms := try(FirstTime([]byte(point))).must(t)
	return ms
}

// cut returns the part of m from start to before end.
func (m model) cut(t *testing.T, start, end int64) model {
	within := func(list []string) (cut []string) {
		for _, p := range list {
			if ms := pointTime(t, p); ms >= start && ms < end {
				cut = append(cut, p)
			}
		}
		return cut
	}
	c := model{envelope: m.envelope}
	for _, s := range m.series {
		s.values, s.histograms = within(s.values), within(s.histograms)
		if len(s.values)+len(s.histograms) > 0 {
			c.series = append(c.series, s)
		}
	}
	return c
}

func TestSplicer_PartsEqualTheWholeResponse(t *testing.T) {
	const first, last = 1700000000000, 1700000000000 + 20*20000
	for seed := range uint64(3000) {
		r := rand.New(rand.NewPCG(seed, 3))
		m := randomModel(r).cut(t, 0, 1<<62)
		m.envelope.Warnings = dedupStrings(nil, m.envelope.Warnings)
		want := m.write(&jsonVariants{r: r, plain: true})

		cuts := []int64{first, last + 1}
		for range r.IntN(5) {
			cuts = append(cuts, first+r.Int64N(last-first))
		}
		slices.Sort(cuts)
		var parts []*Scanner
		var texts []string
		for i := range cuts[1:] {
			c := m.cut(t, cuts[i], cuts[i+1])
			// Warnings of all parts must be in the result.
			if len(cuts) > 2 && i < len(m.envelope.Warnings) {
				c.envelope.Warnings = m.envelope.Warnings[:i+1]
			}
			text := c.write(&jsonVariants{r: r, plain: true})
			texts = append(texts, text)
			size := []int{16, 64, 300, 4096}[r.IntN(4)]
			parts = append(parts, NewScanner(&cutReader{[]byte(text), 1 + r.IntN(300)}, Options{BufferBytes: size}))
		}
		var b bytes.Buffer
		if _, err := new(Splicer).Splice(&b, parts...); err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, strings.Join(texts, "\n"))
		}
		if b.String() != want {
			t.Fatalf("seed %d:\n got %s\nwant %s\nfrom %s", seed, b.String(), want, strings.Join(texts, "\n     "))
		}
	}
}

func TestSplicer_AnyValidJSON(t *testing.T) {
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 4))
		m := randomModel(r).cut(t, 0, 1<<62)
		at := 1700000000000 + r.Int64N(200000)
		var parts []*Scanner
		for _, c := range []model{m.cut(t, 0, at), m.cut(t, at, 1<<62)} {
			text := c.write(&jsonVariants{r: r, plain: r.IntN(2) == 0})
			parts = append(parts, NewScanner(strings.NewReader(text), Options{BufferBytes: 16 << r.IntN(8)}))
		}
		var b bytes.Buffer
		try(new(Splicer).Splice(&b, parts...)).must(t)
		s := NewScanner(&b, Options{})
		got, want := scanModel(t, s), m
		want.envelope.Warnings = dedupStrings(nil, want.envelope.Warnings)
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("seed %d:\n got %+v\nwant %+v", seed, got, want)
		}
	}
}

func matrixResponse(series ...string) string {
	return `{"status":"success","data":{"resultType":"matrix","result":[` + strings.Join(series, ",") + `]}}`
}

func spliced(responses ...string) (string, *Envelope, error) {
	var parts []*Scanner
	for _, a := range responses {
		parts = append(parts, NewScanner(strings.NewReader(a), Options{MaxUnknownBytes: 1000}))
	}
	var b bytes.Buffer
	e, err := new(Splicer).Splice(&b, parts...)
	return b.String(), e, err
}

func TestSplicer_RejectsPartsThatDoNotFit(t *testing.T) {
	const (
		a = `{"metric":{"a":"1"},"values":[[1,"1"],[2.5,"2"]]}`
		b = `{"metric":{"a":"2"},"values":[[1,"1"],[2,"2"]]}`
	)
	var response *APIError
	for name, c := range map[string]struct {
		parts   []string
		want    error
		part    int
		nothing bool // Nothing may have been written.
	}{
		"the same time twice":       {[]string{matrixResponse(a), matrixResponse(`{"metric":{"a":"1"},"values":[[2.500,"2"]]}`)}, ErrOverlap, 1, true},
		"back in time":              {[]string{matrixResponse(a), matrixResponse(b), matrixResponse(`{"metric":{"a":"1"},"values":[[2,"2"]]}`)}, ErrOverlap, 2, true},
		"histograms at one time":    {[]string{matrixResponse(`{"metric":{},"histograms":[[1,{"count":"1","sum":"1"}]]}`), matrixResponse(`{"metric":{},"histograms":[[1,{"count":"1","sum":"1"}]]}`)}, ErrOverlap, 1, true},
		"out of order":              {[]string{matrixResponse(b, a), matrixResponse(a)}, ErrUnsorted, 0, true},
		"a series twice":            {[]string{matrixResponse(a, a), matrixResponse()}, ErrUnsorted, 0, true},
		"a broken series":           {[]string{matrixResponse(a), matrixResponse(a[:20])}, ErrSyntax, 1, true},
		"cut off":                   {[]string{matrixResponse(a), matrixResponse(a)[:90]}, io.ErrUnexpectedEOF, 1, true},
		"an error":                  {[]string{matrixResponse(a), `{"status":"error","errorType":"timeout","error":"too slow"}`}, nil, 1, true},
		"an error behind the data":  {[]string{matrixResponse(a), `{"data":{"result":[` + b + `]},"status":"error"}`}, nil, 1, false},
		"no status":                 {[]string{`{}`}, nil, 0, true},
		"a vector":                  {[]string{matrixResponse(a), `{"status":"success","data":{"resultType":"vector","result":[]}}`}, ErrSyntax, 1, true},
		"a scalar":                  {[]string{`{"status":"success","data":{"resultType":"scalar","result":[1,"2"]}}`}, ErrSyntax, 0, true},
		"no data":                   {[]string{`{"status":"success"}`}, ErrSyntax, 0, true},
		"a bad metric":              {[]string{matrixResponse(`{"metric":{"a":"1","a"},"values":[[1,"1"]]}`)}, ErrSyntax, 0, true},
		"another bad metric":        {[]string{matrixResponse(a), matrixResponse(`{"metric":{"a":"1","a"},"values":[[1,"1"]]}`)}, ErrSyntax, 1, true},
		"a bad metric later":        {[]string{matrixResponse(a, `{"metric":{"a"},"values":[[1,"1"]]}`), matrixResponse(`{"metric":{"a":"1"},"values":[[7,"1"]]}`)}, ErrSyntax, 0, true},
		"a last time that is none":  {[]string{matrixResponse(`{"metric":{},"values":[[1,"2"],["x","3"]]}`), matrixResponse(`{"metric":{},"values":[[5,"2"]]}`)}, ErrSyntax, 0, true},
		"a first time that is none": {[]string{matrixResponse(`{"metric":{},"values":[[1,"2"]]}`), matrixResponse(`{"metric":{},"values":[[null,"2"]]}`)}, ErrSyntax, 1, true},
		"a last point that is none": {[]string{matrixResponse(`{"metric":{},"values":[[1,"2"],3]}`), matrixResponse(`{"metric":{},"values":[[5,"2"]]}`)}, ErrSyntax, 0, true},
		"cut off in a long series":  {[]string{matrixResponse(a), matrixResponse(`{"metric":{"a":"1"},"values":[` + strings.Repeat(`[7,"1"],`, 20000))}, ErrSyntax, 1, false},
		"two bad metrics":           {[]string{matrixResponse(`{"metric":{"a"},"values":[[1,"1"]]}`), matrixResponse(`{"metric":{"a"},"values":[[2,"1"]]}`)}, ErrSyntax, 0, true},
	} {
		got, _, err := spliced(c.parts...)
		var part *PartError
		if !errors.As(err, &part) || part.Part != c.part {
			t.Errorf("%s: %v", name, err)
		}
		if c.want == nil && !errors.As(err, &response) || c.want != nil && !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil && !strings.HasPrefix(err.Error(), fmt.Sprintf("part %d: ", c.part)) {
			t.Errorf("%s: %v", name, err)
		}
		if c.nothing && got != "" {
			t.Errorf("%s: wrote %s", name, got)
		}
	}
}

func TestSplicer_MergesEnvelopes(t *testing.T) {
	got, e, err := spliced(
		`{"status":"success","isPartial":false,"data":{"resultType":"matrix","result":[],"stats":{"x":1}},"warnings":["a","<b>"]}`,
		`{"status":"success","isPartial":true,"data":{"resultType":"matrix","result":null},"warnings":["c","a"],"infos":["i"],"trace":{}}`)
	if err != nil {
		t.Fatal(err)
	}
	check(t, "response", got, `{"status":"success","data":{"resultType":"matrix","result":[]},"warnings":["a","\u003cb\u003e","c"],"infos":["i"],"isPartial":true,"trace":{}}`)
	check(t, "envelope", fmt.Sprintf("%q %q %d", e.Warnings, e.Infos, len(e.Unknown)), `["a" "<b>" "c"] ["i"] 2`)
}

func TestSplicer_MergesEqualUnknownMembersAndFlags(t *testing.T) {
	with := func(members string) string {
		return `{"status":"success",` + members + `"data":{"resultType":"matrix","result":[]}}`
	}
	for _, c := range []struct {
		parts []string
		want  string
	}{
		{[]string{with(`"isPartial":true,`), with(`"isPartial":false,`), with(``)}, `,"isPartial":true`},
		{[]string{with(`"isPartial":false,`), with(``), with(`"isPartial":true,`)}, `,"isPartial":true`},
		{[]string{with(`"isPartial":false,`), with(`"isPartial":false,`)}, `,"isPartial":false`},
		{[]string{with(`"stats":{"ms":1},"isPartial":true,`), with(`"stats":{"ms":2},`), with(`"stats":{"ms":1},`)}, `,"isPartial":true`},
		{[]string{with(`"cluster":"a","x":null,`), with(`"cluster":"a","x":true,`)}, `,"cluster":"a"`},
		{[]string{with(`"stats":{"ms":1},`)}, `,"stats":{"ms":1}`},
	} {
		got, _, err := spliced(c.parts...)
		if err != nil {
			t.Fatal(err)
		}
		check(t, strings.Join(c.parts, " "), got, `{"status":"success","data":{"resultType":"matrix","result":[]}`+c.want+`}`)
	}
}

func TestSplicer_CountsAnnotationsBeyondTen(t *testing.T) {
	with := func(kind, prefix string, from, to int, more ...string) string {
		var texts []string
		for i := from; i < to; i++ {
			texts = append(texts, fmt.Sprintf("%s%d", prefix, i))
		}
		b := try(json.Marshal(append(texts, more...))).must(t)
		return `{"status":"success","data":{"resultType":"matrix","result":[]},"` + kind + `":` + string(b) + `}`
	}
	for _, c := range []struct {
		parts []string
		count int
		last  string
	}{
		{[]string{with("warnings", "PromQL warning: ", 0, 10), with("warnings", "PromQL warning: ", 5, 10)}, 10, "PromQL warning: 9"},
		{[]string{with("warnings", "PromQL warning: ", 0, 10), with("warnings", "PromQL warning: ", 5, 15)}, 11, "5 more warning annotations omitted"},
		{[]string{with("warnings", "PromQL warning: ", 0, 10, "7 more warning annotations omitted"), with("warnings", "PromQL warning: ", 0, 11, "3 more warning annotations omitted")}, 11, "8 more warning annotations omitted"},
		{[]string{with("warnings", "PromQL warning: ", 0, 10, "7 more warning annotations omitted")}, 11, "7 more warning annotations omitted"},
		{[]string{with("warnings", "PromQL warning: ", 0, 12)}, 12, "PromQL warning: 11"},
		{[]string{with("warnings", "store is down: ", 0, 40), with("warnings", "store is down: ", 30, 60)}, 60, "store is down: 59"},
		{[]string{with("infos", "PromQL info: ", 0, 10), with("infos", "PromQL info: ", 10, 20)}, 11, "10 more info annotations omitted"},
	} {
		_, e, err := spliced(c.parts...)
		if err != nil {
			t.Fatal(err)
		}
		got := append(e.Warnings, e.Infos...)
		check(t, fmt.Sprint(c.parts, " count"), fmt.Sprint(len(got)), fmt.Sprint(c.count))
		check(t, fmt.Sprint(c.parts, " last"), got[len(got)-1], c.last)
	}
}

// The cost of warnings is linear in their number. With a quadratic cost, a quarter of
// a million warnings would take longer than the timeout of the test.
func TestSplicer_MergesManyWarnings(t *testing.T) {
	var parts []*Scanner
	for n := range 8 {
		var b strings.Builder
		b.WriteString(`{"status":"success","data":{"resultType":"matrix","result":[]},"warnings":["w"`)
		for i := range 30_000 {
			fmt.Fprintf(&b, `,"%d"`, n*20_000+i)
		}
		b.WriteString(`]}`)
		parts = append(parts, NewScanner(strings.NewReader(b.String()), Options{}))
	}
	e := try(new(Splicer).Splice(io.Discard, parts...)).must(t)
	check(t, "warnings", fmt.Sprint(len(e.Warnings)), "170001")
}

func TestSplicer_OnePartIsUnchanged(t *testing.T) {
	for _, file := range []string{"matrix_floats", "matrix_histograms", "matrix_nolabels", "matrix_empty"} {
		src := try(os.ReadFile("testdata/" + file + ".json")).must(t)
		got, _, err := spliced(string(src))
		if err != nil {
			t.Fatal(err)
		}
		check(t, file, got, string(src))
	}
	unsorted := matrixResponse(`{"metric":{"b":"1"}}`, `{"metric":{"a":"1"}}`)
	got, _, err := spliced(unsorted)
	check(t, "unsorted", fmt.Sprint(got, err), unsorted+"<nil>")
}

type shortWriter struct{}

func (shortWriter) Write(p []byte) (int, error) { return len(p) / 2, nil }

func TestSplicer_LargePiecesAreNotBuffered(t *testing.T) {
	src := benchResponse(2, 0, benchSteps)
	long := bytes.Replace(src, []byte(`"values":[`), append([]byte(`"values":[`), bytes.Repeat([]byte(`[1,"2"],`), 20000)...), 1)
	for _, size := range []int{1000, 1 << 20} {
		var b bytes.Buffer
		if _, err := new(Splicer).Splice(&b, NewScanner(bytes.NewReader(long), Options{BufferBytes: size})); err != nil || !bytes.Equal(b.Bytes(), long) {
			t.Error(size, err)
		}
	}
	if _, err := new(Splicer).Splice(shortWriter{}, NewScanner(bytes.NewReader(long), Options{BufferBytes: 1 << 20})); !errors.Is(err, io.ErrShortWrite) {
		t.Error(err)
	}
}

type failingWriter struct{ n int }

func (w *failingWriter) Write(p []byte) (int, error) {
	if w.n -= len(p); w.n < 0 {
		return 0, io.ErrClosedPipe
	}
	return len(p), nil
}

func TestSplicer_WriterErrorIsReturned(t *testing.T) {
	src := benchResponse(50, 0, 100)
	for _, n := range []int{0, 70000, len(src) - 1} {
		_, err := new(Splicer).Splice(&failingWriter{n}, NewScanner(bytes.NewReader(src), Options{}))
		if !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("after %d bytes: %v", n, err)
		}
	}
}

func TestSplicer_DoesNotAllocate(t *testing.T) {
	halves := [][]byte{benchResponse(100, 0, 80), benchResponse(100, 80, 81)}
	var parts []*Scanner
	var inputs []*bytes.Reader
	for range halves {
		parts = append(parts, NewScanner(nil, Options{BufferBytes: 4096}))
		inputs = append(inputs, bytes.NewReader(nil))
	}
	var sp Splicer
	n := testing.AllocsPerRun(10, func() {
		for i, half := range halves {
			inputs[i].Reset(half)
			parts[i].Reset(inputs[i])
		}
		try(sp.Splice(io.Discard, parts...)).must(t)
	})
	if n > 20 {
		t.Errorf("%v allocations for 200 series", n)
	}
}

func FuzzSplice(f *testing.F) {
	f.Add([]byte(matrixResponse(`{"metric":{"a":"1"},"values":[[1,"1"]]}`, `{"metric":{"a":"2"},"values":[[1,"1"]]}`)), []byte(matrixResponse(`{"metric":{"a":"1"},"values":[[2,"1"]],"histograms":[[3,{}]]}`)))
	f.Add([]byte(matrixResponse(`{"metric":{"\u0061":"1","b":"}"},"values":[[1,"1"]]}`)), []byte(matrixResponse(`{"values": [[2e0,"1"]],"metric":{"b":"}", "a":"1"}}`)))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		first := ""
		for name, r := range readers(b) {
			parts := []*Scanner{NewScanner(bytes.NewReader(a), Options{BufferBytes: 64}), NewScanner(r, Options{BufferBytes: 32, MaxUnknownBytes: 100})}
			var w bytes.Buffer
			e, err := new(Splicer).Splice(&w, parts...)
			got := fmt.Sprint(w.String(), e, err)
			if first == "" {
				first = got
			}
			if got != first {
				t.Fatalf("read %s: got %s\nnot %s", name, got, first)
			}
		}
	})
}

// sizes counts the bytes of each write.
type sizes []int

func (s *sizes) Write(p []byte) (int, error) {
	*s = append(*s, len(p))
	return len(p), nil
}

func TestSplicer_BufferGrowsUpToWriteBytes(t *testing.T) {
	var o output
	var got sizes
	o.reset(&got, 300<<10)
	if cap(o.buf) != defaultWriteBytes {
		t.Errorf("%d bytes at first", cap(o.buf))
	}
	for range 700 {
		o.bytes(make([]byte, 1000))
	}
	o.flush()
	if want := (sizes{307_000, 307_000, 86_000}); !slices.Equal(got, want) {
		t.Errorf("writes of %v bytes, want %v", got, want)
	}
	if cap(o.buf) != 300<<10 {
		t.Errorf("%d bytes at last", cap(o.buf))
	}
	got = nil
	o.bytes(make([]byte, 10))
	o.bytes(make([]byte, 400<<10)) // longer than the buffer may be
	if want := (sizes{10, 400 << 10}); !slices.Equal(got, want) {
		t.Errorf("writes of %v bytes, want %v", got, want)
	}
	before := &o.buf[:1][0]
	if o.reset(&got, 300<<10); &o.buf[:1][0] != before {
		t.Error("the grown buffer is not reused")
	}
	if o.reset(&got, 1000); cap(o.buf) != 1000 {
		t.Errorf("%d bytes, although writes shall have 1000", cap(o.buf))
	}
}
