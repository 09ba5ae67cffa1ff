// Package store stores profiles on one disk, in a directory for each tenant.
//
//	<dir>/profiles/<tenant>/wal/00000001    pushes that are not in a block yet
//	<dir>/profiles/<tenant>/<ulid>/         a block: index, profiles.parquet
//	<dir>/profiles/.aged                    see agedName
//
// A push is a []profiles.RawProfile. Append decodes a push, joins concurrent pushes into one
// write to the log, and returns once the push is synced and in the head. A big or old head is
// written as a block, and then its segments of the log are removed. Blocks are compacted into
// larger blocks, and old blocks are removed. Readers open a View, a snapshot of head and blocks. A
// reader scans rows into Accumulators, or reads a source's samples. An Accumulator stores the
// position of its exemplar, so that IDs and labels are looked up for exemplars only.
//
// A Remote has further blocks. A view opens the remote blocks of its time range that are
// neither on disk nor replaced by another block.
//
// A profile is identified by ID and timestamp. Its rows are stored once for each series. If a
// head or block has rows of a profile when further rows arrive, the profile is recorded as
// shared, because a scan does not see all its rows next to each other. HTTP, selectors and
// flame graphs are in other packages.
package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/singleflight"

	"github.com/ferula-io/ferula/internal/files"
	"github.com/ferula-io/ferula/internal/hint"
	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/block"
	"github.com/ferula-io/ferula/internal/profiles/pprof"
	"github.com/ferula-io/ferula/internal/series/labelenc"
	instruments "github.com/ferula-io/ferula/metrics"
)

// Options of a Store. Zero values are replaced by defaults.
type Options struct {
	Dir            string        // data directory; profiles are in Dir/profiles
	Retention      time.Duration // retention time; 0: 15 days; negative: no limit
	RetentionBytes int64         // retention size of each tenant's blocks; 0: no limit
	HeadBytes      int           // size at which a head is written as a block; 0: 64 MiB
	HeadsBytes     int64         // memory limit of the heads of all tenants, beyond which pushes are refused; 0: 512 MiB
	MemoryBytes    int64         // memory limit of heads, queries and decoded symbols together; 0: twice HeadsBytes
	HeadAge        time.Duration // age at which a head is written as a block; 0: 15 minutes
	BlockBytes     int64         // maximum size of compacted blocks; 0: 256 MiB
	// maximum time range of compacted blocks; 0: a tenth of Retention, at least four times HeadAge, at most a day
	blockSpan  time.Duration
	TenantsMax int  // limit of tenants; 0: 1,000
	NoLock     bool // do not lock the directory, for file systems without locks
	// pushes are refused while the disk has less free space; at most a tenth of the disk; 0: no check
	FreeBytesMin int64
	pendingBytes int          // limit of a tenant's queued pushes in bytes; 0: 64 MiB
	Flags        hint.Flags   // flags that raise the limits, named in errors
	DropLabels   []string     // names of labels of samples that are not stored
	Limits       pprof.Limits // for pushed profiles that are not decoded yet; replay applies Depth only

	Remote        Remote        // further blocks; nil: none
	RemoteEvery   time.Duration // interval of listing the remote blocks; 0: 2 minutes
	remoteOpenMax int           // limit of open remote blocks, and of remote blocks in one view; 0: 4,096
	// memory limit of cached indexes of remote blocks; one index is always cached; 0: 128 MiB
	RemoteIndexBytes int64

	// age beyond which remote blocks are expired: not queried, and deleted; not shorter than Retention; 0: no limit
	RemoteRetention   time.Duration
	RemoteDeleteDelay time.Duration // pause before replaced and expired remote blocks are deleted; 0: 2 hours
}

func (o Options) withDefaults() Options {
	o.Retention = cmp.Or(o.Retention, 15*24*time.Hour)
	o.HeadBytes = cmp.Or(o.HeadBytes, 64<<20)
	o.HeadsBytes = cmp.Or(o.HeadsBytes, 512<<20)
	o.MemoryBytes = cmp.Or(o.MemoryBytes, 2*o.HeadsBytes)
	o.HeadAge = cmp.Or(o.HeadAge, 15*time.Minute)
	o.BlockBytes = cmp.Or(o.BlockBytes, 256<<20)
	o.TenantsMax = cmp.Or(o.TenantsMax, 1000)
	if o.blockSpan == 0 {
		if o.blockSpan = 24 * time.Hour; o.Retention > 0 {
			o.blockSpan = min(o.blockSpan, max(o.Retention/10, fanout*o.HeadAge))
		}
	}
	o.RemoteDeleteDelay = cmp.Or(o.RemoteDeleteDelay, 2*time.Hour)
	o.pendingBytes = cmp.Or(o.pendingBytes, 64<<20)
	o.RemoteEvery = cmp.Or(o.RemoteEvery, 2*time.Minute)
	o.remoteOpenMax = cmp.Or(o.remoteOpenMax, 4096)
	o.RemoteIndexBytes = cmp.Or(o.RemoteIndexBytes, 128<<20)
	o.Limits = o.Limits.WithDefaults()
	return o
}

