package sim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
)

// shippingScenario is a server that uploads its blocks to a bucket, which is a directory
// that vanishes and returns. In the end the bucket has every block of the server.
type shippingScenario struct {
	*storageScenario
	bucket string
}

const shipTimeout = 90 * time.Second // a failed upload is retried after 2, 4, 8 and 16 s

func newShippingScenario(e *environment, dir string, rng *rand.Rand) (scenario, error) {
	bucket := filepath.Join(dir, "bucket")
	srv, err := newServer(e, filepath.Join(dir, "serve"), serveConfig{
		retentionFile: "1y", external: map[string]string{"cluster": "eu"},
		flags: []string{"--storage.tsdb.min-block-duration=2h", "--storage.tsdb.max-block-duration=2h", "--objstore.config={type: FILESYSTEM, config: {directory: " + bucket + "}}"},
	})
	if err != nil {
		return nil, err
	}
	return &shippingScenario{&storageScenario{env: e, rng: rng, srv: srv, dir: dir}, bucket}, os.MkdirAll(bucket, 0o755)
}

func (w *shippingScenario) steps() []step {
	var list []step
	add := func(name string, run func(rng *rand.Rand) error) {
		rng := rand.New(rand.NewPCG(w.rng.Uint64(), 0))
		list = append(list, step{name, func() error { return run(rng) }})
	}
	for range 5 + w.rng.IntN(6) {
		switch w.rng.IntN(6) {
		case 0, 1:
			add("write in order", w.writeInOrder)
		case 2:
			add("write histograms", w.writeHistograms)
		case 3:
			add("the bucket vanishes", func(*rand.Rand) error { return w.vanish() })
		case 4:
			add("the bucket returns", func(*rand.Rand) error { return w.giveBack() })
		case 5:
			add("kill and start", func(*rand.Rand) error { w.srv.kill(); return w.srv.run() })
		}
	}
	add("the bucket returns, kill and start, wait for uploads", func(*rand.Rand) error {
		if err := w.giveBack(); err != nil {
			return err
		}
		w.srv.kill()
		if err := w.srv.run(); err != nil {
			return err
		}
		return w.waitForUploads()
	})
	return list
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
	deadline := time.Now().Add(shipTimeout)
	for {
		err := w.compareBucket()
		if err == nil || time.Now().After(deadline) {
			return err
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-w.env.ctx.Done():
			return w.env.ctx.Err()
		}
	}
}

// compareBucket compares the bucket with the model, up to the end of the last block.
func (w *shippingScenario) compareBucket() error {
	_, lastMS, err := blockSamples(filepath.Join(w.srv.dir, "data"), nil)
	if err != nil {
		return err
	}
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
