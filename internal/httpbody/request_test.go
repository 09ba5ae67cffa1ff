package httpbody

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// readBody reads a body without a server.
func readBody(rd *Reader, body io.Reader, length, bytesMax int64) (*Body, error) {
	r := httptest.NewRequest(http.MethodPost, "/", body)
	r.ContentLength = length
	return rd.Read(httptest.NewRecorder(), r, bytesMax)
}

func TestReader_ReadsTheWholeBody(t *testing.T) {
	rd := NewReader(Options{})
	for _, size := range []int{0, 1, 511, chunkBytesMin - 1, chunkBytesMin, chunkBytesMin + 1, firstBytesMax, firstBytesMax + 1, 3*chunkBytesMax + 7} {
		want := bytes.Repeat([]byte("0123456789abcde\n"), size/16+1)[:size]
		for name, reader := range map[string]io.Reader{
			"at once": bytes.NewReader(want), "in halves": iotest.HalfReader(bytes.NewReader(want)), "end with data": iotest.DataErrReader(bytes.NewReader(want)),
		} {
			for _, announced := range []int64{int64(size), -1} {
				b, err := readBody(rd, reader, announced, int64(size))
				if err != nil {
					t.Fatalf("%d bytes %s, announced %d: %v", size, name, announced, err)
				}
				streamed, err := io.ReadAll(b.NewReader())
				if err != nil || !bytes.Equal(streamed, want) || !bytes.Equal(b.Bytes(), want) || b.Size() != int64(size) {
					t.Errorf("%d bytes %s, announced %d: other bytes, %v", size, name, announced, err)
				}
				if b.held > 2*int64(size)+chunkBytesMin {
					t.Errorf("%d bytes hold %d", size, b.held)
				}
				b.Release()
				b.Release()
				reader = bytes.NewReader(want)
			}
		}
	}
	if !rd.free.TryAcquire(rd.opts.BytesMax) {
		t.Error("memory was not released")
	}
}

func TestReader_OneByteOverTheLimitIsTooLarge(t *testing.T) {
	rd := NewReader(Options{})
	for name, announced := range map[string]int64{"announced": 101, "not announced": -1} {
		_, err := readBody(rd, strings.NewReader(strings.Repeat("x", 101)), announced, 100)
		if !errors.Is(err, ErrTooLarge) || Status(err) != http.StatusRequestEntityTooLarge || !strings.Contains(err.Error(), "100 bytes") {
			t.Errorf("%s: %v", name, err)
		}
		if errors.Is(err, ErrUnread) {
			t.Errorf("%s: a body of nearly the right length is read to its end", name)
		}
	}
	_, err := readBody(rd, io.LimitReader(zeros{}, 1<<20), 1<<20, 100)
	if !errors.Is(err, ErrTooLarge) || !errors.Is(err, ErrUnread) {
		t.Errorf("far too much: %v", err)
	}
	if !rd.free.TryAcquire(rd.opts.BytesMax) {
		t.Error("memory was not released")
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestReader_BrokenBodyIsABadRequest(t *testing.T) {
	rd := NewReader(Options{})
	_, err := readBody(rd, iotest.ErrReader(io.ErrUnexpectedEOF), 10, 100)
	if !errors.Is(err, io.ErrUnexpectedEOF) || !errors.Is(err, ErrUnread) || Status(err) != http.StatusBadRequest {
		t.Error(err)
	}
}

func TestReader_WaitsForMemoryABoundedTime(t *testing.T) {
	rd := NewReader(Options{BytesMax: 100, Wait: 10 * time.Millisecond})
	first, err := readBody(rd, strings.NewReader(strings.Repeat("x", 70)), 70, 80)
	if err != nil {
		t.Fatal(err)
	}
	_, err = readBody(rd, strings.NewReader(strings.Repeat("x", 70)), 70, 80)
	if !errors.Is(err, ErrBusy) || Status(err) != http.StatusServiceUnavailable || !strings.Contains(err.Error(), "100 bytes") {
		t.Errorf("second: %v", err)
	}
	waiting := NewReader(Options{BytesMax: 100, Wait: time.Hour})
	first.Release()
	if first, err = readBody(waiting, strings.NewReader(strings.Repeat("x", 70)), 70, 80); err != nil {
		t.Fatal(err)
	}
	got := make(chan error)
	go func() {
		b, err := readBody(waiting, strings.NewReader(strings.Repeat("x", 70)), 70, 80)
		b.Release()
		got <- err
	}()
	first.Release()
	if err := <-got; err != nil {
		t.Errorf("it did not get the released memory: %v", err)
	}
	// A body over the whole budget is rejected at once.
	if _, err = readBody(waiting, zeros{}, -1, 1000); !errors.Is(err, ErrBusy) {
		t.Error(err)
	}
}

func TestReader_EnterWaitsForASlotABoundedTime(t *testing.T) {
	slots := make(chan struct{}, 1)
	rd := NewReader(Options{Wait: 10 * time.Millisecond})
	if err := rd.TakeSlot(context.Background(), slots); err != nil {
		t.Fatal(err)
	}
	if err := rd.TakeSlot(context.Background(), slots); !errors.Is(err, ErrBusy) {
		t.Error(err)
	}
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	if err := NewReader(Options{Wait: time.Hour}).TakeSlot(gone, slots); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	got := make(chan error)
	go func() { got <- NewReader(Options{Wait: time.Hour}).TakeSlot(context.Background(), slots) }()
	<-slots
	if err := <-got; err != nil {
		t.Error(err)
	}
}

// serve responds with the length of the body.
func serve(t *testing.T, opts Options) *httptest.Server {
	t.Helper()
	rd := NewReader(opts)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, err := rd.Read(w, r, 1<<20)
		if err != nil {
			Fail(w, r, err)
			return
		}
		defer b.Release()
		// The deadline of the body must not end the request.
		select {
		case <-r.Context().Done():
			http.Error(w, "cancelled", http.StatusGone)
		case <-time.After(2 * opts.Grace):
			fmt.Fprint(w, b.Size())
		}
	}))
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetHTTP1(true)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Start()
	t.Cleanup(s.Close)
	return s
}

