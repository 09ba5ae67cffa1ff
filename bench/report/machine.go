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
	CPU    string `json:"cpu"`
	Cores  int    `json:"cores"`
	Kernel string `json:"kernel"`
	Go     string `json:"go"`
}

// String returns the machine in one line.
func (m Machine) String() string {
	return fmt.Sprintf("%s, %d cores, Linux %s, %s", m.CPU, m.Cores, m.Kernel, m.Go)
}

// ThisMachine reads the description of this machine; a missing value is "unknown".
func ThisMachine() Machine {
	cpuinfo, _ := os.ReadFile("/proc/cpuinfo")
	release, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	return Machine{CPU: cpuModel(cpuinfo), Cores: runtime.NumCPU(), Kernel: kernel(string(release)), Go: runtime.Version()}
}

func cpuModel(cpuinfo []byte) string {
	for line := range bytes.Lines(cpuinfo) {
		if name, value, ok := strings.Cut(string(line), ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return "unknown"
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
