package peerflags

// Reasons of several rows.
const (
	noAgent   = "there is no Agent mode: ferula serve always stores samples in a TSDB"
	noStarts  = "start timestamps are not stored"
	noConsole = "there are no console templates"
	always    = "always enabled"
)

// Serve returns the flags of Prometheus.
func Serve() Table {
	return Table{
		Command: "serve", Peer: "prometheus", Version: "3.15.0",
		Rows: rows(logRows("`runtime.log_level` of the configuration file overrides it, as in Prometheus", ""),
			serveWebRows(), serveStorageRows(), serveAgentRows(), serveRuleRows(), []Row{
				honoured("config.file", "without it the server scrapes itself; Prometheus reads `prometheus.yml`"),
				honoured("config.auto-reload", ""),
				honoured("config.auto-reload-interval", ""),
				honoured("auto-gomaxprocs", "by Go's runtime, which also follows later changes of the quota"),
				honoured("auto-gomemlimit", ""),
				honoured("auto-gomemlimit.ratio", ""),
				honoured("auto-gomemlimit.refresh-interval", ""),
				honoured("query.lookback-delta", ""),
				honoured("query.timeout", ""),
				honoured("query.max-concurrency", ""),
				honoured("query.max-samples", ""),
				honoured("scrape.adjust-timestamps", "").unlisted(),
				honoured("scrape.timestamp-tolerance", "").unlisted(),
				honoured("scrape.discovery-reload-interval", "").unlisted(),
				honoured("enable-feature", "see below"),
				refused("agent", Switch, noAgent),
				refused("write-documentation", Switch, "it prints Prometheus' own documentation").unlisted(),
			}),
		Features: serveFeatures(),
	}
}

func serveWebRows() []Row {
	return []Row{
		honoured("web.listen-address", "**loopback by default**; repeatable; `--web.max-connections` counts the connections of all addresses together"),
		honoured("web.config.file", "TLS and basic authentication"),
		honoured("web.read-timeout", ""),
		honoured("web.max-connections", ""),
		honoured("web.max-notifications-subscribers", ""),
		honoured("web.external-url", ""),
		honoured("web.route-prefix", ""),
		inert("web.user-assets", Text, "there is no /user"),
		honoured("web.enable-lifecycle", ""),
		honoured("web.enable-admin-api", ""),
		honoured("web.enable-remote-write-receiver", "**on by default**; `--no-web.enable-remote-write-receiver` turns the receiver off"),
		honoured("web.remote-write-receiver.accepted-protobuf-messages", ""),
		honoured("web.enable-otlp-receiver", "off by default, as in Prometheus"),
		inert("web.console.templates", Text, noConsole),
		inert("web.console.libraries", Text, noConsole),
		inert("web.page-title", Text, "the page has a title of its own"),
		honoured("web.cors.origin", ""),
		honoured("web.search.max-limit", ""),
	}
}

func serveStorageRows() []Row {
	return []Row{
		honoured("storage.tsdb.path", ""),
		honoured("storage.tsdb.min-block-duration", "").unlisted(),
		honoured("storage.tsdb.max-block-duration", "").unlisted(),
		honoured("storage.tsdb.max-block-chunk-segment-size", "").unlisted(),
		honoured("storage.tsdb.wal-segment-size", "").unlisted(),
		honoured("storage.tsdb.retention.time", "`storage.tsdb.retention` of the configuration file overrides it, as in Prometheus"),
		honoured("storage.tsdb.retention.size", "`storage.tsdb.retention` of the configuration file overrides it, as in Prometheus"),
		honoured("storage.tsdb.no-lockfile", "the directory of profiles is not locked either"),
		honoured("storage.tsdb.allow-overlapping-compaction",
			"always off while blocks are uploaded, unless `--shipper.ignore-unequal-block-size` is set").unlisted(),
		honoured("storage.tsdb.wal-compression", "").unlisted(),
		honoured("storage.tsdb.wal-compression-type", "also `none`").unlisted(),
		honoured("storage.tsdb.head-chunks-write-queue-size", ""),
		honoured("storage.tsdb.samples-per-chunk", "").unlisted(),
		honoured("storage.tsdb.delayed-compaction.max-percent", "").unlisted(),
		honoured("storage.tsdb.delay-compact-file.path",
			"not needed with `--objstore.config`, which delays compaction itself"),
		honoured("storage.tsdb.block-reload-interval", "").unlisted(),
		honoured("storage.remote.flush-deadline", ""),
		honoured("storage.remote.read-sample-limit", ""),
		honoured("storage.remote.read-concurrent-limit", ""),
		honoured("storage.remote.read-max-bytes-in-frame", ""),
	}
}

