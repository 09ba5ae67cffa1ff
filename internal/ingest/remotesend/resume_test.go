package remotesend

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	remoteapi "github.com/prometheus/client_golang/exp/api/remote"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage/remote"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/tsdb/wlog"
	"github.com/prometheus/prometheus/util/compression"

	"github.com/ferula-io/ferula/internal/files"
	"github.com/ferula-io/ferula/internal/tsdb"
	"github.com/ferula-io/ferula/metrics"
)

// A new version of Prometheus may have other fields.
func TestLibrary_HasTheFieldsOfQueues(t *testing.T) {
	s, _ := newSender(t, Options{}, slog.DiscardHandler)
	if err := s.ApplyConfig(load(t, "remote_write: [{url: 'http://127.0.0.1:1/'}]\n")); err != nil {
		t.Fatal(err)
	}
	for _, q := range s.queues {
		if q.to.client.Endpoint() != "http://127.0.0.1:1/" || q.to.pending() != 0 {
			t.Errorf("%+v", q.to)
		}
	}
	if _, err := field[int](s.library, "queues"); err == nil {
		t.Error("a field of another type is accepted")
	}
	if _, err := field[int](s.library, "nonsense"); err == nil {
		t.Error("a missing field is accepted")
	}
}

// The context of a call ends if, and only if, the library's queue drops what it has.
func TestLibrary_EndsTheContextOfACallWhenItDropsSamples(t *testing.T) {
	for _, drops := range []bool{false, true} {
		r, opts := newRecorder(t), Options{}
		if drops {
			r.answer(unavailable)
			opts.FlushDeadline = 10 * time.Millisecond
		}
		p := start(t, t.TempDir(), opts, "remote_write:\n"+r.section(", name: a"))
		q := p.queues["name a"]
		p.append(t, "m", time.Now().UnixMilli())
		<-r.seen
		if q.client.hasDropped() {
			t.Error("samples are dropped before the stop")
		}
		p.end(t)
		if q.client.hasDropped() != drops {
			t.Errorf("samples are dropped: %t, expected: %t", !drops, drops)
		}
		if saved, _ := p.points.get("name a"); (saved == position{}) != drops {
			t.Errorf("samples are dropped: %t, and the savepoint is %v", drops, saved)
		}
	}
}

func TestSavepoints_AreReadAsWritten(t *testing.T) {
	dir := t.TempDir()
	want := map[string]position{"name a": {1, 2}, "url http://h/\n\"x\"": {1 << 30, 1 << 40}}
	for key, p := range want {
		s, err := loadSavepoints(dir)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.set(key, p); err != nil {
			t.Fatal(err)
		}
	}
	s, err := loadSavepoints(dir)
	if err != nil || fmt.Sprint(s.queues) != fmt.Sprint(want) {
		t.Errorf("%v %v", s.queues, err)
	}
	others, err := s.retain(map[string]bool{"name a": true})
	if err != nil || len(others) != 1 || others[0] != "url http://h/\n\"x\"" {
		t.Fatal(others, err)
	}
	if s, err = loadSavepoints(dir); err != nil || len(s.queues) != 1 {
		t.Errorf("%v %v", s.queues, err)
	}
}

// Opening a FIFO would block.
func TestSavepoints_WhatIsNotAFileIsRefused(t *testing.T) {
	for name, create := range map[string]func(path string) error{
		"directory": func(path string) error { return os.Mkdir(path, 0o755) },
		"FIFO":      func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"device":    func(path string) error { return os.Symlink("/dev/zero", path) },
	} {
		dir := t.TempDir()
		if err := create(filepath.Join(dir, savepointFile)); err != nil {
			t.Fatal(err)
		}
		if s, err := loadSavepoints(dir); !errors.Is(err, files.ErrIrregular) || len(s.queues) > 0 {
			t.Errorf("%s: %v, %v", name, s.queues, err)
		}
	}
}

func TestSavepoints_ADamagedFileIsRefused(t *testing.T) {
	good := formatSavepoints(map[string]position{"name a": {1, 2}, "name b": {3, 4}})
	if _, err := parseSavepoints(good); err != nil {
		t.Fatal(err)
	}
	for i := range good {
		if _, err := parseSavepoints(good[:i]); err == nil {
			t.Errorf("cut at %d: accepted", i)
		}
		bad := append([]byte{}, good...)
		bad[i] ^= 1
		if _, err := parseSavepoints(bad); err == nil {
			t.Errorf("changed at %d: accepted", i)
		}
	}
	if _, err := parseSavepoints(append([]byte(strings.Replace(string(good), "points 1", "points 2", 1)), '\n')); err == nil {
		t.Error("a newer version is accepted")
	}
}

