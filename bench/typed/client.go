package typed

import (
	"io"
	"slices"

	jsoniter "github.com/json-iterator/go"
	_ "github.com/prometheus/client_golang/api/prometheus/v1" // registers codecs for the model's types
	"github.com/prometheus/common/model"
)

// clientResponse is an answer in client_golang's types.
type clientResponse struct {
	Status string `json:"status"`
	Data   struct {
		ResultType string                `json:"resultType"`
		Result     []*model.SampleStream `json:"result"`
	} `json:"data"`
}

func joinClient(w io.Writer, parts ...io.Reader) error {
	decoded := make([]clientResponse, len(parts))
	for i, part := range parts {
		iter := jsoniter.Parse(jsoniter.ConfigDefault, part, readBytes)
		iter.ReadVal(&decoded[i])
		if iter.Error != nil && iter.Error != io.EOF {
			return iter.Error
		}
		if err := checkEnvelope(decoded[i].Status, decoded[i].Data.ResultType); err != nil {
			return err
		}
	}
	merged := clientResponse{Status: "success"}
	merged.Data.ResultType, merged.Data.Result = "matrix", mergeClient(decoded)
	stream := jsoniter.NewStream(jsoniter.ConfigDefault, w, readBytes)
	stream.WriteVal(&merged)
	return stream.Flush()
}

// mergeClient appends the samples of series with the same labels.
func mergeClient(parts []clientResponse) []*model.SampleStream {
	if len(parts) == 1 {
		return parts[0].Data.Result
	}
	type keyed struct {
		key    string
		stream *model.SampleStream
	}
	var merged []keyed
	at := map[string]int{}
	for _, part := range parts {
		for _, s := range part.Data.Result {
			key := s.Metric.String()
			i, ok := at[key]
			if !ok {
				at[key] = len(merged)
				merged = append(merged, keyed{key, s})
				continue
			}
			merged[i].stream.Values = append(merged[i].stream.Values, s.Values...)
		}
	}
	slices.SortFunc(merged, func(a, b keyed) int {
		switch {
		case a.stream.Metric.Before(b.stream.Metric):
			return -1
		case b.stream.Metric.Before(a.stream.Metric):
			return 1
		default:
			return 0
		}
	})
	streams := make([]*model.SampleStream, len(merged))
	for i := range merged {
		streams[i] = merged[i].stream
	}
	return streams
}
