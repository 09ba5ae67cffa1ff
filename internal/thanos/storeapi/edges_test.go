package storeapi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/index"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/thanos/storepb/apipb"
	pb "github.com/ferula-io/ferula/internal/thanos/storepb/thanospb"
)

func TestFromStatus_CodesHaveSentinels(t *testing.T) {
	for code, want := range map[codes.Code]error{
		codes.InvalidArgument: ErrBadRequest, codes.ResourceExhausted: ErrLimit, codes.Unavailable: ErrUnavailable, codes.DataLoss: ErrCorrupt,
		codes.Canceled: context.Canceled, codes.DeadlineExceeded: context.DeadlineExceeded,
	} {
		if err := fromStatus(status.Error(code, "text")); !errors.Is(err, want) || status.Code(err) != code {
			t.Errorf("%s: %v", code, err)
		}
	}
	if other := status.Error(codes.Internal, "text"); fromStatus(other) != other || fromStatus(nil) != nil {
		t.Error("another code is changed")
	}
}

// brokenConn fails to begin, to send or to end a stream.
type brokenConn struct {
	grpc.ClientConnInterface
	begin, send, end error
}

func (b brokenConn) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return brokenStream{from: b}, b.begin
}

type brokenStream struct {
	grpc.ClientStream
	from brokenConn
}

func (s brokenStream) SendMsg(any) error { return s.from.send }
func (s brokenStream) CloseSend() error  { return s.from.end }
func (s brokenStream) RecvMsg(any) error { return io.EOF }

func TestClient_ReturnsErrorsOfTheBeginning(t *testing.T) {
	down := status.Error(codes.Unavailable, "down")
	for name, tt := range map[string]struct {
		conn brokenConn
		want error
	}{
		"begin": {brokenConn{begin: down}, ErrUnavailable}, "send": {brokenConn{send: down}, ErrUnavailable}, "end": {brokenConn{end: down}, ErrUnavailable},
		"the status follows": {brokenConn{send: io.EOF}, nil}, "nothing": {brokenConn{}, nil},
	} {
		c := NewClient(tt.conn, ClientOptions{})
		set := c.Series(t.Context(), SeriesRequest{})
		if set.Next() || !errors.Is(set.Err(), tt.want) || tt.want == nil && set.Err() != nil {
			t.Errorf("%s: series: %v", name, set.Err())
		}
		if err := set.Close(); err != nil {
			t.Error(err)
		}
		if _, _, err := c.Rules(t.Context(), RulesRequest{}); !errors.Is(err, tt.want) || tt.want == nil && err != nil {
			t.Errorf("%s: rules: %v", name, err)
		}
	}
}

func TestMatchersFrom_InvalidOnesAreBadRequests(t *testing.T) {
	good := &pb.LabelMatcher{Name: "a", Value: "b"}
	for want, bad := range map[string]*pb.LabelMatcher{"matcher 1 has unknown type 9": {Type: 9}, "matcher 1: ": {Type: pb.LabelMatcher_RE, Name: "a", Value: "("}} {
		if all, err := matchersFrom([]*pb.LabelMatcher{good, bad}); !errors.Is(err, ErrBadRequest) || !strings.Contains(err.Error(), want) || all != nil {
			t.Errorf("%v, %v", all, err)
		}
	}
	var in []*labels.Matcher
	for _, kind := range []labels.MatchType{labels.MatchEqual, labels.MatchNotEqual, labels.MatchRegexp, labels.MatchNotRegexp} {
		in = append(in, labels.MustNewMatcher(kind, "a", "b"))
	}
	if out, err := matchersFrom(matchersTo(in)); err != nil || fmt.Sprint(out) != fmt.Sprint(in) {
		t.Errorf("%v, %v", out, err)
	}
}

