package remoteread

import (
	"container/heap"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/ferula-io/ferula/internal/codec/labelenc"
	codec "github.com/ferula-io/ferula/internal/codec/remoteread"
	"github.com/ferula-io/ferula/internal/series"
)

// source reads an answer in the order in which the server sends it.
type source interface {
	next() error            // io.EOF at the end
	Labels() []byte         // until next
	Chunks() []series.Chunk // until next
	ahead() []byte          // the labels of the next series, if they are known
	close() error
}

// ordered brings the series of an answer into the order of their labels.
//
// A window is filled with copies of series before the least is given: what fits
// is sorted, and a longer answer is read to its end if it is about in order.
// Samples come in any order, so that their window is all that may be held.
//
// A server that streams chunks sends them in order, but it sorted before it added
// its external labels: a set that others begin with is then behind them. Such a
// series is smaller than the one that was next, so it is held, though the window
// is full, until one comes that is greater; the others pass through. Where series
// have labels of their own named as external ones they come anywhere, for which
// there is a small window here too.
type ordered struct {
	open         func() (source, error) // at the first Next
	windowBytes  int
	holdBytesMax int  // at least windowBytes
	asTheyCome   bool // none is held, and the order is not looked at

	from    source
	pending bool // from has a series that was not given yet
	done    bool
	held    heldHeap
	bytes   int // that held takes
	free    []*heldSeries
	current *heldSeries // nil: from's own
	last    []byte      // labels given last
	err     error       // io.EOF at the end
}

var _ series.Set = (*ordered)(nil)

// heldSeries is a copy of a series.
type heldSeries struct {
	labels []byte
	chunks []series.Chunk
	data   []byte
}

// copy takes a copy of a series.
func (h *heldSeries) copy(lset []byte, chunks []series.Chunk) {
	h.labels = append(h.labels[:0], lset...)
	h.chunks = append(h.chunks[:0], chunks...)
	size := 0
	for _, c := range h.chunks {
		size += len(c.Data)
	}
	h.data = slices.Grow(h.data[:0], size) // so that it does not move below
	for i, c := range h.chunks {
		start := len(h.data)
		h.data = append(h.data, c.Data...)
		h.chunks[i].Data = h.data[start:]
	}
}

func (h *heldSeries) bytes() int { return cap(h.labels) + cap(h.data) + cap(h.chunks)*chunkHeadBytes }

func (o *ordered) Next() bool {
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

func (o *ordered) next() error {
	if o.from == nil {
		from, err := o.open()
		if err != nil {
			return err
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
		if o.asTheyCome {
			if o.done {
				return io.EOF
			}
			o.pending = false
			return nil
		}
		if o.done && len(o.held) == 0 {
			return io.EOF
		}
		if len(o.held) > 0 && (o.done || labelenc.Compare(o.held[0].labels, o.from.Labels()) < 0) {
			if o.done || o.bytes+size(o.from) > o.windowBytes {
				o.current = heap.Pop(&o.held).(*heldSeries)
				o.bytes -= o.current.bytes()
				return o.give(o.current.labels)
			}
		} else if !o.mayWait() {
			o.pending = false
			return o.give(o.from.Labels())
		}
		if err := o.hold(); err != nil {
			return err
		}
	}
}

// How many copies are kept for use again, and how long each may be.
const (
	freeMax      = 16
	freeBytesMax = 256 << 10
)

// advance reads the next series, unless one waits.
func (o *ordered) advance() error {
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

// mayWait tells whether the series at hand, the least so far, should be held
// because a smaller one may follow.
func (o *ordered) mayWait() bool {
	if o.bytes+size(o.from) <= o.windowBytes {
		return true
	}
	ahead := o.from.ahead()
	return ahead != nil && labelenc.Compare(ahead, o.from.Labels()) < 0
}

// size is about what a copy of the series at hand takes.
func size(from source) int {
	n := len(from.Labels())
	for _, c := range from.Chunks() {
		n += len(c.Data) + chunkHeadBytes
	}
	return n
}

// hold copies the series at hand and lets it wait.
func (o *ordered) hold() error {
	h := &heldSeries{}
	if n := len(o.free); n > 0 {
		h, o.free = o.free[n-1], o.free[:n-1]
	}
	h.copy(o.from.Labels(), o.from.Chunks())
	heap.Push(&o.held, h)
	o.pending = false
	if o.bytes += h.bytes(); o.bytes > o.holdBytesMax+h.bytes() {
		return o.tooLittle()
	}
	return nil
}

// give checks the order of what is given.
func (o *ordered) give(lset []byte) error {
	if o.last == nil {
		o.last = make([]byte, 0, 256)
	} else if c := labelenc.Compare(o.last, lset); c == 0 {
		return fmt.Errorf("%w: the series %s is there twice", codec.ErrCorrupt, labelsText(lset))
	} else if c > 0 {
		return fmt.Errorf("%w: %s comes after %s", o.tooLittle(), labelsText(lset), labelsText(o.last))
	}
	o.last = append(o.last[:0], lset...)
	return nil
}

func (o *ordered) tooLittle() error {
	return fmt.Errorf("%w: the server's series are out of order, and more than %d bytes would have to be held to sort them (HoldBytesMax is %d)", ErrLimit, o.windowBytes, o.holdBytesMax)
}

// labelsText is a label set for people.
func labelsText(lset []byte) string {
	builder := labels.NewScratchBuilder(8)
	text, err := labelenc.Labels(lset, &builder)
	if err != nil {
		return fmt.Sprintf("%q", lset)
	}
	return text.String()
}

// close ends the answer; one that was not read to its end cuts the connection.
func (o *ordered) close() error {
	if o.err == nil {
		o.err = errClosed
	}
	o.held, o.free, o.bytes, o.done = nil, nil, 0, true
	if o.from == nil {
		return nil
	}
	err := o.from.close()
	o.from, o.open = closed{}, nil
	return err
}

var errClosed = errors.New("remote read querier is closed")

// closed is what is left of a source.
type closed struct{}

func (closed) next() error            { return io.EOF }
func (closed) Labels() []byte         { return nil }
func (closed) Chunks() []series.Chunk { return nil }
func (closed) ahead() []byte          { return nil }
func (closed) close() error           { return nil }

// Ahead is the label set after the current one, if that is known and will be the
// next that is given; until Next.
func (o *ordered) Ahead() []byte {
	if o.current != nil || o.pending || len(o.held) > 0 || o.done {
		return nil
	}
	return o.from.ahead()
}

func (o *ordered) Labels() []byte {
	if o.current != nil {
		return o.current.labels
	}
	return o.from.Labels()
}

func (o *ordered) Chunks() []series.Chunk {
	if o.current != nil {
		return o.current.chunks
	}
	return o.from.Chunks()
}

func (o *ordered) Err() error {
	if errors.Is(o.err, io.EOF) {
		return nil
	}
	return o.err
}

func (*ordered) Warnings() annotations.Annotations { return nil }

// heldHeap has the least series first.
type heldHeap []*heldSeries

func (h heldHeap) Len() int           { return len(h) }
func (h heldHeap) Less(i, j int) bool { return labelenc.Compare(h[i].labels, h[j].labels) < 0 }
func (h heldHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *heldHeap) Push(x any)        { *h = append(*h, x.(*heldSeries)) }
func (h *heldHeap) Pop() any {
	last := len(*h) - 1
	x := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return x
}
