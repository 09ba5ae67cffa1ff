package remoteread

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/prompb"
	"github.com/prometheus/prometheus/storage/remote"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/tsdbutil"

	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/series/labelenc"
)

func raw(t testing.TB, from series.Source, mint, maxt int64, matchers ...*labels.Matcher) (series.Set, func()) {
	t.Helper()
	q, err := from.RawQuerier(context.Background(), mint, maxt)
	if err != nil {
		t.Fatal(err)
	}
	return q.Select(context.Background(), series.SelectOptions{}, matchers...), func() {
		if err := q.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestClient_ReadsAllSeriesOfEitherServer(t *testing.T) {
	dir := t.TempDir()
	block(t, dir, 30, startMS, startMS+2*hourMS, 30_000)
	s := open(t, dir)
	fill(t, s, 28, startMS+2*hourMS, startMS+3*hourMS, 30_000)
	peer := remote.NewReadHandler(slog.New(slog.DiscardHandler), nil, queryables{s}, func() config.Config { return config.Config{} }, 0, 10, 2000)
	for name, address := range map[string]string{
		"ferula": serve(t, s, Options{FrameBytesMax: 2000}), "whole series": serve(t, s, Options{}), "Prometheus": serveHandler(t, peer),
	} {
		client := NewClient(ClientOptions{URL: address})
		for _, r := range [][2]int64{{startMS, startMS + 9*hourMS}, {startMS + 7, startMS + hourMS}, {0, 1}} {
			got, closeGot := raw(t, client, r[0], r[1], everything)
			want, closeWant := raw(t, s, r[0], r[1], everything)
			n := 0
			for ; want.Next(); n++ {
				if !got.Next() || !bytes.Equal(got.Labels(), want.Labels()) || len(got.Chunks()) != len(want.Chunks()) {
					t.Fatalf("%s: series %d: %q with %d chunks, %v, want %q with %d", name, n, got.Labels(), len(got.Chunks()), got.Err(), want.Labels(), len(want.Chunks()))
				}
				for i, c := range got.Chunks() {
					if w := want.Chunks()[i]; c.MinMS != w.MinMS || c.MaxMS != w.MaxMS || c.Encoding != w.Encoding || !bytes.Equal(c.Data, w.Data) {
						t.Fatalf("%s: series %d, chunk %d differs", name, n, i)
					}
				}
			}
			if got.Next() || got.Err() != nil || want.Err() != nil {
				t.Fatal(name, got.Err(), want.Err())
			}
			closeGot()
			closeWant()
		}
		far, closeFar := raw(t, client, startMS, startMS+9*hourMS, everything)
		localQuerier, err := s.Querier(startMS, startMS+9*hourMS)
		if err != nil {
			t.Fatal(err)
		}
		got := sum(t, series.ToSeriesSet(far), asIs)
		want := sum(t, localQuerier.Select(context.Background(), true, nil, everything), asIs)
		if got != want {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
		closeFar()
		if err := localQuerier.Close(); err != nil {
			t.Error(err)
		}
	}
}

// frames returns a stream of n series of one chunk each.
func frames(n int) []byte {
	var all []byte
	for i := range n {
		start := len(all)
		all = appendFrameHead(all, 0, labelenc.AppendLabel(nil, "a", fmt.Sprintf("%04d", i)), chunkSize(1, 2, 1, 100))
		all = sealFrame(appendChunk(all, 1, 2, 1, make([]byte, 100)), start, 0)
	}
	return all
}

func TestFrameSource_FrameThatIsNotValidIsAnError(t *testing.T) {
	unsorted := labelenc.AppendLabel(labelenc.AppendLabel(nil, "b", "1"), "a", "1")
	head := appendFrameHead(nil, 0, unsorted, chunkSize(1, 2, 1, 100))
	for name, stream := range map[string][]byte{
		"labels out of order": sealFrame(appendChunk(head, 1, 2, 1, make([]byte, 100)), 0, 0),
		"without its chunk":   sealFrame(slices.Clone(head), 0, 0),
	} {
		f := frameSource{from: bufio.NewReader(bytes.NewReader(stream)), maxt: 1 << 40, frameBytesMax: 1 << 20}
		if err := f.read(new(frame)); err == nil || errors.Is(err, io.EOF) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// streamOf returns a handler that always responds with the same stream.
func streamOf(stream []byte) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/x-streamed-protobuf; proto=prometheus.ChunkedReadResponse")
		_, _ = w.Write(stream)
	})
}

func TestClient_BrokenStreamIsAnError(t *testing.T) {
	good := frames(3)
	flipped := bytes.Clone(good)
	flipped[len(flipped)-5] ^= 1
	for _, tt := range []struct {
		name   string
		stream []byte
		series int
		want   error
	}{
		{"whole", good, 3, nil},
		{"empty", nil, 0, nil},
		{"cut short", good[:len(good)-1], 1, io.ErrUnexpectedEOF},
		{"cut in a checksum", good[:3], 0, io.ErrUnexpectedEOF},
		{"a flipped bit", flipped, 1, ErrCorrupt},
		{"a huge frame", append(bytes.Clone(good), binary.AppendUvarint(nil, 1<<40)...), 2, ErrCorrupt},
		{"unsorted", append(bytes.Clone(good), frames(1)...), 2, ErrLimit},
		{"one twice", append(append(frames(1), frames(2)[len(frames(1)):]...), frames(1)...), 1, ErrCorrupt},
	} {
		set, done := raw(t, NewClient(ClientOptions{URL: serveHandler(t, streamOf(tt.stream)), HoldBytesMax: 800}), 0, 2, everything)
		n := 0
		for set.Next() {
			n++
		}
		if n != tt.series || !errors.Is(set.Err(), tt.want) || (tt.want == nil && set.Err() != nil) {
			t.Errorf("%s: %d series, %v, want %d, %v", tt.name, n, set.Err(), tt.series, tt.want)
		}
		done()
	}
}

func TestClient_CutsChunksToTheRange(t *testing.T) {
	var stream []byte
	for i := range 3 {
		floats, ints := chunkenc.NewXORChunk(), chunkenc.NewHistogramChunk()
		app, err := floats.Appender()
		if err != nil {
			t.Fatal(err)
		}
		hist, err := ints.Appender()
		if err != nil {
			t.Fatal(err)
		}
		for at := range int64(100) {
			app.Append(0, at, float64(at))
			if _, _, hist, err = hist.AppendHistogram(nil, 0, 100+at, tsdbutil.GenerateTestHistogram(at), false); err != nil {
				t.Fatal(err)
			}
		}
		start := len(stream)
		size := chunkSize(0, 99, 1, len(floats.Bytes())) + chunkSize(100, 199, 2, len(ints.Bytes()))
		stream = appendFrameHead(stream, 0, labelenc.AppendLabel(nil, "a", fmt.Sprint(i)), size)
		stream = appendChunk(stream, 0, 99, 1, floats.Bytes())
		stream = sealFrame(appendChunk(stream, 100, 199, 2, ints.Bytes()), start, 0)
	}
	client := NewClient(ClientOptions{URL: serveHandler(t, streamOf(stream))})
	for _, tt := range []struct {
		mint, maxt int64
		samples    int
	}{{0, 199, 200}, {10, 150, 141}, {0, 99, 100}, {99, 100, 2}, {150, 900, 50}, {300, 400, 0}} {
		n := 0
		encoded, done := raw(t, client, tt.mint, tt.maxt, everything)
		set := series.ToSeriesSet(encoded)
		for set.Next() {
			it := set.At().Iterator(nil)
			for kind := it.Next(); kind != chunkenc.ValNone; kind = it.Next() {
				if n++; it.AtT() < tt.mint || it.AtT() > tt.maxt || (kind == chunkenc.ValFloat) != (it.AtT() < 100) {
					t.Errorf("from %d to %d: %s at %d", tt.mint, tt.maxt, kind, it.AtT())
				}
			}
		}
		if n != 3*tt.samples || set.Err() != nil {
			t.Errorf("from %d to %d: %d samples, want %d, %v", tt.mint, tt.maxt, n, 3*tt.samples, set.Err())
		}
		done()
	}
}

func TestClient_RetriesRecoverableErrorsOnly(t *testing.T) {
	calls := 0
	failing := func(failures, status int, contentType string) string {
		calls = 0
		return serveHandler(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if calls++; calls <= failures {
				http.Error(w, "the reason why", status)
				return
			}
			w.Header().Set("Content-Type", contentType)
		}))
	}
	streamed := "application/x-streamed-protobuf; proto=prometheus.ChunkedReadResponse"
	for _, tt := range []struct {
		name    string
		address string
		want    error
		text    string
	}{
		{"twice busy", failing(2, 503, streamed), nil, ""},
		{"always busy", failing(9, 503, streamed), ErrUnavailable, "the reason why"},
		{"refused", failing(9, 400, streamed), ErrRefused, "the reason why"},
		{"another content type", failing(0, 0, "application/json"), ErrRefused, "neither streamed chunks nor samples"},
		{"no server", "http://127.0.0.1:1/", ErrUnavailable, "refused"},
		{"no address", "://", ErrRefused, "missing protocol"},
	} {
		calls = 0
		set, done := raw(t, NewClient(ClientOptions{URL: tt.address, RetryAfter: time.Millisecond}), 0, 1, everything)
		if set.Next() || !errors.Is(set.Err(), tt.want) || (tt.want == nil && set.Err() != nil) || (tt.want != nil && !strings.Contains(set.Err().Error(), tt.text)) {
			t.Errorf("%s: %v, want %v", tt.name, set.Err(), tt.want)
		}
		if tt.want == ErrRefused && calls > 1 {
			t.Errorf("%s: %d requests", tt.name, calls)
		}
		done()
	}
}

