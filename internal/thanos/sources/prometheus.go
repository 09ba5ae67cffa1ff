// Package sources has the StoreAPIs of a server's own data.
//
// Local reads the TSDB and the rules of this process. Prometheus reads samples of a Prometheus from its blocks or by
// remote read, and labels, exemplars, rules, targets and the configuration by its HTTP API. Nothing is cached here.
package sources

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"

	"github.com/prometheus/prometheus/model/exemplar"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/metadata"
	"golang.org/x/sync/semaphore"

	"github.com/ferula-io/ferula/internal/bucket"
	"github.com/ferula-io/ferula/internal/process/telemetry"
	"github.com/ferula-io/ferula/internal/remoteread"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
	"github.com/ferula-io/ferula/internal/tsdb"
	"github.com/ferula-io/ferula/metrics"
)

// ErrUnsupported is returned for a Prometheus without external labels or with other settings that a sidecar does not
// support. The sidecar exits with this error, because only a change of the configuration helps.
var ErrUnsupported = errors.New("unsupported Prometheus configuration")

// PrometheusOptions of a Prometheus.
type PrometheusOptions struct {
	URL           *url.URL // of Prometheus
	HTTP          *http.Client
	MinTimeMS     func() int64 // samples before it are not served; nil: no limit
	SelectionsMax int          // maximum of concurrent remote reads of one Series request; 0: 3
	ReadsMax      int          // maximum of concurrent remote reads of all requests, at least SelectionsMax; 0: 8
	SortBytesMax  int          // memory to sort the series of one request
	// Blocks are the blocks in Prometheus' directory, which are read instead of Prometheus; nil: none.
	Blocks *tsdb.ServedBlocks
}

func (o PrometheusOptions) withDefaults() PrometheusOptions {
	if o.SelectionsMax <= 0 {
		o.SelectionsMax = defaultSelectionsMax
	}
	if o.ReadsMax <= 0 {
		o.ReadsMax = defaultReadsMax
	}
	o.ReadsMax = max(o.ReadsMax, o.SelectionsMax)
	if o.MinTimeMS == nil {
		o.MinTimeMS = func() int64 { return math.MinInt64 }
	}
	return o
}

// Prometheus implements storeapi.Source on the HTTP API and the remote read endpoint of a
// Prometheus. Refresh must be called before it serves requests.
type Prometheus struct {
	api     *client
	read    *remoteread.Client
	blocks  *tsdb.ServedBlocks // nil: none
	minTime func() int64
	up      *metrics.Gauge
	changed chan struct{} // see Changed

	selectionsMax int                 // maximum of concurrent remote reads of one Series request
	reads         *semaphore.Weighted // slots for remote reads, of all requests
	sortBytes     int                 // memory to sort the series of one request

	// unsorted is set once the server has returned series that are not sorted by labels, as servers other than Prometheus
	// may do. The client then sorts the series of later requests.
	unsorted atomic.Bool

	mu       sync.RWMutex
	err      error // of the last refresh
	external labels.Labels
	mint     int64
}

var _ storeapi.Source = (*Prometheus)(nil)

// NewPrometheus returns the store of a Prometheus. It sends no request.
func NewPrometheus(o PrometheusOptions, reg *telemetry.Registry) *Prometheus {
	o = o.withDefaults()
	return &Prometheus{
		api: newClient(o.URL, o.HTTP),
		read: remoteread.NewClient(remoteread.ClientOptions{URL: o.URL.JoinPath("api/v1/read").String(), HTTP: o.HTTP,
			HoldBytesMax: holdBytesMax, ReadAheadBytes: 512}),
		blocks:  o.Blocks,
		minTime: o.MinTimeMS,
		changed: make(chan struct{}, 1),

		selectionsMax: o.SelectionsMax, reads: semaphore.NewWeighted(int64(o.ReadsMax)), sortBytes: o.SortBytesMax,

		err: errors.New("Prometheus has not been polled yet"),
		up:  reg.Gauge("thanos_sidecar_prometheus_up", "Whether the last poll of Prometheus succeeded."),
	}
}

// Flags returns the values of Prometheus' command line flags.
func (s *Prometheus) Flags(ctx context.Context) (map[string]string, error) { return s.api.Flags(ctx) }

// Changed receives a value when a response shows that the configuration of Prometheus
// has changed since the last Refresh.
func (s *Prometheus) Changed() <-chan struct{} { return s.changed }

