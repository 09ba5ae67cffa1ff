// Package blocks creates the test data of servers: a directory of real TSDB blocks, written by Prometheus' own block writer and
// identical for the same Spec on every machine.
//
// Ensure takes a Spec (number of series, samples and kind of values) and returns a directory, which Copy links for each server.
// Blocks are cached by a key over the Spec. The labels are those of a container in a cluster; the instances are scraped at
// their own offsets within the interval, as Prometheus does.
package blocks

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"
)

// formatVersion is part of the cache's key. It must change whenever the same Spec yields other data.
const formatVersion = 1

const (
	hourMS          = 3600_000
	blockMS         = 2 * hourMS
	seriesPerCommit = 1000
	seriesPerPod    = 10 // default of Spec.PerPod
)

// QuietStartMS is a start (2026-01-01T04:00:00Z) for which up to 8 h of blocks are not compacted during a measurement: of the
// four blocks of 2 h the first is the only one in its range of 6 h, and the other three are in a range that the compactor does
// not regard as complete.
const QuietStartMS = 1767225600_000 + 4*hourMS

// Spec describes the content of the blocks. Every field is part of the cache's key.
type Spec struct {
	Metric  string // the name of all series
	Values  ValueKind
	Series  int
	Samples int   // number of samples of each series
	StepMS  int64 // scrape interval
	StartMS int64 // start of the first block, a multiple of its range; no sample is earlier
	Seed    uint64

	Second string `json:",omitempty"` // name of a second metric with as many series, the same labels and other values
	PerPod int    `json:",omitempty"` // number of series of a pod, which have the same instance; 10 if 0

	BlockMS int64 `json:",omitempty"` // range of a block; 2 h if 0
	// Compacted is the number of successive blocks that are compacted into one; 0: none are. The chunks stay those of the
	// smaller blocks, and end where these end, as in all blocks that a compactor has written.
	Compacted int `json:",omitempty"`

	Buckets int `json:",omitempty"` // buckets of a classic histogram, consecutive series with the label le; 0 for none
}

// EndMS returns the exclusive end of the samples.
func (s Spec) EndMS() int64 { return s.StartMS + int64(s.Samples)*s.StepMS }