func TestClientQuerier_CloseCancelsAnUnreadResponse(t *testing.T) {
	set, done := raw(t, NewClient(ClientOptions{URL: serveHandler(t, streamOf(frames(20_000)))}), 0, 2, everything)
	if !set.Next() {
		t.Fatal(set.Err())
	}
	done()
	if set.Next() || set.Err() == nil {
		t.Error("a series after Close")
	}
}

func TestClient_DoesNotAllocatePerSeries(t *testing.T) {
	allocations := func(n int) float64 {
		stream := frames(n)
		return testing.AllocsPerRun(5, func() {
			set := framesFrom(stream, 1<<20)
			seen := 0
			for set.Next() {
				seen++
			}
			if seen != n || set.Err() != nil {
				t.Fatal(seen, set.Err())
			}
		})
	}
	if few, many := allocations(10), allocations(1000); many > few+5 {
		t.Errorf("%v allocations for 10 series, %v for 1,000", few, many)
	}
}

// framesFrom reads a stream of frames through a client's set.
func framesFrom(stream []byte, frameBytesMax int) *orderedSet {
	return &orderedSet{holdBytesMax: 1 << 20, open: func() (source, error) {
		return &frameSource{body: io.NopCloser(nil), from: bufio.NewReader(bytes.NewReader(stream)), maxt: 1 << 40, frameBytesMax: frameBytesMax, seriesBytesMax: 1 << 20}, nil
	}}
}

