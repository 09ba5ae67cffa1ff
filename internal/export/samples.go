package export

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/tsdb/chunkenc"

	"github.com/ferula-io/ferula/internal/series"
)

// ErrCorrupt is returned for chunks that cannot be decoded, or whose samples are not sorted
// by timestamp.
var ErrCorrupt = errors.New("corrupt samples")

// samples is one series of a window: its labels, its chunks, and an iterator over
// its samples. It reuses iterators and buffers for every series.
//
// Overlapping chunks, from several servers or out-of-order samples, are decoded together and
// merged by timestamp. Samples outside the window are skipped: not every server cuts its
// chunks at the ends of the range.
type samples struct {
	labels     []byte         // package labelenc; borrowed
	chunks     []series.Chunk // sorted by start; borrowed
	mint, maxt int64          // of the window, inclusive

	// The current sample, valid until next: a float, unless hist is set.
	time  int64
	value float64
	hist  *histogram.FloatHistogram

	total int64 // number of returned samples of all series, each sample counted once
	base  int64 // total before the current series

	lastMS  int64          // timestamp of the last sample of the series
	any     bool           // the series has a last sample
	rest    []series.Chunk // chunks that are not open yet
	iter    chunkenc.Iterator
	xor     chunkenc.XORChunk
	xorIter chunkenc.Iterator
	spare   *histogram.FloatHistogram
}

// reset starts a series.
func (s *samples) reset(labels []byte, chunks []series.Chunk, mint, maxt int64) error {
	for _, c := range chunks {
		if len(c.Data) < headerBytes(c.Encoding) {
			return fmt.Errorf("%w: a chunk of %d bytes", ErrCorrupt, len(c.Data))
		}
	}
	if !slices.IsSortedFunc(chunks, byStart) {
		chunks = slices.Clone(chunks)
		slices.SortStableFunc(chunks, byStart)
	}
	s.labels, s.chunks, s.mint, s.maxt, s.base = labels, chunks, mint, maxt, s.total
	s.rewind()
	return nil
}

// some reports whether the series has a sample in the window. A chunk may overlap the window
// without having a sample in it.
func (s *samples) some() (bool, error) {
	for _, c := range s.chunks {
		if c.MinMS >= s.mint && c.MaxMS <= s.maxt && binary.BigEndian.Uint16(c.Data) > 0 {
			return true, nil
		}
	}
	kind, err := s.step()
	s.rewind()
	return kind != chunkenc.ValNone, err
}

// rewind returns to the first sample of the series.
func (s *samples) rewind() {
	s.any, s.total = false, s.base
	s.rest, s.iter = s.chunks, nil
}

func byStart(a, b series.Chunk) int { return cmp.Compare(a.MinMS, b.MinMS) }

// headerBytes is the minimum length of a chunk that can be decoded.
func headerBytes(e chunkenc.Encoding) int {
	if e == chunkenc.EncXOR {
		return 2
	}
	return 3
}

// next moves to the next sample. It returns false at the end of the series, and with an error.
func (s *samples) next() (bool, error) {
	kind, err := s.step()
	switch kind {
	case chunkenc.ValNone:
		return false, err
	case chunkenc.ValFloat:
		s.time, s.value = s.iter.At()
		s.hist = nil
	default:
		s.time, s.spare = s.iter.AtFloatHistogram(s.spare)
		s.hist = s.spare
	}
	s.total++
	return true, nil
}

// stale reports whether the current sample is a staleness marker.
func (s *samples) stale() bool {
	if s.hist != nil {
		return value.IsStaleNaN(s.hist.Sum)
	}
	return value.IsStaleNaN(s.value)
}

// step moves to the next sample within the window, and checks the order.
func (s *samples) step() (chunkenc.ValueType, error) {
	for {
		if s.iter == nil {
			if len(s.rest) == 0 {
				return chunkenc.ValNone, nil
			}
			if err := s.open(); err != nil {
				return chunkenc.ValNone, err
			}
		}
		kind := s.iter.Next()
		if kind == chunkenc.ValNone {
			if err := s.iter.Err(); err != nil {
				if errors.Is(err, io.EOF) {
					err = io.ErrUnexpectedEOF
				}
				return chunkenc.ValNone, fmt.Errorf("%w: %w", ErrCorrupt, err)
			}
			s.iter = nil
			continue
		}
		t := s.iter.AtT()
		if s.any && t <= s.lastMS {
			return chunkenc.ValNone, fmt.Errorf("%w: a sample at %d comes after one at %d", ErrCorrupt, t, s.lastMS)
		}
		s.any, s.lastMS = true, t
		if t < s.mint {
			continue
		}
		if t > s.maxt { // and so are all later samples
			s.iter, s.rest = nil, nil
			return chunkenc.ValNone, nil
		}
		return kind, nil
	}
}

// group returns the number of chunks, from the first on, in which each overlaps one before it. It is
// 1 if the second chunk begins after the first one ends.
func group(chunks []series.Chunk) int {
	n, end := 1, chunks[0].MaxMS
	for n < len(chunks) && chunks[n].MinMS <= end {
		end = max(end, chunks[n].MaxMS)
		n++
	}
	return n
}

// open opens the next chunk, or all overlapping next ones.
func (s *samples) open() error {
	n := group(s.rest)
	chunks := s.rest[:n]
	s.rest = s.rest[n:]
	if n == 1 && chunks[0].Encoding == chunkenc.EncXOR {
		s.xor.Reset(chunks[0].Data)
		s.xorIter = s.xor.Iterator(s.xorIter)
		s.iter = s.xorIter
		return nil
	}
	var err error
	if s.iter, err = series.Iterator(chunks); err != nil {
		return fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return nil
}
