package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"github.com/alecthomas/units"
	"go.yaml.in/yaml/v3"

	"github.com/ferula-io/ferula/internal/app"
	"github.com/ferula-io/ferula/internal/blocks/pages"
	"github.com/ferula-io/ferula/internal/hint"
	"github.com/ferula-io/ferula/internal/hostcheck"
	"github.com/ferula-io/ferula/internal/thanos/gateway"
)

// storeCommand has the flags of `thanos store`, and a few more under names that Thanos does
// not use. docs/ops/flags.md lists which of them are honoured, inert or refused.
type storeCommand struct {
	Config     secret `name:"objstore.config" placeholder:"YAML" xor:"objstore" help:"Configuration of the object storage with the blocks, in Thanos' YAML format, type S3, FILESYSTEM, GCS or AZURE."`
	ConfigFile string `name:"objstore.config-file" placeholder:"FILE" xor:"objstore" help:"File with the configuration of the object storage, in Thanos' YAML format."`
	DataDir    string `name:"data-dir" default:"./data" help:"Local directory for cached pages, symbols and postings tables of blocks, and the list of blocks. It may be deleted while the store is stopped."`

	CacheBytes      size   `name:"index-cache-size" max:"1TB" default:"250MB" help:"Size of the file in the data directory that caches pages of indexes and chunks. It bounds what all requests hold together. At most 1TB; the disk must have this space."`
	CacheConfig     secret `name:"index-cache.config" placeholder:"YAML" xor:"indexcache" help:"Configuration of the cache, in Thanos' YAML format, type IN-MEMORY. Its max_size replaces --index-cache-size."`
	CacheConfigFile string `name:"index-cache.config-file" placeholder:"FILE" xor:"indexcache" help:"File with the configuration of the cache, in Thanos' YAML format."`

	SyncInterval     duration `name:"sync-block-duration" default:"15m" help:"Interval at which the blocks of the bucket are listed."`
	Discovery        string   `name:"block-discovery-strategy" enum:"concurrent,recursive" default:"concurrent" help:"concurrent looks for the files of each block; recursive lists all objects of the bucket."`
	MetaConcurrency  int      `name:"block-meta-fetch-concurrency" min:"1" default:"32" help:"Maximum number of concurrent requests for the metadata of blocks."`
	MinTime          minTime  `name:"min-time" default:"0000-01-01T00:00:00Z" help:"Minimum time of samples to serve: RFC 3339, or a duration relative to now such as -1d."`
	MaxTime          minTime  `name:"max-time" default:"9999-12-31T23:59:59Z" help:"Maximum time of samples to serve: RFC 3339, or a duration relative to now such as -1d."`
	ConsistencyDelay duration `name:"consistency-delay" default:"0s" help:"Minimum age of blocks that are served, except those of a compactor."`
	IgnoreDeleted    duration `name:"ignore-deletion-marks-delay" default:"24h" help:"Time after which a block that is marked for deletion is no longer served."`
	Relabel          secret   `name:"selector.relabel-config" placeholder:"YAML" xor:"relabel" help:"Relabel configuration as YAML that selects blocks by their external labels."`
	RelabelFile      string   `name:"selector.relabel-config-file" placeholder:"FILE" xor:"relabel" help:"File with the relabel configuration that selects blocks by their external labels."`

	ReadsMax        int      `name:"store.grpc.series-max-concurrency" default:"20" help:"Maximum number of blocks that are read at once, for all requests. A request whose client is slow does not count. 0 means no limit."`
	DownloadedBytes size     `name:"store.grpc.downloaded-bytes-limit" default:"0" help:"Maximum bytes of labels and chunks of one Series request. A request that exceeds it fails. 0 means no limit."`
	TouchedSeries   int64    `name:"store.grpc.touched-series-limit" default:"0" hidden:"" help:"Older name of --store.limits.request-series."`
	SampleLimit     int64    `name:"store.grpc.series-sample-limit" default:"0" hidden:"" help:"Older name of --store.limits.request-samples."`
	IdleTimeout     duration `name:"store.index-header-lazy-reader-idle-timeout" default:"5m" hidden:"" help:"Time after which the symbols and the postings table of an unused block are unmapped."`
	SortBytes       size     `name:"store.max-sort-bytes" default:"256MB" help:"Maximum memory of one request to sort series of a block whose labels changed because a label was replaced or removed. A request that exceeds it fails."`

	GRPCAddress    string       `name:"grpc-address" default:"127.0.0.1:10901" help:"Listen host:port for the StoreAPI."`
	GRPC           grpcFlags    `embed:""`
	ExternalPrefix string       `name:"web.external-prefix" help:"Path prefix of /blocks and /api/v1/blocks."`
	Process        processFlags `embed:""`
}

