package export

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/parquet-go/parquet-go"
	"github.com/prometheus/prometheus/model/labels"

	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/series/labelenc"
)

var allFormats = []string{Parquet, CSV, JSONLines, OpenMetrics, Blocks}

// same compares exported samples with the expected ones. OpenMetrics and one file of several
// windows differ only in order.
func same(t *testing.T, got, want []string, sorted bool) {
	t.Helper()
	if !sorted {
		got, want = slices.Clone(got), slices.Clone(want)
		slices.Sort(got)
		slices.Sort(want)
	}
	if len(want) == 0 {
		t.Fatal("nothing to compare")
	}
	for i := range min(len(got), len(want)) {
		if got[i] != want[i] {
			t.Fatalf("sample %d of %d is\n%s, want\n%s", i, len(want), got[i], want[i])
		}
	}
	if len(got) != len(want) {
		t.Fatalf("%d samples, want %d", len(got), len(want))
	}
}

func TestRun_EveryFormatHasAllSamples(t *testing.T) {
	for _, format := range allFormats {
		for _, overlap := range []int{0, 17} {
			t.Run(fmt.Sprint(format, overlap), func(t *testing.T) {
				w := newFixture(7, format != OpenMetrics)
				w.overlap = overlap
				o := options(t, w, format, 7)
				o.StartMS += 1234
				o.EndMS -= 567
				sum := mustRun(t, o)
				want := w.want(o.StartMS, o.EndMS, blockLength, format != OpenMetrics)
				same(t, decode(t, format, o.Output), want, format != OpenMetrics)
				if sum.Samples-sum.Skipped != int64(len(want)) || sum.Windows != 4 || sum.BytesRead == 0 {
					t.Errorf("%+v, want %d samples", sum, len(want))
				}
				if format != Blocks {
					if info, err := os.Stat(o.Output); err != nil || info.Size() != sum.BytesWritten {
						t.Errorf("%d bytes, reported as %d, %v", info.Size(), sum.BytesWritten, err)
					}
				}
				if _, err := os.Stat(o.Output + ".partial"); !errors.Is(err, os.ErrNotExist) {
					t.Errorf("parts remain: %v", err)
				}
			})
		}
	}
}

func TestRun_StdoutEqualsTheFile(t *testing.T) {
	for _, format := range []string{Parquet, CSV, JSONLines, OpenMetrics} {
		w := newFixture(5, format != OpenMetrics)
		o := options(t, w, format, 5)
		mustRun(t, o)
		file, err := os.ReadFile(o.Output)
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		o.Output, o.Stdout = Stdout, &out
		mustRun(t, o)
		if format == Parquet { // row groups end at other rows
			got, err := decodeParquet(out.Bytes())
			if err != nil {
				t.Fatal(err)
			}
			want, _ := decodeParquet(file)
			same(t, got, want, true)
		} else if !bytes.Equal(out.Bytes(), file) {
			t.Errorf("%s: %d bytes differ from the file's %d", format, out.Len(), len(file))
		}
	}
}

func TestRun_EmptyRangeWritesACompleteFile(t *testing.T) {
	for _, format := range allFormats {
		o := options(t, newFixture(1, false), format, 5)
		o.Matchers = [][]*labels.Matcher{matchers(t, "job", "nothing")}
		if sum := mustRun(t, o); sum.Samples != 0 || sum.Series != 0 {
			t.Errorf("%s: %+v", format, sum)
		}
		if format == Blocks {
			if entries, err := os.ReadDir(o.Output); err != nil || len(entries) != 0 {
				t.Errorf("blocks: %v, %v", entries, err)
			}
		} else if got := decode(t, format, o.Output); len(got) != 0 {
			t.Errorf("%s: %q", format, got)
		}
	}
}

func TestRun_OverlappingMatchersDoNotDuplicateSeries(t *testing.T) {
	for _, format := range allFormats {
		w := newFixture(4, false)
		o := options(t, w, format, 4)
		o.Matchers = [][]*labels.Matcher{matchers(t, "__name__", "m0_total|later"), matchers(t, "__name__", "m.*"), matchers(t, "job", "node")}
		mustRun(t, o)
		same(t, decode(t, format, o.Output), w.want(o.StartMS, o.EndMS, blockLength, format != OpenMetrics), format != OpenMetrics)
	}
}

