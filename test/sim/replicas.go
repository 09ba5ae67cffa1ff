package sim

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"github.com/prometheus/prometheus/prompb"
)

// replicasScenario is a pair of servers with the same data under a querier, and
// sometimes a store that accepts connections and never responds.
type replicasScenario struct {
	env      *environment
	rng      *rand.Rand
	pair     [2]*server
	query    *process
	http     string
	stalled  net.Listener
	atMS     int64
	diverged bool // the replicas have different samples
}

func newReplicasScenario(e *environment, dir string, rng *rand.Rand) (scenario, error) {
	w := &replicasScenario{env: e, rng: rng, atMS: time.Now().Add(-3 * time.Hour).UnixMilli()}
	for i := range w.pair {
		cfg := serveConfig{retentionFile: "1y", external: map[string]string{"cluster": "eu", "replica": fmt.Sprint("r", i)}}
		srv, err := newServer(e, filepath.Join(dir, fmt.Sprint("replica", i)), cfg)
		if err != nil {
			return nil, err
		}
		srv.mintMS = w.atMS
		w.pair[i] = srv
	}
	return w, nil
}

func (w *replicasScenario) start() error {
	for _, srv := range w.pair {
		if err := srv.run(); err != nil {
			return err
		}
	}
	// A store without samples has an empty time range, so a querier does not query it until
	// the next Info request.
	if err := w.write(rand.New(rand.NewPCG(1, 1)), w.pair[0], w.pair[1]); err != nil {
		return err
	}
	var err error
	if w.http, err = freeAddress(); err != nil {
		return err
	}
	args := []string{"query", "--http-address=" + w.http, "--grpc-address=127.0.0.1:0", "--query.replica-label=replica",
		"--endpoint=" + w.pair[0].grpc, "--endpoint=" + w.pair[1].grpc, "--store.response-timeout=5s", "--query.timeout=30s"}
	if w.rng.IntN(2) == 0 {
		if w.stalled, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			return err
		}
		args = append(args, "--endpoint-strict="+w.stalled.Addr().String())
	}
	if w.query, err = start(w.env.ctx, w.env.binary, "query", args...); err != nil {
		return err
	}
	if err := w.query.watch(w.env, "http://"+w.http); err != nil {
		return err
	}
	return w.waitForStores()
}

// waitForStores waits until the querier lists both servers.
func (w *replicasScenario) waitForStores() error {
	return w.query.until("both stores", func() (bool, error) {
		body, _, err := api(w.env.ctx, w.env.client, "http://"+w.http+"/api/v1/stores", nil, nil)
		return strings.Contains(string(body), `"r0"`) && strings.Contains(string(body), `"r1"`), err
	})
}

func (w *replicasScenario) stop() error {
	if w.stalled != nil {
		w.stalled.Close()
	}
	if w.query != nil {
		if err := w.query.stop(); err != nil {
			return err
		}
	}
	for _, srv := range w.pair {
		if err := srv.stop(); err != nil {
			return err
		}
	}
	return nil
}

func (w *replicasScenario) steps() []step {
	var list []step
	for range 3 + w.rng.IntN(4) {
		rng := rand.New(rand.NewPCG(w.rng.Uint64(), 0))
		switch rng.IntN(4) {
		case 0, 1:
			list = append(list, step{"write to both", func() error { return w.write(rng, w.pair[0], w.pair[1]) }})
		case 2:
			list = append(list, step{"write to one", func() error { w.diverged = true; return w.write(rng, w.pair[rng.IntN(2)]) }})
		case 3:
			list = append(list, step{"kill one and start it", func() error {
				srv := w.pair[rng.IntN(2)]
				srv.kill()
				if err := srv.run(); err != nil {
					return err
				}
				return w.waitForStores()
			}})
		}
	}
	return list
}

func (w *replicasScenario) write(rng *rand.Rand, to ...*server) error {
	points := map[int64]float64{}
	n := int64(20 + rng.IntN(60))
	for i := range n {
		points[w.atMS+i*15_000] = float64(rng.IntN(1000))
	}
	w.atMS += n * 15_000
	series := map[string]string{"id": fmt.Sprint(rng.IntN(3))}
	list := []prompb.TimeSeries{floatSeries(metricName, series, points)}
	if rng.IntN(2) == 0 {
		list = append(append(list, nativeSeries(rng, sortedKeys(points))), classicSeries(rng, sortedKeys(points))...)
	}
	for _, srv := range to {
		if err := srv.putAll(list); err != nil {
			return err
		}
	}
	return nil
}

