package profiles

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/ferula-io/ferula/bench/area"
	"github.com/ferula-io/ferula/internal/profiles/profilepb"
)

const (
	wirePods     = 100
	wireServices = 5
	wireRows     = 24_000 // one profile of each pod every 15 s for an hour
	wireMarshals = 100
)

// wire measures responses that have an exemplar for each point of each pod.
func wire(ctx context.Context, env area.Env, out *area.Outcome) (err error) {
	dir, remove, err := tempDir()
	if err != nil {
		return err
	}
	defer remove()
	sets := make([][]byte, wirePods)
	for i := range sets {
		sets[i] = labelsOf("process_cpu", serviceName(i%wireServices), i)
	}
	pushed, err := pushWire(ctx, dir, sets)
	if err != nil {
		return err
	}
	s, err := serve(ctx, env, out, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	req := seriesRequest(60, "pod")
	req.StepMS = groupedStepMS
	const what = "server CPU: 6,100 points by pod"
	response, err := s.measureSeries(ctx, env, out, &req, pushed, what)
	if err != nil {
		return err
	}
	if err := marshals(env, out, response, what); err != nil {
		return err
	}
	ratio := out.Recorder.Over(with, naive, what)
	env.Logf("%s: with exemplars %.3f of proto.Marshal", what, ratio)
	out.Measure("profiles/exemplars-wire", ratio, what)
	out.Notes = append(out.Notes, fmt.Sprintf("By pod: %d pods, %d rows in %d blocks and a head, 61 steps of 60 s, labels __name__ and service_name in every exemplar. Server CPU of a ferula serve from the request to the last byte; naive: proto.Marshal of the decoded response with exemplars. Garbage collection is included in both.", wirePods, wireRows, fleetBlocks))
	return nil
}

func pushWire(ctx context.Context, dir string, sets [][]byte) (pushed *fleet, err error) {
	s, err := openStore(dir, 1) // blocks are not compacted
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	return pushFleet(ctx, s, sets, wireRows)
}

// marshals measures proto.Marshal of a response.
func marshals(env area.Env, out *area.Outcome, response *profilepb.SelectSeriesResponse, what string) error {
	exemplars := 0
	for p := range pointsOfMessage(response) {
		exemplars += len(p.exemplars)
	}
	if exemplars < 6000 {
		return fmt.Errorf("%w: %d exemplars", area.ErrEmpty, exemplars)
	}
	for round := 1; round <= env.Rounds; round++ {
		t, err := used(func() error {
			for range wireMarshals {
				if b, err := proto.Marshal(response); err != nil || len(b) == 0 {
					return errors.Join(err, area.ErrEmpty)
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		out.Recorder.Add(round, naive, what, area.Seconds, t/wireMarshals)
	}
	return nil
}
