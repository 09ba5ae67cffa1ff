package ingest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/collector/pdata/pprofile/pprofileotlp"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/ferula-io/ferula/internal/httpbody"
	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/api"
)

// OTLPPath is the path of the HTTP endpoint of OTLP.
const OTLPPath = "/v1development/profiles"

// otlpService is the name of the gRPC service.
const otlpService = "opentelemetry.proto.collector.profiles.v1development.ProfilesService"

// otlpSlotsMax is the maximum number of requests that are decoded concurrently. Further requests wait.
const otlpSlotsMax = 4

// retryAfter is the time after which a client may repeat a request that failed with status
// 429.
const retryAfter = 5 * time.Second

// OTLPOptions configure an OTLPServer.
type OTLPOptions struct {
	Tenant    Tenant
	Bodies    *httpbody.Reader // shared with other receivers; nil: one for this server
	BytesMax  int              // of a request, both as sent and decompressed; 0: 64 MiB
	BytesFlag string           // the end of an error's text, which names the flag that raises BytesMax
	Disabled  bool             // refuse calls by gRPC
}

// OTLPServer receives profiles by OTLP: over HTTP, as protobuf or JSON, and over gRPC. It reads the body of a request
// and then waits for a slot, in which it decompresses, decodes and pushes the body. If some profiles of a request are
// invalid, the request succeeds partially: the response has the number of invalid profiles and the first error. Other
// errors are responses with a google.rpc.Status in the encoding of the request; if the Content-Type is not supported,
// the response is text.
type OTLPServer struct {
	opts  OTLPOptions
	in    *Ingester
	slots chan struct{}
}

// NewOTLPServer returns a server. It owns no goroutine.
func (in *Ingester) NewOTLPServer(opts OTLPOptions) *OTLPServer {
	opts.Bodies = cmp.Or(opts.Bodies, httpbody.NewReader(httpbody.Options{}))
	opts.BytesMax = cmp.Or(opts.BytesMax, 64<<20)
	return &OTLPServer{opts: opts, in: in, slots: make(chan struct{}, otlpSlotsMax)}
}

// ServeHTTP implements http.Handler.
func (s *OTLPServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	asJSON := media == "application/json"
	if err != nil || media != "application/x-protobuf" && !asJSON {
		err := fmt.Errorf("%w: Content-Type %.100q is neither application/x-protobuf nor application/json",
			errUnsupported, r.Header.Get("Content-Type"))
		_ = s.in.discard(err) // it counts the request
		http.Error(w, err.Error(), StatusOf(err))
		return
	}
	rejected, first, err := s.receive(w, r, asJSON)
	w.Header().Set("Content-Type", media)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if err != nil {
		httpbody.Prepare(w, r, err)
		code := StatusOf(err)
		if code == http.StatusTooManyRequests {
			w.Header().Set("Retry-After", strconv.Itoa(int(retryAfter/time.Second)))
		}
		w.WriteHeader(code)
		_, _ = w.Write(otlpStatus(int32(s.codeOf(err)), err.Error(), asJSON)) // fails if the client disconnected
		return
	}
	//lint:ignore gosec the media type is that of protobuf or JSON, and browsers must not guess another one
	_, _ = w.Write(otlpResponse(rejected, first, asJSON)) // fails if the client disconnected
}

// receive reads the body of a request, takes a slot and pushes the profiles.
func (s *OTLPServer) receive(w http.ResponseWriter, r *http.Request, asJSON bool) (rejected int, first, err error) {
	tenant, err := s.opts.Tenant(r.Header)
	if err != nil {
		return 0, nil, fmt.Errorf("%w: %w", profiles.ErrBadRequest, err)
	}
	body, err := s.opts.Bodies.Read(w, r, int64(s.opts.BytesMax))
	if errors.Is(err, httpbody.ErrTooLarge) {
		err = fmt.Errorf("%w%s", err, s.opts.BytesFlag)
	}
	if err == nil {
		defer body.Release()
		err = s.opts.Bodies.TakeSlot(r.Context(), s.slots)
	}
	if err != nil {
		return 0, nil, s.in.discard(err)
	}
	defer func() { <-s.slots }()
	raw, err := s.decompressed(body.Bytes(), r.Header.Get("Content-Encoding"))
	if err == nil && asJSON {
		raw, err = otlpFromJSON(raw, otlpJSONMax)
	}
	if err != nil {
		return 0, nil, s.in.discard(err)
	}
	return s.push(r.Context(), tenant, raw)
}

