package app

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/relabel"
	"github.com/thanos-io/objstore"
	"go.yaml.in/yaml/v3"

	"github.com/ferula-io/ferula/internal/bucket"
	"github.com/ferula-io/ferula/internal/hint"
	"github.com/ferula-io/ferula/internal/httpapi/ui"
	"github.com/ferula-io/ferula/internal/process"
	"github.com/ferula-io/ferula/internal/process/server"
	"github.com/ferula-io/ferula/internal/process/telemetry"
	"github.com/ferula-io/ferula/internal/thanos/gateway"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

// StoreOptions are the options of `ferula store`. Zero durations take the defaults.
type StoreOptions struct {
	Web          WebOptions
	GRPC         GRPCOptions
	Bucket       string                 // Thanos' object store configuration in YAML
	Relabel      string                 // Prometheus' relabel configuration in YAML that selects blocks; "": all
	Store        gateway.Options        // Logger, Metrics, Ready and Rules.Relabel are set by NewStore
	Limits       storeapi.ServerOptions // Metrics is set by NewStore
	SyncInterval time.Duration          // interval of listing the bucket; 0: 15 min
	Tracing      string                 // Thanos' tracing configuration in YAML; "" sends no spans
	Logger       *slog.Logger
}

// Store serves the blocks of a bucket as a StoreAPI. Call NewStore, then Run once.
type Store struct {
	base
	opts    StoreOptions
	bucket  objstore.Bucket
	store   *gateway.Store
	tracing *telemetry.Tracing
}

// NewStore builds the process and opens its listeners. It sends no request to the bucket.
func NewStore(opts StoreOptions) (_ *Store, err error) {
	opts.SyncInterval = cmp.Or(opts.SyncInterval, 15*time.Minute)
	s := &Store{opts: opts, base: newBase(opts.Web, opts.Logger)}
	defer s.release(&err)
	if s.tracing, err = s.trace(opts.Tracing, "ferula-store"); err != nil {
		return nil, err
	}
	if s.opts.Store.Rules.Relabel, err = selectorRelabel(opts.Relabel); err != nil {
		return nil, hint.Invalid("selector.relabel-config", err)
	}
	if s.bucket, err = bucket.Open([]byte(opts.Bucket), "store", opts.Logger.With("component", "bucket"),
		s.reg); err != nil {
		return nil, hint.Invalid("objstore.config", err)
	}
	s.process.Add(process.Component{Name: "bucket", Close: s.bucket.Close})
	s.opts.Store.Logger, s.opts.Store.Metrics = opts.Logger.With("component", "blocks"), s.reg.Own
	s.opts.Store.Ready = s.process.IsReady
	if s.store, err = gateway.Open(s.bucket, s.opts.Store); err != nil {
		return nil, fmt.Errorf("--data-dir: %w", err)
	}
	s.process.Add(process.Component{Name: "blocks", Open: s.firstSync, Run: s.work, Close: s.store.Close},
		process.Component{Name: "idle files", Run: s.sweep})
	if err = s.listen(); err != nil {
		return nil, err
	}
	if err = s.listenStoreAPI(opts.GRPC, s.tracing, s.store, opts.Limits); err != nil {
		return nil, err
	}
	prefix, err := server.RoutePrefix("web.external-prefix", opts.Web.RoutePrefix, &url.URL{})
	if err != nil {
		return nil, err
	}
	mux := s.newMux()
	mux.HandleFunc("GET "+prefix+"/api/v1/blocks", s.blocks)
	mux.HandleFunc("GET "+prefix+"/api/v1/status/features", s.constant(storeFeatures))
	mux.HandleFunc("GET "+prefix+"/api/v1/status/buildinfo", s.constant(storeBuildInfo()))
	mux.Handle(prefix+"/", ui.Handler(prefix))
	s.process.AddServer(s.grpcServer(), s.webServer(s.reg.Instrumented(mux)))
	return s, nil
}

// selectorRelabel parses the configuration that selects blocks, or data of stores, by their
// external labels. An unknown key is an error: a rule whose misspelled key is ignored could drop
// all data.
func selectorRelabel(text string) ([]*relabel.Config, error) {
	var all []*relabel.Config
	in := yaml.NewDecoder(strings.NewReader(text))
	in.KnownFields(true)
	if err := in.Decode(&all); err != nil && !errors.Is(err, io.EOF) { // io.EOF: the text is empty
		return nil, err
	}
	for i, c := range all {
		if c == nil {
			return nil, fmt.Errorf("rule %d is empty", i)
		}
		switch c.Action {
		case relabel.Keep, relabel.Drop, relabel.HashMod:
		default:
			return nil, fmt.Errorf("rule %d: action %q is not supported: use keep, drop or hashmod", i, c.Action)
		}
		if err := c.Validate(model.UTF8Validation); err != nil {
			return nil, fmt.Errorf("rule %d: %w", i, err)
		}
	}
	return all, nil
}

