package scrape

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/scrape"
)

// canned is a connection to a target that answers a request with given bytes and closes the connection then.
type canned struct {
	net.Conn // nil: other methods are not used
	answer   io.Reader
	asked    chan struct{}
	once     sync.Once
	request  *bytes.Buffer
}

func (c *canned) Read(p []byte) (int, error) {
	<-c.asked
	return c.answer.Read(p)
}

func (c *canned) Write(p []byte) (int, error) {
	c.request.Write(p)
	c.once.Do(func() { close(c.asked) })
	return len(p), nil
}

func (c *canned) Close() error {
	c.once.Do(func() { close(c.asked) })
	return nil
}

func (*canned) SetDeadline(time.Time) error { return nil }
func (*canned) LocalAddr() net.Addr         { return &net.TCPAddr{} }
func (*canned) RemoteAddr() net.Addr        { return &net.TCPAddr{} }

// fetching returns a fetcher of a target. ours says whether our client may send its requests.
func fetching(t testing.TB, job, address string, dial dialer, ours bool) *fetcher {
	t.Helper()
	cfg, err := config.Load("global: {scrape_timeout: 30s, scrape_interval: 30s}\nscrape_configs: [{job_name: j"+job+"}]",
		slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	metrics, err := newMetrics(newRecording(), slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	c, err := newClient(cfg.ScrapeConfigs[0], dial, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.CloseIdleConnections)
	if !ours {
		c.transport = nil
	}
	of := model.LabelSet{model.AddressLabel: model.LabelValue(address)}
	set, err := scrape.PopulateLabels(labels.NewBuilder(labels.EmptyLabels()), cfg.ScrapeConfigs[0], of, nil)
	if err != nil {
		t.Fatal(err)
	}
	target := scrape.NewTarget(set, cfg.ScrapeConfigs[0], of, nil)
	return newFetcher(target, c, cfg.ScrapeConfigs[0], &scrape.Options{}, 30*time.Second, metrics, slog.New(slog.DiscardHandler))
}

var clientPort = regexp.MustCompile(`127\.0\.0\.1:\d+->`)

// outcome fetches a page and says what came of it.
func outcome(ctx context.Context, f *fetcher) string {
	body, media, err := f.fetch(ctx)
	if body == nil {
		body = new(bytes.Buffer)
	}
	text := fmt.Sprintf("%q %q", media, body)
	if err != nil {
		text = "error: " + clientPort.ReplaceAllString(err.Error(), "")
	}
	return text
}

func zipped(s string) string {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = io.WriteString(z, s)
	_ = z.Close()
	return b.String()
}

const (
	ok      = "HTTP/1.1 200 OK\r\n"
	chunked = ok + "Content-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n"
)

var answers = []string{
	ok + "Content-Type: text/plain\r\nContent-Length: 4\r\n\r\na 1\n",
	ok + "content-type:text/plain; version=0.0.4\r\ncontent-length:   4\r\nX-Empty:\r\n\r\na 1\n",
	ok + "Content-Length: 0\r\n\r\n",
	ok + "Content-Length: 4\r\nConnection: close\r\n\r\na 1\n",
	ok + "Content-Length: 4\r\n\r\na 1\nmore than that",
	ok + "Content-Length: 10\r\n\r\na 1\n",
	ok + "Content-Length: 4\r\nContent-Length: 4\r\n\r\na 1\n",
	ok + "Content-Length: 4\r\nContent-Length: 5\r\n\r\na 1\n",
	ok + "Content-Length: -4\r\n\r\na 1\n",
	ok + "Content-Length: 99999999999999999999999\r\n\r\na 1\n",
	ok + "Content-Length: 9223372036854775807\r\n\r\na 1\n",
	ok + "Content-Length: 4x\r\n\r\na 1\n",
	ok + "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n4\r\na 1\n\r\n0\r\n\r\n",
	ok + "Transfer-Encoding: gzip\r\n\r\na 1\n",
	ok + "Transfer-Encoding: chunked, chunked\r\n\r\n4\r\na 1\n\r\n0\r\n\r\n",
	ok + "Content-Type: text/plain\r\n\r\nuntil the end 1\n",
	"HTTP/1.0 200 OK\r\n\r\na 1\n",
	"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 4\r\n\r\na 1\n",
	chunked + "4\r\na 1\n\r\n0\r\n\r\n",
	chunked + "2\r\na \r\n2\r\n1\n\r\n0\r\nTrailer: x\r\n\r\n",
	chunked + "4;extension=\"x\"\r\na 1\n\r\n0\r\n\r\n",
	chunked + "4;" + strings.Repeat("x", 5000) + "\r\na 1\n\r\n0\r\n\r\n",
	chunked + strings.Repeat("1;"+strings.Repeat("x", 100)+"\r\na\r\n", 1000) + "0\r\n\r\n",
	chunked + "4\r\na 1\n",
	chunked + "4\r\na 1\n\r\n0\r\n",
	chunked + "4\r\na 1\n\r\n0\r\nTrailer",
	chunked + "x\r\na 1\n\r\n0\r\n\r\n",
	chunked + "-4\r\na 1\n\r\n0\r\n\r\n",
	chunked + "fffffffffffffffff\r\na 1\n\r\n0\r\n\r\n",
	chunked + "4\r\na 1\nxx0\r\n\r\n",
	"HTTP/1.1 100 Continue\r\n\r\n" + ok + "Content-Length: 4\r\n\r\na 1\n",
	"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n" + ok + "Content-Length: 4\r\n\r\na 1\n",
	"HTTP/1.1 100 Continue\r\n\r\n",
	strings.Repeat("HTTP/1.1 103 Early Hints\r\nLink: "+strings.Repeat("x", 100000)+"\r\n\r\n", 110) + ok + "\r\n",
	"HTTP/1.1 204 No Content\r\n\r\n",
	"HTTP/1.1 304 Not Modified\r\nContent-Length: 4\r\n\r\n",
	"HTTP/1.1 302 Found\r\nLocation: /moved\r\n\r\n", // again and again
	"HTTP/1.1 302 Found\r\nContent-Length: 0\r\n\r\n",
	"HTTP/1.1 302 Found\r\nLocation: http://%zz\r\n\r\n",
	"HTTP/1.1 300 Multiple Choices\r\nLocation: /moved\r\n\r\n",
	"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nnone",
	"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 40\r\n\r\nnone",
	"HTTP/1.1 503\r\nContent-Length: 0\r\n\r\n",
	"HTTP/1.1 200 \r\nContent-Length: 4\r\n\r\na 1\n",
	"HTTP/1.1 2000 OK\r\n\r\n",
	"HTTP/1.1 -20 OK\r\n\r\n",
	"HTTP/1.1 099 OK\r\n\r\n",
	"HTTP/2.0 200 OK\r\nContent-Length: 4\r\n\r\na 1\n",
	"HTTP/3 200 OK\r\n\r\n",
	"HTTP/1.1 200 OK\nContent-Length: 4\n\na 1\n",
	"SSH-2.0-OpenSSH\r\n",
	"\x15\x03\x01\x00\x02\x02\x16",
	"",
	"H",
	"HTTP/1.1 200 OK",
	ok,
	ok + "Content-Length: 4\r\n",
	ok + "no colon\r\n\r\n",
	ok + "space : x\r\n\r\n",
	ok + "Folded: x\r\n y\r\nContent-Length: 4\r\n\r\na 1\n",
	ok + " Folded: x\r\nContent-Length: 4\r\n\r\na 1\n",
	ok + "Nul: \x00\r\nContent-Length: 4\r\n\r\na 1\n",
	ok + ": no name\r\nContent-Length: 4\r\n\r\na 1\n",
	ok + "Long: " + strings.Repeat("x", 100000) + "\r\nContent-Length: 4\r\n\r\na 1\n",
	ok + "Endless: " + strings.Repeat("x", headMax),
	ok + strings.Repeat("A: "+strings.Repeat("x", 1000)+"\r\n", 11000) + "\r\n",
	ok + "Content-Encoding: gzip\r\n\r\n" + zipped("a 1\n"),
	ok + "Content-Encoding: gzip\r\n\r\n" + zipped("a 1\n") + zipped("b 1\n"),
	ok + "Content-Encoding: gzip\r\nContent-Length: 100\r\n\r\n" + zipped("a 1\n"),
	ok + "Content-Encoding: gzip\r\n\r\n" + zipped("a 1\n")[:20],
	ok + "Content-Encoding: gzip\r\n\r\n" + zipped(strings.Repeat("a", 10<<20)),
	ok + "Content-Encoding: gzip\r\n\r\nnot compressed",
	ok + "Content-Encoding: GZIP\r\nContent-Length: 4\r\n\r\na 1\n",
	ok + "Content-Encoding: br\r\nContent-Length: 4\r\n\r\na 1\n",
	ok + "Content-Encoding: zstd\r\nContent-Length: 4\r\n\r\na 1\n",
	ok + "Content-Length: 60000\r\n\r\n" + strings.Repeat("a 1\n", 15000),
	ok + "Content-Length: 600000\r\n\r\n" + strings.Repeat("a 1\n", 15000),
}

// compareFetch fetches a page that consists of given bytes with both clients.
func compareFetch(t *testing.T, answer []byte) {
	t.Helper()
	var got [2]string
	for i := range got {
		requests := 0
		dial := func(context.Context, string, string) (net.Conn, error) {
			if requests++; requests > 20 {
				return nil, io.ErrNoProgress
			}
			return &canned{answer: bytes.NewReader(answer), asked: make(chan struct{}), request: new(bytes.Buffer)}, nil
		}
		f := fetching(t, ", body_size_limit: 100KB", "target:80", dial, i == 1)
		got[i] = outcome(t.Context(), f)
		if i == 1 && f.request != nil && f.head == nil && f.address == "" {
			t.Error("the request is not plain")
		}
	}
	if got[0] != got[1] {
		t.Errorf("%.200q: %.500s, the library's client: %.500s", answer, got[1], got[0])
	}
}

func TestClient_UnderstandsAnswersAsTheLibraryDoes(t *testing.T) {
	for _, a := range answers {
		compareFetch(t, []byte(a))
	}
}

func FuzzClient(f *testing.F) {
	for _, a := range answers {
		if len(a) < 10000 {
			f.Add([]byte(a))
		}
	}
	f.Fuzz(compareFetch)
}

// Targets see the same bytes, at the same address, as from the library's client; whatever a job configures.
func TestClient_AsksAsTheLibraryDoes(t *testing.T) {
	for _, c := range []struct {
		job, address string
		plain        bool
	}{
		{"", "target:9090", true},
		{"", "Target", true},
		{"", "target.", true},
		{"", "127.0.0.1:80", true},
		{"", "[::1]:9090", true},
		{"", "[::1]", true},
		{"", "[fe80::1%25eth0]:9090", true},
		{"", "bücher:9090", false},
		{"", "b_c:9090", true},
		{"", ":9090", true},
		{"", "user:secret@target:9090", false},
		{", metrics_path: '/a b/ü%2F', params: {'q[]': ['a&b', 'ü +'], e: ['']}", "target:80", true},
		{", metrics_path: 'no/slash?x=1#y'", "target:80", true},
		{", enable_compression: false, scrape_protocols: [PrometheusProto]", "target:80", true},
		{", scheme: https", "target:443", false},
		{", basic_auth: {username: u, password: p}", "target:80", false},
		{", authorization: {credentials: secret}", "target:80", false},
		{", bearer_token: secret", "target:80", false},
		{", http_headers: {X-A: {values: [b]}}", "target:80", false},
		{", proxy_url: 'http://proxy:3128'", "target:80", false},
		{", follow_redirects: false, enable_http2: false", "target:80", true},
		{", tls_config: {insecure_skip_verify: true}", "target:80", true},
	} {
		var got [2]string
		for i := range got {
			var request bytes.Buffer
			var dialed string
			dial := func(_ context.Context, network, address string) (net.Conn, error) {
				dialed = network + " " + address
				answer := ok + "Content-Length: 4\r\n\r\na 1\n"
				return &canned{answer: strings.NewReader(answer), asked: make(chan struct{}), request: &request}, nil
			}
			f := fetching(t, c.job, c.address, dial, i == 1)
			result := outcome(t.Context(), f)
			if plain := f.head != nil; plain != (c.plain && i == 1) {
				t.Errorf("%s %s: plain %v", c.address, c.job, plain)
			}
			lines := strings.SplitAfter(request.String(), "\r\n")
			if c.job != ", scheme: https" { // whose bytes are random
				slices.Sort(lines[1:])
				dialed += strings.Join(lines, "")
			}
			got[i] = dialed + result
		}
		if got[0] != got[1] || got[0] == "" {
			t.Errorf("%s %s: %s\nthe library's client: %s", c.address, c.job, got[1], got[0])
		}
	}
}

// scripted is a target at a TCP port. It counts its connections and hands them to serve.
func scripted(t *testing.T, serve func(connection int, c net.Conn, in *bufio.Reader)) (address string, connections func() int) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	var all []net.Conn
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			all = append(all, c)
			n := len(all)
			mu.Unlock()
			wg.Go(func() {
				defer c.Close()
				serve(n, c, bufio.NewReader(c))
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		mu.Lock()
		for _, c := range all {
			_ = c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	return l.Addr().String(), func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(all)
	}
}

// asked reads a request.
func asked(in *bufio.Reader) bool {
	r, err := http.ReadRequest(in)
	return err == nil && r.Method == http.MethodGet
}

const pageAnswer = ok + "Content-Length: 4\r\n\r\na 1\n"

// A connection is used again unless the target has said or done something that forbids it. A target that has closed a
// kept connection is asked again, so no scrape fails.
func TestClient_KeepsConnections(t *testing.T) {
	for name, c := range map[string]struct {
		answer  string // every one
		between string // is sent later
		then    string // "close", or "drop": close after the second request
		want    int    // connections for four scrapes
	}{
		"length":              {answer: pageAnswer, want: 1},
		"chunks":              {answer: chunked + "4\r\na 1\n\r\n0\r\n\r\n", want: 1},
		"trailer":             {answer: chunked + "4\r\na 1\n\r\n0\r\nX: y\r\n\r\n", want: 1},
		"nothing":             {answer: ok + "Content-Length: 0\r\n\r\n", want: 1},
		"HTTP/1.0":            {answer: "HTTP/1.0 200 OK\r\nContent-Length: 4\r\n\r\na 1\n", want: 4},
		"HTTP/1.0 keep-alive": {answer: "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 4\r\n\r\na 1\n", want: 1},
		"Connection: close":   {answer: ok + "Connection: close\r\nContent-Length: 4\r\n\r\na 1\n", want: 4},
		"error":               {answer: "HTTP/1.1 500 x\r\nContent-Length: 4\r\n\r\noops", want: 1},
		"informational":       {answer: "HTTP/1.1 103 x\r\n\r\n" + pageAnswer, want: 1},
		"switch":              {answer: "HTTP/1.1 101 x\r\nContent-Length: 0\r\n\r\n", want: 4},
		"more":                {answer: pageAnswer + "b 1\n", want: 4},
		"unsolicited":         {answer: pageAnswer, between: "HTTP/1.1 408 Request Timeout\r\n\r\n", want: 4},
		"closed":              {answer: pageAnswer, then: "close", want: 4},
		"dropped":             {answer: pageAnswer, then: "drop", want: 4},
	} {
		t.Run(name, func(t *testing.T) {
			idle := make(chan struct{})
			address, connections := scripted(t, func(_ int, to net.Conn, in *bufio.Reader) {
				for n := 0; asked(in) && (c.then != "drop" || n == 0); n++ {
					_, _ = io.WriteString(to, c.answer)
					if c.between == "" && c.then != "close" {
						continue
					}
					<-idle
					if c.then == "close" {
						return
					}
					_, _ = io.WriteString(to, c.between)
				}
			})
			var last net.Conn
			f := fetching(t, "", address, func(ctx context.Context, network, address string) (_ net.Conn, err error) {
				last, err = (&net.Dialer{}).DialContext(ctx, network, address)
				return last, err
			}, true)
			first := ""
			for range 4 {
				got := outcome(t.Context(), f)
				if first == "" {
					first = got
				}
				if got != first || strings.HasPrefix(got, "error") && !strings.Contains(got, "HTTP status") {
					t.Errorf("%s, first: %s", got, first)
				}
				if c.between != "" || c.then == "close" {
					idle <- struct{}{}
					untilReadable(t, last)
				}
			}
			if n := connections(); n != c.want {
				t.Errorf("%d connections, want %d", n, c.want)
			}
		})
	}
}

// untilReadable waits until a connection is closed or has bytes, and leaves them there.
func untilReadable(t *testing.T, c net.Conn) {
	t.Helper()
	raw, err := c.(syscall.Conn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.Read(func(fd uintptr) bool {
		_, _, err := syscall.Recvfrom(int(fd), make([]byte, 1), syscall.MSG_PEEK)
		return err != syscall.EAGAIN
	}); err != nil {
		t.Fatal(err)
	}
}

// Targets at one address, as those of a blackbox exporter, share their connections.
func TestClient_TargetsShareConnections(t *testing.T) {
	address, connections := scripted(t, func(_ int, to net.Conn, in *bufio.Reader) {
		for asked(in) {
			_, _ = io.WriteString(to, pageAnswer)
		}
	})
	f := fetching(t, "", address, nil, true)
	for range 10 {
		other := fetching(t, ", params: {target: [x]}", address, nil, true)
		other.client = f.client
		for _, f := range []*fetcher{f, other} {
			if got := outcome(t.Context(), f); strings.HasPrefix(got, "error") {
				t.Error(got)
			}
		}
	}
	if n := connections(); n != 1 {
		t.Errorf("%d connections", n)
	}
}

// The library's client follows redirections: it asks a target again when the first one arrives, and always from then on.
func TestClient_LeavesRedirectionsToTheLibrary(t *testing.T) {
	var paths []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		paths = append(paths, r.URL.Path)
		if r.URL.Path == "/metrics" {
			http.Redirect(w, r, "/moved", http.StatusFound)
			return
		}
		_, _ = io.WriteString(w, "a 1\n")
	}))
	t.Cleanup(server.Close)
	address := strings.TrimPrefix(server.URL, "http://")
	f := fetching(t, "", address, nil, true)
	for range 2 {
		if got := outcome(t.Context(), f); !strings.Contains(got, `"a 1\n"`) {
			t.Error(got)
		}
	}
	not := fetching(t, ", follow_redirects: false", address, nil, true)
	if got := outcome(t.Context(), not); got != "error: server returned HTTP status 302 Found" {
		t.Error(got)
	}
	want := []string{"/metrics", "/metrics", "/moved", "/metrics", "/moved", "/metrics"}
	if !slices.Equal(paths, want) {
		t.Errorf("%v", paths)
	}
}

// Not more connections are kept than the library keeps, and none for longer.
func TestClient_ClosesConnectionsThatNobodyUses(t *testing.T) {
	asking, answer, ended := make(chan struct{}), make(chan struct{}), make(chan struct{}, 3)
	address, connections := scripted(t, func(_ int, to net.Conn, in *bufio.Reader) {
		for asked(in) {
			asking <- struct{}{}
			<-answer
			_, _ = io.WriteString(to, pageAnswer)
		}
		ended <- struct{}{}
	})
	f := fetching(t, "", address, nil, true)
	if limits := f.client.transport; limits.MaxIdleConnsPerHost != 1000 || limits.MaxIdleConns != 20000 ||
		limits.IdleConnTimeout != 5*time.Minute {
		t.Errorf("%+v", limits)
	}
	f.client.transport.MaxIdleConnsPerHost = 2
	f.client.transport.IdleConnTimeout = time.Millisecond
	fetches := func(n int) {
		var wg sync.WaitGroup
		for range n {
			f := *f
			wg.Go(func() {
				if got := outcome(t.Context(), &f); strings.HasPrefix(got, "error") {
					t.Error(got)
				}
			})
		}
		for range n {
			<-asking
		}
		for range n {
			answer <- struct{}{}
		}
		wg.Wait()
	}
	fetches(3)
	for range 3 { // one at once, because of the limit
		<-ended
	}
	f.client.mu.Lock()
	f.client.transport.IdleConnTimeout = time.Hour
	f.client.mu.Unlock()
	fetches(2)
	if n := connections(); n != 5 {
		t.Errorf("%d connections", n)
	}
	f.client.CloseIdleConnections()
	for range 2 {
		<-ended
	}
	if f.client.old != nil || len(f.client.idle) != 0 || f.client.kept != 0 {
		t.Errorf("%v %v %d", f.client.old, f.client.idle, f.client.kept)
	}
}

// A connection is closed when it has been idle for five minutes, whenever others were used.
func TestClient_ClosesEachConnectionInTime(t *testing.T) {
	for _, ours := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			closed := map[string]time.Duration{}
			var mu sync.Mutex
			dial := func(_ context.Context, _, address string) (net.Conn, error) {
				client, target := net.Pipe()
				go func() {
					for in := bufio.NewReader(target); asked(in); {
						_, _ = io.WriteString(target, pageAnswer)
					}
					mu.Lock()
					defer mu.Unlock()
					closed[address] = time.Since(start)
				}()
				return client, nil
			}
			f := fetching(t, "", "first:80", dial, ours)
			g := fetching(t, "", "second:80", dial, ours)
			g.client = f.client
			outcome(t.Context(), f)
			time.Sleep(time.Minute)
			outcome(t.Context(), g)
			time.Sleep(time.Hour)
			mu.Lock()
			defer mu.Unlock()
			if closed["first:80"] != 5*time.Minute || closed["second:80"] != 6*time.Minute {
				t.Errorf("ours %v: %v", ours, closed)
			}
		})
	}
}

