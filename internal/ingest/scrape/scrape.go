// Package scrape scrapes metrics with Prometheus' scrape and discovery managers.
//
// config.go loads and checks a prometheus.yml. Discovered targets
// are scraped at their intervals; samples, exemplars and metadata are appended to a
// storage.AppendableV2. Scraper.Manager lists the targets. The package contains no storage, no HTTP
// API and no watching of the configuration.
package scrape

import (
	"cmp"
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
	"github.com/prometheus/prometheus/discovery/targetgroup"
	"github.com/prometheus/prometheus/scrape"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/logging"
)

// Options of a Scraper. Zero values take the defaults.
type Options struct {
	DiscoveryReloadInterval time.Duration // interval of applying changed targets; 0: 5 s
	MetadataInWAL           bool          // write scraped metadata to the WAL
	TypeAndUnitLabels       bool          // add __type__ and __unit__ labels
	OpenMetrics2            bool          // accept OpenMetrics 2.0
	Zstd                    bool          // accept responses compressed with zstd
	ExactTimestamps         bool          // do not adjust the timestamps of scrapes to their schedule
	TimestampTolerance      time.Duration // largest adjustment; 0: 2 ms

	// Dial connects to targets; nil: over the network.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Scraper scrapes metrics while Run is running.
type Scraper struct {
	Manager   *scrape.Manager
	SDMetrics *discovery.SDMetrics // of service discovery, for all discovery managers of the process
	discovery *discovery.Manager
	cancel    context.CancelFunc
}

// manager returns the options of the scrape manager.
func (o Options) manager() *scrape.Options {
	o.DiscoveryReloadInterval = cmp.Or(o.DiscoveryReloadInterval, 5*time.Second)
	var client []commonconfig.HTTPClientOption
	if o.Dial != nil {
		client = append(client, commonconfig.WithDialContextFunc(o.Dial))
	}
	return &scrape.Options{
		DiscoveryReloadInterval:  model.Duration(o.DiscoveryReloadInterval),
		DiscoveryReloadOnStartup: true, // otherwise the first target waits for the interval
		AppendMetadata:           o.MetadataInWAL,
		EnableTypeAndUnitLabels:  o.TypeAndUnitLabels,
		EnableOpenMetrics2:       o.OpenMetrics2,
		EnableZstdScrape:         o.Zstd,
		HTTPClientOptions:        client,
	}
}

// New builds a scraper that appends to `to`. It is idle until Run.
func New(opts Options, to storage.AppendableV2, logger *slog.Logger, reg prometheus.Registerer) (*Scraper, error) {
	// These options are global variables of Prometheus' package. They are written only if
	// they change, since scrapers of other servers in the process may read them.
	if opts.ExactTimestamps == scrape.AlignScrapeTimestamps {
		scrape.AlignScrapeTimestamps = !opts.ExactTimestamps
	}
	if opts.TimestampTolerance != 0 && opts.TimestampTolerance != scrape.ScrapeTimestampTolerance {
		scrape.ScrapeTimestampTolerance = opts.TimestampTolerance
	}
	manager, err := scrape.NewManager(opts.manager(), logger.With("component", "scrape"), logging.NewJSONFileLogger,
		nil, to, reg)
	if err != nil {
		return nil, fmt.Errorf("scrape manager: %w", err)
	}
	metrics, err := discovery.CreateAndRegisterSDMetrics(reg)
	if err != nil {
		return nil, fmt.Errorf("service discovery metrics: %w", err)
	}
	// The discovery manager stops only when its context is canceled, which Run and Close
	// do.
	ctx, cancel := context.WithCancel(context.Background())
	found := discovery.NewManager(ctx, logger.With("component", "discovery"), reg, metrics, discovery.Name("scrape"))
	if found == nil {
		cancel()
		return nil, errors.New("failed to create the discovery manager")
	}
	return &Scraper{Manager: manager, SDMetrics: metrics, discovery: found, cancel: cancel}, nil
}

// ApplyConfig applies a new configuration. The scrape manager is first, since it must know
// a job before it receives the job's targets from discovery.
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

// Run scrapes until ctx is canceled and returns after the last scrape is appended. The
// storage must stay open until then. Run is called once.
func (s *Scraper) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	errs := make([]error, 2)
	wg.Go(func() {
		if err := s.discovery.Run(); err != nil && !errors.Is(err, context.Canceled) {
			errs[0] = fmt.Errorf("discovery: %w", err)
		}
	})
	targets := make(chan map[string][]*targetgroup.Group)
	wg.Go(func() {
		for found := range s.discovery.SyncCh() { // closed when the discovery manager ends
			targets <- found
		}
		// A reload of the scrape manager that waits for Stop would start loops that nobody ends: it finds no targets.
		targets <- nil
		close(targets)
	})
	wg.Go(func() {
		if err := s.Manager.Run(targets); err != nil {
			errs[1] = fmt.Errorf("scrape: %w", err)
		}
	})
	<-ctx.Done()
	s.cancel()
	wg.Wait()
	s.Manager.Stop()
	return errors.Join(errs...)
}

// Close releases a scraper whose Run was never called.
func (s *Scraper) Close() { s.cancel() }
