package cache

import (
	"context"
	"fmt"
	"io"
	"os"
	"syscall"
	"testing"
)

// cpuNS returns the CPU time of this process in nanoseconds. Wall time is not reliable on
// a shared machine.
func cpuNS() int64 {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return u.Utime.Nano() + u.Stime.Nano()
}

// perSample reports the CPU time per sample since begin.
func perSample(b *testing.B, begin int64, samples int) {
	b.ReportMetric(float64(cpuNS()-begin)/float64(b.N)/float64(samples), "cpu-ns/sample")
}

const benchSeries, benchPoints = 3000, 161

func kinds() []string { return []string{"rate", "counter", "gauge", "mix"} }

// benchStore is a store in memory, or one whose values are compressed if FERULA_BENCH_REMOTE is set.
func benchStore(b *testing.B) Store {
	if os.Getenv("FERULA_BENCH_REMOTE") != "" {
		return newFakeStore()
	}
	return newMemory(b, MemoryOptions{})
}

// BenchmarkHit is a whole hit in memory: lookup, checks, and reading the stream in pieces
// as the splicer does.
func BenchmarkHit(b *testing.B) {
	for _, kind := range kinds() {
		for _, series := range []int{1, 50, benchSeries} {
			b.Run(fmt.Sprintf("%s/%d", kind, series), func(b *testing.B) {
				text := response(kind, series, benchPoints)
				c := newCache(b, benchStore(b), Options{})
				put(b, c, "k", 0, 100, 10, text)
				buf := make([]byte, 256<<10)
				b.SetBytes(int64(len(text)))
				b.ReportAllocs()
				begin := cpuNS()
				for b.Loop() {
					r, _ := c.Lookup(context.Background(), "k", 0, 100).Open(context.Background())
					n := 0
					for {
						k, err := r.Read(buf)
						n += k
						if err == io.EOF {
							break
						}
					}
					if r.Close(); n != len(text) {
						b.Fatal(n)
					}
				}
				perSample(b, begin, series*benchPoints)
			})
		}
	}
}

// BenchmarkFill is the cost of storing a query's response in memory.
func BenchmarkFill(b *testing.B) {
	for _, kind := range kinds() {
		for _, series := range []int{1, 50, benchSeries} {
			b.Run(fmt.Sprintf("%s/%d", kind, series), func(b *testing.B) {
				text := response(kind, series, benchPoints)
				c := newCache(b, benchStore(b), Options{})
				b.SetBytes(int64(len(text)))
				b.ReportAllocs()
				begin := cpuNS()
				for b.Loop() {
					w := c.Writer("k", 0, 100, 10)
					for rest := text; len(rest) > 0; {
						n := min(len(rest), 256<<10)
						_, _ = w.Write(rest[:n])
						rest = rest[n:]
					}
					w.Commit()
					flush(b, c)
				}
				perSample(b, begin, series*benchPoints)
			})
		}
	}
}

func BenchmarkMiss(b *testing.B) {
	c := newCache(b, newMemory(b, MemoryOptions{}), Options{})
	b.ReportAllocs()
	for b.Loop() {
		if c.Lookup(context.Background(), "tenant|/api/v1/query_range|query=up|0|86400000|19675", 0, 100) != nil {
			b.Fatal("found")
		}
	}
}

func BenchmarkMemoryGet(b *testing.B) {
	m := newMemory(b, MemoryOptions{})
	keys := make([]string, 1000)
	for i := range keys {
		keys[i] = partKey(storeKey("k"), i)
		_ = m.Set(context.Background(), keys[i], make([]byte, 1000), 0)
	}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for i := 0; pb.Next(); i++ {
			if _, ok, _ := m.Get(context.Background(), keys[i%len(keys)]); !ok {
				b.Fatal("gone")
			}
		}
	})
}
