package metrics

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// procOf returns a reader that finds these texts in place of the files of /proc.
func procOf(t *testing.T, texts map[string]string) *procReader {
	t.Helper()
	r := &procReader{buf: make([]byte, 16), files: map[string]*os.File{}}
	dir := t.TempDir()
	for name, text := range texts {
		path := filepath.Join(dir, strings.ReplaceAll(name, "/", "_"))
		noError(t, os.WriteFile(path, []byte(text), 0o600))
		f := try(os.Open(path)).must(t)
		r.files[name] = f
	}
	t.Cleanup(func() {
		for _, f := range r.files {
			_ = f.Close()
		}
	})
	return r
}

func TestProcReader_ValuesOfStat(t *testing.T) {
	const stat = "17 (a name) with) R 1 2 3 4 5 6 77 8 99 10 1234 566 13 14 15 16 21 18 250000 8192 3 22\n"
	r := procOf(t, map[string]string{"/proc/self/stat": stat, "/proc/stat": "cpu 1 2\nbtime 1700000000\nprocesses 5\n"})
	opened := r.files["/proc/stat"]
	for range 2 { // the start of the process is read once
		p := &page{}
		noError(t, p.stat(r))
		check(t, "page", string(p.b), fmt.Sprintf(`process_cpu_seconds_system_total 5.66
process_cpu_seconds_total 18
process_cpu_seconds_user_total 12.34
process_major_pagefaults_total 99
process_minor_pagefaults_total 77
process_num_threads 21
process_resident_memory_bytes %d
process_start_time_seconds 1700002500
process_virtual_memory_bytes 8192
`, 3*os.Getpagesize()))
	}
	if _, there := r.files["/proc/stat"]; there || opened.Close() == nil {
		t.Error("/proc/stat is still open")
	}
}

