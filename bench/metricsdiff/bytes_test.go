package metricsdiff

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"
	"time"

	peer "github.com/VictoriaMetrics/metrics"

	ours "github.com/ferula-io/ferula/metrics"
)

// Parts of metric names: families that are prefixes of each other, all forms of labels, and escapes.
var labels = []string{
	"", "{}", `{a="b"}`, `{a="b",c="d"}`, `{a="b",r="d"}`, `{r="1"}`, `{q="1"}`, `{z="}"}`, `{z="a\"b"}`, `{z="\\",a="1"}`, `{le="1"}`, `{a="b", x="y"}`,
}

var families = []string{"m", "m_", "m_total", "M", "m:x", "n.dotted", "m_sum", "a"}

// value returns a number of any kind, mostly common ones.
func value(r *rand.Rand) float64 {
	switch r.IntN(12) {
	case 0:
		return []float64{0, 1, math.Inf(1), math.NaN(), -1, math.Inf(-1), 1e18, 1e-9, math.MaxFloat64, math.SmallestNonzeroFloat64, 1e15, 123456789}[r.IntN(12)]
	case 1:
		return math.Pow(10, float64(r.IntN(500)-10)/18-9)
	case 2:
		return math.Exp(r.Float64()*60 - 25)
	case 3, 4, 5:
		return float64(r.IntN(1000))
	case 6:
		return -r.Float64()
	}
	return r.Float64() * 100
}

// pair applies the same operation to both libraries.
type pair struct {
	p *peer.Set
	o *ours.Set
}

// both runs both functions and checks that both panic or neither does.
func both(t *testing.T, what string, p, o func()) {
	t.Helper()
	if a, b := panics(p), panics(o); a != b {
		t.Fatalf("%s: the peer panics: %v, ours: %v", what, a, b)
	}
}

func panics(f func()) (yes bool) {
	defer func() { yes = recover() != nil }()
	f()
	return
}

// step runs a random operation. It skips a summary "m{}": its quantile lines equal those of "m", and the peer panics.
func (s pair) step(t *testing.T, r *rand.Rand) {
	kind := r.IntN(7)
	name := fmt.Sprintf("%s%d%s", families[r.IntN(len(families))], kind, labels[r.IntN(len(labels))])
	if kind >= 5 {
		name = strings.TrimSuffix(name, "{}")
	}
	if r.IntN(20) == 0 { // another type: both panic or none
		name = strings.Replace(name, fmt.Sprint(kind), fmt.Sprint(r.IntN(5)), 1)
	}
	v, n, isNew := value(r), r.IntN(100), r.IntN(4) == 0
	switch kind {
	case 0:
		p, o := s.p.GetOrCreateCounter, s.o.GetOrCreateCounter
		if isNew {
			p, o = s.p.NewCounter, s.o.NewCounter
		}
		both(t, name, func() { p(name).Add(n) }, func() { o(name).Add(n) })
	case 1:
		both(t, name, func() { s.p.GetOrCreateFloatCounter(name).Add(v) }, func() { s.o.GetOrCreateFloatCounter(name).Add(v) })
		both(t, name, func() { s.p.GetOrCreateFloatCounter(name).Sub(1) }, func() { s.o.GetOrCreateFloatCounter(name).Sub(1) })
	case 2:
		both(t, name, func() { s.p.GetOrCreateGauge(name, nil).Set(v) }, func() { s.o.GetOrCreateGauge(name, nil).Set(v) })
		both(t, name, func() { s.p.GetOrCreateGauge(name, nil).Dec() }, func() { s.o.GetOrCreateGauge(name, nil).Dec() })
	case 3:
		both(t, name, func() { s.p.GetOrCreateHistogram(name).Update(v) }, func() { s.o.GetOrCreateHistogram(name).Update(v) })
		if n == 0 {
			both(t, name, func() { s.p.GetOrCreateHistogram(name).Reset() }, func() { s.o.GetOrCreateHistogram(name).Reset() })
		}
	case 4:
		bounds := []float64{0.5, 1, 10, 1e6, 1e21, math.Inf(1)}[n%3:]
		both(t, name, func() { s.p.GetOrCreatePrometheusHistogramExt(name, bounds).Update(v) }, func() { s.o.GetOrCreatePrometheusHistogramExt(name, bounds).Update(v) })
		if n == 0 {
			both(t, name, func() { s.p.GetOrCreatePrometheusHistogramExt(name, bounds).Reset() }, func() { s.o.GetOrCreatePrometheusHistogramExt(name, bounds).Reset() })
		}
	case 5:
		for range n {
			v := value(r)
			both(t, name, func() { s.p.GetOrCreateSummary(name).Update(v) }, func() { s.o.GetOrCreateSummary(name).Update(v) })
		}
	case 6:
		quantiles := []float64{0.999, 0, 0.25, 1, 0.3, 1e-7}
		both(t, name, func() { s.p.GetOrCreateSummaryExt(name, time.Hour, quantiles).Update(v) }, func() { s.o.GetOrCreateSummaryExt(name, time.Hour, quantiles).Update(v) })
	}
	if r.IntN(50) == 0 {
		if p, o := s.p.UnregisterMetric(name), s.o.UnregisterMetric(name); p != o {
			t.Fatalf("unregister %s: peer %v, ours %v", name, p, o)
		}
	}
}

