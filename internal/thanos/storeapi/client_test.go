package storeapi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/series/labelenc"
	pb "github.com/ferula-io/ferula/internal/thanos/storepb/thanospb"
)

// endlessSource returns one metric with ever greater label values, 1 KiB per series.
type endlessSource struct {
	memorySource
	series atomic.Int64
}

func (e *endlessSource) Series(ctx context.Context, r SeriesRequest) Stream {
	return LocalSeries(ctx, e, e.external, r)
}

func (e *endlessSource) RawQuerier(ctx context.Context, mint, maxt int64) (series.Querier, error) {
	q, err := e.memorySource.RawQuerier(ctx, mint, maxt)
	return endlessQuerier{q, e}, err
}

type endlessQuerier struct {
	series.Querier
	e *endlessSource
}

func (q endlessQuerier) Select(context.Context, series.SelectOptions, ...*labels.Matcher) series.Set {
	return &endlessSet{e: q.e, chunks: []series.Chunk{{Encoding: 1, Data: make([]byte, 1000)}}}
}

type endlessSet struct {
	rowSet
	e      *endlessSource
	labels []byte
	chunks []series.Chunk
}

func (s *endlessSet) Next() bool {
	s.labels = labelenc.AppendLabel(s.labels[:0], "n", fmt.Sprintf("%012d", s.e.series.Add(1)))
	return true
}

func (s *endlessSet) Labels() []byte         { return s.labels }
func (s *endlessSet) Chunks() []series.Chunk { return s.chunks }

// plainServer uses protobuf's own runtime. It sends the given responses, one series per
// message, and ignores the batch size.
type plainServer struct {
	responses []*pb.SeriesResponse
	request   *pb.SeriesRequest
}

func (o *plainServer) register(s *grpc.Server) {
	s.RegisterService(&grpc.ServiceDesc{ServiceName: "thanos.Store", HandlerType: (*any)(nil), Streams: []grpc.StreamDesc{{
		StreamName: "Series", ServerStreams: true, Handler: func(_ any, stream grpc.ServerStream) error {
			o.request = &pb.SeriesRequest{}
			if err := stream.RecvMsg(o.request); err != nil {
				return err
			}
			for _, r := range o.responses {
				if err := stream.SendMsg(r); err != nil {
					return err
				}
			}
			return nil
		},
	}}}, o)
}

func oneResponse(r row) *pb.SeriesResponse {
	one := &pb.Series{}
	r.labels.Range(func(l labels.Label) { one.Labels = append(one.Labels, &pb.Label{Name: l.Name, Value: l.Value}) })
	for i := range r.chunks {
		c := &pb.AggrChunk{MinTime: r.chunks[i].MinMS, MaxTime: r.chunks[i].MaxMS}
		parts, err := r.chunks[i].AppendParts(nil)
		if err != nil {
			panic(err)
		}
		for _, p := range parts {
			data := &pb.Chunk{Type: pb.Chunk_Encoding(p.Encoding - 1), Data: p.Data}
			*[]**pb.Chunk{&c.Raw, &c.Count, &c.Sum, &c.Min, &c.Max, &c.Counter}[p.Aggr] = data
		}
		one.Chunks = append(one.Chunks, c)
	}
	return &pb.SeriesResponse{Result: &pb.SeriesResponse_Series{Series: one}}
}

func readPlain(t *testing.T, responses ...*pb.SeriesResponse) ([]row, error) {
	t.Helper()
	conn := connect(t, (&plainServer{responses: responses}).register)
	return read(t, NewClient(conn, ClientOptions{}).Series(t.Context(), SeriesRequest{Matchers: all(), Aggregates: []Aggr{series.Count, series.Sum, series.Min, series.Max, series.Counter}}))
}

func TestClient_ReadsAServerWithoutBatches(t *testing.T) {
	want := rows(t, 50)
	var responses []*pb.SeriesResponse
	for _, r := range want {
		responses = append(responses, oneResponse(r))
	}
	got, err := readPlain(t, responses...)
	if err != nil {
		t.Fatal(err)
	}
	check(t, got, want)
}

func TestServer_ServesAClientWithoutBatches(t *testing.T) {
	src := &memorySource{rows: rows(t, 50)}
	conn := dial(t, src, ServerOptions{})
	stream, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true}, "/thanos.Store/Series") // protobuf's own codec
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(stream.SendMsg(&pb.SeriesRequest{MaxTime: 9, Matchers: matchersTo(all())}), stream.CloseSend()); err != nil {
		t.Fatal(err)
	}
	for _, r := range src.rows {
		var got pb.SeriesResponse
		if err := stream.RecvMsg(&got); err != nil {
			t.Fatal(err)
		}
		if want := oneResponse(r); !proto.Equal(&got, want) {
			t.Fatalf("got %v, want %v", &got, want)
		}
	}
}

