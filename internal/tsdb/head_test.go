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
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"
	"weak"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/tsdbutil"

	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/series/xor"
	"github.com/ferula-io/ferula/metrics"
)

// randomHead is a store with a history that a seed decides.
type randomHead struct {
	t     *testing.T
	rng   *rand.Rand
	opts  Options
	store *Store
	now   int64 // of the next samples
	lsets []labels.Labels
}

func newRandomHead(t *testing.T, seed uint64) *randomHead {
	rng := rand.New(rand.NewPCG(seed, 99))
	h := &randomHead{t: t, rng: rng, now: startMS + rng.Int64N(hourMS)}
	h.opts = Options{Dir: t.TempDir(), Retention: -1, NoLockfile: true, SnapshotOnShutdown: rng.IntN(2) == 0, FloatChunkEncodingIsXOR2: rng.IntN(4) == 0}
	if rng.IntN(2) == 0 {
		h.opts.OutOfOrderWindow = time.Duration(1+rng.IntN(180)) * time.Minute
	}
	for i := range 12 + rng.IntN(20) {
		name := []string{"f", "g", "h", "fh", "mixed"}[i%5]
		h.lsets = append(h.lsets, labels.FromStrings(labels.MetricName, name, "n", strconv.Itoa(rng.IntN(1e6)), "i", strconv.Itoa(i)))
	}
	h.open()
	return h
}

func (h *randomHead) open() {
	h.t.Helper()
	s, err := New(h.opts, slog.New(slog.DiscardHandler), prometheus.NewRegistry(), metrics.NewSet())
	if err != nil {
		h.t.Fatal(err)
	}
	if err := s.Open(); err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = s.Close() })
	h.store = s
	s.db.Load().DisableCompactions()
}

