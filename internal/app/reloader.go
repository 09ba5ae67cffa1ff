package app

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/ferula-io/ferula/internal/files"
	"github.com/ferula-io/ferula/internal/hint"
	"github.com/ferula-io/ferula/internal/process/telemetry"
	"github.com/ferula-io/ferula/metrics"
)

// ReloadOptions configure which files are watched. Prometheus is reloaded when one of
// them changes. Zero durations take the defaults.
type ReloadOptions struct {
	ConfigFile string        // watched; "": none
	OutputFile string        // ConfigFile is written to it with $(NAME) expanded; "": not written
	RuleDirs   []string      // watched recursively
	Every      time.Duration // interval of reading the files; 0: 5 s
	Retry      time.Duration // interval after a failed reload; 0: 5 s
}

// reloadFileBytesMax limits a decompressed configuration file.
const reloadFileBytesMax = 64 << 20

// reloader watches files by reading them periodically. File notifications would be
// unreliable for the symbolic links with which Kubernetes mounts configurations. Reading
// a few small files every few seconds is cheap.
type reloader struct {
	opts    ReloadOptions
	url     string
	client  *http.Client
	logger  *slog.Logger
	seen    [sha256.Size]byte // hash of the files at the last successful reload
	again   bool              // the last round failed
	reloads *metrics.Counter
	failed  *metrics.Counter
	success *metrics.Gauge
}

// newReloader creates the reloader of the Prometheus at a URL. It reads no file.
func newReloader(o ReloadOptions, prom *url.URL, client *http.Client, logger *slog.Logger,
	reg *telemetry.Registry) (*reloader, error) {
	if o.OutputFile != "" && o.ConfigFile == "" {
		return nil, hint.Invalid("reloader.config-envsubst-file", errors.New("requires --reloader.config-file"))
	}
	o.Every = cmp.Or(o.Every, 5*time.Second)
	o.Retry = cmp.Or(o.Retry, 5*time.Second)
	r := &reloader{
		opts: o, url: prom.JoinPath("-/reload").String(), client: client, logger: logger,
		reloads: reg.Counter("thanos_sidecar_reloader_reloads_total", "Reloads of Prometheus that succeeded."),
		failed: reg.Counter("thanos_sidecar_reloader_reloads_failed_total",
			"Reloads of Prometheus that failed, including failures to read a watched file."),
		success: reg.Gauge("thanos_sidecar_reloader_last_reload_successful",
			"Whether the last reload of Prometheus succeeded."),
	}
	if o.ConfigFile == "" && len(o.RuleDirs) == 0 {
		r.success.Set(1) // nothing is to be reloaded, and nothing has failed
	}
	return r, nil
}

// Run watches until ctx is canceled. It returns at once if no file is watched.
func (r *reloader) Run(ctx context.Context) error {
	if r.opts.ConfigFile == "" && len(r.opts.RuleDirs) == 0 {
		return nil
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(r.round(ctx)):
		}
	}
}

// round reloads Prometheus if necessary, and returns the pause before the next round.
func (r *reloader) round(ctx context.Context) (pause time.Duration) {
	err := r.reloadIfChanged(ctx)
	if err == nil || ctx.Err() != nil {
		return r.opts.Every
	}
	r.again = true
	r.failed.Inc()
	r.success.Set(0)
	r.logger.Error("Failed to reload Prometheus", "err", err)
	return r.opts.Retry
}

// reloadIfChanged reloads Prometheus if a file has changed since the last successful reload, or if the last round
// failed: Prometheus may have loaded some of the files then.
func (r *reloader) reloadIfChanged(ctx context.Context) error {
	sum := sha256.New()
	if r.opts.ConfigFile != "" {
		if err := r.config(sum); err != nil {
			return err
		}
	}
	for _, dir := range r.opts.RuleDirs {
		if err := hashTree(sum, dir, 0); err != nil {
			return fmt.Errorf("rule directory %s: %w", dir, err)
		}
	}
	current := [sha256.Size]byte(sum.Sum(nil))
	if current == r.seen && !r.again {
		return nil
	}
	if err := r.postReload(ctx); err != nil {
		return err
	}
	r.seen, r.again = current, false
	r.reloads.Inc()
	r.success.Set(1)
	r.logger.Info("Reloaded Prometheus")
	return nil
}

// config hashes the configuration file and writes OutputFile, with environment variables
// expanded.
func (r *reloader) config(sum hash.Hash) error {
	content, err := os.ReadFile(r.opts.ConfigFile)
	if err != nil {
		return err
	}
	if filepath.Ext(r.opts.ConfigFile) == ".gz" {
		unzip, err := gzip.NewReader(bytes.NewReader(content))
		if err != nil {
			return fmt.Errorf("%s: %w", r.opts.ConfigFile, err)
		}
		if content, err = io.ReadAll(io.LimitReader(unzip, reloadFileBytesMax+1)); err != nil {
			return fmt.Errorf("%s: %w", r.opts.ConfigFile, err)
		}
		if len(content) > reloadFileBytesMax {
			return fmt.Errorf("%s: more than %d bytes when decompressed", r.opts.ConfigFile, reloadFileBytesMax)
		}
	}
	if r.opts.OutputFile != "" {
		expanded, err := hint.Expand(string(content))
		if err != nil {
			return fmt.Errorf("%s: %w", r.opts.ConfigFile, err)
		}
		content = []byte(expanded)
		if old, err := os.ReadFile(r.opts.OutputFile); err != nil || !bytes.Equal(old, content) {
			if err := files.WriteFile(files.Disk{}, r.opts.OutputFile, content); err != nil {
				return err
			}
		}
	}
	_, _ = fmt.Fprintf(sum, "%d %s", len(content), content)
	return nil
}

// depthMax limits the depth of nested directories. Symbolic links can form a cycle.
const depthMax = 16

// hashTree hashes names and contents of all files. It follows symbolic links.
func hashTree(sum hash.Hash, dir string, depth int) error {
	if depth > depthMax {
		return fmt.Errorf("more than %d directories deep", depthMax)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, entry := range entries { // sorted by name
		path := filepath.Join(dir, entry.Name())
		info, err := os.Stat(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue // the file is being replaced, or the link is dangling
		}
		if err != nil {
			return err
		}
		if info.IsDir() {
			if err := hashTree(sum, path, depth+1); err != nil {
				return err
			}
			continue
		}
		if !info.Mode().IsRegular() {
			continue
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		_, _ = fmt.Fprintf(sum, "%q %d %s", path, len(content), content)
	}
	return nil
}

func (r *reloader) postReload(ctx context.Context) error {
	ctx, done := context.WithTimeout(ctx, time.Minute)
	defer done()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, r.url, nil)
	if err != nil {
		return err
	}
	resp, err := r.client.Do(request)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(io.LimitReader(resp.Body, 1024))
		return fmt.Errorf("%s: %s: %s", r.url, resp.Status, bytes.TrimSpace(body))
	}
	return nil
}