func (s pair) compare(t *testing.T, step int) {
	t.Helper()
	var p, o bytes.Buffer
	s.p.WritePrometheus(&p)
	s.o.WritePrometheus(&o)
	if !bytes.Equal(p.Bytes(), o.Bytes()) {
		pLines, oLines := strings.Split(p.String(), "\n"), strings.Split(o.String(), "\n")
		for i := range min(len(pLines), len(oLines)) {
			if pLines[i] != oLines[i] {
				t.Fatalf("step %d, line %d:\npeer %s\nours %s", step, i+1, pLines[i], oLines[i])
			}
		}
		t.Fatalf("step %d: the peer has %d lines, ours %d", step, len(pLines), len(oLines))
	}
	if p, o := fmt.Sprint(s.p.ListMetricNames()), fmt.Sprint(s.o.ListMetricNames()); p != o {
		t.Fatalf("step %d: names\npeer %s\nours %s", step, p, o)
	}
}

func TestSet_SameOperationsWriteTheSameBytes(t *testing.T) {
	for seed := range uint64(8) {
		for _, metadata := range []bool{false, true} {
			peer.ExposeMetadata(metadata)
			ours.ExposeMetadata(metadata)
			r := rand.New(rand.NewPCG(seed, 1))
			s := pair{peer.NewSet(), ours.NewSet()}
			for step := range 3000 {
				s.step(t, r)
				if step%(1+step/20) == 0 {
					s.compare(t, step)
				}
			}
			s.compare(t, 3000)
			s.p.UnregisterAllMetrics()
			s.o.UnregisterAllMetrics()
			s.compare(t, 3001)
		}
	}
	peer.ExposeMetadata(false)
	ours.ExposeMetadata(false)
}

