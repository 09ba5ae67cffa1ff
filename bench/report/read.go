package report

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/ferula-io/ferula/bench/area"
)

// ErrMissing means that RESULTS.md does not have a figure.
var ErrMissing = errors.New("no such figure in RESULTS.md")

// Results are the sections of RESULTS.md by their names: the area for the first section of an area, and "api on CPU, 2 cores" for
// one of another machine.
type Results map[string]Section

// Section is the section of an area as WriteResults wrote it.
type Section struct {
	Run     string // date, commit and number of rounds
	Machine string
	goals   map[string]string   // the measured figure of each goal
	sides   []string            // the heading of each column after the first
	rows    map[string][]string // the cells after the first, by the first
}

// ShortMachine returns only the CPU's name and the cores if the line of the machine is long, for a place that is short.
func (s Section) ShortMachine() string {
	if !strings.Contains(s.Machine, detailsOfCPU) {
		return s.Machine
	}
	return nameOnly(processorOf(s.Machine))
}

// nameOnly removes family, model and L2 from the line of a machine.
func nameOnly(machine string) string {
	name, details, _ := strings.Cut(machine, detailsOfCPU)
	_, cores, _ := strings.Cut(details, ")")
	return name + cores
}

// sectionsOf returns the names of an area's sections, a machine each; the area's own is the first.
func (r Results) sectionsOf(areaName string) []string {
	names := []string{areaName}
	for name := range r {
		if strings.HasPrefix(name, areaName+onMachine) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Figure is a cell of a table. Times are in seconds and sizes in bytes, whatever multiple of them the cell has.
type Figure struct {
	Text  string // of the cell
	Value float64
	Unit  string
}

// Parse reads the text of RESULTS.md. It ignores text outside of the markers of the areas.
func Parse(text string) Results {
	all := Results{}
	name, now, bullets, table := "", Section{}, 0, ""
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		switch begun, isBegin := strings.CutPrefix(line, "<!-- begin "); {
		case isBegin:
			name, bullets, table = strings.TrimSuffix(begun, " -->"), 0, ""
			now = Section{goals: map[string]string{}, rows: map[string][]string{}}
		case strings.HasPrefix(line, "<!-- end "):
			all[name] = now
		case strings.HasPrefix(line, "- ") && bullets < 2:
			if bullets++; bullets == 1 {
				now.Run = line[2:]
			} else {
				now.Machine = line[2:]
			}
		case strings.HasPrefix(line, "|---"):
		case strings.HasPrefix(line, "|"):
			cells := cellsOf(line)
			switch {
			case table == "" && cells[0] == "goal":
				table = "goals"
			case table == "":
				now.sides, table = cells[1:], "rows"
			case table == "goals" && len(cells) > 1:
				now.goals[cells[0]] = cells[1]
			case table == "rows":
				now.rows[cells[0]] = cells[1:]
			}
		default:
			table = ""
		}
	}
	return all
}

func cellsOf(line string) []string {
	cells := strings.Split(strings.TrimSuffix(strings.TrimPrefix(line, "|"), "|"), "|")
	for i := range cells {
		cells[i] = strings.TrimSpace(cells[i])
	}
	return cells
}

// Figure returns the cell of a row in the column of a side, or the sum of several rows. Its error is ErrMissing.
func (r Results) Figure(name, side string, rows ...string) (sum Figure, err error) {
	for _, row := range rows {
		f, err := r.cell(name, side, row)
		if err != nil {
			return Figure{}, fmt.Errorf("%w: area %s, row %q, side %q: %w", ErrMissing, name, row, side, err)
		}
		sum.Value, sum.Unit, sum.Text = sum.Value+f.Value, f.Unit, f.Text
	}
	if len(rows) > 1 {
		sum.Text = Amount(sum.Value, sum.Unit)
	}
	return sum, nil
}

// Goal returns the measured figure of a goal. Its error is ErrMissing.
func (r Results) Goal(name, goalName string) (float64, error) {
	v, err := strconv.ParseFloat(r[name].goals[goalName], 64)
	if err != nil {
		return 0, fmt.Errorf("%w: goal %s: %w", ErrMissing, goalName, err)
	}
	return v, nil
}

var errNoCell = errors.New("no cell")

func (r Results) cell(name, side, row string) (Figure, error) {
	cells := r[name].rows[row]
	for i, heading := range r[name].sides {
		if heading == side && i < len(cells) {
			return figureOf(cells[i])
		}
	}
	return Figure{}, errNoCell
}

// units are the multiples that a cell may have.
var units = map[string]struct {
	factor float64
	of     string
}{
	"s": {1, area.Seconds}, "ms": {1e-3, area.Seconds}, "ns": {1e-9, area.Seconds},
	"bytes": {1, area.Bytes}, "KiB": {1 << 10, area.Bytes}, "MiB": {1 << 20, area.Bytes},
}

func figureOf(text string) (Figure, error) {
	number, unit, _ := strings.Cut(text, " ")
	value, err := strconv.ParseFloat(number, 64)
	if err != nil {
		return Figure{}, err
	}
	if known, ok := units[unit]; ok {
		return Figure{text, value * known.factor, known.of}, nil
	}
	return Figure{text, value, unit}, nil
}
