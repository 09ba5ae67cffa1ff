package downstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"os"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	instruments "github.com/ferula-io/ferula/metrics"
)

// serveHTTP runs handler on loopback and returns its URL.
func serveHTTP(t testing.TB, handler http.HandlerFunc, connState func(net.Conn, http.ConnState)) string {
	t.Helper()
	server := httptest.NewUnstartedServer(handler)
	server.Config.ConnState = connState
	server.Start()
	t.Cleanup(server.Close)
	return server.URL
}

// scripted runs one step of its script per request and records when each came.
type scripted struct {
	script []func(*http.Request) (*http.Response, error)
	begun  time.Time
	at     []time.Duration
}

func (s *scripted) RoundTrip(r *http.Request) (*http.Response, error) {
	s.at = append(s.at, time.Since(s.begun))
	return s.script[min(len(s.at), len(s.script))-1](r)
}

func returns(code int, header ...string) func(*http.Request) (*http.Response, error) {
	return func(*http.Request) (*http.Response, error) { return status(code, header...), nil }
}

func refuses(*http.Request) (*http.Response, error) { return nil, errors.New("connection refused") }

// hangsUnsent is a connection that is not established within its timeout.
func hangsUnsent(r *http.Request) (*http.Response, error) {
	select {
	case <-time.After(5 * time.Second):
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: os.ErrDeadlineExceeded}
	case <-r.Context().Done():
		return nil, context.Cause(r.Context())
	}
}

func afterwards(wait time.Duration, then func(*http.Request) (*http.Response, error)) func(*http.Request) (*http.Response, error) {
	return func(r *http.Request) (*http.Response, error) {
		select {
		case <-time.After(wait):
			return then(r)
		case <-r.Context().Done():
			return nil, context.Cause(r.Context())
		}
	}
}

// responds returns a response with a body.
func responds(code int, body string) func(*http.Request) (*http.Response, error) {
	return func(*http.Request) (*http.Response, error) {
		resp := status(code)
		resp.Body, resp.ContentLength = io.NopCloser(strings.NewReader(body)), int64(len(body))
		return resp, nil
	}
}

// timesOut gets a connection, and no headers in time.
func timesOut(r *http.Request) (*http.Response, error) {
	httptrace.ContextClientTrace(r.Context()).GotConn(httptrace.GotConnInfo{})
	return nil, timeoutError{}
}

func hangs(r *http.Request) (*http.Response, error) { return endless(r.Context()) }

// inTime runs one request against a script in a synctest bubble, without jitter, and
// returns its outcome and the times of its tries.
func inTime(t *testing.T, opts Options, r Request, deadline time.Duration, script ...func(*http.Request) (*http.Response, error)) (status int, err error, at, refused string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{script: script, begun: time.Now()}
		opts.URL = "http://down.example"
		opts.Wrap = func(http.RoundTripper) http.RoundTripper { return s }
		opts.Jitter = func() float64 { return 0 }
		c, newErr := New(opts, nil, nil)
		if newErr != nil {
			t.Fatal(newErr)
		}
		ctx := t.Context()
		if deadline > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, deadline)
			defer cancel()
		}
		resp, openErr := c.Open(ctx, r)
		if err = openErr; err == nil {
			status = resp.Status
			_, err = readAll(resp, 100)
		}
		at = fmt.Sprint(s.at)
		for _, reason := range []string{"timeout", "retry-after", "retries", "deadline", "budget"} {
			refused += strings.Repeat(reason, int(c.metrics.refused.With(reason).Get()))
		}
		check(t, "in flight", c.metrics.inFlight.Get(), 0)
	})
	return status, err, at, refused
}

