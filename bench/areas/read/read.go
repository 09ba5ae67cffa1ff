// Package read measures the cost of exports to the process that exports: the goals read/* of goals.tsv.
//
// ferula serve serves blocks. ferula read exports all of them to each format, each time as a new process. Before anything
// is measured, one Parquet export is read back by parquet-go: it must contain every sample, and their sum must equal that of PromQL.
// Every later run must report the same number of samples and write a file of the same length.
package read

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/parquet-go/parquet-go"

	"github.com/ferula-io/ferula/bench/area"
	"github.com/ferula-io/ferula/bench/blocks"
	"github.com/ferula-io/ferula/bench/peer"
	"github.com/ferula-io/ferula/bench/proc"
)

// Area is the entry of this area in the list of cmd/bench.
var Area = area.Area{
	Name: "read", About: "ferula read from ferula serve, to each format",
	Sides: []string{"CSV", "OpenMetrics", "JSON lines", "blocks", "Parquet"}, Run: run,
}

const rssAnonInterval = 2 * time.Millisecond

// files are the names of the output in each format.
var files = map[string]string{
	"CSV": "out.csv", "OpenMetrics": "out.om", "JSON lines": "out.jsonl", "blocks": "blocks", "Parquet": "out.parquet",
}

func spec() blocks.Spec { return area.Floats(8) }

func samples() int { return spec().Series * spec().Samples } // 19.2 million

// bench is one run of the area.
type bench struct {
	*area.Bench
	serve *area.Side
}

func run(ctx context.Context, of *area.Bench) error {
	serve, err := of.SideOf(ctx, "serve", peer.Ferula, ".")
	if err != nil {
		return err
	}
	b := &bench{of, serve}
	err = b.With(ctx, b.TSDB(ctx, area.TSDB{Data: spec()}), func() error {
		if err := b.check(ctx); err != nil {
			return err
		}
		return b.EachRound("formats", func(round int) error {
			for _, format := range b.Sides {
				if err := b.measure(ctx, round, format); err != nil {
					return fmt.Errorf("%s: %w", format, err)
				}
			}
			return nil
		})
	}, b.serve)
	if err != nil {
		return err
	}
	b.Own("read/anon-mib", area.MiB, growth)
	b.Note(
		fmt.Sprintf("%d series x %d samples of 15-digit floats over 8 h, read in four windows by remote read from ferula serve on the same machine; %d samples in all.", spec().Series, spec().Samples, samples()),
		"Growth is the peak of RssAnon of a process that exports everything, less the peak of one that exports a metric that does not exist; CPU is that of the exporting process, from its start to its end.",
		"Seconds include joining the four parts and fsync, and the server, which shares the machine's processors.",
	)
	return nil
}

// check exports to Parquet, reads the file back, and compares it with the results of PromQL for the same range.
func (b *bench) check(ctx context.Context) error {
	if _, err := b.export(ctx, spec().Metric, files["Parquet"]); err != nil {
		return err
	}
	count, sum, err := totals(filepath.Join(b.Dir, files["Parquet"]))
	if err != nil {
		return err
	}
	if count != int64(samples()) {
		return fmt.Errorf("%w: the file has %d samples, want %d", area.ErrUnequal, count, samples())
	}
	for function, got := range map[string]float64{"count_over_time": float64(count), "sum_over_time": sum} {
		expr := fmt.Sprintf("sum(%s(%s[8h]))", function, spec().Metric)
		v, err := area.Instant(ctx, b.serve.Server, expr, time.UnixMilli(spec().EndMS()-1))
		if err != nil {
			return err
		}
		if len(v) != 1 || math.Abs(got-float64(v[0].Value)) > 1e-9*math.Abs(got) {
			return fmt.Errorf("%w: %s is %v in the file, in PromQL %v", area.ErrUnequal, function, got, v)
		}
	}
	b.Logf("the Parquet file has %d samples of sum %g, and so has PromQL", count, sum)
	return nil
}

