package profiles

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/ferula-io/ferula/internal/profiles/profilepb"
)

// PushPath is the path to which the requests of a Fleet are posted, and MergePath that of MergeRequest.
const (
	PushPath  = pushPath
	MergePath = mergePath
)

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
