package e2e

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// The cache must not return the response of one tenant or token to another. Each case
// has the flags of a multi-tenant installation.
func TestFrontend_CacheSeparatesTenants(t *testing.T) {
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = r.ParseForm()
		fmt.Fprintf(w, `{"status":"success","data":{"resultType":"matrix","result":[{"metric":{"seen":"%s/%s/%s"},"values":[[%s,"1"]]}]}}`,
			r.Header.Get("X-Scope-OrgID"), r.Header.Get("THANOS-TENANT"), r.Header.Get("Authorization"), r.Form.Get("start"))
	}))
	defer backend.Close()
	const path = "/api/v1/query_range?query=up&start=0&end=7199&step=30"
	for name, c := range map[string]struct {
		args          []string
		first, second map[string]string
		sees          string // what the second client gets; "": its request is refused
	}{
		"one tenant named by the other header": {nil, map[string]string{"THANOS-TENANT": "a"}, map[string]string{"X-Scope-OrgID": "a"}, "a//"},
		"a header added to the gateway's":      {nil, map[string]string{"THANOS-TENANT": "a"}, map[string]string{"THANOS-TENANT": "b", "X-Scope-OrgID": "a"}, ""},
		"a header that is not sent":            {[]string{"--query-frontend.org-id-header=X-Team"}, map[string]string{"THANOS-TENANT": "a"}, map[string]string{"THANOS-TENANT": "b"}, "/b/"},
		"a renamed header":                     {[]string{"--query-frontend.tenant-header=X-Team"}, map[string]string{"X-Team": "a"}, map[string]string{"X-Team": "b"}, "/b/"},
		"a forwarded token":                    {[]string{"--query-frontend.forward-header=Authorization"}, map[string]string{"Authorization": "Bearer a"}, map[string]string{"Authorization": "Bearer b"}, "//Bearer b"},
		"no token":                             {[]string{"--query-frontend.forward-header=Authorization"}, map[string]string{"Authorization": "Bearer a"}, nil, "//"},
	} {
		t.Run(name, func(t *testing.T) {
			p := startProcess(t, binary(t), append([]string{"query-frontend", "--http-address=127.0.0.1:0", "--query-frontend.downstream-url=" + backend.URL,
				"--query-range.split-interval=1h", "--query-range.response-cache-config={type: IN-MEMORY, config: {max_size: 16MB}}"}, c.args...)...)
			as := func(header map[string]string) (int, string, string) {
				req, err := http.NewRequest(http.MethodGet, p.base+path, nil)
				if err != nil {
					t.Fatal(err)
				}
				for name, value := range header {
					req.Header.Set(name, value)
				}
				resp, err := http.DefaultTransport.RoundTrip(req)
				if err != nil {
					t.Fatal(err)
				}
				defer resp.Body.Close()
				body, err := io.ReadAll(resp.Body)
				if err != nil {
					t.Fatal(err)
				}
				return resp.StatusCode, string(body), resp.Header.Get("X-Ferula-Cache")
			}
			_, first, _ := as(c.first)
			if _, again, cache := as(c.first); cache != "hit" || again != first {
				t.Fatalf("the first client's response is not cached: %s %s", cache, again)
			}
			status, other, cache := as(c.second)
			switch {
			case c.sees == "" && status != http.StatusBadRequest:
				t.Errorf("%d %s", status, other)
			case c.sees != "" && (cache != "miss" || !strings.Contains(other, `"seen":"`+c.sees+`"`)):
				t.Errorf("cache %s, the second client sees %s", cache, other)
			}
		})
	}
}