func TestHead_SelectionThatIsCanceledFails(t *testing.T) {
	h := newRandomHead(t, 1)
	h.push()
	q, err := h.store.RawQuerier(t.Context(), 0, math.MaxInt64)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	ctx, cancel := context.WithCancel(t.Context())
	set := q.Select(ctx, series.SelectOptions{}, labels.MustNewMatcher(labels.MatchRegexp, labels.MetricName, ".+"))
	cancel()
	for set.Next() { // the head looks at the context once for many series
	}
	if err := set.Err(); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

// push appends some minutes of samples to some of the series.
func (h *randomHead) push() {
	h.t.Helper()
	step := []int64{5_000, 15_000, 60_000}[h.rng.IntN(3)]
	steps := 1 + h.rng.IntN(150)
	late := int64(0)
	if h.opts.OutOfOrderWindow > 0 && h.rng.IntN(3) == 0 {
		late = h.rng.Int64N(h.opts.OutOfOrderWindow.Milliseconds())
	}
	few := h.rng.IntN(3) == 0
	for i := range steps {
		app := h.store.Appender(context.Background())
		at := h.now + int64(i)*step - late
		for n, lset := range h.lsets {
			if few && n%4 != 0 || h.rng.IntN(20) == 0 {
				continue
			}
			err := h.sample(app, lset, at+h.rng.Int64N(3))
			_ = err // too old, a duplicate or of another kind: the rest is appended
		}
		if err := app.Commit(); err != nil {
			h.t.Fatal(err)
		}
	}
	if late == 0 {
		h.now += int64(steps) * step
	}
}

func (h *randomHead) sample(app storage.Appender, lset labels.Labels, at int64) error {
	kind := lset.Get(labels.MetricName)
	if kind == "mixed" {
		kind = []string{"f", "h", "fh"}[at/600_000%3]
	}
	n := h.rng.Int64N(60)
	var err error
	switch {
	case kind == "h":
		_, err = app.AppendHistogram(0, lset, at, tsdbutil.GenerateTestHistogram(n), nil)
	case kind == "fh":
		_, err = app.AppendHistogram(0, lset, at, nil, tsdbutil.GenerateTestFloatHistogram(n))
	case n == 0:
		_, err = app.Append(0, lset, at, math.Float64frombits(value.StaleNaN))
	case kind == "g":
		_, err = app.Append(0, lset, at, float64(n))
	default:
		_, err = app.Append(0, lset, at, h.rng.NormFloat64())
	}
	return err
}

// step does one random thing to the head.
func (h *randomHead) step() string {
	h.t.Helper()
	db := h.store.db.Load()
	must := func(err error) {
		h.t.Helper()
		if err != nil {
			h.t.Fatal(err)
		}
	}
	switch h.rng.IntN(10) {
	case 0:
		db.ForceHeadMMap()
		return "mapped"
	case 1:
		from := h.now - h.rng.Int64N(3*hourMS)
		must(db.Delete(context.Background(), from, from+h.rng.Int64N(hourMS), labels.MustNewMatcher(labels.MatchRegexp, "i", "[1-3].?")))
		return "deleted"
	case 2:
		compact(h.t, h.store)
		return "compacted"
	case 3:
		if h.opts.OutOfOrderWindow > 0 {
			must(db.CompactOOOHead(context.Background()))
		}
		return "late samples compacted"
	case 4:
		must(h.store.Close())
		if h.rng.IntN(3) == 0 { // a crash leaves no snapshot
			must(removeSnapshots(h.opts.Dir))
		}
		h.open()
		return "restarted"
	case 5:
		h.lsets[h.rng.IntN(len(h.lsets))] = labels.FromStrings(labels.MetricName, "g", "n", strconv.Itoa(h.rng.IntN(1e6)), "i", "new")
		return "churned"
	default:
		h.push()
		return "pushed"
	}
}

func removeSnapshots(dir string) error {
	found, err := filepath.Glob(filepath.Join(dir, "chunk_snapshot.*"))
	for _, path := range found {
		err = errors.Join(err, os.RemoveAll(path))
	}
	return err
}

func (h *randomHead) check() (chunks, uncut int) {
	h.t.Helper()
	matchers := [][]*labels.Matcher{
		{everything},
		{labels.MustNewMatcher(labels.MatchRegexp, labels.MetricName, "f|g|mixed")},
		{labels.MustNewMatcher(labels.MatchNotRegexp, "i", "1.*"), labels.MustNewMatcher(labels.MatchNotEqual, labels.MetricName, "h")},
	}
	for range 6 {
		from := h.now - h.rng.Int64N(4*hourMS)
		to := from + h.rng.Int64N(4*hourMS)
		switch h.rng.IntN(6) {
		case 0:
			to = math.MaxInt64
		case 1:
			to = h.now
		}
		with := matchers[h.rng.IntN(len(matchers))]
		_, n := checkRaw(h.t, h.store, from, to, with...)
		chunks += n
		checkUnsorted(h.t, h.store, from, to, with...)
		uncut += checkUncut(h.t, h.store, from, to, with...)
	}
	return chunks, uncut
}

func TestRawHead_RandomHistoryEqualsThePrometheusChunkQuerier(t *testing.T) {
	seeds := uint64(12)
	if text := os.Getenv("HEAD_SEEDS"); text != "" {
		n, err := strconv.ParseUint(text, 10, 32)
		if err != nil {
			t.Fatal(err)
		}
		seeds = n
	}
	direct, uncut := 0, 0
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			h := newRandomHead(t, seed)
			h.push()
			for range 14 {
				h.step()
				_, n := h.check()
				uncut += n
				if raw, err := h.store.RawQuerier(context.Background(), h.now-hourMS, h.now); err != nil {
					t.Fatal(err)
				} else {
					if raw.(*rawQuerier).head != nil {
						direct++
					}
					if err := raw.Close(); err != nil {
						t.Fatal(err)
					}
				}
			}
		})
	}
	if direct < int(seeds) {
		t.Errorf("the head was read directly %d times in %d histories", direct, seeds)
	}
	if uncut == 0 {
		t.Error("no samples were read uncut")
	}
}

// appendAll commits one sample of every series.
func appendAll(t testing.TB, s *Store, lsets []labels.Labels, at int64, v float64) {
	t.Helper()
	app := s.Appender(context.Background())
	for _, lset := range lsets {
		if _, err := app.Append(0, lset, at, v); err != nil {
			t.Error(err)
			return
		}
	}
	if err := app.Commit(); err != nil {
		t.Error(err)
	}
}

