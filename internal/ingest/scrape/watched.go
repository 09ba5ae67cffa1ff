package scrape

import (
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/discovery/targetgroup"
	"github.com/prometheus/prometheus/scrape"
)

// watched gives the metadata of all targets to the library's sender of remote write 1.0, which takes it from no other
// type than the library's scrape manager. That manager has one target, which it never scrapes; the metadata of the
// target is the metadata of all targets of m.
type watched struct {
	m *Manager

	mu      sync.Mutex
	library *scrape.Manager // nil before the first call of get
	ended   bool
}

const (
	watchedJob = "metadata of all jobs"
	never      = 100 * 365 * 24 * time.Hour
)

// MetadataManager returns a scrape manager of the library that lists the metadata of all targets, and nothing else.
// It is nil after the end of scraping.
func (m *Manager) MetadataManager() *scrape.Manager { return m.watched.get() }

func (w *watched) get() *scrape.Manager {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		return nil
	}
	if w.library == nil {
		library, err := w.start()
		if err != nil {
			w.m.logger.Error("Metadata is not sent", "err", err)
			w.ended = true
			return nil
		}
		w.library = library
	}
	return w.library
}

func (w *watched) start() (*scrape.Manager, error) {
	quiet := slog.New(slog.DiscardHandler)
	cfg, err := config.Load(fmt.Sprintf("scrape_configs: [{job_name: %s}]", watchedJob), quiet)
	if err != nil {
		return nil, err
	}
	library, err := scrape.NewManager(&scrape.Options{InitialScrapeOffset: never, DiscoveryReloadOnStartup: true}, quiet,
		nil, nil, w.m.to, prometheus.NewRegistry())
	if err != nil {
		return nil, err
	}
	if err := library.ApplyConfig(cfg); err != nil {
		return nil, err
	}
	found := make(chan map[string][]*targetgroup.Group)
	go func() { _ = library.Run(found) }() // ends with Stop
	found <- map[string][]*targetgroup.Group{watchedJob: {{Targets: []model.LabelSet{{model.AddressLabel: "none:0"}}}}}
	for { // the manager makes the target in the background
		if targets := library.TargetsActive()[watchedJob]; len(targets) == 1 {
			targets[0].SetMetadataStore(w)
			return library, nil
		}
		time.Sleep(time.Millisecond)
	}
}

func (w *watched) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.library != nil && !w.ended {
		w.library.Stop()
	}
	w.ended = true
}

var _ scrape.MetricMetadataStore = (*watched)(nil)

// ListMetadata returns the different metadata of all targets.
func (w *watched) ListMetadata() []scrape.MetricMetadata {
	seen := map[scrape.MetricMetadata]bool{}
	var list []scrape.MetricMetadata
	for _, targets := range w.m.TargetsActive() {
		for _, t := range targets {
			for _, md := range t.ListMetadata() {
				if !seen[md] {
					seen[md] = true
					list = append(list, md)
				}
			}
		}
	}
	return list
}

// GetMetadata returns the metadata of a family; which one, if targets differ, is not defined.
func (w *watched) GetMetadata(family string) (scrape.MetricMetadata, bool) {
	list := w.ListMetadata()
	i := slices.IndexFunc(list, func(md scrape.MetricMetadata) bool { return md.MetricFamily == family })
	if i < 0 {
		return scrape.MetricMetadata{}, false
	}
	return list[i], true
}

// SizeMetadata and LengthMetadata are 0: the metadata belongs to other targets.
func (*watched) SizeMetadata() int   { return 0 }
func (*watched) LengthMetadata() int { return 0 }
