package peerflags

const thanosVersion = "0.42.4"

func logRows(level, format string) []Row {
	return []Row{honoured("log.level", level), honoured("log.format", format)}
}

// processRows are the flags of every Thanos command.
func processRows(requestLog string) []Row {
	return append(logRows("", "`logfmt` and `json`; `journald` is an error"),
		honoured("auto-gomemlimit.ratio", ""),
		honoured("enable-auto-gomemlimit", "**on by default**; `--no-enable-auto-gomemlimit` turns it off"),
		honoured("http-address", "**loopback by default**"),
		honoured("http-grace-period", ""),
		honoured("http.config", "TLS and basic authentication"),
		honoured("tracing.config", "type `OTLP`, over gRPC or HTTP; another type is an error that names how to reach its receiver over OTLP"),
		honoured("tracing.config-file", "as above"),
		inert("request.logging-config", YAML, requestLog),
		inert("request.logging-config-file", Text, requestLog),
	)
}

// grpcServerRows are the flags of every command with a StoreAPI.
func grpcServerRows() []Row {
	return []Row{
		honoured("grpc-address", "**loopback by default**"),
		honoured("grpc-grace-period", ""),
		honoured("grpc-server-max-connection-age", ""),
		honoured("grpc-server-tls-cert", "read again when the file changes"),
		honoured("grpc-server-tls-ciphers", ""),
		honoured("grpc-server-tls-client-ca", ""),
		honoured("grpc-server-tls-curves", ""),
		honoured("grpc-server-tls-key", ""),
		honoured("grpc-server-tls-min-version", ""),
		honoured("store.limits.request-samples", "each chunk counts for 120, as in Thanos"),
		honoured("store.limits.request-series", ""),
	}
}

// Query returns the flags of thanos query.
func Query() Table {
	const (
		distributed = "queries are not distributed"
		partial     = "use --no-query.partial-response or the parameter partial_response"
		httpMetrics = "see the metrics `ferula_http_*`"
	)
	return Table{
		Command: "query", Peer: "thanos query", Version: thanosVersion,
		Rows: rows(processRows("calls are counted in metrics and failed ones logged"), grpcServerRows(),
			queryStoreRows(), []Row{
				inert("alert.query-url", URL, "no alerts are generated here"),
				honoured("deduplication.func", "`penalty` chooses between replicas, `chain` mixes their samples"),
				honoured("enable-feature", "`promql-experimental-functions`; another name is ignored with a warning"),
				honoured("query.active-query-path", ""),
				honoured("query.auto-downsampling", ""),
				honoured("query.conn-metric.label", "`external_labels`, `store_type`"),
				honoured("query.default-evaluation-interval", ""),
				honoured("query.default-step", ""),
				honoured("query.default-tenant-id", ""),
				refused("query.disable-fallback", Switch, "Prometheus' engine always evaluates the expressions that ferula's does not support").unlisted(),
				refused("query.distributed-with-overlapping-interval", Switch, distributed).unlisted(),
				honoured("query.dynamic-lookback-delta", "").unlisted(),
				refused("query.enable-x-functions", Switch, "xrate, xincrease and xdelta belong to Thanos' engine"),
				honoured("query.enforce-tenancy", "over HTTP, as in Thanos; also for targets; metadata of metrics has no tenant"),
				honoured("query.instant.default.max_source_resolution", "").unlisted(),
				honoured("query.lookback-delta", ""),
				honoured("query.max-concurrent", ""),
				honoured("query.max-concurrent-select", ""),
				honoured("query.metadata.default-time-range", ""),
				honoured("query.mode", "`local`; `distributed` is an error"),
				honoured("query.partial-response", ""),
				refused("exemplar.partial-response", Switch, partial).but("true").unlisted(),
				refused("metric-metadata.partial-response", Switch, partial).but("true").unlisted(),
				refused("rule.partial-response", Switch, partial).but("true").unlisted(),
				refused("status.partial-response", Switch, partial).but("true").unlisted(),
				refused("target.partial-response", Switch, partial).but("true").unlisted(),
				refused("query.partition-label", Text, distributed),
				honoured("query.promql-engine", "`prometheus`; `thanos` is an error, as is the parameter `engine=thanos`"),
				honoured("query.replica-label", ""),
				inert("query.telemetry.request-duration-seconds-quantiles", Number, httpMetrics),
				inert("query.telemetry.request-samples-quantiles", Number, httpMetrics),
				inert("query.telemetry.request-series-seconds-quantiles", Number, httpMetrics),
				honoured("query.tenant-certificate-field", ""),
				honoured("query.tenant-header", "the tenant goes to the stores as `thanos-tenant`"),
				honoured("query.tenant-label-name", ""),
				honoured("query.timeout", ""),
				honoured("selector-label", ""),
				honoured("selector.relabel-config", "actions `keep`, `drop` and `hashmod`; also for exemplars. Rules, targets and metadata are those of all stores, as in Thanos"),
				honoured("selector.relabel-config-file", "as above"),
				honoured("web.disable-cors", ""),
				honoured("web.external-prefix", "the page's links are relative and do not need it; it is the default of `--web.route-prefix`"),
				inert("web.prefix-header", Text, "the page's links are relative"),
				honoured("web.route-prefix", ""),
			}),
	}
}