func TestOpen_RetriesUntilAResponseIsFinal(t *testing.T) {
	for _, c := range []struct {
		name     string
		opts     Options
		request  Request
		deadline time.Duration
		script   []func(*http.Request) (*http.Response, error)
		status   int
		err      error
		at       string
		refused  string // why the last try was not repeated
	}{
		{name: "the first is final", script: script(returns(200)), status: 200, at: "[0s]"},
		{name: "a 4xx is final", script: script(returns(422)), status: 422, at: "[0s]"},
		{name: "a redirect is final", script: script(returns(302, "Location", "/graph")), status: 302, at: "[0s]"},
		{name: "5xx, then success", script: script(returns(500), returns(503), returns(200)), status: 200, at: "[0s 50ms 150ms]"},
		{name: "5xx for ever", script: script(returns(502)), status: 502, at: "[0s 50ms 150ms 350ms 750ms 1.55s]", refused: "retries"},
		{name: "back-off ends at its maximum", opts: Options{Retries: 7}, script: script(returns(502)), status: 502, at: "[0s 50ms 150ms 350ms 750ms 1.55s 2.55s 3.55s]", refused: "retries"},
		{name: "no connection, then success", script: script(refuses, returns(200)), status: 200, at: "[0s 50ms]"},
		{name: "no connection for ever", opts: Options{Retries: 1}, script: script(refuses), err: ErrUnavailable, at: "[0s 50ms]", refused: "retries"},
		{name: "no retries", opts: Options{Retries: -1}, script: script(refuses), err: ErrUnavailable, at: "[0s]", refused: "retries"},
		{name: "no retries for this one", request: Request{Retries: -1}, script: script(returns(500)), status: 500, at: "[0s]", refused: "retries"},
		{name: "one retry for this one", request: Request{Retries: 1}, script: script(returns(500)), status: 500, at: "[0s 50ms]", refused: "retries"},
		{name: "a request that may change something is not retried", request: Request{Method: "POST", Path: "/api/v1/admin/tsdb/delete_series"}, script: script(returns(500)), status: 500, at: "[0s]", refused: "retries"},
		{name: "unless the request allows it", request: Request{Method: "POST", Path: "/api/v1/read", Body: []byte("x"), Retries: 1}, script: script(returns(500), returns(200)), status: 200, at: "[0s 50ms]"},
		{name: "slow headers are waited for", script: script(afterwards(time.Hour, returns(200))), status: 200, at: "[0s]"},
		{name: "a timeout of the headers is not retried", script: script(timesOut), err: ErrTimeout, at: "[0s]", refused: "timeout"},
		{name: "a connect timeout is retried", script: script(hangsUnsent, returns(200)), status: 200, at: "[0s 5.05s]"},
		{name: "a query that ran out of time is not repeated", script: script(responds(503, `{"status":"error","errorType":"timeout","error":"query timed out"}`)), status: 503, at: "[0s]", refused: "timeout"},
		{name: "a query that ran out of time at a gateway is not repeated", script: script(returns(504)), status: 504, at: "[0s]", refused: "timeout"},
		{name: "another 503 is repeated", script: script(responds(503, `{"status":"error","errorType":"unavailable","error":"timeout"}`), returns(200)), status: 200, at: "[0s 50ms]"},
		{name: "429 is final without Retry-After", script: script(returns(429)), status: 429, at: "[0s]"},
		{name: "429 with seconds", script: script(returns(429, "Retry-After", "3"), returns(200)), status: 200, at: "[0s 3s]"},
		{name: "503 with seconds", script: script(returns(503, "Retry-After", " 2 "), returns(200)), status: 200, at: "[0s 2s]"},
		{name: "503 with 0 backs off", script: script(returns(503, "Retry-After", "0"), returns(200)), status: 200, at: "[0s 50ms]"},
		{name: "503 with nonsense backs off", script: script(returns(503, "Retry-After", "soon"), returns(200)), status: 200, at: "[0s 50ms]"},
		{name: "500 with seconds backs off", script: script(returns(500, "Retry-After", "3"), returns(200)), status: 200, at: "[0s 50ms]"},
		{name: "429 with a date", script: script(inDate(4*time.Second), returns(200)), status: 200, at: "[0s 4s]"},
		{name: "429 with too long a wait is final", script: script(returns(429, "Retry-After", "6")), status: 429, at: "[0s]", refused: "retry-after"},
		{name: "503 with too long a wait is final", script: script(returns(503, "Retry-After", "3600")), status: 503, at: "[0s]", refused: "retry-after"},
		{name: "a longer wait is honoured if allowed", opts: Options{RetryAfterMax: time.Minute}, script: script(returns(429, "Retry-After", "60"), returns(200)), status: 200, at: "[0s 1m0s]"},
		{name: "429 beyond the deadline is final", deadline: 2 * time.Second, script: script(returns(429, "Retry-After", "3")), status: 429, at: "[0s]", refused: "deadline"},
		{name: "429 with no retries left is final", opts: Options{Retries: 1}, script: script(returns(429, "Retry-After", "1")), status: 429, at: "[0s 1s]", refused: "retries"},
		{name: "a back-off beyond the deadline is not waited for", deadline: 200 * time.Millisecond, script: script(returns(500)), status: 500, at: "[0s 50ms 150ms]", refused: "deadline"},
		{name: "the deadline ends a try", deadline: time.Second, script: script(hangs), err: context.DeadlineExceeded, at: "[0s]"},
		{name: "the budget is spent", opts: Options{BudgetBurst: 2, BudgetPerSecond: -1}, script: script(returns(500)), status: 500, at: "[0s 50ms 150ms]", refused: "budget"},
	} {
		t.Run(c.name, func(t *testing.T) {
			status, err, at, refused := inTime(t, c.opts, c.request.orRoot(), c.deadline, c.script...)
			check(t, "status", status, c.status)
			checkIs(t, err, c.err)
			check(t, "tries", at, c.at)
			check(t, "refused", refused, c.refused)
		})
	}
}

