package remotewrite

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gogo/protobuf/proto"
	"github.com/klauspost/compress/snappy"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/model/exemplar"
	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/metadata"
	"github.com/prometheus/prometheus/prompb"
	writev2 "github.com/prometheus/prometheus/prompb/io/prometheus/write/v2"
	"github.com/prometheus/prometheus/storage"
	"go.uber.org/goleak"

	"github.com/ferula-io/ferula/internal/httpbody"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	v1Type = "application/x-protobuf"
	v2Type = "application/x-protobuf;proto=io.prometheus.write.v2.Request"
)

// stub is a storage that records its calls and fails as configured.
type stub struct {
	mu        sync.Mutex
	events    []string
	failAt    map[string]error // by metric name
	commitErr error
	entered   chan struct{} // receives a value per Append; may be nil
	proceed   chan struct{} // Append then receives from it
}

func (s *stub) note(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, fmt.Sprintf(format, args...))
}

func (s *stub) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.events, ", ")
}

func (s *stub) Appender(context.Context) storage.Appender { return &appender{stub: s} }

type appender struct {
	storage.Appender // unexpected calls panic
	*stub
}

func (*appender) SetOptions(*storage.AppendOptions) {}

func (a *appender) Append(_ storage.SeriesRef, l labels.Labels, _ int64, v float64) (storage.SeriesRef, error) {
	if a.entered != nil {
		a.entered <- struct{}{}
		<-a.proceed
	}
	a.note("%s=%g", l.Get("__name__"), v)
	return 1, a.failAt[l.Get("__name__")]
}

func (a *appender) AppendHistogram(_ storage.SeriesRef, l labels.Labels, _ int64, h *histogram.Histogram, _ *histogram.FloatHistogram) (storage.SeriesRef, error) {
	a.note("%s{%d}", l.Get("__name__"), h.Count)
	return 1, a.failAt[l.Get("__name__")]
}

func (a *appender) AppendExemplar(_ storage.SeriesRef, l labels.Labels, _ exemplar.Exemplar) (storage.SeriesRef, error) {
	a.note("exemplar of %s", l.Get("__name__"))
	return 1, nil
}

func (a *appender) UpdateMetadata(_ storage.SeriesRef, l labels.Labels, m metadata.Metadata) (storage.SeriesRef, error) {
	a.note("metadata of %s: %s", l.Get("__name__"), m.Help)
	return 1, nil
}

func (a *appender) Commit() error   { a.note("commit"); return a.commitErr }
func (a *appender) Rollback() error { a.note("rollback"); return nil }

func handlerOf(opts Options, to storage.Appendable) http.Handler {
	return NewHandler(opts, to, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
}

func encoded(t *testing.T, m proto.Message) []byte {
	t.Helper()
	raw, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return snappy.Encode(nil, raw)
}

func one(t *testing.T, names ...string) []byte {
	m := &prompb.WriteRequest{}
	for i, name := range names {
		m.Timeseries = append(m.Timeseries, prompb.TimeSeries{
			Labels: []prompb.Label{{Name: "__name__", Value: name}}, Samples: []prompb.Sample{{Value: float64(i + 1), Timestamp: 1}},
		})
	}
	return encoded(t, m)
}

func two(t *testing.T, names ...string) []byte {
	m := &writev2.Request{Symbols: []string{"", "__name__", "help"}}
	for i, name := range names {
		m.Symbols = append(m.Symbols, name)
		m.Timeseries = append(m.Timeseries, writev2.TimeSeries{
			LabelsRefs: []uint32{1, uint32(i + 3)}, Samples: []writev2.Sample{{Value: float64(i + 1), Timestamp: 1}}, Metadata: writev2.Metadata{HelpRef: 2},
		})
	}
	return encoded(t, m)
}

func post(ctx context.Context, h http.Handler, contentType string, body io.Reader) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, "/", body).WithContext(ctx)
	r.Header.Set("Content-Type", contentType)
	r.Header.Set("Content-Encoding", "snappy")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

const written = "X-Prometheus-Remote-Write-Samples-Written"

