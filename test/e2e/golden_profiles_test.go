package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/ferula-io/ferula/internal/app"
	"github.com/ferula-io/ferula/internal/profiles/profilepb"
)

// goldenClients are the SDKs whose pushes are kept, and the number of requests of each.
var goldenClients = []struct {
	name, peers string
	keep        int
}{
	{"go", "pyroscope-go", 4}, {"python", "pyroscope-io", 1}, {"node", "@pyroscope/nodejs", 2},
}

func pushName(client string, i int) string { return fmt.Sprintf("profiles_push_%s_%d", client, i) }

// pushShape is the part of a push that is the same in two runs of a client: the path, the
// parameters, the headers' names, and the form of the body.
func pushShape(e exchange) string {
	method, query, _ := strings.Cut(e.Method, "?")
	parameters, _ := url.ParseQuery(query)
	var names []string
	for name := range parameters {
		names = append(names, name)
	}
	slices.Sort(names)
	shape := fmt.Sprint(method, names)
	for _, h := range e.Header {
		kind, _, _ := strings.Cut(h, ";") // without the boundary of a form
		shape += " " + kind
	}
	return shape
}

// TestPeerSDK_GoldenPushes records what the SDKs send. Two runs never send the same bytes, so
// a run without -golden compares the shapes.
func TestPeerSDK_GoldenPushes(t *testing.T) {
	for _, c := range goldenClients {
		t.Run(c.name, func(t *testing.T) {
			command := client(t, c.name)
			var mu sync.Mutex
			var pushes []exchange
			base := recordHTTP(t, startServe(t, nil).base, func(e exchange) {
				mu.Lock()
				defer mu.Unlock()
				pushes = append(pushes, e)
			})
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if out, err := exec.CommandContext(ctx, command[0], append(command[1:], base)...).CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			mu.Lock()
			defer mu.Unlock()
			if len(pushes) < c.keep {
				t.Fatalf("%d pushes", len(pushes))
			}
			shapes := map[string]bool{}
			for _, e := range pushes {
				shapes[pushShape(e)] = true
			}
			for i := range c.keep {
				if *captureGolden {
					pushes[i].Peers = c.peers + ", this server"
					writeGolden(t, pushName(c.name, i), pushes[i])
				} else if shape := pushShape(readGolden(t, pushName(c.name, i))); !shapes[shape] {
					t.Errorf("the client sent %v, and no %s", shapes, shape)
				}
			}
		})
	}
}

// goldenProfiles runs a server that has the recorded pushes, and returns a range of time, in
// ms, with all of them. The profiles are as old as the recording: the limits allow it.
func goldenProfiles(t *testing.T) (s *server, start, end int64) {
	t.Helper()
	s = startServe(t, func(o *app.ServeOptions) {
		o.Profiles.Limits.Age, o.Profiles.Limits.Future, o.Profiles.Store.Retention = 60*365*24*time.Hour, 60*365*24*time.Hour, -1
	})
	for _, c := range goldenClients {
		for i := range c.keep {
			e := readGolden(t, pushName(c.name, i))
			if body := s.replay(e); !bytes.Equal(body, e.Responses[0]) {
				t.Errorf("%s: the response to %s is %q, committed %q", c.name, e.Method, body, e.Responses[0])
			}
		}
	}
	_, query, _ := strings.Cut(readGolden(t, pushName("node", 0)).Method, "?")
	parameters, err := url.ParseQuery(query)
	if err != nil {
		t.Fatal(err)
	}
	seconds, err := strconv.ParseInt(parameters.Get("from"), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return s, (seconds - 1800) * 1000, (seconds + 1800) * 1000
}

// replay sends a recorded request, and returns the body of the response.
func (s *server) replay(e exchange) []byte {
	s.t.Helper()
	method, path, _ := strings.Cut(e.Method, " ")
	r, err := http.NewRequestWithContext(s.t.Context(), method, s.base+path, bytes.NewReader(e.Request))
	if err != nil {
		s.t.Fatal(err)
	}
	for _, h := range e.Header {
		name, value, _ := strings.Cut(h, ": ")
		r.Header.Set(name, value)
	}
	r.Header.Set("Accept-Encoding", "identity")
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		s.t.Fatalf("%s: %d %q %v", e.Method, resp.StatusCode, body, err)
	}
	return body
}

