package tsdb

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/tsdb/fileutil"
	"github.com/prometheus/prometheus/tsdb/wlog"
)

const (
	// repairSuffix is the end of the name of a segment that Prometheus' repair is copying.
	repairSuffix = ".repair"
	// logRepairs counts the logs that were found damaged while the database opened.
	logRepairs = `"prometheus_tsdb_wal_corruptions_total"`
)

// openDatabase opens the database, and once more if a damaged log was repaired: the first
// replay ends at the damage, and does not read the log of late samples behind it.
func (s *Store) openDatabase(opts *tsdb.Options) (*tsdb.DB, error) {
	const tries = 3 // the log, the log of late samples, and both as they are now
	for try := 1; ; try++ {
		if err := s.resumeRepairs(); err != nil {
			return nil, err
		}
		reg := s.guard.registerer(s.reg)
		db, err := tsdb.Open(s.opts.Dir, s.logger, reg, opts, s.stats)
		if err != nil {
			return nil, err
		}
		if try == tries || !reg.counted(logRepairs) {
			reg.add(logRepairs, try-1)
			return db, nil
		}
		s.logger.Warn("The write-ahead log was repaired and is replayed again", "dir", s.opts.Dir)
		if err := db.Close(); err != nil {
			return nil, fmt.Errorf("close after the repair of the log: %w", err)
		}
		reg.unregisterAll()
	}
}

// resumeRepairs undoes what an interrupted repair of a log has left. Prometheus renames the
// damaged segment, copies its records to a new one and removes the old. If the disk fills
// up or the process ends in between, the next start would read the unfinished copy only.
func (s *Store) resumeRepairs() error {
	var logs []string
	for _, log := range []string{"wal", wlog.WblDirName} {
		found, err := filepath.Glob(filepath.Join(s.opts.Dir, log, "*"+repairSuffix))
		if err != nil {
			return err
		}
		if len(found) > 0 {
			logs = append(logs, log)
		}
	}
	if len(logs) == 0 {
		return nil
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
	for _, log := range logs {
		if err := resumeRepair(filepath.Join(s.opts.Dir, log), s.logger); err != nil {
			return fmt.Errorf("resume the repair of %s: %w", log, err)
		}
	}
	return nil
}

// resumeRepair puts the damaged segments of one log back in the place of their unfinished
// copies. A segment stays aside if the log went on without it: series of later records may
// have the references of series that only the segment has.
func resumeRepair(dir string, logger *slog.Logger) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	_, checkpoint, err := wlog.LastCheckpoint(dir)
	if err != nil {
		checkpoint = -1 // none
	}
	var segments []int // in ascending order, as ReadDir sorts names of eight digits
	for _, entry := range entries {
		if index, err := strconv.Atoi(entry.Name()); err == nil {
			segments = append(segments, index)
		}
	}
	for _, entry := range entries {
		name, ok := strings.CutSuffix(entry.Name(), repairSuffix)
		index, err := strconv.Atoi(name)
		if !ok || err != nil {
			continue
		}
		aside := filepath.Join(dir, entry.Name())
		went, err := wentOn(dir, segments, index)
		if err != nil {
			return err
		}
		if went || index <= checkpoint {
			logger.Error("A repair of the log was not completed, and the log went on without this segment. Its samples are lost unless they are in a block", "segment", aside)
			continue
		}
		logger.Warn("A repair of the log was not completed: it starts again", "segment", aside)
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

// wentOn reports whether a segment behind the given one has records.
func wentOn(dir string, segments []int, index int) (bool, error) {
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

// counted reports whether the counter whose description contains text is above 0.
func (r *watchedRegisterer) counted(text string) bool {
	for _, c := range r.registered {
		if described(c, text) && aboveZero(c) {
			return true
		}
	}
	return false
}

// add adds n to the counter whose description contains text.
func (r *watchedRegisterer) add(text string, n int) {
	for _, c := range r.registered {
		if counter, ok := c.(prometheus.Counter); ok && n > 0 && described(c, text) {
			counter.Add(float64(n))
		}
	}
}

// unregisterAll unregisters everything that was registered through r.
func (r *watchedRegisterer) unregisterAll() {
	for _, c := range r.registered {
		r.Unregister(c)
	}
	r.registered = nil
	r.guard.forget()
}

// described reports whether a description of c contains text.
func described(c prometheus.Collector, text string) (found bool) {
	descs := make(chan *prometheus.Desc, 64)
	go func() {
		c.Describe(descs)
		close(descs)
	}()
	for desc := range descs {
		found = found || strings.Contains(desc.String(), text)
	}
	return found
}
