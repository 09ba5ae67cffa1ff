package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"github.com/prometheus/prometheus/util/compression"

	"github.com/ferula-io/ferula/internal/app"
	"github.com/ferula-io/ferula/internal/hint"
	"github.com/ferula-io/ferula/internal/ingest/remotesend"
	"github.com/ferula-io/ferula/internal/ingest/remotewrite"
	"github.com/ferula-io/ferula/internal/ingest/scrape"
	"github.com/ferula-io/ferula/internal/promql"
	"github.com/ferula-io/ferula/internal/remoteread"
	"github.com/ferula-io/ferula/internal/tsdb"
)

type serveCommand struct {
	ConfigFile string `name:"config.file" placeholder:"FILE" help:"Prometheus configuration file. Without one the server scrapes itself."`

	AutoReload         bool     `name:"config.auto-reload" negatable:"" help:"Reload the configuration when its file, a file that it names, or that of --profiles.config-file has changed."`
	AutoReloadInterval duration `name:"config.auto-reload-interval" default:"30s" help:"Interval at which --config.auto-reload looks for changes."`

	ListenAddress   []string  `name:"web.listen-address" default:"127.0.0.1:9490" sep:"none" placeholder:"ADDRESS" help:"Address to listen on for UI, API and telemetry. Can be repeated. ${default} by default."`
	WebConfigFile   string    `name:"web.config.file" placeholder:"FILE" help:"File that enables TLS or basic authentication."`
	ReadTimeout     duration  `name:"web.read-timeout" default:"5m" help:"Maximum duration before timing out read of the request, and closing idle connections."`
	MaxConnections  int       `name:"web.max-connections" default:"512" help:"Maximum number of simultaneous connections across all listeners."`
	ExternalURL     secretURL `name:"web.external-url" placeholder:"URL" help:"The URL under which the server is externally reachable. Its path is the prefix of all routes, unless --web.route-prefix sets another one."`
	RoutePrefix     string    `name:"web.route-prefix" placeholder:"PATH" help:"Prefix for the internal routes of web endpoints."`
	AdminAPI        bool      `name:"web.enable-admin-api" negatable:"" help:"Enable API endpoints for admin control actions: snapshots and deletion of series."`
	Subscribers     int       `name:"web.max-notifications-subscribers" default:"16" help:"Maximum number of subscribers of live notifications."`
	SearchMax       int       `name:"web.search.max-limit" default:"10000" help:"Maximum of the parameter limit of the search API. 0 means no limit."`
	OTLP            bool      `name:"web.enable-otlp-receiver" negatable:"" help:"Accept OTLP metrics at /api/v1/otlp/v1/metrics."`
	EnableLifecycle bool      `name:"web.enable-lifecycle" negatable:"" help:"Enable shutdown and reload via HTTP request."`
	CORSOrigin      string    `name:"web.cors.origin" default:".*" placeholder:"REGEX" help:"Regular expression for the CORS origin. It is fully anchored. ${default} by default."`

	Path             string   `name:"storage.tsdb.path" default:"data" help:"Base path for metrics storage."`
	RetentionTime    duration `name:"storage.tsdb.retention.time" default:"0s" help:"How long to retain samples. Defaults to 15d if no retention size is set either."`
	RetentionSize    size     `name:"storage.tsdb.retention.size" default:"0" help:"Maximum number of bytes of blocks to retain, e.g. 512MB."`
	MinFree          minFree  `name:"storage.tsdb.min-free" default:"auto" help:"Refuse samples with 503 while the disk has less free space than this. auto: what the next block needs, at least 256MiB. The limit is at most 5 % of the disk. Pushed profiles are refused below twice the limit, with auto below 512MiB. 0 disables the check."`
	NoLockfile       bool     `name:"storage.tsdb.no-lockfile" negatable:"" help:"Do not create a lockfile in the data directory, and do not lock the directory of profiles."`
	MinBlockDuration duration `name:"storage.tsdb.min-block-duration" default:"2h" hidden:"" help:"Minimum duration of a data block before being persisted."`
	MaxBlockDuration duration `name:"storage.tsdb.max-block-duration" default:"0s" hidden:"" help:"Maximum duration compacted blocks may span. Defaults to a tenth of the retention time."`
	WALSegmentSize   size     `name:"storage.tsdb.wal-segment-size" default:"0" hidden:"" help:"Size at which to split the segment files of the write-ahead log, 10MB to 256MB."`
	WALCompress      bool     `name:"storage.tsdb.wal-compression" default:"true" negatable:"" hidden:"" help:"Compress the write-ahead log."`
	WALCompression   string   `name:"storage.tsdb.wal-compression-type" enum:"snappy,zstd,none" default:"snappy" hidden:"" help:"Compression of the write-ahead log (${enum})."`

	Tuning serveTuningFlags `embed:""`
	Rules  ruleFlags        `embed:""`

	FlushDeadline  duration `name:"storage.remote.flush-deadline" default:"1m" help:"How long to wait for samples to be sent to the servers of remote_write, at shutdown or when a section is removed."`
	WriteSavepoint bool     `name:"storage.remote.write-savepoint" default:"true" negatable:"" help:"Save how far each queue of remote_write has sent, and continue there after a restart or a crash. Without it a queue sends only what is appended after the start, as in Prometheus."`

	ShutdownUpload duration `name:"shutdown.upload-timeout" default:"20s" help:"Longest time to write the samples in memory to blocks and upload them at the shutdown, with --objstore.config. 0 disables it: the next start reads them from the write-ahead log."`

	ReadConcurrentLimit int `name:"storage.remote.read-concurrent-limit" default:"10" help:"Maximum number of concurrent remote read calls. 0 means no limit."`
	ReadSampleLimit     int `name:"storage.remote.read-sample-limit" default:"50000000" help:"Maximum number of samples of a remote read query with response type SAMPLES. 0 means no limit. It does not apply to streamed chunks."`
	ReadMaxBytesInFrame int `name:"storage.remote.read-max-bytes-in-frame" default:"1048576" help:"Maximum number of bytes in a frame of streamed chunks. A larger series is split into several frames. 0 means no limit. Clients may have a limit of their own."`

	ReadSlowTimeout duration `name:"storage.remote.read-timeout" default:"15m" help:"Maximum total time that a remote read response may wait for a slow reader. 0 means no limit."`
	ReadSortMemory  size     `name:"storage.remote.read-max-sort-bytes" default:"12MiB" help:"Memory to sort a response of a remote_read endpoint, whose series may come in any order. A larger unsorted response fails. So does a response with samples that needs 64 times as much when decoded."`
	ReadPartial     bool     `name:"storage.remote.read-partial" help:"Respond to remote read without the series of a remote_read endpoint that fails, as Prometheus does. Without it the request fails with 502, since the protocol has no warnings."`

	LookbackDelta  duration `name:"query.lookback-delta" default:"5m" help:"The maximum lookback duration for retrieving metrics during expression evaluations."`
	QueryTimeout   duration `name:"query.timeout" default:"2m" help:"Maximum time a query may take before being aborted."`
	MaxConcurrency int      `name:"query.max-concurrency" default:"20" help:"Maximum number of queries executed concurrently."`
	QueryEngine    string   `name:"query.engine" enum:"columns,prometheus" default:"columns" help:"Engine that evaluates queries (${enum}), with the same results. Expressions that columns does not support are evaluated by Prometheus' engine."`
	Parallelism    int      `name:"query.parallelism" default:"0" help:"Maximum number of goroutines that evaluate one query. One belongs to the query, the others come from a pool that all queries share. 0 means the number of CPUs (GOMAXPROCS)."`
	MaxSamples     int      `name:"query.max-samples" default:"50000000" help:"Maximum number of samples a single query can load into memory."`

	DiscoveryReloadInterval duration `name:"scrape.discovery-reload-interval" default:"5s" hidden:"" help:"Interval at which changed targets are applied."`
	AdjustTimestamps        bool     `name:"scrape.adjust-timestamps" default:"true" negatable:"" hidden:"" help:"Adjust the timestamps of scrapes to their schedule."`
	TimestampTolerance      duration `name:"scrape.timestamp-tolerance" default:"2ms" hidden:"" help:"Maximum difference that the timestamp of a scrape is adjusted by."`
	Features                []string `name:"enable-feature" sep:"none" placeholder:"NAME,..." help:"Comma-separated feature names: ${features}."`

	Hosts       hostFlags     `embed:""`
	Receive     receiveFlags  `embed:""`
	Profiles    profileFlags  `embed:""`
	Objstore    objstoreFlags `embed:""`
	GRPCAddress string        `name:"grpc-address" default:"127.0.0.1:9491" help:"Address to listen on for gRPC (StoreAPI). Empty disables it."`
	GRPC        grpcFlags     `embed:""`

	AllowAnonymous bool `name:"grpc-server-allow-anonymous" help:"Allow gRPC clients without certificates at an address that is not loopback, although --web.config.file requires passwords or client certificates."`

	Log           logFlags    `embed:""`
	Memory        memoryFlags `embed:""`
	MemoryRefresh duration    `name:"auto-gomemlimit.refresh-interval" default:"0s" help:"Interval at which GOMEMLIMIT is set again from the memory limit of the container. 0 means once, at the start."`
	AutoMaxProcs  bool        `name:"auto-gomaxprocs" default:"true" negatable:"" help:"Set GOMAXPROCS from the CPU quota of the container."`
}

