package sim

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/series/labelenc"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

// lie is the fault of a liar.
type lie string

const (
	honest        lie = "is honest"
	unsorted      lie = "sends unsorted series"
	repeated      lie = "repeats label sets"
	halved        lie = "sends each series in two messages"
	wrongTimes    lie = "sends wrong times of chunks"
	truncated     lie = "truncates a chunk"
	emptyChunk    lie = "sends an empty chunk"
	wrongEncoding lie = "sends an unknown encoding"
	wrongCount    lie = "sends a chunk with too many samples"
	badLabels     lie = "sends an empty label name"
	doubleLabels  lie = "sends a label twice"
	failsAfter    lie = "fails after some series"
	stallsAfter   lie = "stalls after some series"
	cutsAfter     lie = "cuts connections after some series"
	vanishes      lie = "vanishes"
	infoFails     lie = "fails its Info requests"
)

var lies = []lie{honest, unsorted, repeated, halved, wrongTimes, truncated, emptyChunk, wrongEncoding, wrongCount, badLabels, doubleLabels, failsAfter, stallsAfter, cutsAfter, vanishes, infoFails}

// liar is a StoreAPI on loopback with a fault that the scenario chooses. Apart from the
// fault its responses are correct.
type liar struct {
	noLabels
	address string
	list    []fakeSeries // sorted

	mu      sync.Mutex
	lie     lie
	server  *grpc.Server
	serving sync.WaitGroup
}

var _ storeapi.Source = (*liar)(nil)

func newLiar(list []fakeSeries) (*liar, error) {
	address, err := freeAddress()
	if err != nil {
		return nil, err
	}
	l := &liar{address: address, list: list}
	return l, l.set(honest)
}

// set begins a lie, and ends the previous one.
func (l *liar) set(what lie) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lie = what
	if what == vanishes {
		if l.server != nil {
			l.server.Stop()
			l.server = nil
		}
		return nil
	}
	if l.server != nil {
		return nil
	}
	listener, err := net.Listen("tcp", l.address)
	if err != nil {
		return err
	}
	l.server = grpc.NewServer(storeapi.GRPCServerOptions()...)
	storeapi.NewServer(l, storeapi.ServerOptions{}).Register(l.server)
	server := l.server
	l.serving.Go(func() { _ = server.Serve(listener) })
	return nil
}

func (l *liar) current() lie {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lie
}

func (l *liar) stop() {
	if err := l.set(vanishes); err != nil {
		panic(err) // it only closes connections
	}
	l.serving.Wait()
}

func (l *liar) Info(context.Context) (storeapi.Info, error) {
	if l.current() == infoFails {
		return storeapi.Info{}, status.Error(codes.Internal, "no info")
	}
	return storeapi.Info{Component: "store", Store: &storeapi.StoreInfo{TimeRange: storeapi.TimeRange{MinMS: math.MinInt64, MaxMS: math.MaxInt64}}}, nil
}

func (l *liar) ExternalLabels() labels.Labels       { return labels.EmptyLabels() }
func (l *liar) Capabilities() storeapi.Capabilities { return storeapi.Capabilities{} }

// sentSeries is one message of a liar's stream.
type sentSeries struct {
	labels []byte
	chunks []series.Chunk
}

func (l *liar) Series(ctx context.Context, r storeapi.SeriesRequest) storeapi.Stream {
	s := &lyingStream{ctx: ctx, liar: l, at: -1, lie: l.current()}
	for _, one := range l.list {
		if slices.ContainsFunc(r.Matchers, func(m *labels.Matcher) bool { return !m.Matches(one.labels.Get(m.Name)) }) {
			continue
		}
		sent := sentSeries{labels: labelenc.Append(nil, one.labels)}
		for _, c := range one.raw {
			c.Data = slices.Clone(c.Data)
			sent.chunks = append(sent.chunks, c)
		}
		s.list = append(s.list, sent)
	}
	s.distort()
	return s
}

// lyingStream is the response of a liar.
type lyingStream struct {
	noExtras
	ctx  context.Context //nolint:containedctx // a stream belongs to one request
	liar *liar
	lie  lie
	list []sentSeries
	at   int
	err  error
}

