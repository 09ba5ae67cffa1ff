// Command mutants shows which faults the tests of a package notice.
//
// It makes mutants of production code: a condition negated, a boundary off by one, a
// statement dropped, an error swallowed, a constant changed. A seed chooses some mutants of
// each package. For each of them the tests of the package run through `go test -overlay`,
// so that the tree is not changed. A mutant is killed if the tests fail or do not end in
// time. The command prints the diff of each survivor, and exits with 1 if the kill rate is
// below the minimum. Survivors that explained.txt lists are equivalent to the code and are
// not counted.
//
//	go run ./test/mutants [flags] [PACKAGE...]
//	go run ./test/mutants -list [flags] [PACKAGE...]
//	go run ./test/mutants -only internal/httpapi/query.go:70:5:negated
//
// `make mutants` runs it; docs/perf/mutants.md has the last sample.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// defaults are the packages with the logic of ferula.
var defaults = []string{
	"./internal/app", "./internal/httpapi/...", "./internal/frontend/...", "./internal/promql/...",
	"./internal/thanos/...", "./internal/remoteread/...", "./internal/ingest/...", "./internal/export/...",
	"./internal/profiles/...", "./internal/series/...", "./internal/tsdb", "./internal/blocks/...",
	"./internal/bucket", "./metrics/...", "./promjson/...",
}

// addressSpaceKiB bounds the memory of a mutant that allocates without end.
const addressSpaceKiB = 12 << 20