func (w *replicasScenario) check() error {
	minMS, maxMS := w.pair[0].mintMS, time.Now().UnixMilli()
	got, warnings, err := queryRaw(w.env.ctx, w.env.client, "http://"+w.http, everything, minMS, maxMS, []string{"cluster"}, url.Values{"dedup": {"false"}})
	if err != nil {
		return fmt.Errorf("querier without deduplication: %w", err)
	}
	if w.stalled != nil && len(warnings) == 0 {
		return fmt.Errorf("a store does not respond, and the response has no warning")
	}
	if w.stalled == nil && len(warnings) > 0 {
		return fmt.Errorf("warnings of healthy stores: %q", warnings)
	}
	for i, srv := range w.pair {
		own := samples{}
		label := fmt.Sprintf(`,replica=%q`, fmt.Sprint("r", i)) // the last label, and never the only one
		for series, points := range got {
			if strings.Contains(series, label) {
				own[strings.Replace(series, label, "", 1)] = points
			}
		}
		if err := srv.model.check(own, minMS, maxMS, 0); err != nil {
			return fmt.Errorf("querier without deduplication, replica %d: %w", i, err)
		}
		w.env.proved(own.count())
	}
	if w.diverged {
		return nil
	}
	got, _, err = queryRaw(w.env.ctx, w.env.client, "http://"+w.http, everything, minMS, maxMS, []string{"cluster"}, nil)
	if err == nil {
		err = w.pair[0].model.check(got, minMS, maxMS, 0)
	}
	if err != nil {
		return fmt.Errorf("querier with deduplication: %w", err)
	}
	w.env.proved(got.count())
	return nil
}

// federatedScenario is a server that reads another one by remote_read. Each has its own
// series and may have external labels.
type federatedScenario struct {
	env       *environment
	rng       *rand.Rand
	near, far *server
	atMS      int64
}

func newFederatedScenario(e *environment, dir string, rng *rand.Rand) (scenario, error) {
	label := func() map[string]string {
		if rng.IntN(3) == 0 {
			return nil
		}
		return map[string]string{"cluster": "eu"}
	}
	far, err := newServer(e, filepath.Join(dir, "far"), serveConfig{retentionFile: "1y", external: label()})
	if err != nil {
		return nil, err
	}
	near, err := newServer(e, filepath.Join(dir, "near"), serveConfig{retentionFile: "1y", external: label(), remoteRead: []string{far.base()}})
	if err != nil {
		return nil, err
	}
	return &federatedScenario{env: e, rng: rng, near: near, far: far, atMS: time.Now().Add(-time.Hour).UnixMilli()}, nil
}

func (w *federatedScenario) start() error {
	w.near.mintMS, w.far.mintMS = w.atMS, w.atMS
	if err := w.far.run(); err != nil {
		return err
	}
	return w.near.run()
}

func (w *federatedScenario) stop() error {
	if err := w.near.stop(); err != nil {
		return err
	}
	return w.far.stop()
}

func (w *federatedScenario) steps() []step {
	var list []step
	for i := range 2 + w.rng.IntN(3) {
		rng := rand.New(rand.NewPCG(w.rng.Uint64(), 0))
		target, name := w.near, "near"
		if i == 0 || i > 1 && rng.IntN(2) == 0 { // the first two go to different servers
			target, name = w.far, "far"
		}
		list = append(list, step{"write to " + name, func() error {
			points := map[int64]float64{}
			for n := range int64(10 + rng.IntN(50)) {
				points[w.atMS+n*1000] = float64(rng.IntN(1000))
			}
			list := []prompb.TimeSeries{floatSeries(metricName, map[string]string{"server": name, "id": fmt.Sprint(i)}, points)}
			if rng.IntN(2) == 0 {
				h := nativeSeries(rng, sortedKeys(points))
				h.Labels = append(h.Labels, prompb.Label{Name: "server", Value: name})
				list = append(list, h)
			}
			w.atMS += 60_000
			return target.putAll(list)
		}})
	}
	return list
}

// check reads the series of both through the near server. The near server removes an
// external label of the far one only if it has the same label, so the comparison
// ignores that label.
func (w *federatedScenario) check() error {
	union := w.near.model.clone()
	for series, points := range w.far.model.acked {
		for ms, v := range points {
			union.acked.put(series, ms, v)
		}
	}
	for series, points := range w.far.model.maybe {
		for ms, v := range points {
			union.maybe.put(series, ms, v)
		}
	}
	// The near server requests only series with its external labels, and the far one
	// has no such series.
	if len(w.near.cfg.external) > 0 && len(w.far.cfg.external) == 0 {
		union = w.near.model
	}
	minMS, maxMS := min(w.near.mintMS, w.far.mintMS), time.Now().UnixMilli()
	drop := []string{"cluster"}
	verify := func(path string, got samples, err error) error {
		if err == nil {
			err = union.check(got, minMS, maxMS, 0)
		}
		if err != nil {
			return fmt.Errorf("near by %s: %w: %s", path, err, w.near.proc.log)
		}
		w.env.proved(got.count())
		return nil
	}
	got, warnings, err := queryRaw(w.env.ctx, w.env.client, w.near.base(), everything, minMS, maxMS, drop, nil)
	if err == nil && len(warnings) > 0 {
		err = fmt.Errorf("warnings: %q", warnings)
	}
	if err := verify("PromQL", got, err); err != nil {
		return err
	}
	got, err = remoteReadSamples(w.env.ctx, w.env.client, w.near.base(), minMS, maxMS, drop)
	if err := verify("remote read SAMPLES", got, err); err != nil {
		return err
	}
	format := pick(w.rng, formats...)
	got, err = export(w.env.ctx, w.env.binary, "--url="+w.near.base(), format, minMS, maxMS, drop)
	if format == "openmetrics" {
		union = union.withoutNative()
	}
	return verify("ferula read "+format, got, err)
}
