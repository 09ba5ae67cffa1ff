package remotewrite

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/klauspost/compress/snappy"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/prompb"
	"github.com/prometheus/prometheus/storage"
)

// stub2 is a storage of samples that fails as configured.
type stub2 struct {
	mu        sync.Mutex
	events    []string
	appendErr error
	commitErr error

	rollbackErr error
}

func (s *stub2) AppenderV2(context.Context) storage.AppenderV2 { return s }

func (s *stub2) note(event string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, event)
}

func (s *stub2) Append(_ storage.SeriesRef, l labels.Labels, _, _ int64, v float64, _ *histogram.Histogram, _ *histogram.FloatHistogram, _ storage.AppendV2Options) (storage.SeriesRef, error) {
	if s.appendErr != nil {
		return 0, s.appendErr
	}
	s.note(fmt.Sprintf("%s=%g", l.Get(labels.MetricName), v))
	return 1, nil
}

func (s *stub2) Commit() error   { s.note("commit"); return s.commitErr }
func (s *stub2) Rollback() error { s.note("rollback"); return s.rollbackErr }

const otlpBody = `{"resourceMetrics":[{"scopeMetrics":[{"metrics":[{"name":"apples","gauge":{"dataPoints":[{"timeUnixNano":"1700000000000000000","asDouble":3}]}}]}]}]}`

func postOTLP(h http.Handler, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func otlpHandler(opts Options, to storage.AppendableV2, logger *slog.Logger) http.Handler {
	return NewOTLPHandler(opts, OTLPOptions{LookbackDelta: 5 * time.Minute}, to, func() config.Config { return config.DefaultConfig }, logger, prometheus.NewRegistry())
}

// Each request counts as otlpCost decoded bytes, so few are decoded at the same time. A handler
// that did not return its share would block at the fifth.
func TestOTLP_SamplesAreStoredRequestByRequest(t *testing.T) {
	to := &stub2{}
	h := otlpHandler(Options{}, to, slog.New(slog.DiscardHandler))
	for i := range 40 {
		if w := postOTLP(h, otlpBody); w.Code != http.StatusOK {
			t.Fatalf("request %d: %d %s", i, w.Code, w.Body)
		}
	}
	if got := strings.Join(to.events[:2], ", "); got != "apples=3, commit" || len(to.events) != 80 {
		t.Errorf("%d events, first %s", len(to.events), got)
	}
	if w := postOTLP(h, "{"); w.Code != http.StatusBadRequest {
		t.Errorf("half a body: %d %s", w.Code, w.Body)
	}
}

func TestOTLP_FailureOfTheStorageIsA503(t *testing.T) {
	var log bytes.Buffer
	h := otlpHandler(Options{}, &stub2{appendErr: errors.New("write /data/wal/00000001: broken")}, slog.New(slog.NewTextHandler(&log, nil)))
	w := postOTLP(h, otlpBody)
	if w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") != "5" || strings.Contains(w.Body.String(), "/data") || !strings.Contains(log.String(), "/data/wal") {
		t.Errorf("%d %v %q; log: %s", w.Code, w.Header(), w.Body, log.String())
	}
}

func TestOTLP_FailedCommitIsA503(t *testing.T) {
	var log bytes.Buffer
	to := &stub2{commitErr: errors.New("write /data/wal/00000001: broken")}
	h := otlpHandler(Options{}, to, slog.New(slog.NewTextHandler(&log, nil)))
	w := postOTLP(h, otlpBody)
	if w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") != "5" || strings.Contains(w.Body.String(), "/data") || !strings.Contains(log.String(), "/data/wal") {
		t.Errorf("%d %v %q, %q; log: %s", w.Code, w.Header(), w.Body, to.events, log.String())
	}
	to.commitErr = &os.PathError{Op: "write", Path: "/data/wal/00000001", Err: syscall.ENOSPC}
	if w := postOTLP(h, otlpBody); w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), "no space left") {
		t.Errorf("full disk: %d %q", w.Code, w.Body)
	}
	to.commitErr = nil
	if w := postOTLP(h, otlpBody); w.Code != http.StatusOK {
		t.Errorf("after it: %d %q", w.Code, w.Body)
	}
}

// The log of Prometheus' receiver has a few lines of a message, however often it is repeated.
func TestOTLP_RepeatedMessagesAreNotAllLogged(t *testing.T) {
	for name, send := range map[string]func(*slog.Logger){
		"OTLP": func(logger *slog.Logger) {
			h := otlpHandler(Options{}, &stub2{appendErr: storage.ErrOutOfBounds}, logger)
			for range 50 {
				postOTLP(h, "{")
			}
		},
		"remote write": func(logger *slog.Logger) {
			h := NewHandler(Options{}, &stub{failAt: map[string]error{"a": storage.ErrOutOfOrderSample}}, logger, prometheus.NewRegistry())
			for range 50 {
				post(context.Background(), h, v1Type, bytes.NewReader(one(t, "a")))
			}
		},
	} {
		var log bytes.Buffer
		send(slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})))
		if n := strings.Count(log.String(), "\n"); n == 0 || n > 20 {
			t.Errorf("%s: %d lines\n%s", name, n, log.String())
		}
	}
}

