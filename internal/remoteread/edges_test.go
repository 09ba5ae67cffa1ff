package remoteread

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/prompb"
	"github.com/prometheus/prometheus/storage"
	prometheustsdb "github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/series/labelenc"
	"github.com/ferula-io/ferula/metrics"
)

var errBroken = errors.New("broken")

// transport is a function that responds to requests. It records their contexts and the number of bodies that are open.
type transport struct {
	respond  func() (*http.Response, error)
	contexts []context.Context
	open     int
}

func (f *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	f.contexts = append(f.contexts, r.Context())
	resp, err := f.respond()
	if err == nil {
		f.open++
		resp.Body = &countedBody{resp.Body, f}
	}
	return resp, err
}

type countedBody struct {
	io.ReadCloser
	of *transport
}

func (b *countedBody) Close() error { b.of.open--; return b.ReadCloser.Close() }

func responding(status int, contentType string, body io.Reader) func() (*http.Response, error) {
	return func() (*http.Response, error) {
		return &http.Response{StatusCode: status, Status: fmt.Sprint(status, " ", http.StatusText(status)), Header: http.Header{"Content-Type": {contentType}}, Body: io.NopCloser(body)}, nil
	}
}

// brokenReader fails at its first Read.
type brokenReader struct{}

func (brokenReader) Read([]byte) (int, error) { return 0, errBroken }

const streamed = "application/x-streamed-protobuf; proto=prometheus.ChunkedReadResponse"

// A connection, and the timer of a timeout, must not outlive the response.
func TestClient_EveryResponseIsReleased(t *testing.T) {
	for name, respond := range map[string]func() (*http.Response, error){
		"no response":          func() (*http.Response, error) { return nil, errBroken },
		"refused":              responding(http.StatusBadRequest, "text/plain", strings.NewReader("no")),
		"busy":                 responding(http.StatusServiceUnavailable, "text/plain", strings.NewReader("no")),
		"broken before a byte": responding(http.StatusOK, streamed, brokenReader{}),
		"another type":         responding(http.StatusOK, "application/json", strings.NewReader("{}")),
		"empty":                responding(http.StatusOK, streamed, strings.NewReader("")),
		"frames":               responding(http.StatusOK, streamed, bytes.NewReader(frames(2))),
		"broken frames":        responding(http.StatusOK, streamed, bytes.NewReader(frames(2)[:100])),
		"not read":             responding(http.StatusOK, streamed, bytes.NewReader(frames(2))),
	} {
		for _, stall := range []time.Duration{0, time.Hour} {
			from := &transport{respond: respond}
			client := NewClient(ClientOptions{URL: "http://a", HTTP: &http.Client{Transport: from}, Tries: 1, Timeout: time.Hour, StallTimeout: stall})
			set, end := raw(t, client, 0, 2, everything)
			for set.Next() && name != "not read" {
			}
			end()
			if len(from.contexts) != 1 || from.open != 0 {
				t.Errorf("%s: %d requests, %d bodies are open", name, len(from.contexts), from.open)
				continue
			}
			if _, ok := from.contexts[0].Deadline(); !ok || from.contexts[0].Err() == nil {
				t.Errorf("%s: a deadline: %v, the context of the request outlives it", name, ok)
			}
		}
	}
}

func TestClient_TriesAndTheirPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var at []time.Duration
		begun, n := time.Now(), 0
		from := &transport{respond: func() (*http.Response, error) {
			at = append(at, time.Since(begun))
			if n++; n == 3 {
				return nil, errBroken
			}
			return responding(http.StatusBadGateway, "text/plain", strings.NewReader("  the reason \n"))()
		}}
		client := NewClient(ClientOptions{URL: "http://eve:apple@a/read", HTTP: &http.Client{Transport: from}, Tries: 4, RetryAfter: time.Second})
		_, err := client.sendWithRetries(t.Context(), &prompb.Query{})
		if fmt.Sprint(at) != "[0s 1s 3s 7s]" {
			t.Errorf("requests at %v", at)
		}
		want := "http://eve:xxxxx@a/read: 502 Bad Gateway: the reason"
		if !errors.Is(err, ErrUnavailable) || !errors.Is(err, errBroken) || strings.Count(err.Error(), want) != 1 || strings.Contains(err.Error(), "apple") {
			t.Errorf("%v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
		defer cancel()
		at = nil
		if _, err := client.sendWithRetries(ctx, &prompb.Query{}); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "502") || len(at) != 2 {
			t.Errorf("%d requests, %v", len(at), err)
		}
	})
}

