package scrape

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/exemplar"
	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/metadata"
	"github.com/prometheus/prometheus/model/relabel"
	"github.com/prometheus/prometheus/model/textparse"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/storage"
)

var (
	errNoName        = fmt.Errorf("missing metric name (%s label)", model.MetricNameLabel)
	errSampleLimit   = errors.New("sample limit exceeded")
	errBucketLimit   = errors.New("histogram bucket limit exceeded")
	errBodySizeLimit = errors.New("body size limit exceeded")
)

// maxAhead is how far a timestamp of a page may lie in the future.
const maxAhead = 10 * time.Minute

var staleNaN = math.Float64frombits(value.StaleNaN)

// page appends the samples of one page.
type page struct {
	*loop
	app limited
	t   int64 // of the scrape, in milliseconds

	total, kept, added                       int     // samples in the page, after metric relabeling, of new series
	samplesErr, bucketsErr                   error   // a limit that the page exceeds
	labelLimit                               bool    // so does a series
	change                                   *change // nil for a whole page
	late, duplicates, outside, lateExemplars int
}

func (l *loop) newPage(app storage.AppenderV2, ts time.Time) *page {
	return &page{loop: l, t: ts.UnixMilli(), app: limited{AppenderV2: app,
		maxTime: time.Now().Add(maxAhead).UnixMilli(), maxSchema: maxSchema(l.cfg.NativeHistogramMinBucketFactor),
		maxSamples: int(l.cfg.SampleLimit), maxBuckets: int(l.cfg.NativeHistogramBucketLimit)}}
}

// append appends the samples of a body, then staleness markers for the series that the body does not have. A body
// without bytes stands for a scrape that failed. After an error the caller rolls back.
func (p *page) append(body []byte, contentType string) error {
	if len(body) == 0 {
		p.cache.leaveLayout()
		err := p.markStale(p.app.AppenderV2)
		p.done(false)
		return err
	}
	if p.appendKnown(body, contentType) || p.appendChanged(body, contentType) {
		return nil
	}
	p.cache.leaveLayout()
	b := layoutBuilder{refused: p.opts.AppendMetadata || p.opts.ParseST || p.convertClassic || !p.cache.wantsLayout()}
	if err := p.parse(body, contentType, &b); err != nil {
		return p.finish(err)
	}
	if err := p.finish(nil); err != nil {
		return err
	}
	p.cache.enterLayout(b.build(body, contentType), b.samples)
	return nil
}

func (p *page) done(ok bool) {
	if p.cache.done(ok) {
		p.metrics.cacheFlushes.Inc()
	}
}

// finish counts and logs what was refused, and appends staleness markers unless the page has an error.
func (p *page) finish(err error) error {
	if p.samplesErr != nil {
		err = cmp.Or(err, p.samplesErr)
		p.metrics.sampleLimit.Inc()
	}
	if p.bucketsErr != nil {
		err = cmp.Or(err, p.bucketsErr)
		p.metrics.bucketLimit.Inc()
	}
	if p.labelLimit {
		p.metrics.labelLimits.Inc()
	}
	for _, refused := range []struct {
		n    int
		text string
	}{
		{p.late, "Error on ingesting out-of-order samples"},
		{p.duplicates, "Error on ingesting samples with different value but same timestamp"},
		{p.outside, "Error on ingesting samples that are too old or are too far into the future"},
		{p.lateExemplars, "Error on ingesting out-of-order exemplars"},
	} {
		if refused.n > 0 {
			p.logger.Warn(refused.text, "num_dropped", refused.n)
		}
	}
	if err == nil {
		err = p.markStale(&p.app)
	}
	if err == nil {
		p.done(true)
	}
	return err
}

// markStale appends a staleness marker for each series that the page before had and this page does not have.
func (p *page) markStale(app storage.AppenderV2) error {
	for ref, s := range p.cache.before {
		if _, ok := p.cache.tracked[ref]; ok {
			continue
		}
		_, err := app.Append(s.ref, s.labels, 0, p.t, staleNaN, nil, nil, storage.AOptions{RejectOutOfOrder: true})
		// A target that came back in another loop has newer samples.
		if err != nil && !isLate(err) {
			return err
		}
	}
	return nil
}

