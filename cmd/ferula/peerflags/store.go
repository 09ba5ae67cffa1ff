package peerflags

// Store returns the flags of thanos store.
func Store() Table {
	const (
		pages   = "reads are cached in pages of fixed size, see --index-cache-size"
		headers = "no index headers are built: the first read of a block maps its symbols and postings table"
		batches = "the size of a batch follows from its series"
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
			honoured("data-dir", "its files are not those of Thanos"),
			inert("debug.estimated-max-chunk-size", Number, batches).unlisted(),
			inert("debug.estimated-max-series-size", Number, batches).unlisted(),
			inert("debug.series-batch-size", Number, batches).unlisted(),
			inert("disable-admin-operations", Switch, "there are no such operations"),
			honoured("ignore-deletion-marks-delay", ""),
			honoured("index-cache-size", "size of the file that caches pages of indexes and chunks; it also bounds the memory that all requests hold"),
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
			inert("store.enable-lazy-expanded-postings", Switch, "a list of postings is not read if it is longer than the entries of the series that the other matchers leave"),
			honoured("store.grpc.downloaded-bytes-limit", "of the labels and chunks of a response"),
			honoured("store.grpc.series-max-concurrency", "limits the blocks that are read at once; a request that waits for its client does not count"),
			honoured("store.grpc.series-sample-limit", "the older name of `--store.limits.request-samples`"),
			honoured("store.grpc.touched-series-limit", "the older name of `--store.limits.request-series`"),
			inert("store.index-header-lazy-download-strategy", Text, headers),
			honoured("store.index-header-lazy-reader-idle-timeout", "of the mapped symbols and postings tables").unlisted(),
			inert("store.index-header-posting-offsets-in-mem-sampling", Number, headers).unlisted(),
			inert("store.posting-group-max-key-series-ratio", Number, "a list of postings is not read if it is longer than the entries of the series that the other matchers leave"),
			honoured("sync-block-duration", ""),
			inert("web.disable", Switch, noPage),
			inert("web.disable-cors", Switch, noPage),
			honoured("web.external-prefix", "of `/api/v1/blocks`"),
			inert("web.prefix-header", Text, noPage),
		}),
	}
}
