package profiles

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"

	"google.golang.org/protobuf/proto"

	"github.com/ferula-io/ferula/bench/area"
	"github.com/ferula-io/ferula/bench/peer"
	"github.com/ferula-io/ferula/bench/proc"
	series "github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/profilepb"
)

// server is a running ferula serve.
type server struct{ *area.Side }

// Paths of the API.
const (
	pushPath   = "/push.v1.PusherService/Push"
	seriesPath = "/querier.v1.QuerierService/SelectSeries"
	mergePath  = "/querier.v1.QuerierService/SelectMergeStacktraces"
)

// serve calls work while ferula serve runs over a directory of profiles. Its limits of rate and age do not apply to the bench's
// profiles, and it does not profile itself.
func serve(ctx context.Context, b *area.Bench, dir string, work func(s *server) error) error {
	program, err := b.Program(ctx, peer.Ferula)
	if err != nil {
		return err
	}
	s := &server{b.Side(ferula, program, ".")}
	launch := func(*area.Side) (proc.Spec, error) {
		config := filepath.Join(dir, "prometheus.yml")
		return program.Serve(s.Log(), dir, config, "--no-profiles.self", "--storage.profiles.retention.time=0s",
			"--profiles.limit.rate=1GB", "--profiles.limit.burst=1GB", "--profiles.limit.age=20y"), os.WriteFile(config, nil, 0o644)
	}
	return b.With(ctx, launch, func() error { return work(s) }, s.Side)
}

// Call returns the request of an encoded message.
func Call(path string, message []byte) proc.Request {
	return proc.Request{Path: path, Body: message, Header: http.Header{"Content-Type": {"application/proto"}}}
}

// call posts an encoded request and returns the encoded response.
func (s *server) call(ctx context.Context, path string, request []byte) ([]byte, error) {
	body, _, err := s.Fetch(ctx, Call(path, request))
	return body, err
}

// seriesCalls is the number of requests in a reading.
const seriesCalls = 100

// measureSeries measures the server's CPU for a request without exemplars and one with exemplars. It returns the response with
// exemplars. Both responses are compared with the pushed profiles.
func (s *server) measureSeries(ctx context.Context, b *area.Bench, req *series.SeriesRequest, pushed *fleet, what string) (last *profilepb.SelectSeriesResponse, err error) {
	want := pushed.expected(req)
	var requests [2][]byte
	for i, side := range []string{plain, with} {
		m := &profilepb.SelectSeriesRequest{
			ProfileTypeID: req.Type.String(), LabelSelector: "{}", Start: req.StartMS, End: req.EndMS, Step: float64(req.StepMS) / 1000, GroupBy: req.GroupBy,
			ExemplarType: []profilepb.ExemplarType{profilepb.ExemplarType_EXEMPLAR_TYPE_NONE, profilepb.ExemplarType_EXEMPLAR_TYPE_INDIVIDUAL}[i],
		}
		if requests[i], err = proto.Marshal(m); err != nil {
			return nil, err
		}
		body, err := s.call(ctx, seriesPath, requests[i])
		if err != nil {
			return nil, err
		}
		last = &profilepb.SelectSeriesResponse{}
		if err := proto.Unmarshal(body, last); err != nil {
			return nil, err
		}
		if err := compare(want, i == 1, pointsOfMessage(last)); err != nil {
			return nil, fmt.Errorf("response %s: %w", side, err)
		}
	}
	return last, b.EachRound(what, func(round int) error {
		for i, side := range []string{plain, with} {
			used, err := s.CPUDuring(ctx, func() error {
				for range seriesCalls {
					if _, err := s.call(ctx, seriesPath, requests[i]); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				return err
			}
			b.Add(round, side, what, area.Seconds, used.Seconds()/seriesCalls)
		}
		return nil
	})
}
