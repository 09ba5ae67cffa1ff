package profiles

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/ferula-io/ferula/bench/area"
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
func measurePush(out *area.Outcome) {
	rec := &out.Recorder
	all := rec.Median(ferula, pushHTTPCPU) + rec.Median(ferula, flushCPU) + rec.Median(ferula, compactionCPU)
	out.Measure("profiles/push-vs-parse", area.Over(all, rec.Median(naive, pushCPU)), pushHTTPCPU, flushCPU, compactionCPU, pushCPU)
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

// pushesOverHTTP measures the CPU of a server to which several clients push at once.
func pushesOverHTTP(ctx context.Context, env area.Env, out *area.Outcome, pushed []series.RawProfile, totals []int64) error {
	requests := make([][]byte, len(pushed))
	var want int64
	for i := range pushed {
		var err error
		if requests[i], err = pushRequest(&pushed[i]); err != nil {
			return err
		}
		want += totals[i]
	}
	for round := 1; round <= env.Rounds; round++ {
		if err := pushOverHTTP(ctx, env, out, round, requests, want); err != nil {
			return fmt.Errorf("push over HTTP: %w", err)
		}
	}
	return nil
}

func pushOverHTTP(ctx context.Context, env area.Env, out *area.Outcome, round int, requests [][]byte, want int64) (err error) {
	dir, remove, err := tempDir()
	if err != nil {
		return err
	}
	defer remove()
	s, err := serve(ctx, env, out, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	used, err := s.CPUDuring(ctx, func() error {
		errs := make([]error, clients)
		var running sync.WaitGroup
		for c := range clients {
			running.Go(func() {
				for i := c; i < len(requests) && errs[c] == nil; i += clients {
					_, errs[c] = s.call(ctx, pushPath, requests[i])
				}
			})
		}
		running.Wait()
		return errors.Join(errs...)
	})
	if err != nil {
		return err
	}
	if got, err := s.total(ctx, epochMS, epochMS+hourMS); err != nil || got != want {
		return fmt.Errorf("%w: %d of %d bytes are stored: %v", area.ErrUnequal, got, want, err)
	}
	out.Recorder.Add(round, ferula, pushHTTPCPU, area.Seconds, used.Seconds()/float64(len(requests)))
	return nil
}

// total requests the flame graph of all profiles, and returns its total bytes.
func (s *server) total(ctx context.Context, startMS, endMS int64) (int64, error) {
	request, err := proto.Marshal(&profilepb.SelectMergeStacktracesRequest{ProfileTypeID: heapType.String(), LabelSelector: "{}", Start: startMS, End: endMS})
	if err != nil {
		return 0, err
	}
	body, err := s.call(ctx, mergePath, request)
	if err != nil {
		return 0, err
	}
	var response profilepb.SelectMergeStacktracesResponse
	if err := proto.Unmarshal(body, &response); err != nil {
		return 0, err
	}
	return response.GetFlamegraph().GetTotal(), nil
}
