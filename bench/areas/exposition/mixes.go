package exposition

import (
	"crypto/sha256"
	"fmt"
	"hash"
	"io"
	"sync/atomic"
	"time"

	peer "github.com/VictoriaMetrics/metrics"

	"github.com/ferula-io/ferula/bench/area"
)

// The windows of summaries: one as in programs, and one so short that it is rotated within a
// reading.
const (
	window      = 5 * time.Minute
	shortWindow = 100 * time.Millisecond
)

// summaries measures scrapes of summaries with a number of updates before each.
func (b *bench) summaries() error {
	for _, c := range []struct {
		burst  int
		window time.Duration
	}{{0, time.Hour}, {1, window}, {100, window}, {1000, window}, {1000, shortWindow}} {
		var sides []timed
		for _, m := range makers {
			l := m.make()
			s := l.windowed("s", c.window)
			update := repeated(20_000, func(i int) { s.Update(float64(i*7919%10007) / 7) })
			if n := lines(page(l)); n < 3 {
				return fmt.Errorf("%s: a summary: %w: %d lines", m.side, area.ErrEmpty, n)
			}
			sides = append(sides, timed{m.side, scrapeAfter(l, c.burst, update)})
		}
		if err := b.measure(summaryWhat(c.burst, c.window), sides...); err != nil {
			return err
		}
	}
	b.RatioTo("exposition/summary-idle", victoria, summaryWhat(0, time.Hour))
	b.RatioTo("exposition/summary-1000", victoria, summaryWhat(1000, window), summaryWhat(1000, shortWindow))
	return nil
}

func summaryWhat(burst int, window time.Duration) string {
	what := fmt.Sprintf("scrape: Summary, %d updates between", burst)
	if burst > 0 {
		what += ", window of " + window.String()
	}
	return what
}

// scrapeAfter returns a function that updates and then scrapes.
func scrapeAfter(l library, burst int, update func(i int)) func(n int) {
	var updates atomic.Int64 // two goroutines may scrape
	return func(n int) {
		for range n {
			for range burst {
				update(int(updates.Add(1)))
			}
			l.write(io.Discard)
		}
	}
}

// mix describes a response by the shares of kinds of lines.
type mix struct {
	name                         string
	scalars, buckets, quantilers float64
}

var (
	plainMix = mix{"counters, gauges and classic buckets", 0.65, 0.35, 0}
	liveMix  = mix{"counters, gauges, classic buckets and summaries", 0.60, 0.35, 0.05}
)

const (
	bucketLines  = 14 // 11 bounds, +Inf, sum and count
	summaryLines = 7  // 5 quantiles, sum and count
)

// fill fills a library with about this many lines, and returns a function that updates
// every metric once.
func (m mix) fill(l library, lines int) (updateAll func(i int)) {
	var counters []counter
	var floats []floatCounter
	var gauges []gauge
	var buckets, summaries []updated
	values := func(i int) []string { return []string{"GET", "/api/v1/" + digits(i), "200"} }
	for i := range int(m.scalars*float64(lines)) / 3 {
		v := values(i)
		counters, floats, gauges = append(counters, l.counter("c_total", v...)), append(floats, l.float("f_total", v...)), append(gauges, l.gauge("g", v...))
	}
	for i := range int(m.buckets * float64(lines) / bucketLines) {
		buckets = append(buckets, l.prometheus("p", peer.PrometheusHistogramDefaultBuckets, values(i)...))
	}
	for i := range int(m.quantilers * float64(lines) / summaryLines) {
		summaries = append(summaries, l.windowed("s", window, values(i)...))
	}
	updateAll = func(i int) {
		for j := range counters {
			counters[j].Inc()
			floats[j].Add(0.37)
			gauges[j].Set(float64((i + j) * 7919 % 10007))
		}
		for j := range buckets {
			buckets[j].Update(float64((i+j)*7919%110) / 10)
		}
		for j := range summaries {
			summaries[j].Update(float64((i+j)*7919%10007) / 7)
		}
	}
	return updateAll
}

const fills = 1100 // updates before the first scrape: a summary keeps 1,000 values

