// Package scrape scrapes metrics as Prometheus does.
//
// config.go loads and checks a prometheus.yml. Prometheus' discovery manager finds targets; a Manager gives each job a
// pool (pool.go) and each target of the pool a loop (loop.go). At its interval the loop fetches the page (fetch.go),
// over plain HTTP with a client of ours (client.go), and appends samples, exemplars and metadata to a
// storage.AppendableV2. A page whose bytes between the values are those of the page before is read without a parser
// (layout.go), exemplars included; of a page with a few other lines Prometheus' parser reads these and the comments
// (changed.go). The parser reads every other page (page.go), which leaves the next layout. All have the same effect.
// The cache (cache.go) keeps what a target's next page needs. Manager lists the targets. The package contains no
// storage, no HTTP API and no watching of the configuration.
package scrape

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/discovery"
	"github.com/prometheus/prometheus/scrape"
	"github.com/prometheus/prometheus/storage"
)

// Options of a Scraper. Zero values take the defaults.
type Options struct {
	DiscoveryReloadInterval time.Duration // interval of applying changed targets; 0: 5 s
	MetadataInWAL           bool          // write scraped metadata to the WAL
	TypeAndUnitLabels       bool          // add __type__ and __unit__ labels
	OpenMetrics2            bool          // accept OpenMetrics 2.0
	Zstd                    bool          // accept responses compressed with zstd
	ParseST                 bool          // read start timestamps; _created lines of OpenMetrics 1.0 are no samples
	ExtraMetrics            bool          // add report samples if a configuration does not set extra_scrape_metrics
	ExactTimestamps         bool          // do not adjust the timestamps of scrapes to their schedule
	TimestampTolerance      time.Duration // largest adjustment; 0: 2 ms

	// Dial connects to targets; nil: over the network.
	Dial dialer
}

// Scraper scrapes metrics while Run is running.
type Scraper struct {
	Manager   *Manager
	SDMetrics *discovery.SDMetrics // of service discovery, for all discovery managers of the process
	discovery *discovery.Manager
	cancel    context.CancelFunc
}

// manager returns the options of the scrape manager.
func (o Options) manager() *scrape.Options {
	return &scrape.Options{
		DiscoveryReloadInterval: model.Duration(o.DiscoveryReloadInterval),
		AppendMetadata:          o.MetadataInWAL,
		EnableTypeAndUnitLabels: o.TypeAndUnitLabels,
		EnableOpenMetrics2:      o.OpenMetrics2,
		EnableZstdScrape:        o.Zstd,
		ParseST:                 o.ParseST,
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
	manager, err := newManager(opts.manager(), to, logger.With("component", "scrape"), reg)
	if err != nil {
		return nil, fmt.Errorf("scrape manager: %w", err)
	}
	manager.dial = opts.Dial
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
	var err error
	wg.Go(func() {
		if err = s.discovery.Run(); errors.Is(err, context.Canceled) {
			err = nil
		}
	})
	wg.Go(func() { s.Manager.run(s.discovery.SyncCh()) }) // closed when the discovery manager ends
	<-ctx.Done()
	s.cancel()
	wg.Wait()
	if err != nil {
		return fmt.Errorf("discovery: %w", err)
	}
	return nil
}

// Close releases a scraper whose Run was never called.
func (s *Scraper) Close() {
	s.cancel()
	s.Manager.watched.stop()
}
