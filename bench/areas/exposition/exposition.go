// Package exposition measures the cost of metrics in a program, in the bench's own process:
// goals exposition/*, update/*, lookup/* and memory/*.
//
// It compares ferula's metrics, VictoriaMetrics/metrics and client_golang, each filled with
// the same values by the same code. First the output is compared. The output of
// VictoriaMetrics/metrics must be equal byte by byte. client_golang must write at least
// half and at most twice as many lines as ferula. Then scrapes, updates and lookups of the
// libraries are measured in turn. The floor is a loop that appends the same response from
// pre-rendered prefixes and encodes only the values.
package exposition

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ferula-io/ferula/bench/area"
	"github.com/ferula-io/ferula/bench/proc"
)

// Area is the entry of this area in the list of cmd/bench.
var Area = area.Area{
	Name: "exposition", Also: []string{"update", "lookup", "memory"},
	About: "metrics, VictoriaMetrics/metrics and client_golang, in one process",
	Sides: []string{victoria, golang, floor, ferula}, Run: run,
}

const (
	nanoseconds = "ns"
	heapBytes   = 64 << 20
	sliceTime   = 40 * time.Millisecond
	sliceCount  = 3 // slices of a reading; the best one counts

	turnTime = 4 * time.Millisecond
	turns    = 31 // slices of each side
)

// bench is one run.
type bench struct {
	*area.Bench
	ctx context.Context

	worstAllocs float64 // most allocations of one of ferula's scrapes
}

func run(ctx context.Context, of *area.Bench) error {
	b := &bench{Bench: of, ctx: ctx}
	b.Versions = area.Modules("github.com/VictoriaMetrics/metrics", "github.com/prometheus/client_golang")
	heap := make([]byte, heapBytes) // without a heap, the garbage collector would run at every scrape
	defer runtime.KeepAlive(heap)
	for _, step := range []func() error{
		b.scrapes, b.manyRanges, b.summaries, b.mixes, b.million, b.zipped, b.process, b.updates, b.contended, b.lookups, b.memory,
	} {
		if err := step(); err != nil {
			return err
		}
	}
	b.Measure("exposition/allocs", b.worstAllocs)
	b.Note(
		"Nanoseconds are CPU time of the process, garbage collection included, of one scrape, update or lookup; each reading is the best of three slices of 40 ms. Sides that allocate nothing take turns instead, with 31 slices of 4 ms each, and a reading is the median of its slices.",
		"client_golang has no vmrange histogram: its histogram has the default buckets, and its summaries four quantiles of another algorithm. It writes about as many lines, not the same ones.",
		"Updates between scrapes are part of the reading.",
		"exposition/summary-1000: windows of 5 min, which no reading is long enough to turn, and windows of 100 ms, which turn twenty times a second; the worse of the two.",
		"exposition/plain-10k: 65 % counters and gauges, 35 % classic buckets, unchanged and all updated between scrapes, the worse of the two. exposition/live-10k: 60 % counters and gauges, 35 % classic buckets, 5 % summaries with windows of 5 min, all updated between scrapes.",
		"Contended: two threads, each bound to a core of its own, update one metric; nanoseconds of wall time per update of either. A slice in which one of them waited for its core, not for the other thread, is repeated.",
		fmt.Sprintf("The heap holds %d MiB of other data.", heapBytes>>20),
	)
	return nil
}

// cpu measures f(n), which performs an operation n times. It returns the CPU time of one
// operation in nanoseconds.
func (b *bench) cpu(f func(n int)) float64 {
	n := calls(f, sliceTime)
	best := math.Inf(1)
	for range sliceCount {
		runtime.GC()
		best = min(best, slice(f, n))
	}
	return best
}

// calls returns the number of operations that f performs in about d of CPU time, at least 1.
func calls(f func(n int), d time.Duration) int {
	for n := 1; ; n *= 4 {
		before := proc.SelfCPU()
		f(n)
		if used := proc.SelfCPU() - before; used >= d/4 || n > 1<<30 {
			return max(1, int(float64(n)*float64(d)/float64(max(used, 1))))
		}
	}
}

// slice performs n operations and returns the CPU time of one in nanoseconds.
func slice(f func(n int), n int) float64 {
	before := proc.SelfCPU()
	f(n)
	return float64((proc.SelfCPU() - before).Nanoseconds()) / float64(n)
}

