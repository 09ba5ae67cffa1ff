// Package serve measures a server that is not queried: goals serve/*.
//
// Prometheus and ferula serve run at the same time with the same configuration. They scrape the same targets, which the bench
// serves itself: CPU over some minutes, and memory at the end; VictoriaMetrics scrapes the first kind of pages, too. After
// these both are killed and started again, one after the other. Then both evaluate the same recording rules over series that
// were pushed to their heads, and at last both are idle. A figure is valid only if all have all series of all targets, and
// equal results of all rules. With Env.Short there are fewer targets, series and rules, and it takes less time.
package serve

import (
	"bytes"
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

	"github.com/prometheus/common/model"

	"github.com/ferula-io/ferula/bench/area"
	"github.com/ferula-io/ferula/bench/blocks"
	"github.com/ferula-io/ferula/bench/peer"
	"github.com/ferula-io/ferula/bench/proc"
	"github.com/ferula-io/ferula/bench/push"
)

// Area is the entry of this area in the list of cmd/bench.
var Area = area.Area{
	Name: "serve", About: "scrapes and recording rules of Prometheus, VictoriaMetrics and ferula serve, as processes",
	Sides: []string{"Prometheus", victoria, "ferula"}, Run: run,
}

const victoria = "VictoriaMetrics"

// size is the size of a run.
type size struct {
	interval        time.Duration // of scrapes and of rules
	targets, series int           // number of targets, and of series of a target
	scraping        time.Duration // of the measurement of scrapes of the first kind of pages
	others          time.Duration // and of each other kind, and of the interval in which a tenth of real pods is replaced
	rules, perRule  int           // number of rules, and of series that a rule reads
	evaluating      time.Duration // of the measurement of rules
	idle            time.Duration // of a server without work
}

func sizeOf(short bool) size {
	if short {
		const interval = 5 * time.Second
		return size{interval, 100, 100, 2 * interval, 4 * interval, 100, 100, 2 * interval, 2 * interval}
	}
	return size{15 * time.Second, 1000, 1000, 5 * time.Minute, 2 * time.Minute, 1000, 100, 2 * time.Minute, 5 * time.Minute}
}

type bench struct {
	*area.Bench
	size   size
	sides  []*area.Side // Prometheus and ferula
	single *area.Side   // VictoriaMetrics
}

// kind is a kind of pages, and the name of its goal.
type kind struct {
	what, goal string
	pages
}

var kinds = []kind{
	{"scrapes", "", pages{}},
	{"scrapes of gzip", "gzip-", pages{gzip: true}},
	{"scrapes of shuffled lines", "shuffled-", pages{shuffled: true}},
	{"scrapes of real layouts", "real-", pages{real: true}},
}

func run(ctx context.Context, of *area.Bench) (err error) {
	b := &bench{Bench: of, size: sizeOf(of.Short)}
	if b.sides, err = b.Pair(ctx, peer.Prometheus); err != nil {
		return err
	}
	if b.single, err = b.SideOf(ctx, victoria, peer.Victoria, peer.Victoria); err != nil {
		return err
	}
	if err := os.MkdirAll(b.Dir, 0o755); err != nil {
		return err
	}
	err = b.EachRound("scrapes, rules and idle", func(round int) error {
		slices.Reverse(b.sides) // so that neither is always the first to start
		for _, k := range kinds {
			if err := b.scrapes(ctx, round, k); err != nil {
				return fmt.Errorf("%s: %w", k.what, err)
			}
		}
		return errors.Join(b.rules(ctx, round), b.idle(ctx, round))
	})
	if err != nil {
		return err
	}
	for _, k := range kinds {
		b.Ratio("serve/scrape-"+k.goal+"cpu", cpuOf+k.what)
	}
	b.Ratio("serve/scrape-anon", anonOf+kinds[0].what)
	b.RatioTo("serve/vs-victoriametrics-cpu", victoria, cpuOf+kinds[0].what)
	b.Own("serve/live-bytes", 1, live)
	b.Ratio("serve/start-after-kill", startTime)
	b.Ratio("serve/start-after-kill-peak", startPeak)
	b.Ratio("serve/rules-cpu", rulesCPU)
	b.Ratio("serve/idle-anon", area.Idle)
	s := b.size
	b.Note(
		fmt.Sprintf("Scrapes: %d targets x %d counters every %s, of which half change, a connection a target, all servers at once for %s (other kinds of pages: %s, real layouts almost twice), after two intervals in which they create the series. Memory is RssAnon at the end, without a collection.", s.targets, s.series, s.interval, s.scraping, s.others),
		fmt.Sprintf("Real layouts: pages in the shapes of node_exporter, a JVM and etcd in OpenMetrics with exemplars, and native histograms in protobuf, a quarter of the targets each; a tenth of the pods is replaced every %s. Both store exemplars, as ferula always does.", s.others),
		fmt.Sprintf("Rules: %d of one sum(rate(x[5m])) over %d series each, every %s, for %s, over series that were pushed to the head; nothing is scraped meanwhile.", s.rules, s.perRule, s.interval, s.evaluating),
		"VictoriaMetrics keeps no exemplars and rounds values; it scrapes the first kind of pages only.",
	)
	return nil
}

