package profiles

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/ferula-io/ferula/bench/area"
	"github.com/ferula-io/ferula/bench/proc"
	series "github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/profilepb"
	"github.com/ferula-io/ferula/internal/series/labelenc"
)

// The parts of a push.
const (
	pushCPU       = "CPU: a push"
	pushHTTPCPU   = "CPU: a push over HTTP"
	flushCPU      = "CPU: a profile's part of a flush"
	compactionCPU = "CPU: compaction of a profile"
)

// measurePush compares the cost of a pushed profile (HTTP request, flush and compaction) with that of parsing it.
func measurePush(b *area.Bench) {
	all := b.Median(ferula, pushHTTPCPU) + b.Median(ferula, flushCPU) + b.Median(ferula, compactionCPU)
	b.Measure("profiles/push-vs-parse", area.Over(all, b.Median(naive, pushCPU)), pushHTTPCPU, flushCPU, compactionCPU, pushCPU)
}

// pushRequest is an encoded push.v1.PushRequest of one profile.
func pushRequest(p *series.RawProfile) ([]byte, error) {
	s := &profilepb.RawProfileSeries{Samples: []*profilepb.RawSample{{RawProfile: p.Raw, ID: p.ID.String()}}}
	for set := p.Labels; len(set) > 0; {
		name, value, rest, err := labelenc.Next(set)
		if err != nil {
			return nil, err
		}
		s.Labels, set = append(s.Labels, &profilepb.LabelPair{Name: string(name), Value: string(value)}), rest
	}
	return proto.Marshal(&profilepb.PushRequest{Series: []*profilepb.RawProfileSeries{s}})
}

// pushRequests returns the pushRequest of each profile.
func pushRequests(pushed []series.RawProfile) (requests [][]byte, err error) {
	requests = make([][]byte, len(pushed))
	for i := range pushed {
		if requests[i], err = pushRequest(&pushed[i]); err != nil {
			return nil, err
		}
	}
	return requests, nil
}

// pushesOverHTTP measures the CPU of a server to which several clients push at once.
func pushesOverHTTP(ctx context.Context, b *area.Bench, pushed []series.RawProfile, totals []int64) error {
	requests, err := pushRequests(pushed)
	if err != nil {
		return err
	}
	return b.EachRound("pushes over HTTP", func(round int) error {
		return inDir("", func(dir string) error {
			return serve(ctx, b, dir, func(s *server) error { return pushOverHTTP(ctx, b, s, round, requests, sum(totals[:len(pushed)])) })
		})
	})
}

func pushOverHTTP(ctx context.Context, b *area.Bench, s *server, round int, requests [][]byte, want int64) error {
	used, err := s.CPUDuring(ctx, func() error { return s.pushAll(ctx, requests) })
	if err != nil {
		return err
	}
	if got, err := s.total(ctx, epochMS, epochMS+hourMS); err != nil || got != want {
		return fmt.Errorf("%w: %d of %d bytes are stored: %v", area.ErrUnequal, got, want, err)
	}
	b.Add(round, ferula, pushHTTPCPU, area.Seconds, used.Seconds()/float64(len(requests)))
	return nil
}

// pushAll sends encoded pushes from several clients at once.
func (s *server) pushAll(ctx context.Context, requests [][]byte) error {
	return proc.Parallel(clients, func(c int) error {
		for i := c; i < len(requests); i += clients {
			if _, err := s.call(ctx, PushPath, requests[i]); err != nil {
				return err
			}
		}
		return nil
	})
}

// total requests the flame graph of all profiles, and returns its total bytes.
func (s *server) total(ctx context.Context, startMS, endMS int64) (int64, error) {
	request, err := MergeRequest("{}", startMS, endMS)
	if err != nil {
		return 0, err
	}
	body, err := s.call(ctx, MergePath, request)
	if err != nil {
		return 0, err
	}
	return MergedTotal(body)
}
