package store

import (
	"context"
	"flag"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/pprof"
	"github.com/ferula-io/ferula/internal/series/labelenc"
)

var (
	weekServices = flag.Int("week.services", 4, "services that TestStore_SimulatedWeek simulates")
	weekEvery    = flag.Duration("week.every", 2*time.Minute, "interval between two profiles of a service in TestStore_SimulatedWeek")
)

// weekVariants is the number of different profiles of a service.
const weekVariants = 8

// week is a store with a simulated clock, and the model of its profiles. At tick n every service
// pushes one of its variants, unless the servers were off.
type week struct {
	t        *testing.T
	dir      string
	store    *Store
	tenant   *tenant
	now      atomic.Int64 // of the store, in ns
	beginNS  int64
	services int
	everyNS  int64
	pushed   []profiles.RawProfile // by service and variant, without timestamps
	totals   []int64               // of pushed
	ticks    int                   // pushed so far, with those of offTicks
	offTicks [2]int                // first and last+1 tick at which everything was off
	oldestNS int64                 // oldest profile in a block
	bucket   WeekBucket            // nil: the blocks are on the disk only
	most     int                   // greatest number of blocks in the bucket that queries read
}

// WeekBucket is a bucket to which a simulated server ships its blocks. It is implemented outside of this package, by the packages
// that a server uses, since they import this one.
type WeekBucket interface {
	Remote
	// Ship uploads the blocks of a directory as a server does. begin is set after a restart.
	Ship(ctx context.Context, dir string, begin bool, replaced func(tenant string, id ulid.ULID) (bool, error)) error
	// Compact compacts the bucket once, at a time.
	Compact(ctx context.Context, now time.Time) error
	// Bytes returns the size of all objects.
	Bytes() (int64, error)
}

const (
	// After a restart blocks age from the time at which the newest block was written: they are removed later by this time at most.
	weekLateNS = int64(15 * time.Minute)

	weekRetention   = 24 * time.Hour
	bucketRetention = 60 * time.Hour // of a week's bucket
)

