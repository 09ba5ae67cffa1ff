package remotesend

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/promslog"
	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage/remote"

	"github.com/ferula-io/ferula/internal/tsdb"
	"github.com/ferula-io/ferula/metrics"
)

// newSender returns a sender over an open store. handler gets its lines.
func newSender(t *testing.T, opts Options, handler slog.Handler) (*Sender, *tsdb.Store) {
	t.Helper()
	reg := prometheus.NewRegistry()
	store, err := tsdb.New(tsdb.Options{Dir: t.TempDir()}, slog.New(slog.DiscardHandler), reg, metrics.NewSet())
	if err != nil {
		t.Fatal(err)
	}
	s := New(opts, store, slog.New(handler), reg, metrics.NewSet())
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := store.Open(); err != nil {
		t.Fatal(err)
	}
	return s, store
}

func load(t *testing.T, text string) *config.Config {
	t.Helper()
	cfg, err := config.Load(text, promslog.NewNopLogger())
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

func commit(s *Sender, name string, at int64) error {
	app := s.Samples().Appender(context.Background())
	if _, err := app.Append(0, labels.FromStrings("__name__", name), at, 1); err != nil {
		return err
	}
	return app.Commit()
}

// The queues tell sections apart by a text without secrets.
func TestSender_SectionsThatDifferInSecretsOnlyAreRefusedBeforeAQueueIsTouched(t *testing.T) {
	var requests sync.Map
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { requests.Store(r.URL.Path, true) }))
	t.Cleanup(receiver.Close)
	section := func(path, password string) string {
		return "- {url: '" + receiver.URL + path + "', basic_auth: {username: u, password: " + password + "}, queue_config: {batch_send_deadline: 10ms}, metadata_config: {send: false}}\n"
	}
	one := load(t, "remote_write:\n"+section("/a", "x"))
	s, _ := newSender(t, Options{FlushDeadline: 10 * time.Second}, slog.DiscardHandler)
	if err := s.ApplyConfig(one); err != nil {
		t.Fatal(err)
	}
	err := s.ApplyConfig(load(t, "remote_write:\n"+section("/a", "x")+section("/b", "y")+section("/b", "z")))
	if err == nil || !strings.Contains(err.Error(), "duplicate section") {
		t.Errorf("two sections that differ in the password: %v", err)
	}
	if err := s.ApplyConfig(one); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if err := commit(s, "m", time.Now().UnixMilli()); err != nil && !strings.Contains(err.Error(), "out of order") {
			t.Fatal(err)
		}
		if _, sent := requests.Load("/a"); sent {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the queue of the first section sends nothing any more")
		}
	}
	named := "remote_write:\n" + strings.Replace(section("/c", "y"), "{url", "{name: one, url", 1) + strings.Replace(section("/c", "z"), "{url", "{name: two, url", 1)
	if err := s.ApplyConfig(load(t, named)); err != nil {
		t.Errorf("sections with names: %v", err)
	}
}

// stopping is a log handler that closes a channel when a queue begins to stop.
type stopping struct {
	once *sync.Once
	seen chan struct{}
}

func (stopping) Enabled(context.Context, slog.Level) bool { return true }
func (s stopping) WithAttrs([]slog.Attr) slog.Handler     { return s }
func (s stopping) WithGroup(string) slog.Handler          { return s }
func (s stopping) Handle(_ context.Context, r slog.Record) error {
	if strings.HasPrefix(r.Message, "Stopping remote storage") {
		s.once.Do(func() { close(s.seen) })
	}
	return nil
}

