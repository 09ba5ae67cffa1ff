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

// queryFrontendCommand has the flags of `thanos query-frontend`, and a few more under
// names that Thanos does not use. docs/ops/flags.md lists which of them are honoured,
// inert or refused.
type queryFrontendCommand struct {
	DownstreamURL      secretURL `name:"query-frontend.downstream-url" default:"http://localhost:9090" help:"URL of the downstream Prometheus HTTP API."`
	TripperConfig      secret    `name:"query-frontend.downstream-tripper-config" placeholder:"YAML" xor:"tripper" help:"Configuration of the connections to the downstream as YAML."`
	TripperConfigFile  string    `name:"query-frontend.downstream-tripper-config-file" placeholder:"FILE" xor:"tripper" help:"File with the configuration of the connections to the downstream."`
	DownstreamEncoding []string  `name:"downstream.encoding" sep:"," default:"identity" help:"Encodings to accept from the downstream, in order of preference: identity, zstd, snappy, gzip. Identity is cheapest on a fast network."`

	HTTPAddress     string   `name:"http-address" default:"127.0.0.1:10902" help:"Listen host:port for HTTP endpoints."`
	HTTPGracePeriod duration `name:"http-grace-period" default:"2m" help:"Time to wait for requests in progress at shutdown."`
	HTTPConfig      string   `name:"http.config" placeholder:"FILE" help:"File that enables TLS or authentication for all HTTP endpoints."`
	DisableCORS     bool     `name:"web.disable-cors" negatable:"" help:"Do not set CORS headers."`

	SplitInterval    duration `name:"query-range.split-interval" default:"24h" help:"Split range queries at the multiples of this interval. 0 disables it, or enables dynamic splitting by --query-range.horizontal-shards."`
	MinSplitInterval duration `name:"query-range.min-split-interval" default:"0s" help:"Split range queries longer than this into --query-range.horizontal-shards parts. Not together with --query-range.split-interval."`
	MaxSplitInterval duration `name:"query-range.max-split-interval" default:"0s" help:"Split range queries at least twice as long as this into parts of this length."`
	HorizontalShards int      `name:"query-range.horizontal-shards" default:"0" help:"Number of parts of range queries shorter than twice --query-range.max-split-interval."`
	Align            bool     `name:"query-range.align-range-with-step" negatable:"" help:"Move start and end to multiples of the step. Disabled by default, unlike in Thanos, because it changes results."`
	RangeRetries     int      `name:"query-range.max-retries-per-request" default:"5" help:"Maximum number of retries of one part of a range query."`
	InstantRetries   int      `name:"query.max-retries-per-request" default:"5" help:"Maximum number of retries of any other query."`
	MaxLength        duration `name:"query-range.max-query-length" default:"0s" help:"Maximum range of a query (end - start). 0 means no limit."`
	Parallelism      int      `name:"query-range.max-query-parallelism" default:"14" help:"Maximum number of parts of one range query requested concurrently. Longer queries get longer parts."`
	Freshness        duration `name:"query-range.response-cache-max-freshness" default:"1m" help:"Minimum age of results to cache. More recent results may still change."`
	PartialResponse  bool     `name:"query-range.partial-response" default:"true" negatable:"" help:"Value of partial_response for range queries that do not set it."`
	RangeCache       secret   `name:"query-range.response-cache-config" placeholder:"YAML" xor:"rangecache" help:"Configuration of the response cache of range queries as YAML, type IN-MEMORY, MEMCACHED or REDIS."`
	RangeCacheFile   string   `name:"query-range.response-cache-config-file" placeholder:"FILE" xor:"rangecache" help:"File with the configuration of the response cache of range queries."`

	LabelsInterval    duration `name:"labels.split-interval" default:"24h" help:"Split requests for labels and series at the multiples of this interval. 0 disables it."`
	LabelsRetries     int      `name:"labels.max-retries-per-request" default:"5" help:"Maximum number of retries of one part of a request for labels or series."`
	LabelsParallelism int      `name:"labels.max-query-parallelism" default:"14" help:"Maximum number of parts of one request for labels or series requested concurrently."`
	LabelsFreshness   duration `name:"labels.response-cache-max-freshness" default:"1m" help:"Minimum age of the end of a part to cache. More recent results may still change."`
	LabelsPartial     bool     `name:"labels.partial-response" default:"true" negatable:"" help:"Value of partial_response for requests for labels and series that do not set it."`
	LabelsRange       duration `name:"labels.default-time-range" default:"24h" help:"Default range of requests for labels and series."`
	LabelCache        secret   `name:"labels.response-cache-config" placeholder:"YAML" xor:"labelcache" help:"Configuration of the response cache of labels and series as YAML, type IN-MEMORY, MEMCACHED or REDIS."`
	LabelCacheFile    string   `name:"labels.response-cache-config-file" placeholder:"FILE" xor:"labelcache" help:"File with the configuration of the response cache of labels and series."`

	Compress       bool     `name:"query-frontend.compress-responses" default:"true" negatable:"" help:"Compress responses with zstd or gzip, if the client accepts it."`
	LogLonger      string   `name:"query-frontend.log-queries-longer-than" default:"0" help:"Log queries that take longer than this duration. 0 disables the log, a negative value logs all queries."`
	OrgHeaders     []string `name:"query-frontend.org-id-header" sep:"none" placeholder:"HEADER" help:"Header that contains the tenant, in addition to THANOS-TENANT (repeatable). A request whose headers name different tenants is rejected."`
	TenantHeader   string   `name:"query-frontend.tenant-header" placeholder:"HEADER" help:"Header that contains the tenant, forwarded to the downstream as THANOS-TENANT. Not together with --query-frontend.org-id-header."`
	DefaultTenant  string   `name:"query-frontend.default-tenant-id" placeholder:"TENANT" help:"Tenant of requests without a tenant header, in queues, caches and logs."`
	ForwardHeaders []string `name:"query-frontend.forward-header" sep:"none" placeholder:"HEADER" help:"Header to forward to the downstream (repeatable)."`
	UserHeader     string   `name:"query-frontend.slow-query-logs-user-header" placeholder:"HEADER" help:"Header to log as remote_user in the slow query log."`

	MaxConcurrent       int      `name:"limits.max-concurrent" default:"256" help:"Maximum number of concurrent requests. Further requests wait."`
	MaxTenantConcurrent int      `name:"limits.max-tenant-concurrent" default:"0" help:"Maximum number of concurrent requests of one tenant. 0 means three quarters of --limits.max-concurrent."`
	MaxTenantQueue      int      `name:"limits.max-tenant-queue" default:"512" help:"Maximum number of waiting requests of one tenant. Further requests get 429."`
	MaxQueueTime        duration `name:"limits.max-queue-time" default:"1m" help:"Maximum time that a request waits for admission, and then for slots of downstream calls. After it the request gets 503. 0 means no limit."`
	MaxDownstream       int      `name:"limits.max-downstream-concurrent" default:"256" help:"Maximum number of concurrent calls of the downstream. A query acquires all its slots together, one tenant three quarters of them at most. max_conns_per_host of the tripper configuration may be lower."`
	MaxPoints           int      `name:"limits.max-points" default:"0" help:"Maximum steps of a range query. 0 means the downstream's limit."`
	MaxQueryBytes       size     `name:"limits.max-query-bytes" default:"0" help:"Maximum length of a query in bytes. 0 means no limit but that of the request body."`
	MaxResponseBytes    size     `name:"limits.max-response-bytes" default:"0" help:"Maximum bytes of a response, before compression. 0 means no limit."`
	MaxLabelBytes       size     `name:"limits.max-labels-bytes" default:"128MiB" help:"Maximum bytes of all parts of a request for labels or series. Merging them takes two to four times as much memory. Beyond it the request gets 422. 0 means the default."`

	TracingConfig     secret `name:"tracing.config" placeholder:"YAML" xor:"tracing" help:"Tracing configuration as YAML, type OTLP."`
	TracingConfigFile string `name:"tracing.config-file" placeholder:"FILE" xor:"tracing" help:"File with the tracing configuration, type OTLP."`

	AutoMemory  bool    `name:"enable-auto-gomemlimit" default:"true" negatable:"" help:"Set GOMEMLIMIT from the memory limit of the container or of the system."`
	MemoryRatio float64 `name:"auto-gomemlimit.ratio" default:"0.9" help:"Ratio of GOMEMLIMIT to that memory limit."`

	Refused queryFrontendRefused `embed:""`
	Inert   queryFrontendInert   `embed:""`
	Log     logFlags             `embed:""`
}