func FuzzParseSavepoints(f *testing.F) {
	f.Add(formatSavepoints(map[string]position{"name a": {1, 2}}))
	f.Add([]byte(savepointHeader))
	f.Fuzz(func(t *testing.T, content []byte) {
		if queues, err := parseSavepoints(content); err == nil && string(formatSavepoints(queues)) != string(content) {
			t.Errorf("%q is accepted", content)
		}
	})
}

func FuzzSplit(f *testing.F) {
	f.Add([]byte("\n\x02\x12\x00\n\x00\x1a\x01\x08"))
	f.Add([]byte("\n\xff\xff\xff\xff\xff\xff\xff\xff\x7f"))
	f.Fuzz(func(t *testing.T, body []byte) {
		req, err := compression.Encode(compression.Snappy, body, compression.NewSyncEncodeBuffer())
		if err != nil {
			t.Fatal(err)
		}
		if fields, ok := split(req); ok && string(slices.Concat(fields...)) != string(body) {
			t.Errorf("%q is split into %q", body, fields)
		}
	})
}

// recorder is a receiver that counts how often it gets each sample.
type recorder struct {
	*httptest.Server
	mu     sync.Mutex
	got    map[string]int // by metric and timestamp
	refuse func(*http.Request) int
	seen   chan struct{} // holds a value after a request
}

func newRecorder(t *testing.T) *recorder {
	r := &recorder{got: map[string]int{}, seen: make(chan struct{}, 1)}
	r.Server = httptest.NewServer(http.HandlerFunc(r.serve))
	t.Cleanup(r.Server.Close)
	return r
}

func (r *recorder) serve(w http.ResponseWriter, req *http.Request) {
	request, err := remote.DecodeWriteRequest(req.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	defer func() {
		select {
		case r.seen <- struct{}{}:
		default:
		}
	}()
	if r.refuse != nil {
		if status := r.refuse(req); status != 0 {
			w.WriteHeader(status)
			return
		}
	}
	for _, series := range request.Timeseries {
		name := ""
		for _, l := range series.Labels {
			if l.Name == "__name__" {
				name = l.Value
			}
		}
		for _, s := range series.Samples {
			r.got[fmt.Sprint(name, " ", s.Timestamp)]++
		}
		for _, h := range series.Histograms {
			r.got[fmt.Sprint(name, " ", h.Timestamp)]++
		}
	}
}

func (r *recorder) answer(refuse func(*http.Request) int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refuse = refuse
}

// await waits until the receiver has all samples.
func (r *recorder) await(t *testing.T, samples ...string) {
	t.Helper()
	deadline := time.After(time.Minute)
	for {
		var missing []string
		r.mu.Lock()
		for _, s := range samples {
			if r.got[s] == 0 {
				missing = append(missing, s)
			}
		}
		r.mu.Unlock()
		if len(missing) == 0 {
			return
		}
		select {
		case <-r.seen:
		case <-deadline:
			t.Fatalf("the receiver did not get %v", missing)
		}
	}
}

func (r *recorder) times(sample string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.got[sample]
}

func (r *recorder) section(settings string) string {
	return "- {url: '" + r.URL + "', metadata_config: {send: false}, " +
		"queue_config: {batch_send_deadline: 5ms, max_backoff: 20ms, min_backoff: 5ms}" + settings + "}\n"
}

// server is a storage with a sender in dir.
type server struct {
	*Sender
	store *tsdb.Store
	ended bool
}

func start(t *testing.T, dir string, opts Options, text string) *server {
	t.Helper()
	reg := prometheus.NewRegistry()
	store, err := tsdb.New(tsdb.Options{Dir: dir}, slog.New(slog.DiscardHandler), reg, metrics.NewSet())
	if err != nil {
		t.Fatal(err)
	}
	p := &server{New(opts, store, slog.New(slog.DiscardHandler), reg, metrics.NewSet()), store, false}
	if err := store.Open(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.end(t) })
	if err := p.ApplyConfig(load(t, text)); err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *server) end(t *testing.T) {
	t.Helper()
	if p.ended {
		return
	}
	p.ended = true
	if err := p.Sender.Close(); err != nil {
		t.Error(err)
	}
	if err := p.store.Close(); err != nil {
		t.Error(err)
	}
}

