package report

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
)

// Machine describes the machine of a run.
type Machine struct {
	CPU    string `json:"cpu"` // its name, with family, model and L2, because virtual machines have names such as "AMD EPYC" for all of them
	Cores  int    `json:"cores"`
	Kernel string `json:"kernel"`
	Go     string `json:"go"`
}

// String returns the machine in one line.
func (m Machine) String() string {
	return fmt.Sprintf("%s, Linux %s, %s", m.Processor(), m.Kernel, m.Go)
}

// Processor returns the CPU and the number of its cores. It decides which runs are of the same machine: kernel and Go may
// change.
func (m Machine) Processor() string { return fmt.Sprintf("%s, %d cores", m.CPU, m.Cores) }

// processorOf returns the Processor of a machine in one line, as String writes it.
func processorOf(machine string) string {
	before, _, ok := strings.Cut(machine, " cores")
	if !ok {
		return machine
	}
	return before + " cores"
}

// detailsOfCPU begins the part of a CPU that follows its name.
const detailsOfCPU = " (family "

// is reports whether a section of RESULTS.md, whose line of the machine is given, is of this machine. Older sections have the
// name of the CPU only, which is all that can be compared.
func (m Machine) is(line string) bool {
	of := processorOf(line)
	if strings.Contains(of, detailsOfCPU) {
		return of == m.Processor()
	}
	name, _, _ := strings.Cut(m.CPU, detailsOfCPU)
	return of == Machine{CPU: name, Cores: m.Cores}.Processor()
}

// ThisMachine reads the description of this machine; a missing value is "unknown".
func ThisMachine() Machine {
	cpuinfo, _ := os.ReadFile("/proc/cpuinfo")
	release, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	l2, _ := os.ReadFile("/sys/devices/system/cpu/cpu0/cache/index2/size")
	return Machine{CPU: cpuModel(cpuinfo, string(l2)), Cores: runtime.NumCPU(), Kernel: kernel(string(release)), Go: runtime.Version()}
}

// cpuModel returns the name of the first CPU, with family, model and the size of L2 if they are known.
func cpuModel(cpuinfo []byte, l2 string) string {
	found := map[string]string{}
	for line := range bytes.Lines(cpuinfo) {
		name, value, ok := strings.Cut(string(line), ":")
		if name = strings.TrimSpace(name); ok && found[name] == "" {
			found[name] = strings.TrimSpace(value)
		}
	}
	name, family, model := found["model name"], found["cpu family"], found["model"]
	if name == "" {
		return "unknown"
	}
	if family == "" || model == "" {
		return name
	}
	name += detailsOfCPU + family + ", model " + model
	if kib, ok := strings.CutSuffix(strings.TrimSpace(l2), "K"); ok {
		name += ", L2 " + kib + " KiB"
	}
	return name + ")"
}

// kernel returns the version without a distribution's suffix.
func kernel(release string) string {
	version, _, _ := strings.Cut(strings.TrimSpace(release), "-")
	if version == "" {
		return "unknown"
	}
	return version
}

// Commit returns the commit of the tree in dir, with a "+" if tracked files have changed since. Changes of the reports
// of earlier areas are ignored: RESULTS.md and the plots.
func Commit(dir string) string {
	hash, err := git(dir, "rev-parse", "--short=12", "HEAD")
	if err != nil {
		return "unknown"
	}
	changed, err := git(dir, "status", "--porcelain", "--untracked-files=no", "--", ".", ":(exclude)bench/RESULTS.md", ":(exclude)docs/perf/*.svg")
	if err != nil || changed != "" {
		hash += "+"
	}
	return hash
}

func git(dir string, args ...string) (string, error) {
	out, err := exec.Command("git", append([]string{"-C", dir}, args...)...).Output()
	return strings.TrimSpace(string(out)), err
}
