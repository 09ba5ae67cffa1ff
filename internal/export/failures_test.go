package export

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/tsdbutil"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/series/labelenc"
)

var errFull = errors.New("no space left")

// failAfter is a writer that fails after some bytes.
type failAfter struct {
	left   int
	failed bool
}

func (f *failAfter) Write(p []byte) (int, error) {
	if f.left -= len(p); f.left < 0 {
		f.failed = true
		return 0, errFull
	}
	return len(p), nil
}

// oneSeries returns a series of floats, and of histograms after them.
func oneSeries(t *testing.T, s *samples, histograms bool) {
	t.Helper()
	points := []point{{t: startMS, v: 1}, {t: startMS + 1, v: 2.5}}
	chunks := []series.Chunk{encodeChunk(points)}
	if histograms {
		chunks = append(chunks, encodeChunk([]point{{t: startMS + 2, h: tsdbutil.GenerateTestHistogram(3)}, {t: startMS + 3, h: tsdbutil.GenerateTestHistogram(4)}}))
	}
	if err := s.reset(labelenc.Append(nil, labels.FromStrings("__name__", "name", "job", "node")), chunks, 0, startMS+hourMS); err != nil {
		t.Fatal(err)
	}
}

// A failed write ends the encoder at once, wherever it happens.
func TestEncoders_ReturnEveryFailedWrite(t *testing.T) {
	for _, format := range []string{CSV, JSONLines, OpenMetrics} {
		for _, part := range []bool{false, true} {
			for left := 0; ; left++ {
				to := &failAfter{left: left}
				r := &run{opts: Options{Format: format}}
				enc, err := r.newEncoder(bufio.NewWriterSize(to, 16), true, part)
				if err != nil {
					t.Fatal(err)
				}
				for range 2 {
					oneSeries(t, &r.samples, format != OpenMetrics)
					if err = enc.add(&r.samples); err != nil {
						break
					}
				}
				if err == nil {
					err = enc.close()
				}
				if to.failed != errors.Is(err, errFull) {
					t.Fatalf("%s, part %v, after %d bytes: failed %v, %v", format, part, left, to.failed, err)
				}
				if !to.failed {
					break // all was written
				}
			}
		}
	}
}

func TestRun_FailedWritesToStdoutAreReturned(t *testing.T) {
	for _, format := range []string{Parquet, CSV, JSONLines, OpenMetrics} {
		for _, left := range []int{0, 1000, bufferBytes + 1} {
			o := options(t, newFixture(7, format != OpenMetrics), format, 7)
			to := &failAfter{left: left}
			o.Output, o.Stdout, o.Tries = Stdout, to, 3
			if _, err := Run(context.Background(), o); errors.Is(err, errFull) != to.failed || left < 5000 && err == nil {
				t.Errorf("%s after %d bytes: %v", format, left, err)
			}
		}
	}
	if _, err := (&run{opts: Options{Format: "xml"}}).newEncoder(nil, true, true); !errors.Is(err, ErrOptions) {
		t.Error(err)
	}
}

func TestEncoders_CorruptLabelsAreErrors(t *testing.T) {
	for _, format := range []string{Parquet, CSV, JSONLines, OpenMetrics} {
		r := &run{opts: Options{Format: format}}
		enc, err := r.newEncoder(bufio.NewWriter(io.Discard), true, true)
		if err != nil {
			t.Fatal(err)
		}
		oneSeries(t, &r.samples, false)
		r.samples.labels = append(r.samples.labels, 0x0A, 9)
		if err := enc.add(&r.samples); !errors.Is(err, labelenc.ErrCorrupt) {
			t.Errorf("%s: %v", format, err)
		}
	}
}