func TestOpenMetrics_FamiliesAreAdjacentIfLabelsSortBeforeTheName(t *testing.T) {
	w := &fixture{chunkLen: 120}
	for i := range 12 {
		s := testSeries{labels: labels.FromStrings("A", fmt.Sprint(i%4), "__name__", fmt.Sprint("m", i%3), "i", fmt.Sprint(i), "job", "node")}
		for t := startMS; t < startMS+5*hourMS; t += 60_000 {
			s.points = append(s.points, point{t: t, v: float64(t + int64(i))})
		}
		w.series = append(w.series, s)
	}
	w.order()
	o := options(t, w, OpenMetrics, 5)
	mustRun(t, o)
	same(t, decode(t, OpenMetrics, o.Output), w.want(o.StartMS, o.EndMS, blockLength, false), false)
	o.Output, o.Stdout = Stdout, &bytes.Buffer{}
	if _, err := Run(context.Background(), o); !errors.Is(err, ErrInexpressible) {
		t.Errorf("standard output: %v", err)
	}
}

func TestOpenMetrics_ManyWindowsAreMergedInRounds(t *testing.T) {
	w := newFixture(5, false)
	o := options(t, w, OpenMetrics, 5)
	o.Window = time.Minute
	mustRun(t, o)
	same(t, decode(t, OpenMetrics, o.Output), w.want(o.StartMS, o.EndMS, o.Window, false), false)
}

func TestOpenMetrics_InexpressibleDataFails(t *testing.T) {
	o := options(t, newFixture(1, true), OpenMetrics, 1)
	if _, err := Run(context.Background(), o); !errors.Is(err, ErrInexpressible) || errors.Is(err, ErrUnfinished) || !strings.Contains(err.Error(), `"hist"`) {
		t.Errorf("histograms: %v", err)
	}
	leftovers(t, o.Output)
	w := &fixture{chunkLen: 120, series: []testSeries{{labels.FromStrings("job", "node"), []point{{t: startMS, v: 1}}}}}
	o = options(t, w, OpenMetrics, 1)
	if _, err := Run(context.Background(), o); !errors.Is(err, ErrInexpressible) {
		t.Errorf("no name: %v", err)
	}
	leftovers(t, o.Output)
}

func TestOpenMetrics_SkipsHistogramsIfRequested(t *testing.T) {
	w := newFixture(2, true)
	o := options(t, w, OpenMetrics, 2)
	o.SkipHistograms = true
	sum := mustRun(t, o)
	for i, s := range w.series {
		w.series[i].points = slices.DeleteFunc(s.points, func(p point) bool { return p.h != nil || p.f != nil })
	}
	want := w.want(o.StartMS, o.EndMS, blockLength, false)
	same(t, decode(t, OpenMetrics, o.Output), want, false)
	if len(want) == 0 || sum.Skipped <= 0 || sum.Samples-sum.Skipped != int64(len(want)) {
		t.Errorf("%d samples, %d of them left out; the file has %d", sum.Samples, sum.Skipped, len(want))
	}
	o = options(t, w, CSV, 1)
	if o.SkipHistograms = true; o.Validate() == nil {
		t.Error("CSV has histograms, and skipping them is accepted")
	}
}

// leftovers fails if the output exists.
func leftovers(t *testing.T, output string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Dir(output))
	if err != nil || len(entries) != 0 {
		t.Errorf("left: %v, %v", entries, err)
	}
}

var errDown = errors.New("connection reset")

