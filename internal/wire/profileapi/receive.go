package profileapi

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"connectrpc.com/connect"

	"github.com/ferula-io/ferula/internal/codec/profilepb"
	"github.com/ferula-io/ferula/internal/reqbody"
)

var errPushDisabled = errors.New("the receiver of profiles is switched off")

// received reads a request's body before next sees the request, and then takes one
// of slots; nil: there is no limit. Errors are written in the request's protocol.
func (s *Server) received(next http.Handler, slots chan struct{}) http.Handler {
	errs := connect.NewErrorWriter()
	fail := func(w http.ResponseWriter, r *http.Request, err error) {
		reqbody.Prepare(w, r, err)
		if !errs.IsSupported(r) {
			http.Error(w, err.Error(), reqbody.Status(err))
			return
		}
		_ = errs.Write(w, r, connect.NewError(bodyCode(err), err)) // the sender has gone if it fails
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := s.opts.Bodies.Read(w, r, s.framedMax(r))
		if err != nil {
			fail(w, r, err)
			return
		}
		defer body.Release()
		if slots != nil {
			if err := s.opts.Bodies.Enter(r.Context(), slots); err != nil {
				if r.Context().Err() == nil {
					fail(w, r, err)
				}
				return // the sender has gone, nothing was taken
			}
			defer func() { <-slots }()
		}
		r.Body, r.ContentLength = body.NewReader(), body.Size()
		next.ServeHTTP(w, r)
	})
}

// bodyCode is the code of an error of reqbody.
func bodyCode(err error) connect.Code {
	switch {
	case errors.Is(err, reqbody.ErrTooLarge):
		return connect.CodeResourceExhausted
	case errors.Is(err, reqbody.ErrBusy), errors.Is(err, reqbody.ErrSlow):
		return connect.CodeUnavailable
	}
	return connect.CodeInvalidArgument
}

// framedMax is how long a body may be: gRPC and gRPC-web put a frame around the
// message.
func (s *Server) framedMax(r *http.Request) int64 {
	most := int64(s.opts.BodyMaxBytes)
	if strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc") {
		return most + 64
	}
	return most
}

// placed is pushed within the slots that there are.
func (s *Server) placed(ctx context.Context, tenant string, m *profilepb.PushRequest) (*profilepb.PushResponse, error) {
	if err := s.opts.Bodies.Enter(ctx, s.places); err != nil {
		return nil, err
	}
	defer func() { <-s.places }()
	return s.pushed(ctx, tenant, m)
}
