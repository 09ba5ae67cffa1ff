package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// foreignFlags are flags in the documentation that belong to other programs.
var foreignFlags = map[string]string{
	"data-urlencode": "curl", "data-binary": "curl", "include": "grep", "wait": "thanos compact", "compact.enable-vertical-compaction": "thanos compact",
	"id": "thanos tools", "rewrite.to-delete-config": "thanos tools", "no-dry-run": "thanos tools", "delete-blocks": "thanos tools",
	"marker": "thanos tools", "details": "thanos tools",
	"system": "useradd", "no-create-home": "useradd", "now": "systemctl", "from-file": "kubectl",
	"install": "helm", "set": "helm", "reuse-values": "helm", "cascade": "kubectl",
	"all": "skopeo", "build-arg": "podman", "chown": "podman",
}

var (
	// A flag. A star or an ellipsis at its end makes it a prefix of several flags.
	namedFlag = regexp.MustCompile(`(?:^|[^\w-])--(\[no-\])?([a-z][a-z0-9]*(?:[._-][a-zA-Z0-9]+)*)([.-]?[*…])?`)
	// A command line of ferula up to the end of the command.
	ferulaCall = regexp.MustCompile("(?:ferula|cmd/ferula|\\[)\\s*(serve|query|query-frontend|sidecar|store|read|compare|check|profiles)[ ,]([^|;&`#]*)")
)

// documentFiles returns the documents and examples that name flags. Scripts name those of other programs.
func documentFiles(t *testing.T) (paths []string) {
	t.Helper()
	const root = "../.."
	paths = []string{root + "/README.md", root + "/SECURITY.md", root + "/CONTRIBUTING.md"}
	for _, folder := range []string{"docs", "deploy", "mixin"} {
		err := filepath.WalkDir(filepath.Join(root, folder), func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if !d.IsDir() && (slices.Contains([]string{".md", ".yml", ".yaml", ".service", ".alloy", ".json"}, filepath.Ext(path)) || d.Name() == "Containerfile") {
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
