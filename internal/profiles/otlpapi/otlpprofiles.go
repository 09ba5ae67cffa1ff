// Package otlpprofiles receives profiles by OTLP: over HTTP, as protobuf or JSON, and over gRPC.
//
// A Server reads the body of a request and then waits for a slot. With the slot it decompresses
// the body, decodes it within limits (profiles/otlp) and passes it to the Pusher, which returns
// once the profiles are durable. If some profiles of a request are invalid, the request succeeds
// partially: the response has the number of invalid profiles and the first error. Other errors are
// responses with a google.rpc.Status in the encoding of the request; if the Content-Type is not
// supported, the response is text. This package has no conversion of profiles, no storage and no
// listener.
package otlpapi

import (
	"context"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/inflate"
	"github.com/ferula-io/ferula/internal/profiles/otlp"
	"github.com/ferula-io/ferula/internal/reqbody"
)

// Path is the path of the HTTP endpoint.
const Path = "/v1development/profiles"

// service is the name of the gRPC service.
const service = "opentelemetry.proto.collector.profiles.v1development.ProfilesService"

// slotsMax is the maximum number of requests that are decoded concurrently. Further requests wait.
const slotsMax = 4

// retryAfter is the time after which a client may repeat a request that failed with status
// 429.
const retryAfter = 5 * time.Second

// Pusher ingests the profiles of requests.
type Pusher interface {
	// PushOTLP ingests the valid profiles of a request. It returns the number of invalid
	// profiles and the first of their errors. If err is not nil, no profile was ingested.
	PushOTLP(ctx context.Context, tenant string, r *otlp.Request) (rejected int, first, err error)
	// Refused counts a request that could not be decoded.
	Refused(err error)
}

// Options of a Server.
type Options struct {
	Tenant    func(http.Header) (string, error)
	Status    func(error) int // returns the HTTP status of an error of the Pusher or of this package
	Bodies    *reqbody.Reader // shared with other receivers; nil: one for this server
	BytesMax  int             // of a request, both as sent and decompressed; 0: 64 MiB
	BytesFlag string          // the end of an error's text, which names the flag that raises BytesMax
	Disabled  bool            // refuse calls by gRPC
}

// Server is the receiver. Use New.
type Server struct {
	opts   Options
	pusher Pusher
	slots  chan struct{}
}

// New returns a server. It owns no goroutine.
func New(opts Options, pusher Pusher) *Server {
	if opts.Bodies == nil {
		opts.Bodies = reqbody.New(reqbody.Options{})
	}
	if opts.BytesMax == 0 {
		opts.BytesMax = 64 << 20
	}
	return &Server{opts: opts, pusher: pusher, slots: make(chan struct{}, slotsMax)}
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	asJSON := media == "application/json"
	if err != nil || media != "application/x-protobuf" && !asJSON {
		err := fmt.Errorf("%w: Content-Type %.100q is neither application/x-protobuf nor application/json",
			otlp.ErrUnsupported, r.Header.Get("Content-Type"))
		s.pusher.Refused(err)
		http.Error(w, err.Error(), s.opts.Status(err))
		return
	}
	rejected, first, err := s.receive(w, r, asJSON)
	w.Header().Set("Content-Type", media)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if err != nil {
		reqbody.Prepare(w, r, err)
		code := s.opts.Status(err)
		if code == http.StatusTooManyRequests {
			w.Header().Set("Retry-After", strconv.Itoa(int(retryAfter/time.Second)))
		}
		w.WriteHeader(code)
		_, _ = w.Write(otlp.Status(int32(s.codeOf(err)), err.Error(), asJSON)) // fails if the client disconnected
		return
	}
	//lint:ignore gosec the media type is that of protobuf or JSON, and browsers must not guess another one
	_, _ = w.Write(otlp.Response(rejected, first, asJSON)) // fails if the client disconnected
}

// receive reads the body of a request, takes a slot and pushes the profiles.
func (s *Server) receive(w http.ResponseWriter, r *http.Request, asJSON bool) (rejected int, first, err error) {
	tenant, err := s.opts.Tenant(r.Header)
	if err != nil {
		return 0, nil, fmt.Errorf("%w: %w", profiles.ErrBadRequest, err)
	}
	body, err := s.opts.Bodies.Read(w, r, int64(s.opts.BytesMax))
	if errors.Is(err, reqbody.ErrTooLarge) {
		err = fmt.Errorf("%w%s", err, s.opts.BytesFlag)
	}
	if err == nil {
		defer body.Release()
		err = s.opts.Bodies.TakeSlot(r.Context(), s.slots)
	}
	if err != nil {
		s.pusher.Refused(err)
		return 0, nil, err
	}
	defer func() { <-s.slots }()
	raw, err := s.decompressed(body.Bytes(), r.Header.Get("Content-Encoding"))
	if err == nil && asJSON {
		raw, err = otlp.FromJSON(raw, otlp.Limits{})
	}
	if err != nil {
		s.pusher.Refused(err)
		return 0, nil, err
	}
	return s.push(r.Context(), tenant, raw)
}

