package remoteread

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gogo/protobuf/proto"
	"github.com/golang/snappy"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/prompb"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/tsdbutil"

	"github.com/ferula-io/ferula/internal/tsdb"
)

var everything = labels.MustNewMatcher(labels.MatchRegexp, labels.MetricName, ".+")

// check reads both response types and compares them with the storage's own querier.
func check(t *testing.T, s *tsdb.Store, address string, external labels.Labels, mint, maxt int64, matchers ...*labels.Matcher) summary {
	t.Helper()
	widen := func(l labels.Labels) labels.Labels {
		b := labels.NewBuilder(l)
		external.Range(func(e labels.Label) {
			if !l.Has(e.Name) {
				b.Set(e.Name, e.Value)
			}
		})
		return b.Labels()
	}
	q, err := s.Querier(mint, maxt)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	want := sum(t, &matching{q.Select(context.Background(), true, nil, everything), matchers, widen}, widen)
	for name, set := range map[string]storage.SeriesSet{
		"chunks":  readChunks(t, address, peerQuery(mint, maxt, matchers...)),
		"samples": readSamples(t, address, peerQuery(mint, maxt, matchers...))[0],
	} {
		got := sum(t, set, asIs)
		if got.series != want.series || got.samples != want.samples || got.hash != want.hash {
			t.Errorf("%s, %d-%d %v: %+v, want %+v", name, mint, maxt, matchers, got, want)
		}
		if !got.sorted {
			t.Errorf("%s, %d-%d %v: not in the order of labels", name, mint, maxt, matchers)
		}
	}
	return want
}

// matching filters series by their labels after widen.
type matching struct {
	storage.SeriesSet
	matchers []*labels.Matcher
	widen    func(labels.Labels) labels.Labels
}

func (m *matching) Next() bool {
	for m.SeriesSet.Next() {
		lset, ok := m.widen(m.At().Labels()), true
		for _, matcher := range m.matchers {
			ok = ok && matcher.Matches(lset.Get(matcher.Name))
		}
		if ok {
			return true
		}
	}
	return false
}

func TestServer_PrometheusReadsAllSeriesOfTheStorage(t *testing.T) {
	for _, tt := range []struct {
		name string
		open func(t *testing.T, dir string) *tsdb.Store
	}{
		{"head", func(t *testing.T, dir string) *tsdb.Store {
			s := open(t, dir)
			fill(t, s, 30, startMS, startMS+2*hourMS, 30_000)
			return s
		}},
		{"blocks and head", func(t *testing.T, dir string) *tsdb.Store {
			block(t, dir, 30, startMS, startMS+2*hourMS, 30_000)
			block(t, dir, 25, startMS+2*hourMS, startMS+4*hourMS, 30_000)
			s := open(t, dir)
			fill(t, s, 28, startMS+4*hourMS, startMS+5*hourMS, 30_000)
			return s
		}},
		{"overlapping blocks and a tombstone", func(t *testing.T, dir string) *tsdb.Store {
			deleteFrom(t, block(t, dir, 30, startMS, startMS+2*hourMS, 30_000), startMS-hourMS, startMS+hourMS/2, labels.MustNewMatcher(labels.MatchRegexp, labels.MetricName, "m1|h"))
			block(t, dir, 25, startMS+2*hourMS, startMS+4*hourMS, 30_000)
			block(t, dir, 10, startMS+3*hourMS+17, startMS+4*hourMS, 70_000)
			return open(t, dir)
		}},
		{"late samples", func(t *testing.T, dir string) *tsdb.Store {
			block(t, dir, 30, startMS, startMS+2*hourMS, 30_000)
			s := open(t, dir)
			fill(t, s, 28, startMS+2*hourMS, startMS+3*hourMS, 30_000)
			fill(t, s, 10, startMS+hourMS+11, startMS+2*hourMS, 90_000)
			return s
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := tt.open(t, t.TempDir())
			for _, external := range []labels.Labels{labels.EmptyLabels(), labels.FromStrings("cluster", "mm"), labels.FromStrings("cluster", "aa", "zone", "z")} {
				address := serve(t, s, Options{ExternalLabels: func() labels.Labels { return external }, FrameBytesMax: 4096})
				if all := check(t, s, address, external, startMS-hourMS, startMS+9*hourMS, everything); all.samples < 1000 {
					t.Fatalf("only %d samples", all.samples)
				}
				check(t, s, address, external, startMS, startMS+2*hourMS-1, everything)
				check(t, s, address, external, startMS+hourMS/3+7, startMS+3*hourMS-1, everything)
				check(t, s, address, external, startMS+hourMS+1, startMS+hourMS+30_000, everything)
				check(t, s, address, external, startMS+50*hourMS, startMS+51*hourMS, everything)
				for _, m := range []*labels.Matcher{
					labels.MustNewMatcher(labels.MatchEqual, "cluster", "mm"), labels.MustNewMatcher(labels.MatchEqual, "cluster", "aa"),
					labels.MustNewMatcher(labels.MatchNotEqual, "cluster", "mm"), labels.MustNewMatcher(labels.MatchRegexp, "cluster", "m+|zz"),
					labels.MustNewMatcher(labels.MatchNotRegexp, "cluster", "a."), labels.MustNewMatcher(labels.MatchEqual, "cluster", ""),
					labels.MustNewMatcher(labels.MatchEqual, labels.MetricName, "m1"),
				} {
					check(t, s, address, external, startMS, startMS+9*hourMS, m)
				}
			}
		})
	}
}

