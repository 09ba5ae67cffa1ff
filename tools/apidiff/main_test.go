package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// repository returns a function that writes files into a git repository, commits them and sets tags.
func repository(t *testing.T) (root string, commit func(files map[string]string, tags ...string)) {
	t.Helper()
	root = t.TempDir()
	for _, v := range []string{"GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL"} {
		t.Setenv(v, "a@example.org")
	}
	t.Setenv("GOFLAGS", "")
	commands := func(all ...[]string) {
		for _, args := range all {
			if _, err := git(root, nil, args...); err != nil {
				t.Fatal(err)
			}
		}
	}
	commands([]string{"init", "-q"})
	return root, func(files map[string]string, tags ...string) {
		for name, text := range files {
			file := filepath.Join(root, name)
			if err := os.MkdirAll(filepath.Dir(file), 0o750); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		commands([]string{"add", "-A"}, []string{"commit", "-q", "--allow-empty", "-m", "x"})
		for _, tag := range tags {
			commands([]string{"tag", tag})
		}
	}
}

const (
	goMod = "module example.org/metrics\n\ngo 1.24\n"
	one   = "package metrics\n\ntype Counter struct{}\n\nfunc (*Counter) Inc() {}\n\nfunc (*Counter) Add(n int) {}\n\nfunc Old() {}\n"
	other = "package metrics\n\ntype Counter struct{}\n\nfunc (*Counter) Inc() {}\n\nfunc (*Counter) Add(n int64) {}\n\nfunc New() {}\n"
)

func expect(t *testing.T, root, version string, modules []string, output string, errors ...string) {
	t.Helper()
	var out strings.Builder
	err := run(root, version, modules, &out)
	if !strings.Contains(out.String(), output) {
		t.Errorf("version %q: got %q, want %q", version, out.String(), output)
	}
	if err == nil && len(errors) > 0 || err != nil && len(errors) == 0 {
		t.Errorf("version %q: error %v, want %q", version, err, errors)
	}
	for _, want := range errors {
		if err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("version %q: error %v, want %q", version, err, want)
		}
	}
}

func TestRun_IncompatibleChangesAreNamedAndNotInPatchVersions(t *testing.T) {
	root, commit := repository(t)
	in := []string{"metrics"}
	commit(map[string]string{"metrics/go.mod": goMod, "metrics/m.go": one, "CHANGELOG.md": "# Changelog\n\n## Unreleased\n\n- FEATURE: Old, Add.\n"})
	expect(t, root, "v0.1.0", in, "metrics has no tag")
	commit(map[string]string{"CHANGELOG.md": "# Changelog\n\n## 0.1.0\n\n- FEATURE: Old, Add.\n"}, "metrics/v0.0.9", "metrics/v0.1.0", "metrics/vendor")
	expect(t, root, "", in, "metrics since v0.1.0: 0 changes")

	commit(map[string]string{"metrics/m.go": one + "\nfunc New() {}\n"})
	expect(t, root, "v0.1.1", in, "  compatible:   New: added")

	commit(map[string]string{"metrics/m.go": other})
	expect(t, root, "", in, "  incompatible: Old: removed", "does not name Old", "does not name Add")
	commit(map[string]string{"CHANGELOG.md": "# Changelog\n\n## Unreleased\n\n- CHANGE: `Old` is `New`; `Add` takes an int64.\n\n## 0.1.0\n\n- FEATURE: Old, Add.\n"})
	expect(t, root, "", in, "  compatible:   New: added")
	expect(t, root, "v0.1.1", in, "3 changes", "patch version v0.1.1")
	expect(t, root, "v0.2.0", in, "since v0.1.0: 3 changes")

	commit(nil, "metrics/v1.0.0")
	expect(t, root, "v0.2.0", in, "since v0.1.0: 3 changes") // a tag above the version does not count
	commit(map[string]string{"metrics/m.go": one})
	expect(t, root, "v1.1.0", in, "since v1.0.0: 3 changes", "v1.1.0 after v1.0.0")
	expect(t, root, "1.1", in, "", "not of the form")
}

// A tagged module requires the one around it by a version that no proxy has.
func TestRun_NestedModule(t *testing.T) {
	root, commit := repository(t)
	in := []string{"metrics", "metrics/compat"}
	use := "package compat\n\nimport \"example.org/metrics\"\n\nfunc Use(c *metrics.Counter) { c.Inc() }\n"
	mod := "module example.org/metrics/compat\n\ngo 1.24\n\nrequire example.org/metrics "
	commit(map[string]string{"metrics/go.mod": goMod, "metrics/m.go": one, "metrics/compat/go.mod": mod + "v0.1.0\n", "metrics/compat/c.go": use, "CHANGELOG.md": "Names: Use.\n"},
		"metrics/v0.1.0", "metrics/compat/v0.1.0")
	commit(map[string]string{"metrics/compat/go.mod": mod + "v0.0.0\n\nreplace example.org/metrics => ../\n", "metrics/compat/c.go": strings.ReplaceAll(use, "Use", "Used"), "metrics/internal/x/x.go": "package x\n\nfunc X() {}\n"})
	expect(t, root, "v0.2.0", in, "metrics since v0.1.0: 0 changes")
	expect(t, root, "v0.2.0", in, "  incompatible: Use: removed")
}

func TestNameIn(t *testing.T) {
	for message, want := range map[string]string{
		"(*Counter).Add: changed from func(n int) to func(n int64)": "Add", "Old: removed": "Old", "package example.org/metrics/httpmetrics: removed": "httpmetrics",
		"./httpmetrics.Options.Prefix: removed": "Prefix", "(*Vec[M]).With: removed": "With",
	} {
		if got := nameIn(message); got != want {
			t.Errorf("%s: got %q, want %q", message, got, want)
		}
	}
}
