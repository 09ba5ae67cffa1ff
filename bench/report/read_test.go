package report

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ferula-io/ferula/bench/area"
)

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

func TestParse_ReadsCellsInTheirUnits(t *testing.T) {
	r := Parse(tables)
	if s := r["x"]; s.Run != "2026-01-02, commit abc, median of 3" || s.Machine != "some CPU" || len(s.rows) != 4 {
		t.Errorf("%+v", s)
	}
	for _, c := range []struct {
		side string
		rows []string
		want Figure
	}{
		{"peer", []string{"CPU: 10"}, Figure{"1.5 s", 1.5, area.Seconds}},
		{"ferula", []string{"CPU: 10"}, Figure{"450 ms", 0.45, area.Seconds}},
		{"ferula", []string{"CPU: 100"}, Figure{"900 ns", 9e-7, area.Seconds}},
		{"peer", []string{"CPU: 10", "CPU: 100"}, Figure{"3.5 s", 3.5, area.Seconds}},
		{"peer", []string{"bytes"}, Figure{"2 KiB", 2048, area.Bytes}},
		{"peer", []string{"more"}, Figure{"3 ns/series", 3, "ns/series"}},
		{"ferula", []string{"more"}, Figure{"7", 7, ""}},
	} {
		got, err := r.Figure("x", c.side, c.rows...)
		if err != nil || got.Text != c.want.Text || got.Unit != c.want.Unit || math.Abs(got.Value-c.want.Value) > 1e-12 {
			t.Errorf("%s %q: got %+v, %v, want %+v", c.side, c.rows, got, err, c.want)
		}
	}
	for _, c := range [][3]string{{"y", "peer", "CPU: 10"}, {"x", "third", "CPU: 10"}, {"x", "peer", "absent"}, {"x", "ferula", "bytes"}} {
		if _, err := r.Figure(c[0], c[1], c[2]); !errors.Is(err, ErrMissing) || !strings.Contains(err.Error(), c[2]) {
			t.Errorf("%q: %v", c, err)
		}
	}
	if got, err := r.Goal("x", "x/a"); err != nil || got != 0.5 {
		t.Errorf("goal: %v, %v", got, err)
	}
	if _, err := r.Goal("x", "x/b"); !errors.Is(err, ErrMissing) {
		t.Errorf("a goal that is not there: %v", err)
	}
}

// What WriteResults writes is read again.
func TestParse_ReadsWhatIsWritten(t *testing.T) {
	name := filepath.Join(t.TempDir(), "RESULTS.md")
	if first, err := runForTest().WriteResults(name); err != nil || !first {
		t.Fatal(first, err)
	}
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	r := Parse(string(text))
	f, err := r.Figure("x", "peer", "cpu")
	measured, goalErr := r.Goal("x", "x/cpu")
	if err != nil || f.Text != "1.8 s" || goalErr != nil || measured != 0.25 || r["x"].Machine != "cpu, 2 cores, Linux 6.1, go1" {
		t.Errorf("%+v, %v, %v, %v, %+v", f, err, measured, goalErr, r["x"])
	}
	if _, err := r.Goal("x", "x/other"); !errors.Is(err, ErrMissing) {
		t.Errorf("a goal that was not measured: %v", err)
	}
}
