package storeapi

import (
	"cmp"
	"context"
	"errors"
	"log/slog"

	"github.com/prometheus/prometheus/tsdb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ferula-io/ferula/internal/hint"
	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/series/labelenc"
	pb "github.com/ferula-io/ferula/internal/thanos/storepb/thanospb"
	"github.com/ferula-io/ferula/metrics"
)

// ServerOptions are the options of a Server. A limit of zero means no limit unless noted.
type ServerOptions struct {
	SeriesMax    int64        // per Series request
	SamplesMax   int64        // per Series request; each chunk counts as 120 samples, as in Thanos
	BytesMax     int64        // of labels and chunks per Series request
	SortBytesMax int          // of series that are buffered to sort them again; 0: 256 MiB
	Flags        hint.Flags   // the flags that raise the limits, named in errors
	Logger       *slog.Logger // for errors that no client receives; may be nil
	Metrics      *metrics.Set // may be nil
}

func (o ServerOptions) withDefaults() ServerOptions {
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	o.Metrics = cmp.Or(o.Metrics, metrics.NewSet())
	return o
}

// Server serves a Source over gRPC. Use NewServer.
type Server struct {
	src     Source
	opts    ServerOptions
	dropped *metrics.CounterVec
}

// NewServer returns a server, which owns no goroutine.
func NewServer(src Source, opts ServerOptions) *Server {
	opts = opts.withDefaults()
	return &Server{src: src, opts: opts, dropped: opts.Metrics.NewCounterVec("thanos_store_selects_dropped_total",
		"Number of select queries that were dropped due to configured limits.", "reason")}
}

// Register registers the services with a server that uses GRPCServerOptions.
func (s *Server) Register(to grpc.ServiceRegistrar) {
	to.RegisterService(&storeDesc, s)
	to.RegisterService(&infoDesc, s)
	can := s.src.Capabilities()
	for _, service := range []struct {
		has  bool
		desc *grpc.ServiceDesc
	}{
		{can.Exemplars, &exemplarsDesc},
		{can.Rules, listDesc("Rules", "Rules", (*Server).rules)},
		{can.Targets, listDesc("Targets", "Targets", (*Server).targets)},
		{can.MetricMetadata, listDesc("Metadata", "MetricMetadata", (*Server).metadata)},
		{can.Status, listDesc("Status", "TSDBStatistics", (*Server).tsdbStatistics)},
	} {
		if service.has {
			to.RegisterService(service.desc, s)
		}
	}
}

// toStatus is the only mapping of errors to status codes.
func toStatus(err error) error {
	if err == nil {
		return nil
	}
	code := codes.Internal
	switch {
	case errors.Is(err, ErrBadRequest):
		code = codes.InvalidArgument
	case errors.Is(err, ErrLimit), errors.Is(err, series.ErrSortLimit):
		code = codes.ResourceExhausted
	case errors.Is(err, ErrUnavailable), errors.Is(err, tsdb.ErrNotReady):
		code = codes.Unavailable
	case errors.Is(err, ErrCorrupt), errors.Is(err, series.ErrCorrupt), errors.Is(err, labelenc.ErrCorrupt):
		code = codes.DataLoss
	case errors.Is(err, context.Canceled):
		code = codes.Canceled
	case errors.Is(err, context.DeadlineExceeded):
		code = codes.DeadlineExceeded
	default:
		if s, ok := status.FromError(err); ok {
			return s.Err()
		}
	}
	return status.Error(code, err.Error())
}

func (s *Server) info(ctx context.Context, _ *pb.InfoRequest) (*pb.InfoResponse, error) {
	info, err := s.src.Info(ctx)
	if err != nil {
		return nil, err
	}
	return infoTo(info), nil
}