// goldenQuery sends a request of Grafana's data source through connect-go, as its backend
// does, and compares or captures the exchange.
func goldenQuery[Req, Res any](t *testing.T, base string, last *exchange, method string, request *Req) *Res {
	t.Helper()
	c := connect.NewClient[Req, Res](http.DefaultClient, base+"/querier.v1.QuerierService/"+method, connect.WithAcceptCompression("gzip", nil, nil))
	response, err := c.CallUnary(t.Context(), connect.NewRequest(request))
	if err != nil {
		t.Fatalf("%s: %v", method, err)
	}
	last.Peers = "connect-go with the requests of Grafana's data source, this server"
	checkCaptured(t, "profiles_"+method, *last)
	return response.Msg
}

// The server accepts the requests of every SDK. Its responses to Grafana's requests are the
// committed bytes. This server has sent these bytes, so the test detects changes, not
// differences from Pyroscope.
func TestPeerClients_GoldenProfileExchanges(t *testing.T) {
	if _, err := os.Stat(goldenPath(pushName("go", 0))); err != nil && !*captureGolden {
		t.Fatal(err)
	}
	s, start, end := goldenProfiles(t)
	var last exchange
	base := recordHTTP(t, s.base, func(e exchange) { last = e })
	types := goldenQuery[profilepb.ProfileTypesRequest, profilepb.ProfileTypesResponse](t, base, &last, "ProfileTypes", &profilepb.ProfileTypesRequest{Start: start, End: end})
	found := fmt.Sprint(types.ProfileTypes)
	for _, id := range []string{cpuType, "memory:alloc_space:bytes:space:bytes", "goroutines:goroutine:count:goroutine:count", "wall:wall:nanoseconds:wall:nanoseconds"} {
		if !strings.Contains(found, id) {
			t.Errorf("no %s among %s", id, found)
		}
	}
	goldenQuery[profilepb.LabelNamesRequest, profilepb.LabelNamesResponse](t, base, &last, "LabelNames", &profilepb.LabelNamesRequest{Matchers: []string{`{__profile_type__="` + cpuType + `"}`}, Start: start, End: end})
	services := goldenQuery[profilepb.LabelValuesRequest, profilepb.LabelValuesResponse](t, base, &last, "LabelValues", &profilepb.LabelValuesRequest{Name: "service_name", Start: start, End: end})
	if !slices.Equal(services.Names, []string{"go.client", "node.client", "python.client"}) {
		t.Error(services.Names)
	}
	goldenQuery[profilepb.SeriesRequest, profilepb.SeriesResponse](t, base, &last, "Series", &profilepb.SeriesRequest{LabelNames: []string{"service_name", "__profile_type__"}, Start: start, End: end})
	series := goldenQuery[profilepb.SelectSeriesRequest, profilepb.SelectSeriesResponse](t, base, &last, "SelectSeries", &profilepb.SelectSeriesRequest{
		ProfileTypeID: cpuType, LabelSelector: "{}", Start: start, End: end, Step: 15, GroupBy: []string{"service_name"},
	})
	if len(series.Series) != 2 {
		t.Errorf("CPU time of %d services", len(series.Series))
	}
	nodes := int64(64)
	flame := goldenQuery[profilepb.SelectMergeStacktracesRequest, profilepb.SelectMergeStacktracesResponse](t, base, &last, "SelectMergeStacktraces", &profilepb.SelectMergeStacktracesRequest{
		ProfileTypeID: cpuType, LabelSelector: `{service_name="go.client"}`, Start: start, End: end, MaxNodes: &nodes,
	})
	if !slices.Contains(flame.Flamegraph.Names, "main.hotGo") {
		t.Error(flame.Flamegraph.Names)
	}
	goldenQuery[profilepb.DiffRequest, profilepb.DiffResponse](t, base, &last, "Diff", &profilepb.DiffRequest{
		Left:  &profilepb.SelectMergeStacktracesRequest{ProfileTypeID: cpuType, LabelSelector: `{service_name="go.client"}`, Start: start, End: end, MaxNodes: &nodes},
		Right: &profilepb.SelectMergeStacktracesRequest{ProfileTypeID: cpuType, LabelSelector: `{service_name="python.client"}`, Start: start, End: end, MaxNodes: &nodes},
	})
}
