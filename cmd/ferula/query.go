package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"

	"github.com/ferula-io/ferula/internal/app"
	"github.com/ferula-io/ferula/internal/hint"
	"github.com/ferula-io/ferula/internal/httpapi"
	"github.com/ferula-io/ferula/internal/promql"
	"github.com/ferula-io/ferula/internal/thanos/fanout"
)

// queryCommand has the flags of `thanos query`, and a few more under names that Thanos
// does not use. docs/ops/flags.md lists which of them are honoured, inert or refused.
type queryCommand struct {
	DisableCORS    bool   `name:"web.disable-cors" negatable:"" help:"Do not set CORS headers."`
	RoutePrefix    string `name:"web.route-prefix" placeholder:"PATH" help:"Prefix for the API and the UI. Defaults to --web.external-prefix if that is a path."`
	ExternalPrefix string `name:"web.external-prefix" placeholder:"PATH" help:"Prefix under which a reverse proxy serves the UI. The links of the UI are relative and do not need it."`

	GRPCAddress string               `name:"grpc-address" default:"127.0.0.1:10901" help:"Listen host:port for gRPC. It serves all stores as one StoreAPI."`
	GRPC        grpcFlags            `embed:""`
	GRPCClient  queryGRPCClientFlags `embed:""`

	Endpoints      []string `name:"endpoint" sep:"none" placeholder:"ADDRESS" help:"Address of a StoreAPI: host:port, or a name to resolve with the prefix dns+, dnssrv+ or dnssrvnoa+ (repeatable)."`
	EndpointStrict []string `name:"endpoint-strict" sep:"none" placeholder:"ADDRESS" help:"Address of a StoreAPI that is queried even while it is unhealthy (repeatable)."`
	EndpointGroup  []string `name:"endpoint-group" sep:"none" placeholder:"ADDRESS" help:"Name of a group of StoreAPIs with the same data, of which one at a time is queried (repeatable)."`
	GroupStrict    []string `name:"endpoint-group-strict" sep:"none" placeholder:"ADDRESS" help:"Name of a group of StoreAPIs that is queried even while it is unhealthy (repeatable)."`
	SDConfig       secret   `name:"endpoint.sd-config" placeholder:"YAML" xor:"sdconfig" help:"Endpoints as YAML."`
	SDConfigFile   string   `name:"endpoint.sd-config-file" placeholder:"FILE" xor:"sdconfig" help:"File with endpoints as YAML."`
	SDReload       duration `name:"endpoint.sd-config-reload-interval" default:"5m" help:"Interval at which --endpoint.sd-config-file and --store.sd-files are reloaded. If --store.sd-interval is shorter, it applies to both."`
	SDFiles        []string `name:"store.sd-files" sep:"none" placeholder:"PATTERN" help:"Pattern of files with targets, in the format of Prometheus' file discovery (repeatable)."`
	SDInterval     duration `name:"store.sd-interval" default:"5m" help:"Interval at which --store.sd-files and --endpoint.sd-config-file are reloaded. If --endpoint.sd-config-reload-interval is shorter, it applies to both."`
	DNSInterval    duration `name:"store.sd-dns-interval" default:"30s" help:"Interval of DNS resolutions."`
	InfoTimeout    duration `name:"endpoint.info-timeout" default:"5s" hidden:"" help:"Timeout of an Info call to a store."`
	HideAfter      duration `name:"store.unhealthy-timeout" default:"5m" help:"Time after which an unhealthy store is no longer listed. Responses still report it as missing."`
	StoreTimeout   duration `name:"store.response-timeout" default:"0ms" help:"Time without a response after which a store is left out of a query. 0 means that the query timeout applies."`

	Timeout            duration `name:"query.timeout" default:"2m" help:"Maximum time to process a query."`
	MaxConcurrent      int      `name:"query.max-concurrent" default:"20" help:"Maximum number of concurrent queries. Further queries wait."`
	MaxSelects         int      `name:"query.max-concurrent-select" default:"4" help:"Maximum number of concurrent selects of one query."`
	LookbackDelta      duration `name:"query.lookback-delta" default:"5m" help:"Maximum lookback duration for the samples of an instant vector selector."`
	DynamicLookback    bool     `name:"query.dynamic-lookback-delta" default:"true" negatable:"" hidden:"" help:"Extend the lookback delta to the resolution of downsampled data."`
	MaxSamples         int      `name:"query.max-samples" default:"50000000" help:"Maximum number of samples that one query can load into memory."`
	MaxSeries          int64    `name:"query.max-series" default:"0" help:"Maximum number of series that one query can read. 0 means no limit."`
	MaxChunkBytes      size     `name:"query.max-chunk-bytes" default:"4GB" help:"Maximum bytes of chunks and labels that one query can read."`
	MaxTotalBytes      size     `name:"query.max-total-chunk-bytes" default:"0" help:"Maximum bytes of chunks and labels that all queries can hold. A query waits up to 10s for other queries to end. 0 means no limit."`
	MaxSortBytes       size     `name:"query.max-sort-bytes" default:"256MB" help:"Maximum bytes of series of one store that are sorted in the querier, if the store cannot remove replica labels."`
	ConnectionLabels   []string `name:"query.conn-metric.label" enum:"external_labels,store_type" default:"external_labels,store_type" sep:"," placeholder:"NAME" help:"Label of the metric thanos_store_nodes_grpc_connections: external_labels or store_type (repeatable)."`
	ReplicaLabels      []string `name:"query.replica-label" sep:"," placeholder:"NAME" help:"Label that identifies a replica. Series that differ by replica labels only are deduplicated (repeatable)."`
	DedupFunc          string   `name:"deduplication.func" enum:"penalty,chain" default:"penalty" help:"Deduplication: penalty selects one replica at a time, chain merges the samples of all replicas."`
	AutoDownsampling   bool     `name:"query.auto-downsampling" negatable:"" help:"Set max_source_resolution to a fifth of the step if the query does not set it."`
	InstantResolution  duration `name:"query.instant.default.max_source_resolution" default:"0s" hidden:"" help:"Default of max_source_resolution for instant queries with --query.auto-downsampling."`
	PartialResponse    bool     `name:"query.partial-response" default:"true" negatable:"" help:"Return a partial response with a warning when a store fails, if the query does not set partial_response."`
	EvaluationInterval duration `name:"query.default-evaluation-interval" default:"1m" help:"Default resolution of subqueries."`
	DefaultStep        duration `name:"query.default-step" default:"1s" help:"Minimum step of range queries without a step."`
	MetadataRange      duration `name:"query.metadata.default-time-range" default:"0s" help:"Default range of requests for labels and series. 0 means all times."`
	ActiveQueryPath    string   `name:"query.active-query-path" placeholder:"FOLDER" help:"Directory of the log of active queries."`
	TenantHeader       string   `name:"query.tenant-header" default:"THANOS-TENANT" placeholder:"NAME" help:"HTTP header that names the tenant."`
	DefaultTenant      string   `name:"query.default-tenant-id" default:"default-tenant" placeholder:"NAME" help:"Tenant of requests that name none."`
	TenantCertificate  string   `name:"query.tenant-certificate-field" enum:",organization,organizationalUnit,commonName" default:"" placeholder:"FIELD" help:"Field of the client's certificate that names the tenant instead of a header: organization, organizationalUnit or commonName."`
	EnforceTenancy     bool     `name:"query.enforce-tenancy" negatable:"" help:"Return only data whose label --query.tenant-label-name is the tenant of the request."`
	TenantLabel        string   `name:"query.tenant-label-name" default:"tenant_id" placeholder:"NAME" help:"Label that is compared with the tenant by --query.enforce-tenancy."`
	Engine             string   `name:"query.promql-engine" default:"prometheus" help:"Thanos' choice of the engine; the only supported value is prometheus. See --query.engine."`
	QueryEngine        string   `name:"query.engine" enum:"columns,prometheus" default:"columns" help:"Engine that evaluates queries (${enum}), with the same results. Expressions that columns does not support are evaluated by Prometheus' engine."`
	Parallelism        int      `name:"query.parallelism" default:"0" help:"Maximum number of goroutines that evaluate one query. One belongs to the query, the others come from a pool that all queries share. 0 means the number of CPUs (GOMAXPROCS)."`
	SelectorLabels     []string `name:"selector-label" sep:"none" placeholder:"LABEL" help:"Label that identifies the data of this querier, as name=\"value\" (repeatable). A query with a matcher that contradicts the label selects nothing. Queriers that use this querier as a store get the label with the labels of its stores."`
	Relabel            secret   `name:"selector.relabel-config" placeholder:"YAML" xor:"relabel" help:"Relabel configuration as YAML that selects the data of stores by their external labels."`
	RelabelFile        string   `name:"selector.relabel-config-file" placeholder:"FILE" xor:"relabel" help:"File with the relabel configuration that selects the data of stores by their external labels."`
	Mode               string   `name:"query.mode" default:"local" help:"PromQL query mode. The only supported value is local."`
	Features           []string `name:"enable-feature" sep:"," placeholder:"NAME" help:"Comma-separated feature names: promql-experimental-functions."`

	Hosts   hostFlags    `embed:""`
	Process processFlags `embed:""`
}

