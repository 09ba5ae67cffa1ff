package tsdb

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/tsdb/fileutil"
	"github.com/prometheus/prometheus/tsdb/record"
	"github.com/prometheus/prometheus/tsdb/wlog"
)

const (
	// repairSuffix is the end of the name of a segment that Prometheus' repair is copying.
	repairSuffix = ".repair"
	// asideSuffix is the end of the name of a segment that is kept, but not read.
	asideSuffix = ".aside"
)

// openDatabase opens the database. If a damaged log was repaired, it closes the database and
// opens it again: the first replay ends at the damage, and does not read the log of
// out-of-order samples, which is replayed after the write-ahead log.
func (s *Store) openDatabase(opts *tsdb.Options) (*tsdb.DB, error) {
	const tries = 3 // the first may repair the write-ahead log, the second the log of out-of-order samples
	for try := 1; ; try++ {
		if err := s.prepareLogs(); err != nil {
			return nil, err
		}
		opts.EnableMemorySnapshotOnShutdown, opts.EnableFastStartup = s.snapshots, s.snapshots
		before := s.logBytes()
		reg := &watchedRegisterer{Registerer: s.reg, guard: s.guard}
		db, err := tsdb.Open(s.opts.Dir, slog.New(gateHandler{s.logger.Handler(), s.gate}), reg, opts, s.stats)
		if err != nil {
			return nil, err
		}
		repaired := slices.ContainsFunc(reg.repairs(), aboveZero)
		if repaired {
			s.reportRemoved(before)
		}
		if try == tries || !repaired {
			for _, c := range reg.repairs() {
				c.Add(float64(try - 1 + s.gaps)) // the counts of the closed databases, and what is set aside before they open
			}
			s.exemplars.limit = metricsOf[prometheus.Gauge](reg, exemplarsMax)[0]
			return db, nil
		}
		s.logger.Warn("The write-ahead log was repaired and is replayed again", "dir", s.opts.Dir)
		if err := db.Close(); err != nil {
			return nil, fmt.Errorf("close after the repair of the write-ahead log: %w", err)
		}
		reg.unregisterAll()
	}
}

// logBytes returns the result of segmentBytes for both logs.
func (s *Store) logBytes() map[string]int64 {
	all := map[string]int64{}
	for _, dir := range s.logDirs() {
		sizes, _ := segmentBytes(dir) // there is none yet, or tsdb.Open returns the error
		maps.Copy(all, sizes)
	}
	return all
}

// segmentBytes returns the sizes of the non-empty segments of a log in bytes, by path.
func segmentBytes(dir string) (map[string]int64, error) {
	segments, err := segmentsOf(dir)
	sizes := map[string]int64{}
	for _, index := range segments {
		name := wlog.SegmentName(dir, index)
		if info, err := os.Stat(name); err == nil && info.Size() > 0 { // a missing one was truncated
			sizes[name] = info.Size()
		}
	}
	return sizes, err
}

// reportRemoved logs which segments a repair has removed. before is the result of logBytes
// before the repair. After a crash only the last record of a log is incomplete, and no sample of
// it was acknowledged. Damage at another place is followed by records of acknowledged samples.
func (s *Store) reportRemoved(before map[string]int64) {
	after := s.logBytes()
	var names []string
	bytes := int64(0)
	for name, size := range before {
		if after[name] == 0 {
			names = append(names, name)
			bytes += size
		}
	}
	if len(names) > 0 {
		slices.Sort(names)
		s.logger.Error("Samples are lost unless they are in a block: the write-ahead log was damaged before its end, and "+
			"the segments after the damage, which cannot be read, were removed",
			"segments", len(names), "first", names[0], "bytes", bytes)
	}
}

// logDirs returns the directories of both logs: of the write-ahead log and of the log of
// out-of-order samples.
func (s *Store) logDirs() []string {
	return []string{filepath.Join(s.opts.Dir, "wal"), filepath.Join(s.opts.Dir, wlog.WblDirName)}
}

