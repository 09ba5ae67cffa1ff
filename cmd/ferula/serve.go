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
	"github.com/ferula-io/ferula/internal/httpbody"
	"github.com/ferula-io/ferula/internal/ingest/remotesend"
	"github.com/ferula-io/ferula/internal/ingest/remotewrite"
	"github.com/ferula-io/ferula/internal/ingest/scrape"
	"github.com/ferula-io/ferula/internal/promql"
	"github.com/ferula-io/ferula/internal/promql/rules"
	"github.com/ferula-io/ferula/internal/remoteread"
	"github.com/ferula-io/ferula/internal/tsdb"
)

type serveCommand struct {
	ConfigFile string `name:"config.file" placeholder:"FILE"`

	AutoReload         bool     `name:"config.auto-reload" negatable:""`
	AutoReloadInterval duration `name:"config.auto-reload-interval" default:"30s"`

	ListenAddress   []string  `name:"web.listen-address" default:"127.0.0.1:9490" sep:"none" placeholder:"ADDRESS"`
	WebConfigFile   string    `name:"web.config.file" placeholder:"FILE"`
	ReadTimeout     duration  `name:"web.read-timeout" default:"5m"`
	MaxConnections  int       `name:"web.max-connections" default:"512"`
	ExternalURL     secretURL `name:"web.external-url" placeholder:"URL"`
	RoutePrefix     string    `name:"web.route-prefix" placeholder:"PATH"`
	AdminAPI        bool      `name:"web.enable-admin-api" negatable:""`
	Subscribers     int       `name:"web.max-notifications-subscribers" default:"16"`
	SearchMax       int       `name:"web.search.max-limit" default:"10000"`
	OTLP            bool      `name:"web.enable-otlp-receiver" negatable:""`
	EnableLifecycle bool      `name:"web.enable-lifecycle" negatable:""`
	CORSOrigin      string    `name:"web.cors.origin" default:".*" placeholder:"REGEX"`

	Path             string   `name:"storage.tsdb.path" default:"data"`
	RetentionTime    duration `name:"storage.tsdb.retention.time" default:"0s"`
	RetentionSize    size     `name:"storage.tsdb.retention.size" default:"0"`
	MinFree          minFree  `name:"storage.tsdb.min-free" default:"auto"`
	NoLockfile       bool     `name:"storage.tsdb.no-lockfile" negatable:""`
	MinBlockDuration duration `name:"storage.tsdb.min-block-duration" default:"2h" hidden:""`
	MaxBlockDuration duration `name:"storage.tsdb.max-block-duration" default:"0s" hidden:""`
	WALSegmentSize   size     `name:"storage.tsdb.wal-segment-size" default:"0" hidden:""`
	WALCompress      bool     `name:"storage.tsdb.wal-compression" default:"true" negatable:"" hidden:""`
	WALCompression   string   `name:"storage.tsdb.wal-compression-type" enum:"snappy,zstd,none" default:"snappy" hidden:""`

	ChunkSegmentSize    size     `name:"storage.tsdb.max-block-chunk-segment-size" default:"0" hidden:""`
	CompactOverlapping  bool     `name:"storage.tsdb.allow-overlapping-compaction" default:"true" negatable:"" hidden:""`
	WriteQueueSize      int      `name:"storage.tsdb.head-chunks-write-queue-size" default:"0"`
	SamplesPerChunk     int      `name:"storage.tsdb.samples-per-chunk" default:"120" hidden:""`
	CompactionDelayMax  int      `name:"storage.tsdb.delayed-compaction.max-percent" default:"10" hidden:""`
	UploadedBlocksFile  string   `name:"storage.tsdb.delay-compact-file.path" placeholder:"FILE"`
	BlockReloadInterval duration `name:"storage.tsdb.block-reload-interval" default:"1m" hidden:""`

	Rules ruleFlags `embed:""`

	FlushDeadline  duration `name:"storage.remote.flush-deadline" default:"1m"`
	WriteSavepoint bool     `name:"storage.remote.write-savepoint" default:"true" negatable:""`

	ShutdownUpload duration `name:"shutdown.upload-timeout" default:"20s"`

	ReadConcurrentLimit int `name:"storage.remote.read-concurrent-limit" default:"10"`
	ReadSampleLimit     int `name:"storage.remote.read-sample-limit" default:"50000000"`
	ReadMaxBytesInFrame int `name:"storage.remote.read-max-bytes-in-frame" default:"1048576"`

	ReadSlowTimeout duration `name:"storage.remote.read-timeout" default:"15m"`
	ReadSortMemory  size     `name:"storage.remote.read-max-sort-bytes" default:"12MiB"`
	ReadPartial     bool     `name:"storage.remote.read-partial"`

	LookbackDelta  duration `name:"query.lookback-delta" default:"5m"`
	QueryTimeout   duration `name:"query.timeout" default:"2m"`
	MaxConcurrency int      `name:"query.max-concurrency" default:"20"`
	QueryEngine    string   `name:"query.engine" enum:"columns,prometheus" default:"columns"`
	Parallelism    int      `name:"query.parallelism" default:"0"`
	MaxSamples     int      `name:"query.max-samples" default:"50000000"`
	MaxEstimated   int64    `name:"query.max-estimated-samples" default:"0"`

	DiscoveryReloadInterval duration `name:"scrape.discovery-reload-interval" default:"5s" hidden:""`
	AdjustTimestamps        bool     `name:"scrape.adjust-timestamps" default:"true" negatable:"" hidden:""`
	TimestampTolerance      duration `name:"scrape.timestamp-tolerance" default:"2ms" hidden:""`
	Features                []string `name:"enable-feature" sep:"none" placeholder:"NAME,..."`

	Hosts       hostFlags     `embed:""`
	Receive     receiveFlags  `embed:""`
	Profiles    profileFlags  `embed:""`
	Objstore    objstoreFlags `embed:""`
	GRPCAddress string        `name:"grpc-address" default:"127.0.0.1:9491"`
	GRPC        grpcFlags     `embed:""`

	AllowAnonymous bool `name:"grpc-server-allow-anonymous"`

	Log           logFlags    `embed:""`
	Memory        memoryFlags `embed:""`
	MemoryRefresh duration    `name:"auto-gomemlimit.refresh-interval" default:"0s"`
	AutoMaxProcs  bool        `name:"auto-gomaxprocs" default:"true" negatable:""`
}

