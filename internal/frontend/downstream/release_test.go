package downstream

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	instruments "github.com/ferula-io/ferula/metrics"
)

// tracked is the body of a response that counts how often it is closed.
type tracked struct {
	io.Reader
	closed atomic.Int32
}

func (b *tracked) Close() error { b.closed.Add(1); return nil }

// breaksAfter returns text and then a broken connection.
func breaksAfter(text string) io.Reader {
	return io.MultiReader(strings.NewReader(text), errorReader{io.ErrUnexpectedEOF})
}

type errorReader struct{ err error }

func (r errorReader) Read([]byte) (int, error) { return 0, r.err }

// reply is one response of a scripted downstream.
type reply struct {
	status int
	body   io.Reader
	header []string
	length int64 // 0: of chunks
}

// replying is a downstream of these responses, one after the other, and their bodies.
func replying(replies ...reply) (trip fakeTripper, bodies *[]*tracked) {
	bodies = &[]*tracked{}
	return func(*http.Request) (*http.Response, error) {
		if len(*bodies) == len(replies) {
			return nil, errors.New("no further response")
		}
		r := replies[len(*bodies)]
		resp := status(r.status, r.header...)
		resp.ContentLength = -1
		if r.length > 0 {
			resp.ContentLength = r.length
		} else if r.length == 0 {
			resp.TransferEncoding = []string{"chunked"}
		}
		body := &tracked{Reader: r.body}
		*bodies = append(*bodies, body)
		resp.Body = body
		return resp, nil
	}, bodies
}

const untilClose = -1 // as the length of a reply

// Every response is closed once, however the request ends.
func TestOpen_EveryResponseIsClosedOnce(t *testing.T) {
	text := strings.Repeat("0123456789", 20)
	first := func() reply { return reply{status: 200, body: breaksAfter(text[:100])} }
	whole := func() reply { return reply{status: 200, body: strings.NewReader(text)} }
	for name, tt := range map[string]struct {
		opts    Options
		replies []reply
		err     error
		want    string
		outcome string // of the resume; "": none
	}{
		"whole":                        {replies: []reply{whole()}, want: text},
		"continued":                    {replies: []reply{first(), whole()}, want: text, outcome: "continued"},
		"a 500 first":                  {replies: []reply{{status: 500, body: strings.NewReader("no")}, whole()}, want: text},
		"a long 500 first":             {replies: []reply{{status: 500, body: bytes.NewReader(make([]byte, 3*discardBytes))}, whole()}, want: text},
		"changed":                      {replies: []reply{first(), {status: 200, body: strings.NewReader("#" + text[1:])}}, err: ErrChanged, outcome: "changed"},
		"changed at the last byte":     {replies: []reply{first(), {status: 200, body: strings.NewReader(text[:99] + "#" + text[100:])}}, err: ErrChanged, outcome: "changed"},
		"shorter":                      {replies: []reply{first(), {status: 200, body: strings.NewReader(text[:99])}}, err: ErrChanged, outcome: "changed"},
		"as long as before":            {replies: []reply{first(), {status: 200, body: strings.NewReader(text[:100])}}, want: text[:100], outcome: "continued"},
		"another status":               {replies: []reply{first(), {status: 404, body: strings.NewReader("no")}}, err: ErrChanged, outcome: "changed"},
		"no retries":                   {opts: Options{Retries: -1}, replies: []reply{first()}, err: ErrUnavailable, outcome: "failed"},
		"no connection for the retry":  {opts: Options{Retries: 1}, replies: []reply{first()}, err: ErrUnavailable, outcome: "failed"},
		"unknown encoding":             {replies: []reply{{status: 200, body: strings.NewReader("x"), header: []string{"Content-Encoding", "br"}}}, err: ErrCorrupt},
		"unknown encoding of a retry":  {replies: []reply{first(), {status: 200, body: strings.NewReader("x"), header: []string{"Content-Encoding", "br"}}}, err: ErrCorrupt, outcome: "failed"},
		"no gzip":                      {replies: []reply{{status: 200, body: strings.NewReader("plain text"), header: []string{"Content-Encoding", "gzip"}}}, err: ErrCorrupt},
		"an early end without a frame": {replies: []reply{first(), {status: 200, body: strings.NewReader(text[:50]), length: untilClose}, whole()}, want: text, outcome: "continued"},
		"too long":                     {opts: Options{BytesMax: 150}, replies: []reply{whole()}, err: ErrLimit},
		"a 500 for the retry":          {opts: Options{Retries: 1}, replies: []reply{first(), {status: 500, body: strings.NewReader("no")}}, err: ErrUnavailable, outcome: "failed"},
	} {
		t.Run(name, func(t *testing.T) {
			trip, bodies := replying(tt.replies...)
			tt.opts.URL, tt.opts.Wrap = "http://down.example", trip.wrap
			c := client(t, tt.opts, nil)
			resp, err := c.Open(t.Context(), Request{Path: "/"})
			got := ""
			if err == nil {
				got, err = readAll(resp, 33)
				checkIs(t, resp.Body.Close(), nil)
			}
			checkIs(t, err, tt.err)
			if tt.err == nil {
				check(t, "body", got, tt.want)
			}
			outcomes := ""
			for _, o := range []string{"continued", "changed", "failed"} {
				outcomes += strings.Repeat(o, int(c.metrics.resumes.With(o).Get()))
			}
			check(t, "resumes", outcomes, tt.outcome)
			check(t, "responses", len(*bodies), len(tt.replies))
			for i, b := range *bodies {
				check(t, fmt.Sprintf("response %d is closed", i), b.closed.Load(), 1)
			}
			check(t, "in flight", c.metrics.inFlight.Get(), 0)
		})
	}
}

