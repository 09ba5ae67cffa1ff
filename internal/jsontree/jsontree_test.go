package jsontree

import (
	"encoding/json"
	"errors"
	"reflect"
	"testing"
)

// plain converts a value to the result of encoding/json.
func plain(v Value) any {
	switch v.Kind {
	case Bool:
		return v.Bool()
	case Number:
		return v.Float()
	case String:
		return v.Text()
	case Array:
		list := make([]any, 0, len(v.Elements()))
		for _, e := range v.Elements() {
			list = append(list, plain(e))
		}
		return list
	case Object:
		object := map[string]any{}
		for _, m := range v.Members() {
			object[m.Name] = plain(m.Value)
		}
		return object
	}
	return nil
}

func check(t *testing.T, text []byte) {
	t.Helper()
	var want any
	wrong := json.Unmarshal(text, &want)
	v, err := Parse(text)
	if (err == nil) != (wrong == nil) {
		// A number out of range of float64 is an error in encoding/json and ±Inf here.
		var beyond *json.UnmarshalTypeError
		if !errors.As(wrong, &beyond) {
			t.Fatalf("%q: %v, encoding/json returned %v", text, err, wrong)
		}
		return
	}
	if err != nil {
		if !errors.Is(err, ErrSyntax) {
			t.Fatalf("%q: %v is not a syntax error", text, err)
		}
		return
	}
	if got := plain(v); !reflect.DeepEqual(got, want) {
		t.Fatalf("%q: %#v, want %#v", text, got, want)
	}
}

var texts = []string{
	`{"a":[1,-2.5e3,true,false,null,"x\u00e9\n\ud83d\ude00\ud83dz"],"a b":{"c":{}},"d":[],"a":7}`,
	" [ ] ", `"`, `"\x"`, `"\u12"`, `01`, `1.`, `-`, `1e`, `{`, `{"a"`, `{"a":`, `{"a":1,}`, `[1,]`, `[1 2]`, `tru`, `nulll`, ``, `{} {}`, "\"\xff\"", "\"\x01\"", `1e999`, `"\ud83d\ud83d\ude00"`,
}

func TestParse_EqualsEncodingJSON(t *testing.T) {
	for _, text := range texts {
		check(t, []byte(text))
	}
}

func TestValue_OtherKindsAreZero(t *testing.T) {
	v, err := Parse([]byte(`{"n":12345678901234567,"s":"12","f":1.5}`))
	if err != nil {
		t.Fatal(err)
	}
	if n, ok := v.Get("n").Int(); !ok || n != 12345678901234567 {
		t.Errorf("n is %d", n)
	}
	if _, ok := v.Get("f").Int(); ok || v.Get("s").Float() != 0 || v.Get("n").Text() != "" || v.Get("none").Get("none").Kind != Absent {
		t.Error("something is what it is not")
	}
	if string(v.Get("f").Raw) != "1.5" {
		t.Errorf("raw: %s", v.Get("f").Raw)
	}
}

func FuzzParse(f *testing.F) {
	for _, text := range texts {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		depth := 0
		for _, c := range text {
			if c == '[' || c == '{' {
				depth++
			}
		}
		if depth <= depthMax {
			check(t, text)
		}
	})
}

func TestParse_DeepNestingIsAnError(t *testing.T) {
	deep := make([]byte, 1<<20)
	for i := range deep {
		deep[i] = '['
	}
	if _, err := Parse(deep); !errors.Is(err, ErrSyntax) {
		t.Error(err)
	}
}