func serveAgentRows() []Row {
	return []Row{
		refused("storage.agent.path", Text, noAgent),
		refused("storage.agent.wal-segment-size", Size, noAgent).unlisted(),
		refused("storage.agent.wal-compression", Switch, noAgent),
		refused("storage.agent.wal-compression-type", Text, noAgent).unlisted(),
		refused("storage.agent.wal-truncate-frequency", Duration, noAgent).unlisted(),
		refused("storage.agent.retention.min-time", Duration, noAgent),
		refused("storage.agent.retention.max-time", Duration, noAgent),
		refused("storage.agent.checkpoint-from-in-memory-series", Switch, noAgent),
		refused("storage.agent.checkpoint-batch-size", Number, noAgent),
		refused("storage.agent.no-lockfile", Switch, noAgent),
	}
}

func serveRuleRows() []Row {
	return []Row{
		honoured("rules.alert.for-outage-tolerance", ""),
		honoured("rules.alert.for-grace-period", ""),
		honoured("rules.alert.resend-delay", ""),
		honoured("rules.max-concurrent-evals", ""),
		honoured("alertmanager.notification-queue-capacity", ""),
		honoured("alertmanager.notification-batch-size", ""),
		honoured("alertmanager.drain-notification-queue-on-shutdown", "for at most 30 s"),
	}
}

// serveFeatures are those of --enable-feature. An unknown feature is ignored with a
// warning, as in Prometheus.
func serveFeatures() []Row {
	return rows([]Row{
		honoured("auto-reload-config", "as `--config.auto-reload`"),
		honoured("concurrent-rule-eval", ""),
		refused("created-timestamp-zero-ingestion", Switch, noStarts),
		honoured("delayed-compaction", ""),
		honoured("exemplar-storage", always),
		refused("extra-scrape-metrics", Switch, "set extra_scrape_metrics in the configuration file"),
		inert("fast-startup", Switch, "scraping begins once the write-ahead log is replayed"),
		refused("histograms-st-encoding", Switch, noStarts),
		honoured("memory-snapshot-on-shutdown", ""),
		honoured("metadata-wal-records", ""),
		honoured("native-histograms", "no effect, as in Prometheus: see `scrape_native_histograms`"),
		inert("old-ui", Switch, "there is one page only"),
		honoured("ooo-native-histograms", always),
		honoured("openmetrics2", ""),
		honoured("otlp-deltatocumulative", ""),
		honoured("otlp-native-delta-ingestion", ""),
		honoured("promql-binop-fill-modifiers", ""),
		honoured("promql-delayed-name-removal", ""),
		honoured("promql-duration-expr", always),
		honoured("promql-experimental-functions", ""),
		honoured("promql-extended-range-selectors", ""),
		honoured("promql-per-step-stats", ""),
		honoured("search-api", ""),
		refused("st-storage", Switch, noStarts),
		refused("st-synthesis", Switch, noStarts),
		honoured("type-and-unit-labels", ""),
		refused("use-start-timestamps", Switch, noStarts),
		inert("use-uncached-io", Switch, "blocks are written through the page cache"),
		honoured("xor2-encoding", ""),
		honoured("zstd-scrape", ""),
	})
}
