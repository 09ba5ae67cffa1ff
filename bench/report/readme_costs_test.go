package report

import (
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/ferula-io/ferula/bench/area"
)

var updateReadme = flag.Bool("update", false, "write the figures of RESULTS.md into README.md and docs/perf")

// cost is a row of the table "Where ferula loses" in docs/perf/costs.md. Of all rows of RESULTS.md that match it, on every CPU, the
// table has the one in which ferula's share of the peer's cost is the greatest.
type cost struct {
	have, instead string // cells of the table; empty if they are those of the row above
	workload      string // cell of the table, in which %s is what of the row's name is in parentheses in the pattern
	rows          []pattern
	memory        []pattern // a further figure: memory of the same peer
}

// pattern selects rows of an area of RESULTS.md.
type pattern struct {
	area, peer string
	row        *regexp.Regexp
	more       []string // rows whose figures are added to ferula's
	alone      string   // a further column of ferula: only this part is ferula's, the others are the peer's
}

func rowsOf(areaName, peer, row string, more ...string) pattern {
	return pattern{areaName, peer, regexp.MustCompile("^" + row + "$"), more, ""}
}

// inStacks selects rows of the area stack, with the column in which only one part is ferula's.
func inStacks(row, alone string) pattern {
	p := rowsOf("stack", "Thanos", inStack+row)
	p.alone = alone
	return p
}

// inStack begins the rows of the area stack: some are measured with a store gateway, too.
const inStack = "((?:with a store: )?)"