// A row group ends with the row that reaches its limit of rows or of bytes.
func TestParquet_RowGroupsEndAtTheirLimits(t *testing.T) {
	for name, tt := range map[string]struct {
		rows, bytes int
		flushed     bool
	}{
		"a row less": {rowGroupRows - 3, 0, false}, "rows": {rowGroupRows - 2, 0, true},
		"a byte less": {0, rowGroupBytes - 1 - len("name") - len(`{"__name__":"name","job":"node"}`), false}, "bytes": {0, rowGroupBytes - len("name") - len(`{"__name__":"name","job":"node"}`), true},
	} {
		to := &failAfter{left: 100}
		r := &run{opts: Options{Format: Parquet}}
		if _, err := r.newEncoder(bufio.NewWriterSize(to, 16), true, true); err != nil {
			t.Fatal(err)
		}
		oneSeries(t, &r.samples, false)
		r.parquet.rows, r.parquet.bytes = tt.rows, tt.bytes
		if err := r.parquet.add(&r.samples); (err != nil) != tt.flushed || err != nil && !errors.Is(err, errFull) {
			t.Errorf("%s: %v", name, err)
		}
		if empty := r.parquet.rows == 0 && r.parquet.bytes == 0; empty != tt.flushed {
			t.Errorf("%s: %d rows, %d bytes", name, r.parquet.rows, r.parquet.bytes)
		}
	}
	// The encoder is used for the next part, whatever was left in it.
	r := &run{opts: Options{Format: Parquet}}
	var out bytes.Buffer
	for i := range 2 {
		out.Reset()
		w := bufio.NewWriter(&out)
		enc, err := r.newEncoder(w, true, true)
		if err != nil {
			t.Fatal(err)
		}
		oneSeries(t, &r.samples, true)
		if err := enc.add(&r.samples); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			continue // a failed window
		}
		if err := errors.Join(enc.close(), w.Flush()); err != nil {
			t.Fatal(err)
		}
	}
	if lines, err := decodeParquet(out.Bytes()); err != nil || len(lines) != 4 {
		t.Errorf("%d lines, %v", len(lines), err)
	}
}

// A directory with the name of the output fails an export at its end. After the directory was removed, Resume reads no
// window again.
func TestResume_AfterTheOutputWasInTheWay(t *testing.T) {
	for _, format := range allFormats {
		for _, hours := range []int64{2, 5} {
			w := newFixture(hours, false)
			o := options(t, w, format, hours)
			w.fail = func(int, int) error {
				return os.MkdirAll(filepath.Join(o.Output, "in the way"), 0o700)
			}
			if _, err := Run(context.Background(), o); !errors.Is(err, ErrUnfinished) {
				t.Fatalf("%s: %v", format, err)
			}
			if err := os.RemoveAll(o.Output); err != nil {
				t.Fatal(err)
			}
			w.fail, o.Resume, w.opened = nil, true, 0
			if sum := mustRun(t, o); w.opened != 0 || sum.Resumed != sum.Windows {
				t.Errorf("%s: %d windows were read: %+v", format, w.opened, sum)
			}
			same(t, decode(t, format, o.Output), w.want(o.StartMS, o.EndMS, blockLength, format != OpenMetrics), format != OpenMetrics)
		}
	}
}

// cancelOn cancels when a text is written.
type cancelOn struct {
	text   string
	cancel context.CancelFunc
}

func (c cancelOn) Write(p []byte) (int, error) {
	if strings.Contains(string(p), c.text) {
		c.cancel()
	}
	return len(p), nil
}

func TestResume_AfterAnInterruptWhileParts(t *testing.T) {
	for _, format := range []string{Parquet, CSV, JSONLines, OpenMetrics} {
		w := newFixture(5, false)
		o := options(t, w, format, 5)
		ctx, cancel := context.WithCancel(context.Background())
		o.Progress = ProgressOptions{To: cancelOn{"joining 3 windows", cancel}, Terminal: true}
		if _, err := Run(ctx, o); !errors.Is(err, context.Canceled) || !errors.Is(err, ErrUnfinished) {
			t.Errorf("%s: %v", format, err)
		}
		o.Resume, o.Progress = true, ProgressOptions{}
		mustRun(t, o)
		same(t, decode(t, format, o.Output), w.want(o.StartMS, o.EndMS, blockLength, format != OpenMetrics), format != OpenMetrics)
	}
}

