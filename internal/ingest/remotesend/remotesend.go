// Package remotesend sends samples to the servers of the remote_write sections of
// prometheus.yml.
//
// Samples are appended to the local storage. For each section a queue reads the samples from the
// write-ahead log and passes them to a queue of Prometheus' storage/remote, which sends them. If a
// server is down, its queue stops reading the log once Prometheus' queue is full, and continues
// when the server is up again. Scrapes do not wait for a queue. Protocol, retries and shards are
// left to Prometheus' queues.
//
// A queue saves up to which position in the log all samples were sent or refused. After a restart
// or a crash it continues there.
package remotesend

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/scrape"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/storage/remote"
	"github.com/prometheus/prometheus/tsdb/wlog"
	"go.yaml.in/yaml/v2"

	"github.com/ferula-io/ferula/internal/files"
	"github.com/ferula-io/ferula/internal/process"
	"github.com/ferula-io/ferula/internal/redact"
	"github.com/ferula-io/ferula/internal/tsdb"
	"github.com/ferula-io/ferula/metrics"
)

// Options of a Sender. Zero values take the defaults.
type Options struct {
	// FlushDeadline limits how long Close waits for samples to be sent. A reload waits up to
	// FlushDeadline for each queue that it stops. 0: 1 minute; negative: no wait.
	FlushDeadline     time.Duration
	TypeAndUnitLabels bool // the storage has __type__ and __unit__ labels
	// NoSavepoints makes queues send only what is appended after the start, or after the reload that adds them.
	NoSavepoints bool
	saveEvery    time.Duration // 0: defaultSaveEvery

	// Scraper returns the scrape manager. Its metadata is sent with remote write 1.0.
	Scraper func() *scrape.Manager
}

const (
	defaultFlushDeadline = time.Minute
	// flushMin is the shortest flush deadline of Prometheus' queues. They also have it to change their number of
	// shards, and drop what they have not sent by then, so that it is sent again.
	flushMin = time.Second
	// logEvery is the minimum interval between two equal log lines of a queue.
	logEvery = time.Minute
	// readAllWait is how long Close waits for the queues to read the log to its end.
	readAllWait = 5 * time.Second
	// closeWait is how long Close may take beyond the flush deadline and the longest batch_send_deadline.
	closeWait = 5 * time.Second
)

// Sender sends samples that are appended through Samples. It is safe for concurrent use.
type Sender struct {
	opts    Options
	logger  *slog.Logger
	quiet   *slog.Logger // of the queues
	dir     string
	wal     string
	library *remote.WriteStorage // makes queues, and counts what is appended for them
	samples storage.Storage
	metrics *readMetrics

	live atomic.Pointer[map[string]*queue] // the queues, for Notify

	mu      sync.Mutex
	points  *savepoints // nil before the first configuration, and without savepoints
	queues  map[string]*queue
	applied *applied // nil if the last configuration was applied in part or not at all
	started bool     // a configuration was applied
	closed  bool
	stopped chan struct{} // closed once every queue has stopped; Close may return earlier
}

// applied is the part of a configuration that the queues are made from.
type applied struct {
	sections []*config.RemoteWriteConfig
	external labels.Labels
}

// New returns a sender without queues. Its queues read the write-ahead log of store, which must
// not be open yet. The caller closes the sender with Close.
func New(opts Options, store *tsdb.Store, logger *slog.Logger, reg prometheus.Registerer, own *metrics.Set) *Sender {
	opts.FlushDeadline = max(0, cmp.Or(opts.FlushDeadline, defaultFlushDeadline))
	dir := store.Options().Dir
	s := &Sender{opts: opts, logger: logger, dir: filepath.Join(dir, sectionsDir), wal: filepath.Join(dir, "wal"),
		quiet:   slog.New(process.ThinLog(redact.Handler{Handler: logger.Handler()}, 1, logEvery, time.Now)),
		metrics: newReadMetrics(own, reg), queues: map[string]*queue{}, stopped: make(chan struct{})}
	s.library = remote.NewWriteStorage(s.quiet, unwatched{reg}, filepath.Join(s.dir, idleDir),
		max(flushMin, opts.FlushDeadline), manager(opts.Scraper), opts.TypeAndUnitLabels)
	s.samples = storage.NewFanout(logger, store, secondary{s.library})
	s.live.Store(&map[string]*queue{})
	store.NotifyWrites(s)
	return s
}

// Notify implements wlog.WriteNotified. It does not wait, because every commit calls it.
func (s *Sender) Notify() {
	for _, q := range *s.live.Load() {
		q.notify()
	}
}

// manager is the interface by which the queues get the scrape manager.
type manager func() *scrape.Manager

// Get implements remote.ReadyScrapeManager.
func (m manager) Get() (*scrape.Manager, error) {
	if m != nil {
		if scraper := m(); scraper != nil {
			return scraper, nil
		}
	}
	return nil, errors.New("the scrape manager is not ready")
}

// secondary makes the queues a storage.Storage. Their appenders only count samples.
type secondary struct{ *remote.WriteStorage }

var _ storage.Storage = secondary{}

