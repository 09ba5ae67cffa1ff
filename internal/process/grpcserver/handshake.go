package grpcserver

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"
)

// handshakeLogInterval is the least time between two lines about failed handshakes: a
// client that is refused reconnects, and a scanner connects all the time.
const handshakeLogInterval = time.Second

// loggedTLS are credentials that log failed handshakes. gRPC reports these only to its own
// log, which is not written, so the server would log nothing about a rejected client.
type loggedTLS struct {
	credentials.TransportCredentials
	log *handshakeLog
}

// ServerHandshake implements credentials.TransportCredentials.
func (l loggedTLS) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	secure, info, err := l.TransportCredentials.ServerHandshake(conn)
	if err != nil {
		l.log.failed(conn.RemoteAddr(), err)
	}
	return secure, info, err
}

// Clone implements credentials.TransportCredentials.
func (l loggedTLS) Clone() credentials.TransportCredentials {
	return loggedTLS{l.TransportCredentials.Clone(), l.log}
}

// handshakeLog logs one failed handshake per interval, and how many it left out.
type handshakeLog struct {
	logger *slog.Logger
	now    func() time.Time

	mu      sync.Mutex
	next    time.Time
	skipped int
}

func (h *handshakeLog) failed(client net.Addr, err error) {
	if errors.Is(err, io.EOF) { // a probe that only connects
		h.logger.Debug("A client disconnected before its TLS handshake", "client", client.String())
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.now()
	if now.Before(h.next) {
		h.skipped++
		return
	}
	h.logger.Warn("The TLS handshake of a client failed", "client", client.String(), "err", err,
		"since_last_line", h.skipped)
	h.next, h.skipped = now.Add(handshakeLogInterval), 0
}
