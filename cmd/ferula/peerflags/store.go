package peerflags

// Store returns the flags of thanos store.
func Store() Table {
	const (
		requestLog   = "calls are counted in metrics and failed ones logged"
		pages        = "reads are cached in pages of fixed size, see --index-cache-size"
		headers      = "no index-header is built: the first read of a block downloads its symbols and postings offset table to a local file, which is mapped into memory"
		batches      = "nothing to set: the number of series in a batch adapts to the size of the batch before it"
		noUI         = "the page of blocks has no such setting"
		lazyPostings = "always on: the postings of a matcher are not read if they are larger than the estimated index entries of the series that the most selective matcher selects; the matcher is then applied to the labels of these series"
	)
	return Table{
		Command: "store", Peer: "thanos store", Version: thanosVersion,
		Rows: rows(processRows(requestLog), grpcServerRows(), []Row{
			honoured("block-discovery-strategy", ""),
			honoured("block-meta-fetch-concurrency", "for deletion marks too"),
			inert("block-sync-concurrency", Number, headers),
			inert("bucket-web-label", Text, noUI),
			inert("cache-index-header", Switch, headers),
			inert("chunk-pool-size", Size, pages),
			honoured("consistency-delay", ""),
			honoured("data-dir", "its files are not those of Thanos"),
			inert("debug.estimated-max-chunk-size", Number, batches).unlisted(),
			inert("debug.estimated-max-series-size", Number, batches).unlisted(),
			inert("debug.series-batch-size", Number, batches).unlisted(),
			inert("disable-admin-operations", Switch, "there are no such operations"),
			honoured("ignore-deletion-marks-delay", ""),
			honoured("index-cache-size", "size of the file that caches pages of indexes and chunks; it also limits the pages that all requests hold together while they read"),
			honoured("index-cache.config", "type `IN-MEMORY`, of which `max_size` counts; other types are an error"),
			honoured("index-cache.config-file", "as above"),
			inert("matcher-cache-size", Number, "matchers are not cached"),
			honoured("max-time", ""),
			honoured("min-time", ""),
			honoured("objstore.config", "types `S3`, `FILESYSTEM`, `AZURE`, and `GCS` in builds with the tag `clouds`, like the released one; others are an error"),
			honoured("objstore.config-file", "as above"),
			refused("objstore-parquet.config", YAML, "blocks in Parquet are not read"),
			refused("objstore-parquet.config-file", Text, "blocks in Parquet are not read"),
			honoured("selector.relabel-config", "actions `keep`, `drop` and `hashmod`"),
			honoured("selector.relabel-config-file", "as above"),
			refused("store.caching-bucket.config", YAML, pages).unlisted(),
			refused("store.caching-bucket.config-file", Text, pages).unlisted(),
			inert("store.enable-index-header-lazy-reader", Switch, headers),
			inert("store.enable-lazy-expanded-postings", Switch, lazyPostings),
			honoured("store.grpc.downloaded-bytes-limit", "of the labels and chunks of a response"),
			honoured("store.grpc.series-max-concurrency",
				"limits the blocks that all requests read at once (Thanos: the Series calls); blocks of a request that waits for a slow client do not count"),
			honoured("store.grpc.series-sample-limit", "the older name of `--store.limits.request-samples`"),
			honoured("store.grpc.touched-series-limit", "the older name of `--store.limits.request-series`"),
			inert("store.index-header-lazy-download-strategy", Text, headers),
			honoured("store.index-header-lazy-reader-idle-timeout",
				"after which the symbols and postings offset table of an unused block are unmapped").unlisted(),
			inert("store.index-header-posting-offsets-in-mem-sampling", Number, headers).unlisted(),
			inert("store.posting-group-max-key-series-ratio", Number, lazyPostings),
			honoured("sync-block-duration", ""),
			inert("web.disable", Switch, noUI),
			inert("web.disable-cors", Switch, noUI),
			honoured("web.external-prefix", "of `/blocks` and `/api/v1/blocks`"),
			inert("web.prefix-header", Text, noUI),
		}),
	}
}
