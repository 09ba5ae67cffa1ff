package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/ferula-io/ferula/internal/frontend"
	"github.com/ferula-io/ferula/internal/frontend/downstream"
	"github.com/ferula-io/ferula/internal/frontend/limit"
	"github.com/ferula-io/ferula/internal/frontend/split"
	"github.com/ferula-io/ferula/internal/role"
)

// queryFrontendCommand has the flags of `thanos query-frontend`, and a few of its
// own under names that Thanos does not use. docs/ops/flags.md tells of each what
// becomes of it.
type queryFrontendCommand struct {
	DownstreamURL      secretURL `name:"query-frontend.downstream-url" default:"http://localhost:9090" help:"URL of the downstream that speaks the Prometheus HTTP API."`
	TripperConfig      secret    `name:"query-frontend.downstream-tripper-config" placeholder:"YAML" xor:"tripper" help:"Settings of the connections to the downstream."`
	TripperConfigFile  string    `name:"query-frontend.downstream-tripper-config-file" placeholder:"FILE" xor:"tripper" help:"File with the settings of the connections to the downstream."`
	DownstreamEncoding []string  `name:"downstream.encoding" sep:"," default:"identity" help:"Encodings to ask the downstream for, the most wanted first: identity, zstd, snappy, gzip. Identity is cheapest on a fast network."`

	HTTPAddress     string   `name:"http-address" default:"127.0.0.1:10902" help:"Listen host:port for HTTP endpoints."`
	HTTPGracePeriod duration `name:"http-grace-period" default:"2m" help:"Time to wait after an interrupt received for running requests."`
	HTTPConfig      string   `name:"http.config" placeholder:"FILE" help:"File that enables TLS or authentication for all HTTP endpoints."`
	DisableCORS     bool     `name:"web.disable-cors" negatable:"" help:"Do not set CORS headers."`

	SplitInterval    duration `name:"query-range.split-interval" default:"24h" help:"Split range queries at the multiples of this; 0 does not, or as the next three say."`
	MinSplitInterval duration `name:"query-range.min-split-interval" default:"0s" help:"Range queries above this are split in query-range.horizontal-shards pieces. Not together with query-range.split-interval."`
	MaxSplitInterval duration `name:"query-range.max-split-interval" default:"0s" help:"Range queries at least twice as long as this are split in pieces of this length."`
	HorizontalShards int      `name:"query-range.horizontal-shards" default:"0" help:"Number of pieces below query-range.max-split-interval."`
	Align            bool     `name:"query-range.align-range-with-step" negatable:"" help:"Move start and end to multiples of the step. Off by default, unlike Thanos, because it changes answers."`
	RangeRetries     int      `name:"query-range.max-retries-per-request" default:"5" help:"Maximum number of retries of one part of a range query."`
	InstantRetries   int      `name:"query.max-retries-per-request" default:"5" help:"Maximum number of retries of any other query."`
	MaxLength        duration `name:"query-range.max-query-length" default:"0s" help:"Limit of a query's range (end - start); 0 disables it."`
	Parallelism      int      `name:"query-range.max-query-parallelism" default:"14" help:"Maximum number of parts of one range query asked for at once; longer queries get longer parts."`
	Freshness        duration `name:"query-range.response-cache-max-freshness" default:"1m" help:"Answers about the last moments are not cached: they may still change."`
	PartialResponse  bool     `name:"query-range.partial-response" default:"true" negatable:"" help:"What range queries ask for that do not say partial_response."`
	RangeCache       secret   `name:"query-range.response-cache-config" placeholder:"YAML" xor:"rangecache" help:"Cache of range queries' answers: IN-MEMORY, MEMCACHED or REDIS."`
	RangeCacheFile   string   `name:"query-range.response-cache-config-file" placeholder:"FILE" xor:"rangecache" help:"File with the cache of range queries' answers."`

	LabelsInterval    duration `name:"labels.split-interval" default:"24h" help:"Split requests for labels and series at the multiples of this; 0 does not."`
	LabelsRetries     int      `name:"labels.max-retries-per-request" default:"5" help:"Maximum number of retries of one part of such a request."`
	LabelsParallelism int      `name:"labels.max-query-parallelism" default:"14" help:"Maximum number of parts of such a request asked for at once."`
	LabelsFreshness   duration `name:"labels.response-cache-max-freshness" default:"1m" help:"Answers about the last moments are not cached."`
	LabelsPartial     bool     `name:"labels.partial-response" default:"true" negatable:"" help:"What such requests ask for that do not say partial_response."`
	LabelsRange       duration `name:"labels.default-time-range" default:"24h" help:"The range of requests for labels and series that name none."`
	LabelCache        secret   `name:"labels.response-cache-config" placeholder:"YAML" xor:"labelcache" help:"Cache of answers about labels and series."`
	LabelCacheFile    string   `name:"labels.response-cache-config-file" placeholder:"FILE" xor:"labelcache" help:"File with the cache of answers about labels and series."`

	Compress       bool     `name:"query-frontend.compress-responses" default:"true" negatable:"" help:"Compress answers as the client accepts: zstd or gzip."`
	LogLonger      string   `name:"query-frontend.log-queries-longer-than" default:"0" help:"Log queries that take longer. 0 disables, a negative value logs all."`
	OrgHeaders     []string `name:"query-frontend.org-id-header" sep:"none" placeholder:"HEADER" help:"Headers that name the tenant, next to THANOS-TENANT (repeated). A request whose headers name different tenants is refused."`
	TenantHeader   string   `name:"query-frontend.tenant-header" placeholder:"HEADER" help:"Header that names the tenant; the downstream gets its value as THANOS-TENANT. Not together with query-frontend.org-id-header."`
	DefaultTenant  string   `name:"query-frontend.default-tenant-id" placeholder:"TENANT" help:"Tenant of requests that name none, for queues, caches and logs."`
	ForwardHeaders []string `name:"query-frontend.forward-header" sep:"none" placeholder:"HEADER" help:"Headers forwarded to the downstream (repeated)."`
	UserHeader     string   `name:"query-frontend.slow-query-logs-user-header" placeholder:"HEADER" help:"Header whose value is remote_user in the slow query log."`

	MaxConcurrent       int      `name:"limits.max-concurrent" default:"256" help:"Requests answered at once; further ones wait."`
	MaxTenantConcurrent int      `name:"limits.max-tenant-concurrent" default:"0" help:"Requests of one tenant answered at once. 0: three quarters of all."`
	MaxTenantQueue      int      `name:"limits.max-tenant-queue" default:"512" help:"Requests of one tenant that may wait; further ones get 429."`
	MaxQueueTime        duration `name:"limits.max-queue-time" default:"1m" help:"How long a request may wait, and then the calls of the downstream that it needs; after that it gets 503. 0: no limit."`
	MaxDownstream       int      `name:"limits.max-downstream-concurrent" default:"256" help:"Calls of the downstream under way at once; max_conns_per_host of the tripper configuration may allow fewer. A query takes all that it needs together, one tenant three quarters at most."`
	MaxPoints           int      `name:"limits.max-points" default:"0" help:"Steps of a range query. 0: the downstream's limit."`
	MaxQueryBytes       size     `name:"limits.max-query-bytes" default:"0" help:"Length of a query's text. 0: no limit but the body's."`
	MaxResponseBytes      size     `name:"limits.max-response-bytes" default:"0" help:"Bytes of an answer, before compression. 0: no limit."`
	MaxLabelBytes       size     `name:"limits.max-labels-bytes" default:"128MiB" help:"Bytes of all parts of a request for labels or series, before they are united in memory, which takes two to four times as much; beyond it gets 422. 0: the default."`

	TracingConfig     secret `name:"tracing.config" placeholder:"YAML" xor:"tracing" help:"Where to send traces, type OTLP."`
	TracingConfigFile string `name:"tracing.config-file" placeholder:"FILE" xor:"tracing" help:"File that says where to send traces."`

	AutoMemory  bool    `name:"enable-auto-gomemlimit" default:"true" negatable:"" help:"Set GOMEMLIMIT from the container's or the system's memory."`
	MemoryRatio float64 `name:"auto-gomemlimit.ratio" default:"0.9" help:"Share of that memory to use."`

	Refused queryFrontendRefused `embed:""`
	Inert   queryFrontendInert   `embed:""`
	Log     logFlags             `embed:""`
}

