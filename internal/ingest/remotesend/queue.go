package remotesend

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	remoteapi "github.com/prometheus/client_golang/exp/api/remote"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/tsdb/record"
	"github.com/prometheus/prometheus/tsdb/wlog"

	"github.com/ferula-io/ferula/metrics"
)

const (
	// defaultSaveEvery is the interval at which a queue at the end of the log saves its position. A queue that always has
	// some samples stops reading until they are sent, for batch_send_deadline (5 s) at most unless the receiver is slow.
	// A queue that catches up does so once in backlogTimes as long, because then the pause costs throughput.
	defaultSaveEvery = 10 * time.Second
	backlogTimes     = 6
	// pollEvery is how often a queue looks whether its samples are sent, while it waits for that.
	pollEvery = 20 * time.Millisecond
	// lookEvery is how often a queue looks for new checkpoints, and for segments behind a removed one.
	lookEvery = 5 * time.Second
	// retryAfter is the pause after an error of the log.
	retryAfter = time.Second
)

var (
	errStopped = errors.New("stopped")
	errAgain   = errors.New("the log is read again from the position")
	errFinish  = errors.New("nothing is appended any more")
)

// queue reads the write-ahead log for one section and passes the samples behind its position to the library's
// queue, which blocks while it is full. One goroutine reads. The fields below done belong to it, and to others once
// done is closed.
type queue struct {
	key     string
	section *config.RemoteWriteConfig
	logger  *slog.Logger
	metrics *readMetrics
	wal     string // directory
	points  *savepoints

	saveEvery time.Duration
	to        *sending
	client    *client

	written chan struct{} // holds a value if the log has more
	finish  chan struct{} // closed: stop at the end of the log
	quit    chan struct{} // closed: stop
	done    chan struct{}

	at       position // the library's queue has the samples before it
	saved    position // what is before it was sent or refused
	resendTo position // what is before it, and behind saved at the start, may have been sent before
	resends  bool
	savedAt  time.Time
	last     string // checkpoint
	looked   time.Time
}

// start starts to read behind from. The samples before resendTo may have been sent already.
func (q *queue) start(from, resendTo position) {
	q.at, q.saved, q.savedAt = from, from, time.Now()
	q.client = &client{WriteClient: q.to.client, halve: q.section.ProtobufMessage == remoteapi.WriteV1MessageType}
	q.to.SetClient(q.client)
	q.resend(resendTo)
	q.metrics.missed.With(q.client.Name()).Add(0)
	q.written, q.done = make(chan struct{}, 1), make(chan struct{})
	q.finish, q.quit = make(chan struct{}), make(chan struct{})
	q.save()
	go q.run()
}

// stop stops the queue once it has sent what it has, or at the flush deadline.
func (q *queue) stop() {
	if !isClosed(q.quit) {
		close(q.quit)
	}
	q.to.Stop()
	<-q.done
	q.metrics.forget(q.client.Name())
}

// settle saves the position of a queue whose reader has ended, if everything before was sent or refused.
func (q *queue) settle() {
	if isClosed(q.done) && q.to.pending() == 0 && !q.client.hasDropped() {
		q.saved = q.at
		q.save()
	}
}

func (q *queue) notify() {
	select {
	case q.written <- struct{}{}:
	default: // one notification is enough: the queue then reads everything that was written
	}
}

func (q *queue) run() {
	defer close(q.done)
	for {
		err := q.follow()
		if errors.Is(err, errStopped) {
			return
		}
		if errors.Is(err, errAgain) {
			continue
		}
		q.logger.Error("Sending is delayed: the write-ahead log cannot be read. Trying again",
			"segment", q.at.segment, "err", err)
		select {
		case <-time.After(retryAfter):
		case <-q.quit:
			return
		}
	}
}

