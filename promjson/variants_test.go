package promjson

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// jsonVariants writes the same JSON value in different encodings.
type jsonVariants struct {
	strings.Builder
	r     *rand.Rand
	plain bool // The encoding of Prometheus.
}

func (w *jsonVariants) odd(n int) bool { return !w.plain && w.r.IntN(n) == 0 }

func (w *jsonVariants) space() {
	for w.odd(4) {
		w.WriteByte(" \n\r\t"[w.r.IntN(4)])
	}
}

func (w *jsonVariants) token(s string) {
	w.space()
	w.WriteString(s)
	w.space()
}

func (w *jsonVariants) text(s string) {
	w.space()
	w.WriteByte('"')
	for _, c := range []byte(s) {
		switch {
		case c < 0x80 && w.odd(10):
			fmt.Fprintf(w, `\u%04x`, c)
		case c == '/' && w.odd(2):
			w.WriteString(`\/`)
		default:
			quoted := AppendLabelString(nil, string([]byte{c}))
			w.Write(quoted[1 : len(quoted)-1])
		}
	}
	w.WriteByte('"')
	w.space()
}

// object writes members in random order, with unknown members among them.
func (w *jsonVariants) object(members ...func()) {
	if !w.plain {
		w.r.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
		if w.odd(3) {
			members = slices.Insert(members, w.r.IntN(len(members)+1), w.unknown)
		}
	}
	w.list('{', '}', members...)
}

func (w *jsonVariants) list(open, end byte, items ...func()) {
	w.token(string(rune(open)))
	for i, item := range items {
		if i > 0 {
			w.token(",")
		}
		item()
	}
	w.token(string(rune(end)))
}

func (w *jsonVariants) unknown() {
	w.member(fmt.Sprint("other", w.r.Uint64()), func() { w.any(3) })
}

func (w *jsonVariants) any(depth int) {
	switch n := w.r.IntN(7); {
	case n < 2 && depth > 0:
		var items []func()
		for range w.r.IntN(4) {
			if n == 0 {
				items = append(items, w.unknown)
			} else {
				items = append(items, func() { w.any(depth - 1) })
			}
		}
		w.list("{["[n], "}]"[n], items...)
	case n == 2:
		w.text(`a string with "]]}" and {":"}`)
	default:
		w.token([]string{"null", "true", "false", "-1.5e+3", "0", "1700000000.123"}[w.r.IntN(6)])
	}
}

func (w *jsonVariants) member(name string, value func()) {
	w.text(name)
	w.token(":")
	value()
}

func (w *jsonVariants) strings(list []string) func() {
	return func() {
		var items []func()
		for _, s := range list {
			items = append(items, func() {
				if w.plain {
					w.Write(AppendString(nil, s))
				} else {
					w.text(s)
				}
			})
		}
		w.list('[', ']', items...)
	}
}

// modelSeries is a series as the tests know it.
type modelSeries struct {
	labels             []Label
	values, histograms []string // Encoded points, without spaces.
}

type model struct {
	series   []modelSeries
	envelope Envelope
}

var oddStrings = []string{"", "a", "b", "b!", "a b", "ab", "job", "node", "__name__", "up", `"`, `\`, "}", `},"values":[[`, "{", "]]}", ":", ",", "é", "\u2028", "\n", "\x00", "/", "10.0.0.1:9090", "<&>"}

func randomLabels(r *rand.Rand) []Label {
	labels := map[string]string{}
	for range r.IntN(5) {
		labels[oddStrings[r.IntN(len(oddStrings))]] = oddStrings[r.IntN(len(oddStrings))]
	}
	var list []Label
	for k, v := range labels {
		list = append(list, Label{k, v})
	}
	slices.SortFunc(list, func(a, b Label) int { return strings.Compare(a.Name, b.Name) })
	return list
}

func compareLabels(a, b []Label) int {
	return slices.CompareFunc(a, b, func(x, y Label) int {
		if c := strings.Compare(x.Name, y.Name); c != 0 {
			return c
		}
		return strings.Compare(x.Value, y.Value)
	})
}

func randomModel(r *rand.Rand) model {
	m := model{envelope: Envelope{Status: "success", ResultType: "matrix"}}
	for range r.IntN(6) {
		s := modelSeries{labels: randomLabels(r)}
		t := int64(1700000000000)
		for n := r.IntN(20); n > 0; n-- {
			t += r.Int64N(20000)
			point := append(AppendTimestamp([]byte{'['}, t), ',')
			if r.IntN(4) == 0 {
				point = AppendHistogram(point, 5, r.Float64(), []Bucket{{0, r.Float64(), 2, 3}, {3, 1, 2, 3}}[:r.IntN(3)])
				s.histograms = append(s.histograms, string(append(point, ']')))
			} else {
				point = append(AppendFloat(append(point, '"'), r.NormFloat64()), `"]`...)
				s.values = append(s.values, string(point))
			}
		}
		if r.IntN(3) == 0 {
			s.histograms = nil
		}
		m.series = append(m.series, s)
	}
	slices.SortFunc(m.series, func(a, b modelSeries) int { return compareLabels(a.labels, b.labels) })
	m.series = slices.CompactFunc(m.series, func(a, b modelSeries) bool { return slices.Equal(a.labels, b.labels) })
	for range r.IntN(3) {
		m.envelope.Warnings = append(m.envelope.Warnings, oddStrings[r.IntN(len(oddStrings))])
	}
	if r.IntN(3) == 0 {
		m.envelope.Infos = []string{"info"}
	}
	return m
}

