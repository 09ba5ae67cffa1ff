package httpapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"

	"github.com/ferula-io/ferula/internal/httpbody"
	"github.com/ferula-io/ferula/internal/tsdb"
)

// federation serves /federate: the last sample of each series of the local storage that a match[]
// selects, in a format of scrape responses.
type federation struct {
	api  Options
	opts PeerOptions
	now  func() time.Time
}

// federated is the last sample of one series.
type federated struct {
	labels labels.Labels
	name   string
	kind   dto.MetricType // of the metric family; untyped for a float
	t      int64          // ms
	f      float64
	h      *histogram.FloatHistogram // nil for a float
}

// errTooManySeries is the error of a selection beyond the limit.
var errTooManySeries = errors.New("the selection has too many series; select fewer, or raise --query.max-samples")

// ServeHTTP implements http.Handler.
func (f *federation) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := r.ParseForm(); err != nil {
		http.Error(w, "error parsing form values: "+err.Error(), http.StatusBadRequest)
		return
	}
	selectors, err := f.api.Parser.ParseMetricSelectors(r.Form["match[]"])
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	format := expfmt.NegotiateAccept(r.Header, expfmt.NewFormat(expfmt.TypeProtoDelim),
		expfmt.NewFormat(expfmt.TypeProtoText),
		expfmt.NewFormat(expfmt.TypeProtoCompact), expfmt.NewFormat(expfmt.TypeTextPlain))
	samples, err := f.selected(r.Context(), selectors, format.FormatType() != expfmt.TypeTextPlain)
	switch {
	case errors.Is(err, tsdb.ErrNotReady):
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	case errors.Is(err, errTooManySeries):
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
		return
	case err != nil:
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", string(format)) // also of a response without series
	body := httpbody.NewResponse(w, r, string(format))
	defer body.Release()
	err = f.write(body, format, samples)
	if err == nil {
		err = body.Close()
	}
	if err != nil {
		f.opts.Logger.Info("A response of /federate was cut off", "err", err)
		panic(http.ErrAbortHandler) // the client must see that the response is incomplete
	}
}

// selected returns the last samples of the selected series, sorted by the name of the
// metric. Only the protobuf formats have native histograms.
func (f *federation) selected(ctx context.Context, selectors [][]*labels.Matcher, native bool) ([]federated, error) {
	maxt := f.now().UnixMilli()
	mint := maxt - f.opts.LookbackDelta.Milliseconds()
	querier, err := f.opts.Store.Querier(mint, maxt)
	if err != nil {
		return nil, err
	}
	//lint:ignore errcheck the series were read
	defer querier.Close()
	sets := make([]storage.SeriesSet, 0, len(selectors))
	for _, matchers := range selectors {
		sets = append(sets, querier.Select(ctx, true, &storage.SelectHints{Start: mint, End: maxt}, matchers...))
	}
	set := storage.NewMergeSeriesSet(sets, 0, storage.ChainedSeriesMerge)
	var samples []federated
	var it chunkenc.Iterator
	for set.Next() {
		series := set.At()
		it = series.Iterator(it)
		s, ok := last(it, maxt)
		if err := it.Err(); err != nil {
			return nil, err
		}
		s.labels = series.Labels()
		if s.name = s.labels.Get(labels.MetricName); !ok || s.name == "" ||
			(s.h != nil && !native && !s.h.UsesCustomBuckets()) {
			continue
		}
		if len(samples) == f.opts.SeriesMax && f.opts.SeriesMax > 0 {
			return nil, fmt.Errorf("%w: more than %d", errTooManySeries, f.opts.SeriesMax)
		}
		samples = append(samples, s)
	}
	if err := set.Err(); err != nil {
		return nil, err
	}
	// The set is sorted by labels. Labels whose names sort before __name__, such as A, come first in this order.
	slices.SortStableFunc(samples, func(a, b federated) int { return cmp.Compare(a.name, b.name) })
	return samples, nil
}

