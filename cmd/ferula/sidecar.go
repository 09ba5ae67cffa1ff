package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/ferula-io/ferula/internal/app"
)

// sidecarCommand has the flags of `thanos sidecar`, and a few more under names that
// Thanos does not use. docs/ops/flags.md lists which of them are honoured, inert or
// refused.
type sidecarCommand struct {
	PrometheusURL  secretURL `name:"prometheus.url" default:"http://127.0.0.1:9090"`
	ReadyTimeout   duration  `name:"prometheus.ready_timeout" default:"10m"`
	PollInterval   duration  `name:"prometheus.get_config_interval" default:"30s"`
	PollTimeout    duration  `name:"prometheus.get_config_timeout" default:"30s"`
	HTTPClient     secret    `name:"prometheus.http-client" placeholder:"YAML" xor:"httpclient"`
	HTTPClientFile string    `name:"prometheus.http-client-file" placeholder:"FILE" xor:"httpclient"`
	Path           string    `name:"tsdb.path" default:"./data"`
	MinTime        minTime   `name:"min-time" default:"0000-01-01T00:00:00Z"`

	GRPCAddress string    `name:"grpc-address" default:"127.0.0.1:10901"`
	GRPC        grpcFlags `embed:""`
	SortBytes   size      `name:"store.max-sort-bytes" default:"256MB"`

	SelectionsMax int `name:"prometheus.max-selections" default:"3"`
	ReadsMax      int `name:"prometheus.max-remote-reads" default:"8"`

	ReloadConfig string   `name:"reloader.config-file" placeholder:"FILE"`
	ReloadOutput string   `name:"reloader.config-envsubst-file" placeholder:"FILE"`
	ReloadDirs   []string `name:"reloader.rule-dir" sep:"none" placeholder:"DIR"`
	ReloadWatch  duration `name:"reloader.watch-interval" default:"3m"`
	ReloadRetry  duration `name:"reloader.retry-interval" default:"5s"`
	ReloadMethod string   `name:"reloader.method" enum:"http,signal" default:"http"`

	Objstore objstoreFlags `embed:""`
	Process  processFlags  `embed:""`
}

// minTime is an absolute time, or a duration relative to now.
type minTime struct {
	at    time.Time
	after time.Duration
	fixed bool // the time is at, not relative to now
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (m *minTime) UnmarshalText(text []byte) error {
	if at, err := time.Parse(time.RFC3339, string(text)); err == nil {
		*m = minTime{at: at, fixed: true}
		return nil
	}
	rest, past := strings.CutPrefix(string(text), "-")
	var d duration
	if err := d.UnmarshalText([]byte(rest)); err != nil {
		return fmt.Errorf("%q is neither a time in RFC3339 nor a duration such as -1d", text)
	}
	*m = minTime{after: time.Duration(d)}
	if past {
		m.after = -m.after
	}
	return nil
}

func (m minTime) ms() int64 {
	if m.fixed {
		return m.at.UnixMilli()
	}
	return time.Now().Add(m.after).UnixMilli()
}

func (c *sidecarCommand) Validate() error { return checkListen("grpc-address", c.GRPCAddress) }

func (c *sidecarCommand) Run(ctx context.Context, k *kong.Context, ignored ignoredFlags, next *role) error {
	return runRole(ctx, k, next, &c.Process, ignored, c.options, app.NewSidecar)
}

func (c *sidecarCommand) options() (app.SidecarOptions, error) {
	var content contents
	if c.ReloadMethod != "http" {
		content.add(errors.New("--reloader.method=signal is not supported: Prometheus is reloaded over HTTP, which " +
			"requires its --web.enable-lifecycle"))
	}
	ship, err := c.Objstore.options()
	content.add(err)
	grpc, limits := c.GRPC.options(c.GRPCAddress)
	limits.SortBytesMax, limits.Flags["SortBytesMax"] = int(c.SortBytes), "--store.max-sort-bytes"
	if c.SelectionsMax < 1 || c.ReadsMax < c.SelectionsMax {
		content.add(fmt.Errorf("--prometheus.max-selections=%d must be at least 1, and --prometheus.max-remote-reads=%d "+
			"not less", c.SelectionsMax, c.ReadsMax))
	}
	return app.SidecarOptions{
		Web:           c.Process.web(),
		GRPC:          grpc,
		PrometheusURL: string(c.PrometheusURL),
		HTTPClient:    content.of("prometheus.http-client", c.HTTPClient, c.HTTPClientFile),
		ReadyTimeout:  time.Duration(c.ReadyTimeout),
		SelectionsMax: c.SelectionsMax,
		ReadsMax:      c.ReadsMax,
		PollInterval:  time.Duration(c.PollInterval),
		PollTimeout:   time.Duration(c.PollTimeout),
		MinTimeMS:     c.MinTime.ms,
		TSDBDir:       c.Path,
		Ship:          ship,
		Reload: app.ReloadOptions{
			ConfigFile: c.ReloadConfig, OutputFile: c.ReloadOutput, RuleDirs: c.ReloadDirs,
			Every: min(time.Duration(c.ReloadWatch), 5*time.Second), Retry: time.Duration(c.ReloadRetry),
		},
		Limits:  limits,
		Tracing: content.of("tracing.config", c.Process.TracingConfig, c.Process.TracingConfigFile),
		Logger:  c.Process.logger,
	}, content.err()
}
