// Package blocks makes the data that servers are measured on: a folder of real TSDB blocks, written by Prometheus' own
// block writer, the same for the same Spec on every machine.
//
// In comes a Spec (how many series, samples and of which kind), out goes a folder that any number of servers can be
// given a copy of. Blocks are cached by a key over the Spec. The labels are those of a container in a cluster; the
// instances are scraped at their own offsets within the interval, as Prometheus does. What is not here: servers.
package blocks

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"
)

// formatVersion is part of the cache's key. It must change whenever the same Spec gives other data.
const formatVersion = 1

const (
	hourMS          = 3600_000
	blockMS         = 2 * hourMS
	sliceMS         = blockMS / 4
	seriesPerCommit = 1000
	seriesPerPod    = 10 // unless said otherwise
)

// QuietStartMS is a start (2026-01-01T04:00:00Z) from which up to 8 h of blocks stay as they are: the last three of the
// 2 h blocks share a window of 6 h that is not over for the compactor, and the first is alone in the one before. Else a
// server would compact its blocks while it is being measured.
const QuietStartMS = 1767225600_000 + 4*hourMS

// Spec says what the blocks hold. Every field is part of the cache's key.
type Spec struct {
	Metric  string // the name of all series
	Values  Values
	Series  int
	Samples int   // of each series
	StepMS  int64 // between them
	StartMS int64 // of the first block, a multiple of 2 h; no sample lies before
	Seed    uint64

	Second string `json:",omitempty"` // the name of as many series more, with the same labels and values of their own
	PerPod int    `json:",omitempty"` // series of one pod, which share its instance; 10 if 0
}

// EndMS is the first time at which there are no more samples.
func (s Spec) EndMS() int64 { return s.StartMS + int64(s.Samples)*s.StepMS }

// key names the content in the cache.
func (s Spec) key() string {
	text, err := json.Marshal(s)
	if err != nil {
		panic(err) // a struct of numbers and strings
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%d %s", formatVersion, text))
	return fmt.Sprintf("%s-%dx%d-%x", s.Metric, s.Series, s.Samples, sum[:4])
}

// Ensure returns the folder under cache that holds the blocks of s, and makes it if it is not there.
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

// Labels are those of series number i: eight with the name; each series of a pod is a container's.
func (s Spec) Labels(i int) labels.Labels {
	pod := i / s.perPod()
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

// timeMS is when sample number j of series i was scraped: each pod at its own offset behind the step.
func (s Spec) timeMS(i, j int) int64 {
	return s.StartMS + int64(j)*s.StepMS + int64(uint32(i/s.perPod())*2654435761)%s.StepMS
}

// write makes all blocks in dir, one after the other, so that memory holds one block's worth of samples.
func write(ctx context.Context, dir string, s Spec) error {
	specs := []Spec{s}
	if s.Second != "" {
		second := s
		second.Metric = s.Second
		specs = append(specs, second)
	}
	sources := make([]source, len(specs)*s.Series) // metric by metric
	for i := range sources {
		sources[i] = newSource(s.Values, s.Seed, i)
	}
	done := make([]int, len(sources)) // samples written of each series
	for start := s.StartMS; start < s.EndMS(); start += blockMS {
		if err := writeBlock(ctx, dir, specs, start+blockMS, sources, done); err != nil {
			return err
		}
	}
	return nil
}

// writeBlock writes the samples before end that are not yet done, slice by slice, because the writer's head takes no
// sample that is older than half a block behind the newest one committed.
func writeBlock(ctx context.Context, dir string, specs []Spec, end int64, sources []source, done []int) error {
	w, err := tsdb.NewBlockWriter(slog.New(slog.DiscardHandler), dir, blockMS)
	if err != nil {
		return err
	}
	defer w.Close()
	refs := make([]storage.SeriesRef, len(sources))
	for slice := end - blockMS + sliceMS; slice <= end; slice += sliceMS {
		for from := 0; from < len(sources); from += seriesPerCommit {
			app := w.Appender(ctx)
			for i := from; i < min(from+seriesPerCommit, len(sources)); i++ {
				s := specs[i/specs[0].Series]
				n := i % s.Series
				lset := s.Labels(n)
				for ; done[i] < s.Samples && s.timeMS(n, done[i]) < slice; done[i]++ {
					if refs[i], err = app.Append(refs[i], lset, s.timeMS(n, done[i]), sources[i].next()); err != nil {
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

// Copy gives a server blocks of its own under dir, which is emptied before. Blocks are never written in place, so the
// files are shared by hard links, and with them the page cache: no side reads from a colder disk than the other.
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
