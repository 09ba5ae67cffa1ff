package storeapi

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/series/labelenc"
	"github.com/ferula-io/ferula/internal/thanos/storepb"
	pb "github.com/ferula-io/ferula/internal/thanos/storepb/thanospb"
)

// A stream that is cut must not look like one that ended.
func TestSeriesSet_CutStreamIsAnError(t *testing.T) {
	var server *grpc.Server
	src := &endlessSource{memorySource: memorySource{rows: rows(t, 1)}}
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
	for deadline := time.Now().Add(30 * time.Second); src.openQueriers() != 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("its querier stays open")
		}
	}
}

// For any input: no panic, errors have a status or a sentinel, and series are sorted.
func FuzzSeriesSet(f *testing.F) {
	list := rows(f, 5)
	for _, e := range []*pb.Extension{{}, {Deltas: true}} {
		to := &discard{keep: true}
		out := newBatchWriter(to, &pb.SeriesRequest{ResponseBatchSize: 3, Extension: e})
		for i, r := range list {
			if err := out.add(labelenc.Append(nil, r.labels), r.chunks); err != nil {
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
		set := &SeriesSet{stream: &memoryStream{pieces: pieces}, cancel: func() {}}
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

// hostileStream receives message(0), message(1) and so on, until message returns nil.
type hostileStream struct {
	memoryStream
	n       int
	message func(n int) []byte
}

func (h *hostileStream) RecvMsg(m any) error {
	data := h.message(h.n)
	if h.n++; data == nil {
		return io.EOF
	}
	return clientCodec().Unmarshal(mem.BufferSlice{mem.SliceBuffer(data)}, m)
}

// A store must not exceed the client's limit within one series.
func TestSeriesSet_EndlessSeriesIsCutOff(t *testing.T) {
	lset := labelenc.AppendLabel(nil, "a", "1")
	chunk := []series.Part{{Encoding: chunkenc.EncXOR, Data: make([]byte, 1000)}}
	size := storepb.ChunkSize(0, 0, chunk)
	message := storepb.AppendSeriesHead(nil, lset, storepb.FieldSize(size))
	message = storepb.AppendChunk(message, size, 0, 0, chunk)
	const bytesMax = 100_000
	in := &hostileStream{message: func(n int) []byte {
		if n > 1000 {
			return nil
		}
		return message
	}}
	set := &SeriesSet{stream: in, cancel: func() {}, bytesMax: bytesMax}
	if set.Next() || !errors.Is(set.Err(), ErrBytesMax) || !errors.Is(set.Err(), ErrLimit) || !strings.Contains(set.Err().Error(), `{a="1"}`) {
		t.Errorf("after %d messages: %v", in.n, set.Err())
	}
	if limit := bytesMax/len(message) + 2; in.n > limit {
		t.Errorf("%d messages were taken, want %d at most", in.n, limit)
	}
}

func TestSeriesSet_FramesWithoutSeriesAreReleased(t *testing.T) {
	empty := storepb.AppendHead(nil)
	storepb.SealBatch(empty)
	lset := labelenc.AppendLabel(nil, "a", "1")
	held := 0
	var set *SeriesSet
	in := &hostileStream{message: func(n int) []byte {
		held = max(held, len(set.frames)+len(set.spare))
		switch {
		case n == 0 || n == 5000:
			return storepb.AppendSeriesHead(nil, lset, 0)
		case n > 5000:
			return nil
		}
		return empty
	}}
	set = &SeriesSet{stream: in, cancel: func() {}, bytesMax: 1000}
	if !set.Next() || set.Next() || set.Err() != nil || held > 3 {
		t.Errorf("%v, %d frames were held", set.Err(), held)
	}
}

func TestSeriesSet_WarningsAreBounded(t *testing.T) {
	for name, text := range map[string]string{"many": "%d", "long": "%d " + strings.Repeat("x", 100_000)} {
		set := &SeriesSet{cancel: func() {}, stream: &hostileStream{message: func(n int) []byte {
			if n > 5000 {
				return nil
			}
			return storepb.AppendWarning(nil, fmt.Sprintf(text, n))
		}}}
		bytes := 0
		if set.Next() || set.Err() != nil {
			t.Error(set.Err())
		}
		for w := range set.Warnings() {
			bytes += len(w)
		}
		if _, reported := set.Warnings()[errWarnings.Error()]; !reported || len(set.Warnings()) > warningsMax+1 || bytes > warningsBytesMax+1000 {
			t.Errorf("%s: %d warnings of %d bytes, reported: %v", name, len(set.Warnings()), bytes, reported)
		}
	}
}

// The remaining budget of a query limits a message before it is read.
func TestSeriesSet_MessageBeyondBytesMaxIsAnError(t *testing.T) {
	src := &memorySource{rows: rows(t, 100)}
	client := NewClient(dial(t, src, ServerOptions{}), ClientOptions{})
	for _, c := range []struct {
		bytesMax int64
		want     error
	}{{0, nil}, {1 << 40, nil}, {100, ErrBytesMax}} {
		if _, err := read(t, client.Series(t.Context(), SeriesRequest{MaxMS: 1 << 40, Matchers: all(), BytesMax: c.bytesMax})); !errors.Is(err, c.want) {
			t.Errorf("%d bytes: %v, want %v", c.bytesMax, err, c.want)
		}
	}
}

// A chunk without data is 4 bytes of a message and more than a hundred in memory.
func TestSeriesSet_EmptyChunksCountWhatTheyTake(t *testing.T) {
	const each = 1000
	lset := labelenc.AppendLabel(nil, "a", "1")
	one := append(slices.Clone(lset), bytes.Repeat([]byte{2<<3 | 2, 2, 3<<3 | 2, 0}, each)...)
	for name, c := range map[string]struct {
		message []byte
		coded   bool
	}{
		"series": {message: append(binary.AppendUvarint([]byte{1<<3 | 2}, uint64(len(one))), one...)},
		"deltas": {coded: true},
	} {
		if c.coded {
			list := &pb.DeltaBatch{Series: []*pb.DeltaSeries{{Delta: []byte("\x01\x01a\x011")}}}
			for range each {
				list.Series[0].Chunks = append(list.Series[0].Chunks, &pb.AggrChunk{Raw: &pb.Chunk{}})
			}
			var err error
			if c.message, err = proto.Marshal(&pb.SeriesResponse{Result: &pb.SeriesResponse_DeltaBatch{DeltaBatch: list}}); err != nil {
				t.Fatal(err)
			}
		}
		const fits = 3
		in := &hostileStream{message: func(n int) []byte {
			if n > 100 {
				return nil
			}
			return c.message
		}}
		set := &SeriesSet{stream: in, cancel: func() {}, bytesMax: fits * each * chunkBytes}
		if set.Next() || !errors.Is(set.Err(), ErrBytesMax) || !strings.Contains(set.Err().Error(), "4000 chunks") || in.n != fits+1 {
			t.Errorf("%s: after %d messages: %v", name, in.n, set.Err())
		}
		in.n = 100 - fits + 1 // as many as fit
		set = &SeriesSet{stream: in, cancel: func() {}, bytesMax: fits * each * chunkBytes}
		if !set.Next() || len(set.Chunks()) != fits*each || set.BufferedBytes() < int64(len(set.Chunks()))*48 {
			t.Errorf("%s: %d chunks, %d bytes, %v", name, len(set.Chunks()), set.BufferedBytes(), set.Err())
		}
	}
}

// A delta of nothing repeats the labels of the series before: a few bytes of a message become thousands in memory.
func TestSeriesSet_LabelsOfAnEndlessSeriesAreCounted(t *testing.T) {
	delta := append([]byte("\x01\x01a"), binary.AppendUvarint(nil, 10_000)...)
	delta = append(delta, strings.Repeat("x", 10_000)...)
	list := []*pb.DeltaSeries{{Delta: delta}}
	for range 100 {
		list = append(list, &pb.DeltaSeries{Delta: []byte{}})
	}
	message, err := proto.Marshal(&pb.SeriesResponse{Result: &pb.SeriesResponse_DeltaBatch{DeltaBatch: &pb.DeltaBatch{Series: list}}})
	if err != nil {
		t.Fatal(err)
	}
	in := &hostileStream{message: func(n int) []byte {
		if n > 200 {
			return nil
		}
		return message
	}}
	const bytesMax = 4 << 20 // a message is 10 KB, its labels are 1 MB
	set := &SeriesSet{stream: in, cancel: func() {}, bytesMax: bytesMax}
	if set.Next() || !errors.Is(set.Err(), ErrBytesMax) || in.n > 6 {
		t.Errorf("after %d messages: %v", in.n, set.Err())
	}
}