func isLate(err error) bool {
	return errors.Is(err, storage.ErrOutOfOrderSample) || errors.Is(err, storage.ErrDuplicateSampleForTimestamp)
}

// parser returns the library's parser for a body.
func (l *loop) parser(body []byte, contentType string) (textparse.Parser, error) {
	return textparse.New(body, contentType, l.symbols, textparse.ParserOptions{
		EnableTypeAndUnitLabels:                 l.opts.EnableTypeAndUnitLabels,
		IgnoreNativeHistograms:                  !l.nativeHistograms,
		ConvertClassicHistogramsToNHCB:          l.convertClassic,
		KeepClassicOnClassicAndNativeHistograms: l.keepClassic,
		OpenMetricsSkipSTSeries:                 l.opts.ParseST,
		EnableOpenMetrics2:                      l.opts.EnableOpenMetrics2,
		FallbackContentType:                     l.cfg.ScrapeFallbackProtocol.HeaderMediaType(),
	})
}

// parse appends the samples of a body with the library's parser.
func (p *page) parse(body []byte, contentType string, b *layoutBuilder) error {
	parser, err := p.parser(body, contentType)
	fallback := p.cfg.ScrapeFallbackProtocol.HeaderMediaType()
	about := []any{"content_type", contentType, "fallback_media_type", fallback, "err", err}
	if parser == nil {
		p.logger.Error("Failed to determine correct type of scrape target.", about...)
		return err
	}
	if err != nil {
		p.logger.Debug("Invalid content type on scrape, using fallback setting.", about...)
	}
	_, b.exemplars = parser.(*textparse.OpenMetricsParser)
	var in entry
	for {
		kind, err := parser.Next()
		if d := p.change; d != nil {
			if err := p.appendUnchanged(d); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		switch kind {
		case textparse.EntryType:
			name, t := parser.Type()
			in.describe(p, name, func(m *metadata.Metadata) { m.Type = t })
		case textparse.EntryHelp:
			name, help := parser.Help()
			in.describe(p, name, func(m *metadata.Metadata) {
				if m.Help != string(help) {
					m.Help = string(help)
				}
			})
		case textparse.EntryUnit:
			name, unit := parser.Unit()
			in.describe(p, name, func(m *metadata.Metadata) { m.Unit = string(unit) })
		case textparse.EntryComment:
		default:
			if err := p.appendEntry(parser, kind == textparse.EntryHistogram, &in, b); err != nil {
				if p.change == nil && !errors.Is(err, storage.ErrNotFound) {
					p.logger.Debug("Unexpected error", "series", string(in.text), "err", err)
				}
				return err
			}
		}
	}
}

// entry is the state of parse between two lines.
type entry struct {
	text      []byte // of the current series
	exemplars []exemplar.Exemplar
	exemplar  exemplar.Exemplar // that a parser writes; a variable would be allocated for each sample
	family    []byte            // whose metadata was last
	meta      *family
}

func (e *entry) describe(p *page, name []byte, change func(*metadata.Metadata)) {
	e.family, e.meta = name, p.cache.meta.set(name, p.cache.scrape, change)
}

// appendEntry appends the sample at which the parser stands.
func (p *page) appendEntry(parser textparse.Parser, isHistogram bool, in *entry, b *layoutBuilder) error {
	p.total++
	var (
		at *int64
		v  float64
		h  *histogram.Histogram
		fh *histogram.FloatHistogram
	)
	if isHistogram {
		in.text, at, h, fh = parser.Histogram()
	} else {
		in.text, at, v = parser.Series()
	}
	if at != nil || isHistogram {
		b.refuse()
	}
	if !p.cfg.HonorTimestamps {
		at = nil
	}
	t := p.t
	if at != nil {
		t = *at
	}

	s, again := p.cache.get(in.text)
	if s != nil && s.dropped() {
		b.add(in.text, v, s)
		return nil
	}
	was := s != nil
	var l labels.Labels
	var ref storage.SeriesRef
	if was {
		l, ref = s.labels, s.ref
	} else {
		parser.Labels(&l)
		if l = p.sampleLabels(l); l.IsEmpty() {
			b.add(in.text, v, p.cache.add(string(in.text), 0, l))
			return nil
		}
		if err := p.checkLabels(l); err != nil {
			return err
		}
	}

	in.exemplars = in.exemplars[:0]
	var err error
	if again && at == nil {
		err = storage.ErrDuplicateSampleForTimestamp
	} else {
		if isHistogram && h == nil && fh == nil {
			return fmt.Errorf("the parser returned no histogram for the histogram %s", l)
		}
		var opts storage.AOptions
		in.readExemplars(parser, isHistogram, t)
		if len(in.exemplars) > 0 {
			if !b.exemplars {
				b.refuse()
			}
			slices.SortFunc(in.exemplars, exemplar.Compare)
			opts.Exemplars = in.exemplars
		}
		if p.opts.AppendMetadata && in.meta != nil {
			if partOf(l.Get(model.MetricNameLabel), string(in.family), in.meta.metadata.Value().Type) {
				opts.MetricFamilyName, opts.Metadata = string(in.family), in.meta.metadata.Value()
			} else {
				in.meta = nil // it does not describe the lines after this one, either
			}
		}
		var st int64
		if p.opts.ParseST {
			st = parser.StartTimestamp()
		}
		ref, err = p.app.Append(ref, l, st, t, v, h, fh, opts)
		if err == nil && was {
			p.cache.moved(s, ref)
		}
	}
	if d := p.change; d != nil && err != nil {
		d.ref, d.err = ref, err
		return err
	}
	ok, err := p.settle(in.text, in.exemplars, err)
	if err != nil {
		return err
	}
	switch {
	case !ok:
		b.refuse()
	case !was:
		s = p.cache.add(string(in.text), ref, l)
		if p.samplesErr == nil && p.bucketsErr == nil {
			p.added++
		}
	}
	if ok && s.ref != 0 && (at == nil || p.cfg.TrackTimestampsStaleness) {
		p.cache.tracked[s.ref] = s // it gets no staleness marker at the end of this scrape
	}
	b.add(in.text, v, s)
	p.kept++ // of series that were refused, too: the number after metric relabeling
	return nil
}

// readExemplars collects the exemplars of the current sample. Exemplars of native histograms must have a timestamp.
func (e *entry) readExemplars(parser textparse.Parser, isHistogram bool, t int64) {
	for {
		x := &e.exemplar
		if *x = (exemplar.Exemplar{}); !parser.Exemplar(x) {
			return
		}
		if !x.HasTs {
			if isHistogram {
				continue
			}
			x.Ts = t
		}
		e.exemplars = append(e.exemplars, *x)
	}
}

// settle decides about the error of an append: ok says that the sample is in the storage, an error ends the page.
func (p *page) settle(text []byte, exemplars []exemplar.Exemplar, err error) (ok bool, _ error) {
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, errSampleLimit): // the rest of the page is counted
		p.samplesErr = err
	case errors.Is(err, errBucketLimit):
		p.bucketsErr = err
	case errors.Is(err, storage.ErrOutOfOrderSample):
		p.late++
		p.logger.Debug("Out of order sample", "series", string(text))
		p.metrics.outOfOrder.Inc()
	case errors.Is(err, storage.ErrDuplicateSampleForTimestamp):
		p.duplicates++
		p.logger.Debug("Duplicate sample for timestamp", "series", string(text))
		p.metrics.duplicate.Inc()
	case errors.Is(err, storage.ErrOutOfBounds):
		p.outside++
		p.logger.Debug("Out of bounds metric", "series", string(text))
		p.metrics.outOfBounds.Inc()
	case errors.Is(err, storage.ErrNotFound):
		return false, storage.ErrNotFound
	default:
		partial, isPartial := errors.AsType[*storage.AppendPartialError](err)
		if !isPartial {
			return false, err
		}
		late := 0
		for _, e := range partial.ExemplarErrors {
			if errors.Is(e, storage.ErrOutOfOrderExemplar) {
				late++
			}
		}
		if late > 0 && late == len(exemplars) { // otherwise some were new
			p.lateExemplars += late
			p.logger.Debug("Out of order exemplars", "count", late, "latest", fmt.Sprintf("%+v", exemplars[late-1]))
			p.metrics.exemplarOutOfOrder.Add(float64(late))
		}
		return true, nil
	}
	return false, nil
}

