package metrics

import (
	"bytes"
	"errors"
	"io"
	"log"
	"math"
	"os"
	"path"
	"strings"
	"sync"
)

// userHZ is the number of the kernel's clock ticks per second, the same on all architectures.
const userHZ = 100

// procReader reads the files of /proc, for one scrape at a time and into one buffer. It keeps
// the files open, at most eight, because opening costs more than reading. Only the first error of
// each file is logged, because the same error would follow at every scrape.
type procReader struct {
	mu      sync.Mutex
	buf     []byte
	files   map[string]*os.File
	faults  map[string]bool
	started uint64 // Unix time of the process start in seconds, 0 until known
	// paths of the pressure files; the first one is "" if they do not exist or cannot be read
	pressure [len(pressureFiles)]string
	since    [len(pressureFiles)][2]uint64 // microseconds of some and full at the first scrape
	searched bool                          // findCgroup was called
}

var proc = procReader{}

var errMalformed = errors.New("unexpected contents")

// read returns the contents of a file, which are valid until the next read.
func (r *procReader) read(name string) ([]byte, error) {
	f := r.files[name]
	if f == nil {
		var err error
		if f, err = os.Open(name); err != nil {
			return nil, err
		}
		if r.files == nil {
			r.files, r.buf = map[string]*os.File{}, make([]byte, 8<<10)
		}
		r.files[name] = f
	}
	for {
		n, err := f.ReadAt(r.buf, 0)
		if err == io.EOF {
			return r.buf[:n], nil
		}
		if err != nil {
			r.close(name)
			return nil, err
		}
		r.buf = make([]byte, 2*len(r.buf))
	}
}

// close closes a file that is read only once, or that can no longer be read.
func (r *procReader) close(name string) {
	_ = r.files[name].Close()
	delete(r.files, name)
}

func (r *procReader) fault(name string, err error) {
	if r.faults[name] {
		return
	}
	if r.faults == nil {
		r.faults = map[string]bool{}
	}
	r.faults[name] = true
	log.Printf("ERROR: metrics: %s: %s; its metrics are left out or zero", name, err)
}

func (p *page) appendProcMetrics() {
	proc.mu.Lock()
	defer proc.mu.Unlock()
	if err := p.stat(&proc); err != nil {
		proc.fault("/proc/self/stat", err)
		return
	}
	if err := p.status(&proc); err != nil {
		proc.fault("/proc/self/status", err)
	}
	p.io(&proc)
	if err := p.pressures(&proc); err != nil {
		proc.fault("pressure", err)
	}
}

// Indexes of fields of /proc/self/stat. The state, which follows the command, is field 0.
const (
	statMinorFaults = 7
	statMajorFaults = 9
	statUserTime    = 11
	statSystemTime  = 12
	statThreads     = 17
	statStarted     = 19
	statVirtual     = 20
	statResident    = 21
)

func (p *page) stat(r *procReader) error {
	data, err := r.read("/proc/self/stat")
	if err != nil {
		return err
	}
	var fields [statResident + 1]uint64
	data = data[bytes.LastIndexByte(data, ')')+1:]
	for i := range fields {
		var field []byte
		data = bytes.TrimLeft(data, " ")
		field, data, _ = bytes.Cut(data, []byte(" "))
		if len(field) == 0 {
			return errMalformed
		}
		fields[i] = number(field) // the fields used are never negative
	}
	if r.started == 0 {
		if r.started, err = r.startSeconds(fields[statStarted]); err != nil {
			return err
		}
	}
	user, system := fields[statUserTime], fields[statSystemTime]
	p.float("process_cpu_seconds_system_total", "counter", float64(system)/userHZ)
	p.float("process_cpu_seconds_total", "counter", float64(user+system)/userHZ)
	p.float("process_cpu_seconds_user_total", "counter", float64(user)/userHZ)
	p.uint("process_major_pagefaults_total", "counter", fields[statMajorFaults])
	p.uint("process_minor_pagefaults_total", "counter", fields[statMinorFaults])
	p.uint("process_num_threads", "gauge", fields[statThreads])
	p.uint("process_resident_memory_bytes", "gauge", fields[statResident]*uint64(os.Getpagesize()))
	p.uint("process_start_time_seconds", "gauge", r.started)
	p.uint("process_virtual_memory_bytes", "gauge", fields[statVirtual])
	return nil
}

// startSeconds returns the start of the process in Unix time: the boot time of the machine plus
// ticks since then.
func (r *procReader) startSeconds(ticks uint64) (uint64, error) {
	data, err := r.read("/proc/stat")
	if err != nil {
		return 0, err
	}
	r.close("/proc/stat")
	booted, ok := field(data, "btime ")
	if !ok {
		return 0, errMalformed
	}
	return booted + ticks/userHZ, nil
}

func (p *page) status(r *procReader) error {
	data, err := r.read("/proc/self/status")
	if err != nil {
		return err
	}
	for _, m := range statusFields {
		kib, _ := field(data, m[0])
		p.uint(m[1], "gauge", kib*1024)
	}
	return nil
}

var statusFields = [...][2]string{
	{"VmPeak:", "process_virtual_memory_peak_bytes"},
	{"VmHWM:", "process_resident_memory_peak_bytes"},
	{"RssAnon:", "process_resident_memory_anon_bytes"},
	{"RssFile:", "process_resident_memory_file_bytes"},
	{"RssShmem:", "process_resident_memory_shared_bytes"},
}