func TestServer_SeveralQueriesReturnResultsInOrder(t *testing.T) {
	s := open(t, t.TempDir())
	fill(t, s, 12, startMS, startMS+hourMS, 60_000)
	address := serve(t, s, Options{})
	one, two := peerQuery(startMS, startMS+hourMS, everything), peerQuery(startMS, startMS+hourMS/2, labels.MustNewMatcher(labels.MatchEqual, labels.MetricName, "nothing"))
	sets := readSamples(t, address, one, two, one)
	first, second, third := sum(t, sets[0], asIs), sum(t, sets[1], asIs), sum(t, sets[2], asIs)
	if first != third || first.series != 14 || second.series != 0 {
		t.Errorf("%+v, %+v, %+v", first, second, third)
	}
	if sets := readSamples(t, address); len(sets) != 0 {
		t.Error("a request without queries has results")
	}
	named := peerQuery(startMS, startMS+hourMS, everything)
	named.Hints = &prompb.ReadHints{Func: "series"}
	set, n := readSamples(t, address, named)[0], 0
	for set.Next() {
		if n++; set.At().Iterator(nil).Next() != 0 {
			t.Error("a sample, though the query was for labels")
		}
	}
	if n != 14 {
		t.Errorf("%d series by labels", n)
	}
}

func TestServer_BadRequestIs400WithTheReason(t *testing.T) {
	s := open(t, t.TempDir())
	fill(t, s, 5, startMS, startMS+hourMS, 60_000)
	address := serve(t, s, Options{SamplesMax: 10})
	matcher := func(kind prompb.LabelMatcher_Type, value string) *prompb.Query {
		return &prompb.Query{EndTimestampMs: 1, Matchers: []*prompb.LabelMatcher{{Type: kind, Name: "x", Value: value}}}
	}
	bomb := append([]byte{0x80, 0x80, 0x80, 0x80, 0x08}, make([]byte, 100)...) // a length of 2 GiB
	for _, tt := range []struct {
		name string
		body []byte
		want string
	}{
		{"no snappy", []byte("hello, this is not snappy"), "decompress"},
		{"nothing", nil, "decompress"},
		{"a bomb", bomb, "decompressed"},
		{"no protobuf", snappy.Encode(nil, []byte("\xff\xff\xff")), "corrupt"},
		{"bad regex", encode(t, 0, matcher(prompb.LabelMatcher_RE, "a(")), "missing closing"},
		{"unknown matcher", encode(t, 0, matcher(9, "a")), "invalid matcher type"},
		{"unknown form", encode(t, 7, matcher(0, "a")), "supported"},
		{"upside down", encode(t, 1, peerQuery(2, 1, everything)), "the end of the range (1) is before its start (2)"},
		{"no matcher", encode(t, 1, peerQuery(1, 2)), "no matcher"},
		{"too many samples", encode(t, 0, peerQuery(startMS, startMS+hourMS, everything)), "exceeded sample limit (10)"},
		{"too long", make([]byte, requestBytesMax+1), "exceeds 33554432 bytes"},
	} {
		status, header, response := post(t, address, tt.body)
		if status != http.StatusBadRequest || !strings.Contains(string(response), tt.want) || !strings.HasPrefix(header.Get("Content-Type"), "text/plain") || header.Get("Content-Encoding") != "" {
			t.Errorf("%s: %d %.200s %v, want 400 %s", tt.name, status, response, header, tt.want)
		}
	}
	resp, err := http.Get(address)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("GET: %d", resp.StatusCode)
	}
}

