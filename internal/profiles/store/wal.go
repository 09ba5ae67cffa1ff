package store

// The log of a tenant is a list of records that survive a crash.
//
// append writes frames to the end of the newest segment and returns once they are synced. cut closes the newest
// segment and starts another; so does append after 64 MiB. removeSegments deletes closed segments. openLog passes the
// records of the segments to a function, in order. Then it starts a new segment, because the last segment may end in
// an incomplete record after a crash. A log has one writer.
//
// Damaged data does not fail openLog. Bytes that are not a record are skipped up to the next record. A record that the
// function rejects is skipped. Both are copied to the directory aside, with the reason. Bytes at the end of a segment
// that are not a record are skipped, too, but not copied. A segment that the disk cannot read, or that is not a file,
// is moved to aside. openLog returns a damage for each. Another error of reading a segment, which may pass, fails
// openLog.
//
//	segment   8 digits: records       record   u32 length | u32 CRC-32C of payload | payload
//	aside/<segment>-<offset>.bytes    skipped bytes        .txt   reason        aside/<segment>.segment   a segment

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"

	"github.com/ferula-io/ferula/internal/files"
	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/series/labelenc"
)

const (
	headerBytes  = 8
	segmentBytes = 64 << 20
	recordMax    = 1 << 30
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// pushLog is a log in one directory. It is not safe for concurrent use.
type pushLog struct {
	fs     files.FS
	dir    string
	number uint64
	file   files.File // nil: the next append starts a segment
	size   int64
}

// openLog replays the segments in order and starts a new one. The directory's parent must exist.
// replay borrows the payload. If replay returns a stopError, openLog ends with this error. After any
// other error the record is set aside; openLog fails if this fails after profiles.ErrNewer.
func openLog(fs files.FS, dir string, replay func(segment uint64, payload []byte) error) (*pushLog, []damage, error) {
	if err := files.MakeDir(fs, dir); err != nil {
		return nil, nil, fmt.Errorf("log %s: %w", dir, err)
	}
	numbers, err := segments(dir)
	if err != nil {
		return nil, nil, err
	}
	l := &pushLog{fs: fs, dir: dir}
	var damaged []damage
	for _, n := range numbers {
		l.number = n
		r := segmentReader{log: l, replay: replay, damaged: damaged}
		if err := r.read(); err != nil {
			return nil, nil, err
		}
		damaged = r.damaged
	}
	// The log can be read even if it cannot be written: append retries.
	_ = l.next()
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

func (l *pushLog) path(n uint64) string { return segmentPath(l.dir, n) }

// appendFrame appends a frame. fill appends the payload of the frame.
func appendFrame(dst []byte, fill func([]byte) []byte) []byte {
	from := len(dst)
	dst = fill(append(dst, make([]byte, headerBytes)...))
	payload := dst[from+headerBytes:]
	binary.LittleEndian.PutUint32(dst[from:], uint32(len(payload)))
	binary.LittleEndian.PutUint32(dst[from+4:], crc32.Checksum(payload, castagnoli))
	return dst
}

// next closes the newest segment and starts another. If the name of a segment cannot be synced, no record is
// written to the segment, and its number is not used again.
func (l *pushLog) next() error {
	closed := l.close()
	file, err := l.fs.Create(l.path(l.number + 1))
	if err == nil || errors.Is(err, os.ErrExist) {
		l.number++
	}
	if err != nil {
		return errors.Join(closed, fmt.Errorf("log %s: %w", l.dir, err))
	}
	if err := l.fs.SyncDir(l.dir); err != nil {
		return errors.Join(closed, fmt.Errorf("log %s: %w", l.dir, err), file.Close())
	}
	l.file, l.size = file, 0
	return nil
}

// append writes whole frames and returns once they are synced. After an error it truncates
// the segment, so that the segment has none of the frames. If that fails too, the next append
// starts a new segment.
func (l *pushLog) append(frames []byte) error {
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

// cut closes the newest segment, starts another and returns the number of the closed segment.
// All records that were appended before are in this segment or in earlier segments.
func (l *pushLog) cut() (uint64, error) {
	closed := l.number
	if err := l.next(); err != nil {
		return 0, err
	}
	return closed, nil
}

// removeSegments removes the segments of a log up to number through, which must be closed.
// It may be called while the log is written.
func removeSegments(fs files.FS, dir string, through uint64) error {
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

// close closes the newest segment.
func (l *pushLog) close() error {
	if l.file == nil {
		return nil
	}
	err := l.file.Close()
	l.file = nil
	return err
}

// damage is a part of a segment that openLog skipped.
type damage struct {
	segment string
	at      int64 // offset in the segment
	bytes   int64
	kind    damageKind
	err     error  // reason, with the error of setting aside if that failed
	aside   string // path of the copied bytes or of the renamed segment; "": not set aside
}

// damageKind is the kind of a damage.
type damageKind int

const (
	// tornEnd is an incomplete record at the end of a segment: an unacknowledged write cut
	// short by a crash. Damage to the last records looks the same.
	tornEnd damageKind = iota
	// gapBefore is bytes that are not a record but are followed by records.
	gapBefore
	// refusedRecord is a record that replay could not use.
	refusedRecord
	// unreadableSegment is a segment that could not be read from disk.
	unreadableSegment
)

// stopError is returned by a replay function to end openLog. The record stays in the log.
type stopError struct{ error }

// Unwrap returns the reason.
func (e stopError) Unwrap() error { return e.error }

const (
	asideDir = "aside"
	// asideBytesMax is the limit of bytes set aside for a log. Further bytes are dropped.
	asideBytesMax = 256 << 20
	// scanBytesMax is the limit of bytes checksummed to find the next record.
	scanBytesMax = 1 << 30
)

// segmentReader reads one segment.
type segmentReader struct {
	log     *pushLog
	replay  func(segment uint64, payload []byte) error
	damaged []damage
	scanned int64
}

func (r *segmentReader) read() error {
	path := r.log.path(r.log.number)
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
			d := damage{segment: path, at: int64(at), bytes: int64(next - at), kind: gapBefore, err: errors.New("not a record")}
			if next == len(b) {
				d.kind = tornEnd
			} else {
				r.setAside(&d, b[at:next])
			}
			r.damaged = append(r.damaged, d)
			at = next
			continue
		}
		end := at + headerBytes + len(payload)
		if err := r.replay(r.log.number, payload); err != nil {
			if errors.As(err, new(stopError)) {
				return fmt.Errorf("log segment %s: record at byte %d: %w", path, at, err)
			}
			d := damage{segment: path, at: int64(at), bytes: int64(end - at), kind: refusedRecord, err: err}
			r.setAside(&d, b[at:end])
			// Another version may replay the record. It would be gone with its segment.
			if d.aside == "" && errors.Is(err, profiles.ErrNewer) {
				return fmt.Errorf("log segment %s: record at byte %d: %w", path, at, d.err)
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
func (r *segmentReader) next(b []byte, at int) int {
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

func (r *segmentReader) fits(b []byte) bool {
	if len(b) >= headerBytes {
		if size := int64(binary.LittleEndian.Uint32(b)); size <= int64(len(b)) {
			r.scanned += size
		}
	}
	_, ok := frame(b)
	return ok
}

// setAside copies skipped bytes to the directory aside, unless an earlier openLog has
// copied them.
func (r *segmentReader) setAside(d *damage, b []byte) {
	dir := filepath.Join(r.log.dir, asideDir)
	path := filepath.Join(dir, fmt.Sprintf("%08d-%d.bytes", r.log.number, d.at))
	if info, err := os.Stat(path); err == nil && info.Size() == int64(len(b)) {
		d.aside = path
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
		d.aside = path
		err = files.WriteFile(r.log.fs, path[:len(path)-len(".bytes")]+".txt", []byte(d.err.Error()+"\n"))
	}
	if err != nil {
		d.err = errors.Join(d.err, fmt.Errorf("set aside: %w", err))
	}
}

// unreadable renames a segment so that removeSegments does not delete it. If that fails, openLog ends with the error.
func (r *segmentReader) unreadable(path string, err error) error {
	d := damage{segment: path, kind: unreadableSegment, err: err}
	dir := filepath.Join(r.log.dir, asideDir)
	aside := filepath.Join(dir, strconv.FormatUint(r.log.number, 10)+".segment")
	move := files.MakeDir(r.log.fs, dir)
	if move == nil {
		move = r.log.fs.Rename(path, aside)
	}
	if move != nil {
		return fmt.Errorf("log segment %s: %w", path, errors.Join(err, move))
	}
	d.aside = aside
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

// A record of the log is one push. After a crash the log has all of it or nothing.
//
//	record    u8 1 | profile*
//	profile   id 16 | i64 time | uvarint len labels | uvarint len pprof
const recordVersion = 1

func appendRecord(dst []byte, pushed []profiles.RawProfile) []byte {
	dst = append(dst, recordVersion)
	for i := range pushed {
		p := &pushed[i]
		dst = append(dst, p.ID[:]...)
		dst = binary.LittleEndian.AppendUint64(dst, uint64(p.TimeNS))
		dst = append(binary.AppendUvarint(dst, uint64(len(p.Labels))), p.Labels...)
		dst = append(binary.AppendUvarint(dst, uint64(len(p.Raw))), p.Raw...)
	}
	return dst
}

// readRecord calls f with each profile, which aliases the record.
func readRecord(record []byte, f func(p *profiles.RawProfile) error) error {
	if len(record) == 0 || record[0] == 0 {
		return fmt.Errorf("%w: record without a version", profiles.ErrCorrupt)
	}
	if record[0] > recordVersion {
		return fmt.Errorf("%w: record of version %d", profiles.ErrNewer, record[0])
	}
	for b := record[1:]; len(b) > 0; {
		if len(b) < 24 {
			return fmt.Errorf("%w: record is cut short", profiles.ErrCorrupt)
		}
		p := profiles.RawProfile{ID: profiles.ID(b[:16]), TimeNS: int64(binary.LittleEndian.Uint64(b[16:]))}
		var ok bool
		if p.Labels, b, ok = labelenc.Prefixed(b[24:]); !ok {
			return fmt.Errorf("%w: labels of a record are cut short", profiles.ErrCorrupt)
		}
		if p.Raw, b, ok = labelenc.Prefixed(b); !ok {
			return fmt.Errorf("%w: profile of a record is cut short", profiles.ErrCorrupt)
		}
		if err := f(&p); err != nil {
			return err
		}
	}
	return nil
}