func TestSeriesRequest_RoundTrip(t *testing.T) {
	full := SeriesRequest{
		MinMS: 1, MaxMS: 2, Matchers: []*labels.Matcher{}, SkipChunks: true, Limit: 3, WithoutReplicaLabels: []string{"r"}, Shard: &Shard{Index: 2, Total: 3, By: true, Labels: []string{"l"}},
		MaxResolutionMS: 4, Aggregates: []Aggr{series.Raw, series.Counter}, AbortOnPartial: true, Hints: &Hints{StepMS: 5, RangeMS: 6, Func: "rate", By: true, Grouping: []string{"g"}},
		Steps: &series.Steps{FirstMS: -7, LastMS: 8, StepMS: 9},
	}
	plain := SeriesRequest{Matchers: []*labels.Matcher{}, Hints: &Hints{}}
	for _, r := range []SeriesRequest{full, plain, {Matchers: []*labels.Matcher{}}} {
		out := seriesRequest(r, ClientOptions{BatchSeries: 7})
		if got, err := seriesRequestFrom(out); err != nil || !reflect.DeepEqual(got, r) {
			t.Errorf("%+v, %v, want %+v", got, err, r)
		}
		if out.ResponseBatchSize != 7 || !out.Extension.GetDeltas() || out.Extension.GetBatchSeries() != extendedBatch || (out.QueryHints.GetRange() != nil) != (r.Hints != nil && r.Hints.RangeMS > 0) {
			t.Errorf("%+v", out)
		}
	}
	if out := seriesRequest(full, ClientOptions{NoDeltas: true}); out.Extension == nil || out.Extension.Deltas || out.Step != 5 || out.Range != 6 {
		t.Errorf("%+v", out)
	}
	if out := seriesRequest(full, ClientOptions{NoExtension: true}); out.Extension != nil {
		t.Errorf("%+v", out)
	}
	for want, change := range map[string]func(*pb.SeriesRequest){
		"unknown aggregate -1": func(r *pb.SeriesRequest) { r.Aggregates = []pb.Aggr{-1} },
		"unknown aggregate 6":  func(r *pb.SeriesRequest) { r.Aggregates = []pb.Aggr{6} },
		"shard -1 of 2":        func(r *pb.SeriesRequest) { r.ShardInfo = &pb.ShardInfo{ShardIndex: -1, TotalShards: 2} },
		"shard 2 of 2":         func(r *pb.SeriesRequest) { r.ShardInfo = &pb.ShardInfo{ShardIndex: 2, TotalShards: 2} },
		"matcher 0 has":        func(r *pb.SeriesRequest) { r.Matchers = []*pb.LabelMatcher{{Type: 9}} },
	} {
		var in pb.SeriesRequest
		change(&in)
		if _, err := seriesRequestFrom(&in); !errors.Is(err, ErrBadRequest) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	for _, shard := range []*pb.ShardInfo{nil, {}, {ShardIndex: 5, TotalShards: 0}} {
		if r, err := seriesRequestFrom(&pb.SeriesRequest{ShardInfo: shard}); err != nil || r.Shard != nil {
			t.Errorf("%+v, %v", r.Shard, err)
		}
	}
	if r, err := seriesRequestFrom(&pb.SeriesRequest{ShardInfo: &pb.ShardInfo{TotalShards: 1}}); err != nil || r.Shard == nil || r.Shard.Total != 1 {
		t.Errorf("one shard: %+v, %v", r.Shard, err)
	}
}

func TestInfo_EachPartRoundTrips(t *testing.T) {
	within := TimeRange{1, 2}
	for _, info := range []Info{
		{}, {Component: "c"}, {LabelSets: []labels.Labels{labels.FromStrings("a", "1"), labels.FromStrings("b", "2")}}, {Exemplars: &within}, {Rules: true}, {MetricMetadata: true}, {Targets: true}, {Query: true}, {Status: true},
		{Store: &StoreInfo{TimeRange: within}}, {Store: &StoreInfo{Sharding: true}}, {Store: &StoreInfo{WithoutReplicaLabels: true, TSDBs: []TSDBInfo{{labels.FromStrings("a", "1"), within}}}},
	} {
		if got := infoFrom(infoTo(info)); !reflect.DeepEqual(got, info) {
			t.Errorf("%+v, want %+v", got, info)
		}
	}
}

func TestStatisticsOf_AHeadWithoutPostings(t *testing.T) {
	if s := StatisticsOf(&tsdb.Stats{NumSeries: 1, MinTime: 2, MaxTime: 3}); !reflect.DeepEqual(s, TSDBStatistics{Series: 1, MinMS: 2, MaxMS: 3}) {
		t.Errorf("%+v", s)
	}
	list := func(name string) []index.Stat { return []index.Stat{{Name: name, Count: 7}, {Name: "x"}} }
	s := StatisticsOf(&tsdb.Stats{IndexPostingStats: &index.PostingsStats{
		NumLabelPairs: 4, CardinalityMetricsStats: list("m"), CardinalityLabelStats: list("l"), LabelValueStats: list("b"), LabelValuePairsStats: list("p"),
	}})
	if s.LabelPairs != 4 || len(s.SeriesByMetric) != 2 || s.SeriesByMetric[0] != (Statistic{"m", 7}) || s.ValuesByLabel[0].Name != "l" || s.BytesByLabel[0].Name != "b" || s.SeriesByPair[0].Name != "p" {
		t.Errorf("%+v", s)
	}
	r := StatusRequest{Matchers: []*labels.Matcher{equal("a", "1"), equal("b", "2")}}
	if !r.MatchesExternal(labels.FromStrings("a", "1", "b", "2")) || r.MatchesExternal(labels.FromStrings("a", "1")) || !(StatusRequest{}).MatchesExternal(labels.EmptyLabels()) {
		t.Error("matchers of external labels")
	}
}

func TestSnappy_ReadersEndAndAreReused(t *testing.T) {
	for i := range 3 {
		want := strings.Repeat(fmt.Sprint("text ", i), 10_000)
		var packed bytes.Buffer
		w, err := compressor{}.Compress(&packed)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, want); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		r, err := compressor{}.Decompress(&packed)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(r); string(got) != want || err != nil {
			t.Errorf("%d bytes, %v", len(got), err)
		}
		for range 2 {
			if n, err := r.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
				t.Errorf("after the end: %d, %v", n, err)
			}
		}
	}
	r, err := compressor{}.Decompress(strings.NewReader("not snappy"))
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := r.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
			t.Errorf("%v", err)
		}
	}
	if w, err := (compressor{}).Compress(failingWriter{}); err != nil || errors.Join(writeText(w), w.Close()) == nil {
		t.Error("a failed write is no error")
	}
}

