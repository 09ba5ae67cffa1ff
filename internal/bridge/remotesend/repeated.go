package remotesend

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// linesMax limits the lines that are remembered. Further lines are never omitted.
const linesMax = 1024

// unrepeated is a log handler that omits a line if the same queue has logged it less than a period ago. The next such
// line has the number of omitted ones. Prometheus' own handler also omits lines of other queues, so that only one of
// several failing receivers would be named.
type unrepeated struct {
	slog.Handler
	scope string // attributes of the logger, such as the name of the queue
	lines *lines
}

type lines struct {
	every time.Duration
	now   func() time.Time

	mu   sync.Mutex
	seen map[string]*line
}

type line struct {
	at      time.Time
	omitted int
}

func newUnrepeated(next slog.Handler, every time.Duration, now func() time.Time) unrepeated {
	return unrepeated{next, "", &lines{every: every, now: now, seen: map[string]*line{}}}
}

// Handle implements slog.Handler.
func (h unrepeated) Handle(ctx context.Context, record slog.Record) error {
	omitted, ok := h.lines.take(h.scope + "\x00" + record.Message)
	if !ok {
		return nil
	}
	if omitted > 0 {
		record = record.Clone()
		record.AddAttrs(slog.Int("suppressed", omitted))
	}
	return h.Handler.Handle(ctx, record)
}

// take reports whether a line is logged, and how many equal lines were omitted before.
func (l *lines) take(key string) (omitted int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	if last := l.seen[key]; last != nil {
		if now.Sub(last.at) < l.every {
			last.omitted++
			return 0, false
		}
		omitted, last.at, last.omitted = last.omitted, now, 0
		return omitted, true
	}
	if len(l.seen) >= linesMax {
		for key, last := range l.seen {
			if now.Sub(last.at) >= l.every {
				delete(l.seen, key)
			}
		}
	}
	if len(l.seen) < linesMax {
		l.seen[key] = &line{at: now}
	}
	return 0, true
}

// WithAttrs implements slog.Handler.
func (h unrepeated) WithAttrs(attrs []slog.Attr) slog.Handler {
	h.Handler = h.Handler.WithAttrs(attrs)
	for _, a := range attrs {
		h.scope += a.String() + "\x00"
	}
	return h
}

// WithGroup implements slog.Handler.
func (h unrepeated) WithGroup(name string) slog.Handler {
	h.Handler = h.Handler.WithGroup(name)
	h.scope += name + "\x00"
	return h
}
