package app

import (
	"github.com/prometheus/prometheus/discovery"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/template"
	"github.com/prometheus/prometheus/util/features"
)

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
		features.Scrape: {"extra_scrape_metrics": true, "start_timestamp_zero_ingestion": false,
			"type_and_unit_labels": o.Scrape.TypeAndUnitLabels, "openmetrics2": o.Scrape.OpenMetrics2},
		features.TSDB: {
			"exemplar_storage": o.Store.MaxExemplars >= 0, "delayed_compaction": o.Store.DelayedCompaction, "isolation": true,
			"use_uncached_io":   false,
			"native_histograms": true, "st_storage": false, "xor2_encoding": true, "histograms_st_encoding": false,
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
