package promjson

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

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
