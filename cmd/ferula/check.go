package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/prometheus/common/model"
	"github.com/prometheus/exporter-toolkit/web"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"

	"github.com/ferula-io/ferula/internal/app"
	"github.com/ferula-io/ferula/internal/ingest/remotesend"
	"github.com/ferula-io/ferula/internal/ingest/scrape"
	"github.com/ferula-io/ferula/internal/process/telemetry"
	"github.com/ferula-io/ferula/internal/profiles/block"
	"github.com/ferula-io/ferula/internal/promql"
	"github.com/ferula-io/ferula/internal/promql/rules"
	"github.com/ferula-io/ferula/internal/remoteread"
)

// checkCommand checks files without a server. Its exit codes are promtool's: 1 for a file
// with an error, 3 for findings of --lint-fatal.
type checkCommand struct {
	Config    checkConfigCommand    `cmd:"" help:"Check configuration files of ferula serve, and the files they refer to."`
	Rules     checkRulesCommand     `cmd:"" help:"Check rule files."`
	WebConfig checkWebConfigCommand `cmd:"" name:"web-config" help:"Check files of --web.config.file."`
	Profiles  checkProfilesCommand  `cmd:"" help:"Check blocks of profiles: checksums, and whether their parts agree."`
}

// lintFlags are the flags about rules that are valid but questionable.
type lintFlags struct {
	Lint  string `name:"lint" enum:"all,duplicate-rules,none" default:"duplicate-rules"`
	Fatal bool   `name:"lint-fatal"`
}

type checkConfigCommand struct {
	Files      []string  `arg:"" name:"file" help:"Configuration files."`
	SyntaxOnly bool      `name:"syntax-only"`
	Lint       lintFlags `embed:""`
	Features   []string  `name:"enable-feature" sep:"none" placeholder:"NAME,..."`
}

type checkRulesCommand struct {
	Files    []string  `arg:"" name:"file" help:"Rule files."`
	Lint     lintFlags `embed:""`
	Features []string  `name:"enable-feature" sep:"none" placeholder:"NAME,..."`
}

type checkWebConfigCommand struct {
	Files []string `arg:"" name:"file" help:"Files of --web.config.file."`
}

// checker writes the results of checks and counts failed files and findings.
type checker struct {
	out, errs io.Writer
	failed    int
	findings  int
}

func newChecker() *checker { return &checker{out: os.Stdout, errs: os.Stderr} }

func (c *checker) report(file, summary string, errs ...error) {
	printf(c.out, "Checking %s\n", file)
	if err := errors.Join(errs...); err != nil {
		c.failed++
		printf(c.errs, "  FAILED: %v\n\n", err)
		return
	}
	printf(c.out, "  SUCCESS: %s\n\n", summary)
}

// printf writes to the terminal, whose errors do not matter.
func printf(to io.Writer, format string, args ...any) { _, _ = fmt.Fprintf(to, format, args...) }

func (c *checker) result(fatal bool) error {
	switch {
	case c.failed > 0:
		return fmt.Errorf("%d files have errors", c.failed)
	case c.findings > 0 && fatal:
		return exitError{fmt.Errorf("%d duplicate rules", c.findings), exitLint}
	}
	return nil
}

func (cmd *checkConfigCommand) Run() error {
	c := newChecker()
	expressions, err := ruleParser(cmd.Features)
	if err != nil {
		return usageError(err)
	}
	for _, file := range cmd.Files {
		names, scheme, err := checkConfig(file, cmd.SyntaxOnly)
		c.report(file, fmt.Sprintf("valid configuration, %d rule files", len(names)), err)
		for _, name := range names {
			c.rules(name, scheme, expressions, cmd.Lint)
		}
	}
	return c.result(cmd.Lint.Fatal)
}

// ruleParser returns the parser of rules of a server with these features.
func ruleParser(features []string) (parser.Parser, error) {
	var o app.ServeOptions
	err := enableFeatures(features, &o)
	return promql.NewParser(o.Query), err
}

// checkConfig checks a configuration and the files that it names. It returns its rule files and
// the validation scheme of names in these.
func checkConfig(file string, syntaxOnly bool) (ruleFiles []string, scheme model.ValidationScheme, err error) {
	cfg, err := scrape.Load(file, scrape.Defaults{}, slog.New(slog.DiscardHandler))
	if err != nil || syntaxOnly {
		return nil, scheme, err
	}
	var errs []error
	resolved, err := scrape.Resolve(cfg)
	if err == nil {
		err = scrape.Check(resolved)
	}
	errs = append(errs, err, remotesend.Check(cfg), remoteread.Check(cfg), rules.CheckAlertmanagers(cfg),
		telemetry.CheckTracing(cfg.TracingConfig))
	for _, pattern := range cfg.RuleFiles {
		names, err := filepath.Glob(pattern)
		if err != nil {
			errs = append(errs, fmt.Errorf("rule_files %q: %w", pattern, err))
		}
		if len(names) == 0 && pattern == filepath.Clean(pattern) && !strings.ContainsAny(pattern, "*?[") {
			errs = append(errs, fmt.Errorf("rule_files: %q does not exist", pattern))
		}
		ruleFiles = append(ruleFiles, names...)
	}
	return ruleFiles, cfg.GlobalConfig.MetricNameValidationScheme, errors.Join(errs...)
}

