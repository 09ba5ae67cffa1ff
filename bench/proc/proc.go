// Package proc runs a server as a separate process and measures it from outside.
//
// Start takes a Spec (program, flags, environment) and returns a Server that listens on a free loopback port. The Server
// reports its CPU time, anonymous memory, system calls and allocations; its Client counts the bytes on the wire. All values
// come from the kernel (Linux only) or from Go's /debug/pprof; nothing is linked into the server. Which servers are compared
// is up to the areas.
package proc

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ErrMissing means that a /proc file lacks a requested field.
var ErrMissing = errors.New("no such field")

// CPU returns the CPU time that process pid has used in all its threads, running and ended, user and system together. It
// reads the process' CPU clock, which counts nanoseconds. /proc/PID/stat counts ticks of 10 ms.
func CPU(pid int) (time.Duration, error) {
	// clock_getcpuclockid(3) computes the clock as the complement of the pid, with CPUCLOCK_SCHED in the lowest bits.
	clock := int32(^pid)<<3 | 2
	var ts unix.Timespec
	if err := unix.ClockGettime(clock, &ts); err != nil {
		return 0, fmt.Errorf("CPU clock of process %d: %w", pid, err)
	}
	return time.Duration(ts.Nano()), nil
}

// tick is the resolution of the times in /proc/PID/stat.
const tick = 10 * time.Millisecond

// Times returns the user and system CPU time of process pid, with a resolution of 10 ms.
func Times(pid int) (user, sys time.Duration, err error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0, err
	}
	_, rest, _ := strings.Cut(string(stat), ") ") // the name before it may have spaces
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0, 0, fmt.Errorf("/proc/%d/stat: %w", pid, ErrMissing)
	}
	ticks := [2]int64{}
	for i, field := range fields[11:13] {
		if ticks[i], err = strconv.ParseInt(field, 10, 64); err != nil {
			return 0, 0, fmt.Errorf("/proc/%d/stat: %w", pid, err)
		}
	}
	return time.Duration(ticks[0]) * tick, time.Duration(ticks[1]) * tick, nil
}

// SelfCPU returns the CPU time that this process has used.
func SelfCPU() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &ts); err != nil {
		panic(err) // cannot fail for the process itself
	}
	return time.Duration(ts.Nano())
}

// Anon returns the resident anonymous memory of process pid in bytes: its heap and stacks, not mapped files.
func Anon(pid int) (int64, error) { return memory(pid, "RssAnon") }

// memory returns a figure of /proc/PID/status in bytes.
func memory(pid int, name string) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	kib, err := field(text, name, ":")
	return kib << 10, err
}

// IO counts what a process has written by system calls, sockets included.
type IO struct{ Writes, WriteBytes int64 }

// Sub returns the counts since before.
func (io IO) Sub(before IO) IO {
	return IO{io.Writes - before.Writes, io.WriteBytes - before.WriteBytes}
}

// ReadIO reads the counts of process pid.
func ReadIO(pid int) (IO, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", pid))
	if err != nil {
		return IO{}, err
	}
	return parseIO(text)
}

func parseIO(text []byte) (io IO, err error) {
	if io.Writes, err = field(text, "syscw", ":"); err == nil {
		io.WriteBytes, err = field(text, "wchar", ":")
	}
	return io, err
}

// parseMemStat returns a figure of the comment lines "# Name = value" at the end of a heap profile in text form.
func parseMemStat(profile []byte, name string) (int64, error) { return field(profile, "# "+name, " =") }

// field parses the number in a line such as "name: 123", "name:   123 kB" or "name = 123".
func field(text []byte, name, separator string) (int64, error) {
	for line := range bytes.Lines(text) {
		rest, ok := bytes.CutPrefix(line, []byte(name+separator))
		if words := bytes.Fields(rest); ok && len(words) > 0 {
			v, err := strconv.ParseInt(string(words[0]), 10, 64)
			if err != nil {
				err = fmt.Errorf("%s: %w", name, err)
			}
			return v, err
		}
	}
	return 0, fmt.Errorf("%s: %w", name, ErrMissing)
}
