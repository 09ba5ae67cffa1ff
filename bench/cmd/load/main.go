// Command load runs ferula serve, query and query-frontend as processes and loads them for a long time: samples of very many
// series by remote write, queries through the frontend and directly to the querier, and pushes of profiles. Every response is
// compared with the sent samples, except rates whose windows may lack samples. At the end load queries all samples and profiles:
// one that was acknowledged and is missing is an error. It prints rates, latencies, memory and CPU as Markdown, and -out writes
// them between the markers of a file, unless an error ended the load.
//
// Each request has a fixed time at which it is due, even if earlier requests are not complete. Its latency begins at this time.
// If a process stops for a second, all latencies of that second therefore show it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/ferula-io/ferula/bench/areas/profiles"
	"github.com/ferula-io/ferula/bench/peer"
	"github.com/ferula-io/ferula/bench/proc"
	"github.com/ferula-io/ferula/bench/report"
)

type options struct {
	root, out, bin     string
	duration, interval time.Duration
	series             int
	queries, pushes    float64 // a second
}

func main() {
	var o options
	flag.StringVar(&o.root, "root", "..", "the repository's root")
	flag.StringVar(&o.out, "out", "", "replace the figures in this file, between its markers; empty prints them only")
	flag.StringVar(&o.bin, "ferula", "", "use this program instead of building ferula")
	flag.DurationVar(&o.duration, "for", time.Hour, "how long the load lasts")
	flag.DurationVar(&o.interval, "interval", time.Minute, "interval of the samples of a series")
	flag.IntVar(&o.series, "series", 1_000_000, "active series, a multiple of 1000")
	flag.Float64Var(&o.queries, "queries", 200, "queries a second; half of them through the frontend")
	flag.Float64Var(&o.pushes, "profiles", 100, "pushes of profiles a second")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "load:", err)
		os.Exit(1)
	}
}

func (o *options) check() error {
	switch {
	case o.series <= 0 || o.series%seriesOfTarget != 0:
		return fmt.Errorf("-series=%d is not a multiple of %d", o.series, seriesOfTarget)
	case o.interval < time.Second || o.duration < 4*o.interval:
		return fmt.Errorf("-for=%s is less than four times -interval=%s", o.duration, o.interval)
	case o.queries <= 0 || o.pushes <= 0:
		return errors.New("-queries and -profiles must be positive")
	}
	return nil
}

func run(ctx context.Context, o options) (err error) {
	if err := o.check(); err != nil {
		return err
	}
	root, err := filepath.Abs(o.root)
	if err != nil {
		return err
	}
	given := map[string]string{}
	if o.bin != "" {
		given[peer.Ferula] = o.bin
	}
	cache := filepath.Join(root, "bench", ".cache")
	program, err := peer.Programs{Root: root, Cache: filepath.Join(cache, "bin"), Given: given}.Get(ctx, peer.Ferula)
	if err != nil {
		return err
	}
	c, err := start(ctx, program, filepath.Join(cache, "run", "load"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.stop()) }()
	fleet, err := profiles.NewFleet(profilePods)
	if err != nil {
		return err
	}
	l := newLoad(o, c, fleet)
	failed := l.apply(ctx)
	cores := proc.SelfCPU().Seconds() / time.Since(l.begin).Seconds()
	var missing error
	if failed == nil {
		missing = l.verify(ctx)
	}
	section := l.summary(report.ThisMachine(), report.Commit(root), cores, failed, missing).section()
	fmt.Print(section)
	if o.out != "" && failed == nil {
		missing = errors.Join(missing, writeSection(o.out, section))
	}
	return errors.Join(failed, missing)
}

// apply applies the load until its time is over. The first error ends it.
func (l *load) apply(ctx context.Context) error {
	return until(ctx, l.begin.Add(l.o.duration), l.write, l.query, l.push, l.watch)
}

// until runs the works concurrently, with a context that ends at a time with the cause errOver. The first other error ends
// them, and until returns it.
func until(ctx context.Context, end time.Time, works ...func(context.Context) error) error {
	failed, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ctx, stop := context.WithDeadlineCause(failed, end, errOver)
	defer stop()
	var running sync.WaitGroup
	for _, work := range works {
		running.Go(func() {
			if err := work(ctx); err != nil && !errors.Is(err, errOver) {
				cancel(err)
			}
		})
	}
	running.Wait()
	return context.Cause(failed)
}

var errOver = errors.New("the time of the load is over")