func TestResponse_NoStoreIsThatOfEveryResponseOfTheBody(t *testing.T) {
	text := strings.Repeat("0123456789", 20)
	for _, tt := range []struct {
		first, second string // Cache-Control
		want          bool
	}{
		{"", "", false}, {"max-age=5", "private", false}, {"no-store", "", true}, {"", "private, No-Store", true}, {"no-store", "no-store", true},
	} {
		trip, _ := replying(
			reply{status: 200, body: breaksAfter(text[:100]), header: []string{"Cache-Control", tt.first}},
			reply{status: 200, body: strings.NewReader(text), header: []string{"Cache-Control", tt.second}})
		resp, err := open(t, Options{URL: "http://down.example", Wrap: trip.wrap}, Request{Path: "/"})
		if err != nil {
			t.Fatal(err)
		}
		check(t, "before the body", resp.NoStore(), tt.first == "no-store")
		got, err := readAll(resp, 33)
		checkIs(t, err, nil)
		check(t, "body", got, text)
		check(t, fmt.Sprintf("%q, then %q", tt.first, tt.second), resp.NoStore(), tt.want)
	}
}

func TestBody_ReadOfNothingReturns(t *testing.T) {
	trip, _ := replying(reply{status: 200, body: strings.NewReader("text")})
	resp, err := open(t, Options{URL: "http://down.example", Wrap: trip.wrap}, Request{Path: "/"})
	if err != nil {
		t.Fatal(err)
	}
	n, err := resp.Body.Read(nil)
	check(t, "bytes", n, 0)
	checkIs(t, err, nil)
	got, err := readAll(resp, 10)
	check(t, "afterwards", got, "text")
	checkIs(t, err, nil)
}

func TestOpen_HeadersOfResponsesWithoutABodyStay(t *testing.T) {
	for _, code := range []int{204, 304, 200} {
		for _, method := range []string{"GET", "HEAD"} {
			trip, _ := replying(reply{status: code, body: strings.NewReader(""), header: []string{"Content-Encoding", "gzip", "Content-Length", "100"}, length: 100})
			resp, err := open(t, Options{URL: "http://down.example", Wrap: trip.wrap}, Request{Method: method, Path: "/"})
			if err != nil {
				t.Fatal(err)
			}
			_, err = readAll(resp, 10)
			checkIs(t, err, nil)
			bodiless := code != 200 || method == "HEAD"
			check(t, fmt.Sprint(method, code, " keeps its headers"), resp.Header.Get("Content-Encoding") == "gzip" && resp.Header.Get("Content-Length") == "100", bodiless)
			check(t, fmt.Sprint(method, code, " length"), resp.Length == 100, bodiless)
		}
	}
}