// sampleLabels returns the labels of a series of the target. They are empty if metric relabeling drops the series.
func (l *loop) sampleLabels(exposed labels.Labels) labels.Labels {
	b := labels.NewBuilder(exposed)
	var conflicts []labels.Label
	l.target.LabelsRange(func(of labels.Label) {
		if l.cfg.HonorLabels {
			if !exposed.Has(of.Name) {
				b.Set(of.Name, of.Value)
			}
			return
		}
		if v := exposed.Get(of.Name); v != "" {
			conflicts = append(conflicts, labels.Label{Name: of.Name, Value: v})
		}
		b.Set(of.Name, of.Value)
	})
	// The shortest first, so that exported_x of the page does not take the name that x needs.
	slices.SortStableFunc(conflicts, func(a, b labels.Label) int { return len(a.Name) - len(b.Name) })
	for _, c := range conflicts {
		name := model.ExportedLabelPrefix + c.Name
		for b.Get(name) != "" {
			name = model.ExportedLabelPrefix + name
		}
		b.Set(name, c.Value)
	}
	if !relabel.ProcessBuilder(b, l.cfg.MetricRelabelConfigs...) {
		return labels.EmptyLabels()
	}
	return b.Labels()
}

// checkLabels checks the labels of a new series.
func (p *page) checkLabels(l labels.Labels) error {
	if !l.Has(model.MetricNameLabel) {
		return errNoName
	}
	if !l.IsValid(p.cfg.MetricNameValidationScheme) {
		return fmt.Errorf("invalid metric name or label names: %s", l)
	}
	err := p.checkLabelLimits(l)
	p.labelLimit = err != nil
	return err
}

