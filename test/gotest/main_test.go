package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// line is an action, a test and an output of package p.
type line [3]string

func events(t *testing.T, lines ...line) string {
	t.Helper()
	var b strings.Builder
	for _, l := range lines {
		text, err := json.Marshal(event{Action: l[0], Package: module + "p", Test: l[1], Output: l[2]})
		if err != nil {
			t.Fatal(err)
		}
		b.Write(text)
		b.WriteByte('\n')
	}
	return b.String()
}

// ends is a test that prints text and ends so; "" is a test that does not end.
func ends(test, text, action string) []line {
	lines := []line{{"run", test, ""}, {"output", test, "=== RUN   " + test + "\n"}, {"output", test, text}}
	if action != "" {
		lines = append(lines, line{action, test, ""})
	}
	return lines
}

func TestShow_PrintsWhatGoTestPrints(t *testing.T) {
	passes, fails := ends("TestA", "text of A\n", "pass"), ends("TestB", "text of B\n", "fail")
	hangs := ends("TestC", "WARNING: DATA RACE\n", "")
	prints := func(text string) []line { return []line{{"output", "", text}} }
	ok, failed := prints("ok  \tp\n"), prints("FAIL\tp\n")
	for _, c := range []struct {
		name, end, want string
		of              [][]line
		verbose         bool
	}{
		{"of a package that passes, its line", "pass", "ok  \tp\n", [][]line{passes, prints("PASS\n"), ok}, false},
		{"of a failure, the failing tests", "fail", "text of B\nFAIL\tp\n", [][]line{passes, fails, failed}, false},
		{"tests that did not end", "fail", "WARNING: DATA RACE\nFAIL\tp\n", [][]line{passes, hangs, failed}, false},
		{"everything if no test failed", "fail", "text of A\nleak\n", [][]line{passes, prints("leak\n")}, false},
		{"everything with -v", "pass", "=== RUN   TestA\ntext of A\nok  \tp\n", [][]line{passes, ok}, true},
		{"everything of an interrupted run", "", "text of A\n", [][]line{passes}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			in := events(t, slices.Concat(c.of...)...)
			if c.end != "" {
				in += events(t, line{c.end, "", ""})
			}
			var got strings.Builder
			if _, err := show(strings.NewReader(in), &got, c.verbose); err != nil || got.String() != c.want {
				t.Errorf("got %q, %v, want %q", got.String(), err, c.want)
			}
		})
	}
}

func TestCheck_SkipsThatAreNotListedFail(t *testing.T) {
	skipped := ends("TestA", "    a_test.go:1: needs  a\n", "skip")
	ran := slices.Concat(ends("TestB", "", "skip"), ends("TestB", "", "pass"))
	record, err := show(strings.NewReader(events(t, slices.Concat(skipped, ran)...)), &strings.Builder{}, false)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, c := range []struct{ name, list, record, want, fails string }{
		{"not listed", "# nothing\n", record, "NOT LISTED: p TestA: a_test.go:1: needs a\n", "1 tests were skipped"},
		{"listed", "TestA no a in CI\n", record, "listed: p TestA: a_test.go:1: needs a\n", ""},
		{"by a pattern", "Test? no a in CI\n", record, "listed: p TestA: a_test.go:1: needs a\n", ""},
		{"another test", "TestAB no a in CI\n", record, "NOT LISTED: p TestA: a_test.go:1: needs a\n", "1 tests were skipped"},
		{"without a reason", "TestA\n", record, "", "no pattern with a reason"},
		{"nothing ran", "", "", "", "no test that ran"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got strings.Builder
			err := check(write("list", c.list), write("record", c.record), &got)
			wrong := (err == nil) != (c.fails == "") || err != nil && !strings.Contains(err.Error(), c.fails)
			if got.String() != c.want || wrong {
				t.Errorf("got %q, %v", got.String(), err)
			}
		})
	}
}