// queryGRPCClientFlags configure the connections to stores.
type queryGRPCClientFlags struct {
	TLS         bool   `name:"grpc-client-tls-secure" negatable:"" help:"Use TLS for the connections to stores."`
	SkipVerify  bool   `name:"grpc-client-tls-skip-verify" negatable:"" help:"Do not verify the certificates of stores."`
	Cert        string `name:"grpc-client-tls-cert" placeholder:"FILE" help:"TLS client certificate for the connections to stores."`
	Key         string `name:"grpc-client-tls-key" placeholder:"FILE" help:"TLS client key for the connections to stores."`
	CA          string `name:"grpc-client-tls-ca" placeholder:"FILE" help:"TLS CA to verify the certificates of stores."`
	ServerName  string `name:"grpc-client-server-name" placeholder:"NAME" help:"Server name to verify the certificates of stores against."`
	MinVersion  string `name:"grpc-client-tls-min-version" enum:"1.0,1.1,1.2,1.3" default:"1.3" help:"Minimum TLS version of the connections to stores (${enum})."`
	Compression string `name:"grpc-compression" enum:"none,snappy" default:"none" help:"Compression of gRPC messages: none or snappy."`
}

func (f queryGRPCClientFlags) options() app.StoreClientOptions {
	o := app.StoreClientOptions{
		TLS: f.TLS, TLSSkipVerify: f.SkipVerify, TLSCert: f.Cert, TLSKey: f.Key, TLSCA: f.CA, TLSServerName: f.ServerName,
		TLSMinVersion: f.MinVersion,
	}
	if f.Compression != "none" {
		o.Client.Compression = f.Compression
	}
	return o
}

