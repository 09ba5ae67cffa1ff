package remotewrite

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// A faulty sender has a line for each of its series, thousands a request. Of the
// same message this many are logged in this time, and how many were left out.
const (
	linesMax   = 5
	linesEvery = 10 * time.Second
)

// limited is a slog.Handler that passes on a few records of each message.
type limited struct {
	slog.Handler
	state *limitedState
}

type limitedState struct {
	max   int
	every time.Duration
	now   func() time.Time

	mu    sync.Mutex
	lines map[string]*lines // by message, of which the receiver has a few
}

type lines struct {
	since      time.Time
	passed     int
	suppressed int
}

func newLimited(next slog.Handler, most int, every time.Duration, now func() time.Time) *limited {
	return &limited{next, &limitedState{max: most, every: every, now: now, lines: map[string]*lines{}}}
}

// Handle implements slog.Handler.
func (l *limited) Handle(ctx context.Context, r slog.Record) error {
	suppressed, ok := l.state.pass(r.Message)
	if !ok {
		return nil
	}
	if suppressed > 0 {
		r = r.Clone()
		r.AddAttrs(slog.Int("suppressed", suppressed))
	}
	return l.Handler.Handle(ctx, r)
}

// pass says whether a message is logged, and how many like it were not before.
func (s *limitedState) pass(message string) (suppressed int, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	line := s.lines[message]
	if line == nil {
		line = &lines{since: now}
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
func (l *limited) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &limited{l.Handler.WithAttrs(attrs), l.state}
}

// WithGroup implements slog.Handler.
func (l *limited) WithGroup(name string) slog.Handler {
	return &limited{l.Handler.WithGroup(name), l.state}
}
