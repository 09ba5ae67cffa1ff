package remoteread

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/ferula-io/ferula/internal/remoteread/wire"
)

const (
	// viewBytesMax is the longest view of a blockReader.
	viewBytesMax = 64 << 10
	// windowBytesMin is the size of a block's first window, and the lowest windowMax. When the window
	// slides, a third of the window stays. This third exceeds the 64 KiB within which most encoders copy.
	windowBytesMin = 256 << 10
)

// blockReader decompresses one snappy block as it arrives. A block is a length,
// literals and copies. Decompressed bytes stay in a window, because later copies refer to
// them. The format lets a copy refer to any earlier offset. Snappy's own encoders copy
// within 64 KiB; others (S2's for snappy) copy from anywhere. So the window keeps a block of up to
// windowMax bytes as a whole. Of a longer block it keeps at least the last windowMax/3 bytes, and all
// bytes that are not taken, in two thirds of windowMax. A copy from before the window is ErrLimit.
type blockReader struct {
	from     *bufio.Reader // its buffer has at least 16 bytes
	total    uint64        // length of the decompressed block
	taken    uint64        // bytes passed to skip
	produced uint64        // bytes decompressed
	window   []byte        // grows up to max
	history  int           // bytes before end that slide preserves
	max      int           // longest window
	at, end  int           // window[at:end] is decompressed and not taken
	literal  int           // remaining bytes of the current literal
}

// begin reads the block's length.
func (b *blockReader) begin(from *bufio.Reader, windowMax int) error {
	b.reset(from, windowMax)
	total, err := binary.ReadUvarint(b.from)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("read a snappy block: %w", io.ErrUnexpectedEOF)
	} else if err != nil {
		return fmt.Errorf("read a snappy block: %w", err)
	}
	if total > math.MaxUint32 {
		return fmt.Errorf("%w: a snappy block has a length of %d bytes, more than 4 GiB", wire.ErrCorrupt, total)
	}
	if b.total = total; total > uint64(b.max) {
		b.max = 2 * b.history
	}
	b.max += 2 * viewBytesMax
	return nil
}

func (b *blockReader) reset(from *bufio.Reader, windowMax int) {
	windowMax = max(windowMax, windowBytesMin)
	*b = blockReader{from: from, window: make([]byte, windowBytesMin), history: windowMax / 3, max: windowMax}
}

// finish returns an error if the block has more data than its length.
func (b *blockReader) finish() error {
	if b.literal > 0 {
		return fmt.Errorf("%w: a snappy block continues after its end", wire.ErrCorrupt)
	}
	if _, err := b.from.ReadByte(); err == nil {
		return fmt.Errorf("%w: a snappy block continues after its end", wire.ErrCorrupt)
	} else if !errors.Is(err, io.EOF) {
		return fmt.Errorf("read a snappy block: %w", err)
	}
	return nil
}

// view returns the next n bytes, at most viewBytesMax, without taking them. They are
// valid until the next call.
func (b *blockReader) view(n int) ([]byte, error) {
	if b.end-b.at < n {
		if err := b.decompress(n); err != nil {
			return nil, err
		}
	}
	return b.window[b.at : b.at+n], nil
}

// rest returns the number of bytes that were not taken yet.
func (b *blockReader) rest() uint64 { return b.total - b.taken }

// atLeast returns all bytes that are decompressed and not taken. It decompresses until there
// are at least n bytes, or until the end of the block. If no byte is left, it returns an error. The
// bytes are valid until the next call.
func (b *blockReader) atLeast(n int) ([]byte, error) {
	if b.end-b.at < n {
		if n = int(min(uint64(n), b.rest())); n == 0 {
			n = 1 // for the error of decompress
		}
		if err := b.decompress(n); err != nil {
			return nil, err
		}
	}
	return b.window[b.at:b.end], nil
}

// skip takes n bytes of the last view.
func (b *blockReader) skip(n int) {
	b.at += n
	b.taken += uint64(n)
}

