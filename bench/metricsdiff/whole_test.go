package metricsdiff

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"

	peer "github.com/VictoriaMetrics/metrics"

	ours "github.com/ferula-io/ferula/metrics"
)

// The operations of a program on a metric of either library.
type (
	counter      interface{ Inc() }
	floatCounter interface{ Add(float64) }
	gauge        interface{ Set(float64) }
	updated      interface{ Update(float64) }
)

// A program that changes only its import path: it uses the functions of the package, a callback, a writer and its own set,
// and unregisters that set.
func TestDefaultSet_WritesThePeersBytes(t *testing.T) {
	compare := func(when string) {
		t.Helper()
		var p, o bytes.Buffer
		peer.WritePrometheus(&p, false)
		ours.WritePrometheus(&o, false)
		if p.String() != o.String() || p.Len() == 0 && when != "at the end" {
			t.Errorf("%s: peer:\n%s\nours:\n%s", when, p.String(), o.String())
		}
	}
	fill := func(counter func(string) counter, float func(string) floatCounter, gauge func(string) gauge, updates ...updated) {
		counter("c").Inc()
		float("f").Add(1e21)
		gauge("g").Set(-0.5)
		for _, u := range updates {
			for _, v := range []float64{0.5, 1, 1e9, 1.0 / 3} {
				u.Update(v)
			}
		}
	}
	fill(func(n string) counter { return peer.NewCounter(n) }, func(n string) floatCounter { return peer.NewFloatCounter(n) }, func(n string) gauge { return peer.NewGauge(n, nil) },
		peer.NewHistogram("h"), peer.NewPrometheusHistogram("p"), peer.NewSummary("s"), peer.GetOrCreatePrometheusHistogramExt("q", []float64{1}), peer.GetOrCreateSummary("r"))
	fill(func(n string) counter { return ours.NewCounter(n) }, func(n string) floatCounter { return ours.NewFloatCounter(n) }, func(n string) gauge { return ours.NewGauge(n, nil) },
		ours.NewHistogram("h"), ours.NewPrometheusHistogram("p"), ours.NewSummary("s"), ours.GetOrCreatePrometheusHistogramExt("q", []float64{1}), ours.GetOrCreateSummary("r"))
	called := func() float64 { return 1e15 }
	peer.NewGauge("called", called)
	ours.NewGauge("called", called)
	compare("all types")

	written := func(w io.Writer) { fmt.Fprintln(w, "written 1") }
	peer.RegisterMetricsWriter(written)
	ours.RegisterMetricsWriter(written)
	compare("with a writer")

	if p, o := fmt.Sprint(peer.ListMetricNames()), fmt.Sprint(ours.ListMetricNames()); p != o {
		t.Errorf("names: peer %s, ours %s", p, o)
	}
	if p, o := peer.UnregisterMetric("s"), ours.UnregisterMetric("s"); p != o {
		t.Errorf("unregister: peer %v, ours %v", p, o)
	}
	compare("without a summary")

	peer.UnregisterAllMetrics()
	ours.UnregisterAllMetrics()
	peerSet, ourSet := peer.NewSet(), ours.NewSet()
	peer.RegisterSet(peerSet)
	ours.RegisterSet(ourSet)
	peerSet.NewCounter("in_a_set")
	ourSet.NewCounter("in_a_set")
	compare("a set of its own")
	peer.UnregisterSet(peerSet, true)
	ours.UnregisterSet(ourSet, true)
	compare("at the end")
}

func TestHistogram_MergeAndVisitMatchThePeer(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	var p, pOther peer.Histogram
	var o, oOther ours.Histogram
	for range 20_000 {
		v := value(r)
		if r.IntN(2) == 0 {
			p.Update(v)
			o.Update(v)
		} else {
			pOther.Update(v)
			oOther.Update(v)
		}
	}
	p.Merge(&pOther)
	o.Merge(&oOther)
	var a, b bytes.Buffer
	p.VisitNonZeroBuckets(func(vmrange string, n uint64) { fmt.Fprintln(&a, vmrange, n) })
	o.VisitNonZeroBuckets(func(vmrange string, n uint64) { fmt.Fprintln(&b, vmrange, n) })
	if a.String() != b.String() || a.Len() < 1000 {
		t.Errorf("peer:\n%s\nours:\n%s", a.String(), b.String())
	}
}