// The timeout of a scrape and the end of the server end a request whatever it waits for.
func TestClient_EndsWithItsContext(t *testing.T) {
	for name, answer := range map[string]string{
		"head": "", "part of the head": ok + "Content-", "body": ok + "Content-Length: 100\r\n\r\na 1\n",
		"chunk": chunked + "4\r\na 1", "gzip": ok + "Content-Encoding: gzip\r\n\r\n" + zipped("a 1\n")[:10],
		"error": "HTTP/1.1 500 x\r\nContent-Length: 100\r\n\r\n", "connection": "",
	} {
		for _, ours := range []bool{false, true} {
			for _, end := range []string{"deadline exceeded", "canceled"} {
				arrived := make(chan struct{})
				address, _ := scripted(t, func(_ int, to net.Conn, in *bufio.Reader) {
					if asked(in) {
						_, _ = io.WriteString(to, answer)
						close(arrived)
						_, _ = io.Copy(io.Discard, in) // until the client closes the connection
					}
				})
				dial := dialer(nil)
				if name == "connection" {
					dial = func(ctx context.Context, _, _ string) (net.Conn, error) {
						close(arrived)
						<-ctx.Done()
						return nil, ctx.Err()
					}
				}
				ctx, cancel := context.WithCancelCause(t.Context())
				if end == "deadline exceeded" {
					go func() {
						<-arrived
						cancel(context.DeadlineExceeded)
					}()
				} else {
					go func() {
						<-arrived
						cancel(nil)
					}()
				}
				f := fetching(t, "", address, dial, ours)
				got := outcome(ctx, f)
				if !strings.HasPrefix(got, "error: ") || !strings.HasSuffix(got, ": context "+end) && got != "error: context "+end &&
					got != "error: server returned HTTP status 500 x" {
					t.Errorf("%s, ours %v: %s", name, ours, got)
				}
			}
		}
	}
}

