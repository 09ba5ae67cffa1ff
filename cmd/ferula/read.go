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

	"github.com/ferula-io/ferula/internal/export"
	"github.com/ferula-io/ferula/internal/role"
)

// readCommand exports raw series. docs/ops/read.md tells how it is used.
type readCommand struct {
	URL        string   `name:"url" placeholder:"URL" xor:"source" help:"A Prometheus or ferula serve to read from, by remote read."`
	HTTPConfig string   `name:"http.config-file" placeholder:"FILE" help:"Prometheus' HTTP client configuration: TLS, authentication, proxy."`
	Headers    []string `name:"header" sep:"none" placeholder:"NAME: VALUE" help:"Header to send with requests (repeated)."`
	Store      string   `name:"store" placeholder:"HOST:PORT" xor:"source" help:"A StoreAPI to read from, such as a Thanos querier, store gateway or sidecar."`
	TSDBPath   string   `name:"tsdb.path" placeholder:"DIR" xor:"source" help:"Folder of a Prometheus database to read from, without changing it."`
	Sandbox    string   `name:"sandbox-dir" placeholder:"DIR" help:"Folder on the same file system for links while the write-ahead log is read."`

	Match  []string `name:"match" sep:"none" required:"" placeholder:"SELECTOR" help:"Series to read, such as '{job=\"node\"}' (repeated: those that any selects)."`
	Start  timeFlag `name:"start" default:"-1h" help:"First moment: RFC 3339, seconds since the epoch, or before now, such as -8h."`
	End    timeFlag `name:"end" default:"now" help:"Last moment, the same."`
	Window duration `name:"window" default:"2h" help:"How much is read at once, and lost when it fails. Windows begin at its multiples."`

	Output   string   `name:"output" short:"o" required:"" placeholder:"FILE" help:"File to write, for blocks a folder, or - for the standard output."`
	Format   string   `name:"format" enum:"parquet,csv,jsonl,openmetrics,blocks," default:"" help:"parquet, csv, jsonl, openmetrics or blocks; by the output's extension if not given."`
	Resume   bool     `name:"resume" help:"Go on with what an earlier run of the same command had to leave."`
	Timeout  duration `name:"timeout" default:"2m" help:"How long a server may send nothing, before its response begins and within it; then the window is read again. 0 waits for ever."`
	SortMem  size     `name:"sort-memory" default:"12MiB" help:"Memory to sort a response with samples, which servers may send in any order. Beyond it a file is used."`
	Retries  int      `name:"retries" default:"4" help:"How often a window is read again before the run fails, after 1s, 2s, 4s and so on, up to 1m."`
	Progress bool     `name:"progress" default:"true" negatable:"" help:"Tell on the standard error how far it is."`

	GRPCClient queryGRPCClientFlags `embed:""`
	Log        logFlags             `embed:""`
	Memory     memoryFlags          `embed:""`
}

// timeFlag is a moment as it was written; --start -8h is not a flag of its own.
type timeFlag string

// Decode implements kong.MapperValue.
func (f *timeFlag) Decode(ctx *kong.DecodeContext) error {
	token := ctx.Scan.Pop()
	if token.IsEOL() {
		return errors.New("a moment is missing")
	}
	*f = timeFlag(fmt.Sprint(token.Value))
	_, err := f.at(time.Unix(0, 0))
	return err
}

// at is the moment in ms.
func (f timeFlag) at(now time.Time) (int64, error) {
	text := strings.TrimPrefix(string(f), "now")
	if text == "" {
		return now.UnixMilli(), nil
	}
	if seconds, err := strconv.ParseFloat(text, 64); err == nil && text == string(f) {
		if math.Abs(seconds) > 1e13 || math.IsNaN(seconds) {
			return 0, fmt.Errorf("%q is no moment", string(f))
		}
		return int64(math.Round(seconds * 1000)), nil
	}
	if at, err := time.Parse(time.RFC3339Nano, text); err == nil {
		return at.UnixMilli(), nil
	}
	if rest, ok := strings.CutPrefix(text, "-"); ok {
		if d, err := model.ParseDuration(rest); err == nil {
			return now.Add(-time.Duration(d)).UnixMilli(), nil
		}
	}
	return 0, fmt.Errorf("%q is no moment: 2026-01-02T15:04:05Z, seconds since the epoch, now, or -8h", string(f))
}

// exitUnfinished is the exit code of a run that --resume goes on after
// (EX_TEMPFAIL of sysexits.h); other failures have 1.
const exitUnfinished = 75

// unfinishedError carries the exit code.
type unfinishedError struct{ error }

// ExitCode implements kong.ExitCoder.
func (unfinishedError) ExitCode() int { return exitUnfinished }

func (e unfinishedError) Unwrap() error { return e.error }

// Run is called by kong.
func (c *readCommand) Run(ctx context.Context, _ *kong.Context) error {
	logger, level, err := c.Log.logger()
	if err != nil {
		return err
	}
	if c.Log.Level == "info" { // the replay of a log would write over the progress
		if err := level.Set("warn"); err != nil {
			return err
		}
	}
	opts, err := c.options(time.Now())
	if err != nil {
		return err
	}
	c.Memory.apply(slog.New(slog.DiscardHandler)) // it would be said before anything else, each time
	opts.Logger = logger
	sum, err := role.Read(ctx, opts)
	if errors.Is(err, export.ErrUnfinished) {
		return unfinishedError{err}
	}
	if err == nil && c.Progress {
		fmt.Fprintf(os.Stderr, "%s: %s\n", c.Output, sum)
	}
	return err
}

func (c *readCommand) options(now time.Time) (role.ReadOptions, error) {
	o := role.ReadOptions{URL: c.URL, HTTPConfigFile: c.HTTPConfig, Header: http.Header{}, Store: c.Store, StoreClient: c.GRPCClient.options(), TSDBPath: c.TSDBPath, SandboxDir: c.Sandbox, StallTimeout: time.Duration(c.Timeout), SortBytes: int(c.SortMem)}
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
	for _, text := range c.Match {
		matchers, err := p.ParseMetricSelector(text)
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
	if o.Export.Format == "" {
		o.Export.Format = export.FormatOf(c.Output)
	}
	if c.SortMem < 0 {
		fail("sort-memory", errors.New("is negative"))
	}
	if o.Export.Tries = c.Retries + 1; c.Retries < 0 {
		fail("retries", errors.New("is negative"))
	}
	// It is kept in a file: no header, which may be a secret, and no password.
	from := c.TSDBPath + c.Store
	if u, err := url.Parse(c.URL); err == nil && c.URL != "" {
		from = u.Redacted()
	}
	o.Export.Request = fmt.Sprintf("from %q --match=%q --start=%q --end=%q --window=%s --format=%s",
		from, c.Match, string(c.Start), string(c.End), c.Window, o.Export.Format)
	o.Export.Stdout = os.Stdout
	if c.Progress {
		info, err := os.Stderr.Stat()
		o.Export.Progress = export.ProgressOptions{To: os.Stderr, Terminal: err == nil && info.Mode()&os.ModeCharDevice != 0, Width: func() int {
			columns, _, _ := term.GetSize(int(os.Stderr.Fd())) // 0 if it is not known
			return columns
		}}
	}
	return o, errors.Join(errs...)
}