// Validate returns all errors of the options.
func (o Options) Validate() error {
	var errs []error
	if o.Dir == "" {
		errs = append(errs, errors.New("no directory for profiles"))
	}
	for name, v := range map[string]int64{
		"retention size": o.RetentionBytes, "head size": int64(o.HeadBytes), "heads size": o.HeadsBytes,
		"memory": o.MemoryBytes, "head age": int64(o.HeadAge), "block size": o.BlockBytes,
		"tenants limit": int64(o.TenantsMax), "bucket list interval": int64(o.RemoteEvery),
		"bucket index size": o.RemoteIndexBytes, "bucket retention time": int64(o.RemoteRetention),
		"bucket deletion delay": int64(o.RemoteDeleteDelay),
	} {
		if v < 0 {
			errs = append(errs, fmt.Errorf("%s %d is negative", name, v))
		}
	}
	if disk := o.withDefaults().Retention; o.RemoteRetention > 0 && (disk < 0 || disk > o.RemoteRetention) {
		errs = append(errs, hint.Invalid("profiles.bucket-retention",
			fmt.Errorf("%s is less than the retention time of the disk", o.RemoteRetention)))
	}
	return errors.Join(errs...)
}

// Store has the profiles of all tenants. It is safe for concurrent use. Until Open has
// returned, pushes and queries return ErrUnavailable.
type Store struct {
	opts   Options
	logger *slog.Logger

	diskFailed atomic.Int64 // time in ns of the last push that failed with an error of the disk

	metrics *metrics
	now     func() time.Time
	memory  memory
	frames  sync.Pool       // *[]byte: batch.frames
	drop    map[string]bool // Options.DropLabels

	// Replaced by tests.
	fs        files.FS
	openBlock func(path string) (*block.Reader, error)
	every     time.Duration        // interval of the maintenance of heads and blocks
	openWait  time.Duration        // limit of how long Open waits for several tenants
	uptime    func() time.Duration // since Open; setting the clock does not change it
	booted    func() (boot string, sinceMS int64)

	openedAt    time.Time // when Open was called
	agedMu      sync.Mutex
	agedFrom    int64 // see aged; in ms; 0: there was no block yet
	agedResumed bool  // agedFrom continues the time of an earlier process
	agedNew     bool  // agedFrom is the time of a block that is not older than Open

	// mu is not held while files are read or written: all tenants need it.
	mu       sync.RWMutex
	tenants  map[string]*tenant
	failed   map[string]*failedTenant // tenants that could not be opened, or are not opened yet
	replayed chan struct{}            // closed when every tenant has been opened or has failed
	creating int                      // tenants that are being created
	opened   bool
	closed   bool
	locked   io.Closer // nil: not locked
	decoders sync.Pool // *pprof.Profile
	remotes  *remotes  // nil: no Remote
	stop     chan struct{}
	running  sync.WaitGroup
	changing singleflight.Group // by tenant: its directory is being created or removed
}

// New returns a store; Open opens its files. Its metrics are registered in set, which may
// be nil.
func New(opts Options, logger *slog.Logger, set *instruments.Set) (*Store, error) {
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	s := &Store{
		opts: opts.withDefaults(), logger: logger, metrics: newMetrics(set), now: time.Now, fs: files.Disk{},
		openBlock: block.Open, every: maintainEvery, openWait: 10 * time.Second, booted: bootClock,
		tenants: map[string]*tenant{}, failed: map[string]*failedTenant{}, drop: map[string]bool{},
		replayed: make(chan struct{}), stop: make(chan struct{}),
	}
	s.uptime = func() time.Duration { return s.now().Sub(s.openedAt) }
	for _, name := range opts.DropLabels {
		s.drop[name] = true
	}
	s.memory.max = s.opts.MemoryBytes
	s.metrics.memory(set, s)
	s.memory.headsMax, s.memory.wake = s.opts.HeadsBytes, make(chan struct{}, 1)
	if opts.Remote != nil {
		s.remotes = newRemotes(s)
	}
	return s, nil
}