// failing is a storage whose sets end with an error.
type failing struct {
	storage.ChunkQueryable
	after int
}

func (f failing) ChunkQuerier(mint, maxt int64) (storage.ChunkQuerier, error) {
	q, err := f.ChunkQueryable.ChunkQuerier(mint, maxt)
	return failingQuerier{q, f.after}, err
}

type failingQuerier struct {
	storage.ChunkQuerier
	after int
}

func (f failingQuerier) Select(ctx context.Context, sorted bool, hints *storage.SelectHints, ms ...*labels.Matcher) storage.ChunkSeriesSet {
	return &failingSet{f.ChunkQuerier.Select(ctx, sorted, hints, ms...), f.after}
}

type failingSet struct {
	storage.ChunkSeriesSet
	left int
}

func (f *failingSet) Next() bool { f.left--; return f.left >= 0 && f.ChunkSeriesSet.Next() }
func (f *failingSet) Err() error { return errors.New("the disk is gone") }

func TestServer_FailureIs500OrCutsTheConnection(t *testing.T) {
	s := open(t, t.TempDir())
	fill(t, s, 400, startMS, startMS+2*hourMS, 10_000)
	for _, form := range []prompb.ReadRequest_ResponseType{prompb.ReadRequest_STREAMED_XOR_CHUNKS, prompb.ReadRequest_SAMPLES} {
		body := encode(t, form, peerQuery(startMS, startMS+2*hourMS, everything))
		status, _, response := post(t, serve(t, failing{s, 1}, Options{}), body)
		if status != http.StatusInternalServerError || !strings.Contains(string(response), "the disk is gone") {
			t.Errorf("early: %d %.100s", status, response)
		}
	}
	resp, err := http.Post(serve(t, failing{s, 350}, Options{}), "", strings.NewReader(string(encode(t, 1, peerQuery(startMS, startMS+2*hourMS, everything)))))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	n, err := io.Copy(io.Discard, resp.Body)
	if resp.StatusCode != http.StatusOK || n == 0 || err == nil {
		t.Errorf("late: %d, %d bytes, %v", resp.StatusCode, n, err)
	}
}

