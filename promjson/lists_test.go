package promjson

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"unicode/utf8"
)

// listOf decodes a response of one of four kinds and encodes it again.
func listOf(kind string, s *Scanner) (string, error) {
	var out bytes.Buffer
	e := NewEncoder(&out, 0)
	var err error
	switch kind {
	case "strings":
		var list []string
		list, err = Collect(s.Strings())
		e.BeginStrings()
		for _, v := range list {
			e.AddString(v)
		}
	case "labelsets":
		var list [][]Label
		list, err = Collect(s.LabelSets())
		e.BeginLabelSets()
		for _, labels := range list {
			e.LabelSet(Pairs(labels))
		}
	case "exemplars":
		var list []Exemplar
		list, err = Collect(s.Exemplars())
		e.BeginExemplars()
		for i, x := range list {
			if i == 0 || text(x.Series) != text(list[i-1].Series) {
				e.ExemplarSeries(Pairs(x.Series))
			}
			e.Exemplar(Pairs(x.Labels), x.T, x.F)
		}
	case "metadata":
		var list []Metadata
		list, err = Collect(s.Metadata())
		e.BeginMetadata()
		for _, m := range list {
			e.Metadata(m.Family, m.Type, m.Unit, m.Help)
		}
	}
	if err != nil {
		return "", err
	}
	err = e.Close(s.Envelope().Warnings, s.Envelope().Infos)
	return out.String(), err
}

var listKinds = []string{"strings", "labelsets", "exemplars", "metadata"}

func listFile(t testing.TB, kind string) []byte {
	t.Helper()
	src := try(os.ReadFile("testdata/lists/" + kind + ".json")).must(t)
	return src
}

func TestLists_ResponsesOfPrometheusRoundTrip(t *testing.T) {
	for _, kind := range listKinds {
		src := listFile(t, kind)
		for _, o := range []Options{{}, {BufferBytes: 16}} {
			for cut, r := range readers(src) {
				got, err := listOf(kind, NewScanner(r, o))
				if err != nil {
					t.Error(err)
				}
				check(t, kind+", read "+cut, got, string(src))
			}
		}
		s := NewScanner(nil, Options{})
		for range 2 { // with the memory of the response before
			s.ResetBytes(src)
			got, err := listOf(kind, s)
			check(t, fmt.Sprint(kind, " in memory ", err), got, string(src))
		}
	}
}

func TestLists_EveryPrefixIsAnError(t *testing.T) {
	for _, kind := range listKinds {
		src := listFile(t, kind)
		for n := range src {
			if _, err := listOf(kind, NewScanner(bytes.NewReader(src[:n]), Options{BufferBytes: 16})); !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Fatalf("%s of %d bytes: %v", kind, n, err)
			}
		}
	}
}

func TestLists_CallersTypes(t *testing.T) {
	types := callersTypes()
	sets, err := Collect(types.LabelSets(NewScanner(bytes.NewReader(listFile(t, "labelsets")), Options{})))
	check(t, fmt.Sprint("label sets ", err), text(sets), `[map[__name__:up job:a"<b>] map[] map[x:ä`+"\n]]")
	exemplars, err := Collect(types.Exemplars(NewScanner(bytes.NewReader(listFile(t, "exemplars")), Options{})))
	check(t, fmt.Sprint("exemplars ", err), text(exemplars), "["+
		"{Series:map[__name__:wait_seconds_bucket le:1] Labels:map[trace_id:4bf92f35] Point:{Value:0.25 At:1700000000500}} "+
		"{Series:map[__name__:wait_seconds_bucket le:1] Labels:map[] Point:{Value:NaN At:-1500}} "+
		"{Series:map[] Labels:map[a:b c:d] Point:{Value:+Inf At:0}}]")

	failed := errors.New("the caller's")
	for bad := range 3 { // a series, the labels of its first exemplar, and of its second
		calls := 0
		types.Labels = func([]Label) (map[string]string, error) {
			if calls++; calls > bad {
				return nil, failed
			}
			return map[string]string{}, nil
		}
		s := NewScanner(bytes.NewReader(listFile(t, "exemplars")), Options{})
		got, err := Collect(types.Exemplars(s))
		if !errors.Is(err, failed) || len(got) != max(bad-1, 0) || s.Err() != nil {
			t.Errorf("call %d: %d exemplars, %v, %v", bad, len(got), err, s.Err())
		}
		calls = 0
		if sets, err := Collect(types.LabelSets(NewScanner(bytes.NewReader(listFile(t, "labelsets")), Options{}))); !errors.Is(err, failed) || len(sets) != bad {
			t.Errorf("call %d: %v, %v", bad, sets, err)
		}
	}
}

