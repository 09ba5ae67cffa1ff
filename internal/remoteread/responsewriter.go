package remoteread

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/ferula-io/ferula/internal/bufpool"
)

// writeBytes is the size of one write. net/http makes two system calls for every write: with
// writes of 256 KiB there are twice as many, and they take 5 % more CPU time.
const writeBytes = 512 << 10

var buffers = bufpool.New(writeBytes+96<<10, 4<<20)

// errSlowReader is returned when the client reads a response too slowly.
var errSlowReader = errors.New("the reader is too slow")

// responseWriter buffers a response and writes it in pieces of writeBytes. Every write has a
// deadline, and the time of all writes together has a limit. So the request of a client that stalls,
// or reads very slowly, ends, and its slot and the resources of the storage are released.
type responseWriter struct {
	w       http.ResponseWriter
	control *http.ResponseController
	timeout time.Duration // of a write
	waitMax time.Duration // of all writes; 0: no limit
	waited  time.Duration
	pooled  *[]byte
	buf     []byte
	begun   bool // the status was written
	written int64
}

func newResponseWriter(w http.ResponseWriter, timeout, waitMax time.Duration) *responseWriter {
	s := &responseWriter{w: w, control: http.NewResponseController(w), timeout: timeout, waitMax: waitMax,
		pooled: buffers.Get()}
	s.buf = *s.pooled
	return s
}

func (s *responseWriter) free() {
	*s.pooled = s.buf
	s.buf = nil
	buffers.Put(s.pooled)
}

// reserve flushes the buffer unless n more bytes fit. A message longer than the buffer grows it.
func (s *responseWriter) reserve(n int) error {
	if len(s.buf) == 0 || len(s.buf)+n <= writeBytes {
		return nil
	}
	return s.flush()
}

// grow makes space for n more bytes. The buffer may exceed writeBytes, for callers that
// do not know yet how many bytes they append.
func (s *responseWriter) grow(n int) error {
	if len(s.buf) >= writeBytes {
		if err := s.flush(); err != nil {
			return err
		}
	}
	s.buf = slices.Grow(s.buf, n)
	return nil
}

func (s *responseWriter) flush() error {
	s.begun = true
	timeout := s.timeout
	if s.waitMax > 0 {
		timeout = min(timeout, s.waitMax-s.waited)
	}
	start := time.Now()
	_ = s.control.SetWriteDeadline(start.Add(timeout)) // writers of tests have none
	n, err := s.w.Write(s.buf)
	// With HTTP/2 an expired deadline resets the stream, even between writes.
	_ = s.control.SetWriteDeadline(time.Time{})
	s.written += int64(n)
	s.buf = s.buf[:0]
	if s.waited += time.Since(start); s.waitMax > 0 && s.waited >= s.waitMax {
		return fmt.Errorf("write the response: %w: %d bytes in %s of waiting", errSlowReader, s.written,
			s.waited.Round(time.Millisecond))
	}
	if err != nil {
		return fmt.Errorf("write the response: %w", err)
	}
	return nil
}

// end writes the rest of the buffer.
func (s *responseWriter) end() error {
	if len(s.buf) > 0 {
		if err := s.flush(); err != nil {
			return err
		}
	}
	return nil
}
