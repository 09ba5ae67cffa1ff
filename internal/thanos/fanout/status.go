package fanout

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

// TSDBStatistics returns the sum of the statistics of all TSDBs whose external labels match, with at most limit entries
// in a list. As in Thanos the number of values of a label is the maximum of all TSDBs, because they have most values in
// common. Series of two replicas count twice. If all heads are empty, the latest time is 0. If Request.Matchers
// enforces a tenant, statistics of other tenants are omitted.
func (q *Query) TSDBStatistics(ctx context.Context, matchers []*labels.Matcher,
	limit int) (storeapi.TSDBStatistics, annotations.Annotations, error) {
	found, warnings, err := q.tsdbStatistics(ctx, storeapi.StatusRequest{Matchers: q.r.enforced(matchers), Limit: limit,
		AbortOnPartial: q.r.AbortOnPartial})
	if err != nil {
		return storeapi.TSDBStatistics{}, nil, err
	}
	all := slices.Concat(found...)
	if len(q.r.Matchers) > 0 {
		all = slices.DeleteFunc(all, func(s storeapi.TSDBStatistics) bool { return s.Tenant != "" && s.Tenant != q.r.Tenant })
	}
	return mergeStatistics(all, limit), warnings, nil
}

func (q *Query) tsdbStatistics(ctx context.Context,
	r storeapi.StatusRequest) ([][]storeapi.TSDBStatistics, annotations.Annotations, error) {
	return callOffering(ctx, q, func(info *storeapi.Info) bool {
		return info.Status && anyMatches(info.LabelSets, r.Matchers)
	}, Client.TSDBStatistics, r)
}

// mergeStatistics merges the statistics of TSDBs as TSDBStatistics describes.
func mergeStatistics(all []storeapi.TSDBStatistics, limit int) (sum storeapi.TSDBStatistics) {
	var metrics, values, bytes, pairs [][]storeapi.Statistic
	for i := range all {
		s := &all[i]
		if i == 0 {
			sum.MinMS = s.MinMS
		}
		sum.Series, sum.LabelPairs, sum.Chunks = sum.Series+s.Series, sum.LabelPairs+s.LabelPairs, sum.Chunks+s.Chunks
		sum.MinMS, sum.MaxMS = min(sum.MinMS, s.MinMS), max(sum.MaxMS, s.MaxMS)
		metrics, values = append(metrics, s.SeriesByMetric), append(values, s.ValuesByLabel)
		bytes, pairs = append(bytes, s.BytesByLabel), append(pairs, s.SeriesByPair)
	}
	add := func(a, b uint64) uint64 { return a + b }
	most := func(a, b uint64) uint64 { return max(a, b) }
	sum.SeriesByMetric, sum.ValuesByLabel = mergeLists(metrics, limit, add), mergeLists(values, limit, most)
	sum.BytesByLabel, sum.SeriesByPair = mergeLists(bytes, limit, add), mergeLists(pairs, limit, add)
	return sum
}

// mergeLists combines the values of entries with the same name. It returns at most limit entries,
// by descending value and then by name.
func mergeLists(lists [][]storeapi.Statistic, limit int, combine func(a, b uint64) uint64) []storeapi.Statistic {
	byName := map[string]uint64{}
	for _, s := range slices.Concat(lists...) {
		byName[s.Name] = combine(byName[s.Name], s.Value)
	}
	all := make([]storeapi.Statistic, 0, len(byName))
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		all = append(all, storeapi.Statistic{Name: name, Value: byName[name]})
	}
	slices.SortStableFunc(all, func(a, b storeapi.Statistic) int { return cmp.Compare(b.Value, a.Value) })
	return all[:min(len(all), limit)]
}
