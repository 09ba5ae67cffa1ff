package fanout

import (
	"cmp"
	"context"
	"slices"

	"github.com/prometheus/prometheus/model/metadata"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

// metadataClient is a Client of stores that have metric metadata.
type metadataClient interface {
	MetricMetadata(ctx context.Context, metric string,
		limit int) (found map[string][]metadata.Metadata, warnings []string, err error)
}

// MetricMetadata returns the metadata of a metric, or of all metrics if metric is "", from all
// stores that have metadata. Each store returns at most limit metrics; -1: no limit. Equal entries
// of a metric are returned once.
func (q *Query) MetricMetadata(ctx context.Context, metric string,
	limit int) (map[string][]metadata.Metadata, annotations.Annotations, error) {
	c, err := q.f.endpoints.choose(q.r, func(info *storeapi.Info) bool { return info == nil || info.MetricMetadata })
	if err != nil {
		return nil, nil, err
	}
	defer c.release()
	found := make([]map[string][]metadata.Metadata, len(c.stores))
	warned, err := each(ctx, q.f, q.r, c, func(ctx context.Context, i int) (warnings []string, err error) {
		if client, ok := c.stores[i].client.(metadataClient); ok {
			found[i], warnings, err = client.MetricMetadata(ctx, metric, limit)
		}
		return warnings, err
	})
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
	var warnings annotations.Annotations
	for _, w := range warned {
		warnings.Add(w)
	}
	return all, warnings, nil
}
