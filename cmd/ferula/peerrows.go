package main

// The statuses of peerRows.
const inert, refused = "inert", "refused"

// peerRows are the flags of Prometheus and Thanos that have no effect in ferula, by reason. peerFlag describes them.
// "features" and "query-features" are the values of --enable-feature of serve and query.
//
// To honour a flag, remove it here and add a field with its name to the structure of the command, with negatable:"" if
// it is a switch. `make generate` writes docs/ops/flags.md, where a row may say how the flag differs from the peer's.
var peerRows = []struct {
	commands, status string
	flags            string // name:kind=harmless
	why              string
}{
	{"serve", inert, "web.console.libraries web.console.templates", "there are no console templates"},
	{"serve", inert, "web.page-title", "the page has a title of its own"},
	{"serve", inert, "web.user-assets", "there is no /user"},
	{"serve", refused,
		"agent:switch storage.agent.checkpoint-batch-size:number " +
			"storage.agent.checkpoint-from-in-memory-series:switch storage.agent.no-lockfile:switch " +
			"storage.agent.path storage.agent.retention.max-time:duration " +
			"storage.agent.retention.min-time:duration storage.agent.wal-compression:switch " +
			"storage.agent.wal-compression-type storage.agent.wal-segment-size:size " +
			"storage.agent.wal-truncate-frequency:duration",
		"there is no Agent mode: ferula serve always stores samples in a TSDB"},
	{"serve", refused, "write-documentation:switch", "it prints Prometheus' own documentation"},
	{"features", inert, "fast-startup", "scraping begins once the write-ahead log is replayed"},
	{"features", inert, "old-ui", "there is only one page"},
	{"features", inert, "use-uncached-io", "blocks are written through the page cache"},
	{"features", refused, "st-synthesis", "start timestamps are stored as targets and senders send them, and not invented"},
	{"query-features", inert, "promql-at-modifier promql-negative-offset", "always enabled"},
	{"query-features", inert, "query-pushdown", "removed from Thanos"},
	{"query", inert, "alert.query-url:url", "ferula query sends no alerts"},
	{"query", inert,
		"grpc.proxy-strategy query.lazy-retrieval-max-buffered-responses:number",
		"responses of stores are merged as they arrive"},
	{"query", inert,
		"query.telemetry.request-duration-seconds-quantiles:number " +
			"query.telemetry.request-samples-quantiles:number " +
			"query.telemetry.request-series-seconds-quantiles:number",
		"see the metrics `ferula_http_*`"},
	{"query sidecar store", inert,
		"request.logging-config:yaml request.logging-config-file",
		"calls are counted in metrics and failed ones logged"},
	{"query", inert, "store.sd-dns-resolver", "names are resolved by Go's resolver"},
	{"query", inert, "web.prefix-header", "the page's links are relative"},
	{"query", refused,
		"exemplar.partial-response:switch=true metric-metadata.partial-response:switch=true " +
			"rule.partial-response:switch=true status.partial-response:switch=true " +
			"target.partial-response:switch=true",
		"use --no-query.partial-response or the parameter partial_response"},
	{"query", refused, "inject-test-addresses", "it is for Thanos' own tests"},
	{"query", refused,
		"query.disable-fallback:switch",
		"Prometheus' engine always evaluates the expressions that ferula's does not support"},
	{"query", refused,
		"query.distributed-with-overlapping-interval:switch query.partition-label",
		"queries are not distributed"},
	{"query", refused, "query.enable-x-functions:switch", "xrate, xincrease and xdelta belong to Thanos' engine"},
	{"query-frontend", inert, "cache-compression-type", "cached data are compressed whenever that makes them smaller"},
	{"query-frontend", inert, "enable-feature", "experimental functions are always parsed"},
	{"query-frontend", inert,
		"query-frontend.enable-x-functions:switch",
		"a query with unknown functions is forwarded unsplit"},
	{"query-frontend", inert, "query-frontend.force-query-stats:switch", "a response has the downstream's statistics"},
	{"query-frontend", inert, "query-frontend.vertical-shards:number", "queries are split along time only"},
	{"query-frontend", inert,
		"request.logging-config:yaml request.logging-config-file",
		"see `--query-frontend.log-queries-longer-than`"},
	{"query-frontend", refused, "query-frontend.tenant-certificate-field", "a certificate does not name a tenant"},
	{"sidecar", refused, "reloader.process-name=prometheus", "it belongs to --reloader.method=signal"},
	{"store", inert,
		"block-sync-concurrency:number cache-index-header:switch store.enable-index-header-lazy-reader:switch " +
			"store.index-header-lazy-download-strategy store.index-header-posting-offsets-in-mem-sampling:number",
		"no index-header is built: the first read of a block downloads its symbols and postings offset table " +
			"to a local file, which is mapped into memory"},
	{"store", inert,
		"bucket-web-label web.disable:switch web.disable-cors:switch web.prefix-header",
		"the page /blocks has no such setting"},
	{"store", inert, "chunk-pool-size:size", "reads are cached in pages of fixed size, see --index-cache-size"},
	{"store", inert,
		"debug.estimated-max-chunk-size:number debug.estimated-max-series-size:number " +
			"debug.series-batch-size:number",
		"nothing to set: the number of series in a batch adapts to the size of the batch before it"},
	{"store", inert, "disable-admin-operations:switch", "there are no admin operations"},
	{"store", inert, "matcher-cache-size:number", "matchers are not cached"},
	{"store", inert,
		"store.enable-lazy-expanded-postings:switch store.posting-group-max-key-series-ratio:number",
		"always on: postings of a matcher are not read if they are larger than the index entries (estimated) of " +
			"the series that the most selective matcher selects; the matcher then filters the labels of these series"},
	{"store", refused, "objstore-parquet.config:yaml objstore-parquet.config-file", "blocks in Parquet are not read"},
	{"store", refused,
		"store.caching-bucket.config:yaml store.caching-bucket.config-file",
		"reads are cached in pages of fixed size, see --index-cache-size"},
}
