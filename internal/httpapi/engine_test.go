package httpapi

import (
	"testing"

	"github.com/prometheus/prometheus/promql"
)

type evaluated struct {
	promql.Query
	engine, reason string
}

func (e evaluated) EvaluatedBy() (engine, reason string) { return e.engine, e.reason }

func TestEngineOf_NamesEngineAndReason(t *testing.T) {
	for want, q := range map[string]promql.Query{
		"columns":                       evaluated{engine: "columns"},
		"prometheus; reason=histograms": evaluated{engine: "prometheus", reason: "histograms"},
		"":                              struct{ promql.Query }{},
	} {
		if got := engineOf(q); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