func TestHandler_FullDiskIsNamedInTheResponse(t *testing.T) {
	full := fmt.Errorf("write /data/wal/00000001: %w", syscall.ENOSPC)
	w := post(context.Background(), handlerOf(Options{}, &stub{commitErr: full}), v1Type, bytes.NewReader(one(t, "a")))
	if w.Code != http.StatusServiceUnavailable || w.Body.String() != "the storage did not store all samples: no space left on device\n" || w.Header().Get("Retry-After") != "5" {
		t.Errorf("%d %v %q", w.Code, w.Header(), w.Body)
	}
	w = post(context.Background(), handlerOf(Options{}, &stub{commitErr: errors.New("write /data: x")}), v1Type, bytes.NewReader(one(t, "a")))
	if w.Body.String() != "the storage failed and did not store all samples; the server's log has the error\n" {
		t.Errorf("%q", w.Body)
	}
}

// The receiver itself responds to what it does not decode.
func TestHandler_UnknownEncodingsAndTypesAreTheReceivers(t *testing.T) {
	send := func(encoding, contentType string, body []byte) *httptest.ResponseRecorder {
		r := httptest.NewRequest(http.MethodPost, "/", bytes.NewReader(body))
		r.Header.Set("Content-Type", contentType)
		r.Header.Set("Content-Encoding", encoding)
		w := httptest.NewRecorder()
		handlerOf(Options{DecodedMax: 1}, &stub{}).ServeHTTP(w, r)
		return w
	}
	if w := send("gzip", v1Type, one(t, "a")); w.Code != http.StatusUnsupportedMediaType {
		t.Errorf("gzip: %d %s", w.Code, w.Body)
	}
	if w := send("snappy", "text/plain", one(t, "a")); w.Code != http.StatusUnsupportedMediaType {
		t.Errorf("text: %d %s", w.Code, w.Body)
	}
	if w := send("snappy", v1Type, []byte{5, 0xFF, 0xFF}); w.Code != http.StatusBadRequest {
		t.Errorf("no snappy: %d %s", w.Code, w.Body)
	}
	for _, encoding := range []string{"", "snappy"} {
		if w := send(encoding, v1Type, one(t, "a")); w.Code != http.StatusRequestEntityTooLarge || !strings.Contains(w.Body.String(), "more than 1 bytes, 1 series into it") {
			t.Errorf("encoding %q: %d %s", encoding, w.Code, w.Body)
		}
	}
	if w := send("snappy", v1Type, snappy.Encode(nil, nil)); w.Code/100 != 2 {
		t.Errorf("nothing: %d %s", w.Code, w.Body)
	}
}

// A body that decompresses to the limit of the receiver is decoded, so its decoded size is checked.
func TestHandler_LargestBodyIsEstimated(t *testing.T) {
	of := func(size int) []byte {
		m := &prompb.WriteRequest{Metadata: []prompb.MetricMetadata{{Help: strings.Repeat("a", size-40)}}}
		m.Metadata[0].Help += strings.Repeat("a", size-m.Size())
		if m.Size() != size {
			t.Fatalf("%d bytes, want %d", m.Size(), size)
		}
		return encoded(t, m)
	}
	for size, want := range map[int]bool{bodyMaxBytes: true, bodyMaxBytes + 1: false} {
		w := post(context.Background(), handlerOf(Options{DecodedMax: 1}, &stub{}), v1Type, bytes.NewReader(of(size)))
		if estimated := w.Code == http.StatusRequestEntityTooLarge && strings.Contains(w.Body.String(), "decodes to more than 1 bytes"); estimated != want || w.Code/100 == 2 {
			t.Errorf("%d bytes: %d %s", size, w.Code, w.Body)
		}
	}
}

// Prometheus' label sets panic at such a label, after samples before it were appended.
func TestHandler_LabelOfSixteenMegabytesIsABadRequest(t *testing.T) {
	long := strings.Repeat("a", 1<<24)
	for contentType, body := range map[string][]byte{v1Type: one(t, "a", long), v2Type: two(t, "a", long)} {
		to := &stub{}
		w := post(context.Background(), handlerOf(Options{}, to), contentType, bytes.NewReader(body))
		if w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), "16777216 bytes") || to.String() != "" {
			t.Errorf("%s: %d %s; storage: %.100s", contentType, w.Code, w.Body, to)
		}
	}
}

