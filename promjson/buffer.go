package promjson

import (
	"bytes"
	"errors"
	"fmt"
	"io"
)

// errBufferFull says that what must be kept fills the buffer.
var errBufferFull = errors.New("promjson: buffer full")

// buffer holds a stretch of the input, of which buf[pos:end] is still to be
// read. What stands from mark on is kept when more is read in, unless mark is
// -1; everything is found at other indexes then.
type buffer struct {
	r            io.Reader
	buf          []byte
	pos          int
	end          int
	mark         int
	base         int64 // The offset of buf[0] in the input.
	readErr      error // What r has said at last: there is nothing behind buf[:end].
	eof          bool  // That was the end of the input.
	growable     bool  // The buffer may grow, up to hold.
	maxBuf       int
	maxReadBuf   int    // Reads that fill the buffer make it larger, up to this.
	lastReadFull bool   // The last read did.
	beforeMove   func() // Called before the bytes of the buffer move.
}

// fill reads at least one byte behind end. Its error is errBufferFull where mark
// forbids that, or the end of the input.
func (b *buffer) fill() error {
	if b.r == nil {
		return b.fail(b.end, "", b.readErr)
	}
	keep := b.pos
	if b.mark >= 0 {
		keep = b.mark
	}
	if room := len(b.buf) - b.end; room == 0 || (room < len(b.buf)/8 && keep > len(b.buf)/2) {
		if b.lastReadFull && len(b.buf) < b.maxReadBuf {
			b.widen(keep)
		} else if keep > 0 {
			b.shift(keep)
		} else if err := b.grow(); err != nil {
			return err
		}
	}
	// Only now, so that it makes no difference whether the reader has told its
	// end along with the last bytes.
	for range 100 {
		if b.readErr != nil {
			return b.fail(b.end, "", b.readErr)
		}
		room := len(b.buf) - b.end
		n, err := b.r.Read(b.buf[b.end:])
		b.lastReadFull = n == room && room >= len(b.buf)/2
		if n < 0 || n > len(b.buf)-b.end {
			panic("promjson: the reader returned an impossible count")
		}
		b.end += n
		if err == io.EOF {
			err, b.eof = io.ErrUnexpectedEOF, true // Whoever fills wants more.
		}
		b.readErr = err
		if n > 0 {
			return nil
		}
	}
	b.readErr = io.ErrNoProgress
	return b.fail(b.end, "", b.readErr)
}

func (b *buffer) shift(keep int) {
	b.beforeMove()
	copy(b.buf, b.buf[keep:b.end])
	b.base += int64(keep)
	b.pos -= keep
	b.end -= keep
	if b.mark >= 0 {
		b.mark -= keep
	}
}

// widen gives larger reads their room, and keeps what stands from keep on.
func (b *buffer) widen(keep int) {
	b.beforeMove()
	larger := make([]byte, min(4*len(b.buf), b.maxReadBuf))
	copy(larger, b.buf[keep:b.end])
	b.base += int64(keep)
	b.pos -= keep
	b.end -= keep
	if b.mark >= 0 {
		b.mark -= keep
	}
	b.buf = larger
}

func (b *buffer) grow() error {
	if !b.growable || len(b.buf) >= b.maxBuf {
		return errBufferFull
	}
	larger := make([]byte, min(2*len(b.buf), b.maxBuf))
	copy(larger, b.buf[:b.end])
	b.buf = larger
	return nil
}

// have reports whether there are n bytes from mark on, reading them if it can.
func (b *buffer) have(n int) bool {
	for b.end-b.mark < n {
		if b.fill() != nil {
			return false
		}
	}
	return true
}

// find returns where c stands from mark+from on, counted from mark.
func (b *buffer) find(c byte, from int) (int, error) {
	for {
		if i := bytes.IndexByte(b.buf[b.mark+from:b.end], c); i >= 0 {
			return from + i, nil
		}
		from = b.end - b.mark
		if err := b.fill(); err != nil {
			return 0, err
		}
	}
}

// fail makes an error for buf[at].
func (b *buffer) fail(at int, what string, err error) error {
	return &Error{Offset: b.base + int64(at), Reason: what, Err: err}
}

func (b *buffer) syntax(what string) error {
	return b.fail(b.pos, what, ErrSyntax)
}

// space skips white space and returns the byte behind it, which is not read.
func (b *buffer) space() (byte, error) {
	for {
		for ; b.pos < b.end; b.pos++ {
			if c := b.buf[b.pos]; !isSpace(c) {
				return c, nil
			}
		}
		if err := b.fill(); err != nil {
			return 0, err
		}
	}
}

// expect skips white space and reads c.
func (b *buffer) expect(c byte) error {
	got, err := b.space()
	if err != nil {
		return err
	}
	if got != c {
		return b.syntax("expected " + string(rune(c)))
	}
	b.pos++
	return nil
}

// skip reads one value, on from where k has come to.
func (b *buffer) skip(k *skipper) error {
	for {
		n, done, wrong := k.feed(b.buf[b.pos:b.end])
		b.pos += n
		if wrong != "" {
			return b.syntax(wrong)
		}
		if done {
			return nil
		}
		if err := b.fill(); err != nil {
			return err
		}
	}
}

// capture reads one value and returns its bytes, which stay in the buffer until
// the next fill. It may not be larger than what the buffer may hold.
func (b *buffer) capture() ([]byte, error) {
	if _, err := b.space(); err != nil {
		return nil, err
	}
	if b.mark < 0 {
		b.mark = b.pos
		defer func() { b.mark = -1 }()
	}
	from := b.pos - b.mark
	var k skipper
	if err := b.skip(&k); err != nil {
		return nil, err
	}
	return b.buf[b.mark+from : b.pos], nil
}

// text captures a string and returns what is between its quotes, still escaped.
func (b *buffer) text() ([]byte, error) {
	c, err := b.space()
	if err != nil {
		return nil, err
	}
	if c != '"' {
		return nil, b.syntax("expected a string")
	}
	raw, err := b.capture()
	if err != nil {
		return nil, err
	}
	return raw[1 : len(raw)-1], nil
}

// What went wrong, for errors.Is. An input that ends too early is
// io.ErrUnexpectedEOF, and a reader's own error is found as well.
var (
	// ErrSyntax: the bytes are not JSON, or not an answer of this API.
	ErrSyntax = errors.New("malformed response")
	// ErrLimit: the answer is well-formed so far and beyond what Options allow.
	ErrLimit = errors.New("limit exceeded")
	// ErrUnsorted: the series of a part are not in the order of their labels.
	ErrUnsorted = errors.New("series out of order")
	// ErrOverlap: a series goes on before or at the time where it ended.
	ErrOverlap = errors.New("times out of order")
)

// Error says where in the input something went wrong.
type Error struct {
	Offset int64 // The byte, counted from the start of the input.
	Reason string
	Err    error // ErrSyntax, ErrLimit, io.ErrUnexpectedEOF or the reader's.
}

// Error names the byte, the kind of error and what was expected.
func (e *Error) Error() string {
	if e.Reason == "" {
		return fmt.Sprintf("promjson: byte %d: %v", e.Offset, e.Err)
	}
	return fmt.Sprintf("promjson: byte %d: %v: %s", e.Offset, e.Err, e.Reason)
}

// Unwrap returns e.Err.
func (e *Error) Unwrap() error { return e.Err }
