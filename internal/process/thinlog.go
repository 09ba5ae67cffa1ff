package process

import (
	"context"
	"log/slog"
	"maps"
	"sync"
	"time"
)

// messagesMax limits the number of different messages that a thinned log counts. Further messages are all logged.
const messagesMax = 1024

// ThinLog returns a log handler that logs at most lines lines with the same message, of a logger with the same
// attributes, within a period: a library may log a line for each rejected series, or for each attempt to send. If lines
// were omitted, the next line has their number in the attribute suppressed.
func ThinLog(next slog.Handler, lines int, period time.Duration, now func() time.Time) slog.Handler {
	return thinned{next, "", &messages{lines: lines, period: period, now: now, seen: map[string]*message{}}}
}

type thinned struct {
	slog.Handler
	scope    string // attributes and groups of the logger, such as the name of a queue
	messages *messages
}

type messages struct {
	lines  int
	period time.Duration
	now    func() time.Time

	mu   sync.Mutex
	seen map[string]*message // by scope and message
}

type message struct {
	since           time.Time // begin of the period
	logged, omitted int
}

// Handle implements slog.Handler.
func (h thinned) Handle(ctx context.Context, record slog.Record) error {
	omitted, ok := h.messages.take(h.scope + "\x00" + record.Message)
	if !ok {
		return nil
	}
	if omitted > 0 {
		record = record.Clone()
		record.AddAttrs(slog.Int("suppressed", omitted))
	}
	return h.Handler.Handle(ctx, record)
}

// take reports whether a message is to be logged, and how many equal lines were omitted since the last logged line.
func (m *messages) take(key string) (omitted int, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	line := m.seen[key]
	if line == nil {
		m.forget(now)
		if line = (&message{since: now}); len(m.seen) < messagesMax {
			m.seen[key] = line
		}
	}
	if now.Sub(line.since) >= m.period {
		line.since, line.logged = now, 0
	}
	if line.logged >= m.lines {
		line.omitted++
		return 0, false
	}
	omitted, line.omitted = line.omitted, 0
	line.logged++
	return omitted, true
}

// forget makes room for another message: it forgets messages of earlier periods.
func (m *messages) forget(now time.Time) {
	if len(m.seen) >= messagesMax {
		maps.DeleteFunc(m.seen, func(_ string, line *message) bool { return now.Sub(line.since) >= m.period })
	}
}

func (h thinned) WithAttrs(attrs []slog.Attr) slog.Handler {
	h.Handler = h.Handler.WithAttrs(attrs)
	for _, a := range attrs {
		h.scope += a.String() + "\x00"
	}
	return h
}

func (h thinned) WithGroup(name string) slog.Handler {
	h.Handler = h.Handler.WithGroup(name)
	h.scope += name + "\x00"
	return h
}