// follow reads the checkpoint and the whole log, in which the labels are, and then what is appended.
func (q *queue) follow() error {
	dir, index, err := wlog.LastCheckpoint(q.wal)
	if err == nil {
		q.last = dir
		err = q.checkpoint(dir, func(series []record.RefSeries) { q.to.StoreSeries(series, index) })
	}
	if err != nil && !errors.Is(err, record.ErrNotFound) {
		return err
	}
	first, last, err := wlog.Segments(q.wal)
	if err != nil {
		return err
	}
	if q.at.segment < first {
		q.logger.Error("Samples are in the local storage only: segments of the write-ahead log were removed "+
			"before their samples were sent", "first", q.at.segment, "last", first-1)
		q.metrics.missed.With(q.client.Name()).Add(first - q.at.segment)
		q.at = position{first, 0}
		q.saved = q.at
		q.save()
	}
	for n := first; ; n++ {
		if err := q.segment(n, n < last); err != nil {
			return err
		}
	}
}

// segment reads a segment to its end. If it is the last one, its end is where the next segment begins.
func (q *queue) segment(n int, complete bool) error {
	f, err := wlog.OpenReadSegment(wlog.SegmentName(q.wal, n))
	if err != nil {
		return err
	}
	//lint:ignore errcheck the segment is only read
	defer f.Close()
	q.metrics.segment.With(q.client.Name()).Set(float64(n))
	r := &reader{LiveReader: wlog.NewLiveReader(q.logger, q.metrics.live, f), queue: q, number: n,
		dec: record.NewDecoder(labels.NewSymbolTable(), q.logger)}
	for next, finishing := n+1, false; ; {
		if err = r.records(); errors.Is(err, errStopped) || errors.Is(err, errAgain) {
			return err
		}
		if complete {
			return q.ended(r, next, err)
		}
		if err != nil {
			return err
		}
		if next, err = q.next(n); err != nil {
			return err
		}
		if complete = next > n; complete {
			continue // what was written to this segment before the next one was created
		}
		if finishing {
			q.at = position{n + 1, 0} // the next start creates this segment
			return errStopped
		}
		if finishing, err = q.wait(); err != nil {
			return err
		}
	}
}

// ended moves the position behind a segment. If the segment was sent, it waits until that is certain.
func (q *queue) ended(r *reader, next int, err error) error {
	info, statErr := os.Stat(wlog.SegmentName(q.wal, r.number))
	if statErr == nil && (err != nil || info.Size() != r.Offset()) {
		q.logger.Warn("Samples may be missing at the receiver: a segment of the write-ahead log was not read to its end",
			"segment", r.number, "read", r.Offset(), "size", info.Size(), "err", err)
	}
	if r.number < q.at.segment {
		return nil
	}
	if err := q.drain(nil); err != nil {
		return err
	}
	q.at = position{r.number + 1, 0}
	q.saved = q.at
	q.save()
	if next != r.number+1 {
		return errAgain // the labels of the segments between are in the checkpoint
	}
	return nil
}

// next returns the number of the first segment behind n, or n.
func (q *queue) next(n int) (int, error) {
	if _, err := os.Stat(wlog.SegmentName(q.wal, n+1)); err == nil {
		return n + 1, nil
	}
	if time.Since(q.looked) < lookEvery {
		return n, nil
	}
	q.looked = time.Now()
	q.collect(n)
	first, last, err := wlog.Segments(q.wal)
	if err != nil || last <= n {
		return n, err
	}
	return max(first, n+1), nil
}

// wait returns once the log may have more. finishing reports that nothing is appended any more.
func (q *queue) wait() (finishing bool, err error) {
	if err := q.advance(q.saveEvery); err != nil {
		return false, err
	}
	later := time.NewTimer(min(lookEvery, q.saveEvery))
	defer later.Stop()
	select {
	case <-q.written:
		return false, nil
	case <-later.C:
		return false, nil
	case <-q.finish:
		return true, nil
	case <-q.quit:
		return false, errStopped
	}
}

// advance saves the position after an interval, once all samples before it were sent or refused, unless the process
// stops before: then what is left of the log is read first.
func (q *queue) advance(every time.Duration) error {
	finish := q.finish
	switch {
	case q.client.hasDropped():
		finish = nil
	case q.at == q.saved || time.Since(q.savedAt) < every:
		return nil
	}
	err := q.drain(finish)
	if errors.Is(err, errFinish) {
		return nil
	}
	if err == nil {
		q.saved = q.at
		q.save()
	}
	return err
}