func newWeek(t *testing.T, services int, every time.Duration, bucket WeekBucket) *week {
	t.Helper()
	w := &week{t: t, dir: t.TempDir(), beginNS: 1_700_000_000_000_000_000, services: services, everyNS: every.Nanoseconds(), bucket: bucket}
	r := rand.New(rand.NewPCG(17, 1))
	for service := range services {
		for range weekVariants {
			e := pprof.NewEncoder()
			e.SampleType("cpu", "nanoseconds")
			e.Period("cpu", "nanoseconds", 1e7)
			var locations []uint64
			for i := range 40 {
				locations = append(locations, e.Location(e.Function(fmt.Sprintf("service%d.function%d", service, i), "", "main.go", 1), int64(i)))
			}
			var total int64
			for range 12 {
				stack := make([]uint64, 5)
				for i := range stack {
					stack[i] = locations[r.IntN(40)]
				}
				value := 1e7 * (1 + r.Int64N(100))
				e.Sample(stack, value)
				total += value
			}
			p := profiles.RawProfile{Raw: e.Append(nil), Profile: &pprof.Profile{}}
			p.Labels = labelenc.AppendLabel(labelenc.AppendLabel(nil, "__name__", "process_cpu"), "service_name", fmt.Sprintf("service%03d", service))
			if err := p.Profile.Decode(p.Raw, pprof.Limits{}); err != nil {
				t.Fatal(err)
			}
			w.pushed, w.totals = append(w.pushed, p), append(w.totals, total)
		}
	}
	w.now.Store(w.beginNS)
	w.open()
	t.Cleanup(func() {
		if err := w.store.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

// open opens the store, for the first time or again. A cleanup for each store would keep its head in memory.
func (w *week) open() {
	w.t.Helper()
	o := Options{Dir: w.dir, Retention: weekRetention}
	if w.bucket != nil {
		o.Remote, o.RemoteEvery, o.RemoteRetention = w.bucket, 24*time.Hour, bucketRetention
	}
	s, err := New(o, quiet, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	s.every = 24 * time.Hour // only the test maintains
	s.fs, s.now = unsynced{}, func() time.Time { return time.Unix(0, w.now.Load()) }
	w.store = s
	if err := s.Open(); err != nil {
		w.t.Fatal(err)
	}
	w.tenant = s.tenants["t"]
	if w.bucket != nil {
		s.awaitList()
		w.ship(true)
	}
}

// ship does what a server with a bucket does every two minutes: it uploads blocks, lists the bucket and deletes from it. Retention of the bucket must be
// exact to a block.
func (w *week) ship(begin bool) {
	w.t.Helper()
	ctx := context.Background()
	if err := w.bucket.Ship(ctx, filepath.Join(w.dir, "profiles"), begin, w.store.Replaced); err != nil {
		w.t.Fatal(err)
	}
	if err := w.store.remotes.refresh(ctx); err != nil {
		w.t.Fatal(err)
	}
	w.store.remotes.clean(ctx)
	if n := w.store.metrics.remoteDeleteFail.Get(); n > 0 {
		w.t.Fatalf("%v deletions failed", n)
	}
	limitNS, read := w.now.Load()-bucketRetention.Nanoseconds(), 0
	if known, _, _ := w.store.remotes.list("t"); known != nil {
		for _, b := range known.blocks {
			if b.bad != nil || b.meta.MaxNS < limitNS-weekLateNS {
				w.t.Fatalf("%s is read, %v, and ends %s before the retention time", b.name(), b.bad, time.Duration(limitNS-b.meta.MaxNS))
			}
			if len(known.replacing(&b.meta)) == 0 {
				read++
			}
		}
	}
	w.most = max(w.most, read)
}

// variant returns which profile a service pushes at a tick.
func (w *week) variant(service, tick int) int {
	hash := (uint64(service)<<32 | uint64(tick)) * 0x9E3779B97F4A7C15
	return service*weekVariants + int((hash^hash>>29)*0xBF58476D1CE4E5B9>>61)
}

func (w *week) timeNS(tick int) int64 { return w.beginNS + int64(tick)*w.everyNS }

func (w *week) isOff(tick int) bool { return tick >= w.offTicks[0] && tick < w.offTicks[1] }

// push pushes the profiles of the next tick.
func (w *week) push(batch []profiles.RawProfile) {
	batch = batch[:0]
	for service := range w.services {
		p := w.pushed[w.variant(service, w.ticks)]
		p.TimeNS = w.timeNS(w.ticks)
		batch = append(batch, p)
	}
	if err := w.store.Append(context.Background(), "t", batch); err != nil {
		w.t.Fatalf("tick %d: %v", w.ticks, err)
	}
	w.ticks++
	w.now.Store(w.timeNS(w.ticks))
}

// maintain does what the store does every two seconds. Retention must be exact to a block.
func (w *week) maintain() {
	if w.tenant == nil {
		w.tenant = w.store.tenants["t"]
	}
	if err := w.tenant.maintain(context.Background()); err != nil {
		w.t.Fatal(err)
	}
	if w.bucket != nil {
		return // blocks stay on the disk until they are in the bucket
	}
	limitNS := w.now.Load() - weekRetention.Nanoseconds()
	for i, b := range w.tenant.blocks {
		minNS, maxNS := b.Bounds()
		if maxNS < limitNS-weekLateNS {
			w.t.Fatalf("%s ends %s before the retention time", b.Name(), time.Duration(limitNS-maxNS))
		}
		if i > 0 {
			continue
		}
		if w.oldestNS != 0 && minNS < w.oldestNS {
			w.t.Fatalf("profiles of %s before the oldest came back", time.Duration(w.oldestNS-minNS))
		}
		if last := w.before(minNS); w.oldestNS != 0 && minNS > w.oldestNS && last >= limitNS {
			w.t.Fatalf("a block was removed that ended %s after the begin of the retention time", time.Duration(last-limitNS))
		}
		w.oldestNS = minNS
	}
}

// before returns the time of the last profile before the time timeNS.
func (w *week) before(timeNS int64) int64 {
	tick := int((timeNS-w.beginNS)/w.everyNS) - 1
	for w.isOff(tick) {
		tick--
	}
	return w.timeNS(tick)
}

// reach fails if the view lacks profiles within the retention of the bucket. It may have the other profiles of a block.
func (w *week) reach(oldestNS int64) {
	w.t.Helper()
	limitNS := max(w.beginNS, w.now.Load()-bucketRetention.Nanoseconds())
	if first := w.beginNS + (limitNS-w.beginNS+w.everyNS-1)/w.everyNS*w.everyNS; w.bucket != nil && oldestNS > first && w.before(oldestNS) >= limitNS {
		w.t.Fatalf("the oldest profile is %s younger than the retention time", time.Duration(oldestNS-limitNS))
	}
}

// check compares the sums by service and hour, from rows and from samples, with the model.
func (w *week) check() {
	w.t.Helper()
	ctx, hourNS := context.Background(), time.Hour.Nanoseconds()
	v, err := w.store.View(ctx, "t", 0, timeMax)
	if err != nil || len(v.Warnings) > 0 {
		w.t.Fatal(err, v)
	}
	defer v.Close()
	scan := Scan{Steps: Steps{FromNS: w.beginNS - 1, StepNS: hourNS, Count: int((w.now.Load()-w.beginNS)/hourNS) + 1}}
	oldestNS, rows, sampled := int64(timeMax), 0, int64(0)
	for _, src := range v.Sources {
		series, err := src.Series()
		if err != nil {
			w.t.Fatal(err)
		}
		groupOf := make([]int32, len(series))
		for i := range series {
			if _, err := fmt.Sscanf(string(labelenc.Value(series[i].Plain, profiles.LabelService)), "service%d", &groupOf[i]); err != nil {
				w.t.Fatal(err)
			}
		}
		if err := scan.Source(ctx, src, groupOf, w.services); err != nil {
			w.t.Fatal(err)
		}
		all := make([]int, src.Rows())
		for i := range all {
			all[i] = i
		}
		err = src.Samples(ctx, all, func(_ int, _ []uint32, values []int64) error {
			for _, value := range values {
				sampled += value
			}
			return nil
		})
		if err != nil {
			w.t.Fatal(err)
		}
		minNS, _ := src.Bounds()
		oldestNS, rows = min(oldestNS, minNS), rows+src.Rows()
	}
	if err := scan.Finish(); err != nil {
		w.t.Fatal(err)
	}
	w.reach(oldestNS)
	wanted, wantedRows, wantedTotal := make([]int64, w.services*scan.Steps.Count), 0, int64(0)
	for tick := int((oldestNS - w.beginNS) / w.everyNS); tick < w.ticks; tick++ {
		if w.isOff(tick) {
			continue
		}
		step := scan.Steps.Index(w.timeNS(tick))
		for service := range w.services {
			total := w.totals[w.variant(service, tick)]
			wanted[service*scan.Steps.Count+step] += total
			wantedTotal += total
			wantedRows++
		}
	}
	for service := range w.services {
		sums := scan.Group(service)
		for step := range scan.Steps.Count {
			want, got := wanted[service*scan.Steps.Count+step], int64(0)
			if sums != nil {
				got = sums[step].Sum
			}
			if got != want {
				w.t.Fatalf("service %d, hour %d: the sum is %d, want %d", service, step, got, want)
			}
		}
	}
	if rows != wantedRows || sampled != wantedTotal {
		w.t.Fatalf("%d rows with samples of %d, want %d with %d", rows, sampled, wantedRows, wantedTotal)
	}
}

// usage is what the store takes at a time.
type usage struct {
	diskBytes, heapBytes, bucketBytes int64
	blocks, files                     int
}

func (w *week) usage() (u usage) {
	w.t.Helper()
	err := filepath.WalkDir(w.dir, func(_ string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		info, err := entry.Info()
		if err == nil {
			u.diskBytes, u.files = u.diskBytes+info.Size(), u.files+1
		}
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
	if w.bucket != nil {
		if u.bucketBytes, err = w.bucket.Bytes(); err != nil {
			w.t.Fatal(err)
		}
	}
	runtime.GC()
	runtime.GC() // what the first one left in pools
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	u.heapBytes, u.blocks = int64(m.HeapAlloc), len(w.tenant.blocks)
	return u
}

// A week with a retention of a day, two restarts and three hours off. -week.services=100 -week.every=10s
// simulates a fleet.
func TestStore_SimulatedWeek(t *testing.T) {
	days := 7
	if testing.Short() {
		days = 3
	}
	SimulateWeek(t, days, nil)
}

// SimulateWeek simulates days of a fleet. With a bucket, blocks are shipped every few minutes, the bucket is compacted four times a day, and
// has the profiles of two and a half days, of which the disk has the last one.
func SimulateWeek(t *testing.T, days int, bucket WeekBucket) {
	w := newWeek(t, *weekServices, *weekEvery, bucket)
	perHour := int(time.Hour.Nanoseconds() / w.everyNS)
	w.offTicks = [2]int{51 * perHour, 54 * perHour}
	batch := make([]profiles.RawProfile, 0, w.services)
	var used []usage
	perMinute := max(1, perHour/60)
	began := time.Now()
	for hour := range days * 24 {
		if hour >= 51 && hour < 54 {
			w.ticks += perHour
			w.now.Store(w.timeNS(w.ticks))
			continue
		}
		for n := range perHour {
			w.push(batch)
			if (n+1)%perMinute == 0 {
				w.maintain()
			}
			if bucket != nil && (n+1)%(10*perMinute) == 0 {
				w.ship(false)
			}
			if (hour == 30 || hour == 100) && n == perHour/2 { // the head is in the log only
				if err := w.store.Close(); err != nil {
					t.Fatal(err)
				}
				w.open()
				w.check()
			}
		}
		if hour%6 == 5 {
			if bucket != nil {
				if err := bucket.Compact(t.Context(), time.Unix(0, w.now.Load())); err != nil {
					t.Fatal(err)
				}
			}
			w.check()
		}
		if hour%2 == 1 {
			used = append(used, w.usage())
		}
	}
	if leased := w.store.memory.leased.Load(); leased != 0 {
		t.Errorf("%d bytes are leased without a query", leased)
	}
	// After a day and the longest block before it, blocks are removed at the rate at which they are written. From the bucket they are removed
	// after two days and a half, a block of a day, and the delays of compaction and deletion.
	steady := used[(24+4)/2:]
	if bucket != nil {
		steady = used[(60+24+12)/2:]
		t.Logf("at most %d blocks in the bucket are read", w.most)
	}
	first, last := steady[:len(steady)/3], steady[len(steady)*2/3:]
	most := func(of []usage, what func(usage) int64) (v int64) {
		for _, u := range of {
			v = max(v, what(u))
		}
		return v
	}
	slack := map[string]int64{"bytes of heap": 1 << 20} // what the test itself has, and pools
	for name, what := range map[string]func(usage) int64{
		"bytes of disk": func(u usage) int64 { return u.diskBytes }, "bytes in the bucket": func(u usage) int64 { return u.bucketBytes }, "bytes of heap": func(u usage) int64 { return u.heapBytes },
		"blocks": func(u usage) int64 { return int64(u.blocks) }, "files": func(u usage) int64 { return int64(u.files) },
	} {
		before, after := most(first, what), most(last, what)
		t.Logf("%s: %d, then %d", name, before, after)
		if after > before+before/5+slack[name] {
			t.Errorf("%d %s after a day, %d at the end of the week: not flat", before, name, after)
		}
	}
	t.Logf("%d profiles in %s", w.services*(w.ticks-3*perHour), time.Since(began).Round(time.Second))
	t.Logf("at the end: %+v", used[len(used)-1])
}
