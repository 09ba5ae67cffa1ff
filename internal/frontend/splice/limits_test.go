package splice

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/ferula-io/ferula/promjson"
)

var errFull = errors.New("full")

// A union is written in pieces of 64 KiB; every write may fail.
func TestWriteUnion_ReturnsTheErrorOfAnyWrite(t *testing.T) {
	var body strings.Builder
	body.WriteString(`{"status":"success","data":[`)
	for i := range 30_000 {
		fmt.Fprintf(&body, `%s"name%06d"`, strings.Repeat(",", min(i, 1)), i)
	}
	body.WriteString(`]}`)
	list, err := ReadList([]byte(body.String()))
	if err != nil {
		t.Fatal(err)
	}
	var whole bytes.Buffer
	sizes := []int{}
	if err := WriteUnion(writerFunc(func(p []byte) (int, error) { sizes = append(sizes, len(p)); return whole.Write(p) }), []List{list}); err != nil || whole.String() != body.String() {
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
		err := WriteUnion(writerFunc(func(p []byte) (int, error) {
			if left--; left < 0 {
				return 0, errFull
			}
			return len(p), nil
		}), []List{list})
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
		l, err := ReadList([]byte(`{"status":"success","data":[]` + tt.members + `}`))
		if err != nil || len(l.members) != tt.want {
			t.Errorf("%s: %d, %v", name, len(l.members), err)
		}
	}
	if l, err := ReadList([]byte(`{"status":"success","data":null,"infos":["i"],"warnings":["w"]}`)); err != nil || l.elements != nil || len(l.infos) != 1 || len(l.Warnings) != 1 || l.Partial {
		t.Errorf("%+v, %v", l, err)
	}
	for _, body := range []string{`{"status":"success","data":[1]}`, `{"status":"success","data":["\ud800\"]}`, `{"status":"success","data":{"resultType":"vector","result":[{"metric":{},"value":[1,"1"]}]}}`} {
		if _, err := ReadList([]byte(body)); err == nil {
			t.Errorf("%s: no error", body)
		}
	}
	var api *promjson.APIError
	if _, err := ReadList([]byte(`{"status":"error","errorType":"bad_data","error":"no"}`)); !errors.As(err, &api) || api.Status != "error" || api.Type != "bad_data" || api.Message != "no" {
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
