package tsdb

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/model/exemplar"
	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/metadata"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/tsdb/fileutil"

	"github.com/ferula-io/ferula/internal/files"
)

// The errors of a store that refuses samples. Their texts contain no path of the server.
var (
	// ErrNoSpace: the disk is nearly full. Samples are accepted again once it has space.
	ErrNoSpace = errors.New("no space left on the disk of the TSDB")
	// ErrLogFailed: a write to the write-ahead log failed, and the log may end in an
	// incomplete record. The next start drops all records after that one, so samples are
	// refused until then.
	ErrLogFailed = errors.New(
		"a write to the write-ahead log of the TSDB failed: samples are rejected until a restart, which repairs the log")
)

const (
	// reserveShare limits the reserved space: at most a twentieth of a disk is kept free.
	reserveShare = 20
	// seriesBytes is the space that the next block and the next checkpoint of the log need for a series, besides the
	// chunks that the head has on the disk: its chunk in memory, its labels and its postings.
	seriesBytes = 512
	// neededFor is how long an estimate of the space for the next block is kept.
	neededFor = 10 * time.Second
	// startShare is the part of the reserve without which the database is not opened: see AwaitSpace.
	startShare = 4
)

// writeGuard refuses samples that the write-ahead log could not keep.
//
// After a failed write, for example to a full disk, Prometheus' log has an incomplete record,
// or lacks the labels of series that the head has. Prometheus acknowledges later records, but
// the replay at the next start drops them. So a writeGuard refuses samples before the disk is
// full. If a write fails nevertheless, it refuses all samples until a restart.
type writeGuard struct {
	dir     string
	reserve int64 // bytes that stay free; 0: what the next block needs, at least 256 MiB; negative: none
	head    func() *tsdb.Head
	free    func(dir string) (free, total int64, err error)
	broken  atomic.Bool
	plenty  atomic.Int64 // time in Unix ns until which the free space is not checked again
	needs   atomic.Pointer[estimate]

	mu       sync.Mutex
	failures []prometheus.Metric // counters of failed log writes
}

func newWriteGuard(dir string, reserve int64, head func() *tsdb.Head) *writeGuard {
	return &writeGuard{dir: dir, reserve: reserve, head: head, free: files.Space}
}

// estimate is the space that the next block of the head needs.
type estimate struct {
	bytes int64
	made  time.Time
}

// reserved returns the space that stays free on a disk of total bytes. Without space for the next block, the head is
// never truncated, and its log grows until somebody deletes files.
func (g *writeGuard) reserved(total int64) int64 {
	reserve := g.reserve
	if reserve == 0 {
		reserve = max(defaultFreeBytesMin, g.needed())
	}
	return min(reserve, total/reserveShare)
}

// needed returns the space that the next block of the head needs. Most of its chunks are on the disk already.
func (g *writeGuard) needed() int64 {
	if known := g.needs.Load(); known != nil && time.Since(known.made) < neededFor {
		return known.bytes
	}
	bytes, err := fileutil.DirSize(filepath.Join(g.dir, "chunks_head"))
	if err != nil {
		bytes = 0 // there is no head yet, or a file was deleted meanwhile
	}
	if h := g.head(); h != nil {
		bytes += int64(h.NumSeries()) * seriesBytes
	}
	g.needs.Store(&estimate{bytes, time.Now()})
	return bytes
}

// A disk with plentyBytes of free space above the reserve is not checked again for plentyFor:
// nothing writes that much in this time. Without this rule each scrape would cost a system call.
const (
	plentyBytes = 4 << 30
	plentyFor   = time.Second
)

// refusal returns the reason to refuse samples, nil if there is none.
func (g *writeGuard) refusal() error {
	if g.broken.Load() {
		return ErrLogFailed
	}
	if g.reserve < 0 {
		return nil
	}
	now := time.Now().UnixNano()
	if until := g.plenty.Load(); now < until && now > until-int64(plentyFor) {
		return nil
	}
	spare, err := g.spare()
	if spare >= plentyBytes {
		g.plenty.Store(now + int64(plentyFor))
	}
	return err
}

// spare returns the free space above the reserve; an ErrNoSpace if it is negative. Without a check it is without limit.
func (g *writeGuard) spare() (bytes int64, err error) {
	free, total, err := g.free(g.dir)
	if err != nil || g.reserve < 0 {
		return math.MaxInt64, nil // the write itself returns the error of the directory
	}
	reserve := g.reserved(total)
	if free < reserve {
		err = fmt.Errorf("%w: %d bytes are free, %d are reserved for the write-ahead log and compactions "+
			"(--storage.tsdb.min-free)", ErrNoSpace, free, reserve)
	}
	return free - reserve, err
}

