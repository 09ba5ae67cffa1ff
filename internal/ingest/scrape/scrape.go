// Package scrape is the way in for metrics that are fetched: Prometheus' scrape
// and discovery managers, run as one.
//
// A prometheus.yml comes in (config.go loads it and says what is not served);
// discovered targets are scraped on their intervals and their samples, exemplars
// and metadata go to a storage.AppendableV2. Who is scraped can be asked of
// Manager. There is no storage, no HTTP API and no configuration watching here.
package scrape

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	commonconfig "github.com/prometheus/common/config"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/discovery"
	"github.com/prometheus/prometheus/scrape"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/logging"
)

// Options of a Scraper. Zero values take the defaults.
type Options struct {
	DiscoveryReloadInterval time.Duration // how often changed targets are taken over; 0: 5 s
	MetadataInWAL           bool          // write scraped metadata to the write-ahead log
	TypeAndUnitLabels       bool          // add __type__ and __unit__ labels

	// Dial connects to targets; nil: over the network.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Scraper fetches metrics until its Run ends.
type Scraper struct {
	Manager   *scrape.Manager
	discovery *discovery.Manager
	cancel    context.CancelFunc
}

// New builds a scraper that appends to `to`. It is idle until Run.
func New(opts Options, to storage.AppendableV2, logger *slog.Logger, reg prometheus.Registerer) (*Scraper, error) {
	if opts.DiscoveryReloadInterval == 0 {
		opts.DiscoveryReloadInterval = 5 * time.Second
	}
	var client []commonconfig.HTTPClientOption
	if opts.Dial != nil {
		client = append(client, commonconfig.WithDialContextFunc(opts.Dial))
	}
	manager, err := scrape.NewManager(&scrape.Options{
		DiscoveryReloadInterval:  model.Duration(opts.DiscoveryReloadInterval),
		DiscoveryReloadOnStartup: true, // or the first target would wait for the interval
		AppendMetadata:           opts.MetadataInWAL,
		EnableTypeAndUnitLabels:  opts.TypeAndUnitLabels,
		HTTPClientOptions:        client,
	}, logger.With("component", "scrape"), logging.NewJSONFileLogger, nil, to, reg)
	if err != nil {
		return nil, fmt.Errorf("scrape manager: %w", err)
	}
	metrics, err := discovery.CreateAndRegisterSDMetrics(reg)
	if err != nil {
		return nil, fmt.Errorf("service discovery metrics: %w", err)
	}
	// The discovery manager ends with its context only, so that context is made
	// here and ended by Run.
	ctx, cancel := context.WithCancel(context.Background())
	found := discovery.NewManager(ctx, logger.With("component", "discovery"), reg, metrics, discovery.Name("scrape"))
	if found == nil {
		cancel()
		return nil, errors.New("discovery manager could not be made")
	}
	return &Scraper{Manager: manager, discovery: found, cancel: cancel}, nil
}

// ApplyConfig takes a new configuration. The scrape manager must know a job
// before discovery hands it targets, so it goes first.
func (s *Scraper) ApplyConfig(cfg *config.Config) error {
	if err := s.Manager.ApplyConfig(cfg); err != nil {
		return fmt.Errorf("scrape configuration: %w", err)
	}
	jobs, err := cfg.GetScrapeConfigs()
	if err != nil {
		return fmt.Errorf("scrape configuration: %w", err)
	}
	sources := make(map[string]discovery.Configs, len(jobs))
	for _, job := range jobs {
		sources[job.JobName] = job.ServiceDiscoveryConfigs
	}
	if err := s.discovery.ApplyConfig(sources); err != nil {
		return fmt.Errorf("service discovery configuration: %w", err)
	}
	return nil
}

// Run scrapes until ctx ends, and returns once the last scrape is appended. The
// storage must stay open that long. It is called once.
func (s *Scraper) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	errs := make([]error, 2)
	wg.Go(func() {
		if err := s.discovery.Run(); err != nil && !errors.Is(err, context.Canceled) {
			errs[0] = fmt.Errorf("discovery: %w", err)
		}
	})
	wg.Go(func() {
		if err := s.Manager.Run(s.discovery.SyncCh()); err != nil {
			errs[1] = fmt.Errorf("scrape: %w", err)
		}
	})
	<-ctx.Done()
	s.cancel()
	s.Manager.Stop()
	wg.Wait()
	return errors.Join(errs...)
}

// Close frees a scraper whose Run was never called.
func (s *Scraper) Close() { s.cancel() }
