package downstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// cut is a server that breaks off its first response to every path at the byte that
// the path names and sends the second one whole. The query parameter "how" selects a
// RST or a FIN.
func cut(t *testing.T, first, second string) *raw {
	return serveRaw(t, func(conn net.Conn, r *http.Request, before int) {
		if before > 0 {
			_, _ = io.WriteString(conn, second)
			return
		}
		n, _ := strconv.Atoi(strings.TrimPrefix(r.URL.Path, "/"))
		if r.URL.Query().Get("how") == "rst" {
			reset(conn)
		}
		_, _ = io.WriteString(conn, first[:n])
	})
}

func TestBody_BreakAtAnyByteIsContinued(t *testing.T) {
	text := document(3)
	for _, framing := range []string{"content-length", "chunked"} {
		for _, encoding := range []string{Identity, Gzip, Zstd, Snappy} {
			t.Run(framing+" "+encoding, func(t *testing.T) {
				t.Parallel()
				whole := wire(t, encoding, framing, text)
				server := cut(t, whole, whole)
				c := client(t, Options{URL: server.url, ReadBufferBytes: 4096}, nil)
				for n := range len(whole) + 1 {
					for _, how := range []string{"rst", "fin"} {
						resp, err := c.Open(t.Context(), Request{Path: "/" + strconv.Itoa(n), Params: values("how", how)})
						if err != nil {
							t.Fatalf("cut at %d by %s: %v", n, how, err)
						}
						body, err := readAll(resp, 40)
						if body != text || err != nil {
							t.Fatalf("cut at %d by %s: got %q, %v", n, how, body, err)
						}
					}
				}
			})
		}
	}
}

func TestBody_ChangedResponseIsNotContinued(t *testing.T) {
	text := document(3)
	const at = 100 // of the text
	other := text[:at] + "#" + text[at+1:]
	for _, framing := range []string{"content-length", "chunked"} {
		for _, encoding := range []string{Identity, Gzip, Zstd, Snappy} {
			t.Run(framing+" "+encoding, func(t *testing.T) {
				t.Parallel()
				first, second := wire(t, encoding, framing, text), wire(t, encoding, framing, other)
				server := cut(t, first, second)
				c := client(t, Options{URL: server.url, ReadBufferBytes: 4096}, nil)
				changed := 0
				for n := range len(first) {
					_, body, err := get(t, c, "/"+strconv.Itoa(n))
					switch {
					case errors.Is(err, ErrChanged):
						changed++
						if len(body) <= at || !strings.HasPrefix(text, body) {
							t.Fatalf("cut at %d: %q was returned before ErrChanged", n, body)
						}
					case err != nil, body != other && body != text: // a mixture of both
						t.Fatalf("cut at %d: got %q, %v", n, body, err)
					case body == text && framing == "content-length" && encoding == Identity:
						t.Fatalf("cut at %d: the first response was complete", n)
					}
				}
				if encoding == Identity && changed < len(text)-at-1 || changed == 0 {
					t.Fatalf("only %d cuts of %d were found to differ", changed, len(first))
				}
			})
		}
	}
}

func TestBody_ShorterResponseIsNotContinued(t *testing.T) {
	text := document(4)
	server := cut(t, wire(t, Identity, "chunked", text), wire(t, Identity, "content-length", text[:20]))
	_, body, err := get(t, client(t, Options{URL: server.url}, nil), "/300")
	checkIs(t, err, ErrChanged)
	check(t, "returned before", strings.HasPrefix(text, body) && len(body) > 20, true)
}

func TestBody_SecondBreakIsRetried(t *testing.T) {
	whole := wire(t, Identity, "content-length", document(12))
	server := serveRaw(t, func(conn net.Conn, _ *http.Request, before int) {
		// The second response breaks earlier than the first one, the third one later, the fourth one where the third one broke.
		n := []int{300, 200, 320, 320, len(whole)}[before]
		_, _ = io.WriteString(conn, whole[:n])
	})
	c := client(t, Options{URL: server.url}, nil)
	_, body, err := get(t, c, "/")
	checkIs(t, err, nil)
	check(t, "body", body, document(12))
	check(t, "requests", server.count("/"), 5)
}