// inTurn measures operations that do not allocate. It runs a short slice of each side in turn, again and again, and returns the
// median of each side's slices: if the machine slows down, all sides slow down.
func inTurn(sides []timed) []float64 {
	runtime.GC()
	counts, all := make([]int, len(sides)), make([][]float64, len(sides))
	for i, s := range sides {
		counts[i] = calls(s.call, turnTime)
	}
	for range turns {
		for i, s := range sides {
			all[i] = append(all[i], slice(s.call, counts[i]))
		}
	}
	medians := make([]float64, len(sides))
	for i := range all {
		slices.Sort(all[i])
		medians[i] = all[i][turns/2]
	}
	return medians
}

// takesTurns reports whether a side is measured by inTurn: it does not allocate, and its operation is much shorter than a slice.
func takesTurns(s timed) bool {
	s.call(1)
	count, _ := allocatedBy(s.call, 4)
	return count == 0 && calls(s.call, turnTime) >= 4
}

// allocated returns the allocations and allocated bytes of one operation of f, rounded
// down, after manyCalls operations to warm up.
func allocated(f func(n int)) (count, bytes float64) {
	f(manyCalls)
	return allocatedBy(f, manyCalls)
}

const manyCalls = 200

// allocatedBy is allocated without the warm-up, over calls operations.
func allocatedBy(f func(n int), calls int) (count, bytes float64) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f(calls)
	runtime.ReadMemStats(&after)
	n := float64(calls)
	return math.Floor(float64(after.Mallocs-before.Mallocs) / n), math.Floor(float64(after.TotalAlloc-before.TotalAlloc) / n)
}

// timed is one side of a measurement. call(n) performs the operation n times.
type timed struct {
	side string
	call func(n int)
}

// measure measures the sides in all rounds. Sides that do not allocate take turns, see inTurn. The others are measured one after
// the other, because their slices must be long enough for garbage collections.
func (b *bench) measure(what string, sides ...timed) error {
	var turning, others []timed
	for _, s := range sides {
		if takesTurns(s) {
			turning = append(turning, s)
		} else {
			others = append(others, s)
		}
	}
	return b.EachRound(what, func(round int) error {
		for _, s := range others {
			b.Add(round, s.side, what, nanoseconds, b.cpu(s.call))
		}
		for i, ns := range inTurn(turning) {
			b.Add(round, turning[i].side, what, nanoseconds, ns)
		}
		return b.ctx.Err()
	})
}

// scraped measures scrapes and their allocations, one at a time and two concurrently.
func (b *bench) scraped(what string, sides ...timed) error {
	if err := b.measure(what, sides...); err != nil {
		return err
	}
	for _, s := range sides {
		if s.side == floor {
			continue
		}
		count, size := allocated(s.call)
		b.Add(1, s.side, what+": allocations", area.Count, count)
		b.Add(1, s.side, what+": allocated", area.Bytes, size)
		both := inParallel(s.call)
		b.Add(1, s.side, what+", two at once", nanoseconds, b.cpu(both))
		together, _ := allocated(both)
		if s.side == ferula {
			b.worstAllocs = max(b.worstAllocs, count, together)
		}
	}
	return nil
}

// inParallel divides the calls between two goroutines.
func inParallel(call func(n int)) func(n int) {
	return func(n int) {
		var wg sync.WaitGroup
		for i := range 2 {
			wg.Add(1)
			go func() {
				defer wg.Done()
				call((n + i) / 2)
			}()
		}
		wg.Wait()
	}
}

func scrapeOf(l library) func(n int) {
	return func(n int) {
		for range n {
			l.write(io.Discard)
		}
	}
}

func page(l library) []byte {
	var b bytes.Buffer
	l.write(&b)
	return b.Bytes()
}

// lines counts the lines that are not comments.
func lines(text []byte) int {
	return bytes.Count(text, []byte("\n")) - bytes.Count(text, []byte("# "))
}

// filled fills each library with the same metrics, compares their output and returns them in
// the order of makers.
func filled(what string, fill func(l library)) (all [3]library, err error) {
	for i, m := range makers {
		all[i] = m.make()
		fill(all[i])
	}
	return all, samePages(what, all)
}