func TestClient_BeginningOfARefusalIsInTheError(t *testing.T) {
	for status, want := range map[int]error{400: ErrRefused, 404: ErrRefused, 301: ErrRefused, 204: ErrRefused, 429: nil, 500: nil, 599: nil, 600: ErrRefused} {
		from := &transport{respond: responding(status, "text/plain", strings.NewReader(strings.Repeat("x", refusalBytesMax)+"y"))}
		client := NewClient(ClientOptions{URL: "http://a", HTTP: &http.Client{Transport: from}})
		_, err := client.send(t.Context(), &prompb.Query{}, nil)
		if errors.Is(err, ErrRefused) != (want != nil) || err == nil || strings.Count(err.Error(), "x") != refusalBytesMax || strings.HasSuffix(err.Error(), "y") {
			t.Errorf("%d: %.100v", status, err)
		}
	}
}

func TestClient_TypesOfResponses(t *testing.T) {
	for _, tt := range []struct {
		kind, encoding string
		want           string // type of the source; "": refused
	}{
		{streamed, "", "*remoteread.frameSource"}, {"application/x-protobuf", "snappy", "*remoteread.sampleSource"}, {"application/x-protobuf", "", "*remoteread.sampleSource"},
		{streamed, "snappy", ""}, {"application/x-protobuf", "gzip", ""}, {"text/html", "", ""}, {"", "", ""},
	} {
		closed := &transport{open: 1}
		from, err := NewClient(ClientOptions{}).newSource(&prompb.Query{}, &http.Response{Header: http.Header{"Content-Type": {tt.kind}, "Content-Encoding": {tt.encoding}}},
			&responseBody{body: &countedBody{io.NopCloser(nil), closed}, cancel: func() {}})
		if tt.want == "" {
			if from != nil || !errors.Is(err, ErrRefused) || closed.open != 0 {
				t.Errorf("%+v: %T, %v, open %d", tt, from, err, closed.open)
			}
		} else if got := fmt.Sprintf("%T", from); got != tt.want || err != nil || closed.open != 1 {
			t.Errorf("%+v: %s, %v, open %d", tt, got, err, closed.open)
		}
	}
}

func TestClient_ListsNoLabels(t *testing.T) {
	client := NewClient(ClientOptions{URL: "http://127.0.0.1:1"})
	raw, err1 := client.RawQuerier(t.Context(), 0, 1)
	if err1 != nil {
		t.Fatal(err1)
	}
	if _, err := raw.LabelNames(t.Context(), series.SelectOptions{}); !errors.Is(err, ErrLabels) {
		t.Error(err)
	}
}

