package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/ferula-io/ferula/internal/app"
	"github.com/ferula-io/ferula/internal/hostcheck"
)

// sidecarCommand has the flags of `thanos sidecar`, and a few more under names that
// Thanos does not use. docs/ops/flags.md lists which of them are honoured, inert or
// refused.
type sidecarCommand struct {
	PrometheusURL  secretURL `name:"prometheus.url" default:"http://127.0.0.1:9090" help:"URL of the Prometheus API."`
	ReadyTimeout   duration  `name:"prometheus.ready_timeout" default:"10m" help:"Maximum time to wait for Prometheus to start up."`
	PollInterval   duration  `name:"prometheus.get_config_interval" default:"30s" help:"Interval at which the configuration and the time range of Prometheus are fetched."`
	PollTimeout    duration  `name:"prometheus.get_config_timeout" default:"30s" help:"Timeout for fetching the configuration and the time range of Prometheus."`
	HTTPClient     secret    `name:"prometheus.http-client" placeholder:"YAML" xor:"httpclient" help:"Configuration of authentication and TLS for requests to Prometheus as YAML."`
	HTTPClientFile string    `name:"prometheus.http-client-file" placeholder:"FILE" xor:"httpclient" help:"File with the configuration of authentication and TLS for requests to Prometheus."`
	Path           string    `name:"tsdb.path" default:"./data" help:"Data directory of Prometheus, whose blocks are uploaded."`
	MinTime        minTime   `name:"min-time" default:"0000-01-01T00:00:00Z" help:"Minimum time of samples to serve: RFC 3339, or a duration relative to now such as -1d."`

	GRPCAddress string    `name:"grpc-address" default:"127.0.0.1:10901" help:"Listen host:port for the StoreAPI."`
	GRPC        grpcFlags `embed:""`
	SortBytes   size      `name:"store.max-sort-bytes" default:"256MB" help:"Maximum memory of one request to sort series whose labels changed because a label was removed, or replaced by an external label. A request that exceeds it fails."`

	SelectionsMax int `name:"prometheus.max-selections" default:"3" help:"Maximum number of concurrent remote reads for one Series request. If series have a label with the name of an external label, each value of this label takes a remote read. If there are more values than this, one remote read gets all series, which are then sorted."`
	ReadsMax      int `name:"prometheus.max-remote-reads" default:"8" help:"Maximum number of concurrent remote reads. Further requests wait. Prometheus' --storage.remote.read-concurrent-limit is 10 by default."`

	ReloadConfig string   `name:"reloader.config-file" placeholder:"FILE" help:"Configuration file of Prometheus to watch. Prometheus reloads it when it changes."`
	ReloadOutput string   `name:"reloader.config-envsubst-file" placeholder:"FILE" help:"Output file for the configuration with $(NAME) replaced by environment variables."`
	ReloadDirs   []string `name:"reloader.rule-dir" sep:"none" placeholder:"DIR" help:"Directory of rules to watch (repeatable)."`
	ReloadWatch  duration `name:"reloader.watch-interval" default:"3m" help:"Maximum interval at which the watched files are read again. Values above 5s mean 5s."`
	ReloadRetry  duration `name:"reloader.retry-interval" default:"5s" help:"Time to wait after a failed reload."`
	ReloadMethod string   `name:"reloader.method" enum:"http,signal" default:"http" help:"Method to reload Prometheus. Only http is supported; signal is refused."`

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

// Validate is called by kong.
func (c *sidecarCommand) Validate() error { return checkStoreAPI(c.GRPCAddress) }

// Run is called by kong.
func (c *sidecarCommand) Run(ctx context.Context, k *kong.Context, ignored ignoredFlags) error {
	return runRole(ctx, k, c.Process, ignored, c.options,
		func(opts app.SidecarOptions, common started) (*app.Sidecar, error) {
			opts.Logger, opts.Web.CommandLine = common.logger, common.commandLine
			return app.NewSidecar(opts)
		})
}

func (c *sidecarCommand) options() (app.SidecarOptions, error) {
	var content contents
	if c.ReloadMethod != "http" {
		content.add(errors.New("--reloader.method=signal is not supported: Prometheus is reloaded over HTTP, which requires its --web.enable-lifecycle"))
	}
	ship, err := c.Objstore.options()
	content.add(err)
	grpc, limits := c.GRPC.options(c.GRPCAddress)
	limits.SortBytesMax, limits.Flags["SortBytesMax"] = int(c.SortBytes), "--store.max-sort-bytes"
	if c.SelectionsMax < 1 || c.ReadsMax < c.SelectionsMax {
		content.add(fmt.Errorf("--prometheus.max-selections=%d must be at least 1, and --prometheus.max-remote-reads=%d not less", c.SelectionsMax, c.ReadsMax))
	}
	web := c.Process.web()
	web.AllowedHosts = []string{hostcheck.Any}
	return app.SidecarOptions{
		Web:           web,
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
	}, content.err()
}
