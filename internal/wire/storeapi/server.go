package storeapi

import (
	"context"
	"errors"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/tsdb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ferula-io/ferula/internal/codec/labelenc"
	pb "github.com/ferula-io/ferula/internal/codec/storepb/thanospb"
	"github.com/ferula-io/ferula/internal/series"
)

// ServerOptions of a server. Zero limits are none.
type ServerOptions struct {
	SeriesMax     int64 // of one request, counted inside batches
	SamplesMax    int64 // of one request, as Thanos counts: 120 a chunk
	BytesMax      int64 // of one answer's labels and chunks
	ConcurrentMax int   // Series requests answered at once, further ones wait
	Logger        *slog.Logger
	Registerer    prometheus.Registerer // may be nil
}

// Server serves a Source. Use NewServer.
type Server struct {
	src  Source
	opts ServerOptions
}

// NewServer makes a server; it owns no goroutine.
func NewServer(src Source, opts ServerOptions) *Server {
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	return &Server{src: src, opts: opts}
}

// Register offers the services on s, which must have been made with ServerOption.
func (s *Server) Register(to *grpc.Server) {
	to.RegisterService(&storeDesc, s)
	to.RegisterService(&infoDesc, s)
	if _, ok := s.src.(ExemplarSource); ok {
		to.RegisterService(&exemplarsDesc, s)
	}
}

// toStatus is the one table from errors to codes.
func toStatus(err error) error {
	if err == nil {
		return nil
	}
	code := codes.Internal
	switch {
	case errors.Is(err, ErrBadRequest):
		code = codes.InvalidArgument
	case errors.Is(err, ErrLimit):
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
	if info.Store != nil {
		store := *info.Store
		if _, whole := s.src.(SeriesSource); !whole {
			store.Sharding, store.WithoutReplicaLabels = true, true
		}
		info.Store = &store
	}
	return infoTo(info), nil
}

func (s *Server) labelNames(ctx context.Context, in *pb.LabelNamesRequest) (*pb.LabelNamesResponse, error) {
	matchers, err := matchersFrom(in.Matchers)
	if err != nil {
		return nil, err
	}
	names, warnings, err := s.src.LabelNames(ctx, LabelsRequest{
		MinMS: in.Start, MaxMS: in.End, Matchers: matchers, WithoutReplicaLabels: in.WithoutReplicaLabels, Limit: in.Limit,
		AbortOnPartial: aborts(in.PartialResponseDisabled, in.PartialResponseStrategy),
	})
	return &pb.LabelNamesResponse{Names: names, Warnings: warnings}, err
}

func (s *Server) labelValues(ctx context.Context, in *pb.LabelValuesRequest) (*pb.LabelValuesResponse, error) {
	matchers, err := matchersFrom(in.Matchers)
	if err != nil {
		return nil, err
	}
	values, warnings, err := s.src.LabelValues(ctx, LabelsRequest{
		Label: in.Label, MinMS: in.Start, MaxMS: in.End, Matchers: matchers, WithoutReplicaLabels: in.WithoutReplicaLabels, Limit: in.Limit,
		AbortOnPartial: aborts(in.PartialResponseDisabled, in.PartialResponseStrategy),
	})
	return &pb.LabelValuesResponse{Values: values, Warnings: warnings}, err
}

func (s *Server) exemplars(in *pb.ExemplarsRequest, out grpc.ServerStream) error {
	results, warnings, err := s.src.(ExemplarSource).Exemplars(out.Context(), ExemplarsRequest{
		Query: in.Query, MinMS: in.Start, MaxMS: in.End, AbortOnPartial: aborts(false, in.PartialResponseStrategy),
	})
	if err != nil {
		return err
	}
	for _, r := range results {
		if err := out.SendMsg(&pb.ExemplarsResponse{Result: &pb.ExemplarsResponse_Data{Data: exemplarsTo(r)}}); err != nil {
			return err
		}
	}
	for _, w := range warnings {
		if err := out.SendMsg(&pb.ExemplarsResponse{Result: &pb.ExemplarsResponse_Warning{Warning: w}}); err != nil {
			return err
		}
	}
	return nil
}

func (s *Server) series(in *pb.SeriesRequest, out grpc.ServerStream) (err error) {
	r, err := seriesRequestFrom(in)
	if err != nil {
		return err
	}
	ctx := out.Context()
	q, err := s.src.RawQuerier(ctx, r.MinMS, r.MaxMS)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, q.Close()) }()
	set := q.Select(ctx, r.Matchers...)
	for set.Next() {
		one := &pb.Series{}
		for lset := set.Labels(); len(lset) > 0; {
			name, value, rest, err := labelenc.Next(lset)
			if err != nil {
				return err
			}
			one.Labels, lset = append(one.Labels, &pb.Label{Name: string(name), Value: string(value)}), rest
		}
		for _, c := range set.Chunks() {
			one.Chunks = append(one.Chunks, &pb.AggrChunk{MinTime: c.MinMS, MaxTime: c.MaxMS, Raw: &pb.Chunk{Type: pb.Chunk_Encoding(c.Encoding - 1), Data: c.Data}})
		}
		if err := out.SendMsg(&pb.SeriesResponse{Result: &pb.SeriesResponse_Series{Series: one}}); err != nil {
			return err
		}
	}
	return set.Err()
}
