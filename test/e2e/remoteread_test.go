package e2e

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	configutil "github.com/prometheus/common/config"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/prompb"
	"github.com/prometheus/prometheus/storage/remote"
	"github.com/prometheus/prometheus/tsdb/chunkenc"

	"github.com/ferula-io/ferula/internal/app"
)

// remoteRead reads series with Prometheus' own client, as SAMPLES or STREAMED_XOR_CHUNKS.
func (s *server) remoteRead(form prompb.ReadRequest_ResponseType, mint, maxt int64, m *labels.Matcher) []string {
	s.t.Helper()
	u, err := url.Parse(s.base + "/api/v1/read")
	if err != nil {
		s.t.Fatal(err)
	}
	client, err := remote.NewReadClient("e2e", &remote.ClientConfig{
		URL: &configutil.URL{URL: u}, Timeout: model.Duration(30 * time.Second), ChunkedReadLimit: 50e6,
		AcceptedResponseTypes: []prompb.ReadRequest_ResponseType{form},
	})
	if err != nil {
		s.t.Fatal(err)
	}
	query, err := remote.ToQuery(mint, maxt, []*labels.Matcher{m}, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	set, err := client.Read(context.Background(), query, false)
	if err != nil {
		s.t.Fatal(err)
	}
	var lines []string
	for set.Next() {
		line, it := set.At().Labels().String(), set.At().Iterator(nil)
		lines = append(lines, line+samplesText(it))
		if it.Err() != nil {
			s.t.Fatal(it.Err())
		}
	}
	if set.Err() != nil {
		s.t.Fatal(set.Err())
	}
	return lines
}

// samplesText returns timestamps and values of all samples.
func samplesText(it chunkenc.Iterator) (text string) {
	for {
		switch it.Next() {
		case chunkenc.ValFloat:
			t, v := it.At()
			text += fmt.Sprintf(" %d=%g", t, v)
		case chunkenc.ValHistogram:
			t, h := it.AtHistogram(nil)
			text += fmt.Sprintf(" %d=%s", t, h.ToFloat(nil))
		case chunkenc.ValFloatHistogram:
			t, h := it.AtFloatHistogram(nil)
			text += fmt.Sprintf(" %d=%s", t, h)
		default:
			return text
		}
	}
}

func TestRemoteRead_ReturnsWrittenSamplesWithExternalLabels(t *testing.T) {
	file := writeFile(t, filepath.Join(t.TempDir(), "prometheus.yml"), "global: {external_labels: {cluster: eu}}\nscrape_configs: []\n")
	s := startServe(t, func(o *app.ServeOptions) {
		o.ConfigFile = file
		o.Read.ConcurrentMax = 1
	})
	now := time.Now().UnixMilli()
	status, text, _ := s.write(v1Type, "snappy", encoded(t, v1(
		v1Series(now, 1.5, "__name__", "e2e", "a", "1"), v1Series(now, -2, "__name__", "e2e", "a", "1", "z", "2"), v1Series(now, 7, "__name__", "other"),
	)))
	if status/100 != 2 {
		t.Fatal(status, text)
	}
	want := fmt.Sprintf(`{__name__="e2e", a="1", cluster="eu"} %d=1.5|{__name__="e2e", a="1", cluster="eu", z="2"} %d=-2`, now, now)
	for _, form := range []prompb.ReadRequest_ResponseType{prompb.ReadRequest_STREAMED_XOR_CHUNKS, prompb.ReadRequest_SAMPLES} {
		for _, m := range []*labels.Matcher{labels.MustNewMatcher(labels.MatchEqual, "a", "1"), labels.MustNewMatcher(labels.MatchRegexp, "__name__", "e2e|x")} {
			got := strings.Join(s.remoteRead(form, now-1000, now+1000, m), "|")
			if got != want {
				t.Errorf("%s, %s: %s, want %s", form, m, got, want)
			}
		}
		if got := s.remoteRead(form, now-1000, now+1000, labels.MustNewMatcher(labels.MatchNotEqual, "cluster", "eu")); len(got) != 0 {
			t.Errorf("%s: %v are not in the cluster", form, got)
		}
		if got := s.remoteRead(form, now-1000, now+1000, labels.MustNewMatcher(labels.MatchEqual, "cluster", "eu")); len(got) != 3 {
			t.Errorf("%s: %v are in the cluster", form, got)
		}
	}
	if status, _ := s.get("/api/v1/read"); status != http.StatusMethodNotAllowed {
		t.Errorf("GET: %d", status)
	}
}