func TestRun_RetriesAFailedWindow(t *testing.T) {
	for _, format := range allFormats {
		w := newFixture(7, false)
		w.fail = func(opened, series int) error { // each window fails once, at a different series
			if opened%2 == 1 && series == opened-2 {
				return errDown
			}
			return nil
		}
		o := options(t, w, format, 7)
		warned := 0
		o.Warn = func(string) { warned++ }
		sum := mustRun(t, o)
		if warned != 4 {
			t.Errorf("%s: %d windows were retried", format, warned)
		}
		want := w.want(o.StartMS, o.EndMS, blockLength, format != OpenMetrics)
		same(t, decode(t, format, o.Output), want, format != OpenMetrics)
		if sum.Samples-sum.Skipped != int64(len(want)) {
			t.Errorf("%s: %d samples were counted, %d are there", format, sum.Samples, len(want))
		}
	}
}

func TestResume_AfterAnUnavailableSource(t *testing.T) {
	for _, format := range allFormats {
		for windowsDone := range 4 {
			w := newFixture(7, false)
			w.fail = func(opened, series int) error {
				if opened > windowsDone && series == 3 {
					return errDown
				}
				return nil
			}
			o := options(t, w, format, 7)
			_, err := Run(context.Background(), o)
			if !errors.Is(err, errDown) || errors.Is(err, ErrUnfinished) != (windowsDone > 0) {
				t.Fatalf("%s: %v", format, err)
			}
			if _, err := os.Stat(o.Output); !errors.Is(err, os.ErrNotExist) {
				t.Fatalf("%s: the output exists: %v", format, err)
			}
			if windowsDone == 0 {
				leftovers(t, o.Output)
				continue
			}
			if _, err := Run(context.Background(), o); !errors.Is(err, ErrOptions) {
				t.Fatalf("%s: parts were overwritten: %v", format, err)
			}
			other := o
			other.Resume, other.Request = true, "other"
			if _, err := Run(context.Background(), other); !errors.Is(err, ErrOptions) {
				t.Fatalf("%s: another request was resumed: %v", format, err)
			}
			w.fail = nil
			// The files of a killed run, and relative times that have moved.
			if err := os.WriteFile(filepath.Join(o.Output+".partial", "00003.tmp"), []byte("half"), 0o600); err != nil {
				t.Fatal(err)
			}
			want := w.want(o.StartMS, o.EndMS, blockLength, format != OpenMetrics)
			o.Resume = true
			o.StartMS += hourMS
			o.EndMS += hourMS
			w.opened = 0
			sum := mustRun(t, o)
			if w.opened != 4-windowsDone || sum.Resumed != windowsDone || sum.Windows != 4 {
				t.Errorf("%s: %d windows were read of %d: %+v", format, w.opened, 4-windowsDone, sum)
			}
			same(t, decode(t, format, o.Output), want, format != OpenMetrics)
			if sum.Samples-sum.Skipped != int64(len(want)) {
				t.Errorf("%s: %d samples were counted, %d are there", format, sum.Samples, len(want))
			}
		}
	}
}

func TestRun_PermanentErrorsAreNotRetried(t *testing.T) {
	w := newFixture(3, false)
	w.fail = func(int, int) error { return errDown }
	o := options(t, w, CSV, 3)
	o.Permanent = func(err error) bool { return errors.Is(err, errDown) }
	if _, err := Run(context.Background(), o); !errors.Is(err, errDown) || w.opened != 1 {
		t.Errorf("%v after %d tries", err, w.opened)
	}
	leftovers(t, o.Output)
}

func TestResume_AfterAnInterrupt(t *testing.T) {
	for _, format := range allFormats {
		w := newFixture(7, false)
		ctx, cancel := context.WithCancel(context.Background())
		w.fail = func(opened, series int) error {
			if opened == 3 && series == 2 {
				cancel()
			}
			return nil
		}
		o := options(t, w, format, 7)
		if _, err := Run(ctx, o); !errors.Is(err, context.Canceled) || !errors.Is(err, ErrUnfinished) {
			t.Fatalf("%s: %v", format, err)
		}
		entries, err := os.ReadDir(o.Output + ".partial")
		if err != nil || len(entries) != 3 {
			t.Fatalf("%s: %v, %v", format, entries, err)
		}
		o.Resume = true
		mustRun(t, o)
		same(t, decode(t, format, o.Output), w.want(o.StartMS, o.EndMS, blockLength, format != OpenMetrics), format != OpenMetrics)
	}
}

