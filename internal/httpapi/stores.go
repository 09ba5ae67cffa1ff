package httpapi

import (
	"cmp"
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
	"go.yaml.in/yaml/v3"

	"github.com/ferula-io/ferula/internal/thanos/fanout"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

// Stores are the stores of a querier; StoresOf returns those of a fan-out. An API with Stores accepts the query
// parameters of Thanos' API.
type Stores interface {
	Query(fanout.Request) StoreQuery
	Statuses() []fanout.Status // in display order
}

// StoreQuery reads the stores of one request as one; *fanout.Query implements it.
type StoreQuery interface {
	storage.Queryable
	Exemplars(ctx context.Context, start, end int64,
		selectors [][]*labels.Matcher) ([]exemplar.QueryResult, annotations.Annotations, error)
	MetricMetadata(ctx context.Context, metric string,
		limit int) (map[string][]metadata.Metadata, annotations.Annotations, error)
	// Targets returns targets by state: "active", "dropped" or "any".
	Targets(ctx context.Context, state string) (storeapi.Targets, annotations.Annotations, error)
	// Rules returns rules by kind: "alert", "record" or "all". All sets of matchers must match
	// the labels of a rule, replica labels included.
	Rules(ctx context.Context, kind string,
		matchers [][]*labels.Matcher) ([]storeapi.RuleGroup, annotations.Annotations, error)
	// TSDBStatistics returns the sum of the statistics of all TSDBs whose external labels match,
	// at most limit entries in a list.
	TSDBStatistics(ctx context.Context, matchers []*labels.Matcher,
		limit int) (storeapi.TSDBStatistics, annotations.Annotations, error)
}

// StoresOf returns the stores of endpoints, read by f.
func StoresOf(f *fanout.Fanout, endpoints *fanout.Endpoints) Stores { return stores{f, endpoints} }

type stores struct {
	fanout *fanout.Fanout
	*fanout.Endpoints
}

func (s stores) Query(r fanout.Request) StoreQuery { return s.fanout.Queryable(r) }

// StoreDefaults are the defaults of parameters that a request omits.
type StoreDefaults struct {
	ReplicaLabels     []string
	Partial           bool
	AutoDownsampling  bool          // max_source_resolution is a fifth of the step
	InstantResolution time.Duration // max_source_resolution of instant queries with AutoDownsampling
	Lookback          time.Duration // of the engine
	DynamicLookback   bool          // lookback is at least the resolution
	Step              time.Duration // minimum of the default step, which is a 250th of the range; 0: `step` is required
	MetadataRange     time.Duration // default range of label and series requests; 0: unlimited
	Tenancy           Tenancy
}

// purpose selects which store parameters apply to a request.
type purpose struct {
	dedup bool // the parameters dedup and replicaLabels[] apply
	// value of max_source_resolution=auto; with AutoDownsampling also of requests without the parameter
	resolution time.Duration
	samples    bool // the parameters engine, shard_info and max_source_resolution apply
	// engine=thanos is accepted, too: clients of Thanos send it, because Thanos explains queries of this engine only
	plan bool
}

// storeParams parses the store parameters of a request.
func (a *API) storeParams(r *http.Request, f purpose) (p fanout.Request, apiErr *apiError) {
	d := a.opts.StoreDefaults
	if p.Tenant, p.Matchers, apiErr = d.Tenancy.of(r); apiErr != nil {
		return p, apiErr
	}
	partial, apiErr := optional(r, "partial_response", d.Partial, strconv.ParseBool)
	if apiErr != nil {
		return p, apiErr
	}
	p.AbortOnPartial = !partial
	for _, text := range r.Form["storeMatch[]"] {
		matchers, err := a.opts.Parser.ParseMetricSelector(text)
		if err != nil {
			return p, invalidParameter("storeMatch[]", err)
		}
		p.Stores = append(p.Stores, matchers)
	}
	if f.dedup {
		dedup, apiErr := optional(r, "dedup", true, strconv.ParseBool)
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
		if f.plan {
			break
		}
		return p, invalidParameter("engine", errors.New("the Thanos engine is not supported, use prometheus"))
	default:
		return p, invalidParameter("engine", fmt.Errorf("'%s' bad engine", engine))
	}
	if p.Shard, apiErr = optional(r, "shard_info", nil, parseShard); apiErr != nil {
		return p, apiErr
	}
	resolution, apiErr := maxResolution(r, d.AutoDownsampling, f.resolution)
	p.MaxResolutionMS = resolution.Milliseconds()
	return p, apiErr
}

// ofStores responds with what read returns of the stores.
func ofStores[T any](a *API, r *http.Request, f purpose, read func(StoreQuery) (T, annotations.Annotations, error),
	write func(*stream, T)) (response, *apiError) {
	p, apiErr := a.storeParams(r, f)
	if apiErr != nil {
		return response{}, apiErr
	}
	found, warnings, err := read(a.opts.Stores.Query(p))
	if err != nil {
		return response{}, queryError(err)
	}
	return response{write: func(s *stream) { write(s, found) }, annotations: &responseAnnotations{list: warnings}}, nil
}

// shardMax is the longest shard_info, in bytes.
const shardMax = 64 << 10

// parseShard parses Thanos' JSON of a vertical shard with the YAML parser, which reads JSON as well.
func parseShard(text string) (*storeapi.Shard, error) {
	if len(text) > shardMax {
		return nil, fmt.Errorf("more than %d bytes", shardMax)
	}
	var s struct {
		Index  int64    `yaml:"shard_index"`
		Total  int64    `yaml:"total_shards"`
		By     bool     `yaml:"by"`
		Labels []string `yaml:"labels"`
	}
	if err := yaml.Unmarshal([]byte(text), &s); err != nil {
		return nil, err
	}
	switch {
	case s.Total == 0: // as in Thanos, no shard
		return nil, nil
	case s.Index < 0 || s.Index >= s.Total:
		return nil, fmt.Errorf("shard_index %d is not in 0..%d", s.Index, s.Total-1)
	}
	return &storeapi.Shard{Index: s.Index, Total: s.Total, By: s.By, Labels: s.Labels}, nil
}

// maxResolution parses `max_source_resolution`, the coarsest downsampling that a request
// accepts.
func maxResolution(r *http.Request, auto bool, byDefault time.Duration) (time.Duration, *apiError) {
	const name = "max_source_resolution"
	if text := r.FormValue(name); text == "auto" || text == "" && auto {
		return byDefault, nil
	}
	return optional(r, name, 0, func(text string) (time.Duration, error) {
		d, err := parseDuration(text)
		if err == nil && d < 0 {
			err = errors.New("negative resolutions are not accepted. Try a positive integer")
		}
		return d, err
	})
}

func (a *API) queryable(r *http.Request, f purpose) (storage.Queryable, *apiError) {
	if a.opts.Stores == nil {
		return a.opts.Queryable, nil
	}
	p, apiErr := a.storeParams(r, f)
	if apiErr != nil {
		return nil, apiErr
	}
	return a.opts.Stores.Query(p), nil
}

// samplesQueryable returns the storage of a PromQL query and the options of its
// evaluation. With downsampled data the lookback is raised to at least the resolution.
func (a *API) samplesQueryable(r *http.Request, opts promql.QueryOpts, resolution time.Duration,
	plan bool) (storage.Queryable, promql.QueryOpts, *apiError) {
	if a.opts.Stores == nil {
		return a.opts.Queryable, opts, nil
	}
	p, apiErr := a.storeParams(r, purpose{dedup: true, samples: true, plan: plan, resolution: resolution})
	if apiErr != nil {
		return nil, nil, apiErr
	}
	if d := a.opts.StoreDefaults; d.DynamicLookback && opts.LookbackDelta() == 0 {
		if raised := lookbackFor(d.Lookback, time.Duration(p.MaxResolutionMS)*time.Millisecond); raised > d.Lookback {
			opts = promql.NewPrometheusQueryOpts(opts.EnablePerStepStats(), raised)
		}
	}
	return a.opts.Stores.Query(p), opts, nil
}

// lookbackFor returns the lookback delta for samples of a resolution. If the resolution is above
// the lookback, the result is at least 5 min or 1 h, the two resolutions of downsampled blocks.
func lookbackFor(lookback, resolution time.Duration) time.Duration {
	switch {
	case resolution > max(5*time.Minute, lookback):
		return max(time.Hour, lookback)
	case resolution > lookback:
		return max(5*time.Minute, lookback)
	}
	return lookback
}

// metadataRange parses the time range of a label or series request.
func (a *API) metadataRange(r *http.Request) (start, end time.Time, apiErr *apiError) {
	if d := a.opts.StoreDefaults.MetadataRange; d > 0 {
		now := a.opts.Now()
		if start, apiErr = optionalTime(r, "start", now.Add(-d)); apiErr != nil {
			return start, end, apiErr
		}
		if end, apiErr = optionalTime(r, "end", now); apiErr != nil {
			return start, end, apiErr
		}
	} else if start, end, apiErr = optionalRange(r); apiErr != nil {
		return start, end, apiErr
	}
	if a.opts.Stores != nil && end.Before(start) { // Prometheus responds with an empty list
		return start, end, badData(errors.New("end timestamp must not be before start time"))
	}
	return start, end, nil
}

// storeMetadata returns the merged metric metadata of all stores.
func (a *API) storeMetadata(r *http.Request) (response, *apiError) {
	limit, perMetric, apiErr := metadataLimits(r)
	if apiErr != nil {
		return response{}, apiErr
	}
	return ofStores(a, r, purpose{}, func(q StoreQuery) (map[string][]metadata.Metadata, annotations.Annotations, error) {
		return q.MetricMetadata(r.Context(), r.FormValue("metric"), limit)
	}, func(s *stream, found map[string][]metadata.Metadata) {
		for name, list := range found {
			if perMetric > 0 && len(list) > perMetric {
				found[name] = list[:perMetric]
			}
		}
		s.families(found, limit)
	})
}

// stores returns the stores by component, as Thanos does.
func (a *API) stores(*http.Request) (response, *apiError) {
	type status struct {
		Name      string          `json:"name"`
		LastCheck time.Time       `json:"lastCheck"`
		LastError *string         `json:"lastError"`
		LabelSets []labels.Labels `json:"labelSets"`
		MinTime   int64           `json:"minTime"`
		MaxTime   int64           `json:"maxTime"`
	}
	byComponent := map[string][]status{}
	for _, of := range a.opts.Stores.Statuses() {
		s := status{of.Name, of.LastCheck, nil, append([]labels.Labels{}, of.LabelSets...), of.MinMS, of.MaxMS}
		if of.LastError != nil {
			s.LastError = new(of.LastError.Error())
		}
		component := cmp.Or(of.Component, "unknown-store-api")
		byComponent[component] = append(byComponent[component], s)
	}
	return response{write: func(s *stream) { s.value(byComponent) }}, nil
}