func TestSeriesSet_SplitSeriesIsJoined(t *testing.T) {
	whole := row{labels: labels.FromStrings("__name__", "a")}
	var responses []*pb.SeriesResponse
	for i := range 6 {
		c := xor(t, int64(i)*100_000, 20)
		whole.chunks = append(whole.chunks, c)
		responses = append(responses, oneResponse(row{labels: whole.labels, chunks: []series.Chunk{c}}))
	}
	next := row{labels: labels.FromStrings("__name__", "b"), chunks: []series.Chunk{xor(t, 5, 5)}}
	got, err := readPlain(t, append(responses, oneResponse(next))...)
	if err != nil {
		t.Fatal(err)
	}
	check(t, got, []row{whole, next})
}

func TestServer_LongSeriesIsSplit(t *testing.T) {
	long := row{labels: labels.FromStrings("__name__", "requests_total")}
	for i := range 3000 {
		c := xor(t, int64(i)*1000_000, 1)
		c.Data = bytes.Repeat([]byte{byte(i)}, 1000)
		long.chunks = append(long.chunks, c)
	}
	got, err := request(t, &memorySource{rows: []row{long}}, ServerOptions{}, SeriesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	check(t, got, []row{long})
}

func TestSeriesSet_DownsampledChunksAreOneByTimeRange(t *testing.T) {
	aggregates := []Aggr{series.Count, series.Sum, series.Min, series.Max, series.Counter}
	want := []row{
		{labels: labels.FromStrings("__name__", "requests_total", "a", "1"), chunks: []series.Chunk{downsampled(xor(t, 5, 3), aggregates...), downsampled(xor(t, 9000, 3), series.Count, series.Max)}},
		{labels: labels.FromStrings("__name__", "requests_total", "a", "2"), chunks: []series.Chunk{downsampled(xor(t, 5, 3), series.Counter), xor(t, 7, 7)}},
	}
	got, err := readPlain(t, oneResponse(want[0]), oneResponse(want[1]))
	if err != nil {
		t.Fatal(err)
	}
	check(t, got, want)
	// The same from a server that has downsampled chunks.
	for _, of := range [][]Aggr{aggregates, {series.Counter}, {series.Min}} {
		var filtered []row
		for _, r := range want {
			one := row{labels: r.labels}
			for _, c := range r.chunks {
				parts, err := c.AppendParts(nil)
				if err != nil {
					t.Fatal(err)
				}
				if c.Encoding == series.Aggregated {
					c.Data = series.AppendAggregated(nil, series.AggrsOf(of).Of(parts))
				}
				if len(c.Data) > 0 {
					one.chunks = append(one.chunks, c)
				}
			}
			if len(one.chunks) > 0 {
				filtered = append(filtered, one)
			}
		}
		got, err = request(t, seriesSource{&memorySource{rows: want}}, ServerOptions{}, SeriesRequest{Aggregates: of})
		if err != nil {
			t.Fatal(err)
		}
		check(t, got, filtered)
	}
}

// seriesSource serves whole requests itself.
type seriesSource struct{ *memorySource }

func (w seriesSource) Series(_ context.Context, r SeriesRequest) Stream {
	return &rowSet{rows: w.matching(r.Matchers), err: w.err}
}

func TestSeriesSet_SeriesOutOfOrderIsAnError(t *testing.T) {
	list := rows(t, 3)
	for name, order := range map[string][]int{"later before": {0, 2, 1}, "one again": {0, 1, 0}} {
		var responses []*pb.SeriesResponse
		for _, i := range order {
			responses = append(responses, oneResponse(list[i]))
		}
		if _, err := readPlain(t, responses...); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), "out of order") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestSeriesSet_CorruptChunkErrorNamesSeriesAndChunk(t *testing.T) {
	bad := oneResponse(row{labels: labels.FromStrings("__name__", "x"), chunks: []series.Chunk{xor(t, 1, 1), xor(t, 1e6, 1)}})
	bad.GetSeries().Chunks[1].Raw.Type = 9
	_, err := readPlain(t, bad)
	if !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), `series {__name__="x"}: chunk 1: raw: `) {
		t.Errorf("%v", err)
	}
}

