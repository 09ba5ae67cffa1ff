package sim

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"path/filepath"
	"time"

	"github.com/gogo/protobuf/proto"
	"github.com/klauspost/compress/snappy"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/prompb"
	writev2 "github.com/prometheus/prometheus/prompb/io/prometheus/write/v2"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/storage/remote"
	"github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
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
	p := plan{rng: w.rng}
	for range 6 + w.rng.IntN(10) {
		switch w.rng.IntN(13) {
		case 0, 1, 2:
			p.add("write in order", w.writeInOrder)
		case 3:
			p.add("write late", w.writeLate)
		case 4:
			p.add("kill while a write runs, start with another retention", w.killAndStart)
		case 5:
			p.add("stop, read the folder, start", w.stopAndStart)
		case 6:
			p.add("reload with another retention", w.reload)
		case 7:
			p.add("senders that stall", w.stalledSenders)
		case 8:
			p.add("readers that stall", w.stalledReaders)
		case 9:
			p.add("write histograms", w.writeHistograms)
		case 10:
			p.add("a sender that crawls", w.crawlingSender)
		case 11:
			if w.bulk != nil {
				p.add("a reader that crawls while blocks are written and deleted", w.crawlingReader)
			}
		case 12:
			p.add("senders whose clocks jump", w.jumpingClocks)
		}
	}
	return p.list
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

// crawlingBody is a request body that is sent in small pieces, slightly faster than the
// minimum rate of the server.
type crawlingBody struct{ rest []byte }

const (
	crawlBytes = 1024
	crawlPause = 20 * time.Millisecond
)

func (b *crawlingBody) Read(into []byte) (int, error) {
	if len(b.rest) == 0 {
		return 0, io.EOF
	}
	time.Sleep(crawlPause)
	n := copy(into, b.rest[:min(len(b.rest), crawlBytes)])
	b.rest = b.rest[n:]
	return n, nil
}

// crawlingSender sends a remote write request slowly. In the meantime other requests must be
// acknowledged, and at the end this one, too.
func (w *storageScenario) crawlingSender(rng *rand.Rand) error {
	times := w.timestamps(rng)
	if len(times) == 0 {
		return nil
	}
	var list []prompb.TimeSeries
	for id := range 30 + rng.IntN(200) {
		list = append(list, floatSeries(metricName, map[string]string{"kind": "slow", "id": fmt.Sprint(id)}, randomPoints(rng, times[:1])))
	}
	raw, err := proto.Marshal(&prompb.WriteRequest{Timeseries: list})
	if err != nil {
		return err
	}
	slow := make(chan error, 1)
	go func() {
		req, err := http.NewRequestWithContext(w.env.ctx, http.MethodPost, w.srv.base()+"/api/v1/write", &crawlingBody{snappy.Encode(nil, raw)})
		if err != nil {
			slow <- err
			return
		}
		req.Header.Set("Content-Type", "application/x-protobuf")
		req.Header.Set("Content-Encoding", "snappy")
		resp, err := w.env.client.Do(req)
		if err != nil {
			slow <- err
			return
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		slow <- writeResult(resp.StatusCode, string(body), err)
	}()
	err = w.writeAcknowledged(rng)
	slowErr := <-slow
	if slowErr != nil {
		slowErr = fmt.Errorf("a write that crawls: %w", slowErr)
	}
	return errors.Join(err, slowErr, w.srv.record(list, nil))
}

// bulk is the metric of a block that is larger than the buffers of a connection. Only
// crawlingReader reads it.
type bulk struct {
	atMS  int64
	count int
	sum   float64
}

const (
	bulkName    = "bulk_value"
	bulkSeries  = 60
	bulkSamples = 7_000 // per series, within an hour; random values take about nine bytes each
)

func newBulk(s *server, rng *rand.Rand) (*bulk, error) {
	from := time.Now().Add(-pick(rng, 45*24*time.Hour, 30*time.Hour)).Truncate(2 * time.Hour).UnixMilli()
	b := &bulk{atMS: from}
	var list []storage.Series
	for id := range bulkSeries {
		points := map[int64]float64{}
		for i := range int64(bulkSamples) {
			v := rng.Float64()
			points[from+i*500] = v
			b.count++
		}
		for _, ms := range sortedKeys(points) {
			b.sum += points[ms]
		}
		list = append(list, storage.NewListSeries(labels.FromStrings("__name__", bulkName, "id", fmt.Sprintf("%03d", id)), chunkSamples(points)))
	}
	_, err := tsdb.CreateBlock(list, filepath.Join(s.dir, "data"), 2*time.Hour.Milliseconds(), slog.New(slog.DiscardHandler))
	return b, err
}

func readHeader(body []byte) string {
	return fmt.Sprintf("POST /api/v1/read HTTP/1.1\r\nContent-Type: application/x-protobuf\r\nContent-Encoding: snappy\r\nContent-Length: %d", len(body))
}

// crawlingReader reads a long response slowly. Meanwhile it writes samples until the head is
// written as a block, or shortens the retention below the age of the block that is being read.
// The response must be complete or cut off.
func (w *storageScenario) crawlingReader(rng *rand.Rand) error {
	if w.bulk.atMS < w.srv.keepFromMS() {
		return nil // the block was deleted
	}
	raw, err := proto.Marshal(&prompb.ReadRequest{
		Queries: []*prompb.Query{{
			StartTimestampMs: w.bulk.atMS, EndTimestampMs: w.bulk.atMS + 3*time.Hour.Milliseconds(),
			Matchers: []*prompb.LabelMatcher{{Name: "__name__", Value: bulkName}},
		}},
		AcceptedResponseTypes: []prompb.ReadRequest_ResponseType{prompb.ReadRequest_STREAMED_XOR_CHUNKS},
	})
	if err != nil {
		return err
	}
	body := snappy.Encode(nil, raw)
	conn, err := net.Dial("tcp", w.srv.http)
	if err != nil {
		return err
	}
	defer conn.Close()
	buffered := conn.(*net.TCPConn)
	if err := buffered.SetReadBuffer(32 << 10); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(conn, "%s\r\nHost: %s\r\n\r\n%s", readHeader(body), w.srv.http, body); err != nil {
		return err
	}
	head := make([]byte, 16<<10)
	for n := 0; n < len(head); n += crawlBytes { // slowly, to be in the middle of the response
		if _, err := io.ReadFull(conn, head[n:n+crawlBytes]); err != nil {
			return fmt.Errorf("a reader that crawls: %w", err)
		}
		time.Sleep(crawlPause)
	}
	shorten := rng.IntN(2) == 0
	if shorten {
		w.srv.cfg.retentionFile = "30d"
		if err := w.srv.reload(); err != nil {
			return err
		}
	}
	until := w.headMS + 4*time.Hour.Milliseconds()
	for before := int64(0); w.headMS < until && w.headMS != before; {
		before = w.headMS
		if err := w.writeInOrder(rng); err != nil {
			return err
		}
	}
	if err := buffered.SetReadBuffer(4 << 20); err != nil { // from here on it reads fast
		return err
	}
	return w.bulk.readRest(w.env, head, conn)
}

// readRest reads the rest of a response. A response that is not cut off must have all samples.
func (b *bulk) readRest(e *environment, head []byte, conn net.Conn) error {
	if err := conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		return err
	}
	resp, err := http.ReadResponse(bufio.NewReader(io.MultiReader(bytes.NewReader(head), conn)), nil)
	if err != nil {
		return fmt.Errorf("a reader that crawls: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("a reader that crawls: %s", resp.Status)
	}
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		if deadline := net.Error(nil); errors.As(err, &deadline) && deadline.Timeout() {
			return fmt.Errorf("a reader that crawled gets no end: %w", err)
		}
		return nil // the response is cut off, and the client gets an error
	}
	count, sum, err := readChunks(text)
	if err != nil {
		return fmt.Errorf("a reader that crawled: %w", err)
	}
	if count != b.count || sum != b.sum {
		return fmt.Errorf("a reader that crawled gets %d samples with the sum %v, want %d with %v", count, sum, b.count, b.sum)
	}
	e.proved(count)
	return nil
}

