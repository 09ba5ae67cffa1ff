package metrics

import (
	"bytes"
	"fmt"
	"io"
	"log"
	"math"
	"runtime"
	"runtime/debug"
	runtimemetrics "runtime/metrics"
	"slices"
	"sort"
	"strings"
	"sync"

	"github.com/ferula-io/ferula/metrics/internal/exposition"
)

// WriteProcessMetrics writes the metrics of WriteGoMetrics, WriteProcMetrics and
// WritePushMetrics to w. Only WriteFDMetrics writes the metrics of open files, because their
// cost grows with the number of open files.
func WriteProcessMetrics(w io.Writer) {
	p := getPage()
	p.appendGoMetrics()
	p.appendProcMetrics()
	p.send(w)
	WritePushMetrics(w)
}

// writeProcessMetrics is WriteProcessMetrics without the families that the sets have.
func writeProcessMetrics(w io.Writer, sets []*Set) {
	p := getPage()
	p.appendGoMetrics()
	p.appendProcMetrics()
	var names []string
	for _, s := range sets {
		names = s.appendProcessNames(names)
	}
	p.omitFamilies(names)
	p.send(w)
	WritePushMetrics(w)
}

// WriteGoMetrics writes the go_* metrics: memory, garbage collections, goroutines, versions.
func WriteGoMetrics(w io.Writer) {
	p := getPage()
	p.appendGoMetrics()
	p.send(w)
}

// WriteProcMetrics writes the process_* metrics: on Linux CPU, memory, I/O and pressure (PSI); on
// BSD and macOS CPU times, page faults and the peak of resident memory; on Windows CPU times and
// the start time. On other systems it writes nothing.
func WriteProcMetrics(w io.Writer) {
	p := getPage()
	p.appendProcMetrics()
	p.send(w)
}

// WriteFDMetrics writes process_max_fds and process_open_fds to w.
func WriteFDMetrics(w io.Writer) {
	p := getPage()
	p.appendFDMetrics()
	p.send(w)
}

// runtimeNames are names of metrics in package runtime/metrics, and the names that they get here.
var runtimeNames = [...][2]string{
	{"/sched/latencies:seconds", "go_sched_latencies_seconds"},
	{"/sync/mutex/wait/total:seconds", "go_mutex_wait_seconds_total"},
	{"/cpu/classes/gc/mark/assist:cpu-seconds", "go_gc_mark_assist_cpu_seconds_total"},
	{"/cpu/classes/gc/total:cpu-seconds", "go_gc_cpu_seconds_total"},
	{"/gc/pauses:seconds", "go_gc_pauses_seconds"},
	{"/cpu/classes/scavenge/total:cpu-seconds", "go_scavenge_cpu_seconds_total"},
	{"/gc/gomemlimit:bytes", "go_memlimit_bytes"},
}

// goReader has the buffers for reading the runtime's metrics.
type goReader struct {
	samples [len(runtimeNames)]runtimemetrics.Sample
	memory  runtime.MemStats
	pauses  []uint64

	info, infoExt string // lines that never change
}

var goReaders sync.Pool

func (p *page) appendGoMetrics() {
	r, ok := goReaders.Get().(*goReader)
	if !ok {
		r = &goReader{
			info: fmt.Sprintf("go_info{version=%q} 1\n", runtime.Version()),
			infoExt: fmt.Sprintf("go_info_ext{compiler=%q, GOARCH=%q, GOOS=%q, GOROOT=%q} 1\n",
				//lint:ignore SA1019 client_golang has this label too
				runtime.Compiler, runtime.GOARCH, runtime.GOOS, runtime.GOROOT()),
		}
		for i, name := range runtimeNames {
			r.samples[i].Name = name[0]
		}
	}
	defer goReaders.Put(r)
	runtimemetrics.Read(r.samples[:])
	for i := range r.samples {
		p.runtimeMetric(runtimeNames[i][1], r.samples[i].Value)
	}
	runtime.ReadMemStats(&r.memory)
	p.memory(&r.memory)

	r.pauses = append(r.pauses[:0], r.memory.PauseNs[:]...)
	slices.Sort(r.pauses)
	p.describe("go_gc_duration_seconds", "summary")
	for i, text := range pauseQuantiles {
		p.b = appendFloat(p.b, text, float64(r.pauses[int(float64(i)/4*float64(len(r.pauses)-1)+0.5)])/1e9)
	}
	p.b = appendFloat(p.b, "go_gc_duration_seconds_sum", float64(r.memory.PauseTotalNs)/1e9)
	p.b = appendUint(p.b, "go_gc_duration_seconds_count", uint64(r.memory.NumGC))

	p.uint("go_gc_forced_count", "counter", uint64(r.memory.NumForcedGC))
	p.uint("go_gomaxprocs", "gauge", uint64(runtime.GOMAXPROCS(0)))
	p.uint("go_goroutines", "gauge", uint64(runtime.NumGoroutine()))
	threads, _ := runtime.ThreadCreateProfile(nil)
	p.uint("go_threads", "gauge", uint64(threads))
	p.describe("go_info", "gauge")
	p.b = append(p.b, r.info...)
	p.describe("go_info_ext", "gauge")
	p.b = append(p.b, r.infoExt...)
}

