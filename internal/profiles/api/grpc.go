package api

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/ferula-io/ferula/internal/profiles/profilepb"
)

// The services. RegisterGRPC registers those of pushes and queries only.
const (
	pusherPath   = "/push.v1.PusherService/"
	querierPath  = "/querier.v1.QuerierService/"
	settingsPath = "/settings.v1.SettingsService/"
)

func (s *Server) methods() []method {
	q := querierPath
	push := newMethod(s, pusherPath, "Push", s.push)
	push.grpc = newMethod(s, pusherPath, "Push", s.pushInSlot).grpc // by HTTP the body waits for the slot
	return []method{
		push,
		newMethod(s, q, "ProfileTypes", s.profileTypes),
		newMethod(s, q, "LabelNames", s.labelNames),
		newMethod(s, q, "LabelValues", s.labelValues),
		newMethod(s, q, "Series", s.series),
		newMethod(s, q, "GetProfileStats", s.stats),
		newMethod(s, q, "SelectSeries", s.selectSeries),
		newMethod(s, q, "SelectMergeStacktraces", s.selectMergeStacktraces),
		newMethod(s, q, "SelectMergeProfile", s.selectMergeProfile),
		newMethod(s, q, "SelectMergeSpanProfile", s.selectMergeSpanProfile),
		newMethod(s, q, "SelectFunctions", s.selectFunctions),
		newMethod(s, q, "SelectHeatmap", s.selectHeatmap),
		newMethod(s, q, "Diff", s.diff),
		newMethod(s, q, "AnalyzeQuery", s.analyzeQuery),
		newMethod(s, settingsPath, "Get", s.getSettings),
		newMethod(s, settingsPath, "Set", s.setSettings),
	}
}

// method is a method of a service, which clients call by Connect, gRPC and gRPC-Web on the same path.
type method struct {
	service, name string
	connect       func(options ...connect.HandlerOption) http.Handler
	grpc          func(ready func() bool) grpc.MethodDesc // for clients that use the port of the gRPC server
}

// newMethod returns a method that calls f with the tenant of a request.
func newMethod[Req, Res any](s *Server, service, name string,
	f func(ctx context.Context, tenant string, m *Req) (*Res, error)) method {
	overHTTP := func(ctx context.Context, r *connect.Request[Req]) (*connect.Response[Res], error) {
		message, err := invoke(ctx, s, r.Header(), r.Msg, f)
		if err != nil {
			return nil, connect.NewError(codeOf(err), err)
		}
		response := connect.NewResponse(message)
		for name, values := range requestContextOf(ctx).headers() {
			response.Header()[name], response.Trailer()[name] = values, values
		}
		return response, nil
	}
	overGRPC := func(ctx context.Context, request any) (any, error) {
		ctx, outcome := withRequestContext(ctx)
		defer outcome.close()
		incoming, _ := metadata.FromIncomingContext(ctx)
		h := http.Header{"X-Scope-Orgid": incoming.Get("x-scope-orgid")}
		response, err := invoke(ctx, s, h, request.(*Req), f)
		if err != nil {
			return nil, status.Error(codes.Code(codeOf(err)), err.Error()) // connect and gRPC number codes alike
		}
		if headers := outcome.headers(); headers != nil {
			md := metadata.MD{}
			for name, values := range headers {
				md[strings.ToLower(name)] = values
			}
			if err := errors.Join(grpc.SetHeader(ctx, md), grpc.SetTrailer(ctx, md)); err != nil {
				return nil, status.Error(codes.Internal, err.Error()) // without the headers a partial response would look complete
			}
		}
		return toMessage(response), nil
	}
	return method{
		service: service, name: name,
		connect: func(options ...connect.HandlerOption) http.Handler {
			return connect.NewUnaryHandler(service+name, overHTTP, options...)
		},
		grpc: func(ready func() bool) grpc.MethodDesc {
			return UnaryMethod[Req](ready, service, name, overGRPC)
		},
	}
}

// invoke calls f with the tenant of a request and the timeout of queries.
func invoke[Req, Res any](ctx context.Context, s *Server, h http.Header, m Req,
	f func(ctx context.Context, tenant string, m Req) (Res, error)) (response Res, err error) {
	tenant, err := s.opts.Tenant(h)
	if err != nil {
		return response, badRequest{err}
	}
	ctx, cancel := context.WithTimeout(ctx, s.opts.QueryTimeout)
	defer cancel()
	return f(ctx, tenant, m)
}

// RegisterGRPC registers the services of pushes and queries with a gRPC server. Calls return Unavailable until ready
// returns true.
func (s *Server) RegisterGRPC(to grpc.ServiceRegistrar, ready func() bool) {
	for _, service := range []string{pusherPath, querierPath} {
		desc := &grpc.ServiceDesc{ServiceName: strings.Trim(service, "/"), HandlerType: (*any)(nil)}
		for _, m := range s.methods() {
			if m.service == service {
				desc.Methods = append(desc.Methods, m.grpc(ready))
			}
		}
		to.RegisterService(desc, s)
	}
}

// UnaryMethod returns a method of a gRPC service that decodes a request and passes it to serve once ready returns true.
func UnaryMethod[Req any](ready func() bool, service, name string, serve grpc.UnaryHandler) grpc.MethodDesc {
	return grpc.MethodDesc{MethodName: name, Handler: func(_ any, ctx context.Context, decode func(any) error,
		interceptor grpc.UnaryServerInterceptor) (any, error) {
		request := new(Req)
		if err := decode(request); err != nil {
			return nil, err
		}
		whenReady := func(ctx context.Context, request any) (any, error) {
			if !ready() {
				return nil, status.Error(codes.Unavailable, "Service Unavailable")
			}
			return serve(ctx, request)
		}
		if interceptor == nil {
			return whenReady(ctx, request)
		}
		return interceptor(ctx, request, &grpc.UnaryServerInfo{FullMethod: service + name}, whenReady)
	}}
}

// toMessage turns a response that encodes itself into a message: its bytes become the
// unknown fields of an empty message, which protobuf copies unchanged.
func toMessage(response any) proto.Message {
	if e, ok := response.(profilepb.Encoder); ok {
		m := &emptypb.Empty{}
		m.ProtoReflect().SetUnknown(e.AppendProto(nil))
		return m
	}
	return response.(proto.Message)
}
