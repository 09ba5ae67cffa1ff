package sim

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"time"
)

// frontendWorld is a query frontend with a cache in front of two tenants' servers.
// The header THANOS-TENANT names the tenant, as behind a gateway that sets it.
type frontendScenario struct {
	env      *environment
	rng      *rand.Rand
	tenants  [2]*server
	gateway  *http.Server
	gateAddr string
	front    *process
	http     string
	constant bool // clients send the same X-Scope-OrgID for every tenant
	sent     []rangeQuery
}

type rangeQuery struct {
	expr           string
	startMS, endMS int64
	stepMS         int64
}

func newFrontendScenario(e *environment, dir string, rng *rand.Rand) (scenario, error) {
	w := &frontendScenario{env: e, rng: rng, constant: rng.IntN(2) == 0}
	for i := range w.tenants {
		srv, err := newServer(e, filepath.Join(dir, fmt.Sprint("tenant", i)), serveConfig{retentionFile: "1y"})
		if err != nil {
			return nil, err
		}
		w.tenants[i] = srv
	}
	return w, nil
}

func (w *frontendScenario) start() error {
	for i, srv := range w.tenants {
		srv.mintMS = time.Now().UnixMilli()
		if err := srv.run(); err != nil {
			return err
		}
		points := map[int64]float64{}
		for n := range int64(120) {
			points[time.Now().Add(-30*time.Minute).UnixMilli()+n*10_000] = float64(i)*1000 + float64(n)
		}
		if err := srv.put(map[string]string{"tenant": fmt.Sprint(i)}, points); err != nil {
			return err
		}
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	w.gateAddr = listener.Addr().String()
	w.gateway = &http.Server{Handler: w.route(), ReadHeaderTimeout: time.Minute}
	go func() { _ = w.gateway.Serve(listener) }()
	if w.http, err = freeAddress(); err != nil {
		return err
	}
	args := []string{"query-frontend", "--http-address=" + w.http, "--query-frontend.downstream-url=http://" + w.gateAddr,
		"--query-range.split-interval=" + pick(w.rng, "5m", "10m", "1h"),
		"--query-range.response-cache-config={type: IN-MEMORY, config: {max_size: 64MB}}"}
	if w.rng.IntN(2) == 0 {
		args = append(args, "--query-frontend.downstream-tripper-config={max_conns_per_host: 2}")
	}
	w.front, err = start(w.env.ctx, w.env.binary, "query-frontend", args...)
	return err
}

// route forwards a request to the server of its tenant.
func (w *frontendScenario) route() http.Handler {
	var proxies [2]http.Handler
	for i, srv := range w.tenants {
		target, err := url.Parse(srv.base())
		if err != nil {
			panic(err) // the URL comes from this package
		}
		proxies[i] = httputil.NewSingleHostReverseProxy(target)
	}
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		switch r.Header.Get("THANOS-TENANT") {
		case "t0":
			proxies[0].ServeHTTP(rw, r)
		case "t1":
			proxies[1].ServeHTTP(rw, r)
		default:
			http.Error(rw, "no such tenant", http.StatusForbidden)
		}
	})
}

func (w *frontendScenario) stop() error {
	if w.gateway != nil {
		defer w.gateway.Close()
	}
	if w.front != nil {
		if err := w.front.stop(); err != nil {
			return err
		}
	}
	for _, srv := range w.tenants {
		if err := srv.stop(); err != nil {
			return err
		}
	}
	return nil
}

func (w *frontendScenario) steps() []step {
	nowMS := time.Now().UnixMilli()
	var list []step
	for range 4 + w.rng.IntN(4) {
		rng := rand.New(rand.NewPCG(w.rng.Uint64(), 0))
		switch rng.IntN(3) {
		case 0:
			list = append(list, step{"write now", func() error { return w.writeNow(rng) }})
		default:
			stepMS := pick(rng, int64(15_000), 60_000)
			start := (nowMS - int64(10+rng.IntN(25))*60_000) / stepMS * stepMS
			q := rangeQuery{w.expression(rng, nowMS), start, nowMS / stepMS * stepMS, stepMS}
			list = append(list, step{"query " + q.expr, func() error { w.sent = append(w.sent, q); return nil }})
		}
	}
	return list
}

// expression returns a query that reads before, at or after the timestamps of its steps.
func (w *frontendScenario) expression(rng *rand.Rand, nowMS int64) string {
	return pick(rng,
		metricName,
		"sum(rate("+metricName+"[2m]))",
		fmt.Sprintf("count_over_time(%s[1h] @ %s offset -3m)", metricName, seconds(nowMS-180_000)),
		fmt.Sprintf("%s @ %s offset -2m", metricName, seconds(nowMS-120_000)),
		metricName+" offset -1m",
		"max_over_time("+metricName+"[2m:30s] offset -2m)",
		metricName+" @ end()",
	)
}

// writeNow writes a sample with the current timestamp, which queries with a negative
// offset read.
func (w *frontendScenario) writeNow(rng *rand.Rand) error {
	for i, srv := range w.tenants {
		if err := srv.put(map[string]string{"tenant": fmt.Sprint(i)}, map[int64]float64{time.Now().UnixMilli(): float64(rng.IntN(100_000))}); err != nil {
			return err
		}
	}
	return nil
}

// check repeats every query so far for both tenants at once, and compares each response
// with the one of the tenant's server.
func (w *frontendScenario) check() error {
	if err := w.front.unexpectedExit(); err != nil {
		return err
	}
	for _, q := range w.sent {
		results := make(chan error, len(w.tenants))
		for i := range w.tenants {
			go func() { results <- w.compare(i, q) }()
		}
		var errs []error
		for range w.tenants {
			errs = append(errs, <-results)
		}
		if err := errors.Join(errs...); err != nil {
			return err
		}
	}
	return nil
}

func (w *frontendScenario) compare(tenant int, q rangeQuery) error {
	form := url.Values{"query": {q.expr}, "start": {seconds(q.startMS)}, "end": {seconds(q.endMS)}, "step": {seconds(q.stepMS)}}
	header := map[string]string{"THANOS-TENANT": fmt.Sprint("t", tenant)}
	if w.constant {
		header["X-Scope-OrgID"] = "1"
	}
	status, got, err := w.query(form, header)
	if err != nil {
		return fmt.Errorf("tenant %d, %s: %w", tenant, q.expr, err)
	}
	if status == http.StatusBadRequest && w.constant {
		return nil // two tenant headers with different values may be refused
	}
	want, _, err := api(w.env.ctx, w.env.client, w.tenants[tenant].base()+"/api/v1/query_range", form, nil)
	if err != nil {
		return err
	}
	if status != http.StatusOK || !bytes.Equal(bytes.TrimSpace(got), bytes.TrimSpace(want)) {
		return fmt.Errorf("tenant %d, %s from %d to %d step %d: frontend returns %d %.600s; the server %.600s", tenant, q.expr, q.startMS, q.endMS, q.stepMS, status, got, want)
	}
	return nil
}

func (w *frontendScenario) query(form url.Values, header map[string]string) (int, []byte, error) {
	req, err := http.NewRequestWithContext(w.env.ctx, http.MethodGet, "http://"+w.http+"/api/v1/query_range?"+form.Encode(), nil)
	if err != nil {
		return 0, nil, err
	}
	for name, value := range header {
		req.Header.Set(name, value)
	}
	client := &http.Client{Timeout: 20 * time.Second, Transport: w.env.client.Transport}
	resp, err := client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return resp.StatusCode, body, err
}
