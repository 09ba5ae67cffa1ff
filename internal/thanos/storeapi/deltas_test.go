package storeapi

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/series/labelenc"
	pb "github.com/ferula-io/ferula/internal/thanos/storepb/thanospb"
)

// responses receives all messages of a stream, decoded by protobuf's own runtime.
func responses(t *testing.T, conn *grpc.ClientConn, request *pb.SeriesRequest) (list []*pb.SeriesResponse) {
	t.Helper()
	stream, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true}, "/thanos.Store/Series")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(stream.SendMsg(request), stream.CloseSend()); err != nil {
		t.Fatal(err)
	}
	for {
		var one pb.SeriesResponse
		if err := stream.RecvMsg(&one); errors.Is(err, io.EOF) {
			return list
		} else if err != nil {
			t.Fatal(err)
		}
		list = append(list, &one)
	}
}

// forms are the forms of labels in responses.
func forms(list []*pb.SeriesResponse) (plain, delta int) {
	for _, one := range list {
		plain += len(one.GetBatch().GetSeries())
		delta += len(one.GetDeltaBatch().GetSeries())
	}
	return plain, delta
}

// A client gets only what its request has announced. So clients of Thanos can read every response.
func TestServer_SendsTheFormsThatTheClientAnnounces(t *testing.T) {
	const n = 2000
	conn := dial(t, &memorySource{rows: rows(t, n)}, ServerOptions{})
	for name, tt := range map[string]struct {
		extension    *pb.Extension
		plain, delta int
	}{
		"Thanos":       {nil, n, 0},
		"batches only": {&pb.Extension{BatchSeries: 9}, n, 0},
		"deltas":       {&pb.Extension{Deltas: true}, 0, n},
	} {
		t.Run(name, func(t *testing.T) {
			got := responses(t, conn, &pb.SeriesRequest{MaxTime: 9, Matchers: matchersTo(all()), ResponseBatchSize: 64, Extension: tt.extension})
			if plain, delta := forms(got); plain != tt.plain || delta != tt.delta {
				t.Errorf("%d plain, %d deltas", plain, delta)
			}
		})
	}
}

// A client without the extension gets the same bytes as from Thanos.
func TestServer_ResponsesWithoutExtensionAreThoseOfThanos(t *testing.T) {
	list := rows(t, 100)
	conn := dial(t, &memorySource{rows: list}, ServerOptions{})
	got := responses(t, conn, &pb.SeriesRequest{MaxTime: 9, Matchers: matchersTo(all())})
	if len(got) != len(list) {
		t.Fatalf("%d messages", len(got))
	}
	for i := range got {
		if want := oneResponse(list[i]); !proto.Equal(got[i], want) {
			t.Fatalf("%v, want %v", got[i], want)
		}
	}
}

// A client that requests deltas reads servers without them, too.
func TestClient_ReadsServersWithAndWithoutDeltas(t *testing.T) {
	list := rows(t, 10)
	requests := make(chan *pb.SeriesRequest, 1)
	for name, handle := range map[string]func(*pb.SeriesRequest) *pb.SeriesRequest{
		"Thanos":  func(*pb.SeriesRequest) *pb.SeriesRequest { return &pb.SeriesRequest{} },
		"batches": func(r *pb.SeriesRequest) *pb.SeriesRequest { r.Extension.Deltas = false; return r },
		"deltas":  func(r *pb.SeriesRequest) *pb.SeriesRequest { return r },
	} {
		server := func(s *grpc.Server) {
			s.RegisterService(&grpc.ServiceDesc{ServiceName: "thanos.Store", HandlerType: (*any)(nil), Streams: []grpc.StreamDesc{{
				StreamName: "Series", ServerStreams: true, Handler: func(_ any, stream grpc.ServerStream) error {
					request := &pb.SeriesRequest{}
					if err := stream.RecvMsg(request); err != nil {
						return err
					}
					requests <- proto.CloneOf(request)
					set := &rowSet{rows: list}
					out := newBatchWriter(stream, handle(request))
					for set.Next() {
						if err := out.add(set.Labels(), set.Chunks()); err != nil {
							return err
						}
					}
					return out.flush()
				},
			}}}, liar{})
		}
		got, err := read(t, NewClient(connect(t, server, GRPCServerOptions()...), ClientOptions{}).Series(t.Context(), SeriesRequest{Matchers: all()}))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		check(t, got, list)
		if e := (<-requests).Extension; !e.GetDeltas() || e.GetBatchSeries() == 0 {
			t.Errorf("the client announces %v", e)
		}
	}
}

// randomRows returns sorted series whose labels have names, values and parts of values in common.
func randomRows(t *testing.T, random *rand.Rand, n int) (list []row) {
	seen := map[string]bool{}
	for range n {
		b := labels.NewBuilder(labels.FromStrings("__name__", "requests_total"))
		for _, name := range []string{"a", "cluster", "instance", "job", "le", "namespace", "pod", "z"} {
			switch random.IntN(4) {
			case 0:
			case 1:
				b.Set(name, fmt.Sprint(random.IntN(5)))
			case 2:
				b.Set(name, fmt.Sprintf("10.0.%d.%d:9100", random.IntN(3), random.IntN(300)))
			default:
				b.Set(name, strings.Repeat("x", random.IntN(200))+fmt.Sprint(random.IntN(20))+strings.Repeat("y", random.IntN(3)))
			}
		}
		if l := b.Labels(); !seen[l.String()] {
			seen[l.String()] = true
			list = append(list, row{labels: l, chunks: []series.Chunk{xor(t, 1000, 1+random.IntN(3))}})
		}
	}
	slices.SortFunc(list, func(a, b row) int { return labels.Compare(a.labels, b.labels) })
	return list
}

