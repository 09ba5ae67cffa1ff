package tsdb

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/tsdbutil"

	blockindex "github.com/ferula-io/ferula/internal/blocks"
	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/series/labelenc"
	"github.com/ferula-io/ferula/metrics"
)

// The test data begins at a multiple of 2 h.
const (
	hourMS  = int64(3600_000)
	startMS = 1767225600_000 - 1767225600_000%(2*hourMS)
)

var everything = labels.MustNewMatcher(labels.MatchRegexp, labels.MetricName, ".*")

// openWorld opens a store that compacts only when the test calls for it.
func openWorld(t testing.TB, dir string, lateness time.Duration) *Store {
	t.Helper()
	s, err := New(Options{Dir: dir, Retention: -1, OutOfOrderWindow: lateness, NoLockfile: true}, slog.New(slog.DiscardHandler), prometheus.NewRegistry(), metrics.NewSet())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Open(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	s.db.Load().DisableCompactions()
	return s
}

// fill appends samples every stepMS from mint to maxt, exclusive: n float series, some with
// few labels, and native histograms of both kinds.
func fill(t testing.TB, s *Store, n int, mint, maxt, stepMS int64) {
	t.Helper()
	for at := mint; at < maxt; at += 100 * stepMS {
		app := s.Appender(context.Background())
		for i := range n {
			lset := labels.FromStrings(labels.MetricName, fmt.Sprintf("m%d", i%7), "instance", fmt.Sprintf("host-%d:9100", i/7), "job", strings.Repeat("j", i%200))
			if i%5 == 0 {
				lset = labels.FromStrings(labels.MetricName, fmt.Sprintf("m%d", i))
			}
			for ts := at; ts < min(maxt, at+100*stepMS); ts += stepMS {
				if _, err := app.Append(0, lset, ts+int64(i%3), float64(ts%1000)+float64(i)/3); err != nil {
					t.Fatal(err)
				}
			}
		}
		for ts := at; ts < min(maxt, at+100*stepMS); ts += stepMS {
			if _, err := app.AppendHistogram(0, labels.FromStrings(labels.MetricName, "h", "kind", "int"), ts, tsdbutil.GenerateTestHistogram(ts/stepMS%50), nil); err != nil {
				t.Fatal(err)
			}
			if _, err := app.AppendHistogram(0, labels.FromStrings(labels.MetricName, "h", "kind", "float"), ts, nil, tsdbutil.GenerateTestFloatHistogram(ts/stepMS%50)); err != nil {
				t.Fatal(err)
			}
		}
		if err := app.Commit(); err != nil {
			t.Fatal(err)
		}
	}
}

// compact writes all blocks that can be cut from the head, and merges none.
func compact(t testing.TB, s *Store) {
	t.Helper()
	db := s.db.Load()
	for db.Head().MaxTime()-db.Head().MinTime() > 3*hourMS {
		mint := db.Head().MinTime()
		if err := db.CompactHead(tsdb.NewRangeHead(db.Head(), mint, mint-mint%(2*hourMS)+2*hourMS-1)); err != nil {
			t.Fatal(err)
		}
	}
}

// checkRaw compares the raw querier with Prometheus' chunk querier, byte by byte.
func checkRaw(t *testing.T, s *Store, mint, maxt int64, matchers ...*labels.Matcher) (seriesSeen, chunksSeen int) {
	t.Helper()
	raw, err := s.RawQuerier(context.Background(), mint, maxt)
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	stock, err := s.ChunkQuerier(mint, maxt)
	if err != nil {
		t.Fatal(err)
	}
	defer stock.Close()
	got := raw.Select(context.Background(), series.SelectOptions{}, matchers...)
	want := series.FromChunkSeriesSet(stock.Select(context.Background(), true, nil, matchers...))
	builder := labels.NewScratchBuilder(4)
	for {
		more, panicked := nextOrPanic(want)
		if panicked {
			if len(raw.(*rawQuerier).queriers) == 0 { // which would panic too
				checkSamples(t, s, mint, maxt, matchers...)
			}
			return seriesSeen, chunksSeen
		}
		if !more {
			break
		}
		name, _ := labelenc.Labels(want.Labels(), &builder)
		if !got.Next() {
			t.Fatalf("%d-%d: no series %s, %v", mint, maxt, name, got.Err())
		}
		if !bytes.Equal(got.Labels(), want.Labels()) {
			t.Fatalf("%d-%d: series %q, want %s", mint, maxt, got.Labels(), name)
		}
		if len(got.Chunks()) != len(want.Chunks()) {
			t.Fatalf("%d-%d: series %s has %d chunks, want %d", mint, maxt, name, len(got.Chunks()), len(want.Chunks()))
		}
		for i, c := range got.Chunks() {
			w := want.Chunks()[i]
			if c.MinMS != w.MinMS || c.MaxMS != w.MaxMS || c.Encoding != w.Encoding || !bytes.Equal(c.Data, w.Data) {
				t.Fatalf("%d-%d: series %s, chunk %d of %d: %d-%d %s %d bytes, want %d-%d %s %d bytes", mint, maxt, name, i, len(want.Chunks()),
					c.MinMS, c.MaxMS, c.Encoding, len(c.Data), w.MinMS, w.MaxMS, w.Encoding, len(w.Data))
			}
			chunksSeen++
		}
		seriesSeen++
	}
	if got.Next() || got.Err() != nil || want.Err() != nil {
		t.Fatalf("%d-%d: more series, or %v, %v", mint, maxt, got.Err(), want.Err())
	}
	return seriesSeen, chunksSeen
}

// nextOrPanic reports whether Prometheus' own querier panics: its Intervals.Add does if a
// range begins before a deletion of a block and ends within or after it.
func nextOrPanic(set interface{ Next() bool }) (more, panicked bool) {
	defer func() { panicked = recover() != nil }()
	return set.Next(), false
}

// checkRanges compares whole blocks, aligned and unaligned ranges, and empty ranges.
func checkRanges(t *testing.T, s *Store) {
	t.Helper()
	rng := rand.New(rand.NewPCG(5, 6))
	if n, chunks := checkRaw(t, s, startMS-hourMS, startMS+100*hourMS, everything); n == 0 || chunks == 0 {
		t.Fatal("nothing was compared")
	}
	checkRaw(t, s, startMS, startMS+2*hourMS-1, everything)
	checkRaw(t, s, startMS-2*hourMS, startMS-hourMS, everything)
	for range 25 {
		from := startMS + rng.Int64N(9*hourMS)
		checkRaw(t, s, from, from+rng.Int64N(4*hourMS), everything)
	}
	checkRaw(t, s, startMS, startMS+9*hourMS, labels.MustNewMatcher(labels.MatchEqual, labels.MetricName, "m3"))
	checkRaw(t, s, startMS+1, startMS+7*hourMS+5, labels.MustNewMatcher(labels.MatchNotRegexp, "instance", "host-(1|2).*"), labels.MustNewMatcher(labels.MatchEqual, "job", ""))
}

func TestRawQuerier_EqualsThePrometheusChunkQuerier(t *testing.T) {
	s := openWorld(t, t.TempDir(), 0)
	fill(t, s, 40, startMS, startMS+8*hourMS, 30_000)
	t.Run("head", func(t *testing.T) { checkRanges(t, s) })
	compact(t, s)
	blocks := s.db.Load().Blocks()
	if len(blocks) < 2 {
		t.Fatalf("%d blocks", len(blocks))
	}
	t.Run("blocks and head", func(t *testing.T) { checkRanges(t, s) })
	raw, err := s.RawQuerier(context.Background(), startMS, startMS+8*hourMS)
	if err != nil {
		t.Fatal(err)
	}
	if q := raw.(*rawQuerier); len(q.blocks) != len(blocks) || len(q.queriers) != 0 || q.head == nil {
		t.Errorf("%d raw blocks, %d Prometheus queriers, want %d and none", len(q.blocks), len(q.queriers), len(blocks))
	}
	if err := raw.Close(); err != nil {
		t.Error(err)
	}
	remove := func(from, to int64) {
		t.Helper()
		if err := s.db.Load().Delete(context.Background(), from, to, labels.MustNewMatcher(labels.MatchRegexp, labels.MetricName, "m[1-3]|h")); err != nil {
			t.Fatal(err)
		}
	}
	remove(startMS+hourMS, startMS+3*hourMS)
	t.Run("a tombstone", func(t *testing.T) { checkRanges(t, s) })
	remove(startMS+1, startMS+20*60_000)
	remove(startMS+3*hourMS+7*30_000, startMS+3*hourMS+9*30_000)
	remove(startMS+3*hourMS+12*30_000+1, startMS+3*hourMS+12*30_000+1)
	t.Run("tombstones", func(t *testing.T) { checkRanges(t, s) })
}

// checkSamples compares the samples of the raw querier with Prometheus' samples of all time.
func checkSamples(t *testing.T, s *Store, mint, maxt int64, matchers ...*labels.Matcher) {
	t.Helper()
	raw, err := s.RawQuerier(context.Background(), mint, maxt)
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	stock, err := s.Querier(startMS-100*hourMS, startMS+100*hourMS)
	if err != nil {
		t.Fatal(err)
	}
	defer stock.Close()
	got := sampleTexts(t, series.ToSeriesSet(raw.Select(context.Background(), series.SelectOptions{}, matchers...)), mint, maxt)
	want := sampleTexts(t, stock.Select(context.Background(), true, nil, matchers...), mint, maxt)
	if !slices.Equal(got, want) {
		t.Fatalf("%d-%d: %d samples, want %d", mint, maxt, len(got), len(want))
	}
}

func sampleTexts(t *testing.T, set storage.SeriesSet, mint, maxt int64) []string {
	t.Helper()
	var all []string
	for set.Next() {
		it := set.At().Iterator(nil)
		for kind := it.Next(); kind != chunkenc.ValNone; kind = it.Next() {
			if at := it.AtT(); at < mint || at > maxt {
				continue
			}
			line := set.At().Labels().String()
			switch kind {
			case chunkenc.ValFloat:
				at, v := it.At()
				line += fmt.Sprintf(" %d %g", at, v)
			default:
				at, h := it.AtFloatHistogram(nil)
				line += fmt.Sprintf(" %d %s", at, h)
			}
			all = append(all, line)
		}
		if it.Err() != nil {
			t.Fatal(it.Err())
		}
	}
	if set.Err() != nil {
		t.Fatal(set.Err())
	}
	return all
}

func TestRawQuerier_LateAndOverlappingSamples(t *testing.T) {
	dir := t.TempDir()
	s := openWorld(t, dir, 24*time.Hour)
	fill(t, s, 20, startMS, startMS+8*hourMS, 60_000)
	compact(t, s)
	fill(t, s, 10, startMS+hourMS+17, startMS+5*hourMS, 90_000)
	t.Run("late samples in the head", func(t *testing.T) { checkRanges(t, s) })
	if err := s.db.Load().CompactOOOHead(context.Background()); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openWorld(t, dir, 24*time.Hour)
	t.Run("overlapping blocks", func(t *testing.T) { checkRanges(t, s) })
}

func TestRawQuerier_MergesOverlappingBlocksInTheConfiguredEncoding(t *testing.T) {
	dir := t.TempDir()
	for late := range int64(2) {
		w, err := tsdb.NewBlockWriter(slog.New(slog.DiscardHandler), dir, 2*hourMS)
		if err != nil {
			t.Fatal(err)
		}
		app := w.Appender(context.Background())
		for at := startMS + late*7; at < startMS+hourMS; at += 15_000 {
			if _, err := app.Append(0, labels.FromStrings(labels.MetricName, "m"), at, float64(at%1000)); err != nil {
				t.Fatal(err)
			}
		}
		if err := app.Commit(); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Flush(context.Background()); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	s := openWorld(t, dir, 0)
	for _, floats := range []string{config.FloatChunkEncodingXOR2, config.FloatChunkEncodingXOR, ""} {
		section := config.TSDBConfig{ChunkEncoding: config.ChunkEncodingConfig{Floats: floats}}
		if err := s.ApplyConfig(&config.Config{StorageConfig: config.StorageConfig{TSDBConfig: &section}}); err != nil {
			t.Fatal(err)
		}
		if _, chunks := checkRaw(t, s, startMS, startMS+hourMS, everything); chunks == 0 {
			t.Errorf("%q: no chunks", floats)
		}
		raw, err := s.RawQuerier(context.Background(), startMS, startMS+hourMS)
		if err != nil {
			t.Fatal(err)
		}
		set := raw.Select(context.Background(), series.SelectOptions{}, everything)
		if !set.Next() {
			t.Fatalf("%q: no series: %v", floats, set.Err())
		}
		for _, c := range set.Chunks() {
			if got := chunkenc.Encoding(c.Encoding) == chunkenc.EncXOR2; got != (floats == config.FloatChunkEncodingXOR2) {
				t.Errorf("%q: a chunk is encoded as %s", floats, chunkenc.Encoding(c.Encoding))
			}
		}
		if err := raw.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// copied is a series of a set.
type copied struct {
	labels []byte
	chunks []series.Chunk
}

// rest copies the remaining series of a set.
func rest(t *testing.T, set series.Set) (all []copied) {
	t.Helper()
	for set.Next() {
		one := copied{labels: bytes.Clone(set.Labels()), chunks: slices.Clone(set.Chunks())}
		for i := range one.chunks {
			one.chunks[i].Data = bytes.Clone(one.chunks[i].Data)
		}
		all = append(all, one)
	}
	if set.Err() != nil {
		t.Fatal(set.Err())
	}
	return all
}

func TestRawQuerier_ReadsBlocksDeletedMeanwhile(t *testing.T) {
	s := openWorld(t, t.TempDir(), 0)
	fill(t, s, 20, startMS, startMS+8*hourMS, 60_000)
	compact(t, s)
	db := s.db.Load()
	open := func() (series.Querier, series.Set) {
		t.Helper()
		raw, err := s.RawQuerier(context.Background(), startMS+1, startMS+4*hourMS-1)
		if err != nil {
			t.Fatal(err)
		}
		return raw, raw.Select(context.Background(), series.SelectOptions{}, everything)
	}
	whole, set := open()
	want := rest(t, set)
	if err := whole.Close(); err != nil || len(want) != 22 {
		t.Fatalf("%d series, %v", len(want), err)
	}
	raw, set := open()
	for n := range 3 {
		if !set.Next() || !bytes.Equal(set.Labels(), want[n].labels) {
			t.Fatal(n, set.Err())
		}
	}
	before := map[string]bool{}
	for _, b := range db.Blocks() {
		before[b.Dir()] = true
	}
	// None of these calls waits for the reader: they return while it is open.
	if err := db.Delete(context.Background(), startMS, startMS+hourMS, everything); err != nil {
		t.Fatal(err)
	}
	if err := db.CleanTombstones(); err != nil { // rewrites the blocks and deletes the old ones
		t.Fatal(err)
	}
	gone := 0
	for dir := range before {
		if _, err := os.Stat(dir); err != nil {
			gone++
		}
	}
	if gone == 0 {
		t.Fatal("no block was deleted")
	}
	checkRanges(t, s) // other readers open and close
	if got := rest(t, set); !reflect.DeepEqual(got, want[3:]) {
		t.Errorf("%d series differ from those before the deletion", len(got))
	}
	if got := rest(t, raw.Select(context.Background(), series.SelectOptions{}, everything)); !reflect.DeepEqual(got, want) {
		t.Errorf("a second selection: %d series differ", len(got))
	}
	if names, err := raw.LabelNames(context.Background(), series.SelectOptions{}); err != nil || len(names) < 4 {
		t.Error(names, err)
	}
	if err := raw.Close(); err != nil {
		t.Error(err)
	}
	checkRanges(t, s)
	for dir, m := range s.mappings.byDir {
		if _, err := os.Stat(dir); err != nil || m.readers != 0 {
			t.Errorf("%s is still mapped, with %d readers", dir, m.readers)
		}
	}
}

// A querier that need not cut returns the chunks of blocks as they are stored. They have the same samples in its
// range, without deleted samples. A mapped chunk does not change while other chunks are read.
func TestRawQuerier_Uncut(t *testing.T) {
	s := openWorld(t, t.TempDir(), 0)
	fill(t, s, 20, startMS, startMS+8*hourMS, 60_000)
	compact(t, s)
	if err := s.db.Load().Delete(context.Background(), startMS+hourMS, startMS+2*hourMS, labels.MustNewMatcher(labels.MatchEqual, labels.MetricName, "m1")); err != nil {
		t.Fatal(err)
	}
	for _, span := range [][2]int64{{startMS + 90*60_000, startMS + 3*hourMS + 7}, {startMS + 30*60_000, startMS + 100*60_000}, {startMS + hourMS, startMS + 8*hourMS}} {
		read := func(uncut bool) (texts []string, mapped int) {
			raw, err := s.RawQuerier(context.Background(), span[0], span[1])
			if err != nil {
				t.Fatal(err)
			}
			defer raw.Close()
			opts := series.SelectOptions{Uncut: uncut}
			var held, copies []series.Chunk
			for set := raw.Select(context.Background(), opts, everything); set.Next(); {
				for _, c := range set.Chunks() {
					if c.Mapped {
						held = append(held, c)
						c.Data = bytes.Clone(c.Data)
						copies = append(copies, c)
					}
				}
			}
			texts = sampleTexts(t, series.ToSeriesSet(raw.Select(context.Background(), opts, everything)), span[0], span[1])
			if !reflect.DeepEqual(held, copies) {
				t.Errorf("%d-%d: mapped chunks have changed", span[0], span[1])
			}
			return texts, len(held)
		}
		want, cutMapped := read(false)
		got, mapped := read(true)
		if mapped <= cutMapped {
			t.Errorf("%d-%d: %d mapped chunks, %d if they are cut", span[0], span[1], mapped, cutMapped)
		}
		if len(want) == 0 || !slices.Equal(got, want) {
			t.Errorf("%d-%d: %d samples, want %d", span[0], span[1], len(got), len(want))
		}
	}
}

// checkUncut compares the samples that queriers that need not cut have in a range with those of a querier that cuts. The second
// reads series of the head that the first has found. It returns their number.
func checkUncut(t *testing.T, s *Store, mint, maxt int64, matchers ...*labels.Matcher) int {
	t.Helper()
	var texts [3][]string
	for i := range texts {
		raw, err := s.RawQuerier(context.Background(), mint, maxt)
		if err != nil {
			t.Fatal(err)
		}
		texts[i] = sampleTexts(t, series.ToSeriesSet(raw.Select(context.Background(), series.SelectOptions{Uncut: i > 0}, matchers...)), mint, maxt)
		if err := raw.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(texts[0], texts[1]) || !slices.Equal(texts[0], texts[2]) {
		t.Fatalf("%d-%d: %d and then %d samples uncut, %d cut", mint, maxt, len(texts[1]), len(texts[2]), len(texts[0]))
	}
	return len(texts[0])
}

func TestRawQuerier_RangeIsInclusive(t *testing.T) {
	s := openWorld(t, t.TempDir(), 0)
	fill(t, s, 12, startMS, startMS+8*hourMS, 30_000)
	compact(t, s)
	head, blocks := s.db.Load().Head().MinTime(), s.db.Load().Blocks()
	if end := blocks[len(blocks)-1].MaxTime(); head != end {
		t.Fatalf("the head begins at %d, the blocks end at %d", head, end)
	}
	within := startMS + 37*30_000 // in a chunk, neither first nor last
	for _, r := range [][2]int64{
		{within, within}, {within, within + hourMS}, {within - 1, within}, {within + 1, within + 30_000}, {within - hourMS, within},
		{head - hourMS, head}, {head, head}, {head - 1, head - 1}, {head - hourMS, head - 1}, {startMS, head}, {head - 1, head + 1},
	} {
		checkRaw(t, s, r[0], r[1], everything)
		checkSamples(t, s, r[0], r[1], everything)
	}
}

// openFiles counts the open files below the store's directory.
func openFiles(t *testing.T, s *Store) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip("needs /proc")
	}
	n := 0
	for _, entry := range entries {
		if to, err := os.Readlink("/proc/self/fd/" + entry.Name()); err == nil && strings.HasPrefix(to, s.opts.Dir) {
			n++
		}
	}
	return n
}

func TestClose_ClosesMappedFiles(t *testing.T) {
	s := openWorld(t, t.TempDir(), 0)
	fill(t, s, 5, startMS, startMS+8*hourMS, 60_000)
	compact(t, s)
	before := openFiles(t, s)
	for range 3 {
		checkRaw(t, s, startMS, startMS+8*hourMS, everything)
	}
	mapped := openFiles(t, s)
	if mapped <= before {
		t.Fatal("nothing was mapped")
	}
	s.mappings.mu.Lock()
	for _, m := range s.mappings.byDir {
		m.idleAt = m.idleAt.Add(-2 * mappedIdle)
	}
	s.mappings.mu.Unlock()
	s.mappings.sweep()
	if after := openFiles(t, s); after > before { // the log may close some meanwhile
		t.Errorf("%d open files after a while, %d before", after, before)
	}
	raw, err := s.RawQuerier(context.Background(), startMS, startMS+8*hourMS)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.mappings.close(); err != nil {
		t.Error(err)
	}
	if err := raw.Close(); err != nil { // the last reader closes the mapping
		t.Error(err)
	}
	if after := openFiles(t, s); after > before { // the log may close some meanwhile
		t.Errorf("%d open files after closing, %d before", after, before)
	}
}

// oneBlock returns a store with one block of few series, and the block's directory.
func oneBlock(t testing.TB) (*Store, string) {
	t.Helper()
	s := openWorld(t, t.TempDir(), 0)
	fill(t, s, 8, startMS, startMS+4*hourMS, 60_000)
	compact(t, s)
	return s, s.db.Load().Blocks()[0].Dir()
}

func TestRawQuerier_ErrorNamesTheCorruptChunk(t *testing.T) {
	s, dir := oneBlock(t)
	file := filepath.Join(dir, "chunks", "000001")
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	content[len(content)/2] ^= 0xFF
	if err := os.WriteFile(file, content, 0o666); err != nil { // in place: the mapping changes too
		t.Fatal(err)
	}
	raw, err := s.RawQuerier(context.Background(), startMS, startMS+2*hourMS-1)
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	set := raw.Select(context.Background(), series.SelectOptions{}, everything)
	for set.Next() {
	}
	err = set.Err()
	if !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), filepath.Base(dir)) || !strings.Contains(err.Error(), "series ") {
		t.Errorf("%v", err)
	}
}

func TestRawQuerier_AllocatesNothingPerSeries(t *testing.T) {
	allocations := func(n int) float64 {
		s := openWorld(t, t.TempDir(), 0)
		fill(t, s, n, startMS, startMS+4*hourMS, 600_000)
		compact(t, s)
		read := func() {
			raw, err := s.RawQuerier(context.Background(), startMS, startMS+2*hourMS-1)
			if err != nil {
				t.Fatal(err)
			}
			set, seen := raw.Select(context.Background(), series.SelectOptions{}, everything), 0
			for set.Next() {
				seen++
			}
			if seen != n+2 || set.Err() != nil || raw.Close() != nil {
				t.Fatal(seen, set.Err())
			}
		}
		read()
		return testing.AllocsPerRun(5, read)
	}
	few, many := allocations(10), allocations(1000)
	if many > few+100 { // the posting lists of the matcher
		t.Errorf("%v allocations for 10 series, %v for 1,000", few, many)
	}
}

func FuzzBlockIndex(f *testing.F) {
	_, dir := oneBlock(f)
	content, err := os.ReadFile(filepath.Join(dir, "index"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(content, uint64(20))
	f.Add(content, uint64(1)<<60)
	f.Fuzz(func(t *testing.T, content []byte, ref uint64) {
		ix, err := newBlockIndex(content)
		if err != nil {
			if !errors.Is(err, ErrCorrupt) && !errors.Is(err, errForeign) {
				t.Fatal(err)
			}
			// The fuzzer does not get past the checksum: decode the rest without it.
			ix = &blockIndex{bytes: content, symbols: content}
			if ix.findSymbols(min(len(content), int(ref%64))) != nil {
				return
			}
		}
		if err := ix.series(ref, 0, 1<<62, &entryParts{}); err != nil && !errors.Is(err, ErrCorrupt) {
			t.Fatal(err)
		}
		_, _, err = chunkMetas(&blockindex.Varints{Src: content}, 0, 1<<62, nil)
		if err != nil && !errors.Is(err, ErrCorrupt) {
			t.Fatal(err)
		}
		if _, _, err := (segments{content}).chunk(8); err != nil && !errors.Is(err, ErrCorrupt) {
			t.Fatal(err)
		}
	})
}

func BenchmarkRawSelect(b *testing.B) {
	s := openWorld(b, b.TempDir(), 0)
	fill(b, s, 2000, startMS, startMS+4*hourMS, 60_000)
	compact(b, s)
	for _, to := range []struct {
		name string
		maxt int64
	}{{"aligned", startMS + 2*hourMS - 1}, {"cut", startMS + hourMS + 100_001}} {
		b.Run("raw "+to.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				raw, err := s.RawQuerier(context.Background(), startMS, to.maxt)
				if err != nil {
					b.Fatal(err)
				}
				drain(b, raw.Select(context.Background(), series.SelectOptions{}, everything))
				raw.Close()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/2002, "ns/series")
		})
		b.Run("stock "+to.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				q, err := storage.ChunkQueryable(s).ChunkQuerier(startMS, to.maxt)
				if err != nil {
					b.Fatal(err)
				}
				drain(b, series.FromChunkSeriesSet(q.Select(context.Background(), true, nil, everything)))
				q.Close()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/2002, "ns/series")
		})
	}
}