// serveTuningFlags are flags of Prometheus about its TSDB that few servers need.
type serveTuningFlags struct {
	ChunkSegmentSize    size     `name:"storage.tsdb.max-block-chunk-segment-size" default:"0" hidden:"" help:"Maximum size of one segment of chunks in a block."`
	CompactOverlapping  bool     `name:"storage.tsdb.allow-overlapping-compaction" default:"true" negatable:"" hidden:"" help:"Compact blocks that overlap."`
	WriteQueueSize      int      `name:"storage.tsdb.head-chunks-write-queue-size" default:"0" help:"Size of the queue of head chunks to write to disk. 0 disables the queue."`
	SamplesPerChunk     int      `name:"storage.tsdb.samples-per-chunk" default:"120" hidden:"" help:"Target number of samples per chunk."`
	CompactionDelayMax  int      `name:"storage.tsdb.delayed-compaction.max-percent" default:"10" hidden:"" help:"Maximum random delay of a compaction with the feature delayed-compaction, in percent of the range of the head."`
	UploadedBlocksFile  string   `name:"storage.tsdb.delay-compact-file.path" placeholder:"FILE" help:"File in which an uploader, such as the sidecar, lists the uploaded blocks. Blocks of level 1 are compacted only once they are listed."`
	BlockReloadInterval duration `name:"storage.tsdb.block-reload-interval" default:"1m" hidden:"" help:"Interval at which new and removed blocks are looked for."`
}