func TestRun_StdoutIsNotWrittenTwice(t *testing.T) {
	w := newFixture(5, false)
	w.fail = func(opened, series int) error {
		if opened == 2 && series == 3 {
			return errDown
		}
		return nil
	}
	o := options(t, w, CSV, 5)
	o.Output, o.Stdout = Stdout, io.Discard
	if _, err := Run(context.Background(), o); !errors.Is(err, errDown) || w.opened != 2 {
		t.Errorf("%v after %d reads", err, w.opened)
	}
	// Before its first sample a window is read again.
	w.opened, w.fail = 0, func(opened, series int) error {
		if opened == 2 && series < 1 {
			return errDown
		}
		return nil
	}
	if sum := mustRun(t, o); w.opened != 4 || sum.Windows != 3 || sum.Series != 8 {
		t.Errorf("%+v after %d reads", sum, w.opened)
	}
}

func TestRun_TriesAreCounted(t *testing.T) {
	for _, tries := range []int{1, 2, 4} {
		w := newFixture(1, false)
		w.fail = func(int, int) error { return errDown }
		o := options(t, w, CSV, 1)
		var warnings []string
		o.Tries, o.Warn = tries, func(text string) { warnings = append(warnings, text) }
		if _, err := Run(context.Background(), o); !errors.Is(err, errDown) || w.opened != tries || len(warnings) != tries-1 {
			t.Errorf("%d tries: %v after %d, %q", tries, err, w.opened, warnings)
		}
		for i, text := range warnings {
			if want := fmt.Sprintf("retrying window 1 in %s: read series: ", time.Millisecond<<i); !strings.HasPrefix(text, want) {
				t.Errorf("%q, want %q", text, want)
			}
		}
	}
}

