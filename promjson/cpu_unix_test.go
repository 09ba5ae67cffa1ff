//go:build unix

package promjson

import (
	"syscall"
	"testing"
)

// reportCPU makes a benchmark report the CPU time of the process per unit of work,
// in addition to the elapsed time, which is unreliable on a busy machine. Call it
// before the work, and the function it returns after the work.
func reportCPU(b *testing.B, units int, name string) func() {
	before := cpuNS()
	return func() { b.ReportMetric(float64(cpuNS()-before)/float64(b.N)/float64(units), name) }
}

func cpuNS() int64 {
	var r syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &r) != nil {
		return 0
	}
	return r.Utime.Nano() + r.Stime.Nano()
}
