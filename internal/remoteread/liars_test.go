package remoteread

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/prompb"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/series/labelenc"
)

// oneChunk is a storage of one series with one chunk.
type oneChunk struct {
	storage.ChunkQueryable
	chunk series.Chunk
}

func (o oneChunk) RawQuerier(context.Context, int64, int64) (series.Querier, error) {
	return oneChunkQuerier{o.chunk}, nil
}

type oneChunkQuerier struct{ chunk series.Chunk }

func (q oneChunkQuerier) Select(context.Context, series.SelectOptions, ...*labels.Matcher) series.Set {
	return &oneChunkSet{chunk: q.chunk}
}
func (oneChunkQuerier) Capabilities() series.Capabilities {
	return series.Capabilities{Immutable: true}
}
func (oneChunkQuerier) LabelNames(context.Context, series.SelectOptions, ...*labels.Matcher) ([]string, error) {
	return nil, nil
}
func (oneChunkQuerier) Close() error { return nil }

type oneChunkSet struct {
	chunk series.Chunk
	read  bool
}

func (s *oneChunkSet) Next() bool                      { before := s.read; s.read = true; return !before }
func (*oneChunkSet) Labels() []byte                    { return labelenc.AppendLabel(nil, "a", "b") }
func (s *oneChunkSet) Chunks() []series.Chunk          { return []series.Chunk{s.chunk} }
func (*oneChunkSet) Err() error                        { return nil }
func (*oneChunkSet) Warnings() annotations.Annotations { return nil }

// Chunks are selected by the time range that the storage states for them. A chunk with a sample outside of its
// range is an error.
func TestServer_SampleBeyondTheTimesOfItsChunkIsAnError(t *testing.T) {
	for _, encoding := range []chunkenc.Encoding{chunkenc.EncXOR, chunkenc.EncXOR2} {
		c, err := chunkenc.NewEmptyChunk(encoding)
		if err != nil {
			t.Fatal(err)
		}
		app, err := c.Appender()
		if err != nil {
			t.Fatal(err)
		}
		for i := range int64(10) {
			app.Append(0, startMS+i*1000, float64(i))
		}
		q := peerQuery(startMS-hourMS, startMS+hourMS, everything)
		for _, tt := range []struct {
			mint, maxt int64
			whole      bool
		}{{startMS, startMS + 9000, true}, {startMS + 1, startMS + 9000, false}, {startMS, startMS + 8999, false}} {
			from := oneChunk{chunk: series.Chunk{MinMS: tt.mint, MaxMS: tt.maxt, Encoding: encoding, Data: c.Bytes()}}
			status, _, text := post(t, serve(t, from, Options{}), encode(t, prompb.ReadRequest_SAMPLES, q))
			if (status == http.StatusOK) != tt.whole || !tt.whole && !strings.Contains(string(text), "has a sample at") {
				t.Errorf("encoding %d from %d to %d: %d %.200s", encoding, tt.mint-startMS, tt.maxt-startMS, status, text)
			}
		}
	}
}
