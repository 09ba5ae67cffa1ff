package storeapi

import (
	"context"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/metadata"

	"github.com/ferula-io/ferula/internal/thanos/storepb/apipb"
)

// MetricMetadata returns metadata by the name of the metric.
func (c *Client) MetricMetadata(ctx context.Context,
	r MetadataRequest) (found map[string][]metadata.Metadata, warnings []string, err error) {
	request := &apipb.MetricMetadataRequest{Metric: r.Metric, Limit: int32(min(r.Limit, 1<<31-1)),
		PartialResponseStrategy: int32(strategy(r.AbortOnPartial))}
	found = map[string][]metadata.Metadata{}
	const method = "/thanos.Metadata/MetricMetadata"
	warnings, err = receive(ctx, c, method, request, "metrics", func(msg *apipb.MetricMetadataResponse) (n int) {
		for name, entry := range msg.GetMetadata().GetMetadata() {
			for _, m := range entry.GetMetas() {
				n++
				found[name] = append(found[name], metadata.Metadata{Type: model.MetricType(m.Type), Help: m.Help, Unit: m.Unit})
			}
		}
		return n
	})
	if err != nil {
		return nil, nil, err
	}
	return found, warnings, nil
}