// distort applies the lie to the response. With fewer than three series it changes
// nothing.
func (s *lyingStream) distort() {
	if len(s.list) < 3 {
		s.lie = honest
		return
	}
	one := &s.list[1]
	switch s.lie {
	case unsorted:
		slices.Reverse(s.list)
	case repeated:
		s.list = slices.Insert(s.list, 1, s.list[1])
	case halved:
		var list []sentSeries
		for _, sent := range s.list {
			n := len(sent.chunks) / 2
			list = append(list, sentSeries{sent.labels, sent.chunks[:n]}, sentSeries{sent.labels, sent.chunks[n:]})
		}
		s.list = list
	case wrongTimes:
		// The new time range is within that of the request: chunks outside of it are not read.
		c := &one.chunks[len(one.chunks)/2]
		c.MinMS, c.MaxMS = c.MinMS-3_600_000, c.MinMS-1_800_000
	case truncated:
		one.chunks[0].Data = one.chunks[0].Data[:len(one.chunks[0].Data)/2]
	case emptyChunk:
		one.chunks[0].Data = nil
	case wrongEncoding:
		one.chunks[0].Encoding = 99
	case wrongCount:
		one.chunks[0].Data[0], one.chunks[0].Data[1] = 0x7f, 0xff
	case badLabels:
		one.labels = labelenc.AppendLabel(nil, "", "x")
	case doubleLabels:
		one.labels = labelenc.AppendLabel(labelenc.AppendLabel(nil, "__name__", metricName), "__name__", metricName)
	}
}

func (s *lyingStream) Next() bool {
	s.at++
	if s.at == len(s.list)/2 {
		switch s.lie {
		case failsAfter:
			s.err = status.Error(codes.Unavailable, "the disk fails")
			return false
		case stallsAfter:
			<-s.ctx.Done()
			s.err = s.ctx.Err()
			return false
		case cutsAfter:
			go func() {
				if err := s.liar.set(vanishes); err == nil {
					_ = s.liar.set(cutsAfter)
				}
			}()
			<-s.ctx.Done()
			s.err = s.ctx.Err()
			return false
		}
	}
	return s.at < len(s.list)
}

func (s *lyingStream) Labels() []byte         { return s.list[s.at].labels }
func (s *lyingStream) Chunks() []series.Chunk { return s.list[s.at].chunks }
func (s *lyingStream) Err() error             { return s.err }

// liarsScenario is a querier of a liar and of an honest store.
type liarsScenario struct {
	env    *environment
	rng    *rand.Rand
	all    samples // of both stores
	own    samples // of the honest store
	minMS  int64
	maxMS  int64
	stores [2]*liar // the liar, the honest one
	query  *process
	http   string
}

func newLiarsScenario(e *environment, _ string, rng *rand.Rand) (scenario, error) {
	return &liarsScenario{env: e, rng: rng, all: samples{}, own: samples{}}, nil
}

func (w *liarsScenario) start() error {
	w.maxMS = time.Now().UnixMilli()
	w.minMS = w.maxMS - 3*time.Hour.Milliseconds()
	for i := range w.stores {
		list, err := w.invent(i)
		if err != nil {
			return err
		}
		if w.stores[i], err = newLiar(list); err != nil {
			return err
		}
	}
	var err error
	if w.http, err = freeAddress(); err != nil {
		return err
	}
	args := []string{"query", "--http-address=" + w.http, "--grpc-address=127.0.0.1:0", "--store.response-timeout=2s", "--query.timeout=30s",
		"--endpoint=" + w.stores[1].address, pick(w.rng, "--endpoint=", "--endpoint-strict=") + w.stores[0].address}
	if w.rng.IntN(2) == 0 {
		args = append(args, "--query.replica-label=replica")
	}
	if w.query, err = start(w.env.ctx, w.env.binary, "query", args...); err != nil {
		return err
	}
	return w.query.watch(w.env, "http://"+w.http)
}

// invent generates the series of a store, sorted. Some are in both stores.
func (w *liarsScenario) invent(store int) ([]fakeSeries, error) {
	var list []fakeSeries
	for i := range 4 + w.rng.IntN(20) {
		ls := map[string]string{"__name__": metricName, "id": fmt.Sprintf("%03d", i), "store": fmt.Sprint(store)}
		if i%4 == 0 {
			delete(ls, "store")
		}
		one := fakeSeries{labels: labels.FromMap(ls)}
		for at := w.minMS + 1; at < w.maxMS-600_000; at += 600_000 {
			var times []int64
			var values []float64
			for n := range int64(20) {
				times = append(times, at+n*15_000)
				values = append(values, float64((at+n)%1000+int64(i)))
				w.all.put(dataKey(ls, nil), times[n], values[n])
				if store == 1 {
					w.own.put(dataKey(ls, nil), times[n], values[n])
				}
			}
			c, err := floatChunk(times, values)
			if err != nil {
				return nil, err
			}
			one.raw = append(one.raw, c)
		}
		list = append(list, one)
	}
	slices.SortFunc(list, func(a, b fakeSeries) int { return labels.Compare(a.labels, b.labels) })
	return list, nil
}

