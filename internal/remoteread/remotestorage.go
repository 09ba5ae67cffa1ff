package remoteread

import (
	"cmp"
	"fmt"
	"net/http"
	"reflect"
	"sync"
	"time"

	commonconfig "github.com/prometheus/common/config"
	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/model/labels"

	"github.com/ferula-io/ferula/internal/hint"
	"github.com/ferula-io/ferula/internal/process/telemetry"
	"github.com/ferula-io/ferula/internal/tsdb"
)

// newHTTPClient creates the HTTP client of one remote read endpoint from Prometheus'
// HTTP client configuration. name identifies it in errors.
func newHTTPClient(cfg commonconfig.HTTPClientConfig, name string) (*http.Client, error) {
	client, err := commonconfig.NewClientFromConfig(cfg, name)
	if err != nil {
		return nil, fmt.Errorf("HTTP client of %s: %w", name, err)
	}
	client.Transport = telemetry.RoundTripper("Remote Read", client.Transport)
	return client, nil
}

// Storage is the local storage and the endpoints of the remote_read sections, read as
// one.
type Storage struct {
	*Fanout
	store     *tsdb.Store
	sortBytes int

	mu      sync.Mutex
	clients []*http.Client // of the current endpoints
}

// New returns a storage without endpoints. sortBytes is the memory to sort a response of
// an endpoint; 0: the client's default.
func New(store *tsdb.Store, sortBytes int) *Storage {
	return &Storage{Fanout: NewFanout(store), store: store, sortBytes: sortBytes}
}

// Check returns the first error of the remote_read sections of a configuration, such as an
// unreadable certificate.
func Check(cfg *config.Config) error {
	_, err := (&Storage{}).Prepare(cfg)
	return err
}

// Prepare creates the endpoints of a configuration's remote_read sections. take replaces the
// endpoints of the storage by the created endpoints.
func (r *Storage) Prepare(cfg *config.Config) (take func(), err error) {
	var endpoints []Endpoint
	var clients []*http.Client
	for i, section := range cfg.RemoteReadConfigs {
		for _, before := range cfg.RemoteReadConfigs[:i] {
			if reflect.DeepEqual(before, section) {
				return nil, fmt.Errorf("remote_read: duplicate section for %s", section.URL.Redacted())
			}
		}
		name := cmp.Or(section.Name, section.URL.Redacted())
		client, err := newHTTPClient(section.HTTPClientConfig, "remote_read "+name)
		if err != nil {
			return nil, err
		}
		clients = append(clients, client)
		endpoints = append(endpoints, r.endpoint(name, section, client, cfg.GlobalConfig.ExternalLabels))
	}
	return func() {
		r.SetEndpoints(endpoints)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.closeIdle()
		r.clients = clients
	}, nil
}

func (r *Storage) endpoint(name string, section *config.RemoteReadConfig, client *http.Client,
	external labels.Labels) Endpoint {
	e := Endpoint{
		Name: name,
		Client: NewClient(ClientOptions{
			URL: section.URL.String(), HTTP: client, Headers: section.Headers, Timeout: time.Duration(section.RemoteTimeout),
			Flags:        hint.Flags{"HoldBytesMax": "--storage.remote.read-max-sort-bytes"},
			HoldBytesMax: r.sortBytes, FrameBytesMax: int(min(section.ChunkedReadLimit, 1<<31)),
		}),
	}
	if section.FilterExternalLabels {
		e.ExternalLabels = external
	}
	if !section.ReadRecent {
		e.LocalStart = r.localStart
	}
	for name, value := range section.RequiredMatchers {
		e.RequiredMatchers = append(e.RequiredMatchers, labels.MustNewMatcher(labels.MatchEqual, string(name), string(value)))
	}
	return e
}

// localStart returns the timestamp, in ms, from which the local storage has all samples: two minimum
// block durations after the start of the first block, or after the current time if there is no
// block. The two durations are a margin: the server may have started within the first block, which
// then lacks the samples before the start.
func (r *Storage) localStart() (int64, error) {
	metas, err := r.store.BlockMetas()
	if err != nil {
		return 0, err
	}
	start := time.Now().UnixMilli()
	if len(metas) > 0 {
		start = metas[0].MinTime
	}
	return start + 2*r.store.Options().MinBlockDuration.Milliseconds(), nil
}

// Close closes idle connections. Running queries keep their connections.
func (r *Storage) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closeIdle()
	return nil
}

func (r *Storage) closeIdle() {
	for _, client := range r.clients {
		client.CloseIdleConnections()
	}
	r.clients = nil
}