func (s *Store) newHead() *head { return newHead(s.drop) }

func (s *Store) root() string { return filepath.Join(s.opts.Dir, "profiles") }

// Open opens the blocks and replays the logs of all tenants. A tenant that cannot be opened is unavailable until a retry
// succeeds; the others are not affected. Nor are they by a tenant that takes long: after openWait, Open returns and the
// tenants that are still being replayed are unavailable. If there is only one, nobody else waits, and Open does.
func (s *Store) Open() error {
	if !s.begin() {
		return errClosed
	}
	defer s.running.Done()
	s.openedAt = s.now()
	for _, dir := range []string{s.opts.Dir, s.root()} {
		if err := makeDirs(s.fs, dir); err != nil {
			return fmt.Errorf("profiles: %w", err)
		}
	}
	if err := s.fs.SyncDir(s.root()); err != nil {
		return fmt.Errorf("profiles: %w", err)
	}
	if !s.opts.NoLock {
		// Another process would delete log segments whose profiles only this process has in memory.
		lock, err := files.LockDir(s.root())
		if err != nil {
			return fmt.Errorf("profiles: %w", err)
		}
		s.mu.Lock()
		s.locked = lock
		s.mu.Unlock()
	}
	s.resumeAged()
	entries, err := os.ReadDir(s.root())
	if err != nil {
		return fmt.Errorf("profiles: %w", err)
	}
	var names []string
	for _, e := range entries {
		name, ok := profiles.TenantOfDir(e.Name())
		if !e.IsDir() || !ok {
			continue
		}
		names = append(names, name)
	}
	s.mu.Lock()
	for _, name := range names {
		s.failed[name] = newFailedTenant(errReplaying)
	}
	s.mu.Unlock()
	s.running.Go(func() {
		s.reopen(true)
		close(s.replayed)
	})
	s.running.Go(s.retryFailed)
	var late <-chan time.Time
	if len(names) > 1 {
		late = time.After(s.openWait)
	}
	select {
	case <-s.replayed:
	case <-late:
		s.logger.Warn("Some tenants are still being replayed; requests for their profiles fail until then")
	case <-s.stop:
		return errClosed
	}
	s.mu.Lock()
	s.opened = true
	s.mu.Unlock()
	ctx, cancel := context.WithCancel(context.Background())
	s.running.Go(func() {
		<-s.stop
		cancel()
	})
	s.running.Go(func() { s.maintain(ctx) })
	if s.remotes != nil {
		s.running.Go(func() { s.remotes.run(ctx) })
	}
	return nil
}

// begin makes Close wait for running.Done. It reports false if the store is closed.
func (s *Store) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.running.Add(1)
	}
	return !s.closed
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// makeDirs creates a directory and its missing parents.
func makeDirs(fs files.FS, path string) error {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return nil
	}
	if parent := filepath.Dir(path); parent != path {
		if err := makeDirs(fs, parent); err != nil {
			return err
		}
	}
	return files.MakeDir(fs, path)
}

// failedTenant is a tenant that could not be opened, or is not opened yet.
type failedTenant struct {
	err   error
	retry retry
}

var errReplaying = errors.New("its write-ahead log is being replayed")

func newFailedTenant(err error) *failedTenant {
	return &failedTenant{err: err, retry: retry{min: 10 * time.Second, max: 5 * time.Minute}}
}

// retry schedules retries of a failed operation with exponential backoff.
type retry struct {
	min, max time.Duration

	mu   sync.Mutex
	wait time.Duration
	at   time.Time
}

func (r *retry) due(now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.wait == 0 || !now.Before(r.at)
}

// result records the outcome of an attempt.
func (r *retry) result(now time.Time, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil {
		r.wait = 0
		return
	}
	r.wait = min(max(2*r.wait, r.min), r.max)
	r.at = now.Add(r.wait)
}

// openTenant opens a tenant. known means that its directory exists.
func (s *Store) openTenant(name string, known bool) (*tenant, error) {
	t, err := s.readTenant(name, known)
	s.mu.Lock()
	defer s.mu.Unlock()
	if !known {
		s.creating--
	}
	switch {
	case err == nil && s.closed:
		return nil, errors.Join(errClosed, t.close(errClosed))
	case err == nil:
		s.tenants[name] = t
		delete(s.failed, name)
		return t, nil
	case known:
		failed := s.failed[name]
		if failed == nil {
			failed = newFailedTenant(err)
			s.failed[name] = failed
		}
		failed.err = err
		failed.retry.result(s.now(), err)
	}
	return nil, err
}

