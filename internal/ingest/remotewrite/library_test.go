package remotewrite

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/prompb"
	"github.com/prometheus/prometheus/storage/remote"

	"github.com/ferula-io/ferula/metrics"
)

// Prometheus' own decoder reads the requests of package metrics by remote write, and this
// package stores them.
func TestLibrary_PushesWhatPrometheusDecodes(t *testing.T) {
	var requests []*prompb.WriteRequest
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Content-Encoding") != "snappy" || r.Header.Get("Content-Type") != v1Type || r.Header.Get("X-Prometheus-Remote-Write-Version") != "0.1.0" || r.Method != http.MethodPost {
			t.Errorf("%s with %v", r.Method, r.Header)
		}
		request, err := remote.DecodeWriteRequest(r.Body)
		if err != nil {
			t.Error(err)
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		requests = append(requests, request)
	}))
	defer server.Close()
	set := metrics.NewSetWithOptions(metrics.SetOptions{Labels: map[string]string{"z": "1", "a": "2"}})
	set.NewGauge(`temperature{room="a\"b\\c",empty=""}`, nil).Set(-0.5)
	set.NewCounter(`{"http.requests",code="200"}`).Add(3)
	set.NewGauge("zero", nil)
	set.NewPrometheusHistogramExt("wait", []float64{1}).Update(2)
	opts := &metrics.PushOptions{RemoteWrite: true, ExtraLabels: `job="x"`}
	before := time.Now().UnixMilli()
	if err := set.PushMetrics(context.Background(), server.URL, opts); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, request := range requests {
		for _, s := range request.Timeseries {
			var names []string
			for _, l := range s.Labels {
				names = append(names, fmt.Sprintf("%s=%q", l.Name, l.Value))
			}
			if !slices.IsSortedFunc(s.Labels, func(a, b prompb.Label) int { return strings.Compare(a.Name, b.Name) }) {
				t.Errorf("labels are not sorted: %v", names)
			}
			if len(s.Samples) != 1 || s.Samples[0].Timestamp < before || s.Samples[0].Timestamp > time.Now().UnixMilli() {
				t.Errorf("samples %v", s.Samples)
			}
			got = append(got, fmt.Sprint(strings.Join(names, ","), " ", s.Samples[0].Value))
		}
	}
	want := []string{
		`__name__="http.requests",a="2",code="200",job="x",z="1" 3`,
		`__name__="temperature",a="2",job="x",room="a\"b\\c",z="1" -0.5`,
		`__name__="wait_bucket",a="2",job="x",le="1",z="1" 0`,
		`__name__="wait_bucket",a="2",job="x",le="+Inf",z="1" 1`,
		`__name__="wait_sum",a="2",job="x",z="1" 2`,
		`__name__="wait_count",a="2",job="x",z="1" 1`,
		`__name__="zero",a="2",job="x",z="1" 0`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestLibrary_PushesManySeriesToTheHandler(t *testing.T) {
	to := &stub{}
	server := httptest.NewServer(handlerOf(Options{}, to))
	defer server.Close()
	set := metrics.NewSet()
	const series = 4500
	for i := range series {
		set.NewCounter(fmt.Sprintf(`requests_total{path="/%d"}`, i)).Inc()
	}
	if err := set.PushMetrics(context.Background(), server.URL, &metrics.PushOptions{RemoteWrite: true}); err != nil {
		t.Fatal(err)
	}
	text := to.String()
	if stored, commits := strings.Count(text, "requests_total"), strings.Count(text, "commit"); stored != series || commits != 3 {
		t.Errorf("%d series in %d requests", stored, commits)
	}
	failing := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.WriteHeader(http.StatusBadRequest)
	}))
	defer failing.Close()
	err := set.PushMetrics(context.Background(), failing.URL, &metrics.PushOptions{RemoteWrite: true, MaxRetries: 3})
	if err == nil || !strings.Contains(err.Error(), "400") {
		t.Errorf("a refused push: %v", err)
	}
	http.DefaultClient.CloseIdleConnections()
}
