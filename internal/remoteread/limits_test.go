package remoteread

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/prompb"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/series/labelenc"
)

func TestServer_SamplesBeyondHeldSeriesMaxAreRejected(t *testing.T) {
	s := open(t, t.TempDir())
	fill(t, s, 20, startMS, startMS+hourMS, 30_000) // and 2 of histograms
	q := peerQuery(startMS, startMS+hourMS, everything)
	for _, tt := range []struct {
		form    prompb.ReadRequest_ResponseType
		max     int
		queries []*prompb.Query
		status  int
	}{
		{0, 22, []*prompb.Query{q}, 200}, {0, 21, []*prompb.Query{q}, 400}, {0, 44, []*prompb.Query{q, q}, 200}, {0, 43, []*prompb.Query{q, q}, 400},
		{1, 1, []*prompb.Query{q, q}, 200}, // a response of chunks is not measured
	} {
		status, _, text := post(t, serve(t, s, Options{HeldSeriesMax: tt.max}), encode(t, tt.form, tt.queries...))
		if status != tt.status || (status == 400 && !strings.Contains(string(text), "STREAMED_XOR_CHUNKS")) {
			t.Errorf("%s, at most %d, %d queries: %d %.200s", tt.form, tt.max, len(tt.queries), status, text)
		}
	}
}

// heavy is a storage of series whose chunk headers claim 2.36 GB of samples each.
type heavy struct {
	storage.ChunkQueryable
	series int
	opened atomic.Int64
}

func (h *heavy) RawQuerier(context.Context, int64, int64) (series.Querier, error) {
	h.opened.Add(1)
	return heavyQuerier{h}, nil
}

type heavyQuerier struct{ from *heavy }

func (q heavyQuerier) Select(context.Context, series.SelectOptions, ...*labels.Matcher) series.Set {
	return &heavySet{left: q.from.series}
}
func (heavyQuerier) Capabilities() series.Capabilities {
	return series.Capabilities{Immutable: true}
}
func (heavyQuerier) LabelNames(context.Context, series.SelectOptions, ...*labels.Matcher) ([]string, error) {
	return nil, nil
}
func (heavyQuerier) Close() error { return nil }

type heavySet struct{ left int }

func (s *heavySet) Next() bool { s.left--; return s.left >= 0 }
func (s *heavySet) Labels() []byte {
	return labelenc.AppendLabel(nil, "a", fmt.Sprint(9-s.left))
}
func (s *heavySet) Chunks() []series.Chunk {
	all := make([]series.Chunk, 2000)
	for i := range all {
		all[i] = series.Chunk{MinMS: startMS, MaxMS: startMS + 1, Encoding: chunkenc.EncXOR, Data: []byte{0xff, 0xff, 0}}
	}
	return all
}
func (*heavySet) Err() error                        { return nil }
func (*heavySet) Warnings() annotations.Annotations { return nil }

func TestServer_SamplesBeyond4GiBAreRejectedEarly(t *testing.T) {
	q := peerQuery(1, 2, everything)
	for _, tt := range []struct {
		series  int
		queries int
		opened  int64
	}{{2, 3, 1}, {1, 4, 2}} {
		from := &heavy{series: tt.series}
		queries := make([]*prompb.Query, tt.queries)
		for i := range queries {
			queries[i] = q
		}
		status, _, text := post(t, serve(t, from, Options{}), encode(t, 0, queries...))
		if status != 400 || !strings.Contains(string(text), "4 GiB") || from.opened.Load() != tt.opened {
			t.Errorf("%+v: %d %s after %d queries", tt, status, text, from.opened.Load())
		}
	}
}

func TestServer_RequestWithTooLargeDecodedLengthIsNotDecompressed(t *testing.T) {
	body := append(binary.AppendUvarint(nil, 1<<20), bytes.Repeat([]byte{0}, 100)...)
	status, _, text := post(t, serve(t, open(t, t.TempDir()), Options{}), body)
	if status != 400 || !strings.Contains(string(text), "decompressed length of 1048576 bytes") {
		t.Errorf("%d %s", status, text)
	}
}