func (c *serveCommand) Validate() error {
	var errs []error
	for _, address := range c.ListenAddress {
		errs = append(errs, checkListen("web.listen-address", address))
	}
	return errors.Join(append(errs, checkGRPC(c.GRPCAddress))...)
}

func (c *serveCommand) Run(ctx context.Context, k *kong.Context, ignored ignoredFlags, next *role) error {
	logger, level, err := c.Log.logger()
	if err != nil {
		return err
	}
	opts, err := c.options()
	if err != nil {
		return usageError(err)
	}
	opts.Logger, opts.LogLevel, opts.Flags, opts.Web.CommandLine = logger, level, flagValues(k), commandLine(k, os.Args)
	append(ignored, ignoredFeatures("features", c.Features, isFeature)...).warn(logger)
	warnOpen(logger, k, opts.Flags)
	setGOMAXPROCS(c.AutoMaxProcs)
	c.Memory.apply(ctx, logger, time.Duration(c.MemoryRefresh))
	serve, err := app.NewServe(opts)
	if err != nil {
		return err
	}
	*next = serve.Run
	return nil
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

			ChunkSegmentBytes:      int64(c.ChunkSegmentSize),
			HeadQueueSize:          c.WriteQueueSize,
			SamplesPerChunk:        c.SamplesPerChunk,
			CompactionDelayPercent: c.CompactionDelayMax,
			UploadedBlocksFile:     c.UploadedBlocksFile,
			BlockReloadInterval:    time.Duration(c.BlockReloadInterval),
			KeepOverlappingBlocks:  !c.CompactOverlapping,
		},
		Query: promql.Options{
			MaxSamples:     c.MaxSamples,
			Timeout:        time.Duration(c.QueryTimeout),
			MaxConcurrency: c.MaxConcurrency,
			LookbackDelta:  time.Duration(c.LookbackDelta),
			Flags:          hint.Flags{"MaxSamples": "--query.max-samples"},
		},
		Engine:      app.EngineOptions{Name: c.QueryEngine, Parallelism: c.Parallelism},
		EstimateMax: c.MaxEstimated,
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

