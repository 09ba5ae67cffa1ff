// Package api serves the Pyroscope API: push.v1.PusherService,
// querier.v1.QuerierService and settings.v1.SettingsService by Connect, gRPC and gRPC-Web
// on the same paths, in protobuf and JSON, and the older API below /pyroscope for clients
// that still use it.
//
// A request is one message of limited size. codec.go decodes the message, and select.go validates
// it and converts it to a request of profiles. The response of the Querier is encoded
// directly (profiles/profilepb), without a tree of messages. Its memory is released once the response
// is written. Pushed profiles go to the Pusher as they were sent. A push succeeds only after the
// Pusher has returned, that is, once the profiles are durable.
// The header X-Scope-OrgID has the tenant. This package has no storage, no decoding of
// profiles, no evaluation and no listener.
package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/prometheus/promql/parser"

	"github.com/ferula-io/ferula/internal/hint"
	"github.com/ferula-io/ferula/internal/httpbody"
	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/pprof"
	"github.com/ferula-io/ferula/internal/profiles/profilepb"
)

// Pusher ingests profiles. Push returns once they are durable, or an error.
type Pusher interface {
	Push(ctx context.Context, tenant string, profiles []profilepb.RawProfile) error
}

// Querier runs queries. Warnings name sources that could not be read: the response lacks their data.
type Querier interface {
	SelectSeries(ctx context.Context, r *profiles.SeriesRequest) (*profiles.SeriesResult, error)
	MergeFlame(ctx context.Context, r *profiles.MergeRequest) (*profiles.FlameGraph, error)
	MergePprof(ctx context.Context, r *profiles.MergeRequest) (raw []byte, warnings []error, err error) // not compressed
	ProfileTypes(ctx context.Context, r *profiles.LabelsRequest) ([]profiles.Type, []error, error)
	LabelNames(ctx context.Context, r *profiles.LabelsRequest) ([]string, []error, error)
	LabelValues(ctx context.Context, r *profiles.LabelsRequest) ([]string, []error, error)
	Series(ctx context.Context, r *profiles.LabelsRequest) ([][]byte, []error, error) // encoded label sets
	Heatmap(ctx context.Context, r *profiles.HeatmapRequest) (*profiles.Heatmap, error)
	Analyze(ctx context.Context, r *profiles.LabelsRequest) (profiles.Analysis, []error, error)
	Stats(tenant string) (profiles.Stats, error)
}

// Limits of requests.
const (
	pushesMax   = 16 // decoded at once; others wait
	nodesMax    = 1 << 20
	pointsMax   = 11_000   // of a series
	selectorMax = 64 << 10 // bytes
)

// Options of a Server. Zero values take the defaults.
type Options struct {
	BodyMaxBytes int           // of a request, both as sent and decompressed; 0: 64 MiB
	NodesDefault int           // of a flame graph if the request sets no limit; 0: 8,192
	QueryTimeout time.Duration // of one query; 0: 2 minutes
	Flags        hint.Flags    // the flags that raise the limits, named in errors
	// Tenant reads the tenant of a request; nil: TenantOf.
	Tenant func(http.Header) (string, error)

	Bodies       *httpbody.Reader // shared with other receivers; nil: one for this server
	PushDisabled bool             // reject pushes; queries still work
}

func (o Options) withDefaults() Options {
	if o.Tenant == nil {
		o.Tenant = TenantOf
	}
	o.BodyMaxBytes = cmp.Or(o.BodyMaxBytes, 64<<20)
	o.NodesDefault = cmp.Or(o.NodesDefault, 8192)
	o.QueryTimeout = cmp.Or(o.QueryTimeout, 2*time.Minute)
	o.Bodies = cmp.Or(o.Bodies, httpbody.NewReader(httpbody.Options{}))
	return o
}

// Server is the HTTP and gRPC server of the profile API. Use New.
type Server struct {
	opts      Options
	pusher    Pusher
	querier   Querier
	parser    parser.Parser
	pushSlots chan struct{} // of pushes
}

