package remoteread

import (
	"container/heap"
	"errors"
	"fmt"
	"io"

	"github.com/prometheus/prometheus/util/annotations"

	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/series/labelenc"
)

// source reads a response in the order in which the server sends it.
type source interface {
	next() error            // io.EOF at the end
	Labels() []byte         // valid until next
	Chunks() []series.Chunk // valid until next
	ahead() []byte          // the labels of the next series, nil if unknown
	close() error
}

// orderedSet returns the series of a source in label order.
//
// It buffers copies of up to windowBytes of series before it returns the smallest. A response that fits into this
// buffer is sorted; a longer one must be nearly sorted.
//
// A server that streams chunks sorts series by their labels without its external labels. With an
// external label z it sends {a, z} before {a, b, z}, although {a, b, z} is smaller. So a series
// is buffered, even if the buffer is full, while the series after it is smaller. All other series
// are returned without a copy. If series have labels with the names of external labels, the server
// sends them in any order. Because of such series windowBytes is not zero.
type orderedSet struct {
	flag         string                 // names the flag that raises holdBytesMax, for errors
	open         func() (source, error) // called by the first Next
	windowBytes  int                    // bytes that are buffered before a series is returned
	holdBytesMax int                    // at least windowBytes
	unordered    bool                   // series are returned in the order of the source
	// change is that of changedLabels; nil: labels stay as they are
	change func(dst, lset []byte) (_ []byte, keep bool, err error)

	from     source
	pending  bool // from has a series that was not returned yet
	done     bool // from has no further series
	buffered seriesHeap
	bytes    int // size of buffered
	free     []*bufferedSeries
	current  *bufferedSeries // nil: the current series is from's
	last     []byte          // labels of the last series that was returned
	err      error           // io.EOF at the end
}

var _ series.Set = (*orderedSet)(nil)

// chunkHeadBytes estimates the memory of a chunk without its data.
const chunkHeadBytes = 64

// bufferedSeries is a copy of a series.
type bufferedSeries struct {
	labels []byte
	chunks []series.Chunk
	data   []byte
}

// copy replaces h by a copy of a series.
func (h *bufferedSeries) copy(lset []byte, chunks []series.Chunk) {
	h.labels = append(h.labels[:0], lset...)
	h.chunks, h.data = series.CopyChunks(h.chunks, h.data, chunks)
}

func (h *bufferedSeries) bytes() int {
	return cap(h.labels) + cap(h.data) + cap(h.chunks)*chunkHeadBytes
}

func (o *orderedSet) Next() bool {
	if o.err == nil {
		o.err = o.next()
	}
	if o.err == nil {
		return true
	}
	if err := o.close(); err != nil && errors.Is(o.err, io.EOF) {
		o.err = err
	}
	return false
}

func (o *orderedSet) next() error {
	if o.from == nil {
		from, err := o.open()
		if err != nil {
			return err
		}
		if o.change != nil {
			if _, samples := from.(*sampleSource); samples {
				o.windowBytes = o.holdBytesMax // they were sorted with their old labels
			}
			from = &changedLabels{source: from, change: o.change}
		}
		o.from = from
	}
	if o.current != nil {
		if len(o.free) < freeMax && o.current.bytes() < freeBytesMax {
			o.free = append(o.free, o.current)
		}
		o.current = nil
	}
	for {
		if err := o.advance(); err != nil {
			return err
		}
		if o.unordered {
			if o.done {
				return io.EOF
			}
			o.pending = false
			return nil
		}
		if o.done && len(o.buffered) == 0 {
			return io.EOF
		}
		if len(o.buffered) > 0 && (o.done || labelenc.Compare(o.buffered[0].labels, o.from.Labels()) < 0) {
			if o.done || o.bytes+size(o.from) > o.windowBytes {
				o.current = heap.Pop(&o.buffered).(*bufferedSeries)
				o.bytes -= o.current.bytes()
				return o.checkOrder(o.current.labels)
			}
		} else if !o.shouldBuffer() {
			o.pending = false
			return o.checkOrder(o.from.Labels())
		}
		if err := o.buffer(); err != nil {
			return err
		}
	}
}