func FuzzStream(f *testing.F) {
	f.Add(frames(3))
	f.Add(frames(1)[:20])
	f.Fuzz(func(t *testing.T, stream []byte) {
		set := framesFrom(stream, 1<<16)
		for set.Next() {
			if labelenc.Validate(set.Labels()) != nil {
				t.Fatal("bad labels")
			}
		}
		if err := set.Err(); err != nil && !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrLimit) && !errors.Is(err, labelenc.ErrCorrupt) && !errors.Is(err, io.ErrUnexpectedEOF) && !strings.Contains(err.Error(), "overflow") {
			t.Fatal(err)
		}
	})
}

// FuzzRequestBody sends any body: the status is 400 or 200, and nothing panics.
func FuzzRequestBody(f *testing.F) {
	server := NewServer(Options{}, open(f, f.TempDir()), slog.New(slog.DiscardHandler), nil)
	f.Add(encode(f, 1, peerQuery(1, 2, everything)))
	f.Add(encode(f, prompb.ReadRequest_SAMPLES, peerQuery(1, 2, everything)))
	f.Fuzz(func(t *testing.T, body []byte) {
		request, err := http.NewRequest(http.MethodPost, "/", bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		w := &status{}
		server.ServeHTTP(w, request)
		if w.code != 0 && w.code != http.StatusBadRequest {
			t.Fatal(w.code)
		}
	})
}

type status struct{ code int }

func (*status) Header() http.Header         { return http.Header{} }
func (s *status) WriteHeader(code int)      { s.code = code }
func (*status) Write(p []byte) (int, error) { return len(p), nil }
