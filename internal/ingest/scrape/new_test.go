package scrape

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

func TestNew_FailsIfItsMetricsCannotBeRegistered(t *testing.T) {
	logger := slog.New(slog.DiscardHandler)
	reg := prometheus.NewRegistry()
	s, err := New(Options{}, newStub(), logger, reg)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if again, err := New(Options{}, newStub(), logger, reg); again != nil || err == nil || !strings.HasPrefix(err.Error(), "scrape manager: ") && !strings.HasPrefix(err.Error(), "service discovery metrics: ") {
		t.Errorf("%v, %v", again, err)
	}
}
