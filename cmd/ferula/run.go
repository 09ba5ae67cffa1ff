package main

import (
	"context"
	"log/slog"
	"os"

	"github.com/alecthomas/kong"
)

// started holds what every process gets in addition to the options of its role.
type started struct {
	logger      *slog.Logger
	commandLine []string // without secrets
}

// runRole runs a process that does not handle SIGHUP. options converts its flags, and build
// creates the process from the options.
func runRole[O any, R interface{ Run(context.Context) error }](
	ctx context.Context, k *kong.Context, f processFlags, ignored ignoredFlags, options func() (O, error),
	build func(O, started) (R, error),
) error {
	logger, _, err := f.Log.logger()
	if err != nil {
		return err
	}
	opts, err := options()
	if err != nil {
		return usageError{err}
	}
	ignored.warn(logger)
	defer ignoreHangups(logger)()
	f.memory().apply(ctx, logger, 0)
	r, err := build(opts, started{logger, commandLine(k, os.Args)})
	if err != nil {
		return err
	}
	return r.Run(ctx)
}