func (w *liarsScenario) stop() error {
	err := w.query.stop()
	for _, store := range w.stores {
		if store != nil {
			store.stop()
		}
	}
	return err
}

func (w *liarsScenario) steps() []step {
	var list []step
	for range 3 + w.rng.IntN(4) {
		what := pick(w.rng, lies...)
		list = append(list, step{"the store " + string(what), func() error { return w.change(what) }})
	}
	return list
}

// change begins a lie. If the previous lie was that connections are lost, the querier must first
// use the store again.
func (w *liarsScenario) change(what lie) error {
	before := w.stores[0].current()
	if before == vanishes || before == cutsAfter {
		if err := w.stores[0].set(honest); err != nil {
			return err
		}
		form := url.Values{"query": {"count(" + everything + ")"}, "time": {seconds(w.maxMS - 300_000)}, "partial_response": {"0"}}
		if err := w.query.until("the store to be used again", func() (bool, error) {
			_, _, err := api(w.env.ctx, w.env.client, "http://"+w.http+"/api/v1/query", form, nil)
			return true, err
		}); err != nil {
			return err
		}
	}
	return w.stores[0].set(what)
}

// check queries with and without partial responses. A response without a warning has all
// samples of both stores. A response with a warning names the liar, has the samples of the honest
// store, and no sample that neither store has.
func (w *liarsScenario) check() error {
	if err := w.query.unexpectedExit(); err != nil {
		return err
	}
	for _, partial := range []string{"1", "0"} {
		form := url.Values{"query": {fmt.Sprintf("%s[%dms]", everything, w.maxMS-w.minMS)}, "time": {seconds(w.maxMS)}, "partial_response": {partial}}
		code, body, _, err := get(w.env.ctx, w.env.client, "http://"+w.http+"/api/v1/query", form, nil)
		if err == nil {
			err = w.judge(code, body, partial == "1")
		}
		if err != nil {
			return fmt.Errorf("partial_response=%s while the store %s %s: %w", partial, w.stores[0].address, w.stores[0].current(), err)
		}
	}
	return nil
}

func (w *liarsScenario) judge(code int, body []byte, partial bool) error {
	var r struct {
		Error    string
		Warnings []string
		Data     struct{ Result []matrix }
	}
	if err := json.Unmarshal(body, &r); err != nil {
		return fmt.Errorf("%d %.300s: %w", code, body, err)
	}
	if code != http.StatusOK {
		if r.Error == "" {
			return fmt.Errorf("%d without an error: %.300s", code, body)
		}
		if w.stores[0].current() == honest {
			return fmt.Errorf("%d although both stores are honest: %s", code, r.Error)
		}
		w.env.proved(1)
		return nil
	}
	got := samples{}
	for _, m := range r.Data.Result {
		if err := got.addMatrix(m, nil); err != nil {
			return err
		}
	}
	for key, points := range got {
		for ms, v := range points {
			if !w.all.has(key, ms, v) {
				return fmt.Errorf("sample {%s} @%d %v is of no store; warnings: %q", key, ms, v, r.Warnings)
			}
		}
	}
	least := w.all
	if len(r.Warnings) > 0 {
		least = w.own
		if !partial {
			return fmt.Errorf("a partial response was not requested: %q", r.Warnings)
		}
		if text := strings.Join(r.Warnings, " "); !strings.Contains(text, w.stores[0].address) || strings.Contains(text, w.stores[1].address) {
			return fmt.Errorf("warnings do not name the store: %q", r.Warnings)
		}
	}
	m := &model{acked: least, maybe: w.all}
	if err := m.check(got, w.minMS, w.maxMS, 0); err != nil {
		return fmt.Errorf("%w; warnings: %q", err, r.Warnings)
	}
	w.env.proved(got.count())
	return nil
}