// decompress reads until n bytes are decompressed.
func (b *blockReader) decompress(n int) error {
	if n > viewBytesMax || uint64(n) > b.rest() {
		return fmt.Errorf("%w: a message is cut short by the end of its block", wire.ErrCorrupt)
	}
	for b.end-b.at < n {
		if b.end > len(b.window)-viewBytesMax {
			b.slide()
		}
		if _, err := b.from.Peek(1); err != nil {
			return fmt.Errorf("read a snappy block: %w", unexpectedEOF(err))
		}
		src, _ := b.from.Peek(b.from.Buffered())
		used, err := b.elements(src)
		if err != nil {
			return err
		}
		if used == 0 { // the element's header is incomplete
			if _, err := b.from.Peek(len(src) + 1); err != nil {
				return fmt.Errorf("read a snappy block: %w", unexpectedEOF(err))
			}
			continue
		}
		_, _ = b.from.Discard(used) // cannot fail after Peek
	}
	return nil
}

// windowGrowth is the factor by which a window grows. With a small factor the windows before the last one
// are as large as the last one together, and garbage until the next collection.
const windowGrowth = 8

// slide makes space in the window. It enlarges the window, up to max bytes. After that it moves the
// bytes that are still needed to the front of the window.
func (b *blockReader) slide() {
	if len(b.window) < b.max {
		longer := make([]byte, min(windowGrowth*len(b.window), b.max))
		copy(longer, b.window[:b.end])
		b.window = longer
		return
	}
	start := min(b.at, max(0, b.end-b.history))
	b.end = copy(b.window, b.window[start:b.end])
	b.at -= start
}

// elements decompresses the complete elements of src for which the window has space.
// It returns how many bytes of src it used.
func (b *blockReader) elements(src []byte) (used int, err error) {
	for used < len(src) && b.end+64 <= len(b.window) {
		if b.literal > 0 {
			n := copy(b.window[b.end:], src[used:min(len(src), used+b.literal)])
			b.literal -= n
			used += n
			if err := b.produce(n); err != nil {
				return used, err
			}
			continue
		}
		size, length, offset := element(src[used:])
		if size == 0 {
			return used, nil
		}
		used += size
		if offset < 0 {
			b.literal = length
			continue
		}
		if offset == 0 || uint64(offset) > b.produced {
			return used, fmt.Errorf("%w: a snappy copy refers %d bytes back, of which %d exist", wire.ErrCorrupt, offset,
				b.produced)
		}
		if offset > b.end {
			return used, fmt.Errorf("%w: a snappy copy refers %d bytes back, and the window has %d, at least a third of HoldBytesMax", ErrLimit, offset, b.end)
		}
		b.repeat(offset, length)
		if err := b.produce(length); err != nil {
			return used, err
		}
	}
	return used, nil
}

// repeat appends length bytes that begin offset bytes before the end. The two ranges may overlap.
func (b *blockReader) repeat(offset, length int) {
	dst := b.window[b.end : b.end+length]
	from := b.window[b.end-offset:]
	if offset >= length {
		copy(dst, from[:length])
		return
	}
	for i := range dst {
		dst[i] = from[i]
	}
}

// produce counts n bytes that were written at end.
func (b *blockReader) produce(n int) error {
	b.end += n
	b.produced += uint64(n)
	if b.produced > b.total {
		return fmt.Errorf("%w: a snappy block exceeds its length of %d bytes", wire.ErrCorrupt, b.total)
	}
	return nil
}

// element decodes the header of an element. size is the length of the header, 0 if src is too
// short. length is the number of decompressed bytes. offset is how far back a copy refers, -1
// for a literal.
func element(src []byte) (size, length, offset int) {
	tag := int(src[0])
	switch tag & 3 {
	case 0:
		more := max(0, tag>>2-59) // bytes of the length after the tag
		if len(src) < 1+more {
			return 0, 0, 0
		}
		length = tag >> 2
		if more > 0 {
			length = 0
			for i := range more {
				length |= int(src[1+i]) << (8 * i)
			}
		}
		return 1 + more, length + 1, -1
	case 1:
		if len(src) < 2 {
			return 0, 0, 0
		}
		return 2, 4 + tag>>2&7, tag>>5<<8 | int(src[1])
	case 2:
		if len(src) < 3 {
			return 0, 0, 0
		}
		return 3, 1 + tag>>2, int(binary.LittleEndian.Uint16(src[1:]))
	default:
		if len(src) < 5 {
			return 0, 0, 0
		}
		return 5, 1 + tag>>2, int(binary.LittleEndian.Uint32(src[1:]))
	}
}