func (p *server) append(t *testing.T, name string, at int64) string {
	t.Helper()
	if err := commit(p.Sender, name, at); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(name, " ", at)
}

// kill returns a directory as a kill would leave dir: with the files as they are.
func kill(t *testing.T, dir string) string {
	t.Helper()
	left := t.TempDir()
	if err := os.CopyFS(left, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	return left
}

func unavailable(*http.Request) int { return http.StatusServiceUnavailable }

func TestSender_SendsAfterAKillWhatWasNotSent(t *testing.T) {
	r := newRecorder(t)
	text := "remote_write:\n" + r.section("")
	dir, now := t.TempDir(), time.Now().UnixMilli()
	p := start(t, dir, Options{FlushDeadline: time.Millisecond}, text)
	sent := p.append(t, "m", now)
	r.await(t, sent)
	r.answer(unavailable)
	lost := []string{p.append(t, "m", now+1), p.append(t, "other", now-1000)}
	left := kill(t, dir)
	r.answer(nil)
	p2 := start(t, left, Options{}, text)
	r.await(t, append(lost, p2.append(t, "m", now+2))...)
}

func TestSender_SendsAfterAStopWhatWasNotSentByTheDeadlineAndNothingTwice(t *testing.T) {
	r := newRecorder(t)
	text := "remote_write:\n" + r.section("")
	dir, now := t.TempDir(), time.Now().UnixMilli()
	p := start(t, dir, Options{}, text)
	first := p.append(t, "m", now)
	p.end(t) // sends everything
	if r.times(first) != 1 {
		t.Fatalf("a clean stop sends the sample %d times", r.times(first))
	}
	p = start(t, dir, Options{FlushDeadline: 10 * time.Millisecond}, text)
	r.answer(unavailable)
	second := p.append(t, "m", now+1)
	p.end(t)
	r.answer(nil)
	p = start(t, dir, Options{}, text)
	r.await(t, second, p.append(t, "m", now+2))
	if r.times(first) != 1 {
		t.Errorf("what was sent before a clean stop is sent %d times", r.times(first))
	}
}

func TestSender_WithoutSavepointsOnlyNewSamplesAreSent(t *testing.T) {
	r := newRecorder(t)
	text := "remote_write:\n" + r.section(", name: a")
	dir, now := t.TempDir(), time.Now().UnixMilli()
	p := start(t, dir, Options{FlushDeadline: 10 * time.Millisecond}, text)
	r.answer(unavailable)
	lost := p.append(t, "m", now)
	p.end(t)
	r = newRecorder(t) // the first may still read a request that the queue has given up
	p = start(t, dir, Options{NoSavepoints: true}, "remote_write:\n"+r.section(", name: a"))
	r.await(t, p.append(t, "m", now+1))
	if r.times(lost) != 0 {
		t.Error("the old sample is sent")
	}
	if _, err := os.Stat(filepath.Join(dir, sectionsDir, savepointFile)); !os.IsNotExist(err) {
		t.Errorf("the savepoints are still there: %v", err)
	}
}

// A queue that cannot trust its savepoint begins with what is appended after the start.
func TestSender_BeginsNewWithoutAUsableSavepoint(t *testing.T) {
	for name, content := range map[string]string{
		"damaged":        "remote_write savepoints 1\n0 0 \"name a\"\ncrc 00000000\n",
		"behind the log": string(formatSavepoints(map[string]position{"name a": {1000, 0}})),
		"missing":        "",
	} {
		t.Run(name, func(t *testing.T) {
			r := newRecorder(t)
			text := "remote_write:\n" + r.section(", name: a")
			dir, now := t.TempDir(), time.Now().UnixMilli()
			p := start(t, dir, Options{FlushDeadline: 10 * time.Millisecond}, text)
			r.answer(unavailable)
			lost := p.append(t, "m", now)
			p.end(t)
			r = newRecorder(t) // the first may still read a request that the queue has given up
			path := filepath.Join(dir, sectionsDir, savepointFile)
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			if content != "" {
				if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			p = start(t, dir, Options{}, "remote_write:\n"+r.section(", name: a"))
			r.await(t, p.append(t, "m", now+1))
			if r.times(lost) != 0 {
				t.Error("the old sample is sent")
			}
		})
	}
}

// Several tenants have the URL in common. The process is stopped meanwhile.
func TestSender_ChangedSectionsToOneURLGoOn(t *testing.T) {
	r := newRecorder(t)
	tenant := func(name, more string) string { return r.section(", headers: {X-Scope-OrgID: " + name + "}" + more) }
	dir, now := t.TempDir(), time.Now().UnixMilli()
	r.answer(unavailable)
	var lost []string
	for i, sections := range []string{tenant("a", ""), tenant("a", "") + tenant("b", ""),
		tenant("a", ", remote_timeout: 7s") + tenant("b", ""), tenant("b", "")} {
		p := start(t, dir, Options{FlushDeadline: 10 * time.Millisecond}, "remote_write:\n"+sections)
		lost = append(lost, p.append(t, "m", now+int64(i)))
		p.end(t)
	}
	r.answer(nil)
	start(t, dir, Options{}, "remote_write:\n"+tenant("b", ", remote_timeout: 8s"))
	r.await(t, lost...)
}

// A reload that changes a section stops its queue while the receiver is down.
func TestSender_AReloadLosesNothing(t *testing.T) {
	r := newRecorder(t)
	now := time.Now().UnixMilli()
	p := start(t, t.TempDir(), Options{FlushDeadline: 10 * time.Millisecond}, "remote_write:\n"+r.section(", name: a"))
	r.await(t, p.append(t, "m", now))
	r.answer(unavailable)
	lost := p.append(t, "m", now+1)
	second := r.section(", write_relabel_configs: [{action: drop, regex: '.*', source_labels: [__name__]}]")
	for _, sections := range []string{
		r.section(", name: a, remote_timeout: 7s"), r.section(""), r.section("") + second, r.section(", name: a"),
	} {
		if err := p.ApplyConfig(load(t, "remote_write:\n"+sections)); err != nil {
			t.Fatal(err)
		}
	}
	r.answer(nil)
	r.await(t, lost, p.append(t, "late", now-1000), p.append(t, "other", now+2))
	if err := p.ApplyConfig(load(t, "remote_write:\n"+r.section(", name: b"))); err != nil {
		t.Fatal(err)
	}
	if _, ok := p.points.get("name a"); ok {
		t.Error("the savepoint of a removed section stays")
	}
}

// prometheusReceiver is a Prometheus without an out-of-order window.
func prometheusReceiver(t *testing.T) (*tsdb.Store, http.Handler) {
	t.Helper()
	reg, quiet := prometheus.NewRegistry(), slog.New(slog.DiscardHandler)
	store, err := tsdb.New(tsdb.Options{Dir: t.TempDir()}, quiet, reg, metrics.NewSet())
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Open(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	accepted := remoteapi.MessageTypes{remoteapi.WriteV1MessageType, remoteapi.WriteV2MessageType}
	return store, remote.NewWriteHandler(quiet, reg, store, accepted, false, false, false)
}

// A Prometheus refuses a whole request if one sample is older than the newest of its series.
func TestSender_AReceiverThatRefusesOldSamplesGetsTheOthers(t *testing.T) {
	for _, message := range []string{"prometheus.WriteRequest", "io.prometheus.write.v2.Request"} {
		t.Run(message, func(t *testing.T) {
			store, handler := prometheusReceiver(t)
			down := atomic.Bool{}
			receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if down.Load() {
					w.WriteHeader(http.StatusServiceUnavailable)
					return
				}
				handler.ServeHTTP(w, r)
			}))
			t.Cleanup(receiver.Close)
			text := "remote_write: [{url: '" + receiver.URL + "', protobuf_message: " + message + ", " +
				"queue_config: {batch_send_deadline: 5ms, max_backoff: 20ms, min_backoff: 5ms}}]\n"
			dir, now := t.TempDir(), time.Now().UnixMilli()
			p := start(t, dir, Options{FlushDeadline: time.Millisecond}, text)
			for i := range int64(20) {
				p.append(t, fmt.Sprint("sent", i%3), now+i)
			}
			until(t, "the first samples", func() bool { return samplesOf(t, store) == 20 })
			down.Store(true)
			for i := range int64(20) {
				p.append(t, fmt.Sprint("unsent", i), now)
			}
			left := kill(t, dir)
			down.Store(false)
			p2 := start(t, left, Options{}, text)
			p2.append(t, "unsent", now+100)
			until(t, "the samples that were not sent", func() bool { return samplesOf(t, store) == 41 })
		})
	}
}

