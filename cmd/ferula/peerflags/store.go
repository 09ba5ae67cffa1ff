package peerflags

// Store returns the flags of thanos store.
func Store() Table {
	const (
		pages   = "what is read is cached by pages of fixed size, see --index-cache-size"
		headers = "no index headers are built: symbols and postings table are mapped when a block is read first"
		batches = "batches are sized by what they have"
		noPage  = "there is no page of blocks; /api/v1/blocks lists them"
	)
	return Table{
		Command: "store", Peer: "thanos store", Version: thanosVersion,
		Rows: rows(processRows("calls are counted in metrics and failed ones logged"), grpcServerRows(), []Row{
			honoured("block-discovery-strategy", ""),
			honoured("block-meta-fetch-concurrency", "for deletion marks too"),
			inert("block-sync-concurrency", Number, headers),
			inert("bucket-web-label", Text, noPage),
			inert("cache-index-header", Switch, headers),
			inert("chunk-pool-size", Size, pages),
			honoured("consistency-delay", ""),
			honoured("data-dir", "it has other files than Thanos'"),
			inert("debug.estimated-max-chunk-size", Number, batches).unlisted(),
			inert("debug.estimated-max-series-size", Number, batches).unlisted(),
			inert("debug.series-batch-size", Number, batches).unlisted(),
			inert("disable-admin-operations", Switch, "there are no such operations"),
			honoured("ignore-deletion-marks-delay", ""),
			honoured("index-cache-size", "of the file that caches pages of indexes and chunks, which bounds what all requests hold together"),
			honoured("index-cache.config", "type `IN-MEMORY`, of which `max_size` counts; other types are an error"),
			honoured("index-cache.config-file", "as above"),
			inert("matcher-cache-size", Number, "matchers are not cached"),
			honoured("max-time", ""),
			honoured("min-time", ""),
			honoured("objstore.config", "types `S3` and `FILESYSTEM`; others are an error"),
			honoured("objstore.config-file", "as above"),
			refused("objstore-parquet.config", Text, "blocks in Parquet are not read"),
			refused("objstore-parquet.config-file", Text, "blocks in Parquet are not read"),
			honoured("selector.relabel-config", "actions `keep`, `drop` and `hashmod`"),
			honoured("selector.relabel-config-file", "as above"),
			refused("store.caching-bucket.config", Text, pages).unlisted(),
			refused("store.caching-bucket.config-file", Text, pages).unlisted(),
			inert("store.enable-index-header-lazy-reader", Switch, headers),
			inert("store.enable-lazy-expanded-postings", Switch, "long lists of postings are never read if labels decide sooner"),
			honoured("store.grpc.downloaded-bytes-limit", "of the labels and chunks of a response"),
			honoured("store.grpc.series-max-concurrency", "blocks that are read at once; a request that waits for its client does not count"),
			honoured("store.grpc.series-sample-limit", "the older name of `--store.limits.request-samples`"),
			honoured("store.grpc.touched-series-limit", "the older name of `--store.limits.request-series`"),
			inert("store.index-header-lazy-download-strategy", Text, headers),
			honoured("store.index-header-lazy-reader-idle-timeout", "of the mapped symbols and postings tables").unlisted(),
			inert("store.index-header-posting-offsets-in-mem-sampling", Number, headers).unlisted(),
			inert("store.posting-group-max-key-series-ratio", Number, "long lists of postings are never read if labels decide sooner"),
			honoured("sync-block-duration", ""),
			inert("web.disable", Switch, noPage),
			inert("web.disable-cors", Switch, noPage),
			honoured("web.external-prefix", "of `/api/v1/blocks`"),
			inert("web.prefix-header", Text, noPage),
		}),
	}
}
