package httpbody

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

func TestAccepted_HonoursWeights(t *testing.T) {
	for _, tt := range []struct {
		headers []string
		want    string
	}{
		{nil, ""},
		{[]string{""}, ""},
		{[]string{"identity"}, ""},
		{[]string{"gzip"}, "gzip"},
		{[]string{"GZIP"}, "gzip"},
		{[]string{"gzip, deflate, br, zstd"}, "zstd"},
		{[]string{"zstd, gzip"}, "zstd"},
		{[]string{"gzip;q=1.0, zstd;q=0.5"}, "gzip"},
		{[]string{"gzip;q=0, zstd;q=0"}, ""},
		{[]string{"gzip;q=0, zstd"}, "zstd"},
		{[]string{"gzip ; q=0.2 , zstd ; q=0.1"}, "gzip"},
		{[]string{"br", "gzip"}, "gzip"},
		{[]string{"*"}, ""},
		{[]string{"gzip;q=nonsense"}, "gzip"},
	} {
		if got := Accepted(tt.headers); got != tt.want {
			t.Errorf("%q: %q, want %q", tt.headers, got, tt.want)
		}
	}
}

func respond(t *testing.T, accept string, pieces ...string) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Header.Set("Accept-Encoding", accept)
	b := NewResponse(w, r, "text/test")
	if len(pieces) == 1 {
		b.SetLength(len(pieces[0]))
	}
	for _, p := range pieces {
		if _, err := io.WriteString(b, p); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	b.Release()
	return w
}

func decoded(t *testing.T, w *httptest.ResponseRecorder) string {
	t.Helper()
	var r io.Reader = w.Body
	switch w.Header().Get("Content-Encoding") {
	case "gzip":
		gz, err := gzip.NewReader(r)
		if err != nil {
			t.Fatal(err)
		}
		r = gz
	case "zstd":
		zs, err := zstd.NewReader(r)
		if err != nil {
			t.Fatal(err)
		}
		defer zs.Close()
		r = zs
	}
	text, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestResponse_RoundTripsInEveryEncoding(t *testing.T) {
	long := strings.Repeat("a matrix of numbers 0123456789 ", 10_000)
	for round := range 3 { // the second round uses pooled compressors
		for _, encoding := range []string{"", "gzip", "zstd"} {
			w := respond(t, encoding, long, long)
			if got := w.Header().Get("Content-Encoding"); got != encoding {
				t.Errorf("round %d: %q is encoded %q", round, encoding, got)
			}
			if decoded(t, w) != long+long {
				t.Errorf("round %d: %q: received other bytes", round, encoding)
			}
			if encoding != "" && bytes.Contains(w.Body.Bytes(), []byte(long)) {
				t.Errorf("%q is not compressed", encoding)
			}
		}
	}
}

func TestResponse_SmallResponseIsNotCompressed(t *testing.T) {
	w := respond(t, "gzip", "small")
	if w.Header().Get("Content-Encoding") != "" || w.Header().Get("Content-Length") != "5" || w.Body.String() != "small" {
		t.Errorf("%v %q", w.Header(), w.Body.String())
	}
	if w.Header().Get("Content-Type") != "text/test" {
		t.Errorf("type %q", w.Header().Get("Content-Type"))
	}
}

func TestResponse_StalledClientIsCutOff(t *testing.T) {
	failed := make(chan error, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b := NewResponse(w, r, "text/test")
		b.stall = 50 * time.Millisecond
		piece := make([]byte, 1<<20)
		for range 1000 {
			if _, err := b.Write(piece); err != nil {
				failed <- err
				return
			}
		}
		failed <- nil
	}))
	defer server.Close()
	conn, err := net.Dial("tcp", strings.TrimPrefix(server.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-failed:
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("writing to a client that reads nothing: %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the handler still waits for its client")
	}
}

// deadlineRecorder records the deadlines of writes.
type deadlineRecorder struct {
	*httptest.ResponseRecorder
	set []time.Time
}

func (r *deadlineRecorder) SetWriteDeadline(t time.Time) error {
	r.set = append(r.set, t)
	return nil
}

func TestResponse_WritesHaveTheEarlierOfDeadlineAndStallTimeout(t *testing.T) {
	for deadline, early := range map[time.Time]bool{time.Now().Add(time.Second): true, time.Now().Add(time.Hour): false, {}: false} {
		w := &deadlineRecorder{ResponseRecorder: httptest.NewRecorder()}
		b := NewResponse(w, httptest.NewRequest(http.MethodGet, "/", nil), "text/test")
		b.SetDeadline(deadline)
		for _, to := range []io.Writer{b, b.Encoded(9)} {
			if _, err := io.WriteString(to, "x"); err != nil {
				t.Fatal(err)
			}
		}
		if err := b.Close(); err != nil || len(w.set) != 3 {
			t.Fatalf("%d deadlines, %v", len(w.set), err)
		}
		for i, set := range w.set {
			if set.Equal(deadline) != early || set.IsZero() {
				t.Errorf("deadline %s, number %d: %s", deadline, i, set)
			}
		}
	}
}

// HTTP/2 resets a stream at its write deadline even if nothing is written then.
func TestResponse_PausingProducerIsNotCutOff(t *testing.T) {
	const stall = 500 * time.Millisecond
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b := NewResponse(w, r, "text/plain")
		defer b.Release()
		b.stall = stall
		for range 2 {
			if _, err := b.Write(bytes.Repeat([]byte("a"), 1<<16)); err != nil {
				t.Error(err)
			}
			_ = http.NewResponseController(w).Flush() // the next Write returns its error
			time.Sleep(2 * stall)
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	resp, err := server.Client().Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || len(text) != 2<<16 || resp.ProtoMajor != 2 {
		t.Errorf("%d bytes by %s, %v", len(text), resp.Proto, err)
	}
}

func TestResponse_TeeGetsTheBytesThatEncodedSendsAgain(t *testing.T) {
	text := strings.Repeat("some text ", 1000)
	for _, encoding := range []string{"gzip", "zstd", ""} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("Accept-Encoding", encoding)
		first := httptest.NewRecorder()
		b := NewResponse(first, r, "text/test")
		var kept bytes.Buffer
		b.Tee(&kept)
		if _, err := io.WriteString(b, text); err != nil {
			t.Fatal(err)
		}
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		b.Release()
		if !bytes.Equal(kept.Bytes(), first.Body.Bytes()) || kept.Len() == 0 {
			t.Errorf("%q: %d bytes were sent, the tee got %d", encoding, first.Body.Len(), kept.Len())
		}
		second := httptest.NewRecorder()
		b = NewResponse(second, r, "text/test")
		if _, err := b.Encoded(int64(kept.Len())).Write(kept.Bytes()); err != nil {
			t.Fatal(err)
		}
		if err := b.Close(); err != nil || !b.HeaderSent() {
			t.Errorf("%q: %v, header sent: %v", encoding, err, b.HeaderSent())
		}
		b.Release()
		h := second.Header()
		if !bytes.Equal(second.Body.Bytes(), kept.Bytes()) || h.Get("Content-Encoding") != encoding || h.Get("Content-Type") != "text/test" || h.Get("Content-Length") != strconv.Itoa(kept.Len()) {
			t.Errorf("%q: %d bytes, %v", encoding, second.Body.Len(), h)
		}
	}
}