// The halves of a refused request are many requests: some fail.
func TestSender_ARefusedRequestGoesOnWhereAHalfFailed(t *testing.T) {
	store, handler := prometheusReceiver(t)
	fails, requests := atomic.Bool{}, atomic.Int64{}
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if fails.Load() && requests.Add(1)%20 == 0 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(receiver.Close)
	text := "remote_write: [{url: '" + receiver.URL + "', metadata_config: {send: false}, " +
		"queue_config: {batch_send_deadline: 5ms, max_backoff: 20ms, min_backoff: 5ms}}]\n"
	dir, now := t.TempDir(), time.Now().UnixMilli()
	p := start(t, dir, Options{FlushDeadline: time.Millisecond}, text)
	for i := range int64(100) {
		p.append(t, "sent", now+i)
	}
	until(t, "the first samples", func() bool { return samplesOf(t, store) == 100 })
	fails.Store(true)
	p2 := start(t, kill(t, dir), Options{FlushDeadline: time.Millisecond}, text)
	p2.append(t, "unsent", now)
	until(t, "the sample behind those that are refused", func() bool { return samplesOf(t, store) == 101 })
}

// Thanos Receive accepts all samples of a request that it does not name as refused.
func TestSender_ARequestThatIsRefusedInPartIsSentOnce(t *testing.T) {
	r := newRecorder(t)
	dir, now := t.TempDir(), time.Now().UnixMilli()
	p := start(t, dir, Options{FlushDeadline: time.Millisecond}, "remote_write:\n"+r.section(", name: a"))
	var sent []string
	for i := range int64(20) {
		sent = append(sent, p.append(t, "m", now+i))
	}
	r.await(t, sent...)
	after := newRecorder(t)
	thanos := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		after.serve(httptest.NewRecorder(), req)
		http.Error(w, "add 20 samples: out of order sample", http.StatusConflict)
	}))
	t.Cleanup(thanos.Close)
	text := strings.Replace(r.section(", name: a"), r.URL, thanos.URL, 1)
	p2 := start(t, kill(t, dir), Options{FlushDeadline: time.Millisecond}, "remote_write:\n"+text)
	after.await(t, append(sent, p2.append(t, "new", now))...)
	for _, sample := range sent {
		if n := after.times(sample); n != 1 {
			t.Fatalf("%s is sent %d times", sample, n)
		}
	}
}

