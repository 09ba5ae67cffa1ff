package remoteread

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"github.com/gogo/protobuf/proto"
	"github.com/prometheus/prometheus/prompb"
	"github.com/prometheus/prometheus/storage/remote"

	"github.com/ferula-io/ferula/internal/series"
)

func peerRequest() *prompb.ReadRequest {
	return &prompb.ReadRequest{
		AcceptedResponseTypes: []prompb.ReadRequest_ResponseType{prompb.ReadRequest_STREAMED_XOR_CHUNKS, prompb.ReadRequest_SAMPLES},
		Queries: []*prompb.Query{
			{StartTimestampMs: -5, EndTimestampMs: 1767225600000, Matchers: []*prompb.LabelMatcher{
				{Type: prompb.LabelMatcher_EQ, Name: "job", Value: "node"},
				{Type: prompb.LabelMatcher_NRE, Name: "pod", Value: "a|b"},
				{Type: prompb.LabelMatcher_NEQ, Name: "zone", Value: ""},
			}},
			{StartTimestampMs: 1, EndTimestampMs: 2, Matchers: []*prompb.LabelMatcher{{Type: prompb.LabelMatcher_RE, Name: "x", Value: ".+"}},
				Hints: &prompb.ReadHints{StepMs: 15, Func: "rate", StartMs: 7, EndMs: 8, Grouping: []string{"a", "b"}, By: true, RangeMs: 300000}},
		},
	}
}

func TestQuery_RangeIsThatOfTheHints(t *testing.T) {
	for _, tt := range []struct {
		hints      *prompb.ReadHints
		start, end int64
	}{
		{nil, 1, 2},
		{&prompb.ReadHints{Func: "series"}, 1, 2},
		{&prompb.ReadHints{StartMs: 3, EndMs: 4}, 3, 4},
		{&prompb.ReadHints{EndMs: 4}, 0, 4},
	} {
		if start, end := rangeOf(&prompb.Query{StartTimestampMs: 1, EndTimestampMs: 2, Hints: tt.hints}); start != tt.start || end != tt.end {
			t.Errorf("%+v: %d to %d, want %d to %d", tt.hints, start, end, tt.start, tt.end)
		}
	}
}

