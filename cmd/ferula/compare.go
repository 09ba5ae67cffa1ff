package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/ferula-io/ferula/internal/app"
	"github.com/ferula-io/ferula/internal/compare"
)

// compareCommand compares two servers. docs/ops/compare.md describes its use.
type compareCommand struct {
	Left        string   `name:"left" required:"" placeholder:"URL"`
	Right       string   `name:"right" required:"" placeholder:"URL"`
	LeftConfig  string   `name:"left.http-config" placeholder:"FILE"`
	RightConfig string   `name:"right.http-config" placeholder:"FILE"`
	Queries     []string `name:"queries" sep:"none" required:"" placeholder:"FILE"`
	More        []string `arg:"" optional:"" name:"file" help:"More files, as of --queries."`
	Wire        string   `name:"wire" enum:"query,remote-read,remote-read-samples,storeapi" default:"query"`

	Mode   string   `name:"mode" enum:"auto,instant,range" default:"auto"`
	Range  duration `name:"range" default:"1h" min:"1s"`
	Step   duration `name:"step" default:"30s" min:"1ms"`
	End    timeFlag `name:"end" default:"now"`
	Settle duration `name:"settle" default:"1m"`

	Repeat      int      `name:"repeat" default:"1" min:"1" max:"1000"`
	Concurrency int      `name:"concurrency" default:"1" min:"1" max:"100"`
	MaxQPS      float64  `name:"max-qps" default:"20"`
	Timeout     duration `name:"timeout" default:"2m"`
	MaxBytes    size     `name:"max-response-bytes" default:"64MB" min:"1B" max:"16GB"`
	MaxQueries  int      `name:"max-queries" default:"1000" min:"1" max:"100000"`
	Idle        bool     `name:"idle"`
	Output      string   `name:"output" short:"o" enum:"text,json,html" default:"text"`

	GRPCClient queryGRPCClientFlags `embed:""`
	Memory     memoryFlags          `embed:""`
}

// errDifferent is the error of a run that has found differences.
var errDifferent = errors.New("the servers differ")

// errNotCompared is the error of a run that has found none, but could not compare everything.
var errNotCompared = errors.New("not all queries could be compared")

func (c *compareCommand) Run(ctx context.Context) error {
	o, err := c.options(time.Now())
	if err != nil {
		return usageError(err)
	}
	c.Memory.apply(ctx, slog.New(slog.DiscardHandler), 0)
	report, err := app.Compare(ctx, o)
	if err != nil {
		return exitError{errors.Join(errNotCompared, err), exitUsage}
	}
	if err := report.Write(os.Stdout, c.Output); err != nil {
		return exitError{errors.Join(errNotCompared, err), exitUsage}
	}
	switch {
	case report.Different > 0:
		return exitError{fmt.Errorf("%w: %d of %d queries", errDifferent, report.Different, report.Compared), exitFailure}
	case report.NotCompared > 0 || report.Interrupted:
		return exitError{fmt.Errorf("%w: %d", errNotCompared, report.NotCompared), exitUsage}
	}
	return nil
}

func (c *compareCommand) options(now time.Time) (app.CompareOptions, error) {
	end, err := c.End.at(now)
	if latest := now.Add(-time.Duration(c.Settle)).UnixMilli(); end > latest {
		end = latest
	}
	end -= end % time.Duration(c.Step).Milliseconds()
	queries, skipped, loadErr := compare.Load(append(c.Queries, c.More...))
	return app.CompareOptions{
		Left:  app.CompareSide{Address: c.Left, HTTPConfigFile: c.LeftConfig},
		Right: app.CompareSide{Address: c.Right, HTTPConfigFile: c.RightConfig},
		Wire:  c.Wire, StoreClient: c.GRPCClient.options(),
		Compare: compare.Options{Queries: queries, Skipped: skipped, Mode: compare.Mode(c.Mode), End: time.UnixMilli(end),
			Range: time.Duration(c.Range), Step: time.Duration(c.Step), Repeat: c.Repeat, Concurrency: c.Concurrency,
			PerSecond: c.MaxQPS, Timeout: time.Duration(c.Timeout), BytesMax: int64(c.MaxBytes), QueriesMax: c.MaxQueries,
			Idle: c.Idle, Now: time.Now},
	}, errors.Join(err, loadErr)
}
