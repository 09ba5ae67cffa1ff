package report

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
)

// Machine says what the figures were measured on.
type Machine struct {
	CPU    string `json:"cpu"`
	Cores  int    `json:"cores"`
	Kernel string `json:"kernel"`
	Go     string `json:"go"`
}

// String is the machine in one line.
func (m Machine) String() string {
	return fmt.Sprintf("%s, %d cores, Linux %s, %s", m.CPU, m.Cores, m.Kernel, m.Go)
}

// ThisMachine reads what the machine says of itself; what it does not say is "unknown".
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

// kernel is the version without what a distribution appends to it.
func kernel(release string) string {
	version, _, _ := strings.Cut(strings.TrimSpace(release), "-")
	if version == "" {
		return "unknown"
	}
	return version
}

// Commit names the tree in dir: the commit, and "+" when files that git knows were changed since. The report itself
// does not count.
func Commit(dir string) string {
	hash, err := git(dir, "rev-parse", "--short=12", "HEAD")
	if err != nil {
		return "unknown"
	}
	changed, err := git(dir, "status", "--porcelain", "--untracked-files=no", "--", ".", ":(exclude)bench/RESULTS.md")
	if err != nil || changed != "" {
		hash += "+"
	}
	return hash
}

func git(dir string, args ...string) (string, error) {
	out, err := exec.Command("git", append([]string{"-C", dir}, args...)...).Output()
	return strings.TrimSpace(string(out)), err
}