func TestClient_HintsReachTheServer(t *testing.T) {
	var body []byte
	address := serveHandler(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ = io.ReadAll(r.Body)
		streamOf(nil).ServeHTTP(w, r)
	}))
	for _, only := range []bool{false, true} {
		q := &Querier{client: NewClient(ClientOptions{URL: address, SamplesOnly: only}), mint: 1, maxt: 9}
		hints := &storage.SelectHints{Step: 2, Func: "rate", Start: 3, End: 4, Grouping: []string{"a"}, By: true, Range: 5}
		var matchers []*labels.Matcher
		for kind, pattern := range map[labels.MatchType]string{labels.MatchEqual: "=", labels.MatchNotEqual: "!=", labels.MatchRegexp: "=~", labels.MatchNotRegexp: "!~"} {
			matchers = append(matchers, labels.MustNewMatcher(kind, "m"+fmt.Sprint(int(kind)), "v"+pattern))
		}
		if set := q.sel(t.Context(), hints, matchers); set.Next() || set.Err() != nil {
			t.Error(set.Err())
		}
		if err := q.Close(); err != nil {
			t.Error(err)
		}
		request, err := decode(body)
		if err != nil || len(request.Queries) != 1 || len(request.AcceptedResponseTypes) != map[bool]int{false: 2, true: 1}[only] || request.AcceptedResponseTypes[len(request.AcceptedResponseTypes)-1] != prompb.ReadRequest_SAMPLES {
			t.Fatalf("%+v, %v", request, err)
		}
		got := request.Queries[0]
		if got.StartTimestampMs != 1 || got.EndTimestampMs != 9 || got.Hints.String() != `step_ms:2 func:"rate" start_ms:3 end_ms:4 grouping:"a" by:true range_ms:5 ` {
			t.Errorf("%+v", got.Hints)
		}
		for _, m := range got.Matchers {
			kind := map[string]prompb.LabelMatcher_Type{"v=": prompb.LabelMatcher_EQ, "v!=": prompb.LabelMatcher_NEQ, "v=~": prompb.LabelMatcher_RE, "v!~": prompb.LabelMatcher_NRE}[m.Value]
			if m.Type != kind || len(got.Matchers) != 4 {
				t.Errorf("%+v", m)
			}
		}
	}
}

// listed is a storage of given series. Its queriers fail to open, to close, or at the end of a set.
type listed struct {
	storage.ChunkQueryable
	sets                 []labels.Labels
	chunks               []series.Chunk // of each series
	openErr, err, closed error
	warning              error
	open                 int
}

func (l *listed) RawQuerier(context.Context, int64, int64) (series.Querier, error) {
	if l.openErr != nil {
		return nil, l.openErr
	}
	l.open++
	return listedQuerier{l}, nil
}

type listedQuerier struct{ of *listed }

func (q listedQuerier) Select(context.Context, series.SelectOptions, ...*labels.Matcher) series.Set {
	return &listedSet{of: q.of, at: -1}
}
func (listedQuerier) Capabilities() series.Capabilities {
	return series.Capabilities{Immutable: true}
}
func (listedQuerier) LabelNames(context.Context, series.SelectOptions, ...*labels.Matcher) ([]string, error) {
	return nil, errBroken
}
func (q listedQuerier) Close() error { q.of.open--; return q.of.closed }

type listedSet struct {
	of *listed
	at int
}

func (s *listedSet) Next() bool             { s.at++; return s.at < len(s.of.sets) }
func (s *listedSet) Labels() []byte         { return labelenc.Append(nil, s.of.sets[s.at]) }
func (s *listedSet) Chunks() []series.Chunk { return s.of.chunks }
func (s *listedSet) Err() error             { return s.of.err }
func (s *listedSet) Warnings() annotations.Annotations {
	if s.of.warning == nil {
		return nil
	}
	return annotations.New().Add(s.of.warning)
}

// floatChunk has samples at 1, 2, … n.
func floatChunk(t *testing.T, n int) series.Chunk {
	t.Helper()
	c := chunkenc.NewXORChunk()
	app, err := c.Appender()
	if err != nil {
		t.Fatal(err)
	}
	for at := range n {
		app.Append(0, int64(at+1), 1)
	}
	return series.Chunk{MinMS: 1, MaxMS: int64(n), Encoding: chunkenc.EncXOR, Data: c.Bytes()}
}

// serveOnce serves one request without a connection.
func serveOnce(t *testing.T, s *Server, form prompb.ReadRequest_ResponseType, queries ...*prompb.Query) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	s.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/", bytes.NewReader(encode(t, form, queries...))))
	return w
}