// queryFrontendRefused are flags of Thanos that are errors here: ignoring them would
// change results or telemetry.
type queryFrontendRefused struct {
	TenantCertificate string `name:"query-frontend.tenant-certificate-field" hidden:"" help:"Refused: tenants are not read from certificates."`

	Downsampled bool `name:"query-range.request-downsampled" negatable:"" hidden:"" help:"Refused: no additional queries for downsampled data are sent."`
}

func (r queryFrontendRefused) check() error {
	if r.Downsampled {
		return errors.New("--query-range.request-downsampled is not supported: no additional queries for downsampled data are sent")
	}
	if r.TenantCertificate != "" {
		return errors.New("--query-frontend.tenant-certificate-field is not supported: tenants are not read from certificates")
	}
	return nil
}

// queryFrontendInert are flags of Thanos that are ignored, since they do not change
// results. A warning at the start lists those in use.
type queryFrontendInert struct {
	XFunctions       bool     `name:"query-frontend.enable-x-functions" negatable:"" hidden:"" help:"Inert: queries with unknown functions are passed through."`
	Features         []string `name:"enable-feature" sep:"none" hidden:"" help:"Inert: experimental functions are always parsed."`
	CacheCompression string   `name:"cache-compression-type" hidden:"" help:"Inert: cached responses are compressed if that makes them smaller."`
	ForceStats       bool     `name:"query-frontend.force-query-stats" negatable:"" hidden:"" help:"Inert: only the downstream returns statistics."`
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
		logger.Warn("ignoring flags without effect", "flags", strings.Join(names, ", "))
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
	// No limit of connections: it would apply before the queues of tenants, and to probes
	// too. Running and waiting requests are limited per tenant instead.
	o.Web = role.WebOptions{ListenAddress: c.HTTPAddress, ConfigFile: c.HTTPConfig, DrainTimeout: time.Duration(c.HTTPGracePeriod), MaxConnections: -1}
	o.DisableCORS = c.DisableCORS
	var errs []error
	content := func(flag string, inline secret, file string) string {
		got, err := pathOrContent(flag, inline, file)
		if err != nil {
			errs = append(errs, err)
		}
		return got
	}
	o.RangeCache = content("query-range.response-cache-config", c.RangeCache, c.RangeCacheFile)
	o.LabelCache = content("labels.response-cache-config", c.LabelCache, c.LabelCacheFile)
	o.Tracing = content("tracing.config", c.TracingConfig, c.TracingConfigFile)
	transport, err := downstream.ParseTransport([]byte(content("query-frontend.downstream-tripper-config", c.TripperConfig, c.TripperConfigFile)))
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
			interval = 0 // dynamic splitting replaces the default interval
		}
	}
	tenantHeader := c.TenantHeader
	if strings.EqualFold(tenantHeader, limit.ThanosHeader) {
		tenantHeader = "" // the same as Thanos' default
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

// retries maps a flag's 0, no retries, to -1, which means the same in options.
func retries(n int) int {
	if n <= 0 {
		return -1
	}
	return n
}

// slowerThan parses a duration that may be negative.
func slowerThan(value string) (time.Duration, error) {
	rest, negative := strings.CutPrefix(value, "-")
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
