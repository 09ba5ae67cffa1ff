package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/ferula-io/ferula/internal/api"
	"github.com/ferula-io/ferula/internal/query/fanout"
	"github.com/ferula-io/ferula/internal/query/promql"
	"github.com/ferula-io/ferula/internal/role"
)

// queryCommand has the flags of `thanos query`, and a few of its own under names
// that Thanos does not use. docs/ops/flags.md tells of each what becomes of it.
type queryCommand struct {
	HTTPAddress     string   `name:"http-address" default:"127.0.0.1:10902" help:"Listen host:port for HTTP endpoints."`
	HTTPGracePeriod duration `name:"http-grace-period" default:"2m" help:"Time to wait after an interrupt received for running requests."`
	HTTPConfig      string   `name:"http.config" placeholder:"FILE" help:"File that enables TLS or authentication for all HTTP endpoints."`
	DisableCORS     bool     `name:"web.disable-cors" negatable:"" help:"Do not set CORS headers."`
	RoutePrefix     string   `name:"web.route-prefix" placeholder:"PATH" help:"Prefix for API and page. Defaults to that of web.external-prefix."`
	ExternalPrefix  string   `name:"web.external-prefix" placeholder:"PATH" help:"Prefix under which a proxy offers the page. The page's links are relative, so it needs none."`

	GRPCAddress string               `name:"grpc-address" default:"127.0.0.1:10901" help:"Listen host:port for gRPC: the stores as one StoreAPI."`
	GRPC        grpcFlags            `embed:""`
	GRPCClient  queryGRPCClientFlags `embed:""`

	Endpoints      []string `name:"endpoint" sep:"none" placeholder:"ADDRESS" help:"Address of a store, host:port, or with dns+, dnssrv+ or dnssrvnoa+ before it a name that is looked up (repeated)."`
	EndpointStrict []string `name:"endpoint-strict" sep:"none" placeholder:"ADDRESS" help:"The same, asked even while it seems to be down (repeated)."`
	EndpointGroup  []string `name:"endpoint-group" sep:"none" placeholder:"ADDRESS" help:"A name behind which any address has the same data: one is asked at a time (repeated)."`
	GroupStrict    []string `name:"endpoint-group-strict" sep:"none" placeholder:"ADDRESS" help:"The same, asked even while it seems to be down (repeated)."`
	SDConfig       secret   `name:"endpoint.sd-config" placeholder:"YAML" xor:"sdconfig" help:"Endpoints as YAML."`
	SDConfigFile   string   `name:"endpoint.sd-config-file" placeholder:"FILE" xor:"sdconfig" help:"File with endpoints as YAML."`
	SDReload       duration `name:"endpoint.sd-config-reload-interval" default:"5m" help:"How often that file is read again."`
	SDFiles        []string `name:"store.sd-files" sep:"none" placeholder:"PATTERN" help:"Files with targets in the format of Prometheus' file discovery (repeated)."`
	SDInterval     duration `name:"store.sd-interval" default:"5m" help:"How often those files are read again."`
	DNSInterval    duration `name:"store.sd-dns-interval" default:"30s" help:"How often names are looked up."`
	InfoTimeout    duration `name:"endpoint.info-timeout" default:"5s" hidden:"" help:"How long a store may take to say what it holds."`
	HideAfter      duration `name:"store.unhealthy-timeout" default:"5m" help:"How long a store that is down is still listed."`
	StoreTimeout   string   `name:"store.response-timeout" default:"0ms" help:"A store that sends nothing for so long is left out. 0 waits as long as the query may take."`

	Timeout            duration `name:"query.timeout" default:"2m" help:"Maximum time to process a query."`
	MaxConcurrent      int      `name:"query.max-concurrent" default:"20" help:"Maximum number of queries evaluated at once; further ones wait."`
	MaxSelects         int      `name:"query.max-concurrent-select" default:"4" help:"Maximum number of selections of one query at once."`
	LookbackDelta      duration `name:"query.lookback-delta" default:"5m" help:"How old a sample may be and still count."`
	DynamicLookback    bool     `name:"query.dynamic-lookback-delta" default:"true" negatable:"" hidden:"" help:"Look back as far as downsampled data are coarse."`
	MaxSamples         int      `name:"query.max-samples" default:"50000000" help:"Samples one query may hold in memory while it is evaluated."`
	MaxSeries          int64    `name:"query.max-series" default:"0" help:"Series one query may read. 0: no limit."`
	MaxChunkBytes      size     `name:"query.max-chunk-bytes" default:"4GB" help:"Bytes of chunks and labels one query may read."`
	MaxTotalBytes      size     `name:"query.max-total-chunk-bytes" default:"0" help:"Bytes of chunks and labels all queries together may hold; a query waits up to 10s for others to end. 0 is no limit."`
	MaxSortBytes       size     `name:"query.max-sort-bytes" default:"256MB" help:"Bytes of one store's series that may be sorted here when it cannot remove replica labels itself."`
	ReplicaLabels      []string `name:"query.replica-label" sep:"," placeholder:"NAME" help:"Label that tells replicas apart; series that differ in it only are made one (repeated)."`
	DedupFunc          string   `name:"deduplication.func" enum:"penalty,chain" default:"penalty" help:"How: by choosing between replicas (penalty), or by mixing them (chain)."`
	AutoDownsampling   bool     `name:"query.auto-downsampling" negatable:"" help:"A fifth of the step is resolution enough where a query does not say max_source_resolution."`
	InstantResolution  duration `name:"query.instant.default.max_source_resolution" default:"0s" hidden:"" help:"The same for instant queries, with auto-downsampling."`
	PartialResponse    bool     `name:"query.partial-response" default:"true" negatable:"" help:"Answer with a warning when a store is missing, where a query does not say partial_response."`
	EvaluationInterval duration `name:"query.default-evaluation-interval" default:"1m" help:"Resolution of subqueries that name none."`
	DefaultStep        duration `name:"query.default-step" default:"1s" help:"Least step of range queries that name none."`
	MetadataRange      duration `name:"query.metadata.default-time-range" default:"0s" help:"Range of requests for labels and series that name none; 0 is all times."`
	ActiveQueryPath    string   `name:"query.active-query-path" placeholder:"FOLDER" help:"Folder of the log of active queries."`
	Engine             string   `name:"query.promql-engine" default:"prometheus" help:"Engine of queries that name none. Only prometheus is here."`
	Mode               string   `name:"query.mode" default:"local" help:"Where queries are evaluated. Only local is here."`
	Features           []string `name:"enable-feature" sep:"," placeholder:"NAME" help:"promql-experimental-functions"`

	TracingConfig     secret `name:"tracing.config" placeholder:"YAML" xor:"tracing" help:"Where to send traces, type OTLP."`
	TracingConfigFile string `name:"tracing.config-file" placeholder:"FILE" xor:"tracing" help:"File that says where to send traces."`

	AutoMemory  bool    `name:"enable-auto-gomemlimit" default:"true" negatable:"" help:"Set GOMEMLIMIT from the container's or the system's memory."`
	MemoryRatio float64 `name:"auto-gomemlimit.ratio" default:"0.9" help:"Share of that memory to use."`

	Refused queryRefused `embed:""`
	Inert   queryInert   `embed:""`
	Log     logFlags     `embed:""`
}