// AwaitSpace waits until the disk has space for a replay of the write-ahead log, which may write chunks of the head. If
// it cannot, Prometheus' database ends the process with a panic, and would again at each start. A quarter of the space
// that is kept free suffices. So a store that refuses samples because the disk is nearly full can be opened. Without a
// check of the free space AwaitSpace returns at once.
func (s *Store) AwaitSpace(ctx context.Context) error {
	const every, logged = time.Second, 60 // the wait is logged once a minute
	for i := 0; ; i++ {
		free, total, err := s.guard.free(s.opts.Dir)
		if err != nil || s.guard.reserve < 0 {
			return nil // Open returns the error of the directory
		}
		need := s.guard.reserved(total) / startShare
		if free >= need {
			return nil
		}
		if i%logged == 0 {
			s.logger.Error("The start waits for free space on the disk: the replay of the write-ahead log needs it. "+
				"Nothing is lost, and the start goes on once there is space", "dir", s.opts.Dir, "free", free, "needed", need)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(every):
		}
	}
}

// checkLog is called after each write to the log, with its error err. It returns ErrLogFailed
// joined with err, if this write or an earlier one failed, and err otherwise.
func (g *writeGuard) checkLog(err error) error {
	if !g.broken.Load() && g.failed() {
		g.broken.Store(true)
	}
	if g.broken.Load() {
		return errors.Join(ErrLogFailed, err)
	}
	return err
}

// failed reports whether a write to one of the logs has failed. The counters change before
// any later write can succeed.
func (g *writeGuard) failed() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.ContainsFunc(g.failures, aboveZero)
}

// forget forgets the counters of a database that is closed.
func (g *writeGuard) forget() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.failures = nil
}

// guardedAppender is an appender whose Commit fails if the log failed.
type guardedAppender struct {
	storage.Appender
	guard     *writeGuard
	gate      *lateGate
	exemplars *exemplarRing
}

// AppendExemplar implements storage.Appender.
func (a guardedAppender) AppendExemplar(ref storage.SeriesRef, l labels.Labels,
	e exemplar.Exemplar) (storage.SeriesRef, error) {
	a.exemplars.grow()
	return a.Appender.AppendExemplar(ref, l, e)
}

// Commit implements storage.Appender.
func (a guardedAppender) Commit() error {
	return a.guard.checkLog(a.gate.commit(a.Appender.Commit))
}

// Rollback implements storage.Appender. It writes the labels of new series to the log.
func (a guardedAppender) Rollback() error { return a.guard.checkLog(a.Appender.Rollback()) }

type guardedAppenderV2 struct {
	storage.AppenderV2
	guard     *writeGuard
	gate      *lateGate
	exemplars *exemplarRing
}

// Append implements storage.AppenderV2.
func (a guardedAppenderV2) Append(ref storage.SeriesRef, l labels.Labels, startMS, tsMS int64, v float64,
	h *histogram.Histogram, fh *histogram.FloatHistogram, opts storage.AOptions) (storage.SeriesRef, error) {
	if len(opts.Exemplars) > 0 {
		a.exemplars.grow()
	}
	return a.AppenderV2.Append(ref, l, startMS, tsMS, v, h, fh, opts)
}

// Commit implements storage.AppenderV2.
func (a guardedAppenderV2) Commit() error {
	return a.guard.checkLog(a.gate.commit(a.AppenderV2.Commit))
}

// Rollback implements storage.AppenderV2.
func (a guardedAppenderV2) Rollback() error { return a.guard.checkLog(a.AppenderV2.Rollback()) }

// notReady returns an error for every append, so that a writer retries until the log is
// replayed, or the disk has space.
type notReady struct{ err error }

var _ storage.Appender = notReady{}

func (notReady) SetOptions(*storage.AppendOptions) {}

func (n notReady) Append(storage.SeriesRef, labels.Labels, int64, float64) (storage.SeriesRef, error) {
	return 0, n.err
}

func (n notReady) AppendExemplar(storage.SeriesRef, labels.Labels, exemplar.Exemplar) (storage.SeriesRef, error) {
	return 0, n.err
}

func (n notReady) AppendHistogram(storage.SeriesRef, labels.Labels, int64, *histogram.Histogram,
	*histogram.FloatHistogram) (storage.SeriesRef, error) {
	return 0, n.err
}

func (n notReady) AppendHistogramSTZeroSample(storage.SeriesRef, labels.Labels, int64, int64, *histogram.Histogram,
	*histogram.FloatHistogram) (storage.SeriesRef, error) {
	return 0, n.err
}

func (n notReady) UpdateMetadata(storage.SeriesRef, labels.Labels, metadata.Metadata) (storage.SeriesRef, error) {
	return 0, n.err
}

func (n notReady) AppendSTZeroSample(storage.SeriesRef, labels.Labels, int64, int64) (storage.SeriesRef, error) {
	return 0, n.err
}

func (n notReady) Commit() error { return n.err }
func (notReady) Rollback() error { return nil }

// notReadyV2 is notReady for the second appender interface.
type notReadyV2 struct{ err error }

var _ storage.AppenderV2 = notReadyV2{}

func (n notReadyV2) Append(storage.SeriesRef, labels.Labels, int64, int64, float64, *histogram.Histogram,
	*histogram.FloatHistogram, storage.AOptions) (storage.SeriesRef, error) {
	return 0, n.err
}

func (n notReadyV2) Commit() error { return n.err }
func (notReadyV2) Rollback() error { return nil }
