package app

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/prometheus/prometheus/rules"

	"github.com/ferula-io/ferula/internal/files"
	"github.com/ferula-io/ferula/internal/hint"
	"github.com/ferula-io/ferula/internal/tsdb"
)

// newShipping sets up shipping. The configuration must be loaded and the store created.
func (s *Serve) newShipping() error {
	opts, external := s.opts.Ship, s.config.externalLabels
	if err := opts.CheckLocal(s.store.Options(), external()); err != nil {
		return err
	}
	var err error
	if s.shipping, err = newShipper(opts, s.opts.Store.Dir, "ferula", external, s.opts.Logger, s.reg); err != nil {
		return hint.Invalid("objstore.config", err)
	}
	s.process.Note = func() string { return s.shipping.Note() + s.profiles.note() }
	dir := filepath.Join(cmp.Or(s.opts.Profiles.Store.Dir, s.opts.Store.Dir), "profiles")
	s.shipping.AddProfiles(dir, opts, s.opts.Logger, s.reg)
	return nil
}

// openStorage opens the storage once the disk has space for it.
func (s *Serve) openStorage(ctx context.Context) error {
	if err := s.store.AwaitSpace(ctx); err != nil {
		return err
	}
	return s.store.Open()
}

// closeStorage closes the storage. If blocks are uploaded, it first writes the samples of the head to blocks, and
// uploads them after the storage is closed: a kill during the upload costs nothing, and the next start uploads the
// rest.
func (s *Serve) closeStorage() error {
	if s.shipping == nil || s.opts.ShutdownUpload <= 0 || errors.Is(s.store.Refusal(), tsdb.ErrNotReady) {
		return s.store.Close()
	}
	logger := s.opts.Logger.With("component", "shipper")
	if reason := s.lateSamples(); reason != "" {
		logger.Info("The samples in memory are not uploaded at this shutdown; an out_of_order_time_window of 10m allows it",
			"reason", reason)
		return s.store.Close()
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.opts.ShutdownUpload)
	defer cancel()
	written, err := s.store.CloseToBlocks(ctx)
	if written {
		if err := s.shipping.Sync(ctx); err != nil {
			logger.Warn("The last blocks were not uploaded; the next start uploads them", "err", err)
		}
	}
	return err
}

// lateWindow is the out-of-order window from which on pushed samples leave with the process.
const lateWindow = 10 * time.Minute

// lateSamples returns why samples may arrive after a restart that are older than those before it; "" if none would be
// refused. After CloseToBlocks the storage accepts such samples only with an out-of-order window. A window that is not
// longer than a restart refuses some of them, and writes the others to blocks that overlap.
func (s *Serve) lateSamples() string {
	c := s.config.current().StorageConfig.TSDBConfig
	if c != nil && c.OutOfOrderTimeWindow >= lateWindow.Milliseconds() {
		return ""
	}
	// Before the first push of this process, senders may still wait with samples from before the start.
	_, err := os.Stat(s.pushedFile())
	if s.pushed.Load() || err == nil && s.store.HeadMinTime() < s.started.UnixMilli() {
		return "samples were pushed, and senders repeat refused pushes after the restart"
	}
	if c != nil && c.OutOfOrderTimeWindow > 0 {
		return ""
	}
	if slices.ContainsFunc(s.rules.RuleGroups(), func(g *rules.Group) bool { return g.QueryOffset() > 0 }) {
		return "rules have a query_offset"
	}
	return ""
}

// refusal is called for every push of samples.
func (s *Serve) refusal() error {
	if !s.pushed.Swap(true) && s.shipping != nil {
		if err := files.WriteFile(files.Disk{}, s.pushedFile(), nil); err != nil {
			s.opts.Logger.Warn("Samples that senders repeat after two restarts in a row may be refused", "err", err)
		}
	}
	return s.store.Refusal()
}

// pushedFile is the path of a file that exists once samples were pushed to this server or an earlier one here.
func (s *Serve) pushedFile() string { return filepath.Join(s.opts.Store.Dir, "pushed") }
