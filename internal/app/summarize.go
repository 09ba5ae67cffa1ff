package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ferula-io/ferula/internal/bucket"
	"github.com/ferula-io/ferula/internal/files"
	"github.com/ferula-io/ferula/internal/hint"
	"github.com/ferula-io/ferula/internal/thanos/gateway"
)

// SummarizeOptions are the options of `ferula summarize`.
type SummarizeOptions struct {
	Bucket string // Thanos' object store configuration in YAML
	DryRun bool   // only list the blocks
	Logger *slog.Logger
}

// Summarize makes the summaries of chunks that the blocks of a bucket lack, and writes a line for each such block.
// After an interruption another call makes the rest. Blocks that are marked for deletion have none.
func Summarize(ctx context.Context, opts SummarizeOptions, out io.Writer) (err error) {
	from, err := bucket.Open([]byte(opts.Bucket), "summarize", opts.Logger, prometheus.NewRegistry())
	if err != nil {
		return hint.Invalid("objstore.config", err)
	}
	defer func() { err = errors.Join(err, from.Close()) }()
	dir, remove, err := files.TempDir("", "ferula-summarize-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	store, err := gateway.Open(from, gateway.Options{Dir: dir, CacheBytes: 64 << 20, Logger: opts.Logger})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	if err := store.Sync(ctx); err != nil {
		return err
	}
	made, unwritten := 0, error(nil)
	err = store.Summarize(ctx, from, opts.DryRun, func(m *bucket.Meta, bytes int64) {
		at := func(ms int64) string { return time.UnixMilli(ms).UTC().Format(time.RFC3339) }
		size := fmt.Sprintf("  %d bytes", bytes)
		if opts.DryRun {
			size = ""
		}
		_, failed := fmt.Fprintf(out, "%s  %s  %s%s\n", m.ID, at(m.MinMS), at(m.MaxMS), size)
		made, unwritten = made+1, cmp.Or(unwritten, failed)
	})
	opts.Logger.Info("Looked for raw blocks without summaries", "blocks", len(store.Blocks()), "listed", made)
	return errors.Join(err, unwritten)
}