// queryGRPCClientFlags are about the connections to stores.
type queryGRPCClientFlags struct {
	TLS         bool   `name:"grpc-client-tls-secure" negatable:"" help:"Use TLS to talk to stores."`
	SkipVerify  bool   `name:"grpc-client-tls-skip-verify" negatable:"" help:"Do not verify their certificates."`
	Cert        string `name:"grpc-client-tls-cert" placeholder:"FILE" help:"Certificate to show to stores."`
	Key         string `name:"grpc-client-tls-key" placeholder:"FILE" help:"Its key."`
	CA          string `name:"grpc-client-tls-ca" placeholder:"FILE" help:"CA of the stores' certificates."`
	ServerName  string `name:"grpc-client-server-name" placeholder:"NAME" help:"Name to expect in the stores' certificates."`
	MinVersion  string `name:"grpc-client-tls-min-version" default:"1.3" help:"Least version of TLS: 1.0 to 1.3."`
	Compression string `name:"grpc-compression" enum:"none,snappy" default:"none" help:"Compression of what goes over the wire: none or snappy."`
}

func (f queryGRPCClientFlags) options() role.StoreClientOptions {
	o := role.StoreClientOptions{
		TLS: f.TLS, TLSSkipVerify: f.SkipVerify, TLSCert: f.Cert, TLSKey: f.Key, TLSCA: f.CA, TLSServerName: f.ServerName, TLSMinVersion: f.MinVersion,
	}
	if f.Compression != "none" {
		o.Client.Compression = f.Compression
	}
	return o
}