// prepareLogs prepares both logs for the start: it resumes repairs, keeps references from being given twice, and
// deletes a snapshot that would lose samples. It holds the lock of the directory meanwhile: the logs may be those of
// a running server.
func (s *Store) prepareLogs() error {
	if _, err := os.Stat(s.opts.Dir); err != nil {
		return nil // there is no database yet, or tsdb.Open returns the error
	}
	if !s.opts.NoLockfile {
		path := filepath.Join(s.opts.Dir, "lock")
		lock, existed, err := fileutil.Flock(path)
		if err != nil {
			return fmt.Errorf("lock %s: %w", path, err)
		}
		defer func() {
			_ = lock.Release()
			if !existed {
				_ = os.Remove(path)
			}
		}()
	}
	if err := s.resumeRepairs(); err != nil {
		return err
	}
	s.snapshots = s.opts.SnapshotOnShutdown || s.needsSnapshot()
	if err := s.keepReferences(); err != nil {
		return fmt.Errorf("last series reference of %s: %w", s.opts.Dir, err)
	}
	if err := s.keepLateChunks(); err != nil {
		return fmt.Errorf("mapped chunks of %s: %w", s.opts.Dir, err)
	}
	return s.dropIncompleteSnapshot()
}

// resumeRepairs reverts an interrupted repair of a log, so that the repair can start again.
// In a repair Prometheus removes the segments behind the damaged segment in ascending order,
// renames the damaged segment, copies its records to a new segment, and removes the renamed
// one. If the disk fills up or the process ends in between, the next start would either find
// a gap between segments and refuse to open the database, or read only the incomplete copy.
//
// It also checks the last checkpoint. If a checkpoint is damaged, Prometheus' repair removes
// every segment of the log, and then fails.
func (s *Store) resumeRepairs() error {
	for _, dir := range s.logDirs() {
		if _, err := os.Stat(dir); err != nil {
			continue
		}
		if err := checkCheckpoint(dir); err != nil {
			return err
		}
		found, err := closeGap(dir, s.logger)
		if found {
			s.gaps++
		}
		if err != nil {
			return fmt.Errorf("resume the repair of %s: %w", dir, err)
		}
		if err := resumeRepair(dir, s.logger); err != nil {
			return fmt.Errorf("resume the repair of %s: %w", dir, err)
		}
	}
	return nil
}

// checkCheckpoint returns an error if the last checkpoint of a log is damaged. A damaged
// checkpoint cannot be repaired: later records refer to series that are lost with it, and new
// series could get the references of lost ones.
func checkCheckpoint(dir string) (err error) {
	checkpoint, _, err := wlog.LastCheckpoint(dir)
	if errors.Is(err, record.ErrNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("checkpoints in %s: %w", dir, err)
	}
	segments, err := wlog.NewSegmentsReader(checkpoint)
	if err != nil {
		return fmt.Errorf("checkpoint %s: %w", checkpoint, err)
	}
	defer func() { err = errors.Join(err, segments.Close()) }()
	r := wlog.NewReader(segments)
	for r.Next() { // only for its error
	}
	if err := r.Err(); err != nil {
		return fmt.Errorf("checkpoint %s is damaged, and nothing was changed: restore %s from a backup, or move it away, "+
			"which loses the samples that are in no block yet: %w", checkpoint, dir, err)
	}
	return nil
}

// segmentsOf returns the numbers of the segments of a log, in ascending order.
func segmentsOf(dir string) (segments []int, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, entry := range entries { // ReadDir sorts names of eight digits by number
		if index, err := strconv.Atoi(entry.Name()); err == nil {
			segments = append(segments, index)
		}
	}
	return segments, nil
}

