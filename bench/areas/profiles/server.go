package profiles

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"

	"google.golang.org/protobuf/proto"

	"github.com/ferula-io/ferula/bench/area"
	"github.com/ferula-io/ferula/bench/peer"
	"github.com/ferula-io/ferula/bench/proc"
	"github.com/ferula-io/ferula/internal/profiles/profilepb"
)

// server is a running ferula serve.
type server struct{ *area.Side }

// Paths of the API.
const (
	PushPath   = "/push.v1.PusherService/Push"
	seriesPath = "/querier.v1.QuerierService/SelectSeries"
	MergePath  = "/querier.v1.QuerierService/SelectMergeStacktraces"
)

// serve calls work while ferula serve runs over a directory of profiles. Its limits of rate and age do not apply to the bench's
// profiles, and it does not profile itself.
func serve(ctx context.Context, b *area.Bench, dir string, work func(s *server) error, flags ...string) error {
	side, err := b.SideOf(ctx, ferula, peer.Ferula, ".")
	if err != nil {
		return err
	}
	s := &server{side}
	launch := func(*area.Side) (proc.Spec, error) {
		config := filepath.Join(dir, "prometheus.yml")
		flags = append(flags, "--no-profiles.self", "--storage.profiles.retention.time=0s", "--profiles.limit.rate=1GB",
			"--profiles.limit.burst=1GB", "--profiles.limit.age=20y")
		return s.Program.Serve(s.Log(), dir, config, flags...), errors.Join(os.MkdirAll(dir, 0o755),
			os.WriteFile(config, []byte("global: {external_labels: {cluster: bench}}\n"), 0o644))
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

// MergeRequest returns a request for the flame graph of what a fleet has pushed between two times.
func MergeRequest(selector string, startMS, endMS int64) ([]byte, error) {
	return proto.Marshal(&profilepb.SelectMergeStacktracesRequest{
		ProfileTypeID: heapType.String(), LabelSelector: selector, Start: startMS, End: endMS,
	})
}

// MergedTotal returns the total of a response to MergeRequest: the allocated bytes.
func MergedTotal(body []byte) (int64, error) {
	var response profilepb.SelectMergeStacktracesResponse
	if err := proto.Unmarshal(body, &response); err != nil {
		return 0, fmt.Errorf("merge of profiles: %w", err)
	}
	return response.GetFlamegraph().GetTotal(), nil
}
