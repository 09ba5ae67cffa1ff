package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/ferula-io/ferula/cmd/ferula/peerflags"
	"github.com/ferula-io/ferula/internal/hint"
	"github.com/ferula-io/ferula/internal/redact"
)

// ignoredFlags are the given flags that have no effect here.
type ignoredFlags []peerflags.Row

// warn logs each ignored flag once.
func (i ignoredFlags) warn(logger *slog.Logger) {
	for _, row := range i {
		logger.Warn("Ignoring a flag without effect", "flag", "--"+row.Name, "reason", row.Note)
	}
}

// tableOf returns the table of a command. It is empty if the command replaces no peer.
func tableOf(command string) peerflags.Table {
	for _, table := range peerflags.Tables() {
		if table.Command == command {
			return table
		}
	}
	return peerflags.Table{}
}

// checkPeerFlags checks the given flags against the table of the command. It returns the
// flags that have no effect, and an error that names each refused flag.
func checkPeerFlags(k *kong.Context) (ignoredFlags, error) {
	selected := k.Selected()
	if selected == nil {
		return nil, nil
	}
	table := tableOf(selected.Name)
	var ignored ignoredFlags
	var errs []error
	seen := map[string]bool{}
	for _, part := range k.Path {
		if part.Flag == nil || seen[part.Flag.Name] {
			continue
		}
		row, ok := table.Find(part.Flag.Name)
		if !ok || row.Status == peerflags.Honoured {
			continue
		}
		seen[row.Name] = true
		if row.Status == peerflags.Inert {
			ignored = append(ignored, row)
		}
		for _, value := range valuesOf(part.Flag) {
			if err := row.Check(value); err != nil {
				errs = append(errs, err)
				break
			}
		}
	}
	return ignored, errors.Join(errs...)
}

// valuesOf returns the values of a flag that Table.Flags has made: one of a switch, all
// given ones of another flag.
func valuesOf(flag *kong.Flag) []string {
	if values, ok := flag.Target.Interface().([]string); ok {
		return values
	}
	return []string{fmt.Sprint(flag.Target.Interface())}
}

// usageError is an error of the command line. The process exits with 2, as Prometheus and
// Thanos do.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// ExitCode implements kong.ExitCoder.
func (usageError) ExitCode() int { return exitUsage }

// Exit codes.
const (
	exitFailure = 1
	exitUsage   = 2
)

// report writes an error to standard error and returns the exit code. After a usageError it also
// writes how to list the flags of command, which is "" if none is selected.
func report(err error, command string) int {
	if err == nil {
		return 0
	}
	fmt.Fprintf(os.Stderr, "ferula: error: %v\n", redact.Error(err))
	code := exitFailure
	var coder kong.ExitCoder
	var invalid *hint.FlagError
	switch {
	case errors.As(err, &coder):
		code = coder.ExitCode()
	case errors.As(err, &invalid):
		code = exitUsage
	}
	if errors.As(err, new(usageError)) {
		fmt.Fprintf(os.Stderr, "Run \"%s --help\" for the flags.\n", strings.TrimSpace("ferula "+command))
	}
	return code
}