func TestLists_AnyValidJSON(t *testing.T) {
	for _, tt := range []struct{ kind, data, want string }{
		{"strings", `null`, `[]`},
		{"strings", ` [ ] `, `[]`},
		{"strings", ` [ "\u0061" , "b\/" ] `, `["a","b/"]`},
		{"labelsets", `[{"b":"1","a":"\n"}, { } ]`, `[{"a":"\n","b":"1"},{}]`},
		{"exemplars", `[{"exemplars":[{"timestamp":1.5e0,"x":[{}],"value":"5e-1","labels":{}}],"y":"]","seriesLabels":{"a":"b"}}]`,
			`[{"seriesLabels":{"a":"b"},"exemplars":[{"labels":{},"value":"0.5","timestamp":1.500}]}]`},
		{"exemplars", `[{"seriesLabels":{},"exemplars":null},{"seriesLabels":{"a":"b"}},{"exemplars":[],"seriesLabels":{}}]`, `[]`},
		{"metadata", `{ "a" : [ {"help":"h","more":{"help":"no"},"type":"gauge"} , {} ] , "b":[], "c":null }`,
			`{"a":[{"type":"gauge","unit":"","help":"h"},{"type":"","unit":"","help":""}]}`},
		{"metadata", `{"\u0061":[{"type":"gauge"}]}`, `{"a":[{"type":"gauge","unit":"","help":""}]}`},
	} {
		src := ` { "infos" : [ "i" ] , "isPartial" : true , "data" : ` + tt.data + ` , "status" : "success" , "warnings" : null } `
		for cut, r := range readers([]byte(src)) {
			s := NewScanner(r, Options{BufferBytes: 16, MaxUnknownBytes: 100})
			got, err := listOf(tt.kind, s)
			check(t, fmt.Sprint(tt.data, " read ", cut, err), got, `{"status":"success","data":`+tt.want+`,"infos":["i"]}`)
			if u := s.Envelope().Unknown; len(u) != 1 || u[0].Name != "isPartial" || string(u[0].Value) != "true" {
				t.Errorf("unknown members: %v", u)
			}
		}
	}
}