// key returns the name of the blocks in the cache.
func (s Spec) key() string {
	text, err := json.Marshal(s)
	if err != nil {
		panic(err) // a struct of numbers and strings
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%d %s", formatVersion, text))
	return fmt.Sprintf("%s-%dx%d-%x", s.Metric, s.Series, s.Samples, sum[:4])
}

// Ensure returns the directory under cache that holds the blocks of s, and creates it if it does not exist.
func Ensure(ctx context.Context, cache string, s Spec) (string, error) {
	dir := filepath.Join(cache, "blocks", s.key())
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	part := dir + ".part"
	if err := os.RemoveAll(part); err != nil {
		return "", err
	}
	if err := os.MkdirAll(part, 0o755); err != nil {
		return "", err
	}
	if err := write(ctx, part, s); err != nil {
		return "", fmt.Errorf("blocks %s: %w", s.key(), err)
	}
	return dir, os.Rename(part, dir)
}

func (s Spec) perPod() int {
	if s.PerPod > 0 {
		return s.PerPod
	}
	return seriesPerPod
}

// Labels returns the labels of series number i: eight including the name, and le if s has Buckets. Each series of a pod belongs
// to a different container of the pod.
func (s Spec) Labels(i int) labels.Labels {
	pod := i / s.perPod()
	if s.Buckets > 0 {
		le := "+Inf"
		if b := i % s.Buckets; b < s.Buckets-1 {
			le = strconv.FormatFloat(float64(int(1)<<b)/100, 'f', -1, 64)
		}
		histogram := s // its labels are those of the first bucket, without le
		histogram.Buckets = 0
		return labels.NewBuilder(histogram.Labels(i/s.Buckets*s.Buckets)).Set("le", le).Labels()
	}
	return labels.FromStrings(
		labels.MetricName, s.Metric,
		"cluster", "eu-west-1",
		"container", fmt.Sprintf("container-%d", i%s.perPod()),
		"instance", fmt.Sprintf("10.%d.%d.%d:9100", 32+pod>>16, pod>>8&255, pod&255),
		"job", "kubernetes-pods",
		"namespace", fmt.Sprintf("team-%02d", pod%20),
		"node", fmt.Sprintf("node-%03d.internal", pod%100),
		"pod", fmt.Sprintf("service-%03d-%08x", pod%250, uint32(pod)*2654435761),
	)
}

// timeMS returns the timestamp of sample number j of series i. The scrape offset within the interval is that of the pod.
func (s Spec) timeMS(i, j int) int64 {
	return s.StartMS + int64(j)*s.StepMS + int64(uint32(i/s.perPod())*2654435761)%s.StepMS
}

// Times returns the timestamps of series number i, in milliseconds.
func (s Spec) Times(i int) []int64 {
	times := make([]int64, s.Samples)
	for j := range times {
		times[j] = s.timeMS(i, j)
	}
	return times
}

// write writes all blocks to dir, one after the other, so that memory holds the samples of one block.
func write(ctx context.Context, dir string, s Spec) error {
	specs := []Spec{s}
	if s.Second != "" {
		second := s
		second.Metric = s.Second
		specs = append(specs, second)
	}
	sources := make([]source, len(specs)*s.Series) // all series of the first metric, then of the second
	for i := range sources {
		sources[i] = s.sourceOf(i)
	}
	done := make([]int, len(sources)) // number of samples written of each series
	rangeMS := cmp.Or(s.BlockMS, blockMS)
	for start := s.StartMS; start < s.EndMS(); start += rangeMS {
		if err := writeBlock(ctx, dir, specs, rangeMS, start+rangeMS, sources, done); err != nil {
			return err
		}
		if s.Compacted > 0 && ((start-s.StartMS)/rangeMS%int64(s.Compacted) == int64(s.Compacted)-1 || start+rangeMS >= s.EndMS()) {
			if err := compact(ctx, dir, rangeMS, s.Compacted); err != nil {
				return err
			}
		}
	}
	return nil
}

// compact compacts the blocks of level 1 into one.
func compact(ctx context.Context, dir string, rangeMS int64, times int) error {
	all, err := List(dir)
	if err != nil {
		return err
	}
	var parts []string
	for _, block := range all {
		meta, err := os.ReadFile(filepath.Join(block, "meta.json"))
		if err != nil {
			return err
		}
		if bytes.Contains(meta, []byte(`"level": 1,`)) {
			parts = append(parts, block)
		}
	}
	c, err := tsdb.NewLeveledCompactor(ctx, nil, slog.New(slog.DiscardHandler), []int64{rangeMS, rangeMS * int64(times)}, nil, nil)
	if err == nil {
		_, err = c.Compact(dir, parts, nil)
	}
	for _, block := range parts {
		err = errors.Join(err, os.RemoveAll(block))
	}
	return err
}

// writeBlock writes the samples before end that are not written yet. It writes them one short time range after the other,
// because the head of the block writer rejects samples that are older than its newest one by more than half a block.
func writeBlock(ctx context.Context, dir string, specs []Spec, rangeMS, end int64, sources []source, done []int) error {
	w, err := tsdb.NewBlockWriter(slog.New(slog.DiscardHandler), dir, rangeMS)
	if err != nil {
		return err
	}
	defer w.Close()
	refs := make([]storage.SeriesRef, len(sources))
	for slice := end - rangeMS*3/4; slice <= end; slice += rangeMS / 4 {
		for from := 0; from < len(sources); from += seriesPerCommit {
			app := w.Appender(ctx)
			for i := from; i < min(from+seriesPerCommit, len(sources)); i++ {
				s := specs[i/specs[0].Series]
				n := i % s.Series
				lset := s.Labels(n)
				for ; done[i] < s.Samples && s.timeMS(n, done[i]) < slice; done[i]++ {
					if s.Values == Native {
						refs[i], err = app.AppendHistogram(refs[i], lset, s.timeMS(n, done[i]), sources[i].histogram(), nil)
					} else {
						refs[i], err = app.Append(refs[i], lset, s.timeMS(n, done[i]), sources[i].next())
					}
					if err != nil {
						return fmt.Errorf("series %d: %w", i, err)
					}
				}
			}
			if err := app.Commit(); err != nil {
				return err
			}
		}
	}
	_, err = w.Flush(ctx)
	return err
}

// Copy creates a server's own copy of the blocks in dir, which it empties first. Blocks are never written in place, so hard
// links are enough. The copies share the page cache, so that the disk is equally cold for both sides.
func Copy(from, dir string) error {
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			return os.MkdirAll(filepath.Join(dir, rel), 0o755)
		}
		return os.Link(path, filepath.Join(dir, rel))
	})
}