// Run serves until ctx is canceled or a component fails, then drains running requests. The
// process is ready once the bucket was listed.
func (s *Store) Run(ctx context.Context) error {
	s.process.Opened = func() {
		s.process.Ready()
		s.grpc.Ready()
		s.opts.Logger.Info("Ready", "blocks", len(s.store.Blocks()), "grpc", s.GRPCAddr(), "http", s.Addr())
	}
	return s.process.Run(ctx)
}

// firstSyncMax limits the time for which the first listing of the bucket is retried.
const firstSyncMax = 30 * time.Minute

// firstSync lists the bucket. It retries a failed listing until firstSyncMax has passed.
func (s *Store) firstSync(ctx context.Context) error {
	started, pause := time.Now(), time.Second
	for {
		err := s.store.Sync(ctx)
		if err == nil || ctx.Err() != nil {
			return nil
		}
		if time.Since(started) > firstSyncMax {
			return fmt.Errorf("the blocks could not be listed within %s: %w", firstSyncMax, err)
		}
		s.opts.Logger.Warn("Not ready: listing the blocks failed", "err", err)
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		pause = min(2*pause, 10*time.Second)
	}
}

// work syncs the bucket every SyncInterval until ctx is canceled.
func (s *Store) work(ctx context.Context) error {
	return repeat(ctx, s.opts.SyncInterval, s.opts.SyncInterval, s.store.Sync, func(retryIn time.Duration, err error) {
		s.opts.Logger.Warn("Serving the blocks of the last list: listing the blocks failed", "retry_in", retryIn, "err", err)
	})
}

// sweep unmaps idle files every minute until ctx is canceled.
func (s *Store) sweep(ctx context.Context) error {
	return repeat(ctx, time.Minute, time.Minute, func(context.Context) error {
		s.store.Sweep(time.Now())
		return nil
	}, nil)
}

// storeFeatures are the features that the web UI reads: the store has only the page of blocks.
var storeFeatures = map[string]map[string]bool{"ferula": {
	"alertmanagers": false, "alerts": false, "blocks": true, "config": false, "flags": false, "flames": false,
	"notifications": false, "profiles": false, "queries": false, "query": false, "rules": false, "sd": false,
	"stores": false, "targets": false, "tsdb": false,
}}

// storeBuildInfo returns the members of status/buildinfo that the web UI shows.
func storeBuildInfo() map[string]string {
	b := buildInfo()
	return map[string]string{"version": b.Version, "revision": b.Revision, "goVersion": b.GoVersion, "program": b.Program}
}

// respondJSON sends data in the envelope of Prometheus' API.
func (s *Store) respondJSON(w http.ResponseWriter, data any) {
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(struct {
		Status string `json:"status"`
		Data   any    `json:"data"`
	}{"success", data}); err != nil {
		s.logger.Debug("Sending a response failed", "err", err)
	}
}

func (s *Store) constant(data any) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { s.respondJSON(w, data) }
}

// blocks lists the served blocks in the format of Thanos' /api/v1/blocks. If the last listing of the bucket failed,
// err is the text of its error, and the blocks are of the last listing that succeeded. Thanos sends {} instead
// of the text.
func (s *Store) blocks(w http.ResponseWriter, _ *http.Request) {
	all := s.store.Blocks()
	slices.SortFunc(all, func(a, b *bucket.Meta) int { return a.ID.Compare(b.ID) })
	at, failure := s.store.LastSync()
	list := struct {
		Err         *string           `json:"err"`
		Label       string            `json:"label"`
		RefreshedAt time.Time         `json:"refreshedAt"`
		Blocks      []json.RawMessage `json:"blocks"`
	}{RefreshedAt: at.UTC(), Blocks: []json.RawMessage{}}
	if failure != nil {
		text := failure.Error()
		list.Err = &text
	}
	for _, m := range all {
		block, err := m.AppendJSON(nil)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		list.Blocks = append(list.Blocks, block)
	}
	s.respondJSON(w, list)
}
