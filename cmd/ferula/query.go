package main

import (
	"context"
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
	DisableCORS    bool   `name:"web.disable-cors" negatable:""`
	AdminAPI       bool   `name:"web.enable-admin-api" negatable:""`
	RoutePrefix    string `name:"web.route-prefix" placeholder:"PATH"`
	ExternalPrefix string `name:"web.external-prefix" placeholder:"PATH"`

	GRPCAddress string               `name:"grpc-address" default:"127.0.0.1:10901"`
	GRPC        grpcFlags            `embed:""`
	GRPCClient  queryGRPCClientFlags `embed:""`

	Endpoints      []string `name:"endpoint" sep:"none" placeholder:"ADDRESS"`
	EndpointStrict []string `name:"endpoint-strict" sep:"none" placeholder:"ADDRESS"`
	EndpointGroup  []string `name:"endpoint-group" sep:"none" placeholder:"ADDRESS"`
	GroupStrict    []string `name:"endpoint-group-strict" sep:"none" placeholder:"ADDRESS"`
	SDConfig       secret   `name:"endpoint.sd-config" placeholder:"YAML" xor:"sdconfig"`
	SDConfigFile   string   `name:"endpoint.sd-config-file" placeholder:"FILE" xor:"sdconfig"`
	SDReload       duration `name:"endpoint.sd-config-reload-interval" default:"5m"`
	SDFiles        []string `name:"store.sd-files" sep:"none" placeholder:"PATTERN"`
	SDInterval     duration `name:"store.sd-interval" default:"5m"`
	DNSInterval    duration `name:"store.sd-dns-interval" default:"30s"`
	InfoTimeout    duration `name:"endpoint.info-timeout" default:"5s" hidden:""`
	HideAfter      duration `name:"store.unhealthy-timeout" default:"5m"`
	StoreTimeout   duration `name:"store.response-timeout" default:"0ms"`

	Timeout            duration `name:"query.timeout" default:"2m"`
	MaxConcurrent      int      `name:"query.max-concurrent" default:"20"`
	MaxSelects         int      `name:"query.max-concurrent-select" default:"4"`
	LookbackDelta      duration `name:"query.lookback-delta" default:"5m"`
	DynamicLookback    bool     `name:"query.dynamic-lookback-delta" default:"true" negatable:"" hidden:""`
	MaxSamples         int      `name:"query.max-samples" default:"50000000"`
	MaxSeries          int64    `name:"query.max-series" default:"0"`
	MaxChunkBytes      size     `name:"query.max-chunk-bytes" default:"4GB"`
	MaxTotalBytes      size     `name:"query.max-total-chunk-bytes" default:"0"`
	MaxSortBytes       size     `name:"query.max-sort-bytes" default:"256MB"`
	ConnectionLabels   []string `name:"query.conn-metric.label" enum:"external_labels,store_type" default:"external_labels,store_type" sep:"," placeholder:"NAME"`
	ReplicaLabels      []string `name:"query.replica-label" sep:"," placeholder:"NAME"`
	DedupFunc          string   `name:"deduplication.func" enum:"penalty,chain" default:"penalty"`
	AutoDownsampling   bool     `name:"query.auto-downsampling" negatable:""`
	InstantResolution  duration `name:"query.instant.default.max_source_resolution" default:"0s" hidden:""`
	PartialResponse    bool     `name:"query.partial-response" default:"true" negatable:""`
	EvaluationInterval duration `name:"query.default-evaluation-interval" default:"1m"`
	DefaultStep        duration `name:"query.default-step" default:"1s"`
	MetadataRange      duration `name:"query.metadata.default-time-range" default:"0s"`
	ActiveQueryPath    string   `name:"query.active-query-path" placeholder:"FOLDER"`
	TenantHeader       string   `name:"query.tenant-header" default:"THANOS-TENANT" placeholder:"NAME"`
	DefaultTenant      string   `name:"query.default-tenant-id" default:"default-tenant" placeholder:"NAME"`
	TenantCertificate  string   `name:"query.tenant-certificate-field" enum:",organization,organizationalUnit,commonName" default:"" placeholder:"FIELD"`
	EnforceTenancy     bool     `name:"query.enforce-tenancy" negatable:""`
	TenantLabel        string   `name:"query.tenant-label-name" default:"tenant_id" placeholder:"NAME"`
	Engine             string   `name:"query.promql-engine" default:"prometheus"`
	QueryEngine        string   `name:"query.engine" enum:"columns,prometheus" default:"columns"`
	Parallelism        int      `name:"query.parallelism" default:"0"`
	SelectorLabels     []string `name:"selector-label" sep:"none" placeholder:"LABEL"`
	Relabel            secret   `name:"selector.relabel-config" placeholder:"YAML" xor:"relabel"`
	RelabelFile        string   `name:"selector.relabel-config-file" placeholder:"FILE" xor:"relabel"`
	Mode               string   `name:"query.mode" default:"local"`
	Features           []string `name:"enable-feature" sep:"," placeholder:"NAME"`

	Hosts   hostFlags    `embed:""`
	Process processFlags `embed:""`
}

