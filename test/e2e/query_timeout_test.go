package e2e

import (
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/ferula-io/ferula/internal/app"
	pb "github.com/ferula-io/ferula/internal/thanos/storepb/thanospb"
)

// silentStore runs a server whose Info advertises every service and all times, and that
// never responds to another request.
func silentStore(t *testing.T) (address string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		if method, _ := grpc.MethodFromServerStream(stream); !strings.HasSuffix(method, "/Info") {
			<-stream.Context().Done()
			return stream.Context().Err()
		}
		if err := stream.RecvMsg(&pb.InfoRequest{}); err != nil {
			return err
		}
		return stream.SendMsg(&pb.InfoResponse{
			ComponentType: "sidecar", Store: &pb.StoreInfo{MaxTime: 1 << 62}, Rules: &pb.RulesInfo{}, MetricMetadata: &pb.MetricMetadataInfo{}, Targets: &pb.TargetsInfo{}, Exemplars: &pb.ExemplarsInfo{MaxTime: 1 << 62},
		})
	}))
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return listener.Addr().String()
}

// Every request that waits for a store ends by the query timeout, names the store, and
// releases its slot.
func TestQuery_SilentStoreEndsByTheQueryTimeout(t *testing.T) {
	store := silentStore(t)
	q := startQuery(t, []string{store}, func(o *app.QueryOptions) { o.Query.Timeout = 300 * time.Millisecond })
	eventually(t, 60*time.Second, "the store to be known", func() bool {
		_, body := q.get("/api/v1/stores")
		return strings.Contains(body, `"sidecar":[`)
	})
	selector := url.QueryEscape(`{__name__=~".+"}`)
	for _, request := range []string{
		"/api/v1/query?query=up", "/api/v1/series?match[]=" + selector, "/api/v1/labels", "/api/v1/label/job/values", "/api/v1/query_exemplars?query=up&start=1&end=2",
		"/api/v1/metadata", "/api/v1/targets", "/api/v1/rules", "/api/v1/alerts",
	} {
		for _, partial := range []string{"true", "false"} {
			separator := "?"
			if strings.Contains(request, "?") {
				separator = "&"
			}
			done := make(chan struct{})
			go func() {
				defer close(done)
				status, body := q.get(request + separator + "partial_response=" + partial)
				// The deadline is sent to the store, which may exceed it first.
				if partial == "true" && status == http.StatusOK && strings.Contains(body, `"warnings":["store `+store) {
					return
				}
				if status != http.StatusServiceUnavailable || !strings.Contains(body, `"errorType":"timeout"`) {
					t.Errorf("%s: %d %s", request, status, body)
				}
				if !strings.Contains(request, "/query?") && !strings.Contains(request, "/series") && !strings.Contains(body, store) {
					t.Errorf("%s: the store is not named: %s", request, body)
				}
			}()
			select {
			case <-done:
			case <-time.After(20 * time.Second):
				t.Fatalf("%s has not ended", request)
			}
		}
	}
}
