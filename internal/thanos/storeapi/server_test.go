package storeapi

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/series/labelenc"
	"github.com/ferula-io/ferula/internal/thanos/storepb"
	pb "github.com/ferula-io/ferula/internal/thanos/storepb/thanospb"
	"github.com/ferula-io/ferula/metrics"
)

// request reads the series of a request from a server of src.
func request(t *testing.T, src Source, opts ServerOptions, r SeriesRequest) ([]row, error) {
	t.Helper()
	if r.MaxMS == 0 {
		r.MaxMS = 1 << 40
	}
	if r.Matchers == nil {
		r.Matchers = all()
	}
	return read(t, NewClient(dial(t, src, opts), ClientOptions{}).Series(t.Context(), r))
}

func TestServer_ReplicaLabelsAreRemoved(t *testing.T) {
	src := &memorySource{external: labels.FromStrings("cluster", "eu", "replica", "x")}
	chunk := xor(t, 1000, 3)
	for _, replica := range []string{"", "a", "b"} { // in label order
		for _, zone := range []string{"", "1", "2"} {
			b := labels.NewBuilder(labels.FromStrings("__name__", "requests_total"))
			src.rows = append(src.rows, row{labels: b.Set("pod", replica).Set("zone", zone).Labels(), chunks: []series.Chunk{chunk, xor(t, 5000+int64(len(replica)), 2)}})
		}
	}
	slices.SortFunc(src.rows, func(a, b row) int { return labels.Compare(a.labels, b.labels) })
	got, err := request(t, src, ServerOptions{}, SeriesRequest{WithoutReplicaLabels: []string{"replica"}})
	if err != nil || len(got) != 9 || got[0].labels.Has("replica") || !got[0].labels.Has("cluster") {
		t.Errorf("an external replica label: %v %v", got, err)
	}
	got, err = request(t, src, ServerOptions{}, SeriesRequest{WithoutReplicaLabels: []string{"pod", "replica"}})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, r := range got {
		names = append(names, r.labels.String())
		if len(r.chunks) != 3 { // one chunk that all have, and one of each replica
			t.Errorf("%s has %d chunks", r.labels, len(r.chunks))
		}
	}
	want := `{__name__="requests_total", cluster="eu"} {__name__="requests_total", cluster="eu", zone="1"} {__name__="requests_total", cluster="eu", zone="2"}`
	if strings.Join(names, " ") != want {
		t.Errorf("got  %s\nwant %s", strings.Join(names, " "), want)
	}
	if _, err = request(t, src, ServerOptions{SortBytesMax: 300}, SeriesRequest{WithoutReplicaLabels: []string{"pod"}}); !errors.Is(err, ErrLimit) || status.Code(err) != codes.ResourceExhausted {
		t.Errorf("more than may be sorted: %v", err)
	}
}

func TestServer_ShardsUseTheHashOfThanos(t *testing.T) {
	src := &memorySource{rows: rows(t, 200), external: labels.FromStrings("cluster", "eu")}
	for _, shard := range []Shard{{Total: 3, By: true, Labels: []string{"instance", "cluster"}}, {Total: 3, Labels: []string{"code", "cluster"}}} {
		seen := 0
		for shard.Index = range shard.Total {
			got, err := request(t, src, ServerOptions{}, SeriesRequest{Shard: &shard})
			if err != nil {
				t.Fatal(err)
			}
			seen += len(got)
			for _, r := range got {
				hashed := ""
				r.labels.Range(func(l labels.Label) {
					if slices.Contains(shard.Labels, l.Name) == shard.By {
						hashed += l.Name + "\xff" + l.Value + "\xff"
					}
				})
				if xxhash.Sum64String(hashed)%3 != uint64(shard.Index) {
					t.Errorf("%s is not of shard %d", r.labels, shard.Index)
				}
			}
		}
		if seen != 200 {
			t.Errorf("%v: %d series in all shards", shard, seen)
		}
	}
}

func TestServer_SkipChunksAndLimit(t *testing.T) {
	src := &memorySource{rows: rows(t, 100)}
	got, err := request(t, src, ServerOptions{}, SeriesRequest{SkipChunks: true})
	if err != nil || len(got) != 100 || len(got[5].chunks) != 0 {
		t.Errorf("%d series, %v", len(got), err)
	}
	got, err = request(t, src, ServerOptions{}, SeriesRequest{Limit: 7})
	if err != nil || len(got) != 7 {
		t.Errorf("%d series, %v", len(got), err)
	}
	check(t, got, src.rows[:7])
}