func TestRun_AnInterruptEndsTheWait(t *testing.T) {
	w := newFixture(1, false)
	w.fail = func(int, int) error { return errDown }
	ctx, cancel := context.WithCancel(context.Background())
	o := options(t, w, CSV, 1)
	o.RetryAfter, o.Warn = time.Hour, func(string) { cancel() }
	if _, err := Run(ctx, o); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// failingSource has warnings, and its querier fails when it is closed.
type failingSource struct {
	*fixture
	warnings annotations.Annotations
	close    error
}

func (f failingSource) RawQuerier(ctx context.Context, mint, maxt int64) (series.Querier, error) {
	q, err := f.fixture.RawQuerier(ctx, mint, maxt)
	return failingQuerier{q, f}, err
}

type failingQuerier struct {
	series.Querier
	from failingSource
}

func (q failingQuerier) Select(ctx context.Context, _ series.SelectOptions, matchers ...*labels.Matcher) series.Set {
	return warningSet{q.Querier.Select(ctx, series.SelectOptions{}, matchers...), q.from.warnings}
}
func (q failingQuerier) Close() error { return errors.Join(q.from.close, q.Querier.Close()) }

type warningSet struct {
	series.Set
	warnings annotations.Annotations
}

func (w warningSet) Warnings() annotations.Annotations { return w.warnings }

func TestRun_PassesWarningsAndErrorsOfTheSource(t *testing.T) {
	from := failingSource{fixture: newFixture(1, false), warnings: annotations.New().Add(errors.New("partial"))}
	o := options(t, from, CSV, 1)
	var warnings []string
	o.Warn = func(text string) { warnings = append(warnings, text) }
	sum := mustRun(t, o)
	if !slices.Equal(warnings, []string{"partial"}) || sum.Elapsed < 0 || sum.Series != 9 {
		t.Errorf("%q %+v", warnings, sum)
	}
	from.close = errDown
	o = options(t, from, CSV, 1)
	o.Tries = 2
	from.opened = 0
	if _, err := Run(context.Background(), o); !errors.Is(err, errDown) || from.opened != 2 {
		t.Errorf("%v after %d reads", err, from.opened)
	}
}

func TestRun_CountsTheBytesThatItReads(t *testing.T) {
	chunk := encodeChunk([]point{{t: startMS, v: 1}, {t: startMS + 1, v: 2}})
	o := options(t, raw([]series.Chunk{chunk}), CSV, 1)
	o.Now = clock()
	sum := mustRun(t, o)
	if want := int64(len(chunk.Data) + len(labelenc.Append(nil, labels.FromStrings("__name__", "x")))); sum.BytesRead != want || sum.Samples != 2 || sum.Series != 1 || sum.Elapsed < time.Second || sum.Elapsed > time.Minute {
		t.Errorf("%+v, want %d bytes", sum, want)
	}
}

func TestOptions_ValidateChecksEachLimit(t *testing.T) {
	lists := func(n int) [][]*labels.Matcher { return slices.Repeat([][]*labels.Matcher{matchers(t, "a", "b")}, n) }
	for name, tt := range map[string]struct {
		change func(*Options)
		want   string // "": no error
	}{
		"nothing wrong":      {func(*Options) {}, ""},
		"no output":          {func(o *Options) { o.Output = "" }, "no output"},
		"no format":          {func(o *Options) { o.Format = "" }, "does not imply a format"},
		"unknown format":     {func(o *Options) { o.Format = "xml" }, `unknown format "xml"`},
		"most matchers":      {func(o *Options) { o.Matchers = lists(matchersMax) }, ""},
		"more matchers":      {func(o *Options) { o.Matchers = lists(matchersMax + 1) }, "9 selectors"},
		"one millisecond":    {func(o *Options) { o.EndMS = o.StartMS }, ""},
		"negative range":     {func(o *Options) { o.EndMS = o.StartMS - 1 }, "ends 1ms before"},
		"a second":           {func(o *Options) { o.Window = time.Second }, ""},
		"shorter":            {func(o *Options) { o.Window = time.Second - 1 }, "shorter than a second"},
		"most windows":       {func(o *Options) { o.Window, o.EndMS = time.Second, o.StartMS+(windowsMax+1)*1000-1 }, ""},
		"more windows":       {func(o *Options) { o.Window, o.EndMS = time.Second, o.StartMS+(windowsMax+1)*1000 }, "the range is longer than 1 days: it has more than 100000 windows of 1s"},
		"all of time":        {func(o *Options) { o.StartMS, o.EndMS = -1<<62-1<<61, 1<<62+1<<61 }, "more than 100000 windows"},
		"blocks":             {func(o *Options) { o.Format = Blocks }, ""},
		"blocks of an hour":  {func(o *Options) { o.Format, o.Window = Blocks, time.Hour }, "blocks need windows of 2h"},
		"blocks to stdout":   {func(o *Options) { o.Format, o.Output = Blocks, Stdout }, "blocks cannot be written"},
		"stdout":             {func(o *Options) { o.Output = Stdout }, ""},
		"stdout, resumed":    {func(o *Options) { o.Output, o.Resume = Stdout, true }, "cannot be resumed"},
		"resumed":            {func(o *Options) { o.Resume = true }, ""},
		"skipped":            {func(o *Options) { o.SkipHistograms, o.Format = true, OpenMetrics }, ""},
		"skipped in another": {func(o *Options) { o.SkipHistograms = true }, "--skip-histograms is for OpenMetrics only"},
	} {
		o := Options{Output: "a.csv", Format: CSV, Matchers: lists(1), StartMS: 5000, EndMS: 6000, Window: blockLength}
		tt.change(&o)
		err := o.Validate()
		if (err == nil) != (tt.want == "") || err != nil && (!strings.Contains(err.Error(), tt.want) || !errors.Is(err, ErrOptions)) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
	}
	dir := filepath.Join(t.TempDir(), "a.xyz")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{dir: Blocks, dir + "x": "", "A.CSV": CSV, "a.ndjson": JSONLines, "a.prom": OpenMetrics, "a.openmetrics": OpenMetrics, "": "", "a.csv/": CSV, "a.xyz/": Blocks} {
		if got := FormatOf(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

func TestRun_OutputsOfTheWrongKind(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*Options){
		"is not a directory": func(o *Options) { o.Format, o.Output = Blocks, file },
		"is a directory":     func(o *Options) { o.Output = filepath.Dir(file) },
		"not a directory":    func(o *Options) { o.Output = filepath.Join(file, "out.csv") },
	} {
		o := options(t, newFixture(1, false), CSV, 1)
		change(&o)
		if _, err := Run(context.Background(), o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	// An existing file is replaced, and an empty directory is filled.
	o := options(t, newFixture(1, false), CSV, 1)
	o.Output = file
	mustRun(t, o)
	if text, err := os.ReadFile(file); err != nil || !strings.HasPrefix(string(text), csvHeader) {
		t.Errorf("%.20q, %v", text, err)
	}
	o = options(t, newFixture(1, false), Blocks, 1)
	o.Output = t.TempDir()
	if mustRun(t, o); len(decodeBlocks(t, o.Output)) == 0 {
		t.Error("no samples")
	}
}

// A part that was cut or damaged is an error, wherever it ends.
func TestJoinOpenMetrics_CutPartsAreErrors(t *testing.T) {
	var out bytes.Buffer
	w := bufio.NewWriter(&out)
	r := &run{opts: Options{Format: OpenMetrics}}
	enc, err := r.newEncoder(w, true, true)
	if err != nil {
		t.Fatal(err)
	}
	oneSeries(t, &r.samples, false)
	if err := errors.Join(enc.add(&r.samples), w.Flush()); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	join := func(part []byte) (string, error) {
		path := filepath.Join(dir, "part")
		if err := os.WriteFile(path, part, 0o600); err != nil {
			t.Fatal(err)
		}
		var text bytes.Buffer
		w := bufio.NewWriter(&text)
		err := joinOpenMetrics(context.Background(), w, []string{path}, dir)
		err = errors.Join(err, w.Flush())
		return text.String(), err
	}
	whole, err := join(out.Bytes())
	if err != nil || strings.Count(whole, "\n") != 3 || !strings.HasSuffix(whole, openMetricsEnd) {
		t.Errorf("%q, %v", whole, err)
	}
	for n := 1; n < out.Len(); n++ {
		if _, err := join(out.Bytes()[:n]); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%d of %d bytes: %v", n, out.Len(), err)
		}
	}
	if text, err := join(nil); err != nil || text != openMetricsEnd {
		t.Errorf("%q, %v", text, err)
	}
	if _, err := join(binary.AppendUvarint(nil, 1<<30+1)); !errors.Is(err, ErrCorrupt) {
		t.Error(err)
	}
	if err := joinOpenMetrics(context.Background(), w, []string{filepath.Join(dir, "none")}, dir); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	if err := joinOpenMetrics(context.Background(), w, slices.Repeat([]string{filepath.Join(dir, "part")}, mergeMax+1), filepath.Join(dir, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

func TestAppendCSV_QuotesWhatReadersSplit(t *testing.T) {
	for field, want := range map[string]string{"a": "a", "": "", `a"b`: `"a""b"`, "a,b": `"a,b"`, "a\nb": "\"a\nb\"", "a\rb": "\"a\rb\"", "a b": `"a b"`} {
		if got := string(appendCSV([]byte("x"), []byte(field))); got != "x"+want {
			t.Errorf("%q: %s", field, got)
		}
	}
}

func TestBlocks_MetaHasTheCounts(t *testing.T) {
	empty := series.Chunk{MinMS: startMS + 50, MaxMS: startMS + 50, Encoding: chunkenc.EncXOR, Data: make([]byte, 2)}
	o := options(t, raw([]series.Chunk{
		encodeChunk([]point{{t: startMS, v: 1}}), empty, encodeChunk([]point{{t: startMS + 100, h: tsdbutil.GenerateTestHistogram(1)}}),
	}), Blocks, 1)
	sum := mustRun(t, o)
	entries, err := os.ReadDir(o.Output)
	if err != nil || len(entries) != 1 {
		t.Fatal(entries, err)
	}
	dir := filepath.Join(o.Output, entries[0].Name())
	text, err := os.ReadFile(filepath.Join(dir, "meta.json"))
	if err != nil {
		t.Fatal(err)
	}
	var meta struct {
		ULID             string
		MinTime, MaxTime int64
		Stats            struct{ NumSamples, NumFloatSamples, NumHistogramSamples, NumSeries, NumChunks int }
		Compaction       struct {
			Level   int
			Sources []string
		}
		Version int
	}
	if err := json.Unmarshal(text, &meta); err != nil {
		t.Fatal(err)
	}
	if meta.ULID != entries[0].Name() || meta.MinTime != o.StartMS || meta.MaxTime != o.EndMS+1 || meta.Stats.NumSamples != 2 || meta.Stats.NumFloatSamples != 1 || meta.Stats.NumHistogramSamples != 1 ||
		meta.Stats.NumSeries != 1 || meta.Stats.NumChunks != 2 || meta.Compaction.Level != 1 || !slices.Equal(meta.Compaction.Sources, []string{meta.ULID}) || meta.Version != 1 {
		t.Errorf("%s", text)
	}
	var size int64
	for _, name := range []string{"meta.json", "index", "tombstones", "chunks/000001"} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		size += info.Size()
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) != 4 || sum.BytesWritten != size || sum.Samples != 2 {
		t.Errorf("%v, %+v of %d bytes, %v", files, sum, size, err)
	}
}

func TestBlockWriter_FilesInTheWayAreErrors(t *testing.T) {
	var id ulid.ULID
	win := window{startMS, startMS + 1000}
	for name, put := range map[string]func(tmp string) error{
		"directory": func(tmp string) error { return os.WriteFile(tmp, nil, 0o600) },
		"chunks": func(tmp string) error {
			return errors.Join(os.Mkdir(tmp, 0o700), os.WriteFile(tmp+"/chunks", nil, 0o600))
		},
		"series": func(tmp string) error { return errors.Join(os.Mkdir(tmp, 0o700), os.Mkdir(tmp+"/series", 0o700)) },
	} {
		dir := t.TempDir()
		if err := put(filepath.Join(dir, id.String()+unfinishedSuffix)); err != nil {
			t.Fatal(err)
		}
		if b, err := newBlockWriter(dir, id, win); err == nil || b != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, change := range map[string]func(tmp string) error{
		"gone": os.RemoveAll, "meta.json": func(tmp string) error { return os.MkdirAll(filepath.Join(tmp, "meta.json", "x"), 0o700) },
	} {
		dir := t.TempDir()
		b, err := newBlockWriter(dir, id, win)
		if err != nil {
			t.Fatal(err)
		}
		var s samples
		oneSeries(t, &s, true)
		if err := errors.Join(b.add(&s), change(b.tmp)); err != nil {
			t.Fatal(err)
		}
		if n, err := b.finish(context.Background()); err == nil || n != 0 {
			t.Errorf("%s: %d bytes, %v", name, n, err)
		}
		if err := b.discard(); err != nil {
			t.Error(err)
		}
		if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
			t.Errorf("%s: left %v, %v", name, entries, err)
		}
	}
}

func TestBlockWriter_ACutSpillFileIsAnError(t *testing.T) {
	b, err := newBlockWriter(t.TempDir(), ulid.ULID{}, window{startMS, startMS + 1000})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := b.discard(); err != nil {
			t.Error(err)
		}
	}()
	var s samples
	oneSeries(t, &s, true)
	if err := b.add(&s); err != nil {
		t.Fatal(err)
	}
	var builder labels.ScratchBuilder
	whole := slices.Clone(b.entry)
	for n := range len(whole) + 1 {
		lset, err := b.spilled(&partReader{from: bufio.NewReader(bytes.NewReader(whole[:n]))}, &builder)
		if (err == nil) != (n == len(whole)) || err == nil && (lset.Get("job") != "node" || len(b.metas) != 2 || b.metas[1].MinTime != startMS+2 || b.metas[1].MaxTime != startMS+3) {
			t.Errorf("%d of %d bytes: %s %v, %v", n, len(whole), lset, b.metas, err)
		}
	}
}
