package app

import (
	"cmp"
	"context"
	"net/http"
	"time"

	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/discovery"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/template"
	"github.com/prometheus/prometheus/util/features"
	"github.com/prometheus/prometheus/util/notifications"

	"github.com/ferula-io/ferula/internal/httpapi"
	"github.com/ferula-io/ferula/internal/ingest/remotewrite"
	"github.com/ferula-io/ferula/internal/process"
)

// PeerAPIOptions configure the endpoints that Prometheus' own package serves, and automatic
// reloads.
type PeerAPIOptions struct {
	Admin          bool // the endpoints that delete and copy data
	Search         bool
	SearchMax      int           // results of one search; 0: no limit
	SubscribersMax int           // of live notifications; 0: 16
	AutoReload     time.Duration // interval of checking the configuration files for changes; 0: never

	OTLP        bool // receive OTLP metrics
	OTLPOptions remotewrite.OTLPOptions
}

// notices holds the notifications of this server, and the context that ends their
// subscriptions at shutdown.
type notices struct {
	*notifications.Notifications
	ctx  context.Context
	stop context.CancelFunc
}

func (s *Serve) newNotices() *notices {
	subscribers := cmp.Or(s.opts.Peer.SubscribersMax, 16)
	n := &notices{Notifications: notifications.NewNotifications(subscribers, s.reg)}
	n.ctx, n.stop = context.WithCancel(context.Background())
	n.AddNotification(notifications.StartingUp)
	s.process.Add(process.Component{Name: "notifications", Close: func() error { n.stop(); return nil }})
	return n
}

// stopping notifies subscribers of the shutdown and ends their requests, which would otherwise delay the shutdown.
func (n *notices) stopping() {
	n.AddNotification(notifications.ShuttingDown)
	n.stop()
}

// reloaded takes the result of a reload. Subscribers have a notification as long as the last reload failed.
func (n *notices) reloaded(err error) {
	if err != nil {
		n.AddNotification(notifications.ConfigurationUnsuccessful)
		return
	}
	n.DeleteNotification(notifications.ConfigurationUnsuccessful)
}

// untilShutdown ends requests at the shutdown.
func (n *notices) untilShutdown(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		defer context.AfterFunc(n.ctx, cancel)()
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

func (s *Serve) peerOptions(prefix string) httpapi.PeerOptions {
	return httpapi.PeerOptions{
		Prefix: prefix, Flags: s.opts.Flags, RuntimeInfo: s.runtimeInfo, Logger: s.opts.Logger.With("component", "web"),
		Rules: s.rules, Store: s.store, Queryable: s.store, Targets: s.scraper.Manager, Gatherer: s.reg,
		Search: s.opts.Peer.Search, SearchMax: s.opts.Peer.SearchMax, Features: s.features(),
		LookbackDelta: cmp.Or(s.opts.Query.LookbackDelta, 5*time.Minute), SeriesMax: s.engine.MaxSamples(),
		Notifications: s.notices.Notifications, UntilShutdown: s.notices.untilShutdown, ListenAddress: s.Addr().String(),
	}
}

// otlp returns the receiver of OTLP metrics or, if it is disabled, a handler that responds
// with status 404.
func (s *Serve) otlp(guard func(http.Handler) http.Handler, current func() config.Config) http.Handler {
	if !s.opts.Peer.OTLP {
		return switchedOff("OTLP", "--web.enable-otlp-receiver")
	}
	opts := s.opts.Write
	opts.Bodies, opts.Refusal = s.bodies, s.refusal
	return guard(remotewrite.NewOTLPHandler(opts, s.opts.Peer.OTLPOptions, s.sender.Samples(), current,
		s.opts.Logger.With("component", "OTLP"), s.reg))
}

// features returns the list of /api/v1/features, with Prometheus' names: the features
// that Prometheus' packages register, and those that flags enable.
func (s *Serve) features() features.Collector {
	all, o := features.NewRegistry(), s.opts
	s.engine.Parser.RegisterFeatures(all)
	template.RegisterFeatures(all)
	for _, name := range discovery.RegisteredConfigNames() {
		all.Enable(features.ServiceDiscoveryProviders, name)
	}
	for category, flags := range map[string]map[string]bool{
		features.API: {
			"lifecycle": o.Web.EnableLifecycle, "admin": o.Peer.Admin, "remote_write_receiver": !o.Receive.RemoteWriteOff,
			"otlp_write_receiver": o.Peer.OTLP, "search": o.Peer.Search, "label_values_match": true, "query_warnings": true,
			"query_stats":       true,
			"time_range_series": true, "time_range_labels": true, "exclude_alerts": true, "openapi_3.1": true,
			"openapi_3.2": true,
		},
		features.OTLPReceiver: {"delta_conversion": o.Peer.OTLPOptions.ConvertDelta,
			"native_delta_ingestion": o.Peer.OTLPOptions.NativeDelta},
		features.Prometheus: {"agent_mode": false, "server_mode": true, "auto_reload_config": o.Peer.AutoReload > 0,
			labels.ImplementationName: true},
		features.PromQL: {
			"at_modifier": true, "negative_offset": true, "per_query_lookback_delta": true, "subqueries": true,
			"per_step_stats":       o.Query.PerStepStats,
			"delayed_name_removal": o.Query.DelayedNameRemoval, "type_and_unit_labels": o.Query.TypeAndUnitLabels,
		},
		features.Rules: {"concurrent_rule_eval": o.Rules.ConcurrentEvals, "query_offset": true, "keep_firing_for": true},
		features.Scrape: {"extra_scrape_metrics": true, "start_timestamp_zero_ingestion": o.Write.STAsZeroSample,
			"type_and_unit_labels": o.Scrape.TypeAndUnitLabels, "openmetrics2": o.Scrape.OpenMetrics2},
		features.TSDB: {
			"exemplar_storage": o.Store.MaxExemplars >= 0, "delayed_compaction": o.Store.DelayedCompaction, "isolation": true,
			"use_uncached_io":   false,
			"native_histograms": true, "st_storage": o.Store.StoreST, "xor2_encoding": true,
			"histograms_st_encoding": o.Store.HistogramsWithST,
		},
		features.UI: {"ui_v2": false, "ui_v3": false}, // the page is ferula's own
	} {
		for name, on := range flags {
			all.Set(category, name, on)
		}
	}
	if o.Scrape.MetadataInWAL {
		all.Enable(features.TSDB, "metadata_wal_records")
	}
	return all
}