func (s *Server) decompressed(raw []byte, encoding string) ([]byte, error) {
	switch strings.ToLower(strings.TrimSpace(encoding)) {
	case "", "identity":
		return raw, nil
	case "gzip":
	default:
		return nil, fmt.Errorf("%w: Content-Encoding %.100q is neither gzip nor identity", otlp.ErrUnsupported, encoding)
	}
	out, err := new(inflate.Inflater).Gzip(nil, raw, s.opts.BytesMax)
	switch {
	case errors.Is(err, inflate.ErrLimit):
		return nil, fmt.Errorf("%w: it is larger than %d bytes when decompressed%s", reqbody.ErrTooLarge, s.opts.BytesMax,
			s.opts.BytesFlag)
	case err != nil:
		return nil, fmt.Errorf("%w: gzip: %w", otlp.ErrCorrupt, err)
	}
	return out, nil
}

func (s *Server) push(ctx context.Context, tenant string, raw []byte) (rejected int, first, err error) {
	request, err := otlp.Decode(raw, otlp.Limits{})
	if err != nil {
		s.pusher.Refused(err)
		return 0, nil, err
	}
	return s.pusher.PushOTLP(ctx, tenant, request)
}

// pushHeld pushes a gRPC message once a slot is free. Until the push ends, the size of the message counts against
// the budget of bodies, like the body of an HTTP request.
func (s *Server) pushHeld(ctx context.Context, tenant string, raw []byte) (rejected int, first, err error) {
	if len(raw) > s.opts.BytesMax {
		err = fmt.Errorf("%w: it is larger than %d bytes%s", reqbody.ErrTooLarge, s.opts.BytesMax, s.opts.BytesFlag)
		s.pusher.Refused(err)
		return 0, nil, err
	}
	release, err := s.opts.Bodies.Hold(int64(len(raw)))
	if err == nil {
		defer release()
		err = s.opts.Bodies.TakeSlot(ctx, s.slots)
	}
	if err != nil {
		s.pusher.Refused(err)
		return 0, nil, err
	}
	defer func() { <-s.slots }()
	return s.push(ctx, tenant, raw)
}

// codeOf returns the gRPC code of an error.
func (s *Server) codeOf(err error) codes.Code {
	if errors.Is(err, context.Canceled) {
		return codes.Canceled
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return codes.DeadlineExceeded
	}
	switch s.opts.Status(err) {
	case http.StatusBadRequest, http.StatusUnsupportedMediaType:
		return codes.InvalidArgument
	case http.StatusTooManyRequests, http.StatusRequestEntityTooLarge:
		return codes.ResourceExhausted
	case http.StatusServiceUnavailable:
		return codes.Unavailable
	}
	return codes.Internal
}

// RegisterGRPC registers the service with a gRPC server. Calls return Unavailable until ready
// returns true.
func (s *Server) RegisterGRPC(to grpc.ServiceRegistrar, ready func() bool) {
	serve := func(ctx context.Context, request any) (any, error) {
		if s.opts.Disabled {
			return nil, status.Error(codes.Unimplemented,
				"the receiver of profiles is switched off; it needs --profiles.enable-receiver")
		}
		if !ready() {
			return nil, status.Error(codes.Unavailable, "Service Unavailable")
		}
		return s.export(ctx, request.(*emptypb.Empty))
	}
	// profiles/otlp decodes the request, within its limits. gRPC decodes it into an empty
	// message: all fields are then unknown fields, whose bytes protobuf keeps as they are.
	handler := func(_ any, ctx context.Context, decode func(any) error,
		interceptor grpc.UnaryServerInterceptor) (any, error) {
		request := &emptypb.Empty{}
		if err := decode(request); err != nil {
			return nil, err
		}
		if interceptor == nil {
			return serve(ctx, request)
		}
		return interceptor(ctx, request, &grpc.UnaryServerInfo{Server: s, FullMethod: "/" + service + "/Export"}, serve)
	}
	to.RegisterService(&grpc.ServiceDesc{
		ServiceName: service, HandlerType: (*any)(nil), Methods: []grpc.MethodDesc{{MethodName: "Export", Handler: handler}},
	}, s)
}

func (s *Server) export(ctx context.Context, request *emptypb.Empty) (*emptypb.Empty, error) {
	incoming, _ := metadata.FromIncomingContext(ctx)
	tenant, err := s.opts.Tenant(http.Header{"X-Scope-Orgid": incoming.Get("x-scope-orgid")})
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	rejected, first, err := s.pushHeld(ctx, tenant, request.ProtoReflect().GetUnknown())
	if err != nil {
		return nil, s.grpcError(err)
	}
	response := &emptypb.Empty{}
	response.ProtoReflect().SetUnknown(otlp.Response(rejected, first, false))
	return response, nil
}

// grpcError returns a gRPC error. Clients repeat a request that exceeded a limit only if the
// error has a RetryInfo.
func (s *Server) grpcError(err error) error {
	result := status.New(s.codeOf(err), err.Error())
	if s.opts.Status(err) == http.StatusTooManyRequests {
		if detailed, failed := result.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(
			retryAfter)}); failed == nil {
			result = detailed
		}
	}
	return result.Err()
}