// A scrape ends at its timeout, and with the library's error, wherever in its answer a target stops.
func TestClient_EndsWhereverATargetStops(t *testing.T) {
	for _, answer := range []string{
		pageAnswer,
		chunked + "4;x=y\r\na 1\n\r\n0\r\nX: y\r\n\r\n",
		ok + "Content-Encoding: gzip\r\n\r\n" + zipped("a 1\n"),
		"HTTP/1.1 103 x\r\n\r\nHTTP/1.1 500 x\r\nContent-Length: 4\r\n\r\noops",
	} {
		for n := range answer {
			var got [2]string
			for i := range got {
				synctest.Test(t, func(t *testing.T) {
					dial := func(context.Context, string, string) (net.Conn, error) {
						client, target := net.Pipe()
						go func() {
							in := bufio.NewReader(target)
							if asked(in) {
								_, _ = io.WriteString(target, answer[:n])
								_, _ = io.Copy(io.Discard, in)
							}
						}()
						return client, nil
					}
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					defer cancel()
					start := time.Now()
					got[i] = outcome(ctx, fetching(t, "", "target:80", dial, i == 1))
					got[i] += time.Since(start).String()
				})
			}
			if got[0] != got[1] {
				t.Errorf("%q: %s, the library's client: %s", answer[:n], got[1], got[0])
			}
		}
	}
}

