// Package profileapi serves the Pyroscope API: push.v1.PusherService and
// querier.v1.QuerierService by Connect, gRPC and gRPC-web on the same paths, in
// protobuf and JSON, and the older /pyroscope/render for who still asks for it.
//
// A request comes in as one message of limited size; codec.go reads it, select.go
// checks what it asks for and turns it into a request of series/profiles, and the
// Querier's answer writes itself (codec/profilepb), so that no tree of messages is
// built; its memory is given back once it has been written. Pushed profiles are handed to the Pusher as they came; the
// answer is a success only once that has returned, which is once they are durable.
// The tenant is X-Scope-OrgID's. There is no storage, no decoding of profiles, no
// evaluation and no listener here.
package profileapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/prometheus/promql/parser"

	"github.com/ferula-io/ferula/internal/codec/profilepb"
	"github.com/ferula-io/ferula/internal/reqbody"
	"github.com/ferula-io/ferula/internal/series/profiles"
)

// Pusher takes profiles in. It returns once they are durable, or why not.
type Pusher interface {
	Push(ctx context.Context, tenant string, profiles []profilepb.RawProfile) error
}

// Querier answers. Warnings say what could not be read; the rest is answered.
type Querier interface {
	SelectSeries(ctx context.Context, r *profiles.SeriesRequest) (*profiles.SeriesResult, error)
	MergeFlame(ctx context.Context, r *profiles.MergeRequest) (*profiles.FlameGraph, error)
	MergePprof(ctx context.Context, r *profiles.MergeRequest) (raw []byte, warnings []error, err error) // not compressed
	ProfileTypes(ctx context.Context, r *profiles.LabelsRequest) ([]profiles.Type, []error, error)
	LabelNames(ctx context.Context, r *profiles.LabelsRequest) ([]string, []error, error)
	LabelValues(ctx context.Context, r *profiles.LabelsRequest) ([]string, []error, error)
	Series(ctx context.Context, r *profiles.LabelsRequest) ([][]byte, []error, error) // encoded label sets
	Stats(tenant string) (profiles.Stats, error)
}

// Options of a Server. Zero values take the defaults.
type Options struct {
	BodyMaxBytes  int           // of a request, as sent and decompressed; 0: 64 MiB
	PushesMax     int           // decoded at once, further ones wait; 0: 16
	NodesDefault  int           // of a flame graph when the request says nothing; 0: 8,192
	NodesMax      int           // that a request may ask for; 0: 1,048,576
	PointsMax     int64         // steps in a range; 0: 11,000
	QueryTimeout  time.Duration // of one query; 0: 2 minutes
	SelectorBytes int           // of one selector; 0: 64 KiB
	// Tenant reads the tenant of a request; nil: TenantOf.
	Tenant func(http.Header) (string, error)
	// Code says which code of Connect's an error has beyond those of
	// series/profiles; nil and CodeUnknown make it internal.
	Code func(error) connect.Code

	Bodies       *reqbody.Reader // shared with other receivers; nil: one of its own
	PushDisabled bool            // pushes are refused, queries are not
}

func (o Options) withDefaults() Options {
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	if o.Tenant == nil {
		o.Tenant = TenantOf
	}
	def(&o.BodyMaxBytes, 64<<20)
	def(&o.PushesMax, 16)
	def(&o.NodesDefault, 8192)
	def(&o.NodesMax, 1<<20)
	def(&o.SelectorBytes, 64<<10)
	if o.PointsMax == 0 {
		o.PointsMax = 11_000
	}
	if o.QueryTimeout == 0 {
		o.QueryTimeout = 2 * time.Minute
	}
	if o.Bodies == nil {
		o.Bodies = reqbody.New(reqbody.Options{})
	}
	if o.Code == nil {
		o.Code = func(error) connect.Code { return connect.CodeUnknown }
	}
	return o
}

// Server answers the profile API. Use New.
type Server struct {
	opts   Options
	push   Pusher
	query  Querier
	parser parser.Parser
	places chan struct{} // of pushes
}

// New makes a server; it starts nothing and owns no goroutine.
func New(opts Options, push Pusher, query Querier) *Server {
	opts = opts.withDefaults()
	return &Server{opts: opts, push: push, query: query, parser: parser.NewParser(parser.Options{}), places: make(chan struct{}, opts.PushesMax)}
}

const (
	pusherPath  = "/push.v1.PusherService/"
	querierPath = "/querier.v1.QuerierService/"
)

