package sim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
)

// shippingScenario is a server that uploads its blocks to a bucket, which is a directory
// that vanishes and returns. In the end the bucket has every block of the server. With an
// out-of-order window it has all samples after each shutdown.
type shippingScenario struct {
	*storageScenario
	bucket string
	killed bool // after a kill, late samples may be in two blocks, as in Prometheus
}

func newShippingScenario(e *environment, dir string, rng *rand.Rand) (scenario, error) {
	bucket := filepath.Join(dir, "bucket")
	srv, err := newServer(e, filepath.Join(dir, "serve"), serveConfig{
		retentionFile: "1y", window: pick(rng, 0, 3*time.Hour), external: map[string]string{"cluster": "eu"},
		flags: []string{"--storage.tsdb.min-block-duration=2h", "--storage.tsdb.max-block-duration=2h", "--objstore.config={type: FILESYSTEM, config: {directory: " + bucket + "}}"},
	})
	if err != nil {
		return nil, err
	}
	w := &shippingScenario{storageScenario: &storageScenario{env: e, rng: rng, srv: srv, dir: dir}, bucket: bucket}
	return w, os.MkdirAll(bucket, 0o755)
}

func (w *shippingScenario) steps() []step {
	p := plan{rng: w.rng}
	for range 5 + w.rng.IntN(6) {
		switch w.rng.IntN(9) {
		case 0, 1:
			p.add("write in order", w.writeInOrder)
		case 2:
			p.add("write histograms", w.writeHistograms)
		case 3:
			p.do("the bucket vanishes", w.vanish)
		case 4:
			p.do("the bucket returns", w.giveBack)
		case 5:
			p.do("kill and start", w.killAndStart)
		case 6:
			p.add("write late", w.writeLate)
		case 7, 8:
			p.add("stop and start", w.stopAndStart)
		}
	}
	p.add("the bucket returns, restart, wait for uploads", func(rng *rand.Rand) error {
		if err := w.giveBack(); err != nil {
			return err
		}
		if w.srv.cfg.window > 0 {
			return w.stopAndStart(rng)
		}
		if err := w.killAndStart(); err != nil {
			return err
		}
		return w.waitForUploads()
	})
	return p.list
}

func (w *shippingScenario) killAndStart() error {
	w.killed = true
	w.srv.kill()
	return w.srv.run()
}

// stopAndStart stops the server, which uploads all samples if it has an out-of-order window.
func (w *shippingScenario) stopAndStart(rng *rand.Rand) error {
	if err := w.srv.stop(); err != nil {
		return err
	}
	if err := w.srv.compareAll([]string{pick(rng, formats...)}, true); err != nil {
		return fmt.Errorf("while stopped: %w", err)
	}
	if _, err := os.Stat(w.bucket + ".away"); w.srv.cfg.window > 0 && errors.Is(err, os.ErrNotExist) {
		if err := errors.Join(w.compareBucket(math.MaxInt64), w.noDoubles()); err != nil {
			return fmt.Errorf("after the shutdown: %w", err)
		}
	}
	return w.srv.run()
}

// noDoubles returns an error if two blocks of the bucket have the same sample.
func (w *shippingScenario) noDoubles() error {
	metas, err := filepath.Glob(filepath.Join(w.bucket, "*", "meta.json"))
	if err != nil || w.killed {
		return err
	}
	all, count := samples{}, 0
	for _, meta := range metas {
		one := samples{}
		_, err := one.addBlock(filepath.Dir(meta), nil)
		if err == nil {
			_, err = all.addBlock(filepath.Dir(meta), nil)
		}
		if err != nil {
			return err
		}
		if count += one.count(); all.count() < count {
			return fmt.Errorf("%s has %d samples of other blocks", filepath.Dir(meta), count-all.count())
		}
	}
	return nil
}

// vanish moves the bucket away. A file in its place makes uploads fail.
func (w *shippingScenario) vanish() error {
	if _, err := os.Stat(w.bucket + ".away"); err == nil {
		return nil
	}
	if err := os.Rename(w.bucket, w.bucket+".away"); err != nil {
		return err
	}
	return os.WriteFile(w.bucket, nil, 0o600)
}

func (w *shippingScenario) giveBack() error {
	if _, err := os.Stat(w.bucket + ".away"); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err := os.RemoveAll(w.bucket); err != nil {
		return err
	}
	return os.Rename(w.bucket+".away", w.bucket)
}

// waitForUploads waits until the bucket has the samples of all blocks of the server.
func (w *shippingScenario) waitForUploads() error {
	return w.srv.proc.until("all blocks in the bucket", func() (bool, error) {
		_, lastMS, err := blockSamples(filepath.Join(w.srv.dir, "data"), nil)
		if err == nil {
			err = w.compareBucket(lastMS)
		}
		return true, err
	})
}

// compareBucket compares the bucket with the model, up to lastMS.
func (w *shippingScenario) compareBucket(lastMS int64) error {
	got, _, err := blockSamples(w.bucket, nil)
	if err != nil {
		return err
	}
	expected := w.srv.model.clone()
	for series, points := range expected.acked {
		for ms := range points {
			if ms >= lastMS { // the sample is only in the write-ahead log
				expected.maybe.put(series, ms, points[ms])
				delete(points, ms)
			}
		}
	}
	if err := expected.check(got, w.srv.mintMS-1000, time.Now().UnixMilli(), 0); err != nil {
		return fmt.Errorf("blocks of the bucket: %w: %s", err, w.srv.proc.log)
	}
	w.env.proved(got.count())
	return nil
}

// blockSamples reads the samples of all blocks of a directory and returns the greatest
// maximum time of a block, which is exclusive.
func blockSamples(dir string, drop []string) (samples, int64, error) {
	got, lastMS := samples{}, int64(0)
	metas, err := filepath.Glob(filepath.Join(dir, "*", "meta.json"))
	if err != nil {
		return nil, 0, err
	}
	for _, meta := range metas {
		maxMS, err := got.addBlock(filepath.Dir(meta), drop)
		if err != nil {
			return nil, 0, fmt.Errorf("%s: %w", filepath.Dir(meta), err)
		}
		lastMS = max(lastMS, maxMS)
	}
	return got, lastMS, nil
}

func (s samples) addBlock(dir string, drop []string) (maxMS int64, err error) {
	b, err := tsdb.OpenBlock(slog.New(slog.DiscardHandler), dir, nil, nil)
	if err != nil {
		return 0, err
	}
	defer b.Close()
	q, err := tsdb.NewBlockQuerier(b, b.MinTime(), b.MaxTime())
	if err != nil {
		return 0, err
	}
	defer q.Close()
	set := q.Select(context.Background(), false, nil, labels.MustNewMatcher(labels.MatchRegexp, "__name__", "sim_.+"))
	for set.Next() {
		key := dataKey(set.At().Labels().Map(), drop)
		it := set.At().Iterator(nil)
		for kind := it.Next(); kind != chunkenc.ValNone; kind = it.Next() {
			if kind == chunkenc.ValFloat {
				ms, v := it.At()
				s.put(key, ms, v)
			} else {
				ms, h := it.AtFloatHistogram(nil)
				s.putHistogram(key, ms, h)
			}
		}
		if it.Err() != nil {
			return 0, it.Err()
		}
	}
	return b.MaxTime(), set.Err()
}
