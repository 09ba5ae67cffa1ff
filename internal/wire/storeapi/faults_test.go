package storeapi

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	"github.com/ferula-io/ferula/internal/codec/labelenc"
	pb "github.com/ferula-io/ferula/internal/codec/storepb/thanospb"
)

// A stream that is cut must not look like one that has ended.
func TestAServerThatGoesAwayIsAnError(t *testing.T) {
	var server *grpc.Server
	src := &endless{memory: memory{rows: rows(t, 1)}}
	conn := connect(t, func(s *grpc.Server) { server = s; NewServer(src, ServerOptions{}).Register(s) }, GRPCServerOptions()...)
	set := NewClient(conn, ClientOptions{}).Series(t.Context(), SeriesRequest{MaxMS: 1, Matchers: all()})
	defer set.Close()
	for range 1000 {
		if !set.Next() {
			t.Fatal(set.Err())
		}
	}
	server.Stop()
	for set.Next() {
	}
	if !errors.Is(set.Err(), ErrUnavailable) {
		t.Errorf("after the server has gone: %v", set.Err())
	}
	for deadline := time.Now().Add(10 * time.Second); src.openQueriers() != 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("its querier stays open")
		}
	}
}

func TestAPlaceIsWaitedForAndGivenBack(t *testing.T) {
	src := &endless{memory: memory{rows: rows(t, 1)}}
	client := NewClient(serving(t, src, ServerOptions{ConcurrentMax: 1}), ClientOptions{})
	first := client.Series(t.Context(), SeriesRequest{MaxMS: 1, Matchers: all()})
	if !first.Next() {
		t.Fatal(first.Err())
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	second := client.Series(ctx, SeriesRequest{MaxMS: 1, Matchers: all()})
	if second.Next() || !errors.Is(second.Err(), context.DeadlineExceeded) {
		t.Errorf("a second stream beside the only one: %v", second.Err())
	}
	if err := errors.Join(second.Close(), first.Close()); err != nil {
		t.Fatal(err)
	}
	third := client.Series(t.Context(), SeriesRequest{MaxMS: 1, Matchers: all()})
	if !third.Next() {
		t.Errorf("a stream after the first one: %v", third.Err())
	}
	if err := third.Close(); err != nil {
		t.Error(err)
	}
	if third.Next() || third.Err() == nil {
		t.Error("a closed set goes on")
	}
}

// Whatever is received: no panic, an error with a status or a sentinel, and what is given is in order.
func FuzzSeriesSet(f *testing.F) {
	list := rows(f, 5)
	for _, symbols := range []bool{false, true} {
		to := &discard{keep: true}
		out := newBatches(to, &pb.SeriesRequest{ResponseBatchSize: 3, Extension: &pb.Extension{Symbols: symbols}}, &numberedSet{rowSet: rowSet{rows: list}, from: 1 << 30, known: map[string]uint64{}})
		set := out.numbered
		for i, r := range list {
			if symbols {
				set.(*numberedSet).at = r
			}
			if err := out.add(labelenc.Append(nil, r.labels), r.chunks, nil); err != nil {
				f.Fatal(i, err)
			}
		}
		if err := out.flush(); err != nil {
			f.Fatal(err)
		}
		f.Add(to.messages[0], to.messages[1])
	}
	f.Fuzz(func(t *testing.T, first, second []byte) {
		pieces := []mem.BufferSlice{{mem.SliceBuffer(first)}, {mem.SliceBuffer(second)}}
		set := &SeriesSet{stream: &canned{pieces: pieces}, cancel: func() {}}
		defer set.Close()
		var before []byte
		builder := labels.NewScratchBuilder(8)
		for n := 0; set.Next(); n++ {
			if err := labelenc.Validate(set.Labels()); err != nil {
				t.Fatal(err)
			}
			if _, err := labelenc.Labels(set.Labels(), &builder); err != nil {
				t.Fatal(err)
			}
			if n > 0 && labelenc.Compare(before, set.Labels()) >= 0 {
				t.Fatalf("%q after %q", set.Labels(), before)
			}
			before = append(before[:0], set.Labels()...)
		}
		if err := set.Err(); err != nil && !errors.Is(err, ErrCorrupt) && !errors.Is(err, labelenc.ErrCorrupt) && status.Code(err) == 0 {
			t.Fatal(err)
		}
	})
}