// drain returns once all samples before the position were sent or refused, or with errFinish once finish is closed. If
// some were dropped, it moves the position back.
func (q *queue) drain(finish <-chan struct{}) error {
	for {
		sent := q.to.pending() == 0 // before hasDropped: what is dropped is not pending either
		if sent && q.client.hasDropped() {
			q.logger.Warn("Reading samples from the write-ahead log again that were not sent within the flush deadline",
				"segment", q.saved.segment)
			q.resend(q.at)
			q.at = q.saved
			q.client.forget()
			return errAgain
		}
		if sent {
			q.client.forget()
			return nil
		}
		select {
		case <-time.After(pollEvery):
		case <-finish:
			return errFinish
		case <-q.quit:
			return errStopped
		}
	}
}

func (q *queue) resend(to position) {
	if q.resendTo.before(to) {
		q.resendTo = to
	}
	q.resends = q.saved.before(q.resendTo)
	q.client.resend(q.resends)
}

// reach is called before samples that end at the position are passed on. New samples share no request with those
// that are sent again: a receiver may refuse the whole request. And they do not follow samples that were dropped.
func (q *queue) reach(end position) error {
	if err := q.advance(backlogTimes * q.saveEvery); err != nil {
		return err
	}
	if q.resends && q.resendTo.before(end) {
		if err := q.drain(nil); err != nil {
			return err
		}
		q.resends = false
		q.client.resend(false)
	}
	return nil
}

func (q *queue) save() {
	q.savedAt = time.Now()
	q.metrics.savepoint.With(q.client.Name()).Set(float64(q.saved.segment))
	if err := q.points.set(q.key, q.saved); err != nil {
		q.logger.Error("A restart sends samples again or, without an older savepoint, skips unsent ones: "+
			"the savepoint cannot be written", "err", err)
	}
}

// collect removes the labels of series that are neither in a new checkpoint nor in the segments behind it.
func (q *queue) collect(n int) {
	dir, index, err := wlog.LastCheckpoint(q.wal)
	if errors.Is(err, record.ErrNotFound) || dir == q.last || index >= n {
		return
	}
	if err == nil {
		err = q.checkpoint(dir, func(series []record.RefSeries) { q.to.UpdateSeriesSegment(series, index) })
	}
	if err != nil {
		q.logger.Warn("Labels of old series stay in memory: the checkpoint cannot be read", "err", err)
		return
	}
	q.last = dir
	q.to.SeriesReset(index)
}

// checkpoint passes all series of a checkpoint on, and the metadata to the library's queue.
func (q *queue) checkpoint(dir string, store func([]record.RefSeries)) error {
	segments, err := wlog.NewSegmentsReader(dir)
	if err != nil {
		return err
	}
	defer segments.Close()
	r := wlog.NewReader(segments)
	dec := record.NewDecoder(labels.NewSymbolTable(), q.logger)
	var series []record.RefSeries
	var metadata []record.RefMetadata
	for r.Next() && !isClosed(q.quit) {
		switch dec.Type(r.Record()) {
		case record.Series:
			if series, err = dec.Series(r.Record(), series[:0]); err == nil {
				store(series)
			}
		case record.Metadata:
			if metadata, err = dec.Metadata(r.Record(), metadata[:0]); err == nil {
				q.to.StoreMetadata(metadata)
			}
		}
		if err != nil {
			return fmt.Errorf("checkpoint %s: %w", dir, err)
		}
	}
	if isClosed(q.quit) {
		return errStopped
	}
	return r.Err()
}

// reader reads one segment.
type reader struct {
	*wlog.LiveReader
	queue  *queue
	number int
	dec    record.Decoder

	series     []record.RefSeries
	samples    []record.RefSample
	exemplars  []record.RefExemplar
	histograms []record.RefHistogramSample
	floats     []record.RefFloatHistogramSample
	metadata   []record.RefMetadata
}

