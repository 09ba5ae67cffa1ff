package scrape

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/discovery"
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

// Each of the three groups of metrics may be in the registry already.
func TestNew_ErrorsNameWhatCannotBeRegistered(t *testing.T) {
	logger := slog.New(slog.DiscardHandler)
	for want, register := range map[string]func(reg *prometheus.Registry){
		"service discovery metrics: ": func(reg *prometheus.Registry) {
			if _, err := discovery.CreateAndRegisterSDMetrics(reg); err != nil {
				t.Fatal(err)
			}
		},
		"failed to create the discovery manager": func(reg *prometheus.Registry) {
			reg.MustRegister(prometheus.NewGauge(prometheus.GaugeOpts{Name: "prometheus_sd_failed_configs", Help: "another"}))
		},
	} {
		reg := prometheus.NewRegistry()
		register(reg)
		if s, err := New(Options{}, newStub(), logger, reg); s != nil || err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, %v, want %q", s, err, want)
		}
	}
}
