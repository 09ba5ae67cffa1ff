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
	found, warnings, err := q.f.exemplars(ctx, q.r, storeapi.ExemplarsRequest{MinMS: start, MaxMS: end}, selectors)
	var all annotations.Annotations
	for _, w := range warnings {
		all.Add(w)
	}
	return found, all, err
}

// expression has the selectors in it that a store may match, and is otherwise of no
// meaning; "" if there are none. Matchers of a store's external labels are left out
// where it passes them on to a Prometheus, which does not know them; a querier is
// given them.
func expression(info *storeapi.Info, selectors [][]*labels.Matcher) string {
	var sets []labels.Labels
	if info != nil {
		sets = info.LabelSets
	}
	var b strings.Builder
	for _, matchers := range selectors {
		if !anyMatches(sets, matchers) {
			continue
		}
		if b.Len() > 0 {
			b.WriteString(" or ")
		}
		selector := []string{`__name__=~".+"`} // so that there is something
		for _, m := range matchers {
			external := slices.ContainsFunc(sets, func(set labels.Labels) bool { return set.Has(m.Name) })
			if !external || info.Component == "query" {
				selector = append(selector, m.String())
			}
		}
		b.WriteString("{" + strings.Join(selector, ",") + "}")
	}
	return b.String()
}

// Of exemplars no time range is heeded: the components of Thanos say 0 to 0.
func (f *Fanout) exemplars(ctx context.Context, r Request, er storeapi.ExemplarsRequest, selectors [][]*labels.Matcher) ([]exemplar.QueryResult, []error, error) {
	c, err := f.endpoints.choose(r, func(info *storeapi.Info) bool {
		return info == nil || info.Exemplars != nil && expression(info, selectors) != ""
	})
	if err != nil {
		return nil, nil, err
	}
	defer c.release()
	er.AbortOnPartial = r.AbortOnPartial
	found := make([][]exemplar.QueryResult, len(c.stores))
	warnings, err := each(ctx, f, r, c, func(ctx context.Context, i int) ([]string, error) {
		one := er
		one.Query = expression(c.infos[i], selectors)
		var warnings []string
		var err error
		found[i], warnings, err = c.stores[i].client.Exemplars(ctx, one)
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
