package role

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/ferula-io/ferula/internal/envsubst"
	"github.com/ferula-io/ferula/metrics"
)

// ReloadOptions say which files, when they change, make Prometheus reload. Zero
// durations take the defaults.
type ReloadOptions struct {
	ConfigFile string        // watched; "" for none
	OutputFile string        // gets ConfigFile with $(NAME) replaced; "" for none
	RuleDirs   []string      // watched with all that is in them
	Every      time.Duration // a look at the files; 0: 5 s
	Retry      time.Duration // of a reload that failed; 0: 5 s
}

// reloadFileBytesMax bounds a configuration file.
const reloadFileBytesMax = 64 << 20

// reloader watches files by reading them: a few small files every few seconds
// cost less than what the ways of being told about them get wrong with the
// symbolic links that Kubernetes mounts configurations by.
type reloader struct {
	opts    ReloadOptions
	url     string
	client  *http.Client
	logger  *slog.Logger
	seen    [sha256.Size]byte // of what Prometheus has loaded
	reloads *metrics.Counter
	failed  *metrics.Counter
	success *metrics.Gauge
}

func newReloader(o ReloadOptions, prom *url.URL, client *http.Client, logger *slog.Logger, reg *registry) (*reloader, error) {
	if o.OutputFile != "" && o.ConfigFile == "" {
		return nil, errors.New("reloader.config-envsubst-file needs reloader.config-file")
	}
	if o.Every == 0 {
		o.Every = 5 * time.Second
	}
	if o.Retry == 0 {
		o.Retry = 5 * time.Second
	}
	r := &reloader{
		opts: o, url: prom.JoinPath("-/reload").String(), client: client, logger: logger,
		reloads: reg.counter("thanos_sidecar_reloader_reloads_total", "Reloads asked of Prometheus."),
		failed:  reg.counter("thanos_sidecar_reloader_reloads_failed_total", "Reloads that failed, or could not be asked for."),
		success: reg.gauge("thanos_sidecar_reloader_last_reload_successful", "Whether the last reload was a success."),
	}
	return r, nil
}

// run watches until ctx ends; without files it does nothing.
func (r *reloader) run(ctx context.Context) {
	if r.opts.ConfigFile == "" && len(r.opts.RuleDirs) == 0 {
		return
	}
	for {
		pause := r.opts.Every
		if err := r.look(ctx); err != nil && ctx.Err() == nil {
			r.failed.Inc()
			r.success.Set(0)
			r.logger.Error("Prometheus could not be made to reload", "err", err)
			pause = r.opts.Retry
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// look asks for a reload if anything has changed since the last that succeeded.
func (r *reloader) look(ctx context.Context) error {
	sum := sha256.New()
	if r.opts.ConfigFile != "" {
		if err := r.config(sum); err != nil {
			return err
		}
	}
	for _, dir := range r.opts.RuleDirs {
		if err := hashTree(sum, dir, 0); err != nil {
			return fmt.Errorf("rule folder %s: %w", dir, err)
		}
	}
	now := [sha256.Size]byte(sum.Sum(nil))
	if now == r.seen {
		return nil
	}
	if err := r.ask(ctx); err != nil {
		return err
	}
	r.seen = now
	r.reloads.Inc()
	r.success.Set(1)
	r.logger.Info("Prometheus has reloaded")
	return nil
}

// config hashes the configuration and writes it with the environment put in.
func (r *reloader) config(sum io.Writer) error {
	text, err := os.ReadFile(r.opts.ConfigFile)
	if err != nil {
		return err
	}
	if filepath.Ext(r.opts.ConfigFile) == ".gz" {
		unzip, err := gzip.NewReader(bytes.NewReader(text))
		if err != nil {
			return fmt.Errorf("%s: %w", r.opts.ConfigFile, err)
		}
		if text, err = io.ReadAll(io.LimitReader(unzip, reloadFileBytesMax)); err != nil {
			return fmt.Errorf("%s: %w", r.opts.ConfigFile, err)
		}
	}
	if r.opts.OutputFile != "" {
		expanded, err := envsubst.Expand(string(text))
		if err != nil {
			return fmt.Errorf("%s: %w", r.opts.ConfigFile, err)
		}
		text = []byte(expanded)
		if old, err := os.ReadFile(r.opts.OutputFile); err != nil || !bytes.Equal(old, text) {
			tmp := r.opts.OutputFile + ".tmp"
			if err := os.WriteFile(tmp, text, 0o644); err != nil {
				return err
			}
			if err := os.Rename(tmp, r.opts.OutputFile); err != nil {
				return err
			}
		}
	}
	_, err = fmt.Fprintf(sum, "%d %s", len(text), text)
	return err
}

// linksMax bounds folders in folders, which symbolic links could make endless.
const linksMax = 16

// hashTree hashes names and contents of all files, links followed.
func hashTree(sum io.Writer, dir string, depth int) error {
	if depth > linksMax {
		return fmt.Errorf("more than %d folders deep", linksMax)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, entry := range entries { // sorted by name
		path := filepath.Join(dir, entry.Name())
		info, err := os.Stat(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue // it is just being replaced, or a link to nowhere
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
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(sum, "%q %d %s", path, len(text), text); err != nil {
			return err
		}
	}
	return nil
}

// ask posts the reload.
func (r *reloader) ask(ctx context.Context) error {
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
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1024))
		return fmt.Errorf("%s: %s: %s", r.url, resp.Status, bytes.TrimSpace(text))
	}
	return nil
}
