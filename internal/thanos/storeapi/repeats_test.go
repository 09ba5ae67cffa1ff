package storeapi

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"google.golang.org/protobuf/proto"

	"github.com/ferula-io/ferula/internal/series/labelenc"
	"github.com/ferula-io/ferula/internal/thanos/storepb"
	pb "github.com/ferula-io/ferula/internal/thanos/storepb/thanospb"
)

func TestServer_RepeatsOnlyForClientsThatKeepDeltas(t *testing.T) {
	list := productRows(t, rand.New(rand.NewPCG(7, 8)), 50)
	conn := dial(t, &memorySource{rows: list}, ServerOptions{})
	for _, tt := range []struct {
		extension *pb.Extension
		repeats   bool
	}{
		{nil, false},
		{&pb.Extension{KeptBytes: storepb.KeptBytes}, false},
		{&pb.Extension{Symbols: true, KeptBytes: storepb.KeptBytes}, false},
		{&pb.Extension{Deltas: true}, false},
		{&pb.Extension{Deltas: true, KeptBytes: -1}, false},
		{&pb.Extension{Deltas: true, KeptBytes: storepb.KeptBytes}, true},
		{&pb.Extension{Deltas: true, KeptBytes: 1 << 62}, true},
	} {
		request := &pb.SeriesRequest{MaxTime: 9, Matchers: matchersTo(all()), ResponseBatchSize: 1 << 10, Extension: tt.extension}
		kept, repeats := repeatsOf(responses(t, conn, request))
		if (kept > 0) != tt.repeats || tt.repeats && repeats < len(list)*8/10 || !tt.repeats && repeats > 0 {
			t.Errorf("%v: of %d deltas %d were kept and %d repeated", tt.extension, len(list), kept, repeats)
		}
	}
}

// Clients from before repeats get the bytes that they got before, to the last.
func TestServer_BytesForOlderClientsAreThoseOfBefore(t *testing.T) {
	list := slices.Concat(productRows(t, rand.New(rand.NewPCG(7, 8)), 50), randomRows(t, rand.New(rand.NewPCG(9, 8)), 300))
	for name, tt := range map[string]struct {
		e    *pb.Extension
		want string
	}{
		"plain":  {nil, "76d8e016dc178be7"},
		"deltas": {&pb.Extension{Symbols: true, Deltas: true, BatchSeries: 100}, "95ccfaf7905563bf"},
	} {
		to := &discard{keep: true}
		out := newBatchWriter(to, &pb.SeriesRequest{ResponseBatchSize: 64, Extension: tt.e}, &rowSet{})
		for _, r := range list {
			if err := out.add(labelenc.Append(nil, r.labels), r.chunks, nil); err != nil {
				t.Fatal(err)
			}
		}
		if err := out.flush(); err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprintf("%x", sha256.Sum256(slices.Concat(to.messages...)))[:16]; got != tt.want {
			t.Errorf("%s: %s, want %s", name, got, tt.want)
		}
	}
}

func TestSeriesSet_InvalidRepeatNamesTheSeriesBefore(t *testing.T) {
	one := &pb.SymbolSeries{Delta: []byte("\x01\x01b\x011")} // {b="1"}
	raw, err := proto.Marshal(&pb.SeriesResponse{Result: &pb.SeriesResponse_SymbolBatch{SymbolBatch: &pb.SymbolBatch{Series: []*pb.SymbolSeries{one, {Repeat: []byte{0, 8}}}}}})
	if err != nil {
		t.Fatal(err)
	}
	set := &SeriesSet{stream: &hostileStream{message: func(n int) []byte {
		if n > 0 {
			return nil
		}
		return raw
	}}, cancel: func() {}}
	set.table.KeepDeltas(storepb.KeptBytes)
	if _, err := read(t, set); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), `{b="1"}`) {
		t.Error(err)
	}
}

// The memory of kept deltas and symbols is counted until the end of the stream, and not beyond.
func TestSeriesSet_FreesItsTablesAtTheEnd(t *testing.T) {
	list := productRows(t, rand.New(rand.NewPCG(7, 8)), 200)
	for name, src := range map[string]Source{"deltas": &memorySource{rows: list}, "symbols": numberedSource{&memorySource{rows: list}, 1 << 30}} {
		set := NewClient(dial(t, src, ServerOptions{}), ClientOptions{}).Series(t.Context(), SeriesRequest{MaxMS: 9, Matchers: all()})
		n, most := 0, int64(0)
		for ; set.Next(); n++ {
			most = max(most, set.table.Bytes())
			if set.BufferedBytes() < set.table.Bytes() {
				t.Fatalf("%s: %d bytes, the table has %d", name, set.BufferedBytes(), set.table.Bytes())
			}
		}
		if set.Err() != nil || n != len(list) || most < 10_000 || set.BufferedBytes() > 0 {
			t.Errorf("%s: %d series, at most %d bytes, at the end %d, %v", name, n, most, set.BufferedBytes(), set.Err())
		}
		if err := set.Close(); err != nil {
			t.Error(err)
		}
	}
}

// Kept deltas are copies: the messages that brought them are released, and poisoned by builds with invariants.
func TestSeriesSet_RepeatsAreReadAfterTheirMessagesAreReleased(t *testing.T) {
	list := productRows(t, rand.New(rand.NewPCG(7, 8)), 300)
	conn := dial(t, &memorySource{rows: list}, ServerOptions{})
	for _, retain := range []bool{false, true} {
		set := NewClient(conn, ClientOptions{}).Series(t.Context(), SeriesRequest{MaxMS: 9, Matchers: all(), SkipChunks: true})
		if retain {
			set.RetainUntilClose()
		}
		var builder labels.ScratchBuilder
		n := 0
		for ; set.Next(); n++ {
			got, err := labelenc.Labels(set.Labels(), &builder)
			if err != nil || !labels.Equal(got, list[n].labels) {
				t.Fatalf("series %d: %s, want %s, %v", n, got, list[n].labels, err)
			}
		}
		if set.Err() != nil || n != len(list) {
			t.Fatal(n, set.Err())
		}
		if err := set.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
