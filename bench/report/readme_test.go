package report

import (
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// claim is a row of a table with figures, in README.md or docs/perf/costs.md: a text that only its first cell has, and the source of
// each number in its last cell, in their order.
type claim struct {
	row     string
	area    string
	numbers []number
}

// number compares a number of a document with RESULTS.md.
type number struct {
	of    func(t *testing.T, r Results) float64 // in the unit of the document; nil for a number that is no figure
	below bool                                  // the document states a bound
}

// constant is a number that is no figure of RESULTS.md, such as a size.
var constant = number{}

// percentOf is a goal in percent.
func percentOf(goalName string) number {
	return number{of: func(t *testing.T, r Results) float64 { return 100 * goalOf(t, r, goalName) }}
}

func goalOf(t *testing.T, r Results, goalName string) float64 {
	t.Helper()
	name, _, _ := strings.Cut(goalName, "/")
	v, err := r.Goal(name, goalName)
	return figureOrNaN(t, v, err)
}

// figureOrNaN returns a figure, or NaN if RESULTS.md does not have it: a document may leave it open.
func figureOrNaN(t *testing.T, v float64, err error) float64 {
	t.Helper()
	if err != nil {
		t.Log(err)
		return math.NaN()
	}
	return v
}

// percentOver is a row of one side over another one, in percent.
func percentOver(areaName, side, other, row string) number {
	return number{of: func(t *testing.T, r Results) float64 {
		return 100 * cellOf(t, r, areaName, side, row) / cellOf(t, r, areaName, other, row)
	}}
}

// worstOver is the greatest of several rows of one side over another one, in percent.
func worstOver(areaName, side, other string, patterns ...string) number {
	return number{of: func(t *testing.T, r Results) float64 {
		t.Helper()
		worst := math.NaN()
		for name := range r[areaName].rows {
			here, err := r.Figure(areaName, side, name)
			there, err2 := r.Figure(areaName, other, name)
			if err != nil || err2 != nil || !matchesOne(name, patterns) {
				continue
			}
			if share := 100 * here.Value / there.Value; !(share <= worst) {
				worst = share
			}
		}
		if math.IsNaN(worst) {
			t.Logf("area %s has no rows %q of %s and %s", areaName, patterns, side, other)
		}
		return worst
	}}
}

func matchesOne(name string, patterns []string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return regexp.MustCompile("^(?:" + p + ")$").MatchString(name) })
}

// worse is the greater one of two numbers.
func worse(a, b number) number {
	return number{of: func(t *testing.T, r Results) float64 { return max(a.of(t, r), b.of(t, r)) }}
}

// cell is a row of a side, divided by a unit.
func cell(areaName, side, row string, unit float64) number {
	return number{of: func(t *testing.T, r Results) float64 { return cellOf(t, r, areaName, side, row) / unit }}
}

func cellOf(t *testing.T, r Results, areaName, side, row string) float64 {
	t.Helper()
	f, err := r.Figure(areaName, side, row)
	return figureOrNaN(t, f.Value, err)
}

// below is a bound of a number.
func below(n number) number { return number{of: n.of, below: true} }

// mib is a goal in MiB.
func mib(goalName string) number {
	return number{of: func(t *testing.T, r Results) float64 { return goalOf(t, r, goalName) }}
}

const (
	ms     = 1e-3
	mibyte = 1 << 20
)

// onWorstCPU is a function of the goal on the CPU on which it is greatest.
func onWorstCPU(goalName string, text func(ratio float64) float64) number {
	return number{of: func(t *testing.T, r Results) float64 {
		t.Helper()
		worst := math.Inf(-1)
		areaName, _, _ := strings.Cut(goalName, "/")
		for _, section := range r.sectionsOf(areaName) {
			v, err := r.Goal(section, goalName)
			if err != nil {
				t.Error(err)
			}
			worst = max(worst, v)
		}
		return text(worst)
	}}
}

// headlines are the claims of README.md.
func headlines() []claim {
	timesLess := func(ratio float64) float64 { return 1 / ratio }
	percentMore := func(ratio float64) float64 { return 100 * (ratio - 1) }
	return []claim{
		{"dashboard query", "stack", []number{onWorstCPU("stack/every-point", timesLess), onWorstCPU("stack/anon", timesLess), onWorstCPU("stack/latency-16", timesLess)}},
		{"`sum by (rate)`", "engine", []number{onWorstCPU("engine/sum-rate-8h", timesLess), onWorstCPU("engine/wall-sum-rate-8h", timesLess)}},
		{"scraping", "serve", []number{onWorstCPU("serve/scrape-cpu", percentMore), onWorstCPU("serve/scrape-anon", percentMore)}},
	}
}

