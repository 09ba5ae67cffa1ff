package e2e

import (
	"bytes"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gogo/protobuf/proto"
	"github.com/golang/snappy"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/prompb"
	"github.com/prometheus/prometheus/storage/remote"

	"github.com/ferula-io/ferula/internal/app"
)

// postRead sends a remote read request of queries, all for the metric name.
func (s *server) postRead(form prompb.ReadRequest_ResponseType, queries int, name string, from, to time.Time) (*http.Response, string) {
	s.t.Helper()
	request := &prompb.ReadRequest{AcceptedResponseTypes: []prompb.ReadRequest_ResponseType{form}}
	for range queries {
		q, err := remote.ToQuery(from.UnixMilli(), to.UnixMilli(), []*labels.Matcher{labels.MustNewMatcher(labels.MatchEqual, labels.MetricName, name)}, nil)
		if err != nil {
			s.t.Fatal(err)
		}
		request.Queries = append(request.Queries, q)
	}
	plain, err := proto.Marshal(request)
	if err != nil {
		s.t.Fatal(err)
	}
	resp, err := http.Post(s.base+"/api/v1/read", "application/x-protobuf", bytes.NewReader(snappy.Encode(nil, plain)))
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return resp, string(body)
}

// TestRemoteRead_AFailedEndpointIsNeverSilent reads through a server whose remote_read
// endpoint is down. The protocol has no field for a warning.
func TestRemoteRead_AFailedEndpointIsNeverSilent(t *testing.T) {
	t.Parallel()
	forms := []prompb.ReadRequest_ResponseType{prompb.ReadRequest_STREAMED_XOR_CHUNKS, prompb.ReadRequest_SAMPLES}
	file := writeFile(t, filepath.Join(t.TempDir(), "prometheus.yml"),
		"scrape_configs: []\nremote_read:\n- {name: archive, url: 'http://127.0.0.1:1/api/v1/read', read_recent: true}\n- {name: never, url: 'http://127.0.0.1:2/api/v1/read', read_recent: true, required_matchers: {tier: old}}\n")
	at := time.Now().Truncate(time.Minute)
	for _, partial := range []bool{false, true} {
		s := startServe(t, func(o *app.ServeOptions) { o.ConfigFile, o.Read.Partial = file, partial })
		s.writeAll([][]byte{encoded(t, v1(v1Series(at.UnixMilli(), 1, "__name__", "near")))})
		for n, form := range forms {
			for _, name := range []string{"near", "absent"} {
				resp, body := s.postRead(form, 2, name, at.Add(-time.Hour), at)
				missing := strings.Join(resp.Header.Values("X-Ferula-Partial"), " ")
				if partial && (resp.StatusCode != http.StatusOK || !strings.Contains(missing, "archive") || strings.Contains(missing, "never") || len(body) == 0 && name == "near") {
					t.Errorf("%s of %s, partial responses allowed: %d, header %q, %d bytes", form, name, resp.StatusCode, missing, len(body))
				}
				if !partial && (resp.StatusCode != http.StatusBadGateway || !strings.Contains(body, "archive") || missing != "") {
					t.Errorf("%s of %s: %d %s, header %q", form, name, resp.StatusCode, body, missing)
				}
			}
			if got := s.metric("ferula_remote_read_partial_total"); got < float64(2*n+2) {
				t.Errorf("%s: %g partial responses are counted", form, got)
			}
		}
		// PromQL has warnings and needs no error.
		if status, body := s.get("/api/v1/query?query=near"); status != http.StatusOK || !strings.Contains(body, "warnings") || !strings.Contains(body, "127.0.0.1:1/") {
			t.Errorf("PromQL: %d %s", status, body)
		}
	}
}