// A queue that changes its number of shards drops what it cannot send by the flush deadline. A receiver that then
// gets newer samples refuses the dropped ones.
func TestSender_NewSamplesDoNotOvertakeDroppedOnes(t *testing.T) {
	store, handler := prometheusReceiver(t)
	stalls, stalled := atomic.Bool{}, make(chan struct{}, 1)
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if stalls.Load() {
			select {
			case stalled <- struct{}{}:
			default:
			}
			<-r.Context().Done()
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(receiver.Close)
	text := "remote_write: [{url: '" + receiver.URL + "', name: a, metadata_config: {send: false}, " +
		"queue_config: {batch_send_deadline: 5ms, max_backoff: 20ms, min_backoff: 5ms}}]\n"
	p := start(t, t.TempDir(), Options{FlushDeadline: time.Millisecond}, text)
	now := time.Now().UnixMilli()
	stalls.Store(true)
	p.append(t, "sent", now)
	<-stalled
	stalls.Store(false)
	reshard, err := field[chan int](p.queues["name a"].to.QueueManager, "reshardChan")
	if err != nil {
		t.Fatal(err)
	}
	*reshard <- 2
	p.append(t, "sent", now+1)
	until(t, "both samples", func() bool { return samplesOf(t, store) == 2 })
}

func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within a minute", what)
		}
	}
}

