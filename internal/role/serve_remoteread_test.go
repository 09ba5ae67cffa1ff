package role

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/model/labels"
	prometheustsdb "github.com/prometheus/prometheus/tsdb"

	"github.com/ferula-io/ferula/internal/store/tsdb"
	"github.com/ferula-io/ferula/metrics"
)

func TestRemotes_LocalStartIsTwoBlocksAfterTheFirst(t *testing.T) {
	dir := t.TempDir()
	hour := time.Hour.Milliseconds()
	open := func() *remotes {
		s, err := tsdb.New(tsdb.Options{Dir: dir}, slog.New(slog.DiscardHandler), prometheus.NewRegistry(), metrics.NewSet())
		if err == nil {
			err = s.Open()
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		return newRemotes(s, 0)
	}
	r := open()
	before := time.Now().UnixMilli()
	got, err := r.localStart()
	if after := time.Now().UnixMilli(); err != nil || got < before+4*hour || got > after+4*hour {
		t.Errorf("an empty storage: %d at %d, %v", got, before, err)
	}
	if err := r.store.Close(); err != nil {
		t.Fatal(err)
	}
	w, err := prometheustsdb.NewBlockWriter(slog.New(slog.DiscardHandler), dir, 2*hour)
	if err != nil {
		t.Fatal(err)
	}
	from := before - 20*hour
	app := w.Appender(context.Background())
	if _, err := app.Append(0, labels.FromStrings("__name__", "m"), from, 1); err != nil {
		t.Fatal(err)
	}
	if err := app.Commit(); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Flush(context.Background()); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	r = open()
	metas, err := r.store.BlockMetas()
	if err != nil || len(metas) != 1 {
		t.Fatal(metas, err)
	}
	if got, err := r.localStart(); err != nil || got != metas[0].MinTime+4*hour {
		t.Errorf("%d, the first block begins at %d, %v", got, metas[0].MinTime, err)
	}
}
