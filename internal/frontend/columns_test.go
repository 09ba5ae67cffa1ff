package frontend

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
)

const (
	columnsType   = "application/vnd.ferula.columns.v1"
	acceptColumns = columnsType + ", application/json" // what the page sends
)

func getForm(t *testing.T, address, accept string) (status int, body, contentType string, h http.Header) {
	t.Helper()
	header := map[string]string{"Accept-Encoding": "identity"}
	if accept != "" {
		header["Accept"] = accept
	}
	status, body, h = getAs(t, address, header)
	return status, body, h.Get("Content-Type"), h
}

// The response to a query that is split, or that reads or fills the cache, is JSON for every client that accepts JSON.
func TestColumns_SplitAndCachedQueriesAreJSON(t *testing.T) {
	w := newTestEnv(t)
	front := w.front(func(o *Options) { o.Cache = newMemoryCache() })
	path := rangePath("requests_total", 600, 9000, 30)
	_, want, _ := get(t, w.server.URL+path)
	for i, accept := range []string{acceptColumns, acceptColumns, "", "application/json", acceptColumns} {
		status, body, contentType, h := getForm(t, front.URL+path, accept)
		check(t, status == 200 && contentType == "application/json" && body == want, "%d: %d %q %.300s", i, status, contentType, body)
		state := "hit"
		if i == 0 {
			state = "miss"
		}
		check(t, h.Get("X-Ferula-Cache") == state, "%d: %s", i, h.Get("X-Ferula-Cache"))
	}
}

// A query that is not split is passed through in the form that the client accepts, and the cache remains as it is.
func TestColumns_PassedThroughAndNotCached(t *testing.T) {
	w := newTestEnv(t)
	front := w.front(func(o *Options) { o.Cache = newMemoryCache() })
	whole, split := rangePath("requests_total", 600, 9000, 30)+"&limit=3", rangePath("requests_total", 600, 9000, 30)
	_, wantJSON, _ := get(t, w.server.URL+whole)
	_, want, _, _ := getForm(t, w.server.URL+whole, acceptColumns)
	check(t, strings.HasPrefix(want, "FERULAC1"), "the downstream has no columns: %.100q", want)
	for range 2 {
		status, body, contentType, h := getForm(t, front.URL+whole, acceptColumns)
		check(t, status == 200 && contentType == columnsType && body == want, "%d %q, %d bytes, want %d", status, contentType, len(body), len(want))
		check(t, slices.Contains(h.Values("Vary"), "Accept"), "Vary is %q", h.Values("Vary"))
		status, body, contentType, _ = getForm(t, front.URL+whole, "")
		check(t, status == 200 && contentType == "application/json" && body == wantJSON, "%d %q %.300s", status, contentType, body)
	}
	// A client of columns alone gets them, although the query could be split. The next client of JSON finds no columns in the cache.
	_, want, _, _ = getForm(t, w.server.URL+split, columnsType)
	_, wantJSON, _ = get(t, w.server.URL+split)
	for range 2 {
		status, body, contentType, h := getForm(t, front.URL+split, columnsType)
		check(t, status == 200 && contentType == columnsType && body == want && h.Get("X-Ferula-Cache") == "", "%d %q, %d bytes, want %d, %v", status, contentType, len(body), len(want), h)
		status, body, contentType, _ = getForm(t, front.URL+split, "*/*")
		check(t, status == 200 && contentType == "application/json" && body == wantJSON, "%d %q %.300s", status, contentType, body)
	}
}

// Clients of both forms at the same time share no response; clients of the same form do.
func TestColumns_SingleFlightKeepsTheFormsApart(t *testing.T) {
	g := newBlockingDownstream(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Vary", "Accept")
		w.Header().Set("Content-Type", r.Header.Get("Accept"))
		fmt.Fprintf(w, "in %s", r.Header.Get("Accept"))
	})
	path := rangePath("requests_total", 600, 900, 30) + "&limit=3"
	forms := []string{columnsType, "application/json"}
	var clients sync.WaitGroup
	got := make([]string, 4)
	for i := range got {
		clients.Go(func() {
			status, body, contentType, h := getForm(t, g.URL+path, forms[i%2])
			got[i] = fmt.Sprint(status, " ", body, " ", contentType, " ", h.Values("Vary"))
		})
	}
	for range forms {
		<-g.arrived
	}
	g.wait(t, 4)
	close(g.release)
	clients.Wait()
	for i, text := range got {
		accept := forms[i%2]
		check(t, text == fmt.Sprintf("200 in %s %s [Accept Accept-Encoding]", accept, accept), "%d: %s", i, text)
	}
	check(t, g.calls.Load() == 2, "%d calls of the downstream", g.calls.Load())
}
