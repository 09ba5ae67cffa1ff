package tsdb

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/tsdbutil"

	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/series/xor"
	"github.com/ferula-io/ferula/test/crashfs"
)

// kinds are series whose chunks have summaries of all kinds, or none: each returns the next value after v.
var kinds = []func(r *rand.Rand, v float64) float64{
	func(r *rand.Rand, v float64) float64 { return v + float64(r.IntN(3000)) },
	func(r *rand.Rand, v float64) float64 { return v + r.Float64() },
	func(r *rand.Rand, v float64) float64 { return v },
	func(r *rand.Rand, v float64) float64 { return float64(r.IntN(50)) },
	func(r *rand.Rand, v float64) float64 { return r.NormFloat64() },
	func(r *rand.Rand, v float64) float64 { // resets
		if r.IntN(200) == 0 {
			return 0
		}
		return v + float64(r.IntN(5))
	},
	func(r *rand.Rand, v float64) float64 { // rarely odd
		odd := []float64{math.Float64frombits(value.StaleNaN), math.NaN(), math.Inf(1), math.Inf(-1), math.Copysign(0, -1)}
		if r.IntN(150) == 0 {
			return odd[r.IntN(len(odd))]
		}
		return float64(r.IntN(9))
	},
}

// oddBlocks returns a store with blocks of two hours and a head. A series has deleted samples.
func oddBlocks(t *testing.T, dir string, hours int64) *Store {
	t.Helper()
	r := rand.New(rand.NewPCG(1, uint64(hours)))
	s := openWorld(t, dir, 0)
	var last [40]float64
	for at := startMS; at < startMS+hours*hourMS; at += 15_000 {
		app := s.Appender(context.Background())
		add := func(i int, v float64) {
			if _, err := app.Append(0, labels.FromStrings(labels.MetricName, "m", "i", fmt.Sprint(i)), at+int64(i), v); err != nil {
				t.Fatal(err)
			}
		}
		for i := range last {
			if i >= 30 && r.IntN(400) > 0 { // few samples
				continue
			}
			v := kinds[i%len(kinds)](r, last[i])
			if last[i] = v; math.IsNaN(v) || math.IsInf(v, 0) {
				last[i] = 1
			}
			add(i, v)
		}
		if _, err := app.AppendHistogram(0, labels.FromStrings(labels.MetricName, "h"), at,
			tsdbutil.GenerateTestHistogram(at/15_000%50), nil); err != nil {
			t.Fatal(err)
		}
		if err := app.Commit(); err != nil {
			t.Fatal(err)
		}
	}
	compact(t, s)
	if err := s.db.Load().Delete(context.Background(), startMS+hourMS, startMS+hourMS+60_000,
		labels.MustNewMatcher(labels.MatchEqual, "i", "7")); err != nil {
		t.Fatal(err)
	}
	return s
}

// selectAll copies the series of a selection.
func selectAll(t *testing.T, s *Store, mint, maxt int64, opts series.SelectOptions) []copied {
	t.Helper()
	raw, err := s.RawQuerier(context.Background(), mint, maxt)
	if err != nil {
		t.Fatal(err)
	}
	all := rest(t, raw.Select(context.Background(), opts, everything))
	if err := raw.Close(); err != nil {
		t.Fatal(err)
	}
	return all
}

// checkSummaries compares a selection with summaries and the one without them. It returns how many chunks were
// summarized, and how many of blocks were not, though they have a summary.
func checkSummaries(t *testing.T, s *Store, mint, maxt int64, opts series.Summaries) (summarized, missed int) {
	t.Helper()
	want := selectAll(t, s, mint, maxt, series.SelectOptions{})
	got := selectAll(t, s, mint, maxt, series.SelectOptions{Summaries: &opts})
	return compareSummaries(t, want, got, opts, s.HeadMinTime())
}

