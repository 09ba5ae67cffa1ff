// Package remotesend sends samples to the servers of the remote_write sections of
// prometheus.yml.
//
// Samples are appended to the local storage. For each section a queue of Prometheus'
// storage/remote reads the samples from the write-ahead log and sends them. If a server is down,
// its queue stops reading the log once the queue is full, and continues when the server is up
// again. Scrapes do not wait for a queue. The protocol and the retries are those of the queues.
package remotesend

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/scrape"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/storage/remote"
	"go.yaml.in/yaml/v2"

	"github.com/ferula-io/ferula/internal/process"
	"github.com/ferula-io/ferula/internal/redact"
	"github.com/ferula-io/ferula/internal/tsdb"
)

// Options of a Sender. Zero values take the defaults.
type Options struct {
	// FlushDeadline limits how long Close waits for samples to be sent. A reload waits up to
	// FlushDeadline for each queue that it stops. 0: 1 minute; negative: no wait.
	FlushDeadline     time.Duration
	TypeAndUnitLabels bool // the storage has __type__ and __unit__ labels

	// Scraper returns the scrape manager. Its metadata is sent with remote write 1.0.
	Scraper func() *scrape.Manager
}

const (
	defaultFlushDeadline = time.Minute
	// logEvery is the minimum interval between two equal log lines of a queue.
	logEvery = time.Minute
	// readAllWait is how long Close waits for the queues to read the log to its end. It checks
	// them every readAllEvery.
	readAllWait  = 5 * time.Second
	readAllEvery = 20 * time.Millisecond
	// closeWait is how long Close may take beyond the flush deadline and the longest batch_send_deadline.
	closeWait = 5 * time.Second
	// skippedMetric counts the notifications that a queue missed because it was still reading the
	// log.
	skippedMetric = "prometheus_wal_watcher_notifications_skipped_total"
)

// Sender sends samples that are appended through Samples. It is safe for concurrent use.
type Sender struct {
	opts    Options
	logger  *slog.Logger
	store   *tsdb.Store
	reg     prometheus.Gatherer
	queues  *remote.WriteStorage
	samples storage.Storage

	written  chan struct{} // holds a value if the queues are to be notified
	stop     chan struct{}
	notifier sync.WaitGroup
	stopped  chan struct{} // closed once every queue has stopped; Close may return earlier

	mu      sync.Mutex
	applied *applied // nil if the last configuration was applied in part or not at all
	count   int      // of queues
	closed  bool
}

// applied is the part of a configuration that the queues are made from.
type applied struct {
	sections []*config.RemoteWriteConfig
	external labels.Labels
}

// registry registers the metrics of the queues and reads them.
type registry interface {
	prometheus.Registerer
	prometheus.Gatherer
}

// New returns a sender without queues. Its queues read the write-ahead log of store, which must
// not be open yet. The caller closes the sender with Close.
func New(opts Options, store *tsdb.Store, logger *slog.Logger, reg registry) *Sender {
	if opts.FlushDeadline == 0 {
		opts.FlushDeadline = defaultFlushDeadline
	}
	opts.FlushDeadline = max(0, opts.FlushDeadline)
	quiet := slog.New(process.ThinLog(redact.Handler{Handler: logger.Handler()}, 1, logEvery, time.Now))
	s := &Sender{opts: opts, logger: logger, store: store, reg: reg, stopped: make(chan struct{}),
		written: make(chan struct{}, 1), stop: make(chan struct{})}
	s.queues = remote.NewWriteStorage(quiet, reg, store.Options().Dir, opts.FlushDeadline, manager(opts.Scraper),
		opts.TypeAndUnitLabels)
	s.samples = storage.NewFanout(logger, store, secondary{s.queues})
	s.notifier.Go(s.notify)
	store.NotifyWrites(s)
	return s
}

// Notify implements wlog.WriteNotified. It does not wait, because every commit calls it, and
// queues cannot be notified while a reload stops some of them, which may take the flush deadline
// for each.
func (s *Sender) Notify() {
	select {
	case s.written <- struct{}{}:
	default: // one notification is enough: the queues then read everything that was written
	}
}

// notify notifies the queues until Close.
func (s *Sender) notify() {
	for {
		select {
		case <-s.written:
			s.queues.Notify()
		case <-s.stop:
			return
		}
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
			return fmt.Errorf("remote_write: duplicate section for %s: sections that differ in secrets only need a name each",
				section.URL.Redacted())
		}
		known[string(text)] = true
		name := section.Name
		if name == "" {
			name = section.URL.Redacted()
		}
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

// ApplyConfig starts the queues of new sections and stops the queues of removed sections. It waits up to the flush
// deadline for each queue that it stops. A configuration that Check rejects changes nothing.
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
		return nil // the queues' ApplyConfig would replace the clients of running queues without a lock
	}
	s.applied = nil
	if err := s.queues.ApplyConfig(cfg); err != nil {
		return fmt.Errorf("remote_write: %w", err)
	}
	s.applied, s.count = next, len(cfg.RemoteWriteConfigs)
	return nil
}

// Close waits until the queues have read the write-ahead log to its end, for a few seconds at
// most. It stops them once they have sent everything, or at the flush deadline. The storage
// must still be open, and nothing may append to it any more.
//
// Prometheus stops the queues one after the other. Each queue whose receiver does not respond
// takes the whole flush deadline, while the other queues continue to send. After one flush
// deadline every queue has had the time to send, so Close returns. Queues that still run then end
// with the process. That is safe, because they only read the log.
func (s *Sender) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	if s.count > 0 {
		ctx, cancel := context.WithTimeout(context.Background(), min(readAllWait, s.opts.FlushDeadline))
		s.readAll(ctx)
		cancel()
	}
	var err error
	go func() {
		defer close(s.stopped)
		err = s.queues.Close()
	}()
	close(s.stop)
	select {
	case <-s.stopped:
	case <-time.After(s.closeDeadline()):
		s.logger.Error("Several servers of remote_write do not respond. The shutdown does not wait for them any longer",
			"deadline", s.opts.FlushDeadline)
		return nil
	}
	s.notifier.Wait()
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
	if s.applied != nil {
		for _, section := range s.applied.sections {
			batch = max(batch, time.Duration(section.QueueConfig.BatchSendDeadline))
		}
	}
	return deadline + batch
}

// readAll returns once each queue has read the log to its end, or ctx has ended.
//
// A queue receives a notification only while it is not reading, and then reads the log to its end.
// It receives the second notification only after this reading has ended. So a queue that has
// received two notifications has read everything that was written before the first.
//
// The notifications of commits are not enough: a queue that is still reading misses them. It would
// read the rest of the log only seconds later.
func (s *Sender) readAll(ctx context.Context) {
	received, before := 0, s.skipped() // received counts the notifications that no queue missed
	for received < 2 && ctx.Err() == nil {
		s.queues.Notify()
		after := s.skipped()
		if after == before {
			received++
			continue
		}
		before = after
		select {
		case <-time.After(readAllEvery):
		case <-ctx.Done():
		}
	}
}

// skipped returns the number of notifications that all queues together have missed.
func (s *Sender) skipped() (sum float64) {
	families, err := s.reg.Gather()
	if err != nil && len(families) == 0 {
		return 0
	}
	for _, family := range families {
		if family.GetName() == skippedMetric {
			for _, m := range family.GetMetric() {
				sum += m.GetCounter().GetValue()
			}
		}
	}
	return sum
}
