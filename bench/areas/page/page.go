// Package page measures the web UI: goals page/*.
//
// The sizes are those of the built files in internal/httpapi/ui/dist, compressed as browsers get them. ui/e2e/perf.mjs measures the
// cost of the web UI of a ferula serve in Chromium, with Chromium's own trace. Without Chromium, node or the npm packages of
// the web UI these goals are missing, and a note states the reason.
package page

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/ferula-io/ferula/bench/area"
	"github.com/ferula-io/ferula/bench/peer"
)

// Area is the entry of this area in the list of cmd/bench.
var Area = area.Area{
	Name: "page", About: "the page: sizes of its files, and its cost in Chromium with 10,000 series and 10,000 boxes",
	Sides: []string{side}, Run: run,
}

const (
	side = "ferula"

	firstBytes  = "first graph, gzip"
	allBytes    = "all files, gzip"
	task        = "longest task of the main thread, 10,000 series, 4x throttle"
	heap        = "heap and buffers after it"
	hover       = "CPU of the main thread a frame, pointer over 10,000 series, 4x throttle"
	perSecond   = "frames a second then"
	flameHover  = "CPU of the main thread a move, pointer over 10,000 boxes of a flame graph"
	browserTime = 10 * time.Minute // of one round
)

// figures are the keys of the output of perf.mjs, the unit of each reading, and the factor that converts to this unit.
var figures = []struct {
	key, what, unit string
	factor          float64
}{
	{"task-ms", task, area.Seconds, 1e-3}, {"heap-mib", heap, area.Bytes, 1 << 20}, {"hover-frame-ms", hover, area.Seconds, 1e-3},
	{"hover-frames-per-second", perSecond, area.Count, 1}, {"flame-hover-ms", flameHover, area.Seconds, 1e-3},
}

func run(ctx context.Context, b *area.Bench) error {
	root := b.Programs.Root
	first, all, err := sizes(os.DirFS(filepath.Join(root, "internal", "httpapi", "ui", "dist")))
	if err != nil {
		return err
	}
	b.Add(0, side, firstBytes, area.Bytes, float64(first))
	b.Add(0, side, allBytes, area.Bytes, float64(all))
	b.Own("page/first-graph-kb", 1000, firstBytes)
	b.Own("page/all-kb", 1000, allBytes)
	b.Note("The first graph needs index.html, what it names, what those files import, and the worker that scans responses; the editor and the other pages come after it. kB are 1,000 bytes.")
	chromium, missing := browser(filepath.Join(root, "ui"))
	if missing != "" {
		b.Note("Not measured in a browser: " + missing + ".")
		return nil
	}
	s, err := b.SideOf(ctx, side, peer.Ferula, ".")
	if err != nil {
		return err
	}
	if b.Short {
		b.Rounds = 1
	}
	err = b.With(ctx, b.TSDB(ctx, area.TSDB{}), func() error {
		return b.EachRound("browser", func(round int) error {
			measured, err := measure(ctx, b.Env, s.URL(), chromium, filepath.Join(b.Dir, fmt.Sprintf("round-%d.json", round)))
			if err != nil {
				return err
			}
			for _, f := range figures {
				v, ok := measured[f.key]
				if !ok || !(v > 0) {
					return fmt.Errorf("%w: no %s", area.ErrEmpty, f.key)
				}
				b.Add(round, side, f.what, f.unit, v*f.factor)
			}
			return nil
		})
	}, s)
	if err != nil {
		return err
	}
	b.Own("page/task-ms", 1e-3, task)
	b.Own("page/heap-mib", area.MiB, heap)
	b.Own("page/flame-hover-ms", 1e-3, flameHover)
	b.Note("Headless Chromium without a GPU; CPU is the main thread's own time by Chromium's trace. The frames a second depend on everything else that runs on the cores, such as the raster of the same browser.")
	return nil
}

var (
	named    = regexp.MustCompile(`(?:src|href)="\./([^"]+)"`)
	imported = regexp.MustCompile(`(?:\bfrom|\bimport)\s*"\./([^"]+\.js)"`)
	worker   = regexp.MustCompile("[\"`']([\\w.-]+\\.worker-[\\w-]+\\.js)[\"`']") // as the bundler writes it
)

// sizes returns the compressed bytes of the files that the first graph needs, and of all files except the licences.
func sizes(dist fs.FS) (first, all int, err error) {
	size := map[string]int{}
	text := map[string][]byte{}
	err = fs.WalkDir(dist, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || name == "LICENSES.txt" {
			return err
		}
		b, err := fs.ReadFile(dist, name)
		if err != nil {
			return err
		}
		text[name] = b
		size[name], err = compressed(b)
		all += size[name]
		return err
	})
	if err != nil {
		return 0, 0, err
	}
	if text["index.html"] == nil {
		return 0, 0, fmt.Errorf("%w: no index.html: run make ui", area.ErrEmpty)
	}
	seen := map[string]bool{}
	for queue := []string{"index.html"}; len(queue) > 0; queue = queue[1:] {
		name := queue[0]
		if seen[name] {
			continue
		}
		seen[name] = true
		if text[name] == nil {
			return 0, 0, fmt.Errorf("%w: %s is named and is not there", area.ErrEmpty, name)
		}
		first += size[name]
		rules := []*regexp.Regexp{named}
		if strings.HasSuffix(name, ".js") {
			rules = []*regexp.Regexp{imported, worker}
		}
		for _, rule := range rules {
			for _, m := range rule.FindAllSubmatch(text[name], -1) {
				queue = append(queue, path.Join(path.Dir(name), string(m[1])))
			}
		}
	}
	return first, all, nil
}

func compressed(b []byte) (int, error) {
	var to bytes.Buffer
	z, err := gzip.NewWriterLevel(&to, gzip.BestCompression)
	if err != nil {
		return 0, err
	}
	if _, err := z.Write(b); err != nil {
		return 0, err
	}
	err = z.Close()
	return to.Len(), err
}

// browser returns the path of Chromium, or names the missing programs or packages.
func browser(ui string) (chromium, missing string) {
	chromium = os.Getenv("CHROMIUM")
	if chromium == "" {
		chromium = "/usr/bin/chromium"
	}
	if _, err := os.Stat(chromium); err != nil {
		return "", "Chromium (" + chromium + ", or $CHROMIUM)"
	}
	if _, err := exec.LookPath("node"); err != nil {
		return "", "node"
	}
	if _, err := os.Stat(filepath.Join(ui, "node_modules", "playwright-core")); err != nil {
		return "", "the page's packages (cd ui && npm ci)"
	}
	return chromium, ""
}

// measure runs perf.mjs once and returns its figures.
func measure(ctx context.Context, env area.Env, url, chromium, file string) (map[string]float64, error) {
	ctx, cancel := context.WithTimeout(ctx, browserTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, "node", "e2e/perf.mjs", url, file)
	cmd.Dir = filepath.Join(env.Programs.Root, "ui")
	cmd.Env = slices.Concat(os.Environ(), []string{"CHROMIUM=" + chromium})
	cmd.Stdout, cmd.Stderr = env.Log, env.Log
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("perf.mjs: %w", err)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var measured map[string]float64
	if err := json.Unmarshal(b, &measured); err != nil {
		return nil, fmt.Errorf("perf.mjs: %w", err)
	}
	return measured, nil
}