func compareSummaries(t *testing.T, want, got []copied, opts series.Summaries, headMS int64) (summarized, missed int) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d series, not %d", len(got), len(want))
	}
	for i, one := range want {
		if !bytes.Equal(got[i].labels, one.labels) || !opts.Joined() && len(got[i].chunks) != len(one.chunks) {
			t.Fatalf("series %q with %d chunks, not %q with %d", got[i].labels, len(got[i].chunks), one.labels, len(one.chunks))
		}
		if series.SamplesOf(got[i].chunks) != series.SamplesOf(one.chunks) {
			t.Fatalf("series %q has %d samples, not %d", one.labels, series.SamplesOf(got[i].chunks), series.SamplesOf(one.chunks))
		}
		left := one.chunks
		var points []promql.FPoint // of the chunk before left that are not compared yet
		for j, have := range got[i].chunks {
			if have.Encoding != series.Summarized {
				c := left[0]
				if len(points) > 0 || have.MinMS != c.MinMS || have.MaxMS != c.MaxMS || have.Encoding != c.Encoding ||
					!bytes.Equal(have.Data, c.Data) {
					t.Fatalf("series %q, chunk %d: %+v, not %+v", one.labels, j, have, c)
				}
				if summary, ok := series.SummaryOf(pointsOf(t, c)); ok && c.MaxMS < headMS && (!summary.Falls || !opts.Rising) &&
					(opts.Enough(c.MinMS, c.MaxMS) || opts.Joined() && !summary.Falls && opts.Enough(opts.Until(c.MinMS)+1, c.MaxMS)) {
					missed++
				}
				left = left[1:]
				continue
			}
			for len(left) > 0 && left[0].MinMS <= have.MaxMS {
				more := pointsOf(t, left[0])
				if _, ok := series.SummaryOf(more); !ok || !opts.Joined() && len(points) > 0 {
					t.Fatalf("series %q, chunk %d is in a summary", one.labels, j)
				}
				points, left = append(points, more...), left[1:]
				summarized++
			}
			n := 0
			for n < len(points) && points[n].T <= have.MaxMS {
				n++
			}
			summary, _ := series.SummaryOf(points[:n])
			if n == 0 || points[0].T != have.MinMS || points[n-1].T != have.MaxMS || !opts.Enough(have.MinMS, have.MaxMS) ||
				opts.Rising && summary.Falls || !bytes.Equal(have.Data, series.AppendSummary(nil, summary)) {
				t.Fatalf("series %q, chunk %d: %+v, not %+v", one.labels, j, have, summary)
			}
			points = points[n:]
		}
	}
	return summarized, missed
}

// pointsOf returns the samples of a chunk; none of one that is not XOR.
func pointsOf(t *testing.T, c series.Chunk) []promql.FPoint {
	t.Helper()
	if c.Encoding != chunkenc.EncXOR {
		return nil
	}
	points, err := xor.AppendPoints([]promql.FPoint(nil), c.Data, xor.Ascending)
	if err != nil {
		t.Fatal(err)
	}
	return points
}

func summarize(t *testing.T, s *Store) {
	t.Helper()
	if err := s.Summarize(context.Background()); err != nil {
		t.Fatal(err)
	}
}

func sideNames(t *testing.T, s *Store) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(s.opts.Dir, summariesDir))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}

func blockNames(s *Store) (names []string) {
	for _, b := range s.db.Load().Blocks() {
		names = append(names, b.Meta().ULID.String())
	}
	slices.Sort(names)
	return names
}