func TestBody_EndlessBreaksUseUpTheRetries(t *testing.T) {
	whole := wire(t, Identity, "content-length", document(12))
	server := serveRaw(t, func(conn net.Conn, _ *http.Request, _ int) { _, _ = io.WriteString(conn, whole[:300]) })
	_, body, err := get(t, client(t, Options{URL: server.url, Retries: 3}, nil), "/")
	checkIs(t, err, ErrUnavailable)
	checkIs(t, err, io.ErrUnexpectedEOF)
	check(t, "returned before", strings.HasPrefix(document(12), body) && body != "", true)
	check(t, "requests", server.count("/"), 4)
}

func TestBody_BreakIsNotContinuedByAnotherStatus(t *testing.T) {
	for status, want := range map[int]error{404: ErrChanged, 500: ErrUnavailable, 429: ErrUnavailable} {
		whole := wire(t, Identity, "content-length", document(12))
		server := serveRaw(t, func(conn net.Conn, _ *http.Request, before int) {
			if before == 0 {
				_, _ = io.WriteString(conn, whole[:300])
				return
			}
			fmt.Fprintf(conn, "HTTP/1.1 %d No\r\nContent-Length: 2\r\n\r\nno", status)
		})
		_, _, err := get(t, client(t, Options{URL: server.url, Retries: 2}, nil), "/")
		checkIs(t, err, want)
	}
}

func TestBody_EarlyEndWithoutLengthIsSeenOnlyByADecoder(t *testing.T) {
	text := document(3)
	for _, encoding := range []string{Identity, Gzip, Zstd, Snappy} {
		whole := wire(t, encoding, "until-close", text)
		server := cut(t, whole, whole)
		c := client(t, Options{URL: server.url}, nil)
		head := strings.Index(whole, "\r\n\r\n") + 4
		for n := head; n <= len(whole); n++ {
			resp, err := c.Open(t.Context(), Request{Path: "/" + strconv.Itoa(n)})
			if err != nil {
				t.Fatal(err)
			}
			check(t, "delimited", resp.Delimited, false)
			got, err := readAll(resp, 40)
			if err != nil || !strings.HasPrefix(text, got) {
				t.Fatalf("%s cut at %d: got %q, %v", encoding, n, got, err)
			}
			if encoding == Identity {
				check(t, "not detected", got, text[:n-head])
			} else if encoding == Gzip && n > head {
				check(t, "continued", got, text)
			}
		}
	}
}

// endsAt returns n bytes and then end. It fails the test if the reader never stops.
type endsAt struct {
	t     testing.TB
	n     int
	end   error
	reads int
}

func (e *endsAt) Read(p []byte) (int, error) {
	if e.reads++; e.reads > 1000 {
		e.t.Fatal("read a thousand times without an end")
	}
	if e.n == 0 {
		return 0, e.end
	}
	n := min(len(p), e.n)
	e.n -= n
	return n, nil
}

func (e *endsAt) Close() error { return nil }

func TestBody_BytesMaxHoldsAtTheLimitAndOnePastIt(t *testing.T) {
	const limit = 100
	errHangs := errors.New("read more than is needed to detect that the limit is exceeded")
	for size, want := range map[int]struct {
		end   error // of the downstream after that many bytes
		err   error
		bytes int
	}{
		limit - 1:   {io.EOF, nil, limit - 1},
		limit:       {io.EOF, nil, limit},
		limit + 1:   {errHangs, ErrLimit, limit},
		limit + 400: {errHangs, ErrLimit, limit},
	} {
		for _, piece := range []int{1, 33, 50, 100, 101, 4096} {
			tripper := fakeTripper(func(*http.Request) (*http.Response, error) {
				resp := status(http.StatusOK)
				resp.Body = &endsAt{t: t, n: size, end: want.end}
				return resp, nil
			})
			resp, err := open(t, Options{URL: "http://down.example", Wrap: tripper.wrap, Retries: -1, BytesMax: limit}, Request{Path: "/"})
			if err != nil {
				t.Fatal(err)
			}
			got, err := readAll(resp, piece)
			checkIs(t, err, want.err)
			check(t, fmt.Sprintf("bytes of %d in pieces of %d", size, piece), len(got), want.bytes)
		}
	}
}

func TestBody_StallIsRetried(t *testing.T) {
	whole := wire(t, Gzip, "chunked", document(50))
	server := serveRaw(t, func(conn net.Conn, _ *http.Request, before int) {
		if before > 0 {
			_, _ = io.WriteString(conn, whole)
			return
		}
		_, _ = io.WriteString(conn, whole[:len(whole)/2])
		gone(conn)
	})
	_, body, err := get(t, client(t, Options{URL: server.url, IdleTimeout: 100 * time.Millisecond}, nil), "/")
	checkIs(t, err, nil)
	check(t, "body", body, document(50))
	_, _, err = get(t, client(t, Options{URL: server.url, IdleTimeout: 100 * time.Millisecond, Retries: -1}, nil), "/other")
	checkIs(t, err, ErrTimeout)
	checkIs(t, err, errStalled)
}