func numbered(n int) (lsets []labels.Labels) {
	for i := range n {
		lsets = append(lsets, labels.FromStrings(labels.MetricName, "m", "n", fmt.Sprintf("%06d", i)))
	}
	return lsets
}

// TestRawHead_SeesWholeAppends reads while a commit puts one sample into every series: a
// selection has it in all of them or in none.
func TestRawHead_SeesWholeAppends(t *testing.T) {
	s := openWorld(t, t.TempDir(), 0)
	lsets := numbered(300)
	appendAll(t, s, lsets, startMS, 0)
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for n := int64(1); ; n++ {
			select {
			case <-stop:
				return
			default:
				appendAll(t, s, lsets, startMS+n*1000, float64(n))
			}
			if n%50 == 0 {
				s.db.Load().ForceHeadMMap()
			}
		}
	}()
	defer func() {
		close(stop)
		<-done
	}()
	for range 60 {
		raw, err := s.RawQuerier(context.Background(), startMS, math.MaxInt64)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			set, n, first := raw.Select(context.Background(), series.SelectOptions{}, everything), 0, 0
			for ; set.Next(); n++ {
				samples := 0
				for _, c := range set.Chunks() {
					chunk, err := chunkenc.FromData(c.Encoding, c.Data)
					if err != nil {
						t.Fatal(err)
					}
					samples += chunk.NumSamples()
				}
				if n == 0 {
					first = samples
				}
				if samples != first {
					t.Fatalf("series %d has %d samples, the first has %d", n, samples, first)
				}
			}
			if set.Err() != nil || n != len(lsets) {
				t.Fatal(n, set.Err())
			}
		}
		if err := raw.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// slowReader opens a selection and reads its first series only.
func slowReader(t *testing.T, s *Store, mint, maxt int64, matchers ...*labels.Matcher) (raw series.Querier, set series.Set, want []copied) {
	t.Helper()
	open := func() (series.Querier, series.Set) {
		raw, err := s.RawQuerier(context.Background(), mint, maxt)
		if err != nil {
			t.Fatal(err)
		}
		return raw, raw.Select(context.Background(), series.SelectOptions{}, matchers...)
	}
	whole, all := open()
	want = rest(t, all)
	if err := whole.Close(); err != nil || len(want) < 5 {
		t.Fatalf("%d series, %v", len(want), err)
	}
	raw, set = open()
	for n := range 3 {
		if !set.Next() || !bytes.Equal(set.Labels(), want[n].labels) {
			t.Fatal(n, set.Err())
		}
	}
	return raw, set, want[3:]
}

// samplesOf decodes copied series.
func samplesOf(t *testing.T, all []copied) (texts []string) {
	t.Helper()
	for _, one := range all {
		for _, c := range one.chunks {
			chunk, err := chunkenc.FromData(c.Encoding, c.Data)
			if err != nil {
				t.Fatal(err)
			}
			it := chunk.Iterator(nil)
			for kind := it.Next(); kind != chunkenc.ValNone; kind = it.Next() {
				line := fmt.Sprintf("%q %d", one.labels, it.AtT())
				if kind == chunkenc.ValFloat {
					_, v := it.At()
					line += fmt.Sprintf(" %x", math.Float64bits(v))
				} else {
					_, h := it.AtFloatHistogram(nil)
					h.CounterResetHint = 0
					line += h.String()
				}
				texts = append(texts, line)
			}
		}
	}
	return texts
}