// queryFrontendRefused are flags of Thanos that would change answers, or what is
// observed of them, if they were ignored.
type queryFrontendRefused struct {
	TenantCertificate string `name:"query-frontend.tenant-certificate-field" hidden:"" help:"Refused: tenants are not told by certificates."`

	Downsampled bool `name:"query-range.request-downsampled" negatable:"" hidden:"" help:"Refused: no additional queries for downsampled data are made."`
}

func (r queryFrontendRefused) check() error {
	if r.Downsampled {
		return errors.New("--query-range.request-downsampled is not supported: additional queries for downsampled data are not made")
	}
	if r.TenantCertificate != "" {
		return errors.New("--query-frontend.tenant-certificate-field is not supported: tenants are not told by certificates")
	}
	return nil
}

// queryFrontendInert are flags of Thanos that change no answer here; using one is
// said once in the log.
type queryFrontendInert struct {
	XFunctions       bool     `name:"query-frontend.enable-x-functions" negatable:"" hidden:"" help:"Inert: queries with functions that are not known here are passed through whole."`
	Features         []string `name:"enable-feature" sep:"none" hidden:"" help:"Inert: experimental functions are known."`
	CacheCompression string   `name:"cache-compression-type" hidden:"" help:"Inert: what is cached is always compressed as it pays."`
	ForceStats       bool     `name:"query-frontend.force-query-stats" negatable:"" hidden:"" help:"Inert: statistics are left to the downstream."`
	VerticalShards   int      `name:"query-frontend.vertical-shards" hidden:"" help:"Inert: queries are split along time only."`
	RequestLog       string   `name:"request.logging-config" hidden:"" help:"Inert: see query-frontend.log-queries-longer-than."`
	RequestLogFile   string   `name:"request.logging-config-file" hidden:"" help:"Inert: see query-frontend.log-queries-longer-than."`
}

