package app

import (
	"time"

	"github.com/ferula-io/ferula/internal/promql"
	"github.com/ferula-io/ferula/metrics"
)

// slotMetrics are the metrics of query slots, under Thanos' names. They are created
// before the engine, because the engine's option SlotWaited writes to them.
type slotMetrics struct{ waited *metrics.PrometheusHistogram }

// slotSeconds are Thanos' buckets of the time that queries wait for a slot, in seconds.
var slotSeconds = []float64{0.01, 0.1, 0.3, 0.6, 1, 3, 6, 9, 20, 30, 60, 90, 120, 240, 360, 720}

func newSlotMetrics(set *metrics.Set) slotMetrics {
	const waited = "thanos_query_concurrent_gate_duration_seconds"
	set.Describe(waited, "How long a query waited for a slot.", "")
	return slotMetrics{set.NewPrometheusHistogramExt(waited, slotSeconds)}
}

func (m slotMetrics) observe(d time.Duration) { m.waited.Update(d.Seconds()) }

func (m slotMetrics) register(set *metrics.Set, engine *promql.Engine) {
	const used, all = "thanos_query_concurrent_gate_queries_in_flight", "thanos_query_concurrent_gate_queries_max"
	set.Describe(used, "Number of query slots in use.", "")
	set.Describe(all, "Number of query slots.", "")
	set.NewGauge(used, func() float64 { n, _ := engine.SlotsInUse(); return float64(n) })
	set.NewGauge(all, func() float64 { _, n := engine.SlotsInUse(); return float64(n) })
}
