package export

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// ProgressOptions configure the progress output of an export.
type ProgressOptions struct {
	To       io.Writer  // nil: no output
	Terminal bool       // overwrite one line; otherwise write a line every few seconds
	Width    func() int // columns of the terminal, 0 or nil: unknown
}

const (
	terminalEvery = 200 * time.Millisecond
	lineEvery     = 5 * time.Second
	barWidth      = 24
)

// progress estimates the progress of an export: the completed windows, and a fraction of the
// current window. It assumes that the current window has as many series as the previous one.
type progress struct {
	opts       ProgressOptions
	now        func() time.Time
	began      time.Time
	lastReport time.Time
	calls      uint
	written    func() int64 // returns the bytes written so far

	windows, done int
	current       int64 // series of the current window
	previous      int64 // series of the previous window
	samples, read int64 // read: bytes
	skipped       int   // windows completed by an earlier run
	before        int64 // samples of these windows
	shown         bool  // a line is on the terminal
}

func newProgress(opts ProgressOptions, now func() time.Time) *progress {
	return &progress{opts: opts, now: now, written: func() int64 { return 0 }}
}

func (p *progress) begin(windows int) {
	p.windows, p.began = windows, p.now()
	p.lastReport = p.began
}

func (p *progress) resumed(windows int, samples int64) { p.skipped, p.before = windows, samples }

// series counts a series. It is called for each one, so it does not read the clock every
// time.
func (p *progress) series(n, samples, read int64) {
	p.current, p.samples, p.read = n, samples, read
	if p.calls++; p.opts.To == nil || p.calls%64 != 0 {
		return
	}
	every := lineEvery
	if p.opts.Terminal {
		every = terminalEvery
	}
	if now := p.now(); now.Sub(p.lastReport) >= every {
		p.lastReport = now
		p.report()
	}
}

func (p *progress) windowDone(series int64) {
	p.done++
	p.previous, p.current = series, 0
	if p.opts.To != nil && p.opts.Terminal {
		p.report()
	}
}

// joining shows that the parts are being joined. A failed write to a terminal or log must not fail the export:
// errors are ignored.
func (p *progress) joining() {
	if p.opts.To != nil && p.opts.Terminal && p.done > 1 {
		_, _ = fmt.Fprintf(p.opts.To, "\r\x1b[Kjoining %d windows", p.done)
		p.shown = true
	}
}

// fraction returns the completed fraction, from 0 to 1.
func (p *progress) fraction() float64 {
	part := 0.0
	if p.previous > 0 {
		part = min(0.99, float64(p.current)/float64(p.previous))
	}
	return (float64(p.done) + part) / float64(max(1, p.windows))
}

func (p *progress) text() string {
	elapsed := p.now().Sub(p.began)
	rate, left := 0.0, "?"
	if elapsed > 0 {
		rate = float64(p.samples) / elapsed.Seconds()
	}
	skipped := float64(p.skipped) / float64(max(1, p.windows))
	if done := p.fraction(); done > skipped && done < 1 {
		left = time.Duration(float64(elapsed) * (1 - done) / (done - skipped)).Round(time.Second).String()
	} else if done >= 1 {
		left = "0s"
	}
	return fmt.Sprintf("%3.0f%%  window %d/%d  %s series  %s samples  %s read  %s written  %s samples/s  %s left",
		100*p.fraction(), min(p.done+1, p.windows), p.windows, thousands(p.current), thousands(p.before+p.samples),
		Bytes(p.read), Bytes(p.written()), thousands(int64(rate)), left)
}

// report writes the current state: a line, or on a terminal the last line again.
func (p *progress) report() {
	if !p.opts.Terminal {
		_, _ = fmt.Fprintln(p.opts.To, p.text())
		return
	}
	full := int(p.fraction() * barWidth)
	line := fmt.Sprintf("[%s%s] %s", strings.Repeat("=", full), strings.Repeat(" ", barWidth-full), p.text())
	if p.opts.Width != nil {
		line = fit(line, p.opts.Width())
	}
	_, _ = fmt.Fprintf(p.opts.To, "\r\x1b[K%s", line)
	p.shown = true
}

// fit drops fields from the end of a line until it has fewer than width columns. A longer line would
// wrap, and the next line would overwrite only its last row. The last field is the remaining time: it
// is kept, and cut only if it does not fit after the first field.
func fit(line string, width int) string {
	if width <= 0 || len(line) < width {
		return line
	}
	fields := strings.Split(line, "  ")
	last := fields[len(fields)-1]
	for n := len(fields) - 2; n > 0; n-- {
		if line = strings.Join(fields[:n], "  ") + "  " + last; len(line) < width {
			return line
		}
	}
	return line[:min(len(line), max(0, width-1))]
}

// end moves the terminal to an empty line.
func (p *progress) end() {
	if p.shown {
		_, _ = fmt.Fprint(p.opts.To, "\r\x1b[K")
	}
}

// String formats the summary as one line.
func (s Summary) String() string {
	rate := 0.0
	if s.Elapsed > 0 {
		rate = float64(s.Samples) / s.Elapsed.Seconds()
	}
	text := fmt.Sprintf("%s samples of %s series in %d windows: %s read, %s written in %.1fs, %s samples/s",
		thousands(s.Samples), thousands(s.Series), s.Windows, Bytes(s.BytesRead), Bytes(s.BytesWritten), s.Elapsed.Seconds(),
		thousands(int64(rate)))
	if s.Resumed > 0 {
		text += fmt.Sprintf("; %d windows were resumed", s.Resumed)
	}
	if s.Skipped > 0 {
		text += fmt.Sprintf("; %s staleness markers or histograms skipped, the format has none", thousands(s.Skipped))
	}
	return text
}

// thousands formats a number with commas.
func thousands(n int64) string {
	digits := fmt.Sprint(n)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// Bytes formats a size in bytes with a unit.
func Bytes(n int64) string {
	switch {
	case n < 10<<10:
		return fmt.Sprintf("%d B", n)
	case n < 10<<20:
		return fmt.Sprintf("%.0f KiB", float64(n)/(1<<10))
	case n < 10<<30:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
}
