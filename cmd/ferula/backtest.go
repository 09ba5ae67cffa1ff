package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"strconv"
	"time"

	"github.com/ferula-io/ferula/internal/app"
)

// backtestCommand evaluates rules over the past. docs/http.md describes the endpoint that it uses.
type backtestCommand struct {
	URL        string `name:"url" placeholder:"URL" xor:"source"`
	HTTPConfig string `name:"http.config-file" placeholder:"FILE"`
	TSDBPath   string `name:"tsdb.path" placeholder:"DIR" xor:"source"`
	Sandbox    string `name:"sandbox-dir" placeholder:"DIR"`

	Rules         string    `name:"rules" placeholder:"FILE" xor:"rules"`
	Expr          string    `name:"expr" placeholder:"EXPR" xor:"rules"`
	Alert         string    `name:"alert" default:"Backtest"`
	For           duration  `name:"for" default:"0s"`
	KeepFiringFor duration  `name:"keep-firing-for" default:"0s"`
	Labels        []string  `name:"label" sep:"none" placeholder:"NAME=VALUE"`
	Annotations   []string  `name:"annotation" sep:"none" placeholder:"NAME=TEMPLATE"`
	Interval      *duration `name:"interval" placeholder:"1m"`

	Start   timeFlag `name:"start" default:"-1d"`
	End     timeFlag `name:"end" default:"now"`
	Resends bool     `name:"resends"`
	Format  string   `name:"format" enum:"text,json" default:"text"`
	Blocks  string   `name:"write-blocks" placeholder:"DIR"`

	Log    logFlags    `embed:""`
	Memory memoryFlags `embed:""`
}

func (c *backtestCommand) Run(ctx context.Context) error {
	logger, err := c.Log.quietLogger()
	if err != nil {
		return err
	}
	form, err := c.form(time.Now())
	if err != nil {
		return usageError(err)
	}
	c.Memory.apply(ctx, slog.New(slog.DiscardHandler), 0)
	return app.Backtest(ctx, app.BacktestOptions{
		URL: c.URL, HTTPConfigFile: c.HTTPConfig, TSDBPath: c.TSDBPath, SandboxDir: c.Sandbox, Form: form,
		WriteBlocks: c.Blocks, JSON: c.Format == "json", Logger: logger,
	}, os.Stdout)
}

// form returns the form of the request.
func (c *backtestCommand) form(now time.Time) (url.Values, error) {
	form := url.Values{}
	var errs []error
	for name, at := range map[string]timeFlag{"start": c.Start, "end": c.End} {
		ms, err := at.at(now)
		errs = append(errs, err)
		form.Set(name, strconv.FormatFloat(float64(ms)/1000, 'f', 3, 64))
	}
	if c.Interval != nil {
		form.Set("interval", strconv.FormatFloat(time.Duration(*c.Interval).Seconds(), 'f', -1, 64))
	}
	form.Set("resends", strconv.FormatBool(c.Resends))
	switch {
	case c.Rules != "":
		content, err := os.ReadFile(c.Rules)
		if err != nil {
			errs = append(errs, fmt.Errorf("--rules: %w", err))
		}
		form.Set("rules", string(content))
		form.Set("file", c.Rules)
	case c.Expr != "":
		form.Set("expr", c.Expr)
		form.Set("alert", c.Alert)
		form.Set("for", strconv.FormatFloat(time.Duration(c.For).Seconds(), 'f', -1, 64))
		form.Set("keep_firing_for", strconv.FormatFloat(time.Duration(c.KeepFiringFor).Seconds(), 'f', -1, 64))
		form["label"], form["annotation"] = c.Labels, c.Annotations
	default:
		errs = append(errs, errors.New("set one of --rules and --expr"))
	}
	return form, errors.Join(errs...)
}
