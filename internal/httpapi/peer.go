package httpapi

import (
	"net/http"

	"github.com/prometheus/prometheus/util/httputil"

	"github.com/ferula-io/ferula/internal/precheck"
)

// peer returns the handler of an endpoint that Options.Peer serves. Before it the form is parsed, and check, which may
// be nil, can refuse the request.
func (a *API) peer(check func(*http.Request) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		apiErr := parseForm(w, r)
		if apiErr == nil && check != nil {
			if err := check(r); err != nil {
				apiErr = invalidParameter("query", err)
			}
		}
		if apiErr != nil {
			httputil.SetCORS(w, a.opts.CORSOrigin, r)
			a.respondError(w, apiErr)
			return
		}
		a.opts.Peer.ServeHTTP(w, r)
	})
}

// formattable checks the nesting of a query for /format_query and /parse_query.
func formattable(r *http.Request) error {
	query := r.FormValue("query")
	return precheck.Query(query, prettyLevels(len(query)))
}
