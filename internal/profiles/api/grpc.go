package api

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/ferula-io/ferula/internal/profiles/profilepb"
)

// RegisterGRPC registers the services of pushes and queries with a gRPC server, for clients that use
// the port of that server. It does not register the service of settings. Calls return Unavailable
// until ready returns true.
func (s *Server) RegisterGRPC(to grpc.ServiceRegistrar, ready func() bool) {
	to.RegisterService(&grpc.ServiceDesc{
		ServiceName: strings.Trim(pusherPath, "/"), HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{method(s, ready, pusherPath, "Push", s.pushInSlot)},
	}, s)
	q := querierPath
	to.RegisterService(&grpc.ServiceDesc{
		ServiceName: strings.Trim(q, "/"), HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{
			method(s, ready, q, "ProfileTypes", s.profileTypes), method(s, ready, q, "LabelNames", s.labelNames),
			method(s, ready, q, "LabelValues", s.labelValues), method(s, ready, q, "Series", s.series),
			method(s, ready, q, "GetProfileStats", s.stats), method(s, ready, q, "SelectSeries", s.selectSeries),
			method(s, ready, q, "SelectMergeStacktraces", s.selectMergeStacktraces), method(s, ready, q, "SelectMergeProfile",
				s.selectMergeProfile),
			method(s, ready, q, "SelectFunctions", s.selectFunctions),
			method(s, ready, q, "SelectMergeSpanProfile", s.selectMergeSpanProfile),
			method(s, ready, q, "SelectHeatmap", s.selectHeatmap),
			method(s, ready, q, "Diff", s.diff), method(s, ready, q, "AnalyzeQuery", s.analyzeQuery),
		},
	}, s)
}

// method returns a gRPC method that calls f with the request's tenant.
func method[Req, Res any](s *Server, ready func() bool, service, name string,
	f func(ctx context.Context, tenant string, m *Req) (*Res, error)) grpc.MethodDesc {
	serve := func(ctx context.Context, request any) (any, error) {
		if !ready() {
			return nil, status.Error(codes.Unavailable, "Service Unavailable")
		}
		incoming, _ := metadata.FromIncomingContext(ctx)
		tenant, err := s.opts.Tenant(http.Header{"X-Scope-Orgid": incoming.Get("x-scope-orgid")})
		if err != nil {
			return nil, status.Error(codes.InvalidArgument, err.Error())
		}
		ctx, outcome := withRequestContext(ctx)
		defer outcome.close()
		ctx, cancel := context.WithTimeout(ctx, s.opts.QueryTimeout)
		defer cancel()
		response, err := f(ctx, tenant, request.(*Req))
		if err != nil {
			return nil, status.Error(codes.Code(s.codeOf(err)), err.Error()) // connect and gRPC number codes alike
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
	return grpc.MethodDesc{MethodName: name, Handler: func(_ any, ctx context.Context, decode func(any) error,
		interceptor grpc.UnaryServerInterceptor) (any, error) {
		request := new(Req)
		if err := decode(request); err != nil {
			return nil, err
		}
		if interceptor == nil {
			return serve(ctx, request)
		}
		return interceptor(ctx, request, &grpc.UnaryServerInfo{Server: s, FullMethod: service + name}, serve)
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