// last returns the last sample of a series at or before maxt. ok is false if there is none, or if it is a stale marker.
func last(it chunkenc.Iterator, maxt int64) (s federated, ok bool) {
	for kind := it.Next(); kind != chunkenc.ValNone; kind = it.Next() {
		if it.AtT() > maxt {
			break
		}
		ok, s.kind = true, dto.MetricType_UNTYPED
		if kind == chunkenc.ValFloat {
			s.t, s.f = it.At()
			s.h = nil
			continue
		}
		s.t, s.h = it.AtFloatHistogram(nil)
		s.f, s.kind = 0, dto.MetricType_HISTOGRAM
		if s.h.CounterResetHint == histogram.GaugeType {
			s.kind = dto.MetricType_GAUGE_HISTOGRAM
		}
	}
	if value.IsStaleNaN(s.f) || (s.h != nil && value.IsStaleNaN(s.h.Sum)) {
		return s, false
	}
	return s, ok
}

// write encodes the samples. Adjacent samples with the same name and type form one metric family.
func (f *federation) write(w io.Writer, format expfmt.Format, samples []federated) error {
	encoder := expfmt.NewEncoder(w, format)
	external := f.api.Config().GlobalConfig.ExternalLabels
	// A series without an instance must not get the instance label of the federating scrape.
	instance := external.Has(model.InstanceLabel)
	for len(samples) > 0 {
		n := 1
		for n < len(samples) && samples[n].name == samples[0].name && samples[n].kind == samples[0].kind {
			n++
		}
		family := &dto.MetricFamily{Name: new(samples[0].name), Type: samples[0].kind.Enum()}
		for _, s := range samples[:n] {
			family.Metric = append(family.Metric, s.metric(external, instance))
		}
		if err := encoder.Encode(family); err != nil {
			return err
		}
		samples = samples[n:]
	}
	return nil
}

// metric returns the sample with the labels of its series and the external labels. A label of the series takes
// precedence over an external label of the same name. instance is true if there is an external label instance. If
// neither the series nor the external labels have an instance, metric adds an empty one.
func (s federated) metric(external labels.Labels, instance bool) *dto.Metric {
	m := &dto.Metric{TimestampMs: new(s.t)}
	add := func(name, value string) {
		m.Label = append(m.Label, &dto.LabelPair{Name: new(name), Value: new(value)})
	}
	s.labels.Range(func(l labels.Label) {
		if l.Name != labels.MetricName {
			add(l.Name, l.Value)
		}
	})
	own := func(name string) bool { return s.labels.Has(name) }
	empty := !instance && !own(model.InstanceLabel)
	external.Range(func(l labels.Label) {
		if empty && l.Name > model.InstanceLabel {
			add(model.InstanceLabel, "")
			empty = false
		}
		if !own(l.Name) {
			add(l.Name, l.Value)
		}
	})
	if empty {
		add(model.InstanceLabel, "")
	}
	switch {
	case s.h == nil:
		m.Untyped = &dto.Untyped{Value: new(s.f)}
	case s.h.UsesCustomBuckets():
		m.Histogram = classic(s.h)
	default:
		m.Histogram = native(s.h)
	}
	return m
}

func native(h *histogram.FloatHistogram) *dto.Histogram {
	return &dto.Histogram{
		SampleCountFloat: new(h.Count), SampleSum: new(h.Sum), Schema: new(h.Schema),
		ZeroThreshold: new(h.ZeroThreshold), ZeroCountFloat: new(h.ZeroCount),
		PositiveSpan: spans(h.PositiveSpans), PositiveCount: h.PositiveBuckets,
		NegativeSpan: spans(h.NegativeSpans), NegativeCount: h.NegativeBuckets,
	}
}

func spans(from []histogram.Span) (to []*dto.BucketSpan) {
	for _, s := range from {
		to = append(to, &dto.BucketSpan{Offset: new(s.Offset), Length: new(s.Length)})
	}
	return to
}

// classic converts a native histogram with custom buckets to a classic histogram, with cumulative buckets. The encoder
// adds the +Inf bucket.
func classic(h *histogram.FloatHistogram) *dto.Histogram {
	out := &dto.Histogram{SampleCountFloat: new(h.Count), SampleSum: new(h.Sum)}
	counts := make([]float64, len(h.CustomValues)+1)
	for it := h.PositiveBucketIterator(); it.Next(); {
		if b := it.At(); int(b.Index) < len(counts) {
			counts[b.Index] = b.Count
		}
	}
	sum := 0.0
	for i, bound := range h.CustomValues {
		sum += counts[i]
		out.Bucket = append(out.Bucket, &dto.Bucket{UpperBound: new(bound), CumulativeCountFloat: new(sum)})
	}
	return out
}