// records passes on what was written so far.
func (r *reader) records() error {
	q := r.queue
	for r.Next() {
		if isClosed(q.quit) {
			return errStopped
		}
		rec, end := r.Record(), position{r.number, r.Offset()}
		kind := r.dec.Type(rec)
		q.metrics.records.With(q.client.Name(), kind.String()).Inc()
		ok, err := true, error(nil)
		switch behind := q.at.before(end); {
		case kind == record.Series:
			if r.series, err = r.dec.Series(rec, r.series[:0]); err == nil {
				q.to.StoreSeries(r.series, r.number)
			}
		case kind == record.Metadata:
			if r.metadata, err = r.dec.Metadata(rec, r.metadata[:0]); err == nil {
				q.to.StoreMetadata(r.metadata)
			}
		case behind:
			if err := q.reach(end); err != nil {
				return err
			}
			ok, err = r.pass(kind, rec)
		}
		if err != nil {
			q.metrics.failures.With(q.client.Name()).Inc()
			q.logger.Error("A record of the write-ahead log cannot be decoded and is not sent", "segment", r.number,
				"end", end.offset, "err", err)
		}
		if !ok {
			return errStopped
		}
		if q.at.before(end) {
			q.at = end
		}
	}
	if err := r.Err(); !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

// pass passes the samples of a record on. It waits while the queue is full, and returns false if the queue stops.
func (r *reader) pass(kind record.Type, rec []byte) (ok bool, err error) {
	to, section := r.queue.to, r.queue.section
	ok = true
	switch kind {
	case record.Samples, record.SamplesV2:
		if r.samples, err = r.dec.Samples(rec, r.samples[:0]); err == nil {
			ok = to.Append(r.samples)
		}
	case record.Exemplars:
		if !section.SendExemplars {
			break
		}
		if r.exemplars, err = r.dec.Exemplars(rec, r.exemplars[:0]); err == nil {
			ok = to.AppendExemplars(r.exemplars)
		}
	case record.HistogramSamples, record.CustomBucketsHistogramSamples, record.HistogramSamplesV2:
		if !section.SendNativeHistograms {
			break
		}
		if r.histograms, err = r.dec.HistogramSamples(rec, r.histograms[:0]); err == nil {
			ok = to.AppendHistograms(r.histograms)
		}
	case record.FloatHistogramSamples, record.CustomBucketsFloatHistogramSamples, record.FloatHistogramSamplesV2:
		if !section.SendNativeHistograms {
			break
		}
		if r.floats, err = r.dec.FloatHistogramSamples(rec, r.floats[:0]); err == nil {
			ok = to.AppendFloatHistograms(r.floats)
		}
	case record.Unknown:
		err = errors.New("unknown type")
	}
	return ok, err
}

// readMetrics are the metrics of the readers. The first three have the names and labels of Prometheus' watchers.
type readMetrics struct {
	records, failures, missed *metrics.CounterVec
	segment, savepoint        *metrics.GaugeVec
	live                      *wlog.LiveReaderMetrics
}

func newReadMetrics(own *metrics.Set, reg prometheus.Registerer) *readMetrics {
	return &readMetrics{
		records: own.NewCounterVec("prometheus_wal_watcher_records_read_total",
			"Number of records read by the WAL watcher from the WAL.", "consumer", "type"),
		failures: own.NewCounterVec("prometheus_wal_watcher_record_decode_failures_total",
			"Number of records read by the WAL watcher that resulted in an error when decoding.", "consumer"),
		segment: own.NewGaugeVec("prometheus_wal_watcher_current_segment",
			"Current segment the WAL watcher is reading records from.", "consumer"),
		missed: own.NewCounterVec("ferula_remote_write_segments_missed_total",
			"Segments of the write-ahead log that were removed before their samples were sent.", "remote_name"),
		savepoint: own.NewGaugeVec("ferula_remote_write_savepoint_segment",
			"Segment of the write-ahead log at which the queue begins after a crash.", "remote_name"),
		live: wlog.NewLiveReaderMetrics(reg),
	}
}

// forget removes the metrics of a queue that has ended.
func (m *readMetrics) forget(name string) {
	m.records.DeletePartialMatch(map[string]string{"consumer": name})
	m.failures.Delete(name)
	m.segment.Delete(name)
	m.savepoint.Delete(name)
	m.missed.Delete(name)
}
