package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/ferula-io/ferula/internal/httpbody"
	"github.com/ferula-io/ferula/internal/profiles/profilepb"
)

var errPushDisabled = errors.New("pushing profiles is disabled")

// readBodyFirst reads the body of a request, of at most bytesMax bytes. Then it waits for one of
// slots, unless slots is nil, and calls next. It writes errors in the protocol of the request.
func (s *Server) readBodyFirst(next http.Handler, slots chan struct{}, bytesMax int) http.Handler {
	errs := connect.NewErrorWriter()
	fail := func(w http.ResponseWriter, r *http.Request, err error) {
		httpbody.Prepare(w, r, err)
		if !errs.IsSupported(r) {
			http.Error(w, err.Error(), httpbody.Status(err))
			return
		}
		_ = errs.Write(w, r, connect.NewError(bodyCode(err), err)) // a write fails if the client disconnected
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := s.opts.Bodies.Read(w, r, framedMax(r, bytesMax))
		if err != nil {
			if errors.Is(err, httpbody.ErrTooLarge) && bytesMax == s.opts.BodyMaxBytes {
				err = fmt.Errorf("%w%s", err, s.opts.Flags.Of("BodyMaxBytes"))
			}
			fail(w, r, err)
			return
		}
		defer body.Release()
		if slots != nil {
			if err := s.opts.Bodies.TakeSlot(r.Context(), slots); err != nil {
				if r.Context().Err() == nil {
					fail(w, r, err)
				}
				return // the client disconnected; nothing was ingested
			}
			defer func() { <-slots }()
		}
		r.Body, r.ContentLength = body.NewReader(), body.Size()
		next.ServeHTTP(w, r)
	})
}

func bodyCode(err error) connect.Code {
	switch {
	case errors.Is(err, httpbody.ErrTooLarge):
		return connect.CodeResourceExhausted
	case errors.Is(err, httpbody.ErrBusy), errors.Is(err, httpbody.ErrSlow):
		return connect.CodeUnavailable
	}
	return connect.CodeInvalidArgument
}

// framedMax is the limit of a body: gRPC and gRPC-Web add a frame header to the message.
func framedMax(r *http.Request, messageMax int) int64 {
	limit := int64(messageMax)
	if strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc") {
		return limit + 64
	}
	return limit
}

// pushInSlot is push within the limit of concurrent pushes. Until the push ends, the size of the message counts
// against the budget of bodies.
func (s *Server) pushInSlot(ctx context.Context, tenant string,
	m *profilepb.PushRequest) (*profilepb.PushResponse, error) {
	release, err := s.opts.Bodies.Hold(int64(proto.Size(m)))
	if err != nil {
		return nil, err
	}
	defer release()
	if err := s.opts.Bodies.TakeSlot(ctx, s.pushSlots); err != nil {
		return nil, err
	}
	defer func() { <-s.pushSlots }()
	return s.push(ctx, tenant, m)
}
