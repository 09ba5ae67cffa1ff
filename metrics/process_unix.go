//go:build darwin || freebsd || netbsd || openbsd || dragonfly

package metrics

import (
	"os"
	"runtime"
	"syscall"
)

// appendProcMetrics appends the metrics from getrusage.
func (p *page) appendProcMetrics() {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return
	}
	user, system := seconds(u.Utime), seconds(u.Stime)
	p.float("process_cpu_seconds_system_total", "counter", system)
	p.float("process_cpu_seconds_total", "counter", user+system)
	p.float("process_cpu_seconds_user_total", "counter", user)
	p.uint("process_major_pagefaults_total", "counter", uint64(u.Majflt))
	p.uint("process_minor_pagefaults_total", "counter", uint64(u.Minflt))
	unit := uint64(1024)
	if runtime.GOOS == "darwin" {
		unit = 1
	}
	p.uint("process_resident_memory_peak_bytes", "gauge", uint64(u.Maxrss)*unit)
}

func seconds(t syscall.Timeval) float64 { return float64(t.Sec) + float64(t.Usec)/1e6 }

func (p *page) appendFDMetrics() {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err == nil {
		p.uint("process_max_fds", "gauge", uint64(limit.Cur))
	}
	if files, err := os.ReadDir("/dev/fd"); err == nil {
		p.uint("process_open_fds", "gauge", uint64(max(0, len(files)-1))) // one is the open directory itself
	}
}