func TestLists_ErrorsHaveTheirOffset(t *testing.T) {
	for _, tt := range []struct{ kind, data, want string }{
		{"strings", `{"a":["b"]}`, `byte 8: malformed response: expected [`},
		{"strings", `["a",]`, `byte 13: malformed response: expected a string`},
		{"strings", `["a" "b"]`, `byte 13: malformed response: expected a comma or the closing bracket`},
		{"strings", `[1]`, `byte 9: malformed response: expected a string`},
		{"strings", `["\x"]`, `byte 11: malformed response: an unknown escape`},
		{"strings", `nope`, `byte 9: malformed response: neither true, false nor null`},
		{"labelsets", `[["a"]]`, `byte 9: malformed response: expected {`},
		{"labelsets", `[{},{"a":1}]`, `byte 17: malformed response: expected a string`},
		{"exemplars", `[{"exemplars":[]}]`, `byte 25: malformed response: exemplars without a series`},
		{"exemplars", `[{"seriesLabels":{},"seriesLabels":{}}]`, `byte 43: malformed response: duplicate member`},
		{"exemplars", `[{"seriesLabels":{},"exemplars":[],"exemplars":[]}]`, `byte 55: malformed response: duplicate member`},
		{"exemplars", `[{"seriesLabels":{},"exemplars":[{"labels":{},"value":"1"}]}]`, `byte 66: malformed response: an exemplar without a value or a timestamp`},
		{"exemplars", `[{"seriesLabels":{},"exemplars":[{"value":"x","timestamp":1}]}]`, `byte 53: malformed response: expected a float in quotes`},
		{"exemplars", `[{"exemplars":[{"value":"x","timestamp":1}],"seriesLabels":{}}]`, `byte 35: malformed response: expected a float in quotes`},
		{"exemplars", `[{"seriesLabels":{},"exemplars":[{"value":"1","timestamp":"1"}]}]`, `byte 66: malformed response: expected a time`},
		{"metadata", `[]`, `byte 8: malformed response: expected {`},
		{"metadata", `{"resultType":"matrix"}`, `byte 22: malformed response: expected [`},
		{"metadata", `{"a":[{"type":1}]}`, `byte 22: malformed response: expected a string`},
	} {
		for cut, r := range readers([]byte(`{"data":` + tt.data + `,"status":"success"}`)) {
			s := NewScanner(r, Options{BufferBytes: 16})
			_, err := listOf(tt.kind, s)
			check(t, tt.kind+" "+tt.data+" read "+cut, fmt.Sprint(err), "promjson: "+tt.want)
			if !errors.Is(s.Err(), err) || s.Next() {
				t.Errorf("%s: %v after %v", tt.data, s.Err(), err)
			}
		}
	}
}

func TestLists_StatusOfTheResponse(t *testing.T) {
	for _, kind := range listKinds {
		var api *APIError
		_, err := listOf(kind, NewScanner(strings.NewReader(`{"status":"error","errorType":"timeout","error":"slow"}`), Options{}))
		if !errors.As(err, &api) || api.Type != "timeout" || api.Message != "slow" {
			t.Errorf("%s: %v", kind, err)
		}
		for _, wrong := range []string{"", "{} ", "[]", `{"status":"success"}x`, `{"data":null,"data":null,"status":"success"}`} {
			if _, err := listOf(kind, NewScanner(strings.NewReader(wrong), Options{})); err == nil {
				t.Errorf("%s: no error for %q", kind, wrong)
			}
		}
	}
}

func TestLists_AResponseIsReadOnce(t *testing.T) {
	src := string(listFile(t, "strings"))
	s := NewScanner(strings.NewReader(src), Options{})
	for name, err := range s.Strings() {
		check(t, "the first", fmt.Sprint(name, err), "__name__<nil>")
		break
	}
	if list, err := Collect(s.Strings()); len(list) > 0 || !errors.Is(err, errRead) || s.Next() || s.Err() != nil {
		t.Errorf("again: %q, %v", list, err)
	}
	s.Reset(strings.NewReader(src))
	if list, err := Collect(s.Strings()); len(list) != 5 || err != nil {
		t.Errorf("after a reset: %q, %v", list, err)
	}
	q := NewScanner(strings.NewReader(matrixResponse(`{"metric":{}},{"metric":{}}`)), Options{})
	q.Next()
	if _, err := Collect(q.Strings()); !errors.Is(err, errRead) || !q.Next() {
		t.Errorf("within a query: %v", err)
	}
}