func (m model) write(w *jsonVariants) string {
	w.Reset()
	points := func(list []string) func() {
		return func() {
			var items []func()
			for _, p := range list {
				items = append(items, func() { w.point(p) })
			}
			w.list('[', ']', items...)
		}
	}
	var all []func()
	for _, s := range m.series {
		all = append(all, func() {
			var labels, members []func()
			for _, l := range s.labels {
				labels = append(labels, func() { w.member(l.Name, func() { w.text(l.Value) }) })
			}
			if !w.plain {
				w.r.Shuffle(len(labels), func(i, j int) { labels[i], labels[j] = labels[j], labels[i] })
			}
			members = append(members, func() { w.member("metric", func() { w.list('{', '}', labels...) }) })
			if len(s.values) > 0 || w.odd(3) {
				members = append(members, func() { w.member("values", points(s.values)) })
			}
			if len(s.histograms) > 0 || w.odd(3) {
				members = append(members, func() { w.member("histograms", points(s.histograms)) })
			}
			w.object(members...)
		})
	}
	data := func() {
		w.object(
			func() { w.member("resultType", func() { w.text(m.envelope.ResultType) }) },
			func() { w.member("result", func() { w.list('[', ']', all...) }) },
		)
	}
	members := []func(){
		func() { w.member("status", func() { w.text(m.envelope.Status) }) },
		func() { w.member("data", data) },
	}
	if len(m.envelope.Warnings) > 0 {
		members = append(members, func() { w.member("warnings", w.strings(m.envelope.Warnings)) })
	}
	if len(m.envelope.Infos) > 0 {
		members = append(members, func() { w.member("infos", w.strings(m.envelope.Infos)) })
	}
	w.object(members...)
	return w.String()
}

// point spreads spaces between the tokens of a point.
func (w *jsonVariants) point(p string) {
	for i := range len(p) {
		if strings.IndexByte("[]{},:", p[i]) >= 0 {
			w.token(p[i : i+1])
		} else {
			w.WriteByte(p[i])
		}
	}
}

// points returns the points in the pieces of an array, without spaces.
func points(t *testing.T, next func() []byte) (list []string) {
	t.Helper()
	for p := next(); p != nil; p = next() {
		var raw []json.RawMessage
		if err := json.Unmarshal(slices.Concat([]byte{'['}, p, []byte{']'}), &raw); err != nil || len(raw) == 0 {
			t.Fatalf("piece %q: %v", p, err)
		}
		for _, point := range raw {
			var b bytes.Buffer
			noError(t, json.Compact(&b, point))
			list = append(list, b.String())
		}
	}
	return list
}

func scanModel(t *testing.T, s *Scanner) (m model) {
	t.Helper()
	for s.Next() {
		labels := try(DecodeLabels(nil, s.Metric())).must(t)
		m.series = append(m.series, modelSeries{labels, points(t, s.NextValues), points(t, s.NextHistograms)})
	}
	if s.Err() != nil {
		t.Fatal(s.Err())
	}
	m.envelope = *s.Envelope()
	return m
}

