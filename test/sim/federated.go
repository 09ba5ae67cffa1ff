package sim

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"time"

	"github.com/prometheus/prometheus/prompb"
)

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
