package api_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
)

// ask is one request to both APIs.
type ask struct {
	pair    string // "" is "default"
	method  string // "" is GET
	path    string // below the prefix
	form    url.Values
	how     how
	query   string // added to the URL whatever carries the form
	header  http.Header
	context context.Context
}

// how says where a form travels.
type how int

const (
	inURL how = iota
	inBody
	inMultipart
)

func (a ask) String() string {
	return fmt.Sprintf("[%s] %s %s %v", a.pair, a.method, a.path, a.form)
}

func (a ask) request(t testing.TB) *http.Request {
	t.Helper()
	method := a.method
	if method == "" {
		method = http.MethodGet
	}
	target, body, contentType := prefix+a.path, &bytes.Buffer{}, ""
	query := a.query
	switch a.how {
	case inURL:
		if encoded := a.form.Encode(); encoded != "" {
			query = strings.TrimPrefix(query+"&"+encoded, "&")
		}
	case inBody:
		body.WriteString(a.form.Encode())
		contentType = "application/x-www-form-urlencoded"
	case inMultipart:
		w := multipart.NewWriter(body)
		for key, values := range a.form {
			for _, v := range values {
				if err := w.WriteField(key, v); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		contentType = w.FormDataContentType()
	}
	if query != "" {
		target += "?" + query
	}
	ctx := a.context
	if ctx == nil {
		ctx = context.Background()
	}
	r := httptest.NewRequestWithContext(ctx, method, target, body)
	for key, values := range a.header {
		r.Header[key] = values
	}
	if contentType != "" {
		r.Header.Set("Content-Type", contentType)
	}
	return r
}

// thinned leaves every fifth under the race detector, which makes each some ten
// times as slow and learns nothing more from the hundredth expression.
func thinned[T any](all []T) []T {
	info, ok := debug.ReadBuildInfo()
	if !ok || !slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		return all
	}
	var some []T
	for i := 0; i < len(all); i += 5 {
		some = append(some, all[i])
	}
	return some
}

// reply is what came back.
type reply struct {
	status int
	header http.Header
	body   string
}

func (r reply) String() string {
	return fmt.Sprintf("%d %q %s", r.status, r.header.Get("Content-Type"), clip(r.body))
}

func clip(s string) string {
	const most = 1500
	if len(s) > most {
		return s[:most] + fmt.Sprintf("... (%d bytes)", len(s))
	}
	return s
}

func send(h http.Handler, r *http.Request) reply {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return reply{w.Code, w.Result().Header, w.Body.String()}
}

// compare asks both APIs and fails unless status, content type and body are the
// same. loosen, which may be nil, takes away what Prometheus does not define.
func (w *world) compare(t testing.TB, a ask, loosen func(string) string) reply {
	t.Helper()
	name := a.pair
	if name == "" {
		name = "default"
	}
	p, ok := w.pairs[name]
	if !ok {
		t.Fatalf("no such pair: %s", name)
	}
	return p.compare(t, a, loosen)
}

func (p pair) compare(t testing.TB, a ask, loosen func(string) string) reply {
	t.Helper()
	want := send(p.oracle, a.request(t))
	got := send(p.ours, a.request(t))
	check(t, a, got, want, loosen)
	return got
}

// check is the one judgement: equal status, content type and body.
func check(t testing.TB, a ask, got, want reply, loosen func(string) string) {
	t.Helper()
	sameHead := got.status == want.status && got.header.Get("Content-Type") == want.header.Get("Content-Type")
	if sameHead && got.body == want.body {
		return
	}
	gotBody, wantBody := normalise(got.body), normalise(want.body)
	if loosen != nil {
		gotBody, wantBody = loosen(gotBody), loosen(wantBody)
	}
	if sameHead && gotBody == wantBody {
		return
	}
	at := 0
	for at < len(gotBody) && at < len(wantBody) && gotBody[at] == wantBody[at] {
		at++
	}
	from := max(0, at-60)
	t.Errorf("%s\n ferula:     %d %q %s\n prometheus: %d %q %s\n difference at byte %d: ferula %q, prometheus %q", a,
		got.status, got.header.Get("Content-Type"), clip(gotBody), want.status, want.header.Get("Content-Type"), clip(wantBody),
		at, clip(gotBody[from:min(len(gotBody), at+80)]), clip(wantBody[from:min(len(wantBody), at+80)]))
}

var (
	timings   = regexp.MustCompile(`"(evalTotalTime|resultSortTime|queryPreparationTime|innerEvalTime|execQueueTime|execTotalTime)":[-+.0-9e]+`)
	stages    = regexp.MustCompile(`query (timed out|was canceled) in (expression evaluation|query queue|query execution)`)
	noteLists = regexp.MustCompile(`,"(warnings|infos)":(\["(?:[^"\\]|\\.)*"(?:,"(?:[^"\\]|\\.)*")*\])`)
)

// normalise takes away what differs from run to run in either program: how long
// things took, in which stage an expired query was noticed, and the order of
// warnings and infos, which come out of a map.
func normalise(body string) string {
	body = timings.ReplaceAllString(body, `"$1":0`)
	body = stages.ReplaceAllString(body, "query $1 in some stage")
	return noteLists.ReplaceAllStringFunc(body, func(list string) string {
		m := noteLists.FindStringSubmatch(list)
		var notes []string
		if err := json.Unmarshal([]byte(m[2]), &notes); err != nil {
			return list
		}
		slices.Sort(notes)
		return fmt.Sprintf(`,"%s":%q`, m[1], notes)
	})
}

// elementsSorted brings the elements of a result into one order, byte for byte
// as they are. For a few kinds of queries the engine takes an instant vector's
// order out of a map.
func elementsSorted(body string) string {
	var envelope struct {
		Data struct {
			Result []json.RawMessage `json:"result"`
		} `json:"data"`
	}
	if err := json.Unmarshal([]byte(body), &envelope); err != nil {
		return body
	}
	elements := make([]string, len(envelope.Data.Result))
	for i, e := range envelope.Data.Result {
		elements[i] = string(e)
	}
	array := strings.Join(elements, ",")
	slices.Sort(elements)
	return strings.Replace(body, array, strings.Join(elements, ","), 1)
}

// fromMaps are the queries whose instant vectors have no order of their own.
var fromMaps = regexp.MustCompile(`count_values|histogram_(quantile|fraction)|info\(|\[[^\]]*:`)

// unordered makes answers comparable whose arrays or objects come out of maps.
func unordered(body string) string {
	var v any
	if err := json.Unmarshal([]byte(body), &v); err != nil {
		return body
	}
	return canonical(v)
}

func canonical(v any) string {
	switch v := v.(type) {
	case []any:
		parts := make([]string, len(v))
		for i := range v {
			parts[i] = canonical(v[i])
		}
		slices.Sort(parts)
		return "[" + strings.Join(parts, ",") + "]"
	case map[string]any:
		parts := make([]string, 0, len(v))
		for key, value := range v {
			parts = append(parts, fmt.Sprintf("%q:%s", key, canonical(value)))
		}
		slices.Sort(parts)
		return "{" + strings.Join(parts, ",") + "}"
	default:
		b, _ := json.Marshal(v) // came out of JSON
		return string(b)
	}
}

// keysOf lists the paths of all keys in an answer, for answers whose values
// cannot be the same.
func keysOf(t *testing.T, body string) []string {
	t.Helper()
	var v any
	if err := json.Unmarshal([]byte(body), &v); err != nil {
		t.Fatalf("not JSON: %s: %v", clip(body), err)
	}
	var keys []string
	var walk func(path string, v any)
	walk = func(path string, v any) {
		if m, ok := v.(map[string]any); ok {
			for key, value := range m {
				keys = append(keys, path+"."+key+" "+fmt.Sprint(reflect.TypeOf(value)))
				walk(path+"."+key, value)
			}
		}
	}
	walk("", v)
	slices.Sort(keys)
	return keys
}

// form makes url.Values of pairs.
func form(pairs ...string) url.Values {
	v := url.Values{}
	for i := 0; i+1 < len(pairs); i += 2 {
		v.Add(pairs[i], pairs[i+1])
	}
	return v
}
