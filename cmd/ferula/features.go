package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/ferula-io/ferula/internal/app"
)

// features are the honoured features of Prometheus. Some are always enabled.
var features = map[string]func(*app.ServeOptions){
	"concurrent-rule-eval": func(o *app.ServeOptions) {
		o.Rules.ConcurrentEvals = o.Rules.MaxConcurrentEvals > 0
	},
	"auto-reload-config":              func(*app.ServeOptions) {}, // as --config.auto-reload
	"extra-scrape-metrics":            func(o *app.ServeOptions) { o.Scrape.ExtraMetrics = true },
	"histograms-st-encoding":          func(o *app.ServeOptions) { o.Store.HistogramsWithST = true },
	"use-start-timestamps":            func(o *app.ServeOptions) { o.Query.UseStartTimestamps = true },
	"delayed-compaction":              func(o *app.ServeOptions) { o.Store.DelayedCompaction = true },
	"exemplar-storage":                func(*app.ServeOptions) {}, // always enabled here
	"memory-snapshot-on-shutdown":     func(o *app.ServeOptions) { o.Store.SnapshotOnShutdown = true },
	"native-histograms":               func(*app.ServeOptions) {}, // a setting of scrape_configs, as in Prometheus
	"ooo-native-histograms":           func(*app.ServeOptions) {}, // always enabled, as in Prometheus
	"openmetrics2":                    func(o *app.ServeOptions) { o.Scrape.OpenMetrics2 = true },
	"otlp-deltatocumulative":          func(o *app.ServeOptions) { o.Peer.OTLPOptions.ConvertDelta = true },
	"otlp-native-delta-ingestion":     func(o *app.ServeOptions) { o.Peer.OTLPOptions.NativeDelta = true },
	"search-api":                      func(o *app.ServeOptions) { o.Peer.Search = true },
	"promql-binop-fill-modifiers":     func(o *app.ServeOptions) { o.Query.BinopFillModifiers = true },
	"promql-delayed-name-removal":     func(o *app.ServeOptions) { o.Query.DelayedNameRemoval = true },
	"promql-duration-expr":            func(*app.ServeOptions) {}, // always enabled, as in Prometheus
	"promql-experimental-functions":   func(o *app.ServeOptions) { o.Query.ExperimentalFunctions = true },
	"promql-extended-range-selectors": func(o *app.ServeOptions) { o.Query.ExtendedRangeSelectors = true },
	"promql-per-step-stats":           func(o *app.ServeOptions) { o.Query.PerStepStats = true },
	"xor2-encoding":                   func(o *app.ServeOptions) { o.Store.FloatChunkEncodingIsXOR2 = true },
	"zstd-scrape":                     func(o *app.ServeOptions) { o.Scrape.Zstd = true },
	"created-timestamp-zero-ingestion": func(o *app.ServeOptions) {
		o.Scrape.ParseST, o.Write.STAsZeroSample, o.Store.STAsZeroSample = true, true, true
	},
	"st-storage": func(o *app.ServeOptions) {
		o.Scrape.ParseST, o.Store.StoreST = true, true
		o.Store.FloatChunkEncodingIsXOR2, o.Store.HistogramsWithST = true, true
	},
	"metadata-wal-records": func(o *app.ServeOptions) {
		o.Scrape.MetadataInWAL, o.Write.MetadataInWAL = true, true
	},
	"type-and-unit-labels": func(o *app.ServeOptions) {
		o.Query.TypeAndUnitLabels, o.Scrape.TypeAndUnitLabels, o.Write.TypeAndUnitLabels = true, true, true
	},
}

func featureNames() string {
	return strings.Join(slices.Sorted(maps.Keys(features)), ", ")
}

// splitFeatures returns the names of comma-separated lists.
func splitFeatures(lists []string) (names []string) {
	for _, list := range lists {
		for name := range strings.SplitSeq(list, ",") {
			if name = strings.TrimSpace(name); name != "" {
				names = append(names, name)
			}
		}
	}
	return names
}

// enableFeatures enables the honoured features. It returns an error for each refused one.
func enableFeatures(lists []string, o *app.ServeOptions) error {
	var errs []error
	for _, name := range splitFeatures(lists) {
		if p := findPeerFlag("features", name); p.refused {
			errs = append(errs, fmt.Errorf("--enable-feature=%s is not supported: %s", name, p.why))
		}
		if enable := features[name]; enable != nil {
			enable(o)
		}
	}
	if o.Peer.OTLPOptions.ConvertDelta && o.Peer.OTLPOptions.NativeDelta {
		errs = append(errs, errors.New("--enable-feature=otlp-deltatocumulative and otlp-native-delta-ingestion exclude each other"))
	}
	return errors.Join(errs...)
}

// experimentalFunctions is the only feature of a querier.
const experimentalFunctions = "promql-experimental-functions"

// ignoredFeatures returns the features without effect: those that the rows of peerRows for command list as inert, and
// unknown ones, which Prometheus and Thanos ignore too.
func ignoredFeatures(command string, lists []string, honoured func(name string) bool) (ignored ignoredFlags) {
	for _, name := range splitFeatures(lists) {
		if p := findPeerFlag(command, name); !p.refused && !honoured(name) {
			ignored = append(ignored, peerFlag{name: "enable-feature=" + name, why: cmp.Or(p.why, "unknown feature")})
		}
	}
	return ignored
}

func isFeature(name string) bool      { return features[name] != nil }
func isQueryFeature(name string) bool { return name == experimentalFunctions }
