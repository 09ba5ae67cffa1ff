package storeapi

import (
	"context"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/metadata"

	"github.com/ferula-io/ferula/internal/thanos/storepb/apipb"
)

// MetricMetadata returns metadata by the name of the metric: of one metric, or of all if metric is
// empty. limit is the maximum number of metrics; -1 means no limit.
func (c *Client) MetricMetadata(ctx context.Context, metric string,
	limit int) (found map[string][]metadata.Metadata, warnings []string, err error) {
	request := &apipb.MetricMetadataRequest{Metric: metric, Limit: int32(min(limit, 1<<31-1))}
	found = map[string][]metadata.Metadata{}
	n := 0
	err = receive(ctx, c, "/thanos.Metadata/MetricMetadata", request, func(msg *apipb.MetricMetadataResponse) error {
		n++
		if w := msg.GetWarning(); w != "" {
			warnings = append(warnings, w)
		}
		for name, entry := range msg.GetMetadata().GetMetadata() {
			for _, m := range entry.GetMetas() {
				n++
				found[name] = append(found[name], metadata.Metadata{Type: model.MetricType(m.Type), Help: m.Help, Unit: m.Unit})
			}
		}
		return checkListLen(n, "metrics")
	})
	if err != nil {
		return nil, nil, err
	}
	return found, warnings, nil
}
