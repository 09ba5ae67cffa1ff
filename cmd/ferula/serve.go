package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"github.com/alecthomas/units"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/util/compression"

	"github.com/ferula-io/ferula/internal/ingest/remotewrite"
	"github.com/ferula-io/ferula/internal/ingest/scrape"
	"github.com/ferula-io/ferula/internal/query/promql"
	"github.com/ferula-io/ferula/internal/role"
	"github.com/ferula-io/ferula/internal/store/tsdb"
	"github.com/ferula-io/ferula/internal/wire/remoteread"
)

// duration is a flag value in Prometheus' duration format: 15d, 1h30m.
type duration model.Duration

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *duration) UnmarshalText(text []byte) error {
	parsed, err := model.ParseDuration(string(text))
	*d = duration(parsed)
	return err
}

// String implements fmt.Stringer, for /api/v1/status/flags.
func (d duration) String() string { return model.Duration(d).String() }

// size is a flag value in bytes: 512MB, 1GB (powers of two, as in Prometheus).
type size int64

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *size) UnmarshalText(text []byte) error {
	if string(text) == "0" {
		*s = 0
		return nil
	}
	parsed, err := units.ParseBase2Bytes(string(text))
	*s = size(parsed)
	return err
}

// String implements fmt.Stringer, for /api/v1/status/flags.
func (s size) String() string { return units.Base2Bytes(s).String() }

type serveCommand struct {
	ConfigFile string `name:"config.file" placeholder:"FILE" help:"Prometheus configuration file. Without one the server scrapes itself."`

	ListenAddress   []string  `name:"web.listen-address" default:"127.0.0.1:9490" sep:"none" placeholder:"ADDRESS" help:"Address to listen on for UI, API and telemetry. Can be repeated. ${default} by default."`
	WebConfigFile   string    `name:"web.config.file" placeholder:"FILE" help:"File that enables TLS or basic authentication."`
	ReadTimeout     duration  `name:"web.read-timeout" default:"5m" help:"Maximum duration before timing out read of the request, and closing idle connections."`
	MaxConnections  int       `name:"web.max-connections" default:"512" help:"Maximum number of simultaneous connections across all listeners."`
	ExternalURL     secretURL `name:"web.external-url" placeholder:"URL" help:"The URL under which the server is externally reachable. Its path is the prefix of all routes, unless --web.route-prefix sets another one."`
	RoutePrefix     string    `name:"web.route-prefix" placeholder:"PATH" help:"Prefix for the internal routes of web endpoints."`
	EnableLifecycle bool      `name:"web.enable-lifecycle" help:"Enable reload via HTTP request."`
	CORSOrigin      string    `name:"web.cors.origin" default:".*" help:"Regular expression for the CORS origin. It is fully anchored."`

	Path             string   `name:"storage.tsdb.path" default:"data" help:"Base path for metrics storage."`
	RetentionTime    duration `name:"storage.tsdb.retention.time" default:"0s" help:"How long to retain samples. Defaults to 15d if no retention size is set either."`
	RetentionSize    size     `name:"storage.tsdb.retention.size" default:"0" help:"Maximum number of bytes of blocks to retain, e.g. 512MB."`
	NoLockfile       bool     `name:"storage.tsdb.no-lockfile" help:"Do not create a lockfile in the data directory."`
	MinBlockDuration duration `name:"storage.tsdb.min-block-duration" default:"2h" hidden:"" help:"Minimum duration of a data block before being persisted."`
	MaxBlockDuration duration `name:"storage.tsdb.max-block-duration" default:"0s" hidden:"" help:"Maximum duration compacted blocks may span. Defaults to a tenth of the retention time."`
	WALSegmentSize   size     `name:"storage.tsdb.wal-segment-size" default:"0" hidden:"" help:"Size at which to split the segment files of the write-ahead log, 10MB to 256MB."`
	WALCompression   string   `name:"storage.tsdb.wal-compression-type" enum:"snappy,zstd,none" default:"snappy" hidden:"" help:"Compression of the write-ahead log (${enum})."`

	ReadConcurrentLimit int `name:"storage.remote.read-concurrent-limit" default:"10" help:"Maximum number of concurrent remote read calls. 0 means no limit."`
	ReadSampleLimit     int `name:"storage.remote.read-sample-limit" default:"50000000" help:"Maximum number of samples of a remote read query with response type SAMPLES. 0 means no limit. It does not apply to streamed chunks."`
	ReadMaxBytesInFrame int `name:"storage.remote.read-max-bytes-in-frame" default:"1048576" help:"Maximum number of bytes in a frame of streamed chunks. A larger series is split into several frames. 0 means no limit. Clients may have a limit of their own."`

	ReadSlowTimeout duration `name:"storage.remote.read-timeout" default:"15m" help:"Maximum total time that a remote read response may wait for a slow reader. 0 means no limit."`
	ReadSortMemory  size     `name:"storage.remote.read-sort-memory" default:"12MiB" help:"Memory to sort a response of a remote_read endpoint, whose series may come in any order. A larger unsorted response fails."`

	LookbackDelta  duration `name:"query.lookback-delta" default:"5m" help:"The maximum lookback duration for retrieving metrics during expression evaluations."`
	QueryTimeout   duration `name:"query.timeout" default:"2m" help:"Maximum time a query may take before being aborted."`
	MaxConcurrency int      `name:"query.max-concurrency" default:"20" help:"Maximum number of queries executed concurrently."`
	MaxSamples     int      `name:"query.max-samples" default:"50000000" help:"Maximum number of samples a single query can load into memory."`

	DiscoveryReloadInterval duration `name:"scrape.discovery-reload-interval" default:"5s" hidden:"" help:"Interval at which changed targets are applied."`
	Features                []string `name:"enable-feature" sep:"none" placeholder:"NAME,..." help:"Comma-separated feature names: ${features}."`

	Receive     receiveFlags  `embed:""`
	Profiles    profileFlags  `embed:""`
	Objstore    objstoreFlags `embed:""`
	GRPCAddress string        `name:"grpc-address" default:"127.0.0.1:9491" help:"Address to listen on for gRPC (StoreAPI). Empty disables it."`
	GRPC        grpcFlags     `embed:""`

	AllowAnonymous bool `name:"grpc-server-allow-anonymous" help:"Allow gRPC clients without certificates at an address that is not loopback, although --web.config.file requires passwords or client certificates."`

	Log    logFlags    `embed:""`
	Memory memoryFlags `embed:""`
}