// Register adds every endpoint to mux below prefix. wrap may be nil; it stands
// around each handler and is told the endpoint's name.
func (s *Server) Register(mux *http.ServeMux, prefix string, wrap func(name string, h http.Handler) http.Handler) {
	if wrap == nil {
		wrap = func(_ string, h http.Handler) http.Handler { return h }
	}
	receive := func(path string, h http.Handler, slots chan struct{}) {
		if prefix != "" {
			h = http.StripPrefix(prefix, h) // the procedure's name is the path's
		}
		mux.Handle("POST "+prefix+path, wrap(path, s.received(closing(h), slots)))
	}
	handle := func(path string, h http.Handler) { receive(path, h, nil) }
	get := func(path string, f http.HandlerFunc) { mux.Handle("GET "+prefix+path, wrap(path, f)) }
	options := []connect.HandlerOption{
		connect.WithCodec(protoCodec{}), connect.WithCodec(jsonCodec{"json"}), connect.WithCodec(jsonCodec{"json; charset=utf-8"}),
		connect.WithReadMaxBytes(s.opts.BodyMaxBytes), connect.WithCompressMinBytes(1 << 10),
	}
	receive(pusherPath+"Push", connect.NewUnaryHandler(pusherPath+"Push", call(s, s.pushed), options...), s.places)
	q := querierPath
	handle(q+"ProfileTypes", connect.NewUnaryHandler(q+"ProfileTypes", call(s, s.profileTypes), options...))
	handle(q+"LabelNames", connect.NewUnaryHandler(q+"LabelNames", call(s, s.labelNames), options...))
	handle(q+"LabelValues", connect.NewUnaryHandler(q+"LabelValues", call(s, s.labelValues), options...))
	handle(q+"Series", connect.NewUnaryHandler(q+"Series", call(s, s.series), options...))
	handle(q+"GetProfileStats", connect.NewUnaryHandler(q+"GetProfileStats", call(s, s.stats), options...))
	handle(q+"SelectSeries", connect.NewUnaryHandler(q+"SelectSeries", call(s, s.selectSeries), options...))
	handle(q+"SelectMergeStacktraces", connect.NewUnaryHandler(q+"SelectMergeStacktraces", call(s, s.selectMergeStacktraces), options...))
	handle(q+"SelectMergeProfile", connect.NewUnaryHandler(q+"SelectMergeProfile", call(s, s.selectMergeProfile), options...))
	handle(q+"SelectMergeSpanProfile", connect.NewUnaryHandler(q+"SelectMergeSpanProfile", call(s, s.selectMergeSpanProfile), options...))
	handle(q+"SelectHeatmap", connect.NewUnaryHandler(q+"SelectHeatmap", call(s, s.selectHeatmap), options...))
	handle(q+"Diff", connect.NewUnaryHandler(q+"Diff", call(s, s.diff), options...))
	get("/pyroscope/render", s.render)
	get("/pyroscope/render-diff", s.renderDiff)
	get("/pyroscope/label-values", s.legacyLabelValues)
	get("/pyroscope/label-names", s.legacyLabelNames)
}

// call makes a Connect function of one that knows the tenant: it bounds the time
// and turns errors into Connect's.
func call[Req, Res any](s *Server, f func(ctx context.Context, tenant string, m *Req) (*Res, error)) func(context.Context, *connect.Request[Req]) (*connect.Response[Res], error) {
	return func(ctx context.Context, r *connect.Request[Req]) (*connect.Response[Res], error) {
		tenant, err := s.opts.Tenant(r.Header())
		if err != nil {
			return nil, connect.NewError(connect.CodeInvalidArgument, err)
		}
		ctx, cancel := context.WithTimeout(ctx, s.opts.QueryTimeout)
		defer cancel()
		answer, err := f(ctx, tenant, r.Msg)
		if err != nil {
			return nil, s.connectError(err)
		}
		response := connect.NewResponse(answer)
		for name, values := range outcomeOf(ctx).headers() {
			response.Header()[name], response.Trailer()[name] = values, values
		}
		return response, nil
	}
}

// badRequest is an error of the request itself.
type badRequest struct{ error }

func (e badRequest) Unwrap() error { return e.error }

func (s *Server) connectError(err error) *connect.Error {
	return connect.NewError(s.codeOf(err), err)
}

func (s *Server) codeOf(err error) connect.Code {
	var bad badRequest
	var coded *connect.Error
	switch {
	case errors.As(err, &bad):
		return connect.CodeInvalidArgument
	case errors.As(err, &coded):
		return coded.Code()
	case errors.Is(err, profiles.ErrBadRequest):
		return connect.CodeInvalidArgument
	case errors.Is(err, profiles.ErrLimit):
		return connect.CodeResourceExhausted
	case errors.Is(err, errPushDisabled):
		return connect.CodeUnimplemented
	case errors.Is(err, profiles.ErrUnavailable), errors.Is(err, reqbody.ErrBusy):
		return connect.CodeUnavailable
	case errors.Is(err, context.Canceled):
		return connect.CodeCanceled
	case errors.Is(err, context.DeadlineExceeded):
		return connect.CodeDeadlineExceeded
	}
	if code := s.opts.Code(err); code != connect.CodeUnknown {
		return code
	}
	return connect.CodeInternal
}

// AnonymousTenant is who asks without saying so.
const AnonymousTenant = "anonymous"

// TenantOf reads the tenant of a request.
func TenantOf(h http.Header) (string, error) {
	tenant := h.Get("X-Scope-OrgID")
	if tenant == "" {
		return AnonymousTenant, nil
	}
	if err := profiles.CheckTenant(tenant); err != nil {
		return "", badRequest{fmt.Errorf("X-Scope-OrgID: %w", err)}
	}
	return tenant, nil
}

// Anonymous is TenantOf of a server that has one tenant only, whatever a request says.
func Anonymous(http.Header) (string, error) { return AnonymousTenant, nil }