func costs() []cost {
	one := func(areaName, peer, row string, more ...string) []pattern {
		return []pattern{rowsOf(areaName, peer, row, more...)}
	}
	sidecar := []pattern{rowsOf("sidecar", "Thanos", "CPU: (.+)"), inStacks("CPU: (.+): sidecar", "ferula sidecar")}
	return []cost{
		{have: "Prometheus", instead: "[`ferula serve`](../ops/serve.md); [move, and back](../migrate/prometheus.md)",
			workload: "scrapes of 1,000 targets of 1,000 series every 15 s, for 5 min",
			rows:     one("serve", "Prometheus", "CPU: scrapes"), memory: one("serve", "Prometheus", "RssAnon at the end of the scrapes")},
		{workload: "1,000 recording rules over 100 series each every 15 s, for 2 min", rows: one("serve", "Prometheus", "CPU: rules")},
		{workload: "one query: %s", rows: []pattern{rowsOf("engine", "Prometheus", "CPU: (.+?)(?:, a thousand)?"), rowsOf("api", "Prometheus", "CPU: (.+)")}},
		{workload: "remote read of 10,000 series: %s", rows: one("remoteread", "Prometheus", "CPU: (.+)")},
		{workload: "idle memory", rows: one("api", "Prometheus", "RssAnon, idle")},
		{have: "`thanos sidecar`", instead: "[`ferula sidecar`](../ops/sidecar.md); [move, and back](../migrate/thanos.md#sidecar)",
			workload: "%s", rows: sidecar,
			memory: []pattern{rowsOf("sidecar", "Thanos", "growth of RssAnon: Series .+"), inStacks("peak RssAnon: sidecar", "ferula sidecar")}},
		{have: "the Prometheus behind it", instead: "the same Prometheus", workload: "range query: %s", rows: []pattern{inStacks("CPU: (.+): Prometheus", "ferula sidecar")}},
		{have: "`thanos query`", instead: "[`ferula query`](../ops/query.md); [move, and back](../migrate/thanos.md#query)",
			workload: "range query: %s", rows: []pattern{rowsOf("storeapi", "Thanos", "CPU of the querier: (.+)"), inStacks("CPU: (.+): query", "ferula query")},
			memory: []pattern{inStacks("peak RssAnon: query", "ferula query")}},
		{have: "`thanos query-frontend`", instead: "[`ferula query-frontend`](../ops/query-frontend.md); [move, and back](../migrate/thanos.md#query-frontend)",
			workload: "a request: %s", rows: []pattern{inStacks("CPU: (.+): query-frontend", "ferula frontend"), rowsOf("frontend", "Thanos", "CPU: (.+)"),
				rowsOf("frontend", "Thanos", "((?:real|behind) .+): CPU of the frontend")},
			memory: []pattern{inStacks("peak RssAnon: query-frontend", "ferula frontend"), rowsOf("frontend", "Thanos", "growth of RssAnon: .+")}},
		{have: "`thanos store`", instead: "[`ferula store`](../ops/store.md); [move, and back](../migrate/thanos.md#store)",
			workload: "%s", rows: []pattern{rowsOf("store", "Thanos", "CPU, (.+)"), inStacks("CPU: (.+): store", "")},
			memory: []pattern{rowsOf("store", "Thanos", "peak of RssAnon over ten requests"), inStacks("peak RssAnon: store", "")}},
		{have: "these Thanos components together", instead: "the same of ferula, [in ten minutes](../ops/stack.md); [mixed](../ops/scale.md)",
			workload: "range query: %s", rows: one("stack", "Thanos", inStack+"CPU: (.+): all(?: three)?"), memory: one("stack", "Thanos", inStack+"peak RssAnon: all(?: three)?")},
		{have: "google/pprof, a library", instead: "`ferula serve`: [profiles](../ops/profiles.md); [move, and back](../migrate/pyroscope.md)",
			workload: "a profile of 200 samples: pushed over HTTP and stored durably here, only parsed there",
			rows:     one("profiles", "naive", "CPU: a push", "CPU: a push over HTTP", "CPU: a profile's part of a flush", "CPU: compaction of a profile")},
		{have: "VictoriaMetrics/metrics", instead: "the module [metrics](../../metrics/README.md); [move, and back](../migrate/victoriametrics-metrics.md)",
			workload: "a scrape: %s", rows: one("exposition", "VictoriaMetrics/metrics", "scrape: (10000 lines [^:]+)")},
		{workload: "a scrape of one metric: %s", rows: one("exposition", "VictoriaMetrics/metrics", "scrape: ((?:[A-Z][A-Za-z]+)[^:]*)")},
		{workload: "one update, %s", rows: one("exposition", "VictoriaMetrics/metrics", "update(?:: |, )(.+)")},
		{have: "client_golang", instead: "the module [metrics](../../metrics/README.md); [move, and back](../migrate/client_golang.md)",
			workload: "a scrape: %s", rows: []pattern{rowsOf("exposition", "client_golang", "scrape: (10000 lines [^:]+)"), rowsOf("exposition", "client_golang", "handler: (10000 lines[^:]+)")}},
		{workload: "one update, %s", rows: one("exposition", "client_golang", "update(?:: |, )(.+)")},
		{have: "a JSON codec of query responses", instead: "the module [promjson](../../promjson/README.md)", workload: "%s",
			rows: []pattern{rowsOf("json", "JSONCodec", "CPU: (.+)"), rowsOf("json", "jsoniter", "CPU, (decoding: .+)"),
				rowsOf("json", "sonic", "CPU, (decoding: .+)"), rowsOf("json", "client_golang", "CPU, (decoding: .+)")}},
	}
}

// pair is what a workload costs there and here.
type pair struct {
	words       string // of the row's name
	area        string
	cpu         string
	there, here Figure
}

func (p pair) share() float64 { return p.here.Value / p.there.Value }

// pairsOf returns the rows of RESULTS.md that a pattern selects and that both sides have.
func pairsOf(r Results, p pattern) (pairs []pair) {
	for _, section := range r.sectionsOf(p.area) {
		for name := range r[section].rows {
			pairs = append(pairs, pairsOfRow(r, p, section, name)...)
		}
	}
	return pairs
}

