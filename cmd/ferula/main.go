// Command ferula collects, stores and queries metrics and profiles.
//
// Each sub-command has a file here. It maps flags to the options of a role of package
// role and runs that role. A flag that Prometheus or Thanos has keeps its name.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"github.com/alecthomas/kong"
	"github.com/prometheus/common/promslog"

	"github.com/ferula-io/ferula/internal/version"
)

type commands struct {
	Serve         serveCommand         `cmd:"" help:"Scrape, store, query and graph metrics and profiles in one process."`
	Query         queryCommand         `cmd:"" help:"Query many StoreAPIs with PromQL."`
	QueryFrontend queryFrontendCommand `cmd:"" help:"Split and cache queries in front of Prometheus or a Thanos querier."`
	Sidecar       sidecarCommand       `cmd:"" help:"Serve a Prometheus as a StoreAPI and upload its blocks to object storage."`
	Read          readCommand          `cmd:"" help:"Export raw series to Parquet, CSV, JSON lines, OpenMetrics or TSDB blocks."`

	Version kong.VersionFlag `name:"version" help:"Print the version."`
}

// logFlags are the flags of every command about its log.
type logFlags struct {
	Level  string `name:"log.level" enum:"debug,info,warn,error" default:"info" help:"Only log messages with the given severity or above (${enum})."`
	Format string `name:"log.format" enum:"logfmt,json" default:"logfmt" help:"Output format of log messages (${enum})."`
}

// logger returns the logger of the process, and its level, which a reload may change.
func (f logFlags) logger() (*slog.Logger, *promslog.Level, error) {
	level, format := promslog.NewLevel(), promslog.NewFormat()
	if err := level.Set(f.Level); err != nil {
		return nil, nil, fmt.Errorf("log.level: %w", err)
	}
	if err := format.Set(f.Format); err != nil {
		return nil, nil, fmt.Errorf("log.format: %w", err)
	}
	return promslog.New(&promslog.Config{Level: level, Format: format}), level, nil
}

// memoryFlags set GOMEMLIMIT, so that the process stays within its container's memory.
type memoryFlags struct {
	Auto  bool    `name:"auto-gomemlimit" default:"true" negatable:"" help:"Set GOMEMLIMIT from the memory limit of the container or of the system."`
	Ratio float64 `name:"auto-gomemlimit.ratio" default:"0.9" help:"Ratio of GOMEMLIMIT to that memory limit."`
}

func (f memoryFlags) apply(logger *slog.Logger) {
	if !f.Auto {
		return
	}
	provider := memlimit.ApplyFallback(memlimit.FromCgroup, memlimit.FromSystem)
	if _, err := memlimit.Set(memlimit.WithRatio(f.Ratio), memlimit.WithProvider(provider), memlimit.WithLogger(logger)); err != nil {
		logger.Warn("failed to set GOMEMLIMIT", "err", err)
	}
}

// Validate is called by kong.
func (f memoryFlags) Validate() error {
	if f.Ratio <= 0 || f.Ratio > 1 {
		return fmt.Errorf("--auto-gomemlimit.ratio=%g must be greater than 0 and at most 1", f.Ratio)
	}
	return nil
}

func main() {
	var cli commands
	kctx := kong.Parse(&cli,
		kong.Name("ferula"),
		kong.Description("Drop-in replacements for parts of Prometheus, Thanos and Pyroscope."),
		kong.UsageOnError(),
		kong.Vars{"features": featureNames(), "version": "ferula " + version.Current().Version},
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
	)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal terminates the process
	kctx.BindTo(ctx, (*context.Context)(nil))
	kctx.FatalIfErrorf(kctx.Run())
}