// net/http fills a large buffer from a large chunk before Read returns. While bytes
// arrive, that is not a stall.
func TestBody_SlowDownstreamIsNotAStall(t *testing.T) {
	text := document(3)
	server := serveRaw(t, func(conn net.Conn, _ *http.Request, _ int) {
		fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n", len(text))
		for piece := range slices.Chunk([]byte(text+"\r\n0\r\n\r\n"), len(text)/20) {
			_, _ = conn.Write(piece)
			time.Sleep(100 * time.Millisecond)
		}
	})
	resp, err := open(t, Options{URL: server.url, IdleTimeout: 1500 * time.Millisecond, Retries: -1}, Request{Path: "/"})
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body := make([]byte, 1000)
	n, err := resp.Body.Read(body)
	checkIs(t, err, nil)
	check(t, "in one read", string(body[:n]), text)
}

func TestWatch_EndsATryThatIsSilentDuringARead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ended atomic.Int32
		conn := &countedConn{}
		w := &watch{idle: time.Second, end: func() { ended.Add(1) }}
		w.conn.Store(conn)
		w.begin()
		for range 100 {
			time.Sleep(900 * time.Millisecond)
			conn.bytes.Add(1)
		}
		check(t, "ended while bytes came", ended.Load(), 0)
		w.done()
		time.Sleep(time.Hour)
		check(t, "ended while no read waited", ended.Load(), 0)
		w.begin()
		time.Sleep(999 * time.Millisecond)
		check(t, "ended too soon", ended.Load(), 0)
		time.Sleep(time.Second)
		check(t, "ended", ended.Load(), 1)
		w.done()
	})
}

// A connection that has received nothing is no progress.
func TestWatch_AConnectionWithoutBytesIsNoProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ended atomic.Int32
		w := &watch{idle: time.Second, end: func() { ended.Add(1) }}
		w.begin()
		time.Sleep(500 * time.Millisecond)
		w.conn.Store(&countedConn{})
		time.Sleep(600 * time.Millisecond)
		check(t, "ended", ended.Load(), 1)
		w.done()
	})
}

// The idle timeout runs only while a read waits.
func TestBody_SlowReaderIsNotAStall(t *testing.T) {
	server := serveRaw(t, func(conn net.Conn, _ *http.Request, _ int) {
		_, _ = io.WriteString(conn, wire(t, Identity, "content-length", document(3)))
	})
	resp, err := open(t, Options{URL: server.url, IdleTimeout: time.Second, Retries: -1}, Request{Path: "/"})
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(1200 * time.Millisecond)
	body, err := readAll(resp, 1000)
	checkIs(t, err, nil)
	check(t, "body", body, document(3))
}

func TestBody_CanceledContextAndCloseEndTheRead(t *testing.T) {
	left := make(chan struct{})
	server := serveRaw(t, func(conn net.Conn, _ *http.Request, _ int) {
		_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nbegun")
		gone(conn)
		left <- struct{}{}
	})
	c := client(t, Options{URL: server.url}, nil)
	for name, end := range map[string]func(*Body, context.CancelCauseFunc){
		"context": func(_ *Body, cancel context.CancelCauseFunc) { cancel(errors.New("client has gone")) },
		"close":   func(b *Body, _ context.CancelCauseFunc) { b.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			resp, err := c.Open(ctx, Request{Path: "/"})
			if err != nil {
				t.Fatal(err)
			}
			p := make([]byte, 100)
			n, err := io.ReadFull(resp.Body, p[:5])
			checkIs(t, err, nil)
			check(t, "read", string(p[:n]), "begun")
			time.AfterFunc(10*time.Millisecond, func() { end(resp.Body, cancel) })
			_, err = resp.Body.Read(p)
			check(t, "error kind", err != nil && !errors.Is(err, ErrUnavailable) && !errors.Is(err, io.EOF), true)
			if name == "context" {
				check(t, "cause", strings.HasSuffix(err.Error(), "client has gone"), true)
			}
			<-left
			resp.Body.Close()
			resp.Body.Close() // twice does no harm
			_, err = resp.Body.Read(p)
			checkIs(t, err, errClosed)
		})
	}
	check(t, "requests", server.count("/"), 2)
}