// productRows returns the series of 30 handlers of the same containers. Some series are missing.
func productRows(t *testing.T, random *rand.Rand, containers int) (list []row) {
	for m := range 30 {
		for c := range containers {
			if random.IntN(20) > 0 {
				list = append(list, row{labels: labels.FromStrings("__name__", "requests_total", "handler", fmt.Sprint("/", strings.Repeat("x", m%5), m), "id", fmt.Sprintf("%03d/%032x", c, uint64(c+1)*0x9E3779B97F4A7C15), "pod", strings.Repeat("p", c%3)+fmt.Sprint(c)),
					chunks: []series.Chunk{xor(t, 1000, 1)}})
			}
		}
	}
	slices.SortFunc(list, func(a, b row) int { return labels.Compare(a.labels, b.labels) })
	return list
}

func TestSeries_LabelsAreEqualInEveryForm(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{1, 2, 30, 3000, -100} {
		list := productRows(t, random, -n)
		if n > 0 {
			list = randomRows(t, random, n)
		}
		conn := dial(t, &memorySource{rows: list, external: labels.FromStrings("cluster", "eu", "zz", "1")}, ServerOptions{})
		var first []row
		for i, opts := range []ClientOptions{{NoExtension: true}, {NoDeltas: true}, {}} {
			got, err := read(t, NewClient(conn, opts).Series(t.Context(), SeriesRequest{MaxMS: 9, Matchers: all()}))
			if err != nil || len(got) == 0 {
				t.Fatal(n, len(got), err)
			}
			if i == 0 {
				first = got
			}
			check(t, got, first)
		}
	}
}

// labelBytes returns the bytes of a response without chunks.
func labelBytes(t *testing.T, list []row, e *pb.Extension) (n int) {
	to := &discard{keep: true}
	out := newBatchWriter(to, &pb.SeriesRequest{ResponseBatchSize: 1 << 16, Extension: e})
	for _, r := range list {
		if err := out.add(labelenc.Append(nil, r.labels), nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := out.flush(); err != nil {
		t.Fatal(err)
	}
	for _, m := range to.messages {
		n += len(m)
	}
	return n
}

func TestServer_DeltasLeaveAFractionOfTheBytes(t *testing.T) {
	list := rows(t, 5000)
	plain, deltas := labelBytes(t, list, &pb.Extension{}), labelBytes(t, list, &pb.Extension{Deltas: true})
	if deltas*4 > plain {
		t.Errorf("%d bytes with deltas, %d without", deltas, plain)
	}
}

// The bytes for clients without deltas have not changed since the first version.
func TestServer_BytesOfPlainLabelsStay(t *testing.T) {
	to := &discard{keep: true}
	out := newBatchWriter(to, &pb.SeriesRequest{ResponseBatchSize: 64})
	for _, r := range slices.Concat(productRows(t, rand.New(rand.NewPCG(7, 8)), 50), randomRows(t, rand.New(rand.NewPCG(9, 8)), 300)) {
		if err := out.add(labelenc.Append(nil, r.labels), r.chunks); err != nil {
			t.Fatal(err)
		}
	}
	if err := out.flush(); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprintf("%x", sha256.Sum256(slices.Concat(to.messages...)))[:16]; got != "76d8e016dc178be7" {
		t.Error(got)
	}
}

// The error of a stream with an invalid delta is that of any corrupt response.
func TestSeriesSet_InvalidDeltaIsCorrupt(t *testing.T) {
	one := []byte("\x01\x01b\x011") // {b="1"}
	for name, list := range map[string][]*pb.DeltaSeries{
		"a delta of nothing":  {{Delta: []byte{0, 0, 0, 0}}},
		"an unknown kind":     {{Delta: one}, {Delta: []byte{7}}},
		"cut short":           {{Delta: one}, {Delta: []byte{0, 0}}},
		"more than the value": {{Delta: one}, {Delta: []byte{0, 1, 1, 0}}},
		"a name twice":        {{Delta: one}, {Delta: []byte("\x09\x01b\x012")}},
		"out of order":        {{Delta: one}, {Delta: []byte("\x01\x01a\x011")}},
		"no name":             {{Delta: []byte("\x01\x00\x011")}},
	} {
		raw, err := proto.Marshal(&pb.SeriesResponse{Result: &pb.SeriesResponse_DeltaBatch{DeltaBatch: &pb.DeltaBatch{Series: list}}})
		if err != nil {
			t.Fatal(err)
		}
		set := &SeriesSet{stream: &hostileStream{message: func(n int) []byte {
			if n > 0 {
				return nil
			}
			return raw
		}}, cancel: func() {}}
		if _, err := read(t, set); !errors.Is(err, ErrCorrupt) && !errors.Is(err, labelenc.ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A long series is sent in several messages: each has its labels.
func TestServer_LongSeriesIsSplitWithDeltas(t *testing.T) {
	long := row{labels: labels.FromStrings("__name__", "requests_total", "z", strings.Repeat("x", 100_000))}
	for i := range 150 {
		c := xor(t, int64(i)*10_000, 1)
		c.Data = bytes.Repeat([]byte{byte(i)}, 10_000)
		long.chunks = append(long.chunks, c)
	}
	list := []row{{labels: labels.FromStrings("__name__", "requests_total", "a", "1"), chunks: long.chunks[:1]}, long,
		{labels: labels.FromStrings("__name__", "requests_total", "z", strings.Repeat("x", 100_000)+"1"), chunks: long.chunks[:1]}}
	got, err := read(t, NewClient(dial(t, &memorySource{rows: list}, ServerOptions{}), ClientOptions{}).Series(t.Context(), SeriesRequest{MaxMS: 1 << 40, Matchers: all()}))
	if err != nil {
		t.Fatal(err)
	}
	check(t, got, list)
}