func (p *page) checkLabelLimits(l labels.Labels) error {
	name := l.Get(model.MetricNameLabel)
	if limit := int(p.cfg.LabelLimit); limit > 0 && l.Len() > limit {
		return fmt.Errorf("label_limit exceeded (metric: %.50s, number of labels: %d, limit: %d)", name, l.Len(), limit)
	}
	names, values := int(p.cfg.LabelNameLengthLimit), int(p.cfg.LabelValueLengthLimit)
	return l.Validate(func(l labels.Label) error {
		if n := len(l.Name); names > 0 && n > names {
			return fmt.Errorf("label_name_length_limit exceeded (metric: %.50s, label name: %.50s, length: %d, limit: %d)",
				name, l.Name, n, names)
		}
		if n := len(l.Value); values > 0 && n > values {
			return fmt.Errorf("label_value_length_limit exceeded (metric: %.50s, label name: %.50s, value: %.50q, "+
				"length: %d, limit: %d)", name, l.Name, l.Value, n, values)
		}
		return nil
	})
}

// partOf says whether a metric belongs to a family. A page may leave out metadata, so that the family before it is
// another one.
func partOf(metric, family string, t model.MetricType) bool {
	var suffixes []string
	switch t {
	case model.MetricTypeCounter:
		suffixes, family = []string{"_total"}, strings.TrimSuffix(family, "_total")
	case model.MetricTypeHistogram:
		suffixes = []string{"_bucket", "_sum", "_count"}
	case model.MetricTypeGaugeHistogram:
		suffixes = []string{"_bucket", "_gsum", "_gcount"}
	case model.MetricTypeSummary:
		suffixes = []string{"_sum", "_count"}
	case model.MetricTypeInfo:
		suffixes, family = []string{"_info"}, strings.TrimSuffix(family, "_info")
	}
	for _, s := range suffixes {
		if name, ok := strings.CutSuffix(metric, s); ok {
			return name == family
		}
	}
	return metric == family
}

// limited is an appender with the limits of a scrape configuration.
type limited struct {
	storage.AppenderV2
	maxTime                         int64
	maxSchema                       int32
	maxSamples, maxBuckets, samples int // 0: no limit
}

