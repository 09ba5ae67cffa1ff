package sidecar

import (
	"errors"
	"testing"

	"github.com/prometheus/prometheus/tsdb/chunkenc"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/ferula-io/ferula/bench/area"
)

func bytesField(dst []byte, number protowire.Number, b []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(dst, number, protowire.BytesType), b)
}

func varint(dst []byte, number protowire.Number, v uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(dst, number, protowire.VarintType), v)
}

// encoded is one series of one chunk.
func encoded(label, data string, minMS uint64, hash bool) []byte {
	chunk := bytesField(nil, 2, []byte(data))
	if hash {
		chunk = varint(chunk, 3, 7)
	}
	aggregate := bytesField(varint(varint(nil, 1, minMS), 2, minMS+1), 3, chunk)
	return bytesField(bytesField(nil, 1, []byte(label)), 2, aggregate)
}

func sum(t *testing.T, messages ...[]byte) contents {
	t.Helper()
	var c contents
	for _, m := range messages {
		if err := c.read(m); err != nil {
			t.Fatal(err)
		}
	}
	c.finish()
	return c
}

func TestContents_IndependentOfMessages(t *testing.T) {
	a, b := encoded("a", "x", 1, false), encoded("b", "y", 1, false)
	single := sum(t, bytesField(nil, 1, a), bytesField(nil, 1, b))
	if single.series != 2 || single.chunks != 2 {
		t.Errorf("%d series, %d chunks", single.series, single.chunks)
	}
	if batch := sum(t, bytesField(nil, 4, bytesField(bytesField(nil, 1, a), 1, b))); batch.sum != single.sum {
		t.Error("a batch differs from single series")
	}
	if hashed := sum(t, bytesField(nil, 1, encoded("a", "x", 1, true)), bytesField(nil, 1, b)); hashed.sum != single.sum {
		t.Error("a chunk's hash makes a difference")
	}
	for what, other := range map[string][][]byte{
		"order": {b, a}, "labels": {encoded("c", "x", 1, false), b}, "data": {encoded("a", "z", 1, false), b}, "time": {encoded("a", "x", 2, false), b}, "number": {a},
	} {
		var messages [][]byte
		for _, one := range other {
			messages = append(messages, bytesField(nil, 1, one))
		}
		if sum(t, messages...).sum == single.sum {
			t.Errorf("another %s makes no difference", what)
		}
	}
}

// withSamples is a response of one series, whose chunks have a sample every second: its value is the time, and add more.
func withSamples(t *testing.T, add float64, chunks ...[]int64) []byte {
	t.Helper()
	one := bytesField(nil, 1, []byte("a"))
	for _, seconds := range chunks {
		chunk := chunkenc.NewXORChunk()
		app, err := chunk.Appender()
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range seconds {
			app.Append(0, s*1000, float64(s)+add)
		}
		raw := bytesField(nil, 2, chunk.Bytes())
		one = bytesField(one, 2, bytesField(varint(varint(nil, 1, uint64(seconds[0]*1000)), 2, uint64(seconds[len(seconds)-1]*1000)), 3, raw))
	}
	return bytesField(nil, 1, one)
}

func TestContents_SamplesAreIndependentOfChunks(t *testing.T) {
	q := seriesRequest{fromMS: 3000, toMS: 6000}
	read := func(message []byte) contents {
		c := contents{samplesOf: &q}
		if err := c.read(message); err != nil {
			t.Fatal(err)
		}
		c.finish()
		return c
	}
	cut := read(withSamples(t, 0, []int64{3, 4}, []int64{5, 6}))
	if whole := read(withSamples(t, 0, []int64{1, 2, 3, 4, 5}, []int64{6, 7})); whole.sum != cut.sum || whole.samples != 4 || cut.samples != 4 {
		t.Errorf("%d and %d samples, want 4 of the same", whole.samples, cut.samples)
	}
	for what, other := range map[string][]byte{
		"value": withSamples(t, 1, []int64{3, 4}, []int64{5, 6}), "missing sample": withSamples(t, 0, []int64{3, 4}, []int64{5}),
		"time": withSamples(t, 0, []int64{3, 4}, []int64{5, 6, 6}),
	} {
		if read(other).sum == cut.sum {
			t.Errorf("%s: no difference", what)
		}
	}
	histograms := bytesField(nil, 1, bytesField(nil, 2, bytesField(nil, 3, bytesField(varint(nil, 1, 1), 2, []byte{0, 0}))))
	if err := (&contents{samplesOf: &q}).read(histograms); !errors.Is(err, errMessage) {
		t.Errorf("a chunk of another encoding: got %v", err)
	}
}

func TestSame_RequiresEverySeriesChunkAndSample(t *testing.T) {
	q := recentSeries
	full := contents{series: series, chunks: q.leastChunks(), samples: q.samples(), samplesOf: &q}
	if err := same(q, full, full); err != nil || q.samples() != series*480 {
		t.Errorf("%d samples, %v", q.samples(), err)
	}
	for what, change := range map[string]func(c *contents){
		"series": func(c *contents) { c.series-- }, "chunks": func(c *contents) { c.chunks-- }, "samples": func(c *contents) { c.samples-- },
	} {
		less := full
		change(&less)
		if err := same(q, less, less); !errors.Is(err, area.ErrEmpty) {
			t.Errorf("one less of %s: got %v, want ErrEmpty", what, err)
		}
	}
	other := full
	other.sum[0]++
	if err := same(q, full, other); !errors.Is(err, area.ErrUnequal) {
		t.Errorf("other contents: got %v, want ErrUnequal", err)
	}
	if err := same(labelsOnly, full, full); !errors.Is(err, area.ErrEmpty) {
		t.Errorf("chunks in a response of labels only: got %v", err)
	}
}

func TestAppendRequest_HasRangeMetricAndOptions(t *testing.T) {
	q := seriesRequest{fromMS: 5, toMS: 9, labels: true, without: []string{"replica"}}
	got := map[protowire.Number]uint64{}
	var matcher, without string
	err := fields(appendRequest(nil, q), func(number protowire.Number, v uint64, bytes []byte) error {
		got[number] = v
		switch number {
		case 3:
			matcher = string(bytes)
		case 14:
			without = string(bytes)
		}
		return nil
	})
	if err != nil || got[1] != 5 || got[2] != 9 || got[8] != 1 || got[16] != 64 || without != "replica" || matcher != "\x12\x08__name__\x1a\x0cbench_metric" {
		t.Errorf("%v, %q, %q, %v", got, without, matcher, err)
	}
	for _, q := range []seriesRequest{plain, plain2h, recentSeries} {
		if q.fromMS < spec.StartMS || q.toMS >= spec.EndMS() || q.toMS-q.fromMS+1 < 2*hourMS {
			t.Errorf("%+v", q)
		}
	}
}

func TestContents_RejectsWarningsAndMalformedMessages(t *testing.T) {
	for _, m := range [][]byte{bytesField(nil, 2, []byte("a store is down")), {0x0A, 0x09}, {0x0D}} {
		if err := new(contents).read(m); err == nil {
			t.Errorf("%q is taken", m)
		}
	}
}
