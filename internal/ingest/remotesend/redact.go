package remotesend

import (
	"context"
	"log/slog"
	"strings"

	"github.com/ferula-io/ferula/internal/process/httpserver"
)

// redacting is a log handler that replaces the passwords of URLs. Prometheus'
// remote-write queues log the URL of their remote_write section with its password.
type redacting struct{ slog.Handler }

// WithAttrs implements slog.Handler.
func (h redacting) WithAttrs(attrs []slog.Attr) slog.Handler {
	without := make([]slog.Attr, len(attrs))
	for i, a := range attrs {
		without[i] = redacted(a)
	}
	return redacting{h.Handler.WithAttrs(without)}
}

// WithGroup implements slog.Handler.
func (h redacting) WithGroup(name string) slog.Handler {
	return redacting{h.Handler.WithGroup(name)}
}

// Handle implements slog.Handler.
func (h redacting) Handle(ctx context.Context, record slog.Record) error {
	without := slog.NewRecord(record.Time, record.Level, record.Message, record.PC)
	record.Attrs(func(a slog.Attr) bool {
		without.AddAttrs(redacted(a))
		return true
	})
	return h.Handler.Handle(ctx, without)
}

func redacted(a slog.Attr) slog.Attr {
	text := a.Value.String()
	if strings.Contains(text, "://") && strings.Contains(text, "@") && !strings.ContainsAny(text, " \"") {
		return slog.String(a.Key, httpserver.RedactedURL(text))
	}
	return a
}
