package plot

import (
	"encoding/xml"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/ferula-io/ferula/bench/area"
	"github.com/ferula-io/ferula/bench/report"
)

const root = "../.."

func read(t *testing.T, path ...string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(append([]string{root}, path...)...))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// drawn returns RESULTS.md and its plots.
func drawn(t *testing.T) (results string, files []File) {
	t.Helper()
	results = read(t, "bench", "RESULTS.md")
	files, err := Draw(results)
	if err != nil {
		t.Fatal(err)
	}
	return results, files
}

// The plots show the figures of RESULTS.md. `make plots` draws them again.
func TestPlots_AreThoseOfTheResults(t *testing.T) {
	_, files := drawn(t)
	if len(files) < 10 {
		t.Errorf("only %d plots", len(files))
	}
	for _, f := range files {
		drawn, err := os.ReadFile(filepath.Join(root, "docs", "perf", f.Name))
		if err != nil || string(drawn) != f.Text {
			t.Errorf("docs/perf/%s is not that of RESULTS.md (%v): run `make plots`", f.Name, err)
		}
	}
}

// Each figure in a plot of one row is a cell of RESULTS.md.
func TestPlots_HaveTheTextOfTheCells(t *testing.T) {
	results, files := drawn(t)
	titles := regexp.MustCompile(`<title>[^<]*: ([0-9][^<:]*?)(?: at [^<]*)?</title></(?:circle|rect)>`)
	checked := 0
	for _, f := range files {
		if f.Name == "remote-read-cpu.svg" {
			continue // sums of two rows
		}
		found := titles.FindAllStringSubmatch(f.Text, -1)
		if len(found) < 2 {
			t.Errorf("%s has %d figures", f.Name, len(found))
		}
		for _, match := range found {
			if checked++; !strings.Contains(results, "| "+match[1]+" |") {
				t.Errorf("%s: RESULTS.md has no figure %q", f.Name, match[1])
			}
		}
	}
	if checked < 60 {
		t.Errorf("only %d figures found", checked)
	}
}

func TestPlots_AreWellFormedAndHaveADocument(t *testing.T) {
	_, files := drawn(t)
	document := read(t, "docs", "perf", "README.md")
	for _, f := range files {
		for decoder := xml.NewDecoder(strings.NewReader(f.Text)); ; {
			if _, err := decoder.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s: %v", f.Name, err)
			}
		}
		if !strings.Contains(document, "("+f.Name+")") && !strings.Contains(document, `"`+f.Name+`"`) {
			t.Errorf("docs/perf/README.md does not show %s", f.Name)
		}
		if !strings.Contains(f.Text, "prefers-color-scheme: dark") || strings.Contains(f.Text, "NaN") || strings.Contains(f.Text, "Inf") {
			t.Errorf("%s: %s", f.Name, f.Text)
		}
	}
}

const tables = `# Results
<!-- begin x -->
## x

About.

- 2026-01-02, commit abc, median of 3
- some CPU
- a version

| goal | measured |  | limit |  |
|---|---|---|---|---|
| x/a | 0.5 | <= | 1 | ok |

| median of 3 | peer | ferula | ferula / peer | spread |
|---|---|---|---|---|
| CPU: 10 | 1.5 s | 450 ms | 0.3 | 2 % |
| CPU: 100 | 2 s | 900 ns | 0.3 | 2 % |
| bytes | 2 KiB |  |  |  |
| more | 3 ns/series | 7 | 1 |  |

- a note
<!-- end x -->
`

// A renamed row is an error that names it, and the other plots are drawn.
func TestDraw_NamesMissingRows(t *testing.T) {
	results, all := drawn(t)
	files, err := Draw(strings.ReplaceAll(results, "CPU: cache hit", "CPU: hit"))
	if !errors.Is(err, report.ErrMissing) || !strings.Contains(err.Error(), "frontend-cpu") || !strings.Contains(err.Error(), "CPU: cache hit") || len(files) != len(all)-1 {
		t.Errorf("%d of %d plots, %v", len(files), len(all), err)
	}
}

