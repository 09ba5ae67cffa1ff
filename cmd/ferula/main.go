// Command ferula collects, stores and queries metrics and profiles.
//
// Each sub-command has a file here. It maps flags to the options of a process of package app and runs that process:
// kong, the parser, calls Validate and then Run of the command. A flag that Prometheus or Thanos has keeps its name.
// peerrows.go lists those of their flags that have no effect here.
package main

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"reflect"
	"regexp"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"
	"github.com/prometheus/prometheus/scrape"
	"github.com/prometheus/prometheus/storage/remote"

	"github.com/ferula-io/ferula/internal/hint"
	"github.com/ferula-io/ferula/internal/redact"
	"github.com/ferula-io/ferula/internal/version"
)

type commands struct {
	Serve         serveCommand         `cmd:"" help:"Scrape, store, query and graph metrics and profiles in one process."`
	Query         queryCommand         `cmd:"" help:"Query many StoreAPIs with PromQL."`
	QueryFrontend queryFrontendCommand `cmd:"" help:"Split and cache queries in front of Prometheus or a Thanos querier."`
	Sidecar       sidecarCommand       `cmd:"" help:"Serve a Prometheus as a StoreAPI and upload its blocks to object storage."`
	Store         storeCommand         `cmd:"" help:"Serve the blocks of a bucket as a StoreAPI."`
	Read          readCommand          `cmd:"" help:"Export raw series to Parquet, CSV, JSON lines, OpenMetrics or TSDB blocks."`
	Compare       compareCommand       `cmd:"" help:"Compare responses and costs of two servers for the same queries."`
	Backtest      backtestCommand      `cmd:"" help:"Show when the alerts of rules would have fired, over the past."`
	Summarize     summarizeCommand     `cmd:"" help:"Make the summaries of chunks with which a store answers long ranges."`
	Profiles      profilesCommand      `cmd:"" help:"Compact the profile blocks of a bucket."`

	Check checkCommand `cmd:"" help:"Check configuration files, rule files, web configuration files and profile blocks."`

	Completion completionCommand `cmd:"" help:"Print the script that completes commands and flags in a shell."`
	Man        manCommand        `cmd:"" help:"Print the manual page."`

	Version kong.VersionFlag `name:"version" help:"Print the version."`
}

// newParser returns a parser that sets the fields of cli. name is the name of the program: peerPrograms have others.
func newParser(name string, cli *commands, options ...kong.Option) (*kong.Kong, error) {
	peer := peerPrograms[name]
	parser, err := kong.New(cli, append([]kong.Option{
		kong.Name("ferula"),
		kong.Description("Drop-in replacements for parts of Prometheus, Thanos and Pyroscope."),
		kong.Vars{"shells": shells, "version": peer.versionText(name)},
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
		kong.KindMapper(reflect.Int, kong.MapperFunc(decodeNumber)),
		kong.KindMapper(reflect.Int64, kong.MapperFunc(decodeNumber)),
	}, options...)...)
	if err == nil {
		peer.setDefaults(parser)
		setHelp(parser)
		addPeerFlags(parser)
	}
	return parser, err
}

// parseArgs parses and checks a command line. The error names the flag and its value.
func parseArgs(parser *kong.Kong, args []string) (*kong.Context, ignoredFlags, error) {
	k, err := parser.Parse(args)
	if err != nil {
		var parse *kong.ParseError
		if errors.As(err, &parse) {
			k = parse.Context
		}
		text := withoutValue.ReplaceAllString(err.Error(), "a value is missing")
		return k, nil, usageError(errors.New(strings.TrimPrefix(text, commandOf(k)+": ")))
	}
	ignored, err := checkPeerFlags(k)
	if err = errors.Join(err, checkBounds(k.Flags())); err != nil {
		return k, nil, usageError(err)
	}
	return k, ignored, nil
}

// withoutValue is kong's error for a flag without a value at the end of the line.
var withoutValue = regexp.MustCompile(`expected \w+ value but got "EOL" \(<EOL>\)`)

