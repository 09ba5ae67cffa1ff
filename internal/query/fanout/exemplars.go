package fanout

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/prometheus/prometheus/model/exemplar"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/ferula-io/ferula/internal/wire/storeapi"
)

// ExemplarQuerier implements storage.ExemplarQueryable. Warnings about stores that are
// missing are lost in that interface; Exemplars has them.
func (q *Query) ExemplarQuerier(ctx context.Context) (storage.ExemplarQuerier, error) {
	return exemplarQuerier{q, ctx}, nil
}

type exemplarQuerier struct {
	q   *Query
	ctx context.Context //nolint:containedctx // the interface hands it over so
}

// Select implements storage.ExemplarQuerier.
func (e exemplarQuerier) Select(start, end int64, selectors ...[]*labels.Matcher) ([]exemplar.QueryResult, error) {
	found, _, err := e.q.Exemplars(e.ctx, start, end, selectors)
	return found, err
}

// Exemplars asks all stores that have exemplars of series that match one of the
// selectors; times are inclusive, in ms. Those of replicas are united.
func (q *Query) Exemplars(ctx context.Context, start, end int64, selectors [][]*labels.Matcher) ([]exemplar.QueryResult, annotations.Annotations, error) {
	found, warnings, err := q.f.exemplars(ctx, q.r, storeapi.ExemplarsRequest{Query: expression(selectors), MinMS: start, MaxMS: end}, selectors)
	var all annotations.Annotations
	for _, w := range warnings {
		all.Add(w)
	}
	return found, all, err
}

// expression has the selectors in it, and is otherwise of no meaning.
func expression(selectors [][]*labels.Matcher) string {
	var b strings.Builder
	for i, matchers := range selectors {
		if i > 0 {
			b.WriteString(" or ")
		}
		b.WriteString("{")
		for j, m := range matchers {
			if j > 0 {
				b.WriteString(",")
			}
			b.WriteString(m.String())
		}
		b.WriteString("}")
	}
	return b.String()
}

func (f *Fanout) exemplars(ctx context.Context, r Request, er storeapi.ExemplarsRequest, selectors [][]*labels.Matcher) ([]exemplar.QueryResult, []error, error) {
	c, err := f.endpoints.choose(r, func(info *storeapi.Info) bool {
		switch {
		case info == nil:
			return true
		case info.Exemplars == nil || er.MinMS > info.Exemplars.MaxMS || er.MaxMS < info.Exemplars.MinMS:
			return false
		}
		return len(selectors) == 0 || slices.ContainsFunc(selectors, func(matchers []*labels.Matcher) bool { return anyMatches(info.LabelSets, matchers) })
	})
	if err != nil {
		return nil, nil, err
	}
	defer c.release()
	er.AbortOnPartial = r.AbortOnPartial
	found := make([][]exemplar.QueryResult, len(c.stores))
	warnings, err := each(ctx, f, r, c, func(ctx context.Context, i int) ([]string, error) {
		var warnings []string
		var err error
		found[i], warnings, err = c.stores[i].client.Exemplars(ctx, er)
		return warnings, err
	})
	if err != nil {
		return nil, nil, err
	}
	return unite(slices.Concat(found...), r.ReplicaLabels), warnings, nil
}

// unite makes one result of those of the same series, once the replica labels are
// taken away, with each exemplar once.
func unite(all []exemplar.QueryResult, replicaLabels []string) []exemplar.QueryResult {
	for i := range all {
		all[i].SeriesLabels = labels.NewBuilder(all[i].SeriesLabels).Del(replicaLabels...).Labels()
	}
	slices.SortStableFunc(all, func(a, b exemplar.QueryResult) int { return labels.Compare(a.SeriesLabels, b.SeriesLabels) })
	united := all[:0]
	for _, one := range all {
		if n := len(united); n > 0 && labels.Equal(united[n-1].SeriesLabels, one.SeriesLabels) {
			united[n-1].Exemplars = append(united[n-1].Exemplars, one.Exemplars...)
		} else {
			united = append(united, one)
		}
	}
	for i := range united {
		order := func(a, b exemplar.Exemplar) int {
			return cmp.Or(cmp.Compare(a.Ts, b.Ts), labels.Compare(a.Labels, b.Labels), cmp.Compare(a.Value, b.Value))
		}
		slices.SortStableFunc(united[i].Exemplars, order)
		united[i].Exemplars = slices.CompactFunc(united[i].Exemplars, func(a, b exemplar.Exemplar) bool { return order(a, b) == 0 })
	}
	return united
}
