package remoteread

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/klauspost/compress/snappy"
	"github.com/prometheus/prometheus/prompb"

	"github.com/ferula-io/ferula/bench/area"
	"github.com/ferula-io/ferula/bench/proc"
)

func TestSend_RequestHasResponseTypeAndRange(t *testing.T) {
	var got prompb.ReadRequest
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		plain, err := snappy.Decode(nil, body)
		if err == nil {
			err = got.Unmarshal(plain)
		}
		if err != nil || r.URL.Path != "/api/v1/read" || r.Method != http.MethodPost {
			t.Error(err, r.URL.Path, r.Method)
		}
		_, _ = w.Write(make([]byte, 300_000))
	}))
	defer s.Close()
	server := &proc.Server{Client: proc.NewClient(s.URL)}
	to := hashing()
	a, err := samples8h().send(context.Background(), server, to)
	if err != nil || a.Bytes != 300_000 || to.bytes != 300_000 || a.FirstByte <= 0 || a.Elapsed < a.FirstByte {
		t.Errorf("%+v, %v", a, err)
	}
	if q := got.Queries[0]; got.AcceptedResponseTypes[0] != prompb.ReadRequest_SAMPLES || q.StartTimestampMs != floats().StartMS ||
		q.EndTimestampMs != floats().EndMS()-1 || len(q.Matchers) != 1 {
		t.Errorf("%+v", got)
	}
	begun := time.Now()
	if _, err := chunks8h().send(context.Background(), server, &sink{rate: 10_000_000}); err != nil || time.Since(begun) < 25*time.Millisecond {
		t.Errorf("a slow reader took %v, %v", time.Since(begun), err)
	}
	s.Config.Handler = http.NotFoundHandler()
	if _, err := samples8h().send(context.Background(), server, &sink{}); !errors.Is(err, proc.ErrStatus) {
		t.Error(err)
	}
}

func TestReadAll_SlowReadersMayWaitForTheFastOnes(t *testing.T) {
	body, slot := make([]byte, 32<<10), make(chan struct{}, 1)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		slot <- struct{}{}
		defer func() { <-slot }()
		_, _ = w.Write(body)
	}))
	defer s.Close()
	b := &bench{Bench: area.New(Area, area.Env{Log: io.Discard})}
	b.Add(1, ferulaSide, "bytes: "+chunks8h().what, area.Bytes, float64(len(body)))
	side := &area.Side{Name: ferulaSide, Server: &proc.Server{Client: proc.NewClient(s.URL)}}
	for range 8 { // who waits is chance
		if err := b.readAll(t.Context(), side, chunks8h()); err != nil {
			t.Fatal(err)
		}
	}
}

func TestSpecs_BlocksSpanAtMostEightHours(t *testing.T) {
	for _, spec := range []int64{floats().EndMS(), decimals().EndMS(), few().EndMS(), many().EndMS()} {
		if spec > floats().StartMS+8*hourMS {
			t.Errorf("samples up to %d", spec)
		}
	}
}