func (secondary) Querier(int64, int64) (storage.Querier, error) { return storage.NoopQuerier(), nil }

func (secondary) ChunkQuerier(int64, int64) (storage.ChunkQuerier, error) {
	return storage.NoopChunkedQuerier(), nil
}

func (secondary) StartTime() (int64, error) { return 1<<63 - 1, nil }

// Samples returns the local storage. Its appenders also pass the rate and the highest
// timestamp of the samples to the queues. From these figures a queue computes its number of
// shards. The caller must not close the storage.
func (s *Sender) Samples() storage.Storage { return s.samples }

// Check returns the first error of the remote_write sections of a configuration, such as an
// unreadable certificate. It changes nothing.
func Check(cfg *config.Config) error {
	known := map[string]bool{}
	for _, section := range cfg.RemoteWriteConfigs {
		// The queues identify a section by its YAML text. They would reject two equal sections
		// only after they have stopped some of the running queues.
		text, err := yaml.Marshal(section)
		if err != nil {
			return fmt.Errorf("remote_write: section for %s: %w", section.URL.Redacted(), err)
		}
		if known[string(text)] {
			return fmt.Errorf("remote_write: duplicate section for %s: give each section a name if they differ only in secrets",
				section.URL.Redacted())
		}
		known[string(text)] = true
		name := cmp.Or(section.Name, section.URL.Redacted())
		if _, err := remote.NewWriteClient(name, &remote.ClientConfig{
			URL: section.URL, WriteProtoMsg: section.ProtobufMessage, Timeout: section.RemoteTimeout,
			HTTPClientConfig: section.HTTPClientConfig, SigV4Config: section.SigV4Config, AzureADConfig: section.AzureADConfig,
			GoogleIAMConfig: section.GoogleIAMConfig, Headers: section.Headers,
			RetryOnRateLimit: section.QueueConfig.RetryOnRateLimit, RoundRobinDNS: section.RoundRobinDNS,
		}); err != nil {
			return fmt.Errorf("remote_write %s: %w", name, err)
		}
	}
	return nil
}

// identities returns a name for each section that stays the same when its settings change: its name, or else its
// URL. Sections without a name that have the same URL are told apart by all settings.
func identities(sections []*config.RemoteWriteConfig) []string {
	names, count := make([]string, len(sections)), map[string]int{}
	for i, section := range sections {
		if names[i] = "name " + section.Name; section.Name == "" {
			names[i] = "url " + section.URL.Redacted()
		}
		count[names[i]]++
	}
	for i, section := range sections {
		if count[names[i]] > 1 {
			text, _ := yaml.Marshal(section) // Check has done the same
			names[i] += fmt.Sprintf(" %x", sha256.Sum256(text))
		}
	}
	return names
}

// ApplyConfig starts the queues of new sections and stops the queues of removed sections. A section that changed
// gets a new queue, which continues where the old one ended. ApplyConfig waits up to the flush deadline for the
// queues that it stops. A configuration that Check rejects changes nothing.
func (s *Sender) ApplyConfig(cfg *config.Config) error {
	if err := Check(cfg); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errors.New("remote_write: the process is stopping")
	}
	next := &applied{cfg.RemoteWriteConfigs, cfg.GlobalConfig.ExternalLabels}
	if s.applied != nil && reflect.DeepEqual(s.applied, next) {
		return nil
	}
	relabeled := s.applied == nil || !labels.Equal(s.applied.external, next.external)
	s.applied = nil
	end, err := s.open(len(next.sections) > 0)
	if err != nil {
		return fmt.Errorf("remote_write: %w", err)
	}
	names, wanted, kept := identities(next.sections), map[string]bool{}, map[string]*queue{}
	for i, section := range next.sections {
		wanted[names[i]] = true
		if q := s.queues[names[i]]; q != nil && !relabeled && reflect.DeepEqual(q.section, section) {
			kept[q.key] = q
		}
	}
	for i, section := range next.sections {
		if section.Name == "" {
			s.points.adopt(names[i], "url "+section.URL.Redacted(), wanted)
		}
	}
	ended := maps.Clone(s.queues)
	maps.DeleteFunc(ended, func(key string, _ *queue) bool { return kept[key] != nil })
	s.publish(kept)
	stop(ended)
	others, err := s.points.retain(wanted)
	if len(others) > 0 && !s.started {
		s.logger.Warn("No section of remote_write has the name, or without a name the URL, of these queues any more. "+
			"What they had not sent before the last stop is in the local storage only", "queues", others)
	}
	for i, section := range next.sections {
		if kept[names[i]] != nil {
			continue
		}
		q := &queue{key: names[i], section: section, metrics: s.metrics, wal: s.wal, points: s.points,
			saveEvery: cmp.Or(s.opts.saveEvery, defaultSaveEvery),
			logger:    s.quiet.With("queue", cmp.Or(section.Name, section.URL.Redacted()))}
		one := *cfg
		one.RemoteWriteConfigs = next.sections[i : i+1]
		var err2 error
		if q.to, err2 = take(s.library, &one); err2 != nil {
			err = errors.Join(err, err2)
			continue
		}
		q.start(s.begin(q, predecessor(q, ended), end))
		kept = maps.Clone(kept)
		kept[q.key] = q
		s.publish(kept)
	}
	if err != nil {
		return fmt.Errorf("remote_write: %w", err)
	}
	s.applied, s.started = next, true
	return nil
}

