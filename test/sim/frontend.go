package sim

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// frontendScenario is a query frontend with a cache in front of the servers of two tenants. A
// reverse proxy between them selects the server by a header.
type frontendScenario struct {
	env      *environment
	rng      *rand.Rand
	tenants  [2]*server
	identity identity
	gateway  *http.Server
	gateAddr string
	front    *process
	http     string
	cache    *cacheDouble // nil if the cache is another one
	real     *realCache   // nil if the cache is another one
	sent     []rangeQuery
}

// identity is how requests name their tenant.
type identity struct {
	header   string   // names the tenant, and selects the server
	constant string   // header that is equal for all tenants; "" for none
	flags    []string // flags of the frontend for these headers
}

var identities = []identity{
	{header: "THANOS-TENANT"},
	{header: "X-Scope-OrgID"},
	{header: "THANOS-TENANT", constant: "X-Scope-OrgID", flags: []string{"--query-frontend.org-id-header=THANOS-TENANT"}},
	{header: "X-Team", constant: "X-Scope-OrgID", flags: []string{"--query-frontend.forward-header=X-Team"}},
	{header: "X-Team", constant: "THANOS-TENANT", flags: []string{"--query-frontend.forward-header=X-Team"}},
	{header: "Authorization", constant: "X-Scope-OrgID", flags: []string{"--query-frontend.forward-header=Authorization"}},
}

type rangeQuery struct {
	expr           string
	startMS, endMS int64
	stepMS         int64
}

