package sim

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/prompb"
	writev2 "github.com/prometheus/prometheus/prompb/io/prometheus/write/v2"
	"github.com/prometheus/prometheus/storage/remote"
)

// sendingScenario is a server with remote_write to a receiver in this process that is down, stalls, is slow, or refuses
// samples that are older than others. The server is killed, stopped and reloaded meanwhile.
//
//	arrival    every acknowledged sample reaches the receiver
//	repeats    what is sent again after a restart was written to one segment of the log: each start begins one
type sendingScenario struct {
	env      *environment
	rng      *rand.Rand
	srv      *server
	receiver *stubReceiver
	lastMS   int64
	settings int // changes with each reload
	message  string
	shards   int
	kills    int
}

// stubReceiver records samples.
type stubReceiver struct {
	*httptest.Server
	stalls, down, slow atomic.Bool
	strict             bool // samples older than the newest of their series are refused, as by Prometheus

	mu      sync.Mutex
	got     samples
	newest  map[string]int64
	life    int            // restarts and reloads until now
	segment int            // restarts until now
	written map[int64]int  // the segment to which the samples of a timestamp were written
	repeats []map[int]bool // by life: the segments whose samples came again
}

func newStubReceiver(strict bool) *stubReceiver {
	r := &stubReceiver{strict: strict, got: samples{}, newest: map[string]int64{}, written: map[int64]int{},
		repeats: []map[int]bool{{}}}
	r.Server = httptest.NewServer(r)
	return r
}

