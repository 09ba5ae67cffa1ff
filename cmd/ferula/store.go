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
	"github.com/ferula-io/ferula/internal/thanos/gateway"
)

// storeCommand has the flags of `thanos store`, and a few more under names that Thanos does
// not use. docs/ops/flags.md lists which of them are honoured, inert or refused.
type storeCommand struct {
	Config     secret `name:"objstore.config" placeholder:"YAML" xor:"objstore"`
	ConfigFile string `name:"objstore.config-file" placeholder:"FILE" xor:"objstore"`
	DataDir    string `name:"data-dir" default:"./data"`

	CacheBytes      size   `name:"index-cache-size" max:"1TB" default:"250MB"`
	CacheConfig     secret `name:"index-cache.config" placeholder:"YAML" xor:"indexcache"`
	CacheConfigFile string `name:"index-cache.config-file" placeholder:"FILE" xor:"indexcache"`

	SyncInterval     duration `name:"sync-block-duration" default:"15m"`
	Discovery        string   `name:"block-discovery-strategy" enum:"concurrent,recursive" default:"concurrent"`
	MetaConcurrency  int      `name:"block-meta-fetch-concurrency" min:"1" default:"32"`
	MinTime          minTime  `name:"min-time" default:"0000-01-01T00:00:00Z"`
	MaxTime          minTime  `name:"max-time" default:"9999-12-31T23:59:59Z"`
	ConsistencyDelay duration `name:"consistency-delay" default:"0s"`
	IgnoreDeleted    duration `name:"ignore-deletion-marks-delay" default:"24h"`
	Relabel          secret   `name:"selector.relabel-config" placeholder:"YAML" xor:"relabel"`
	RelabelFile      string   `name:"selector.relabel-config-file" placeholder:"FILE" xor:"relabel"`

	ReadsMax        int      `name:"store.grpc.series-max-concurrency" default:"20"`
	DownloadedBytes size     `name:"store.grpc.downloaded-bytes-limit" default:"0"`
	TouchedSeries   int64    `name:"store.grpc.touched-series-limit" default:"0" hidden:""`
	SampleLimit     int64    `name:"store.grpc.series-sample-limit" default:"0" hidden:""`
	IdleTimeout     duration `name:"store.index-header-lazy-reader-idle-timeout" default:"5m" hidden:""`
	SortBytes       size     `name:"store.max-sort-bytes" default:"256MB"`

	GRPCAddress    string       `name:"grpc-address" default:"127.0.0.1:10901"`
	GRPC           grpcFlags    `embed:""`
	ExternalPrefix string       `name:"web.external-prefix"`
	Process        processFlags `embed:""`
}

func (c *storeCommand) Validate() error { return checkListen("grpc-address", c.GRPCAddress) }

func (c *storeCommand) Run(ctx context.Context, k *kong.Context, ignored ignoredFlags, next *role) error {
	return runRole(ctx, k, next, &c.Process, ignored, c.options, app.NewStore)
}

func (c *storeCommand) options() (app.StoreOptions, error) {
	var content contents
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
	web.RoutePrefix = c.ExternalPrefix
	return app.StoreOptions{
		Web: web, GRPC: grpc, Bucket: content.bucket(c.Config, c.ConfigFile), Limits: limits,
		SyncInterval: time.Duration(c.SyncInterval),
		Relabel:      content.of("selector.relabel-config", c.Relabel, c.RelabelFile),
		Store: gateway.Options{
			Dir: c.DataDir, CacheBytes: cacheBytes, Concurrency: c.MetaConcurrency, Recursive: c.Discovery == "recursive",
			ReadsMax: c.ReadsMax, Idle: time.Duration(c.IdleTimeout),
			Flags: hint.Flags{"CacheBytes": "--index-cache-size"},
			Rules: gateway.Rules{
				MinMS: c.MinTime.ms, MaxMS: c.MaxTime.ms,
				ConsistencyDelay: time.Duration(c.ConsistencyDelay), IgnoreDeletedDelay: time.Duration(c.IgnoreDeleted),
			},
		},
		Tracing: content.of("tracing.config", c.Process.TracingConfig, c.Process.TracingConfigFile),
		Logger:  c.Process.logger,
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
		return 0, fmt.Errorf("type %q is not supported: use IN-MEMORY, which caches pages in a file of the data directory",
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