func TestOpen_Delimited(t *testing.T) {
	for name, tt := range map[string]struct {
		length int64
		coding []string
		major  int
		want   bool
	}{
		"until the connection is closed": {-1, nil, 1, false},
		"no byte":                        {0, nil, 1, true},
		"one byte":                       {1, nil, 1, true},
		"chunks":                         {-1, []string{"chunked"}, 1, true},
		"HTTP/2":                         {-1, nil, 2, true},
	} {
		trip := fakeTripper(func(*http.Request) (*http.Response, error) {
			resp := status(200)
			resp.ContentLength, resp.TransferEncoding, resp.ProtoMajor = tt.length, tt.coding, tt.major
			return resp, nil
		})
		resp, err := open(t, Options{URL: "http://down.example", Wrap: trip.wrap}, Request{Path: "/"})
		if err != nil {
			t.Fatal(err)
		}
		check(t, name, resp.Delimited, tt.want)
		resp.Body.Close()
	}
}

// The wait is half the back-off and a random part of the other half, or up to 10 % more than
// Retry-After.
func TestOpen_JitterOfTheWaits(t *testing.T) {
	for _, tt := range []struct {
		script []func(*http.Request) (*http.Response, error)
		want   string
	}{
		{script(returns(500), returns(500), returns(200)), "[0s 75ms 225ms]"},
		{script(returns(503, "Retry-After", "4"), returns(200)), "[0s 4.2s]"},
		{script(returns(503, "Retry-After", "5"), returns(200)), "[0s 5.25s]"},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &scripted{script: tt.script, begun: time.Now()}
			c, err := New(Options{URL: "http://down.example", Jitter: func() float64 { return 0.5 }, Wrap: func(http.RoundTripper) http.RoundTripper { return s }}, nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := c.Open(t.Context(), Request{Path: "/"})
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			check(t, "tries", fmt.Sprint(s.at), tt.want)
		})
	}
}

func TestRetryAfter_SecondsAndDates(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	for value, want := range map[string]time.Duration{
		"60": time.Minute, " 7 ": 7 * time.Second, "0": 0, "2147483647": 2147483647 * time.Second,
		now.Add(time.Hour).UTC().Format(http.TimeFormat): time.Hour, now.Add(-time.Hour).UTC().Format(http.TimeFormat): 0,
	} {
		wait, ok := retryAfter(value, now)
		check(t, value, ok, true)
		check(t, value, wait, want)
	}
	for _, value := range []string{"", "2147483648", "-1", "1.5", "a", "1a"} {
		wait, ok := retryAfter(value, now)
		check(t, value, ok, false)
		check(t, value, wait, 0)
	}
}

func TestBudget_TokensOfRequestsAndSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudget(0.5, 2, 3)
		take := func(what string, want bool) {
			t.Helper()
			check(t, what, b.withdraw(), want)
		}
		for range 10 {
			b.deposit() // it is full
		}
		for range 3 {
			take("of a full budget", true)
		}
		take("of an empty one", false)
		b.deposit()
		take("of half a token", false)
		b.deposit()
		take("of two halves", true)
		time.Sleep(250 * time.Millisecond)
		take("too soon", false)
		time.Sleep(250 * time.Millisecond)
		take("after half a second", true)
		take("twice", false)
		time.Sleep(time.Hour)
		for range 3 {
			take("after an hour", true)
		}
		take("more than fit", false)
	})
	c := client(t, Options{URL: "http://down.example", BudgetPerSecond: -1}, nil)
	check(t, "tokens per second, negative", c.budget.perSecond, 0)
}

func TestMetrics_TriesByStatusAndError(t *testing.T) {
	set := instruments.NewSet()
	m := newMetrics(set)
	for _, code := range []int{200, 302, 399} {
		m.tried(code, time.Second)
	}
	for _, code := range []int{400, 499} {
		m.tried(code, time.Second)
	}
	m.tried(500, time.Second)
	m.failed(ErrTimeout)
	m.failed(ErrUnavailable)
	m.failed(ErrUnavailable)
	m.failed(context.Canceled)
	for outcome, want := range map[string]uint64{"success": 3, "4xx": 2, "5xx": 1, "timeout": 1, "unavailable": 2, "canceled": 1} {
		check(t, outcome, m.tries.With(outcome).Get(), want)
	}
	var page strings.Builder
	set.WritePrometheus(&page)
	for _, line := range []string{`ferula_frontend_downstream_first_byte_seconds_bucket{le="0.5"} 0`, `ferula_frontend_downstream_first_byte_seconds_bucket{le="1"} 6`, "ferula_frontend_downstream_first_byte_seconds_count 6"} {
		check(t, line, strings.Contains(page.String(), line+"\n"), true)
	}
	for _, f := range set.Families() {
		check(t, f.Name+" has a help", f.Help != "", true)
	}
}