func TestServer_ErrorsHaveTheirStatus(t *testing.T) {
	q := peerQuery(0, 9, everything)
	lset := []labels.Labels{labels.FromStrings("a", "b")}
	for name, tt := range map[string]struct {
		from   listed
		status int
		text   string
	}{
		"opening":        {listed{openErr: errBroken}, 500, "query 1: broken"},
		"not ready":      {listed{openErr: prometheustsdb.ErrNotReady}, 503, "query 1: "},
		"the set":        {listed{sets: lset, err: errBroken}, 500, "query 1: broken"},
		"closing":        {listed{sets: lset, closed: errBroken}, 500, "broken"},
		"an encoding":    {listed{sets: lset, chunks: []series.Chunk{{Encoding: chunkenc.Encoding(encodingMax) + 1}}}, 500, "query 1: "},
		"no encoding":    {listed{sets: lset, chunks: []series.Chunk{{}}}, 500, "query 1: "},
		"an endpoint":    {listed{warning: &endpointError{name: "far", err: errBroken}}, 502, "query 1: the series of the remote_read endpoint far are missing: broken"},
		"with series":    {listed{sets: lset, warning: &endpointError{name: "far", err: errBroken}}, 502, "far are missing"},
		"other warnings": {listed{warning: errBroken}, 200, ""},
	} {
		for _, form := range []prompb.ReadRequest_ResponseType{prompb.ReadRequest_STREAMED_XOR_CHUNKS, prompb.ReadRequest_SAMPLES} {
			from := tt.from
			if failed, ok := from.warning.(*endpointError); ok { // every selection has its own
				from.warning = &endpointError{name: failed.name, err: failed.err}
			}
			s := NewServer(Options{ConcurrentMax: 1}, &from, slog.New(slog.DiscardHandler), nil)
			text := strings.Replace(tt.text, "query 1", "query 0", 1)
			w := serveOnce(t, s, form, q)
			if w.Code != tt.status || !strings.Contains(w.Body.String(), text) || w.Code != 200 && w.Header().Get("Content-Encoding") != "" {
				t.Errorf("%s, %s: %d %q %v", name, form, w.Code, w.Body, w.Header())
			}
			if from.open != 0 || len(s.slots) != 0 || s.queries.Get() != 0 {
				t.Errorf("%s, %s: %d queriers are open, %d slots taken, %v queries", name, form, from.open, len(s.slots), s.queries.Get())
			}
		}
	}
}

func TestServer_MissingEndpointsAreCountedAndNamed(t *testing.T) {
	q := peerQuery(0, 9, everything)
	for _, partial := range []bool{false, true} {
		for _, form := range []prompb.ReadRequest_ResponseType{prompb.ReadRequest_STREAMED_XOR_CHUNKS, prompb.ReadRequest_SAMPLES} {
			set := metrics.NewSet()
			from := &listed{sets: []labels.Labels{labels.FromStrings("a", "b")}, chunks: []series.Chunk{floatChunk(t, 3)}, warning: &endpointError{name: "f\u00e4r", err: errBroken}}
			w := serveOnce(t, NewServer(Options{Partial: partial}, from, slog.New(slog.DiscardHandler), set), form, q)
			want := []string{`"the series of the remote_read endpoint f\u00e4r are missing: broken"`}
			if !partial {
				want = nil
			}
			if got := w.Header().Values("X-Ferula-Partial"); (w.Code == http.StatusOK) != partial || fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("%s, partial %v: %d %q", form, partial, w.Code, got)
			}
			var page strings.Builder
			set.WritePrometheus(&page)
			if !strings.Contains(page.String(), "ferula_remote_read_partial_total 1\n") || !strings.Contains(page.String(), "prometheus_remote_read_handler_queries 0\n") {
				t.Error(page.String())
			}
			for _, f := range set.Families() {
				if f.Help == "" {
					t.Errorf("%s has no help", f.Name)
				}
			}
		}
	}
}

