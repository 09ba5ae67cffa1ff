package scrape

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/scrape"
	"github.com/prometheus/prometheus/storage"
)

type observer = prometheus.Observer

// metrics are the metrics of Prometheus' scrape manager: the same objects, since the library makes them.
type metrics struct {
	metadata *scrape.MetadataMetricsCollector

	pools, poolsFailed, reloads, reloadsFailed, targetLimit, labelLimits prometheus.Counter
	bodySizeLimit, sampleLimit, bucketLimit, cacheFlushes                prometheus.Counter
	duplicate, outOfOrder, outOfBounds, exemplarOutOfOrder               prometheus.Counter
	syncs, syncFailed                                                    *prometheus.CounterVec
	poolTargetLimit, poolTargets, poolSymbols                            *prometheus.GaugeVec
	reloadLength, syncLength, intervalLength                             *prometheus.SummaryVec
	syncLengthHistogram, intervalLengthHistogram                         *prometheus.HistogramVec
	duration                                                             prometheus.Histogram
}

// recorder is a registerer that notes what it registers by name.
type recorder struct {
	prometheus.Registerer
	byName map[string]prometheus.Collector
}

func (r recorder) Register(c prometheus.Collector) error {
	if err := r.Registerer.Register(c); err != nil {
		return err
	}
	descs := make(chan *prometheus.Desc, 8)
	c.Describe(descs)
	close(descs)
	for d := range descs {
		// A description shows its name in no other way: Desc{fqName: "x", …
		if text := strings.SplitN(d.String(), `"`, 3); len(text) == 3 {
			r.byName[text[1]] = c
		}
	}
	return nil
}

// newMetrics registers the metrics of a scrape manager that never scrapes.
func newMetrics(to storage.AppendableV2, logger *slog.Logger, reg prometheus.Registerer) (*metrics, error) {
	made := recorder{reg, map[string]prometheus.Collector{}}
	if _, err := scrape.NewManager(nil, logger, nil, nil, to, made); err != nil {
		return nil, err
	}
	m := &metrics{}
	err := errors.Join(
		find(made, "metadata_cache_entries", &m.metadata),
		find(made, "scrape_pools_total", &m.pools),
		find(made, "scrape_pools_failed_total", &m.poolsFailed),
		find(made, "scrape_pool_reloads_total", &m.reloads),
		find(made, "scrape_pool_reloads_failed_total", &m.reloadsFailed),
		find(made, "scrape_pool_exceeded_target_limit_total", &m.targetLimit),
		find(made, "scrape_pool_exceeded_label_limits_total", &m.labelLimits),
		find(made, "scrapes_exceeded_body_size_limit_total", &m.bodySizeLimit),
		find(made, "scrapes_exceeded_sample_limit_total", &m.sampleLimit),
		find(made, "scrapes_exceeded_native_histogram_bucket_limit_total", &m.bucketLimit),
		find(made, "scrapes_cache_flush_forced_total", &m.cacheFlushes),
		find(made, "scrapes_sample_duplicate_timestamp_total", &m.duplicate),
		find(made, "scrapes_sample_out_of_order_total", &m.outOfOrder),
		find(made, "scrapes_sample_out_of_bounds_total", &m.outOfBounds),
		find(made, "scrapes_exemplar_out_of_order_total", &m.exemplarOutOfOrder),
		find(made, "scrape_pool_sync_total", &m.syncs),
		find(made, "sync_failed_total", &m.syncFailed),
		find(made, "scrape_pool_target_limit", &m.poolTargetLimit),
		find(made, "scrape_pool_targets", &m.poolTargets),
		find(made, "scrape_pool_symboltable_items", &m.poolSymbols),
		find(made, "reload_length_seconds", &m.reloadLength),
		find(made, "sync_length_seconds", &m.syncLength),
		find(made, "interval_length_seconds", &m.intervalLength),
		find(made, "sync_length_histogram_seconds", &m.syncLengthHistogram),
		find(made, "interval_length_histogram_seconds", &m.intervalLengthHistogram),
		find(made, "scrape_duration_seconds", &m.duration),
	)
	return m, err
}

func find[T prometheus.Collector](made recorder, name string, to *T) error {
	c, ok := made.byName["prometheus_target_"+name].(T)
	if !ok {
		return fmt.Errorf("the library has no metric prometheus_target_%s of type %T", name, *to)
	}
	*to = c
	return nil
}

// forget removes the series of a job that is gone.
func (m *metrics) forget(job string) {
	for _, v := range []interface{ DeleteLabelValues(...string) bool }{
		m.syncs, m.poolTargetLimit, m.poolTargets, m.poolSymbols, m.syncLength, m.syncLengthHistogram, m.syncFailed,
	} {
		v.DeleteLabelValues(job)
	}
}