func (cmd *checkRulesCommand) Run() error {
	c := newChecker()
	expressions, err := ruleParser(cmd.Features)
	if err != nil {
		return usageError(err)
	}
	for _, file := range cmd.Files {
		c.rules(file, model.UTF8Validation, expressions, cmd.Lint)
	}
	return c.result(cmd.Lint.Fatal)
}

func (c *checker) rules(file string, scheme model.ValidationScheme, expressions parser.Parser, lint lintFlags) {
	content, err := os.ReadFile(file)
	var groups *rulefmt.RuleGroups
	if err == nil {
		groups, err = rules.Parse(file, content, scheme, expressions, slog.New(slog.DiscardHandler))
	}
	if err != nil {
		c.report(file, "", err)
		return
	}
	n := 0
	for _, g := range groups.Groups {
		n += len(g.Rules)
	}
	c.report(file, fmt.Sprintf("%d rules found", n))
	if lint.Lint == "none" {
		return
	}
	for _, name := range duplicateRules(groups) {
		c.findings++
		printf(c.out, "  duplicate rule: %s\n", name)
	}
}

// duplicateRules returns the rules that write the same series as an earlier rule.
func duplicateRules(groups *rulefmt.RuleGroups) (names []string) {
	seen := map[string]bool{}
	for _, g := range groups.Groups {
		for _, rule := range g.Rules {
			name := cmp.Or(rule.Record, rule.Alert)
			key := name + labels.FromMap(rule.Labels).String()
			if seen[key] {
				names = append(names, key)
			}
			seen[key] = true
		}
	}
	return names
}

func (cmd *checkWebConfigCommand) Run() error {
	c := newChecker()
	for _, file := range cmd.Files {
		c.report(file, "valid web configuration", web.Validate(file))
	}
	return c.result(false)
}

// errIrregular is the error of a FIFO, a socket or a device among the files. Reading it could block.
var errIrregular = errors.New("it is not a regular file")

type checkProfilesCommand struct {
	Dirs []string `arg:"" name:"dir" help:"Directories with profile blocks: of a server (--storage.tsdb.path or --storage.profiles.path), of a tenant, or of one block."`
}

func (cmd *checkProfilesCommand) Run() error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	c := newChecker()
	for _, dir := range cmd.Dirs {
		if err := c.profileBlocks(ctx, dir); err != nil {
			c.report(dir, "", err)
		}
	}
	return c.result(false)
}

// profileBlocks checks all profile blocks in a directory, at any depth.
func (c *checker) profileBlocks(ctx context.Context, dir string) error {
	root, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return err
	}
	blocks := 0
	err = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist) && path != root:
			return nil // a running server has removed it
		case err != nil:
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		case entry.Type()&(fs.ModeNamedPipe|fs.ModeSocket|fs.ModeDevice|fs.ModeIrregular) != 0:
			c.report(path, "", errIrregular)
			return nil
		case !entry.IsDir() || !isProfileBlock(path):
			return nil
		}
		found, err := block.Verify(ctx, path)
		if err != nil && path != root {
			if _, gone := os.Stat(path); errors.Is(gone, fs.ErrNotExist) {
				return fs.SkipDir
			}
		}
		blocks++
		at := func(ns int64) string { return time.Unix(0, ns).UTC().Format(time.RFC3339) }
		summary := fmt.Sprintf("%d rows of %d profiles from %s to %s, level %d", found.Rows, found.Profiles, at(found.MinNS),
			at(found.MaxNS), found.Level)
		c.report(path, summary, err)
		return nil // there may be irregular files in it
	})
	if err == nil && blocks == 0 {
		err = errors.New("no profile blocks")
	}
	return err
}

// isProfileBlock reports whether a directory has the name of a block and a file of a profile block. A block of samples
// has a file named index as well, but only a block of samples has meta.json.
func isProfileBlock(path string) bool {
	if _, err := ulid.ParseStrict(filepath.Base(path)); err != nil {
		return false
	}
	has := func(name string) bool {
		_, err := os.Stat(filepath.Join(path, name))
		return err == nil
	}
	return !has("meta.json") && (has(block.IndexFile) || has(block.RowsFile))
}
