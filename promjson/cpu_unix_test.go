//go:build unix

package promjson

import (
	"syscall"
	"testing"
)

// reportCPU makes a benchmark report the CPU time of the process a unit of work
// beside the time on the clock, which says little on a busy machine. It is
// called before the work; what it returns, after.
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