func TestClient_MessageBeyondTheLimitIsAnError(t *testing.T) {
	conn := dial(t, &memorySource{rows: rows(t, 1000)}, ServerOptions{})
	_, err := read(t, NewClient(conn, ClientOptions{MessageBytesMax: 1000}).Series(t.Context(), SeriesRequest{MaxMS: 9, Matchers: all()}))
	if !errors.Is(err, ErrLimit) {
		t.Errorf("%v", err)
	}
}

func TestClient_NoServerIsUnavailable(t *testing.T) {
	conn := dial(t, &memorySource{}, ServerOptions{})
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	client := NewClient(conn, ClientOptions{})
	set := client.Series(t.Context(), SeriesRequest{Matchers: all()})
	if set.Next() || set.Err() == nil {
		t.Error("series of a closed connection", set.Err())
	}
	if err := set.Close(); err != nil {
		t.Error(err)
	}
	if _, err := client.Info(t.Context()); err == nil {
		t.Error("info of a closed connection")
	}
}

// gRPC passes a message in pieces that may end anywhere.
func TestSeriesSet_MessageInPiecesIsJoined(t *testing.T) {
	want := rows(t, 3)
	b := newBatchWriter(nil, &pb.SeriesRequest{ResponseBatchSize: 10})
	for _, r := range want {
		if err := b.add(labelenc.Append(nil, r.labels), r.chunks); err != nil {
			t.Fatal(err)
		}
	}
	stream := &memoryStream{}
	b.stream = stream
	if err := b.flush(); err != nil {
		t.Fatal(err)
	}
	message := stream.messages[0]
	for at := range len(message) {
		pieces := mem.BufferSlice{mem.SliceBuffer(message[:at]), mem.SliceBuffer(message[at:])}
		checkPieces(t, pieces, want)
	}
	var pieces mem.BufferSlice
	for i := range message {
		pieces = append(pieces, mem.SliceBuffer(message[i:i+1]))
	}
	checkPieces(t, pieces, want)
}

func checkPieces(t *testing.T, pieces mem.BufferSlice, want []row) {
	t.Helper()
	set := &SeriesSet{stream: &memoryStream{pieces: []mem.BufferSlice{pieces}}, cancel: func() {}}
	got, err := read(t, set)
	if err != nil {
		t.Fatal(err)
	}
	check(t, got, want)
}

// memoryStream is both ends of a stream, in memory.
type memoryStream struct {
	grpc.ClientStream
	messages [][]byte
	pieces   []mem.BufferSlice
}

func (c *memoryStream) SendMsg(m any) error {
	data, err := clientCodec().Marshal(m)
	if err == nil {
		c.messages = append(c.messages, data.Materialize())
		data.Free()
	}
	return err
}

func (c *memoryStream) RecvMsg(m any) error {
	if len(c.pieces) == 0 {
		return errEnd
	}
	next := c.pieces[0]
	c.pieces = c.pieces[1:]
	return clientCodec().Unmarshal(next, m)
}

func (*memoryStream) SetHeader(_ metadataMD) error  { return nil }
func (*memoryStream) SendHeader(_ metadataMD) error { return nil }
func (*memoryStream) SetTrailer(metadataMD)         {}
func (*memoryStream) Context() context.Context      { return context.Background() }

// gRPC queues messages up to a number of bytes: for a client that reads slowly and does not request batches, these are hundreds.
func TestOutFrame_ASmallMessageDoesNotHoldALargeBuffer(t *testing.T) {
	for _, c := range []struct {
		size int
		own  bool // the message keeps the frame's buffer
	}{{1, false}, {600, false}, {smallFrameBytes, false}, {smallFrameBytes + 1, true}, {batchBytes, true}} {
		f := outFrame{buf: frames.Pool.Get()}
		*f.buf = append((*f.buf)[:0], bytes.Repeat([]byte{7}, c.size)...)
		first := &(*f.buf)[0]
		data, err := f.take()
		if err != nil || len(data) != 1 || f.buf != nil {
			t.Fatalf("%d bytes: %d buffers, %v", c.size, len(data), err)
		}
		got := data[0].ReadOnlyData()
		if (&got[0] == first) != c.own || !c.own && cap(got) > 2*smallFrameBytes {
			t.Errorf("%d bytes: a buffer of %d bytes", c.size, cap(got))
		}
		if !bytes.Equal(got, bytes.Repeat([]byte{7}, c.size)) {
			t.Errorf("%d bytes: other contents", c.size)
		}
		data.Free()
	}
}

