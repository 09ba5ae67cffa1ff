package frontend

import (
	"io"

	"golang.org/x/sync/semaphore"

	"github.com/ferula-io/ferula/internal/bufpool"
)

// The parts of a query are spliced once the response of every part has begun. Until then each
// response is read ahead, so that a short response ends and releases its connection and its slot. A
// part that needs more than its first buffer takes memory from a budget that all queries share.
const (
	readAheadBytes      = 64 << 10 // first buffer of each part
	readAheadPartBytes  = 1 << 20  // limit of one part, if the budget allows
	readAheadTotalBytes = 64 << 20 // budget of all parts, beyond their first buffers
)

// readAheadPools have the buffers of readAheadBytes and of each double up to readAheadPartBytes. Without them each long
// response would allocate megabytes, and a collection of garbage would follow every other response.
var readAheadPools = func() (pools []*bufpool.Pool) {
	for size := readAheadBytes; size <= readAheadPartBytes; size *= 2 {
		pools = append(pools, bufpool.New(size, size))
	}
	return pools
}()

// readAheadBody is a response body. fill reads its beginning in a goroutine of its own;
// Read reads the rest. Read and Close wait until fill has returned.
type readAheadBody struct {
	src    io.ReadCloser
	budget *semaphore.Weighted // of readAheadTotalBytes
	ended  func()              // called once, when src was read to its end or closed

	filled chan struct{} // closed when fill has returned; Read owns the fields below then
	buffer *[]byte       // from readAheadPools[level]; nil once it was returned to the pool
	level  int           // doublings of the first buffer; above 0, budget has the bytes of the buffer
	data   []byte        // read from src, not yet returned by Read
	err    error         // with which src ended; nil: not ended
}

func newReadAheadBody(src io.ReadCloser, budget *semaphore.Weighted, ended func()) *readAheadBody {
	return &readAheadBody{src: src, budget: budget, ended: ended, filled: make(chan struct{})}
}

// fill reads ahead until the barrier is closed, src ends, or the buffer may not grow.
func (b *readAheadBody) fill(barrier <-chan struct{}) {
	defer close(b.filled)
	b.buffer = readAheadPools[0].Get()
	b.data = *b.buffer
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

// grow doubles the buffer. It returns false if the part's limit or the budget forbids it.
func (b *readAheadBody) grow() bool {
	level, size := b.level+1, int64(2*cap(b.data))
	if level == len(readAheadPools) || !b.budget.TryAcquire(size) {
		return false
	}
	larger := readAheadPools[level].Get()
	data := append(*larger, b.data...)
	b.releaseBuffer()
	b.buffer, b.data, b.level = larger, data, level
	return true
}

// releaseBuffer returns the buffer of data to its pool and its size to the budget.
func (b *readAheadBody) releaseBuffer() {
	b.data = nil
	if b.buffer == nil {
		return
	}
	if b.level > 0 {
		b.budget.Release(int64(cap(*b.buffer)))
	}
	readAheadPools[b.level].Put(b.buffer)
	b.buffer = nil
}

func (b *readAheadBody) end(err error) {
	b.err = err
	if b.ended != nil {
		b.ended()
		b.ended = nil
	}
}

// Read returns the bytes that fill has read, then the bytes of src.
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

// Close closes src, which also interrupts a fill that waits for bytes.
func (b *readAheadBody) Close() error {
	err := b.src.Close()
	<-b.filled
	b.releaseBuffer()
	b.end(io.ErrClosedPipe)
	return err
}
