package splice

import (
	"bytes"
	"errors"
	"testing"

	"github.com/ferula-io/ferula/promjson"
)

func union(t *testing.T, answers ...string) string {
	t.Helper()
	var lists []List
	for _, a := range answers {
		l, err := ReadList([]byte(a))
		check(t, err == nil, "%s: %v", a, err)
		lists = append(lists, l)
	}
	var out bytes.Buffer
	check(t, WriteUnion(&out, lists) == nil, "write")
	return out.String()
}

func TestListsAreUnitedInOrderEachElementOnce(t *testing.T) {
	for _, tt := range []struct {
		want    string
		answers []string
	}{
		{`{"status":"success","data":[]}`, []string{`{"status":"success","data":[]}`, `{"status":"success","data":null}`, `{"status":"success"}`}},
		{`{"status":"success","data":["a","b","b!","é"]}`, []string{`{"status":"success","data":["b","é"]}`, ` { "data" : [ "a" , "b!" , "\u0062" ] , "status" : "success" } `}},
		{`{"status":"success","data":["a\"]","c"],"warnings":["w"],"infos":["i"]}`, []string{`{"status":"success","data":["a\"]"],"warnings":["w"]}`, `{"status":"success","data":["c"],"warnings":["w"],"infos":["i"]}`}},
		{`{"status":"success","data":[{"a":"b"},{"a":"b","c":"}"},{"b":"1"}]}`, []string{`{"status":"success","data":[{"b":"1"},{"a":"b"}]}`, `{"status":"success","data":[{"a":"b","c":"}"},{"a":"b"}]}`}},
	} {
		got := union(t, tt.answers...)
		check(t, got == tt.want, "%q: %s, want %s", tt.answers, got, tt.want)
	}
}

func TestAnswersThatAreNoListsAreErrors(t *testing.T) {
	for _, bad := range []string{``, `{`, `{"status":"success","data":[1]}`, `{"status":"success","data":[["a"]]}`, `{"status":"success","data":{"resultType":"matrix","result":[{"metric":{},"values":[[1,"1"]]}]}}`, `{"data":["a"]}`} {
		_, err := ReadList([]byte(bad))
		check(t, err != nil, "%s is a list", bad)
	}
	_, err := ReadList([]byte(`{"status":"error","errorType":"bad_data","error":"no"}`))
	var said *promjson.AnswerError
	check(t, errors.As(err, &said) && said.Message == "no", "%v", err)
}
