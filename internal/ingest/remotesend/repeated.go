package remotesend

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// linesMax limits the number of different log lines whose times are kept. If more lines occur within a period, the
// handler omits no repetitions of the further lines.
const linesMax = 1024

// unrepeated is a log handler that logs a line with the same message of the same queue at most once in a period. If
// lines were omitted, the next line has their number in the attribute suppressed. Prometheus' own handler does not
// distinguish the queues: if several receivers fail with the same message, it logs the line of one receiver only.
type unrepeated struct {
	slog.Handler
	scope string // attributes of the logger, such as the name of the queue
	lines *lines
}

// lines are the lines that were logged lately.
type lines struct {
	every time.Duration // the period
	now   func() time.Time

	mu   sync.Mutex
	seen map[string]*line
}

type line struct {
	at      time.Time // when the line was logged last
	omitted int       // repetitions of the line since then
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

// take records a line. ok reports whether the line is to be logged, and omitted how many equal lines were omitted since
// the last that was logged.
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
