package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/ferula-io/ferula/internal/app"
	"github.com/ferula-io/ferula/internal/frontend"
	"github.com/ferula-io/ferula/internal/frontend/downstream"
	"github.com/ferula-io/ferula/internal/frontend/limit"
	"github.com/ferula-io/ferula/internal/frontend/split"
	"github.com/ferula-io/ferula/internal/hint"
	"github.com/ferula-io/ferula/internal/reqbody"
)

// queryFrontendCommand has the flags of `thanos query-frontend`, and a few more under
// names that Thanos does not use. docs/ops/flags.md lists which of them are honoured,
// inert or refused.
type queryFrontendCommand struct {
	DownstreamURL      secretURL `name:"query-frontend.downstream-url" default:"http://localhost:9090" help:"URL of the downstream Prometheus HTTP API."`
	TripperConfig      secret    `name:"query-frontend.downstream-tripper-config" placeholder:"YAML" xor:"tripper" help:"Configuration of the connections to the downstream as YAML."`
	TripperConfigFile  string    `name:"query-frontend.downstream-tripper-config-file" placeholder:"FILE" xor:"tripper" help:"File with the configuration of the connections to the downstream."`
	DownstreamEncoding []string  `name:"downstream.encoding" sep:"," default:"identity" help:"Encodings to accept from the downstream, in order of preference: identity, zstd, snappy, gzip. Identity is cheapest on a fast network."`

	DisableCORS bool `name:"web.disable-cors" negatable:"" help:"Do not set CORS headers."`

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
	Downsampled      bool     `name:"query-range.request-downsampled" default:"true" negatable:"" help:"Request pieces of a range query without any point again with downsampled data, if the query has max_source_resolution=auto."`
	PartialResponse  bool     `name:"query-range.partial-response" default:"true" negatable:"" help:"Value of partial_response for range queries that do not set it."`
	RangeCache       secret   `name:"query-range.response-cache-config" placeholder:"YAML" xor:"rangecache" help:"Configuration of the response cache of range queries as YAML, type IN-MEMORY, MEMCACHED or REDIS."`
	RangeCacheFile   string   `name:"query-range.response-cache-config-file" placeholder:"FILE" xor:"rangecache" help:"File with the configuration of the response cache of range queries."`

	LabelsInterval    duration `name:"labels.split-interval" default:"24h" help:"Split requests for labels and series at the multiples of this interval. 0 disables it."`
	LabelsRetries     int      `name:"labels.max-retries-per-request" default:"5" help:"Maximum number of retries of one part of a request for labels or series."`
	LabelsParallelism int      `name:"labels.max-query-parallelism" default:"14" help:"Maximum number of parts of one request for labels or series requested concurrently."`
	LabelsFreshness   duration `name:"labels.response-cache-max-freshness" default:"1m" help:"Minimum age of the end of a part to cache. More recent results may still change."`
	LabelsPartial     bool     `name:"labels.partial-response" default:"true" negatable:"" help:"Value of partial_response for requests for labels and series that do not set it."`
	LabelsRange       duration `name:"labels.default-time-range" default:"24h" help:"Default range of requests for labels and series."`
	LabelsWhole       bool     `name:"labels.response-cache-whole-intervals" negatable:"" help:"Request and cache labels and series by whole --labels.split-interval, as Thanos does: a request for a part of an interval gets the labels and series of the whole interval. Without the flag the response is for the requested range only; the cache then has whole intervals, and parts that begin and end at whole minutes."`
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
	MaxDownstream       int      `name:"limits.max-downstream-concurrent" default:"256" help:"Maximum number of concurrent calls of the downstream. A query waits until all slots that it needs are free. A tenant gets at most three quarters of the slots. max_conns_per_host of the tripper configuration may be lower."`
	MaxPoints           int      `name:"limits.max-points" default:"0" help:"Maximum steps of a range query. 0 means the downstream's limit."`
	MaxQueryBytes       size     `name:"limits.max-query-bytes" default:"0" help:"Maximum length of a query in bytes. 0 means no limit but that of the request body."`
	MaxResponseBytes    size     `name:"limits.max-response-bytes" default:"0" help:"Maximum bytes of a response, before compression. 0 means no limit but that of one downstream response, 16GiB."`
	MaxRequestBytes     size     `name:"limits.max-request-bytes-in-flight" default:"256MiB" help:"Memory for the bodies of all requests together. Further ones wait up to 10s, then get 503. At least 11MB; 0 means the default."`
	MaxTime             duration `name:"limits.max-response-time" default:"1h" help:"Maximum time from the admission of a request to the end of its response. After it the request gets 504, or its connection is cut if the response has begun. 0 means no limit."`
	MaxLabelBytes       size     `name:"limits.max-labels-bytes" default:"128MiB" help:"Maximum bytes of all parts of a request for labels or series. Merging them takes two to four times as much memory. Beyond it the request gets 422. 0 means the default."`

	Hosts   hostFlags    `embed:""`
	Process processFlags `embed:""`
}

// Run is called by kong.
func (c *queryFrontendCommand) Run(ctx context.Context, k *kong.Context, ignored ignoredFlags) error {
	return runRole(ctx, k, c.Process, ignored, c.options,
		func(opts app.QueryFrontendOptions, common started) (*app.QueryFrontend, error) {
			opts.Logger, opts.Web.CommandLine = common.logger, common.commandLine
			return app.NewQueryFrontend(opts)
		})
}