const (
	cpuOf     = "CPU: "
	anonOf    = "RssAnon at the end: "
	rulesCPU  = cpuOf + "rules"
	live      = "live heap of an active series"
	startTime = "ready after SIGKILL"
	startPeak = "peak of RSS until then"
)

// launch launches Prometheus or ferula on an empty directory, or on what an earlier process left, and VictoriaMetrics.
func (b *bench) launch(ctx context.Context, config string, keep bool, flags ...string) area.Launch {
	flags = append(flags, area.ReceiveWrites)
	tsdb := b.TSDB(ctx, area.TSDB{Config: config, Keep: keep, Flags: flags})
	return func(s *area.Side) (proc.Spec, error) {
		if s != b.single {
			return tsdb(s)
		}
		file := filepath.Join(b.Dir, "victoria.yml")
		err := errors.Join(os.RemoveAll(s.Dir), os.WriteFile(file, []byte(config+"\n"), 0o644))
		return s.Program.Single(s.Log(), s.TSDBDir(), "-promscrape.config="+file,
			"-search.latencyOffset=1s", "-search.maxUniqueTimeseries=3000000"), err
	}
}

// cpuDuring records the CPU time that the servers use for work.
func (b *bench) cpuDuring(ctx context.Context, round int, what string, work func() error, sides ...*area.Side) error {
	return area.Around(sides, func(s *area.Side, work func() error) error {
		used, err := s.CPUDuring(ctx, work)
		b.Add(round, s.Name, what, area.Seconds, used.Seconds())
		return err
	}, work)
}

// scrapes measures the servers while they scrape the same targets, and then starts those of the first kind of pages again.
func (b *bench) scrapes(ctx context.Context, round int, k kind) (err error) {
	f, err := newFleet(b.size.targets, b.size.series, k.pages)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	list := filepath.Join(b.Dir, "targets.json")
	if err := f.writeList(list); err != nil {
		return err
	}
	config := fmt.Sprintf("global: {scrape_interval: %s}\nscrape_configs: [{job_name: bench, file_sd_configs: [{files: [%q]}]}]", b.size.interval, list)
	sides := append(b.sides[:len(b.sides):len(b.sides)], b.single)
	work := func() error { return proc.Wait(ctx, b.size.scraping) }
	if k.goal != "" {
		sides, work = b.sides, func() error { return proc.Wait(ctx, b.size.others) }
	}
	total := b.size.targets * b.size.series
	// Until the measurement has ended the checks read little: a query of all series would leave garbage of its own, whose size
	// differs between the servers, in a heap that is measured as that of a server that is not queried.
	cheap, whole := map[string]int{"sum(up)": b.size.targets, "sum(scrape_samples_scraped)": total}, map[string]int{
		"sum(up)": b.size.targets, "count(bench_scraped_total)": total,
		`sum(bench_scraped_total{code="200"})`: b.size.series / 4 * b.size.targets * (b.size.targets - 1) / 2, // those do not change
	}
	var flags []string
	if k.real {
		flags = []string{"--enable-feature=exemplar-storage"} // ferula always stores them, Prometheus only with it
		config = strings.Replace(config, "job_name: bench,", "job_name: bench, scrape_native_histograms: true,", 1)
		// The series of pods that are replaced go stale within three intervals.
		waiting := func() error { return proc.Wait(ctx, 2*b.size.others-b.size.interval) }
		work = func() error { return f.replace(ctx, list, b.size.others, waiting) }
		samples := f.samples()
		cheap, whole = map[string]int{"sum(up)": b.size.targets, "sum(scrape_samples_scraped)": samples}, map[string]int{
			"count(bench_native_seconds)":                                b.size.targets / 4 * nativePerTarget,
			`count({__name__=~".+", __name__!~"up|scrape_.*|bench_.*"})`: samples - b.size.targets/4*nativePerTarget,
		}
	}
	var killed time.Time
	err = b.With(ctx, b.launch(ctx, config, false, flags...), func() error {
		if err := proc.Wait(ctx, 2*b.size.interval); err != nil {
			return err
		}
		err := proc.Until(ctx, 4*b.size.interval, time.Second, "all targets are scraped", func() error {
			return b.complete(ctx, cheap, time.Now(), sides...)
		})
		if err != nil {
			return err
		}
		if err := b.cpuDuring(ctx, round, cpuOf+k.what, work, sides...); err != nil {
			return err
		}
		if err := b.anon(round, anonOf+k.what, sides...); err != nil {
			return err
		}
		if err := b.complete(ctx, whole, time.Now(), sides...); err != nil { // no scrape was missed
			return err
		}
		if k.real {
			return b.exemplars(ctx, sides...)
		}
		if k.goal != "" {
			return nil
		}
		for _, s := range sides {
			heap, err := s.Live(ctx)
			if err != nil {
				return err
			}
			const own = 5 // series of the scrape itself
			b.Add(round, s.Name, live, area.Bytes, float64(heap)/float64(total+own*b.size.targets))
		}
		killed = time.Now()
		for _, s := range b.sides {
			if err := s.Kill(); err != nil {
				return fmt.Errorf("%s: %w", s.Name, err)
			}
			s.Server = nil
		}
		return nil
	}, sides...)
	if err != nil || k.goal != "" {
		return err
	}
	return b.restart(ctx, round, b.launch(ctx, config, true), whole, killed)
}

