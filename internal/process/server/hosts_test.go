package server

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestHostNames_AllowsOnlyNamesOfTheServer(t *testing.T) {
	loopback := []string{"127.0.0.1:9490", "[::1]:9490"}
	for _, tt := range []struct {
		addresses []string
		external  string
		names     []string
		host      string
		want      bool
	}{
		{loopback, "", nil, "127.0.0.1:9490", true},
		{loopback, "", nil, "[::1]:9490", true},
		{loopback, "", nil, "[::1]", true},
		{loopback, "", nil, "[fe80::1%25eth0]:9490", true},
		{loopback, "", nil, "10.1.2.3", true},
		{loopback, "", nil, "localhost:9490", true},
		{loopback, "", nil, "LOCALHOST.:9490", true},
		{loopback, "", nil, "ferula.localhost", true},
		{loopback, "", nil, "", true},
		{loopback, "", nil, "rebind.example:9490", false},
		{loopback, "", nil, "localhost.example", false},
		{loopback, "", nil, "127.0.0.1.example:9490", false},
		{loopback, "", nil, "notlocalhost", false},
		{loopback, "", nil, "%", false},
		{loopback, "", nil, ":9490", false},
		{loopback, "https://Metrics.example/ferula", nil, "metrics.example", true},
		{loopback, "https://metrics.example:8443/ferula", nil, "metrics.example:443", true},
		{loopback, "https://metrics.example/ferula", nil, "other.example", false},
		{loopback, "", []string{"a.example", "b.example:9490"}, "B.example", true},
		{loopback, "", []string{"a.example"}, "b.example", false},
		{loopback, "", []string{AnyHost}, "b.example", true},
		{[]string{"localhost:0"}, "", nil, "rebind.example", false},
		{[]string{"0.0.0.0:9490"}, "", nil, "any.example", true},
		{[]string{":9490"}, "", nil, "any.example", true},
		{[]string{"127.0.0.1:9490", "10.1.2.3:9490"}, "", nil, "any.example", true},
		{[]string{"0.0.0.0:9490"}, "", []string{"a.example"}, "a.example", true},
		{[]string{"0.0.0.0:9490"}, "", []string{"a.example"}, "10.0.0.1", true},
		{[]string{"0.0.0.0:9490"}, "", []string{"a.example"}, "any.example", false},
		{[]string{"metrics.example:9490"}, "", []string{"a.example"}, "metrics.example:9490", true},
	} {
		if got := newHostNames(tt.addresses, tt.external, tt.names).allows(tt.host); got != tt.want {
			t.Errorf("%v, external %q, names %q: host %q allowed: %v, want %v", tt.addresses, tt.external, tt.names, tt.host, got, tt.want)
		}
	}
}

func TestHostNames_WrapRefusesOtherHosts(t *testing.T) {
	served := 0
	h := newHostNames([]string{"127.0.0.1:9490"}, "", nil).wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served++ }))
	for host, status := range map[string]int{"127.0.0.1:9490": 200, "rebind.example:9490": http.StatusMisdirectedRequest, "<b>": http.StatusMisdirectedRequest} {
		r := httptest.NewRequest(http.MethodPost, "/ingest", strings.NewReader("body"))
		r.Host = host
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != status || status != 200 && !strings.Contains(w.Body.String(), "--web.allowed-host") {
			t.Errorf("%s: %d %s, want %d", host, w.Code, w.Body, status)
		}
	}
	if served != 1 {
		t.Errorf("%d requests were served, want 1", served)
	}
}

func TestIsLoopback_OnlyForLoopbackAddresses(t *testing.T) {
	for address, want := range map[string]bool{
		"127.0.0.1:1": true, "127.9.9.9:1": true, "[::1]:1": true, "localhost:1": true,
		":1": false, "0.0.0.0:1": false, "[::]:1": false, "10.0.0.1:1": false, "example.org:1": false, "localhost.example.org:1": false, "nonsense": false,
	} {
		if got := isLoopback(address); got != want {
			t.Errorf("%s: %t", address, got)
		}
	}
}
