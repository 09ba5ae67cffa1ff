package remoteread

import (
	"bufio"
	"cmp"
	"container/heap"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/prometheus/prometheus/tsdb/chunkenc"

	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/series/labelenc"
)

// fileSorter sorts the series of a source by labels. It sorts in memory up to
// bytesMax. Beyond that it writes sorted runs to a file and merges them:
//
//	run     series*
//	series  uvarint(len) labels | uvarint(chunks) chunk*
//	chunk   varint(min) varint(max) encoding uvarint(len) data
//
// The file is deleted as soon as it is open, so that nothing is left after a crash.
type fileSorter struct {
	source
	dir      string
	bytesMax int // of series in memory

	begun   bool
	held    []*bufferedSeries
	bytes   int
	file    *os.File // nil: all series are in memory
	runs    []int64  // offset of the end of each run
	merging runHeap
	current *bufferedSeries
}

func (s *fileSorter) next() error {
	if !s.begun {
		s.begun = true
		if err := s.sort(); err != nil {
			return err
		}
	}
	if s.file == nil {
		if len(s.held) == 0 {
			return io.EOF
		}
		s.current, s.held = s.held[0], s.held[1:]
		return nil
	}
	if s.current != nil { // current is the series of merging[0]: advance that run
		if err := s.merging[0].next(); errors.Is(err, io.EOF) {
			heap.Pop(&s.merging)
		} else if err != nil {
			return err
		} else {
			heap.Fix(&s.merging, 0)
		}
	}
	if len(s.merging) == 0 {
		s.current = nil
		return io.EOF
	}
	s.current = &s.merging[0].series
	return nil
}

// sort reads the source to its end. Afterwards held has all series, sorted, or merging has the runs of the file.
func (s *fileSorter) sort() error {
	for {
		err := s.source.next()
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return err
		}
		h := &bufferedSeries{}
		h.copy(s.source.Labels(), s.source.Chunks())
		s.held, s.bytes = append(s.held, h), s.bytes+h.bytes()
		if s.bytes > s.bytesMax {
			if err := s.write(); err != nil {
				return fmt.Errorf("sort series in a file: %w", err)
			}
		}
	}
	if s.file == nil {
		s.sortHeld()
		return nil
	}
	if err := s.write(); err != nil {
		return fmt.Errorf("sort series in a file: %w", err)
	}
	s.held = nil
	start, size := int64(0), max(4<<10, min(256<<10, s.bytesMax/len(s.runs)))
	for _, end := range s.runs {
		r := &run{from: bufio.NewReaderSize(io.NewSectionReader(s.file, start, end-start), size)}
		if err := r.next(); err == nil {
			s.merging = append(s.merging, r)
		} else if !errors.Is(err, io.EOF) {
			return err
		}
		start = end
	}
	heap.Init(&s.merging)
	return nil
}

func (s *fileSorter) sortHeld() {
	slices.SortStableFunc(s.held, func(a, b *bufferedSeries) int { return labelenc.Compare(a.labels, b.labels) })
}

// write appends the buffered series to the file as one run.
func (s *fileSorter) write() (err error) {
	if s.file == nil {
		if s.file, err = os.CreateTemp(s.dir, "ferula_sort_"); err != nil {
			return err
		}
		if err := os.Remove(s.file.Name()); err != nil {
			return err
		}
	}
	s.sortHeld()
	w := bufio.NewWriterSize(s.file, 256<<10)
	var head []byte
	for _, h := range s.held {
		head = binary.AppendUvarint(head[:0], uint64(len(h.labels)))
		head = append(head, h.labels...)
		head = binary.AppendUvarint(head, uint64(len(h.chunks)))
		_, _ = w.Write(head) // Flush returns the error
		for _, c := range h.chunks {
			head = binary.AppendVarint(head[:0], c.MinMS)
			head = append(binary.AppendVarint(head, c.MaxMS), byte(c.Encoding))
			head = binary.AppendUvarint(head, uint64(len(c.Data)))
			_, _ = w.Write(head)
			_, _ = w.Write(c.Data)
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	end, err := s.file.Seek(0, io.SeekCurrent)
	s.runs = append(s.runs, end)
	clear(s.held)
	s.held, s.bytes = s.held[:0], 0
	return err
}

func (s *fileSorter) Labels() []byte         { return s.current.labels }
func (s *fileSorter) Chunks() []series.Chunk { return s.current.chunks }
func (*fileSorter) ahead() []byte            { return nil }

func (s *fileSorter) close() error {
	err := s.source.close()
	if s.file != nil {
		err = errors.Join(err, s.file.Close())
	}
	return err
}

// run is a sorted part of the file. Its series is overwritten by next.
type run struct {
	from   *bufio.Reader
	series bufferedSeries
}

// next reads the next series. It returns io.EOF at the end.
func (r *run) next() error {
	size, err := binary.ReadUvarint(r.from)
	if errors.Is(err, io.EOF) {
		return io.EOF
	}
	h := &r.series
	h.labels = slices.Grow(h.labels[:0], int(size))[:size]
	_, errLabels := io.ReadFull(r.from, h.labels)
	count, errCount := binary.ReadUvarint(r.from)
	if err := cmp.Or(err, errLabels, errCount); err != nil {
		return fmt.Errorf("read sorted series: %w", unexpectedEOF(err))
	}
	h.chunks, h.data = h.chunks[:0], h.data[:0]
	for range count {
		minMS, errMin := binary.ReadVarint(r.from)
		maxMS, errMax := binary.ReadVarint(r.from)
		encoding, errEncoding := r.from.ReadByte()
		size, err := binary.ReadUvarint(r.from)
		if err := cmp.Or(errMin, errMax, errEncoding, err); err != nil {
			return fmt.Errorf("read sorted series: %w", unexpectedEOF(err))
		}
		at := len(h.data)
		h.data = slices.Grow(h.data, int(size))[:at+int(size)]
		if _, err := io.ReadFull(r.from, h.data[at:]); err != nil {
			return fmt.Errorf("read sorted series: %w", unexpectedEOF(err))
		}
		h.chunks = append(h.chunks, series.Chunk{MinMS: minMS, MaxMS: maxMS, Encoding: chunkenc.Encoding(encoding),
			Data: h.data[at:]})
	}
	at := 0
	for i, c := range h.chunks { // data may have moved
		h.chunks[i].Data = h.data[at : at+len(c.Data)]
		at += len(c.Data)
	}
	return nil
}

// runHeap is a min-heap by the labels of the current series.
type runHeap []*run

func (h runHeap) Len() int { return len(h) }
func (h runHeap) Less(i, j int) bool {
	return labelenc.Compare(h[i].series.labels, h[j].series.labels) < 0
}
func (h runHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *runHeap) Push(x any)   { *h = append(*h, x.(*run)) }
func (h *runHeap) Pop() any {
	last := len(*h) - 1
	x := (*h)[last]
	*h = (*h)[:last]
	return x
}
