package e2e

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/util/annotations"

	role "github.com/ferula-io/ferula/internal/app"
	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/series/labelenc"
	"github.com/ferula-io/ferula/internal/thanos/fanout"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

// misbehavingStore is a StoreAPI whose Series calls next with the number of the series.
// next returns the series to send, errEnd to end the stream, or the error to fail with.
type misbehavingStore struct {
	rawStore
	next func(ctx context.Context, i int) (lset []byte, chunks []series.Chunk, err error)
}

var errEnd = errors.New("end")

func (o misbehavingStore) Series(ctx context.Context, _ storeapi.SeriesRequest) storeapi.Stream {
	return &misbehavingStream{ctx: ctx, next: o.next}
}

type misbehavingStream struct {
	ctx    context.Context
	next   func(ctx context.Context, i int) ([]byte, []series.Chunk, error)
	i      int
	lset   []byte
	chunks []series.Chunk
	err    error
}

func (o *misbehavingStream) Next() bool {
	o.lset, o.chunks, o.err = o.next(o.ctx, o.i)
	o.i++
	return o.err == nil
}
func (o *misbehavingStream) Labels() []byte                  { return o.lset }
func (o *misbehavingStream) Chunks() []series.Chunk          { return o.chunks }
func (*misbehavingStream) Warnings() annotations.Annotations { return nil }
func (*misbehavingStream) BufferedBytes() int64              { return 0 }
func (*misbehavingStream) Close() error                      { return nil }
func (o *misbehavingStream) Err() error {
	if errors.Is(o.err, errEnd) {
		return nil
	}
	return o.err
}

// serveMisbehaving serves a store on loopback; stop closes its connections at once.
func serveMisbehaving(t *testing.T, o misbehavingStore) (address string, stop func()) {
	t.Helper()
	return serveStore(t, o)
}

func testLabels(i int) []byte {
	return labelenc.Append(nil, labels.FromStrings("__name__", "test_metric", "i", fmt.Sprintf("%09d", i)))
}

func testChunks(t testing.TB, ms int64) []series.Chunk {
	t.Helper()
	c := chunkenc.NewXORChunk()
	app, err := c.Appender()
	if err != nil {
		t.Fatal(err)
	}
	app.Append(0, ms, 1)
	return []series.Chunk{{MinMS: ms, MaxMS: ms, Encoding: chunkenc.EncXOR, Data: c.Bytes()}}
}

// Each store is queried together with a good one, over real connections. The result is
// complete, or a warning names the store, or the request fails. It never hangs.
func TestQuery_MisbehavingStoreCausesAWarningOrAnError(t *testing.T) {
	now := time.Now().UnixMilli()
	good := testChunks(t, now)
	ends := func(n int, lset func(i int) []byte, chunks []series.Chunk, err error) func(context.Context, int) ([]byte, []series.Chunk, error) {
		return func(_ context.Context, i int) ([]byte, []series.Chunk, error) {
			if i == n {
				return nil, nil, err
			}
			return lset(i), chunks, nil
		}
	}
	for _, c := range []struct {
		name  string
		next  func(context.Context, int) ([]byte, []series.Chunk, error)
		count string // the expected result, "" if the response must be partial
		fails bool   // the request fails also with partial_response=true
	}{
		{"is good", ends(3, testLabels, good, errEnd), "4", false},
		{"sends series out of order", ends(3, func(i int) []byte { return testLabels(9 - i) }, good, errEnd), "", false},
		{"fails", ends(2, testLabels, good, errors.New("disk failure")), "", false},
		{"stalls", func(ctx context.Context, i int) ([]byte, []series.Chunk, error) {
			if i == 2 {
				<-ctx.Done()
				return nil, nil, ctx.Err()
			}
			return testLabels(i), good, nil
		}, "", false},
		{"sends an empty label name", ends(1, func(int) []byte { return labelenc.AppendLabel(nil, "", "x") }, good, errEnd), "", false},
		{"sends an empty chunk", ends(1, testLabels, []series.Chunk{{MinMS: now, MaxMS: now, Encoding: chunkenc.EncXOR}}, errEnd), "", true},
		{"sends a truncated chunk", ends(1, testLabels, []series.Chunk{{MinMS: now, MaxMS: now, Encoding: chunkenc.EncXOR, Data: good[0].Data[:5]}}, errEnd), "", true},
		{"sends samples outside of the chunk's range", ends(1, testLabels, []series.Chunk{{MinMS: now - 10, MaxMS: now - 1, Encoding: chunkenc.EncXOR, Data: good[0].Data}}, errEnd), "", true},
		{"sends an invalid histogram", ends(1, testLabels, []series.Chunk{{MinMS: now, MaxMS: now, Encoding: chunkenc.EncHistogram, Data: []byte{0, 9, 0, 1, 2, 3}}}, errEnd), "", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			bad, _ := serveMisbehaving(t, misbehavingStore{next: c.next})
			fine, _ := serveMisbehaving(t, misbehavingStore{next: ends(1, func(int) []byte { return testLabels(500) }, good, errEnd)})
			q := startQuery(t, []string{bad, fine}, func(o *role.QueryOptions) { o.Fanout.ResponseTimeout = time.Second })
			at := fmt.Sprintf("/api/v1/query?query=count(test_metric)&time=%d", now/1000+1)
			begun := time.Now()
			status, body := q.get(at)
			switch {
			case c.fails:
				if status == http.StatusOK {
					t.Errorf("%d %s", status, body)
				}
			case c.count != "":
				if status != http.StatusOK || !strings.Contains(body, `"`+c.count+`"`) || strings.Contains(body, "warnings") {
					t.Errorf("%d %s", status, body)
				}
			case status != http.StatusOK || !strings.Contains(body, bad) || strings.Contains(body, fine):
				t.Errorf("%d %s", status, body)
			}
			if c.count == "" {
				if status, body := q.get(at + "&partial_response=false"); status == http.StatusOK || !c.fails && !strings.Contains(body, bad) {
					t.Errorf("no partial response: %d %s", status, body)
				}
			}
			if took := time.Since(begun); took > 20*time.Second {
				t.Errorf("it took %s", took)
			}
		})
	}
}

