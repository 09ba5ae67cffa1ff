// Package wal is a log of records that survive a crash.
//
// Append writes frames of length, checksum and payload to the end of the newest segment and
// returns once they are synced. Cut closes the newest segment and starts another; so does Append
// after 64 MiB. Remove deletes closed segments. Open passes the records of the segments to a
// function, in order. Then it starts a new segment, because the last segment may end in an
// incomplete record after a crash. The package does not interpret records. A log has one writer.
//
// Damaged data does not fail Open. Bytes that are not a record are skipped up to the next
// record. A record that the function rejects is skipped. Both are copied to the directory
// aside, with the reason. Bytes at the end of a segment that are not a record are skipped, too,
// but not copied. A segment that the disk cannot read, or that is not a file, is moved to aside. Open returns a
// Damage for each. Another error of reading a segment, which may pass, fails Open.
//
//	segment   8 digits: records       record   u32 length | u32 CRC-32C of payload | payload
//	aside/<segment>-<offset>.bytes    skipped bytes        .txt   reason        aside/<segment>.segment   a segment
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

	"github.com/ferula-io/ferula/internal/files"
)

const (
	headerBytes  = 8
	segmentBytes = 64 << 20
	recordMax    = 1 << 30
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Log is a log in one directory. It is not safe for concurrent use.
type Log struct {
	fs     files.FS
	dir    string
	number uint64
	file   files.File // nil: the next Append starts a segment
	size   int64
}

// Open replays the segments in order and starts a new one. The directory's parent must exist.
// replay borrows the payload. If replay returns a StopError, Open ends with this error. After any
// other error the record is set aside; Open fails if this fails for a KeepError.
func Open(fs files.FS, dir string, replay func(segment uint64, payload []byte) error) (*Log, []Damage, error) {
	if err := files.MakeDir(fs, dir); err != nil {
		return nil, nil, fmt.Errorf("log %s: %w", dir, err)
	}
	numbers, err := segments(dir)
	if err != nil {
		return nil, nil, err
	}
	l := &Log{fs: fs, dir: dir}
	var damaged []Damage
	for _, n := range numbers {
		l.number = n
		r := reader{log: l, number: n, replay: replay}
		if err := r.read(); err != nil {
			return nil, nil, err
		}
		damaged = append(damaged, r.damaged...)
	}
	// The log can be read even if it cannot be written: Append retries.
	_ = l.begin()
	return l, damaged, nil
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

func segmentPath(dir string, n uint64) string { return filepath.Join(dir, fmt.Sprintf("%08d", n)) }

func (l *Log) path(n uint64) string { return segmentPath(l.dir, n) }

// AppendFrame appends a frame. fill appends the payload of the frame.
func AppendFrame(dst []byte, fill func([]byte) []byte) []byte {
	from := len(dst)
	dst = fill(append(dst, make([]byte, headerBytes)...))
	payload := dst[from+headerBytes:]
	binary.LittleEndian.PutUint32(dst[from:], uint32(len(payload)))
	binary.LittleEndian.PutUint32(dst[from+4:], crc32.Checksum(payload, castagnoli))
	return dst
}

// begin starts the next segment. If the name of a segment cannot be synced, no record is
// written to the segment, and its number is not used again.
func (l *Log) begin() error {
	path := l.path(l.number + 1)
	file, err := l.fs.Create(path)
	if err != nil {
		if errors.Is(err, os.ErrExist) {
			l.number++
		}
		return fmt.Errorf("log %s: %w", l.dir, err)
	}
	l.number++
	if err := l.fs.SyncDir(l.dir); err != nil {
		return errors.Join(fmt.Errorf("log %s: %w", l.dir, err), file.Close())
	}
	l.file, l.size = file, 0
	return nil
}

// Append writes whole frames and returns once they are synced. After an error it truncates
// the segment, so that the segment has none of the frames. If that fails too, the next Append
// starts a new segment.
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
		// The segment may end in a part of the frames: nothing more is appended to it.
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

// Cut closes the newest segment, starts another and returns the number of the closed segment.
// All records that were appended before are in this segment or in earlier segments.
func (l *Log) Cut() (uint64, error) {
	closed := l.number
	if err := l.next(); err != nil {
		return 0, err
	}
	return closed, nil
}

// Remove removes the segments of a log up to number through, which must be closed.
// It may be called while the log is written.
func Remove(fs files.FS, dir string, through uint64) error {
	numbers, err := segments(dir)
	if err != nil {
		return err
	}
	for _, n := range numbers {
		if n <= through {
			err = errors.Join(err, fs.Remove(segmentPath(dir, n)))
		}
	}
	return err
}

// Close closes the newest segment.
func (l *Log) Close() error {
	if l.file == nil {
		return nil
	}
	err := l.file.Close()
	l.file = nil
	return err
}
