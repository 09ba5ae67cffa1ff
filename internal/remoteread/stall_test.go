package remoteread

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/gogo/protobuf/proto"
	"github.com/golang/snappy"
	"github.com/prometheus/prometheus/prompb"

	"github.com/ferula-io/ferula/internal/series/labelenc"
)

// stallingHandler sends the beginning of a stream, or nothing, and then blocks until
// its client disconnects. From the given attempt on it sends all.
func stallingHandler(stream []byte, sent int, from int) http.Handler {
	attempts := 0
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // so that the handler notices a disconnected client
		if attempts++; attempts >= from {
			streamOf(stream).ServeHTTP(w, r)
			return
		}
		if sent > 0 {
			streamOf(stream[:sent]).ServeHTTP(w, r)
			_ = http.NewResponseController(w).Flush()
		}
		<-r.Context().Done()
	})
}

func TestClient_StalledServerIsAnError(t *testing.T) {
	stream := frames(100)
	for _, tt := range []struct {
		name        string
		sent, from  int
		series      int
		want        error
		unavailable bool
	}{
		{"no response", 0, 10, 0, ErrStalled, true},
		{"no response at first", 0, 2, 100, nil, false},
		{"a part of the body", len(stream) / 2, 10, 0, ErrStalled, false},
	} {
		client := NewClient(ClientOptions{URL: serveHandler(t, stallingHandler(stream, tt.sent, tt.from)), StallTimeout: time.Second, Tries: 2, RetryAfter: time.Millisecond})
		set, end := raw(t, client, 0, 10, everything)
		n := 0
		for ; set.Next(); n++ {
		}
		if !errors.Is(set.Err(), tt.want) || tt.want == nil && set.Err() != nil || errors.Is(set.Err(), ErrUnavailable) != tt.unavailable || n != tt.series {
			t.Errorf("%s: %d series, %v", tt.name, n, set.Err())
		}
		if set.Err() != nil && (Permanent(set.Err()) || strings.Count(set.Err().Error(), ErrStalled.Error()) != 1) {
			t.Errorf("%s: %v is permanent or repeats itself", tt.name, set.Err())
		}
		end()
	}
}

func TestClient_SlowCallerIsNoStall(t *testing.T) {
	stream := frames(9000)
	client := NewClient(ClientOptions{URL: serveHandler(t, streamOf(stream)), StallTimeout: time.Second, ReadAheadBytes: 4 << 10, HoldBytesMax: 1 << 10})
	set, end := raw(t, client, 0, 10, everything)
	defer end()
	n := 0
	for ; set.Next(); n++ {
		if n == 100 || n == 5000 {
			time.Sleep(1200 * time.Millisecond) // longer than StallTimeout
		}
	}
	if n != 9000 || set.Err() != nil {
		t.Errorf("%d series, %v", n, set.Err())
	}
}

func TestFileSorter_SortsSamplesOfAnyOrder(t *testing.T) {
	dir := t.TempDir()
	for _, tt := range []struct{ series, hold int }{{0, 1}, {1, 1}, {5000, 1}, {5000, 20_000}, {5000, 64 << 10}, {5000, 4 << 20}} {
		order := rand.New(rand.NewPCG(5, 6)).Perm(tt.series)
		body := sampleResponse(t, order)
		handler := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/x-protobuf")
			_, _ = w.Write(body)
		})
		client := NewClient(ClientOptions{URL: serveHandler(t, handler), HoldBytesMax: tt.hold, SortDir: dir})
		set, end := raw(t, client, 0, 2000, everything)
		n := 0
		for ; set.Next(); n++ {
			if want := labelenc.AppendLabel(nil, "a", fmt.Sprintf("%06d", n)); !bytes.Equal(set.Labels(), want) {
				t.Fatalf("%+v: series %d is %q", tt, n, set.Labels())
			}
			if chunks := set.Chunks(); len(chunks) != 1 || chunks[0].MinMS != 1000 {
				t.Fatalf("%+v: series %d has %v", tt, n, chunks)
			}
			if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
				t.Fatalf("%v has a name, %v", left, err)
			}
		}
		if n != tt.series || set.Err() != nil {
			t.Errorf("%+v: %d series, %v", tt, n, set.Err())
		}
		end()
	}
}

func TestFileSorter_KeepsAllSamples(t *testing.T) {
	result := &prompb.QueryResult{}
	for _, i := range rand.New(rand.NewPCG(7, 8)).Perm(300) {
		one := &prompb.TimeSeries{Labels: []prompb.Label{{Name: "a", Value: fmt.Sprint(i)}}}
		for at := range int64(1 + i*7%500) { // so that some series have several chunks
			one.Samples = append(one.Samples, prompb.Sample{Timestamp: at * 15_000, Value: float64(int64(i) * at)})
		}
		result.Timeseries = append(result.Timeseries, one)
	}
	plain, err := proto.Marshal(&prompb.ReadResponse{Results: []*prompb.QueryResult{result}})
	if err != nil {
		t.Fatal(err)
	}
	address := serveHandler(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/x-protobuf")
		_, _ = w.Write(snappy.Encode(nil, plain))
	}))
	want := sumOf(t, NewClient(ClientOptions{URL: address}), 0, 1<<40)
	got := sumOf(t, NewClient(ClientOptions{URL: address, HoldBytesMax: 10_000, SortDir: t.TempDir()}), 0, 1<<40)
	if got != want || want.samples < 50_000 {
		t.Errorf("%+v, want %+v", got, want)
	}
	// A missing directory is an error, and so is a duplicate series.
	q, err := NewClient(ClientOptions{URL: address, HoldBytesMax: 10_000, SortDir: "/nowhere"}).RawQuerier(context.Background(), 0, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	if set := q.Select(context.Background(), everything); set.Next() || !errors.Is(set.Err(), os.ErrNotExist) {
		t.Errorf("no directory: %v", set.Err())
	}
}
