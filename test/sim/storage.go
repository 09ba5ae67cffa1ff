package sim

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"time"

	"github.com/prometheus/prometheus/prompb"
)

// storageScenario is one server with old blocks, out-of-order samples, kills, and
// restarts with other configurations.
type storageScenario struct {
	env *environment
	rng *rand.Rand
	srv *server
	dir string

	headMS  int64 // the greatest timestamp written in order
	counter int
	bulk    *bulk
}

func newStorageScenario(e *environment, dir string, rng *rand.Rand) (scenario, error) {
	cfg := serveConfig{window: pick(rng, 0, 3*time.Hour, 24*time.Hour)}
	setRetention(rng, &cfg)
	if rng.IntN(2) == 0 {
		cfg.external = map[string]string{"cluster": "eu"}
	}
	if rng.IntN(3) == 0 {
		cfg.flags = append(cfg.flags, "--enable-feature=memory-snapshot-on-shutdown")
	}
	srv, err := newServer(e, filepath.Join(dir, "serve"), cfg)
	if err != nil {
		return nil, err
	}
	return &storageScenario{env: e, rng: rng, srv: srv, dir: dir}, nil
}

// setRetention selects at random where the retention is configured and how long it is. No
// retention is shorter than the default, so a deleted block is always a fault.
func setRetention(rng *rand.Rand, cfg *serveConfig) {
	cfg.retentionFile, cfg.retentionFlag, cfg.sizeFile = "", "", ""
	switch rng.IntN(5) {
	case 0:
		cfg.retentionFile = pick(rng, "60d", "1y")
	case 1:
		cfg.retentionFlag = pick(rng, "60d", "1y")
	case 2:
		cfg.retentionFile, cfg.retentionFlag = pick(rng, "60d", "1y"), "15d"
	case 3:
		cfg.sizeFile = "1TB"
	case 4:
		cfg.sizeFile, cfg.retentionFile = "1TB", "1y"
	}
}

func pick[T any](rng *rand.Rand, from ...T) T { return from[rng.IntN(len(from))] }

func (w *storageScenario) start() error {
	w.headMS = time.Now().Add(-10 * time.Hour).UnixMilli()
	w.srv.mintMS = w.headMS
	if err := w.srv.writeBlocks(w.rng, 40*24*time.Hour, 20*24*time.Hour, 24*time.Hour); err != nil {
		return err
	}
	if w.rng.IntN(3) == 0 {
		var err error
		if w.bulk, err = newBulk(w.srv, w.rng); err != nil {
			return err
		}
	}
	return w.srv.run()
}

func (w *storageScenario) stop() error { return w.srv.stop() }

func (w *storageScenario) check() error {
	if err := w.srv.proc.unexpectedExit(); err != nil {
		return err
	}
	return w.srv.compareAll([]string{pick(w.rng, formats...)}, false)
}

func (w *storageScenario) steps() []step {
	var list []step
	add := func(name string, run func(rng *rand.Rand) error) {
		rng := rand.New(rand.NewPCG(w.rng.Uint64(), 0))
		list = append(list, step{name, func() error { return run(rng) }})
	}
	for range 6 + w.rng.IntN(10) {
		switch w.rng.IntN(13) {
		case 0, 1, 2:
			add("write in order", w.writeInOrder)
		case 3:
			add("write late", w.writeLate)
		case 4:
			add("kill while a write runs, start with another retention", w.killAndStart)
		case 5:
			add("stop, read the folder, start", w.stopAndStart)
		case 6:
			add("reload with another retention", w.reload)
		case 7:
			add("senders that stall", w.stalledSenders)
		case 8:
			add("readers that stall", w.stalledReaders)
		case 9:
			add("write histograms", w.writeHistograms)
		case 10:
			add("a sender that crawls", w.crawlingSender)
		case 11:
			if w.bulk != nil {
				add("a reader that crawls while blocks are written and deleted", w.crawlingReader)
			}
		case 12:
			add("senders whose clocks jump", w.jumpingClocks)
		}
	}
	return list
}

// timestamps returns ascending timestamps that are later than all others but not in the
// future; none if that is not possible. They span less than an hour: series are sent in several
// requests, and the head refuses samples that are an hour older than its newest one.
func (w *storageScenario) timestamps(rng *rand.Rand) []int64 {
	stepMS := pick(rng, int64(15_000), 60_000, 240_000)
	var list []int64
	for i := range 2 + rng.Int64N(40*60_000/stepMS) {
		list = append(list, w.headMS+(i+1)*stepMS)
	}
	if list[len(list)-1] > time.Now().UnixMilli() {
		return nil
	}
	return list
}

func randomPoints(rng *rand.Rand, times []int64) map[int64]float64 {
	points := map[int64]float64{}
	for _, ms := range times {
		points[ms] = float64(rng.IntN(1_000_000)) / 100
	}
	return points
}

// writeInOrder appends some minutes or hours to a few series.
func (w *storageScenario) writeInOrder(rng *rand.Rand) error {
	times := w.timestamps(rng)
	if len(times) == 0 {
		return nil
	}
	for id := range 1 + rng.IntN(3) {
		if err := w.srv.put(map[string]string{"kind": "new", "id": fmt.Sprint(id)}, randomPoints(rng, times)); err != nil {
			return err
		}
	}
	w.headMS = times[len(times)-1]
	return nil
}