// io writes the metrics of /proc/self/io. It writes zeros if the process may not read the file,
// as in some containers.
func (p *page) io(r *procReader) {
	data, err := r.read("/proc/self/io")
	if err != nil {
		r.fault("/proc/self/io", err)
	}
	for _, m := range ioFields {
		n, _ := field(data, m[0])
		p.uint(m[1], "gauge", n)
	}
}

var ioFields = [...][2]string{
	{"rchar:", "process_io_read_bytes_total"},
	{"wchar:", "process_io_written_bytes_total"},
	{"syscr:", "process_io_read_syscalls_total"},
	{"syscw:", "process_io_write_syscalls_total"},
	{"read_bytes:", "process_io_storage_read_bytes_total"},
	{"write_bytes:", "process_io_storage_written_bytes_total"},
}

var pressureFiles = [...]struct{ file, waiting, stalled string }{
	{"cpu.pressure", "process_pressure_cpu_waiting_seconds_total", "process_pressure_cpu_stalled_seconds_total"},
	{"io.pressure", "process_pressure_io_waiting_seconds_total", "process_pressure_io_stalled_seconds_total"},
	{"memory.pressure", "process_pressure_memory_waiting_seconds_total", "process_pressure_memory_stalled_seconds_total"},
}

// pressures writes how long the cgroup of the process has waited since the first scrape.
// Without cgroups of version 2 it writes nothing.
func (p *page) pressures(r *procReader) error {
	first := !r.searched
	if first {
		r.searched = true
		if group := r.findCgroup(); group != "" {
			for i, f := range pressureFiles {
				r.pressure[i] = group + "/" + f.file
			}
		}
	}
	if r.pressure[0] == "" {
		return nil
	}
	var now [len(pressureFiles)][2]uint64
	for i, path := range r.pressure {
		data, err := r.read(path)
		if err != nil {
			r.pressure[0] = "" // later scrapes read no pressure file
			return err
		}
		now[i] = [2]uint64{total(data, "some "), total(data, "full ")}
	}
	if first {
		r.since = now
	}
	for i, f := range pressureFiles {
		p.float(f.waiting, "counter", float64(now[i][0]-r.since[i][0])/1e6)
		p.float(f.stalled, "counter", float64(now[i][1]-r.since[i][1])/1e6)
	}
	return nil
}

// findCgroup returns the directory of this process' cgroup, "" if it has none of version 2.
func (r *procReader) findCgroup() string {
	groups, err := r.read("/proc/self/cgroup")
	if err != nil {
		return ""
	}
	r.close("/proc/self/cgroup")
	group := ""
	for line := range strings.Lines(string(groups)) {
		if rest, ok := strings.CutPrefix(line, "0::"); ok {
			group = strings.TrimSpace(rest)
		}
	}
	if group == "" {
		return ""
	}
	mounts, err := r.read("/proc/self/mountinfo")
	if err == nil {
		r.close("/proc/self/mountinfo")
	}
	for line := range strings.Lines(string(mounts)) {
		before, after, _ := strings.Cut(line, " - ")
		if fields := strings.Fields(before); strings.HasPrefix(after, "cgroup2 ") && len(fields) > 4 {
			return strings.TrimSuffix(path.Join(fields[4], group), "/")
		}
	}
	return strings.TrimSuffix(path.Join("/sys/fs/cgroup", group), "/")
}

func (p *page) appendFDMetrics() {
	proc.mu.Lock()
	defer proc.mu.Unlock()
	limits, err := proc.read("/proc/self/limits")
	if err != nil {
		proc.fault("/proc/self/limits", err)
		return
	}
	limit, ok := field(limits, "Max open files ")
	if !ok {
		limit = math.MaxUint64 // unlimited
	}
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		proc.fault("/proc/self/fd", err)
		return
	}
	p.uint("process_max_fds", "gauge", limit)
	p.uint("process_open_fds", "gauge", uint64(len(open)))
}

// field returns the number that follows key at the beginning of a line, and whether there is one.
func field(data []byte, key string) (uint64, bool) {
	for len(data) > 0 {
		line := data
		if i := bytes.IndexByte(data, '\n'); i >= 0 {
			line, data = data[:i], data[i+1:]
		} else {
			data = nil
		}
		if len(line) >= len(key) && string(line[:len(key)]) == key {
			line = bytes.TrimLeft(line[len(key):], " \t")
			return number(line), len(line) > 0 && '0' <= line[0] && line[0] <= '9'
		}
	}
	return 0, false
}

// total returns the microseconds of total= in the line of a pressure file that begins with key, 0 if there are none.
func total(data []byte, key string) uint64 {
	_, line, _ := bytes.Cut(data, []byte(key))
	line, _, _ = bytes.Cut(line, []byte("\n"))
	_, value, _ := bytes.Cut(line, []byte("total="))
	return number(value)
}

// number returns the decimal number that text begins with, 0 if there is none.
func number(text []byte) (n uint64) {
	for _, c := range text {
		if c < '0' || c > '9' {
			break
		}
		n = 10*n + uint64(c-'0')
	}
	return n
}
