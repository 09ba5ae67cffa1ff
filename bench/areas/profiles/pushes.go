package profiles

import (
	"bytes"
	"compress/gzip"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/ferula-io/ferula/internal/profiles/profilepb"
)

// PushPath is the path to which the requests of Pushes are posted, and MergePath that of MergeRequest.
const (
	PushPath  = pushPath
	MergePath = mergePath
)

// Fleet makes the pushes of 100 services with the given number of pods each. Any number of Pushes may share it.
type Fleet struct{ f *podFleet }

// NewFleet returns a fleet of 100 services.
func NewFleet(podsPerService int) (Fleet, error) {
	f, err := newPodFleet(podsPerService)
	return Fleet{f}, err
}

// Pushes makes requests of a fleet. It must not be used by two goroutines at once.
type Pushes struct {
	f       *podFleet
	scratch bytes.Buffer
	w       *gzip.Writer
}

// NewPushes returns a maker of requests.
func NewPushes(fleet Fleet) (*Pushes, error) {
	p := &Pushes{f: fleet.f}
	var err error
	p.w, err = gzip.NewWriterLevel(&p.scratch, gzip.NoCompression)
	return p, err
}

// Request returns an encoded push.v1.PushRequest, the n-th of the fleet, of one heap profile of 200 samples. It also returns the
// bytes that the profile records as allocated.
func (p *Pushes) Request(n int, timeNS int64) (body []byte, total int64, err error) {
	return p.f.request(n, timeNS, &p.scratch, p.w)
}

// MergeRequest returns a request for the flame graph of everything that a fleet has pushed between two times.
func MergeRequest(startMS, endMS int64) ([]byte, error) {
	return proto.Marshal(&profilepb.SelectMergeStacktracesRequest{ProfileTypeID: heapType.String(), LabelSelector: `{pod!=""}`, Start: startMS, End: endMS})
}

// MergedTotal returns the total of a response to MergeRequest: the allocated bytes.
func MergedTotal(body []byte) (int64, error) {
	var response profilepb.SelectMergeStacktracesResponse
	if err := proto.Unmarshal(body, &response); err != nil {
		return 0, fmt.Errorf("merge of profiles: %w", err)
	}
	return response.GetFlamegraph().GetTotal(), nil
}