func TestSummaries_EqualTheChunks(t *testing.T) {
	dir := t.TempDir()
	s := oddBlocks(t, dir, 9)
	end := startMS + 10*hourMS
	all := series.Summaries{Windows: series.Windows{Ends: series.Anywhere}, Apart: true}
	if n, _ := checkSummaries(t, s, startMS, end, all); n != 0 {
		t.Fatalf("%d chunks are summarized without files", n)
	}
	for round := range 2 {
		summarize(t, s) // the first time, the blocks are mapped
		if names := sideNames(t, s); len(names) != 3 || !slices.Equal(names, blockNames(s)) {
			t.Fatalf("files %q, blocks %q", names, blockNames(s))
		}
		n, missed := checkSummaries(t, s, startMS, end, all)
		if n < 300 || missed == 0 || missed > 5 { // a series has deleted samples
			t.Errorf("%d chunks are summarized, %d others could be", n, missed)
		}
		falling := n
		if n, _ = checkSummaries(t, s, startMS, end, series.Summaries{Windows: series.Windows{Ends: series.Anywhere}, Apart: true, Rising: true}); n < 50 || n >= falling {
			t.Errorf("%d chunks are summarized where values rise", n)
		}
		r := rand.New(rand.NewPCG(2, uint64(round)))
		for range 15 {
			from, every := startMS+r.Int64N(7*hourMS), 1+r.Int64N(5)
			checkSummaries(t, s, from, from+r.Int64N(5*hourMS), series.Summaries{Rising: r.IntN(2) == 0, Apart: true,
				Windows: series.Windows{Ends: series.Steps{FirstMS: from, LastMS: end, StepMS: every * hourMS}, RangeMS: r.Int64N(5 * hourMS), MinMS: from,
					MaxMS: end, Whole: r.IntN(3) > 0, Starts: r.IntN(2) == 0}})
		}
		for _, step := range []int64{1000, 20 * 60_000, 30*60_000 + 1, hourMS, 2*hourMS - 17, 5 * hourMS, 100 * hourMS} {
			edges := series.Steps{FirstMS: startMS - r.Int64N(step), LastMS: end + 100*hourMS, StepMS: step}
			opts := series.Summaries{Rising: r.IntN(2) == 0,
				Windows: series.Windows{Ends: edges, MinMS: math.MinInt64, MaxMS: math.MaxInt64, Whole: true}}
			n, missed := checkSummaries(t, s, startMS, end, opts)
			if step > hourMS/2 && (n < 50 || missed > 5) {
				t.Errorf("edges each %d ms: %d chunks are summarized, %d others could be", step, n, missed)
			}
			from := startMS + r.Int64N(7*hourMS)
			checkSummaries(t, s, from, from+r.Int64N(5*hourMS), opts)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = openWorld(t, dir, 0)
	}
}

// A file costs at most 4 % of its block, even if the block is short.
func TestSummaries_BytesOfTheFiles(t *testing.T) {
	s := openWorld(t, t.TempDir(), 0)
	r := rand.New(rand.NewPCG(3, 4))
	var last [100]float64
	for at := startMS; at < startMS+4*hourMS; at += 15_000 {
		app := s.Appender(context.Background())
		for i := range last {
			last[i] = kinds[i%4](r, last[i]) // counters of integers and floats, constants, gauges of integers
			if _, err := app.Append(0, labels.FromStrings(labels.MetricName, "http_requests_total", "job", "api", "instance",
				fmt.Sprintf("10.0.3.%d:9090", i)), at, last[i]); err != nil {
				t.Fatal(err)
			}
		}
		if err := app.Commit(); err != nil {
			t.Fatal(err)
		}
	}
	compact(t, s)
	summarize(t, s)
	blocks := int64(0)
	for _, b := range s.db.Load().Blocks() {
		blocks += b.Size()
	}
	if share := float64(s.sides.bytes.Load()) / float64(blocks); share > 0.04 || share == 0 {
		t.Errorf("%d bytes for blocks of %d", s.sides.bytes.Load(), blocks)
	} else {
		t.Logf("%.2f %% of the blocks", 100*share)
	}
}

func TestSummaries_UnusableFilesAreMadeAgain(t *testing.T) {
	dir := t.TempDir()
	s := oddBlocks(t, dir, 7)
	summarize(t, s)
	names := sideNames(t, s)
	path, other := filepath.Join(dir, summariesDir, names[0]), filepath.Join(dir, summariesDir, names[1])
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := os.ReadFile(other)
	if err != nil {
		t.Fatal(err)
	}
	all := series.Summaries{Windows: series.Windows{Ends: series.Anywhere}, Apart: true}
	end := startMS + 8*hourMS
	whole, _ := checkSummaries(t, s, startMS, end, all)
	flipped := func(at int) []byte {
		changed := bytes.Clone(good)
		changed[at] ^= 16
		return changed
	}
	for _, test := range []struct {
		name    string
		content []byte
	}{
		{"empty", []byte{}}, {"short", good[:len(good)-1]}, {"header only", good[:68]}, {"of another block", foreign},
		{"newer", append(bytes.Clone(good[:4]), append([]byte{good[4] + 1}, good[5:]...)...)},
		{"damaged header", flipped(30)}, {"damaged summaries", flipped(100)}, {"damaged table", flipped(len(good) - 3)},
	} {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, test.content, 0o644); err != nil {
			t.Fatal(err)
		}
		s = openWorld(t, dir, 0)
		n, _ := checkSummaries(t, s, startMS, end, all)
		if n >= whole {
			t.Errorf("%s: %d chunks are summarized, %d with a good file", test.name, n, whole)
		}
		checkSummaries(t, s, startMS, end, all)
		if n := s.sides.failures.Get(); n != 1 {
			t.Errorf("%s: %d failures are counted", test.name, n)
		}
		if n := sideNames(t, s); !slices.Equal(n, names[1:]) {
			t.Errorf("%s: files %q", test.name, n)
		}
		summarize(t, s)
		if n, _ := checkSummaries(t, s, startMS, end, all); n != whole {
			t.Errorf("%s: %d chunks are summarized after the file was made again, not %d", test.name, n, whole)
		}
		if again, err := os.ReadFile(path); err != nil || !bytes.Equal(again, good) {
			t.Errorf("%s: another file, %v", test.name, err)
		}
	}
}

