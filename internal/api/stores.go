package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/prometheus/model/exemplar"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/metadata"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/ferula-io/ferula/internal/wire/storeapi"
)

// Stores are many stores read as one, which every request may want differently. With
// them come the parameters of Thanos' API.
type Stores interface {
	Queryable(StoreParams) storage.Queryable
	Exemplars(ctx context.Context, p StoreParams, start, end int64, selectors [][]*labels.Matcher) ([]exemplar.QueryResult, annotations.Annotations, error)
	MetricMetadata(ctx context.Context, p StoreParams, metric string, limit int) (map[string][]metadata.Metadata, annotations.Annotations, error)
	// Targets are active ones, dropped ones or any, as state says.
	Targets(ctx context.Context, p StoreParams, state string) (storeapi.Targets, annotations.Annotations, error)
	// Rules are those that alert, those that record or all, as kind says.
	Rules(ctx context.Context, p StoreParams, kind string) ([]storeapi.RuleGroup, annotations.Annotations, error)
	Statuses() []StoreStatus // in the order in which they are shown
}

// StoreParams are what a request says of the stores.
type StoreParams struct {
	ReplicaLabels []string // series that differ in these only are one; none: all are shown
	Partial       bool     // a missing store is a warning, not an error
	MaxResolution time.Duration
	Stores        [][]*labels.Matcher // of __address__, one set of which must match; none: all
}

// StoreDefaults are what holds where a request says nothing.
type StoreDefaults struct {
	ReplicaLabels     []string
	Partial           bool
	AutoDownsampling  bool          // a fifth of the step is resolution enough
	InstantResolution time.Duration // the same for instant queries
	Lookback          time.Duration // of the engine
	DynamicLookback   bool          // look back as far as the resolution is coarse
	Step              time.Duration // of range queries, at least a 250th of the range; 0: it must be given
	MetadataRange     time.Duration // of requests for labels and series; 0: all times
}

// StoreStatus is one store as /api/v1/stores shows it.
type StoreStatus struct {
	Name         string
	Component    string
	LastCheck    time.Time
	LastError    error
	LabelSets    []labels.Labels
	MinMS, MaxMS int64
}

// purpose is what a request reads stores for.
type purpose struct {
	dedup      bool // parameters about replicas are heeded
	resolution time.Duration
	samples    bool // parameters about samples are heeded
}

// storeParams reads what a request says of the stores.
func (a *API) storeParams(r *http.Request, f purpose) (StoreParams, *apiError) {
	d := a.opts.StoreDefaults
	p := StoreParams{Partial: d.Partial}
	var apiErr *apiError
	if p.Partial, apiErr = optionalBool(r, "partial_response", p.Partial); apiErr != nil {
		return p, apiErr
	}
	for _, text := range r.Form["storeMatch[]"] {
		matchers, err := a.opts.Parser.ParseMetricSelector(text)
		if err != nil {
			return p, invalidParameter("storeMatch[]", err)
		}
		p.Stores = append(p.Stores, matchers)
	}
	if f.dedup {
		dedup, apiErr := optionalBool(r, "dedup", true)
		if apiErr != nil {
			return p, apiErr
		}
		if dedup {
			if p.ReplicaLabels = d.ReplicaLabels; len(r.Form["replicaLabels[]"]) > 0 {
				p.ReplicaLabels = r.Form["replicaLabels[]"]
			}
		}
	}
	if !f.samples {
		return p, nil
	}
	switch engine := r.FormValue("engine"); engine {
	case "", "prometheus":
	case "thanos":
		return p, invalidParameter("engine", errors.New("the engine of Thanos is not here; queries are answered by that of Prometheus"))
	default:
		return p, invalidParameter("engine", fmt.Errorf("'%s' bad engine", engine))
	}
	if r.FormValue("shard_info") != "" {
		return p, invalidParameter("shard_info", errors.New("queries are not sharded here"))
	}
	p.MaxResolution, apiErr = maxResolution(r, d.AutoDownsampling, f.resolution)
	return p, apiErr
}

// maxResolution is the coarsest downsampling that a request lets pass.
func maxResolution(r *http.Request, auto bool, byDefault time.Duration) (time.Duration, *apiError) {
	text := r.FormValue("max_source_resolution")
	if text == "" || text == "auto" {
		if auto || text == "auto" {
			return byDefault, nil
		}
		return 0, nil
	}
	d, err := parseDuration(text)
	if err == nil && d < 0 {
		err = errors.New("negative resolutions are not accepted. Try a positive integer")
	}
	if err != nil {
		return 0, invalidParameter("max_source_resolution", err)
	}
	return d, nil
}