func TestScanner_AnyValidJSON(t *testing.T) {
	for seed := range uint64(3000) {
		r := rand.New(rand.NewPCG(seed, 1))
		m := randomModel(r)
		src := []byte(m.write(&jsonVariants{r: r, plain: seed%3 == 0}))
		if !json.Valid(src) {
			t.Fatalf("the test writes %s", src)
		}
		for _, size := range []int{16, 64, 256, 4096, 0} {
			var s *Scanner
			if size == 0 {
				s = NewScanner(nil, Options{})
				s.ResetBytes(src)
			} else {
				s = NewScanner(&cutReader{src, 1 + r.IntN(100)}, Options{BufferBytes: size})
			}
			if got := scanModel(t, s); !reflect.DeepEqual(got, m) {
				t.Fatalf("seed %d, buffer of %d, %s:\n got %+v\nwant %+v", seed, size, src, got, m)
			}
		}
	}
}

func TestCompareMetrics_OrdersByLabels(t *testing.T) {
	// Each row is greater than the row before. The metrics of one row are equal.
	rows := [][]string{
		{`{}`, ` { } `},
		{`{"":""}`},
		{`{"__name__":"up"}`, `{"__name__" : "up"}`, `{"__n\u0061me__":"up"}`},
		{`{"__name__":"up","a":"1"}`, `{"a":"1","__name__":"up"}`},
		{`{"__name__":"up","a":"1","b":"1"}`},
		{`{"__name__":"up!"}`},
		{`{"a":""}`},
		{`{"a":"\u0000"}`},
		{`{"a":"\t"}`, `{"a":"\u0009"}`},
		{`{"a":","}`},
		{`{"a":":"}`},
		{`{"a":"\\"}`, `{"a":"\u005c"}`},
		{`{"a":"b"}`},
		{`{"a":"b","a\"":"x"}`},
		{`{"a":"b","c":"d"}`, `{"c":"d","a":"b"}`},
		{`{"a":"b!"}`},
		{`{"a":"b\""}`},
		{`{"a":"}"}`},
		{"{\"a\":\"\u00e9\"}", `{"a":"\u00e9"}`},
		{`{"a":"\ud800"}`, `{"a":"\ufffd"}`},
		{`{"a":"\ud83d\ude00"}`, `{"a":"😀"}`},
		{"{\"a\":\"\xff\"}"},
		{`{"aa":""}`},
		{`{"b":"a"}`},
	}
	for i, row := range rows {
		for j, other := range rows {
			for _, a := range row {
				for _, b := range other {
					want := min(max(i-j, -1), 1)
					if got := CompareMetrics([]byte(a), []byte(b)); min(max(got, -1), 1) != want {
						t.Errorf("%s and %s: got %d, want %d", a, b, got, want)
					}
				}
			}
		}
	}
}

func TestCompareMetrics_MalformedObjectsCompareByBytes(t *testing.T) {
	if CompareMetrics([]byte("x"), []byte("{}")) >= 0 || CompareMetrics([]byte("{}"), []byte("x")) <= 0 || CompareMetrics([]byte("x"), []byte("x")) != 0 {
		t.Error("they do not")
	}
}

func TestCompareMetrics_AnyValidJSON(t *testing.T) {
	for seed := range uint64(20000) {
		r := rand.New(rand.NewPCG(seed, 2))
		var labels [2][]Label
		var text [2][]byte
		for i := range labels {
			labels[i] = randomLabels(r)
			if i == 1 && len(labels[0]) > 0 && r.IntN(2) == 0 {
				labels[1] = slices.Clone(labels[0])
				labels[1][r.IntN(len(labels[1]))].Value = oddStrings[r.IntN(len(oddStrings))]
			}
			w := &jsonVariants{r: r, plain: r.IntN(2) == 0}
			var members []func()
			for _, l := range labels[i] {
				members = append(members, func() { w.member(l.Name, func() { w.text(l.Value) }) })
			}
			if r.IntN(3) == 0 {
				r.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
			}
			w.list('{', '}', members...)
			text[i] = []byte(w.String())
			decoded, err := DecodeLabels(nil, text[i])
			if err != nil || !slices.Equal(decoded, labels[i]) {
				t.Fatalf("%s decoded as %v, %v", text[i], decoded, err)
			}
		}
		got, want := CompareMetrics(text[0], text[1]), compareLabels(labels[0], labels[1])
		if min(max(got, -1), 1) != want {
			t.Fatalf("%s and %s: got %d, want %d", text[0], text[1], got, want)
		}
	}
}

