package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// deployedCalls returns the command lines of the units, of the image and of the manifests in deploy, by file.
func deployedCalls(t *testing.T) map[string][]string {
	t.Helper()
	calls := map[string][]string{}
	for name, u := range readUnits(t) {
		calls[name] = u.args
	}
	text, err := os.ReadFile("../../deploy/Containerfile")
	if err != nil {
		t.Fatal(err)
	}
	_, stage, _ := strings.Cut(string(text), "\nFROM files AS ferula\n")
	_, after, _ := strings.Cut(stage, "\nCMD ")
	var image []string
	if err := json.Unmarshal([]byte(after), &image); err != nil {
		t.Fatalf("Containerfile: %v", err)
	}
	calls["Containerfile"] = image
	for _, w := range readManifests(t).workloads {
		for _, c := range w.pod.Spec.Containers {
			if c.Image == ferulaImage {
				calls[w.name+"/"+c.Name] = c.Args
			}
		}
	}
	return calls
}

// effectiveFlags returns the values of a command line's flags, and the defaults of all others.
func effectiveFlags(t *testing.T, args []string) map[string]string {
	t.Helper()
	k, _, err := parseArgs(parserOf(t, &commands{}), args)
	if err != nil {
		t.Fatalf("%q: %v", args, err)
	}
	values := map[string]string{}
	for _, f := range k.Flags() {
		if !f.Hidden {
			values[f.Name] = strings.Trim(fmt.Sprint(f.Target.Interface()), "[]")
		}
	}
	return values
}

func TestDeploy_UnitsAndManifestsHaveCommandLinesThatAreAccepted(t *testing.T) {
	calls, parts := deployedCalls(t), map[string]int{}
	for path, args := range calls {
		if len(args) < 2 {
			t.Errorf("%s has no command line: %q", path, args)
			continue
		}
		parts[args[0]]++
		if _, err := parse(t, args...); err != nil {
			t.Errorf("%s: %v", path, err)
		}
		if ignored := ignoredNames(t, args...); len(ignored) > 0 {
			t.Errorf("%s: flags without effect: %q", path, ignored)
		}
	}
	for _, part := range []string{"serve", "query", "query-frontend", "sidecar", "store", "profiles"} {
		if parts[part] < 2 {
			t.Errorf("%s needs a unit and a manifest; %d command lines found", part, parts[part])
		}
	}
}

// unit is a unit of systemd.
type unit struct {
	text string
	args []string // of ExecStart
	keys map[string][]string
}

var errUnit = errors.New("invalid unit")

func parseUnit(text string) (unit, error) {
	u := unit{text: text, keys: map[string][]string{}}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' || line[0] == '[' {
			continue
		}
		name, value, ok := strings.Cut(line, "=")
		if !ok {
			return u, fmt.Errorf("%w: %q", errUnit, line)
		}
		u.keys[name] = append(u.keys[name], value)
	}
	for _, start := range u.keys["ExecStart"] {
		words := strings.Fields(start)
		if len(u.args) > 0 || len(words) < 3 || words[0] != "/usr/bin/ferula" || words[len(words)-1] != "$ARGS" {
			return u, fmt.Errorf("%w: ExecStart=%s", errUnit, start)
		}
		u.args = words[1 : len(words)-1]
	}
	return u, nil
}

// readUnits returns the units by the names of their files.
func readUnits(t *testing.T) map[string]unit {
	t.Helper()
	paths, err := filepath.Glob("../../deploy/systemd/*.service")
	if err != nil || len(paths) < 6 {
		t.Fatal(paths, err)
	}
	units := map[string]unit{}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if units[filepath.Base(path)], err = parseUnit(string(text)); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
	}
	return units
}

// Two units on one machine do not share a port.
func TestDeploy_PortsOfUnitsDiffer(t *testing.T) {
	owner := map[string]string{}
	for path, u := range readUnits(t) {
		for name, address := range effectiveFlags(t, u.args) {
			if !strings.HasSuffix(name, "-address") {
				continue
			}
			if owner[address] != "" {
				t.Errorf("%s --%s and %s listen on %s", path, name, owner[address], address)
			}
			owner[address] = path
		}
	}
}

// writtenDirs are flags that name directories which the process writes.
var writtenDirs = []string{"storage.tsdb.path", "data-dir"}