// A response of any length is decoded in the memory of one element.
func TestLists_MemoryIsThatOfOneElement(t *testing.T) {
	const repeats = 20_000
	o := Options{BufferBytes: 1 << 10, MaxBufferBytes: 4 << 10}
	for kind, parts := range map[string][3]string{
		"strings":   {`[`, `"__name__",`, `""]`},
		"labelsets": {`[`, `{"__name__":"up","job":"node"},`, `{}]`},
		"exemplars": {`[{"seriesLabels":{"a":"b"},"exemplars":[`, `{"labels":{"trace_id":"x"},"value":"1","timestamp":1.5},`, `{"value":"1","timestamp":2}]}]`},
		"metadata":  {`{"up":[`, `{"type":"gauge","unit":"","help":"h"},`, `{}]}`},
	} {
		s := NewScanner(io.MultiReader(strings.NewReader(`{"status":"success","data":`+parts[0]),
			io.LimitReader(&repeated{piece: parts[1]}, int64(repeats*len(parts[1]))), strings.NewReader(parts[2]+"}")), o)
		n := 0
		count := func(err error) bool {
			if err != nil {
				t.Errorf("%s: %v", kind, err)
			}
			n++
			return true
		}
		switch kind {
		case "strings":
			s.Strings()(func(_ string, err error) bool { return count(err) })
		case "labelsets":
			s.LabelSets()(func(_ []Label, err error) bool { return count(err) })
		case "exemplars":
			s.Exemplars()(func(_ Exemplar, err error) bool { return count(err) })
		case "metadata":
			s.Metadata()(func(_ Metadata, err error) bool { return count(err) })
		}
		if n != repeats+1 || len(s.buf) > o.MaxBufferBytes {
			t.Errorf("%s: %d elements, a buffer of %d", kind, n, len(s.buf))
		}
	}
	long := strings.Repeat("x", 5000)
	for kind, data := range map[string]string{
		"strings":   `["` + long + `"]`,
		"labelsets": `[{"a":"` + long + `"}]`,
		"exemplars": `[{"exemplars":[` + strings.Repeat(`{"value":"1","timestamp":2},`, 300) + `{"value":"1","timestamp":2}],"seriesLabels":{}}]`,
		"metadata":  `{"a":[{"help":"` + long + `"}]}`,
	} {
		if _, err := listOf(kind, NewScanner(strings.NewReader(`{"status":"success","data":`+data+`}`), o)); !errors.Is(err, ErrLimit) {
			t.Errorf("%s beyond the limit: %v", kind, err)
		}
	}
}

// Accepted input is JSON that encoding/json decodes to the same values, with readers of
// any kind.
func FuzzLists(f *testing.F) {
	for i, kind := range listKinds {
		f.Add(uint8(i), listFile(f, kind))
	}
	f.Add(uint8(0), []byte("{\"status\":\"success\",\"data\":[\"\xff\",\"\\ud800\"]}"))
	f.Add(uint8(2), []byte(`{"status":"success","data":[{"exemplars":[{"value":"1","timestamp":1.5}],"seriesLabels":{"a":"b"}}]}`))
	f.Fuzz(func(t *testing.T, which uint8, src []byte) {
		kind := listKinds[int(which)%len(listKinds)]
		got, err := listOf(kind, NewScanner(bytes.NewReader(src), Options{}))
		small, smallErr := listOf(kind, NewScanner(iotestOneByte(string(src)), Options{BufferBytes: 16}))
		if got != small || fmt.Sprint(err) != fmt.Sprint(smallErr) {
			t.Fatalf("%s, %v; byte by byte %s, %v", got, err, small, smallErr)
		}
		var e *Error
		if errors.As(err, &e) && (e.Offset < 0 || e.Offset > int64(len(src))) {
			t.Fatalf("no offset: %v", err)
		}
		if err != nil {
			return
		}
		if !json.Valid(src) {
			t.Fatalf("not JSON: %q", src)
		}
		if kind == "strings" {
			check(t, "encoding/json", text(stringsOf(t, []byte(got))), text(stringsOf(t, src)))
		}
		if !utf8.Valid(src) {
			return // The encoder writes an invalid byte as the escape of the replacement character, as encoding/json does, and that character as it is.
		}
		again, err := listOf(kind, NewScanner(strings.NewReader(got), Options{}))
		if again != got || err != nil {
			t.Fatalf("%s, again %s, %v", got, again, err)
		}
	})
}

// stringsOf decodes the data of a response with encoding/json.
func stringsOf(t *testing.T, src []byte) (list []string) {
	t.Helper()
	var response map[string]json.RawMessage // A map, because names of structs' fields match in any case.
	noError(t, json.Unmarshal(src, &response))
	if data, ok := response["data"]; ok {
		noError(t, json.Unmarshal(data, &list))
	}
	return list
}
