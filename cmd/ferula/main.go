// Command ferula carries metrics and profiles from where they are measured to
// where people look at them.
//
// There is one file for each command here, and each does nothing but turn flags
// into a role's options and run it. Flags that a peer has keep the peer's names.
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

	"github.com/ferula-io/ferula/internal/role"
)

type commands struct {
	Serve         serveCommand         `cmd:"" help:"Scrape, store, query and draw metrics in one process."`
	Query         queryCommand         `cmd:"" help:"PromQL over many StoreAPIs."`
	QueryFrontend queryFrontendCommand `cmd:"" help:"Split, cache and merge queries before a Prometheus or Thanos query."`
	Sidecar       sidecarCommand       `cmd:"" help:"Offer the Prometheus beside as a StoreAPI and ship its blocks."`
	Read          readCommand          `cmd:"" help:"Write raw series to Parquet, CSV, JSON lines, OpenMetrics or TSDB blocks."`

	Version kong.VersionFlag `name:"version" help:"Print the version."`
}

// logFlags are common to all long-running commands.
type logFlags struct {
	Level  string `name:"log.level" enum:"debug,info,warn,error" default:"info" help:"Only log messages with the given severity or above (${enum})."`
	Format string `name:"log.format" enum:"logfmt,json" default:"logfmt" help:"Output format of log messages (${enum})."`
}

// logger builds the process' logger and the level that a reload may change.
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

// memoryFlags keep the process inside its container.
type memoryFlags struct {
	Auto  bool    `name:"auto-gomemlimit" default:"true" negatable:"" help:"Set GOMEMLIMIT from the container's or the system's memory."`
	Ratio float64 `name:"auto-gomemlimit.ratio" default:"0.9" help:"Share of that memory to use."`
}

func (f memoryFlags) apply(logger *slog.Logger) {
	if !f.Auto {
		return
	}
	provider := memlimit.ApplyFallback(memlimit.FromCgroup, memlimit.FromSystem)
	if _, err := memlimit.Set(memlimit.WithRatio(f.Ratio), memlimit.WithProvider(provider), memlimit.WithLogger(logger)); err != nil {
		logger.Warn("GOMEMLIMIT could not be set", "err", err)
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
		kong.Description("Carries Prometheus-style metrics and Pyroscope-style profiles, and makes that way cost almost nothing."),
		kong.UsageOnError(),
		kong.Vars{"features": featureNames(), "version": "ferula " + role.Version},
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
	)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	kctx.BindTo(ctx, (*context.Context)(nil))
	kctx.FatalIfErrorf(kctx.Run())
}
