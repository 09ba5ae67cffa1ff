package scrape

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/discovery/targetgroup"
	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/scrape"
	"github.com/prometheus/prometheus/storage"
)

// counting is a storage that gives references and keeps nothing.
type counting struct{ ref storage.SeriesRef }

func (c *counting) AppenderV2(context.Context) storage.AppenderV2 { return c }
func (*counting) Commit() error                                   { return nil }
func (*counting) Rollback() error                                 { return nil }

func (c *counting) Append(ref storage.SeriesRef, _ labels.Labels, _, _ int64, _ float64, _ *histogram.Histogram,
	_ *histogram.FloatHistogram, _ storage.AppendV2Options) (storage.SeriesRef, error) {
	if ref == 0 {
		c.ref++
		ref = c.ref
	}
	return ref, nil
}

// benchPage has 1,000 series, half of whose values differ between pages.
// churned of its series are in no other page.
func benchPage(page int, shuffled bool, churned int) string {
	r := rand.New(rand.NewPCG(1, uint64(page)))
	families := make([]string, 100)
	for i := range families {
		var b strings.Builder
		fmt.Fprintf(&b, "# HELP family_%d_total The requests of a kind.\n# TYPE family_%d_total counter\n", i, i)
		for j := range 10 {
			v := float64(i * j)
			if j%2 == 0 {
				v = r.Float64() * 1e5
			}
			handler := "/api/v1/query"
			if j == 5 && i < churned {
				handler = fmt.Sprint("/", page)
			}
			fmt.Fprintf(&b, "family_%d_total{method=\"GET\",code=\"20%d\",handler=\"%s\"} %v\n", i, j, handler, v)
		}
		families[i] = b.String()
	}
	if shuffled {
		r.Shuffle(len(families), func(i, j int) { families[i], families[j] = families[j], families[i] })
	}
	return strings.Join(families, "")
}

// 1,000 targets of 1,000 series are scraped in turn, without HTTP. "parser" is the path of a page without a layout.
func BenchmarkPage(b *testing.B) {
	for name, mode := range map[string]struct {
		parser, shuffled bool
		churned          int
	}{"layout": {}, "parser": {parser: true}, "shuffled": {shuffled: true}, "churn": {churned: 10}} {
		b.Run(name, func(b *testing.B) {
			const targets = 1000
			g := &targetgroup.Group{}
			for i := range targets {
				g.Targets = append(g.Targets, model.LabelSet{model.AddressLabel: model.LabelValue(fmt.Sprintf("t%d:80", i))})
			}
			tw := newTwins(b, "  - {job_name: j, scrape_interval: INTERVAL}\n", map[string][]*targetgroup.Group{"j": {g}}, scrape.Options{})
			to := &counting{}
			var loops []*loop
			for _, l := range tw.ours.pools["j"].loops {
				loops = append(loops, l)
			}
			var bodies [8][]byte
			for i := range bodies {
				bodies[i] = []byte(benchPage(i, mode.shuffled, mode.churned))
			}
			scrapeOne := func(l *loop, body []byte) {
				if mode.parser {
					l.cache.pause = 1
				}
				if err := l.newPage(to, time.Now()).append(body, plainText); err != nil {
					b.Fatal(err)
				}
			}
			for i, l := range loops {
				scrapeOne(l, bodies[i%2])
			}
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				scrapeOne(loops[i%targets], bodies[i/targets%len(bodies)])
				i++
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/1000, "ns/sample")
		})
	}
}
