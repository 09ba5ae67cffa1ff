// Package read measures the cost of exports to the process that exports: the goals read/* of goals.tsv.
//
// ferula serve serves blocks. ferula read exports all of them to each format, each time as a new process. Before anything
// is measured, one Parquet export is read back by parquet-go: it must contain every sample, and their sum must equal that of PromQL.
// Every later run must report the same number of samples and write a file of the same length.
package read

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
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
var Area = area.Area{Name: "read", About: "ferula read from ferula serve, to each format", Run: run}

const (
	series  = 10_000
	hours   = 8
	stepMS  = 15_000
	samples = series * hours * 3600_000 / stepMS // 19.2 million

	rssAnonInterval = 2 * time.Millisecond
)

var spec = blocks.Spec{
	Metric: "bench_metric", Values: blocks.Floats15, Series: series, Samples: hours * 3600_000 / stepMS,
	StepMS: stepMS, StartMS: blocks.QuietStartMS, Seed: 1,
}

// format is one format of output, a column of the table. bytes is the size of its first output, 0 before that.
type format struct {
	name, file string
	bytes      int64
}

// bench is one run of the area.
type bench struct {
	env     area.Env
	dir     string
	ferula  peer.Program
	server  *proc.Server
	formats []format
	out     *area.Outcome
}

func run(ctx context.Context, env area.Env) (_ *area.Outcome, err error) {
	b := &bench{env: env, dir: filepath.Join(env.Cache, "run", "read"), out: &area.Outcome{}, formats: []format{
		{"CSV", "out.csv", 0}, {"OpenMetrics", "out.om", 0}, {"JSON lines", "out.jsonl", 0}, {"blocks", "blocks", 0}, {"Parquet", "out.parquet", 0},
	}}
	for _, f := range b.formats {
		b.out.Sides = append(b.out.Sides, f.name)
	}
	env.Logf("blocks: %d series x %d samples", spec.Series, spec.Samples)
	data, err := blocks.Ensure(ctx, env.Cache, spec)
	if err != nil {
		return nil, err
	}
	if b.ferula, err = env.Programs.Get(ctx, peer.Ferula); err != nil {
		return nil, err
	}
	b.out.Versions = append(b.out.Versions, b.ferula.Version)
	config := filepath.Join(b.dir, "prometheus.yml")
	if err := errors.Join(blocks.Copy(data, filepath.Join(b.dir, "data")), os.WriteFile(config, []byte("scrape_configs: []\n"), 0o644)); err != nil {
		return nil, err
	}
	if b.server, err = proc.Start(ctx, b.ferula.Serve(peer.TSDB{Dir: filepath.Join(b.dir, "data"), Config: config, Log: filepath.Join(b.dir, "log")})); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.server.Stop()) }()
	if err := b.check(ctx); err != nil {
		return nil, err
	}
	for round := 1; round <= env.Rounds; round++ {
		for i := range b.formats {
			if err := b.measure(ctx, round, &b.formats[i]); err != nil {
				return nil, fmt.Errorf("%s: %w", b.formats[i].name, err)
			}
		}
		env.Logf("round %d of %d", round, env.Rounds)
	}
	b.conclude()
	return b.out, nil
}

