package store

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"sync"
	"syscall"
	"testing"
	"time"

	googlepprof "github.com/google/pprof/profile"

	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/series/labelenc"
)

// walks are profiles of four services with 2,000 stacks each, of which a profile has 200:
// a head has most stacks after a few hundred profiles, and none at first.
func walks(n int) []profiles.RawProfile {
	r := rand.New(rand.NewPCG(5, 6))
	var fns []*googlepprof.Function
	var locs []*googlepprof.Location
	for i := range 600 {
		name := fmt.Sprintf("github.com/example/project/internal/package%02d.(*Type%02d).Method%03d", i%37, i%53, i)
		fns = append(fns, &googlepprof.Function{ID: uint64(i + 1), Name: name, SystemName: name, Filename: fmt.Sprintf("/src/project/internal/package%02d/file%02d.go", i%37, i%53), StartLine: int64(10 + i)})
		locs = append(locs, &googlepprof.Location{ID: uint64(i + 1), Address: uint64(0x400000 + 64*i), Line: []googlepprof.Line{{Function: fns[i], Line: int64(20 + i)}}})
	}
	var pool [4][2000][]*googlepprof.Location
	for s := range pool {
		for k := range pool[s] {
			stack, fn := make([]*googlepprof.Location, 8+r.IntN(33)), s
			for i := range stack {
				stack[len(stack)-1-i] = locs[fn]
				fn = (fn*7 + s + 1 + r.IntN(3)*r.IntN(3)) % len(fns)
			}
			pool[s][k] = stack
		}
	}
	pushed := make([]profiles.RawProfile, n)
	for i := range pushed {
		p := &googlepprof.Profile{
			SampleType: []*googlepprof.ValueType{{Type: "alloc_objects", Unit: "count"}, {Type: "alloc_space", Unit: "bytes"}},
			PeriodType: &googlepprof.ValueType{Type: "space", Unit: "bytes"}, Period: 512 << 10, TimeNanos: int64(i) + 1, Function: fns, Location: locs,
		}
		for _, at := range r.Perm(2000)[:200] {
			p.Sample = append(p.Sample, &googlepprof.Sample{Location: pool[i%4][at], Value: []int64{1 + r.Int64N(300), 1 + r.Int64N(1<<20)}})
		}
		var b bytes.Buffer
		if err := p.Write(&b); err != nil {
			panic(err)
		}
		labels := labelenc.AppendLabel(labelenc.AppendLabel(nil, "__name__", "memory"), "service_name", fmt.Sprintf("service-%d", i%4))
		pushed[i] = profiles.RawProfile{Labels: labels, ID: profiles.ID{1, byte(i), byte(i >> 8)}, TimeNS: int64(i) + 1, Raw: b.Bytes()}
	}
	return pushed
}

func processCPU() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkAppend_Walks measures the CPU of pushes of sixteen clients into an empty store,
// compared with the peer's parse of the same bytes.
func BenchmarkAppend_Walks(b *testing.B) {
	pushed := walks(1000)
	b.Run("parse of the peer", func(b *testing.B) {
		from := processCPU()
		for b.Loop() {
			for i := range pushed {
				if _, err := googlepprof.ParseData(pushed[i].Raw); err != nil {
					b.Fatal(err)
				}
			}
		}
		b.ReportMetric(float64((processCPU()-from).Microseconds())/float64(b.N*len(pushed)), "cpu-us/profile")
	})
	b.Run("push", func(b *testing.B) {
		from := processCPU()
		for b.Loop() {
			pushWalks(b, pushed)
		}
		b.ReportMetric(float64((processCPU()-from).Microseconds())/float64(b.N*len(pushed)), "cpu-us/profile")
	})
}

func pushWalks(b *testing.B, pushed []profiles.RawProfile) {
	s, err := New(Options{Dir: b.TempDir(), Retention: -1, HeadBytes: 2 << 30, HeadAge: 1 << 50}, slog.New(slog.NewTextHandler(io.Discard, nil)), nil)
	if err != nil {
		b.Fatal(err)
	}
	if err := s.Open(); err != nil {
		b.Fatal(err)
	}
	const clients = 16
	var running sync.WaitGroup
	for c := range clients {
		running.Go(func() {
			for i := c; i < len(pushed); i += clients {
				if err := s.Append(context.Background(), "t", pushed[i:i+1]); err != nil {
					b.Error(err)
				}
			}
		})
	}
	running.Wait()
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
}