func TestMetricOrder_ComparesConsecutiveObjects(t *testing.T) {
	for seed := range uint64(3000) {
		r := rand.New(rand.NewPCG(seed, 5))
		var order metricOrder
		var last []Label
		for n := range 20 {
			labels := randomLabels(r)
			if n > 0 && r.IntN(3) > 0 {
				labels = slices.Clone(last)
				for range r.IntN(3) {
					if i := r.IntN(len(labels) + 1); i < len(labels) {
						labels[i].Value += oddStrings[r.IntN(len(oddStrings))]
						labels = labels[:r.IntN(len(labels)-i)+i+1]
					}
				}
			}
			var members []func()
			w := &jsonVariants{r: r, plain: r.IntN(10) > 0}
			for _, l := range labels {
				members = append(members, func() { w.member(l.Name, func() { w.text(l.Value) }) })
			}
			w.list('{', '}', members...)
			form, c, _, wrong := order.compareNext([]byte(w.String()))
			if form == formBad {
				t.Fatalf("%s: %s", w.String(), wrong)
			}
			if want := compareLabels(labels, last); n > 0 && min(max(c, -1), 1) != want {
				t.Fatalf("%s after %v: got %d, want %d", w.String(), last, c, want)
			}
			if f, _, _ := metricFormOf([]byte(w.String())); f != form {
				t.Fatalf("%s: form %d, want %d", w.String(), form, f)
			}
			last = labels
		}
		if _, _, _, wrong := order.compareNext([]byte(`{"__name__":"up","a"}`)); wrong == "" {
			t.Fatal("a bad object was accepted")
		}
	}
}

func TestDecodeLabels_RejectsBadObjects(t *testing.T) {
	for _, m := range []string{"", "{", "}", "[]", `""`, `{"a"}`, `{"a":}`, `{"a":1}`, `{"a":"b",}`, `{,"a":"b"}`, `{"a":"b"}}`, `{"a":"b"`,
		`{"a":"b`, `{"a":"b\`, `{"a":"\x"}`, `{"a":"\u12"}`, `{"a":"\u12g4"}`, "{\"a\":\"\n\"}", `{"a":"b" "c":"d"}`, `{"a":{}}`} {
		if _, err := DecodeLabels(nil, []byte(m)); err == nil {
			t.Errorf("%s was decoded", m)
		}
		if form, _, _ := metricFormOf([]byte(m)); form != formBad {
			t.Errorf("%s was accepted", m)
		}
		s := NewScanner(bytes.NewReader(fmt.Appendf(nil, `{"data":{"result":[{"metric":%s,"values":[[1,"2"]]}]}}`, m)), Options{})
		for s.Next() {
		}
		if s.Err() == nil {
			t.Errorf("%s was scanned", m)
		}
	}
}

func FuzzCompareMetrics(f *testing.F) {
	f.Add([]byte(`{"a":"b"}`), []byte(`{"a":"b","c":"\u0064"}`))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		got := CompareMetrics(a, b)
		if back := CompareMetrics(b, a); min(max(back, -1), 1) != -min(max(got, -1), 1) {
			t.Fatalf("%d one way, %d the other", got, back)
		}
		la, errA := DecodeLabels(nil, a)
		lb, errB := DecodeLabels(nil, b)
		if errA != nil || errB != nil || bytes.Equal(a, b) {
			return
		}
		if want := compareLabels(la, lb); min(max(got, -1), 1) != want {
			t.Fatalf("got %d, want %d", got, want)
		}
	})
}

func BenchmarkCompareMetrics(b *testing.B) {
	x := []byte(`{"__name__":"http_requests_total","code":"200","handler":"/api/v1/query_range","instance":"10.0.0.1:9090","job":"prometheus","method":"get","pod":"prometheus-0"}`)
	y := bytes.Replace(x, []byte("10.0.0.1"), []byte("10.0.0.2"), 1)
	b.Run("equal", func(b *testing.B) {
		z := bytes.Clone(x)
		for b.Loop() {
			CompareMetrics(x, z)
		}
	})
	b.Run("different", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			CompareMetrics(x, y)
		}
	})
	b.Run("different and checked before", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			compareMetrics(x, y, formCanonical, formCanonical)
		}
	})
	b.Run("escaped", func(b *testing.B) {
		b.ReportAllocs()
		z := bytes.Replace(y, []byte("/"), []byte(`\/`), 1)
		for b.Loop() {
			CompareMetrics(x, z)
		}
	})
}