func TestQuery_StoreThatDiesWhileStreamingIsNamed(t *testing.T) {
	now := time.Now().UnixMilli()
	good := testChunks(t, now)
	var stop func()
	var died sync.WaitGroup
	bad, stop := serveMisbehaving(t, misbehavingStore{next: func(ctx context.Context, i int) ([]byte, []series.Chunk, error) {
		if i == 5000 {
			died.Go(stop)
			<-ctx.Done()
			return nil, nil, ctx.Err()
		}
		return testLabels(i), good, nil
	}})
	q := startQuery(t, []string{bad}, nil)
	status, body := q.get(fmt.Sprintf("/api/v1/query?query=count(test_metric)&time=%d", now/1000+1))
	if status != http.StatusOK || !strings.Contains(body, bad) {
		t.Errorf("%d %.500s", status, body)
	}
	died.Wait()
}

// A stream without end, or with huge labels, must fail by the query's byte limit before
// it exhausts memory.
func TestQuery_FailsWithinBoundedMemoryOverTheByteLimit(t *testing.T) {
	big, good := strings.Repeat("x", 4<<20), testChunks(t, time.Now().UnixMilli())
	for name, next := range map[string]func(context.Context, int) ([]byte, []series.Chunk, error){
		"without end": func(_ context.Context, i int) ([]byte, []series.Chunk, error) {
			return testLabels(i), good, nil
		},
		"huge labels": func(_ context.Context, i int) ([]byte, []series.Chunk, error) {
			return labelenc.Append(nil, labels.FromStrings("__name__", "test_metric", "big", big, "i", fmt.Sprintf("%06d", i))), good, nil
		},
	} {
		address, _ := serveMisbehaving(t, misbehavingStore{next: next})
		q := startQuery(t, []string{address}, func(o *role.QueryOptions) { o.Fanout.BytesMax = 16 << 20 })
		stop, peak := make(chan struct{}), uint64(0)
		var watching sync.WaitGroup
		watching.Go(func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(10 * time.Millisecond):
					var m runtime.MemStats
					runtime.ReadMemStats(&m)
					peak = max(peak, m.HeapAlloc)
				}
			}
		})
		status, body := q.get("/api/v1/query?query=count(test_metric)")
		close(stop)
		watching.Wait()
		if status == http.StatusOK || !strings.Contains(body, "limit") {
			t.Errorf("%s: %d %.300s", name, status, body)
		}
		if peak > 512<<20 {
			t.Errorf("%s: %d MiB of heap", name, peak>>20)
		}
	}
}

func TestQuery_ClientDisconnectCancelsItsStoreStreams(t *testing.T) {
	var open atomic.Int64
	address, _ := serveMisbehaving(t, misbehavingStore{next: func(ctx context.Context, _ int) ([]byte, []series.Chunk, error) {
		open.Add(1)
		defer open.Add(-1)
		<-ctx.Done()
		return nil, nil, ctx.Err()
	}})
	q := startQuery(t, []string{address}, nil)
	for range 20 {
		ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, q.base+"/api/v1/query?query=test_metric", nil)
		if err != nil {
			t.Fatal(err)
		}
		if resp, err := http.DefaultClient.Do(req); err == nil {
			resp.Body.Close()
			t.Error("got a response although the store sends none")
		}
		cancel()
	}
	eventually(t, 60*time.Second, "the streams of queries whose clients disconnected to end", func() bool { return open.Load() == 0 })
}

// Of 200 stores 20 are down. Warnings name them, and the result has the other 180.
func TestQuery_TwoHundredStoresOfWhichSomeAreDown(t *testing.T) {
	now := time.Now().UnixMilli()
	good := testChunks(t, now)
	var stores []string
	for i := range 200 {
		if i%10 == 0 {
			stores = append(stores, fmt.Sprintf("127.0.0.1:%d", freePort(t)))
			continue
		}
		address, _ := serveMisbehaving(t, misbehavingStore{next: func(_ context.Context, n int) ([]byte, []series.Chunk, error) {
			if n == 1 {
				return nil, nil, errEnd
			}
			return testLabels(i), good, nil
		}})
		stores = append(stores, address)
	}
	q := startQuery(t, nil, func(o *role.QueryOptions) {
		o.Logger = slog.New(slog.DiscardHandler)
		for _, store := range stores {
			o.Endpoints.Static = append(o.Endpoints.Static, fanout.Address{Name: store})
		}
	})
	// The querier finds stores in the background. A store that it has not reached yet is
	// a warning, too.
	eventually(t, 60*time.Second, "180 series and a warning for each store that is down", func() bool {
		status, body := q.get(fmt.Sprintf("/api/v1/query?query=count(test_metric)&time=%d", now/1000+1))
		return status == http.StatusOK && strings.Contains(body, `"180"`) && strings.Count(body, "store 127.0.0.1:") >= 10
	})
}
