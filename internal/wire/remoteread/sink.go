package remoteread

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/ferula-io/ferula/internal/bufpool"
)

// writeBytes is how much is written at once. net/http makes two system calls of
// every write: 256 KiB cost twice as many, and 5 % of the processor's time.
const writeBytes = 512 << 10

var buffers = bufpool.New(writeBytes+96<<10, 4<<20)

// errSlowReader is the error of a reader that takes a response too slowly.
var errSlowReader = errors.New("the reader is too slow")

// sink collects an answer and writes it when enough has come together. Each write
// has a deadline of its own, and all of them have one: a reader that stalls, or takes
// little at a time, frees its place and the storage that it holds.
type sink struct {
	w       http.ResponseWriter
	control *http.ResponseController
	timeout time.Duration // of a write
	waitMax time.Duration // of all writes; 0: no limit
	waited  time.Duration
	pooled  *[]byte
	buf     []byte
	begun   bool // something was written: the status is out
	written int64
}

func newSink(w http.ResponseWriter, timeout, waitMax time.Duration) *sink {
	s := &sink{w: w, control: http.NewResponseController(w), timeout: timeout, waitMax: waitMax, pooled: buffers.Get()}
	s.buf = *s.pooled
	return s
}

// free gives the buffer back.
func (s *sink) free() {
	*s.pooled = s.buf
	s.buf = nil
	buffers.Put(s.pooled)
}

// room makes sure that n more bytes fit, as far as possible without growing.
func (s *sink) room(n int) error {
	if len(s.buf) == 0 || len(s.buf)+n <= writeBytes {
		return nil
	}
	return s.flush()
}

// tail makes sure that n more bytes fit, and lets the buffer go beyond what is
// written at once: for who does not know yet how many they will be.
func (s *sink) tail(n int) error {
	if len(s.buf) >= writeBytes {
		if err := s.flush(); err != nil {
			return err
		}
	}
	s.buf = slices.Grow(s.buf, n)
	return nil
}

func (s *sink) flush() error {
	s.begun = true
	timeout := s.timeout
	if s.waitMax > 0 {
		timeout = min(timeout, s.waitMax-s.waited)
	}
	start := time.Now()
	_ = s.control.SetWriteDeadline(start.Add(timeout)) // a test's writer has none
	n, err := s.w.Write(s.buf)
	// HTTP/2 would reset the stream at the deadline, while the next frame is made.
	_ = s.control.SetWriteDeadline(time.Time{})
	s.written += int64(n)
	s.buf = s.buf[:0]
	if s.waited += time.Since(start); s.waitMax > 0 && s.waited >= s.waitMax {
		return fmt.Errorf("write the response: %w: %d bytes in %s of waiting", errSlowReader, s.written, s.waited.Round(time.Millisecond))
	}
	if err != nil {
		return fmt.Errorf("write the answer: %w", err)
	}
	return nil
}

// end writes what is left.
func (s *sink) end() error {
	if len(s.buf) > 0 {
		if err := s.flush(); err != nil {
			return err
		}
	}
	return nil
}
