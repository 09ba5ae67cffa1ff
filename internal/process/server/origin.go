package server

import (
	"net/http"
	"net/url"
	"strings"
)

// OriginGuard rejects state-changing requests that a browser sends for a page of another
// origin: any page can make a browser send a POST to a loopback address. Other clients
// send neither Sec-Fetch-Site nor Origin. external may be nil.
func OriginGuard(external *url.URL) func(http.Handler) http.Handler {
	protection := http.NewCrossOriginProtection()
	if external != nil {
		// A reverse proxy may change the Host header that the origin is compared with. The error means
		// that external is no valid origin. It can be ignored: no browser sends such an origin.
		_ = protection.AddTrustedOrigin(external.Scheme + "://" + external.Host)
	}
	protection.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Error(w, "a page of another origin may not send this request: "+protection.Check(r).Error(),
			http.StatusForbidden)
	}))
	return protection.Handler
}

// readingEndpoints are the endpoints of the Prometheus HTTP API whose POST is read-only.
var readingEndpoints = map[string]bool{
	"query": true, "query_range": true, "query_explain": true, "query_range_explain": true, "query_exemplars": true,
	"series": true, "labels": true, "format_query": true, "parse_query": true, "read": true,
}

// GuardForwarded applies guard to all forwarded requests that are not known to be
// read-only.
func GuardForwarded(guard func(http.Handler) http.Handler, next http.Handler) http.Handler {
	protected := guard(next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, endpoint, ok := strings.Cut(r.URL.Path, "/api/v1/"); ok && readingEndpoints[endpoint] {
			next.ServeHTTP(w, r)
			return
		}
		protected.ServeHTTP(w, r)
	})
}