func (c *queryCommand) Validate() error { return checkGRPC(c.GRPCAddress) }

func (c *queryCommand) Run(ctx context.Context, k *kong.Context, ignored ignoredFlags, next *role) error {
	ignored = append(ignored, ignoredFeatures("query-features", c.Features, isQueryFeature)...)
	return runRole(ctx, k, next, &c.Process, ignored, c.options, app.NewQuery)
}

func (c *queryCommand) options() (app.QueryOptions, error) {
	var content contents
	if c.Engine != "prometheus" {
		content.add(fmt.Errorf("--query.promql-engine=%s is not supported: the only engine is prometheus", c.Engine))
	}
	if c.Mode != "local" {
		content.add(fmt.Errorf("--query.mode=%s is not supported: the only mode is local", c.Mode))
	}
	client := c.GRPCClient.options()
	client.LookupInterval = time.Duration(c.DNSInterval)
	grpc, limits := c.GRPC.options(c.GRPCAddress)
	o := app.QueryOptions{
		Web:         c.Process.web(),
		DisableCORS: c.DisableCORS,
		Admin:       c.AdminAPI,
		GRPC:        grpc,
		StoreAPI:    limits,
		Client:      client,
		Fanout: fanout.Options{Chain: c.DedupFunc == "chain", SelectsMax: c.MaxSelects, SeriesMax: c.MaxSeries,
			BytesMax: int64(c.MaxChunkBytes), TotalBytesMax: int64(c.MaxTotalBytes), SortBytesMax: int64(c.MaxSortBytes),
			Flags: hint.Flags{
				"SeriesMax": "--query.max-series", "BytesMax": "--query.max-chunk-bytes",
				"TotalBytesMax": "--query.max-total-chunk-bytes",
			}},
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
		Flags:            c.Process.values,
		Logger:           c.Process.logger,
	}
	o.Web.RoutePrefix, o.Web.AllowedHosts = c.RoutePrefix, c.Hosts.Allowed
	if c.RoutePrefix == "" && strings.HasPrefix(c.ExternalPrefix, "/") {
		o.Web.RoutePrefix = c.ExternalPrefix
	}
	var err error
	o.Fanout.ResponseTimeout = time.Duration(c.StoreTimeout)
	o.Query.ExperimentalFunctions = slices.Contains(splitFeatures(c.Features), experimentalFunctions)
	o.Endpoints, err = c.endpoints()
	content.add(err)
	o.Endpoints.Selector.Labels, err = selectorLabels(c.SelectorLabels)
	content.add(err)
	o.Relabel = content.of("selector.relabel-config", c.Relabel, c.RelabelFile)
	o.Tracing = content.of("tracing.config", c.Process.TracingConfig, c.Process.TracingConfigFile)
	return o, content.err()
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
