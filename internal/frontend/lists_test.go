package splice

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"unicode/utf16"

	"github.com/ferula-io/ferula/promjson"
)

func union(t *testing.T, bodies ...string) string {
	t.Helper()
	var lists []List
	for _, a := range bodies {
		l, err := ReadList([]byte(a))
		check(t, err == nil, "%s: %v", a, err)
		lists = append(lists, l)
	}
	var out bytes.Buffer
	check(t, WriteUnion(&out, lists) == nil, "write")
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
		l, err := ReadList(b)
		check(t, err == nil, "%v", err)
		check(t, WriteUnion(io.Discard, []List{l, l}) == nil, "write")
	})
	check(t, allocs < n/10, "%v allocations for %d values", allocs, n)
}

func TestReadList_OtherResponsesAreErrors(t *testing.T) {
	for _, bad := range []string{``, `{`, `{"status":"success","data":[1]}`, `{"status":"success","data":[["a"]]}`, `{"status":"success","data":{"resultType":"matrix","result":[{"metric":{},"values":[[1,"1"]]}]}}`, `{"data":["a"]}`} {
		_, err := ReadList([]byte(bad))
		check(t, err != nil, "%s is a list", bad)
	}
	_, err := ReadList([]byte(`{"status":"error","errorType":"bad_data","error":"no"}`))
	var apiErr *promjson.APIError
	check(t, errors.As(err, &apiErr) && apiErr.Message == "no", "%v", err)
}