func h2c(t *testing.T) *http.Client {
	transport := &http.Transport{Protocols: new(http.Protocols)}
	transport.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

func TestReader_SlowHTTP1ClientGets503(t *testing.T) {
	s := serve(t, Options{Grace: 50 * time.Millisecond, RateMin: 1 << 20})
	for name, trickle := range map[string]bool{"stalls": false, "crawls": true} {
		conn, err := net.Dial("tcp", s.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprint(conn, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\nxx")
		stop := make(chan struct{})
		done := make(chan struct{})
		go func() {
			defer close(done)
			for trickle {
				select {
				case <-stop:
					return
				case <-time.After(5 * time.Millisecond):
					_, _ = conn.Write([]byte("x"))
				}
			}
		}()
		_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		close(stop)
		<-done
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		text, _ := io.ReadAll(resp.Body)
		if resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") == "" || !resp.Close || !strings.Contains(string(text), "1048576 a second") {
			t.Errorf("%s: %d %v %s", name, resp.StatusCode, resp.Header, text)
		}
	}
}

func TestReader_SlowHTTP2StreamDoesNotEndTheConnection(t *testing.T) {
	s := serve(t, Options{Grace: 500 * time.Millisecond})
	client := h2c(t)
	slow, feed := io.Pipe()
	defer feed.Close()
	go func() { _, _ = feed.Write([]byte("xx")) }()
	cut, err := client.Post(s.URL, "", slow)
	if err != nil {
		t.Fatal(err)
	}
	defer cut.Body.Close()
	text, _ := io.ReadAll(cut.Body)
	if cut.StatusCode != http.StatusServiceUnavailable || cut.ProtoMajor != 2 || !strings.Contains(string(text), "received 2 bytes") {
		t.Errorf("%d %s", cut.StatusCode, text)
	}
	resp, err := client.Post(s.URL, "", strings.NewReader("hello"))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if text, _ := io.ReadAll(resp.Body); string(text) != "5" {
		t.Errorf("%d %s", resp.StatusCode, text)
	}
}

func TestReader_DeadlineEndsWithTheBody(t *testing.T) {
	s := serve(t, Options{Grace: 500 * time.Millisecond})
	for name, client := range map[string]*http.Client{"HTTP/1": s.Client(), "HTTP/2": h2c(t)} {
		for range 2 { // the second on the same connection
			resp, err := client.Post(s.URL, "", strings.NewReader("hello"))
			if err != nil {
				t.Fatal(err)
			}
			text, _ := io.ReadAll(resp.Body)
			resp.Body.Close()
			if string(text) != "5" {
				t.Errorf("%s: %d %s", name, resp.StatusCode, text)
			}
		}
	}
}

func TestReader_ClientAtTheMinimumRateMayExceedTheGrace(t *testing.T) {
	s := serve(t, Options{Grace: 300 * time.Millisecond, RateMin: 10})
	slow, feed := io.Pipe()
	go func() {
		defer feed.Close()
		for range 20 {
			_, _ = feed.Write([]byte("0123456789"))
			time.Sleep(30 * time.Millisecond)
		}
	}()
	resp, err := s.Client().Post(s.URL, "", slow)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if text, _ := io.ReadAll(resp.Body); string(text) != "200" {
		t.Errorf("%d %s", resp.StatusCode, text)
	}
}

// A fast beginning must not allow a slow end that holds the memory of the body.
func TestReader_AFastBeginningDoesNotAllowACrawl(t *testing.T) {
	s := serve(t, Options{Grace: 200 * time.Millisecond, RateMin: 1000, Total: time.Hour})
	slow, feed := io.Pipe()
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		defer feed.Close()
		_, _ = feed.Write(make([]byte, 90_000)) // 90 s at the minimum rate
		for {
			select {
			case <-stop:
				return
			case <-time.After(10 * time.Millisecond):
				_, _ = feed.Write([]byte("x"))
			}
		}
	}()
	resp, err := (&http.Client{Timeout: 20 * time.Second, Transport: s.Client().Transport}).Post(s.URL, "", slow)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if text, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("%d %s", resp.StatusCode, text)
	}
}

func TestReader_TotalLimitsTheTimeOfABody(t *testing.T) {
	s := serve(t, Options{Grace: time.Second, RateMin: 1, Total: 100 * time.Millisecond})
	slow, feed := io.Pipe()
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		defer feed.Close()
		for {
			select {
			case <-stop:
				return
			case <-time.After(5 * time.Millisecond):
				_, _ = feed.Write([]byte("0123456789"))
			}
		}
	}()
	resp, err := h2c(t).Post(s.URL, "", slow)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusServiceUnavailable {
		t.Error(resp.StatusCode)
	}
}