func TestOTLP_LabelOfSixteenMegabytesIsABadRequest(t *testing.T) {
	to := &stub2{}
	h := otlpHandler(Options{}, to, slog.New(slog.DiscardHandler))
	attribute := `"attributes":[{"key":"a","value":{"stringValue":"` + strings.Repeat("a", 1<<24+1) + `"}}],`
	for range 5 { // slots and memory are released
		w := postOTLP(h, strings.Replace(otlpBody, `"timeUnixNano"`, attribute+`"timeUnixNano"`, 1))
		if w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), "16 MiB") || slices.Contains(to.events, "commit") {
			t.Fatalf("%d %.200s; storage: %v", w.Code, w.Body, to.events)
		}
	}
	if w := postOTLP(h, otlpBody); w.Code != http.StatusOK {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// An appender of the head that is neither committed nor rolled back blocks the compaction of the head for ever.
func TestOTLP_PanicRollsTheAppenderBack(t *testing.T) {
	to := &stub2{}
	h := otlpHandler(Options{}, to, slog.New(slog.DiscardHandler))
	attribute := `"attributes":[{"key":"a","value":{"stringValue":"` + strings.Repeat("a", 1<<24+1) + `"}}],`
	w := postOTLP(h, strings.Replace(otlpBody, `"timeUnixNano"`, attribute+`"timeUnixNano"`, 1))
	if w.Code != http.StatusBadRequest || !slices.Equal(to.events, []string{"rollback"}) {
		t.Fatalf("%d %.200s; storage: %v", w.Code, w.Body, to.events)
	}
	if w := postOTLP(h, otlpBody); w.Code != http.StatusOK || !slices.Equal(to.events, []string{"rollback", "apples=3", "commit"}) {
		t.Errorf("%d %s; storage: %v", w.Code, w.Body, to.events)
	}
}

// A panic for another reason is not a bad request.
func TestOTLP_OtherPanicsAreNotHidden(t *testing.T) {
	h, ok := otlpHandler(Options{}, &stub2{}, slog.New(slog.DiscardHandler)).(*handler)
	if !ok {
		t.Fatal("another handler")
	}
	h.receiver = http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("another reason") })
	defer func() {
		if p := recover(); p != "another reason" {
			t.Errorf("%v", p)
		}
	}()
	postOTLP(h, otlpBody)
}

func otlpHandlerOf(t *testing.T, to storage.AppendableV2, logger *slog.Logger) *handler {
	t.Helper()
	h, ok := otlpHandler(Options{}, to, logger).(*handler)
	if !ok {
		t.Fatal("another handler")
	}
	return h
}

// An appender that has ended is not rolled back, and the error of a rollback is logged.
func TestOTLP_PanicRollsBackOpenAppendersOnly(t *testing.T) {
	const reason = "label is too long to encode as label"
	for name, tt := range map[string]struct {
		use    func(storage.AppenderV2) error
		events []string
	}{
		"open":        {func(storage.AppenderV2) error { return nil }, []string{"rollback"}},
		"committed":   {func(a storage.AppenderV2) error { return a.Commit() }, []string{"commit"}},
		"rolled back": {func(a storage.AppenderV2) error { return a.Rollback() }, []string{"rollback"}},
	} {
		for _, failure := range []error{nil, errors.New("broken rollback")} {
			var log bytes.Buffer
			to := &stub2{rollbackErr: failure}
			h := otlpHandlerOf(t, to, slog.New(slog.NewTextHandler(&log, nil)))
			h.receiver = http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				if err := tt.use(openAppendable{to}.AppenderV2(r.Context())); name != "open" && !errors.Is(err, map[bool]error{true: failure}[name == "rolled back"]) {
					t.Errorf("%s: %v", name, err)
				}
				panic(reason)
			})
			w := postOTLP(h, otlpBody)
			if w.Code != http.StatusBadRequest || !slices.Equal(to.events, tt.events) {
				t.Errorf("%s: %d %s; storage: %v", name, w.Code, w.Body, to.events)
			}
			if logged := strings.Contains(log.String(), "broken rollback"); logged != (failure != nil && name == "open") || !logged && log.Len() > 0 {
				t.Errorf("%s, %v: log %q", name, failure, log.String())
			}
		}
	}
}

// Without a request there is nothing to record, but the appender works.
func TestOpenAppendable_OutsideOfARequest(t *testing.T) {
	failed := errors.New("failed")
	to := &stub2{commitErr: failed, rollbackErr: failed}
	if err := (openAppendable{to}).AppenderV2(t.Context()).Commit(); !errors.Is(err, failed) {
		t.Error(err)
	}
	if err := (openAppendable{to}).AppenderV2(t.Context()).Rollback(); !errors.Is(err, failed) {
		t.Error(err)
	}
	if !slices.Equal(to.events, []string{"commit", "rollback"}) {
		t.Error(to.events)
	}
}

func TestOTLP_PanicWithAnErrorIsNotHidden(t *testing.T) {
	h := otlpHandlerOf(t, &stub2{}, slog.New(slog.DiscardHandler))
	reason := errors.New("too long to encode as label")
	h.receiver = http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(reason) })
	defer func() {
		if p := recover(); p != any(reason) {
			t.Errorf("%v", p)
		}
	}()
	postOTLP(h, otlpBody)
}
