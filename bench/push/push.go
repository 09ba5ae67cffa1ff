// Package push fills the head of a server by remote write.
package push

import (
	"bytes"
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

	"github.com/ferula-io/ferula/bench/blocks"
	"github.com/ferula-io/ferula/bench/proc"
)

const (
	pushedSeries  = 500 // series of a request of remote write
	pushedSamples = 60  // samples of each series in a request: a head refuses samples that are an hour older than its newest one

	chunkSamples  = 120 // maximum of a chunk of a head
	mappedTimeout = 3 * time.Minute
)

// Samples sends the samples of a spec by remote write to the server at base, in the order of time. It sends the series in the
// order of their labels, because Prometheus returns the series of a head in the order of their creation, and ferula's client
// can sort only a small response.
func Samples(ctx context.Context, base string, s blocks.Spec) error {
	values, times, lsets := make([][]float64, s.Series), make([][]int64, s.Series), make([][]prompb.Label, s.Series)
	order := make([]int, s.Series)
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return labels.Compare(s.Labels(a), s.Labels(b)) })
	for i, n := range order {
		values[i], times[i] = blocks.Sequence(s.Values, s.Seed, n, s.Samples), s.Times(n)
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
			if err := write(ctx, base, &request); err != nil {
				return err
			}
		}
	}
	return nil
}

// WaitMapped waits until a head that has received the samples of a spec has mapped its full chunks, which it does once a
// minute.
func WaitMapped(ctx context.Context, s *proc.Server, pushed blocks.Spec) error {
	const metric = "prometheus_tsdb_mmap_chunks_total "
	want := float64(pushed.Series * (pushed.Samples/chunkSamples - 1))
	for deadline := time.Now().Add(mappedTimeout); time.Now().Before(deadline); {
		text, _, err := s.Fetch(ctx, proc.Request{Path: "/metrics"})
		if err != nil {
			return err
		}
		_, rest, _ := strings.Cut(string(text), "\n"+metric)
		figure, _, _ := strings.Cut(rest, "\n")
		if n, err := strconv.ParseFloat(figure, 64); err == nil && n >= want {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Second):
		}
	}
	return fmt.Errorf("the head did not map %v chunks within %v", want, mappedTimeout)
}

func write(ctx context.Context, base string, message *prompb.WriteRequest) error {
	plain, err := message.Marshal()
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/api/v1/write", bytes.NewReader(snappy.Encode(nil, plain)))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Encoding", "snappy")
	request.Header.Set("Content-Type", "application/x-protobuf")
	request.Header.Set("X-Prometheus-Remote-Write-Version", "0.1.0")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, 500))
	if err == nil && response.StatusCode/100 != 2 {
		err = fmt.Errorf("remote write: %w %s: %s", proc.ErrStatus, response.Status, text)
	}
	return err
}