// samePages compares ferula's output with that of VictoriaMetrics/metrics byte by byte, and roughly by the number of lines
// with that of client_golang.
func samePages(what string, all [3]library) error {
	if err := area.SameBytes(what, page(all[0]), page(all[2])); err != nil {
		return err
	}
	if n := lines(page(all[1])); n == 0 || n > 2*lines(page(all[2])) || 2*n < lines(page(all[2])) {
		return fmt.Errorf("%s: %w: client_golang writes %d lines, ferula %d", what, area.ErrUnequal, n, lines(page(all[2])))
	}
	return nil
}

func (b *bench) scrapes() error {
	for _, k := range kinds {
		var updates []func(i int)
		all, err := filled(k.name, func(l library) { updates = append(updates, k.make(l)) })
		if err != nil {
			return err
		}
		lowest, err := floorOf(page(all[2]))
		if err != nil {
			return err
		}
		what := "scrape: " + k.name
		if err := b.scraped(what, timed{victoria, scrapeOf(all[0])}, timed{golang, scrapeOf(all[1])}, timed{floor, lowest}, timed{ferula, scrapeOf(all[2])}); err != nil {
			return err
		}
		if k.goal != "summary" {
			b.RatioTo("exposition/"+k.goal, floor, what)
		}
		if err := b.live(k.name, all, updates); err != nil {
			return err
		}
		b.Logf("%s: bytes are equal", what)
	}
	return nil
}

// live measures scrapes with one update before each, because libraries may keep the text of a
// value that has not changed.
func (b *bench) live(name string, all [3]library, updates []func(i int)) error {
	what := "scrape, an update before each: " + name
	var sides []timed
	for side, m := range makers {
		update, write := updates[side], scrapeOf(all[side])
		for i := range manyCalls {
			update(i)
		}
		sides = append(sides, timed{m.side, func(n int) {
			for i := range n {
				update(i)
				write(1)
			}
		}})
	}
	if err := samePages(what, all); err != nil {
		return err
	}
	return b.measure(what, sides...)
}

// floorOf returns a function that appends text again n times: prefixes that are rendered in
// advance, and values that it encodes.
func floorOf(text []byte) (func(n int), error) {
	type line struct {
		prefix string
		whole  bool
		uint   uint64
		float  float64
	}
	var all []line
	for text := range strings.Lines(string(text)) {
		at := strings.LastIndexByte(text, ' ')
		l, value := line{prefix: text[:at+1]}, strings.TrimSpace(text[at:])
		var err error
		if l.uint, err = strconv.ParseUint(value, 10, 64); err == nil {
			l.whole = true
		} else if l.float, err = strconv.ParseFloat(value, 64); err != nil {
			return nil, err
		}
		all = append(all, l)
	}
	var w io.Writer = io.Discard
	buf := make([]byte, 0, 2*len(text))
	write := func() {
		buf = buf[:0]
		for i := range all {
			l := &all[i]
			buf = append(buf, l.prefix...)
			if l.whole {
				buf = strconv.AppendUint(buf, l.uint, 10)
			} else {
				buf = strconv.AppendFloat(buf, l.float, 'g', -1, 64)
			}
			buf = append(buf, '\n')
		}
		_, _ = w.Write(buf)
	}
	write()
	if err := area.SameBytes("floor", text, buf); err != nil {
		return nil, err
	}
	return func(n int) {
		for range n {
			write()
		}
	}, nil
}

// discard is an http.ResponseWriter that only counts bytes.
type discard struct {
	header http.Header
	bytes  int
}

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) WriteHeader(int)             {}
func (d *discard) Write(p []byte) (int, error) { d.bytes += len(p); return len(p), nil }

