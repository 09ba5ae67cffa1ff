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

// remoteHTTPClient makes the client of one remote read endpoint: TLS,
// authentication, proxies and redirects as Prometheus' HTTP client configuration
// has them. name is for its errors.
func remoteHTTPClient(cfg commonconfig.HTTPClientConfig, name string) (*http.Client, error) {
	client, err := commonconfig.NewClientFromConfig(cfg, name)
	if err != nil {
		return nil, fmt.Errorf("HTTP client of %s: %w", name, err)
	}
	return client, nil
}

// remotes are the other servers that remote_read sections name, joined with the
// local storage.
type remotes struct {
	*remoteread.Fanout
	store *tsdb.Store
	sort  int // bytes

	mu      sync.Mutex
	clients []*http.Client // of the sections in force
}

func newRemotes(store *tsdb.Store, sortBytes int) *remotes {
	return &remotes{Fanout: remoteread.NewFanout(store), store: store, sort: sortBytes}
}

// prepare makes the endpoints of a configuration's sections. They are in force once
// the returned function is called, which cannot fail.
func (r *remotes) prepare(cfg *config.Config) (take func(), err error) {
	var endpoints []remoteread.Endpoint
	var clients []*http.Client
	for i, section := range cfg.RemoteReadConfigs {
		for _, before := range cfg.RemoteReadConfigs[:i] {
			if reflect.DeepEqual(before, section) {
				return nil, fmt.Errorf("remote_read: two sections for %s are the same", section.URL.Redacted())
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
		r.letGo()
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

// localStart is where the local storage begins to have everything, in ms: two of
// its shortest blocks after its beginning, since what was scraped while it was
// down or starting is missing.
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

// close lets idle connections go. Running queries keep theirs.
func (r *remotes) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.letGo()
}

func (r *remotes) letGo() {
	for _, client := range r.clients {
		client.CloseIdleConnections()
	}
	r.clients = nil
}