func TestSummaries_FilesDeletedWhileRead(t *testing.T) {
	dir := t.TempDir()
	s := oddBlocks(t, dir, 7)
	summarize(t, s)
	end := startMS + 8*hourMS
	all := series.Summaries{Windows: series.Windows{Ends: series.Anywhere}, Apart: true}
	want := selectAll(t, s, startMS, end, series.SelectOptions{})
	raw, err := s.RawQuerier(context.Background(), startMS, end)
	if err != nil {
		t.Fatal(err)
	}
	set := raw.Select(context.Background(), series.SelectOptions{Summaries: &all}, everything)
	set.Next()
	first := copied{labels: bytes.Clone(set.Labels())}
	for _, c := range set.Chunks() {
		c.Data = bytes.Clone(c.Data)
		first.chunks = append(first.chunks, c)
	}
	old := blockNames(s)
	if err := s.db.Load().CleanTombstones(); err != nil { // rewrites the first block
		t.Fatal(err)
	}
	if slices.Equal(old, blockNames(s)) {
		t.Fatal("the blocks are the same")
	}
	summarize(t, s)
	if names := sideNames(t, s); !slices.Equal(names, blockNames(s)) {
		t.Errorf("files %q, blocks %q", names, blockNames(s))
	}
	if err := os.RemoveAll(filepath.Join(dir, summariesDir)); err != nil {
		t.Fatal(err)
	}
	if n, _ := compareSummaries(t, want, append([]copied{first}, rest(t, set)...), all, end); n < 200 {
		t.Errorf("%d chunks are summarized", n)
	}
	if err := raw.Close(); err != nil {
		t.Fatal(err)
	}
	checkSummaries(t, s, startMS, end, all)
}