func TestOpen_CountsTheBytesOfTheConnection(t *testing.T) {
	text := document(50)
	encoded := encode(t, Gzip, text)
	trip, _ := replying(reply{status: 200, body: strings.NewReader(encoded), header: []string{"Content-Encoding", "gzip"}})
	c := client(t, Options{URL: "http://down.example", Wrap: trip.wrap}, nil)
	_, body, err := get(t, c, "/")
	checkIs(t, err, nil)
	check(t, "body", body, text)
	check(t, "on the wire", c.metrics.wire.Get(), uint64(len(encoded)))
	check(t, "decoded", c.metrics.decoded.Get(), uint64(len(text)))
}

func TestWatch_IsSilentWithoutALimitAndAfterARead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := 0
		w := &watch{idle: -1, end: func() { ended++ }}
		w.begin()
		time.Sleep(time.Hour)
		w.done()
		check(t, "ended without a limit", ended, 0)
		w = &watch{idle: time.Second, end: func() { ended++ }}
		w.begin()
		w.done()
		w.fire() // late
		time.Sleep(time.Hour)
		check(t, "ended while no read waits", ended, 0)
	})
}

// Connections that are idle end with the client.
func TestClient_CloseEndsIdleConnections(t *testing.T) {
	closed := make(chan struct{}, 10)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") }))
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateClosed {
			closed <- struct{}{}
		}
	}
	server.Start()
	defer server.Close()
	c, err := New(Options{URL: server.URL}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	_, body, err := get(t, c, "/")
	checkIs(t, err, nil)
	check(t, "body", body, "ok")
	c.Close()
	select {
	case <-closed:
	case <-time.After(30 * time.Second):
		t.Error("the connection stays open")
	}
}

func TestOptions_ValidateNamesEachFault(t *testing.T) {
	for _, tt := range []struct {
		name string
		opts Options
		want string // "": none
	}{
		{"no retries", Options{Retries: -1, BudgetPerSecond: -1, IdleTimeout: -1, ConnectTimeout: -1}, ""},
		{"all encodings", Options{Encodings: []string{Zstd, Gzip, Snappy, Identity}}, ""},
		{"an unknown encoding", Options{Encodings: []string{Zstd, "br"}}, `unknown encoding "br"`},
		{"no connections", Options{Transport: Transport{MaxIdleConns: new(int)}}, ""},
	} {
		tt.opts.URL = "https://down.example/prefix"
		err := tt.opts.Validate()
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	for _, url := range []string{"http://user:apple@[", "http://user:apple@h:port/", "http://user:apple@h/?a=b", "ftp://user:apple@h"} {
		if err := (Options{URL: url}).Validate(); err == nil || strings.Contains(err.Error(), "apple") {
			t.Errorf("%s: %v", url, err)
		}
	}
}

// Credentials of the URL are in the header only: a tracer of the transport would show those of the
// request's URL.
func TestOpen_URLOfARequestHasNoCredentials(t *testing.T) {
	var seen *http.Request
	trip := fakeTripper(func(r *http.Request) (*http.Response, error) { seen = r; return status(200), nil })
	resp, err := open(t, Options{URL: "http://user:secret@down.example/a", Wrap: trip.wrap}, Request{Path: "/b"})
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	check(t, "URL", seen.URL.String(), "http://down.example/a/b")
	user, password, ok := seen.BasicAuth()
	check(t, "header", fmt.Sprint(user, password, ok), "usersecrettrue")
}

func TestOpen_LongestQueryInAURL(t *testing.T) {
	url, last := recorder(t)
	for n, want := range map[int]string{formBytes: "GET", formBytes + 1: "POST"} {
		send(t, Options{URL: url}, Request{Path: "/api/v1/query", Params: values("q", strings.Repeat("x", n-len("q=")))})
		check(t, fmt.Sprint(n, " bytes"), last.method, want)
	}
}

// A retry cannot succeed if a server of an https URL has no TLS. So there is only one connection.
func TestOpen_ServerWithoutTLSIsNotRetried(t *testing.T) {
	connections := atomic.Int32{}
	url := serveHTTP(t, func(http.ResponseWriter, *http.Request) {}, func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			connections.Add(1)
		}
	})
	_, _, err := get(t, client(t, Options{URL: strings.Replace(url, "http:", "https:", 1)}, nil), "/")
	checkIs(t, err, ErrUnavailable)
	check(t, "connections", connections.Load(), 1)
}
