package main

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// foreignFlags are flags in the documentation that belong to other programs.
var foreignFlags = map[string]string{
	"data-urlencode": "curl", "data-binary": "curl", "include": "grep", "wait": "thanos compact", "compact.enable-vertical-compaction": "thanos compact",
	"system": "useradd", "no-create-home": "useradd", "now": "systemctl", "from-file": "kubectl",
	"tags": "git", "match": "git", "always": "git", "dirty": "git", "verify": "git", "stdin": "git", "cacheinfo": "git",
	"sort": "tar", "owner": "tar", "group": "tar", "numeric-owner": "tar", "mtime": "tar",
}

var (
	// A flag. A star or an ellipsis at its end makes it a prefix of several flags.
	namedFlag = regexp.MustCompile(`(?:^|[^\w-])--(\[no-\])?([a-z][a-z0-9]*(?:[._-][a-zA-Z0-9]+)*)([.-]?[*…])?`)
	// A command line of ferula up to the end of the command.
	ferulaCall = regexp.MustCompile("(?:ferula|cmd/ferula|\\[)\\s*(serve|query|query-frontend|sidecar|store|read|check|profiles)[ ,]([^|;&`#]*)")
)

// documentFiles returns the documents and examples that name flags.
func documentFiles(t *testing.T) (paths []string) {
	t.Helper()
	const root = "../.."
	paths = []string{root + "/README.md", root + "/SECURITY.md", root + "/CONTRIBUTING.md"}
	for _, folder := range []string{"docs", "deploy", "mixin"} {
		err := filepath.WalkDir(filepath.Join(root, folder), func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if !d.IsDir() && (slices.Contains([]string{".md", ".yml", ".yaml", ".service", ".sh", ".alloy", ".json"}, filepath.Ext(path)) || d.Name() == "Containerfile") {
				paths = append(paths, path)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return paths
}

// allFlags returns the names of the flags of each command, also with the prefix no- if they
// can be turned off; "" is for all commands together.
func allFlags(t *testing.T) map[string]map[string]bool {
	t.Helper()
	flags := map[string]map[string]bool{"": {"help": true, "version": true, "no-NAME": true}}
	for _, leaf := range parserOf(t, &commands{}).Model.Leaves(false) {
		top := leaf
		for top.Parent.Parent != nil {
			top = top.Parent
		}
		if flags[top.Name] == nil {
			flags[top.Name] = map[string]bool{"help": true}
		}
		for _, f := range leaf.Flags {
			names := []string{f.Name}
			if f.Tag != nil && f.Tag.Negatable != "" {
				names = append(names, "no-"+f.Name)
			}
			for _, n := range names {
				flags[top.Name][n], flags[""][n] = true, true
			}
		}
	}
	return flags
}

// Every flag in a document is a flag of the program. The flags of a command line in a
// document are flags of its command, so that a reader who copies the line gets no error.
func TestDocs_FlagsAreThoseOfTheProgram(t *testing.T) {
	flags, checked, calls := allFlags(t), 0, 0
	for _, path := range documentFiles(t) {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		joined := strings.ReplaceAll(string(text), "\\\n", " ")
		for _, m := range namedFlag.FindAllStringSubmatch(joined, -1) {
			checked++
			if fault := unknownFlag(flags[""], m); fault != "" {
				t.Errorf("%s: %s", path, fault)
			}
		}
		for _, call := range ferulaCall.FindAllStringSubmatch(joined, -1) {
			line, _, _ := strings.Cut(call[2], "\n")
			if strings.Contains(line, " --") {
				calls++
			}
			for _, m := range namedFlag.FindAllStringSubmatch(line, -1) {
				if fault := unknownFlag(flags[call[1]], m); fault != "" {
					t.Errorf("%s: ferula %s: %s in %q", path, call[1], fault, line)
				}
			}
		}
	}
	if checked < 800 || calls < 25 {
		t.Errorf("only %d flags and %d command lines found", checked, calls)
	}
}

// unknownFlag returns the error of a match of namedFlag; "" if the flag exists.
func unknownFlag(known map[string]bool, match []string) string {
	name, several := match[2], match[3] != ""
	if foreignFlags[name] != "" || known[name] {
		return ""
	}
	if several {
		for flag := range known {
			if strings.HasPrefix(flag, name) {
				return ""
			}
		}
	}
	return "no flag --" + name + match[3]
}

func TestDocs_FaultsAreFound(t *testing.T) {
	flags := allFlags(t)
	for text, want := range map[string]bool{
		"`--query.timeout=1m`":        true,
		"--no-web.enable-lifecycle":   true,
		"--[no-]web.enable-lifecycle": true,
		"--web.console.*":             true,
		"--web.nothing.*":             false,
		"--query.timeouts":            false,
		"--no-query.timeout":          false,
	} {
		m := namedFlag.FindStringSubmatch(text)
		if m == nil || (unknownFlag(flags["serve"], m) == "") != want {
			t.Errorf("%s: %q", text, m)
		}
	}
}

// docs/ops/security.md promises that every listener is on loopback.
func TestDefaults_EveryListenerIsOnLoopback(t *testing.T) {
	listeners := 0
	for _, leaf := range parserOf(t, &commands{}).Model.Leaves(true) {
		for _, f := range leaf.Flags {
			if !strings.HasSuffix(f.Name, "-address") || f.Hidden {
				continue
			}
			listeners++
			if !strings.HasPrefix(f.Default, "127.0.0.1:") {
				t.Errorf("%s --%s listens on %q", leaf.Name, f.Name, f.Default)
			}
		}
	}
	if listeners < 9 {
		t.Errorf("only %d listeners found", listeners)
	}
}

// deployedCalls returns the command lines of the units and manifests in deploy, by file.
func deployedCalls(t *testing.T) map[string][]string {
	t.Helper()
	calls := map[string][]string{}
	for _, path := range documentFiles(t) {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case strings.HasSuffix(path, ".service"):
			_, start, _ := strings.Cut(string(text), "ExecStart=/usr/bin/ferula ")
			line, _, _ := strings.Cut(start, "\n")
			calls[path] = strings.Fields(strings.ReplaceAll(line, "$ARGS", ""))
		case strings.Contains(path, "kustomize"):
			decoder := yaml.NewDecoder(strings.NewReader(string(text)))
			for {
				var object struct {
					Spec struct {
						Template struct {
							Spec struct {
								Containers []struct {
									Image string
									Args  []string
								}
							}
						}
					}
				}
				err := decoder.Decode(&object)
				if errors.Is(err, io.EOF) {
					break
				}
				if err != nil {
					t.Fatalf("%s: %v", path, err)
				}
				for _, c := range object.Spec.Template.Spec.Containers {
					if c.Image == "ferula" {
						calls[path] = c.Args
					}
				}
			}
		}
	}
	return calls
}

func TestDeploy_UnitsAndManifestsHaveCommandLinesThatAreAccepted(t *testing.T) {
	calls := deployedCalls(t)
	if len(calls) < 9 {
		t.Errorf("only %d command lines found", len(calls))
	}
	for path, args := range calls {
		if len(args) < 2 {
			t.Errorf("%s has no command line: %q", path, args)
			continue
		}
		if _, err := parse(t, args...); err != nil {
			t.Errorf("%s: %v", path, err)
		}
		if ignored := ignoredNames(t, args...); len(ignored) > 0 {
			t.Errorf("%s: flags without effect: %q", path, ignored)
		}
	}
}

// Two units on one machine do not share a port, and connect to each other's.
func TestDeploy_PortsOfUnitsDiffer(t *testing.T) {
	owner := map[string]string{}
	for path, args := range deployedCalls(t) {
		if !strings.HasSuffix(path, ".service") {
			continue
		}
		listens := map[string]string{}
		for name, f := range flagsOf(t, args[0]) {
			if strings.HasSuffix(name, "-address") && !f.Hidden {
				listens[name] = f.Default
			}
		}
		for _, arg := range args[1:] {
			if name, value, _ := strings.Cut(strings.TrimPrefix(arg, "--"), "="); listens[name] != "" {
				listens[name] = value
			}
		}
		for name, address := range listens {
			if owner[address] != "" {
				t.Errorf("%s --%s and %s listen on %s", path, name, owner[address], address)
			}
			owner[address] = path
		}
	}
}

func TestDeploy_SystemdAcceptsTheUnits(t *testing.T) {
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Skip("needs systemd-analyze")
	}
	for path := range deployedCalls(t) {
		if !strings.HasSuffix(path, ".service") {
			continue
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		// The program and the user need not exist on this machine.
		unit := filepath.Join(t.TempDir(), filepath.Base(path))
		installed := strings.NewReplacer("/usr/bin/ferula", "/bin/true", "User=ferula", "User=root", "Group=ferula", "").Replace(string(text))
		if err := os.WriteFile(unit, []byte(installed), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command("systemd-analyze", "verify", "--man=no", unit).CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s", path, err, out)
		}
	}
}
