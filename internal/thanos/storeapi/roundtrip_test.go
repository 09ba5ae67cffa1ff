package storeapi

import (
	"github.com/ferula-io/ferula/internal/series"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
)

func TestServer_SeriesRoundTrip(t *testing.T) {
	want := rows(t, 1000)
	conn := dial(t, &memorySource{rows: want}, ServerOptions{})
	for name, opts := range map[string]ClientOptions{
		"batches of ferula": {}, "batches of Thanos": {NoExtension: true}, "one by one": {NoExtension: true, BatchSeries: 1}, "three": {NoExtension: true, BatchSeries: 3},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := read(t, NewClient(conn, opts).Series(t.Context(), SeriesRequest{MaxMS: 1 << 40, Matchers: all()}))
			if err != nil {
				t.Fatal(err)
			}
			check(t, got, want)
		})
	}
}

func TestServer_ExternalLabelsReplaceLabelsOfTheSeries(t *testing.T) {
	src := &memorySource{rows: rows(t, 100), external: labels.FromStrings("cluster", "eu", "job", "other")}
	conn := dial(t, src, ServerOptions{})
	got, err := read(t, NewClient(conn, ClientOptions{}).Series(t.Context(), SeriesRequest{MaxMS: 1 << 40, Matchers: append(all(), equal("cluster", "eu"))}))
	if err != nil {
		t.Fatal(err)
	}
	var want []row
	for _, r := range src.rows {
		b := labels.NewBuilder(r.labels)
		b.Set("cluster", "eu").Set("job", "other")
		want = append(want, row{labels: b.Labels(), chunks: r.chunks})
	}
	check(t, got, want)
}

func TestSpanLen(t *testing.T) {
	c := func(a Aggr, minMS, maxMS int64) AggrChunk {
		return AggrChunk{Aggr: a, Chunk: series.Chunk{MinMS: minMS, MaxMS: maxMS}}
	}
	for _, tt := range []struct {
		chunks []AggrChunk
		want   int
	}{
		{[]AggrChunk{c(Raw, 1, 2)}, 1},
		{[]AggrChunk{c(Count, 1, 2), c(Sum, 1, 2), c(Counter, 1, 2)}, 3},
		{[]AggrChunk{c(Count, 1, 2), c(Sum, 1, 3)}, 1},
		{[]AggrChunk{c(Count, 1, 2), c(Sum, 0, 2)}, 1},
		{[]AggrChunk{c(Sum, 1, 2), c(Sum, 1, 2)}, 1},
		{[]AggrChunk{c(Sum, 1, 2), c(Count, 1, 2)}, 1},
	} {
		if got := SpanLen(tt.chunks); got != tt.want {
			t.Errorf("%v: %d, want %d", tt.chunks, got, tt.want)
		}
	}
}
