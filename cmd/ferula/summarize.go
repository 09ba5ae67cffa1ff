package main

import (
	"context"
	"log/slog"
	"os"

	"github.com/ferula-io/ferula/internal/app"
)

// summarizeCommand makes the summaries of chunks that docs/ops/store.md describes.
type summarizeCommand struct {
	Config     secret `name:"objstore.config" placeholder:"YAML" xor:"objstore"`
	ConfigFile string `name:"objstore.config-file" placeholder:"FILE" xor:"objstore"`
	DryRun     bool   `name:"dry-run"`

	Log    logFlags    `embed:""`
	Memory memoryFlags `embed:""`
}

func (c *summarizeCommand) Run(ctx context.Context) error {
	logger, _, err := c.Log.logger()
	if err != nil {
		return err
	}
	opts, err := c.options()
	if err != nil {
		return err
	}
	opts.Logger = logger
	c.Memory.apply(ctx, slog.New(slog.DiscardHandler), 0)
	return app.Summarize(ctx, opts, os.Stdout)
}

func (c *summarizeCommand) options() (app.SummarizeOptions, error) {
	var content contents
	opts := app.SummarizeOptions{Bucket: content.bucket(c.Config, c.ConfigFile), DryRun: c.DryRun}
	return opts, content.err()
}