func (r Request) orRoot() Request {
	if r.Path == "" {
		r.Path = "/"
	}
	return r
}

func script(steps ...func(*http.Request) (*http.Response, error)) []func(*http.Request) (*http.Response, error) {
	return steps
}

func inDate(after time.Duration) func(*http.Request) (*http.Response, error) {
	return func(*http.Request) (*http.Response, error) {
		return status(429, "Retry-After", time.Now().Add(after).UTC().Format(http.TimeFormat)), nil
	}
}

// A downstream that is down gets few retries: at most a fifth of the requests, and
// one a second.
func TestBudget_LimitsRetriesToAFailingDownstream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tries := 0
		down := fakeTripper(func(*http.Request) (*http.Response, error) { tries++; return status(500), nil })
		c, err := New(Options{URL: "http://down.example", Wrap: down.wrap, BudgetBurst: 10, BackoffMin: time.Millisecond, BackoffMax: time.Millisecond}, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		const requests, seconds = 5000, 50
		for range requests {
			_, err := open500(t, c)
			checkIs(t, err, nil)
			time.Sleep(seconds * time.Second / requests)
		}
		repeats := tries - requests
		if limit := requests/5 + seconds + 10 + 10; repeats > limit || repeats < requests/5 {
			t.Errorf("%d repetitions of %d requests, expected about %d", repeats, requests, limit)
		}
	})
}

func open500(t *testing.T, c *Client) (int, error) {
	resp, err := c.Open(t.Context(), Request{Path: "/"})
	if err != nil {
		return 0, err
	}
	return resp.Status, resp.Body.Close()
}

func TestOpen_CanceledContextEndsTheBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := New(Options{URL: "http://down.example", Wrap: fakeTripper(returns(503, "Retry-After", "5")).wrap}, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		begun := time.Now()
		_, err = c.Open(ctx, Request{Path: "/"})
		checkIs(t, err, context.Canceled)
		check(t, "after", time.Since(begun), time.Second)
	})
}

func TestOpen_RetriesOverTheNetwork(t *testing.T) {
	server := serveRaw(t, func(conn net.Conn, _ *http.Request, before int) {
		switch before {
		case 0: // nothing at all
		case 1:
			reset(conn)
		case 2:
			_, _ = io.WriteString(conn, "HTTP/1.1 garbage\r\n\r\n")
		default:
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
		}
	})
	status, body, err := get(t, client(t, Options{URL: server.url, Retries: 10}, nil), "/")
	checkIs(t, err, nil)
	check(t, "response", fmt.Sprint(status, body), "200ok")
}

func TestOpen_RefusedConnectionIsUnavailable(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	listener.Close()
	_, _, err = get(t, client(t, Options{URL: "http://" + listener.Addr().String(), Retries: 1}, nil), "/")
	checkIs(t, err, ErrUnavailable)
}