func TestServer_StalledAndDisconnectedReadersFreeTheirSlots(t *testing.T) {
	s := open(t, t.TempDir())
	fill(t, s, 500, startMS, startMS+2*hourMS, 20_000)
	address := serve(t, s, Options{ConcurrentMax: 2, WriteTimeout: time.Second})
	want := request(t, NewServer(Options{}, s, nil, nil), 1, peerQuery(startMS, startMS+2*hourMS, everything))
	if want < 1<<20 {
		t.Fatalf("%d bytes fit into sockets", want)
	}
	body := string(encode(t, 1, peerQuery(startMS, startMS+2*hourMS, everything)))
	for i := range 4 {
		conn, err := net.Dial("tcp", strings.TrimPrefix(address, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.(*net.TCPConn).SetReadBuffer(4096)
		request, err := http.NewRequest(http.MethodPost, address, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		if err := request.Write(conn); err != nil {
			t.Fatal(err)
		}
		if i%2 == 0 {
			defer conn.Close() // never reads
		} else {
			conn.Close()
		}
	}
	begun := time.Now()
	status, _, response := post(t, address, []byte(body))
	if status != http.StatusOK || len(response) != want || time.Since(begun) > 20*time.Second {
		t.Errorf("%d, %d bytes, want %d, after %s", status, len(response), want, time.Since(begun))
	}
}

func TestServer_QueuedRequestEndsWhenItsClientDisconnects(t *testing.T) {
	s := open(t, t.TempDir())
	server := NewServer(Options{ConcurrentMax: 1}, s, slog.New(slog.DiscardHandler), nil)
	address := serveHandler(t, server)
	server.slots <- struct{}{} // another request has the slot
	ctx, cancel := context.WithCancel(context.Background())
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, address, strings.NewReader(string(encode(t, 1, peerQuery(1, 2, everything)))))
	if err != nil {
		t.Fatal(err)
	}
	gone := make(chan error, 1)
	go func() {
		resp, err := http.DefaultClient.Do(request)
		if err == nil {
			resp.Body.Close()
		}
		gone <- err
	}()
	waitFor(t, func() bool { return server.queries.Get() == 1 })
	cancel()
	if err := <-gone; err == nil {
		t.Error("a response")
	}
	waitFor(t, func() bool { return server.queries.Get() == 0 })
	<-server.slots
}

func waitFor(t *testing.T, ok func() bool) {
	t.Helper()
	for range 3000 {
		if ok() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal("waited for 30 s")
}

// growing appends to the head between the selections of a querier.
type growing struct {
	storage.ChunkQueryable
	grow func()
}

func (g growing) ChunkQuerier(mint, maxt int64) (storage.ChunkQuerier, error) {
	q, err := g.ChunkQueryable.ChunkQuerier(mint, maxt)
	return &growingQuerier{q, g.grow, 0}, err
}

type growingQuerier struct {
	storage.ChunkQuerier
	grow    func()
	selects int
}

func (g *growingQuerier) Select(ctx context.Context, sorted bool, hints *storage.SelectHints, ms ...*labels.Matcher) storage.ChunkSeriesSet {
	if g.selects++; g.selects == 2 {
		g.grow()
	}
	return g.ChunkQuerier.Select(ctx, sorted, hints, ms...)
}

func TestServer_SamplesOfAGrowingHeadAreThoseOfTheFirstPass(t *testing.T) {
	s := open(t, t.TempDir())
	fill(t, s, 20, startMS, startMS+hourMS, 30_000)
	q := peerQuery(startMS, startMS+9*hourMS, everything)
	want := sum(t, readSamples(t, serve(t, s, Options{}), q)[0], asIs)
	grown := false
	got := sum(t, readSamples(t, serve(t, growing{s, func() {
		grown = true
		fill(t, s, 40, startMS+hourMS, startMS+hourMS+10*60_000, 30_000)
	}}, Options{}), q)[0], asIs)
	if !grown || got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// A late sample of a series that was measured would push its newest one out of the response.
func TestServer_SamplesWithALateSampleBetweenThePassesFail(t *testing.T) {
	for _, kind := range []string{"floats", "histograms"} {
		s := open(t, t.TempDir())
		lset := labels.FromStrings(labels.MetricName, "late")
		write := func(ms int64) {
			app := s.Appender(context.Background())
			var err error
			if kind == "floats" {
				_, err = app.Append(0, lset, ms, 1)
			} else {
				_, err = app.AppendHistogram(0, lset, ms, tsdbutil.GenerateTestHistogram(5), nil)
			}
			if err := errors.Join(err, app.Commit()); err != nil {
				t.Fatal(err)
			}
		}
		for i := range int64(10) {
			write(startMS + i*30_000)
		}
		write(startMS + 45_000) // the reader looks at late samples
		q := peerQuery(startMS, startMS+hourMS, everything)
		grow := func(ms int64) storage.ChunkQueryable { return growing{s, func() { write(ms) }} }
		if status, _, text := post(t, serve(t, grow(startMS+10*30_000), Options{}), encode(t, prompb.ReadRequest_SAMPLES, q)); status != http.StatusOK {
			t.Errorf("%s, a newer sample: %d %s", kind, status, text)
		}
		if status, _, text := post(t, serve(t, grow(startMS+15_000), Options{}), encode(t, prompb.ReadRequest_SAMPLES, q)); status != http.StatusInternalServerError || !strings.Contains(string(text), errChanged.Error()) {
			t.Errorf("%s, a late sample: %d %.200s", kind, status, text)
		}
	}
}

// discardWriter is a response writer that discards all data.
type discardWriter struct {
	header http.Header
	bytes  int
}

func (b *discardWriter) Header() http.Header { return b.header }
func (b *discardWriter) WriteHeader(int)     {}
func (b *discardWriter) Write(p []byte) (int, error) {
	b.bytes += len(p)
	return len(p), nil
}

func request(t testing.TB, h http.Handler, form prompb.ReadRequest_ResponseType, q *prompb.Query) int {
	request, err := http.NewRequest(http.MethodPost, "/", strings.NewReader(string(encode(t, form, q))))
	if err != nil {
		t.Fatal(err)
	}
	w := &discardWriter{header: http.Header{}}
	h.ServeHTTP(w, request)
	return w.bytes
}

func TestServer_DoesNotAllocatePerSeries(t *testing.T) {
	allocations := func(n int, form prompb.ReadRequest_ResponseType) float64 {
		dir := t.TempDir()
		block(t, dir, n, startMS, startMS+2*hourMS, 600_000)
		server := NewServer(Options{}, open(t, dir), nil, nil)
		q := peerQuery(startMS, startMS+2*hourMS-1, labels.MustNewMatcher(labels.MatchRegexp, labels.MetricName, "m.*"))
		request(t, server, form, q)
		return testing.AllocsPerRun(5, func() {
			if request(t, server, form, q) < n*10 {
				t.Fatal("short")
			}
		})
	}
	for _, form := range []prompb.ReadRequest_ResponseType{prompb.ReadRequest_STREAMED_XOR_CHUNKS, prompb.ReadRequest_SAMPLES} {
		few, many := allocations(10, form), allocations(1000, form)
		t.Logf("form %d: %v allocations for 10 series, %v for 1,000", form, few, many)
		if many > few+250 { // posting lists of the 100 names that match
			t.Errorf("form %d: %v allocations for 10 series, %v for 1,000", form, few, many)
		}
	}
}

func TestDecode_ReadsThePrometheusHints(t *testing.T) {
	plain, err := proto.Marshal(&prompb.ReadRequest{Queries: []*prompb.Query{{StartTimestampMs: 1, EndTimestampMs: 9, Hints: &prompb.ReadHints{StartMs: 3, EndMs: 5, Func: "series"},
		Matchers: []*prompb.LabelMatcher{{Name: "a", Value: "b"}}}}})
	if err != nil {
		t.Fatal(err)
	}
	request, err := DecodeRequest(plain)
	if err != nil {
		t.Fatal(err)
	}
	if q, err := newQuery(request.Queries[0]); err != nil || q.mint != 3 || q.maxt != 5 || !q.labelsOnly || len(q.matchers) != 1 {
		t.Errorf("%+v, %v", q, err)
	}
}