// pauseQuantiles are the lines of the quantiles 0, 0.25, 0.5, 0.75 and 1, without values.
var pauseQuantiles = [...]string{
	`go_gc_duration_seconds{quantile="0"}`, `go_gc_duration_seconds{quantile="0.25"}`,
	`go_gc_duration_seconds{quantile="0.5"}`, `go_gc_duration_seconds{quantile="0.75"}`,
	`go_gc_duration_seconds{quantile="1"}`,
}

func (p *page) memory(m *runtime.MemStats) {
	p.uint("go_memstats_alloc_bytes", "gauge", m.Alloc)
	p.uint("go_memstats_alloc_bytes_total", "counter", m.TotalAlloc)
	p.uint("go_memstats_buck_hash_sys_bytes", "gauge", m.BuckHashSys)
	p.uint("go_memstats_frees_total", "counter", m.Frees)
	p.float("go_memstats_gc_cpu_fraction", "gauge", m.GCCPUFraction)
	p.uint("go_memstats_gc_sys_bytes", "gauge", m.GCSys)
	p.uint("go_memstats_heap_alloc_bytes", "gauge", m.HeapAlloc)
	p.uint("go_memstats_heap_idle_bytes", "gauge", m.HeapIdle)
	p.uint("go_memstats_heap_inuse_bytes", "gauge", m.HeapInuse)
	p.uint("go_memstats_heap_objects", "gauge", m.HeapObjects)
	p.uint("go_memstats_heap_released_bytes", "gauge", m.HeapReleased)
	p.uint("go_memstats_heap_sys_bytes", "gauge", m.HeapSys)
	p.float("go_memstats_last_gc_time_seconds", "gauge", float64(m.LastGC)/1e9)
	p.uint("go_memstats_lookups_total", "counter", m.Lookups)
	p.uint("go_memstats_mallocs_total", "counter", m.Mallocs)
	p.uint("go_memstats_mcache_inuse_bytes", "gauge", m.MCacheInuse)
	p.uint("go_memstats_mcache_sys_bytes", "gauge", m.MCacheSys)
	p.uint("go_memstats_mspan_inuse_bytes", "gauge", m.MSpanInuse)
	p.uint("go_memstats_mspan_sys_bytes", "gauge", m.MSpanSys)
	p.uint("go_memstats_next_gc_bytes", "gauge", m.NextGC)
	p.uint("go_memstats_other_sys_bytes", "gauge", m.OtherSys)
	p.uint("go_memstats_stack_inuse_bytes", "gauge", m.StackInuse)
	p.uint("go_memstats_stack_sys_bytes", "gauge", m.StackSys)
	p.uint("go_memstats_sys_bytes", "gauge", m.Sys)
	p.uint("go_cgo_calls_count", "counter", uint64(runtime.NumCgoCall()))
	p.uint("go_cpu_count", "gauge", uint64(runtime.NumCPU()))
}

// runtimeMetric writes a metric of the runtime. It writes nothing if this version of Go
// does not have the metric.
func (p *page) runtimeMetric(name string, v runtimemetrics.Value) {
	typeName := "gauge"
	if strings.HasSuffix(name, "_total") {
		typeName = "counter"
	}
	switch v.Kind() {
	case runtimemetrics.KindUint64:
		p.uint(name, typeName, v.Uint64())
	case runtimemetrics.KindFloat64:
		p.float(name, typeName, v.Float64())
	case runtimemetrics.KindFloat64Histogram:
		p.runtimeHistogram(name, v.Float64Histogram())
	}
}

