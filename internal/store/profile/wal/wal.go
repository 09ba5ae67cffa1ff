// Package wal is a log of records that are there after a crash.
//
// Records come in as payloads; frames of length, checksum and payload go to the end
// of the newest segment, and Append returns once they are on the disk. A segment is
// closed by Cut, or when it is long; Remove removes closed ones. Open hands what
// the segments hold to a function, in order, and then starts a new segment, so that
// nothing is ever written behind the torn end that a crash left. What a record means
// is not known here, and nothing is written from two goroutines.
//
//	segment   8 digits: records       record   u32 length | u32 CRC-32C of payload | payload
package wal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"strconv"
)

const (
	headerBytes  = 8
	segmentBytes = 64 << 20
	recordMax    = 1 << 30
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// File is what a segment is written to.
type File interface {
	Write(p []byte) (int, error)
	Truncate(size int64) error
	Seek(offset int64, whence int) (int64, error)
	Sync() error
	Close() error
}

// Create makes a file that must not be there yet.
type Create func(path string) (File, error)

// CreateFile is Create on a disk.
func CreateFile(path string) (File, error) {
	return os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
}

// Log is a log in one folder. It belongs to one goroutine.
type Log struct {
	dir    string
	create Create
	number uint64
	file   File
	size   int64
	frames []byte
}

// Torn is what Open found and left out: the end of a segment that is no record.
type Torn struct {
	Segment string
	At      int64
	Bytes   int64
}

// Open replays the segments after number through, in order, removes the others and
// starts a new one. What replay gets is borrowed; its error ends Open.
func Open(dir string, through uint64, create Create, replay func(payload []byte) error) (*Log, []Torn, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, nil, fmt.Errorf("log %s: %w", dir, err)
	}
	numbers, err := segments(dir)
	if err != nil {
		return nil, nil, err
	}
	l := &Log{dir: dir, create: create, number: through}
	var torn []Torn
	for _, n := range numbers {
		l.number = max(l.number, n)
		if n <= through {
			if err := os.Remove(l.path(n)); err != nil {
				return nil, nil, fmt.Errorf("log %s: %w", dir, err)
			}
			continue
		}
		rest, err := l.replay(n, replay)
		if err != nil {
			return nil, nil, err
		}
		if rest != nil {
			torn = append(torn, *rest)
		}
	}
	if err := l.begin(); err != nil {
		return nil, nil, err
	}
	return l, torn, nil
}

func segments(dir string) ([]uint64, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("log %s: %w", dir, err)
	}
	var numbers []uint64
	for _, e := range entries {
		if n, err := strconv.ParseUint(e.Name(), 10, 64); err == nil && len(e.Name()) >= 8 {
			numbers = append(numbers, n)
		}
	}
	slices.Sort(numbers)
	return numbers, nil
}

func (l *Log) path(n uint64) string { return filepath.Join(l.dir, fmt.Sprintf("%08d", n)) }

func (l *Log) replay(n uint64, f func([]byte) error) (*Torn, error) {
	b, err := os.ReadFile(l.path(n))
	if err != nil {
		return nil, fmt.Errorf("log %s: %w", l.dir, err)
	}
	for at := 0; at < len(b); {
		payload, ok := frame(b[at:])
		if !ok {
			return &Torn{Segment: l.path(n), At: int64(at), Bytes: int64(len(b) - at)}, nil
		}
		if err := f(payload); err != nil {
			return nil, fmt.Errorf("log segment %s: record at byte %d: %w", l.path(n), at, err)
		}
		at += headerBytes + len(payload)
	}
	return nil, nil
}

func frame(b []byte) (payload []byte, ok bool) {
	if len(b) < headerBytes {
		return nil, false
	}
	size := binary.LittleEndian.Uint32(b)
	if size == 0 || size > recordMax || int(size) > len(b)-headerBytes {
		return nil, false
	}
	payload = b[headerBytes : headerBytes+int(size)]
	return payload, crc32.Checksum(payload, castagnoli) == binary.LittleEndian.Uint32(b[4:])
}

// AppendFrame appends the frame of what fill appends.
func AppendFrame(dst []byte, fill func([]byte) []byte) []byte {
	from := len(dst)
	dst = fill(append(dst, make([]byte, headerBytes)...))
	payload := dst[from+headerBytes:]
	binary.LittleEndian.PutUint32(dst[from:], uint32(len(payload)))
	binary.LittleEndian.PutUint32(dst[from+4:], crc32.Checksum(payload, castagnoli))
	return dst
}

func (l *Log) begin() error {
	l.number++
	file, err := l.create(l.path(l.number))
	if err != nil {
		l.number--
		return fmt.Errorf("log %s: %w", l.dir, err)
	}
	l.file, l.size = file, 0
	return SyncDir(l.dir)
}

// SyncDir makes the names in a folder durable.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Append writes whole frames and returns once they are on the disk. After an error
// none of them is: the segment is cut back, or left behind for a new one.
func (l *Log) Append(frames []byte) error {
	if l.file == nil || l.size >= segmentBytes {
		if err := l.next(); err != nil {
			return err
		}
	}
	_, err := l.file.Write(frames)
	if err == nil {
		err = l.file.Sync()
	}
	if err == nil {
		l.size += int64(len(frames))
		return nil
	}
	err = fmt.Errorf("log segment %s: %w", l.path(l.number), err)
	cut := l.file.Truncate(l.size)
	if cut == nil {
		_, cut = l.file.Seek(l.size, 0)
	}
	if cut == nil {
		cut = l.file.Sync()
	}
	if cut != nil {
		// Nothing more is written behind what may or may not be there.
		err = errors.Join(err, fmt.Errorf("log segment %s: cut back: %w", l.path(l.number), cut), l.file.Close())
		l.file = nil
	}
	return err
}

func (l *Log) next() error {
	var err error
	if l.file != nil {
		err = l.file.Close()
		l.file = nil
	}
	if beginErr := l.begin(); beginErr != nil {
		return errors.Join(err, beginErr)
	}
	return nil
}

// Cut closes the segment, starts another and returns the number of the closed one:
// all that has been appended is in it or before it.
func (l *Log) Cut() (uint64, error) {
	closed := l.number
	if err := l.next(); err != nil {
		return 0, err
	}
	return closed, nil
}

// Remove removes the segments of a log up to number through, which must be closed.
// It may be called while the log is written.
func Remove(dir string, through uint64) error {
	numbers, err := segments(dir)
	if err != nil {
		return err
	}
	for _, n := range numbers {
		if n <= through {
			err = errors.Join(err, os.Remove(filepath.Join(dir, fmt.Sprintf("%08d", n))))
		}
	}
	return err
}

// Close closes the newest segment; the log stays.
func (l *Log) Close() error {
	if l.file == nil {
		return nil
	}
	err := l.file.Close()
	l.file = nil
	return err
}