// apply sets the options of the store.
func (f serveTuningFlags) apply(o *tsdb.Options) {
	o.ChunkSegmentBytes, o.HeadQueueSize, o.SamplesPerChunk = int64(f.ChunkSegmentSize), f.WriteQueueSize,
		f.SamplesPerChunk
	o.CompactionDelayPercent, o.UploadedBlocksFile, o.BlockReloadInterval = f.CompactionDelayMax, f.UploadedBlocksFile,
		time.Duration(f.BlockReloadInterval)
	o.KeepOverlappingBlocks = !f.CompactOverlapping
}

// Validate is called by kong.
func (c *serveCommand) Validate() error {
	var errs []error
	for _, address := range c.ListenAddress {
		errs = append(errs, checkListen("web.listen-address", address))
	}
	return errors.Join(append(errs, checkListen("grpc-address", c.GRPCAddress))...)
}

// Run is called by kong.
func (c *serveCommand) Run(ctx context.Context, k *kong.Context, ignored ignoredFlags) error {
	logger, level, err := c.Log.logger()
	if err != nil {
		return err
	}
	opts, err := c.options()
	if err != nil {
		return usageError{err}
	}
	opts.Logger, opts.LogLevel, opts.Flags, opts.Web.CommandLine = logger, level, flagValues(k), commandLine(k, os.Args)
	append(ignored, ignoredFeatures(c.Features)...).warn(logger)
	setGOMAXPROCS(c.AutoMaxProcs)
	c.Memory.apply(ctx, logger, time.Duration(c.MemoryRefresh))
	serve, err := app.NewServe(opts)
	if err != nil {
		return err
	}
	return serve.Run(ctx)
}

