package frontend

import (
	"io"

	"golang.org/x/sync/semaphore"

	"github.com/ferula-io/ferula/internal/bufpool"
)

// The parts of a query are laid end to end once all of them have begun. Until then
// each is read ahead, so that a short one ends, and its connection and its slot
// serve another call. Beyond the first buffer the room is shared by all queries.
const (
	readAheadBytes     = 64 << 10 // of every part
	readAheadPartBytes = 1 << 20  // of a part, where there is room
	readAheadTotalBytes  = 64 << 20 // of all, beyond their first buffer
)

var readAheadBuffers = bufpool.New(readAheadBytes, readAheadBytes)

// aheadBody is a body whose beginning is read ahead by fill, in a goroutine of its
// own, and the rest by Read. Read and Close wait for fill to return.
type readAheadBody struct {
	src   io.ReadCloser
	budget  *semaphore.Weighted // of aheadAllBytes
	ended func()              // called once, when src has been read to its end or closed

	filled chan struct{} // closed when fill has returned; what follows is the reader's then
	first  *[]byte       // borrowed, nil once it is given back
	extra  int64         // taken from room
	data   []byte        // read ahead and not yet read
	err    error         // that src ended with
}

func newReadAheadBody(src io.ReadCloser, room *semaphore.Weighted, ended func()) *readAheadBody {
	return &readAheadBody{src: src, budget: room, ended: ended, filled: make(chan struct{})}
}

// fill reads ahead until the barrier is closed, src ends, or there is no room.
func (b *readAheadBody) fill(barrier <-chan struct{}) {
	defer close(b.filled)
	b.first = readAheadBuffers.Get()
	b.data = (*b.first)[:0]
	for {
		select {
		case <-barrier:
			return
		default:
		}
		if len(b.data) == cap(b.data) && !b.grow() {
			return
		}
		n, err := b.src.Read(b.data[len(b.data):cap(b.data)])
		b.data = b.data[:len(b.data)+n]
		if err != nil {
			b.end(err)
			return
		}
	}
}

// grow doubles the room for data, if it may.
func (b *readAheadBody) grow() bool {
	size := 2 * cap(b.data)
	if size > readAheadPartBytes || !b.budget.TryAcquire(int64(size)) {
		return false
	}
	larger := append(make([]byte, 0, size), b.data...)
	b.releaseBuffer()
	b.data, b.extra = larger, int64(size)
	return true
}

// giveBack ends the use of the buffer behind data.
func (b *readAheadBody) releaseBuffer() {
	b.data = nil
	if b.first != nil {
		readAheadBuffers.Put(b.first)
		b.first = nil
	}
	if b.extra > 0 {
		b.budget.Release(b.extra)
		b.extra = 0
	}
}

func (b *readAheadBody) end(err error) {
	b.err = err
	if b.ended != nil {
		b.ended()
		b.ended = nil
	}
}

// Read gives what was read ahead, and then what src gives.
func (b *readAheadBody) Read(p []byte) (int, error) {
	<-b.filled
	if len(b.data) > 0 {
		n := copy(p, b.data)
		if b.data = b.data[n:]; len(b.data) == 0 {
			b.releaseBuffer()
		}
		return n, nil
	}
	if b.err != nil {
		return 0, b.err
	}
	n, err := b.src.Read(p)
	if err != nil {
		b.end(err)
	}
	return n, err
}

// Close closes src, which ends a fill that waits, too.
func (b *readAheadBody) Close() error {
	err := b.src.Close()
	<-b.filled
	b.releaseBuffer()
	b.end(io.ErrClosedPipe)
	return err
}