// queryRefused are flags of Thanos that would change answers, safety or what is
// observed if they were ignored.
type queryRefused struct {
	SelectorLabels      []string `name:"selector-label" sep:"none" hidden:"" help:"Refused: what is asked is not narrowed by labels of the querier's own."`
	Relabel             string   `name:"selector.relabel-config" hidden:"" help:"Refused: blocks are not chosen by their external labels."`
	RelabelFile         string   `name:"selector.relabel-config-file" hidden:"" help:"Refused: see selector.relabel-config."`
	EnforceTenancy      bool     `name:"query.enforce-tenancy" negatable:"" hidden:"" help:"Refused: tenants are not kept apart here."`
	TenantCertificate   string   `name:"query.tenant-certificate-field" hidden:"" help:"Refused: tenants are not told by certificates."`
	XFunctions          bool     `name:"query.enable-x-functions" negatable:"" hidden:"" help:"Refused: xrate, xincrease and xdelta belong to Thanos' engine."`
	PartitionLabels     []string `name:"query.partition-label" sep:"none" hidden:"" help:"Refused: queries are not distributed."`
	DisableFallback     bool     `name:"query.disable-fallback" negatable:"" hidden:"" help:"Refused: see query.promql-engine."`
	DistributedOverlaps bool     `name:"query.distributed-with-overlapping-interval" negatable:"" hidden:"" help:"Refused: queries are not distributed."`
}

func (r queryRefused) check() error {
	var errs []error
	refuse := func(used bool, name, why string) {
		if used {
			errs = append(errs, fmt.Errorf("--%s is not supported: %s", name, why))
		}
	}
	refuse(len(r.SelectorLabels) > 0, "selector-label", "what is asked is not narrowed by labels of the querier's own")
	refuse(r.Relabel != "", "selector.relabel-config", "blocks are not chosen by their external labels")
	refuse(r.RelabelFile != "", "selector.relabel-config-file", "blocks are not chosen by their external labels")
	refuse(r.EnforceTenancy, "query.enforce-tenancy", "tenants are not kept apart here")
	refuse(r.TenantCertificate != "", "query.tenant-certificate-field", "tenants are not told by certificates")
	refuse(r.XFunctions, "query.enable-x-functions", "these functions belong to Thanos' engine")
	refuse(len(r.PartitionLabels) > 0, "query.partition-label", "queries are not distributed")
	refuse(r.DisableFallback, "query.disable-fallback", "there is no engine but Prometheus'")
	refuse(r.DistributedOverlaps, "query.distributed-with-overlapping-interval", "queries are not distributed")
	return errors.Join(errs...)
}

