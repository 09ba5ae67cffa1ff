package storeapi

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/prometheus/prometheus/model/labels"
	"google.golang.org/grpc"

	"github.com/ferula-io/ferula/internal/series"
	pb "github.com/ferula-io/ferula/internal/thanos/storepb/thanospb"
)

func (s *Server) labelNames(ctx context.Context, in *pb.LabelNamesRequest) (*pb.LabelNamesResponse, error) {
	r := LabelsRequest{
		MinMS: in.Start, MaxMS: in.End, WithoutReplicaLabels: in.WithoutReplicaLabels, Limit: in.Limit,
		AbortOnPartial: aborts(in.PartialResponseDisabled, in.PartialResponseStrategy),
	}
	external := s.src.ExternalLabels()
	found, err := r.parse(in.Matchers, external)
	if err != nil || !found {
		return &pb.LabelNamesResponse{}, err
	}
	names, warnings, err := s.src.LabelNames(ctx, r)
	if err != nil {
		return nil, err
	}
	if len(names) > 0 { // without series there are no external labels either
		external.Range(func(l labels.Label) { names = append(names, l.Name) })
		slices.Sort(names)
		names = slices.Compact(names)
	}
	names = slices.DeleteFunc(names, func(name string) bool { return slices.Contains(r.WithoutReplicaLabels, name) })
	return &pb.LabelNamesResponse{Names: cut(names, r.Limit), Warnings: warnings}, nil
}

func (s *Server) labelValues(ctx context.Context, in *pb.LabelValuesRequest) (*pb.LabelValuesResponse, error) {
	r := LabelsRequest{
		Label: in.Label, MinMS: in.Start, MaxMS: in.End, WithoutReplicaLabels: in.WithoutReplicaLabels, Limit: in.Limit,
		AbortOnPartial: aborts(in.PartialResponseDisabled, in.PartialResponseStrategy),
	}
	if r.Label == "" {
		return nil, fmt.Errorf("%w: the request for label values has no label", ErrBadRequest)
	}
	external := s.src.ExternalLabels()
	found, err := r.parse(in.Matchers, external)
	if err != nil || !found || slices.Contains(r.WithoutReplicaLabels, r.Label) {
		return &pb.LabelValuesResponse{}, err
	}
	if external.Has(r.Label) {
		if len(r.Matchers) > 0 {
			any, warnings, err := s.anySeries(ctx, r)
			if err != nil || !any {
				return &pb.LabelValuesResponse{Warnings: warnings}, err
			}
		}
		return &pb.LabelValuesResponse{Values: []string{external.Get(r.Label)}}, nil
	}
	values, warnings, err := s.src.LabelValues(ctx, r)
	return &pb.LabelValuesResponse{Values: cut(values, r.Limit), Warnings: warnings}, err
}

// parse checks a request and parses its matchers. found is false if a matcher excludes
// the external labels.
func (r *LabelsRequest) parse(matchers []*pb.LabelMatcher, external labels.Labels) (found bool, err error) {
	if err := checkRange(r.MinMS, r.MaxMS); err != nil {
		return false, err
	}
	all, err := matchersFrom(matchers)
	if err != nil {
		return false, err
	}
	r.Matchers, found = series.MatchExternal(external, all)
	return found, nil
}

func checkRange(minMS, maxMS int64) error {
	if minMS > maxMS {
		return fmt.Errorf("%w: the end of the range (%d) is before its start (%d)", ErrBadRequest, maxMS, minMS)
	}
	return nil
}

// anySeries reports whether any series matches. It stops at the first series. warnings say which data was not read.
func (s *Server) anySeries(ctx context.Context, r LabelsRequest) (any bool, warnings []string, err error) {
	set := s.src.Series(ctx, SeriesRequest{MinMS: r.MinMS, MaxMS: r.MaxMS, Matchers: r.Matchers,
		SortBytesMax: s.opts.SortBytesMax})
	defer func() { err = errors.Join(err, set.Close()) }()
	any = set.Next()
	for _, w := range set.Warnings() {
		warnings = append(warnings, w.Error())
	}
	return any, warnings, set.Err()
}

func cut(list []string, limit int64) []string {
	if limit > 0 && int64(len(list)) > limit {
		return list[:limit]
	}
	return list
}

func (s *Server) exemplars(in *pb.ExemplarsRequest, out grpc.ServerStream) error {
	if err := checkRange(in.Start, in.End); err != nil {
		return err
	}
	results, warnings, err := s.src.Exemplars(out.Context(), ExemplarsRequest{
		Query: in.Query, MinMS: in.Start, MaxMS: in.End, AbortOnPartial: aborts(false, in.PartialResponseStrategy),
	})
	if err != nil {
		return err
	}
	var messages []any
	for _, r := range results {
		r.SeriesLabels = WithExternal(r.SeriesLabels, s.src.ExternalLabels())
		messages = append(messages, &pb.ExemplarsResponse{Result: &pb.ExemplarsResponse_Data{Data: exemplarsTo(r)}})
	}
	return sendAll(out, messages, warnings, func(w string) any {
		return &pb.ExemplarsResponse{Result: &pb.ExemplarsResponse_Warning{Warning: w}}
	})
}

// WithExternal returns own with the external labels, which replace labels of the same names.
func WithExternal(own, external labels.Labels) labels.Labels {
	b := labels.NewBuilder(own)
	external.Range(func(l labels.Label) { b.Set(l.Name, l.Value) })
	return b.Labels()
}