// Validate is called by kong.
func (c *queryCommand) Validate() error { return checkListen("grpc-address", c.GRPCAddress) }

// Run is called by kong.
func (c *queryCommand) Run(ctx context.Context, k *kong.Context, ignored ignoredFlags) error {
	return runRole(ctx, k, c.Process, append(ignored, ignoredQueryFeatures(c.Features)...), c.options,
		func(opts app.QueryOptions, common started) (*app.Query, error) {
			opts.Flags = flagValues(k)
			opts.Logger, opts.Web.CommandLine = common.logger, common.commandLine
			return app.NewQuery(opts)
		})
}

func (c *queryCommand) options() (app.QueryOptions, error) {
	var errs []error
	if c.Engine != "prometheus" {
		errs = append(errs, fmt.Errorf("--query.promql-engine=%s is not supported: the only engine is prometheus", c.Engine))
	}
	if c.Mode != "local" {
		errs = append(errs, fmt.Errorf("--query.mode=%s is not supported: the only mode is local", c.Mode))
	}
	client := c.GRPCClient.options()
	client.LookupInterval = time.Duration(c.DNSInterval)
	grpc, limits := c.GRPC.options(c.GRPCAddress)
	o := app.QueryOptions{
		Web:         c.Process.web(),
		DisableCORS: c.DisableCORS,
		GRPC:        grpc,
		StoreAPI:    limits,
		Client:      client,
		Fanout: fanout.Options{SelectsMax: c.MaxSelects, SeriesMax: c.MaxSeries, BytesMax: int64(c.MaxChunkBytes),
			TotalBytesMax: int64(c.MaxTotalBytes), SortBytesMax: int64(c.MaxSortBytes), Flags: hint.Flags{
				"SeriesMax": "--query.max-series", "BytesMax": "--query.max-chunk-bytes",
				"TotalBytesMax": "--query.max-total-chunk-bytes",
			}},
		Chain: c.DedupFunc == "chain",
		Stores: httpapi.StoreDefaults{
			ReplicaLabels: c.ReplicaLabels, Partial: c.PartialResponse, AutoDownsampling: c.AutoDownsampling,
			InstantResolution: time.Duration(c.InstantResolution),
			DynamicLookback:   c.DynamicLookback, Step: time.Duration(c.DefaultStep),
			MetadataRange: time.Duration(c.MetadataRange),
			Tenancy: httpapi.Tenancy{Header: c.TenantHeader, Default: c.DefaultTenant,
				CertificateField: c.TenantCertificate, Enforce: c.EnforceTenancy, Label: c.TenantLabel},
		},
		Query: promql.Options{
			MaxSamples: c.MaxSamples, Timeout: time.Duration(c.Timeout), MaxConcurrency: c.MaxConcurrent,
			LookbackDelta: time.Duration(c.LookbackDelta), TrackerDir: c.ActiveQueryPath,
			Flags: hint.Flags{"MaxSamples": "--query.max-samples"},
		},
		Engine:           app.EngineOptions{Name: c.QueryEngine, Parallelism: c.Parallelism},
		SubqueryInterval: time.Duration(c.EvaluationInterval),
	}
	o.Web.RoutePrefix, o.Web.AllowedHosts = c.RoutePrefix, c.Hosts.Allowed
	if c.RoutePrefix == "" && strings.HasPrefix(c.ExternalPrefix, "/") {
		o.Web.RoutePrefix = c.ExternalPrefix
	}
	var err error
	o.Fanout.ResponseTimeout = time.Duration(c.StoreTimeout)
	o.Query.ExperimentalFunctions = slices.Contains(splitFeatures(c.Features), experimentalFunctions)
	if o.Endpoints, err = c.endpoints(); err != nil {
		errs = append(errs, err)
	}
	if o.Endpoints.Selector.Labels, err = selectorLabels(c.SelectorLabels); err != nil {
		errs = append(errs, err)
	}
	if o.Relabel, err = pathOrContent("selector.relabel-config", c.Relabel, c.RelabelFile); err != nil {
		errs = append(errs, err)
	}
	if o.Tracing, err = c.Process.tracing(); err != nil {
		errs = append(errs, err)
	}
	return o, errors.Join(errs...)
}

