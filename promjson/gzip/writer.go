package gzip

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
)

const (
	windowBytes = 32 << 10  // maximum distance of a match in deflate
	dataBytes   = 128 << 10 // bytes of input for each block of output
	slackBytes  = 16        // bytes after the data, so that words can be loaded at any offset
	flushBytes  = 64 << 10  // minimum bytes of output for each Write to the destination, except the first and the last
)

var errClosed = errors.New("gzip: write after Close")

// Writer is an io.WriteCloser. It compresses its input and writes the output to the destination. It holds back up to
// 128 KiB of input until Flush or Close. It is not safe for concurrent use.
type Writer struct {
	w      io.Writer
	err    error
	begun  bool // the header was appended to out
	sent   bool // something was written to w
	closed bool
	crc    uint32
	size   uint32 // of the input, modulo 1<<32

	buf   []byte // history, then data that is not compressed yet, then slack
	start int    // index of the data in buf
	end   int    // index of the end of the data in buf

	find finder
	code coder
	out  []byte // complete bytes of output, not yet written
}

// NewWriter returns a Writer whose destination is w.
func NewWriter(w io.Writer) *Writer {
	z := &Writer{buf: make([]byte, windowBytes+dataBytes+slackBytes)}
	z.Reset(w)
	return z
}

// Reset discards the Writer's state and lets it write a new stream to w.
func (z *Writer) Reset(w io.Writer) {
	z.w, z.err, z.begun, z.sent, z.closed = w, nil, false, false, false
	z.crc, z.size, z.start, z.end = 0, 0, 0, 0
	z.find.reset()
	z.code.bits, z.code.n = 0, 0
	z.out = z.out[:0]
}

// Write compresses p. It retains nothing of p.
func (z *Writer) Write(p []byte) (int, error) {
	if z.closed && z.err == nil {
		z.err = errClosed
	}
	if z.err != nil {
		return 0, z.err
	}
	z.begin()
	z.crc = crc32.Update(z.crc, crc32.IEEETable, p)
	z.size += uint32(len(p))
	written := 0
	for {
		n := copy(z.buf[z.end:len(z.buf)-slackBytes], p[written:])
		z.end += n
		written += n
		if written == len(p) {
			return written, nil
		}
		z.block(false)
		least := flushBytes
		if !z.sent {
			least = 1 // the reader gets the first bytes as early as possible
		}
		if z.write(least); z.err != nil {
			return written, z.err
		}
	}
}

// Flush compresses and writes everything written so far, so that a reader can read it. The last bytes are
// an empty stored block.
func (z *Writer) Flush() error {
	if z.err != nil || z.closed {
		return z.err
	}
	z.begin()
	z.block(true)
	z.out = z.code.stored(z.out, nil, false)
	z.write(1)
	return z.err
}

// Close ends the stream. It does not close the destination.
func (z *Writer) Close() error {
	if z.err != nil || z.closed {
		return z.err
	}
	z.closed = true
	z.begin()
	z.block(true)
	z.out = z.code.end(z.out)
	z.out = binary.LittleEndian.AppendUint32(z.out, z.crc)
	z.out = binary.LittleEndian.AppendUint32(z.out, z.size)
	z.write(1)
	return z.err
}

func (z *Writer) begin() {
	if !z.begun {
		z.begun = true
		z.out = append(z.out, 0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff) // deflate, no time, unknown system
	}
}

// write writes the output to the destination if it has at least least bytes.
func (z *Writer) write(least int) {
	if z.err != nil || len(z.out) < least {
		return
	}
	n, err := z.w.Write(z.out)
	if err == nil && n < len(z.out) {
		err = io.ErrShortWrite
	}
	z.err, z.sent = err, true
	z.out = z.out[:0]
}

// block compresses the data into one block. If all is false, it leaves up to tailBytes of data for the next block,
// because later bytes decide how they are compressed.
func (z *Writer) block(all bool) {
	if z.start == z.end {
		return
	}
	clear(z.buf[z.end : z.end+slackBytes])
	next := z.find.run(z.buf, z.start, z.end, all)
	z.out = z.code.block(z.out, z.buf, z.start, next, &z.find)
	z.start = next
	if shift := z.start - windowBytes; shift > 0 {
		copy(z.buf, z.buf[shift:z.end])
		z.start -= shift
		z.end -= shift
		z.find.base += uint32(shift)
	}
}
