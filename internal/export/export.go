// Package export writes raw series to files for other programs.
//
// The input is a series.Source, matchers and a range. The range is divided into windows. The
// series of each window are read in label order and encoded to a temporary file, which becomes
// the part file of the window once it is complete and synced. After the last window the parts are
// joined, and the result is renamed to the output's name. So an unfinished export never looks
// finished:
//
//	out.parquet.partial/state       the request, and the completed windows
//	out.parquet.partial/00003.part  a window
//	out.parquet.partial/00004.tmp   the current window
//	out.parquet.partial/joined.tmp  the result while it is being written
//
// A failed window is read again. A run that fails or is stopped leaves its parts, and Resume
// continues after them. The formats are Parquet, CSV, JSON lines, OpenMetrics and TSDB
// blocks. Memory holds the encoded chunks of one series, one row group or buffer, and for
// blocks the distinct label strings, but no list of samples or series. HTTP, flags and
// storage are elsewhere.
package export

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/prometheus/prometheus/model/labels"

	"github.com/ferula-io/ferula/internal/files"
	"github.com/ferula-io/ferula/internal/series"
)

// Supported formats.
const (
	Parquet     = "parquet"
	CSV         = "csv"
	JSONLines   = "jsonl"
	OpenMetrics = "openmetrics"
	Blocks      = "blocks"
)

// Stdout is the name of the standard output.
const Stdout = "-"

var (
	// ErrOptions is wrapped by errors of a request's options.
	ErrOptions = errors.New("cannot export")
	// ErrUnfinished is wrapped by failures after which Resume can continue.
	ErrUnfinished = errors.New("unfinished")
)

const (
	matchersMax = 8 // a server may limit concurrent requests to ten
	windowsMax  = 100_000
	bufferBytes = 256 << 10
	blockLength = 2 * time.Hour
)

// Options of an export.
type Options struct {
	Source         series.Source
	Matchers       [][]*labels.Matcher // a series must match one of the lists
	StartMS, EndMS int64               // inclusive
	Window         time.Duration       // length of a window; 0: 2h
	Output         string              // a file, for Blocks a directory, or Stdout
	Format         string              // "": by the output's extension
	SkipHistograms bool                // leave native histograms out of OpenMetrics, which cannot express them
	Resume         bool                // continue an unfinished export of the same Request
	// Request is the text of the request, with relative times as written. Resume continues
	// only an export with the same text.
	Request string

	Stdout     io.Writer
	Tries      int              // attempts to read a window; 0: 5
	RetryAfter time.Duration    // first wait, doubled each time up to a minute; 0: 1s
	Permanent  func(error) bool // reports errors after which a window is not read again; nil: none
	Progress   ProgressOptions
	Now        func() time.Time
	Random     io.Reader // for ULIDs of blocks
	Warn       func(text string)
}

func (o Options) withDefaults() Options {
	if o.Format == "" {
		o.Format = FormatOf(o.Output)
	}
	o.Window = cmp.Or(o.Window, blockLength)
	o.Tries = cmp.Or(o.Tries, 5)
	o.RetryAfter = cmp.Or(o.RetryAfter, time.Second)
	if o.Permanent == nil {
		o.Permanent = func(error) bool { return false }
	}
	if o.Warn == nil {
		o.Warn = func(string) {}
	}
	return o
}