func claims() []claim {
	engine := func(names ...string) (numbers []number) {
		for _, name := range names {
			numbers = append(numbers, percentOf("engine/"+name))
		}
		return numbers
	}
	return []claim{
		{"remote read, chunks, 10,000 series of 8 h", "remoteread", []number{percentOf("remoteread/chunks-cpu"), below(mib("remoteread/chunks-anon-mib")),
			cell("remoteread", "ferula", "first byte: chunks, 8 h", ms), cell("remoteread", "Prometheus", "first byte: chunks, 8 h", ms)}},
		{"remote read, samples, the same", "remoteread", []number{percentOf("remoteread/samples-cpu"), below(mib("remoteread/samples-anon-mib")),
			cell("remoteread", "ferula", "first byte: samples, 8 h", ms), cell("remoteread", "Prometheus", "first byte: samples, 8 h", 1)}},
		{"remote read of the last 2 h in the head", "remoteread", []number{percentOf("remoteread/head-chunks-cpu"), percentOf("remoteread/head-samples-cpu"),
			mib("remoteread/head-samples-anon-mib"), constant}}, // bytes of a series
		{"range query of 59 MB split in 2", "frontend", []number{
			worse(percentOf("frontend/vs-thanos"), worstOver("frontend", "ferula", "Thanos", "(?:real query|behind Thanos query): CPU of the frontend")),
			worstOver("frontend", "ferula", "Thanos", "CPU: client gzip", "(?:real query|behind Thanos query), client gzip: CPU of the frontend"),
			worstOver("frontend", "ferula", "Thanos", "CPU: (?:second )?cache hit.*"),
			below(mib("frontend/anon-590mb-mib")), constant, constant}}, // sizes of the responses
		{"range query with every point", "api", []number{percentOf("api/query-range-cpu"), percentOver("api", "ferula", "Prometheus", "CPU: 8 h, every point, gzip"),
			percentOver("api", "ferula", "Prometheus", "bytes on the wire: 8 h, every point, gzip"), percentOf("api/query-range-anon")}},
		{"PromQL, 10,000 series of 8 h", "engine", engine("count-8h", "sum-rate-8h", "sum-over-time-8h", "topk-8h", "quantile-8h", "histogram-quantile", "head-1h")},
		{"`sum by` over StoreAPI", "storeapi", []number{percentOf("storeapi/query"),
			worstOver("storeapi", "ferula", "Thanos", "CPU of the querier: max by .+"), percentOf("stack/sum-by")}},
		{"from a bucket, warm", "store", []number{percentOf("store/warm-cpu"), percentOf("store/requests")}},
		{"Series through the sidecar", "sidecar", []number{percentOf("sidecar/cpu"), constant, // hours
			worstOver("sidecar", "ferula", "Thanos", "CPU: .+ in the head"), below(mib("sidecar/anon-mib"))}},
		{"a scrape of 10,000 lines", "exposition", []number{percentOf("exposition/live-10k"), percentOf("exposition/live-10k-vs-client-golang")}},
		{"profile series with an exemplar", "profiles", []number{worstOver("profiles", "with exemplars", "without", "time: .+"),
			worstOver("profiles", "with exemplars", "without", "(?:server )?CPU: .*by service.*"), worstOver("profiles", "with exemplars", "without", "(?:server )?CPU: .+ by pod")}},
	}
}

// unknown stands in a document for a figure that RESULTS.md does not have yet.
const unknown = "?"

var numberInText = regexp.MustCompile(`\d+(?:\.\d+)?|\?`)

// The three figures of README.md are those of the CPU on which ferula does worse, to the digits that README.md has.
func TestReadme_FiguresAreThoseOfTheWorseCPU(t *testing.T) {
	checkClaims(t, headlines(), "\n| workload |", "README.md")
}

// Every number of the second table of docs/perf/costs.md is that of RESULTS.md, to the digits of the document.
func TestReadme_FiguresAreThoseOfTheResults(t *testing.T) {
	checkClaims(t, claims(), "\n## Other workloads\n", "docs", "perf", "costs.md")
}