// mixes measures scrapes of metrics of several types.
func (b *bench) mixes() error {
	for _, n := range []int{1000, 10_000} {
		if err := b.mixOf(fmt.Sprintf("scrape: %d lines of all types, unchanged", n), func(l library) { mixed(l, n) }, nil); err != nil {
			return err
		}
	}
	plainIdle, plainLive, live := "scrape: 10000 lines of "+plainMix.name+", unchanged", "scrape: 10000 lines of "+plainMix.name+", all updated", "scrape: 10000 lines of "+liveMix.name+", all updated"
	for _, c := range []struct {
		what   string
		mix    mix
		update bool
	}{{plainIdle, plainMix, false}, {plainLive, plainMix, true}, {live, liveMix, true}} {
		updates := map[*library]func(i int){}
		all := [3]library{}
		for i, m := range makers {
			all[i] = m.make()
			updates[&all[i]] = repeated(fills, c.mix.fill(all[i], 10_000))
		}
		if !c.update {
			updates = nil
		}
		if err := b.compared(c.what, all); err != nil {
			return err
		}
		if err := b.scrapeMix(c.what, &all, updates); err != nil {
			return err
		}
	}
	b.RatioTo("exposition/plain-10k", victoria, plainIdle, plainLive)
	b.RatioTo("exposition/live-10k", victoria, live)
	b.RatioTo("exposition/live-10k-vs-client-golang", golang, live)
	return nil
}

// compared compares the output of the libraries and logs the result.
func (b *bench) compared(what string, all [3]library) error {
	if err := samePages(what, all); err != nil {
		return err
	}
	b.Logf("%s: bytes are equal", what)
	return nil
}

func (b *bench) mixOf(what string, fill func(l library), updates map[*library]func(i int)) error {
	all, err := filled(what, fill)
	if err != nil {
		return err
	}
	return b.scrapeMix(what, &all, updates)
}

// scrapeMix measures scrapes of the libraries and, while nothing is updated, the floor.
func (b *bench) scrapeMix(what string, all *[3]library, updates map[*library]func(i int)) error {
	var sides []timed
	for i, m := range makers {
		call := scrapeOf(all[i])
		if update := updates[&all[i]]; update != nil {
			call = scrapeAfter(all[i], 1, update)
		}
		if m.side == ferula && updates == nil {
			lowest, err := floorOf(page(all[i]))
			if err != nil {
				return err
			}
			sides = append(sides, timed{floor, lowest})
		}
		sides = append(sides, timed{m.side, call})
	}
	return b.scraped(what, sides...)
}

// manyValues is the number of different values of a histogram in the benchmark of the change that was to remove allocations.
const manyValues = 1000

// manyRanges measures scrapes of a vmrange histogram with as many ranges as its values have. client_golang has no such histogram: the default
// buckets of its own are a quarter of the lines.
func (b *bench) manyRanges() error {
	what := fmt.Sprintf("scrape: Histogram, %d values", manyValues)
	sides, err := manyRangesSides(what)
	if err != nil {
		return err
	}
	return b.scraped(what, sides...)
}

func fillRanges(l library) {
	h := l.ranges("h")
	for v := range manyValues {
		h.Update(float64(v))
	}
}

// manyRangesSides returns VictoriaMetrics/metrics, the floor and ferula. It returns an error if the bytes of the libraries differ.
func manyRangesSides(what string) ([]timed, error) {
	theirs, mine := newVictoria(), newFerula()
	fillRanges(theirs)
	fillRanges(mine)
	if err := area.SameBytes(what, page(theirs), page(mine)); err != nil {
		return nil, err
	}
	lowest, err := floorOf(page(mine))
	return []timed{{victoria, scrapeOf(theirs)}, {floor, lowest}, {ferula, scrapeOf(mine)}}, err
}

// hashed is a writer that hashes and counts the written bytes.
type hashed struct {
	h hash.Hash
	n int
}

// Write implements io.Writer.
func (h *hashed) Write(p []byte) (int, error) {
	h.n += len(p)
	return h.h.Write(p)
}

// million counts the allocations of scrapes of a million lines. It compares the responses by their hashes.
func (b *bench) million() error {
	const n = 1_000_000
	what := fmt.Sprintf("scrape: %d lines of %s", n, plainMix.name)
	var sums [2][sha256.Size]byte
	var written [2]int
	for i, m := range []int{0, len(makers) - 1} {
		l := makers[m].make()
		plainMix.fill(l, n)(1)
		sum := &hashed{h: sha256.New()}
		l.write(sum)
		sums[i], written[i] = [sha256.Size]byte(sum.h.Sum(nil)), sum.n
		if makers[m].side != ferula {
			continue
		}
		call := scrapeOf(l)
		call(1)
		count, size := allocatedBy(call, 10)
		both := inParallel(call)
		both(2)
		together, _ := allocatedBy(both, 10)
		b.Add(1, ferula, what+": allocations", area.Count, count)
		b.Add(1, ferula, what+": allocated", area.Bytes, size)
		b.worstAllocs = max(b.worstAllocs, count, together)
	}
	if written[0] < n || sums[0] != sums[1] {
		return fmt.Errorf("%s: %w: %d and %d bytes", what, area.ErrUnequal, written[0], written[1])
	}
	b.Logf("%s: bytes are equal", what)
	return nil
}
