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
			if err := json.Compact(&b, point); err != nil {
				t.Fatal(err)
			}
			list = append(list, b.String())
		}
	}
	return list
}

func scanModel(t *testing.T, s *Scanner) (m model) {
	t.Helper()
	for s.Next() {
		labels, err := DecodeLabels(nil, s.Metric())
		if err != nil {
			t.Fatal(err)
		}
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
