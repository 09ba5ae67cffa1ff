package grpcserver

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"
)

func TestHandshakeLog_HasOneLinePerInterval(t *testing.T) {
	var out bytes.Buffer
	now := time.Unix(0, 0)
	l := &handshakeLog{logger: slog.New(slog.NewTextHandler(&out, nil)), now: func() time.Time { return now }}
	client := &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 7}
	l.failed(client, io.EOF) // logged for debugging only
	for range 3 {
		l.failed(client, errors.New("bad certificate"))
	}
	now = now.Add(handshakeLogInterval)
	l.failed(client, errors.New("no certificate"))
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 2 || !strings.Contains(lines[0], `client=10.0.0.1:7 err="bad certificate" since_last_line=0`) || !strings.Contains(lines[1], `err="no certificate" since_last_line=2`) {
		t.Errorf("%q", lines)
	}
}