func main() {
	var r runner
	seed := flag.Uint64("seed", 1, "chooses the mutants")
	each := flag.Int("each", 4, "mutants of each package that compile")
	only := flag.String("only", "", "run the mutants with these names, separated by commas")
	flag.BoolVar(&r.listing, "list", false, "print the mutants instead of running them, in the order in which they are tried: twice -each of them, as some do not compile")
	minimum := flag.Float64("min", 0, "lowest kill rate in percent for exit code 0, without the explained mutants")
	list := flag.String("explained", "test/mutants/explained.txt", "list of the mutants that no test can kill")
	flag.DurationVar(&r.slack, "slack", 30*time.Second, "a mutant's tests may take three times as long as the package's, and this")
	flag.Parse()
	patterns := flag.Args()
	if len(patterns) == 0 {
		patterns = defaults
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	if r.explanations, err = readExplained(*list); err == nil {
		err = r.run(ctx, patterns, *seed, *each, *only)
	}
	if !r.listing {
		r.summary()
	}
	if err == nil && !r.listing && r.rate() < *minimum {
		err = fmt.Errorf("%.1f %% were killed, the minimum is %.1f %%", r.rate(), *minimum)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		stop()
		os.Exit(1)
	}
}

// pkg is a package as `go list -json` prints it.
type pkg struct {
	Dir, ImportPath           string
	GoFiles                   []string
	TestGoFiles, XTestGoFiles []string

	took time.Duration // duration of its tests without a mutant
}

type outcome int

// The outcomes of a mutant.
const (
	killed outcome = iota
	survived
	unbuilt
	equivalent // survived, and explained.txt has it
)

type result struct {
	mutant  mutant
	pkg     string
	outcome outcome
}

// runner runs tests and collects results.
type runner struct {
	slack   time.Duration
	listing bool
	dir     string // temporary directory for overlays
	root    string
	results []result

	explanations []explanation
}

func (r *runner) run(ctx context.Context, patterns []string, seed uint64, each int, only string) (err error) {
	if r.root, err = os.Getwd(); err != nil {
		return err
	}
	if r.dir, err = os.MkdirTemp("", "mutants"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(r.dir)) }()
	packages, err := list(ctx, patterns)
	if err != nil {
		return err
	}
	var names []string
	if only != "" {
		names = strings.Split(only, ",")
		packages = slices.DeleteFunc(packages, func(p *pkg) bool {
			return !slices.ContainsFunc(names, func(n string) bool { return filepath.Dir(n) == r.rel(p.Dir) })
		})
	}
	if r.listing {
		return r.print(packages, seed, 2*each)
	}
	for _, p := range packages {
		began := time.Now()
		if out, err := r.test(ctx, p, "", 10*time.Minute); err != nil {
			return fmt.Errorf("the tests of %s fail without a mutant: %w\n%s", p.ImportPath, err, out)
		}
		p.took = time.Since(began)
	}
	slices.SortStableFunc(packages, func(a, b *pkg) int { return int(a.took - b.took) })
	for _, p := range packages {
		all, err := mutantsOf(p.Dir, p.GoFiles)
		if err != nil {
			return err
		}
		if names == nil {
			err = r.sample(ctx, p, shuffled(all, seed, p.ImportPath), each)
		} else {
			all = slices.DeleteFunc(all, func(m mutant) bool { return !slices.Contains(names, r.name(m)) })
			err = r.sample(ctx, p, all, len(all))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// print prints the mutants that would be tried.
func (r *runner) print(packages []*pkg, seed uint64, most int) error {
	for _, p := range packages {
		all, err := mutantsOf(p.Dir, p.GoFiles)
		if err != nil {
			return err
		}
		all = shuffled(all, seed, p.ImportPath)
		for _, m := range all[:min(most, len(all))] {
			fmt.Printf("%s %s\n%s", r.name(m), r.explained(m), r.diff(m))
		}
	}
	return nil
}

// list returns the packages that have tests.
func list(ctx context.Context, patterns []string) ([]*pkg, error) {
	cmd := exec.CommandContext(ctx, "go", append([]string{"list", "-json=Dir,ImportPath,GoFiles,TestGoFiles,XTestGoFiles"}, patterns...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	var packages []*pkg
	for dec := json.NewDecoder(bytes.NewReader(out)); dec.More(); {
		var p pkg
		if err := dec.Decode(&p); err != nil {
			return nil, err
		}
		if len(p.TestGoFiles)+len(p.XTestGoFiles) > 0 {
			packages = append(packages, &p)
		}
	}
	return packages, nil
}

// sample runs mutants until enough mutants have compiled.
func (r *runner) sample(ctx context.Context, p *pkg, mutants []mutant, enough int) error {
	for _, m := range mutants {
		if enough == 0 {
			return nil
		}
		o, err := r.try(ctx, p, m)
		if err != nil {
			return err
		}
		if o == survived && r.explained(m) != "" {
			o = equivalent
		}
		r.results = append(r.results, result{m, p.ImportPath, o})
		if o == unbuilt {
			continue
		}
		enough--
		fmt.Printf("%s %s\n", [...]string{killed: "killed  ", survived: "SURVIVED", equivalent: "explained"}[o], r.name(m))
		if o == survived {
			fmt.Print(r.diff(m))
		}
	}
	return nil
}

// try runs the tests of a package with a mutant.
func (r *runner) try(ctx context.Context, p *pkg, m mutant) (outcome, error) {
	mutated, overlay := filepath.Join(r.dir, "mutated.go"), filepath.Join(r.dir, "overlay.json")
	if err := os.WriteFile(mutated, m.apply(), 0o600); err != nil {
		return 0, err
	}
	text, err := json.Marshal(map[string]any{"Replace": map[string]string{m.file: mutated}})
	if err != nil {
		return 0, err
	}
	if err := os.WriteFile(overlay, text, 0o600); err != nil {
		return 0, err
	}
	out, err := r.test(ctx, p, overlay, 3*p.took+r.slack)
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return 0, ctx.Err()
	case err == nil:
		return survived, nil
	case bytes.Contains(out, []byte("[build failed]")) || bytes.Contains(out, []byte("[setup failed]")):
		return unbuilt, nil
	case errors.As(err, &exit) || errors.Is(err, context.DeadlineExceeded):
		return killed, nil
	}
	return 0, fmt.Errorf("%w\n%s", err, out)
}

// test runs the tests of a package in their own process group, which is killed if the tests
// do not end in time.
func (r *runner) test(ctx context.Context, p *pkg, overlay string, timeout time.Duration) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout+5*time.Minute) // includes the build
	defer cancel()
	args := []string{"-c", fmt.Sprintf(`ulimit -v %d; exec "$@"`, addressSpaceKiB), "sh",
		"go", "test", "-count=1", "-failfast", "-vet=off", "-timeout", timeout.String()}
	if overlay != "" {
		args = append(args, "-overlay", overlay)
	}
	cmd := exec.CommandContext(ctx, "sh", append(args, p.ImportPath)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	return cmd.CombinedOutput()
}

func (r *runner) rel(path string) string {
	if rel, err := filepath.Rel(r.root, path); err == nil {
		return rel
	}
	return path
}

// name identifies a mutant for -only.
func (r *runner) name(m mutant) string {
	return fmt.Sprintf("%s:%d:%d:%s", r.rel(m.file), m.line, m.column, m.kind)
}

// diff returns the changed lines, before and after.
func (r *runner) diff(m mutant) string {
	first := bytes.LastIndexByte(m.source[:m.start], '\n') + 1
	last := len(m.source)
	if i := bytes.IndexByte(m.source[m.end:], '\n'); i >= 0 {
		last = m.end + i
	}
	var b strings.Builder
	fmt.Fprintf(&b, "--- %s:%d\n", r.rel(m.file), m.line)
	for line := range strings.SplitSeq(string(m.source[first:last]), "\n") {
		fmt.Fprintf(&b, "-%s\n", line)
	}
	after := string(m.source[first:m.start]) + m.text + string(m.source[m.end:last])
	for line := range strings.SplitSeq(after, "\n") {
		fmt.Fprintf(&b, "+%s\n", line)
	}
	return b.String()
}

// rate is the percentage of killed mutants among those that compiled. Equivalent mutants
// are not counted.
func (r *runner) rate() float64 {
	k, s := r.count(""), 0
	for _, res := range r.results {
		if res.outcome == survived {
			s++
		}
	}
	return 100 * float64(k) / float64(max(1, k+s))
}

// count returns the number of killed mutants, of one package or of all.
func (r *runner) count(pkg string) int {
	n := 0
	for _, res := range r.results {
		if res.outcome == killed && (pkg == "" || res.pkg == pkg) {
			n++
		}
	}
	return n
}

func (r *runner) summary() {
	all := map[string]int{}
	var packages []string
	unbuiltCount, explainedCount := 0, 0
	for _, res := range r.results {
		if res.outcome == unbuilt {
			unbuiltCount++
			continue
		}
		if res.outcome == equivalent {
			explainedCount++
		}
		if all[res.pkg] == 0 {
			packages = append(packages, res.pkg)
		}
		all[res.pkg]++
	}
	slices.Sort(packages)
	for _, p := range packages {
		fmt.Printf("%3d of %3d killed  %s\n", r.count(p), all[p], p)
	}
	fmt.Printf("%d mutants: %.1f %% killed without the %d explained; %d more did not compile\n",
		len(r.results)-unbuiltCount, r.rate(), explainedCount, unbuiltCount)
}