// retryFailed retries to open failed tenants. A replay may take long, so maintain does not wait for it.
func (s *Store) retryFailed() {
	tick := time.NewTicker(s.every)
	defer tick.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-tick.C:
			s.reopen(false)
		}
	}
}

// replaysMax limits how many tenants are opened at the same time: one that takes long holds up no other.
const replaysMax = 4

// reopen opens the tenants that no call has opened yet, or the failed tenants that are due.
func (s *Store) reopen(first bool) {
	s.mu.RLock()
	var due []string
	for name, failed := range s.failed {
		if errors.Is(failed.err, errReplaying) == first && failed.retry.due(s.now()) {
			due = append(due, name)
		}
	}
	s.mu.RUnlock()
	var opening errgroup.Group
	opening.SetLimit(replaysMax)
	for _, name := range due {
		opening.Go(func() error {
			switch _, err := s.openTenant(name, true); {
			case errors.Is(err, errClosed):
			case err != nil:
				s.metrics.tenantsFailed.Inc()
				s.logger.Error("Opening the profiles of a tenant failed; retrying later", "tenant", name, "err", err)
			case !first:
				s.logger.Info("Opened the profiles of a tenant", "tenant", name)
			}
			return nil
		})
	}
	_ = opening.Wait() // no function returns an error
}

// Tenants returns the names of the tenants, sorted. They include tenants that could not be
// opened, or are not opened yet.
func (s *Store) Tenants() []string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	names := slices.AppendSeq(slices.Collect(maps.Keys(s.tenants)), maps.Keys(s.failed))
	slices.Sort(names)
	return names
}

func (s *Store) list() []*tenant {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return slices.Collect(maps.Values(s.tenants))
}

// tenant returns a tenant. If the tenant does not exist, it is created if make is set;
// otherwise the result is nil.
func (s *Store) tenant(name string, make bool) (*tenant, error) {
	if err := profiles.CheckTenant(name); err != nil {
		return nil, err
	}
	var failure error
	s.mu.RLock()
	t, opened, closed := s.tenants[name], s.opened, s.closed
	if failed := s.failed[name]; failed != nil {
		failure = failed.err
	}
	s.mu.RUnlock()
	switch {
	case !opened:
		return nil, fmt.Errorf("%w: the write-ahead log is being replayed", profiles.ErrUnavailable)
	case closed:
		return nil, errClosed
	case errors.Is(failure, errReplaying):
		return nil, fmt.Errorf("%w: tenant %s: %w", profiles.ErrUnavailable, name, failure)
	case failure != nil:
		return nil, fmt.Errorf("%w: tenant %s cannot be opened: %w", profiles.ErrUnavailable, name, reasonOf(failure))
	case t != nil || !make:
		return t, nil
	}
	created, err, _ := s.changing.Do(name, func() (any, error) { return s.create(name) })
	if err != nil {
		return nil, err
	}
	return created.(*tenant), nil
}

// create creates a tenant, unless another call has created it.
func (s *Store) create(name string) (*tenant, error) {
	s.mu.Lock()
	t, n, closed := s.tenants[name], len(s.tenants)+len(s.failed)+s.creating, s.closed
	create := t == nil && !closed && n < s.opts.TenantsMax
	if create {
		s.creating++
		s.running.Add(1)
	}
	s.mu.Unlock()
	switch {
	case t != nil:
		return t, nil
	case closed:
		return nil, errClosed
	case !create:
		return nil, fmt.Errorf("%w: limit of %d tenants reached: there are %d%s", profiles.ErrLimit, s.opts.TenantsMax,
			n, s.opts.Flags.Of("TenantsMax"))
	}
	defer s.running.Done()
	t, err := s.openTenant(name, false)
	if err != nil {
		return nil, fmt.Errorf("profiles of tenant %s: %w", name, err)
	}
	return t, nil
}

var errClosed = fmt.Errorf("%w: the store is closed", profiles.ErrUnavailable)

// Append stores a push and returns once the push is synced. It stores all profiles of the push;
// after an error it has stored none. There is one exception: if the log cannot be written and then
// cannot be truncated, the next replay may find the push. Append borrows pushed until it returns,
// and fills in missing IDs and timestamps.
func (s *Store) Append(ctx context.Context, tenant string, pushed []profiles.RawProfile) error {
	if err := s.checkSpace(); err != nil {
		return err
	}
	return s.withoutPaths(tenant, s.appendAll(ctx, tenant, pushed))
}

// reserveShare limits the reserve on a small disk to a tenth of it.
const reserveShare = 10