// selectorLabels parses labels in the form name="value".
func selectorLabels(texts []string) (labels.Labels, error) {
	b := labels.NewBuilder(labels.EmptyLabels())
	for _, text := range texts {
		name, quoted, _ := strings.Cut(text, "=")
		value, err := strconv.Unquote(quoted)
		if err != nil || value == "" || !model.UTF8Validation.IsValidLabelName(name) {
			return labels.EmptyLabels(), fmt.Errorf(`--selector-label=%s: must be name="value"`, text)
		}
		b.Set(name, value)
	}
	return b.Labels(), nil
}

// endpoints returns the addresses of stores. It reads the files of addresses once, so that
// an error in one of them fails the start. Files of both flags are reloaded at the shorter of
// the two intervals.
func (c *queryCommand) endpoints() (fanout.EndpointsOptions, error) {
	o := fanout.EndpointsOptions{
		ReloadInterval: time.Duration(min(c.SDReload, c.SDInterval)), DNSInterval: time.Duration(c.DNSInterval),
		InfoTimeout: time.Duration(c.InfoTimeout), UnhealthyTimeout: time.Duration(c.HideAfter),
		ConnectionLabels: c.ConnectionLabels,
	}
	for _, from := range []struct {
		flag          string
		names         []string
		strict, group bool
	}{{"endpoint", c.Endpoints, false, false}, {"endpoint-strict", c.EndpointStrict, true, false}, {"endpoint-group",
		c.EndpointGroup, false, true}, {"endpoint-group-strict", c.GroupStrict, true, true}} {
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
	o.Dynamic, o.DynamicChanged = files.Read, files.Watch()
	_, err = files.Read()
	return o, err
}
