package server

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/ferula-io/ferula/internal/process"
)

// handshakeLogInterval is the least time between two lines about failed handshakes: a
// client that is refused reconnects, and a scanner connects all the time.
const handshakeLogInterval = time.Second

// loggedTLS are credentials that log failed handshakes. gRPC reports these only to its own
// log, which is not written, so the server would log nothing about a rejected client.
type loggedTLS struct {
	credentials.TransportCredentials
	logger *slog.Logger
}

func newLoggedTLS(of credentials.TransportCredentials, logger *slog.Logger) loggedTLS {
	return loggedTLS{of, slog.New(process.ThinLog(logger.Handler(), 1, handshakeLogInterval, time.Now))}
}

// ServerHandshake implements credentials.TransportCredentials.
func (l loggedTLS) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	secure, info, err := l.TransportCredentials.ServerHandshake(conn)
	switch client := conn.RemoteAddr().String(); {
	case errors.Is(err, io.EOF): // a probe that only connects
		l.logger.Debug("A client disconnected before its TLS handshake", "client", client)
	case err != nil:
		l.logger.Warn("The TLS handshake of a client failed", "client", client, "err", err)
	}
	return secure, info, err
}

// Clone implements credentials.TransportCredentials.
func (l loggedTLS) Clone() credentials.TransportCredentials {
	return loggedTLS{l.TransportCredentials.Clone(), l.logger}
}