type failingWriter struct{}

func (failingWriter) Write([]byte) (int, error) { return 0, io.ErrShortWrite }

func writeText(w io.Writer) error { _, err := io.WriteString(w, "text"); return err }

func TestLimitCounter_LimitsAreInclusive(t *testing.T) {
	lset, data := make([]byte, 10), make([]byte, 20)
	for name, tt := range map[string]struct {
		limits ServerOptions
		fails  int // the series that fails; 0: none
	}{
		"none": {ServerOptions{}, 0}, "series": {ServerOptions{SeriesMax: 2}, 3}, "one series": {ServerOptions{SeriesMax: 1}, 2},
		"chunks": {ServerOptions{SamplesMax: 4 * chunkSamples}, 3}, "a sample": {ServerOptions{SamplesMax: 1}, 1}, "less chunks": {ServerOptions{SamplesMax: 4*chunkSamples - 1}, 2},
		"bytes": {ServerOptions{BytesMax: 100}, 3}, "less bytes": {ServerOptions{BytesMax: 99}, 2}, "a byte": {ServerOptions{BytesMax: 1}, 1},
	} {
		c, out := limitCounter{limits: tt.limits}, &batchWriter{wanted: series.AggrsOf([]Aggr{series.Sum})}
		both := []series.Chunk{{Encoding: chunkenc.EncXOR, Data: data}, downsampled(series.Chunk{Encoding: chunkenc.EncXOR, Data: data}, series.Count, series.Sum)}
		for n := 1; n <= 4; n++ {
			_, reason, err := c.add(lset, both, out)
			if (err != nil) != (n == tt.fails) || err != nil && (!errors.Is(err, ErrLimit) || !strings.Contains(name, reason) && !strings.HasPrefix(name, "a ")) {
				t.Errorf("%s: series %d: %s, %v", name, n, reason, err)
			}
			if err != nil {
				break
			}
		}
	}
}