func TestServer_LimitsCountSeriesChunksAndBytes(t *testing.T) {
	chunks := 0
	src := &memorySource{rows: rows(t, 100)}
	for _, r := range src.rows {
		chunks += len(r.chunks)
	}
	for name, c := range map[string]struct {
		opts   ServerOptions
		ok     bool
		reason string
	}{
		"series":          {ServerOptions{SeriesMax: 99}, false, "series"},
		"exactly series":  {ServerOptions{SeriesMax: 100}, true, ""},
		"samples":         {ServerOptions{SamplesMax: int64(chunks)*120 - 1}, false, "chunks"},
		"exactly samples": {ServerOptions{SamplesMax: int64(chunks) * 120}, true, ""},
		"bytes":           {ServerOptions{BytesMax: 1000}, false, "bytes"},
	} {
		c.opts.Metrics = metrics.NewSet()
		_, err := request(t, src, c.opts, SeriesRequest{})
		if c.ok && err != nil || !c.ok && (!errors.Is(err, ErrLimit) || status.Code(err) != codes.ResourceExhausted) {
			t.Errorf("%s: %v", name, err)
		}
		want := ""
		if !c.ok {
			want = "thanos_store_selects_dropped_total{reason=\"" + c.reason + "\"} 1\n"
		}
		var page strings.Builder
		if c.opts.Metrics.WritePrometheus(&page); page.String() != want {
			t.Errorf("%s: metrics %q, not %q", name, page.String(), want)
		}
	}
}

func TestServer_ErrorsHaveStatusCodes(t *testing.T) {
	regexp := &labels.Matcher{Type: labels.MatchRegexp, Name: "a", Value: "("}
	for name, c := range map[string]struct {
		src  *memorySource
		r    SeriesRequest
		code codes.Code
		is   error
	}{
		"bad regular expression":               {&memorySource{}, SeriesRequest{Matchers: []*labels.Matcher{regexp}}, codes.InvalidArgument, ErrBadRequest},
		"range that ends before":               {&memorySource{}, SeriesRequest{MinMS: 5, MaxMS: 4}, codes.InvalidArgument, ErrBadRequest},
		"no matcher":                           {&memorySource{external: labels.FromStrings("a", "b")}, SeriesRequest{Matchers: []*labels.Matcher{equal("a", "b")}}, codes.InvalidArgument, ErrBadRequest},
		"shard beyond the last":                {&memorySource{}, SeriesRequest{Shard: &Shard{Index: 3, Total: 3}}, codes.InvalidArgument, ErrBadRequest},
		"storage that is not open":             {&memorySource{querier: func(int64, int64) error { return tsdb.ErrNotReady }}, SeriesRequest{}, codes.Unavailable, ErrUnavailable},
		"corrupt series":                       {&memorySource{err: fmt.Errorf("block 1: %w", series.ErrCorrupt)}, SeriesRequest{}, codes.DataLoss, ErrCorrupt},
		"limit of a source":                    {&memorySource{err: fmt.Errorf("x: %w", ErrLimit)}, SeriesRequest{}, codes.ResourceExhausted, ErrLimit},
		"status of a source":                   {&memorySource{err: status.Error(codes.PermissionDenied, "no")}, SeriesRequest{}, codes.PermissionDenied, nil},
		"anything else":                        {&memorySource{err: errors.New("oh")}, SeriesRequest{}, codes.Internal, nil},
		"chunk of an impossible kind":          {&memorySource{rows: []row{{labels: labels.FromStrings("__name__", "requests_total"), chunks: []series.Chunk{{Encoding: 77, Data: []byte{1, 2, 3}}}}}}, SeriesRequest{}, codes.DataLoss, ErrCorrupt},
		"matcher excludes the external labels": {&memorySource{external: labels.FromStrings("a", "b"), rows: rows(t, 1)}, SeriesRequest{Matchers: append(all(), equal("a", "c"))}, codes.OK, nil},
	} {
		_, err := request(t, c.src, ServerOptions{}, c.r)
		if status.Code(err) != c.code || c.is != nil && !errors.Is(err, c.is) {
			t.Errorf("%s: %v", name, err)
		}
		if n := c.src.openQueriers(); n != 0 {
			t.Errorf("%s: %d queriers are open", name, n)
		}
	}
	if _, err := matchersFrom([]*pb.LabelMatcher{{Type: 9, Name: "a"}}); !errors.Is(err, ErrBadRequest) {
		t.Errorf("unknown operator: %v", err)
	}
	_, err := request(t, &memorySource{rows: []row{{labels: labels.FromStrings("__name__", "requests_total", "a", "1"), chunks: []series.Chunk{xor(t, 1, 1), {Encoding: 77}}}}}, ServerOptions{}, SeriesRequest{})
	if err == nil || !strings.Contains(err.Error(), `series {__name__="requests_total", a="1"}: chunk 1`) {
		t.Errorf("the corrupt chunk is not named: %v", err)
	}
}

