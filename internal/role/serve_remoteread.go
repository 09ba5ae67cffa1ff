package role

import (
	"fmt"
	"net/http"
	"reflect"
	"sync"
	"time"

	commonconfig "github.com/prometheus/common/config"
	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/model/labels"

	"github.com/ferula-io/ferula/internal/store/tsdb"
	"github.com/ferula-io/ferula/internal/wire/remoteread"
)

// remoteHTTPClient creates the HTTP client of one remote read endpoint from Prometheus'
// HTTP client configuration. name identifies it in errors.
func remoteHTTPClient(cfg commonconfig.HTTPClientConfig, name string) (*http.Client, error) {
	client, err := commonconfig.NewClientFromConfig(cfg, name)
	if err != nil {
		return nil, fmt.Errorf("HTTP client of %s: %w", name, err)
	}
	return client, nil
}

// remotes queries the local storage and the endpoints of the remote_read sections.
type remotes struct {
	*remoteread.Fanout
	store *tsdb.Store
	sort  int // bytes

	mu      sync.Mutex
	clients []*http.Client // of the current endpoints
}

func newRemotes(store *tsdb.Store, sortBytes int) *remotes {
	return &remotes{Fanout: remoteread.NewFanout(store), store: store, sort: sortBytes}
}

// prepare creates the endpoints of a configuration's remote_read sections. take puts
// them into effect and cannot fail.
func (r *remotes) prepare(cfg *config.Config) (take func(), err error) {
	var endpoints []remoteread.Endpoint
	var clients []*http.Client
	for i, section := range cfg.RemoteReadConfigs {
		for _, before := range cfg.RemoteReadConfigs[:i] {
			if reflect.DeepEqual(before, section) {
				return nil, fmt.Errorf("remote_read: duplicate section for %s", section.URL.Redacted())
			}
		}
		name := section.Name
		if name == "" {
			name = section.URL.Redacted()
		}
		client, err := remoteHTTPClient(section.HTTPClientConfig, "remote_read "+name)
		if err != nil {
			return nil, err
		}
		clients = append(clients, client)
		endpoints = append(endpoints, r.endpoint(section, client, cfg.GlobalConfig.ExternalLabels))
	}
	return func() {
		r.SetEndpoints(endpoints)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.closeIdle()
		r.clients = clients
	}, nil
}

func (r *remotes) endpoint(section *config.RemoteReadConfig, client *http.Client, external labels.Labels) remoteread.Endpoint {
	e := remoteread.Endpoint{
		Client: remoteread.NewClient(remoteread.ClientOptions{
			URL: section.URL.String(), HTTP: client, Headers: section.Headers, Timeout: time.Duration(section.RemoteTimeout),
			HoldBytesMax: r.sort, FrameBytesMax: int(min(section.ChunkedReadLimit, 1<<31)),
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

// localStart returns the timestamp in ms from which the local storage is complete: two
// minimum block durations after the start of the first block, since samples from the
// time before the server started may be missing.
func (r *remotes) localStart() (int64, error) {
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

// close closes idle connections. Running queries keep their connections.
func (r *remotes) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closeIdle()
}

func (r *remotes) closeIdle() {
	for _, client := range r.clients {
		client.CloseIdleConnections()
	}
	r.clients = nil
}