// features are the supported feature flags of Prometheus. Some are always enabled.
var features = map[string]func(*role.ServeOptions){
	"promql-experimental-functions":   func(o *role.ServeOptions) { o.Query.ExperimentalFunctions = true },
	"promql-extended-range-selectors": func(o *role.ServeOptions) { o.Query.ExtendedRangeSelectors = true },
	"promql-binop-fill-modifiers":     func(o *role.ServeOptions) { o.Query.BinopFillModifiers = true },
	"promql-delayed-name-removal":     func(o *role.ServeOptions) { o.Query.DelayedNameRemoval = true },
	"promql-per-step-stats":           func(o *role.ServeOptions) { o.Query.PerStepStats = true },
	"type-and-unit-labels": func(o *role.ServeOptions) {
		o.Query.TypeAndUnitLabels, o.Scrape.TypeAndUnitLabels, o.Write.TypeAndUnitLabels = true, true, true
	},
	"metadata-wal-records": func(o *role.ServeOptions) {
		o.Scrape.MetadataInWAL, o.Write.MetadataInWAL = true, true
	},
	"memory-snapshot-on-shutdown": func(o *role.ServeOptions) { o.Store.SnapshotOnShutdown = true },
	"exemplar-storage":            func(*role.ServeOptions) {}, // always enabled here
	"promql-duration-expr":        func(*role.ServeOptions) {}, // always enabled, as in Prometheus
	"native-histograms":           func(*role.ServeOptions) {}, // a setting of scrape_configs, as in Prometheus
}

func featureNames() string {
	names := make([]string, 0, len(features))
	for name := range features {
		names = append(names, name)
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// Run is called by kong.
func (c *serveCommand) Run(ctx context.Context, k *kong.Context) error {
	logger, level, err := c.Log.logger()
	if err != nil {
		return err
	}
	opts, err := c.options()
	if err != nil {
		return err
	}
	opts.Logger, opts.LogLevel, opts.Flags, opts.Web.CommandLine = logger, level, flagValues(k), commandLine(k, os.Args)
	c.Memory.apply(logger)
	serve, err := role.NewServe(opts)
	if err != nil {
		return err
	}
	return serve.Run(ctx)
}

func (c *serveCommand) options() (role.ServeOptions, error) {
	opts := role.ServeOptions{
		ConfigFile: c.ConfigFile,
		Web: role.WebOptions{
			ListenAddress:   c.ListenAddress[0],
			MoreAddresses:   c.ListenAddress[1:],
			ConfigFile:      c.WebConfigFile,
			ExternalURL:     string(c.ExternalURL),
			RoutePrefix:     c.RoutePrefix,
			CORSOrigin:      c.CORSOrigin,
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
			NoLockfile:       c.NoLockfile,
		},
		Query: promql.Options{
			MaxSamples:     c.MaxSamples,
			Timeout:        time.Duration(c.QueryTimeout),
			MaxConcurrency: c.MaxConcurrency,
			LookbackDelta:  time.Duration(c.LookbackDelta),
		},
		Scrape: scrape.Options{DiscoveryReloadInterval: time.Duration(c.DiscoveryReloadInterval)},
		Write:  remotewrite.Options{},
		Read: remoteread.Options{
			ConcurrentMax: c.ReadConcurrentLimit,
			SamplesMax:    c.ReadSampleLimit,
			FrameBytesMax: c.ReadMaxBytesInFrame,
			ReaderWaitMax: time.Duration(c.ReadSlowTimeout),
		},
		ReadSort: int(c.ReadSortMemory),
	}
	var err error
	if opts.Ship, err = c.Objstore.options(); err != nil {
		return opts, err
	}
	if err := c.Receive.check(c.Profiles); err != nil {
		return opts, err
	}
	opts.Receive = c.Receive.options(time.Duration(c.ReadTimeout))
	opts.Profiles = c.Profiles.options()
	opts.GRPC, opts.StoreAPI = c.GRPC.options(c.GRPCAddress)
	opts.GRPC.AllowAnonymous = c.AllowAnonymous
	for _, list := range c.Features {
		for name := range strings.SplitSeq(list, ",") {
			enable, ok := features[strings.TrimSpace(name)]
			if !ok {
				return opts, fmt.Errorf("--enable-feature: unknown feature %q; must be one of: %s", name, featureNames())
			}
			enable(&opts)
		}
	}
	return opts, nil
}

// flagValues returns the value of every flag of the command, by name.
func flagValues(k *kong.Context) map[string]string {
	values := map[string]string{}
	for _, flag := range k.Flags() {
		switch value := flag.Target.Interface().(type) {
		case kong.VersionFlag:
		case []string:
			values[flag.Name] = strings.Join(value, ",")
		default:
			if flag.Name != "help" {
				values[flag.Name] = fmt.Sprint(value)
			}
		}
	}
	return values
}