func optionalBool(r *http.Request, name string, byDefault bool) (bool, *apiError) {
	text := r.FormValue(name)
	if text == "" {
		return byDefault, nil
	}
	b, err := strconv.ParseBool(text)
	if err != nil {
		return false, invalidParameter(name, err)
	}
	return b, nil
}

// queryable is the storage that a request reads.
func (a *API) queryable(r *http.Request, f purpose) (storage.Queryable, *apiError) {
	if a.opts.Stores == nil {
		return a.opts.Queryable, nil
	}
	p, apiErr := a.storeParams(r, f)
	if apiErr != nil {
		return nil, apiErr
	}
	return a.opts.Stores.Queryable(p), nil
}

// sampled is the storage that a PromQL query reads, and what it is evaluated with:
// where samples are coarse, what is looked back for must be found.
func (a *API) sampled(r *http.Request, opts promql.QueryOpts, resolution time.Duration) (storage.Queryable, promql.QueryOpts, *apiError) {
	if a.opts.Stores == nil {
		return a.opts.Queryable, opts, nil
	}
	p, apiErr := a.storeParams(r, purpose{dedup: true, samples: true, resolution: resolution})
	if apiErr != nil {
		return nil, nil, apiErr
	}
	if d := a.opts.StoreDefaults; d.DynamicLookback && opts.LookbackDelta() == 0 {
		if coarse := lookbackFor(d.Lookback, p.MaxResolution); coarse > d.Lookback {
			opts = promql.NewPrometheusQueryOpts(opts.EnablePerStepStats(), coarse)
		}
	}
	return a.opts.Stores.Queryable(p), opts, nil
}

// lookbackFor is how far to look back for samples that may be so coarse: as far as
// the coarsest of the two resolutions that blocks are downsampled to.
func lookbackFor(lookback, resolution time.Duration) time.Duration {
	switch {
	case resolution > max(5*time.Minute, lookback):
		return max(time.Hour, lookback)
	case resolution > lookback:
		return max(5*time.Minute, lookback)
	}
	return lookback
}

// metadataRange is the range of a request for labels or series.
func (a *API) metadataRange(r *http.Request) (start, end time.Time, apiErr *apiError) {
	if d := a.opts.StoreDefaults.MetadataRange; d > 0 {
		now := a.opts.Now()
		if start, apiErr = optionalTime(r, "start", now.Add(-d)); apiErr != nil {
			return start, end, apiErr
		}
		end, apiErr = optionalTime(r, "end", now)
		return start, end, apiErr
	}
	return optionalRange(r)
}

// storeMetadata unites what the stores say of metrics.
func (a *API) storeMetadata(r *http.Request) (answer, *apiError) {
	limit, apiErr := optionalInt(r, "limit")
	if apiErr != nil {
		return answer{}, apiErr
	}
	perMetric, apiErr := optionalInt(r, "limit_per_metric")
	if apiErr != nil {
		return answer{}, apiErr
	}
	p, apiErr := a.storeParams(r, purpose{})
	if apiErr != nil {
		return answer{}, apiErr
	}
	found, warnings, err := a.opts.Stores.MetricMetadata(r.Context(), p, r.FormValue("metric"), limit)
	if err != nil {
		return answer{}, queryError(err)
	}
	for name, list := range found {
		if perMetric > 0 && len(list) > perMetric {
			found[name] = list[:perMetric]
		}
	}
	return answer{write: func(s *stream) { s.families(found, limit) }, notes: &notes{list: warnings}}, nil
}

// stores lists the stores by what they are, as Thanos does.
func (a *API) stores(*http.Request) (answer, *apiError) {
	by := map[string][]StoreStatus{}
	for _, s := range a.opts.Stores.Statuses() {
		component := s.Component
		if component == "" {
			component = "unknown-store-api"
		}
		by[component] = append(by[component], s)
	}
	return answer{write: func(s *stream) {
		s.raw("{")
		for i, component := range sortedKeys(by) {
			s.comma(i)
			s.str(component)
			s.raw(":[")
			for j, status := range by[component] {
				s.comma(j)
				s.storeStatus(status)
				s.room()
			}
			s.raw("]")
		}
		s.raw("}")
	}}, nil
}

func (s *stream) storeStatus(status StoreStatus) {
	s.field(`{"name":`, status.Name)
	s.raw(`,"lastCheck":`)
	s.moment(status.LastCheck)
	s.raw(`,"lastError":`)
	if status.LastError == nil {
		s.raw("null")
	} else {
		s.str(status.LastError.Error())
	}
	s.raw(`,"labelSets":[`)
	for i, set := range status.LabelSets {
		s.comma(i)
		s.labels(set)
	}
	s.raw(`],"minTime":`)
	s.integer(status.MinMS)
	s.raw(`,"maxTime":`)
	s.integer(status.MaxMS)
	s.raw("}")
}