func drain(b *testing.B, set series.Set) {
	n := 0
	for set.Next() {
		n += len(set.Chunks())
	}
	if set.Err() != nil || n == 0 {
		b.Fatal(n, set.Err())
	}
}

func TestLabelsOnly_DoesNotReadChunks(t *testing.T) {
	dir := t.TempDir()
	s := openWorld(t, dir, 0)
	fill(t, s, 40, startMS, startMS+8*hourMS, 30_000)
	compact(t, s)
	if len(s.db.Load().Blocks()) < 2 {
		t.Fatal("there are too few blocks")
	}
	all := func(q series.Querier, opts series.SelectOptions) (lsets []string, chunks int, err error) {
		set := q.Select(context.Background(), opts, everything)
		for set.Next() {
			lsets, chunks = append(lsets, string(set.Labels())), chunks+len(set.Chunks())
		}
		return lsets, chunks, set.Err()
	}
	want := map[string][]string{}
	ranges := map[string][2]int64{"blocks and head": {startMS, startMS + 8*hourMS}, "one block": {startMS, startMS + 2*hourMS - 1}, "some of it": {startMS + 1000, startMS + hourMS/2}, "nothing": {startMS - 9000, startMS - 8000}}
	for name, r := range ranges {
		q, err := s.RawQuerier(context.Background(), r[0], r[1])
		if err != nil {
			t.Fatal(err)
		}
		lsets, chunks, err := all(q, series.SelectOptions{})
		if err != nil || (chunks == 0) != (name == "nothing") {
			t.Errorf("%s: %d series, %d chunks, %v", name, len(lsets), chunks, err)
		}
		want[name] = lsets
		if err := q.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	segments, err := filepath.Glob(filepath.Join(dir, "*", "chunks", "*"))
	if err != nil || len(segments) < 2 {
		t.Fatal(segments, err)
	}
	for _, path := range segments { // chunks are unreadable from now on
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for i := 8; i < len(text); i++ {
			text[i] ^= 0xFF
		}
		if err := os.WriteFile(path, text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	s = openWorld(t, dir, 0)
	for name, r := range ranges {
		q, err := s.RawQuerier(context.Background(), r[0], r[1])
		if err != nil {
			t.Fatal(err)
		}
		if lsets, chunks, err := all(q, series.SelectOptions{LabelsOnly: true}); err != nil || chunks != 0 || !slices.Equal(lsets, want[name]) {
			t.Errorf("%s: %d series, want %d; %d chunks, %v", name, len(lsets), len(want[name]), chunks, err)
		}
		if _, _, err := all(q, series.SelectOptions{}); name == "one block" && err == nil {
			t.Errorf("%s: the chunks are still whole", name)
		}
		if err := q.Close(); err != nil {
			t.Error(err)
		}
	}
}