func TestShardFilter_CorruptLabelsAreForTheReader(t *testing.T) {
	if NewShardFilter(nil) != nil {
		t.Error("a filter for no shard")
	}
	for i := range int64(3) {
		if !NewShardFilter(&Shard{Index: i, Total: 3}).Matches([]byte{0x0A, 9}) {
			t.Errorf("shard %d", i)
		}
	}
}

func TestInFrame_ReusesBuffersOfTheSizeThatIsNeeded(t *testing.T) {
	of := func(n int) mem.BufferSlice {
		return mem.BufferSlice{mem.SliceBuffer(make([]byte, n/2)), mem.SliceBuffer(bytes.Repeat([]byte{7}, n-n/2))}
	}
	for _, tt := range []struct {
		have, size int
		reused     bool
	}{
		{100, 100, true}, {100, 101, false}, {100, 1, true}, {cachedBytesMax, 1, true}, {cachedBytesMax + 1, 1, false},
		{8 << 20, 1 << 20, true}, {8 << 20, 1<<20 - 1, false},
	} {
		f := &inFrame{buf: make([]byte, 0, tt.have), arena: make([]byte, 5)}
		before := &f.buf[:1][0]
		f.copyFrom(of(tt.size))
		if reused := &f.buf[:1][0] == before; reused != tt.reused || len(f.buf) != tt.size || f.buf[tt.size-1] != 7 || len(f.arena) != 0 {
			t.Errorf("%+v: reused %v, %d bytes", tt, reused, len(f.buf))
		}
	}
	for _, n := range []int{0, 1, connBufferBytes, connBufferBytes * 2} {
		if b := frames.Get(n); len(*b) != n {
			t.Errorf("%d bytes, want %d", len(*b), n)
		}
	}
}

func TestNewBatchWriter_SizeOfBatches(t *testing.T) {
	for _, tt := range []struct{ plain, extended, want int64 }{{0, 0, 1}, {1, 0, 1}, {2, 0, 2}, {-5, 0, 1}, {2, 9, 9}, {9, 2, 9}, {1 << 20, 0, 1 << 20}, {1<<20 + 1, 0, 1 << 20}, {1 << 40, 0, 1 << 20}} {
		b := newBatchWriter(nil, &pb.SeriesRequest{ResponseBatchSize: tt.plain, Extension: &pb.Extension{BatchSeries: tt.extended}})
		if int64(b.seriesMax) != tt.want || b.deltas != nil {
			t.Errorf("%+v: %d", tt, b.seriesMax)
		}
	}
}

func TestCut_LimitsLists(t *testing.T) {
	list := []string{"a", "b", "c"}
	for limit, want := range map[int64]int{0: 3, -1: 3, 1: 1, 2: 2, 3: 3, 4: 3} {
		if got := cut(list, limit); len(got) != want {
			t.Errorf("%d: %q", limit, got)
		}
	}
	if err := checkRange(5, 5); err != nil {
		t.Error(err)
	}
	if err := checkRange(5, 4); !errors.Is(err, ErrBadRequest) {
		t.Error(err)
	}
}

func TestAppendSupported_CorruptChunksAreErrors(t *testing.T) {
	good := xor(t, 1000, 5)
	cut := good
	cut.Data = good.Data[:len(good.Data)-3]
	for name, c := range map[string]series.Chunk{"cut": cut, "unknown": {Encoding: 99, Data: []byte{0, 1, 2}}, "empty": {Encoding: chunkenc.EncXOR}} {
		if _, err := appendSupported(nil, c); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
	got, err := appendSupported([]series.Chunk{{MinMS: 1}}, good)
	if err != nil || len(got) != 2 || got[1].MinMS != good.MinMS || got[1].MaxMS != good.MaxMS || !bytes.Equal(got[1].Data, good.Data) {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := appendSupported(nil, series.Chunk{Encoding: chunkenc.EncXOR, Data: []byte{0, 0}}); err != nil || len(got) != 0 {
		t.Errorf("no samples: %+v, %v", got, err)
	}
	b := &batchWriter{}
	if all, err := b.supportedChunks([]series.Chunk{good, cut}); err != nil || len(all) != 2 {
		t.Errorf("chunks of supported encodings are not decoded: %v", err)
	}
	if _, err := b.supportedChunks([]series.Chunk{good, {Encoding: 99}}); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), "chunk 1: ") {
		t.Error(err)
	}
}

