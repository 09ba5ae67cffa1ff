package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/promql/parser"
	"golang.org/x/term"

	"github.com/ferula-io/ferula/internal/app"
	"github.com/ferula-io/ferula/internal/export"
)

// readCommand exports raw series. docs/ops/read.md describes its use.
type readCommand struct {
	URL        string   `name:"url" placeholder:"URL" xor:"source"`
	HTTPConfig string   `name:"http.config-file" placeholder:"FILE"`
	Headers    []string `name:"header" sep:"none" placeholder:"NAME: VALUE"`
	Store      string   `name:"store" placeholder:"HOST:PORT" xor:"source"`
	TSDBPath   string   `name:"tsdb.path" placeholder:"DIR" xor:"source"`
	Sandbox    string   `name:"sandbox-dir" placeholder:"DIR"`

	Match  []string `name:"match" sep:"none" required:"" placeholder:"SELECTOR"`
	Start  timeFlag `name:"start" default:"-1h"`
	End    timeFlag `name:"end" default:"now"`
	Window duration `name:"window" default:"2h"`

	Output   string   `name:"output" short:"o" required:"" placeholder:"FILE"`
	Format   string   `name:"format" enum:"parquet,csv,jsonl,openmetrics,blocks," default:""`
	SkipHist bool     `name:"skip-histograms"`
	Resume   bool     `name:"resume"`
	Timeout  duration `name:"timeout" default:"2m"`
	SortMem  size     `name:"max-sort-bytes" default:"12MiB"`
	Retries  int      `name:"retries" default:"4"`
	Progress bool     `name:"progress" default:"true" negatable:""`

	GRPCClient queryGRPCClientFlags `embed:""`
	Log        logFlags             `embed:""`
	Memory     memoryFlags          `embed:""`
}

// timeFlag is a time as given on the command line. Its Decode accepts a value that
// begins with a dash, as in --start -8h.
type timeFlag string

// Decode implements kong.MapperValue.
func (f *timeFlag) Decode(ctx *kong.DecodeContext) error {
	token := ctx.Scan.Pop()
	if token.IsEOL() {
		return errors.New("missing time")
	}
	*f = timeFlag(fmt.Sprint(token.Value))
	_, err := f.at(time.Unix(0, 0))
	return err
}

// at returns the time in ms since the epoch. Relative times count from now.
func (f timeFlag) at(now time.Time) (int64, error) {
	value := strings.TrimPrefix(string(f), "now")
	if value == "" {
		return now.UnixMilli(), nil
	}
	if seconds, err := strconv.ParseFloat(value, 64); err == nil && value == string(f) {
		if math.Abs(seconds) > 1e13 || math.IsNaN(seconds) {
			return 0, fmt.Errorf("invalid time %q", string(f))
		}
		return int64(math.Round(seconds * 1000)), nil
	}
	if at, err := time.Parse(time.RFC3339Nano, value); err == nil {
		return at.UnixMilli(), nil
	}
	if rest, ok := strings.CutPrefix(value, "-"); ok {
		if d, err := model.ParseDuration(rest); err == nil {
			return now.Add(-time.Duration(d)).UnixMilli(), nil
		}
	}
	return 0, fmt.Errorf("invalid time %q: must be like 2026-01-02T15:04:05Z, Unix seconds, now, or -8h", string(f))
}

func (c *readCommand) Run(ctx context.Context, _ *kong.Context) error {
	logger, err := c.Log.quietLogger()
	if err != nil {
		return err
	}
	opts, err := c.options(time.Now())
	if err != nil {
		return err
	}
	c.Memory.apply(ctx, slog.New(slog.DiscardHandler), 0) // its message would precede the output of every run
	opts.Logger = logger
	sum, err := app.Read(ctx, opts)
	if errors.Is(err, export.ErrUnfinished) {
		return exitError{err, exitUnfinished}
	}
	if err == nil && c.Progress {
		fmt.Fprintf(os.Stderr, "%s: %s\n", c.Output, sum)
	}
	return err
}

func (c *readCommand) options(now time.Time) (app.ReadOptions, error) {
	o := app.ReadOptions{URL: c.URL, HTTPConfigFile: c.HTTPConfig, Header: http.Header{}, Store: c.Store,
		StoreClient: c.GRPCClient.options(), TSDBPath: c.TSDBPath, SandboxDir: c.Sandbox,
		StallTimeout: time.Duration(c.Timeout), SortBytes: int(c.SortMem)}
	var errs []error
	fail := func(flag string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("--%s: %w", flag, err))
		}
	}
	for _, header := range c.Headers {
		name, value, ok := strings.Cut(header, ":")
		if !ok || name == "" {
			fail("header", fmt.Errorf("%q is not NAME: VALUE", header))
			continue
		}
		o.Header.Add(strings.TrimSpace(name), strings.TrimSpace(value))
	}
	p := parser.NewParser(parser.Options{})
	for _, selector := range c.Match {
		matchers, err := p.ParseMetricSelector(selector)
		fail("match", err)
		o.Export.Matchers = append(o.Export.Matchers, matchers)
	}
	var err error
	o.Export.StartMS, err = c.Start.at(now)
	fail("start", err)
	o.Export.EndMS, err = c.End.at(now)
	fail("end", err)
	o.Export.Window = time.Duration(c.Window)
	o.Export.Output, o.Export.Format, o.Export.Resume = c.Output, c.Format, c.Resume
	o.Export.SkipHistograms = c.SkipHist
	if o.Export.Format == "" {
		o.Export.Format = export.FormatOf(c.Output)
	}
	o.Export.Tries = c.Retries + 1
	// The request is stored in a file: no headers, which may be secret, and no password.
	from := c.TSDBPath + c.Store
	if u, err := url.Parse(c.URL); err == nil && c.URL != "" {
		from = u.Redacted()
	}
	o.Export.Request = fmt.Sprintf("from %q --match=%q --start=%q --end=%q --window=%s --format=%s",
		from, c.Match, string(c.Start), string(c.End), c.Window, o.Export.Format)
	if c.SkipHist {
		o.Export.Request += " --skip-histograms"
	}
	o.Export.Stdout = os.Stdout
	if c.Progress {
		info, err := os.Stderr.Stat()
		o.Export.Progress = export.ProgressOptions{To: os.Stderr, Terminal: err == nil && info.Mode()&os.ModeCharDevice != 0,
			Width: func() int {
				columns, _, _ := term.GetSize(int(os.Stderr.Fd())) // 0 if unknown
				return columns
			}}
	}
	return o, errors.Join(errs...)
}
