package storeapi

import (
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