// Connections of idle targets have no goroutines.
func TestManager_IdleConnectionsHaveNoGoroutines(t *testing.T) {
	_, to, send := managed(t, "")
	send(target(t), target(t), target(t))
	to.wait(t, "apples 1", "up 1")
	for timeout := time.After(10 * time.Second); ; { // goroutines of tests before may still end
		var stacks bytes.Buffer
		_ = pprof.Lookup("goroutine").WriteTo(&stacks, 1)
		if !strings.Contains(stacks.String(), "persistConn") {
			return
		}
		select {
		case <-timeout:
			t.Fatalf("%s", &stacks)
		case <-to.samples:
		}
	}
}

// A reload waits for the scrape that runs, and the end of scraping does, too.
func TestManager_ReloadsAndEndsWhileItFetches(t *testing.T) {
	asking, answer := make(chan struct{}), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case asking <- struct{}{}: // the test waits
			select {
			case answer <- struct{}{}:
			case <-r.Context().Done():
			}
		default:
		}
		_, _ = io.WriteString(w, "apples 1\n")
	}))
	t.Cleanup(server.Close)
	m, to, send := managed(t, ", scrape_interval: 200ms, scrape_timeout: 200ms")
	send(strings.TrimPrefix(server.URL, "http://"))
	<-asking
	reloaded := make(chan error, 1)
	go func() {
		cfg, err := config.Load("scrape_configs: [{job_name: j, scrape_interval: 20ms, scrape_timeout: 20ms}]", slog.New(slog.DiscardHandler))
		if err == nil {
			err = m.ApplyConfig(cfg)
		}
		reloaded <- err
	}()
	<-answer
	to.wait(t, "up 1")
	go func() { // the storage takes all samples
		for {
			select {
			case <-to.samples:
			case <-t.Context().Done():
				return
			}
		}
	}()
	if err := <-reloaded; err != nil {
		t.Error(err)
	}
	<-asking
}
