package serve

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"time"
)

// fleet serves the /metrics of all targets: each is a path of one server.
type fleet struct {
	*httptest.Server
	targets  int
	prefixes [][]byte // of the lines of a scrape response
	begun    time.Time
}

// newFleet starts a fleet. Close must be called.
func newFleet(targets, series int) *fleet {
	f := &fleet{targets: targets, begun: time.Now()}
	for i := range series {
		f.prefixes = append(f.prefixes, fmt.Appendf(nil, `bench_scraped_total{method="GET",path="/api/v1/%d",code="%d"} `, i/4, 200+i%4))
	}
	f.Server = httptest.NewServer(f)
	return f
}

// ServeHTTP implements http.Handler: it serves the scrape response of a target, whose counters rise with time.
func (f *fleet) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n, err := strconv.Atoi(strings.TrimPrefix(r.URL.Path, "/target/"))
	if err != nil || n < 0 || n >= f.targets {
		http.NotFound(w, r)
		return
	}
	ms := uint64(time.Since(f.begun).Milliseconds())
	page := make([]byte, 0, 80*len(f.prefixes))
	for i, prefix := range f.prefixes {
		page = append(page, prefix...)
		page = strconv.AppendUint(page, ms*uint64(i%100+1)/1000+uint64(n), 10)
		page = append(page, '\n')
	}
	w.Header().Set("Content-Type", "text/plain; version=0.0.4")
	_, _ = w.Write(page) // a scraper that has disconnected reports it itself
}

// writeList writes the targets for file_sd_configs.
func (f *fleet) writeList(path string) error {
	type group struct {
		Targets []string          `json:"targets"`
		Labels  map[string]string `json:"labels"`
	}
	groups := make([]group, f.targets)
	for i := range groups {
		groups[i] = group{[]string{f.Listener.Addr().String()}, map[string]string{"__metrics_path__": "/target/" + strconv.Itoa(i), "target": strconv.Itoa(i)}}
	}
	text, err := json.Marshal(groups)
	if err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o644)
}
