package query

import (
	"context"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/pprof"
	"github.com/ferula-io/ferula/internal/series/labelenc"

	"github.com/ferula-io/ferula/internal/profiles/store"
)

// rowsStore returns a store with one block of so many rows over an hour.
func rowsStore(t testing.TB, rows, datasets int) *Engine {
	s := openStore(t, t.TempDir(), store.Options{Retention: -1, HeadBytes: 2 << 30, HeadAge: 1 << 50})
	var pushed []profiles.RawProfile
	for i := range rows {
		e := pprof.NewEncoder()
		e.SampleType("cpu", "nanoseconds")
		e.Period("cpu", "nanoseconds", 1e7)
		e.Sample([]uint64{e.Location(e.Function("main", "", "", 0), 1)}, 1+int64(uint32(i)*2654435761>>12))
		pushed = append(pushed, profiles.RawProfile{
			Labels: cpuLabels(fmt.Sprintf("service-%d", i%datasets)), TimeNS: epochMS*1e6 + int64(i)*(3_600_000_000_000/int64(rows)), Raw: e.Append(nil),
		})
		if len(pushed) == 1000 || i == rows-1 {
			must(t, s.Append(context.Background(), "t", pushed))
			pushed = pushed[:0]
		}
	}
	must(t, s.Flush(context.Background()))
	return New(Options{}, s)
}

func hour(exemplars bool) *profiles.SeriesRequest {
	return &profiles.SeriesRequest{
		Tenant: "t", Type: cpuType, StartMS: epochMS + 1237, EndMS: epochMS + 3_600_000, StepMS: 180_000, Exemplars: exemplars,
	}
}

func BenchmarkSelectSeries(b *testing.B) {
	for _, size := range [][2]int{{3000, 1}, {3000, 6}, {3000, 100}, {100_000, 1}, {100_000, 100}} {
		e := rowsStore(b, size[0], size[1])
		for _, exemplars := range []bool{false, true} {
			b.Run(fmt.Sprintf("%d rows, %d datasets, exemplars %v", size[0], size[1], exemplars), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					result, err := e.SelectSeries(context.Background(), hour(exemplars))
					must(b, err)
					result.Close()
				}
			})
		}
	}
}

// fleetStore returns an engine over so many rows of 100 services of 20 pods within an hour, in
// six blocks and a head.
func fleetStore(t testing.TB, rows int) *Engine {
	s := openStore(t, t.TempDir(), store.Options{Retention: -1, HeadBytes: 2 << 30, HeadAge: 1 << 50, BlockBytes: 1}) // no block is merged
	ctx, blocks, pushed := context.Background(), 0, []profiles.RawProfile(nil)
	for i := range rows {
		e := pprof.NewEncoder()
		e.SampleType("cpu", "nanoseconds")
		e.Period("cpu", "nanoseconds", 1e7)
		e.Sample([]uint64{e.Location(e.Function("main", "", "", 0), 1)}, 1+int64(uint32(i)*2654435761>>12))
		set := labelenc.AppendLabel(nil, profiles.LabelName, "process_cpu")
		set = labelenc.AppendLabel(set, "pod", fmt.Sprintf("pod-%d", i/100%20))
		set = labelenc.AppendLabel(set, profiles.LabelService, fmt.Sprintf("service-%03d", i%100))
		pushed = append(pushed, profiles.RawProfile{Labels: set, TimeNS: epochMS*1e6 + int64(i)*(3_600_000_000_000/int64(rows)), Raw: e.Append(nil)})
		full := blocks < 6 && i+1 == (blocks+1)*rows/7
		if len(pushed) == 1000 || full || i == rows-1 {
			must(t, s.Append(ctx, "t", pushed))
			pushed = pushed[:0]
		}
		if full {
			blocks++
			must(t, s.Flush(ctx))
		}
	}
	return New(Options{}, s)
}

func BenchmarkSelectSeries_ByService(b *testing.B) {
	for _, rows := range []int{3000, 100_000} {
		e := fleetStore(b, rows)
		for _, minutes := range []int64{1, 5, 15, 60} {
			for _, exemplars := range []bool{false, true} {
				b.Run(fmt.Sprintf("%d rows, %d min, exemplars %v", rows, minutes, exemplars), func(b *testing.B) {
					b.ReportAllocs()
					req := hour(exemplars)
					req.StartMS = epochMS + 3_600_000 - minutes*60_000 + 1_237
					req.EndMS, req.StepMS, req.GroupBy = req.StartMS+minutes*60_000, 60_000, []string{profiles.LabelService}
					from := processCPU(b)
					for b.Loop() {
						result, err := e.SelectSeries(context.Background(), req)
						must(b, err)
						result.Close()
					}
					b.ReportMetric(float64(processCPU(b)-from)/float64(b.N), "cpu-ns/op")
				})
			}
		}
	}
}

// processCPU returns the CPU time of the process, which other processes disturb less than wall time.
func processCPU(b *testing.B) time.Duration {
	var u syscall.Rusage
	must(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