// Validate returns all errors of the options.
func (o Options) Validate() error {
	var errs []error
	fault := func(wrong bool, format string, args ...any) {
		if wrong {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	known := []string{Parquet, CSV, JSONLines, OpenMetrics, Blocks}
	switch {
	case o.Output == "":
		fault(true, "no output")
	case o.Format == "":
		fault(true, "the name %q does not imply a format: set --format to one of %s", o.Output, strings.Join(known, ", "))
	default:
		fault(!slices.Contains(known, o.Format), "unknown format %q: use one of %s", o.Format, strings.Join(known, ", "))
	}
	fault(len(o.Matchers) == 0, "no matchers")
	fault(len(o.Matchers) > matchersMax, "%d selectors, at most %d are allowed", len(o.Matchers), matchersMax)
	fault(o.EndMS < o.StartMS, "the range ends %s before it starts", time.Duration(o.StartMS-o.EndMS)*time.Millisecond)
	fault(o.Window < time.Second, "a window of %s is shorter than a second", o.Window)
	if n := (o.EndMS - o.StartMS) / max(1, o.Window.Milliseconds()); o.EndMS > o.StartMS {
		fault(n < 0 || n > windowsMax, "the range is longer than %.0f days: it has more than %d windows of %s",
			windowsMax*o.Window.Hours()/24, windowsMax, o.Window)
	}
	if o.Format == Blocks {
		fault(o.Output == Stdout, "blocks cannot be written to the standard output")
		fault(o.Window != blockLength, "a window of %s: blocks need windows of 2h", o.Window)
	}
	fault(o.SkipHistograms && o.Format != OpenMetrics, "--skip-histograms is for OpenMetrics only, not for %s",
		o.Format)
	fault(o.Output == Stdout && o.Resume, "an export to the standard output cannot be resumed")
	if len(errs) > 0 {
		return fmt.Errorf("%w: %w", ErrOptions, errors.Join(errs...))
	}
	return nil
}

// FormatOf returns the format for the extension of a name, "" if the extension is unknown. A
// name without an extension, or the name of a directory, means Blocks.
func FormatOf(output string) string {
	switch strings.ToLower(filepath.Ext(strings.TrimRight(output, "/"))) {
	case ".parquet":
		return Parquet
	case ".csv":
		return CSV
	case ".jsonl", ".ndjson":
		return JSONLines
	case ".om", ".openmetrics", ".prom":
		return OpenMetrics
	case "":
		if output != Stdout && output != "" {
			return Blocks
		}
	}
	if strings.HasSuffix(output, "/") {
		return Blocks
	}
	if info, err := os.Stat(output); err == nil && info.IsDir() {
		return Blocks
	}
	return ""
}

// Summary is the result of an export.
type Summary struct {
	Windows      int
	Resumed      int   // of these, the windows written by an earlier run
	Series       int64 // maximum number of series in one window
	Samples      int64
	BytesRead    int64 // encoded labels and chunks, of this run
	BytesWritten int64 // size of the result
	Skipped      int64 // samples that are not in the result: staleness markers and skipped histograms
	Elapsed      time.Duration
}

// encoder writes the series of windows, in order, to one writer.
type encoder interface {
	// add appends one series, which is borrowed.
	add(s *samples) error
	// close writes the end of the file. The caller flushes the writer.
	close() error
	// skippedSamples returns the number of samples that the format could not express.
	skippedSamples() int64
}

// newEncoder returns the encoder of a format. first: w is the beginning of the result (CSV then
// writes its header). part: w is a part file, which join completes later.
func (r *run) newEncoder(w *bufio.Writer, first, part bool) (encoder, error) {
	switch format := r.opts.Format; format {
	case Parquet:
		if r.parquet == nil {
			r.parquet = newParquetEncoder(w)
		} else {
			r.parquet.reset(w)
		}
		return r.parquet, nil
	case CSV:
		return &csvEncoder{w: w, header: first}, nil
	case JSONLines:
		return &jsonEncoder{w: w}, nil
	case OpenMetrics:
		return &openMetricsEncoder{w: w, part: part, skipHist: r.opts.SkipHistograms}, nil
	}
	return nil, fmt.Errorf("%w: unknown format %q", ErrOptions, r.opts.Format)
}

// Run exports until all windows are written or ctx is done.
func Run(ctx context.Context, opts Options) (Summary, error) {
	opts = opts.withDefaults()
	if err := opts.Validate(); err != nil {
		return Summary{}, err
	}
	r := &run{opts: opts, began: opts.Now(), progress: newProgress(opts.Progress, opts.Now)}
	defer r.progress.end()
	var err error
	if opts.Output == Stdout {
		err = r.toStdout(ctx)
	} else {
		err = r.toFiles(ctx)
	}
	r.sum.Elapsed = opts.Now().Sub(r.began)
	return r.sum, err
}

// run is one running export.
type run struct {
	opts     Options
	began    time.Time
	progress *progress
	sum      Summary
	samples  samples
	parquet  *parquetEncoder // reused for each part: its buffers are large
}

// toStdout writes all windows to one encoder. A window is not read again once samples of it were
// written.
func (r *run) toStdout(ctx context.Context) error {
	length := r.opts.Window
	if r.opts.Format == OpenMetrics {
		length = 0 // families must not appear twice
	}
	all := windows(r.opts.StartMS, r.opts.EndMS, length)
	counted := &counter{w: r.opts.Stdout}
	w := bufio.NewWriterSize(counted, bufferBytes)
	enc, err := r.newEncoder(w, true, false)
	if err != nil {
		return err
	}
	r.progress.begin(len(all))
	r.progress.written = func() int64 { return counted.n }
	for i, win := range all {
		before := r.samples.total
		n, err := r.retry(ctx, i, func() (int64, bool, error) {
			n, err := r.read(ctx, win, enc.add)
			return n, r.samples.total == before, err
		})
		if err != nil {
			return err
		}
		r.windowDone(n, r.samples.total-before)
	}
	if err := errors.Join(enc.close(), w.Flush()); err != nil {
		return err
	}
	r.sum.BytesWritten, r.sum.Skipped = counted.n, enc.skippedSamples()
	return nil
}

func (r *run) windowDone(series, samples int64) {
	r.sum.Windows++
	r.sum.Series = max(r.sum.Series, series)
	r.sum.Samples += samples
	r.progress.windowDone(series)
}

// retry calls try until it succeeds, at most Tries times. It returns an error of try at once in three cases: the
// error is permanent; it is not a sourceError; or clean is false, because samples of the failed attempt are in the
// output.
func (r *run) retry(ctx context.Context, index int, try func() (series int64, clean bool, err error)) (int64, error) {
	for n := 1; ; n++ {
		series, clean, err := try()
		if err == nil || ctx.Err() != nil {
			return series, errors.Join(err, ctx.Err())
		}
		var failed *sourceError
		if !clean || n == r.opts.Tries || !errors.As(err, &failed) || r.opts.Permanent(err) {
			return series, err
		}
		wait := retryWait(r.opts.RetryAfter, n)
		r.opts.Warn(fmt.Sprintf("retrying window %d in %s: %v", index+1, wait, err))
		select {
		case <-ctx.Done():
			return series, ctx.Err()
		case <-time.After(wait):
		}
	}
}

// retryMax is the longest wait before a retry.
const retryMax = time.Minute

// retryWait returns the wait after n failures: it doubles.
func retryWait(first time.Duration, n int) time.Duration {
	return max(first, min(first<<min(n-1, 16), retryMax))
}

// sourceError is an error of the source. It may be temporary.
type sourceError struct{ err error }

func (e *sourceError) Error() string { return "read series: " + e.err.Error() }
func (e *sourceError) Unwrap() error { return e.err }

// read passes the series of a window to add, and counts them.
func (r *run) read(ctx context.Context, win window, add func(*samples) error) (n int64, err error) {
	q, err := r.opts.Source.RawQuerier(ctx, win.mint, win.maxt)
	if err != nil {
		return 0, &sourceError{err}
	}
	defer func() {
		if closed := q.Close(); closed != nil && err == nil {
			err = &sourceError{closed}
		}
	}()
	var sets []series.Set
	for _, matchers := range r.opts.Matchers {
		sets = append(sets, q.Select(ctx, series.SelectOptions{}, matchers...))
	}
	set := series.Merge(sets...)
	for set.Next() {
		if ctx.Err() != nil {
			return n, ctx.Err()
		}
		lset, chunks := set.Labels(), set.Chunks()
		if len(chunks) == 0 {
			continue
		}
		r.sum.BytesRead += int64(len(lset))
		for _, c := range chunks {
			r.sum.BytesRead += int64(len(c.Data))
		}
		if err := r.samples.reset(lset, chunks, win.mint, win.maxt); err != nil {
			return n, &sourceError{fmt.Errorf("series %s: %w", labelText(lset), err)}
		}
		some, err := r.samples.some()
		if err != nil {
			return n, &sourceError{fmt.Errorf("series %s: %w", labelText(lset), err)}
		}
		if !some {
			continue
		}
		if err := add(&r.samples); err != nil {
			err = fmt.Errorf("series %s: %w", labelText(lset), err)
			if errors.Is(err, ErrCorrupt) {
				err = &sourceError{err}
			}
			return n, err
		}
		n++
		r.progress.series(n, r.samples.total, r.sum.BytesRead)
	}
	if err := set.Err(); err != nil {
		return n, &sourceError{err}
	}
	for _, warning := range set.Warnings().AsErrors() {
		r.opts.Warn(warning.Error())
	}
	return n, nil
}

// PartialDir returns the directory of an unfinished export to output. It is removed at the
// end of a complete export.
func PartialDir(output string) string { return strings.TrimRight(output, "/") + ".partial" }

// toFiles writes each window to a part, and joins the parts.
func (r *run) toFiles(ctx context.Context) error {
	dir := PartialDir(r.opts.Output)
	renamed := r.renamed()
	if renamed {
		dir = strings.TrimRight(r.opts.Output, "/")
	} else if err := r.checkOutput(); err != nil {
		return err
	}
	st, err := openState(files.Disk{}, dir, r.opts, renamed)
	if err != nil {
		return err
	}
	defer st.close()
	all := windows(st.startMS, st.endMS, r.opts.Window)
	r.progress.begin(len(all))
	unfinished := func(err error) error {
		return fmt.Errorf("%w: %d of %d windows are in %s, continue with --resume: %w", ErrUnfinished, len(st.done),
			len(all), dir, err)
	}
	if err := st.check(len(all)); err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	for _, d := range st.done {
		r.windowDone(d.series, d.samples)
		r.sum.BytesWritten += d.bytes
		r.sum.Skipped += d.skipped
		r.sum.Resumed++
	}
	r.progress.resumed(r.sum.Resumed, r.sum.Samples)
	if renamed && len(st.done) == len(all) {
		return endBlocks(st, dir)
	} else if renamed {
		return fmt.Errorf("%w: the output directory %s exists, with %d of %d windows", ErrOptions, dir, len(st.done),
			len(all))
	}
	for i := len(st.done); i < len(all); i++ {
		done, err := r.part(ctx, dir, i, all[i])
		if err == nil {
			err = st.add(done)
		}
		if err != nil {
			if len(st.done) == 0 {
				return errors.Join(err, st.remove()) // no completed window to resume from
			}
			return unfinished(err)
		}
		r.windowDone(done.series, done.samples)
		r.sum.BytesWritten += done.bytes
		r.sum.Skipped += done.skipped
	}
	r.progress.joining()
	if err := r.join(ctx, st); err != nil {
		return unfinished(err)
	}
	return nil
}

// checkOutput returns an error for an output of the wrong kind, and for blocks in a directory
// with other files. An existing file is replaced once the export is complete.
func (r *run) checkOutput() error {
	info, err := os.Stat(r.opts.Output)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case r.opts.Format != Blocks && info.IsDir():
		return fmt.Errorf("%w: %s is a directory", ErrOptions, r.opts.Output)
	case r.opts.Format == Blocks && !info.IsDir():
		return fmt.Errorf("%w: %s is not a directory", ErrOptions, r.opts.Output)
	case r.opts.Format == Blocks:
		entries, err := os.ReadDir(r.opts.Output)
		if err == nil && len(entries) > 0 {
			err = fmt.Errorf("%w: the directory %s is not empty", ErrOptions, r.opts.Output)
		}
		return err
	}
	return nil
}

// part reads a window into a part of dir.
func (r *run) part(ctx context.Context, dir string, index int, win window) (done, error) {
	var d done
	before := r.samples.total
	_, err := r.retry(ctx, index, func() (int64, bool, error) {
		r.samples.total = before
		var err error
		if r.opts.Format == Blocks {
			d, err = r.blockPart(ctx, dir, index, win)
		} else {
			d, err = r.filePart(ctx, dir, index, win)
		}
		d.samples = r.samples.total - before
		return d.series, true, err
	})
	return d, err
}

func (r *run) filePart(ctx context.Context, dir string, index int, win window) (d done, err error) {
	d = done{window: index, name: fmt.Sprintf("%05d.part", index)}
	tmp := filepath.Join(dir, fmt.Sprintf("%05d.tmp", index))
	f, err := os.Create(tmp)
	if err != nil {
		return d, err
	}
	defer func() {
		if err != nil {
			_ = f.Close()
			err = errors.Join(err, os.Remove(tmp))
		}
	}()
	counted := &counter{w: f}
	finished := r.sum.BytesWritten
	r.progress.written = func() int64 { return finished + counted.n }
	w := bufio.NewWriterSize(counted, bufferBytes)
	enc, err := r.newEncoder(w, index == 0, true)
	if err != nil {
		return d, err
	}
	if d.series, err = r.read(ctx, win, enc.add); err != nil {
		return d, err
	}
	if err := errors.Join(enc.close(), w.Flush()); err != nil {
		return d, err
	}
	d.bytes, d.skipped = counted.n, enc.skippedSamples()
	if sorter, ok := enc.(interface{ sort(*os.File, int64) error }); ok {
		if err := sorter.sort(f, d.bytes); err != nil {
			return d, err
		}
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return d, err
	}
	if err := os.Rename(tmp, filepath.Join(dir, d.name)); err != nil {
		return d, err
	}
	return d, files.Disk{}.SyncDir(dir)
}

func (r *run) blockPart(ctx context.Context, dir string, index int, win window) (d done, err error) {
	d = done{window: index, name: noBlock}
	id, err := ulid.New(ulid.Timestamp(r.opts.Now()), r.opts.Random)
	if err != nil {
		return d, err
	}
	b, err := newBlockWriter(dir, id, win)
	if err != nil {
		return d, err
	}
	finished := r.sum.BytesWritten
	r.progress.written = func() int64 { return finished + b.chunkBytes }
	if d.series, err = r.read(ctx, win, b.add); err != nil {
		return d, errors.Join(err, b.discard())
	}
	if d.bytes, err = b.finish(ctx); err != nil {
		return d, errors.Join(err, b.discard())
	}
	if d.bytes > 0 {
		d.name = id.String()
	}
	return d, nil
}

// counter counts written bytes.
type counter struct {
	w io.Writer
	n int64
}

// Write implements io.Writer.
func (c *counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}