func (s *OTLPServer) decompressed(raw []byte, encoding string) ([]byte, error) {
	switch strings.ToLower(strings.TrimSpace(encoding)) {
	case "", "identity":
		return raw, nil
	case "gzip":
	default:
		return nil, fmt.Errorf("%w: Content-Encoding %.100q is neither gzip nor identity", errUnsupported, encoding)
	}
	return gunzip(raw, s.opts.BytesMax, func() error {
		return fmt.Errorf("%w: it is larger than %d bytes when decompressed%s", httpbody.ErrTooLarge, s.opts.BytesMax,
			s.opts.BytesFlag)
	})
}

func (s *OTLPServer) push(ctx context.Context, tenant string, raw []byte) (rejected int, first, err error) {
	request, err := decodeOTLP(raw, otlpMax)
	if err != nil {
		return 0, nil, s.in.discard(err)
	}
	return s.in.pushOTLP(ctx, tenant, request)
}

// pushHeld pushes a gRPC message once a slot is free. Until the push ends, the size of the message counts against
// the budget of bodies, like the body of an HTTP request.
func (s *OTLPServer) pushHeld(ctx context.Context, tenant string, raw []byte) (rejected int, first, err error) {
	if len(raw) > s.opts.BytesMax {
		err = fmt.Errorf("%w: it is larger than %d bytes%s", httpbody.ErrTooLarge, s.opts.BytesMax, s.opts.BytesFlag)
		return 0, nil, s.in.discard(err)
	}
	release, err := s.opts.Bodies.Hold(int64(len(raw)))
	if err == nil {
		defer release()
		err = s.opts.Bodies.TakeSlot(ctx, s.slots)
	}
	if err != nil {
		return 0, nil, s.in.discard(err)
	}
	defer func() { <-s.slots }()
	return s.push(ctx, tenant, raw)
}

// codeOf returns the gRPC code of an error.
func (s *OTLPServer) codeOf(err error) codes.Code {
	if errors.Is(err, context.Canceled) {
		return codes.Canceled
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return codes.DeadlineExceeded
	}
	switch StatusOf(err) {
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
func (s *OTLPServer) RegisterGRPC(to grpc.ServiceRegistrar, ready func() bool) {
	// gRPC decodes the request into an empty message: all fields are then unknown fields, whose bytes protobuf keeps as
	// they are. decodeOTLP decodes them, within its limits.
	export := api.UnaryMethod[emptypb.Empty](func() bool { return s.opts.Disabled || ready() }, "/"+otlpService+"/",
		"Export", func(ctx context.Context, request any) (any, error) { return s.export(ctx, request.(*emptypb.Empty)) })
	to.RegisterService(&grpc.ServiceDesc{ServiceName: otlpService, HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{export}}, s)
}

func (s *OTLPServer) export(ctx context.Context, request *emptypb.Empty) (*emptypb.Empty, error) {
	if s.opts.Disabled {
		return nil, status.Error(codes.Unimplemented,
			"the profile receiver is off: enable it with --profiles.enable-receiver")
	}
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
	response.ProtoReflect().SetUnknown(otlpResponse(rejected, first, false))
	return response, nil
}

// grpcError returns a gRPC error. Clients repeat a request that exceeded a limit only if the
// error has a RetryInfo.
func (s *OTLPServer) grpcError(err error) error {
	result := status.New(s.codeOf(err), err.Error())
	if StatusOf(err) == http.StatusTooManyRequests {
		if detailed, failed := result.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(
			retryAfter)}); failed == nil {
			result = detailed
		}
	}
	return result.Err()
}

// otlpResponse encodes the response to a request. rejected is the number of profiles of the request
// that were rejected. first is the error of one rejected profile; it is not used if rejected is 0.
func otlpResponse(rejected int, first error, asJSON bool) []byte {
	if rejected == 0 { // partial_success must not be set, and the library always sets it
		if asJSON {
			return []byte("{}")
		}
		return nil
	}
	response := pprofileotlp.NewExportResponse()
	response.PartialSuccess().SetRejectedProfiles(int64(rejected))
	response.PartialSuccess().SetErrorMessage(first.Error())
	if asJSON {
		return encoded(response.MarshalJSON())
	}
	return encoded(response.MarshalProto())
}

// otlpStatus encodes the response to a refused request: a google.rpc.Status. code is a gRPC status code.
func otlpStatus(code int32, text string, asJSON bool) []byte {
	status := &statuspb.Status{Code: code, Message: strings.ToValidUTF8(text, "\uFFFD")}
	if asJSON {
		return encoded(protojson.Marshal(status))
	}
	return encoded(proto.Marshal(status))
}

// encoded returns b, or nil if err is set. The messages of this file have only numbers and valid
// texts, so their encoding does not fail.
func encoded(b []byte, err error) []byte {
	if err != nil {
		return nil
	}
	return b
}