// queryInert are flags of Thanos that change no answer here; using one is said once
// in the log.
type queryInert struct {
	PrefixHeader      string   `name:"web.prefix-header" hidden:"" help:"Inert: the page's links are relative."`
	AlertURL          string   `name:"alert.query-url" hidden:"" help:"Inert: there are no alerts with a source of their own."`
	ConnMetricLabels  []string `name:"query.conn-metric.label" sep:"none" hidden:"" help:"Inert: see the metric ferula_query_stores."`
	DurationQuantiles []string `name:"query.telemetry.request-duration-seconds-quantiles" sep:"none" hidden:"" help:"Inert: see the metrics ferula_http_*."`
	SamplesQuantiles  []string `name:"query.telemetry.request-samples-quantiles" sep:"none" hidden:"" help:"Inert: as above."`
	SeriesQuantiles   []string `name:"query.telemetry.request-series-seconds-quantiles" sep:"none" hidden:"" help:"Inert: as above."`
	TenantHeader      string   `name:"query.tenant-header" hidden:"" help:"Inert: tenancy is not enforced."`
	DefaultTenant     string   `name:"query.default-tenant-id" hidden:"" help:"Inert: tenancy is not enforced."`
	TenantLabel       string   `name:"query.tenant-label-name" hidden:"" help:"Inert: tenancy is not enforced."`
	RequestLog        string   `name:"request.logging-config" hidden:"" help:"Inert."`
	RequestLogFile    string   `name:"request.logging-config-file" hidden:"" help:"Inert."`
}

func (i queryInert) warn(logger *slog.Logger) {
	var names []string
	add := func(name string, used bool) {
		if used {
			names = append(names, name)
		}
	}
	add("web.prefix-header", i.PrefixHeader != "")
	add("alert.query-url", i.AlertURL != "")
	add("query.conn-metric.label", len(i.ConnMetricLabels) > 0)
	add("query.telemetry.request-duration-seconds-quantiles", len(i.DurationQuantiles) > 0)
	add("query.telemetry.request-samples-quantiles", len(i.SamplesQuantiles) > 0)
	add("query.telemetry.request-series-seconds-quantiles", len(i.SeriesQuantiles) > 0)
	add("query.tenant-header", i.TenantHeader != "")
	add("query.default-tenant-id", i.DefaultTenant != "")
	add("query.tenant-label-name", i.TenantLabel != "")
	add("request.logging-config", i.RequestLog != "")
	add("request.logging-config-file", i.RequestLogFile != "")
	if len(names) > 0 {
		logger.Warn("flags that have no effect here", "flags", strings.Join(names, ", "))
	}
}

// Run is called by kong.
func (c *queryCommand) Run(ctx context.Context, k *kong.Context) error {
	logger, _, err := c.Log.logger()
	if err != nil {
		return err
	}
	opts, err := c.options()
	if err != nil {
		return err
	}
	opts.Logger, opts.Flags, opts.Web.CommandLine = logger, flagValues(k), commandLine(k, os.Args)
	c.Inert.warn(logger)
	memory := memoryFlags{Auto: c.AutoMemory, Ratio: c.MemoryRatio}
	if err := memory.Validate(); err != nil {
		return err
	}
	memory.apply(logger)
	q, err := role.NewQuery(opts)
	if err != nil {
		return err
	}
	return q.Run(ctx)
}