// An idle connection that the downstream has closed meanwhile is not an error.
func TestOpen_DeadIdleConnectionIsReplaced(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.Method)
	}))
	defer server.Close()
	c := client(t, Options{URL: server.URL}, nil)
	long := values("query", string(make([]byte, formBytes)))
	for range 50 {
		resp, err := c.Open(t.Context(), Request{Path: "/api/v1/query_range", Params: long})
		if err != nil {
			t.Fatal(err)
		}
		body, err := readAll(resp, 100)
		checkIs(t, err, nil)
		check(t, "method", body, "POST")
		server.CloseClientConnections()
	}
}

func TestOpen_CountsTriesRetriesAndBytes(t *testing.T) {
	whole := wire(t, Identity, "content-length", document(12))
	server := serveRaw(t, func(conn net.Conn, _ *http.Request, before int) {
		switch before {
		case 0:
			_, _ = io.WriteString(conn, "HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n")
		case 1:
			_, _ = io.WriteString(conn, whole[:300])
		default:
			_, _ = io.WriteString(conn, whole)
		}
	})
	set := instruments.NewSet()
	c := client(t, Options{URL: server.url}, set)
	resp, err := c.Open(t.Context(), Request{Path: "/"})
	if err != nil {
		t.Fatal(err)
	}
	check(t, "in flight", float64(c.metrics.inFlight.Get()), 1)
	_, err = readAll(resp, 100)
	checkIs(t, err, nil)
	check(t, "in flight at the end", float64(c.metrics.inFlight.Get()), 0)
	check(t, "5xx", float64(c.metrics.tries.With("5xx").Get()), 1)
	check(t, "success", float64(c.metrics.tries.With("success").Get()), 2)
	check(t, "retries", float64(c.metrics.repeats.With("5xx").Get()), 1)
	check(t, "after a break", float64(c.metrics.repeats.With("broken").Get()), 1)
	check(t, "continued", float64(c.metrics.resumes.With("continued").Get()), 1)
	check(t, "decoded", float64(c.metrics.decoded.Get()), float64(len(document(12))))
	defer func() {
		if recover() == nil {
			t.Error("two clients on one set")
		}
	}()
	_, _ = New(Options{URL: server.url}, nil, set)
}

func FuzzRetryAfter(f *testing.F) {
	for _, seed := range []string{"", "0", "3", "-1", "99999999999999999999", "Fri, 31 Dec 1999 23:59:59 GMT", "1.5"} {
		f.Add(seed)
	}
	now := time.Unix(1_700_000_000, 0)
	f.Fuzz(func(t *testing.T, text string) {
		wait, ok := retryAfter(text, now)
		if wait < 0 || !ok && wait != 0 {
			t.Fatalf("%q: %s, %v", text, wait, ok)
		}
		if again, _ := retryAfter(strconv.Itoa(int(wait/time.Second)), now); ok && again != wait.Truncate(time.Second) && wait < time.Hour {
			t.Fatalf("%q: %s, again %s", text, wait, again)
		}
	})
}

// Only response_header_timeout, Thanos' key, limits the wait for headers.
func TestOpen_ResponseHeaderTimeoutIsNotRetried(t *testing.T) {
	transport, err := ParseTransport([]byte("response_header_timeout: 1s"))
	if err != nil {
		t.Fatal(err)
	}
	server := serveRaw(t, func(conn net.Conn, _ *http.Request, _ int) { gone(conn) })
	_, err = open(t, Options{URL: server.url, Transport: transport}, Request{Path: "/api/v1/query_range"})
	checkIs(t, err, ErrTimeout)
	check(t, "requests", server.count("/api/v1/query_range"), 1)
}

func TestOpen_BodyOfAQueryTimeoutIsForwarded(t *testing.T) {
	for name, text := range map[string]string{
		"short": `{"status":"error","errorType":"timeout","error":"query timed out"}`,
		"long":  `{"status":"error","errorType":"timeout","error":"` + strings.Repeat("x", 3*peekBytes) + `"}`,
		"none":  "",
	} {
		for _, encoding := range []string{Identity, Gzip} {
			body := encode(t, encoding, text)
			url := serveHTTP(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Encoding", encoding)
				w.WriteHeader(503)
				_, _ = io.WriteString(w, body)
			}, nil)
			resp, err := open(t, Options{URL: url, Retries: 1}, Request{Path: "/"})
			if err != nil {
				t.Fatal(err)
			}
			got, err := readAll(resp, 100)
			checkIs(t, err, nil)
			check(t, name+", "+encoding, got, text)
		}
	}
}
