package storeapi

import (
	"context"
	"errors"
	"io"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/metadata"

	"github.com/ferula-io/ferula/internal/codec/apipb"
)

// MetricMetadata returns the metadata of one metric, or of all if metric is empty, by
// name. limit is the largest number of metrics; -1 means no limit.
func (c *Client) MetricMetadata(ctx context.Context, metric string, limit int) (found map[string][]metadata.Metadata, warnings []string, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.stream(ctx, "/thanos.Metadata/MetricMetadata", &apipb.MetricMetadataRequest{Metric: metric, Limit: int32(min(limit, 1<<31-1))})
	if err != nil {
		return nil, nil, fromStatus(err)
	}
	found = map[string][]metadata.Metadata{}
	for {
		var msg apipb.MetricMetadataResponse
		if err := stream.RecvMsg(&msg); errors.Is(err, io.EOF) {
			return found, warnings, nil
		} else if err != nil {
			return nil, nil, fromStatus(err)
		}
		if w := msg.GetWarning(); w != "" {
			warnings = append(warnings, w)
		}
		if err := checkListLen(len(found)+len(warnings)+len(msg.GetMetadata().GetMetadata()), "metrics"); err != nil {
			return nil, nil, err
		}
		for name, entry := range msg.GetMetadata().GetMetadata() {
			for _, m := range entry.GetMetas() {
				found[name] = append(found[name], metadata.Metadata{Type: model.MetricType(m.Type), Help: m.Help, Unit: m.Unit})
			}
		}
	}
}
