package fanout

import (
	"cmp"
	"context"
	"slices"

	"github.com/prometheus/prometheus/model/metadata"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

// MetricMetadata returns the metadata of a metric, or of all metrics if metric is "", from all
// stores that have metadata. Each store returns at most limit metrics; -1: no limit. Equal entries
// of a metric are returned once.
func (q *Query) MetricMetadata(ctx context.Context, metric string,
	limit int) (map[string][]metadata.Metadata, annotations.Annotations, error) {
	found, warnings, err := callOffering(ctx, q, func(info *storeapi.Info) bool { return info.MetricMetadata },
		Client.MetricMetadata, storeapi.MetadataRequest{Metric: metric, Limit: limit, AbortOnPartial: q.r.AbortOnPartial})
	if err != nil {
		return nil, nil, err
	}
	all := map[string][]metadata.Metadata{}
	for _, of := range found {
		for name, list := range of {
			for _, m := range list {
				if !slices.Contains(all[name], m) {
					all[name] = append(all[name], m)
				}
			}
		}
	}
	for _, list := range all {
		slices.SortFunc(list, func(a, b metadata.Metadata) int {
			return cmp.Or(cmp.Compare(a.Type, b.Type), cmp.Compare(a.Help, b.Help), cmp.Compare(a.Unit, b.Unit))
		})
	}
	return all, warnings, nil
}
