package remoteread

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"

	codec "github.com/ferula-io/ferula/internal/codec/remoteread"
)

const (
	// viewBytesMax is the longest view of blockReader.
	viewBytesMax = 64 << 10
	// windowBytesMin is a window of a fragment of 64 KiB, in which most encoders
	// look for what they copy, and some room.
	windowBytesMin = 256 << 10
)

// blockReader decompresses one snappy block as it comes in. A block is a length
// and then literals and copies; what is decompressed stays in a window as long as
// it was not taken or copies may reach it. The format lets a copy reach back to the
// beginning of the block. Snappy's own encoders copy within 64 KiB only, others (S2's
// for snappy) from anywhere. So a block of up to windowMax bytes is kept whole, and of
// a longer one the last third of that or more.
type blockReader struct {
	from     *bufio.Reader // of at least 16 bytes
	total    uint64        // the whole block, decompressed
	taken    uint64        // by skip
	produced uint64
	window   []byte // grows up to windowMax
	history  int    // bytes that slide keeps
	max      int
	at, end  int // of what is decompressed and not taken
	literal  int // bytes of the current literal that are still to come
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
		return fmt.Errorf("%w: a snappy block says to have %d bytes", codec.ErrCorrupt, total)
	}
	b.total = total
	return nil
}

func (b *blockReader) reset(from *bufio.Reader, windowMax int) {
	windowMax = max(windowMax, windowBytesMin)
	*b = blockReader{from: from, window: make([]byte, windowBytesMin), history: windowMax / 3, max: windowMax + 2*viewBytesMax}
}

// finish checks that the block ends where it said it would.
func (b *blockReader) finish() error {
	if b.literal > 0 {
		return fmt.Errorf("%w: a snappy block goes on behind its end", codec.ErrCorrupt)
	}
	if _, err := b.from.ReadByte(); err == nil {
		return fmt.Errorf("%w: a snappy block goes on behind its end", codec.ErrCorrupt)
	} else if !errors.Is(err, io.EOF) {
		return fmt.Errorf("read a snappy block: %w", err)
	}
	return nil
}

// view gives the next n bytes, at most viewBytesMax, without taking them. It is
// borrowed until the next call.
func (b *blockReader) view(n int) ([]byte, error) {
	if b.end-b.at < n {
		if err := b.decompress(n); err != nil {
			return nil, err
		}
	}
	return b.window[b.at : b.at+n], nil
}

// rest is the number of bytes that were not taken yet.
func (b *blockReader) rest() uint64 { return b.total - b.taken }

// some gives what is decompressed already, at least one byte and at least n if
// the block has as many; borrowed until the next call.
func (b *blockReader) some(n int) ([]byte, error) {
	if b.end-b.at < n {
		if n = int(min(uint64(n), b.rest())); n == 0 {
			n = 1 // and the error that it makes
		}
		if err := b.decompress(n); err != nil {
			return nil, err
		}
	}
	return b.window[b.at:b.end], nil
}

// skip takes n bytes that a view has shown.
func (b *blockReader) skip(n int) {
	b.at += n
	b.taken += uint64(n)
}

// decompress goes on until n bytes are there.
func (b *blockReader) decompress(n int) error {
	if n > viewBytesMax || uint64(n) > b.rest() {
		return fmt.Errorf("%w: a message is cut short by the end of its block", codec.ErrCorrupt)
	}
	for b.end-b.at < n {
		if b.end > len(b.window)-viewBytesMax {
			b.slide()
		}
		if _, err := b.from.Peek(1); err != nil {
			return fmt.Errorf("read a snappy block: %w", unexpected(err))
		}
		src, _ := b.from.Peek(b.from.Buffered())
		used, err := b.elements(src)
		if err != nil {
			return err
		}
		if used == 0 { // the head of an element is not whole
			if _, err := b.from.Peek(len(src) + 1); err != nil {
				return fmt.Errorf("read a snappy block: %w", unexpected(err))
			}
			continue
		}
		_, _ = b.from.Discard(used) // they were peeked at
	}
	return nil
}

// slide makes room: the window grows, and once it is as long as it may be what is
// still needed moves to the front.
func (b *blockReader) slide() {
	if len(b.window) < b.max {
		longer := make([]byte, min(2*len(b.window), b.max))
		copy(longer, b.window[:b.end])
		b.window = longer
		return
	}
	start := min(b.at, max(0, b.end-b.history))
	b.end = copy(b.window, b.window[start:b.end])
	b.at -= start
}

// elements decompresses what src has whole elements of and the window has room
// for, and returns how many bytes of src that took.
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
			return used, fmt.Errorf("%w: a snappy copy reaches back %d bytes, and there are %d", codec.ErrCorrupt, offset, b.produced)
		}
		if offset > b.end {
			return used, fmt.Errorf("%w: a snappy copy reaches back %d bytes, and %d are kept, a third of HoldBytesMax or more", ErrLimit, offset, b.end)
		}
		b.repeat(offset, length)
		if err := b.produce(length); err != nil {
			return used, err
		}
	}
	return used, nil
}

// repeat writes length bytes from offset back; they may overlap what they make.
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

// produce counts n bytes that were written behind end.
func (b *blockReader) produce(n int) error {
	b.end += n
	b.produced += uint64(n)
	if b.produced > b.total {
		return fmt.Errorf("%w: a snappy block has more than the %d bytes that it says", codec.ErrCorrupt, b.total)
	}
	return nil
}

// element reads the head of an element: the bytes it takes, 0 if src is too
// short, the length of what it stands for, and how far back it reaches, -1 for a
// literal.
func element(src []byte) (size, length, offset int) {
	tag := int(src[0])
	switch tag & 3 {
	case 0:
		more := max(0, tag>>2-59) // bytes of the length, if it is not in the tag
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