// Limits of the copies that are reused: their number, and the bytes of each.
const (
	freeMax      = 16
	freeBytesMax = 256 << 10
)

// advance reads the next series, unless one is pending.
func (o *orderedSet) advance() error {
	if o.pending || o.done {
		return nil
	}
	err := o.from.next()
	if errors.Is(err, io.EOF) {
		o.done = true
		return nil
	}
	o.pending = err == nil
	return err
}

// shouldBuffer reports whether the pending series, the smallest so far, must wait
// because a smaller one may follow.
func (o *orderedSet) shouldBuffer() bool {
	if o.bytes+size(o.from) <= o.windowBytes {
		return true
	}
	ahead := o.from.ahead()
	return ahead != nil && labelenc.Compare(ahead, o.from.Labels()) < 0
}

// size estimates the bytes of a copy of the current series.
func size(from source) int {
	n := len(from.Labels())
	for _, c := range from.Chunks() {
		n += len(c.Data) + chunkHeadBytes
	}
	return n
}

// buffer copies the pending series to buffered.
func (o *orderedSet) buffer() error {
	h := &bufferedSeries{}
	if n := len(o.free); n > 0 {
		h, o.free = o.free[n-1], o.free[:n-1]
	}
	h.copy(o.from.Labels(), o.from.Chunks())
	heap.Push(&o.buffered, h)
	o.pending = false
	if o.bytes += h.bytes(); o.bytes > o.holdBytesMax+h.bytes() {
		return o.limitError()
	}
	return nil
}

// checkOrder returns an error unless lset is greater than the last labels returned.
func (o *orderedSet) checkOrder(lset []byte) error {
	if o.last == nil {
		o.last = make([]byte, 0, 256)
	} else if c := labelenc.Compare(o.last, lset); c == 0 {
		return fmt.Errorf("%w: duplicate series %s", ErrCorrupt, labelenc.Text(lset))
	} else if c > 0 {
		return fmt.Errorf("%w: %s follows %s", o.limitError(), labelenc.Text(lset), labelenc.Text(o.last))
	}
	o.last = append(o.last[:0], lset...)
	return nil
}

func (o *orderedSet) limitError() error {
	return fmt.Errorf("%w: the server's series are out of order and need more than %d bytes to sort, the limit is %d%s",
		ErrLimit, o.windowBytes, o.holdBytesMax, o.flag)
}

// close closes the response. If the response was not read to its end, the connection is cut.
func (o *orderedSet) close() error {
	if o.err == nil {
		o.err = errClosed
	}
	o.buffered, o.free, o.bytes, o.done = nil, nil, 0, true
	from := o.from
	o.from, o.open = nil, nil // the querier keeps the set, but not the response
	if from == nil {
		return nil
	}
	return from.close()
}

var errClosed = errors.New("remote read querier is closed")

// Ahead returns the labels of the next series, nil if they are unknown. They are valid
// until Next.
func (o *orderedSet) Ahead() []byte {
	if o.current != nil || o.pending || len(o.buffered) > 0 || o.done {
		return nil
	}
	return o.from.ahead()
}

func (o *orderedSet) Labels() []byte {
	if o.current != nil {
		return o.current.labels
	}
	return o.from.Labels()
}

func (o *orderedSet) Chunks() []series.Chunk {
	if o.current != nil {
		return o.current.chunks
	}
	return o.from.Chunks()
}

func (o *orderedSet) Err() error {
	if errors.Is(o.err, io.EOF) {
		return nil
	}
	return o.err
}

func (*orderedSet) Warnings() annotations.Annotations { return nil }

// seriesHeap is a min-heap by labels.
type seriesHeap []*bufferedSeries

func (h seriesHeap) Len() int           { return len(h) }
func (h seriesHeap) Less(i, j int) bool { return labelenc.Compare(h[i].labels, h[j].labels) < 0 }
func (h seriesHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *seriesHeap) Push(x any)        { *h = append(*h, x.(*bufferedSeries)) }
func (h *seriesHeap) Pop() any {
	last := len(*h) - 1
	x := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return x
}