// ServeHTTP implements http.Handler.
func (r *stubReceiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	list, v2, err := decodeWrite(req)
	switch {
	case err != nil:
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	case r.stalls.Load():
		for r.stalls.Load() && req.Context().Err() == nil {
			time.Sleep(5 * time.Millisecond)
		}
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	case r.down.Load():
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	case r.slow.Load():
		time.Sleep(5 * time.Millisecond)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	refused := 0
	for _, ts := range list {
		if r.refuses(ts) {
			refused++
			if !v2 {
				http.Error(w, "out of order sample", http.StatusBadRequest)
				return
			}
		}
	}
	for _, ts := range list {
		if !r.refuses(ts) {
			r.accept(ts)
		}
	}
	// The queue takes a response without these headers for that of a receiver without 2.0.
	w.Header().Set("X-Prometheus-Remote-Write-Samples-Written", fmt.Sprint(len(list)-refused))
	w.Header().Set("X-Prometheus-Remote-Write-Histograms-Written", fmt.Sprint(len(list)-refused))
	if refused > 0 {
		http.Error(w, "out of order sample", http.StatusBadRequest)
	}
}

// refuses reports whether a series has a sample that is older than the newest. A queue sends one sample for each series.
func (r *stubReceiver) refuses(ts prompb.TimeSeries) bool {
	one := samples{}
	one.add(ts, nil)
	for series, points := range one {
		for ms := range points {
			if r.strict && ms < r.newest[series] {
				return true
			}
		}
	}
	return false
}

func (r *stubReceiver) accept(ts prompb.TimeSeries) {
	one := samples{}
	one.add(ts, nil)
	for series, points := range one {
		for ms, v := range points {
			if r.got.has(series, ms, v) {
				r.repeats[r.life][r.written[ms]] = true
			}
			r.got.put(series, ms, v)
			r.newest[series] = max(r.newest[series], ms)
		}
	}
}

// next begins another life of the queue, and after a restart of the server another segment.
func (r *stubReceiver) next(restart bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.life++; restart {
		r.segment++
	}
	r.repeats = append(r.repeats, map[int]bool{})
}

func (r *stubReceiver) writes(ms int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.written[ms] = r.segment
}

func (r *stubReceiver) works() {
	r.stalls.Store(false)
	r.down.Store(false)
	r.slow.Store(false)
}

// decodeWrite decodes a request of remote write 1.0 or 2.0.
func decodeWrite(req *http.Request) (list []prompb.TimeSeries, v2 bool, err error) {
	if req.Header.Get(remote.RemoteWriteVersionHeader) == remote.RemoteWriteVersion1HeaderValue {
		request, err := remote.DecodeWriteRequest(req.Body)
		if err != nil {
			return nil, false, err
		}
		return request.Timeseries, false, nil
	}
	request, err := remote.DecodeWriteV2Request(req.Body)
	if err != nil {
		return nil, true, err
	}
	for _, ts := range request.Timeseries {
		list = append(list, fromV2(ts, request.Symbols))
	}
	return list, true, nil
}

func fromV2(ts writev2.TimeSeries, symbols []string) (to prompb.TimeSeries) {
	for i := 0; i+1 < len(ts.LabelsRefs); i += 2 {
		to.Labels = append(to.Labels, prompb.Label{Name: symbols[ts.LabelsRefs[i]], Value: symbols[ts.LabelsRefs[i+1]]})
	}
	for _, s := range ts.Samples {
		to.Samples = append(to.Samples, prompb.Sample{Timestamp: s.Timestamp, Value: s.Value})
	}
	for _, h := range ts.Histograms {
		if h.IsFloatHistogram() {
			to.Histograms = append(to.Histograms, prompb.FromFloatHistogram(h.Timestamp, h.ToFloatHistogram()))
		} else {
			to.Histograms = append(to.Histograms, prompb.FromIntHistogram(h.Timestamp, h.ToIntHistogram()))
		}
	}
	return to
}

func newSendingScenario(e *environment, dir string, rng *rand.Rand) (scenario, error) {
	w := &sendingScenario{env: e, rng: rng, receiver: newStubReceiver(rng.IntN(2) == 0), shards: pick(rng, 1, 1, 4)}
	w.message = pick(rng, "prometheus.WriteRequest", "io.prometheus.write.v2.Request")
	var err error
	w.srv, err = newServer(e, filepath.Join(dir, "sender"), serveConfig{retentionFile: "1y",
		flags: []string{"--storage.remote.flush-deadline=" + pick(rng, "50ms", "2s")}})
	w.configure()
	return w, err
}

// configure writes the section. A reload changes its timeout, which replaces the queue.
func (w *sendingScenario) configure() {
	w.srv.cfg.more = fmt.Sprintf(`remote_write:
- url: %s
  name: receiver
  protobuf_message: %s
  remote_timeout: %ds
  send_native_histograms: true
  metadata_config: {send: false}
  queue_config: {batch_send_deadline: 10ms, min_backoff: 5ms, max_backoff: 50ms, min_shards: %d, max_shards: %[4]d}
`, w.receiver.URL, w.message, 10+w.settings, w.shards)
}

func (w *sendingScenario) start() error {
	w.lastMS = time.Now().Add(-5 * time.Minute).UnixMilli()
	w.srv.mintMS = w.lastMS
	return w.srv.run()
}

func (w *sendingScenario) stop() error {
	w.env.logf("%d kills", w.kills)
	w.receiver.works()
	defer w.receiver.Close()
	return w.srv.stop()
}

func (w *sendingScenario) steps() []step {
	p := plan{rng: w.rng}
	p.add("write", w.write)
	for range 10 + w.rng.IntN(6) {
		switch w.rng.IntN(12) {
		case 0:
			p.do("the receiver is down", func() error { w.receiver.down.Store(true); return nil })
		case 1:
			p.do("the receiver stalls", func() error { w.receiver.stalls.Store(true); return nil })
		case 2:
			p.do("the receiver is slow", func() error { w.receiver.slow.Store(true); return nil })
		case 3:
			p.do("the receiver works", func() error { w.receiver.works(); return nil })
		case 4:
			p.add("stop, start", w.stopAndStart)
		case 5:
			p.do("reload with another section", w.reload)
		case 6:
			p.do("every sample arrives", w.arrive)
		default:
			p.add("kill while a write runs, start", w.killAndStart)
		}
		p.add("write", w.write)
	}
	p.add("kill, start, every sample arrives", func(rng *rand.Rand) error {
		if err := w.killAndStart(rng); err != nil {
			return err
		}
		return w.arrive()
	})
	return p.list
}

// write writes some samples of a few series and of a histogram.
func (w *sendingScenario) write(rng *rand.Rand) error {
	for range 1 + rng.IntN(4) {
		var times []int64
		for range 1 + rng.IntN(20) {
			w.lastMS++
			times = append(times, w.lastMS)
			w.receiver.writes(w.lastMS)
		}
		var list []prompb.TimeSeries
		for id := range 1 + rng.IntN(20) {
			list = append(list, floatSeries(metricName, map[string]string{"id": fmt.Sprint(id)}, randomPoints(rng, times)))
		}
		if rng.IntN(2) == 0 {
			native := nativeSeries(rng, times)
			if w.message == "prometheus.WriteRequest" { // which has no histograms with custom buckets
				native.Histograms = slices.DeleteFunc(native.Histograms, func(h prompb.Histogram) bool {
					return h.Schema == histogram.CustomBucketsSchema
				})
			}
			list = append(list, native)
		}
		if err := w.srv.putAll(list); err != nil {
			return err
		}
	}
	return nil
}

func (w *sendingScenario) killAndStart(rng *rand.Rand) error {
	done := make(chan error, 1)
	writer := rand.New(rand.NewPCG(rng.Uint64(), 0))
	go func() { done <- w.write(writer) }()
	time.Sleep(time.Duration(rng.IntN(30)) * time.Millisecond)
	w.srv.kill()
	w.kills++
	if err := <-done; err != nil {
		return err
	}
	w.receiver.next(true)
	return w.srv.run()
}

func (w *sendingScenario) stopAndStart(*rand.Rand) error {
	if err := w.srv.stop(); err != nil {
		return err
	}
	w.receiver.next(true)
	return w.srv.run()
}

func (w *sendingScenario) reload() error {
	w.settings++
	w.configure()
	w.receiver.next(false)
	if err := w.srv.reload(); err != nil {
		return err
	}
	return w.srv.proc.until("the reload", func() (bool, error) {
		page, _, err := api(w.env.ctx, w.env.client, w.srv.base()+"/api/v1/status/config", nil, nil)
		return strings.Contains(string(page), fmt.Sprintf("remote_timeout: %ds", 10+w.settings)), err
	})
}

// arrive waits until the receiver has every acknowledged sample.
func (w *sendingScenario) arrive() error {
	w.receiver.works()
	err := w.srv.proc.until("every sample", func() (bool, error) { return w.missing() == nil, nil })
	if err != nil {
		return fmt.Errorf("%w: %w", err, w.missing())
	}
	return nil
}

func (w *sendingScenario) missing() error {
	w.receiver.mu.Lock()
	defer w.receiver.mu.Unlock()
	err := w.srv.model.check(w.receiver.got, 0, 1<<62, 0)
	if err == nil {
		w.env.proved(w.receiver.got.count())
	}
	return err
}

func (w *sendingScenario) check() error {
	if err := w.srv.proc.unexpectedExit(); err != nil {
		return err
	}
	w.receiver.mu.Lock()
	defer w.receiver.mu.Unlock()
	for life, segments := range w.receiver.repeats {
		if len(segments) > 1 {
			return fmt.Errorf("after start %d, samples of %d segments are sent again", life, len(segments))
		}
	}
	return nil
}