// requestBytesMin is the size of the largest body and its last chunk. With a smaller limit, the largest body would
// never get enough memory.
const requestBytesMin = frontend.BodyBytesMax + 1<<20

// Validate is called by kong.
func (c *queryFrontendCommand) Validate() error {
	if c.MaxRequestBytes != 0 && c.MaxRequestBytes < requestBytesMin {
		return fmt.Errorf("--limits.max-request-bytes-in-flight=%s must be at least %s; 0 means the default",
			c.MaxRequestBytes, size(requestBytesMin))
	}
	return nil
}

func (c *queryFrontendCommand) options() (app.QueryFrontendOptions, error) {
	var o app.QueryFrontendOptions
	// The number of connections is not limited: such a limit would apply before the tenants'
	// queues, and also to probes. Running and waiting requests are limited per tenant instead.
	o.Web = c.Process.web()
	o.Web.MaxConnections, o.Web.AllowedHosts = -1, c.Hosts.Allowed
	o.DisableCORS = c.DisableCORS
	var content contents
	o.RangeCache = content.of("query-range.response-cache-config", c.RangeCache, c.RangeCacheFile)
	o.LabelCache = content.of("labels.response-cache-config", c.LabelCache, c.LabelCacheFile)
	o.Tracing = content.of("tracing.config", c.Process.TracingConfig, c.Process.TracingConfigFile)
	transport, err := downstream.ParseTransport([]byte(content.of("query-frontend.downstream-tripper-config",
		c.TripperConfig, c.TripperConfigFile)))
	if err != nil {
		content.add(fmt.Errorf("--query-frontend.downstream-tripper-config: %w", err))
	}
	o.Downstream = downstream.Options{URL: string(c.DownstreamURL), Encodings: c.DownstreamEncoding,
		Retries: retries(c.RangeRetries), Transport: transport}
	slower, err := slowerThan(c.LogLonger)
	content.add(err)
	o.Limits = limit.Options{ConcurrencyMax: c.MaxConcurrent, TenantConcurrencyMax: c.MaxTenantConcurrent,
		TenantQueueMax: c.MaxTenantQueue, WaitMax: time.Duration(c.MaxQueueTime), Flags: hint.Flags{
			"TenantQueueMax": "--limits.max-tenant-queue", "WaitMax": "--limits.max-queue-time",
		}}
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
	tenantHeader, tenantHeaders, err := c.tenantHeaders()
	content.add(err)
	o.Frontend = frontend.Options{
		Tenants: limit.Tenants{Headers: tenantHeaders, Default: c.DefaultTenant},
		Limits: limit.Query{
			LengthMax: time.Duration(c.MaxLength), PointsMax: int64(c.MaxPoints), QueryBytesMax: int64(c.MaxQueryBytes),
			ResponseBytesMax: int64(c.MaxResponseBytes),
			TimeMax:          time.Duration(c.MaxTime),
			Flags: hint.Flags{
				"LengthMax": "--query-range.max-query-length", "PointsMax": "--limits.max-points",
				"QueryBytesMax":    "--limits.max-query-bytes",
				"ResponseBytesMax": "--limits.max-response-bytes", "LabelBytesMax": "--limits.max-labels-bytes",
			},
		},
		Split: split.Options{Interval: interval, MinInterval: time.Duration(c.MinSplitInterval),
			MaxInterval: time.Duration(c.MaxSplitInterval), HorizontalShards: c.HorizontalShards},
		Parallelism:   c.Parallelism,
		AlignWithStep: c.Align,

		RequestDownsampled: c.Downsampled,

		MaxFreshness:    time.Duration(c.Freshness),
		PartialResponse: fmt.Sprint(c.PartialResponse),
		RangeRetries:    retries(c.RangeRetries),
		InstantRetries:  retries(c.InstantRetries),
		Labels: frontend.LabelOptions{
			Interval: time.Duration(c.LabelsInterval), Parallelism: c.LabelsParallelism,
			MaxFreshness: time.Duration(c.LabelsFreshness),
			DefaultRange: time.Duration(c.LabelsRange), PartialResponse: fmt.Sprint(c.LabelsPartial),
			Retries:  retries(c.LabelsRetries),
			BytesMax: int64(c.MaxLabelBytes), WholeIntervals: c.LabelsWhole,
		},
		Bodies:         reqbody.New(reqbody.Options{BytesMax: int64(c.MaxRequestBytes)}),
		ForwardHeaders: slices.Concat(c.ForwardHeaders, c.OrgHeaders),
		TenantHeader:   tenantHeader,
		NoCompression:  !c.Compress,
		SlowerThan:     slower,
		UserHeader:     c.UserHeader,
	}
	return o, content.err()
}

// tenantHeaders returns the header that is passed to the downstream, empty for Thanos' default, and the headers that
// name a tenant.
func (c *queryFrontendCommand) tenantHeaders() (string, []string, error) {
	switch {
	case c.TenantHeader == "" || strings.EqualFold(c.TenantHeader, limit.ThanosHeader):
		return "", c.OrgHeaders, nil
	case len(c.OrgHeaders) > 0:
		return c.TenantHeader, []string{c.TenantHeader},
			errors.New("--query-frontend.tenant-header and --query-frontend.org-id-header cannot be used together")
	}
	return c.TenantHeader, []string{c.TenantHeader}, nil
}

// retries converts a flag to an option: no retries are 0 in the flag and -1 in the option.
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
