package storeapi

import (
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"testing"

	"github.com/prometheus/prometheus/model/exemplar"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/util/annotations"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"

	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/series/labelenc"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// Goroutines that packages of other modules start when they are imported.
		goleak.IgnoreTopFunction("go.opencensus.io/stats/view.(*worker).start"),
		goleak.IgnoreTopFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"),
	)
}

// row is one series of a test.
type row struct {
	labels labels.Labels
	chunks []series.Chunk
}

// downsampled returns a chunk that has the samples of c in each of the aggregates.
func downsampled(c series.Chunk, aggrs ...Aggr) series.Chunk {
	var parts []series.Part
	for _, a := range aggrs {
		parts = append(parts, series.Part{Aggr: a, Encoding: c.Encoding, Data: c.Data})
	}
	c.Encoding, c.Data = series.Aggregated, series.AppendAggregated(nil, parts)
	return c
}

func xor(t testing.TB, fromMS int64, n int) series.Chunk {
	t.Helper()
	c := chunkenc.NewXORChunk()
	app, err := c.Appender()
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		app.Append(0, fromMS+int64(i)*1000, float64(i))
	}
	return series.Chunk{MinMS: fromMS, MaxMS: fromMS + int64(n-1)*1000, Encoding: chunkenc.EncXOR, Data: c.Bytes()}
}

// rows returns n sorted series with a few labels and one or two chunks each.
func rows(t testing.TB, n int) []row {
	t.Helper()
	out := make([]row, 0, n)
	for i := range n {
		r := row{labels: labels.FromStrings("__name__", "requests_total", "code", fmt.Sprint(200+i%7), "instance", fmt.Sprintf("10.0.%d.%d:9100", i/250, i%250), "job", "node")}
		r.chunks = append(r.chunks, xor(t, 1000, 10+i%20))
		if i%3 == 0 {
			r.chunks = append(r.chunks, xor(t, 100_000, 5))
		}
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b row) int { return labels.Compare(a.labels, b.labels) })
	return out
}

// memorySource is a Source over rows.
type memorySource struct {
	NoServices
	rows     []row
	external labels.Labels
	warnings []string
	err      error // returned at the end of every set
	querier  func(mint, maxt int64) error

	mu   sync.Mutex
	open int
}

func (m *memorySource) Info(context.Context) (Info, error) {
	return Info{
		LabelSets: []labels.Labels{m.external}, Component: "sidecar",
		Store:     &StoreInfo{TimeRange: TimeRange{5, 1 << 50}, TSDBs: []TSDBInfo{{m.external, TimeRange{5, 1 << 50}}}, Sharding: true, WithoutReplicaLabels: true},
		Exemplars: &TimeRange{6, 7}, Rules: true,
	}, m.err
}

func (m *memorySource) ExternalLabels() labels.Labels { return m.external }

func (*memorySource) Capabilities() Capabilities { return Capabilities{Exemplars: true} }

func (m *memorySource) Series(ctx context.Context, r SeriesRequest) Stream {
	return LocalSeries(ctx, m, m.external, r)
}