func TestServer_SendsWarningsWithTheSeries(t *testing.T) {
	src := &memorySource{rows: rows(t, 200), warnings: []string{"one store is away"}}
	set := NewClient(dial(t, src, ServerOptions{}), ClientOptions{}).Series(t.Context(), SeriesRequest{MaxMS: 9, Matchers: all()})
	got, err := read(t, set)
	if err != nil || len(got) != 200 || len(set.Warnings()) != 1 || set.Warnings().AsErrors()[0].Error() != "one store is away" {
		t.Errorf("%d series, %v, %v", len(got), set.Warnings(), err)
	}
}

// Without the warning a querier would take the empty list of an unreadable block for the whole.
func TestServer_SendsWarningsOfLookupsOfExternalLabels(t *testing.T) {
	src := &memorySource{rows: rows(t, 20), external: labels.FromStrings("cluster", "eu"), warnings: []string{"a block is unreadable"}}
	client := NewClient(dial(t, src, ServerOptions{}), ClientOptions{})
	for code, want := range map[string]string{"1": "[] [a block is unreadable]", "200": "[eu] []"} {
		values, warnings, err := client.LabelValues(t.Context(), LabelsRequest{Label: "cluster", Matchers: []*labels.Matcher{equal("code", code)}})
		if got := fmt.Sprint(values, " ", warnings); got != want || err != nil {
			t.Errorf("code %s: %s %v, want %s", code, got, err, want)
		}
	}
}