// check exports to Parquet, reads the file back, and compares it with the results of PromQL for the same range.
func (b *bench) check(ctx context.Context) error {
	path := filepath.Join(b.dir, "out.parquet")
	if _, err := b.export(ctx, spec.Metric, "out.parquet"); err != nil {
		return err
	}
	count, sum, err := totals(path)
	if err != nil {
		return err
	}
	if count != samples {
		return fmt.Errorf("%w: the file has %d samples, want %d", area.ErrUnequal, count, samples)
	}
	selector := fmt.Sprintf("(%s[%dh])", spec.Metric, hours)
	wantCount, err := b.evaluate(ctx, "sum(count_over_time"+selector+")")
	if err != nil {
		return err
	}
	wantSum, err := b.evaluate(ctx, "sum(sum_over_time"+selector+")")
	if err != nil {
		return err
	}
	if wantCount != float64(count) || math.Abs(sum-wantSum) > 1e-9*math.Abs(wantSum) {
		return fmt.Errorf("%w: the file has %d samples of sum %g, PromQL %g of sum %g", area.ErrUnequal, count, sum, wantCount, wantSum)
	}
	b.env.Logf("the Parquet file has %d samples of sum %g, and so has PromQL", count, sum)
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

// evaluate returns the value of an expression with one sample, at the end of the range.
func (b *bench) evaluate(ctx context.Context, expr string) (float64, error) {
	at := strconv.FormatFloat(float64(spec.EndMS()-1)/1000, 'f', 3, 64)
	body, _, err := b.server.Fetch(ctx, proc.Request{Path: "/api/v1/query", Query: url.Values{"query": {expr}, "time": {at}}})
	if err != nil {
		return 0, err
	}
	var response struct {
		Data struct{ Result []struct{ Value [2]any } }
	}
	if err := json.Unmarshal(body, &response); err != nil {
		return 0, err
	}
	if len(response.Data.Result) != 1 {
		return 0, fmt.Errorf("%s: %w", expr, area.ErrEmpty)
	}
	return strconv.ParseFloat(fmt.Sprint(response.Data.Result[0].Value[1]), 64)
}

// exported is the cost of one run: sizes in bytes, CPU and elapsed time.
type exported struct {
	bytes, peak  int64
	cpu, elapsed time.Duration
}

// export runs ferula read as a process. It returns an error unless the process reports that it has written every sample.
func (b *bench) export(ctx context.Context, metric, file string) (e exported, err error) {
	path := filepath.Join(b.dir, file)
	if err := errors.Join(os.RemoveAll(path), os.RemoveAll(path+".partial")); err != nil { // the latter is left by a run that was stopped
		return e, err
	}
	second := func(ms int64) string { return strconv.FormatFloat(float64(ms)/1000, 'f', 3, 64) }
	cmd := exec.CommandContext(ctx, b.ferula.Path, "read", "--url="+b.server.URL(), "--match="+metric,
		"--start="+second(spec.StartMS), "--end="+second(spec.EndMS()-1), "--output="+path)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME")}, peer.RuntimeEnv()...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return e, err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for running := true; running; {
		if anon, err := proc.Anon(cmd.Process.Pid); err == nil {
			e.peak = max(e.peak, anon)
		}
		select {
		case err = <-ended:
			running = false
		case <-time.After(rssAnonInterval):
		}
	}
	e.elapsed, e.cpu = time.Since(began), cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime()
	if err != nil {
		return e, fmt.Errorf("ferula read: %w: %s", err, stderr.Bytes())
	}
	want := fmt.Sprintf(" %d,%03d,%03d samples", samples/1_000_000, samples/1000%1000, samples%1000)
	if metric != spec.Metric {
		want = " 0 samples"
	}
	if !strings.Contains(stderr.String(), want) {
		return e, fmt.Errorf("%w: ferula read does not report %q: %s", area.ErrUnequal, want, stderr.Bytes())
	}
	err = filepath.WalkDir(path, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err == nil {
			e.bytes += info.Size()
		}
		return err
	})
	return e, err
}

const (
	idle    = "peak of RssAnon: no series"
	growth  = "growth of RssAnon over the export of no series"
	cpu     = "CPU"
	elapsed = "seconds"
	size    = "bytes of the result"
	perByte = "bytes a sample"
)

// measure exports once without series and once with all of them.
func (b *bench) measure(ctx context.Context, round int, f *format) error {
	none, err := b.export(ctx, "nothing", f.file)
	if err != nil {
		return err
	}
	e, err := b.export(ctx, spec.Metric, f.file)
	if err != nil {
		return err
	}
	if f.bytes == 0 {
		f.bytes = e.bytes
	}
	if e.bytes != f.bytes || e.bytes == 0 {
		return fmt.Errorf("%w: %d bytes, %d before", area.ErrUnequal, e.bytes, f.bytes)
	}
	tape := &b.out.Recorder
	tape.Add(round, f.name, idle, area.Bytes, float64(none.peak))
	tape.Add(round, f.name, growth, area.Bytes, float64(max(0, e.peak-none.peak)))
	tape.Add(round, f.name, elapsed, area.Seconds, e.elapsed.Seconds())
	tape.Add(round, f.name, cpu, area.Seconds, e.cpu.Seconds())
	tape.Add(round, f.name, size, area.Bytes, float64(e.bytes))
	tape.Add(round, f.name, perByte, area.Count, float64(e.bytes)/samples)
	return os.RemoveAll(filepath.Join(b.dir, f.file))
}

// conclude computes the measures of the goals.
func (b *bench) conclude() {
	b.out.Measure("read/anon-mib", b.out.Recorder.Median("Parquet", growth)/(1<<20), growth, idle)
	b.out.Notes = append(b.out.Notes,
		fmt.Sprintf("%d series x %d samples of 15-digit floats over %d h, read in four windows by remote read from ferula serve on the same machine; %d samples in all.", series, spec.Samples, hours, samples),
		"Growth is the peak of RssAnon of a process that exports everything, less the peak of one that exports a metric that does not exist; CPU is that of the exporting process, from its start to its end.",
		"Seconds include joining the four parts and fsync, and the server, which shares the machine's processors.",
	)
}
