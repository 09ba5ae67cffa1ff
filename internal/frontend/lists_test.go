package frontend

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"github.com/ferula-io/ferula/promjson"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode/utf16"
)

func union(t *testing.T, bodies ...string) string {
	t.Helper()
	var lists []elementList
	for _, a := range bodies {
		l, err := readList([]byte(a))
		check(t, err == nil, "%s: %v", a, err)
		lists = append(lists, l)
	}
	var out bytes.Buffer
	check(t, writeUnion(&out, lists) == nil, "write")
	return out.String()
}

func TestWriteUnion_SortedAndDeduplicated(t *testing.T) {
	for _, tt := range []struct {
		want   string
		bodies []string
	}{
		{`{"status":"success","data":[]}`, []string{`{"status":"success","data":[]}`, `{"status":"success","data":null}`, `{"status":"success"}`}},
		{`{"status":"success","data":["a","b","b!","é"]}`, []string{`{"status":"success","data":["b","é"]}`, ` { "data" : [ "a" , "b!" , "\u0062" ] , "status" : "success" } `}},
		{`{"status":"success","data":["a\"]","c"],"warnings":["w"],"infos":["i"]}`, []string{`{"status":"success","data":["a\"]"],"warnings":["w"]}`, `{"status":"success","data":["c"],"warnings":["w"],"infos":["i"]}`}},
		{`{"status":"success","data":[{"a":"b"},{"a":"b","c":"}"},{"b":"1"}]}`, []string{`{"status":"success","data":[{"b":"1"},{"a":"b"}]}`, `{"status":"success","data":[{"a":"b","c":"}"},{"a":"b"}]}`}},
	} {
		got := union(t, tt.bodies...)
		check(t, got == tt.want, "%q: %s, want %s", tt.bodies, got, tt.want)
	}
}

// The union of any lists equals the union of their sets, whether the lists are sorted or have escapes or not.
func TestWriteUnion_EqualsASet(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	words := []string{"a", "b", "aa", "a b", "é", "\u00e9", "<", "\"", "\\", "\n", "", "z", "\U0001F600", "~", "\x7f"}
	for range 300 {
		want := map[string]bool{}
		var bodies []string
		for range 1 + r.IntN(4) {
			b := []byte(`{"status":"success","data":[`)
			for i := range r.IntN(10) {
				if i > 0 {
					b = append(b, ',')
				}
				word := words[r.IntN(len(words))] + words[r.IntN(len(words))]
				want[word] = true
				if r.IntN(2) == 0 {
					b = promjson.AppendString(b, word)
				} else { // encoded as \uXXXX escapes
					b = append(b, '"')
					for _, unit := range utf16.Encode([]rune(word)) {
						b = fmt.Appendf(b, `\u%04x`, unit)
					}
					b = append(b, '"')
				}
			}
			bodies = append(bodies, string(append(b, "]}"...)))
		}
		var got struct{ Data []string }
		text := union(t, bodies...)
		check(t, json.Unmarshal([]byte(text), &got) == nil, "%s", text)
		check(t, slices.Equal(got.Data, slices.Sorted(maps.Keys(want))), "%q: %q", bodies, got.Data)
	}
}

func TestReadList_Allocations(t *testing.T) {
	b := []byte(`{"status":"success","data":[`)
	const n = 10_000
	for i := range n {
		if i > 0 {
			b = append(b, ',')
		}
		b = fmt.Appendf(b, `"value-%06d"`, i)
	}
	b = append(b, "]}"...)
	allocs := testing.AllocsPerRun(5, func() {
		l, err := readList(b)
		check(t, err == nil, "%v", err)
		check(t, writeUnion(io.Discard, []elementList{l, l}) == nil, "write")
	})
	check(t, allocs < n/10, "%v allocations for %d values", allocs, n)
}

func TestReadList_OtherResponsesAreErrors(t *testing.T) {
	for _, bad := range []string{``, `{`, `{"status":"success","data":[1]}`, `{"status":"success","data":[["a"]]}`, `{"status":"success","data":{"resultType":"matrix","result":[{"metric":{},"values":[[1,"1"]]}]}}`, `{"data":["a"]}`} {
		_, err := readList([]byte(bad))
		check(t, err != nil, "%s is a list", bad)
	}
	_, err := readList([]byte(`{"status":"error","errorType":"bad_data","error":"no"}`))
	var apiErr *promjson.APIError
	check(t, errors.As(err, &apiErr) && apiErr.Message == "no", "%v", err)
}

var errFull = errors.New("full")

// A union is written in pieces of 64 KiB; every write may fail.
func TestWriteUnion_ReturnsTheErrorOfAnyWrite(t *testing.T) {
	var body strings.Builder
	body.WriteString(`{"status":"success","data":[`)
	for i := range 30_000 {
		fmt.Fprintf(&body, `%s"name%06d"`, strings.Repeat(",", min(i, 1)), i)
	}
	body.WriteString(`]}`)
	list, err := readList([]byte(body.String()))
	if err != nil {
		t.Fatal(err)
	}
	var whole bytes.Buffer
	sizes := []int{}
	if err := writeUnion(writerFunc(func(p []byte) (int, error) { sizes = append(sizes, len(p)); return whole.Write(p) }), []elementList{list}); err != nil || whole.String() != body.String() {
		t.Fatalf("%v, %d bytes of %d", err, whole.Len(), body.Len())
	}
	if len(sizes) != 6 {
		t.Errorf("%d writes", len(sizes))
	}
	for i, n := range sizes {
		if i < len(sizes)-1 && (n < 64<<10 || n > 64<<10+20) {
			t.Errorf("write %d has %d bytes", i, n)
		}
		left := i
		err := writeUnion(writerFunc(func(p []byte) (int, error) {
			if left--; left < 0 {
				return 0, errFull
			}
			return len(p), nil
		}), []elementList{list})
		if !errors.Is(err, errFull) {
			t.Errorf("write %d fails: %v", i, err)
		}
	}
}

