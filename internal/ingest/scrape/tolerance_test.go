package scrape

import (
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/scrape"
)

func TestNew_SetsTheToleranceOfTimestampsOnlyIfThereIsOne(t *testing.T) {
	was := scrape.ScrapeTimestampTolerance
	t.Cleanup(func() { scrape.ScrapeTimestampTolerance = was })
	for option, want := range map[time.Duration]time.Duration{0: was, 1: 1, 7 * time.Millisecond: 7 * time.Millisecond} {
		scrape.ScrapeTimestampTolerance = was
		s, err := New(Options{TimestampTolerance: option}, newStub(), slog.New(slog.DiscardHandler), prometheus.NewRegistry())
		if err != nil {
			t.Fatal(err)
		}
		s.Close()
		if got := scrape.ScrapeTimestampTolerance; got != want {
			t.Errorf("option %s: %s, want %s", option, got, want)
		}
	}
}
