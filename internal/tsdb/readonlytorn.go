package tsdb

import (
	"errors"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/prometheus/prometheus/tsdb/wlog"
)

// cutTornRecord makes a log readable whose last record is incomplete. A log has such a record while the server
// writes it, and after a write that a crash or a full disk has interrupted. No sample of the record was acknowledged.
//
// damage is the error of a replay. cutTornRecord replaces the link to the last segment by a copy that ends before
// the record. It returns false, and changes nothing, if the damage is at another place, or if bytes follow the
// record: acknowledged samples may be behind it.
func (h *replayedHead) cutTornRecord(damage *wlog.CorruptionErr, logger *slog.Logger) (cut bool, err error) {
	if filepath.Dir(damage.Dir) != h.dir {
		return false, nil // a checkpoint, which is written before it gets its name
	}
	link := wlog.SegmentName(damage.Dir, damage.Segment)
	sizes, err := segmentBytes(damage.Dir)
	if err != nil || len(sizes) == 0 || slices.Max(slices.Collect(maps.Keys(sizes))) != link {
		return false, err
	}
	segment, err := filepath.EvalSymlinks(link)
	if err != nil {
		return false, err
	}
	end, torn, err := endOfRecords(segment)
	if err != nil || !torn {
		return false, err
	}
	logger.Warn("Skipping the last record of the write-ahead log: it is incomplete, because a write is in progress or "+
		"was interrupted", "segment", segment, "offset", end)
	if err := copyFile(segment, link+".cut", end); err != nil {
		return false, err
	}
	return true, os.Rename(link+".cut", link)
}

// endOfRecords returns the offset in bytes at which the last readable record of a segment ends. torn is true if
// another record follows that cannot be read, and behind it nothing but zero bytes.
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

// linkFiles creates the directory to with links to the files of the directory from. Directories in it, which are
// checkpoints, become directories of links, too.
func linkFiles(from, to string) error {
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	if err := os.Mkdir(to, 0o777); err != nil {
		return err
	}
	for _, entry := range entries {
		link := os.Symlink
		if entry.IsDir() {
			link = linkFiles
		}
		if err := link(filepath.Join(from, entry.Name()), filepath.Join(to, entry.Name())); err != nil {
			return err
		}
	}
	return nil
}
