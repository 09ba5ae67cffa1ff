// Package push fills the head of a server by remote write.
package push

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/klauspost/compress/snappy"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/prompb"

	"github.com/ferula-io/ferula/bench/area"
	"github.com/ferula-io/ferula/bench/blocks"
	"github.com/ferula-io/ferula/bench/proc"
)

const (
	pushedSeries  = 500 // series of a request of remote write
	pushedSamples = 60  // samples of each series in a request: a head refuses samples that are an hour older than its newest one

	chunkSamples  = 120 // maximum of a chunk of a head
	mappedTimeout = 3 * time.Minute
)

// Samples sends the samples of a spec to a server by remote write, in the order of time. It sends the series in the
// order of their labels, because Prometheus returns the series of a head in the order of their creation, and ferula's client
// can sort only a small response.
func Samples(ctx context.Context, to *proc.Server, s blocks.Spec) error {
	values, times, lsets := make([][]float64, s.Series), make([][]int64, s.Series), make([][]prompb.Label, s.Series)
	order := make([]int, s.Series)
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return labels.Compare(s.Labels(a), s.Labels(b)) })
	for i, n := range order {
		values[i], times[i] = blocks.SpecSequence(s, n, s.Samples), s.Times(n)
		s.Labels(n).Range(func(l labels.Label) { lsets[i] = append(lsets[i], prompb.Label{Name: l.Name, Value: l.Value}) })
	}
	for begin := 0; begin < s.Samples; begin += pushedSamples {
		for first := 0; first < s.Series; first += pushedSeries {
			var request prompb.WriteRequest
			for i := first; i < min(first+pushedSeries, s.Series); i++ {
				one := prompb.TimeSeries{Labels: lsets[i]}
				for j := begin; j < min(begin+pushedSamples, s.Samples); j++ {
					one.Samples = append(one.Samples, prompb.Sample{Timestamp: times[i][j], Value: values[i][j]})
				}
				request.Timeseries = append(request.Timeseries, one)
			}
			r, err := Request(&request)
			if err == nil {
				_, err = to.Get(ctx, r, io.Discard)
			}
			if err != nil {
				return fmt.Errorf("remote write: %w", err)
			}
		}
	}
	return nil
}

// All sends the samples of a spec to sides, one after the other.
func All(ctx context.Context, s blocks.Spec, sides ...*area.Side) error {
	for _, side := range sides {
		if err := Samples(ctx, side.Server, s); err != nil {
			return fmt.Errorf("%s: %w", side.Name, err)
		}
	}
	return nil
}

// WaitMapped waits until a head that has received the samples of a spec has mapped its full chunks, which it does once a
// minute.
func WaitMapped(ctx context.Context, s *proc.Server, pushed blocks.Spec) error {
	const metric = "prometheus_tsdb_mmap_chunks_total "
	want := float64(pushed.Series * (pushed.Samples/chunkSamples - 1))
	return proc.Until(ctx, mappedTimeout, time.Second, fmt.Sprintf("the head has mapped %v chunks", want), func() error {
		text, _, err := s.Fetch(ctx, proc.Request{Path: "/metrics"})
		if err != nil {
			return err
		}
		_, rest, _ := strings.Cut(string(text), "\n"+metric)
		figure, _, _ := strings.Cut(rest, "\n")
		if n, err := strconv.ParseFloat(figure, 64); err != nil || n < want {
			return fmt.Errorf("%q", figure)
		}
		return nil
	})
}

// Request returns the request of remote write for a message.
func Request(message *prompb.WriteRequest) (proc.Request, error) {
	plain, err := message.Marshal()
	return proc.Request{Path: "/api/v1/write", Body: snappy.Encode(nil, plain), Header: http.Header{
		"Content-Encoding": {"snappy"}, "Content-Type": {"application/x-protobuf"}, "X-Prometheus-Remote-Write-Version": {"0.1.0"},
	}}, err
}