func (i queryFrontendInert) warn(logger *slog.Logger) {
	var names []string
	add := func(name string, used bool) {
		if used {
			names = append(names, name)
		}
	}
	add("query-frontend.enable-x-functions", i.XFunctions)
	add("enable-feature", len(i.Features) > 0)
	add("cache-compression-type", i.CacheCompression != "")
	add("query-frontend.force-query-stats", i.ForceStats)
	add("query-frontend.vertical-shards", i.VerticalShards != 0)
	add("request.logging-config", i.RequestLog != "")
	add("request.logging-config-file", i.RequestLogFile != "")
	if len(names) > 0 {
		logger.Warn("flags that have no effect here", "flags", strings.Join(names, ", "))
	}
}

// Run is called by kong.
func (c *queryFrontendCommand) Run(ctx context.Context, k *kong.Context) error {
	logger, _, err := c.Log.logger()
	if err != nil {
		return err
	}
	if err := c.Refused.check(); err != nil {
		return err
	}
	opts, err := c.options()
	if err != nil {
		return err
	}
	opts.Logger, opts.Web.CommandLine = logger, commandLine(k, os.Args)
	c.Inert.warn(logger)
	memory := memoryFlags{Auto: c.AutoMemory, Ratio: c.MemoryRatio}
	if err := memory.Validate(); err != nil {
		return err
	}
	memory.apply(logger)
	q, err := role.NewQueryFrontend(opts)
	if err != nil {
		return err
	}
	return q.Run(ctx)
}

