package storeapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/util/annotations"
	"google.golang.org/grpc"

	"github.com/ferula-io/ferula/bench/area"
	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/series/labelenc"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

// fewStore is a store of series that all have the same chunks.
type fewStore struct {
	storeapi.Source
	labels [][]byte
	chunks []series.Chunk
}

func (*fewStore) ExternalLabels() labels.Labels { return labels.EmptyLabels() }

func (*fewStore) Capabilities() storeapi.Capabilities { return storeapi.Capabilities{} }

func (s *fewStore) Series(ctx context.Context, r storeapi.SeriesRequest) storeapi.Stream {
	return storeapi.LocalSeries(ctx, s, labels.EmptyLabels(), r)
}

func (s *fewStore) RawQuerier(context.Context, int64, int64) (series.Querier, error) {
	return &fewQuerier{s: s}, nil
}

type fewQuerier struct {
	s *fewStore
}

func (q *fewQuerier) Select(context.Context, series.SelectOptions, ...*labels.Matcher) series.Set {
	return &fewSet{s: q.s, at: -1}
}
func (*fewQuerier) Capabilities() series.Capabilities { return series.Capabilities{} }
func (*fewQuerier) LabelNames(context.Context, series.SelectOptions, ...*labels.Matcher) ([]string, error) {
	return nil, nil
}
func (*fewQuerier) Close() error { return nil }

type fewSet struct {
	s  *fewStore
	at int
}

func (s *fewSet) Next() bool                      { s.at++; return s.at < len(s.s.labels) }
func (s *fewSet) Labels() []byte                  { return s.s.labels[s.at] }
func (s *fewSet) Chunks() []series.Chunk          { return s.s.chunks }
func (*fewSet) Err() error                        { return nil }
func (*fewSet) Warnings() annotations.Annotations { return nil }

// serveFew serves n series with a chunk of 100 bytes in each of these parts of a store, and returns the address.
func serveFew(t *testing.T, n int, of ...int64) string {
	t.Helper()
	s := &fewStore{}
	for i := range n {
		s.labels = append(s.labels, labelenc.Append(nil, labels.FromStrings("__name__", labelSpec.Metric, "instance", fmt.Sprintf("%s-%05d", strings.Repeat("x", 50), i))))
	}
	for _, part := range of {
		from := labelSpec.StartMS + part*partMS
		s.chunks = append(s.chunks, series.Chunk{MinMS: from, MaxMS: from + 1000, Encoding: chunkenc.EncXOR, Data: make([]byte, 100)})
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(storeapi.GRPCServerOptions()...)
	storeapi.NewServer(s, storeapi.ServerOptions{}).Register(server)
	done := make(chan error)
	go func() { done <- server.Serve(l) }()
	t.Cleanup(func() { server.Stop(); <-done })
	return l.Addr().String()
}

func TestReceiveLabels_CountsNoChunks(t *testing.T) {
	address := serveFew(t, 100, 0, 1, 2)
	plain := storeapi.ClientOptions{NoDeltas: true}
	whole, err := receiveLabels(t.Context(), address, plain, false)
	if err != nil {
		t.Fatal(err)
	}
	alone, err := receiveLabels(t.Context(), address, plain, true)
	if err != nil {
		t.Fatal(err)
	}
	// The lengths before a series and before a message take a byte or two more if there are chunks.
	if more := whole.labelBytes - alone.labelBytes; whole.series != 100 || alone.series != 100 || more < 0 || more > 2*101 {
		t.Errorf("with chunks %d bytes, without %d", whole.labelBytes, alone.labelBytes)
	}
	if alone.labelBytes < 100*50 {
		t.Errorf("%d bytes for 100 labels of 55 bytes", alone.labelBytes)
	}
	coded, err := receiveLabels(t.Context(), address, storeapi.ClientOptions{}, false)
	if err != nil || coded.sum != whole.sum || coded.labelBytes*4 > whole.labelBytes {
		t.Errorf("as differences %d bytes, plain %d, equal %t; %v", coded.labelBytes, whole.labelBytes, coded.sum == whole.sum, err)
	}
}

func TestReceiveLabels_WithoutAPartIsAnError(t *testing.T) {
	if _, err := receiveLabels(t.Context(), serveFew(t, 1, 0, 1), storeapi.ClientOptions{}, false); !errors.Is(err, area.ErrUnequal) {
		t.Errorf("without chunks of the head: %v", err)
	}
}

func TestLabelBytesOf_OtherSeriesAreAnError(t *testing.T) {
	few, more := serveFew(t, 3, 0, 1, 2), serveFew(t, 4, 0, 1, 2)
	b := &bench{env: area.Env{Log: io.Discard}, out: &area.Outcome{}}
	if _, _, err := b.labelBytesOf(t.Context(), shape{series: 3, peer: more, own: few}, false); !errors.Is(err, area.ErrUnequal) {
		t.Errorf("other series than the peer's: %v", err)
	}
	if _, _, err := b.labelBytesOf(t.Context(), shape{series: 4, own: few}, false); !errors.Is(err, area.ErrUnequal) {
		t.Errorf("a series is missing: %v", err)
	}
	ratio, what, err := b.labelBytesOf(t.Context(), shape{series: 3, peer: few, own: few}, false)
	if err != nil || ratio <= 0 || ratio >= 1 || b.out.Recorder.Median(ferula, what) != ratio {
		t.Errorf("equal series: %v, %q, %v", ratio, what, err)
	}
}