func TestBody_DecodedBytesAreLimited(t *testing.T) {
	bomb := strings.Repeat("0", 8<<20)
	for _, encoding := range []string{Gzip, Zstd, Snappy, Identity} {
		encoded := wire(t, encoding, "content-length", bomb)
		server := serveRaw(t, func(conn net.Conn, _ *http.Request, _ int) { _, _ = io.WriteString(conn, encoded) })
		resp, err := client(t, Options{URL: server.url, BytesMax: 1 << 20}, nil).Open(t.Context(), Request{Path: "/"})
		if err != nil {
			t.Fatal(err)
		}
		body, err := readAll(resp, 1<<16)
		checkIs(t, err, ErrLimit)
		check(t, encoding+": bytes", len(body), 1<<20)
		resp, err = client(t, Options{URL: server.url, BytesMax: 8 << 20}, nil).Open(t.Context(), Request{Path: "/"})
		if err != nil {
			t.Fatal(err)
		}
		body, err = readAll(resp, 1<<16)
		checkIs(t, err, nil)
		check(t, encoding+": exactly as many as allowed", len(body), 8<<20)
	}
}

func TestBody_UndecodableBytesAreCorrupt(t *testing.T) {
	text := document(50)
	broken := map[string]string{"plain text": text}
	for _, encoding := range []string{Gzip, Zstd, Snappy} {
		whole := encode(t, encoding, text)
		middle := len(whole) / 2
		broken[encoding+" cut short"] = whole[:middle]
		broken[encoding+" changed"] = whole[:middle] + string(whole[middle]^0x55) + whole[middle+1:]
		broken[encoding+" followed by more"] = whole + "more"
	}
	for name, body := range broken {
		for _, encoding := range []string{Gzip, Zstd, Snappy} {
			if name != "plain text" && !strings.HasPrefix(name, encoding) {
				continue
			}
			server := serveRaw(t, func(conn net.Conn, _ *http.Request, _ int) {
				fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Encoding: %s\r\nContent-Length: %d\r\n\r\n%s", encoding, len(body), body)
			})
			_, got, err := get(t, client(t, Options{URL: server.url}, nil), "/")
			// gzip's checksum comes last: the bytes returned before it may be wrong.
			if !errors.Is(err, ErrCorrupt) || !strings.HasPrefix(text, got) && name != "gzip changed" {
				t.Errorf("%s as %s: got %q, %v", name, encoding, got, err)
			}
			check(t, name+": requests", server.count("/"), 1)
		}
	}
}

func TestBody_UnknownEncodingIsCorrupt(t *testing.T) {
	server := serveRaw(t, func(conn net.Conn, _ *http.Request, _ int) {
		_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Encoding: br\r\nContent-Length: 2\r\n\r\nno")
	})
	_, _, err := get(t, client(t, Options{URL: server.url}, nil), "/")
	checkIs(t, err, ErrCorrupt)
}

func TestBody_EmptyBodyIsEmptyInEveryEncoding(t *testing.T) {
	for _, encoding := range []string{Identity, Gzip, "x-gzip", Zstd, Snappy} {
		server := serveRaw(t, func(conn net.Conn, _ *http.Request, _ int) {
			fmt.Fprintf(conn, "HTTP/1.1 400 Bad\r\nContent-Encoding: %s\r\nContent-Length: 0\r\n\r\n", encoding)
		})
		status, body, err := get(t, client(t, Options{URL: server.url}, nil), "/")
		checkIs(t, err, nil)
		check(t, encoding, fmt.Sprint(status, body), "400")
	}
}

// A connection is reused after a response read to its end, and after a short error
// response that was discarded.
func TestClient_ReusesConnections(t *testing.T) {
	var connections, requests atomic.Int32
	server := serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
		if requests.Add(1)%3 == 1 {
			http.Error(w, "not yet", http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Encoding", r.Header.Get("Accept-Encoding"))
		_, _ = io.WriteString(w, encode(t, Gzip, document(500)))
	}, func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			connections.Add(1)
		}
	})
	c := client(t, Options{URL: server, Encodings: []string{Gzip}}, nil)
	for range 20 {
		_, body, err := get(t, c, "/")
		checkIs(t, err, nil)
		check(t, "body", body == document(500), true)
	}
	if n := connections.Load(); n > 5 { // one, unless the machine is very busy
		t.Errorf("%d connections for %d requests", n, requests.Load())
	}
}