// peerFrame returns a frame of Prometheus' own writer.
func peerFrame(t testing.TB, index int64, chunks []prompb.Chunk) []byte {
	t.Helper()
	payload, err := proto.Marshal(&prompb.ChunkedReadResponse{QueryIndex: index, ChunkedSeries: []*prompb.ChunkedSeries{{
		Labels: []prompb.Label{{Name: "__name__", Value: "up"}, {Name: "job", Value: "node"}}, Chunks: chunks,
	}}})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if _, err := remote.NewChunkedWriter(&out, noFlush{}).Write(payload); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

type noFlush struct{}

func (noFlush) Flush() {}

var testLabels = []byte("\x0a\x0e\x0a\x08__name__\x12\x02up\x0a\x0b\x0a\x03job\x12\x04node")

func wholeFrame(dst []byte, index int, chunks []prompb.Chunk) []byte {
	size := 0
	for _, c := range chunks {
		size += chunkSize(c.MinTimeMs, c.MaxTimeMs, uint8(c.Type), len(c.Data))
	}
	start := len(dst)
	dst = appendFrameHead(dst, index, testLabels, size)
	for _, c := range chunks {
		dst = appendChunk(dst, c.MinTimeMs, c.MaxTimeMs, uint8(c.Type), c.Data)
	}
	return sealFrame(dst, start, index)
}

func TestFrame_EncodingEqualsPrometheus(t *testing.T) {
	for _, chunks := range [][]prompb.Chunk{
		{{MinTimeMs: 1, MaxTimeMs: 2, Type: prompb.Chunk_XOR, Data: []byte("abc")}},
		{{MinTimeMs: -1, MaxTimeMs: 0, Type: prompb.Chunk_FLOAT_HISTOGRAM_ST, Data: make([]byte, 1000)}, {}},
		{{MinTimeMs: 1767225600000, MaxTimeMs: 1767225600000, Type: prompb.Chunk_XOR2, Data: make([]byte, 70_000)}},
		nil,
	} {
		for _, index := range []int{0, 1, 300} {
			want := peerFrame(t, int64(index), chunks)
			got := wholeFrame([]byte("before"), index, chunks)
			if !bytes.Equal(got[6:], want) || string(got[:6]) != "before" {
				t.Errorf("%d chunks, query %d: %x, want %x", len(chunks), index, got[6:min(len(got), 100)], want[:min(len(want), 94)])
			}
			size := 0
			for _, c := range chunks {
				size += chunkSize(c.MinTimeMs, c.MaxTimeMs, uint8(c.Type), len(c.Data))
			}
			if got := frameSize(index, len(testLabels), size); got != len(want) {
				t.Errorf("frameSize = %d, want %d", got, len(want))
			}
			payload, checksum := cutFrame(t, want)
			if err := checkFrame(payload, checksum); err != nil {
				t.Error(err)
			}
			gotIndex, lset, decoded, err := decodeFrame(payload, nil, nil)
			if err != nil || gotIndex != int64(index) || !bytes.Equal(lset, testLabels) || len(decoded) != len(chunks) {
				t.Fatalf("decoded %d, %q, %d chunks, %v", gotIndex, lset, len(decoded), err)
			}
			for i, c := range decoded {
				w := chunks[i]
				if c.MinMS != w.MinTimeMs || c.MaxMS != w.MaxTimeMs || int32(c.Encoding) != int32(w.Type) || !bytes.Equal(c.Data, w.Data) {
					t.Errorf("chunk %d: %+v", i, c)
				}
			}
		}
	}
}

func cutFrame(t testing.TB, frame []byte) (payload []byte, checksum uint32) {
	t.Helper()
	size, n := binary.Uvarint(frame)
	if n <= 0 || int(size)+n+4 != len(frame) {
		t.Fatalf("frame of %d bytes has length %d", len(frame), size)
	}
	return frame[n+4:], binary.BigEndian.Uint32(frame[n:])
}

func TestDecode_InvalidMessageIsAnError(t *testing.T) {
	good, err := peerRequest().Marshal()
	if err != nil {
		t.Fatal(err)
	}
	withMatchers := func(n, queries int) (src []byte) {
		for range queries {
			src = binary.AppendUvarint(append(src, 0x0A), uint64(2*n))
			src = append(src, bytes.Repeat([]byte{0x1A, 0}, n)...)
		}
		return src
	}
	if r, err := DecodeRequest(withMatchers(fieldsMax/2-1, 2)); err != nil || len(r.Queries) != 2 {
		t.Errorf("as many matchers as there may be: %v", err)
	}
	for name, src := range map[string][]byte{
		"cut short":         good[:len(good)-1],
		"field 0":           {0x00, 1},
		"group":             {0x0B},
		"query as varint":   {0x08, 1},
		"negative length":   {0x0A, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x01},
		"too many queries":  bytes.Repeat([]byte{0x0A, 0}, queriesMax+1),
		"too many matchers": withMatchers(fieldsMax/2, 2),
		"too many types":    bytes.Repeat([]byte{0x10, 0}, fieldsMax+1),
		"packed cut short":  {0x12, 1, 0x80},
		"matcher cut short": {0x0A, 3, 0x1A, 1, 0x12},
		"name as varint":    {0x0A, 4, 0x1A, 2, 0x10, 1},
		"type as text":      {0x0A, 4, 0x1A, 2, 0x0A, 0},
	} {
		if _, err := DecodeRequest(src); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, payload := range map[string][]byte{
		"empty":            nil,
		"two series":       {0x0A, 0, 0x0A, 0},
		"unknown encoding": {0x0A, 4, 0x12, 2, 0x18, 7},
		"text for a time":  {0x0A, 4, 0x12, 2, 0x0A, 0},
		"varint for data":  {0x0A, 4, 0x12, 2, 0x20, 0},
	} {
		if _, _, _, err := decodeFrame(payload, nil, nil); !errors.Is(err, ErrCorrupt) {
			t.Errorf("frame %s: %v", name, err)
		}
	}
	if err := checkFrame([]byte("x"), 1); !errors.Is(err, ErrCorrupt) {
		t.Error(err)
	}
}

func FuzzRequest(f *testing.F) {
	good, err := peerRequest().Marshal()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte{0x10, 1, 0x10, 0})
	f.Fuzz(func(t *testing.T, src []byte) {
		if r, err := DecodeRequest(src); err != nil && !errors.Is(err, ErrCorrupt) || err == nil && len(r.Queries) > queriesMax {
			t.Fatal(err)
		}
	})
}

func FuzzFrame(f *testing.F) {
	payload, _ := cutFrame(f, peerFrame(f, 3, []prompb.Chunk{{MinTimeMs: 1, MaxTimeMs: 2, Type: 1, Data: []byte("abc")}}))
	f.Add(payload)
	f.Fuzz(func(t *testing.T, payload []byte) {
		_, _, chunks, err := decodeFrame(payload, nil, nil)
		if err != nil && !errors.Is(err, ErrCorrupt) {
			t.Fatal(err)
		}
		for _, c := range chunks {
			if c.Encoding > encodingMax {
				t.Fatal(c.Encoding)
			}
		}
	})
}

func TestFrame_DoesNotAllocate(t *testing.T) {
	chunks := []prompb.Chunk{{MinTimeMs: 1, MaxTimeMs: 2, Type: 1, Data: make([]byte, 200)}}
	buf, lset, decoded := make([]byte, 0, 4096), make([]byte, 0, 1024), make([]series.Chunk, 0, 8)
	n := testing.AllocsPerRun(100, func() {
		buf = wholeFrame(buf[:0], 1, chunks)
		size, n := binary.Uvarint(buf)
		if _, _, _, err := decodeFrame(buf[n+4:n+4+int(size)], lset[:0], decoded[:0]); err != nil {
			t.Fatal(err)
		}
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestDecodeFrame_UnknownFieldsOfAChunkAreSkipped(t *testing.T) {
	chunk := []byte{0x08, 1, 0x10, 2, 0x18, 1, 0x22, 1, 'x', 0x2A, 1, 'y', 0x28, 7, 0x32, 0}
	payload := append([]byte{0x0A, byte(2 + len(chunk)), 0x12, byte(len(chunk))}, chunk...)
	_, _, chunks, err := decodeFrame(payload, nil, nil)
	if err != nil || len(chunks) != 1 || chunks[0].MinMS != 1 || chunks[0].MaxMS != 2 || string(chunks[0].Data) != "x" {
		t.Errorf("%+v, %v", chunks, err)
	}
}

func TestDecodeChunk_CutOrOfAnotherTypeIsCorrupt(t *testing.T) {
	for name, src := range map[string][]byte{
		"a tag alone": {1 << 3}, "an endless number": {1<<3 | wireVarint, 0x80}, "data that is cut": {4<<3 | wireBytes, 5, 'a'},
		"a time of another type": {1<<3 | wireBytes, 0}, "data of another type": {4<<3 | wireVarint, 1},
	} {
		if c, err := decodeChunk(src); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %+v %v", name, c, err)
		}
	}
}