// Whatever survives a power cut while a file is made is complete, or does not have its name.
func TestSummaries_PowerCut(t *testing.T) {
	s, block := oneBlock(t)
	dir := filepath.Join(s.opts.Dir, summariesDir)
	summarize(t, s)
	good, err := os.ReadFile(filepath.Join(dir, filepath.Base(block)))
	if err != nil {
		t.Fatal(err)
	}
	complete := 0
	for cut := 1; ; cut++ {
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		fs, err := crashfs.New(s.opts.Dir, func(c crashfs.Call) error {
			if c.Number == cut {
				return crashfs.ErrCrashed
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		s.sides.fs = fs
		made := s.Summarize(context.Background())
		fs.Crash()
		for _, names := range []bool{false, true} {
			for _, content := range []crashfs.Content{crashfs.Lost, crashfs.Kept, crashfs.Half, crashfs.Zeroed} {
				to := t.TempDir()
				if err := fs.After(to, crashfs.Survival{Names: func() bool { return names },
					Content: func() crashfs.Content { return content }}); err != nil {
					t.Fatal(err)
				}
				left, err := os.ReadFile(filepath.Join(to, summariesDir, filepath.Base(block)))
				if err == nil && !bytes.Equal(left, good) {
					t.Fatalf("call %d: an incomplete file has its name", cut)
				}
				if err == nil {
					complete++
				} else if made == nil {
					t.Fatalf("a file that was made is lost: %v", err)
				}
			}
		}
		if made == nil {
			if cut < 8 || complete <= 8 {
				t.Fatalf("the file was made by %d calls, and survived %d times", cut, complete)
			}
			return
		}
	}
}

func TestSummaries_FullDisk(t *testing.T) {
	dir := t.TempDir()
	s := oddBlocks(t, dir, 5)
	all := series.Summaries{Windows: series.Windows{Ends: series.Anywhere}, Apart: true}
	s.guard.free = func(string) (free, total int64, err error) { return 1 << 20, 100 << 30, nil }
	if err := s.Summarize(context.Background()); !errors.Is(err, ErrNoSpace) {
		t.Errorf("no space: %v", err)
	}
	if names := sideNames(t, s); len(names) > 0 {
		t.Errorf("files %q", names)
	}
	s.guard.free = func(string) (free, total int64, err error) { return 50 << 30, 100 << 30, nil }
	for op := range 3 {
		fs, err := crashfs.New(dir, func(c crashfs.Call) error {
			if c.Op == []string{"write", "sync", "rename"}[op] {
				return syscall.ENOSPC
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		s.sides.fs = fs
		failures := s.sides.failures.Get()
		if err := s.Summarize(context.Background()); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("a failed call: %v", err)
		}
		if names := sideNames(t, s); len(names) > 0 || s.sides.failures.Get() != failures+1 {
			t.Errorf("files %q, %d failures", names, s.sides.failures.Get()-failures)
		}
		if n, _ := checkSummaries(t, s, startMS, startMS+6*hourMS, all); n != 0 {
			t.Errorf("%d chunks are summarized", n)
		}
		if err := os.RemoveAll(filepath.Join(dir, summariesDir)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestSummaries_EndWithTheirContext(t *testing.T) {
	s := oddBlocks(t, t.TempDir(), 5)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.Summarize(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if names := sideNames(t, s); len(names) > 0 {
		t.Errorf("files %q", names)
	}
	if err := s.sides.pass(context.Background(), 1); err != nil { // with rests, as in the background
		t.Fatal(err)
	}
	if names := sideNames(t, s); !slices.Equal(names, blockNames(s)) {
		t.Errorf("files %q", names)
	}
}

// Prometheus' database ignores the files, and compacts the blocks. The files of the old blocks are deleted.
func TestSummaries_PrometheusCompactsTheBlocks(t *testing.T) {
	dir := t.TempDir()
	s := oddBlocks(t, dir, 9)
	summarize(t, s)
	mine := filepath.Join(dir, summariesDir, "notes")
	if err := os.WriteFile(mine, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	before := sideNames(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	opts := tsdb.DefaultOptions()
	opts.RetentionDuration, opts.MaxBlockDuration = 0, 24*hourMS
	db, err := tsdb.Open(dir, slog.New(slog.DiscardHandler), nil, opts, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Compact(context.Background()); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	s = openWorld(t, dir, 0)
	if names := sideNames(t, s); !slices.Equal(names, before) || len(blockNames(s)) >= 4 {
		t.Fatalf("files %q, blocks %q", names, blockNames(s))
	}
	summarize(t, s)
	if names := sideNames(t, s); !slices.Equal(names, append(blockNames(s), "notes")) {
		t.Errorf("files %q, blocks %q", names, blockNames(s))
	}
	if n, _ := checkSummaries(t, s, startMS, startMS+10*hourMS, series.Summaries{Windows: series.Windows{Ends: series.Anywhere}, Apart: true}); n < 300 {
		t.Errorf("%d chunks are summarized", n)
	}
}

// A selection of a long range, whose chunks are all summarized.
func BenchmarkSummaries(b *testing.B) {
	s := openWorld(b, b.TempDir(), 0)
	r := rand.New(rand.NewPCG(5, 6))
	v := 0.0
	const hours = 100
	for at := startMS; at < startMS+hours*hourMS; at += 15_000 {
		app := s.Appender(context.Background())
		v += float64(r.IntN(3000))
		for i := range 100 {
			if _, err := app.Append(0, labels.FromStrings(labels.MetricName, "m", "i", fmt.Sprint(i)), at, v); err != nil {
				b.Fatal(err)
			}
		}
		if err := app.Commit(); err != nil {
			b.Fatal(err)
		}
	}
	head := s.db.Load().Head()
	if err := s.db.Load().CompactHead(tsdb.NewRangeHead(head, startMS, startMS+(hours-2)*hourMS-1)); err != nil {
		b.Fatal(err)
	}
	if err := s.Summarize(context.Background()); err != nil {
		b.Fatal(err)
	}
	for name, opts := range map[string]series.SelectOptions{"chunks": {},
		"summaries": {Summaries: &series.Summaries{Windows: series.Windows{Ends: series.Anywhere}, Apart: true, Rising: true}}} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			chunks := 0
			for b.Loop() {
				raw, err := s.RawQuerier(context.Background(), startMS, startMS+(hours-2)*hourMS-1)
				if err != nil {
					b.Fatal(err)
				}
				set := raw.Select(context.Background(), opts, everything)
				for set.Next() {
					chunks += len(set.Chunks())
				}
				if err := errors.Join(set.Err(), raw.Close()); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(chunks), "ns/chunk")
		})
	}
}

// After an upgrade all files are of another version: one line of the log says so.
func TestSummaries_FilesOfAnotherVersionAreLoggedOnce(t *testing.T) {
	dir := t.TempDir()
	s := oddBlocks(t, dir, 7)
	summarize(t, s)
	names := sideNames(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		path := filepath.Join(dir, summariesDir, name)
		text, err := os.ReadFile(path)
		if err == nil {
			text[4]++
			err = os.WriteFile(path, text, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	s = openWorld(t, dir, 0)
	var log bytes.Buffer
	s.logger = slog.New(slog.NewTextHandler(&log, nil))
	all := series.Summaries{Windows: series.Windows{Ends: series.Anywhere}, Apart: true}
	checkSummaries(t, s, startMS, startMS+8*hourMS, all)
	if n := s.sides.failures.Get(); int(n) != len(names) || n < 2 || strings.Count(log.String(), "without summaries") != 1 {
		t.Errorf("%d files, %d failures: %s", len(names), n, log.String())
	}
}
