package profiles

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
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

// server is a running ferula serve and a client of its profile API.
type server struct {
	*proc.Server
	http *http.Client
}

// Paths of the API.
const (
	pushPath   = "/push.v1.PusherService/Push"
	seriesPath = "/querier.v1.QuerierService/SelectSeries"
	mergePath  = "/querier.v1.QuerierService/SelectMergeStacktraces"
)

// serve starts ferula serve over a directory of profiles. Its limits of rate and age do not apply to the bench's profiles, and
// it does not profile itself.
func serve(ctx context.Context, env area.Env, out *area.Outcome, dir string) (*server, error) {
	program, err := env.Programs.Get(ctx, peer.Ferula)
	if err != nil {
		return nil, err
	}
	if len(out.Versions) == 0 {
		out.Versions = append(out.Versions, program.Version)
	}
	config, log := filepath.Join(dir, "prometheus.yml"), filepath.Join(env.Cache, "run", "profiles.log")
	if err := errors.Join(os.MkdirAll(filepath.Dir(log), 0o755), os.WriteFile(config, nil, 0o644)); err != nil {
		return nil, err
	}
	s, err := proc.Start(ctx, program.Serve(peer.TSDB{Dir: dir, Config: config, Log: log, More: []string{
		"--no-profiles.self", "--storage.profiles.retention.time=0s", "--profiles.limit.rate=1GB", "--profiles.limit.burst=1GB", "--profiles.limit.age=20y",
	}}))
	if err != nil {
		return nil, err
	}
	return &server{s, &http.Client{Transport: &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: clients}}}, nil
}

func (s *server) stop() error {
	s.http.CloseIdleConnections()
	return s.Stop()
}

// call posts an encoded request and returns the encoded response.
func (s *server) call(ctx context.Context, path string, request []byte) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL()+path, bytes.NewReader(request))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/proto")
	response, err := s.http.Do(r)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %w %s: %.500s", path, proc.ErrStatus, response.Status, body)
	}
	return body, err
}

// seriesCalls is the number of requests in a reading.
const seriesCalls = 100

// measureSeries measures the server's CPU for a request without exemplars and one with exemplars. It returns the response with
// exemplars. Both responses are compared with the pushed profiles.
func (s *server) measureSeries(ctx context.Context, env area.Env, out *area.Outcome, req *series.SeriesRequest, pushed *fleet, what string) (last *profilepb.SelectSeriesResponse, err error) {
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
	for round := 1; round <= env.Rounds; round++ {
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
				return nil, err
			}
			out.Recorder.Add(round, side, what, area.Seconds, used.Seconds()/seriesCalls)
		}
	}
	return last, nil
}