func TestWrite_DrawsWhatTheResultsHave(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "bench"), 0o755); err != nil {
		t.Fatal(err)
	}
	results := read(t, "bench", "RESULTS.md")
	for name, text := range map[string]string{"storeapi-cpu.svg": results, "absent": tables} {
		if err := os.WriteFile(filepath.Join(dir, "bench", "RESULTS.md"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		err := Write(dir)
		if _, e := os.Stat(filepath.Join(dir, "docs", "perf", name)); (name == "absent") != (e != nil) || (name == "absent") != errors.Is(err, report.ErrMissing) {
			t.Errorf("%s: %v, %v", name, err, e)
		}
	}
}

// A circle is where its figure belongs.
func TestLines_PointsAreAtTheirFigures(t *testing.T) {
	c := lines{file: "f", area: "x", title: "t", x: "size", y: "CPU", lines: []line{
		{name: "peer", class: peer, side: "peer", points: []point{{10, []string{"CPU: 10"}}, {100, []string{"CPU: 100"}}}},
		{name: "ferula", class: own, side: "ferula", dashed: true, points: []point{{10, []string{"CPU: 10"}}, {100, []string{"CPU: 100"}}}},
	}}
	circle := regexp.MustCompile(`cx="([0-9.]+)" cy="([0-9.]+)" r="3.5"><title>([^<]*)`)
	for _, logY := range []bool{false, true} {
		c.logY = logY
		drawn, err := c.draw(report.Parse(tables))
		if err != nil {
			t.Fatal(err)
		}
		var xs, ys []float64
		var titles []string
		for _, match := range circle.FindAllStringSubmatch(drawn, -1) {
			x, errX := strconv.ParseFloat(match[1], 64)
			y, errY := strconv.ParseFloat(match[2], 64)
			if errX != nil || errY != nil || x < linesLeft || x > linesRight || y < linesTop-1 || y > linesBottom+1 {
				t.Errorf("a point at %s %s", match[1], match[2])
			}
			xs, ys, titles = append(xs, x), append(ys, y), append(titles, match[3])
		}
		if !slices.Equal(titles, []string{"peer: 1.5 s at 10", "peer: 2 s at 100", "ferula: 450 ms at 10", "ferula: 900 ns at 100"}) {
			t.Fatalf("%q", titles)
		}
		if xs[0] >= xs[1] || xs[0] != xs[2] || ys[1] >= ys[0] || ys[0] >= ys[2] || ys[2] >= ys[3] {
			t.Errorf("x %v, y %v", xs, ys)
		}
		// On an axis that begins at 0, 2 s is at the top and 450 ms at 0.45 of 2.
		if want := linesBottom - 0.45/2*(linesBottom-linesTop); !logY && math.Abs(ys[2]-want) > 0.1 {
			t.Errorf("450 ms of 2 s at %v, want %v", ys[2], want)
		}
		if strings.Count(drawn, "stroke-dasharray") != 1 || !strings.Contains(drawn, "x: 2026-01-02, commit abc, median of 3; some CPU") || strings.Contains(drawn, "CPU, logarithmic") != logY {
			t.Error(drawn)
		}
	}
}

func TestBars_AreSharesOfTheLongest(t *testing.T) {
	c := bars{file: "f", title: "a < b", kinds: []kind{{"k", "x", []string{"CPU: 10"}, []bar{{"peer", peer}, {"ferula", own}}}}}
	drawn, err := c.draw(report.Parse(tables))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`width="300" height="11"><title>k: peer: 1.5 s`, `width="90" height="11"><title>k: ferula: 450 ms`, "a &lt; b"} {
		if !strings.Contains(drawn, want) {
			t.Errorf("no %s in %s", want, drawn)
		}
	}
}

func TestTicks_CoverTheValues(t *testing.T) {
	for _, c := range []struct{ least, most float64 }{{1, 1}, {0.9, 1}, {3e-8, 2}, {8192, 2e9}, {99, 101}, {1e-9, 1e-9}} {
		for _, unit := range []string{area.Seconds, area.Bytes} {
			ticks := logTicks(c.least, c.most, unit)
			if len(ticks) < 2 || len(ticks) > 10 || ticks[0] > c.least*1.000001 || ticks[len(ticks)-1] < c.most*0.999999 {
				t.Errorf("%v %s: %v", c, unit, ticks)
			}
		}
		ticks := linearTicks(c.most)
		if len(ticks) < 2 || len(ticks) > 7 || ticks[0] != 0 || ticks[len(ticks)-1] < c.most {
			t.Errorf("%v: %v", c, ticks)
		}
	}
	for _, c := range []struct {
		v    float64
		unit string
		want string
	}{{1e-6, area.Seconds, "1 µs"}, {0.1, area.Seconds, "100 ms"}, {10, area.Seconds, "10 s"}, {1 << 21, area.Bytes, "2 MiB"}, {512, area.Bytes, "512 B"}, {2000, "ns/series", "2,000"}, {0, "ns/series", "0"}, {0, area.Seconds, "0"}} {
		if got := tick(c.v, c.unit); got != c.want {
			t.Errorf("%v %s: %q, want %q", c.v, c.unit, got, c.want)
		}
	}
	for v, want := range map[float64]string{2: "2", 1000: "1,000", 120_000: "120,000", 19_200_000: "19.2 M", 1e6: "1 M"} {
		if got := size(v); got != want {
			t.Errorf("%v: %q, want %q", v, got, want)
		}
	}
}

// Text has the contrast that WCAG 2 requires of it (4.5), and lines that of graphics (3), on both backgrounds.
func TestPalette_IsLegibleOnBothBackgrounds(t *testing.T) {
	for _, c := range palette {
		want := 4.5
		switch c.class {
		case grid:
			want = 1.2 // it may be faint
		case floor:
			want = 3
		}
		for on, pair := range map[string][2]string{"light": {c.light, background.light}, "dark": {c.dark, background.dark}} {
			if got := contrast(t, pair[0], pair[1]); got < want {
				t.Errorf("%s, %s: contrast %.2f, want %.1f", c.class, on, got, want)
			}
		}
	}
}

// contrast returns the ratio of WCAG 2 of two colours.
func contrast(t *testing.T, a, b string) float64 {
	t.Helper()
	luminance := func(hex string) float64 {
		rgb, err := strconv.ParseUint(hex[1:], 16, 32)
		if err != nil {
			t.Fatal(err)
		}
		sum := 0.0
		for i, weight := range []float64{0.2126, 0.7152, 0.0722} {
			v := float64(rgb>>(16-8*i)&0xff) / 255
			if v <= 0.04045 {
				v /= 12.92
			} else {
				v = math.Pow((v+0.055)/1.055, 2.4)
			}
			sum += weight * v
		}
		return sum
	}
	la, lb := luminance(a), luminance(b)
	return (max(la, lb) + 0.05) / (min(la, lb) + 0.05)
}