func TestTenant_IsThatOfTheCall(t *testing.T) {
	ctx := t.Context()
	if WithTenant(ctx, "") != ctx || TenantOf(ctx) != "" {
		t.Error("a tenant of a call without one")
	}
	sent, _ := metadata.FromOutgoingContext(WithTenant(ctx, "a"))
	if got := TenantOf(metadata.NewIncomingContext(ctx, sent)); got != "a" {
		t.Errorf("%q", got)
	}
}

func TestListEnums_HaveTheirTexts(t *testing.T) {
	for state, want := range map[apipb.AlertState]string{apipb.AlertState_INACTIVE: "inactive", apipb.AlertState_PENDING: "pending", apipb.AlertState_FIRING: "firing", 77: "unknown"} {
		if got := stateOf(state); got != want || want != "unknown" && stateTo(want) != state {
			t.Errorf("%d: %s", state, got)
		}
	}
	for health, want := range map[apipb.TargetHealth]string{apipb.TargetHealth_UP: "up", apipb.TargetHealth_DOWN: "down", apipb.TargetHealth_HEALTH_UNKNOWN: "unknown"} {
		if got := healthOf(health); got != want || targetTo(&ActiveTarget{Health: want}).Health != health {
			t.Errorf("%d: %s", health, got)
		}
	}
	if timestampOf(time.Time{}) != nil || !timeOf(nil).IsZero() || !timeOf(timestampOf(time.Unix(5, 6))).Equal(time.Unix(5, 6)) {
		t.Error("times")
	}
}

func TestSeriesSet_CountsTheMemoryOfItsFrames(t *testing.T) {
	s := &SeriesSet{cancel: func() {}, frames: []*inFrame{{buf: make([]byte, 0, 10), arena: make([]byte, 0, 3)}}, spare: []*inFrame{{buf: make([]byte, 0, 100), arena: make([]byte, 0, 30)}}}
	if n := s.BufferedBytes(); n != 143 {
		t.Errorf("%d bytes", n)
	}
	for n, want := range map[int]int{1: 1, spareFrames: spareFrames, spareFrames + 1: spareFrames, 9: spareFrames} {
		s := &SeriesSet{frames: []*inFrame{{}}}
		for range n {
			s.spare = append(s.spare, &inFrame{})
		}
		if s.release(); len(s.spare) != want || len(s.frames) != 1 {
			t.Errorf("%d spare frames: %d", n, len(s.spare))
		}
	}
	last := &inFrame{}
	s = &SeriesSet{frames: []*inFrame{{}, {}, last}}
	if s.release(); len(s.frames) != 1 || s.frames[0] != last || len(s.spare) != 2 {
		t.Errorf("%d, %d", len(s.frames), len(s.spare))
	}
}

// failingSends is a stream whose client has gone after some messages.
type failingSends struct {
	grpc.ServerStream
	left int
}

func (f *failingSends) Context() context.Context { return context.Background() }

func (f *failingSends) SendMsg(any) error {
	if f.left--; f.left < 0 {
		return io.ErrClosedPipe
	}
	return nil
}

func TestServer_FailedSendsEndLists(t *testing.T) {
	s := NewServer(&memorySource{warnings: []string{"w"}}, ServerOptions{})
	_, warnings, err := s.src.Exemplars(t.Context(), ExemplarsRequest{Query: "q"})
	if err != nil {
		t.Fatal(err)
	}
	for left := range 2 + len(warnings) {
		err := s.exemplars(&pb.ExemplarsRequest{Query: "q"}, &failingSends{left: left})
		if whole := left > len(warnings); (err == nil) != whole || !whole && !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("exemplars after %d messages: %v", left, err)
		}
	}
	for left, want := range []error{io.ErrClosedPipe, io.ErrClosedPipe, nil} {
		if err := sendAll(&failingSends{left: left}, []any{1}, []string{"w"}, func(w string) any { return w }); !errors.Is(err, want) || want == nil && err != nil {
			t.Errorf("a list after %d messages: %v", left, err)
		}
	}
}