func (c *serveCommand) options() (app.ServeOptions, error) {
	opts := app.ServeOptions{
		ConfigFile: c.ConfigFile,
		Web: app.WebOptions{
			ListenAddress:   c.ListenAddress[0],
			MoreAddresses:   c.ListenAddress[1:],
			ConfigFile:      c.WebConfigFile,
			ConfigFlag:      "web.config.file",
			ExternalURL:     string(c.ExternalURL),
			RoutePrefix:     c.RoutePrefix,
			CORSOrigin:      c.CORSOrigin,
			AllowedHosts:    c.Hosts.Allowed,
			EnableLifecycle: c.EnableLifecycle,
			MaxConnections:  c.MaxConnections,
			ReadTimeout:     time.Duration(c.ReadTimeout),
		},
		Store: tsdb.Options{
			Dir:              c.Path,
			Retention:        time.Duration(c.RetentionTime),
			RetentionBytes:   int64(c.RetentionSize),
			MinBlockDuration: time.Duration(c.MinBlockDuration),
			MaxBlockDuration: time.Duration(c.MaxBlockDuration),
			WALSegmentBytes:  int(c.WALSegmentSize),
			WALCompression:   compression.Type(c.WALCompression),
			FreeBytesMin:     int64(c.MinFree),
			NoLockfile:       c.NoLockfile,
		},
		Query: promql.Options{
			MaxSamples:     c.MaxSamples,
			Timeout:        time.Duration(c.QueryTimeout),
			MaxConcurrency: c.MaxConcurrency,
			LookbackDelta:  time.Duration(c.LookbackDelta),
			Flags:          hint.Flags{"MaxSamples": "--query.max-samples"},
		},
		Engine: app.EngineOptions{Name: c.QueryEngine, Parallelism: c.Parallelism},
		Scrape: scrape.Options{
			DiscoveryReloadInterval: time.Duration(c.DiscoveryReloadInterval),
			ExactTimestamps:         !c.AdjustTimestamps,
			TimestampTolerance:      time.Duration(c.TimestampTolerance),
		},
		Write: remotewrite.Options{Messages: c.Receive.Messages},
		Read: remoteread.Options{
			ConcurrentMax: c.ReadConcurrentLimit,
			SamplesMax:    c.ReadSampleLimit,
			FrameBytesMax: c.ReadMaxBytesInFrame,
			ReaderWaitMax: time.Duration(c.ReadSlowTimeout),
			Partial:       c.ReadPartial,
			Flags:         hint.Flags{"SamplesMax": "--storage.remote.read-sample-limit"},
		},
		ReadSort: int(c.ReadSortMemory),
		Send:     remotesend.Options{FlushDeadline: zeroIsNone(c.FlushDeadline), NoSavepoints: !c.WriteSavepoint},
		Rules:    c.Rules.options(),
	}
	opts.Peer = c.peerAPI()
	if !c.WALCompress {
		opts.Store.WALCompression = compression.None
	}
	c.Tuning.apply(&opts.Store)
	var err error
	if opts.Ship, err = c.Objstore.options(); err != nil {
		return opts, err
	}
	if err := c.Receive.check(c.Profiles); err != nil {
		return opts, err
	}
	if err := opts.Write.Validate(); err != nil {
		return opts, fmt.Errorf("--web.remote-write-receiver.accepted-protobuf-messages: %w", err)
	}
	opts.ShutdownUpload = time.Duration(c.ShutdownUpload)
	opts.Receive = c.Receive.options(time.Duration(c.ReadTimeout))
	opts.Profiles = c.Profiles.options()
	opts.Profiles.Store.NoLock = c.NoLockfile
	if opts.Profiles.Store.FreeBytesMin = 2 * int64(c.MinFree); c.MinFree == 0 {
		opts.Profiles.Store.FreeBytesMin = 512 << 20
	}
	opts.GRPC, opts.StoreAPI = c.GRPC.options(c.GRPCAddress)
	opts.GRPC.AllowAnonymous = c.AllowAnonymous
	return opts, enableFeatures(c.Features, &opts)
}

// peerAPI returns the options of the endpoints that Prometheus' own package serves.
func (c *serveCommand) peerAPI() app.PeerAPIOptions {
	peer := app.PeerAPIOptions{
		Admin: c.AdminAPI, SearchMax: c.SearchMax, SubscribersMax: c.Subscribers,
		OTLP: c.OTLP, OTLPOptions: remotewrite.OTLPOptions{LookbackDelta: time.Duration(c.LookbackDelta)},
	}
	if c.AutoReload || slices.Contains(splitFeatures(c.Features), "auto-reload-config") {
		peer.AutoReload = max(time.Second, time.Duration(c.AutoReloadInterval))
	}
	return peer
}

// flagValues returns the value of every flag of the command, by name, with masked secrets.
func flagValues(k *kong.Context) map[string]string {
	values, masks := map[string]string{}, masks(k)
	for _, flag := range k.Flags() {
		switch value := flag.Target.Interface().(type) {
		case kong.VersionFlag:
		case []string:
			if mask := masks[flag.Name]; mask != nil {
				value = slices.Clone(value)
				for i := range value {
					value[i] = mask(value[i])
				}
			}
			values[flag.Name] = strings.Join(value, ",")
		default:
			if flag.Name != "help" {
				values[flag.Name] = fmt.Sprint(value)
			}
		}
	}
	return values
}

// minFree is the value of --storage.tsdb.min-free, as in the option of the TSDB: 0 for auto, negative for 0, which
// disables the check.
type minFree size

// UnmarshalText implements encoding.TextUnmarshaler.
func (f *minFree) UnmarshalText(text []byte) error {
	if *f = 0; string(text) == "auto" {
		return nil
	}
	if err := (*size)(f).UnmarshalText(text); err != nil || *f != 0 {
		return err
	}
	*f = -1
	return nil
}

// String implements fmt.Stringer, for /api/v1/status/flags.
func (f minFree) String() string {
	if f == 0 {
		return "auto"
	}
	return size(max(0, f)).String()
}