func TestServer_SlowReaderIsCutOff(t *testing.T) {
	s := open(t, t.TempDir())
	fill(t, s, 500, startMS, startMS+2*hourMS, 10_000)
	server := NewServer(Options{ReaderWaitMax: time.Second}, s, slog.New(slog.DiscardHandler), nil)
	address := serveHandler(t, server)
	for _, form := range []prompb.ReadRequest_ResponseType{prompb.ReadRequest_STREAMED_XOR_CHUNKS, prompb.ReadRequest_SAMPLES} {
		body := encode(t, form, peerQuery(startMS, startMS+2*hourMS, everything))
		_, _, whole := post(t, address, body) // a client that reads all is not cut off
		conn, err := net.Dial("tcp", strings.TrimPrefix(address, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.(*net.TCPConn).SetReadBuffer(4096)
		request, err := http.NewRequest(http.MethodPost, address, bytes.NewReader(body))
		if err == nil {
			err = request.Write(conn)
		}
		if err != nil {
			t.Fatal(err)
		}
		waitFor(t, func() bool { return server.queries.Get() == 1 })
		got, some := 0, make([]byte, 256)
		for server.queries.Get() > 0 { // until the server ends the request
			n, err := conn.Read(some)
			if got += n; err != nil {
				break
			}
			time.Sleep(time.Millisecond)
		}
		rest, _ := io.Copy(io.Discard, conn)
		conn.Close()
		if got += int(rest); got >= len(whole) || len(whole) < 1<<20 {
			t.Errorf("%s: %d bytes of %d came", form, got, len(whole))
		}
		waitFor(t, func() bool { return server.queries.Get() == 0 })
	}
}

func TestClient_RetriesBrokenConnectionsBeforeTheFirstByteAnd429(t *testing.T) {
	stream := frames(10)
	for name, first := range map[string]http.HandlerFunc{
		"429": func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "busy", http.StatusTooManyRequests) },
		"broken before the first byte": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000")
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		},
	} {
		calls := 0
		address := serveHandler(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if calls++; calls == 1 {
				w.Header().Set("Content-Type", "application/x-streamed-protobuf; proto=prometheus.ChunkedReadResponse")
				first(w, r)
				return
			}
			streamOf(stream).ServeHTTP(w, r)
		}))
		set, end := raw(t, NewClient(ClientOptions{URL: address, RetryAfter: time.Millisecond}), 0, 10, everything)
		n := 0
		for ; set.Next(); n++ {
		}
		if n != 10 || set.Err() != nil || calls != 2 {
			t.Errorf("%s: %d series after %d requests, %v", name, n, calls, set.Err())
		}
		end()
	}
}

func TestEndpoint_SeriesWithoutExternalLabelsAreSortedInTheWholeWindow(t *testing.T) {
	// With the label m the series {a, m} is behind all {a, b, m}; without it, before them.
	var stream []byte
	add := func(pairs ...string) {
		start := len(stream)
		var lset []byte
		for i := 0; i < len(pairs); i += 2 {
			lset = labelenc.AppendLabel(lset, pairs[i], pairs[i+1])
		}
		stream = appendFrameHead(stream, 0, lset, chunkSize(1, 2, 1, 100))
		stream = sealFrame(appendChunk(stream, 1, 2, 1, make([]byte, 100)), start, 0)
	}
	for a := range 2 {
		for b := range 1000 {
			add("a", fmt.Sprint(a), "b", fmt.Sprintf("%04d", b), "m", "x")
		}
		add("a", fmt.Sprint(a), "m", "x")
	}
	client := NewClient(ClientOptions{URL: serveHandler(t, streamOf(stream)), HoldBytesMax: 400_000}) // an eighth, as for chunks, is too little
	e := Endpoint{Client: client, ExternalLabels: labels.FromStrings("m", "x")}
	for name, sel := range map[string]func(q *Querier) series.Set{
		"PromQL": func(q *Querier) series.Set {
			return e.sel(t.Context(), q, nil, labels.EmptyLabels(), []*labels.Matcher{everything})
		},
		"/api/v1/read": func(q *Querier) series.Set {
			return e.sel(t.Context(), q, nil, labels.FromStrings("z", "1"), []*labels.Matcher{everything})
		},
	} {
		q := &Querier{client: client, mint: 0, maxt: 10}
		set, n := sel(q), 0
		var last []byte
		for ; set.Next(); n++ {
			if last != nil && labelenc.Compare(last, set.Labels()) >= 0 {
				t.Fatalf("%s: %q after %q", name, set.Labels(), last)
			}
			last = bytes.Clone(set.Labels())
		}
		if n != 2002 || set.Err() != nil {
			t.Errorf("%s: %d series, %v", name, n, set.Err())
		}
		_ = q.Close()
	}
}