// The file system is read-only to a unit, except its own directory, which only its user can read.
func TestDeploy_UnitsOwnTheirDirectoriesAndNothingElse(t *testing.T) {
	var common []string
	for path, u := range readUnits(t) {
		flags := effectiveFlags(t, u.args)
		for _, name := range writtenDirs {
			dir, ok := flags[name]
			if !ok {
				continue
			}
			owned := u.keys["StateDirectory"]
			if len(owned) != 1 || dir != "/var/lib/"+owned[0] || !slices.Equal(u.keys["StateDirectoryMode"], []string{"0750"}) {
				t.Errorf("%s: --%s=%s is not in StateDirectory=%q with mode %q", path, name, dir, owned, u.keys["StateDirectoryMode"])
			}
		}
		if !slices.Equal(u.keys["User"], []string{"ferula"}) || !slices.Equal(u.keys["Group"], []string{"ferula"}) {
			t.Errorf("%s runs as %q:%q", path, u.keys["User"], u.keys["Group"])
		}
		if name := "/etc/default/" + strings.TrimSuffix(path, ".service"); !slices.Equal(u.keys["EnvironmentFile"], []string{"-" + name}) {
			t.Errorf("%s: EnvironmentFile=%q, not -%s", path, u.keys["EnvironmentFile"], name)
		}
		// All units have the same protection; the sidecar may also write in Prometheus' directory.
		_, protection, _ := strings.Cut(u.text, "NoNewPrivileges")
		lines := strings.Split(protection, "\n")
		if strings.Contains(path, "sidecar") {
			lines = slices.DeleteFunc(lines, func(line string) bool {
				return strings.HasPrefix(line, "#") || strings.HasPrefix(line, "ReadWritePaths=")
			})
		}
		if common == nil {
			common = lines
		}
		if !slices.Equal(lines, common) {
			t.Errorf("%s is protected by\n%q, others by\n%q", path, lines, common)
		}
	}
}

// exposureMax is ten times the exposure that `systemd-analyze security` may compute; without any protection it is 96.
const exposureMax = 20

func TestDeploy_SystemdAcceptsTheUnits(t *testing.T) {
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Skip("needs systemd-analyze")
	}
	analyze := func(args ...string) (string, error) {
		out, err := exec.Command("systemd-analyze", args...).CombinedOutput()
		return string(out), err
	}
	security := []string{"security", "--offline=yes", fmt.Sprintf("--threshold=%d", exposureMax)}
	help, err := analyze("--help")
	if err != nil {
		t.Fatal(err)
	}
	offline := strings.Contains(help, "--offline") // since version 250
	verify := func(text string) error {
		// The program and the user need not exist on this machine.
		path := filepath.Join(t.TempDir(), "ferula-test.service")
		if err := os.WriteFile(path, []byte(strings.NewReplacer("/usr/bin/ferula", "/bin/true", "User=ferula", "User=root", "Group=ferula", "").Replace(text)), 0o600); err != nil {
			t.Fatal(err)
		}
		// verify only warns about keys that it does not know.
		if out, err := analyze("verify", "--man=no", path); err != nil || out != "" {
			return fmt.Errorf("%w: %w: %s", errUnit, err, out)
		}
		if offline {
			// The user counts.
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			if out, err := analyze(append(security, path)...); err != nil {
				return fmt.Errorf("%w: %w: %s", errUnit, err, out)
			}
		}
		return nil
	}
	for path, u := range readUnits(t) {
		if err := verify(u.text); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
	text := readUnits(t)["ferula-serve.service"].text
	for _, change := range [][2]string{{"ProtectClock", "ProtectClocks"}, {"Type=exec", "Type=exe"}, {"SystemCallFilter=@system-service", "SystemCallFilter=@system-services"}, {"[Service]", "[Server]"}} {
		if err := verify(strings.Replace(text, change[0], change[1], 1)); err == nil {
			t.Errorf("%q is accepted", change)
		}
	}
	if err := verify(strings.Replace(text, "\nCapabilityBoundingSet=\n", "\n", 1)); offline && err == nil {
		t.Error("a unit that may get the capabilities of root is accepted")
	}
}

// A removal of a package stops every unit that the package has.
func TestDeploy_PackagesStopTheirUnits(t *testing.T) {
	script, err := os.ReadFile("../../deploy/packages/preremove.sh")
	if err != nil {
		t.Fatal(err)
	}
	words := strings.Fields(string(script))
	for path := range readUnits(t) {
		if name := strings.TrimSuffix(path, ".service"); !slices.Contains(words, name) {
			t.Errorf("preremove.sh does not stop %s", name)
		}
	}
}
