package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// module is a directory with files, and the line that `go list` prints for a package of it.
func module(t *testing.T, dir, name, inside string, files map[string]string) string {
	t.Helper()
	root := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Join(root, inside), 0o700); err != nil {
		t.Fatal(err)
	}
	for file, content := range files {
		if err := os.WriteFile(filepath.Join(root, file), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	line, err := json.Marshal(map[string]any{"Dir": filepath.Join(root, inside), "Module": map[string]any{"Path": "example/" + name, "Version": "v1.0.0", "Dir": root}})
	if err != nil {
		t.Fatal(err)
	}
	return string(line) + "\n"
}

func TestAddPackages_LicencesOfModulesAndOfCopiedCode(t *testing.T) {
	dir := t.TempDir()
	listed := module(t, dir, "b", "in/side", map[string]string{"LICENSE": "Terms of b.\n", "in/side/COPYING.txt": "Terms of\nothers.\n", "license.go": "package b"}) +
		module(t, dir, "a", "", map[string]string{"NOTICE": "Notice of a.\n", "LICENCE.md": "Terms of others.\n"}) +
		`{"Standard": true, "Dir": "/nowhere"}` + "\n" +
		`{"Dir": "/nowhere", "Module": {"Path": "example/main", "Main": true}}` + "\n"
	var got [2]bytes.Buffer
	for i := range got {
		all := texts{}
		if err := all.addPackages([]byte(listed)); err != nil {
			t.Fatal(err)
		}
		if err := all.print(&got[i]); err != nil {
			t.Fatal(err)
		}
	}
	line := "\n" + strings.Repeat("-", 100) + "\n"
	_, rest, _ := strings.Cut(got[0].String(), "/LICENSES.txt.\n")
	want := line + "example/a v1.0.0 LICENCE.md\nexample/b v1.0.0 in/side/COPYING.txt" + line + "\nTerms of\nothers.\n" +
		line + "example/a v1.0.0 NOTICE" + line + "\nNotice of a.\n" +
		line + "example/b v1.0.0 LICENSE" + line + "\nTerms of b.\n"
	if rest != want {
		t.Errorf("got %s\nwant %s", rest, want)
	}
	if got[0].String() != got[1].String() {
		t.Error("a second run prints other bytes")
	}
}

func TestAddPackages_RefusesModulesWithoutAPermittedLicence(t *testing.T) {
	for name, files := range map[string]map[string]string{
		"none":   {"README": "no licence"},
		"affero": {"LICENSE": "          GNU AFFERO GENERAL PUBLIC LICENSE\n  Version 3, 19 November 2007\n"},
		"gpl":    {"LICENSE": "\n  GNU GENERAL PUBLIC LICENSE\n"},
		"sspl":   {"LICENSE": "Server Side Public License\n"},
		"busl":   {"LICENSE": "Business Source License 1.1\n"},
	} {
		err := texts{}.addPackages([]byte(module(t, t.TempDir(), name, "", files)))
		if err == nil || !strings.Contains(err.Error(), "example/"+name+" v1.0.0") {
			t.Errorf("%s: %v", name, err)
		}
	}
	// MPL-2.0 names the GPL among the licences that it is compatible with.
	mpl := "Mozilla Public License, version 2.0\n\n1. Definitions\n" + strings.Repeat("words ", 50) + "GNU General Public License, Version 2.0"
	if err := (texts{}).addPackages([]byte(module(t, t.TempDir(), "mpl", "", map[string]string{"LICENSE": mpl}))); err != nil {
		t.Error(err)
	}
}

func TestRun_OneProgram(t *testing.T) {
	var out bytes.Buffer
	if err := run([]string{"."}, &out); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "\nGo go1.") || !strings.Contains(out.String(), "Copyright 2009 The Go Authors") {
		t.Errorf("%s", out.Bytes())
	}
	for _, args := range [][]string{nil, {"a", "b"}, {"./missing"}, {"-nonsense"}} {
		if err := run(args, &out); err == nil {
			t.Errorf("%q: no error", args)
		}
	}
}
