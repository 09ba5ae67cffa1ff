package exposition

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/ferula-io/ferula/bench/area"
	ours "github.com/ferula-io/ferula/metrics"
)

// whole is a FloatCounter of whole numbers, such as bytes.
var whole = kind{"FloatCounter, whole numbers", "", func(l library) func(int) {
	c := l.float("f_total")
	return func(int) { c.Add(3) }
}}

// updates measures updates of one metric by one goroutine. A kind without a goal is only reported.
func (b *bench) updates() error {
	for _, c := range []struct {
		goal, over string
		kind       kind
	}{
		{"counter", victoria, kinds[0]}, {"", "", kinds[1]}, {"floatcounter", golang, whole},
		{"gauge", victoria, kinds[2]}, {"histogram", victoria, kinds[3]}, {"", "", kinds[4]},
		{"summary", victoria, kinds[6]},
	} {
		k := c.kind
		what := "update: " + k.name
		var sides []timed
		for _, m := range makers {
			update := k.make(m.make())
			sides = append(sides, timed{m.side, func(n int) {
				for i := range n {
					update(i)
				}
			}})
		}
		if err := b.measure(what, sides...); err != nil {
			return err
		}
		if c.goal != "" {
			b.RatioTo("update/"+c.goal, c.over, what)
		}
	}
	return nil
}

const (
	contendedSlice  = 4 * time.Millisecond
	contendedSlices = 15 // a reading is their median
	contendedTries  = 400
	ownCore         = 0.9 // a slice counts if no thread waited for its core in this share of its time
)

var errNoCores = errors.New("two threads never had a core each")

// contended measures updates of one metric by two threads on two cores. The figure is the
// ratio of ferula's time to that of the faster peer, for the type with the worst ratio.
func (b *bench) contended() error {
	if runtime.NumCPU() < 2 {
		b.Logf("contended: one core only, not measured")
		return nil
	}
	worst, from := 0.0, ""
	for _, k := range []kind{kinds[0], kinds[1], whole, kinds[2], kinds[3], kinds[4], kinds[6]} {
		what := "update, contended: " + k.name
		for round := 1; round <= b.Rounds; round++ {
			var updates []func(i int)
			for _, m := range makers {
				updates = append(updates, k.make(m.make()))
			}
			medians, err := contend(updates)
			if err != nil { // the machine is busy: without a figure the goal falls short
				b.Logf("%s: %v", what, err)
				b.Note(fmt.Sprintf("%s: %v.", what, err))
				return nil
			}
			for i, m := range makers {
				b.Add(round, m.side, what, nanoseconds, medians[i])
			}
			if err := b.ctx.Err(); err != nil {
				return err
			}
		}
		better := min(b.Median(victoria, what), b.Median(golang, what))
		if ratio := area.Over(b.Median(ferula, what), better); ratio > worst {
			worst, from = ratio, what
		}
	}
	b.Measure("update/contended", worst, from)
	b.Note("update/contended is that of: " + from)
	return nil
}

// contend returns for each update the median of contendedSlices slices, in nanoseconds per update. The updates take turns, so that
// a slower machine slows all of them down. The error is errNoCores if too few slices had both cores.
func contend(updates []func(i int)) ([]float64, error) {
	all := make([][]float64, len(updates))
	for range contendedTries {
		complete := true
		for i, update := range updates {
			if len(all[i]) == contendedSlices {
				continue
			}
			complete = false
			if ns, share := contendOnce(update); share >= ownCore {
				all[i] = append(all[i], ns)
			}
		}
		if complete {
			break
		}
	}
	medians := make([]float64, len(updates))
	for i := range all {
		if len(all[i]) < contendedSlices {
			return nil, errNoCores
		}
		slices.Sort(all[i])
		medians[i] = all[i][contendedSlices/2]
	}
	return medians, nil
}

// contendOnce runs one slice. It returns the nanoseconds per update, and the share of the
// slice in which neither thread waited for its core. A wait for a core is no cost of the
// metric. A thread that waits for the other thread needs no core.
func contendOnce(update func(i int)) (ns, share float64) {
	var wg sync.WaitGroup
	var ready, done atomic.Int32
	var total, took atomic.Int64
	shares := [2]float64{}
	for core := range 2 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			runtime.LockOSThread() // never unlocked, so that the thread with its affinity ends with the goroutine
			var set unix.CPUSet
			set.Set(core)
			bound := unix.SchedSetaffinity(0, &set) == nil
			ready.Add(1)
			for ready.Load() < 2 {
			}
			if !bound { // shares[core] stays 0: the slice does not count
				done.Store(1)
				return
			}
			start, waited, n := time.Now(), queued(), 0
			for ; done.Load() == 0; n += 64 {
				for i := range 64 {
					update(n + i)
				}
				if core == 0 && n&1023 == 0 && time.Since(start) > contendedSlice {
					done.Store(1)
				}
			}
			elapsed := time.Since(start)
			shares[core] = 1 - float64(queued()-waited)/float64(elapsed)
			total.Add(int64(n))
			took.Add(int64(elapsed) / 2)
		}()
	}
	wg.Wait()
	return 2 * float64(took.Load()) / float64(total.Load()), min(shares[0], shares[1])
}

// queued returns how long this thread has waited for a core, the second number of
// /proc/thread-self/schedstat.
func queued() time.Duration {
	text, err := os.ReadFile("/proc/thread-self/schedstat")
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(text))
	if len(fields) < 2 {
		return 0
	}
	ns, err := strconv.ParseInt(fields[1], 10, 64)
	if err != nil {
		return 0
	}
	return time.Duration(ns)
}

// lookups measures lookups of one of a thousand counters by three label values, and an Inc of it.
func (b *bench) lookups() error {
	p := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "c_total"}, labelNames)
	o := ours.NewSet().NewCounterVec("c_total", "", labelNames...)
	for i := range 1000 {
		path := "/api/v1/" + digits(i)
		p.WithLabelValues("GET", path, "200")
		o.With("GET", path, "200")
	}
	path := "/api/v1/" + digits(77)
	what := "look-up by three labels"
	sides := []timed{
		{golang, func(n int) {
			for range n {
				p.WithLabelValues("GET", path, "200").Inc()
			}
		}},
		{ferula, func(n int) {
			for range n {
				o.With("GET", path, "200").Inc()
			}
		}},
	}
	if err := b.measure(what, sides...); err != nil {
		return err
	}
	for _, s := range sides {
		count, _ := allocated(s.call)
		b.Add(1, s.side, what+": allocations", area.Count, count)
		if s.side == ferula && count != 0 {
			return fmt.Errorf("%s: %w: %v allocations, where the goal allows none", what, area.ErrUnequal, count)
		}
	}
	b.RatioTo("lookup/three-labels", golang, what)
	return nil
}
