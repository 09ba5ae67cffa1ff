package profiles

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"

	googlepprof "github.com/google/pprof/profile"

	series "github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/pprof"
	"github.com/ferula-io/ferula/internal/series/labelenc"

	"github.com/ferula-io/ferula/internal/profiles/store"
	"github.com/ferula-io/ferula/metrics"
)

const (
	epochMS = 1_700_000_000_000
	hourMS  = 3_600_000

	functions = 600
	services  = 4     // unless stated otherwise
	stacks    = 2_000 // distinct stacks of a service; a profile has 200 of them
	samples   = 200
	depthMin  = 8
	depthMax  = 40
)

// unmerged are the options of a store that does not compact its blocks.
var unmerged = store.Options{BlockBytes: 1}

// openWith opens a store whose limits are so high that blocks are written only when the bench calls Flush.
func openWith(o store.Options, set *metrics.Set) (*store.Store, error) {
	o.Retention, o.HeadBytes, o.HeadAge = -1, 2<<30, 1<<50
	s, err := store.New(o, slog.New(slog.NewTextHandler(io.Discard, nil)), set)
	if err != nil {
		return nil, err
	}
	return s, s.Open()
}

func labelsOf(name, service string, pod int) []byte {
	set := labelenc.AppendLabel(nil, series.LabelName, name)
	if pod >= 0 {
		set = labelenc.AppendLabel(set, "pod", fmt.Sprintf("pod-%d", pod))
	}
	return labelenc.AppendLabel(set, series.LabelService, service)
}

func idOf(i int) (id series.ID) {
	r := rand.New(rand.NewPCG(uint64(i), 3))
	binary.LittleEndian.PutUint64(id[:], r.Uint64())
	binary.LittleEndian.PutUint64(id[8:], r.Uint64())
	return id
}

var cpuType = series.Type{Name: "process_cpu", SampleType: "cpu", SampleUnit: "nanoseconds", PeriodType: "cpu", PeriodUnit: "nanoseconds"}

// small returns a profile with one sample, for queries that do not read samples.
func small(value int64) []byte {
	e := pprof.NewEncoder()
	e.SampleType("cpu", "nanoseconds")
	e.Period("cpu", "nanoseconds", 1e7)
	leaf, top := e.Location(e.Function("work", "work", "work.go", 1), 2), e.Location(e.Function("main", "main", "main.go", 1), 3)
	e.Sample([]uint64{leaf, top}, value)
	return e.Append(nil)
}

const tenant = "anonymous"

// heapMaker generates heap profiles: objects and bytes, with one object size per stack.
// Stacks are paths in a random call tree.
type heapMaker struct {
	pool  [][][]int // by service: stacks of functions, leaf first
	sizes [][]int64
	fns   []*googlepprof.Function
	locs  []*googlepprof.Location
}

func newHeapMaker(services int) *heapMaker {
	r := rand.New(rand.NewPCG(5, 6))
	m := &heapMaker{pool: make([][][]int, services), sizes: make([][]int64, services)}
	for i := range functions {
		name := fmt.Sprintf("github.com/example/project/internal/package%02d.(*Type%02d).Method%03d", i%37, i%53, i)
		fn := &googlepprof.Function{ID: uint64(i + 1), Name: name, SystemName: name, Filename: fmt.Sprintf("/src/project/internal/package%02d/file%02d.go", i%37, i%53), StartLine: int64(10 + i)}
		m.fns = append(m.fns, fn)
		m.locs = append(m.locs, &googlepprof.Location{ID: uint64(i + 1), Address: uint64(0x400000 + 64*i), Line: []googlepprof.Line{{Function: fn, Line: int64(20 + i)}}})
	}
	for s := range m.pool {
		for range stacks {
			var stack []int
			fn := s
			for range depthMin + r.IntN(depthMax-depthMin+1) {
				stack = append(stack, fn)
				fn = (fn*7 + s + 1 + r.IntN(3)*r.IntN(3)) % functions // few callees each
			}
			for i, j := 0, len(stack)-1; i < j; i, j = i+1, j-1 {
				stack[i], stack[j] = stack[j], stack[i]
			}
			m.pool[s] = append(m.pool[s], stack)
			m.sizes[s] = append(m.sizes[s], int64(16+r.IntN(4080)))
		}
	}
	return m
}

var heapType = series.Type{Name: "memory", SampleType: "alloc_space", SampleUnit: "bytes", PeriodType: "space", PeriodUnit: "bytes"}

// profile returns the i-th profile, gzipped as clients send it, and its total bytes. A
// time of 0 is left out.
func (m *heapMaker) profile(i int, timeNS int64) (raw []byte, total int64, err error) {
	r := rand.New(rand.NewPCG(uint64(i), 11))
	service := i % len(m.pool)
	p := &googlepprof.Profile{
		SampleType: []*googlepprof.ValueType{{Type: "alloc_objects", Unit: "count"}, {Type: "alloc_space", Unit: "bytes"}},
		PeriodType: &googlepprof.ValueType{Type: "space", Unit: "bytes"}, Period: 512 << 10, TimeNanos: timeNS, DurationNanos: 15e9,
		Function: m.fns, Location: m.locs,
	}
	for _, at := range r.Perm(stacks)[:samples] {
		s := &googlepprof.Sample{}
		for _, fn := range m.pool[service][at] {
			s.Location = append(s.Location, m.locs[fn])
		}
		objects := 1 + int64(r.ExpFloat64()*300)
		s.Value = []int64{objects, objects * m.sizes[service][at]}
		total += s.Value[1]
		p.Sample = append(p.Sample, s)
	}
	var b bytes.Buffer
	err = p.Write(&b)
	return b.Bytes(), total, err
}

func timeOf(i int) int64 { return epochMS*1e6 + int64(i)*(hourMS*1e6/10_000) }

func sum(values []int64) (total int64) {
	for _, v := range values {
		total += v
	}
	return total
}

// heapPushes returns profiles to be pushed, and the total bytes of each.
func heapPushes(n, services int) (pushed []series.RawProfile, totals []int64, err error) {
	m := newHeapMaker(services)
	pushed, totals = make([]series.RawProfile, n), make([]int64, n)
	for i := range pushed {
		var raw []byte
		if raw, totals[i], err = m.profile(i, timeOf(i)); err != nil {
			return nil, nil, err
		}
		pushed[i] = series.RawProfile{Labels: labelsOf("memory", serviceName(i%services), i%8), ID: idOf(i), TimeNS: timeOf(i), Raw: raw}
	}
	return pushed, totals, nil
}
