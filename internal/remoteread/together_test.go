package remoteread

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/golang/snappy"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/storage"
)

// evaluated returns the result of a range query by Prometheus' engine.
func evaluated(t *testing.T, from storage.Queryable, query string, start, end int64) (result, warnings string) {
	t.Helper()
	engine := promql.NewEngine(promql.EngineOpts{MaxSamples: 1e6, Timeout: time.Minute, EnableAtModifier: true, EnableNegativeOffset: true})
	q, err := engine.NewRangeQuery(t.Context(), from, nil, query, time.UnixMilli(start), time.UnixMilli(end), 10*time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	res := q.Exec(t.Context())
	if res.Err != nil {
		t.Fatal(res.Err)
	}
	for _, err := range res.Warnings.AsErrors() {
		warnings += err.Error() + "\n"
	}
	return res.String(), warnings
}

// An endpoint that fails for one selector of a query has none of the query's series, as in Prometheus: a ratio is not of
// all series by some.
func TestFanout_SelectionsOfAnEndpointFailTogether(t *testing.T) {
	local, far := open(t, t.TempDir()), open(t, t.TempDir())
	fill(t, local, 10, startMS, startMS+hourMS, 30_000)
	fill(t, far, 30, startMS, startMS+hourMS, 30_000)
	handler := peer(far, labels.EmptyLabels())
	for _, broken := range []string{"m2", "m3"} {
		address := serveHandler(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, err1 := io.ReadAll(r.Body)
			plain, err2 := snappy.Decode(nil, body)
			if errors.Join(err1, err2) != nil || bytes.Contains(plain, []byte(broken)) {
				http.Error(w, "broken", http.StatusBadRequest)
				return
			}
			r.Body = io.NopCloser(bytes.NewReader(body))
			handler.ServeHTTP(w, r)
		}))
		f := NewFanout(local)
		f.SetEndpoints([]Endpoint{{Client: NewClient(ClientOptions{URL: address, Tries: 1})}})
		const query = `count(m2) / count(m3)`
		want, _ := evaluated(t, local, query, startMS, startMS+hourMS)
		got, warnings := evaluated(t, f, query, startMS, startMS+hourMS)
		if got != want || !strings.Contains(warnings, "broken") {
			t.Errorf("%s: %s, want %s, warnings %s", broken, got, want, warnings)
		}
	}
}

// Prometheus' engine takes it that a querier returns no samples outside the hints.
func TestFanout_LocalSamplesAreThoseOfTheHints(t *testing.T) {
	local, far := open(t, t.TempDir()), open(t, t.TempDir())
	fill(t, local, 10, startMS, startMS+hourMS, 30_000)
	f := NewFanout(local)
	f.SetEndpoints([]Endpoint{{Client: NewClient(ClientOptions{URL: serve(t, far, Options{})})}})
	for _, query := range []string{`timestamp(m1 @ 1767227400 offset 9m) or m2`, `timestamp(m1 @ 1767227400 offset 1m) or m2`, `m1 @ 1767227400 offset 9m or m2`} {
		want, _ := evaluated(t, local, query, startMS, startMS+hourMS)
		if got, _ := evaluated(t, f, query, startMS, startMS+hourMS); got != want {
			t.Errorf("%s:\n%.800s\nwant\n%.800s", query, got, want)
		}
	}
}