// A frame ends with the chunk that reaches the limit.
func TestServer_FramesKeepTheirLimit(t *testing.T) {
	lset := labelenc.AppendLabel(nil, "a", "b")
	c := floatChunk(t, 5)
	size := chunkSize(c.MinMS, c.MaxMS, uint8(c.Encoding), len(c.Data))
	for bytesMax, want := range map[int]string{0: "4", 1: "1 1 1 1", len(lset) + size: "1 1 1 1", len(lset) + size + 1: "2 2", len(lset) + 2*size + 1: "3 1", len(lset) + 3*size: "3 1", len(lset) + 3*size + 1: "4"} {
		s := NewServer(Options{FrameBytesMax: bytesMax}, nil, slog.New(slog.DiscardHandler), nil)
		w := httptest.NewRecorder()
		out := newResponseWriter(w, time.Minute, 0)
		if err := errors.Join(s.frames(0, lset, []series.Chunk{c, c, c, c}, out), out.end()); err != nil {
			t.Fatal(err)
		}
		var got []string
		for stream := w.Body.Bytes(); len(stream) > 0; {
			n, skip := binary.Uvarint(stream)
			got = append(got, fmt.Sprint(bytes.Count(stream[skip:][:n+4], c.Data)))
			stream = stream[skip+int(n)+4:]
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%d bytes: frames of %v chunks, want %s", bytesMax, got, want)
		}
		out.free()
	}
}

func TestDecode_ExpansionIsLimited(t *testing.T) {
	body := func(size uint64, n int) []byte {
		b := binary.AppendUvarint(nil, size)
		return append(b, make([]byte, n-len(b))...)
	}
	for _, tt := range []struct {
		body []byte
		text string
	}{
		{body(32*100, 100), "decompress the request: "}, {body(32*100+1, 100), "a decompressed length of 3201 bytes, more than the limit of 3200"},
		{body(requestBytesMax, requestBytesMax/32), "decompress the request: "}, {body(requestBytesMax+1, requestBytesMax/32+1), "a decompressed length of 33554433 bytes, more than the limit of 33554432"},
	} {
		if _, err := decode(tt.body); err == nil || !strings.Contains(err.Error(), tt.text) {
			t.Errorf("%d bytes: %v, want %s", len(tt.body), err, tt.text)
		}
	}
}

func TestServer_BodyUpToTheLimitIsRead(t *testing.T) {
	s := NewServer(Options{}, &listed{}, slog.New(slog.DiscardHandler), nil)
	for n, ok := range map[int]bool{requestBytesMax: true, requestBytesMax + 1: false} {
		w := httptest.NewRecorder()
		body, err := s.readBody(w, httptest.NewRequest(http.MethodPost, "/", bytes.NewReader(make([]byte, n))))
		if (err == nil) != ok || ok && len(body) != n || !ok && !errors.As(err, &badRequest{}) || (w.Header().Get("Connection") == "close") == ok {
			t.Errorf("%d bytes: %d, %v, %v", n, len(body), err, w.Header())
		}
	}
	w := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodPost, "/", brokenReader{})
	r.ProtoMajor = 2
	if _, err := s.readBody(w, r); !errors.Is(err, errBroken) || !errors.As(err, &badRequest{}) || w.Header().Get("Connection") != "" {
		t.Errorf("%v, %v", err, w.Header())
	}
}

// controlled is a response writer that records its deadlines.
type controlled struct {
	*httptest.ResponseRecorder
	reads, writes []time.Time
	err           error
}

func (c *controlled) SetReadDeadline(at time.Time) error { c.reads = append(c.reads, at); return nil }
func (c *controlled) SetWriteDeadline(at time.Time) error {
	c.writes = append(c.writes, at)
	return nil
}
func (c *controlled) Write(p []byte) (int, error) {
	if c.err != nil {
		return 0, c.err
	}
	return c.ResponseRecorder.Write(p)
}

func TestServer_DeadlinesAreSetAndRemoved(t *testing.T) {
	w := &controlled{ResponseRecorder: httptest.NewRecorder()}
	s := NewServer(Options{BodyReadTimeout: time.Hour, WriteTimeout: 2 * time.Hour}, &listed{sets: []labels.Labels{labels.FromStrings("a", "b")}, chunks: []series.Chunk{floatChunk(t, 3)}}, slog.New(slog.DiscardHandler), nil)
	s.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/", bytes.NewReader(encode(t, 1, peerQuery(0, 9, everything)))))
	for name, deadlines := range map[string][]time.Time{"read": w.reads, "write": w.writes} {
		if len(deadlines) != 2 || deadlines[0].IsZero() || !deadlines[1].IsZero() {
			t.Fatalf("%s: %v", name, deadlines)
		}
	}
	if read, write := time.Until(w.reads[0]), time.Until(w.writes[0]); read > time.Hour || read < time.Hour/2 || write > 2*time.Hour || write < 3*time.Hour/2 {
		t.Errorf("%s, %s", read, write)
	}
}

