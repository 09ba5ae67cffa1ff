// Command gotest runs `go test` and records which tests ran and which were skipped, so that CI notices a test that no
// longer runs:
//
//	gotest ARGUMENTS...          runs go test ARGUMENTS
//	gotest -skips FILE RECORD    fails if a test was skipped that FILE does not list
//
// It prints what go test prints and ends with its status; -json and the record are all that it adds. Each test becomes a
// line of the file that FERULA_TEST_RECORD names: package, test, result and the reason of a skip, with tabs between. A
// test that was skipped in one run and ran in another one, for example without the race detector, was not skipped. A line
// of FILE has a pattern of tests and the reason why CI cannot run them.
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"
)

const module = "github.com/ferula-io/ferula/"

func main() {
	if len(os.Args) == 4 && os.Args[1] == "-skips" {
		if err := check(os.Args[2], os.Args[3], os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	status, err := run(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "gotest:", err)
		status = max(status, 1)
	}
	os.Exit(status)
}

func run(args []string) (status int, err error) {
	command := exec.Command("go", append([]string{"test", "-json"}, args...)...)
	command.Stderr = os.Stderr
	out, err := command.StdoutPipe()
	if err != nil {
		return 1, err
	}
	if err := command.Start(); err != nil {
		return 1, err
	}
	record, err := show(out, os.Stdout, slices.Contains(args, "-v"))
	if waitErr := command.Wait(); waitErr != nil {
		status = max(command.ProcessState.ExitCode(), 1)
		if _, exited := errors.AsType[*exec.ExitError](waitErr); !exited {
			err = errors.Join(err, waitErr)
		}
	}
	name := os.Getenv("FERULA_TEST_RECORD")
	if name == "" {
		return status, err
	}
	file, openErr := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if openErr != nil {
		return status, errors.Join(err, openErr)
	}
	_, writeErr := file.WriteString(record)
	return status, errors.Join(err, writeErr, file.Close())
}

// event is a line of go test -json: `go doc test2json`.
type event struct{ Action, Package, Test, Output string }

// tests are the events of a package until its end.
type tests struct {
	output []event
	shown  map[string]bool // tests that failed, or did not end
}

// show prints the events of go test -json as go test prints them without the flag, and returns the record.
func show(from io.Reader, to io.Writer, verbose bool) (record string, err error) {
	packages := map[string]*tests{}
	var lines strings.Builder
	in := bufio.NewReader(from)
	for {
		line, readErr := in.ReadBytes('\n')
		if len(line) == 0 {
			if readErr != io.EOF {
				err = readErr
			}
			break
		}
		var e event
		if json.Unmarshal(line, &e) != nil || e.Action == "build-output" {
			fmt.Fprint(to, cmp.Or(e.Output, string(line)))
			continue
		}
		p := packages[e.Package]
		if p == nil {
			p = &tests{shown: map[string]bool{}}
			packages[e.Package] = p
		}
		switch e.Action {
		case "run":
			p.shown[e.Test] = true
		case "output":
			p.output = append(p.output, e)
		case "pass", "skip", "fail":
			if e.Test == "" {
				p.print(to, e.Action == "fail", verbose)
				delete(packages, e.Package)
				continue
			}
			if e.Action != "fail" {
				delete(p.shown, e.Test)
			}
			reason := ""
			if e.Action == "skip" {
				reason = p.logged(e.Test)
			}
			fmt.Fprintf(&lines, "%s\t%s\t%s\t%s\n", e.Package, e.Test, e.Action, reason)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(packages)) { // of an interrupted run
		packages[name].print(to, true, verbose)
	}
	return lines.String(), err
}

func (p *tests) print(to io.Writer, failed, verbose bool) {
	for _, e := range p.output {
		frame := strings.HasPrefix(e.Output, "=== ")
		summary := strings.HasPrefix(e.Output, "ok  \t") || strings.HasPrefix(e.Output, "?   \t")
		wanted := !frame && (e.Test == "" || p.shown[e.Test] || len(p.shown) == 0)
		if verbose || e.Test == "" && summary || failed && wanted {
			fmt.Fprint(to, e.Output)
		}
	}
}

// logged returns what a test has printed, on one line.
func (p *tests) logged(test string) string {
	var words []string
	for _, e := range p.output {
		frame := strings.HasPrefix(e.Output, "=== ") || strings.HasPrefix(strings.TrimSpace(e.Output), "--- ")
		if e.Test == test && !frame {
			words = append(words, strings.Fields(e.Output)...)
		}
	}
	return strings.Join(words, " ")
}

type test struct{ pkg, name string }

func check(listName, recordName string, to io.Writer) error {
	list, err := os.ReadFile(listName)
	if err != nil {
		return err
	}
	record, err := os.ReadFile(recordName)
	if err != nil {
		return err
	}
	var patterns []string
	for line := range strings.Lines(string(list)) {
		fields := strings.Fields(line)
		if len(fields) == 0 || fields[0] == "#" {
			continue
		}
		if _, err := path.Match(fields[0], ""); err != nil || len(fields) < 2 {
			return fmt.Errorf("%s: %q is no pattern with a reason", listName, strings.TrimSpace(line))
		}
		patterns = append(patterns, fields[0])
	}
	ran, skipped := map[test]bool{}, map[test]string{}
	for line := range strings.Lines(string(record)) {
		fields := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(fields) != 4 {
			return fmt.Errorf("%s: bad line %q", recordName, line)
		}
		id := test{strings.TrimPrefix(fields[0], module), fields[1]}
		if fields[2] == "skip" {
			skipped[id] = fields[3]
		} else {
			ran[id] = true
		}
	}
	if len(ran) == 0 {
		return fmt.Errorf("%s has no test that ran", recordName)
	}
	unlisted := 0
	for _, id := range slices.SortedFunc(maps.Keys(skipped), func(a, b test) int {
		return cmp.Or(strings.Compare(a.pkg, b.pkg), strings.Compare(a.name, b.name))
	}) {
		if ran[id] {
			continue
		}
		mark := "listed"
		if !slices.ContainsFunc(patterns, func(p string) bool { ok, _ := path.Match(p, id.name); return ok }) {
			mark = "NOT LISTED"
			unlisted++
		}
		fmt.Fprintf(to, "%s: %s %s: %s\n", mark, id.pkg, id.name, skipped[id])
	}
	if unlisted > 0 {
		return fmt.Errorf("%d tests were skipped in every run and are not in %s", unlisted, listName)
	}
	return nil
}