func TestWriteFull_WritesAtItsSize(t *testing.T) {
	for _, n := range []int{4, 5, 6} {
		var b bytes.Buffer
		rest, err := writeFull(&b, make([]byte, n), 5)
		if wrote := b.Len() == n; err != nil || wrote != (n >= 5) || len(rest)+b.Len() != n {
			t.Errorf("%d bytes: %d written, %d left, %v", n, b.Len(), len(rest), err)
		}
	}
}

func TestAnnotationSet_IsLimited(t *testing.T) {
	var s annotationSet
	for i := range annotationsMax + 5 {
		s.add([]string{fmt.Sprint(i), "0"})
	}
	if len(s.list) != 1000 || s.list[0] != "0" || s.list[999] != "999" {
		t.Errorf("%d texts", len(s.list))
	}
}

func TestUniteMembers_OmitsThoseThatDiffer(t *testing.T) {
	body := func(members string) string { return `{"status":"success","data":["a"]` + members + `}` }
	for name, tt := range map[string]struct{ one, two, want string }{
		"equal":          {`,"x":1`, `,"x":1`, `,"x":1`},
		"different":      {`,"x":1,"y":2`, `,"x":3,"y":2`, `,"y":2`},
		"of one":         {`,"x":1`, ``, `,"x":1`},
		"of the other":   {``, `,"x":1`, `,"x":1`},
		"partial first":  {`,"isPartial":true`, `,"isPartial":false`, `,"isPartial":true`},
		"partial second": {`,"isPartial":false`, `,"isPartial":true`, `,"isPartial":true`},
		"null":           {`,"isPartial":false`, `,"isPartial":null`, `,"isPartial":false`},
	} {
		if got := union(t, body(tt.one), body(tt.two)); strings.TrimSpace(got) != body(tt.want) {
			t.Errorf("%s: %s", name, got)
		}
	}
}

// Unknown members of a response are kept until their total size would be above unknownBytes.
func TestReadList_UnknownMembersAreLimited(t *testing.T) {
	member := func(name string, n int) string { return `,"` + name + `":"` + strings.Repeat("v", n-len(name)-2) + `"` }
	for name, tt := range map[string]struct {
		members string
		want    int
	}{
		"all bytes":           {member("x", unknownBytes), 1},
		"a byte more":         {member("x", unknownBytes+1), 0},
		"the second is large": {member("x", 10) + member("y", unknownBytes-9), 1},
		"both":                {member("x", 10) + member("y", unknownBytes-10), 2},
	} {
		l, err := readList([]byte(`{"status":"success","data":[]` + tt.members + `}`))
		if err != nil || len(l.members) != tt.want {
			t.Errorf("%s: %d, %v", name, len(l.members), err)
		}
	}
	if l, err := readList([]byte(`{"status":"success","data":null,"infos":["i"],"warnings":["w"]}`)); err != nil || l.elements != nil || len(l.infos) != 1 || len(l.Warnings) != 1 || l.Partial {
		t.Errorf("%+v, %v", l, err)
	}
	for _, body := range []string{`{"status":"success","data":[1]}`, `{"status":"success","data":["\ud800\"]}`, `{"status":"success","data":{"resultType":"vector","result":[{"metric":{},"value":[1,"1"]}]}}`} {
		if _, err := readList([]byte(body)); err == nil {
			t.Errorf("%s: no error", body)
		}
	}
	var api *promjson.APIError
	if _, err := readList([]byte(`{"status":"error","errorType":"bad_data","error":"no"}`)); !errors.As(err, &api) || api.Status != "error" || api.Type != "bad_data" || api.Message != "no" {
		t.Errorf("%v", err)
	}
}

func TestElements_EndAndOrder(t *testing.T) {
	list := []byte(`["b", "a\"]", {"x":"}\"{","y":{"z":"1"}} ,"ä","` + "\\u00e4" + `"]`)
	all, err := elementsOf(list)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range all {
		got = append(got, string(e.raw))
	}
	if want := `"b" | "a\"]" | {"x":"}\"{","y":{"z":"1"}} | "ä" | "\u00e4"`; strings.Join(got, " | ") != want {
		t.Errorf("%q", got)
	}
	if string(all[1].value()) != `a"]` || string(all[3].value()) != "ä" || string(all[4].value()) != "ä" || compareElements(&all[3], &all[4]) != 0 {
		t.Errorf("%q %q %q", all[1].value(), all[3].value(), all[4].value())
	}
	sortElements(all)
	if string(all[0].raw) == `"b"` && string(all[1].raw) == `"a\"]"` {
		t.Error("not sorted")
	}
	if n := valueEnd([]byte(`"x`), 0); n != 2 {
		t.Errorf("a string without end ends at %d", n)
	}
}

var _ io.Writer = writerFunc(nil)

func TestUniteMembers_APartialListMakesTheUnionPartial(t *testing.T) {
	list := func(value string) elementList {
		return elementList{members: []promjson.Member{{Name: "isPartial", Value: []byte(value)}}}
	}
	for _, lists := range [][]elementList{{list("false"), list("true")}, {list("true"), list("false")}, {list("false"), list("true"), list("false")}} {
		if got := uniteMembers(lists); len(got) != 1 || string(got[0].Value) != "true" {
			t.Errorf("%d lists: %+v", len(lists), got)
		}
	}
	if got := uniteMembers([]elementList{list("false"), list("null")}); len(got) != 1 || isPartial(got[0]) {
		t.Errorf("no list is partial: %+v", got)
	}
}
