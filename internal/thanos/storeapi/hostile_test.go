package storeapi

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	"google.golang.org/grpc"

	"github.com/ferula-io/ferula/internal/series/labelenc"
	"github.com/ferula-io/ferula/internal/thanos/storepb/apipb"
	pb "github.com/ferula-io/ferula/internal/thanos/storepb/thanospb"
)

// liar is a store whose lists never end, and whose names are very many empty ones.
type liar struct{}

func (liar) register(s *grpc.Server) {
	endless := func(service, method string, message any) {
		s.RegisterService(&grpc.ServiceDesc{ServiceName: service, HandlerType: (*any)(nil), Streams: []grpc.StreamDesc{{StreamName: method, ServerStreams: true, Handler: func(_ any, stream grpc.ServerStream) error {
			for {
				if err := stream.SendMsg(message); err != nil {
					return err
				}
			}
		}}}}, liar{})
	}
	exemplars := &pb.ExemplarData{Exemplars: make([]*pb.Exemplar, 50_000)}
	for i := range exemplars.Exemplars {
		exemplars.Exemplars[i] = &pb.Exemplar{}
	}
	endless("thanos.Exemplars", "Exemplars", &pb.ExemplarsResponse{Result: &pb.ExemplarsResponse_Data{Data: exemplars}})
	metas := &apipb.MetricMetadataEntry{Metas: make([]*apipb.Meta, 50_000)}
	for i := range metas.Metas {
		metas.Metas[i] = &apipb.Meta{}
	}
	endless("thanos.Metadata", "MetricMetadata", &apipb.MetricMetadataResponse{Result: &apipb.MetricMetadataResponse_Metadata{
		Metadata: &apipb.MetricMetadata{Metadata: map[string]*apipb.MetricMetadataEntry{"the same": metas}},
	}})
	endless("thanos.Rules", "Rules", &apipb.RulesResponse{Result: &apipb.RulesResponse_Warning{Warning: strings.Repeat("w", 3<<20)}})
}

func TestClient_EndlessListsAreCutOff(t *testing.T) {
	client := NewClient(connect(t, liar{}.register, GRPCServerOptions()...), ClientOptions{})
	if found, _, err := client.Exemplars(t.Context(), ExemplarsRequest{Query: "x"}); !errors.Is(err, ErrLimit) || found != nil {
		t.Errorf("exemplars: %v", err)
	}
	if found, _, err := client.MetricMetadata(t.Context(), MetadataRequest{Limit: -1}); !errors.Is(err, ErrLimit) || found != nil {
		t.Errorf("metadata of one metric: %v", err)
	}
	if _, _, err := client.Rules(t.Context(), RulesRequest{Type: "all"}); !errors.Is(err, ErrLimit) {
		t.Errorf("warnings of rules: %v", err)
	}
}

// A name takes two bytes in the message, and at least eight times as much memory.
func TestClient_RefusesVeryManyEmptyNames(t *testing.T) {
	names := func(n int) func(any, grpc.ServerStream) error {
		return func(_ any, stream grpc.ServerStream) error {
			buf := bytes.Repeat([]byte{1<<3 | 2, 0}, n)
			return stream.SendMsg(&outFrame{buf: &buf})
		}
	}
	client := NewClient(connect(t, func(s *grpc.Server) {
		s.RegisterService(&grpc.ServiceDesc{ServiceName: "thanos.Store", HandlerType: (*any)(nil), Streams: []grpc.StreamDesc{
			{StreamName: "LabelNames", ServerStreams: true, Handler: names(responseElementsMax + 1)},
			{StreamName: "LabelValues", ServerStreams: true, Handler: names(1000)},
		}}, liar{})
	}, GRPCServerOptions()...), ClientOptions{})
	if _, _, err := client.LabelNames(t.Context(), LabelsRequest{}); err == nil || !strings.Contains(err.Error(), "too many elements") {
		t.Errorf("%.300v", err)
	}
	if values, _, err := client.LabelValues(t.Context(), LabelsRequest{Label: "a"}); err != nil || len(values) != 1000 {
		t.Errorf("%d values, %v", len(values), err)
	}
}

func TestLabelsText_IsShort(t *testing.T) {
	long := labelenc.AppendLabel(nil, "a", strings.Repeat("\x00", 1<<20))
	if n := len(labelenc.Text(long)); n > 8<<10 {
		t.Errorf("%d bytes", n)
	}
	if text := labelenc.Text(labelenc.AppendLabel(nil, "a", "b")); text != `{a="b"}` {
		t.Errorf("%s", text)
	}
	if text := labelenc.Text(binary.AppendUvarint(nil, 300)); text == "" {
		t.Error("nothing of what is no label set")
	}
}

// The list of metadata has listMax messages and entries, and not one more.
func TestClient_MetadataUpToTheLimitIsRead(t *testing.T) {
	for _, over := range []int{0, 1} {
		client := NewClient(connect(t, func(s *grpc.Server) {
			s.RegisterService(&grpc.ServiceDesc{ServiceName: "thanos.Metadata", HandlerType: (*any)(nil), Streams: []grpc.StreamDesc{{StreamName: "MetricMetadata", ServerStreams: true, Handler: func(_ any, stream grpc.ServerStream) error {
				const each = 100_000
				for left := listMax + over; left > 0; {
					entry := &apipb.MetricMetadataEntry{Metas: make([]*apipb.Meta, min(each, left-1))}
					for i := range entry.Metas {
						entry.Metas[i] = &apipb.Meta{}
					}
					left -= 1 + len(entry.Metas)
					if err := stream.SendMsg(&apipb.MetricMetadataResponse{Result: &apipb.MetricMetadataResponse_Metadata{
						Metadata: &apipb.MetricMetadata{Metadata: map[string]*apipb.MetricMetadataEntry{"m": entry}},
					}}); err != nil {
						return err
					}
				}
				return nil
			}}}}, liar{})
		}, GRPCServerOptions()...), ClientOptions{})
		found, _, err := client.MetricMetadata(t.Context(), MetadataRequest{Limit: -1})
		if over == 0 && (err != nil || len(found["m"]) < listMax-100) || over == 1 && (!errors.Is(err, ErrLimit) || !strings.Contains(err.Error(), "more than 1048576 metrics")) {
			t.Errorf("%d over the limit: %d, %v", over, len(found["m"]), err)
		}
	}
}