func newFrontendScenario(e *environment, dir string, rng *rand.Rand) (scenario, error) {
	w := &frontendScenario{env: e, rng: rng, identity: pick(rng, identities...)}
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
		if err := w.writeOld(i, srv); err != nil {
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
	cache, err := w.newCache()
	if err != nil {
		return err
	}
	args := []string{"query-frontend", "--http-address=" + w.http, "--query-frontend.downstream-url=http://" + w.gateAddr,
		"--query-range.split-interval=" + pick(w.rng, "5m", "10m", "1h"), "--query-range.response-cache-config=" + cache}
	if w.rng.IntN(2) == 0 {
		args = append(args, "--query-frontend.downstream-tripper-config={max_conns_per_host: 2}")
	}
	if w.front, err = start(w.env.ctx, w.env.binary, "query-frontend", append(args, w.identity.flags...)...); err != nil {
		return err
	}
	err = w.front.watch(w.env, "http://"+w.http)
	w.front.goroutinesMore = goroutinesMoreFrontend
	return err
}

// writeOld writes four hours of some series, not in the order of their labels. A server may then
// have them in a block and in its head.
func (w *frontendScenario) writeOld(tenant int, srv *server) error {
	begin := time.Now().Add(-4 * time.Hour).UnixMilli()
	for hour := range int64(4) {
		for _, id := range []string{"d", "a", "c", "b"} {
			points := map[int64]float64{}
			for n := range int64(360) {
				points[begin+hour*3_600_000+n*10_000] = float64(tenant)*1000 + float64(w.rng.IntN(1000))/7
			}
			if err := srv.put(map[string]string{"tenant": fmt.Sprint(tenant), "id": id}, points); err != nil {
				return err
			}
		}
	}
	return nil
}

// newCache returns the configuration of a cache: in memory, a double that fails, or a real one
// if it is installed.
func (w *frontendScenario) newCache() (string, error) {
	var err error
	switch kind := pick(w.rng, "memory", "double", "double", "memcached", "redis-server"); kind {
	case "double":
		if w.cache, err = newCacheDouble(w.rng.IntN(2) == 0, w.rng); err != nil {
			return "", err
		}
		return w.cache.config(), nil
	case "memcached", "redis-server":
		path, err := exec.LookPath(kind)
		if err != nil {
			w.env.logf("%s is not installed: the cache is in memory", kind)
			break
		}
		if w.real, err = newRealCache(path, kind); err != nil {
			return "", err
		}
		return w.real.config(), nil
	}
	return "{type: IN-MEMORY, config: {max_size: 64MB}}", nil
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
		switch r.Header.Get(w.identity.header) {
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
	if w.cache != nil {
		defer w.cache.stop()
	}
	if w.real != nil {
		defer w.real.kill()
	}
	errs := []error{w.front.stop()}
	for _, srv := range w.tenants {
		errs = append(errs, srv.stop())
	}
	return errors.Join(errs...)
}

func (w *frontendScenario) steps() []step {
	nowMS := time.Now().UnixMilli()
	list := []step{w.query(rand.New(rand.NewPCG(w.rng.Uint64(), 0)), nowMS)}
	for range 4 + w.rng.IntN(5) {
		rng := rand.New(rand.NewPCG(w.rng.Uint64(), 0))
		switch rng.IntN(4) {
		case 0:
			list = append(list, step{"write now", func() error { return w.writeNow(rng) }})
		case 1:
			if fault := pick(rng, cacheFaults...); w.cache != nil {
				list = append(list, step{"the cache " + string(fault), func() error { return w.cache.set(fault) }})
			}
			if w.real != nil {
				list = append(list, step{"kill the cache, or start it", w.real.toggle})
			}
		default:
			list = append(list, w.query(rng, nowMS))
		}
	}
	return list
}

// query returns a step that adds a query to those that check sends.
func (w *frontendScenario) query(rng *rand.Rand, nowMS int64) step {
	stepMS, minutes := pick(rng, int64(15_000), 60_000), 10+rng.IntN(25)
	if rng.IntN(3) == 0 {
		stepMS, minutes = 300_000, 60+rng.IntN(200)
	}
	start := (nowMS - int64(minutes)*60_000) / stepMS * stepMS
	q := rangeQuery{w.expression(rng, nowMS), start, nowMS / stepMS * stepMS, stepMS}
	return step{"query " + q.expr, func() error { w.sent = append(w.sent, q); return nil }}
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
		"stddev("+metricName+")",
	)
}

// writeNow writes a sample with the current timestamp, which queries with a negative
// offset read.
func (w *frontendScenario) writeNow(rng *rand.Rand) error {
	for i, srv := range w.tenants {
		if err := srv.put(map[string]string{"tenant": fmt.Sprint(i), "id": "a"}, map[int64]float64{time.Now().UnixMilli(): float64(rng.IntN(100_000))}); err != nil {
			return err
		}
	}
	return nil
}

// check repeats every query so far for both tenants concurrently, and compares each response
// with that of the tenant's server.
func (w *frontendScenario) check() error {
	if err := w.front.unexpectedExit(); err != nil {
		return err
	}
	type result struct {
		points int
		err    error
	}
	for _, q := range w.sent {
		results := make(chan result, len(w.tenants))
		for i := range w.tenants {
			go func() {
				points, err := w.compare(i, q)
				results <- result{points, err}
			}()
		}
		var errs []error
		for range w.tenants {
			r := <-results
			w.env.proved(r.points)
			errs = append(errs, r.err)
		}
		if err := errors.Join(errs...); err != nil {
			return err
		}
	}
	return nil
}

func (w *frontendScenario) compare(tenant int, q rangeQuery) (proofs int, err error) {
	form := url.Values{"query": {q.expr}, "start": {seconds(q.startMS)}, "end": {seconds(q.endMS)}, "step": {seconds(q.stepMS)}}
	header := map[string]string{w.identity.header: fmt.Sprint("t", tenant)}
	if w.identity.constant != "" {
		header[w.identity.constant] = "1"
	}
	client := &http.Client{Timeout: 60 * time.Second, Transport: w.env.client.Transport}
	status, got, _, err := get(w.env.ctx, client, "http://"+w.http+"/api/v1/query_range", form, header)
	if err != nil {
		return 0, fmt.Errorf("tenant %d, %s: %w", tenant, q.expr, err)
	}
	want, _, err := api(w.env.ctx, w.env.client, w.tenants[tenant].base()+"/api/v1/query_range", form, nil)
	if err != nil {
		return 0, err
	}
	if status != http.StatusOK {
		return 0, fmt.Errorf("tenant %d, %s: the frontend returns %d %.600s", tenant, q.expr, status, got)
	}
	points, err := equalMatrix(got, want, q.aggregates())
	if err != nil {
		return 0, fmt.Errorf("tenant %d, %s from %d to %d step %d: %w: the frontend returns %.600s; the server %.600s", tenant, q.expr, q.startMS, q.endMS, q.stepMS, err, got, want)
	}
	return points, nil
}

// aggregates reports whether a query adds up values of several series.
func (q rangeQuery) aggregates() bool {
	return strings.HasPrefix(q.expr, "stddev(") || strings.HasPrefix(q.expr, "sum(")
}

// orderError is the maximum relative error of a result that depends on the order in which the
// engine adds up series.
const orderError = 1e-12

// equalMatrix compares two responses and returns the number of their points. Their bytes must
// be equal, except that aggregations may differ in the last digits. A server returns the
// series of its head in the order of their creation, and sorts them if a query also reads a
// block. A part of a split query may read the head alone, so the engine may add up in another
// order.
func equalMatrix(got, want []byte, aggregates bool) (points int, err error) {
	type response struct {
		Status string
		Data   struct {
			Result []matrix
		}
	}
	var g, s response
	if err := errors.Join(json.Unmarshal(got, &g), json.Unmarshal(want, &s)); err != nil {
		return 0, err
	}
	for _, m := range s.Data.Result {
		points += len(m.Values)
	}
	if bytes.Equal(bytes.TrimSpace(got), bytes.TrimSpace(want)) {
		return points, nil
	}
	if !aggregates || g.Status != s.Status || len(g.Data.Result) != len(s.Data.Result) {
		return 0, errors.New("they differ")
	}
	for i, m := range s.Data.Result {
		other := g.Data.Result[i]
		if seriesKey(m.Metric) != seriesKey(other.Metric) || len(m.Values) != len(other.Values) {
			return 0, fmt.Errorf("series %d differs", i)
		}
		for n := range m.Values {
			wantMS, wantV, err := point(m.Values[n])
			gotMS, gotV, gotErr := point(other.Values[n])
			if err := errors.Join(err, gotErr); err != nil {
				return 0, err
			}
			if gotMS != wantMS || math.Abs(gotV-wantV) > orderError*math.Abs(wantV) {
				return 0, fmt.Errorf("point %d of series %d is %v @%d, want %v @%d", n, i, gotV, gotMS, wantV, wantMS)
			}
		}
	}
	return points, nil
}