// zipped measures compressed responses of 10,000 lines of the handlers, and counts the
// allocations of responses in all formats.
func (b *bench) zipped() error {
	all, err := filled("page to be compressed", func(l library) { mixed(l, 10_000) })
	if err != nil {
		return err
	}
	request := func(l library, accept, encoding string) func(n int) {
		h := l.handler()
		req := httptest.NewRequest(http.MethodGet, "/metrics", nil)
		req.Header.Set("Accept", accept)
		req.Header.Set("Accept-Encoding", encoding)
		return func(n int) {
			w := &discard{header: http.Header{}}
			for range n {
				clear(w.header) // net/http makes a new one each time
				h.ServeHTTP(w, req)
			}
		}
	}
	var wire [2]float64
	for i, l := range []library{all[1], all[2]} {
		w := httptest.NewRecorder()
		req := httptest.NewRequest(http.MethodGet, "/metrics", nil)
		req.Header.Set("Accept-Encoding", "gzip")
		l.handler().ServeHTTP(w, req)
		if w.Header().Get("Content-Encoding") != "gzip" || w.Body.Len() == 0 {
			return fmt.Errorf("gzip: %w: %d bytes, encoding %q", area.ErrEmpty, w.Body.Len(), w.Header().Get("Content-Encoding"))
		}
		wire[i] = float64(w.Body.Len())
		b.Add(1, []string{golang, ferula}[i], "handler: 10000 lines, gzip: bytes on the wire", area.Bytes, wire[i])
	}
	what := "handler: 10000 lines, gzip"
	if err := b.scraped(what, timed{golang, request(all[1], "", "gzip")}, timed{ferula, request(all[2], "", "gzip")}); err != nil {
		return err
	}
	b.Note(gzipNote(wire[1] / wire[0]))
	if wire[1] <= gzipRatioMax*wire[0] {
		b.RatioTo("exposition/gzip", golang, what)
	}
	level6 := all[2]
	level6.handler = all[2].gzip6
	if err := b.measure("handler: 10000 lines, gzip, both of level 6", timed{golang, request(all[1], "", "gzip")}, timed{ferula, request(level6, "", "gzip")}); err != nil {
		return err
	}
	for _, c := range [][2]string{
		{"text", ""}, {"OpenMetrics", "application/openmetrics-text;version=1.0.0"},
		{"protobuf", "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited"},
	} {
		if err := b.scraped("handler: 10000 lines, "+c[0], timed{golang, request(all[1], c[1], "")}, timed{ferula, request(all[2], c[1], "")}); err != nil {
			return err
		}
	}
	return nil
}

// gzipRatioMax is the maximum ratio of the length of ferula's compressed response to that of
// client_golang's. If the ratio is higher, the goal exposition/gzip has no figure.
const gzipRatioMax = 1.05

func gzipNote(ratio float64) string {
	note := fmt.Sprintf("gzip: ferula compresses with level 5, client_golang with level 6; ferula's compressed page has %.3f of the bytes of client_golang's", ratio)
	if ratio > gzipRatioMax {
		note += fmt.Sprintf(", more than the %.2f that exposition/gzip allows: the goal has no figure", gzipRatioMax)
	}
	return note + "."
}

func (b *bench) process() error {
	what := "process and Go metrics"
	p, o := newVictoria().process, newFerula().process
	var a, c bytes.Buffer
	p(&a)
	o(&c)
	if x, y := lines(a.Bytes()), lines(c.Bytes()); x != y || x == 0 {
		return fmt.Errorf("%s: %w: %d and %d lines", what, area.ErrUnequal, x, y)
	}
	loop := func(write func(io.Writer)) func(n int) {
		return func(n int) {
			for range n {
				write(io.Discard)
			}
		}
	}
	if err := b.scraped(what, timed{victoria, loop(p)}, timed{ferula, loop(o)}); err != nil {
		return err
	}
	b.Ratio("exposition/process", what)
	return nil
}

// memory measures the heap bytes per metric, including its name.
func (b *bench) memory() error {
	for _, c := range []struct {
		what, goal string
		n          int
		make       func(l library, i int)
	}{
		{"heap: a counter with 3 labels", "memory/counter-bytes", 100_000, func(l library, i int) {
			l.counter("http_requests_total", "GET", "/api/v1/"+digits(i), "200")
		}},
		{"heap: a summary never updated", "memory/summary-unused-bytes", 10_000, func(l library, i int) { l.summary("s", "GET", "/api/v1/"+digits(i), "200") }},
	} {
		for _, m := range makers {
			before, l := heapInUse(), m.make()
			for i := range c.n {
				c.make(l, i)
			}
			l.write(io.Discard)
			b.Add(1, m.side, c.what, area.Bytes, (heapInUse()-before)/float64(c.n))
			runtime.KeepAlive(l)
		}
		b.Own(c.goal, 1, c.what)
	}
	return nil
}

func heapInUse() float64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}