func TestProcReader_MalformedFilesAreErrors(t *testing.T) {
	const stat = "17 (a) R 1 2 3 4 5 6 77 8 99 10 1234 566 13 14 15 16 21 18 250000 8192 3"
	for what, texts := range map[string]map[string]string{
		"short":        {"/proc/self/stat": stat[:len(stat)-2], "/proc/stat": "btime 1\n"},
		"no boot time": {"/proc/self/stat": stat, "/proc/stat": "cpu 1\n"},
	} {
		p := &page{}
		if err := p.stat(procOf(t, texts)); !errors.Is(err, errMalformed) || len(p.b) != 0 {
			t.Errorf("%s: %v, %s", what, err, p.b)
		}
	}
	if err := (&page{}).stat(procOf(t, map[string]string{"/proc/self/stat": stat, "/proc/stat": "btime 1\n"})); err != nil {
		t.Error(err)
	}
	r := procOf(t, nil)
	if _, err := r.read(filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	if data, err := r.read("/proc/self/comm"); err != nil || len(data) == 0 || r.files["/proc/self/comm"] == nil {
		t.Errorf("%q, %v", data, err)
	}
}

func TestProcReader_ValuesOfStatusAndIO(t *testing.T) {
	r := procOf(t, map[string]string{
		"/proc/self/status": "Name:\ta\nVmPeak:\t  9 kB\nVmHWM:\t  8 kB\nRssAnon:\t7 kB\nRssFile:\t6 kB\nRssShmem:\t5 kB\n",
		"/proc/self/io":     "rchar: 1\nwchar: 2\nsyscr: 3\nsyscw: 4\nread_bytes: 5\nwrite_bytes: 6\n",
	})
	p := &page{}
	noError(t, p.status(r))
	p.io(r)
	check(t, "page", string(p.b), `process_virtual_memory_peak_bytes 9216
process_resident_memory_peak_bytes 8192
process_resident_memory_anon_bytes 7168
process_resident_memory_file_bytes 6144
process_resident_memory_shared_bytes 5120
process_io_read_bytes_total 1
process_io_written_bytes_total 2
process_io_read_syscalls_total 3
process_io_write_syscalls_total 4
process_io_storage_read_bytes_total 5
process_io_storage_written_bytes_total 6
`)
}

// Pressure counts from the first scrape on.
func TestProcReader_PressuresCountFromTheFirstScrape(t *testing.T) {
	pressure := func(some, full int) string {
		return fmt.Sprintf("some avg10=0.00 avg60=0.00 avg300=0.00 total=%d\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=%d\n", some, full)
	}
	const mounts = "29 1 0:26 / /proc rw - proc proc rw\n30 1 0:27 / /mnt/groups rw shared:4 - cgroup2 cgroup rw\n"
	r := procOf(t, map[string]string{
		"/proc/self/cgroup": "1:name=systemd:/old\n0::/a/b\n", "/proc/self/mountinfo": mounts,
		"/mnt/groups/a/b/cpu.pressure": pressure(1_000_000, 10), "/mnt/groups/a/b/io.pressure": pressure(20, 30), "/mnt/groups/a/b/memory.pressure": pressure(40, 50),
	})
	p := &page{}
	if err := p.pressures(r); err != nil || strings.Count(string(p.b), " 0\n") != 6 {
		t.Fatalf("%v, %s", err, p.b)
	}
	if len(r.files) != 3 {
		t.Errorf("%d files are open", len(r.files))
	}
	for name, text := range map[string]string{"cpu": pressure(3_500_000, 1_000_010), "io": pressure(2_000_020, 30), "memory": pressure(40, 4_000_050)} {
		noError(t, os.WriteFile(r.files["/mnt/groups/a/b/"+name+".pressure"].Name(), []byte(text), 0o600))
	}
	p.b = p.b[:0]
	noError(t, p.pressures(r))
	check(t, "page", string(p.b), `process_pressure_cpu_waiting_seconds_total 2.5
process_pressure_cpu_stalled_seconds_total 1
process_pressure_io_waiting_seconds_total 2
process_pressure_io_stalled_seconds_total 0
process_pressure_memory_waiting_seconds_total 0
process_pressure_memory_stalled_seconds_total 4
`)
	_ = r.files["/mnt/groups/a/b/io.pressure"].Close() // reads fail from now on
	p.b = p.b[:0]
	if err := p.pressures(r); err == nil || len(p.b) != 0 {
		t.Errorf("%v, %s", err, p.b)
	}
	if err := p.pressures(r); err != nil || len(p.b) != 0 { // they are not read again
		t.Errorf("%v, %s", err, p.b)
	}
}

func TestProcReader_FindCgroup(t *testing.T) {
	for _, tt := range []struct{ groups, mounts, want string }{
		{"0::/a\n", "30 1 0:27 / /mnt rw - cgroup2 cgroup rw\n", "/mnt/a"}, {"0::/\n", "30 1 0:27 / /mnt rw - cgroup2 cgroup rw\n", "/mnt"},
		{"0::/a\n", "30 1 0:27 / /mnt rw - cgroup cgroup rw\n", "/sys/fs/cgroup/a"}, {"0::/a\n", "30 1 0:27 /\n", "/sys/fs/cgroup/a"},
		{"0::/a\n", "30 1 0:27 / - cgroup2 cgroup rw\n", "/sys/fs/cgroup/a"}, {"0::/a\n", "", "/sys/fs/cgroup/a"}, {"1:cpu:/a\n", "", ""}, {"", "", ""},
	} {
		r := procOf(t, map[string]string{"/proc/self/cgroup": tt.groups, "/proc/self/mountinfo": tt.mounts})
		if got := r.findCgroup(); got != tt.want {
			t.Errorf("%q, %q: %q, want %q", tt.groups, tt.mounts, got, tt.want)
		}
		if _, there := r.files["/proc/self/cgroup"]; there {
			t.Error("the file is still open")
		}
	}
	p := &page{}
	if err := p.pressures(procOf(t, map[string]string{"/proc/self/cgroup": "1:cpu:/a\n"})); err != nil || len(p.b) != 0 {
		t.Errorf("without a cgroup: %v, %s", err, p.b)
	}
}

func TestProcReader_NumbersAfterKeys(t *testing.T) {
	const text = "a 1\nb  2\nc\tunlimited\nd\ne9\n"
	for key, want := range map[string]struct {
		n  uint64
		ok bool
	}{"a ": {1, true}, "b ": {2, true}, "c": {0, false}, "d": {0, false}, "e": {9, true}, "x": {0, false}, "1": {0, false}} {
		for _, data := range []string{text, strings.TrimSuffix(text, "\n")} {
			if n, ok := field([]byte(data), key); n != want.n || ok != want.ok {
				t.Errorf("%q: %d, %v", key, n, ok)
			}
		}
	}
	for text, want := range map[string]uint64{"": 0, "0": 0, "9:": 9, "10/": 10, "x1": 0, "18446744073709551615": 1<<64 - 1} {
		if got := number([]byte(text)); got != want {
			t.Errorf("%q: %d", text, got)
		}
	}
	for text, want := range map[string]uint64{
		"some avg10=1.00 total=7\nfull avg10=1.00 total=8\n": 7, "full total=8\nsome total=7": 7, "full total=8\n": 0, "some ": 0, "some avg10=1\nfull total=8\n": 0, "": 0,
	} {
		if got := total([]byte(text), "some "); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
}