func (a *limited) Append(ref storage.SeriesRef, l labels.Labels, st, t int64, v float64, h *histogram.Histogram,
	fh *histogram.FloatHistogram, opts storage.AOptions) (storage.SeriesRef, error) {
	var err error
	if h != nil {
		err = a.reduce(h, &h.Schema, func() int { return len(h.PositiveBuckets) + len(h.NegativeBuckets) })
	}
	if fh != nil && err == nil {
		err = a.reduce(fh, &fh.Schema, func() int { return len(fh.PositiveBuckets) + len(fh.NegativeBuckets) })
	}
	if err != nil {
		return 0, err
	}
	// The staleness marker of a series in the storage is always written.
	if a.maxSamples > 0 && (ref == 0 || !value.IsStaleNaN(v)) {
		if a.samples++; a.samples > a.maxSamples {
			return 0, errSampleLimit
		}
	}
	if t > a.maxTime {
		return 0, storage.ErrOutOfBounds
	}
	return a.AppenderV2.Append(ref, l, st, t, v, h, fh, opts)
}

// reduce lowers the resolution of a histogram to the limits.
func (a *limited) reduce(h interface{ ReduceResolution(int32) error }, schema *int32, buckets func() int) error {
	if a.maxSchema < histogram.ExponentialSchemaMax && histogram.IsExponentialSchemaReserved(*schema) &&
		*schema > a.maxSchema {
		if err := h.ReduceResolution(a.maxSchema); err != nil {
			return err
		}
	}
	for a.maxBuckets > 0 && buckets() > a.maxBuckets {
		if !histogram.IsExponentialSchema(*schema) || *schema <= histogram.ExponentialSchemaMin {
			return errBucketLimit
		}
		if err := h.ReduceResolution(*schema - 1); err != nil {
			return err
		}
	}
	return nil
}

// maxSchema returns the schema whose buckets grow by the factor at least.
func maxSchema(factor float64) int32 {
	if factor <= 1 {
		factor = 1.00271
	}
	schema := math.Floor(-math.Log2(math.Log2(factor)))
	return int32(min(max(schema, float64(histogram.ExponentialSchemaMin)), float64(histogram.ExponentialSchemaMax)))
}

var _ storage.AppenderV2 = (*limited)(nil)

// reports are the series that describe a scrape.
var reports = [...]struct {
	name, help, unit string
	extra            bool // only with extra_scrape_metrics
}{
	{"up", "Health of the scrape target. 1 means the target is healthy, 0 if the scrape failed.", "targets", false},
	{"scrape_duration_seconds", "Duration of the last scrape in seconds.", "seconds", false},
	{"scrape_samples_scraped", "Number of samples last scraped.", "samples", false},
	{"scrape_samples_post_metric_relabeling",
		"Number of samples remaining after metric relabeling was applied.", "samples", false},
	{"scrape_series_added", "Number of series in the last scrape.", "series", false},
	{"scrape_timeout_seconds", "The configured scrape timeout for a target.", "seconds", true},
	{"scrape_sample_limit",
		"The configured sample limit for a target. Returns zero if there is no limit configured.", "samples", true},
	{"scrape_body_size_bytes", "The uncompressed size of the last scrape response, if successful. " +
		"Scrapes failing because body_size_limit is exceeded report -1, other scrape failures report 0.", "bytes", true},
}

// appendReports appends the samples that describe a scrape; rejectLate is for staleness markers.
func (l *loop) appendReports(app storage.AppenderV2, ts time.Time, values [len(reports)]float64,
	rejectLate bool) error {
	for i, r := range reports {
		if r.extra && !l.cfg.ExtraScrapeMetricsEnabled() {
			continue
		}
		k := &l.cache.reports[i]
		of := k.labels
		if k.dropped() {
			of = l.reportLabels(r.name)
		}
		ref, err := app.Append(k.ref, of, 0, ts.UnixMilli(), values[i], nil, nil, storage.AOptions{
			// The name ends in a byte that no metric of a page has.
			MetricFamilyName: r.name + "\xff", RejectOutOfOrder: rejectLate,
			Metadata: metadata.Metadata{Type: model.MetricTypeGauge, Help: r.help, Unit: r.unit},
		})
		if err != nil && !isLate(err) {
			return err
		}
		if err == nil && k.dropped() {
			*k = known{of, ref}
		}
	}
	return nil
}

func (l *loop) reportLabels(name string) labels.Labels {
	set := labels.FromStrings(model.MetricNameLabel, name)
	b := labels.NewBuilder(set)
	l.target.LabelsRange(func(of labels.Label) {
		b.Set(model.ExportedLabelPrefix+of.Name, set.Get(of.Name))
		b.Set(of.Name, of.Value)
	})
	return b.Labels()
}
