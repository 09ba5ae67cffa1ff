package profiles

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/ferula-io/ferula/bench/area"
	"github.com/ferula-io/ferula/internal/profiles/profilepb"
	"github.com/ferula-io/ferula/internal/profiles/store"
)

const (
	wirePods     = 100
	wireServices = 5
	wireRows     = 24_000 // one profile of each pod every 15 s for an hour
	wireMarshals = 100
)

// wire measures responses that have an exemplar for each point of each pod.
func wire(ctx context.Context, b *area.Bench) error {
	sets := make([][]byte, wirePods) // every pod has a name of its own, because they are the groups
	for i := range sets {
		sets[i] = labelsOf("process_cpu", serviceName(i%wireServices), i)
	}
	req := seriesRequest(60, "pod")
	req.StepMS = groupedStepMS
	const what = "server CPU: 6,100 points by pod"
	err := inDir("", func(dir string) error {
		var pushed *fleet
		err := inStore(dir, unmerged, func(s *store.Store, _ string) (err error) {
			pushed, err = pushFleet(ctx, s, sets, wireRows, fleetBlocks, fleetBlocks+1)
			return err
		})
		if err != nil {
			return err
		}
		return serve(ctx, b, dir, func(s *server) error {
			response, err := s.measureSeries(ctx, b, &req, pushed, what)
			if err != nil {
				return err
			}
			return marshals(b, response, what)
		})
	})
	b.Measure("profiles/exemplars-wire", b.Over(with, naive, what), what)
	b.Note(fmt.Sprintf("By pod: %d pods, %d rows in %d blocks and a head, 61 steps of 60 s, labels __name__ and service_name in every exemplar. Server CPU of a ferula serve from the request to the last byte; naive: proto.Marshal of the decoded response with exemplars. Garbage collection is included in both.", wirePods, wireRows, fleetBlocks))
	return err
}

// marshals measures proto.Marshal of a response.
func marshals(b *area.Bench, response *profilepb.SelectSeriesResponse, what string) error {
	exemplars := 0
	for p := range pointsOfMessage(response) {
		exemplars += len(p.exemplars)
	}
	if exemplars < 6000 {
		return fmt.Errorf("%w: %d exemplars", area.ErrEmpty, exemplars)
	}
	return b.EachRound("proto.Marshal", func(round int) error {
		t, err := area.CPUOf(wireMarshals, func() error {
			encoded, err := proto.Marshal(response)
			if err == nil && len(encoded) == 0 {
				err = area.ErrEmpty
			}
			return err
		})
		b.Add(round, naive, what, area.Seconds, t.Seconds())
		return err
	})
}
