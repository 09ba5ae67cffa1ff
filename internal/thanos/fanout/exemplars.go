package fanout

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/prometheus/prometheus/model/exemplar"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

// Exemplars queries all stores for exemplars of series that match one of the selectors;
// times are inclusive, in ms. Exemplars of replicas are merged.
func (q *Query) Exemplars(ctx context.Context, start, end int64,
	selectors [][]*labels.Matcher) ([]exemplar.QueryResult, annotations.Annotations, error) {
	return q.f.exemplars(ctx, q.r, storeapi.ExemplarsRequest{MinMS: start, MaxMS: end}, selectors)
}

// expression returns the PromQL expression for the exemplars of a store: the selectors that may match series of the
// store, joined with "or". It returns "" if there are none. Matchers on external labels are left out for a sidecar and
// for a store with one label set, because it may forward the expression to a Prometheus, whose series do not have the
// external labels. A querier and a store with several label sets, such as Thanos Receive, need them to choose among
// these sets; Thanos' querier leaves them out for Receive, too, and gets exemplars of all its tenants. store are the
// matchers of the Selector for this store.
func expression(info *storeapi.Info, selectors [][]*labels.Matcher, store []*labels.Matcher) string {
	var sets []labels.Labels
	if info != nil {
		sets = info.LabelSets
	}
	forwards := info == nil || info.Component == "sidecar" || info.Component != "query" && len(sets) == 1
	var b strings.Builder
	for _, matchers := range selectors {
		if !anyMatches(sets, matchers) {
			continue
		}
		if b.Len() > 0 {
			b.WriteString(" or ")
		}
		selector := []string{`__name__=~".+"`} // an expression must not be empty
		for _, m := range both(matchers, store) {
			external := slices.ContainsFunc(sets, func(set labels.Labels) bool { return set.Has(m.Name) })
			if !external || !forwards {
				selector = append(selector, m.String())
			}
		}
		b.WriteString("{" + strings.Join(selector, ",") + "}")
	}
	return b.String()
}

// exemplars queries all stores whose Info offers exemplars. It ignores the time range of the exemplars in Info, because
// Thanos' components report the range 0 to 0.
func (f *Fanout) exemplars(ctx context.Context, r Request, er storeapi.ExemplarsRequest,
	selectors [][]*labels.Matcher) ([]exemplar.QueryResult, annotations.Annotations, error) {
	enforced := make([][]*labels.Matcher, 0, len(selectors))
	for _, matchers := range selectors {
		if rest, ok := f.endpoints.opts.Selector.restrict(r.enforced(matchers)); ok {
			enforced = append(enforced, rest)
		}
	}
	if selectors = enforced; len(selectors) == 0 {
		return nil, nil, nil
	}
	c, err := f.endpoints.chooseData(r, func(info *storeapi.Info) bool {
		return info == nil || info.Exemplars != nil && expression(info, selectors, nil) != ""
	})
	if err != nil {
		return nil, nil, err
	}
	defer c.release()
	er.AbortOnPartial = r.AbortOnPartial
	found := make([][]exemplar.QueryResult, len(c.stores))
	warnings, err := each(ctx, f, r, c, func(ctx context.Context, i int) ([]string, error) {
		one := er
		one.Query = expression(c.infos[i], selectors, c.matchers[i])
		var warnings []string
		var err error
		found[i], warnings, err = c.stores[i].client.Exemplars(ctx, one)
		return warnings, err
	})
	if err != nil {
		return nil, nil, err
	}
	all := slices.DeleteFunc(slices.Concat(found...), func(one exemplar.QueryResult) bool {
		return !r.allows(one.SeriesLabels)
	})
	return mergeExemplars(all, r.ReplicaLabels), warnings, nil
}

// mergeExemplars merges the results of equal series after removing the replica labels. Each exemplar
// is returned once.
func mergeExemplars(all []exemplar.QueryResult, replicaLabels []string) []exemplar.QueryResult {
	for i := range all {
		all[i].SeriesLabels = labels.NewBuilder(all[i].SeriesLabels).Del(replicaLabels...).Labels()
	}
	slices.SortStableFunc(all, func(a, b exemplar.QueryResult) int {
		return labels.Compare(a.SeriesLabels, b.SeriesLabels)
	})
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
		united[i].Exemplars = slices.CompactFunc(united[i].Exemplars, func(a, b exemplar.Exemplar) bool {
			return order(a, b) == 0
		})
	}
	return united
}