// receiveFlags are the flags of serve about pushed samples and profiles.
type receiveFlags struct {
	RemoteWrite bool     `name:"web.enable-remote-write-receiver" default:"true" negatable:""`
	Messages    []string `name:"web.remote-write-receiver.accepted-protobuf-messages" sep:"none" placeholder:"NAME"`
	Profiles    bool     `name:"profiles.enable-receiver" default:"true" negatable:""`
	BodiesSize  size     `name:"receive.max-bytes-in-flight" min:"64MB" default:"256MB"`
	BodyTimeout duration `name:"receive.body-timeout" min:"1s" default:"15s"`
}

// check returns an error if --receive.max-bytes-in-flight is less than the largest body
// that other flags allow. Such a body would never get enough memory: its request would always get
// 503 after a wait.
func (f receiveFlags) check(profiles profileFlags) error {
	const overhead = 2 << 20 // an upload's bytes around its profiles, and the last chunk
	for _, c := range []struct {
		name  string
		bytes size
	}{{"profiles.max-request-size", profiles.BodySize}, {"profiles.limit.profile-size", 2 * profiles.Profile}} {
		if f.Profiles && f.BodiesSize < c.bytes+overhead {
			return fmt.Errorf("--receive.max-bytes-in-flight=%s is too small for one body of --%s: must be at least %s",
				f.BodiesSize, c.name, c.bytes+overhead)
		}
	}
	return nil
}

func (f receiveFlags) options(readTimeout time.Duration) app.ReceiveOptions {
	return app.ReceiveOptions{
		RemoteWriteOff: !f.RemoteWrite, ProfilesOff: !f.Profiles,
		Bodies: httpbody.Options{BytesMax: int64(f.BodiesSize), Grace: time.Duration(f.BodyTimeout), Total: readTimeout,
			Flags: hint.Flags{
				"BytesMax": "--receive.max-bytes-in-flight", "Grace": "--receive.body-timeout",
			}},
	}
}

// ruleFlags are the flags of serve about rules and alerts.
type ruleFlags struct {
	Tolerance   duration `name:"rules.alert.for-outage-tolerance" default:"1h"`
	Grace       duration `name:"rules.alert.for-grace-period" default:"10m"`
	ResendDelay duration `name:"rules.alert.resend-delay" default:"1m"`
	Concurrent  int      `name:"rules.max-concurrent-evals" default:"4"`
	Queue       int      `name:"alertmanager.notification-queue-capacity" min:"1" default:"10000"`
	Batch       int      `name:"alertmanager.notification-batch-size" min:"1" default:"256"`
	Drain       bool     `name:"alertmanager.drain-notification-queue-on-shutdown" default:"true" negatable:""`
}

func (f ruleFlags) options() rules.Options {
	return rules.Options{
		OutageTolerance: time.Duration(f.Tolerance), ForGracePeriod: time.Duration(f.Grace),
		ResendDelay:        time.Duration(f.ResendDelay),
		MaxConcurrentEvals: f.Concurrent,
		QueueCapacity:      f.Queue, BatchSize: f.Batch, DropOnShutdown: !f.Drain,
	}
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
