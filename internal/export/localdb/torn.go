package localdb

import (
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"

	"github.com/prometheus/prometheus/tsdb/wlog"
)

// cutTornRecord makes a log readable whose last record is incomplete. A log has such a record while the server writes it, and
// after a write that a crash or a full disk has interrupted. No sample of the record was acknowledged.
//
// damage is the error of a replay. cutTornRecord replaces the link to the log in h.dir by a directory with a copy of the
// last segment that ends before the record, and links to the other files. It returns false, and changes nothing, if the
// damage is at another place, or if bytes follow the record: acknowledged samples may be behind it.
func (h *head) cutTornRecord(damage *wlog.CorruptionErr, logger *slog.Logger) (cut bool, err error) {
	if filepath.Dir(damage.Dir) != h.dir {
		return false, nil // a checkpoint, which is written before it gets its name
	}
	log, err := filepath.EvalSymlinks(damage.Dir)
	if err != nil {
		return false, err
	}
	if last, err := lastSegment(log); err != nil || last != damage.Segment {
		return false, err
	}
	end, torn, err := endOfRecords(wlog.SegmentName(log, damage.Segment))
	if err != nil || !torn {
		return false, err
	}
	logger.Warn("The last record of the write-ahead log is incomplete and is not read: a write is in progress or was interrupted", "segment", wlog.SegmentName(log, damage.Segment), "offset", end)
	return true, linkLog(log, damage.Dir, damage.Segment, end)
}

// lastSegment returns the number of the last segment of a log that is not empty, or -1.
func lastSegment(log string) (last int, err error) {
	entries, err := os.ReadDir(log)
	last = -1
	for _, entry := range entries {
		index, notSegment := strconv.Atoi(entry.Name())
		if info, err := entry.Info(); notSegment == nil && err == nil && info.Size() > 0 {
			last = max(last, index)
		}
	}
	return last, err
}

// endOfRecords returns the offset in bytes at which the last readable record of a segment ends. torn is true if another record
// follows that cannot be read, and behind it nothing but zero bytes.
func endOfRecords(name string) (end int64, torn bool, err error) {
	segment, err := wlog.OpenReadSegment(name)
	if err != nil {
		return 0, false, err
	}
	defer func() { err = errors.Join(err, segment.Close()) }()
	r := wlog.NewReader(wlog.NewSegmentBufReader(segment))
	for r.Next() {
		end = r.Offset()
	}
	var damage *wlog.CorruptionErr
	if !errors.As(r.Err(), &damage) {
		return end, false, r.Err()
	}
	rest, err := os.Open(name)
	if err != nil {
		return 0, false, err
	}
	defer func() { _ = rest.Close() }() // only read
	if _, err := rest.Seek(damage.Offset, io.SeekStart); err != nil {
		return 0, false, err
	}
	zero, err := onlyZeros(rest)
	return end, zero, err
}

func onlyZeros(r io.Reader) (bool, error) {
	buf := make([]byte, 32<<10)
	for {
		n, err := r.Read(buf)
		for _, b := range buf[:n] {
			if b != 0 {
				return false, nil
			}
		}
		if errors.Is(err, io.EOF) {
			return true, nil
		}
		if err != nil {
			return false, err
		}
	}
}

// linkLog replaces the link to a log by a directory with links to its files. The segment with number cutIndex is a copy of its
// first end bytes. A checkpoint becomes a directory of links, because Prometheus requires a directory.
func linkLog(log, link string, cutIndex int, end int64) error {
	if err := os.Remove(link); err != nil {
		return err
	}
	if err := os.Mkdir(link, 0o777); err != nil {
		return err
	}
	entries, err := os.ReadDir(log)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		from, to := filepath.Join(log, entry.Name()), filepath.Join(link, entry.Name())
		index, notSegment := strconv.Atoi(entry.Name())
		switch {
		case notSegment == nil && index == cutIndex:
			err = copyFile(from, to, end)
		case entry.IsDir():
			err = linkFiles(from, to)
		default:
			err = os.Symlink(from, to)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func linkFiles(from, to string) error {
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	if err := os.Mkdir(to, 0o777); err != nil {
		return err
	}
	for _, entry := range entries {
		if err := os.Symlink(filepath.Join(from, entry.Name()), filepath.Join(to, entry.Name())); err != nil {
			return err
		}
	}
	return nil
}