func (c *queryFrontendCommand) options() (role.QueryFrontendOptions, error) {
	var o role.QueryFrontendOptions
	// No limit of connections: one would come before the queues of tenants, and
	// before probes. What is running and waiting is limited for each tenant.
	o.Web = role.WebOptions{ListenAddress: c.HTTPAddress, ConfigFile: c.HTTPConfig, DrainTimeout: time.Duration(c.HTTPGracePeriod), MaxConnections: -1}
	o.DisableCORS = c.DisableCORS
	var errs []error
	text := func(flag string, inline secret, file string) string {
		got, err := pathOrContent(flag, inline, file)
		if err != nil {
			errs = append(errs, err)
		}
		return got
	}
	o.RangeCache = text("query-range.response-cache-config", c.RangeCache, c.RangeCacheFile)
	o.LabelCache = text("labels.response-cache-config", c.LabelCache, c.LabelCacheFile)
	o.Tracing = text("tracing.config", c.TracingConfig, c.TracingConfigFile)
	transport, err := downstream.ParseTransport([]byte(text("query-frontend.downstream-tripper-config", c.TripperConfig, c.TripperConfigFile)))
	if err != nil {
		errs = append(errs, fmt.Errorf("--query-frontend.downstream-tripper-config: %w", err))
	}
	o.Downstream = downstream.Options{URL: string(c.DownstreamURL), Encodings: c.DownstreamEncoding, Retries: retries(c.RangeRetries), Transport: transport}
	slower, err := slowerThan(c.LogLonger)
	if err != nil {
		errs = append(errs, err)
	}
	o.Limits = limit.Options{ConcurrencyMax: c.MaxConcurrent, TenantConcurrencyMax: c.MaxTenantConcurrent, TenantQueueMax: c.MaxTenantQueue, WaitMax: time.Duration(c.MaxQueueTime)}
	if c.MaxQueueTime == 0 {
		o.Limits.WaitMax = -1
	}
	o.DownstreamMax = c.MaxDownstream
	interval := time.Duration(c.SplitInterval)
	if c.MinSplitInterval != 0 || c.MaxSplitInterval != 0 || c.HorizontalShards != 0 {
		if interval == 24*time.Hour {
			interval = 0 // the default gives way to what was asked for
		}
	}
	tenantHeader := c.TenantHeader
	if strings.EqualFold(tenantHeader, limit.ThanosHeader) {
		tenantHeader = "" // the default of Thanos, spelled out
	}
	tenantHeaders := c.OrgHeaders
	if tenantHeader != "" {
		if len(c.OrgHeaders) > 0 {
			errs = append(errs, errors.New("--query-frontend.tenant-header and --query-frontend.org-id-header cannot be used together"))
		}
		tenantHeaders = []string{tenantHeader}
	}
	o.Frontend = frontend.Options{
		Tenants: limit.Tenants{Headers: tenantHeaders, Default: c.DefaultTenant},
		Limits: limit.Query{
			LengthMax: time.Duration(c.MaxLength), PointsMax: int64(c.MaxPoints), QueryBytesMax: int64(c.MaxQueryBytes), ResponseBytesMax: int64(c.MaxResponseBytes),
		},
		Split:           split.Options{Interval: interval, MinInterval: time.Duration(c.MinSplitInterval), MaxInterval: time.Duration(c.MaxSplitInterval), HorizontalShards: c.HorizontalShards},
		Parallelism:     c.Parallelism,
		AlignWithStep:   c.Align,
		MaxFreshness:    time.Duration(c.Freshness),
		PartialResponse: fmt.Sprint(c.PartialResponse),
		RangeRetries:    retries(c.RangeRetries),
		InstantRetries:  retries(c.InstantRetries),
		Labels: frontend.LabelOptions{
			Interval: time.Duration(c.LabelsInterval), Parallelism: c.LabelsParallelism, MaxFreshness: time.Duration(c.LabelsFreshness),
			DefaultRange: time.Duration(c.LabelsRange), PartialResponse: fmt.Sprint(c.LabelsPartial), Retries: retries(c.LabelsRetries),
			BytesMax: int64(c.MaxLabelBytes),
		},
		ForwardHeaders: slices.Concat(c.ForwardHeaders, c.OrgHeaders),
		TenantHeader:   tenantHeader,
		NoCompression:  !c.Compress,
		SlowerThan:     slower,
		UserHeader:     c.UserHeader,
	}
	return o, errors.Join(errs...)
}

// retries turns a flag's 0, which means none, into what options mean by none.
func retries(n int) int {
	if n <= 0 {
		return -1
	}
	return n
}

// slowerThan reads a duration that may be negative.
func slowerThan(text string) (time.Duration, error) {
	rest, negative := strings.CutPrefix(text, "-")
	if rest == "0" {
		return 0, nil
	}
	var d duration
	if err := d.UnmarshalText([]byte(rest)); err != nil {
		return 0, fmt.Errorf("--query-frontend.log-queries-longer-than: %w", err)
	}
	if negative {
		return -time.Duration(d), nil
	}
	return time.Duration(d), nil
}
