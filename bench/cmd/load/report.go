package main

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/ferula-io/ferula/bench/proc"
	"github.com/ferula-io/ferula/bench/report"
)

// Names of latencies. Those of queries begin with the process that is queried.
const (
	writeName = "remote write of 1,000 samples"
	pushName  = "push of a profile"
)

// summary is what a run reports.
type summary struct {
	options
	when            time.Time
	commit, machine string
	applied         time.Duration // how long the load lasted
	rates           []rate
	latencies       map[string][]time.Duration // by name, in any order
	processes       []process
	loadCores       float64 // that the load itself used
	repeated        int64   // requests repeated after 429 or 5xx
	compared        int64   // values of rates compared with the sent samples
	failed          error   // that ended the load
	missing         error   // of the check that everything acknowledged is there
}

// rate is a rate of the load, per second: the configured one and the one that was reached.
type rate struct {
	name                string
	configured, reached float64
}

// process is a process under load.
type process struct {
	name  string
	anon  []int64 // RssAnon, in bytes, at equal intervals
	cores float64 // that it used
}

// memoryColumns is the number of times for which the memory is reported.
const memoryColumns = 6

// section returns the figures as Markdown.
func (s summary) section() string {
	var b strings.Builder
	fmt.Fprintf(&b, "- %s, commit %s, %s\n- %s\n", s.when.UTC().Format("2006-01-02"), s.commit, s.duration, s.machine)
	if s.failed != nil {
		fmt.Fprintf(&b, "- **ended by an error** after %s: %s\n", short(s.applied), oneLine(s.failed))
	}
	fmt.Fprintf(&b, "\n| load | configured | reached |\n|---|---|---|\n| active series, with a sample every %s | %d | %d |\n", s.interval, s.series, s.seriesReached())
	for _, r := range s.rates {
		fmt.Fprintf(&b, "| %s a second | %.1f | %.1f |\n", r.name, r.configured, r.reached)
	}
	fmt.Fprintf(&b, "\n| | |\n|---|---|\n| acknowledged samples | %d |\n| acknowledged profiles | %d |\n| requests repeated after 429 or 5xx | %d |\n| values of rates compared with the sent samples | %d |\n",
		len(s.latencies[writeName])*seriesOfTarget, len(s.latencies[pushName]), s.repeated, s.compared)
	fmt.Fprintf(&b, "| lost, after all of them were requested back | %s |\n\n", s.lost())
	b.WriteString("| latency | requests | p50 | p99 | greatest |\n|---|---|---|---|---|\n")
	for _, name := range slices.Sorted(maps.Keys(s.latencies)) {
		all := s.latencies[name]
		fmt.Fprintf(&b, "| %s | %d | %s | %s | %s |\n", name, len(all),
			short(proc.Quantile(all, 0.5)), short(proc.Quantile(all, 0.99)), short(slices.Max(all)))
	}
	s.memory(&b)
	return b.String()
}

// memory writes the table of RssAnon over time.
func (s summary) memory(b *strings.Builder) {
	b.WriteString("\n| RssAnon after |")
	for i := range memoryColumns {
		fmt.Fprintf(b, " %s |", (s.applied * time.Duration(i+1) / memoryColumns).Round(time.Second))
	}
	b.WriteString(" greatest | CPU cores |\n|" + strings.Repeat("---|", memoryColumns+3) + "\n")
	for _, p := range s.processes {
		fmt.Fprintf(b, "| %s |", p.name)
		greatest := int64(0)
		for i := range memoryColumns {
			if len(p.anon) == 0 {
				b.WriteString(" |")
				continue
			}
			greatest = slices.Max(p.anon)
			fmt.Fprintf(b, " %d MiB |", p.anon[max(0, len(p.anon)*(i+1)/memoryColumns-1)]/mib)
		}
		fmt.Fprintf(b, " %d MiB | %.2f |\n", greatest/mib, p.cores)
	}
	fmt.Fprintf(b, "| the load itself |%s %.2f |\n", strings.Repeat(" |", memoryColumns+1), s.loadCores)
}

// seriesReached returns the number of series that have a sample.
func (s summary) seriesReached() int {
	return min(s.series, len(s.latencies[writeName])*seriesOfTarget)
}

func (s summary) lost() string {
	switch {
	case s.failed != nil:
		return "not checked"
	case s.missing != nil:
		return oneLine(s.missing)
	}
	return "0"
}

// oneLine returns an error as a cell of a table.
func oneLine(err error) string {
	return strings.NewReplacer("\n", "; ", "|", "/").Replace(err.Error())
}

// summary returns what the run has measured so far.
func (l *load) summary(machine report.Machine, commit string, selfCores float64, failed, missing error) summary {
	s := summary{
		options: l.o, when: l.begin, commit: commit, machine: machine.String(), applied: max(0, l.applied), latencies: l.latencies,
		loadCores: selfCores, repeated: l.repeated.Load(), compared: l.compared.Load(), failed: failed, missing: missing,
	}
	queries := func(name string) bool { return name != writeName && name != pushName }
	s.rates = []rate{
		{"samples by remote write", float64(l.o.series) / l.o.interval.Seconds(), seriesOfTarget * l.reached(l.begin, func(name string) bool { return name == writeName })},
		{"queries", l.o.queries, l.reached(l.at(roundsBeforeQueries), queries)},
		{"pushes of profiles", l.o.pushes, l.reached(l.begin, func(name string) bool { return name == pushName })},
	}
	for i, server := range []string{"query-frontend", "query", "serve"} {
		if servers := l.servers(); i < len(servers) {
			s.processes = append(s.processes, process{server, l.memory[servers[i]], l.cpu[servers[i]].Seconds() / max(1, l.applied.Seconds())})
		}
	}
	return s
}

// reached returns the completed requests a second from a time to the last one of them.
func (l *load) reached(from time.Time, of func(name string) bool) float64 {
	count, last := 0, from
	for name, all := range l.latencies {
		if of(name) {
			count += len(all)
			if l.ended[name].After(last) {
				last = l.ended[name]
			}
		}
	}
	if count == 0 {
		return 0
	}
	return float64(count) / max(1, last.Sub(from).Seconds())
}

// writeSection replaces the section in the named file, and leaves the text around it.
func writeSection(name, section string) error {
	text, err := os.ReadFile(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.WriteFile(name, []byte(report.Replace(string(text), "load", section)), 0o644)
}

func short(d time.Duration) string {
	switch {
	case d >= time.Second:
		return d.Round(10 * time.Millisecond).String()
	case d >= time.Millisecond:
		return d.Round(10 * time.Microsecond).String()
	}
	return d.Round(time.Microsecond).String()
}