func TestHandler_ResponseFollowsTheStorage(t *testing.T) {
	full := errors.New("disk full")
	for name, c := range map[string]struct {
		two       bool
		fail      map[string]error
		commitErr error
		status    int
		written   string
		events    string
		text      string
	}{
		"1.0":                        {false, nil, nil, 204, "", "a=1, b=2, commit", ""},
		"1.0, out of order":          {false, map[string]error{"a": storage.ErrOutOfOrderSample}, nil, 400, "", "a=1, rollback", "out of order"},
		"1.0, duplicate":             {false, map[string]error{"b": storage.ErrDuplicateSampleForTimestamp}, nil, 400, "", "a=1, b=2, rollback", "duplicate"},
		"1.0, the storage fails":     {false, map[string]error{"b": full}, nil, 503, "", "a=1, b=2, rollback", "the storage failed"},
		"1.0, the commit fails":      {false, nil, full, 503, "", "a=1, b=2, commit", "the storage failed"},
		"2.0":                        {true, nil, nil, 204, "2", "a=1, b=2, commit", ""},
		"2.0, one is out of order":   {true, map[string]error{"a": storage.ErrOutOfOrderSample}, nil, 400, "1", "a=1, b=2, commit", "out of order"},
		"2.0, all are out of bounds": {true, map[string]error{"a": storage.ErrOutOfBounds, "b": storage.ErrOutOfBounds}, nil, 400, "0", "a=1, b=2, commit", "out of bounds"},
		"2.0, the storage fails":     {true, map[string]error{"b": full}, nil, 503, "0", "a=1, b=2, rollback", "the storage failed"},
		"2.0, the commit fails":      {true, nil, full, 503, "0", "a=1, b=2, commit", "the storage failed"},
		"2.0, a part and the commit": {true, map[string]error{"a": storage.ErrOutOfOrderSample}, full, 503, "0", "a=1, b=2, commit", "the storage failed"},
	} {
		to := &stub{failAt: c.fail, commitErr: c.commitErr}
		body, contentType := one(t, "a", "b"), v1Type
		if c.two {
			body, contentType = two(t, "a", "b"), v2Type
		}
		w := post(context.Background(), handlerOf(Options{}, to), contentType, bytes.NewReader(body))
		if w.Code != c.status || to.String() != c.events || !strings.Contains(w.Body.String(), c.text) {
			t.Errorf("%s: %d %q, storage: %s", name, w.Code, w.Body, to)
		}
		if got := w.Header().Get(written); got != c.written {
			t.Errorf("%s: %s is %q, want %q", name, written, got, c.written)
		}
	}
}

func TestHandler_MetadataInWALIsOptional(t *testing.T) {
	for wanted, events := range map[bool]string{false: "a=1, commit", true: "a=1, metadata of a: help, commit"} {
		to := &stub{}
		post(context.Background(), handlerOf(Options{MetadataInWAL: wanted}, to), v2Type, bytes.NewReader(two(t, "a")))
		if to.String() != events {
			t.Errorf("%v: %s", wanted, to)
		}
	}
}

func TestHandler_BodyAtTheLimitIsAccepted(t *testing.T) {
	body := one(t, "a", "b")
	for _, announced := range []bool{true, false} {
		send := func(limit int) *httptest.ResponseRecorder {
			var reader io.Reader = bytes.NewReader(body)
			if !announced {
				reader = io.MultiReader(reader)
			}
			return post(context.Background(), handlerOf(Options{BodyMaxBytes: int64(limit)}, &stub{}), v1Type, reader)
		}
		if w := send(len(body)); w.Code != 204 {
			t.Errorf("announced %v, at the limit: %d %s", announced, w.Code, w.Body)
		}
		if w := send(len(body) - 1); w.Code != 413 || !strings.Contains(w.Body.String(), fmt.Sprint(len(body)-1)) {
			t.Errorf("announced %v, beyond the limit: %d %s", announced, w.Code, w.Body)
		}
	}
	if o := (Options{BodyMaxBytes: 1 << 40}).withDefaults(); o.BodyMaxBytes != bodyMaxBytes {
		t.Errorf("a limit over the receiver's: %d", o.BodyMaxBytes)
	}
}

func TestHandler_DecodedSizeIsCheckedBeforeDecoding(t *testing.T) {
	for name, body := range map[string][]byte{
		v1Type: snappy.Encode(nil, bytes.Repeat([]byte{0x0A, 0}, 1000)), v2Type: snappy.Encode(nil, bytes.Repeat([]byte{0x2A, 0}, 1000)),
		"": snappy.Encode(nil, bytes.Repeat([]byte{0x0A, 0}, 1000)),
	} {
		to := &stub{}
		if w := post(context.Background(), handlerOf(Options{DecodedMax: 100_000}, to), name, bytes.NewReader(body)); w.Code != 413 || !strings.Contains(w.Body.String(), "100000 bytes") || w.Header().Get(written) != map[string]string{v2Type: "0"}[name] {
			t.Errorf("%s: %d %s", name, w.Code, w.Body)
		}
		if to.String() != "" {
			t.Errorf("%s: %s", name, to)
		}
		corrupt := post(context.Background(), handlerOf(Options{}, to), name, bytes.NewReader(snappy.Encode(nil, []byte("\x22\xff\xff"))))
		if want := map[string]string{v2Type: "0"}[name]; corrupt.Code != 400 || corrupt.Header().Get(written) != want {
			t.Errorf("%s: a corrupt one: %d %v", name, corrupt.Code, corrupt.Header())
		}
	}
	if w := post(context.Background(), handlerOf(Options{DecodedMax: 100_000}, &stub{}), v1Type, bytes.NewReader(one(t, "a", "b"))); w.Code != 204 {
		t.Errorf("a small one: %d %s", w.Code, w.Body)
	}
	if w := post(context.Background(), handlerOf(Options{}, &stub{}), v1Type, bytes.NewReader(snappy.Encode(nil, []byte{0x0A, 0x80}))); w.Code != 400 {
		t.Errorf("a corrupt one: %d %s", w.Code, w.Body)
	}
}