// runtimeHistogram writes about 30 of the runtime's many buckets. If the histogram is in
// seconds, it writes no bucket above one second, except +Inf.
func (p *page) runtimeHistogram(name string, h *runtimemetrics.Float64Histogram) {
	const shownMax = 30
	bounds, total := h.Buckets, uint64(0)
	if strings.HasSuffix(name, "_seconds") {
		for len(bounds) > 0 && bounds[len(bounds)-1] > 1 {
			bounds = bounds[:len(bounds)-1]
		}
	}
	p.describe(name, "histogram")
	step, next := float64(len(bounds))/shownMax, 0.0
	for i, n := range h.Counts {
		total += n
		if i+1 >= len(bounds) || float64(i) < next {
			continue
		}
		next += step
		if !math.IsInf(bounds[i+1], 1) {
			p.b = append(append(p.b, name...), `_bucket{le="`...)
			p.b = appendUint(appendFloatText(p.b, bounds[i+1]), `"}`, total)
		}
	}
	p.b = append(append(p.b, name...), `_bucket{le="+Inf"`...)
	p.b = appendUint(p.b, "}", total)
}

// processPrefixes begin the names of all families of WriteGoMetrics, WriteProcMetrics and WriteFDMetrics.
var processPrefixes = [...]string{"go_", "process_"}

// appendProcessNames appends the families in entries, which are sorted, that begin with one of
// processPrefixes.
func appendProcessNames(dst []string, entries []entry) []string {
	for _, prefix := range processPrefixes {
		at := sort.Search(len(entries), func(i int) bool { return exposition.Family(entries[i].fullName()) >= prefix })
		for ; at < len(entries) && strings.HasPrefix(entries[at].fullName(), prefix); at++ {
			if f := exposition.Family(entries[at].fullName()); len(dst) == 0 || dst[len(dst)-1] != f {
				dst = append(dst, f)
			}
		}
	}
	return dst
}

// appendProcessNames appends the families of the set, and of its collectors in the last scrape,
// that begin with one of processPrefixes.
func (s *Set) appendProcessNames(dst []string) []string {
	s.mu.Lock()
	s.orderLocked()
	dst = appendProcessNames(dst, s.metrics)
	s.mu.Unlock()
	if c := s.collectors.Load(); c != nil {
		if families := c.families.Load(); families != nil {
			for _, f := range *families {
				if strings.HasPrefix(f.Name, processPrefixes[0]) || strings.HasPrefix(f.Name, processPrefixes[1]) {
					dst = append(dst, f.Name)
				}
			}
		}
	}
	return dst
}

// replaced has the families that a set has in place of the process metrics, each logged once.
var replaced = loggedNames{}

// omitFamilies removes the families with these names from the page, which has only process
// metrics. Sets expose these families, and a response must have each family only once.
func (p *page) omitFamilies(names []string) {
	if len(names) == 0 {
		return
	}
	kept := p.b[:0]
	for line := range bytes.Lines(p.b) {
		if at := slices.IndexFunc(names, func(name string) bool { return isLineOf(line, name) }); at < 0 {
			kept = append(kept, line...)
		} else if replaced.first(names[at]) {
			log.Printf("WARN: metrics: the process metric %q is left out, because a set has a family of this name", names[at])
		}
	}
	p.b = kept
}

// isLineOf reports whether a line of the text format, a HELP or TYPE line included, belongs to the
// family of this name.
func isLineOf(line []byte, family string) bool {
	if line[0] == '#' {
		line = line[len("# HELP "):] // as long as "# TYPE "
	}
	if len(line) <= len(family) || string(line[:len(family)]) != family {
		return false
	}
	rest := line[len(family):]
	for _, suffix := range suffixes {
		if len(rest) > len(suffix) && string(rest[:len(suffix)]) == suffix {
			rest = rest[len(suffix):]
			break
		}
	}
	return rest[0] == ' ' || rest[0] == '{' || rest[0] == '\n'
}

// BuildInfoCollector returns a collector for RegisterCollector. It produces the metric of
// client_golang's NewBuildInfoCollector, go_build_info, with the checksum, path and version of
// the main module as labels.
func BuildInfoCollector() func(sink *Sink) error {
	d := NewDesc("go_build_info", "Build information about the main Go module.", "checksum", "path", "version")
	checksum, path, version := "unknown", "unknown", "unknown"
	if info, ok := debug.ReadBuildInfo(); ok {
		checksum, path, version = info.Main.Sum, info.Main.Path, info.Main.Version
	}
	return func(sink *Sink) error {
		sink.Gauge(d, 1, checksum, path, version)
		return nil
	}
}