func pairsOfRow(r Results, p pattern, section, name string) (pairs []pair) {
	found := p.row.FindStringSubmatch(name)
	if found == nil {
		return nil
	}
	mine := []string{name}
	if len(p.more) > 0 {
		mine = p.more
	}
	there, err := r.Figure(section, p.peer, name)
	words := strings.ReplaceAll(strings.Join(found[1:], ""), "10000 ", "10,000 ") // as the other rows have it
	for _, column := range []string{"ferula", p.alone} {
		here, err2 := r.Figure(section, column, mine...)
		if column != "" && err == nil && err2 == nil {
			pairs = append(pairs, pair{words, p.area, cpuOf(r[section].Machine), there, here})
		}
	}
	return pairs
}

var shortCPU = regexp.MustCompile(`EPYC|Xeon`)

// cpuOf is a name of a machine's CPU that fits into a cell.
func cpuOf(machine string) string {
	if short := shortCPU.FindString(machine); short != "" {
		return short
	}
	return processorOf(machine)
}

// greatest returns the row in which ferula's share is the greatest.
func greatest(r Results, patterns []pattern) (worst pair, ok bool) {
	var all []pair
	for _, p := range patterns {
		all = append(all, pairsOf(r, p)...)
	}
	if len(all) == 0 {
		return pair{}, false
	}
	return slices.MaxFunc(all, func(a, b pair) int {
		if a.share() != b.share() {
			return int(math.Copysign(1, a.share()-b.share()))
		}
		return strings.Compare(b.area+b.words+b.cpu, a.area+a.words+a.cpu)
	}), true
}

// readmeAmount is an amount with three digits.
func readmeAmount(f Figure) string {
	v, unit := f.Value, f.Unit
	switch {
	case unit == "ns/sample":
		unit = "ns a sample"
	case unit == area.Seconds && v < 1e-6:
		v, unit = v*1e9, "ns"
	case unit == area.Seconds && v < 1e-3:
		v, unit = v*1e6, "µs"
	case unit == area.Seconds && v < 1:
		v, unit = v*1e3, "ms"
	case unit == area.Bytes:
		v, unit = v/mibyte, "MiB"
	}
	decimals := max(0, 2-int(math.Floor(math.Log10(v))))
	return strconv.FormatFloat(v, 'f', min(decimals, 2), 64) + " " + unit
}

// readmeShare is a share in percent, bold if ferula costs more.
func readmeShare(p pair) string {
	percent := 100 * p.share()
	text := strconv.FormatFloat(percent, 'f', 0, 64) + " %"
	switch {
	case percent < 10:
		return strconv.FormatFloat(percent, 'f', 1, 64) + " %"
	case percent >= 100.5:
		return "**" + text + "**"
	}
	return text
}

// seeIt names the area of the row, then those that measure the other workloads.
func seeIt(worst pair, rows []pattern) string {
	areas := []string{worst.area}
	for _, p := range rows {
		if !slices.Contains(areas, p.area) {
			areas = append(areas, p.area)
		}
	}
	return "`make bench AREA=" + strings.Join(areas, "`, `AREA=") + "`"
}

const (
	beginCosts = "<!-- begin costs: go test ./report -run TestReadme -update, in bench -->\n"
	endCosts   = "<!-- end costs -->\n"
)