func (c *queryCommand) options() (role.QueryOptions, error) {
	errs := []error{c.Refused.check()}
	if c.Engine != "prometheus" {
		errs = append(errs, fmt.Errorf("--query.promql-engine=%s is not supported: there is no engine but prometheus", c.Engine))
	}
	if c.Mode != "local" {
		errs = append(errs, fmt.Errorf("--query.mode=%s is not supported: queries are evaluated here", c.Mode))
	}
	grpc, offered := c.GRPC.options(c.GRPCAddress)
	o := role.QueryOptions{
		Web:         role.WebOptions{ListenAddress: c.HTTPAddress, ConfigFile: c.HTTPConfig, DrainTimeout: time.Duration(c.HTTPGracePeriod), RoutePrefix: c.RoutePrefix},
		DisableCORS: c.DisableCORS,
		GRPC:        grpc,
		StoreAPI:    offered,
		Client:      c.GRPCClient.options(),
		Fanout:      fanout.Options{SelectsMax: c.MaxSelects, SeriesMax: c.MaxSeries, BytesMax: int64(c.MaxChunkBytes), TotalBytesMax: int64(c.MaxTotalBytes), SortBytesMax: int64(c.MaxSortBytes)},
		Chain:       c.DedupFunc == "chain",
		Stores: api.StoreDefaults{
			ReplicaLabels: c.ReplicaLabels, Partial: c.PartialResponse, AutoDownsampling: c.AutoDownsampling, InstantResolution: time.Duration(c.InstantResolution),
			DynamicLookback: c.DynamicLookback, Step: time.Duration(c.DefaultStep), MetadataRange: time.Duration(c.MetadataRange),
		},
		Query: promql.Options{
			MaxSamples: c.MaxSamples, Timeout: time.Duration(c.Timeout), MaxConcurrency: c.MaxConcurrent, LookbackDelta: time.Duration(c.LookbackDelta), TrackerDir: c.ActiveQueryPath,
		},
		SubqueryInterval: time.Duration(c.EvaluationInterval),
	}
	if c.RoutePrefix == "" && strings.HasPrefix(c.ExternalPrefix, "/") {
		o.Web.RoutePrefix = c.ExternalPrefix
	}
	var err error
	if o.Fanout.ResponseTimeout, err = time.ParseDuration(c.StoreTimeout); err != nil {
		errs = append(errs, fmt.Errorf("--store.response-timeout: %w", err))
	}
	for _, name := range c.Features {
		if name = strings.TrimSpace(name); name != "promql-experimental-functions" && name != "" {
			errs = append(errs, fmt.Errorf("--enable-feature: unknown feature %q; known is promql-experimental-functions", name))
		}
		o.Query.ExperimentalFunctions = o.Query.ExperimentalFunctions || name != ""
	}
	if o.Endpoints, err = c.endpoints(); err != nil {
		errs = append(errs, err)
	}
	if o.Tracing, err = pathOrContent("tracing.config", c.TracingConfig, c.TracingConfigFile); err != nil {
		errs = append(errs, err)
	}
	return o, errors.Join(errs...)
}

// endpoints gathers where stores are. A file that is read again later is read now, so
// that what is wrong with it is said at once.
func (c *queryCommand) endpoints() (fanout.EndpointsOptions, error) {
	o := fanout.EndpointsOptions{
		ReloadInterval: time.Duration(min(c.SDReload, c.SDInterval)), DNSInterval: time.Duration(c.DNSInterval),
		InfoTimeout: time.Duration(c.InfoTimeout), UnhealthyTimeout: time.Duration(c.HideAfter),
	}
	for _, from := range []struct {
		flag          string
		names         []string
		strict, group bool
	}{{"endpoint", c.Endpoints, false, false}, {"endpoint-strict", c.EndpointStrict, true, false}, {"endpoint-group", c.EndpointGroup, false, true}, {"endpoint-group-strict", c.GroupStrict, true, true}} {
		for _, name := range from.names {
			address, err := fanout.Address{Name: name, Strict: from.strict, Group: from.group}.Checked()
			if err != nil {
				return o, fmt.Errorf("--%s=%s: %w", from.flag, name, err)
			}
			o.Static = append(o.Static, address)
		}
	}
	config, err := pathOrContent("endpoint.sd-config", c.SDConfig, c.SDConfigFile)
	if err != nil {
		return o, err
	}
	files := fanout.Files{ConfigFile: c.SDConfigFile, Discovery: c.SDFiles}
	if c.SDConfigFile == "" {
		files.Config = []byte(config)
	}
	if !files.Any() {
		return o, nil
	}
	o.Dynamic = files.Read
	_, err = files.Read()
	return o, err
}