func TestResponseWriter_WritesInPieces(t *testing.T) {
	w := &controlled{ResponseRecorder: httptest.NewRecorder()}
	out := newResponseWriter(w, time.Minute, 0)
	defer out.free()
	step := func(what string, err error, written int64, held int) {
		t.Helper()
		if err != nil || out.written != written || len(out.buf) != held || out.begun != (written > 0) {
			t.Errorf("%s: %v, %d bytes written, %d held", what, err, out.written, len(out.buf))
		}
	}
	step("a message longer than the buffer", out.reserve(writeBytes+1), 0, 0)
	out.buf = append(out.buf, make([]byte, writeBytes-10)...)
	step("as much as fits", out.reserve(10), 0, writeBytes-10)
	step("one byte more", out.reserve(11), writeBytes-10, 0)
	out.buf = append(out.buf, make([]byte, writeBytes-1)...)
	step("not full", out.grow(100), writeBytes-10, writeBytes-1)
	if cap(out.buf) < writeBytes+99 {
		t.Errorf("space for %d bytes", cap(out.buf)-len(out.buf))
	}
	out.buf = append(out.buf, 0)
	step("full", out.grow(100), 2*writeBytes-10, 0)
	step("nothing left", out.end(), 2*writeBytes-10, 0)
	out.buf = append(out.buf, make([]byte, writeBytes)...)
	w.err = errBroken
	for name, err := range map[string]error{"reserve": out.reserve(1), "end": func() error { out.buf = append(out.buf, 1); return out.end() }(), "grow": func() error { out.buf = append(out.buf, make([]byte, writeBytes)...); return out.grow(1) }()} {
		if !errors.Is(err, errBroken) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestResponseWriter_WaitsOfAllWritesAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &sleepy{controlled: controlled{ResponseRecorder: httptest.NewRecorder()}, pause: 3 * time.Second}
		out := newResponseWriter(w, 5*time.Second, 7*time.Second)
		defer out.free()
		begun := time.Now()
		for i := range 3 {
			out.buf = append(out.buf, "abc"...)
			if err := out.end(); (i == 2) != errors.Is(err, errSlowReader) || (err == nil) != (i < 2) || i == 2 && !strings.Contains(err.Error(), "9 bytes in 9s of waiting") {
				t.Errorf("write %d: %v", i, err)
			}
		}
		var limits []string
		for i := 0; i < len(w.writes); i += 2 {
			limits = append(limits, w.writes[i].Sub(begun.Add(time.Duration(i/2)*w.pause)).String())
		}
		if strings.Join(limits, " ") != "5s 4s 1s" {
			t.Errorf("timeouts %v", limits)
		}
	})
}

// sleepy is a writer that takes its time.
type sleepy struct {
	controlled
	pause time.Duration
}

func (s *sleepy) Write(p []byte) (int, error) { time.Sleep(s.pause); return s.controlled.Write(p) }

func TestEndpoint_RangeEndsWhereTheLocalStorageIsComplete(t *testing.T) {
	for _, tt := range []struct {
		mint, maxt, start int64
		last              int64
		ok                bool
	}{{0, 10, 5, 5, true}, {0, 10, 20, 10, true}, {5, 10, 5, 5, true}, {6, 10, 5, 5, false}} {
		e := Endpoint{LocalStart: func() (int64, error) { return tt.start, nil }}
		if last, ok, err := e.upTo(tt.mint, tt.maxt); last != tt.last || ok != tt.ok || err != nil {
			t.Errorf("%+v: %d, %v, %v", tt, last, ok, err)
		}
	}
	if last, ok, err := (Endpoint{}).upTo(0, 10); last != 10 || !ok || err != nil {
		t.Errorf("%d, %v, %v", last, ok, err)
	}
}

// brokenLocal is a local storage that cannot be opened.
type brokenLocal struct{}