// samplesOf returns the number of samples in a storage.
func samplesOf(t *testing.T, store *tsdb.Store) (n int) {
	t.Helper()
	q, err := store.Querier(0, 1<<62)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	every := labels.MustNewMatcher(labels.MatchRegexp, "__name__", "(un)?sent.*")
	for set := q.Select(context.Background(), false, nil, every); set.Next(); {
		for it := set.At().Iterator(nil); it.Next() != chunkenc.ValNone; {
			n++
		}
	}
	return n
}

// The library's queue drops samples if it changes its number of shards while the receiver is down.
func TestSender_WhatTheQueueDropsIsSentAgain(t *testing.T) {
	r := newRecorder(t)
	p := start(t, t.TempDir(), Options{saveEvery: 20 * time.Millisecond}, "remote_write:\n"+r.section(", name: a"))
	q := p.queues["name a"]
	first := p.append(t, "m", time.Now().UnixMilli())
	r.await(t, first)
	until(t, "a savepoint", func() bool { saved, _ := p.points.get("name a"); return saved.offset > 0 })
	dropped := make(chan struct{})
	close(dropped)
	var later []string
	until(t, "a sample that is sent again", func() bool {
		later = append(later, p.append(t, "m", time.Now().UnixMilli()+int64(len(later))+1))
		q.client.mu.Lock()
		q.client.endings = append(q.client.endings, dropped) // as when the context of a call has ended
		q.client.mu.Unlock()
		return slices.ContainsFunc(later, func(sample string) bool { return r.times(sample) > 1 })
	})
	r.await(t, later...)
	if r.times(first) != 1 {
		t.Errorf("a sample before the savepoint is sent %d times", r.times(first))
	}
}

// A queue that catches up, or always has samples, saves how far it is before it has sent everything.
func TestSender_SavesItsPositionBeforeItReachesTheEnd(t *testing.T) {
	r := newRecorder(t)
	text := "remote_write:\n" + strings.Replace(r.section(", name: a"), "queue_config: {",
		"queue_config: {max_shards: 1, capacity: 1, max_samples_per_send: 1, ", 1)
	dir, now := t.TempDir(), time.Now().UnixMilli()
	r.answer(unavailable)
	p := start(t, dir, Options{FlushDeadline: time.Millisecond}, text)
	began, _ := p.points.get("name a")
	var samples []string
	for i := range int64(20) {
		samples = append(samples, p.append(t, "m", now+i))
	}
	left := kill(t, dir)
	p.end(t)
	requests := 0
	r.answer(func(*http.Request) int {
		if requests++; requests > 10 {
			return http.StatusServiceUnavailable
		}
		return 0
	})
	p2 := start(t, left, Options{FlushDeadline: time.Millisecond, saveEvery: 1}, text)
	r.await(t, samples[:10]...)
	if saved, _ := p2.points.get("name a"); !began.before(saved) || saved.segment > began.segment {
		t.Errorf("after half of the samples the savepoint is %v, and was %v", saved, began)
	}
}

// Segments are removed while the receiver is down, two hours after they were written.
func TestSender_GoesOnBehindRemovedSegmentsAndCountsThem(t *testing.T) {
	r := newRecorder(t)
	text := "remote_write:\n" + r.section(", name: a")
	dir, now := t.TempDir(), time.Now().UnixMilli()
	r.answer(unavailable)
	var samples []string
	for i := range int64(3) { // each start begins a segment
		p := start(t, dir, Options{FlushDeadline: 10 * time.Millisecond}, text)
		samples = append(samples, p.append(t, fmt.Sprint("m", i), now))
		p.end(t)
	}
	log, err := wlog.NewSize(slog.New(slog.DiscardHandler), nil, filepath.Join(dir, "wal"), 1<<20, compression.None)
	if err != nil {
		t.Fatal(err)
	}
	every := func(chunks.HeadSeriesRef) bool { return true }
	if _, err := wlog.Checkpoint(slog.New(slog.DiscardHandler), log, 0, 1, every, now+1, false); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(log.Truncate(2), log.Close()); err != nil {
		t.Fatal(err)
	}
	r.answer(nil)
	p := start(t, dir, Options{}, text)
	r.await(t, samples[2], p.append(t, "m0", now+1)) // the labels of m0 are in the checkpoint only
	if r.times(samples[0]) != 0 {
		t.Error("a removed sample is sent")
	}
	if got := p.metrics.missed.With("a").Get(); got != 2 {
		t.Errorf("%d segments are missing, not 2", got)
	}
}
