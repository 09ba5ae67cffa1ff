package frontend

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
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

func smallLatency(percentile int, q request, rate int) string {
	return fmt.Sprintf("latency p%d: small query, %d a second, %s", percentile, rate, q.what)
}

// panels are small queries with their responses, and the length of each response on each side.
type panels struct {
	responses []*canned.Response
	lengths   map[*front]map[request][]int64
}

func renderPanels(n int) (*panels, error) {
	p := &panels{lengths: map[*front]map[request][]int64{}}
	for i := range n {
		spec := small
		spec.Query, spec.Series = fmt.Sprintf("bench_metric_%03d", i), smallSeries
		a, err := canned.Render(spec)
		if err != nil {
			return nil, err
		}
		p.responses = append(p.responses, a)
	}
	return p, nil
}

// small measures small queries at constant rates, without a cache.
func (b *bench) small(ctx context.Context) (err error) {
	p, err := renderPanels(smallQueries)
	if err != nil {
		return err
	}
	down, err := canned.Serve(false, p.responses...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, down.Close()) }()
	fronts := []*front{b.frontOf(thanos, "thanos-small", down, ""), b.frontOf(ferula, "ferula-small", down, "")}
	if err := b.start(ctx, fronts...); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop(fronts...)) }()
	for _, f := range fronts {
		for _, q := range []request{identity, zipped} {
			if err := b.comparePanels(ctx, f, p, q); err != nil {
				return err
			}
		}
	}
	overloaded := map[*front]int{} // the rate
	for round := 1; round <= b.env.Rounds; round++ {
		for _, l := range smallLoads {
			for _, f := range fronts {
				if most, ok := overloaded[f]; ok && l.rate >= most {
					continue
				}
				err := b.measurePanels(ctx, round, f, p, l)
				if errors.Is(err, proc.ErrOverload) && l.rate > smallRate {
					b.env.Logf("%s: %v", f.name, err)
					overloaded[f] = l.rate
					continue
				}
				if err != nil {
					return err
				}
			}
		}
		b.env.Logf("round %d of %d: small queries: CPU %.4g and %.4g s", round, b.env.Rounds,
			b.out.Recorder.Median(thanos, smallCPU(zipped, smallRate)), b.out.Recorder.Median(ferula, smallCPU(zipped, smallRate)))
	}
	b.smallNote = smallNoteOf(p, fronts, overloaded)
	return nil
}

func smallNoteOf(p *panels, fronts []*front, overloaded map[*front]int) string {
	note := fmt.Sprintf("Small queries: %d series x %d samples (%.0f kB), split in two, no cache, %d different queries in turn, for %d s a reading. Requests are due at a constant rate, and latency begins when a request is due; up to %d are sent at once. Each reached the downstream in exactly two parts. frontend/small takes the worse of the ratios with and without gzip.",
		smallSeries, points, float64(len(p.responses[0].Whole.Plain))/1e3, len(p.responses), smallTime, smallClients)
	for _, f := range fronts {
		if rate, ok := overloaded[f]; ok {
			note += fmt.Sprintf(" %s does not keep up with %d a second on this machine: its requests were sent more than %v late.", f.side, rate, smallLateMax)
		}
	}
	return note
}

// comparePanels compares the response of each query and keeps its length.
func (b *bench) comparePanels(ctx context.Context, f *front, p *panels, q request) error {
	if p.lengths[f] == nil {
		p.lengths[f] = map[request][]int64{}
	}
	var wire int64
	for _, a := range p.responses {
		got, err := b.same(ctx, f, a, q)
		if err != nil {
			return err
		}
		p.lengths[f][q] = append(p.lengths[f][q], got.Bytes)
		wire += got.Wire
	}
	b.out.Recorder.Add(1, f.side, "bytes on the wire: small query, "+q.what, area.Bytes, float64(wire)/float64(len(p.responses)))
	b.env.Logf("responses are equal: %s: %s, %d queries", f.name, q.what, len(p.responses))
	return nil
}

// measurePanels takes one reading at a rate. Every response must be as long as the one of the same query that was compared,
// and the downstream must have received each half of each request.
func (b *bench) measurePanels(ctx context.Context, round int, f *front, p *panels, l smallLoad) error {
	clients := make([]*proc.Client, smallClients)
	for i := range clients {
		clients[i] = proc.NewClient(f.server.URL())
		defer clients[i].Close()
	}
	load := proc.OpenLoop{Rate: l.rate, Requests: l.rate * smallTime, Clients: smallClients, LateMax: smallLateMax}
	if b.env.Short {
		load.Requests = l.rate
	}
	var latencies []time.Duration
	cpu, err := f.server.CPUDuring(ctx, func() (err error) {
		latencies, err = load.Run(ctx, func(ctx context.Context, client, i int) error {
			return b.sendPanel(ctx, clients[client], f, p, i%len(p.responses), l.request)
		})
		return err
	})
	served, unknown := f.down.Take()
	if err := errors.Join(err, unknown); err != nil {
		return fmt.Errorf("%s: small query: %w", f.name, err)
	}
	sent := make([]int, len(p.responses))
	for i := range load.Requests {
		sent[i%len(sent)]++
	}
	if err := checkPanelParts(p, sent, served); err != nil {
		return fmt.Errorf("%s: small query: %w", f.name, err)
	}
	rec := &b.out.Recorder
	rec.Add(round, f.side, smallCPU(l.request, l.rate), area.Seconds, cpu.Seconds()/float64(load.Requests))
	for _, percentile := range []int{50, 99} {
		rec.Add(round, f.side, smallLatency(percentile, l.request, l.rate), area.Seconds, proc.Quantile(latencies, float64(percentile)/100).Seconds())
	}
	return nil
}

func (b *bench) sendPanel(ctx context.Context, c *proc.Client, f *front, p *panels, panel int, q request) error {
	a := p.responses[panel]
	got, err := c.Get(ctx, f.requestFor(a, q), io.Discard)
	if err != nil {
		return err
	}
	if want := p.lengths[f][q][panel]; got.Bytes == 0 || got.Bytes != want || got.Encoding != q.encoding {
		return fmt.Errorf("%s: %w: %d bytes in %q, %d before", a.Query, area.ErrUnequal, got.Bytes, got.Encoding, want)
	}
	return nil
}

// checkPanelParts fails unless the downstream received each half of a query as often as the query was sent, and nothing else.
func checkPanelParts(p *panels, sent []int, served []canned.Served) error {
	received := map[canned.Served]int{}
	for _, s := range served {
		s.Encoding = ""
		received[s]++
	}
	total := 0
	for i, a := range p.responses {
		for _, half := range a.Halves {
			n := received[canned.Served{Query: a.Query, StartMS: half.StartMS, EndMS: half.EndMS}]
			if n != sent[i] {
				return fmt.Errorf("%w: %s was sent %d times, the half from %d was requested %d times", errParts, a.Query, sent[i], half.StartMS, n)
			}
			total += n
		}
	}
	if total != len(served) {
		other := served[slices.IndexFunc(served, func(s canned.Served) bool { return !p.isHalf(s) })]
		return fmt.Errorf("%w: %d other requests, such as %v", errParts, len(served)-total, other)
	}
	return nil
}

func (p *panels) isHalf(s canned.Served) bool {
	return slices.ContainsFunc(p.responses, func(a *canned.Response) bool {
		return a.Query == s.Query && slices.ContainsFunc(a.Halves[:], func(h canned.Part) bool { return h.StartMS == s.StartMS && h.EndMS == s.EndMS })
	})
}
