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