func TestRawHead_TruncationDoesNotWaitForAReader(t *testing.T) {
	for _, labelsOnly := range []bool{false, true} {
		s := openWorld(t, t.TempDir(), 0)
		fill(t, s, 40, startMS, startMS+8*hourMS, 30_000)
		s.db.Load().ForceHeadMMap()
		raw, set, want := slowReader(t, s, startMS+1000, startMS+8*hourMS, everything)
		if labelsOnly {
			set = raw.Select(context.Background(), series.SelectOptions{LabelsOnly: true}, everything)
			for range 3 {
				set.Next()
			}
		}
		before := s.db.Load().Head().MinTime()
		compact(t, s) // returns while the reader is open
		if after := s.db.Load().Head().MinTime(); after == before || len(s.db.Load().Blocks()) == 0 {
			t.Fatal("the head was not truncated")
		}
		fill(t, s, 40, startMS+8*hourMS, startMS+9*hourMS, 30_000) // not in the view
		got := rest(t, set)
		switch {
		case labelsOnly:
			if len(got) != len(want) || len(got[0].chunks) > 0 || !bytes.Equal(got[0].labels, want[0].labels) {
				t.Errorf("labels only: %d series, want %d", len(got), len(want))
			}
		case !slices.Equal(samplesOf(t, got), samplesOf(t, want)):
			t.Errorf("%d samples, want %d", len(samplesOf(t, got)), len(samplesOf(t, want)))
		}
		// A selection after the truncation, with the querier from before it.
		again := rest(t, raw.Select(context.Background(), series.SelectOptions{}, everything))
		if texts := samplesOf(t, again[3:]); !slices.Equal(texts, samplesOf(t, want)) {
			t.Errorf("selected again: %d samples, want %d", len(texts), len(samplesOf(t, want)))
		}
		if names, err := raw.LabelNames(context.Background(), series.SelectOptions{}); err != nil || len(names) < 4 {
			t.Error(names, err)
		}
		if err := raw.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestRawHead_ReadsMappedChunksWhoseFileIsGone removes the files of the head under a reader
// that holds a series.
func TestRawHead_ReadsMappedChunksWhoseFileIsGone(t *testing.T) {
	dir := t.TempDir()
	s := openWorld(t, dir, 0)
	fill(t, s, 20, startMS, startMS+8*hourMS, 30_000)
	s.db.Load().ForceHeadMMap()
	mapped, err := os.Open(filepath.Join(dir, "chunks_head", "000001"))
	if err != nil {
		t.Fatal(err)
	}
	defer mapped.Close()
	raw, set, _ := slowReader(t, s, startMS, startMS+8*hourMS, everything)
	defer raw.Close()
	held := copied{chunks: slices.Clone(set.Chunks())} // borrowed until Next, which is not called
	before := rest(t, &oneSeries{Set: set})
	compact(t, s)
	// The head's garbage collection deletes a file once all its chunks are older and another
	// file is written to.
	fill(t, s, 20, startMS+8*hourMS, startMS+10*hourMS, 30_000)
	s.db.Load().ForceHeadMMap()
	if err := s.db.Load().CompactHead(tsdb.NewRangeHead(s.db.Load().Head(), startMS, startMS+10*hourMS)); err != nil {
		t.Fatal(err)
	}
	now, err := mapped.Stat()
	if err != nil {
		t.Fatal(err)
	}
	if links := now.Sys().(*syscall.Stat_t).Nlink; links > 0 {
		t.Fatal("the file with the chunks is still there")
	}
	held.labels = before[0].labels
	if !reflect.DeepEqual(held, before[0]) {
		t.Error("the held chunks changed")
	}
}

// oneSeries returns the current series of a set once more.
type oneSeries struct {
	series.Set
	done bool
}

func (o *oneSeries) Next() bool { o.done = !o.done; return o.done }
func (o *oneSeries) Err() error { return nil }

// TestSelect_TruncationWaitsForTheHeadsOrder holds an unsorted selection open: its order cannot be
// kept if a block has to be read.
func TestSelect_TruncationWaitsForTheHeadsOrder(t *testing.T) {
	s := openWorld(t, t.TempDir(), 0)
	fill(t, s, 40, startMS, startMS+8*hourMS, 60_000)
	raw, err := s.RawQuerier(context.Background(), startMS, startMS+8*hourMS)
	if err != nil {
		t.Fatal(err)
	}
	set := raw.Select(context.Background(), series.SelectOptions{OwnOrder: true}, everything)
	if !set.Next() {
		t.Fatal(set.Err())
	}
	truncated := make(chan struct{})
	go func() {
		compact(t, s)
		close(truncated)
	}()
	for len(s.db.Load().Blocks()) == 0 { // the block is written before truncation waits
		time.Sleep(time.Millisecond)
	}
	if n := len(rest(t, set)); n != 41 {
		t.Errorf("%d series behind the first", n)
	}
	select {
	case <-truncated:
		t.Error("truncation did not wait")
	default:
	}
	if err := raw.Close(); err != nil {
		t.Error(err)
	}
	<-truncated
}

func TestRawHead_FindsSeriesEvictedMeanwhile(t *testing.T) {
	s := openWorld(t, t.TempDir(), 0)
	fill(t, s, 40, startMS, startMS+hourMS, 30_000)
	app := s.Appender(context.Background())
	for i := range 40 {
		if i%5 == 0 {
			if _, err := app.Append(0, labels.FromStrings(labels.MetricName, fmt.Sprintf("m%d", i)), startMS+hourMS, math.Float64frombits(value.StaleNaN)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := app.Commit(); err != nil {
		t.Fatal(err)
	}
	raw, set, want := slowReader(t, s, startMS, startMS+hourMS-1, everything)
	defer raw.Close()
	series := s.db.Load().Head().NumSeries()
	if err := s.db.Load().CompactStaleHead(); err != nil {
		t.Fatal(err)
	}
	if s.db.Load().Head().NumSeries() == series {
		t.Fatal("no series was evicted")
	}
	if got := samplesOf(t, rest(t, set)); !slices.Equal(got, samplesOf(t, want)) {
		t.Errorf("%d samples, want %d", len(got), len(samplesOf(t, want)))
	}
}

// staleWorld returns a store with 40 known series, of which 20 are stale, and what a repeated selection has of all.
func staleWorld(t *testing.T) (s *Store, read func() []copied) {
	t.Helper()
	s = openWorld(t, t.TempDir(), 0)
	lsets := numbered(40)
	for i := range int64(10) {
		appendAll(t, s, lsets, startMS+i*1000, float64(i))
	}
	appendAll(t, s, lsets[20:], startMS+10_000, math.Float64frombits(value.StaleNaN))
	read = func() []copied {
		all, _ := rawReads(t, s, startMS, startMS+hourMS, series.SelectOptions{Uncut: true})
		return all
	}
	if n := len(read()); n != len(lsets) {
		t.Fatalf("%d series", n)
	}
	return s, read
}

// evictDuring evicts the stale series while a repeated selection has read one series, and checks the rest of it.
func evictDuring(t *testing.T, s *Store, want []copied) {
	t.Helper()
	raw, err := s.RawQuerier(t.Context(), startMS, startMS+hourMS)
	if err != nil {
		t.Fatal(err)
	}
	set := raw.Select(t.Context(), series.SelectOptions{Uncut: true}, everything)
	set.Next()
	if err := s.db.Load().CompactStaleHead(); err != nil {
		t.Fatal(err)
	}
	if got := samplesOf(t, rest(t, set)); !slices.Equal(got, samplesOf(t, want[1:])) {
		t.Errorf("%d samples, want %d", len(got), len(samplesOf(t, want[1:])))
	}
	if err := raw.Close(); err != nil {
		t.Error(err)
	}
}

// A series that is evicted while a selection reads it in place stays in the selection, and then leaves the memory.
func TestHead_OpenChunkOfASeriesThatIsEvicted(t *testing.T) {
	s, read := staleWorld(t)
	known := weak.Make(s.orders.uses.Front().Value.(*headOrder).known[30].Load())
	if known.Value() == nil {
		t.Fatal("no series is known")
	}
	evictDuring(t, s, read())
	for range 100 {
		if runtime.GC(); known.Value() == nil {
			return
		}
		time.Sleep(10 * time.Millisecond) // the store closes readers later
	}
	t.Error("an evicted series stays in memory")
}

// What was deleted from a series stays deleted after the series is evicted, with which its tombstones go.
func TestHead_DeletedSamplesOfASeriesThatIsEvicted(t *testing.T) {
	s, read := staleWorld(t)
	if err := s.db.Load().Delete(t.Context(), startMS+2000, startMS+4000, everything); err != nil {
		t.Fatal(err)
	}
	evictDuring(t, s, read())
}

// TestRawHead_GoesOnWithTheSameAppends truncates the head under a selection after a commit that the view does not have,
// though its samples are older than others of the view.
func TestRawHead_GoesOnWithTheSameAppends(t *testing.T) {
	s := openWorld(t, t.TempDir(), 0)
	lsets := numbered(20)
	for at := int64(startMS); at < startMS+8*hourMS; at += 60_000 {
		appendAll(t, s, lsets, at, 1)
	}
	open := s.Appender(context.Background())
	for _, lset := range lsets {
		if _, err := open.Append(0, lset, startMS+8*hourMS, 2); err != nil {
			t.Fatal(err)
		}
	}
	appendAll(t, s, []labels.Labels{labels.FromStrings(labels.MetricName, "newer")}, startMS+9*hourMS, 3)
	raw, set, want := slowReader(t, s, startMS, startMS+10*hourMS, everything)
	if err := open.Commit(); err != nil {
		t.Fatal(err)
	}
	before := s.db.Load().Head().MinTime()
	compact(t, s)
	if s.db.Load().Head().MinTime() == before {
		t.Fatal("the head was not truncated")
	}
	if got := samplesOf(t, rest(t, set)); !slices.Equal(got, samplesOf(t, want)) {
		t.Errorf("%d samples, want %d", len(got), len(samplesOf(t, want)))
	}
	if err := raw.Close(); err != nil {
		t.Error(err)
	}
}

func TestHeadOrders_KeepsWithinTheLimit(t *testing.T) {
	s := openWorld(t, t.TempDir(), 0)
	lsets := numbered(500)
	appendAll(t, s, lsets, startMS, 1)
	read := func(matchers ...*labels.Matcher) int {
		t.Helper()
		raw, err := s.RawQuerier(context.Background(), startMS, startMS+hourMS)
		if err != nil {
			t.Fatal(err)
		}
		defer raw.Close()
		return len(rest(t, raw.Select(context.Background(), series.SelectOptions{}, matchers...)))
	}
	kept := func() (all []*headOrder, bytes int) {
		for e := s.orders.uses.Front(); e != nil; e = e.Next() {
			all, bytes = append(all, e.Value.(*headOrder)), bytes+e.Value.(*headOrder).bytes()
		}
		if bytes != s.orders.bytes || len(all) != len(s.orders.kept) || bytes > ordersBytesMax {
			t.Errorf("%d orders of %d bytes, counted are %d of %d", len(all), bytes, len(s.orders.kept), s.orders.bytes)
		}
		return all, bytes
	}
	n := read(everything) + read(everything)
	if all, bytes := kept(); n != 1000 || len(all) != 1 || bytes == 0 {
		t.Fatalf("%d series, %d orders of %d bytes", n, len(all), bytes)
	}
	appendAll(t, s, []labels.Labels{labels.FromStrings(labels.MetricName, "m", "n", "000100a")}, startMS, 1)
	checkRaw(t, s, startMS, startMS+hourMS, everything)
	all, _ := kept()
	if len(all) != 2 {
		t.Errorf("%d orders after a new series", len(all))
	}
	newest := all[1]
	large := &headOrder{orderKey: orderKey{hash: 1}, labels: make([]byte, ordersBytesMax-newest.bytes())}
	s.orders.keep(large)
	s.orders.keep(large)
	if all, _ := kept(); !slices.Equal(all, []*headOrder{newest, large}) {
		t.Errorf("%d orders", len(all))
	}
	s.orders.keep(&headOrder{orderKey: orderKey{hash: 2}, labels: make([]byte, ordersBytesMax+1)})
	if all, _ := kept(); len(all) != 2 {
		t.Error("an order above the limit is kept")
	}
	n = read(everything)
	if all, _ := kept(); n != 501 || all[1] != newest {
		t.Error("an order that is used is not the last to go")
	}
}

// TestRawHead_ManyLabels reads series whose labels are not kept.
func TestRawHead_ManyLabels(t *testing.T) {
	s := openWorld(t, t.TempDir(), 0)
	long := string(bytes.Repeat([]byte("x"), 64<<10))
	var lsets []labels.Labels
	for i := range ordersBytesMax/2>>16 + 8 {
		lsets = append(lsets, labels.FromStrings(labels.MetricName, "m", "n", strconv.Itoa(i*7919%1000), "long", long))
	}
	appendAll(t, s, lsets, startMS, 1)
	checkRaw(t, s, startMS, startMS+hourMS, everything)
	if len(s.orders.kept) != 1 || s.orders.uses.Front().Value.(*headOrder).labels != nil {
		t.Error("the labels are kept")
	}
}

// TestRawHead_ConcurrentWithEverything reads while samples arrive, and while the head is
// mapped, truncated and rid of out-of-order samples. It is for the race detector.
func TestRawHead_ConcurrentWithEverything(t *testing.T) {
	s := openWorld(t, t.TempDir(), 0)
	lsets := numbered(50)
	const step = 60_000
	appendAll(t, s, lsets, startMS, 0)
	var wg sync.WaitGroup
	done := make(chan struct{})
	wg.Go(func() {
		defer close(done)
		for n := int64(1); n < 20*60; n++ {
			appendAll(t, s, lsets, startMS+n*step, float64(n))
			if n%20 == 0 {
				s.db.Load().ForceHeadMMap()
			}
			if n%60 == 0 {
				compact(t, s)
			}
		}
	})
	for range 2 {
		wg.Go(func() {
			for running := true; running; {
				select {
				case <-done:
					running = false
				default:
				}
				raw, err := s.RawQuerier(context.Background(), startMS, math.MaxInt64-1)
				if err != nil {
					t.Error(err)
					return
				}
				set, n, first := raw.Select(context.Background(), series.SelectOptions{}, everything), 0, 0
				for ; set.Next(); n++ {
					samples := 0
					for _, c := range set.Chunks() {
						samples += int(c.Data[0])<<8 | int(c.Data[1])
					}
					if n == 0 {
						first = samples
					}
					if samples != first {
						t.Errorf("series %d has %d samples, the first has %d", n, samples, first)
					}
				}
				if set.Err() != nil || n != len(lsets) {
					t.Error(n, set.Err())
				}
				if err := raw.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

// prometheusReads returns what Prometheus' chunk querier returns.
func prometheusReads(t *testing.T, s *Store, mint, maxt int64) []copied {
	t.Helper()
	q, err := s.db.Load().ChunkQuerier(mint, maxt)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	return rest(t, series.FromChunkSeriesSet(q.Select(t.Context(), true, nil, everything)))
}

// rawReads keeps the data of mapped chunks until the end, as their readers do.
func rawReads(t *testing.T, s *Store, mint, maxt int64, opts series.SelectOptions) (all []copied, mapped int) {
	t.Helper()
	raw, err := s.RawQuerier(t.Context(), mint, maxt)
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	set := raw.Select(t.Context(), opts, everything)
	for set.Next() {
		one := copied{labels: bytes.Clone(set.Labels()), chunks: slices.Clone(set.Chunks())}
		for i, c := range one.chunks {
			if !c.Mapped {
				one.chunks[i].Data = bytes.Clone(c.Data)
			}
		}
		all = append(all, one)
	}
	if set.Err() != nil {
		t.Fatal(set.Err())
	}
	for _, one := range all {
		for i, c := range one.chunks {
			if c.Mapped {
				mapped++
				one.chunks[i].Data, one.chunks[i].Mapped = bytes.Clone(c.Data), false
			}
		}
	}
	return all, mapped
}

func TestHead_ChunksAreReadInPlace(t *testing.T) {
	dir := t.TempDir()
	s := openWorld(t, dir, 0)
	const n = 100
	_, maxt := fillHead(t, s, n)
	if err := s.Close(); err != nil { // writes the mapped chunks
		t.Fatal(err)
	}
	s = openWorld(t, dir, 0)
	check := func(mint, maxt int64, mappedMin int) {
		t.Helper()
		want := prometheusReads(t, s, mint, maxt)
		got, mapped := rawReads(t, s, mint, maxt, series.SelectOptions{})
		if !reflect.DeepEqual(got, want) || len(got) != n {
			t.Errorf("%d to %d: other chunks than Prometheus'", mint, maxt)
		}
		if mapped < mappedMin {
			t.Errorf("%d to %d: %d chunks read in place, want at least %d of %d series", mint, maxt, mapped, mappedMin, n)
		}
	}
	check(startMS, maxt, 2*n-clonesMax)
	check(startMS+100_000, maxt-hourMS/4, n-clonesMax) // cuts chunks
	if err := s.db.Load().Delete(t.Context(), startMS+hourMS/4, startMS+hourMS/3, everything); err != nil {
		t.Fatal(err)
	}
	check(startMS, maxt, n-clonesMax)
	if err := os.RemoveAll(filepath.Join(dir, "chunks_head")); err != nil { // the head has a mapping of its own
		t.Fatal(err)
	}
	check(startMS, maxt, 0)
}

func TestHead_OpenChunkIsReadInPlace(t *testing.T) {
	s := openWorld(t, t.TempDir(), 0)
	lsets, rng := numbered(1), rand.New(rand.NewPCG(1, 2))
	for n := range int64(150) {
		appendAll(t, s, lsets, startMS+n*15_000, rng.NormFloat64())
		want := prometheusReads(t, s, startMS, math.MaxInt64)
		for _, uncut := range []bool{false, true} {
			got, _ := rawReads(t, s, startMS, math.MaxInt64, series.SelectOptions{OwnOrder: uncut, Uncut: uncut})
			if !reflect.DeepEqual(got, want) {
				t.Fatalf("%d samples: %v, want %v", n+1, got, want)
			}
		}
		raw, err := s.RawQuerier(t.Context(), startMS, math.MaxInt64)
		if err != nil {
			t.Fatal(err)
		}
		set := raw.Select(t.Context(), series.SelectOptions{OwnOrder: true}, everything)
		if !set.Next() {
			t.Fatal(set.Err())
		}
		if metric, ok := set.(series.Decoded).Metric(); !ok || !labels.Equal(metric, lsets[0]) {
			t.Fatalf("%s, %v, want %s", metric, ok, lsets[0])
		}
		raw.Close()
	}
}

func TestHead_OpenChunkIsReadInPlaceWhileItGrows(t *testing.T) {
	s := openWorld(t, t.TempDir(), 0)
	lsets := numbered(20)
	appendAll(t, s, lsets, startMS, 0)
	var wg sync.WaitGroup
	wg.Go(func() {
		for n := int64(1); n < 2_000; n++ {
			appendAll(t, s, lsets, startMS+n*1000, float64(n))
		}
	})
	defer wg.Wait()
	for most := 0; most < 2_000 && !t.Failed(); {
		raw, err := s.RawQuerier(t.Context(), startMS, math.MaxInt64)
		if err != nil {
			t.Fatal(err)
		}
		set, n := raw.Select(t.Context(), series.SelectOptions{OwnOrder: true, Uncut: true}, everything), 0
		for first := true; set.Next(); first = false {
			var points []xor.Point
			for _, c := range set.Chunks() {
				if points, err = xor.AppendPoints(points, c.Data, xor.Ascending); err != nil {
					t.Fatal(err)
				}
			}
			for i, p := range points {
				if p != (xor.Point{T: startMS + int64(i)*1000, F: float64(i)}) {
					t.Fatalf("sample %d is %v", i, p)
				}
			}
			if n = max(n, len(points)); !first && len(points) != n || len(points) < most {
				t.Fatalf("%d samples, others have %d, the view before had %d", len(points), n, most)
			}
		}
		if err := errors.Join(set.Err(), raw.Close()); err != nil {
			t.Fatal(err)
		}
		most = n
	}
}
