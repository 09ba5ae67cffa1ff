// Package serve measures a server that is not queried: goals serve/*.
//
// Prometheus and ferula serve run at the same time with the same configuration. First both scrape the same targets, which the
// bench serves itself: CPU over some minutes, and memory at the end. Then both evaluate the same recording rules over series
// that were pushed to their heads. A figure is valid only if both have all series of all targets, and equal results of all
// rules. With Env.Short there are fewer targets, series and rules, and it takes less time.
package serve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ferula-io/ferula/bench/area"
	"github.com/ferula-io/ferula/bench/blocks"
	"github.com/ferula-io/ferula/bench/peer"
	"github.com/ferula-io/ferula/bench/proc"
	"github.com/ferula-io/ferula/bench/push"
)

// Area is the entry of this area in the list of cmd/bench.
var Area = area.Area{Name: "serve", About: "scrapes and recording rules of Prometheus and ferula serve, as processes", Run: run}

const interval = 15 * time.Second // of scrapes and of rules

// size is the size of a run.
type size struct {
	targets, series int           // number of targets, and of series of a target
	scraping        time.Duration // of the measurement of scrapes
	rules, perRule  int           // number of rules, and of series that a rule reads
	evaluating      time.Duration // of the measurement of rules
}

func sizeOf(short bool) size {
	if short {
		return size{targets: 100, series: 100, scraping: 2 * interval, rules: 100, perRule: 100, evaluating: 2 * interval}
	}
	return size{targets: 1000, series: 1000, scraping: 5 * time.Minute, rules: 1000, perRule: 100, evaluating: 2 * time.Minute}
}

// side is one of the two servers.
type side struct {
	name    string
	program peer.Program
	server  *proc.Server
}

type bench struct {
	env   area.Env
	size  size
	dir   string
	sides [2]side
	out   *area.Outcome
}

func run(ctx context.Context, env area.Env) (*area.Outcome, error) {
	b := &bench{env: env, size: sizeOf(env.Short), dir: filepath.Join(env.Cache, "run", "serve"), out: &area.Outcome{Sides: []string{"Prometheus", "ferula"}}}
	prometheus, err := env.Programs.Get(ctx, peer.Prometheus)
	if err != nil {
		return nil, err
	}
	ferula, err := env.Programs.Ferula(ctx, peer.Prometheus)
	if err != nil {
		return nil, err
	}
	for i, p := range []peer.Program{prometheus, ferula} {
		b.sides[i] = side{name: b.out.Sides[i], program: p}
		b.out.Versions = append(b.out.Versions, p.Version)
	}
	for round := 1; round <= env.Rounds; round++ {
		if err := errors.Join(b.scrapes(ctx, round), b.rules(ctx, round)); err != nil {
			return nil, err
		}
		env.Logf("round %d of %d", round, env.Rounds)
	}
	rec := &b.out.Recorder
	for goal, what := range map[string]string{"serve/scrape-cpu": scrapeCPU, "serve/scrape-anon": scrapeAnon, "serve/rules-cpu": rulesCPU} {
		b.out.Measure(goal, rec.Over("ferula", "Prometheus", what), what)
	}
	s := b.size
	b.out.Notes = []string{
		fmt.Sprintf("Scrapes: %d targets x %d counters every %s, both servers at once for %s, after one interval in which they create the series. Memory is RssAnon at the end, without a collection.", s.targets, s.series, interval, s.scraping),
		fmt.Sprintf("Rules: %d of one sum(rate(x[5m])) over %d series each, every %s, for %s, over series that were pushed to the head; nothing is scraped meanwhile.", s.rules, s.perRule, interval, s.evaluating),
	}
	return b.out, nil
}

const (
	scrapeCPU  = "CPU: scrapes"
	scrapeAnon = "RssAnon at the end of the scrapes"
	rulesCPU   = "CPU: rules"
)

