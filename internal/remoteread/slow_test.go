package remoteread

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// The server reads the rest of a body before it responds, unless the handler closes
// the connection.
func TestServer_IncompleteRequestBodyIs400(t *testing.T) {
	s := httptest.NewServer(NewServer(Options{BodyReadTimeout: 50 * time.Millisecond}, nil, slog.New(slog.DiscardHandler), nil))
	defer s.Close()
	for _, length := range []int{1000, smallBytes + 1} {
		conn, err := net.Dial("tcp", s.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\nxx", length)
		_ = conn.SetReadDeadline(time.Now().Add(30 * time.Second))
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatalf("%d bytes: %v", length, err)
		}
		text, _ := io.ReadAll(resp.Body)
		if resp.StatusCode != http.StatusBadRequest || !resp.Close || !strings.Contains(string(text), "read the request") {
			t.Errorf("%d bytes: %d %s", length, resp.StatusCode, text)
		}
	}
}
