package storeapi

import (
	"bytes"
	"errors"
	"testing"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"

	"github.com/ferula-io/ferula/internal/precheck"
	"github.com/ferula-io/ferula/internal/thanos/storepb/thanospb"
)

func clientCodec() codec { return codec{encoding.GetCodecV2("proto"), responseElementsMax} }

// A label values request of a megabyte would decode to a hundred megabytes of matchers.
func TestCodec_ServerRejectsRequestsOfManyElements(t *testing.T) {
	server := codec{encoding.GetCodecV2("proto"), requestElementsMax}
	matcher := []byte{0x32, 0} // LabelNamesRequest.matchers
	for elements, want := range map[int]error{requestElementsMax: nil, requestElementsMax + 1: precheck.ErrLimit} {
		raw := bytes.Repeat(matcher, elements)
		pieces := mem.BufferSlice{mem.SliceBuffer(raw[:elements]), mem.SliceBuffer(raw[elements:])}
		var m thanospb.LabelNamesRequest
		if err := server.Unmarshal(pieces, &m); !errors.Is(err, want) {
			t.Errorf("%d elements: %v", elements, err)
		}
		if want == nil && len(m.GetMatchers()) != elements {
			t.Errorf("%d of %d matchers", len(m.GetMatchers()), elements)
		}
	}
	// A client accepts what stores return.
	var m thanospb.LabelValuesResponse
	raw := bytes.Repeat([]byte{0x0A, 0}, requestElementsMax+1)
	if err := clientCodec().Unmarshal(mem.BufferSlice{mem.SliceBuffer(raw)}, &m); err != nil {
		t.Error(err)
	}
}