func TestResume_RefusesAChangedPart(t *testing.T) {
	w := newFixture(5, false)
	w.fail = func(opened, _ int) error {
		if opened > 1 {
			return errDown
		}
		return nil
	}
	o := options(t, w, CSV, 5)
	if _, err := Run(context.Background(), o); !errors.Is(err, ErrUnfinished) {
		t.Fatal(err)
	}
	dir := o.Output + ".partial"
	if err := os.Truncate(filepath.Join(dir, "00000.part"), 100); err != nil {
		t.Fatal(err)
	}
	o.Resume = true
	if _, err := Run(context.Background(), o); !errors.Is(err, ErrOptions) {
		t.Errorf("a short part: %v", err)
	}
	for _, state := range []string{"", "ferula read 1\n", "other\n", "ferula read 1\nrequest \"test\"\nrange 1 2\ndone 1 1 1 1 1 x\n", "ferula read 1\nrequest \"test\"\nrange 1 2\ndone 0 1 1 1 1 ../../x\n"} {
		if err := os.WriteFile(filepath.Join(dir, stateName), []byte(state), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Run(context.Background(), o); !errors.Is(err, ErrOptions) {
			t.Errorf("state %q: %v", state, err)
		}
	}
}

func TestRun_RefusesFoldersWithOtherFiles(t *testing.T) {
	for _, format := range allFormats {
		o := options(t, newFixture(1, false), format, 1)
		o.Output += "/"
		for _, dir := range []string{o.Output + "", strings.TrimRight(o.Output, "/") + ".partial"} {
			file := filepath.Join(dir, "precious")
			if err := errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(file, nil, 0o600)); err != nil {
				t.Fatal(err)
			}
			for _, o.Resume = range []bool{false, true} {
				if _, err := Run(context.Background(), o); !errors.Is(err, ErrOptions) {
					t.Errorf("%s: %v", format, err)
				}
			}
			if _, err := os.Stat(file); err != nil {
				t.Error(err)
			}
			os.RemoveAll(dir)
		}
	}
}

func TestRun_CorruptChunksFail(t *testing.T) {
	good := encodeChunk([]point{{t: startMS, v: 1}, {t: startMS + 1, v: 2}, {t: startMS + 2, v: 3}})
	cut, empty, backwards, unknown := good, good, good, good
	cut.Data, empty.Data, unknown.Encoding = good.Data[:len(good.Data)-1], nil, 99
	backwards.MinMS, backwards.MaxMS = startMS+10, startMS+11 // its samples are before that range
	for name, chunks := range map[string][]series.Chunk{"cut": {cut}, "empty": {empty}, "unknown": {unknown}, "backwards": {good, backwards}} {
		for _, format := range []string{CSV, Parquet} {
			o := options(t, raw(chunks), format, 1)
			if _, err := Run(context.Background(), o); !errors.Is(err, ErrCorrupt) {
				t.Errorf("%s, %s: %v", name, format, err)
			}
			leftovers(t, o.Output)
		}
	}
}

// raw is a source of one series with given chunks.
type raw []series.Chunk

func (r raw) RawQuerier(context.Context, int64, int64) (series.Querier, error) {
	return rawQuerier{&fixtureQuerier{}, r}, nil
}

type rawQuerier struct {
	*fixtureQuerier
	chunks []series.Chunk
}

func (q rawQuerier) Select(context.Context, series.SelectOptions, ...*labels.Matcher) series.Set {
	return &rawSet{fixtureSet{labels: labelenc.Append(nil, labels.FromStrings("__name__", "x")), chunks: q.chunks}}
}

type rawSet struct{ fixtureSet }

func (s *rawSet) Next() bool {
	s.n++
	return s.n == 1
}

func TestWindows_EndAtMultiplesOfTheirLength(t *testing.T) {
	check := func(mint, maxt int64, length time.Duration, want ...window) {
		t.Helper()
		if got := windows(mint, maxt, length); !slices.Equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
	}
	s := time.Second
	check(1500, 4200, s, window{1500, 1999}, window{2000, 2999}, window{3000, 3999}, window{4000, 4200})
	check(2000, 2999, s, window{2000, 2999})
	check(2000, 3000, s, window{2000, 2999}, window{3000, 3000})
	check(-1500, 100, s, window{-1500, -1001}, window{-1000, -1}, window{0, 100})
	check(5, 5, s, window{5, 5})
	check(1, 10_000, 0, window{1, 10_000})
}