// start starts both servers on empty directories with one configuration.
func (b *bench) start(ctx context.Context, config string) error {
	file := filepath.Join(b.dir, "prometheus.yml")
	if err := errors.Join(os.MkdirAll(b.dir, 0o755), os.WriteFile(file, []byte(config), 0o644)); err != nil {
		return err
	}
	for i := range b.sides {
		s := &b.sides[i]
		data := filepath.Join(b.dir, s.program.Name)
		if err := errors.Join(os.RemoveAll(data), os.MkdirAll(data, 0o755)); err != nil {
			return err
		}
		var err error
		s.server, err = proc.Start(ctx, s.program.Serve(peer.TSDB{
			Dir: data, Config: file, Log: data + ".log", More: []string{"--web.enable-remote-write-receiver"},
		}))
		if err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) stop() error {
	var errs []error
	for i := range b.sides {
		if s := &b.sides[i]; s.server != nil {
			errs = append(errs, s.server.Stop())
			s.server = nil
		}
	}
	return errors.Join(errs...)
}

// cpuDuring returns the CPU time that both servers use in the duration d.
func (b *bench) cpuDuring(ctx context.Context, d time.Duration) (used [2]time.Duration, err error) {
	work := func() error { return wait(ctx, d) }
	for i := range b.sides {
		inner := work
		work = func() (err error) {
			used[i], err = b.sides[i].server.CPUDuring(ctx, inner)
			return err
		}
	}
	return used, work()
}

func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// scrapes measures both servers while they scrape the same targets.
func (b *bench) scrapes(ctx context.Context, round int) (err error) {
	f, err := newFleet(b.size.targets, b.size.series)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.close()) }()
	list := filepath.Join(b.dir, "targets.json")
	if err := errors.Join(os.MkdirAll(b.dir, 0o755), f.writeList(list)); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.stop()) }()
	if err := b.start(ctx, fmt.Sprintf("global: {scrape_interval: %s}\nscrape_configs: [{job_name: bench, file_sd_configs: [{files: [%q]}]}]\n", interval, list)); err != nil {
		return err
	}
	if err := wait(ctx, 2*interval); err != nil {
		return err
	}
	if err := b.complete(ctx, b.cheapCheck()); err != nil {
		return err
	}
	cpu, err := b.cpuDuring(ctx, b.size.scraping)
	if err != nil {
		return err
	}
	for i := range b.sides {
		s := &b.sides[i]
		anon, err := s.server.Anon()
		if err != nil {
			return err
		}
		b.out.Recorder.Add(round, s.name, scrapeCPU, area.Seconds, cpu[i].Seconds())
		b.out.Recorder.Add(round, s.name, scrapeAnon, area.Bytes, float64(anon))
	}
	return b.complete(ctx, map[string]int{ // no scrape was missed
		"count(bench_scraped_total)": b.size.targets * b.size.series, "sum(up)": b.size.targets,
	})
}

// cheapCheck is that every target was scraped with all of its series. It reads two series of each target: a query of all
// series before the measurement would leave garbage of its own, whose size differs between the servers, in a heap that the
// area measures as that of a server that is not queried.
func (b *bench) cheapCheck() map[string]int {
	return map[string]int{"sum(scrape_samples_scraped)": b.size.targets * b.size.series, "sum(up)": b.size.targets}
}

// complete returns an error unless both servers have the wanted results of queries as of their last scrape.
func (b *bench) complete(ctx context.Context, checks map[string]int) error {
	for i := range b.sides {
		s := &b.sides[i]
		for expr, want := range checks {
			got, err := results(ctx, s.server, expr, time.Now())
			if err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
			if len(got) != 1 || got[0] != "{} "+strconv.Itoa(want) {
				return fmt.Errorf("%s: %w: %s is %v, want %d", s.name, area.ErrUnequal, expr, got, want)
			}
		}
	}
	return nil
}