// Validate is called by kong.
func (c *storeCommand) Validate() error { return checkStoreAPI(c.GRPCAddress) }

// Run is called by kong.
func (c *storeCommand) Run(ctx context.Context, k *kong.Context, ignored ignoredFlags) error {
	return runRole(ctx, k, c.Process, ignored, c.options, func(opts app.StoreOptions, common started) (*app.Store, error) {
		if strings.TrimSpace(opts.Bucket) == "" {
			return nil, usageError{errors.New("--objstore.config or --objstore.config-file is required, and must not be empty")}
		}
		opts.Logger, opts.Web.CommandLine = common.logger, common.commandLine
		return app.NewStore(opts)
	})
}

func (c *storeCommand) options() (app.StoreOptions, error) {
	var content contents
	bucket := content.of("objstore.config", c.Config, c.ConfigFile)
	cacheBytes, err := cacheBytes(content.of("index-cache.config", c.CacheConfig, c.CacheConfigFile), int64(c.CacheBytes))
	if err != nil {
		content.add(fmt.Errorf("--index-cache.config: %w", err))
	}
	if c.MinTime.ms() > c.MaxTime.ms() {
		content.add(errors.New("--min-time is after --max-time"))
	}
	grpc, limits := c.GRPC.options(c.GRPCAddress)
	limits.SeriesMax, limits.SamplesMax = either(limits.SeriesMax, c.TouchedSeries),
		either(limits.SamplesMax, c.SampleLimit)
	limits.BytesMax, limits.SortBytesMax = int64(c.DownloadedBytes), int(c.SortBytes)
	limits.Flags["SortBytesMax"] = "--store.max-sort-bytes"
	web := c.Process.web()
	web.AllowedHosts, web.RoutePrefix = []string{hostcheck.Any}, c.ExternalPrefix
	return app.StoreOptions{
		Web: web, GRPC: grpc, Bucket: bucket, Limits: limits, SyncInterval: time.Duration(c.SyncInterval),
		Relabel: content.of("selector.relabel-config", c.Relabel, c.RelabelFile),
		Store: gateway.Options{
			Dir: c.DataDir, CacheBytes: cacheBytes, Concurrency: c.MetaConcurrency, Recursive: c.Discovery == "recursive",
			ReadsMax: c.ReadsMax, Idle: time.Duration(c.IdleTimeout), SortBytesMax: int(c.SortBytes),
			Flags: hint.Flags{"CacheBytes": "--index-cache-size"},
			Rules: gateway.Rules{
				MinMS: c.MinTime.ms, MaxMS: c.MaxTime.ms,
				ConsistencyDelay: time.Duration(c.ConsistencyDelay), IgnoreDeletedDelay: time.Duration(c.IgnoreDeleted),
			},
		},
		Tracing: content.of("tracing.config", c.Process.TracingConfig, c.Process.TracingConfigFile),
	}, content.err()
}

// either returns the smaller of two limits. 0 means no limit.
func either(a, b int64) int64 {
	if a == 0 || b == 0 {
		return a + b
	}
	return min(a, b)
}

// cacheBytes returns the size of the cache from a configuration in Thanos' format, or
// byFlag if the configuration is empty.
func cacheBytes(text string, byFlag int64) (int64, error) {
	if strings.TrimSpace(text) == "" {
		return byFlag, nil
	}
	var c struct {
		Type   string `yaml:"type"`
		Config struct {
			MaxSize string `yaml:"max_size"`
		} `yaml:"config"`
	}
	if err := yaml.Unmarshal([]byte(text), &c); err != nil {
		return 0, err
	}
	if kind := strings.ToUpper(c.Type); kind == "" && c.Config.MaxSize == "" {
		return byFlag, nil
	} else if kind != "IN-MEMORY" {
		return 0, fmt.Errorf("type %q is not supported; IN-MEMORY is: pages are cached in a file of the data directory",
			c.Type)
	}
	if c.Config.MaxSize == "" {
		return byFlag, nil
	}
	var n size
	if err := n.UnmarshalText([]byte(c.Config.MaxSize)); err != nil {
		metric, err := units.ParseStrictBytes(c.Config.MaxSize)
		if err != nil {
			return 0, fmt.Errorf("max_size: %w", err)
		}
		n = size(metric)
	}
	if n < 0 || n > pages.CacheBytesMax {
		return 0, fmt.Errorf("max_size: %s must be between 0 and 1TB", c.Config.MaxSize)
	}
	return int64(n), nil
}
