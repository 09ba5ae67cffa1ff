package remotewrite

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// The receiver logs a line per rejected series, which can be thousands per request.
// linesMax lines of the same message are logged per linesEvery, with the number of
// suppressed ones.
const (
	linesMax   = 5
	linesEvery = 10 * time.Second
)

// limitedHandler is a slog.Handler that limits the records of each message.
type limitedHandler struct {
	slog.Handler
	state *messageLimiter
}

type messageLimiter struct {
	max   int
	every time.Duration
	now   func() time.Time

	mu    sync.Mutex
	lines map[string]*messageLines // by message; the receiver has a few messages
}

type messageLines struct {
	since      time.Time
	passed     int
	suppressed int
}

func newLimited(next slog.Handler, limit int, every time.Duration, now func() time.Time) *limitedHandler {
	return &limitedHandler{next, &messageLimiter{max: limit, every: every, now: now, lines: map[string]*messageLines{}}}
}

// Handle implements slog.Handler.
func (l *limitedHandler) Handle(ctx context.Context, r slog.Record) error {
	suppressed, ok := l.state.allow(r.Message)
	if !ok {
		return nil
	}
	if suppressed > 0 {
		r = r.Clone()
		r.AddAttrs(slog.Int("suppressed", suppressed))
	}
	return l.Handler.Handle(ctx, r)
}

// allow reports whether a message is logged and how many of its records were suppressed
// before.
func (s *messageLimiter) allow(message string) (suppressed int, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	line := s.lines[message]
	if line == nil {
		line = &messageLines{since: now}
		s.lines[message] = line
	}
	if now.Sub(line.since) >= s.every {
		line.since, line.passed = now, 0
	}
	if line.passed >= s.max {
		line.suppressed++
		return 0, false
	}
	suppressed, line.suppressed = line.suppressed, 0
	line.passed++
	return suppressed, true
}

// WithAttrs implements slog.Handler.
func (l *limitedHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &limitedHandler{l.Handler.WithAttrs(attrs), l.state}
}

// WithGroup implements slog.Handler.
func (l *limitedHandler) WithGroup(name string) slog.Handler {
	return &limitedHandler{l.Handler.WithGroup(name), l.state}
}