// costTable writes the table; errors name the rows that RESULTS.md does not have.
func costTable(r Results, costs []cost) (table string, errs []error) {
	var b strings.Builder
	b.WriteString("| you run | workload | cost there | run instead | cost here | ratio | CPU | measure it |\n|---|---|---|---|---|---|---|---|\n")
	for _, c := range costs {
		worst, ok := greatest(r, c.rows)
		if !ok {
			errs = append(errs, fmt.Errorf("%w: no row for %q of %q", ErrMissing, c.workload, c.have))
			continue
		}
		workload := c.workload
		if strings.Contains(workload, "%s") {
			workload = fmt.Sprintf(workload, strings.TrimSpace(worst.words))
		}
		there, here, share, cpus := readmeAmount(worst.there), readmeAmount(worst.here), readmeShare(worst), worst.cpu
		rows := c.rows
		if c.memory != nil {
			memory, ok := greatest(r, c.memory)
			if !ok {
				errs = append(errs, fmt.Errorf("%w: no memory for %q", ErrMissing, c.have))
				continue
			}
			there, here, share = there+", "+readmeAmount(memory.there), here+", "+readmeAmount(memory.here), share+", "+readmeShare(memory)
			if memory.cpu != worst.cpu {
				cpus += ", " + memory.cpu
			}
			rows = append(slices.Clone(rows), c.memory...)
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %s | %s |\n", c.have, workload, there, c.instead, here, share, cpus, seeIt(worst, rows))
	}
	return b.String(), errs
}

// The table of docs/perf/costs.md has, for each part, the workload of RESULTS.md in which ferula does worst. -update writes it.
func TestReadme_CostsAreTheWorstOfTheResults(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "RESULTS.md"))
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join("..", "..", "docs", "perf", "costs.md")
	readme, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(readme), beginCosts)
	got, after, ok2 := strings.Cut(rest, endCosts)
	if !ok || !ok2 {
		t.Fatalf("docs/perf/costs.md does not have the lines %q and %q", beginCosts, endCosts)
	}
	r := Parse(string(text))
	want, errs := costTable(r, costs())
	for _, err := range errs {
		t.Error(err)
	}
	if t.Failed() || got == want {
		return
	}
	if *updateReadme {
		if err := os.WriteFile(name, []byte(before+beginCosts+want+endCosts+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Errorf("docs/perf/costs.md does not follow RESULTS.md: cd bench && GOWORK=off go test ./report -run TestReadme_Costs -update\n%s", firstDifference(got, want))
}

func firstDifference(got, want string) string {
	wants := strings.Split(want, "\n")
	for i, line := range strings.Split(got, "\n") {
		if i >= len(wants) || line != wants[i] {
			return "costs.md: " + line + "\nwant:      " + strings.Join(wants[min(i, len(wants)):min(i+1, len(wants))], "")
		}
	}
	return "rows are missing"
}

func TestCostTable_HasTheRowWithTheGreatestShare(t *testing.T) {
	r := Parse(`<!-- begin a -->
- run
- machine

| median | peer | ferula |
|---|---|---|
| CPU: cheap | 1 s | 10 ms |
| with a store: CPU: dear | 2 s | 3 s |
| CPU: only here |  | 9 s |
| memory | 10 MiB | 512 KiB |
<!-- end a -->
`)
	got, errs := costTable(r, []cost{{have: "peer", instead: "ferula", workload: "query: %s", rows: []pattern{rowsOf("a", "peer", inStack+"CPU: (.+)")}, memory: []pattern{rowsOf("a", "peer", "memory")}}})
	want := "| peer | query: with a store: dear | 2.00 s, 10.0 MiB | ferula | 3.00 s, 0.50 MiB | **150 %**, 5.0 % | machine | `make bench AREA=a` |\n"
	if !strings.HasSuffix(got, "\n"+want) || len(errs) > 0 {
		t.Errorf("got %s%v, want %s", got, errs, want)
	}
	one := rowsOf("a", "peer", inStack+"CPU: (.+)")
	one.alone = "ferula alone"
	r = Parse(`<!-- begin a -->
- run
- machine

| median | peer | ferula alone | ferula |
|---|---|---|---|
| CPU: dear | 2 s | 4 s | 3 s |
<!-- end a -->
`)
	if got, errs := costTable(r, []cost{{workload: "%s", rows: []pattern{one}}}); !strings.Contains(got, "| 4.00 s | **200 %** |") || len(errs) > 0 {
		t.Errorf("the only part of ferula costs more than among others of ferula: %s%v", got, errs)
	}
	if _, errs := costTable(r, []cost{{workload: "x", rows: []pattern{rowsOf("a", "peer", "CPU: renamed")}}}); len(errs) != 1 {
		t.Errorf("a row that RESULTS.md does not have: %v", errs)
	}
}