// totals returns the number of the samples in a Parquet file and the sum of their values.
func totals(path string) (count int64, sum float64, err error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, 0, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return 0, 0, err
	}
	file, err := parquet.OpenFile(f, info.Size()) // NewGenericReader panics where this fails
	if err != nil {
		return 0, 0, err
	}
	type row struct {
		Value *float64 `parquet:"value,optional"`
	}
	r := parquet.NewGenericReader[row](file)
	defer r.Close()
	rows := make([]row, 4096)
	for {
		n, err := r.Read(rows)
		for _, row := range rows[:n] {
			if row.Value == nil {
				return 0, 0, fmt.Errorf("%w: row %d has no value", area.ErrEmpty, count)
			}
			count, sum = count+1, sum+*row.Value
		}
		if errors.Is(err, io.EOF) {
			return count, sum, nil
		} else if err != nil {
			return 0, 0, err
		}
	}
}

// exported is the cost of one run: sizes in bytes, CPU and elapsed time.
type exported struct {
	bytes, peak  int64
	cpu, elapsed time.Duration
}

// export runs ferula read as a process. It returns an error unless the process reports that it has written every sample.
func (b *bench) export(ctx context.Context, metric, file string) (e exported, err error) {
	path := filepath.Join(b.Dir, file)
	if err := errors.Join(os.RemoveAll(path), os.RemoveAll(path+".partial")); err != nil { // the latter is left by a run that was stopped
		return e, err
	}
	cmd := exec.CommandContext(ctx, b.serve.Program.Path, "read", "--url="+b.serve.URL(), "--match="+metric,
		"--start="+area.Secs(spec().StartMS), "--end="+area.Secs(spec().EndMS()-1), "--output="+path)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME")}, peer.RuntimeEnv()...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return e, err
	}
	stop := proc.Watch(cmd.Process.Pid, rssAnonInterval, func(_ time.Duration, anon int64) { e.peak = max(e.peak, anon) })
	err = cmd.Wait()
	stop()
	e.elapsed, e.cpu = time.Since(began), cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime()
	if err != nil {
		return e, fmt.Errorf("ferula read: %w: %s", err, stderr.Bytes())
	}
	want := fmt.Sprintf(" %d,%03d,%03d samples", samples()/1_000_000, samples()/1000%1000, samples()%1000)
	if metric != spec().Metric {
		want = " 0 samples"
	}
	if !strings.Contains(stderr.String(), want) {
		return e, fmt.Errorf("%w: ferula read does not report %q: %s", area.ErrUnequal, want, stderr.Bytes())
	}
	size, err := area.BytesBelow(path)
	e.bytes = int64(size)
	return e, err
}

const (
	idle   = "peak of RssAnon: no series"
	growth = "growth of RssAnon over the export of no series"
	size   = "bytes of the result"
)

// measure exports once without series and once with all of them.
func (b *bench) measure(ctx context.Context, round int, format string) error {
	file := files[format]
	none, err := b.export(ctx, "nothing", file)
	if err != nil {
		return err
	}
	e, err := b.export(ctx, spec().Metric, file)
	if err == nil {
		err = b.SameLength(format, size, e.bytes)
	}
	if err != nil {
		return err
	}
	b.Add(round, format, idle, area.Bytes, float64(none.peak))
	b.Add(round, format, growth, area.Bytes, float64(max(0, e.peak-none.peak)))
	b.Add(round, format, "seconds", area.Seconds, e.elapsed.Seconds())
	b.Add(round, format, "CPU", area.Seconds, e.cpu.Seconds())
	b.Add(round, format, size, area.Bytes, float64(e.bytes))
	b.Add(round, format, "bytes a sample", area.Count, float64(e.bytes)/float64(samples()))
	return os.RemoveAll(filepath.Join(b.Dir, file))
}