// New returns a server. It starts nothing and owns no goroutine.
func New(opts Options, push Pusher, query Querier) *Server {
	opts = opts.withDefaults()
	return &Server{opts: opts, pusher: push, querier: query, parser: parser.NewParser(parser.Options{}),
		pushSlots: make(chan struct{}, pushesMax)}
}

// queryMaxBytes is the limit of a query, both as sent and decompressed. 10,000 ids and
// selectors of the greatest length fit. Queries are decoded before they wait for a slot, so
// their limit is lower than the limit of pushes.
const queryMaxBytes = 8 << 20

// Register registers every endpoint with mux below prefix. wrap may be nil; it is called
// with each handler and the endpoint's path, and returns the handler to register.
func (s *Server) Register(mux *http.ServeMux, prefix string, wrap func(name string, h http.Handler) http.Handler) {
	if wrap == nil {
		wrap = func(_ string, h http.Handler) http.Handler { return h }
	}
	for _, m := range s.methods() {
		slots, bytesMax := s.pushSlots, s.opts.BodyMaxBytes
		if m.service != pusherPath {
			slots, bytesMax = nil, min(bytesMax, queryMaxBytes)
		}
		h := m.connect(append(codecs(), connect.WithCompressMinBytes(1<<10), connect.WithReadMaxBytes(bytesMax))...)
		if prefix != "" {
			h = http.StripPrefix(prefix, h) // connect needs the path of the method
		}
		path := m.service + m.name
		mux.Handle("POST "+prefix+path, wrap(path, s.readBodyFirst(withCleanup(h), slots, bytesMax)))
	}
	get := func(path string, f http.HandlerFunc) { mux.Handle("GET "+prefix+path, wrap(path, f)) }
	get("/pyroscope/render", s.render)
	get("/pyroscope/render-diff", s.renderDiff)
	get("/pyroscope/label-values", s.legacyLabelValues)
	get("/pyroscope/label-names", s.legacyLabelNames)
}

// badRequest is an error that the client caused.
type badRequest struct{ error }

func (e badRequest) Unwrap() error { return e.error }

func codeOf(err error) connect.Code {
	var bad badRequest
	var coded *connect.Error
	switch {
	case errors.As(err, &bad):
		return connect.CodeInvalidArgument
	case errors.As(err, &coded):
		return coded.Code()
	case errors.Is(err, profiles.ErrBadRequest), errors.Is(err, pprof.ErrCorrupt), errors.Is(err, pprof.ErrLimit):
		return connect.CodeInvalidArgument
	case errors.Is(err, profiles.ErrLimit):
		return connect.CodeResourceExhausted
	case errors.Is(err, errPushDisabled):
		return connect.CodeUnimplemented
	case errors.Is(err, profiles.ErrUnavailable), errors.Is(err, httpbody.ErrBusy):
		return connect.CodeUnavailable
	case errors.Is(err, context.Canceled):
		return connect.CodeCanceled
	case errors.Is(err, context.DeadlineExceeded):
		return connect.CodeDeadlineExceeded
	}
	return connect.CodeInternal
}

// AnonymousTenant is the tenant of a request without X-Scope-OrgID.
const AnonymousTenant = "anonymous"

// TenantOf returns the tenant of a request. It rejects a request that has the header several
// times with different values. Otherwise a client could send its own value through a proxy that
// adds the header, and the proxy's value would be ignored.
func TenantOf(h http.Header) (string, error) {
	values := h.Values("X-Scope-OrgID")
	for _, value := range values {
		if value != values[0] {
			return "", badRequest{fmt.Errorf("X-Scope-OrgID has %d values that differ", len(values))}
		}
	}
	tenant := h.Get("X-Scope-OrgID")
	if tenant == "" {
		return AnonymousTenant, nil
	}
	if err := profiles.CheckTenant(tenant); err != nil {
		return "", badRequest{fmt.Errorf("X-Scope-OrgID: %w", err)}
	}
	return tenant, nil
}

// Anonymous is the TenantOf of a server with a single tenant: it ignores the header.
func Anonymous(http.Header) (string, error) { return AnonymousTenant, nil }