func (brokenLocal) Querier(int64, int64) (storage.Querier, error)           { return nil, errBroken }
func (brokenLocal) ChunkQuerier(int64, int64) (storage.ChunkQuerier, error) { return nil, errBroken }

func TestFanout_ErrorsOfOpeningAreReturned(t *testing.T) {
	for _, endpoints := range [][]Endpoint{
		{{LocalStart: func() (int64, error) { return 0, errBroken }}}, // where the local storage is complete is not known
		{{Client: NewClient(ClientOptions{URL: "http://127.0.0.1:1"})}},
		nil,
	} {
		f := NewFanout(brokenLocal{})
		f.SetEndpoints(endpoints)
		_, err1 := f.Querier(0, 1)
		_, err2 := f.RawQuerier(t.Context(), 0, 1)
		for i, err := range []error{err1, err2} {
			if !errors.Is(err, errBroken) {
				t.Errorf("%d endpoints, querier %d: %v", len(endpoints), i, err)
			}
		}
	}
}

func TestFanoutQuerier_ClosesAllParts(t *testing.T) {
	from := &transport{respond: responding(http.StatusOK, streamed, bytes.NewReader(frames(5)))}
	client := NewClient(ClientOptions{URL: "http://a", HTTP: &http.Client{Transport: from}})
	local := &listed{closed: errBroken, open: 1}
	q := &fanoutQuerier{local: listedQuerier{local}, remote: []*endpointQuerier{{Querier: client.Querier(0, 9)}}}
	if set := q.Select(t.Context(), series.SelectOptions{}, everything); !set.Next() || from.open != 1 {
		t.Fatalf("%v, %d responses", set.Err(), from.open)
	}
	if _, err := q.LabelNames(t.Context(), series.SelectOptions{}); !errors.Is(err, errBroken) {
		t.Errorf("the local names: %v", err)
	}
	if err := q.Close(); !errors.Is(err, errBroken) || local.open != 0 || from.open != 0 {
		t.Errorf("%v, %d and %d are open", err, local.open, from.open)
	}
}

// An endpoint that does not have a required matcher is not queried.
func TestEndpoint_IsNotQueriedWithoutItsMatchers(t *testing.T) {
	from := &transport{respond: responding(http.StatusOK, streamed, bytes.NewReader(frames(5)))}
	client := NewClient(ClientOptions{URL: "http://a", HTTP: &http.Client{Transport: from}})
	e := Endpoint{Client: client, RequiredMatchers: []*labels.Matcher{labels.MustNewMatcher(labels.MatchEqual, "tier", "old")}}
	q := &Querier{client: client, maxt: 9}
	for _, set := range []series.Set{e.sel(t.Context(), q, nil, labels.EmptyLabels(), []*labels.Matcher{everything}), e.sel(t.Context(), q, nil, labels.FromStrings("z", "1"), []*labels.Matcher{everything})} {
		if set.Next() || set.Err() != nil || len(from.contexts) != 0 {
			t.Errorf("%v, %d requests", set.Err(), len(from.contexts))
		}
	}
}

// A source whose only series has labels that are cut.
type corruptSource struct{ source }

func (corruptSource) next() error            { return nil }
func (corruptSource) Labels() []byte         { return []byte{0x0a} }
func (corruptSource) Chunks() []series.Chunk { return nil }
func (corruptSource) close() error           { return nil }

func TestEndpoint_CorruptLabelsAreAnError(t *testing.T) {
	set := Endpoint{ExternalLabels: labels.FromStrings("a", "b")}.sel(t.Context(), &Querier{client: NewClient(ClientOptions{})}, nil, labels.FromStrings("z", "1"), []*labels.Matcher{everything}).(*orderedSet)
	set.open = func() (source, error) { return corruptSource{}, nil }
	if set.Next() || !errors.Is(set.Err(), labelenc.ErrCorrupt) {
		t.Error(set.Err())
	}
	if _, err := matchAll([]*labels.Matcher{everything}, []byte{0x0a}); !errors.Is(err, labelenc.ErrCorrupt) {
		t.Error(err)
	}
}
