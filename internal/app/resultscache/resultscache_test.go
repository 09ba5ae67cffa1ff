package resultscache

import (
	"context"
	"io"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/ferula-io/ferula/internal/frontend/cache"
	"github.com/ferula-io/ferula/metrics"
)

const (
	head = `{"status":"success","data":{"resultType":"matrix","result":[{"metric":{"__name__":"m"},"values":[`
	tail = `]}]}}`
)

func TestNew_ReportsKeysWithoutEffectAndRefusesUnknownTypes(t *testing.T) {
	c, inert, err := New("type: IN-MEMORY\nconfig:\n  max_size: 1MB\n", "query_range", slog.New(slog.DiscardHandler), metrics.NewSet())
	if err != nil || inert != nil {
		t.Fatal(inert, err)
	}
	defer c.Close()
	if _, _, err := New("type: DISK\n", "labels", slog.New(slog.DiscardHandler), metrics.NewSet()); err == nil {
		t.Error("a cache of type DISK")
	}
}

func TestCache_ReturnsWhatWasCommitted(t *testing.T) {
	c, _, err := New("type: IN-MEMORY\nconfig:\n  max_size: 1MB\n", "query_range", slog.New(slog.DiscardHandler), metrics.NewSet())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	want := head + `[1,"1"],[2,"2"]` + tail
	w := c.NewWriter("key", 1000, 2000, 1000)
	if _, err := io.WriteString(w, want); err != nil {
		t.Fatal(err)
	}
	w.Commit()
	if found := c.Lookup(context.Background(), "other", 0, 9000); len(found) != 0 {
		t.Error(found)
	}
	found := c.Lookup(context.Background(), "key", 0, 9000)
	if len(found) != 1 {
		t.Fatal(found)
	}
	if from, to := found[0].Bounds(); from != 1000 || to != 2000 {
		t.Error(from, to)
	}
	body, err := found[0].Open(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	if got, err := io.ReadAll(body); string(got) != want || err != nil {
		t.Errorf("%s, %v", got, err)
	}
}

func TestMergeExtents_JoinsSeriesAndCutsOverlaps(t *testing.T) {
	var out strings.Builder
	err := mergeExtents(context.Background(), &out, []cache.Source{
		{Reader: strings.NewReader(head + `[1,"1"],[2,"2"]` + tail), StartMS: 1000, EndMS: 2000},
		{Reader: strings.NewReader(head + `[2,"9"],[3,"3"],[4,"9"]` + tail), StartMS: 3000, EndMS: 3000},
	})
	if points := strings.Split(out.String(), `"values":`); err != nil || len(points) != 2 || !strings.HasPrefix(points[1], `[[1,"1"],[2,"2"],[3,"3"]]`) {
		t.Error(slices.Clone(points), err)
	}
	if err := mergeExtents(context.Background(), io.Discard, []cache.Source{{Reader: strings.NewReader("{")}}); err == nil {
		t.Error("a broken extent")
	}
}
