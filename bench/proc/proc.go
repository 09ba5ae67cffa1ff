// Package proc runs a server as a process of its own and measures it from outside.
//
// In comes a Spec (program, flags, environment), out goes a Server that answers on a free loopback port and that can be
// asked for its CPU, its anonymous memory, its system calls and its allocations; a Client of it counts the bytes on the
// wire. Everything is read from the kernel (Linux only) or from Go's own /debug/pprof; nothing is linked into the server.
// What is not here: which server is compared with which, and what a figure is held against.
package proc

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// ErrMissing says that a /proc file lacks the field that was asked for.
var ErrMissing = errors.New("no such field")

// CPU is the processor time that process pid has used in all its threads, living and dead, user and system together. It
// comes from the process' CPU clock, which counts nanoseconds, where /proc/PID/stat counts ticks of 10 ms.
func CPU(pid int) (time.Duration, error) {
	// What clock_getcpuclockid(3) computes: the complement of the pid, and CPUCLOCK_SCHED in the lowest bits.
	clock := int32(^pid)<<3 | 2
	var ts unix.Timespec
	if err := unix.ClockGettime(clock, &ts); err != nil {
		return 0, fmt.Errorf("CPU clock of process %d: %w", pid, err)
	}
	return time.Duration(ts.Nano()), nil
}

// SelfCPU is the processor time that this process has used.
func SelfCPU() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &ts); err != nil {
		panic(err) // cannot fail for the process itself
	}
	return time.Duration(ts.Nano())
}

// Anon is the anonymous memory of process pid that is resident now, in bytes: its heap and stacks, not mapped files.
func Anon(pid int) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	kib, err := field(text, "RssAnon")
	return kib << 10, err
}

// IO counts what a process has written and read by system calls, sockets included.
type IO struct {
	Reads, Writes         int64 // calls
	ReadBytes, WriteBytes int64
}

// Sub is what was added since before.
func (io IO) Sub(before IO) IO {
	return IO{io.Reads - before.Reads, io.Writes - before.Writes, io.ReadBytes - before.ReadBytes, io.WriteBytes - before.WriteBytes}
}

// ReadIO reads the counts of process pid.
func ReadIO(pid int) (IO, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", pid))
	if err != nil {
		return IO{}, err
	}
	return parseIO(text)
}

func parseIO(text []byte) (IO, error) {
	var io IO
	for _, f := range []struct {
		name string
		to   *int64
	}{{"syscr", &io.Reads}, {"syscw", &io.Writes}, {"rchar", &io.ReadBytes}, {"wchar", &io.WriteBytes}} {
		v, err := field(text, f.name)
		if err != nil {
			return IO{}, err
		}
		*f.to = v
	}
	return io, nil
}

// Memory is what the Go runtime of a server says of its heap.
type Memory struct {
	HeapAlloc  int64 // bytes of living objects
	TotalAlloc int64 // bytes allocated since the start
	Mallocs    int64 // objects allocated since the start
}

// parseMemory reads the comment lines "# Name = value" that end a heap profile in text form.
func parseMemory(profile []byte) (Memory, error) {
	var m Memory
	want := map[string]*int64{"HeapAlloc": &m.HeapAlloc, "TotalAlloc": &m.TotalAlloc, "Mallocs": &m.Mallocs}
	lines := bufio.NewScanner(bytes.NewReader(profile))
	lines.Buffer(nil, len(profile)+1)
	for lines.Scan() {
		name, value, ok := bytes.Cut(bytes.TrimPrefix(lines.Bytes(), []byte("# ")), []byte(" = "))
		to := want[string(name)]
		if !ok || to == nil {
			continue
		}
		v, err := strconv.ParseInt(string(value), 10, 64)
		if err != nil {
			return Memory{}, fmt.Errorf("heap profile: %s: %w", name, err)
		}
		*to = v
		delete(want, string(name))
	}
	for name := range want {
		return Memory{}, fmt.Errorf("heap profile: %s: %w", name, ErrMissing)
	}
	return m, nil
}

// field reads "name: 123" or "name:   123 kB" out of a /proc file.
func field(text []byte, name string) (int64, error) {
	for line := range bytes.Lines(text) {
		rest, ok := bytes.CutPrefix(line, []byte(name+":"))
		if !ok {
			continue
		}
		words := bytes.Fields(rest)
		if len(words) == 0 {
			break
		}
		v, err := strconv.ParseInt(string(words[0]), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", name, err)
		}
		return v, nil
	}
	return 0, fmt.Errorf("%s: %w", name, ErrMissing)
}
