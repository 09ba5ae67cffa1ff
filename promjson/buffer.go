package promjson

import (
	"bytes"
	"errors"
	"io"
)

// errBufferFull means that the bytes that must stay in memory fill the buffer.
var errBufferFull = errors.New("promjson: buffer full")

// buffer holds a section of the input. buf[pos:end] is unread. fill, which reads more input,
// keeps buf[mark:], or only buf[pos:] if mark is -1, and may move these bytes to other
// indexes.
type buffer struct {
	r            io.Reader
	buf          []byte
	pos          int
	end          int
	mark         int
	base         int64 // The offset of buf[0] in the input.
	readErr      error // The error of r that ended the input: nothing follows buf[:end].
	eof          bool  // readErr is the end of the input.
	growable     bool  // The buffer may grow up to maxBuf to hold buf[mark:].
	maxBuf       int
	maxReadBuf   int    // Reads that fill the buffer enlarge it up to this size.
	lastReadFull bool   // The last read filled the buffer.
	beforeMove   func() // Called before the bytes of the buffer move.
}

// fill reads at least one byte after end. It returns errBufferFull if the bytes to keep leave
// no space, and an *Error with the error of the reader, io.ErrUnexpectedEOF at the end of the
// input.
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
	// readErr is checked only here, so that it makes no difference whether the reader
	// returns io.EOF with the last bytes or alone.
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
			err, b.eof = io.ErrUnexpectedEOF, true // Every caller of fill needs more input.
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

// widen enlarges the buffer for larger reads and moves buf[keep:] to its start.
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

// have reports whether buf[mark:] has n bytes, after reading more if necessary.
func (b *buffer) have(n int) bool {
	for b.end-b.mark < n {
		if b.fill() != nil {
			return false
		}
	}
	return true
}

// find returns the offset from mark of the first c at mark+from or later. It reads more
// input if necessary; it returns the error of fill.
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

// fail returns an Error with the offset of buf[at].
func (b *buffer) fail(at int, what string, err error) error {
	return &Error{Offset: b.base + int64(at), Reason: what, Err: err}
}

func (b *buffer) syntax(what string) error {
	return b.fail(b.pos, what, ErrSyntax)
}

// space skips white space and returns the next byte without reading it.
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

// skip reads the rest of the value that k has begun.
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

// capture reads one value and returns its bytes, which are valid until the next fill. It
// returns errBufferFull for a value that is larger than the maximum size of the buffer.
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

// rawString captures a string and returns the bytes between its quotes, still
// escaped.
func (b *buffer) rawString() ([]byte, error) {
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