// Refresh reads the external labels and the lowest timestamp of Prometheus. After an error Info fails until a later
// Refresh succeeds. The error is ErrUnsupported if Prometheus has never had external labels.
func (s *Prometheus) Refresh(ctx context.Context) error {
	external, readsOthers, err := s.api.Config(ctx)
	var has extent
	if err == nil {
		has, err = s.api.Extent(ctx)
	}
	if s.blocks != nil {
		headMS, unfit := int64(0), err
		if err == nil {
			headMS, unfit = s.api.AcceptsMS(ctx, has)
		}
		if readsOthers {
			unfit = errors.New("Prometheus has remote_read")
		}
		s.blocks.Confirm(has.blockBytes, headMS, unfit)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	first := s.external.IsEmpty()
	switch {
	case err != nil:
	case external.IsEmpty() && first:
		err = fmt.Errorf("%w: %w: set global.external_labels of Prometheus", ErrUnsupported, bucket.ErrNoLabels)
	case external.IsEmpty():
		err = errors.New("external labels were removed from the configuration of Prometheus")
	default:
		s.external, s.mint = external, has.minMS
	}
	s.err = err
	s.up.Set(0)
	if err == nil {
		s.up.Set(1)
	}
	return err
}

// servedFromMS returns the lowest timestamp that is served, in ms, or the error of the last Refresh.
func (s *Prometheus) servedFromMS() (int64, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.err != nil {
		return 0, fmt.Errorf("%w: %w", storeapi.ErrUnavailable, s.err)
	}
	return max(s.mint, s.minTime()), nil
}

// ExternalLabels implements storeapi.Source.
func (s *Prometheus) ExternalLabels() labels.Labels {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.external
}

// Info implements storeapi.API.
func (s *Prometheus) Info(context.Context) (storeapi.Info, error) {
	mint, err := s.servedFromMS()
	if err != nil {
		return storeapi.Info{}, err
	}
	external, within := s.ExternalLabels(), storeapi.TimeRange{MinMS: mint, MaxMS: math.MaxInt64}
	return storeapi.Info{
		LabelSets: []labels.Labels{external},
		Component: "sidecar",
		Store: &storeapi.StoreInfo{TimeRange: within, TSDBs: []storeapi.TSDBInfo{{Labels: external, TimeRange: within}},
			Sharding: true, WithoutReplicaLabels: true},
		Exemplars: &storeapi.TimeRange{MinMS: math.MinInt64, MaxMS: math.MaxInt64},
		Rules:     true, Targets: true, MetricMetadata: true, Status: true,
	}, nil
}

// Capabilities implements storeapi.Source.
func (*Prometheus) Capabilities() storeapi.Capabilities {
	return storeapi.Capabilities{Exemplars: true, Rules: true, Targets: true, MetricMetadata: true, Status: true}
}

// Series implements storeapi.API.
func (s *Prometheus) Series(ctx context.Context, r storeapi.SeriesRequest) storeapi.Stream {
	return storeapi.LocalSeries(ctx, s, s.ExternalLabels(), r)
}

// LabelNames implements storeapi.API.
func (s *Prometheus) LabelNames(ctx context.Context, r storeapi.LabelsRequest) (names, warnings []string, err error) {
	names, warnings, err = s.api.LabelNames(ctx, r.Matchers, max(r.MinMS, s.minTime()), r.MaxMS, r.Limit)
	return names, warnings, toStore(err)
}

// LabelValues implements storeapi.API.
func (s *Prometheus) LabelValues(ctx context.Context, r storeapi.LabelsRequest) (values, warnings []string, err error) {
	values, warnings, err = s.api.LabelValues(ctx, r.Label, r.Matchers, max(r.MinMS, s.minTime()), r.MaxMS, r.Limit)
	return values, warnings, toStore(err)
}

// Exemplars implements storeapi.Services.
func (s *Prometheus) Exemplars(ctx context.Context, r storeapi.ExemplarsRequest) (results []exemplar.QueryResult,
	warnings []string, err error) {
	results, warnings, err = s.api.Exemplars(ctx, r.Query, r.MinMS, r.MaxMS)
	return results, warnings, toStore(err)
}

// Rules implements storeapi.Services. As in Thanos the alerts of a rule get no external labels.
func (s *Prometheus) Rules(ctx context.Context, r storeapi.RulesRequest) ([]storeapi.RuleGroup, []string, error) {
	groups, warnings, err := s.api.Rules(ctx, r)
	external := s.ExternalLabels()
	for _, g := range groups {
		for i := range g.Rules {
			g.Rules[i].Labels = storeapi.WithExternal(g.Rules[i].Labels, external)
		}
	}
	return groups, warnings, toStore(err)
}

// Targets implements storeapi.Services.
func (s *Prometheus) Targets(ctx context.Context, r storeapi.TargetsRequest) (storeapi.Targets, []string, error) {
	found, warnings, err := s.api.Targets(ctx, r)
	external := s.ExternalLabels()
	for i := range found.Active {
		t := &found.Active[i]
		t.Discovered, t.Labels = storeapi.WithExternal(t.Discovered, external), storeapi.WithExternal(t.Labels, external)
	}
	for i := range found.Dropped {
		found.Dropped[i] = storeapi.WithExternal(found.Dropped[i], external)
	}
	return found, warnings, toStore(err)
}

// MetricMetadata implements storeapi.Services.
func (s *Prometheus) MetricMetadata(ctx context.Context,
	r storeapi.MetadataRequest) (found map[string][]metadata.Metadata, warnings []string, err error) {
	found, warnings, err = s.api.MetricMetadata(ctx, r)
	return found, warnings, toStore(err)
}

// TSDBStatistics implements storeapi.Services.
func (s *Prometheus) TSDBStatistics(ctx context.Context,
	r storeapi.StatusRequest) ([]storeapi.TSDBStatistics, []string, error) {
	if !r.MatchesExternal(s.ExternalLabels()) {
		return nil, nil, nil
	}
	found, warnings, err := s.api.TSDBStatistics(ctx, r.Limit)
	if err != nil {
		return nil, nil, toStore(err)
	}
	return []storeapi.TSDBStatistics{found}, warnings, nil
}
