package httpapi_test

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

// request is one request, sent to both APIs.
type request struct {
	pair     string // "": "default"
	method   string // "": GET
	path     string // without the prefix
	form     url.Values
	encoding formEncoding
	query    string // added to the URL for every encoding
	header   http.Header
	context  context.Context
}

// formEncoding is where the form of a request is sent.
type formEncoding int

const (
	formInURL formEncoding = iota
	formInBody
	formInMultipart
)

func (a request) String() string {
	return fmt.Sprintf("[%s] %s %s %v", a.pair, a.method, a.path, a.form)
}

func (a request) request(t testing.TB) *http.Request {
	t.Helper()
	method := a.method
	if method == "" {
		method = http.MethodGet
	}
	target, body, contentType := prefix+a.path, &bytes.Buffer{}, ""
	query := a.query
	switch a.encoding {
	case formInURL:
		if encoded := a.form.Encode(); encoded != "" {
			query = strings.TrimPrefix(query+"&"+encoded, "&")
		}
	case formInBody:
		body.WriteString(a.form.Encode())
		contentType = "application/x-www-form-urlencoded"
	case formInMultipart:
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

// sampled returns every fifth element under the race detector, which is about ten times
// slower; more expressions would not find more races.
func sampled[T any](all []T) []T {
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

// recorded is a recorded response.
type recorded struct {
	status int
	header http.Header
	body   string
}

func (r recorded) String() string {
	return fmt.Sprintf("%d %q %s", r.status, r.header.Get("Content-Type"), clip(r.body))
}

func clip(s string) string {
	const limit = 1500
	if len(s) > limit {
		return s[:limit] + fmt.Sprintf("... (%d bytes)", len(s))
	}
	return s
}

func send(h http.Handler, r *http.Request) recorded {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return recorded{w.Code, w.Result().Header, w.Body.String()}
}

// compare sends a request to both APIs and fails unless status, content type and body are
// equal. loosen, which may be nil, removes what Prometheus does not define.
func (w *testEnv) compare(t testing.TB, a request, loosen func(string) string) recorded {
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

func (p pair) compare(t testing.TB, a request, loosen func(string) string) recorded {
	t.Helper()
	want := send(p.oracle, a.request(t))
	got := send(p.ours, a.request(t))
	check(t, a, got, want, loosen)
	return got
}

// check fails the test unless status, content type and body are equal.
func check(t testing.TB, a request, got, want recorded, loosen func(string) string) {
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
	timings         = regexp.MustCompile(`"(evalTotalTime|resultSortTime|queryPreparationTime|innerEvalTime|execQueueTime|execTotalTime)":[-+.0-9e]+`)
	stages          = regexp.MustCompile(`query (timed out|was canceled) in (expression evaluation|query queue|query execution)`)
	annotationLists = regexp.MustCompile(`,"(warnings|infos)":(\["(?:[^"\\]|\\.)*"(?:,"(?:[^"\\]|\\.)*")*\])`)
)

// normalise removes the differences between two runs of the same program: timings, the stage in which an expired query
// was detected, and the random order of warnings and infos.
func normalise(body string) string {
	body = timings.ReplaceAllString(body, `"$1":0`)
	body = stages.ReplaceAllString(body, "query $1 in some stage")
	return annotationLists.ReplaceAllStringFunc(body, func(match string) string {
		m := annotationLists.FindStringSubmatch(match)
		var list []string
		if err := json.Unmarshal([]byte(m[2]), &list); err != nil {
			return match
		}
		slices.Sort(list)
		return fmt.Sprintf(`,"%s":%q`, m[1], list)
	})
}

// sortElements sorts the elements of a result by their bytes. For some queries the engine returns an instant vector in
// the random order of a map.
func sortElements(body string) string {
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

// unordered makes responses comparable whose arrays or objects have the order of a map.
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

// keysOf returns the paths of all keys in a response whose values differ between the
// programs.
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
