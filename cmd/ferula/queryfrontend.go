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
	"github.com/ferula-io/ferula/internal/hint"
	"github.com/ferula-io/ferula/internal/httpbody"
)

// queryFrontendCommand has the flags of `thanos query-frontend`, and a few more under
// names that Thanos does not use. docs/ops/flags.md lists which of them are honoured,
// inert or refused.
type queryFrontendCommand struct {
	DownstreamURL      secretURL `name:"query-frontend.downstream-url" default:"http://localhost:9090"`
	TripperConfig      secret    `name:"query-frontend.downstream-tripper-config" placeholder:"YAML" xor:"tripper"`
	TripperConfigFile  string    `name:"query-frontend.downstream-tripper-config-file" placeholder:"FILE" xor:"tripper"`
	DownstreamEncoding []string  `name:"downstream.encoding" sep:"," default:"identity"`

	DisableCORS bool `name:"web.disable-cors" negatable:""`

	SplitInterval    duration `name:"query-range.split-interval" default:"24h"`
	MinSplitInterval duration `name:"query-range.min-split-interval" default:"0s"`
	MaxSplitInterval duration `name:"query-range.max-split-interval" default:"0s"`
	HorizontalShards int      `name:"query-range.horizontal-shards" default:"0"`
	Align            bool     `name:"query-range.align-range-with-step" negatable:""`
	RangeRetries     int      `name:"query-range.max-retries-per-request" default:"5"`
	InstantRetries   int      `name:"query.max-retries-per-request" default:"5"`
	MaxLength        duration `name:"query-range.max-query-length" default:"0s"`
	Parallelism      int      `name:"query-range.max-query-parallelism" default:"14"`
	Freshness        duration `name:"query-range.response-cache-max-freshness" default:"1m"`
	Downsampled      bool     `name:"query-range.request-downsampled" default:"true" negatable:""`
	PartialResponse  bool     `name:"query-range.partial-response" default:"true" negatable:""`
	RangeCache       secret   `name:"query-range.response-cache-config" placeholder:"YAML" xor:"rangecache"`
	RangeCacheFile   string   `name:"query-range.response-cache-config-file" placeholder:"FILE" xor:"rangecache"`

	LabelsInterval    duration `name:"labels.split-interval" default:"24h"`
	LabelsRetries     int      `name:"labels.max-retries-per-request" default:"5"`
	LabelsParallelism int      `name:"labels.max-query-parallelism" default:"14"`
	LabelsFreshness   duration `name:"labels.response-cache-max-freshness" default:"1m"`
	LabelsPartial     bool     `name:"labels.partial-response" default:"true" negatable:""`
	LabelsRange       duration `name:"labels.default-time-range" default:"24h"`
	LabelsWhole       bool     `name:"labels.response-cache-whole-intervals" negatable:""`
	LabelCache        secret   `name:"labels.response-cache-config" placeholder:"YAML" xor:"labelcache"`
	LabelCacheFile    string   `name:"labels.response-cache-config-file" placeholder:"FILE" xor:"labelcache"`

	Compress       bool     `name:"query-frontend.compress-responses" default:"true" negatable:""`
	LogLonger      string   `name:"query-frontend.log-queries-longer-than" default:"0"`
	OrgHeaders     []string `name:"query-frontend.org-id-header" sep:"none" placeholder:"HEADER"`
	TenantHeader   string   `name:"query-frontend.tenant-header" placeholder:"HEADER"`
	DefaultTenant  string   `name:"query-frontend.default-tenant-id" placeholder:"TENANT"`
	ForwardHeaders []string `name:"query-frontend.forward-header" sep:"none" placeholder:"HEADER"`
	UserHeader     string   `name:"query-frontend.slow-query-logs-user-header" placeholder:"HEADER"`

	MaxConcurrent       int      `name:"limits.max-concurrent" default:"256"`
	MaxTenantConcurrent int      `name:"limits.max-tenant-concurrent" default:"0"`
	MaxTenantQueue      int      `name:"limits.max-tenant-queue" default:"512"`
	MaxQueueTime        duration `name:"limits.max-queue-time" default:"1m"`
	MaxDownstream       int      `name:"limits.max-downstream-concurrent" default:"256"`
	MaxPoints           int      `name:"limits.max-points" default:"0"`
	MaxQueryBytes       size     `name:"limits.max-query-bytes" default:"0"`
	MaxResponseBytes    size     `name:"limits.max-response-bytes" default:"0"`
	MaxRequestBytes     size     `name:"limits.max-request-bytes-in-flight" default:"256MiB"`
	MaxTime             duration `name:"limits.max-response-time" default:"1h"`
	MaxLabelBytes       size     `name:"limits.max-labels-bytes" default:"128MiB"`

	Hosts   hostFlags    `embed:""`
	Process processFlags `embed:""`
}

func (c *queryFrontendCommand) Run(ctx context.Context, k *kong.Context, ignored ignoredFlags, next *role) error {
	return runRole(ctx, k, next, &c.Process, ignored, c.options, app.NewQueryFrontend)
}

// requestBytesMin is the size of the largest body and its last chunk. With a smaller limit, the largest body would
// never get enough memory.
const requestBytesMin = frontend.BodyBytesMax + 1<<20

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
	o.Web, o.Logger = c.Process.web(), c.Process.logger
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
		Split: frontend.SplitOptions{Interval: interval, MinInterval: time.Duration(c.MinSplitInterval),
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
		Bodies:         httpbody.NewReader(httpbody.Options{BytesMax: int64(c.MaxRequestBytes)}),
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