// behind runs f while a request is blocked in the storage.
func behind(t *testing.T, opts Options, to *stub, f func(h http.Handler)) {
	t.Helper()
	to.entered, to.proceed = make(chan struct{}), make(chan struct{})
	h := handlerOf(opts, to)
	first := make(chan int)
	go func() { first <- post(context.Background(), h, v1Type, bytes.NewReader(one(t, "first"))).Code }()
	<-to.entered
	f(h)
	close(to.proceed)
	if status := <-first; status != 204 {
		t.Errorf("the first request: %d", status)
	}
}

func TestHandler_RequestWithoutSlotWaitsABoundedTime(t *testing.T) {
	to := &stub{}
	behind(t, Options{InFlightMax: 1, Bodies: httpbody.NewReader(httpbody.Options{Wait: 10 * time.Millisecond})}, to, func(h http.Handler) {
		w := post(context.Background(), h, v1Type, bytes.NewReader(one(t, "second")))
		if w.Code != 503 || w.Header().Get("Retry-After") == "" || !strings.Contains(w.Body.String(), "1 slots") {
			t.Errorf("%d %v %s", w.Code, w.Header(), w.Body)
		}
	})
	if to.String() != "first=1, commit" {
		t.Error(to)
	}
}

func TestHandler_WaitingRequestGetsTheFreeSlot(t *testing.T) {
	to := &stub{}
	second := make(chan int)
	behind(t, Options{InFlightMax: 1, Bodies: httpbody.NewReader(httpbody.Options{Wait: time.Hour})}, to, func(h http.Handler) {
		go func() { second <- post(context.Background(), h, v1Type, bytes.NewReader(one(t, "second"))).Code }()
		go func() { <-to.entered }()
	})
	if status := <-second; status != 204 || to.String() != "first=1, commit, second=1, commit" {
		t.Error(status, to)
	}
}

func TestHandler_DisconnectedWaitingClientWritesNothing(t *testing.T) {
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	cost := int64(176 + 64 + 56) // of a series with one label and one sample
	for name, opts := range map[string]Options{
		"for a slot":       {InFlightMax: 1, Bodies: httpbody.NewReader(httpbody.Options{Wait: time.Hour})},
		"for decoded data": {InFlightMax: 2, DecodedMax: cost, DecodingMax: 2*cost - 1},
	} {
		to := &stub{}
		behind(t, opts, to, func(h http.Handler) {
			if w := post(gone, h, v1Type, bytes.NewReader(one(t, "second"))); w.Body.Len() != 0 {
				t.Errorf("%s: %s", name, w.Body)
			}
		})
		if to.String() != "first=1, commit" {
			t.Errorf("%s: %s", name, to)
		}
	}
}

func TestHandler_ReleasesMemoryAndSlotsAfterEveryOutcome(t *testing.T) {
	h := handlerOf(Options{InFlightMax: 1, DecodedMax: 2000, DecodingMax: 2000, BodyMaxBytes: 1000,
		Bodies: httpbody.NewReader(httpbody.Options{BytesMax: 1001, Wait: time.Millisecond})}, &stub{failAt: map[string]error{"bad": errors.New("x")}})
	for range 50 {
		for want, body := range map[int][]byte{
			204: one(t, "good"), 503: one(t, "bad"), 413: snappy.Encode(nil, bytes.Repeat([]byte{0x0A, 0}, 1000)), 400: {0xFF},
		} {
			if w := post(context.Background(), h, v1Type, bytes.NewReader(body)); w.Code != want {
				t.Fatalf("%d %s, want %d", w.Code, w.Body, want)
			}
		}
	}
}

func TestOptions_OnlyTheListedMessagesAreAccepted(t *testing.T) {
	for _, c := range []struct {
		messages []string
		v1, v2   int
	}{
		{nil, 204, 204},
		{[]string{"prometheus.WriteRequest"}, 204, 415},
		{[]string{"io.prometheus.write.v2.Request"}, 415, 204},
		{[]string{"io.prometheus.write.v2.Request", "prometheus.WriteRequest"}, 204, 204},
	} {
		opts := Options{Messages: c.messages}
		if err := opts.Validate(); err != nil {
			t.Error(err)
		}
		v1 := post(context.Background(), handlerOf(opts, &stub{}), v1Type, bytes.NewReader(one(t, "a")))
		v2 := post(context.Background(), handlerOf(opts, &stub{}), v2Type, bytes.NewReader(two(t, "a")))
		if v1.Code != c.v1 || v2.Code != c.v2 {
			t.Errorf("%q: %d and %d, want %d and %d", c.messages, v1.Code, v2.Code, c.v1, c.v2)
		}
	}
	if err := (Options{Messages: []string{"v3"}}).Validate(); err == nil || !strings.Contains(err.Error(), `"v3"`) {
		t.Error(err)
	}
}