func TestOutFrame_IsSentOnce(t *testing.T) {
	f := outFrame{buf: frames.Pool.Get()}
	data, err := clientCodec().Marshal(&f)
	if err != nil {
		t.Fatal(err)
	}
	data.Free()
	if _, err := clientCodec().Marshal(&f); !errors.Is(err, errSentTwice) {
		t.Errorf("a second time: %v", err)
	}
}

func TestSeriesSet_DoesNotAllocatePerSeries(t *testing.T) {
	list := rows(t, 2000)
	b := newBatchWriter(nil, &pb.SeriesRequest{ResponseBatchSize: 64})
	stream := &memoryStream{}
	b.stream = stream
	for _, r := range list {
		if err := b.add(labelenc.Append(nil, r.labels), r.chunks); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.flush(); err != nil {
		t.Fatal(err)
	}
	var pieces []mem.BufferSlice
	for _, m := range stream.messages {
		pieces = append(pieces, mem.BufferSlice{mem.SliceBuffer(m)})
	}
	codec := clientCodec()
	in := &memoryStream{}
	n := testing.AllocsPerRun(10, func() {
		in.pieces = slices.Clone(pieces)
		set := &SeriesSet{stream: reader{in, codec}, cancel: func() {}}
		for set.Next() {
		}
	})
	if n > 60 {
		t.Errorf("%d series took %.0f allocations", len(list), n)
	}
}

func TestRegisterSnappy_ClientChoosesCompression(t *testing.T) {
	RegisterSnappy()
	RegisterSnappy()
	src := &memorySource{rows: rows(t, 2000)}
	conn := dial(t, src, ServerOptions{})
	for range 3 {
		got, err := read(t, NewClient(conn, ClientOptions{Compression: Snappy}).Series(t.Context(), SeriesRequest{MaxMS: 9, Matchers: all()}))
		if err != nil {
			t.Fatal(err)
		}
		check(t, got, src.rows)
	}
}

func TestServer_LabelsAreEqualInEveryForm(t *testing.T) {
	want := rows(t, 5000)
	want = append(want, row{labels: labels.FromStrings("__name__", "requests_total", "z", strings.Repeat("x", 200_000)), chunks: []series.Chunk{xor(t, 1, 1)}})
	conn := dial(t, &memorySource{rows: want}, ServerOptions{})
	for _, opts := range []ClientOptions{{}, {NoDeltas: true}, {NoExtension: true}} {
		got, err := read(t, NewClient(conn, opts).Series(t.Context(), SeriesRequest{MaxMS: 9, Matchers: all()}))
		if err != nil {
			t.Fatal(err)
		}
		check(t, got, want)
		set := NewClient(conn, opts).Series(t.Context(), SeriesRequest{MaxMS: 9, Matchers: all(), SkipChunks: true})
		var sets [][]byte
		for set.Next() {
			sets = append(sets, bytes.Clone(set.Labels()))
		}
		if set.Err() != nil || len(sets) != len(want) {
			t.Fatal(len(sets), set.Err())
		}
		for i, lset := range sets {
			if !bytes.Equal(lset, labelenc.Append(nil, want[i].labels)) {
				t.Fatalf("labels of series %d", i)
			}
		}
		_ = set.Close()
	}
}

func TestServer_DeltasWithExternalLabels(t *testing.T) {
	src := &memorySource{rows: rows(t, 3000), external: labels.FromStrings("aa", "x", "cluster", "eu")}
	conn := dial(t, src, ServerOptions{})
	series := func(opts ClientOptions) []row {
		got, err := read(t, NewClient(conn, opts).Series(t.Context(), SeriesRequest{MaxMS: 9, Matchers: all(), WithoutReplicaLabels: []string{"aa"}}))
		if err != nil || len(got) != 3000 || !got[0].labels.Has("cluster") {
			t.Fatal(len(got), err)
		}
		return got
	}
	check(t, series(ClientOptions{}), series(ClientOptions{NoDeltas: true}))
	stream, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true}, "/thanos.Store/Series")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(stream.SendMsg(seriesRequest(SeriesRequest{MaxMS: 9, Matchers: all()}, ClientOptions{BatchSeries: 64})), stream.CloseSend()); err != nil {
		t.Fatal(err)
	}
	var first pb.SeriesResponse
	if err := stream.RecvMsg(&first); err != nil || len(first.GetDeltaBatch().GetSeries()) < 64 {
		t.Errorf("the first message holds %d series with deltas, %v", len(first.GetDeltaBatch().GetSeries()), err)
	}
}