// commandOf returns the name of the selected command, such as "check config"; "" if there is none.
func commandOf(k *kong.Context) string {
	if k == nil || k.Selected() == nil {
		return ""
	}
	return k.Selected().Path()
}

func main() {
	// A build flag of Prometheus sets the version in these variables. Goroutines of every
	// role read them, so they are set before any goroutine starts.
	remote.UserAgent, scrape.UserAgent = version.UserAgent(), version.UserAgent()
	os.Exit(run(os.Args))
}

// run runs a command line, which begins with the path of the program, and returns the exit code.
func run(line []string) int {
	var cli commands
	name, args := nameOf(line[0]), line[1:]
	parser, err := newParser(name, &cli)
	if peer, ok := peerPrograms[name]; ok && err == nil {
		args, err = peer.args(args)
	}
	if err != nil {
		return report(err, asTyped(name, ""))
	}
	if len(args) > 0 && args[0] == offerWords {
		return report(offer(os.Stdout, parser.Model, args[1:]), asTyped(name, ""))
	}
	k, ignored, err := parseArgs(parser, args)
	if err != nil {
		return report(err, asTyped(name, commandOf(k)))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal terminates the process
	k.BindTo(ctx, (*context.Context)(nil))
	var next role
	err = k.Run(ignored, &next)
	command := asTyped(name, commandOf(k))
	if err == nil && next != nil {
		err = next(ctx)
	}
	return report(err, command)
}

// role runs a process until ctx is canceled. A command sets it instead of running the process: then the parser, which
// describes every flag of every command, is garbage while the process runs.
type role func(ctx context.Context) error

// exitError is an error with the exit code of the process.
type exitError struct {
	error
	code int
}

// Unwrap returns the error without the code.
func (e exitError) Unwrap() error { return e.error }

// usageError is an error of the command line. The process exits with 2, as Prometheus and Thanos do.
func usageError(err error) error { return exitError{err, exitUsage} }

// Exit codes.
const (
	exitFailure = 1
	exitUsage   = 2 // compare: also queries that could not be compared
	exitLint    = 3 // findings that --lint-fatal makes fatal
	// a run that --resume can continue (EX_TEMPFAIL of sysexits.h); other failures exit with 1
	exitUnfinished = 75
)

// report writes an error to standard error and returns the exit code. After a usageError it also
// writes how to list the flags of command, such as "ferula serve".
func report(err error, command string) int {
	if err == nil {
		return 0
	}
	fmt.Fprintf(os.Stderr, "ferula: error: %v\n", redact.Error(err))
	exit, invalid := exitError{code: exitFailure}, (*hint.FlagError)(nil)
	if !errors.As(err, &exit) && errors.As(err, &invalid) {
		return exitUsage
	}
	if exit.code == exitUsage && !errors.Is(err, errNotCompared) {
		fmt.Fprintf(os.Stderr, "Run \"%s --help\" for the flags.\n", command)
	}
	return exit.code
}

//go:embed help.txt
var helpText string

// helpTexts returns the texts of help.txt, by flag. Those of one command begin with its name and a space.
func helpTexts() map[string]string {
	texts, command, name := map[string]string{}, "", ""
	for line := range strings.SplitSeq(helpText, "\n") {
		switch {
		case line == "" || line[0] == '#':
		case line[0] == '[':
			command = strings.Trim(line, "[]") + " "
		case line[0] == ' ':
			texts[name] = strings.TrimSpace(texts[name] + line[1:])
		default:
			name = command + line
		}
	}
	return texts
}

// setHelp gives the flags of all commands their texts.
func setHelp(parser *kong.Kong) {
	texts := helpTexts()
	for _, command := range parser.Model.Leaves(false) {
		for _, f := range command.Flags {
			text := cmp.Or(texts[command.Path()+" "+f.Name], texts[f.Name])
			values := strings.NewReplacer("${enum}", f.Enum, "${default}", f.Default, "${features}", featureNames())
			f.Help = cmp.Or(values.Replace(text), f.Help)
		}
	}
}