// queryStoreRows are the flags of thanos query about its stores.
func queryStoreRows() []Row {
	return []Row{
		inert("grpc.proxy-strategy", Text, "responses of stores are merged as they arrive").unlisted(),
		refused("inject-test-addresses", Text, "it is for Thanos' own tests").unlisted(),
		inert("query.lazy-retrieval-max-buffered-responses", Number,
			"responses of stores are merged as they arrive").unlisted(),
		inert("query.series-response-batch-size", Number,
			"a flag of builds before 0.42 with the change that introduced batches: a batch has 64 series, as in Thanos 0.42, and more between two ferulas").former(),
		inert("store.sd-dns-resolver", Text, "names are resolved by Go's resolver").unlisted(),
		honoured("endpoint", "`host:port`, `dns+`, `dnssrv+`, `dnssrvnoa+`"),
		honoured("endpoint-group", "`host:port` or `dns+host:port`; its addresses are used in turn. Also `dnsdualstack+`, `dnssrv+` and `dnssrvnoa+`, looked up every `--store.sd-dns-interval`"),
		honoured("endpoint-group-strict", "as above"),
		honoured("endpoint-strict", "must be an address"),
		honoured("endpoint.info-timeout", "").unlisted(),
		honoured("endpoint.sd-config", "`address`, `strict`, `group`, `client_config`, `service_config`; `default_client_config`"),
		honoured("endpoint.sd-config-file", "the same; if the file becomes unreadable its last content stays in force"),
		honoured("endpoint.sd-config-reload-interval",
			"if `--store.sd-interval` is shorter, it applies to both; in any case a changed file is read within seconds"),
		honoured("grpc-client-server-name", ""),
		honoured("grpc-client-tls-ca", ""),
		honoured("grpc-client-tls-cert", ""),
		honoured("grpc-client-tls-key", ""),
		honoured("grpc-client-tls-min-version", ""),
		honoured("grpc-client-tls-secure", ""),
		honoured("grpc-client-tls-skip-verify", ""),
		honoured("grpc-compression", "`none`, `snappy`"),
		honoured("store.response-timeout", ""),
		honoured("store.sd-dns-interval", ""),
		honoured("store.sd-files", "patterns, repeated"),
		honoured("store.sd-interval", ""),
		honoured("store.unhealthy-timeout", "removes a store from the list of stores only; responses report it as missing while it is configured. An address that disappears from the DNS records of its name is reported as missing for this time"),
	}
}

// QueryFrontend returns the flags of thanos query-frontend.
func QueryFrontend() Table {
	return Table{
		Command: "query-frontend", Peer: "thanos query-frontend", Version: thanosVersion,
		Rows: rows(processRows("see `--query-frontend.log-queries-longer-than`"), frontendRangeRows(), []Row{
			inert("cache-compression-type", Text, "cached data are compressed whenever that makes them smaller"),
			inert("enable-feature", Text, "experimental functions are always parsed"),
			honoured("query-frontend.compress-responses",
				"**on by default**: a response is compressed with zstd or gzip if the client accepts it"),
			honoured("query-frontend.default-tenant-id", "the tenant of requests that name none, for queues, caches and logs; the downstream applies its own default").unlisted(),
			honoured("query-frontend.downstream-tripper-config", "idle connections per host are 100 by default"),
			honoured("query-frontend.downstream-tripper-config-file", "as above"),
			honoured("query-frontend.downstream-url", ""),
			inert("query-frontend.enable-x-functions", Switch, "a query with unknown functions is forwarded unsplit"),
			inert("query-frontend.force-query-stats", Switch, "statistics are those of the downstream"),
			honoured("query-frontend.forward-header", ""),
			honoured("query-frontend.log-queries-longer-than", ""),
			honoured("query-frontend.org-id-header", "this header (default: `X-Scope-OrgID`) and `THANOS-TENANT` name the tenant; requests are queued, limited and cached by tenant; a request whose headers name different tenants gets 400"),
			honoured("query-frontend.slow-query-logs-user-header", ""),
			refused("query-frontend.tenant-certificate-field", Text, "a certificate does not name a tenant").unlisted(),
			honoured("query-frontend.tenant-header", "the downstream gets its value as `THANOS-TENANT`, as from Thanos; not together with `--query-frontend.org-id-header`").unlisted(),
			inert("query-frontend.vertical-shards", Number, "queries are split along time only"),
			honoured("query.max-retries-per-request", ""),
			honoured("web.disable-cors", ""),
		}),
	}
}

