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

// expect keeps the responses of a Prometheus with all blocks.
func (b *bench) expect(ctx context.Context) error {
	for _, q := range queries() {
		m, err := matrixOf(ctx, b.server.Client, q)
		if err != nil {
			return err
		}
		b.want[q.what] = m
	}
	return nil
}

// compare queries a server. It returns an error unless the response has the same series as that of a Prometheus with all
// blocks, with the same timestamps and values.
func (b *bench) compare(ctx context.Context, from *proc.Server, q rangeQuery) error {
	got, err := matrixOf(ctx, from.Client, q)
	if err != nil {
		return err
	}
	return sameMatrix(q, got, b.want[q.what])
}

// sameMatrix returns an error unless both responses have the same series with the same timestamps and values, and the
// expected series with the expected number of points. Values may differ by a billionth: the engine in Thanos' querier is of
// an older release than Prometheus', and adds the values of a sum in another order.
func sameMatrix(q rangeQuery, got, want promql.Matrix) error {
	if len(want) != q.series || len(got) != q.series {
		return fmt.Errorf("%s: %w: %d series, Prometheus %d", q.what, area.ErrUnequal, len(got), len(want))
	}
	for i := range want {
		if len(want[i].Floats) != points {
			return fmt.Errorf("%s: %w: Prometheus has %s with %d points", q.what, area.ErrEmpty, want[i].Metric, len(want[i].Floats))
		}
		if !labels.Equal(got[i].Metric, want[i].Metric) || len(got[i].Floats) != len(want[i].Floats) {
			return fmt.Errorf("%s: %w: %s with %d points, Prometheus %s with %d", q.what, area.ErrUnequal, got[i].Metric, len(got[i].Floats), want[i].Metric, len(want[i].Floats))
		}
		for j, p := range want[i].Floats {
			g := got[i].Floats[j]
			if g.T != p.T || !(math.Abs(g.F-p.F) <= 1e-9*math.Max(1, math.Abs(p.F))) {
				return fmt.Errorf("%s: %w: %s: %v, Prometheus %v", q.what, area.ErrUnequal, want[i].Metric, g, p)
			}
		}
	}
	return nil
}

// matrixOf requests q and returns the response without the external label that the querier keeps, sorted by labels.
func matrixOf(ctx context.Context, from *proc.Client, q rangeQuery) (promql.Matrix, error) {
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
