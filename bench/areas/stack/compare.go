package stack

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"

	"github.com/ferula-io/ferula/bench/area"
	"github.com/ferula-io/ferula/bench/proc"
	codecs "github.com/ferula-io/ferula/bench/typed"
)

// compare queries a stack and Prometheus itself. It returns an error unless both responses have the same series with the
// same timestamps and values. It ignores the external label that the querier keeps. Values may differ by a billionth: the
// engine in Thanos' querier is of an older release than Prometheus', and adds the values of a sum in another order.
func (b *bench) compare(ctx context.Context, s *stack, q rangeQuery) error {
	got, err := matrixOf(ctx, s.servers[frontend], q)
	if err != nil {
		return err
	}
	want, err := matrixOf(ctx, b.prometheus, q)
	if err != nil {
		return err
	}
	if len(want) != q.series || len(got) != q.series {
		return fmt.Errorf("%s: %w: %d series, Prometheus %d", q.what, area.ErrUnequal, len(got), len(want))
	}
	for i := range want {
		if !labels.Equal(got[i].Metric, want[i].Metric) || len(got[i].Floats) != len(want[i].Floats) {
			return fmt.Errorf("%s: %w: %s with %d points, Prometheus %s with %d", q.what, area.ErrUnequal, got[i].Metric, len(got[i].Floats), want[i].Metric, len(want[i].Floats))
		}
		for j, p := range want[i].Floats {
			g := got[i].Floats[j]
			if g.T != p.T || math.Abs(g.F-p.F) > 1e-9*math.Max(1, math.Abs(p.F)) {
				return fmt.Errorf("%s: %w: %s: %v, Prometheus %v", q.what, area.ErrUnequal, want[i].Metric, g, p)
			}
		}
	}
	return nil
}

// matrixOf requests q and returns the response without the external label, sorted by labels.
func matrixOf(ctx context.Context, from *proc.Server, q rangeQuery) (promql.Matrix, error) {
	body, _, err := from.Fetch(ctx, q.request())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", q.what, err)
	}
	m, err := codecs.Decode(bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", q.what, err)
	}
	builder := labels.NewBuilder(labels.EmptyLabels())
	for i := range m {
		builder.Reset(m[i].Metric)
		m[i].Metric = builder.Del("prometheus").Labels()
	}
	slices.SortFunc(m, func(a, b promql.Series) int { return labels.Compare(a.Metric, b.Metric) })
	return m, nil
}