// closeGap renames the segments behind a gap: it appends asideSuffix. They cannot be replayed
// without the missing segments, and the interrupted repair would have removed them too.
func closeGap(dir string, logger *slog.Logger) (found bool, err error) {
	segments, err := segmentsOf(dir)
	if err != nil {
		return false, err
	}
	gap := 0
	for i := 1; i < len(segments) && gap == 0; i++ {
		if segments[i] != segments[i-1]+1 {
			gap = i
		}
	}
	if gap == 0 {
		return false, nil
	}
	logger.Error("Samples are lost unless they are in a block: segments of the write-ahead log are missing, as after "+
		"an interrupted repair, and the segments after the gap are set aside",
		"dir", dir, "gap_after", segments[gap-1], "aside", len(segments)-gap, "suffix", asideSuffix)
	for _, index := range slices.Backward(segments[gap:]) { // last first: if this is interrupted, the gap is found again
		name := wlog.SegmentName(dir, index)
		if err := os.Rename(name, name+asideSuffix); err != nil {
			return true, err
		}
	}
	return true, nil
}

// asideBytes returns the size of the segments that are kept, but not read.
func (s *Store) asideBytes() (bytes int64) {
	for _, dir := range s.logDirs() {
		entries, _ := os.ReadDir(dir) // the log of out-of-order samples may be missing
		for _, entry := range entries {
			if suffix := filepath.Ext(entry.Name()); suffix != asideSuffix && suffix != repairSuffix {
				continue
			}
			if info, err := entry.Info(); err == nil {
				bytes += info.Size()
			}
		}
	}
	return bytes
}

// resumeRepair reverts interrupted repairs of segments in one log: it replaces the incomplete copy
// of a damaged segment by the damaged segment itself. It does not if records were written after the
// repair was interrupted: these records may use, for other series, the references of series that
// only the damaged segment has.
func resumeRepair(dir string, logger *slog.Logger) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	_, checkpoint, err := wlog.LastCheckpoint(dir)
	if err != nil {
		checkpoint = -1 // none
	}
	segments, err := segmentsOf(dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		name, ok := strings.CutSuffix(entry.Name(), repairSuffix)
		index, err := strconv.Atoi(name)
		if !ok || err != nil {
			continue
		}
		aside := filepath.Join(dir, entry.Name())
		continued, err := hasLaterRecords(dir, segments, index)
		if err == nil && !continued {
			continued, err = differs(filepath.Join(dir, name), aside)
		}
		if err != nil {
			return err
		}
		if continued || index <= checkpoint {
			logger.Error("Samples are lost unless they are in a block: a repair of the write-ahead log was not completed, "+
				"and later segments were written without this segment", "segment", aside)
			continue
		}
		logger.Warn("Restarting an interrupted repair of the write-ahead log", "segment", aside)
		for _, later := range slices.Backward(segments) {
			if later > index {
				if err := os.Remove(wlog.SegmentName(dir, later)); err != nil {
					return err
				}
			}
		}
		if err := fileutil.Replace(aside, filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

// hasLaterRecords reports whether a segment with a number above index has records.
func hasLaterRecords(dir string, segments []int, index int) (bool, error) {
	for _, later := range segments {
		if later <= index {
			continue
		}
		if info, err := os.Stat(wlog.SegmentName(dir, later)); err != nil || info.Size() > 0 {
			return true, err
		}
	}
	return false, nil
}

// differs compares the records of two files: segment, to which an interrupted repair was copying
// records, and of, the damaged segment from which it copied. It reports whether any record in
// segment differs from the record at the same position in the damaged segment. If so, a program
// that does not resume repairs has written to segment. A missing segment does not differ.
func differs(segment, of string) (bool, error) {
	copied, err := os.Open(segment)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	//lint:ignore errcheck the file is only read
	defer copied.Close()
	whole, err := os.Open(of)
	if err != nil {
		return false, err
	}
	//lint:ignore errcheck the file is only read
	defer whole.Close()
	a, b := wlog.NewReader(bufio.NewReader(copied)), wlog.NewReader(bufio.NewReader(whole))
	for a.Next() { // an unfinished copy may end in half a record
		if !b.Next() || !bytes.Equal(a.Record(), b.Record()) {
			return true, nil
		}
	}
	return false, nil
}
