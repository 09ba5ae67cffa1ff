package storeapi

import (
	"context"

	"google.golang.org/grpc"
)

// The descriptors of the services. The generated code registers the .proto files for gRPC's
// reflection.

const (
	storeFile = "internal/thanos/storepb/thanospb/store.proto"
	infoFile  = "internal/thanos/storepb/thanospb/info.proto"
)

var storeDesc = grpc.ServiceDesc{
	ServiceName: "thanos.Store",
	HandlerType: (*any)(nil),
	Methods: []grpc.MethodDesc{
		unary("thanos.Store", "LabelNames", (*Server).labelNames),
		unary("thanos.Store", "LabelValues", (*Server).labelValues),
	},
	Streams:  []grpc.StreamDesc{streamed("Series", (*Server).series)},
	Metadata: storeFile,
}

var infoDesc = grpc.ServiceDesc{
	ServiceName: "thanos.info.Info",
	HandlerType: (*any)(nil),
	Methods:     []grpc.MethodDesc{unary("thanos.info.Info", "Info", (*Server).info)},
	Metadata:    infoFile,
}

var exemplarsDesc = grpc.ServiceDesc{
	ServiceName: "thanos.Exemplars",
	HandlerType: (*any)(nil),
	Streams:     []grpc.StreamDesc{streamed("Exemplars", (*Server).exemplars)},
	Metadata:    storeFile,
}

// unary describes a method with one request and one response.
func unary[In, Out any](service, name string, method func(*Server, context.Context,
	*In) (*Out, error)) grpc.MethodDesc {
	handler := func(srv any, ctx context.Context, decode func(any) error,
		interceptor grpc.UnaryServerInterceptor) (any, error) {
		in := new(In)
		if err := decode(in); err != nil {
			return nil, err
		}
		call := func(ctx context.Context, in any) (any, error) {
			out, err := method(srv.(*Server), ctx, in.(*In))
			if err != nil {
				return nil, toStatus(err)
			}
			return out, nil
		}
		if interceptor == nil {
			return call(ctx, in)
		}
		return interceptor(ctx, in, &grpc.UnaryServerInfo{Server: srv, FullMethod: "/" + service + "/" + name}, call)
	}
	return grpc.MethodDesc{MethodName: name, Handler: handler}
}

// streamed describes a method with one request and a stream of responses.
func streamed[In any](name string, method func(*Server, *In, grpc.ServerStream) error) grpc.StreamDesc {
	handler := func(srv any, stream grpc.ServerStream) error {
		in := new(In)
		if err := stream.RecvMsg(in); err != nil {
			return err
		}
		return toStatus(method(srv.(*Server), in, stream))
	}
	return grpc.StreamDesc{StreamName: name, Handler: handler, ServerStreams: true}
}
