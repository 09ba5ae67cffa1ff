package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/thanos-io/objstore"

	"github.com/ferula-io/ferula/internal/bucket"
	"github.com/ferula-io/ferula/internal/hint"
	"github.com/ferula-io/ferula/internal/process"
	"github.com/ferula-io/ferula/internal/profiles/compact"
)

// ProfilesCompactOptions are the options of `ferula profiles compact`.
type ProfilesCompactOptions struct {
	Web      WebOptions
	Bucket   string // Thanos' object store configuration in YAML
	Compact  compact.Options
	Wait     bool          // continue after the first iteration
	Interval time.Duration // pause between iterations with Wait; 0: 5 min
	Logger   *slog.Logger
}

// ProfilesCompact compacts and deletes the profile blocks of a bucket. Call NewProfilesCompact, then
// Run once.
type ProfilesCompact struct {
	base
	opts      ProfilesCompactOptions
	bucket    objstore.Bucket
	compactor *compact.Compactor
	err       error // of the only iteration
}

// NewProfilesCompact builds the process and opens its listener. It sends no request to the bucket.
func NewProfilesCompact(opts ProfilesCompactOptions) (_ *ProfilesCompact, err error) {
	opts.Interval = cmp.Or(opts.Interval, 5*time.Minute)
	c := &ProfilesCompact{opts: opts, base: newBase(opts.Web, opts.Logger)}
	defer c.release(&err)
	logger := opts.Logger.With("component", "compactor")
	if c.bucket, err = bucket.Open([]byte(opts.Bucket), "compact", logger, c.reg); err != nil {
		return nil, hint.Invalid("objstore.config", err)
	}
	c.process.Add(process.Component{Name: "bucket", Close: c.bucket.Close})
	if c.compactor, err = compact.New(c.bucket, opts.Compact, logger, c.reg.Own); err != nil {
		return nil, fmt.Errorf("--data-dir: %w", err)
	}
	c.process.Add(process.Component{Name: "compactor", Run: c.work, Close: c.compactor.Close})
	if err = c.listen(); err != nil {
		return nil, err
	}
	mux := c.newMux()
	c.process.AddServer(c.webServer(c.reg.Instrumented(mux)))
	return c, nil
}

// Run compacts until ctx is canceled or, without Wait, until one iteration has ended, whose error it
// returns.
func (c *ProfilesCompact) Run(ctx context.Context) error {
	c.process.Opened = c.process.Ready
	return errors.Join(c.process.Run(ctx), c.err)
}

// work runs the iterations.
func (c *ProfilesCompact) work(ctx context.Context) error {
	if !c.opts.Wait {
		defer c.process.Quit()
		if err := c.compactor.Iterate(ctx); ctx.Err() == nil {
			c.err = err
		} else {
			c.opts.Logger.Info("Stopped before the end of the iteration; the next run continues it")
		}
		return nil
	}
	return repeat(ctx, 0, c.opts.Interval, c.compactor.Iterate, func(retryIn time.Duration, err error) {
		c.opts.Logger.Error("Compacting the profile blocks failed", "retry_in", retryIn, "err", err)
	})
}
