package app

import (
	"fmt"

	"google.golang.org/grpc"

	"github.com/ferula-io/ferula/internal/thanos/sources"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

// newGRPC creates the gRPC server of the StoreAPI on the local storage, of rules and of
// the profile API.
func (s *Serve) newGRPC() error {
	if err := s.opts.GRPC.CheckAnonymous(s.web); err != nil && !s.opts.GRPC.AllowAnonymous {
		return fmt.Errorf("%w, or allow it with --grpc-server-allow-anonymous", err)
	}
	opts := s.opts.StoreAPI
	opts.Metrics = s.reg.Own
	return s.listenGRPC(s.opts.GRPC, s.tracing, func(to grpc.ServiceRegistrar) {
		source := sources.NewLocal(s.store, s.engine.Parser, s.config.externalLabels, s.rules.RuleGroups)
		storeapi.NewServer(source, opts).Register(to)
		ready := func() bool { return s.process.IsReady() && s.profiles.serving() }
		s.profiles.api.RegisterGRPC(to, ready)
		s.profiles.otlp.RegisterGRPC(to, ready)
	})
}