// restart starts each of the killed servers. At the time at which they were killed they must have all series.
func (b *bench) restart(ctx context.Context, round int, launch area.Launch, whole map[string]int, killed time.Time) error {
	for _, s := range b.sides {
		begun := time.Now()
		err := b.With(ctx, launch, func() error {
			b.Add(round, s.Name, startTime, area.Seconds, time.Since(begun).Seconds())
			peak, err := s.Peak()
			b.Add(round, s.Name, startPeak, area.Bytes, float64(peak))
			return errors.Join(err, b.complete(ctx, whole, killed, s))
		}, s)
		if err != nil {
			return fmt.Errorf("%s after SIGKILL: %w", s.Name, err)
		}
	}
	return nil
}

// idle measures the memory of servers without work.
func (b *bench) idle(ctx context.Context, round int) error {
	return b.With(ctx, b.launch(ctx, "scrape_configs: []", false), func() error {
		if err := proc.Wait(ctx, b.size.idle); err != nil {
			return err
		}
		return b.anon(round, area.Idle, b.sides...)
	}, b.sides...)
}

// anon records the anonymous memory of servers.
func (b *bench) anon(round int, what string, sides ...*area.Side) error {
	for _, s := range sides {
		anon, err := s.Anon()
		if err != nil {
			return err
		}
		b.Add(round, s.Name, what, area.Bytes, float64(anon))
	}
	return nil
}

// complete returns an error unless the servers have the wanted results of queries at a time.
func (b *bench) complete(ctx context.Context, checks map[string]int, at time.Time, sides ...*area.Side) error {
	for _, s := range sides {
		for expr, want := range checks {
			got, err := area.Instant(ctx, s.Server, expr, at)
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

// exemplars returns an error unless the servers have stored exemplars of text pages and of native histograms.
func (b *bench) exemplars(ctx context.Context, sides ...*area.Side) error {
	for _, s := range sides {
		for _, metric := range []string{"http_server_requests_seconds_bucket", "bench_native_seconds"} {
			body, _, err := s.Server.Fetch(ctx, proc.Request{Path: "/api/v1/query_exemplars", Query: url.Values{
				"query": {metric}, "start": {area.Secs(time.Now().Add(-b.size.interval).UnixMilli())},
				"end": {area.Secs(time.Now().UnixMilli())},
			}})
			if err == nil && !bytes.Contains(body, []byte(`"trace_id"`)) {
				err = area.ErrEmpty
			}
			if err != nil {
				return fmt.Errorf("%s: exemplars of %s: %w", s.Name, metric, err)
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
	config := fmt.Sprintf("global: {evaluation_interval: %s}\nrule_files: [%q]\nscrape_configs: []", b.size.interval, file)
	return b.With(ctx, b.launch(ctx, config, false), func() error {
		spec := blocks.Spec{
			Metric: "bench_metric", Values: blocks.Integers, Series: b.size.rules * b.size.perRule, PerPod: b.size.perRule, Seed: 5,
			Samples: int((past + future).Milliseconds() / stepMS), StepMS: stepMS, StartMS: time.Now().Add(-past).UnixMilli() / stepMS * stepMS,
		}
		if err := push.All(ctx, spec, b.sides...); err != nil {
			return err
		}
		b.Logf("%d samples pushed to each side", spec.Series*spec.Samples)
		if err := proc.Wait(ctx, b.size.interval); err != nil {
			return err
		}
		if err := b.cpuDuring(ctx, round, rulesCPU, func() error { return proc.Wait(ctx, b.size.evaluating) }, b.sides...); err != nil {
			return err
		}
		return b.sameResults(ctx, time.Now())
	}, b.sides...)
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
	if err := proc.Wait(ctx, b.size.interval); err != nil {
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