// rules measures both servers while they evaluate the same rules.
func (b *bench) rules(ctx context.Context, round int) (err error) {
	file := filepath.Join(b.dir, "rules.json") // JSON is YAML; both read one file, so that they evaluate at the same times
	if err := errors.Join(os.MkdirAll(b.dir, 0o755), os.WriteFile(file, b.ruleFile(), 0o644)); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.stop()) }()
	if err := b.start(ctx, fmt.Sprintf("global: {evaluation_interval: %s}\nrule_files: [%q]\nscrape_configs: []\n", interval, file)); err != nil {
		return err
	}
	// The samples begin before the range of the first evaluation, and end after the last evaluation.
	const stepMS = 15_000
	past, future := 6*time.Minute, b.size.evaluating+5*time.Minute
	spec := blocks.Spec{
		Metric: "bench_metric", Values: blocks.Integers, Series: b.size.rules * b.size.perRule, PerPod: b.size.perRule,
		Samples: int((past + future).Milliseconds() / stepMS), StepMS: stepMS, StartMS: time.Now().Add(-past).UnixMilli() / stepMS * stepMS, Seed: 5,
	}
	for i := range b.sides {
		if err := push.Samples(ctx, b.sides[i].server.URL(), spec); err != nil {
			return fmt.Errorf("%s: %w", b.sides[i].name, err)
		}
	}
	b.env.Logf("%d samples pushed to each side", spec.Series*spec.Samples)
	if err := wait(ctx, interval); err != nil {
		return err
	}
	cpu, err := b.cpuDuring(ctx, b.size.evaluating)
	if err != nil {
		return err
	}
	if err := b.sameResults(ctx, time.Now()); err != nil {
		return err
	}
	for i := range b.sides {
		b.out.Recorder.Add(round, b.sides[i].name, rulesCPU, area.Seconds, cpu[i].Seconds())
	}
	return nil
}

const recorded = "bench:rate5m"

func (b *bench) ruleFile() []byte {
	type rule struct {
		Record string            `json:"record"`
		Expr   string            `json:"expr"`
		Labels map[string]string `json:"labels"`
	}
	type group struct {
		Name  string `json:"name"`
		Rules []rule `json:"rules"`
	}
	var file struct {
		Groups []group `json:"groups"`
	}
	const perGroup = 50
	for i := range b.size.rules {
		if i%perGroup == 0 {
			file.Groups = append(file.Groups, group{Name: fmt.Sprintf("group-%03d", i/perGroup)})
		}
		g := &file.Groups[len(file.Groups)-1]
		pod := blocks.Spec{Metric: "bench_metric", PerPod: b.size.perRule}.Labels(i * b.size.perRule).Get("pod")
		g.Rules = append(g.Rules, rule{recorded, fmt.Sprintf("sum(rate(bench_metric{pod=%q}[5m]))", pod), map[string]string{"rule": strconv.Itoa(i)}})
	}
	text, err := json.Marshal(file)
	if err != nil {
		panic(err) // cannot fail: the value has only strings
	}
	return text
}

// sameResults compares the results that the rules of both servers recorded at a time. It first waits for evaluations that
// began before that time.
func (b *bench) sameResults(ctx context.Context, at time.Time) error {
	if err := wait(ctx, interval); err != nil {
		return err
	}
	var all [2][]string
	for i := range b.sides {
		s := &b.sides[i]
		var err error
		if all[i], err = results(ctx, s.server, recorded, at); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		if len(all[i]) != b.size.rules {
			return fmt.Errorf("%s: %w: %d of %d rules have recorded", s.name, area.ErrEmpty, len(all[i]), b.size.rules)
		}
	}
	for i := range all[0] {
		if all[0][i] != all[1][i] {
			return fmt.Errorf("rules: %w: %s, %s", area.ErrUnequal, all[0][i], all[1][i])
		}
	}
	return nil
}

// results returns the series of an instant query with their values as sorted lines. Values are rounded to 12 digits, because
// servers may add the values of a sum in different orders.
func results(ctx context.Context, from *proc.Server, expr string, at time.Time) ([]string, error) {
	body, _, err := from.Fetch(ctx, proc.Request{Path: "/api/v1/query", Query: url.Values{
		"query": {expr}, "time": {strconv.FormatFloat(float64(at.UnixMilli())/1000, 'f', 3, 64)},
	}})
	if err != nil {
		return nil, err
	}
	var response struct {
		Data struct {
			Result []struct {
				Metric map[string]string
				Value  [2]any
			}
		}
	}
	if err := json.Unmarshal(body, &response); err != nil {
		return nil, err
	}
	lines := make([]string, len(response.Data.Result))
	for i, s := range response.Data.Result {
		v, err := strconv.ParseFloat(fmt.Sprint(s.Value[1]), 64)
		if err != nil {
			return nil, err
		}
		lines[i] = strings.TrimPrefix(fmt.Sprint(s.Metric), "map")
		lines[i] = "{" + strings.Trim(lines[i], "[]") + "} " + strconv.FormatFloat(v, 'g', 12, 64)
	}
	slices.Sort(lines)
	return lines, nil
}
