package e2e

import (
	"net/http"
	"strings"
	"testing"
	"time"
)

// TestQuery_EveryEndpointWarnsOfAStoreThatIsDown queries a running store and one that never
// responded, so that the querier does not know its labels and time range.
func TestQuery_EveryEndpointWarnsOfAStoreThatIsDown(t *testing.T) {
	up := startServe(t, idle(t))
	q := startQuery(t, []string{up.grpc, "127.0.0.1:1"}, nil)
	for _, path := range []string{
		"/api/v1/targets", "/api/v1/rules", "/api/v1/alerts", "/api/v1/metadata", "/api/v1/query?query=up", "/api/v1/labels", "/api/v1/series?match[]=up",
		"/api/v1/query_exemplars?query=up&start=0&end=1",
	} {
		eventually(t, 60*time.Second, path+" to warn of the store", func() bool {
			status, body := q.get(path)
			return status == http.StatusOK && strings.Contains(body, `"warnings"`) && strings.Contains(body, "127.0.0.1:1")
		})
	}
}