// checkClaims compares the first table after a text with RESULTS.md. -update writes the figures of RESULTS.md into it.
func checkClaims(t *testing.T, all []claim, after string, document ...string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "RESULTS.md"))
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(append([]string{"..", ".."}, document...)...)
	readme, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	r := Parse(string(text))
	before, costs, _ := strings.Cut(string(readme), after)
	rows, updated := 0, costs
	for line := range strings.Lines(costs) {
		cells := cellsOf(strings.TrimSpace(line))
		if strings.HasPrefix(line, "## ") {
			break
		}
		if rows > 0 && len(cells) != 3 {
			break
		}
		if len(cells) != 3 || strings.HasPrefix(line, "|---") || cells[0] == "what" {
			continue
		}
		rows++
		cells[2] = checkClaim(t, r, all, cells)
		updated = strings.Replace(updated, line, "| "+strings.Join(cells, " | ")+" |\n", 1)
	}
	if rows != len(all) {
		t.Errorf("%s has %d rows, want %d", document, rows, len(all))
	}
	if *updateReadme && updated != costs && !t.Failed() {
		if err := os.WriteFile(name, []byte(before+after+updated), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// checkClaim returns the last cell of a row with the figures of RESULTS.md. Without -update another figure is an error.
func checkClaim(t *testing.T, r Results, all []claim, cells []string) string {
	t.Helper()
	at := slices.IndexFunc(all, func(c claim) bool { return strings.Contains(cells[0], c.row) })
	if at < 0 {
		t.Errorf("no figures of RESULTS.md are known for the row %q", cells[0])
		return cells[2]
	}
	c := all[at]
	if !(Machine{CPU: "AMD EPYC", Cores: 2}).is(nameOnly(r[c.area].Machine)) {
		t.Errorf("%s: the first section is claimed to be of two cores of an EPYC, RESULTS.md has %q", c.row, r[c.area].Machine)
	}
	if n := len(numberInText.FindAllString(cells[2], -1)); n != len(c.numbers) {
		t.Errorf("%s: %d numbers, want %d: %q", c.row, n, len(c.numbers), cells[2])
		return cells[2]
	}
	i := -1
	return numberInText.ReplaceAllStringFunc(cells[2], func(text string) string {
		if i++; c.numbers[i].of == nil {
			return text
		}
		want := c.numbers[i].of(t, r)
		fault := compareNumber(text, want, c.numbers[i].below)
		switch {
		case fault == "":
		case *updateReadme && !c.numbers[i].below && !math.IsNaN(want):
			return rounded(text, want)
		default:
			t.Errorf("%s: %s", c.row, fault)
		}
		return text
	})
}

// rounded returns a figure with as many decimals as a text has, or with two digits if these would be too few.
func rounded(text string, v float64) string {
	_, decimals, _ := strings.Cut(text, ".")
	n := len(decimals)
	if text == unknown || v < 0.95*math.Pow10(-n) {
		n = min(2, max(0, 1-int(math.Floor(math.Log10(v)))))
	}
	return strconv.FormatFloat(v, 'f', n, 64)
}

func TestRounded_KeepsTheDecimalsOfTheText(t *testing.T) {
	for _, c := range []struct {
		text string
		v    float64
		want string
	}{{"27", 31.4, "31"}, {"0.8", 0.76, "0.8"}, {"4", 0.31, "0.31"}, {"?", 184.8, "185"}, {"?", 4.46, "4.5"}, {"?", 0.056, "0.06"}} {
		if got := rounded(c.text, c.v); got != c.want {
			t.Errorf("%+v: got %s", c, got)
		}
	}
}

// compareNumber returns how a number of a document differs from a figure; "" if it is the figure, rounded, or neither has it.
func compareNumber(text string, want float64, below bool) string {
	if (text == unknown) != math.IsNaN(want) {
		return "the document has " + text + ", RESULTS.md " + strconv.FormatFloat(want, 'g', 4, 64)
	} else if text == unknown {
		return ""
	}
	got, err := strconv.ParseFloat(text, 64)
	_, decimals, _ := strings.Cut(text, ".")
	half := 0.5 * math.Pow(10, -float64(len(decimals)))
	switch {
	case err != nil:
		return err.Error()
	case below && want >= got:
		return "the document states less than " + text + ", RESULTS.md " + strconv.FormatFloat(want, 'g', 4, 64)
	case !below && math.Abs(got-want) > half*1.000001:
		return "the document has " + text + ", RESULTS.md " + strconv.FormatFloat(want, 'g', 4, 64)
	}
	return ""
}

func TestCompareNumber_RoundsToTheDigitsOfTheText(t *testing.T) {
	for _, c := range []struct {
		text  string
		want  float64
		below bool
		same  bool
	}{
		{"27", 26.91, false, true}, {"27", 26.4, false, false}, {"0.8", 0.8052, false, true}, {"0.8", 0.86, false, false}, {"7.0", 6.998, false, true},
		{"3.4", 3.401, false, true}, {"8", 7.43, true, true}, {"8", 8, true, false}, {"1", 0.5, true, true}, {"x", 1, false, false},
		{unknown, math.NaN(), false, true}, {unknown, 1, false, false}, {"1", math.NaN(), false, false},
	} {
		if fault := compareNumber(c.text, c.want, c.below); (fault == "") != c.same {
			t.Errorf("%+v: %q", c, fault)
		}
	}
}