// A queue whose receiver hangs has the flush deadline to end when a reload removes it.
func TestSender_SamplesAreAppendedWhileAQueueStops(t *testing.T) {
	requested, release := make(chan struct{}), make(chan struct{})
	var first, opened sync.Once
	let := func() { opened.Do(func() { close(release) }) }
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		first.Do(func() { close(requested) })
		select {
		case <-release:
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(receiver.Close)
	t.Cleanup(let)
	log := stopping{&sync.Once{}, make(chan struct{})}
	s, _ := newSender(t, Options{FlushDeadline: time.Minute}, log)
	if err := s.ApplyConfig(load(t, "remote_write: [{url: '"+receiver.URL+"', queue_config: {batch_send_deadline: 10ms}, metadata_config: {send: false}}]\n")); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	for sent := false; !sent; {
		if err := commit(s, "m", time.Now().UnixMilli()); err != nil && !strings.Contains(err.Error(), "out of order") {
			t.Fatal(err)
		}
		select {
		case <-requested:
			sent = true
		case <-time.After(10 * time.Millisecond):
		}
		if time.Since(begun) > 30*time.Second {
			t.Fatal("nothing is sent")
		}
	}
	applied := make(chan error, 1)
	go func() { applied <- s.ApplyConfig(load(t, "scrape_configs: []\n")) }()
	<-log.seen
	committed := make(chan error, 1)
	go func() {
		var err error
		for i := range int64(10) {
			if err = commit(s, "other", time.Now().UnixMilli()+i); err != nil {
				break
			}
		}
		committed <- err
	}()
	select {
	case err := <-committed:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Error("an append waits for a queue that stops")
	}
	let()
	if err := <-applied; err != nil {
		t.Error(err)
	}
}

// A reload that changes nothing for the queues keeps their clients. Prometheus would replace the clients of running
// queues without a lock, which the race detector reports.
func TestSender_EqualConfigurationLeavesTheClients(t *testing.T) {
	requests := make(chan struct{}, 1)
	receiver := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		select {
		case requests <- struct{}{}:
		default:
		}
	}))
	t.Cleanup(receiver.Close)
	s, _ := newSender(t, Options{FlushDeadline: time.Second}, slog.DiscardHandler)
	text := "global: {external_labels: {cluster: eu}}\nremote_write: [{url: '" + receiver.URL + "', basic_auth: {username: a, password: b}, queue_config: {batch_send_deadline: 5ms}, metadata_config: {send: false}, write_relabel_configs: [{regex: x.*, action: drop, source_labels: [a]}]}]\n"
	apply := func(text string) *applied {
		t.Helper()
		if err := s.ApplyConfig(load(t, text)); err != nil {
			t.Fatal(err)
		}
		return s.applied
	}
	first := apply(text)
	for begun, sent := time.Now(), 0; sent < 3; {
		if err := commit(s, "m", time.Now().UnixMilli()); err != nil && !strings.Contains(err.Error(), "out of order") {
			t.Fatal(err)
		}
		if apply(text) != first {
			t.Fatal("an equal configuration was applied again")
		}
		select {
		case <-requests:
			sent++
		case <-time.After(time.Millisecond):
		}
		if time.Since(begun) > 30*time.Second {
			t.Fatal("nothing is sent")
		}
	}
	for _, change := range []string{"cluster: eu", "password: b", "regex: x.*"} {
		if apply(strings.Replace(text, change, change+"2", 1)) == first {
			t.Errorf("a change of %s was not applied", change)
		}
		apply(text)
	}
}

// Prometheus stops queues one after the other, and gives each whose receiver hangs the whole flush deadline.
func TestSender_CloseGivesAllHangingReceiversOneDeadline(t *testing.T) {
	const hanging = 30
	release := make(chan struct{})
	var opened sync.Once
	let := func() { opened.Do(func() { close(release) }) }
	var requested, received sync.Map
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/live" {
			request, err := remote.DecodeWriteRequest(r.Body)
			if err != nil {
				t.Error(err)
				return
			}
			for _, series := range request.Timeseries {
				received.Store(series.Labels[0].Value, true)
			}
			return
		}
		requested.Store(r.URL.Path, true)
		select {
		case <-release:
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(receiver.Close)
	t.Cleanup(let)
	text := "remote_write:\n"
	for i := range hanging {
		text += fmt.Sprintf("- {url: '%s/%d', queue_config: {batch_send_deadline: 10ms}, metadata_config: {send: false}}\n", receiver.URL, i)
	}
	text += "- {url: '" + receiver.URL + "/live', queue_config: {batch_send_deadline: 500ms}, metadata_config: {send: false}}\n"
	s, _ := newSender(t, Options{FlushDeadline: 2 * time.Second}, slog.DiscardHandler)
	if err := s.ApplyConfig(load(t, text)); err != nil {
		t.Fatal(err)
	}
	waiting := func() (n int) {
		requested.Range(func(any, any) bool { n++; return true })
		return n
	}
	for begun := time.Now(); waiting() < hanging; time.Sleep(10 * time.Millisecond) {
		if err := commit(s, "m", time.Now().UnixMilli()); err != nil && !strings.Contains(err.Error(), "out of order") {
			t.Fatal(err)
		}
		if time.Since(begun) > 30*time.Second {
			t.Fatalf("%d of %d queues send", waiting(), hanging)
		}
	}
	if err := commit(s, "last", time.Now().UnixMilli()); err != nil {
		t.Fatal(err)
	}
	closed := make(chan error, 1)
	go func() { closed <- s.Close() }()
	select {
	case err := <-closed:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(hanging * time.Second): // half of what all deadlines take together
		t.Error("receivers that hang delay the shutdown one after the other")
	}
	if _, ok := received.Load("last"); !ok {
		t.Error("the receiver that responds did not get the last sample")
	}
	let()
	select {
	case <-s.stopped:
	case <-time.After(time.Minute):
		t.Error("the queues do not stop")
	}
}
