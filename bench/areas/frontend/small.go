package frontend

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/ferula-io/ferula/bench/area"
	"github.com/ferula-io/ferula/bench/canned"
	"github.com/ferula-io/ferula/bench/proc"
)

// Small queries are those of a dashboard's panels: few series, many requests. Concurrent requests have different queries,
// because ferula makes one call of the downstream for identical concurrent requests.
const (
	smallSeries  = 10
	smallQueries = 200
	smallRate    = 100 // requests a second, for the goal
	smallClients = 32
	smallTime    = 10 // seconds of one reading
	smallLateMax = time.Second
)

// smallLoads are the loads, in the order of their rates. Clients with gzip are the usual ones.
var smallLoads = []smallLoad{{smallRate, identity}, {smallRate, zipped}, {2 * smallRate, zipped}, {4 * smallRate, zipped}}

type smallLoad struct {
	rate    int
	request request
}

func smallCPU(q request, rate int) string {
	return fmt.Sprintf("CPU: small query, %d a second, %s", rate, q.what)
}

func renderPanels(n int) (panels []*canned.Response, err error) {
	for i := range n {
		spec := small
		spec.Query, spec.Series = fmt.Sprintf("bench_metric_%03d", i), smallSeries
		a, err := canned.Render(spec)
		if err != nil {
			return nil, err
		}
		panels = append(panels, a)
	}
	return panels, nil
}

// small measures small queries at constant rates, without a cache.
func (b *bench) small(ctx context.Context) error {
	panels, err := renderPanels(smallQueries)
	if err != nil {
		return err
	}
	return overCanned(false, func(down *canned.Server) error {
		fronts := []*front{b.front(thanos, "thanos-small", down), b.front(ferula, "ferula-small", down)}
		return b.with(ctx, func() error { return b.smallOf(ctx, panels, fronts) }, fronts...)
	}, panels...)
}

func (b *bench) smallOf(ctx context.Context, panels []*canned.Response, fronts []*front) error {
	for _, f := range fronts {
		for _, q := range []request{identity, zipped} {
			if err := b.comparePanels(ctx, f, panels, q); err != nil {
				return err
			}
		}
	}
	overloaded := map[*front]int{} // the rate
	err := b.EachRound("small queries", func(round int) error {
		for _, l := range smallLoads {
			for _, f := range fronts {
				if most, ok := overloaded[f]; ok && l.rate >= most {
					continue
				}
				err := b.measurePanels(ctx, round, f, panels, l)
				if errors.Is(err, proc.ErrOverload) && l.rate > smallRate {
					b.Logf("%s: %v", f.Name, err)
					overloaded[f] = l.rate
					continue
				}
				if err != nil {
					return err
				}
			}
		}
		return nil
	})
	b.smallNote = fmt.Sprintf("Small queries: %d series x %d samples (%.0f kB), split in two, no cache, %d different queries in turn, for %d s a reading. Requests are due at a constant rate, and latency begins when a request is due; up to %d are sent at once. Each reached the downstream in exactly two parts. frontend/small takes the worse of the ratios with and without gzip.",
		smallSeries, points, float64(len(panels[0].Whole.Plain))/1e3, len(panels), smallTime, smallClients)
	for _, f := range fronts {
		if rate, ok := overloaded[f]; ok {
			b.smallNote += fmt.Sprintf(" %s does not keep up with %d a second on this machine: its requests were sent more than %v late.", f.Name, rate, smallLateMax)
		}
	}
	return err
}

// panelWhat names the length of the response of a small query.
func panelWhat(a *canned.Response, q request) string { return a.Query + ", " + q.what }

// comparePanels compares the response of each query and keeps its length.
func (b *bench) comparePanels(ctx context.Context, f *front, panels []*canned.Response, q request) error {
	var wire int64
	for _, a := range panels {
		got, err := b.same(ctx, f, a, q)
		if err == nil {
			err = b.SameLength(f.Name, panelWhat(a, q), got.Bytes)
		}
		if err != nil {
			return err
		}
		wire += got.Wire
	}
	b.Add(1, f.Name, "bytes on the wire: small query, "+q.what, area.Bytes, float64(wire)/float64(len(panels)))
	b.Logf("responses are equal: %s: %s, %d queries", f.Name, q.what, len(panels))
	return nil
}

// measurePanels takes one reading at a rate. Every response must be as long as the one of the same query that was compared,
// and the downstream must have received each half of each request.
func (b *bench) measurePanels(ctx context.Context, round int, f *front, panels []*canned.Response, l smallLoad) error {
	load := proc.OpenLoop{Rate: l.rate, Requests: l.rate * smallTime, Clients: smallClients, LateMax: smallLateMax}
	if b.Short {
		load.Requests = l.rate
	}
	got := make([]proc.Response, load.Requests)
	var latencies []time.Duration
	cpu, err := f.CPUDuring(ctx, func() (err error) {
		latencies, err = load.Run(ctx, func(ctx context.Context, _, i int) (err error) {
			got[i], err = f.Get(ctx, f.requestFor(panels[i%len(panels)], l.request), io.Discard)
			return err
		})
		return err
	})
	served, unknown := f.down.Take()
	if err := errors.Join(err, unknown); err != nil {
		return fmt.Errorf("%s: small query: %w", f.Name, err)
	}
	sent := make([]int, len(panels))
	for i, a := range got {
		panel := panels[i%len(panels)]
		sent[i%len(panels)]++
		if a.Encoding != l.request.encoding {
			return fmt.Errorf("%s: %s: %w: encoding %q", f.Name, panel.Query, area.ErrUnequal, a.Encoding)
		}
		if err := b.SameLength(f.Name, panelWhat(panel, l.request), a.Bytes); err != nil {
			return err
		}
	}
	if err := checkParts(panels, sent, served); err != nil {
		return fmt.Errorf("%s: small query: %w", f.Name, err)
	}
	b.Add(round, f.Name, smallCPU(l.request, l.rate), area.Seconds, cpu.Seconds()/float64(load.Requests))
	for _, percentile := range []int{50, 99} {
		what := fmt.Sprintf("latency p%d: small query, %d a second, %s", percentile, l.rate, l.request.what)
		b.Add(round, f.Name, what, area.Seconds, proc.Quantile(latencies, float64(percentile)/100).Seconds())
	}
	return nil
}
