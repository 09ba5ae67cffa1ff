package server

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"

	"google.golang.org/grpc/credentials"
)

// failing are credentials whose handshakes fail.
type failing struct {
	credentials.TransportCredentials
	err error
}

func (f failing) ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, f.err
}

func TestLoggedTLS_AFailedHandshakeIsALineAndAProbeIsNot(t *testing.T) {
	var out bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&out, nil))
	ours, theirs := net.Pipe()
	defer func() { _, _ = ours.Close(), theirs.Close() }()
	for _, err := range []error{io.EOF, errors.New("bad certificate")} {
		if _, _, got := newLoggedTLS(failing{err: err}, logger).ServerHandshake(ours); !errors.Is(got, err) {
			t.Errorf("%v, want %v", got, err)
		}
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 1 || !strings.Contains(lines[0], `client=pipe err="bad certificate"`) {
		t.Errorf("%q", lines)
	}
}
