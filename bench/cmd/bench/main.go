// Command bench measures ferula and its peers and reports which goals are met. It is started in the bench directory;
// see README.md. It holds the flags and the table of areas.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/ferula-io/ferula/bench/area"
	"github.com/ferula-io/ferula/bench/areas/api"
	"github.com/ferula-io/ferula/bench/areas/engine"
	"github.com/ferula-io/ferula/bench/areas/exposition"
	"github.com/ferula-io/ferula/bench/areas/frontend"
	"github.com/ferula-io/ferula/bench/areas/jsonenc"
	"github.com/ferula-io/ferula/bench/areas/page"
	"github.com/ferula-io/ferula/bench/areas/profiles"
	"github.com/ferula-io/ferula/bench/areas/read"
	"github.com/ferula-io/ferula/bench/areas/remoteread"
	"github.com/ferula-io/ferula/bench/areas/serve"
	"github.com/ferula-io/ferula/bench/areas/sidecar"
	"github.com/ferula-io/ferula/bench/areas/stack"
	"github.com/ferula-io/ferula/bench/areas/store"
	"github.com/ferula-io/ferula/bench/areas/storeapi"
	"github.com/ferula-io/ferula/bench/goal"
	"github.com/ferula-io/ferula/bench/peer"
	"github.com/ferula-io/ferula/bench/plot"
	"github.com/ferula-io/ferula/bench/report"
)

// areas are run in this order.
func areas() []area.Area {
	return []area.Area{
		jsonenc.Area, exposition.Area, frontend.Area, api.Area, engine.Area, read.Area, remoteread.Area, serve.Area, sidecar.Area,
		stack.Area, profiles.Area, storeapi.Area, store.Area, page.Area,
	}
}

// errNoisy means that the readings of a peer differ too much for a reliable result. A run with this error is not recorded.
var errNoisy = errors.New("RESULTS.md is not changed: readings of a peer are more than 20 % from their median")

type options struct {
	area, root, out string
	rounds          int
	list, strict    bool
	null, short     bool
	noisy           bool
	given           map[string]string
}

func main() {
	o := options{given: map[string]string{}}
	flag.StringVar(&o.area, "area", "", "area to run; empty for all")
	flag.StringVar(&o.root, "root", "..", "the repository's root")
	flag.StringVar(&o.out, "out", "", "folder for raw readings (default bench/out in the repository)")
	flag.IntVar(&o.rounds, "rounds", 3, "readings of each kind and side; their median counts")
	flag.BoolVar(&o.list, "list", false, "list areas and goals, and run nothing")
	flag.BoolVar(&o.strict, "strict", false, "exit with 1 if a goal falls short or is missing")
	flag.BoolVar(&o.null, "null", false, "run the peer instead of ferula, to measure the noise of the bench; writes no results")
	flag.BoolVar(&o.short, "short", false, "let areas that take minutes run less, to try them; writes no results")
	flag.BoolVar(&o.noisy, "noisy", false, "write results although readings of a peer are far from their median")
	flag.Func("bin", "use the program at this path instead of building it, as name=path; repeatable", func(s string) error {
		name, path, ok := strings.Cut(s, "=")
		if !ok {
			return fmt.Errorf("%q is not name=path", s)
		}
		o.given[name] = path
		return nil
	})
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	short, err := run(ctx, o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(2)
	}
	if o.strict && short > 0 {
		os.Exit(1)
	}
}

// run runs the chosen areas and returns how many goals fell short.
func run(ctx context.Context, o options) (short int, err error) {
	root, err := filepath.Abs(o.root)
	if err != nil {
		return 0, err
	}
	if o.out == "" {
		o.out = filepath.Join(root, "bench", "out")
	}
	goals, err := goal.ReadFile(filepath.Join(root, "bench", "goals.tsv"))
	if err != nil {
		return 0, err
	}
	if o.list {
		list(goals)
		return 0, nil
	}
	chosen := areas()
	if o.area != "" {
		chosen = slices.DeleteFunc(chosen, func(a area.Area) bool { return !a.Measures(o.area) })
	}
	if len(chosen) == 0 && len(goal.Of(goals, o.area)) == 0 {
		return 0, fmt.Errorf("unknown area %q; -list prints them", o.area)
	}
	if len(chosen) == 0 { // goals that no area measures yet
		r := report.Run{Goals: goal.Of(goals, o.area), Outcome: &area.Outcome{}}
		return r.Lines(os.Stdout), nil
	}
	if o.rounds < 1 {
		return 0, fmt.Errorf("-rounds=%d", o.rounds)
	}
	peer.SetRuntime()
	for _, a := range chosen {
		of := goal.Of(goals, a.Name)
		for _, also := range a.Also {
			of = append(of, goal.Of(goals, also)...)
		}
		missed, err := runArea(ctx, o, root, a, of)
		if err != nil {
			return short, fmt.Errorf("area %s: %w", a.Name, err)
		}
		short += missed
	}
	return short, nil
}

func runArea(ctx context.Context, o options, root string, a area.Area, goals []goal.Goal) (short int, err error) {
	cache := filepath.Join(root, "bench", ".cache")
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return 0, err
	}
	env := area.Env{
		Rounds: o.rounds, Cache: cache, Log: os.Stderr, Short: o.short,
		Programs: peer.Programs{Root: root, Cache: cache, Given: maps.Clone(o.given), Null: o.null},
	}
	b := area.New(a, env)
	r := report.Run{
		Area: a, Outcome: &b.Outcome, Goals: goals, Rounds: o.rounds, Machine: report.ThisMachine(), Commit: report.Commit(root), When: time.Now(),
	}
	if err := a.Run(ctx, b); err != nil {
		return 0, err
	}
	if err := r.Table(os.Stdout); err != nil {
		return 0, err
	}
	fmt.Println()
	short = r.Lines(os.Stdout)
	if o.null || o.short {
		return short, nil
	}
	if err := r.WriteRaw(o.out); err != nil {
		return short, err
	}
	if noisy := r.Noisy(); len(noisy) > 0 && !o.noisy {
		return short, fmt.Errorf("%w: %s; run it on a quiet machine, or with -noisy", errNoisy, strings.Join(noisy, "; "))
	}
	first, err := r.WriteResults(filepath.Join(root, "bench", "RESULTS.md"))
	if err != nil {
		return short, err
	}
	if !first { // plots are those of the first section
		fmt.Fprintf(os.Stderr, "bench: the section of %s follows that of another CPU, which the plots show\n", r.Machine.Processor())
		return short, nil
	}
	if err := plot.Write(root); err != nil {
		return short, fmt.Errorf("RESULTS.md is written, not all plots: %w", err)
	}
	return short, nil
}

// list prints every area with its goals.
func list(goals []goal.Goal) {
	implemented := map[string]string{}
	for _, a := range areas() {
		implemented[a.Name] = a.About
		for _, also := range a.Also {
			implemented[also] = a.About
		}
	}
	last := ""
	for _, g := range goals {
		if g.Area() != last {
			last = g.Area()
			about, ok := implemented[last]
			if !ok {
				about = "not measured yet"
			}
			fmt.Printf("%s: %s\n", last, about)
		}
		fmt.Printf("\t%s %s %s %s\t%s\n", g.Name, g.Op, goal.Figure(g.Limit), g.Unit, g.How)
	}
}