// checkSpace returns an error while the disk has too little free space for pushes. The
// remaining space is reserved for samples: on a disk that profiles have filled, the TSDB would
// reject them.
func (s *Store) checkSpace() error {
	if s.opts.FreeBytesMin <= 0 {
		return nil
	}
	free, total, err := files.Space(s.opts.Dir)
	if err != nil {
		return nil // the write itself returns the error of the directory
	}
	if reserve := min(s.opts.FreeBytesMin, total/reserveShare); free < reserve {
		return fmt.Errorf("%w: a push cannot be written to the disk: %w: %d bytes are free, %d are reserved for samples%s",
			profiles.ErrUnavailable, syscall.ENOSPC, free, reserve, s.opts.Flags.Of("FreeBytesMin"))
	}
	return nil
}

// withoutPaths converts an error of the disk, such as ENOSPC, to ErrUnavailable with the
// reason, so that the client sends the push again. The path of the file appears only in the
// log.
func (s *Store) withoutPaths(tenant string, err error) error {
	var reason syscall.Errno
	if errors.Is(err, profiles.ErrUnavailable) || !errors.As(err, &reason) {
		return err
	}
	if now := s.now().UnixNano(); now-s.diskFailed.Swap(now) > int64(time.Second) {
		s.logger.Error("Storing profiles failed", "tenant", tenant, "err", err)
	}
	return fmt.Errorf("%w: a push cannot be written to the disk: %w", profiles.ErrUnavailable, reason)
}

// reasonOf returns the reason of an error of the disk without the path of its file.
func reasonOf(err error) error {
	if reason := syscall.Errno(0); errors.As(err, &reason) {
		return reason
	}
	return err
}

func (s *Store) appendAll(ctx context.Context, tenant string, pushed []profiles.RawProfile) error {
	if _, err := s.tenant(tenant, false); err != nil || len(pushed) == 0 {
		return err
	}
	var lent []*pprof.Profile
	defer func() {
		for i := range lent {
			s.decoders.Put(lent[i])
		}
	}()
	for i := range pushed {
		p := &pushed[i]
		if err := labelenc.Validate(p.Labels); err != nil {
			return fmt.Errorf("%w: profile %d: %w", profiles.ErrBadRequest, i, err)
		}
		if len(labelenc.Value(p.Labels, profiles.LabelName)) == 0 {
			return fmt.Errorf("%w: profile %d has no label %s", profiles.ErrBadRequest, i, profiles.LabelName)
		}
		if p.Profile == nil {
			decoder := s.decoder()
			lent = append(lent, decoder)
			if err := decoder.Decode(p.Raw, s.opts.Limits); err != nil {
				return fmt.Errorf("profile %d: %w", i, err)
			}
			p.Profile = decoder
			defer func() { p.Profile = nil }()
		}
		if err := complete(p, i, s.now()); err != nil {
			return err
		}
	}
	need := costOf(pushed...)
	if !s.memory.take(need) {
		s.metrics.overMemory.Inc()
		return s.memoryError(need)
	}
	defer s.memory.heads.Add(-need)
	for {
		t, err := s.tenant(tenant, true)
		if err == nil {
			err = t.append(ctx, pushed)
		}
		if !errors.Is(err, errForgotten) {
			return err
		}
	}
}

// timeMax is the year 2200: later timestamps have a wrong unit.
const timeMax = 7_258_118_400_000_000_000

func complete(p *profiles.RawProfile, i int, now time.Time) error {
	if p.TimeNS == 0 {
		p.TimeNS = p.Profile.TimeNS
	}
	if p.TimeNS == 0 {
		p.TimeNS = now.UnixNano()
	}
	if p.TimeNS < 0 || p.TimeNS > timeMax {
		return fmt.Errorf("%w: profile %d has the time %d ns", profiles.ErrBadRequest, i, p.TimeNS)
	}
	if p.ID == (profiles.ID{}) {
		p.ID = profiles.NewID(p.TimeNS / 1e6)
	}
	return nil
}

func (s *Store) decoder() *pprof.Profile {
	if p, ok := s.decoders.Get().(*pprof.Profile); ok {
		return p
	}
	return &pprof.Profile{}
}

// Close waits for accepted pushes and closes the store. The head stays in the log.
func (s *Store) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	close(s.stop)
	s.mu.Unlock()
	s.running.Wait()
	var errs []error
	for _, t := range s.tenants {
		errs = append(errs, t.close(errClosed))
	}
	if s.locked != nil {
		errs = append(errs, s.locked.Close())
	}
	return errors.Join(errs...)
}
