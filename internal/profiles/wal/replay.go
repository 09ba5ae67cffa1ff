package wal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/ferula-io/ferula/internal/files"
)

// Damage is a part of a segment that Open skipped.
type Damage struct {
	Segment string
	At      int64 // offset in the segment
	Bytes   int64
	Kind    Kind
	Err     error  // reason, with the error of setting aside if that failed
	Aside   string // path of the copied bytes or of the renamed segment; "": not set aside
}

// Kind is the kind of a Damage.
type Kind int

const (
	// Torn is an incomplete record at the end of a segment: an unacknowledged write cut
	// short by a crash. Damage to the last records looks the same.
	Torn Kind = iota
	// Gap is bytes that are not a record but are followed by records.
	Gap
	// Refused is a record that replay could not use.
	Refused
	// Unreadable is a segment that could not be read from disk.
	Unreadable
)

// StopError is returned by replay to end Open. The record stays in the log.
type StopError struct{ Err error }

// Error implements error.
func (e *StopError) Error() string { return e.Err.Error() }

// Unwrap returns the reason.
func (e *StopError) Unwrap() error { return e.Err }

// KeepError is returned by replay for a record that another version may replay. If the record cannot be set aside, Open
// ends with this error: otherwise the record would be gone with its segment.
type KeepError struct{ Err error }

// Error implements error.
func (e *KeepError) Error() string { return e.Err.Error() }

// Unwrap returns the reason.
func (e *KeepError) Unwrap() error { return e.Err }

const (
	asideDir = "aside"
	// asideBytesMax is the limit of bytes set aside for a log. Further bytes are dropped.
	asideBytesMax = 256 << 20
	// scanBytesMax is the limit of bytes checksummed to find the next record.
	scanBytesMax = 1 << 30
)

// reader reads one segment.
type reader struct {
	log     *Log
	number  uint64
	replay  func(segment uint64, payload []byte) error
	damaged []Damage
	scanned int64
}

func (r *reader) read() error {
	path := r.log.path(r.number)
	b, err := files.ReadFile(path)
	if errors.Is(err, files.ErrIrregular) || errors.Is(err, syscall.EIO) {
		return r.unreadable(path, err)
	}
	if err != nil { // it may pass: the permissions, or too many open files
		return fmt.Errorf("log segment %s: %w", path, err)
	}
	for at := 0; at < len(b); {
		payload, ok := frame(b[at:])
		if !ok {
			next := r.next(b, at)
			d := Damage{Segment: path, At: int64(at), Bytes: int64(next - at), Kind: Gap, Err: errors.New("not a record")}
			if next == len(b) {
				d.Kind = Torn
			} else {
				r.setAside(&d, b[at:next])
			}
			r.damaged = append(r.damaged, d)
			at = next
			continue
		}
		end := at + headerBytes + len(payload)
		if err := r.replay(r.number, payload); err != nil {
			var stop *StopError
			if errors.As(err, &stop) {
				return fmt.Errorf("log segment %s: record at byte %d: %w", path, at, err)
			}
			d := Damage{Segment: path, At: int64(at), Bytes: int64(end - at), Kind: Refused, Err: err}
			r.setAside(&d, b[at:end])
			var keep *KeepError
			if d.Aside == "" && errors.As(err, &keep) {
				return fmt.Errorf("log segment %s: record at byte %d: %w", path, at, d.Err)
			}
			r.damaged = append(r.damaged, d)
		}
		at = end
	}
	return nil
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

// next returns the offset of the first record after bytes that are not a record. It tries the
// offset to which the length field of these bytes points, and then all offsets in order,
// until a checksum matches. If no record follows, or the limit of the search is reached, it
// returns the end of the segment.
func (r *reader) next(b []byte, at int) int {
	if len(b)-at >= headerBytes {
		size := int64(binary.LittleEndian.Uint32(b[at:]))
		if end := int64(at) + headerBytes + size; size > 0 && end < int64(len(b)) && r.fits(b[end:]) {
			return int(end)
		}
	}
	for next := at + 1; next < len(b)-headerBytes && r.scanned < scanBytesMax; next++ {
		if r.fits(b[next:]) {
			return next
		}
	}
	return len(b)
}

func (r *reader) fits(b []byte) bool {
	if len(b) >= headerBytes {
		if size := int64(binary.LittleEndian.Uint32(b)); size <= int64(len(b)) {
			r.scanned += size
		}
	}
	_, ok := frame(b)
	return ok
}

// setAside copies skipped bytes to the directory aside, unless an earlier Open of the log has
// copied them.
func (r *reader) setAside(d *Damage, b []byte) {
	dir := filepath.Join(r.log.dir, asideDir)
	path := filepath.Join(dir, fmt.Sprintf("%08d-%d.bytes", r.number, d.At))
	if info, err := os.Stat(path); err == nil && info.Size() == int64(len(b)) {
		d.Aside = path
		return
	}
	err := files.MakeDir(r.log.fs, dir)
	if err == nil {
		var used int64
		if used, err = dirBytes(dir); err == nil && used+int64(len(b)) > asideBytesMax {
			err = fmt.Errorf("%s has %d bytes already", dir, used)
		}
	}
	if err == nil {
		err = files.WriteFile(r.log.fs, path, b)
	}
	if err == nil {
		d.Aside = path
		err = files.WriteFile(r.log.fs, path[:len(path)-len(".bytes")]+".txt", []byte(d.Err.Error()+"\n"))
	}
	if err != nil {
		d.Err = errors.Join(d.Err, fmt.Errorf("set aside: %w", err))
	}
}

// unreadable renames a segment so that Remove does not delete it. If that fails, Open ends with the error.
func (r *reader) unreadable(path string, err error) error {
	d := Damage{Segment: path, Kind: Unreadable, Err: err}
	dir := filepath.Join(r.log.dir, asideDir)
	aside := filepath.Join(dir, strconv.FormatUint(r.number, 10)+".segment")
	move := files.MakeDir(r.log.fs, dir)
	if move == nil {
		move = r.log.fs.Rename(path, aside)
	}
	if move != nil {
		return fmt.Errorf("log segment %s: %w", path, errors.Join(err, move))
	}
	d.Aside = aside
	r.damaged = append(r.damaged, d)
	return nil
}

func dirBytes(dir string) (int64, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0, err
	}
	var bytes int64
	for _, e := range entries {
		if info, err := e.Info(); err == nil {
			bytes += info.Size()
		}
	}
	return bytes, nil
}
