package role

import (
	"net/http"
	"net/url"
	"strings"

	"github.com/ferula-io/ferula/internal/ingest/remotewrite"
	"github.com/ferula-io/ferula/internal/reqbody"
)

// ReceiveOptions are about what is pushed to serve.
type ReceiveOptions struct {
	RemoteWriteOff bool            // remote write is refused
	ProfilesOff    bool            // pushed profiles are refused
	Bodies         reqbody.Options // of all receivers together
}

// remoteWrite is the receiver of metrics, or what is there when it is off.
func (s *Serve) remoteWrite(guard func(http.Handler) http.Handler) http.Handler {
	if s.opts.Receive.RemoteWriteOff {
		return switchedOff("remote write", "--web.enable-remote-write-receiver")
	}
	opts := s.opts.Write
	opts.Bodies = s.bodies
	return guard(remotewrite.NewHandler(opts, s.store, s.opts.Logger.With("component", "remote write"), s.reg))
}

// switchedOff is in the place of a receiver that the operator does not want, with the
// status that Prometheus gives.
func switchedOff(what, flag string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "the receiver of "+what+" is switched off; it needs "+flag, http.StatusNotFound)
	})
}

// originGuard refuses requests that change something and that a browser sends for a
// page of another origin: any page may send a POST to a loopback address. Other
// clients send neither Sec-Fetch-Site nor Origin. external may be nil.
func originGuard(external *url.URL) func(http.Handler) http.Handler {
	protection := http.NewCrossOriginProtection()
	if external != nil {
		// A proxy may have changed the Host that the origin is compared with. What is
		// no origin cannot be a page's either.
		_ = protection.AddTrustedOrigin(external.Scheme + "://" + external.Host)
	}
	protection.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Error(w, "a page of another origin may not send this request: "+protection.Check(r).Error(), http.StatusForbidden)
	}))
	return protection.Handler
}

// readingEndpoints are those of the Prometheus HTTP API that a POST only reads.
var readingEndpoints = map[string]bool{
	"query": true, "query_range": true, "query_exemplars": true, "series": true, "labels": true, "format_query": true, "parse_query": true, "read": true,
}

// guardUnknown guards what is passed on to a downstream and may change something there.
func guardUnknown(guard func(http.Handler) http.Handler, next http.Handler) http.Handler {
	guarded := guard(next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, endpoint, ok := strings.Cut(r.URL.Path, "/api/v1/"); ok && readingEndpoints[endpoint] {
			next.ServeHTTP(w, r)
			return
		}
		guarded.ServeHTTP(w, r)
	})
}
