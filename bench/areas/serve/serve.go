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
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/prometheus/common/model"

	"github.com/ferula-io/ferula/bench/area"
	"github.com/ferula-io/ferula/bench/blocks"
	"github.com/ferula-io/ferula/bench/peer"
	"github.com/ferula-io/ferula/bench/proc"
	"github.com/ferula-io/ferula/bench/push"
)

// Area is the entry of this area in the list of cmd/bench.
var Area = area.Area{
	Name: "serve", About: "scrapes and recording rules of Prometheus and ferula serve, as processes",
	Sides: []string{"Prometheus", "ferula"}, Run: run,
}

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

type bench struct {
	*area.Bench
	size  size
	sides []*area.Side
}

func run(ctx context.Context, of *area.Bench) (err error) {
	b := &bench{Bench: of, size: sizeOf(of.Short)}
	if b.sides, err = b.Pair(ctx, peer.Prometheus); err != nil {
		return err
	}
	if err := os.MkdirAll(b.Dir, 0o755); err != nil {
		return err
	}
	err = b.EachRound("scrapes and rules", func(round int) error { return errors.Join(b.scrapes(ctx, round), b.rules(ctx, round)) })
	if err != nil {
		return err
	}
	b.Ratio("serve/scrape-cpu", scrapeCPU)
	b.Ratio("serve/scrape-anon", scrapeAnon)
	b.Ratio("serve/rules-cpu", rulesCPU)
	s := b.size
	b.Note(
		fmt.Sprintf("Scrapes: %d targets x %d counters every %s, both servers at once for %s, after one interval in which they create the series. Memory is RssAnon at the end, without a collection.", s.targets, s.series, interval, s.scraping),
		fmt.Sprintf("Rules: %d of one sum(rate(x[5m])) over %d series each, every %s, for %s, over series that were pushed to the head; nothing is scraped meanwhile.", s.rules, s.perRule, interval, s.evaluating),
	)
	return nil
}

const (
	scrapeCPU  = "CPU: scrapes"
	scrapeAnon = "RssAnon at the end of the scrapes"
	rulesCPU   = "CPU: rules"
)

// with calls work while both servers run on empty directories with one configuration.
func (b *bench) with(ctx context.Context, config string, work func() error) error {
	launch := b.TSDB(ctx, area.TSDB{Config: config, Flags: []string{"--web.enable-remote-write-receiver"}})
	return b.With(ctx, launch, work, b.sides...)
}

// cpuDuring records the CPU time that both servers use in the duration d.
func (b *bench) cpuDuring(ctx context.Context, round int, what string, d time.Duration) error {
	return area.Around(b.sides, func(s *area.Side, work func() error) error {
		used, err := s.CPUDuring(ctx, work)
		b.Add(round, s.Name, what, area.Seconds, used.Seconds())
		return err
	}, func() error { return proc.Wait(ctx, d) })
}

// scrapes measures both servers while they scrape the same targets.
func (b *bench) scrapes(ctx context.Context, round int) error {
	f := newFleet(b.size.targets, b.size.series)
	defer f.Close()
	list := filepath.Join(b.Dir, "targets.json")
	if err := f.writeList(list); err != nil {
		return err
	}
	config := fmt.Sprintf("global: {scrape_interval: %s}\nscrape_configs: [{job_name: bench, file_sd_configs: [{files: [%q]}]}]", interval, list)
	return b.with(ctx, config, func() error {
		if err := proc.Wait(ctx, 2*interval); err != nil {
			return err
		}
		if err := b.complete(ctx, b.cheapCheck()); err != nil {
			return err
		}
		if err := b.cpuDuring(ctx, round, scrapeCPU, b.size.scraping); err != nil {
			return err
		}
		for _, s := range b.sides {
			anon, err := s.Anon()
			if err != nil {
				return err
			}
			b.Add(round, s.Name, scrapeAnon, area.Bytes, float64(anon))
		}
		return b.complete(ctx, map[string]int{ // no scrape was missed
			"count(bench_scraped_total)": b.size.targets * b.size.series, "sum(up)": b.size.targets,
		})
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
	for _, s := range b.sides {
		for expr, want := range checks {
			got, err := area.Instant(ctx, s.Server, expr, time.Now())
			if err == nil && (len(got) != 1 || int(got[0].Value) != want) {
				err = fmt.Errorf("%w: %s is %v, want %d", area.ErrUnequal, expr, got, want)
			}
			if err != nil {
				return fmt.Errorf("%s: %w", s.Name, err)
			}
		}
	}
	return nil
}

// rules measures both servers while they evaluate the same rules.
func (b *bench) rules(ctx context.Context, round int) error {
	file := filepath.Join(b.Dir, "rules.json") // JSON is YAML; both read one file, so that they evaluate at the same times
	if err := os.WriteFile(file, b.ruleFile(), 0o644); err != nil {
		return err
	}
	// The samples begin before the range of the first evaluation, and end after the last evaluation.
	const stepMS = 15_000
	past, future := 6*time.Minute, b.size.evaluating+5*time.Minute
	config := fmt.Sprintf("global: {evaluation_interval: %s}\nrule_files: [%q]\nscrape_configs: []", interval, file)
	return b.with(ctx, config, func() error {
		spec := blocks.Spec{
			Metric: "bench_metric", Values: blocks.Integers, Series: b.size.rules * b.size.perRule, PerPod: b.size.perRule, Seed: 5,
			Samples: int((past + future).Milliseconds() / stepMS), StepMS: stepMS, StartMS: time.Now().Add(-past).UnixMilli() / stepMS * stepMS,
		}
		for _, s := range b.sides {
			if err := push.Samples(ctx, s.Server, spec); err != nil {
				return fmt.Errorf("%s: %w", s.Name, err)
			}
		}
		b.Logf("%d samples pushed to each side", spec.Series*spec.Samples)
		if err := proc.Wait(ctx, interval); err != nil {
			return err
		}
		if err := b.cpuDuring(ctx, round, rulesCPU, b.size.evaluating); err != nil {
			return err
		}
		return b.sameResults(ctx, time.Now())
	})
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
// began before that time. Servers may add the values of a sum in different orders.
func (b *bench) sameResults(ctx context.Context, at time.Time) error {
	if err := proc.Wait(ctx, interval); err != nil {
		return err
	}
	var first map[model.Fingerprint]*model.Sample
	for i, s := range b.sides {
		got, err := area.Instant(ctx, s.Server, recorded, at)
		if err != nil {
			return fmt.Errorf("%s: %w", s.Name, err)
		}
		found := map[model.Fingerprint]*model.Sample{}
		for _, one := range got {
			found[one.Metric.Fingerprint()] = one
		}
		if len(found) != b.size.rules {
			return fmt.Errorf("%s: %w: %d of %d rules have recorded", s.Name, area.ErrEmpty, len(found), b.size.rules)
		}
		if i == 0 {
			first = found
		}
		for key, one := range found {
			if want := first[key]; want == nil || !area.Close(float64(one.Value), float64(want.Value), 1e-12) {
				return fmt.Errorf("rules: %w: %v, %v", area.ErrUnequal, one, want)
			}
		}
	}
	return nil
}