// open prepares the directory, and reads the savepoints when the first configuration is applied. It returns the end
// of the log.
func (s *Sender) open(sections bool) (end position, err error) {
	_, last, err := wlog.Segments(s.wal)
	if err != nil {
		return end, err
	}
	end = position{max(last, 0), 0}
	if s.started {
		// A queue that a reload adds begins here. At the start, a queue without a savepoint begins with this
		// segment, which was created when the storage was opened.
		info, err := os.Stat(wlog.SegmentName(s.wal, end.segment))
		if err != nil {
			return end, err
		}
		end.offset = info.Size()
	}
	if s.points == nil && (s.opts.NoSavepoints || !sections) {
		// Nobody may continue at an old savepoint later.
		if err := os.RemoveAll(filepath.Join(s.dir, savepointFile)); err != nil || !sections {
			return end, err
		}
	}
	// The watchers of Prometheus' queues need a log, and get an empty one.
	idle := filepath.Join(s.dir, idleDir, "wal")
	if err := os.MkdirAll(idle, 0o777); err != nil {
		return end, err
	}
	empty := wlog.SegmentName(idle, 0)
	if content, err := files.ReadFile(empty); err != nil || len(content) > 0 {
		if err := files.WriteFile(files.Disk{}, empty, nil); err != nil {
			return end, err
		}
	}
	if s.points == nil && !s.opts.NoSavepoints {
		if s.points, err = loadSavepoints(s.dir); err != nil {
			s.logger.Error("Samples that were not sent before the start are in the local storage only: "+
				"the savepoints of remote_write cannot be used", "err", err)
		}
	}
	return end, nil
}

// predecessor returns the queue that a new queue replaces, or nil: the one of its section, or else of a section to the
// same URL, whose name was changed. Of several, it is one with the same settings, or else the one that has sent least.
func predecessor(q *queue, ended map[string]*queue) (old *queue) {
	if old = ended[q.key]; old != nil {
		return old
	}
	for _, other := range ended {
		if reflect.DeepEqual(other.section, q.section) {
			return other
		}
		if other.section.URL.String() == q.section.URL.String() && (old == nil || other.saved.before(old.saved)) {
			old = other
		}
	}
	return old
}

// begin returns the position from which a new queue sends, and up to which the samples may have been sent before.
// old is the queue that it replaces, or nil; end is the end of the log.
func (s *Sender) begin(q, old *queue, end position) (from, resendTo position) {
	if s.opts.NoSavepoints {
		return end, end
	}
	if old != nil {
		return old.saved, old.at
	}
	saved, ok := s.points.get(q.key)
	if ok && end.before(saved) {
		q.logger.Error("Sending only samples that are appended after the start: the savepoint is beyond the end of the "+
			"write-ahead log, which was repaired or replaced", "savepoint", saved.segment, "last", end.segment)
		ok = false
	}
	if !ok {
		return end, end
	}
	return saved, end
}

// publish makes Notify call these queues.
func (s *Sender) publish(queues map[string]*queue) {
	s.queues = queues
	s.live.Store(&queues)
}

// stop stops queues and saves their positions.
func stop(queues map[string]*queue) {
	var stopping sync.WaitGroup
	for _, q := range queues {
		stopping.Go(func() {
			q.stop()
			q.settle()
		})
	}
	stopping.Wait()
}

// Close waits until the queues have read the write-ahead log to its end, for a few seconds at
// most. It stops them once they have sent everything, or at the flush deadline. The storage
// must still be open, and nothing may append to it any more.
//
// A queue that does not stop in time ends with the process. That is safe: it only reads the log,
// and its savepoint stays before what it has not sent.
func (s *Sender) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	for _, q := range s.queues {
		close(q.finish)
	}
	ctx, cancel := context.WithTimeout(context.Background(), min(readAllWait, s.opts.FlushDeadline))
	for _, q := range s.queues {
		select {
		case <-q.done:
		case <-ctx.Done():
		}
	}
	cancel()
	var err error
	go func() {
		defer close(s.stopped)
		stop(s.queues)
		err = s.library.Close()
	}()
	select {
	case <-s.stopped:
	case <-time.After(s.closeDeadline()):
		s.logger.Error("The shutdown no longer waits for remote_write: several servers do not respond",
			"deadline", s.opts.FlushDeadline)
		return nil
	}
	if err != nil {
		return fmt.Errorf("remote_write: %w", err)
	}
	return nil
}

// closeDeadline returns how long all queues together may take to stop. A queue sends an
// incomplete batch after its batch_send_deadline.
func (s *Sender) closeDeadline() time.Duration {
	deadline := s.opts.FlushDeadline + closeWait
	var batch time.Duration
	for _, q := range s.queues {
		batch = max(batch, time.Duration(q.section.QueueConfig.BatchSendDeadline))
	}
	return deadline + batch
}