// writeHistograms writes a classic and a native histogram, in order.
func (w *storageScenario) writeHistograms(rng *rand.Rand) error {
	times := w.timestamps(rng)
	if len(times) == 0 {
		return nil
	}
	w.headMS = times[len(times)-1]
	return w.srv.putAll(append(classicSeries(rng, times), nativeSeries(rng, times)))
}

// writeLate writes samples within the out-of-order window, if the server has one.
func (w *storageScenario) writeLate(rng *rand.Rand) error {
	if w.srv.cfg.window == 0 {
		return nil
	}
	points := map[int64]float64{}
	width := min(w.srv.cfg.window, 6*time.Hour) - 25*time.Minute // jumpingClocks may be 20 minutes ahead
	for range 10 {
		w.counter++
		// An odd timestamp differs from those of all other samples.
		points[(w.headMS-rng.Int64N(width.Milliseconds()))/2000*2000+1+2*int64(w.counter%900)] = float64(w.counter)
	}
	series := map[string]string{"kind": "new", "id": "0"}
	if rng.IntN(2) == 0 {
		series = map[string]string{"kind": "late"}
	}
	return w.srv.put(series, points)
}

// jumpingClocks sends single samples whose timestamps and start timestamps jump, by remote
// write 2.0. Each sample is acknowledged and stored, or refused. Timestamps stay near those of
// other samples: the head refuses samples that are an hour older than its newest one, so after
// a sample that is far ahead it would refuse all other writes.
func (w *storageScenario) jumpingClocks(rng *rand.Rand) error {
	w.counter++
	series := map[string]string{"kind": "clock", "id": fmt.Sprint(w.counter)}
	room := min(20*60_000, time.Now().UnixMilli()-w.headMS)
	used := map[int64]bool{}
	for range 12 {
		ms := w.headMS - 20*60_000 + rng.Int64N(20*60_000+max(room, 1))
		if used[ms] {
			continue
		}
		used[ms] = true
		startMS := pick(rng, 0, ms-60_000, ms, ms+60_000, ms+1e12, -ms, 1)
		err := w.srv.putV2(series, ms, float64(rng.IntN(1000)), startMS)
		if err != nil && !errors.Is(err, errRefused) {
			return err
		}
	}
	// Prometheus refuses samples of a clock that is ahead by more than ten minutes.
	ahead := time.Now().Add(pick(rng, 11*time.Minute, 24*time.Hour, 30*365*24*time.Hour)).UnixMilli()
	if err := w.srv.put(map[string]string{"kind": "ahead"}, map[int64]float64{ahead: 1}); !errors.Is(err, errRefused) {
		return fmt.Errorf("a sample @%d, more than ten minutes ahead, is not refused: %v", ahead, err)
	}
	return nil
}

// killAndStart kills the server while a writer sends samples.
func (w *storageScenario) killAndStart(rng *rand.Rand) error {
	done := make(chan error, 1)
	writer := rand.New(rand.NewPCG(rng.Uint64(), 0))
	go func() { done <- w.writeInOrder(writer) }()
	time.Sleep(time.Duration(rng.IntN(5)) * time.Millisecond)
	w.srv.kill()
	if err := <-done; err != nil {
		return err
	}
	setRetention(rng, &w.srv.cfg)
	return w.srv.run()
}

func (w *storageScenario) stopAndStart(rng *rand.Rand) error {
	if err := w.srv.stop(); err != nil {
		return err
	}
	if err := w.srv.compareAll([]string{pick(rng, formats...)}, true); err != nil {
		return fmt.Errorf("while stopped: %w", err)
	}
	return w.srv.run()
}

func (w *storageScenario) reload(rng *rand.Rand) error {
	setRetention(rng, &w.srv.cfg)
	w.srv.cfg.retentionFlag = "" // a flag does not change by a reload
	if w.srv.cfg.retentionFile == "" && w.srv.cfg.sizeFile == "" {
		w.srv.cfg.retentionFile = "1y"
	}
	return w.srv.reload()
}

// stalledSenders opens more connections than the limit of concurrent requests. Each
// sends a request without its body. In the meantime another write must succeed.
func (w *storageScenario) stalledSenders(rng *rand.Rand) error {
	release, err := w.srv.stall(40, "POST /api/v1/write HTTP/1.1\r\nContent-Type: application/x-protobuf\r\nContent-Encoding: snappy\r\nContent-Length: 1000", []byte("ab"))
	if err != nil {
		return err
	}
	defer release()
	return w.writeAcknowledged(rng)
}

// stalledReaders sends requests of remote read whose responses are not read.
func (w *storageScenario) stalledReaders(rng *rand.Rand) error {
	body, err := readRequest(w.srv.mintMS-1000, time.Now().UnixMilli(), prompb.ReadRequest_STREAMED_XOR_CHUNKS)
	if err != nil {
		return err
	}
	release, err := w.srv.stall(20, readHeader(body), body)
	if err != nil {
		return err
	}
	defer release()
	if err := w.writeAcknowledged(rng); err != nil {
		return err
	}
	return w.check()
}

// writeAcknowledged writes and returns an error if a request gets no status.
func (w *storageScenario) writeAcknowledged(rng *rand.Rand) error {
	before := w.srv.model.maybeCount()
	if err := w.writeInOrder(rng); err != nil {
		return err
	}
	if w.srv.model.maybeCount() > before {
		return fmt.Errorf("a write got no acknowledgement while other clients stalled")
	}
	return nil
}