func TestNames_ValidityMatchesThePeer(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	pieces := []string{"a", "{", "}", `"`, "=", ",", " ", `\`, "\n", "9", ".", ":", "_", "é", `b="c"`, "\xff"}
	for range 200_000 {
		name := ""
		for range r.IntN(9) {
			name += pieces[r.IntN(len(pieces))]
		}
		if p, o := peer.ValidateMetric(name), ours.ValidateMetric(name); (p == nil) != (o == nil) {
			t.Fatalf("%q: peer %v, ours %v", name, p, o)
		}
	}
}

func TestWriteFunctions_MatchThePeer(t *testing.T) {
	for _, metadata := range []bool{false, true} {
		peer.ExposeMetadata(metadata)
		ours.ExposeMetadata(metadata)
		var p, o bytes.Buffer
		for _, name := range []string{"a", `a_total{b="c"}`} {
			for _, v := range []float64{0, 1, 1e6, 1e21, 0.1, math.NaN(), math.Inf(-1)} {
				peer.WriteCounterFloat64(&p, name, v)
				ours.WriteCounterFloat64(&o, name, v)
				peer.WriteGaugeFloat64(&p, name, v)
				ours.WriteGaugeFloat64(&o, name, v)
			}
			peer.WriteCounterUint64(&p, name, math.MaxUint64)
			ours.WriteCounterUint64(&o, name, math.MaxUint64)
			peer.WriteGaugeUint64(&p, name, 7)
			ours.WriteGaugeUint64(&o, name, 7)
			peer.WriteMetadataIfNeeded(&p, name, "summary")
			ours.WriteMetadataIfNeeded(&o, name, "summary")
		}
		if p.String() != o.String() {
			t.Errorf("peer:\n%s\nours:\n%s", p.String(), o.String())
		}
	}
	peer.ExposeMetadata(false)
	ours.ExposeMetadata(false)
}

func TestBuckets_HelpersMatchThePeer(t *testing.T) {
	for _, c := range []struct {
		start, by float64
		n         int
	}{{1, 2, 10}, {0.1, 0.1, 20}, {0.001, 1.5, 5}, {1, 1, 3}, {0, 2, 3}, {-1, 2, 3}, {1, 0, 3}, {1, -1, 3}, {1, 2, 0}, {1, 2, -1}, {1, 0, 1}} {
		var p, o []float64
		both(t, fmt.Sprint("linear ", c), func() { p = peer.LinearBuckets(c.start, c.by, c.n) }, func() { o = ours.LinearBuckets(c.start, c.by, c.n) })
		if fmt.Sprint(p) != fmt.Sprint(o) {
			t.Errorf("linear %v: %v and %v", c, p, o)
		}
		p, o = nil, nil
		both(t, fmt.Sprint("exponential ", c), func() { p = peer.ExponentialBuckets(c.start, c.by, c.n) }, func() { o = ours.ExponentialBuckets(c.start, c.by, c.n) })
		if fmt.Sprint(p) != fmt.Sprint(o) {
			t.Errorf("exponential %v: %v and %v", c, p, o)
		}
		if (peer.ValidateBuckets(p) == nil) != (ours.ValidateBuckets(o) == nil) {
			t.Errorf("validate %v", c)
		}
	}
	if fmt.Sprint(peer.PrometheusHistogramDefaultBuckets) != fmt.Sprint(ours.PrometheusHistogramDefaultBuckets) {
		t.Error("default buckets")
	}
}

var figures = regexp.MustCompile(`(?m) \S+$`)

// The values of process metrics change between two scrapes, so only the lines and their order are compared.
func TestProcessMetrics_HaveThePeersLines(t *testing.T) {
	for name, c := range map[string]struct{ p, o func(w io.Writer) }{
		"process": {peer.WriteProcMetrics, ours.WriteProcMetrics},
		"files":   {peer.WriteFDMetrics, ours.WriteFDMetrics},
		"go":      {peer.WriteGoMetrics, ours.WriteGoMetrics},
	} {
		for _, metadata := range []bool{false, true} {
			peer.ExposeMetadata(metadata)
			ours.ExposeMetadata(metadata)
			var p, o bytes.Buffer
			c.p(&p)
			c.o(&o)
			a, b := figures.ReplaceAllString(p.String(), ""), figures.ReplaceAllString(o.String(), "")
			if a != b {
				t.Errorf("%s: peer:\n%s\nours:\n%s", name, a, b)
			}
		}
	}
	peer.ExposeMetadata(false)
	ours.ExposeMetadata(false)
}