// readChunks counts and adds the samples of a streamed response of remote read.
func readChunks(text []byte) (count int, sum float64, err error) {
	frames := remote.NewChunkedReader(bytes.NewReader(text), 64<<20, nil)
	for {
		var frame prompb.ChunkedReadResponse
		if err := frames.NextProto(&frame); errors.Is(err, io.EOF) {
			return count, sum, nil
		} else if err != nil {
			return 0, 0, err
		}
		for _, s := range frame.ChunkedSeries {
			for _, c := range s.Chunks {
				list, err := decodeChunk(c)
				if err != nil {
					return 0, 0, err
				}
				for _, v := range list {
					count, sum = count+1, sum+v
				}
			}
		}
	}
}

func decodeChunk(c prompb.Chunk) (values []float64, err error) {
	chunk, err := chunkenc.FromData(chunkenc.Encoding(c.Type), c.Data)
	if err != nil {
		return nil, err
	}
	it := chunk.Iterator(nil)
	for it.Next() == chunkenc.ValFloat {
		_, v := it.At()
		values = append(values, v)
	}
	return values, it.Err()
}

// putV2 writes one sample with a start timestamp by remote write 2.0.
func (s *server) putV2(series map[string]string, ms int64, v float64, startMS int64) error {
	symbols := writev2.NewSymbolTable()
	series["__name__"] = metricName
	defer delete(series, "__name__")
	request := &writev2.Request{Timeseries: []writev2.TimeSeries{{
		LabelsRefs: symbols.SymbolizeLabels(labels.FromMap(series), nil),
		Samples:    []writev2.Sample{{Timestamp: ms, Value: v, StartTimestamp: startMS}},
	}}}
	request.Symbols = symbols.Symbols()
	raw, err := request.Marshal()
	if err != nil {
		return err
	}
	status, body, err := post(s.env.ctx, s.env.client, s.base()+"/api/v1/write", snappy.Encode(nil, raw), map[string]string{
		"Content-Type": "application/x-protobuf;proto=io.prometheus.write.v2.Request", "Content-Encoding": "snappy", "X-Prometheus-Remote-Write-Version": "2.0.0",
	})
	result := writeResult(status, body, err)
	delete(series, "__name__")
	if errors.Is(result, errRefused) {
		return result
	}
	return s.record([]prompb.TimeSeries{floatSeries(metricName, series, map[int64]float64{ms: v})}, result)
}
