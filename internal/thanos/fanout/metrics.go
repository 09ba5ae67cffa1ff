package fanout

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ferula-io/ferula/internal/process"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
	"github.com/ferula-io/ferula/metrics"
)

// instruments are the metrics of all stores and queries. A metric with the label store has a child for each configured
// store. The child is removed together with the store.
type instruments struct {
	firstMessage, duration *metrics.PrometheusHistogramVec
	series, chunks, bytes  *metrics.CounterVec
	failed                 *metrics.CounterVec
	partial                *metrics.CounterVec
	lookups, lookupsFailed *metrics.Counter
	waits, refused         *metrics.Counter // of the budget of bytes
	panics                 *metrics.Counter
}

// secondsOfStores are the buckets of the histograms by store. They are few, because there are as
// many histograms as stores.
var secondsOfStores = []float64{0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 120}

func newInstruments(set *metrics.Set) *instruments {
	if set == nil {
		set = metrics.NewSet()
	}
	return &instruments{
		firstMessage: set.NewPrometheusHistogramVec("ferula_query_store_first_series_seconds",
			"Time from a Series request to its first series, by store.", secondsOfStores, "store"),
		duration: set.NewPrometheusHistogramVec("ferula_query_store_seconds",
			"Time from a Series request to the end of its response, by store.", secondsOfStores, "store"),
		series: set.NewCounterVec("ferula_query_store_series_total", "Number of series received, by store.", "store"),
		chunks: set.NewCounterVec("ferula_query_store_chunks_total", "Number of chunks received, by store.", "store"),
		bytes: set.NewCounterVec("ferula_query_store_bytes_total", "Bytes of chunks and labels received, by store.",
			"store"),
		failed: set.NewCounterVec("ferula_query_store_errors_total",
			"Number of requests of a store that failed, by reason.", "store", "reason"),
		partial: set.NewCounterVec("ferula_query_partial_responses_total",
			"Number of requests whose result lacks data of at least one store, by kind.", "request"),
		lookups: process.Counter(set, "thanos_query_endpoints_dns_lookups_total", "Number of DNS lookups of endpoints."),
		lookupsFailed: process.Counter(set, "thanos_query_endpoints_dns_failures_total",
			"Number of DNS lookups of endpoints that failed."),
		waits: process.Counter(set, "ferula_query_chunk_bytes_waits_total",
			"Number of times a query waited for memory that other queries held."),
		refused: process.Counter(set, "ferula_query_chunk_bytes_rejected_total",
			"Number of times a query failed because other queries did not release memory."),
		panics: process.Panics(set, "store"),
	}
}

// Kinds of requests, for the counter of partial responses.
const (
	selections = "select"  // of PromQL
	forwarded  = "forward" // series for another querier
	listings   = "list"    // all others
)

// storeInstruments are the children of one store.
type storeInstruments struct {
	firstMessage, duration *metrics.PrometheusHistogram
	series, chunks, bytes  *metrics.Counter
}

func (m *instruments) of(address string) storeInstruments {
	return storeInstruments{
		firstMessage: m.firstMessage.With(address), duration: m.duration.With(address),
		series: m.series.With(address), chunks: m.chunks.With(address), bytes: m.bytes.With(address),
	}
}

// remove removes the children of a store.
func (m *instruments) remove(address string) {
	m.firstMessage.Delete(address)
	m.duration.Delete(address)
	for _, v := range []*metrics.CounterVec{m.series, m.chunks, m.bytes} {
		v.Delete(address)
	}
	for _, reason := range reasons {
		m.failed.Delete(address, reason)
	}
}

// reasons are the label values of errors of stores.
var reasons = []string{"stalled", "timeout", "unavailable", "limit", "corrupt", "panic", "other"}

// failure counts an error of a store by its reason. A cancellation by the client, or because another store failed,
// is not counted.
func (m *instruments) failure(address string, err error) {
	if reason := reasonOf(err); reason != "" {
		m.failed.With(address, reason).Inc()
	}
}

// reasonOf returns the reason of an error, one of reasons; "" for a cancellation.
func reasonOf(err error) string {
	switch {
	case errors.Is(err, ErrStalled):
		return "stalled"
	case errors.Is(err, context.DeadlineExceeded):
		return "timeout"
	case errors.Is(err, context.Canceled):
		return ""
	case errors.Is(err, errPanicked):
		return "panic"
	case errors.Is(err, ErrLimit), errors.Is(err, storeapi.ErrLimit):
		return "limit"
	case errors.Is(err, storeapi.ErrCorrupt):
		return "corrupt"
	case errors.Is(err, storeapi.ErrUnavailable):
		return "unavailable"
	}
	return "other"
}

// traffic is the amount of data that one stream has received. It is added to the metrics of the store when the stream
// ends.
type traffic struct {
	begun                          time.Time     // zero: not requested yet
	first                          time.Duration // from begun to the first series
	series, chunks, samples, bytes int
}

// observe adds the traffic of a stream that has ended.
func (s storeInstruments) observe(t traffic) {
	if t.begun.IsZero() {
		return
	}
	s.duration.UpdateDuration(t.begun)
	if t.series > 0 {
		s.firstMessage.Update(t.first.Seconds())
	}
	s.series.Add(t.series)
	s.chunks.Add(t.chunks)
	s.bytes.Add(t.bytes)
}

// externalLabelsMax limits the length of one store's external labels in a label value, as in
// Thanos.
const externalLabelsMax = 1000

// writeMetrics counts stores by component and state at the time of the scrape.
func (e *Endpoints) writeMetrics(w io.Writer) {
	labelText := strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)
	quoted := func(text string) string {
		return labelText.Replace(strings.ToValidUTF8(text, "\ufffd"))
	} // a store may send any text
	counts, healthy := map[string]int{}, map[string]int{} // by labels
	for _, s := range *e.current.Load() {
		st := s.status()
		counts[fmt.Sprintf(`component="%s",up="%t"`, quoted(st.Component), st.LastError == nil)]++
		if st.LastError != nil || st.LastCheck.IsZero() {
			continue
		}
		var set []string
		for _, name := range e.opts.ConnectionLabels {
			value := st.Component
			if name == "external_labels" {
				value = externalText(st)
			}
			set = append(set, fmt.Sprintf(`%s="%s"`, name, quoted(value)))
		}
		healthy[strings.Join(set, ",")]++
	}
	page := appendGauge(nil, "ferula_query_stores", "Number of stores by component and state.", counts)
	page = appendGauge(page, "thanos_store_nodes_grpc_connections",
		"Number of stores that are up, by external labels and component.", healthy)
	_, _ = w.Write(page) // the scraper notices the failure
}

// externalText returns the label sets of a store as one text of at most externalLabelsMax bytes.
func externalText(st Status) string {
	var text strings.Builder
	for i, set := range st.LabelSets {
		if i > 0 {
			text.WriteByte(',')
		}
		text.WriteString(set.String())
		if text.Len() > externalLabelsMax {
			return text.String()[:externalLabelsMax]
		}
	}
	return text.String()
}

func appendGauge(page []byte, name, help string, values map[string]int) []byte {
	if len(values) == 0 {
		return page
	}
	page = fmt.Appendf(page, "# HELP %s %s\n# TYPE %s gauge\n", name, help, name)
	for _, set := range slices.Sorted(maps.Keys(values)) {
		page = fmt.Appendf(page, "%s{%s} %d\n", name, set, values[set])
	}
	return page
}