// frontendRangeRows are the flags of thanos query-frontend about one kind of request.
func frontendRangeRows() []Row {
	return []Row{
		honoured("labels.default-time-range", ""),
		honoured("labels.max-query-parallelism", "a longer range gets longer parts; no part waits in a queue"),
		honoured("labels.max-retries-per-request", ""),
		honoured("labels.partial-response", ""),
		honoured("labels.response-cache-config", "with --labels.response-cache-whole-intervals a part of an interval is a hit, as in Thanos"),
		honoured("labels.response-cache-config-file", ""),
		honoured("labels.response-cache-max-freshness", ""),
		honoured("labels.split-interval", ""),
		honoured("query-range.align-range-with-step", "**off by default** (Thanos: on), because it changes results"),
		honoured("query-range.horizontal-shards", ""),
		honoured("query-range.max-query-length", ""),
		honoured("query-range.max-query-parallelism", "all parts of a query are open at once; a longer query gets longer parts"),
		honoured("query-range.max-retries-per-request", ""),
		honoured("query-range.max-split-interval", "queries of twice this length or more are split in pieces of it, as in Thanos"),
		honoured("query-range.min-split-interval", ""),
		honoured("query-range.partial-response", ""),
		honoured("query-range.request-downsampled", "pieces of the split interval that have no point are requested again; Thanos also requests the beginning of an incomplete response"),
		honoured("query-range.response-cache-config", "`IN-MEMORY`, `MEMCACHED`, `REDIS`"),
		honoured("query-range.response-cache-config-file", "as above"),
		honoured("query-range.response-cache-max-freshness", ""),
		honoured("query-range.split-interval", ""),
	}
}

// Sidecar returns the flags of thanos sidecar.
func Sidecar() Table {
	return Table{
		Command: "sidecar", Peer: "thanos sidecar", Version: thanosVersion,
		Rows: rows(processRows("calls are counted in metrics and failed ones logged"), grpcServerRows(), []Row{
			honoured("hash-func", ""),
			honoured("min-time", ""),
			honoured("objstore.config", "types `S3`, `FILESYSTEM`, `AZURE`, and `GCS` in builds with the tag `clouds`, like the released one; others are an error"),
			honoured("objstore.config-file", "as above"),
			honoured("prometheus.get_config_interval", ""),
			honoured("prometheus.get_config_timeout", ""),
			honoured("prometheus.http-client", "unknown keys are an error; `disable_compression` is inert, since responses are requested uncompressed"),
			honoured("prometheus.http-client-file", "as above"),
			honoured("prometheus.ready_timeout", "after it the sidecar exits"),
			honoured("prometheus.url", ""),
			honoured("reloader.config-envsubst-file", ""),
			honoured("reloader.config-file", ""),
			honoured("reloader.method", "`http`; `signal` is **refused**"),
			refused("reloader.process-name", Text, "it belongs to --reloader.method=signal").but("prometheus"),
			honoured("reloader.retry-interval", ""),
			honoured("reloader.rule-dir", ""),
			honoured("reloader.watch-interval", "files are read at least every 5 s, even if this is longer"),
			honoured("shipper.allow-out-of-order-uploads", "").unlisted(),
			honoured("shipper.ignore-unequal-block-size", "").unlisted(),
			honoured("shipper.meta-file-name", "a plain name within `--tsdb.path`"),
			honoured("shipper.skip-corrupted-blocks", "").unlisted(),
			honoured("shipper.upload-compacted", ""),
			honoured("shipper.upload-concurrency", ""),
			honoured("tsdb.path", ""),
		}),
	}
}
