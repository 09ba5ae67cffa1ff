package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/ferula-io/ferula/internal/app"
	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/series/labelenc"
)

// runningQuery is an element of /api/v1/queries/running.
type runningQuery struct {
	ID, Kind, Query, Stage, Client, UserAgent string
	Seconds                                   float64
	Series, Samples, ChunkBytes               int64
}

func (s *server) running() (all []runningQuery, cancelable bool) {
	s.t.Helper()
	status, body := s.get("/api/v1/queries/running")
	if status != http.StatusOK {
		s.t.Fatalf("%d %s", status, body)
	}
	var response struct {
		Data struct {
			Cancelable bool
			Queries    []runningQuery
		}
	}
	decode(s.t, body, &response)
	return response.Data.Queries, response.Data.Cancelable
}

// inBackground sends a query, and returns where its response will be.
func (s *server) inBackground(path string) chan string {
	done := make(chan string, 1)
	go func() {
		status, body := s.get(path)
		done <- http.StatusText(status) + " " + body
	}()
	return done
}

func TestQuery_ARunningQueryIsListedWithItsCostAndEnded(t *testing.T) {
	more := make(chan struct{}, 1000)
	filler := strings.Repeat("x", 20_000)
	before := time.Now().UnixMilli() // the query: a server leaves out later samples
	address, _ := serveMisbehaving(t, misbehavingStore{next: func(ctx context.Context, i int) ([]byte, []series.Chunk, error) {
		select {
		case <-more:
			lset := labels.FromStrings("__name__", "test_metric", "i", fmt.Sprintf("%09d", i)+filler)
			return labelenc.Append(nil, lset), testChunks(t, before), nil
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		}
	}})
	q := startQuery(t, []string{address}, func(o *app.QueryOptions) { o.Admin = true })
	response := q.inBackground("/api/v1/query?query=count(test_metric)")
	var one runningQuery
	grows := func() {
		before := one.Series
		for range 100 {
			more <- struct{}{}
		}
		eventually(t, time.Minute, "the cost to grow", func() bool {
			all, _ := q.running()
			if len(all) == 1 {
				one = all[0]
			}
			return one.Series > before
		})
	}
	grows()
	grows()
	if one.Kind != "instant" || one.Query != "count(test_metric)" || one.Stage != "evaluating" || one.Seconds <= 0 ||
		one.Samples != one.Series || one.ChunkBytes <= one.Samples || !strings.HasPrefix(one.Client, "127.0.0.1:") ||
		!strings.HasPrefix(one.UserAgent, "Go-http-client") {
		t.Errorf("%+v", one)
	}
	path := "/api/v1/queries/running/" + one.ID + "/cancel"
	if status, text, _ := q.request(http.MethodPost, path, "", "Origin", "http://elsewhere.example"); status != http.StatusForbidden {
		t.Errorf("of another origin: %d %s", status, text)
	}
	if status, text, _ := q.request(http.MethodPost, "/api/v1/queries/running/1/cancel", ""); status != http.StatusNotFound {
		t.Errorf("unknown: %d %s", status, text)
	}
	if status, text, _ := q.request(http.MethodPost, path, ""); status != http.StatusOK || !strings.Contains(text, one.ID) {
		t.Errorf("%d %s", status, text)
	}
	if got := <-response; !strings.Contains(got, `"errorType":"canceled"`) || !strings.Contains(got, "the query was ended by 127.0.0.1:") {
		t.Error(got)
	}
	if all, _ := q.running(); len(all) > 0 {
		t.Errorf("still listed: %+v", all)
	}
	q.waitFor("/metrics", "thanos_query_concurrent_gate_queries_in_flight 0", "ferula_query_chunk_bytes 0")
}

func TestServe_ARunningQueryIsEndedOnlyWithTheAdminAPI(t *testing.T) {
	for _, admin := range []bool{true, false} {
		goOn := make(chan struct{})
		remote := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body) // only then a disconnected client ends the context
			select {
			case <-r.Context().Done():
			case <-goOn:
			}
		}))
		t.Cleanup(remote.Close)
		s := serveFile(t, "remote_read:\n- url: "+remote.URL+"\n  read_recent: true\n", func(o *app.ServeOptions) { o.Peer.Admin = admin })
		response := s.inBackground("/api/v1/query_range?query=up&start=0&end=60&step=15")
		var one runningQuery
		eventually(t, time.Minute, "the query to be evaluated", func() bool {
			all, cancelable := s.running()
			if len(all) == 1 {
				one = all[0]
			}
			return one.Stage == "evaluating" && one.Kind == "range" && cancelable == admin
		})
		status, text, _ := s.request(http.MethodPost, "/api/v1/queries/running/"+one.ID+"/cancel", "")
		if !admin {
			if status != http.StatusInternalServerError || !strings.Contains(text, "--web.enable-admin-api") {
				t.Errorf("%d %s", status, text)
			}
			close(goOn)
			<-response
			continue
		}
		if got := <-response; status != http.StatusOK || !strings.Contains(got, "the query was ended by 127.0.0.1:") {
			t.Errorf("%d %s: %s", status, text, got)
		}
		if all, _ := s.running(); len(all) > 0 {
			t.Errorf("still listed: %+v", all)
		}
	}
}