func TestServer_InfoAndLabels(t *testing.T) {
	src := &memorySource{rows: rows(t, 20), external: labels.FromStrings("cluster", "eu", "job", "other")}
	client := NewClient(dial(t, src, ServerOptions{}), ClientOptions{})
	info, err := client.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want, _ := src.Info(t.Context())
	want.Store.Sharding, want.Store.WithoutReplicaLabels = true, true
	if got, want := fmt.Sprintf("%+v %+v %+v", info, info.Store, info.Exemplars), fmt.Sprintf("%+v %+v %+v", want, want.Store, want.Exemplars); stripPointers(got) != stripPointers(want) {
		t.Errorf("info\n%s, want\n%s", got, want)
	}
	for name, c := range map[string]struct {
		r    LabelsRequest
		want string
		code codes.Code
	}{
		"names":                         {LabelsRequest{}, "__name__ cluster code instance job", codes.OK},
		"names without":                 {LabelsRequest{WithoutReplicaLabels: []string{"cluster", "code"}}, "__name__ instance job", codes.OK},
		"names of another cluster":      {LabelsRequest{Matchers: []*labels.Matcher{equal("cluster", "us")}}, "", codes.OK},
		"names of nothing":              {LabelsRequest{Matchers: []*labels.Matcher{equal("code", "1")}}, "", codes.OK},
		"names, two":                    {LabelsRequest{Limit: 2}, "__name__ cluster", codes.OK},
		"values":                        {LabelsRequest{Label: "code"}, "200 201 202 203 204 205 206", codes.OK},
		"values, two":                   {LabelsRequest{Label: "code", Limit: 2}, "200 201", codes.OK},
		"values of an external label":   {LabelsRequest{Label: "job"}, "other", codes.OK},
		"of one that is taken away":     {LabelsRequest{Label: "job", WithoutReplicaLabels: []string{"job"}}, "", codes.OK},
		"external, if there is a match": {LabelsRequest{Label: "job", Matchers: []*labels.Matcher{equal("code", "200"), equal("job", "other")}}, "other", codes.OK},
		"external, if there is none":    {LabelsRequest{Label: "job", Matchers: []*labels.Matcher{equal("code", "1")}}, "", codes.OK},
		"of another cluster":            {LabelsRequest{Label: "code", Matchers: []*labels.Matcher{equal("cluster", "us")}}, "", codes.OK},
		"range that ends before":        {LabelsRequest{Label: "code", MinMS: 1}, "", codes.InvalidArgument},
	} {
		list := client.LabelNames
		if c.r.Label != "" {
			list = client.LabelValues
		}
		got, _, err := list(t.Context(), c.r)
		if strings.Join(got, " ") != c.want || status.Code(err) != c.code {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	if _, _, err := client.LabelValues(t.Context(), LabelsRequest{}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("values of no label: %v", err)
	}
	if n := src.openQueriers(); n != 0 {
		t.Errorf("%d queriers are open", n)
	}
	exemplars, _, err := client.Exemplars(t.Context(), ExemplarsRequest{Query: "up", MinMS: 4, MaxMS: 5})
	if err != nil || len(exemplars) != 1 || exemplars[0].SeriesLabels.String() != `{__name__="up", cluster="eu", job="other"}` || exemplars[0].Exemplars[0].Ts != 4 {
		t.Errorf("exemplars: %v %v", exemplars, err)
	}
}

// stripPointers removes addresses from a printed struct.
func stripPointers(s string) string {
	var out strings.Builder
	for part := range strings.SplitSeq(s, "0x") {
		out.WriteString(strings.TrimLeft(part, "0123456789abcdef"))
	}
	return out.String()
}

func TestServer_ChunksOfUnsupportedEncodingsAreEncodedAgain(t *testing.T) {
	newer, err := chunkenc.NewEmptyChunk(chunkenc.EncXOR2)
	if err != nil {
		t.Fatal(err)
	}
	app, err := newer.Appender()
	if err != nil {
		t.Fatal(err)
	}
	for i := range int64(100) {
		app.Append(500, 1000+i*1000, math.Sqrt(float64(i)))
	}
	src := &memorySource{rows: []row{{labels: labels.FromStrings("__name__", "requests_total"), chunks: []series.Chunk{{MinMS: 1000, MaxMS: 100_000, Encoding: chunkenc.EncXOR2, Data: newer.Bytes()}}}}}
	got, err := request(t, src, ServerOptions{}, SeriesRequest{})
	if err != nil || len(got) != 1 || len(got[0].chunks) != 1 {
		t.Fatal(got, err)
	}
	c := got[0].chunks[0]
	chunk, err := chunkenc.FromData(c.Encoding, c.Data)
	if err != nil || c.Encoding != chunkenc.EncXOR || c.MinMS != 1000 || c.MaxMS != 100_000 {
		t.Fatal(c, err)
	}
	it := chunk.Iterator(nil)
	for i := range int64(100) {
		if it.Next() != chunkenc.ValFloat {
			t.Fatal("too few samples")
		}
		if ts, v := it.At(); ts != 1000+i*1000 || v != math.Sqrt(float64(i)) {
			t.Fatal(ts, v)
		}
	}
}

// A client that does not read must not make the server read all of its source.
func TestServer_StalledClientStopsReadingTheSource(t *testing.T) {
	src := &endlessSource{memorySource: memorySource{rows: rows(t, 1)}}
	conn := dial(t, src, ServerOptions{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	set := NewClient(conn, ClientOptions{}).Series(ctx, SeriesRequest{MaxMS: 1, Matchers: all()})
	defer set.Close()
	if !set.Next() {
		t.Fatal(set.Err())
	}
	last := int64(-1)
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline) && src.series.Load() != last; time.Sleep(300 * time.Millisecond) {
		last = src.series.Load()
	}
	if n := src.series.Load(); n != last || n > 30_000 {
		t.Fatalf("%d series of 1 KiB were read for a client that stalls", n)
	}
	cancel()
	for set.Next() {
	}
	if !errors.Is(set.Err(), context.Canceled) {
		t.Errorf("after cancelling: %v", set.Err())
	}
	for deadline := time.Now().Add(30 * time.Second); src.openQueriers() != 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the querier of a client that has gone stays open")
		}
	}
}

// sentSizes is a stream that records the lengths of messages.
type sentSizes struct {
	grpc.ServerStream
	sizes []int
}

func (s *sentSizes) SendMsg(m any) error {
	buf := m.(*outFrame).buf
	s.sizes = append(s.sizes, len(*buf))
	frames.Put(buf)
	m.(*outFrame).buf = nil
	return nil
}

// The length of a message has four bytes in its header: a longer message is an error,
// not a message with a wrong length.
func TestBatchWriter_TooLongMessageIsAnError(t *testing.T) {
	for _, batch := range []int64{1, 64} {
		lset := labelenc.AppendLabel(nil, "a", "1")
		send := func(bytesMax int) (sizes []int, err error) {
			stream := &sentSizes{}
			b := newBatchWriter(stream, &pb.SeriesRequest{ResponseBatchSize: batch})
			if b.bytesMax != storepb.ResponseBytesMax {
				t.Errorf("the limit is %d", b.bytesMax)
			}
			b.bytesMax = bytesMax
			defer b.free()
			if err = b.add(lset, []series.Chunk{{Encoding: chunkenc.EncXOR, Data: make([]byte, 1000)}}); err == nil {
				err = b.flush()
			}
			return stream.sizes, err
		}
		sizes, err := send(1 << 20)
		if err != nil || len(sizes) != 1 {
			t.Fatal(sizes, err)
		}
		whole := sizes[0] - storepb.HeadBytes
		if sizes, err := send(whole); err != nil || len(sizes) != 1 {
			t.Errorf("batches of %d: at the limit: %v %v", batch, sizes, err)
		}
		if sizes, err := send(whole - 1); !errors.Is(err, ErrLimit) || len(sizes) != 0 {
			t.Errorf("batches of %d: one past the limit: %v %v", batch, sizes, err)
		}
	}
}

// A querier would take an empty list for a store without data.
func TestServer_FailedListsAreErrors(t *testing.T) {
	src := &memorySource{rows: rows(t, 3), external: labels.FromStrings("cluster", "eu"), err: errors.New("the disk is broken")}
	client := NewClient(dial(t, src, ServerOptions{}), ClientOptions{})
	r := LabelsRequest{MaxMS: 1 << 50}
	if names, _, err := client.LabelNames(t.Context(), r); err == nil || len(names) > 0 || !strings.Contains(err.Error(), "the disk is broken") {
		t.Errorf("names: %q %v", names, err)
	}
	r.Label = "__name__"
	if values, _, err := client.LabelValues(t.Context(), r); err == nil || len(values) > 0 || !strings.Contains(err.Error(), "the disk is broken") {
		t.Errorf("values: %q %v", values, err)
	}
	if found, _, err := client.Exemplars(t.Context(), ExemplarsRequest{Query: "up", MaxMS: 10}); err == nil || len(found) > 0 || !strings.Contains(err.Error(), "the disk is broken") {
		t.Errorf("exemplars: %v %v", found, err)
	}
}

// chunkSource is a source whose queriers can read labels without chunks.
type chunkSource struct {
	memorySource
	selected, labelsOnly int // selections with and without chunks
}

func (c *chunkSource) Series(ctx context.Context, r SeriesRequest) Stream {
	return LocalSeries(ctx, c, c.external, r)
}

func (c *chunkSource) RawQuerier(ctx context.Context, mint, maxt int64) (series.Querier, error) {
	q, err := c.memorySource.RawQuerier(ctx, mint, maxt)
	return chunkQuerier{q, c}, err
}

type chunkQuerier struct {
	series.Querier
	src *chunkSource
}

func (q chunkQuerier) Select(ctx context.Context, opts series.SelectOptions, matchers ...*labels.Matcher) series.Set {
	if opts.LabelsOnly {
		q.src.labelsOnly++
	} else {
		q.src.selected++
	}
	return q.Querier.Select(ctx, opts, matchers...)
}

func TestServer_SkipChunksReadsNoChunksOfTheSource(t *testing.T) {
	src := &chunkSource{memorySource: memorySource{rows: rows(t, 3)}}
	for _, skip := range []bool{true, false} {
		src.selected, src.labelsOnly = 0, 0
		got, err := request(t, src, ServerOptions{}, SeriesRequest{SkipChunks: skip})
		if err != nil || len(got) != 3 || (len(got[0].chunks) == 0) != skip || (src.selected == 0) != skip || (src.labelsOnly > 0) != skip || src.openQueriers() != 0 {
			t.Errorf("skip chunks %v: %d series, %d selections with chunks, %d without, %v", skip, len(got), src.selected, src.labelsOnly, err)
		}
	}
}