func TestOptions_ValidateReportsAllErrors(t *testing.T) {
	_, err := Run(context.Background(), Options{Output: Stdout, Format: Blocks, StartMS: 2000, EndMS: 1000, Resume: true, Window: time.Hour, Now: time.Now})
	if !errors.Is(err, ErrOptions) {
		t.Fatal(err)
	}
	for _, fault := range []string{"no matchers", "ends 1s before", "standard output", "resumed", "2h"} {
		if !strings.Contains(err.Error(), fault) {
			t.Errorf("%q is missing in %v", fault, err)
		}
	}
	for name, want := range map[string]string{"a.parquet": Parquet, "a.csv": CSV, "b/a.jsonl": JSONLines, "a.om": OpenMetrics, "dir": Blocks, "dir.d/": Blocks, "-": "", "a.xyz": ""} {
		if got := FormatOf(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

func TestJoinParquet_KeepsRowGroupsAndStatistics(t *testing.T) {
	w := newFixture(6, true)
	o := options(t, w, Parquet, 6)
	mustRun(t, o)
	text, err := os.ReadFile(o.Output)
	if err != nil {
		t.Fatal(err)
	}
	f, err := parquet.OpenFile(bytes.NewReader(text), int64(len(text)))
	if err != nil {
		t.Fatal(err)
	}
	if len(f.RowGroups()) != 3 {
		t.Fatalf("%d row groups", len(f.RowGroups()))
	}
	for i, win := range windows(o.StartMS, o.EndMS, blockLength) {
		chunk := f.Metadata().RowGroups[i].Columns[columnTimestamp].MetaData
		lo, hi, _ := f.RowGroups()[i].ColumnChunks()[columnTimestamp].(*parquet.FileColumnChunk).Bounds()
		if lo.Int64() < win.mint || hi.Int64() > win.maxt || hi.Int64() <= lo.Int64() || len(chunk.Statistics.MinValue) != 8 {
			t.Errorf("row group %d: %d to %d", i, lo.Int64(), hi.Int64())
		}
	}
}

func TestSamples_DoNotAllocate(t *testing.T) {
	var points []point
	for i := range int64(480) {
		points = append(points, point{t: startMS + i*15_000, v: float64(i) / 3})
	}
	chunks := (&fixtureQuerier{fixture: &fixture{chunkLen: 120}, mint: startMS, maxt: startMS + 10*hourMS}).encode(points)
	var s samples
	read := func() {
		if err := s.reset(nil, chunks, startMS, startMS+10*hourMS); err != nil {
			t.Fatal(err)
		}
		for {
			more, err := s.next()
			if err != nil {
				t.Fatal(err)
			}
			if !more {
				return
			}
		}
	}
	read()
	if n := testing.AllocsPerRun(20, read); n != 0 {
		t.Errorf("%v allocations a series", n)
	}
}

func BenchmarkParquet(b *testing.B) { benchmark(b, Parquet) }
func BenchmarkCSV(b *testing.B)     { benchmark(b, CSV) }
func BenchmarkJSON(b *testing.B)    { benchmark(b, JSONLines) }
func BenchmarkBlocks(b *testing.B)  { benchmark(b, Blocks) }

func benchmark(b *testing.B, format string) {
	w := &fixture{chunkLen: 120}
	for i := range 200 {
		s := testSeries{labels: labels.FromStrings("__name__", "m", "i", fmt.Sprintf("%05d", i), "job", "node", "pod", fmt.Sprintf("service-%03d-abcdefgh", i))}
		for n := range int64(480) {
			s.points = append(s.points, point{t: startMS + n*15_000, v: math.Sqrt(float64(n * int64(i)))})
		}
		w.series = append(w.series, s)
	}
	b.ReportAllocs()
	for b.Loop() {
		o := options(b, w, format, 2)
		sum := mustRun(b, o)
		b.SetBytes(sum.Samples)
		os.RemoveAll(o.Output)
	}
}

func TestResume_FinishesRenamedBlocksWithAState(t *testing.T) {
	w := newFixture(5, false)
	w.fail = func(opened, _ int) error {
		if opened > 1 {
			return errDown
		}
		return nil
	}
	o := options(t, w, Blocks, 5)
	if _, err := Run(context.Background(), o); !errors.Is(err, ErrUnfinished) {
		t.Fatal(err)
	}
	partial := o.Output + ".partial"
	state, err := os.ReadFile(filepath.Join(partial, stateName))
	if err != nil {
		t.Fatal(err)
	}
	w.fail, o.Resume = nil, true
	want := w.want(o.StartMS, o.EndMS, blockLength, true)
	whole := mustRun(t, o)
	if _, err := os.Stat(filepath.Join(o.Output, stateName)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the state is among the blocks: %v", err)
	}
	// A state that lacks windows is not that of a complete directory.
	path := filepath.Join(o.Output, stateName)
	if err := os.WriteFile(path, state, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Run(context.Background(), o); !errors.Is(err, ErrOptions) {
		t.Errorf("a part of the windows: %v", err)
	}
	// A crash after the rename leaves the complete state.
	entries, err := os.ReadDir(o.Output)
	if err != nil {
		t.Fatal(err)
	}
	for i := 1; i < whole.Windows; i++ {
		name := noBlock
		if i < len(entries)-1 { // ULIDs sort by window, the state after them
			name = entries[i].Name()
		}
		state = fmt.Appendf(state, "done %d 1 1 1 0 %s\n", i, name)
	}
	if err := os.WriteFile(path, state, 0o600); err != nil {
		t.Fatal(err)
	}
	sum := mustRun(t, o)
	if sum.Resumed != whole.Windows {
		t.Errorf("%+v, want %+v", sum, whole)
	}
	same(t, decode(t, Blocks, o.Output), want, true)
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the state is among the blocks: %v", err)
	}
}

func TestResume_TornLastLineOfTheState(t *testing.T) {
	w := newFixture(9, false)
	down := func(after int) func(int, int) error {
		w.opened = 0
		return func(opened, _ int) error {
			if opened > after {
				return errDown
			}
			return nil
		}
	}
	o := options(t, w, CSV, 9)
	for n, tail := range []string{"", "done 2 17 1", "done"} {
		if n > 0 {
			path := filepath.Join(o.Output+".partial", stateName)
			state, err := os.ReadFile(path)
			if err == nil {
				err = os.WriteFile(path, append(state, tail...), 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		w.fail = down(1)
		if _, err := Run(context.Background(), o); !errors.Is(err, ErrUnfinished) {
			t.Fatalf("run %d: %v", n, err)
		}
		o.Resume = true
	}
	w.fail = nil
	if sum := mustRun(t, o); sum.Resumed != 3 {
		t.Errorf("%+v", sum)
	}
	same(t, decode(t, CSV, o.Output), w.want(o.StartMS, o.EndMS, blockLength, true), true)
}

func TestRetryWait_IsBounded(t *testing.T) {
	for n, want := range map[int]time.Duration{1: time.Second, 2: 2 * time.Second, 6: 32 * time.Second, 7: time.Minute, 100: time.Minute} {
		if got := retryWait(time.Second, n); got != want {
			t.Errorf("after %d failures %s, want %s", n, got, want)
		}
	}
	if got := retryWait(time.Hour, 3); got != time.Hour {
		t.Errorf("%s", got)
	}
}

func TestRun_ProgressOfStdoutCountsWrittenBytes(t *testing.T) {
	var out, progress bytes.Buffer
	o := options(t, newFixture(5, true), CSV, 5)
	o.Output, o.Stdout, o.Progress, o.Now = Stdout, &out, ProgressOptions{To: &progress, Terminal: true}, clock()
	mustRun(t, o)
	if !strings.Contains(progress.String(), "KiB written") {
		t.Errorf("%d bytes were written: %q", out.Len(), progress.String())
	}
}
