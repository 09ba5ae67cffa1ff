package scrape

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/discovery/targetgroup"
	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/scrape"
	"github.com/prometheus/prometheus/storage"
)

// awaited is a storage that reports each appended sample as text.
type awaited struct {
	samples chan string
	ctx     context.Context
}

func (a awaited) AppenderV2(context.Context) storage.AppenderV2 { return a }
func (awaited) Commit() error                                   { return nil }
func (awaited) Rollback() error                                 { return nil }

func (a awaited) Append(_ storage.SeriesRef, l labels.Labels, _, _ int64, v float64, _ *histogram.Histogram,
	_ *histogram.FloatHistogram, _ storage.AppendV2Options) (storage.SeriesRef, error) {
	text := l.Get(labels.MetricName) + " " + fmt.Sprint(v)
	if value.IsStaleNaN(v) {
		text = l.Get(labels.MetricName) + " stale"
	}
	select {
	case a.samples <- text:
	case <-a.ctx.Done():
	}
	return storage.SeriesRef(l.Hash()), nil
}

// wait returns once each sample was appended.
func (a awaited) wait(t *testing.T, samples ...string) {
	t.Helper()
	missing := map[string]bool{}
	for _, s := range samples {
		missing[s] = true
	}
	for timeout := time.After(30 * time.Second); len(missing) > 0; {
		select {
		case s := <-a.samples:
			delete(missing, s)
		case <-timeout:
			t.Fatalf("not appended: %v", missing)
		}
	}
}

// managed runs a manager of job j, to whose targets the returned function sends.
func managed(t *testing.T, more string) (*Manager, awaited, func(...string)) {
	t.Helper()
	cfg, err := config.Load("global: {scrape_interval: 20ms, scrape_timeout: 20ms}\nscrape_configs: [{job_name: j"+more+"}]",
		slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	to := awaited{make(chan string), t.Context()}
	m, err := newManager(&scrape.Options{DiscoveryReloadInterval: 1}, to,
		slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	if err := m.ApplyConfig(cfg); err != nil {
		t.Fatal(err)
	}
	found, ended := make(chan map[string][]*targetgroup.Group), make(chan struct{})
	go func() {
		m.run(found)
		close(ended)
	}()
	t.Cleanup(func() { // after the context has ended, so no append waits
		close(found)
		<-ended
	})
	return m, to, func(addresses ...string) {
		g := &targetgroup.Group{}
		for _, a := range addresses {
			g.Targets = append(g.Targets, model.LabelSet{model.AddressLabel: model.LabelValue(a)})
		}
		found <- map[string][]*targetgroup.Group{"j": {g}}
	}
}

func TestManager_ATargetThatIsGoneGetsStalenessMarkers(t *testing.T) {
	_, to, send := managed(t, "")
	send(target(t))
	to.wait(t, "apples 1", "up 1")
	go send()
	to.wait(t, "apples stale", "up stale", "scrape_samples_scraped stale")
}

func TestManager_FailedScrapesAreLogged(t *testing.T) {
	file := filepath.Join(t.TempDir(), "failures.log")
	_, to, send := managed(t, ", scrape_failure_log_file: "+file)
	send("127.0.0.1:1")
	to.wait(t, "up 0")
	log, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"job_name":"j"`, `"target":"http://127.0.0.1:1/metrics"`, "connection refused"} {
		if !strings.Contains(string(log), want) {
			t.Errorf("%s is not in %s", want, log)
		}
	}
}

// The library's sender of remote write 1.0 takes the metadata of all targets from a manager of the library.
func TestManager_MetadataManagerListsTheMetadataOfAllTargets(t *testing.T) {
	m, _, _ := managed(t, "")
	library := m.MetadataManager()
	list := func() (all []scrape.MetricMetadata) {
		for _, targets := range library.TargetsActive() {
			for _, t := range targets {
				all = append(all, t.ListMetadata()...)
			}
		}
		return all
	}
	if got := list(); len(got) != 0 {
		t.Errorf("before the first target: %v", got)
	}
	m.mu.Lock()
	p, err := m.newPool(m.jobs["j"])
	m.pools["j"] = p
	m.mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	found, _, _ := p.targets([]*targetgroup.Group{{Targets: []model.LabelSet{{model.AddressLabel: "a"}, {model.AddressLabel: "b"}}}})
	for hash, f := range found {
		l := p.newLoop(f.Target, hash, newCache())
		p.mu.Lock()
		p.loops[hash] = l
		p.mu.Unlock()
		close(l.stopped) // it does not run
		if err := l.newPage(&counting{}, time.Now()).append([]byte("# HELP a of both\n# TYPE a counter\na 1\n"), plainText); err != nil {
			t.Fatal(err)
		}
	}
	if got := list(); len(got) != 1 || got[0].MetricFamily != "a" || got[0].Help != "of both" || got[0].Type != model.MetricTypeCounter {
		t.Errorf("%+v", got)
	}
	m.watched.stop()
	if m.MetadataManager() != nil {
		t.Error("there is a manager after the end")
	}
}

func TestManager_WithoutJobsHasAnEmptyListOfPools(t *testing.T) {
	if pools := new(Manager).ScrapePools(); pools == nil || len(pools) != 0 {
		t.Errorf("%#v", pools)
	}
}