func (m *memorySource) RawQuerier(_ context.Context, mint, maxt int64) (series.Querier, error) {
	if m.querier != nil {
		if err := m.querier(mint, maxt); err != nil {
			return nil, err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.open++
	return &memoryQuerier{m}, nil
}

func (m *memorySource) openQueriers() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.open
}

func (m *memorySource) matching(matchers []*labels.Matcher) []row {
	var out []row
	for _, r := range m.rows {
		if matches(r.labels, matchers) {
			out = append(out, r)
		}
	}
	return out
}

func matches(l labels.Labels, matchers []*labels.Matcher) bool {
	for _, m := range matchers {
		if !m.Matches(l.Get(m.Name)) {
			return false
		}
	}
	return true
}

func (m *memorySource) LabelNames(_ context.Context, r LabelsRequest) (names, warnings []string, err error) {
	for _, row := range m.matching(r.Matchers) {
		row.labels.Range(func(l labels.Label) { names = append(names, l.Name) })
	}
	slices.Sort(names)
	return slices.Compact(names), m.warnings, m.err
}

func (m *memorySource) LabelValues(_ context.Context, r LabelsRequest) (values, warnings []string, err error) {
	for _, row := range m.matching(r.Matchers) {
		if v := row.labels.Get(r.Label); v != "" {
			values = append(values, v)
		}
	}
	slices.Sort(values)
	return slices.Compact(values), m.warnings, m.err
}

func (m *memorySource) Exemplars(_ context.Context, r ExemplarsRequest) ([]exemplar.QueryResult, []string, error) {
	return []exemplar.QueryResult{{
		SeriesLabels: labels.FromStrings("__name__", r.Query),
		Exemplars:    []exemplar.Exemplar{{Labels: labels.FromStrings("trace_id", "abc"), Value: 1.5, Ts: r.MinMS, HasTs: true}},
	}}, m.warnings, m.err
}

type memoryQuerier struct{ m *memorySource }

func (q *memoryQuerier) Select(_ context.Context, _ series.SelectOptions, matchers ...*labels.Matcher) series.Set {
	return &rowSet{rows: q.m.matching(matchers), warnings: q.m.warnings, err: q.m.err}
}

func (*memoryQuerier) Capabilities() series.Capabilities { return series.Capabilities{} }
func (q *memoryQuerier) LabelNames(ctx context.Context, _ series.SelectOptions, _ ...*labels.Matcher) ([]string, error) {
	names, _, err := q.m.LabelNames(ctx, LabelsRequest{})
	return names, err
}

func (q *memoryQuerier) Close() error {
	q.m.mu.Lock()
	defer q.m.mu.Unlock()
	q.m.open--
	return nil
}

// rowSet is a set of rows.
type rowSet struct {
	rows     []row
	at       row
	lset     []byte
	warnings []string
	err      error
}

func (s *rowSet) Next() bool {
	if len(s.rows) == 0 {
		return false
	}
	s.at, s.rows = s.rows[0], s.rows[1:]
	s.lset = labelenc.Append(s.lset[:0], s.at.labels)
	return true
}

func (s *rowSet) Labels() []byte         { return s.lset }
func (s *rowSet) Chunks() []series.Chunk { return s.at.chunks }
func (s *rowSet) Err() error             { return s.err }
func (*rowSet) BufferedBytes() int64     { return 0 }
func (*rowSet) Close() error             { return nil }
func (s *rowSet) Warnings() annotations.Annotations {
	var all annotations.Annotations
	for _, w := range s.warnings {
		all.Add(fmt.Errorf("%s", w))
	}
	return all
}

// dial runs a server of src and connects to it.
func dial(t testing.TB, src Source, opts ServerOptions) *grpc.ClientConn {
	t.Helper()
	return connect(t, func(s *grpc.Server) { NewServer(src, opts).Register(s) }, GRPCServerOptions()...)
}

func connect(t testing.TB, register func(*grpc.Server), opts ...grpc.ServerOption) *grpc.ClientConn {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(opts...)
	register(s)
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	conn, err := grpc.NewClient(l.Addr().String(), append(GRPCDialOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		s.Stop()
		<-done
	})
	return conn
}

func equal(name, value string) *labels.Matcher {
	return labels.MustNewMatcher(labels.MatchEqual, name, value)
}

func all() []*labels.Matcher { return []*labels.Matcher{equal("__name__", "requests_total")} }

// read copies all series of a set and closes it.
func read(t testing.TB, set Stream) ([]row, error) {
	t.Helper()
	defer set.Close()
	var out []row
	builder := labels.NewScratchBuilder(8)
	for set.Next() {
		lset, err := labelenc.Labels(set.Labels(), &builder)
		if err != nil {
			t.Fatal(err)
		}
		r := row{labels: lset}
		for _, c := range set.Chunks() {
			c.Data = slices.Clone(c.Data)
			r.chunks = append(r.chunks, c)
		}
		out = append(out, r)
	}
	return out, set.Err()
}

// check compares rows.
func check(t testing.TB, got, want []row) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d series, want %d", len(got), len(want))
	}
	for i := range want {
		if !labels.Equal(got[i].labels, want[i].labels) {
			t.Fatalf("series %d is %s, want %s", i, got[i].labels, want[i].labels)
		}
		if g, w := fmt.Sprint(got[i].chunks), fmt.Sprint(want[i].chunks); g != w {
			t.Fatalf("series %s has chunks\n%s, want\n%s", want[i].labels, g, w)
		}
	}
}

var errEnd = io.EOF

type metadataMD = metadata.MD

// reader is a memoryStream that does not allocate a codec per message.
type reader struct {
	*memoryStream
	codec interface {
		Unmarshal(data mem.BufferSlice, v any) error
	}
}

func (r reader) RecvMsg(m any) error {
	if len(r.pieces) == 0 {
		return errEnd
	}
	next := r.pieces[0]
	r.pieces = r.pieces[1:]
	return r.codec.Unmarshal(next, m)
}
