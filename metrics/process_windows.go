package metrics

import "syscall"

// appendProcMetrics appends the times of the process.
func (p *page) appendProcMetrics() {
	self, err := syscall.GetCurrentProcess()
	if err != nil {
		return
	}
	var created, ended, kernel, user syscall.Filetime
	if err := syscall.GetProcessTimes(self, &created, &ended, &kernel, &user); err != nil {
		return
	}
	system, own := ticks(kernel), ticks(user)
	p.float("process_cpu_seconds_system_total", "counter", system)
	p.float("process_cpu_seconds_total", "counter", system+own)
	p.float("process_cpu_seconds_user_total", "counter", own)
	p.uint("process_start_time_seconds", "gauge", uint64(created.Nanoseconds()/1e9))
}

// ticks returns a duration in seconds; its unit is 100 ns.
func ticks(t syscall.Filetime) float64 {
	return float64(uint64(t.HighDateTime)<<32|uint64(t.LowDateTime)) / 1e7
}

func (p *page) appendFDMetrics() {}
