package sim

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/gogo/protobuf/proto"
	"github.com/klauspost/compress/snappy"
	"github.com/prometheus/prometheus/prompb"
	"github.com/prometheus/prometheus/tsdb/tsdbutil"
)

const histogramName = "sim_histogram"

// writeHistograms writes native histograms in order. The model records their sums.
func (w *storageScenario) writeHistograms(rng *rand.Rand) error {
	ts := prompb.TimeSeries{Labels: []prompb.Label{{Name: "__name__", Value: histogramName}}}
	written := map[int64]float64{}
	w.histogramMS = max(w.histogramMS, w.headMS)
	for range 1 + rng.IntN(20) {
		w.histogramMS += 15_000
		h := tsdbutil.GenerateTestHistogram(int64(rng.IntN(50)))
		h.Sum = float64(rng.IntN(1_000_000)) / 4
		ts.Histograms = append(ts.Histograms, prompb.FromIntHistogram(w.histogramMS, h))
		written[w.histogramMS] = h.Sum
	}
	if w.histogramMS > time.Now().UnixMilli() {
		return nil // the samples would be in the future
	}
	raw, err := proto.Marshal(&prompb.WriteRequest{Timeseries: []prompb.TimeSeries{ts}})
	if err != nil {
		return err
	}
	status, body, err := post(w.env.ctx, w.env.client, w.srv.base()+"/api/v1/write", snappy.Encode(nil, raw), map[string]string{"Content-Type": "application/x-protobuf", "Content-Encoding": "snappy"})
	if err != nil {
		return err
	}
	if status/100 != 2 {
		return fmt.Errorf("%w: %d %s", errRefused, status, body)
	}
	w.headMS = w.histogramMS
	for ms, v := range written {
		w.histograms.acked.put("", ms, v)
	}
	return nil
}

// checkHistograms compares the sums by PromQL and remote read with the model.
func (w *storageScenario) checkHistograms() error {
	minMS, maxMS := w.srv.mintMS-1000, time.Now().Add(time.Minute).UnixMilli()
	got, err := w.queryHistograms(minMS, maxMS)
	if err == nil {
		err = w.histograms.check(got, minMS, maxMS, w.srv.keepFromMS())
	}
	if err != nil {
		return fmt.Errorf("histograms by PromQL: %w", err)
	}
	if got, err = w.readHistograms(minMS, maxMS); err == nil {
		err = w.histograms.check(got, minMS, maxMS, w.srv.keepFromMS())
	}
	if err != nil {
		return fmt.Errorf("histograms by remote read SAMPLES: %w", err)
	}
	return nil
}

func (w *storageScenario) queryHistograms(minMS, maxMS int64) (samples, error) {
	form := url.Values{"query": {fmt.Sprintf("%s[%dms]", histogramName, maxMS-minMS+1)}, "time": {seconds(maxMS)}}
	body, _, err := api(w.env.ctx, w.env.client, w.srv.base()+"/api/v1/query", form, nil)
	if err != nil {
		return nil, err
	}
	var r struct {
		Data struct {
			Result []struct {
				Histograms [][2]json.RawMessage `json:"histograms"`
			} `json:"result"`
		} `json:"data"`
	}
	if err := json.Unmarshal(body, &r); err != nil {
		return nil, err
	}
	got := samples{}
	for _, s := range r.Data.Result {
		for _, pair := range s.Histograms {
			var at float64
			var h struct {
				Sum string `json:"sum"`
			}
			if err := json.Unmarshal(pair[0], &at); err != nil {
				return nil, err
			}
			if err := json.Unmarshal(pair[1], &h); err != nil {
				return nil, err
			}
			sum, err := strconv.ParseFloat(h.Sum, 64)
			if err != nil {
				return nil, err
			}
			got.put("", int64(at*1000+0.5), sum)
		}
	}
	return got, nil
}

func (w *storageScenario) readHistograms(minMS, maxMS int64) (samples, error) {
	request, err := readRequest(histogramName, minMS, maxMS, prompb.ReadRequest_SAMPLES)
	if err != nil {
		return nil, err
	}
	status, body, err := post(w.env.ctx, w.env.client, w.srv.base()+"/api/v1/read", request, map[string]string{
		"Content-Type": "application/x-protobuf", "Content-Encoding": "snappy", "X-Prometheus-Remote-Read-Version": "0.1.0",
	})
	if err != nil {
		return nil, err
	}
	if status != http.StatusOK {
		return nil, fmt.Errorf("remote read: status %d: %s", status, body)
	}
	plain, err := snappy.Decode(nil, []byte(body))
	if err != nil {
		return nil, err
	}
	var resp prompb.ReadResponse
	if err := proto.Unmarshal(plain, &resp); err != nil {
		return nil, err
	}
	got := samples{}
	for _, result := range resp.Results {
		for _, ts := range result.Timeseries {
			for i := range ts.Histograms {
				got.put("", ts.Histograms[i].Timestamp, ts.Histograms[i].Sum)
			}
		}
	}
	return got, nil
}
