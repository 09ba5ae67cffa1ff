package app

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	configutil "github.com/prometheus/common/config"

	"github.com/ferula-io/ferula/internal/export"
	"github.com/ferula-io/ferula/internal/hint"
	"github.com/ferula-io/ferula/internal/process/server"
	"github.com/ferula-io/ferula/internal/remoteread"
	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
	"github.com/ferula-io/ferula/internal/thanos/storeclient"
	"github.com/ferula-io/ferula/internal/tsdb"
)

// ReadOptions are the options of `ferula read`. Exactly one source must be set: URL,
// Store or TSDBPath.
type ReadOptions struct {
	URL            string      // of a Prometheus server or of its remote read endpoint
	HTTPConfigFile string      // Prometheus' HTTP client configuration file; "": none
	Header         http.Header // sent with every request
	// memory to sort a response of type SAMPLES, larger ones are sorted on disk; 0: the client's default
	SortBytes int

	Store       string // address of a StoreAPI
	StoreClient StoreClientOptions

	StallTimeout time.Duration // how long a server or store may send nothing; 0: no limit

	TSDBPath   string // data directory of a Prometheus TSDB
	SandboxDir string // directory for hard links while the WAL is read; "": chosen automatically

	Export export.Options // Source, Permanent, Now, Random and Warn are set by Read
	Logger *slog.Logger
}

// readPath is the path of Prometheus' remote read endpoint.
const readPath = "/api/v1/read"

// Read exports series until all are written or ctx is canceled.
func Read(ctx context.Context, opts ReadOptions) (sum export.Summary, err error) {
	o := opts.Export
	if o.Source, o.Permanent, err = opts.source(); err != nil {
		return export.Summary{}, err
	}
	if closer, ok := o.Source.(interface{ Close() error }); ok {
		defer func() { err = errors.Join(err, closer.Close()) }()
	}
	o.Now, o.Random = time.Now, rand.Reader
	o.Warn = func(text string) { opts.Logger.Warn(text) }
	return export.Run(ctx, o)
}

// source opens the source of the series. It also returns a function that reports
// whether an error of the source is permanent, so that a retry is useless.
func (opts ReadOptions) source() (series.Source, func(error) bool, error) {
	switch {
	case opts.URL != "" && opts.TSDBPath != "" || opts.URL != "" && opts.Store != "" || opts.TSDBPath != "" &&
		opts.Store != "":
		return nil, nil, fmt.Errorf("%w: only one of --url, --store and --tsdb.path may be set", export.ErrOptions)
	case opts.Store != "":
		store, err := storeclient.Open(opts.Store, opts.StoreClient, opts.StallTimeout)
		if err != nil {
			return nil, nil, fmt.Errorf("%w: --store: %w", export.ErrOptions, err)
		}
		return store, func(err error) bool {
			return errors.Is(err, storeapi.ErrBadRequest) || errors.Is(err, storeapi.ErrLimit)
		}, nil
	case opts.URL != "":
		client, err := opts.client()
		if err != nil {
			return nil, nil, fmt.Errorf("%w: %w", export.ErrOptions, err)
		}
		return client, remoteread.Permanent, nil
	case opts.TSDBPath != "":
		db, err := tsdb.OpenReadOnly(opts.TSDBPath, opts.SandboxDir, opts.Logger)
		return db, func(error) bool { return true }, err
	}
	return nil, nil, fmt.Errorf("%w: no source: set --url, --store or --tsdb.path", export.ErrOptions)
}

func (opts ReadOptions) client() (*remoteread.Client, error) {
	u, err := server.HTTPURL(opts.URL)
	if err != nil {
		return nil, fmt.Errorf("--url: %w", err)
	}
	if u.Path = strings.TrimRight(u.Path, "/"); !strings.HasSuffix(u.Path, "/read") {
		u.Path += readPath
	}
	client, err := httpClient(opts.HTTPConfigFile, "http.config-file")
	if err != nil {
		return nil, err
	}
	if len(opts.Header) > 0 {
		client.Transport = withHeader{client.Transport, opts.Header}
	}
	return remoteread.NewClient(remoteread.ClientOptions{
		URL: u.String(), HTTP: client, StallTimeout: opts.StallTimeout, HoldBytesMax: opts.SortBytes,
		Flags: hint.Flags{"HoldBytesMax": "--max-sort-bytes"},
		Tries: 1, // package export retries whole windows
	}), nil
}

// httpClient returns a client for Prometheus' HTTP client configuration file; "": without credentials. Errors name the
// flag of the file.
func httpClient(file, flag string) (client *http.Client, err error) {
	cfg := &configutil.HTTPClientConfig{FollowRedirects: true, EnableHTTP2: true}
	if file != "" {
		cfg, _, err = configutil.LoadHTTPConfigFile(file)
	}
	if err == nil {
		client, err = configutil.NewClientFromConfig(*cfg, "ferula", configutil.WithIdleConnTimeout(time.Minute))
	}
	if err != nil {
		return nil, fmt.Errorf("--%s: %w", flag, err)
	}
	return client, nil
}

// withHeader adds headers to requests.
type withHeader struct {
	next   http.RoundTripper
	header http.Header
}

// RoundTrip implements http.RoundTripper.
func (w withHeader) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	for name, values := range w.header {
		r.Header[name] = values
		if name == "Host" {
			r.Host = values[0]
		}
	}
	return w.next.RoundTrip(r)
}

// CloseIdleConnections is called by http.Client.CloseIdleConnections.
func (w withHeader) CloseIdleConnections() {
	if closer, ok := w.next.(interface{ CloseIdleConnections() }); ok {
		closer.CloseIdleConnections()
	}
}
