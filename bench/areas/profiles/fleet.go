package profiles

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"math/rand/v2"

	"github.com/ferula-io/ferula/bench/area"
	series "github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/profilepb"
	"github.com/ferula-io/ferula/internal/profiles/query"
	"github.com/ferula-io/ferula/internal/series/labelenc"

	"github.com/ferula-io/ferula/internal/profiles/store"
)

// fleet has the pushed rows: row i has label set i%len(sets) and ID idOf(i). Rows are in the order of time.
type fleet struct {
	sets [][]byte
	rows []fleetRow
}

type fleetRow struct{ timeNS, value int64 }

// fleetBlocks is the number of blocks with the profiles of an hour, except the latest ones, which are in the head.
const fleetBlocks = 6

// pushFleet pushes one profile per row, spread over an hour. It writes blocks of parts of the profiles: all parts, or all
// but the last one, which stays in the head.
func pushFleet(ctx context.Context, s *store.Store, sets [][]byte, rows, blocks, parts int) (*fleet, error) {
	r := rand.New(rand.NewPCG(1, 2))
	f, batch := &fleet{sets, make([]fleetRow, rows)}, []series.RawProfile(nil)
	written := 0
	for i := range rows {
		at, value := epochMS*1e6+int64(i)*(hourMS*1e6/int64(rows)), (1+r.Int64N(100_000))*1e7
		f.rows[i] = fleetRow{at, value}
		batch = append(batch, series.RawProfile{Labels: sets[i%len(sets)], ID: idOf(i), TimeNS: at, Raw: small(value)})
		full := written < blocks && i+1 == (written+1)*rows/parts
		if len(batch) == 1000 || full || i == rows-1 {
			if err := s.Append(ctx, tenant, batch); err != nil {
				return nil, err
			}
			batch = batch[:0]
		}
		if full {
			written++
			if err := s.Flush(ctx); err != nil {
				return nil, err
			}
		}
	}
	return f, nil
}

// setsOf returns the label sets of a number of pods of each service.
func setsOf(services, pods int) (sets [][]byte) {
	for i := range services * pods {
		sets = append(sets, labelsOf("process_cpu", serviceName(i%services), i/services))
	}
	return sets
}

func serviceName(i int) string { return fmt.Sprintf("service-%03d", i) }

// cellKey is a point of a group.
type cellKey struct {
	group  string
	timeMS int64
}

// fleetCell is a point computed from the pushed profiles.
type fleetCell struct {
	naiveCell
	row    int    // of the exemplar
	labels []byte // of the exemplar
}

// groupOf is the group of a label set in a request that is grouped by at most one label.
func groupOf(set []byte, by []string) string {
	if len(by) == 0 {
		return ""
	}
	return string(labelenc.Value(set, by[0]))
}

// expected computes the points of a request, each with its greatest profile.
func (f *fleet) expected(req *series.SeriesRequest) map[cellKey]fleetCell {
	groups, less := make([]string, len(f.sets)), make([][]byte, len(f.sets))
	for i, set := range f.sets {
		groups[i] = groupOf(set, req.GroupBy)
		less[i], _ = labelenc.AppendWithout(nil, set, req.GroupBy) // it is valid
	}
	cells := map[cellKey]fleetCell{}
	from, step := req.StartMS-req.StepMS, req.StepMS
	for i, row := range f.rows {
		ms := row.timeNS / 1e6 // Requests are in milliseconds, and so is the time of a profile in them.
		if ms <= from {
			continue
		}
		at := req.StartMS + ((ms-from+step-1)/step-1)*step
		if at > req.EndMS {
			continue
		}
		key := cellKey{groups[i%len(f.sets)], at}
		c := cells[key]
		c.sum += row.value
		if row.value > c.best {
			c.best, c.time, c.row, c.labels = row.value, row.timeNS, i, less[i%len(f.sets)]
		}
		cells[key] = c
	}
	return cells
}

// gotPoint is a point of a result, with its exemplars.
type gotPoint struct {
	cellKey
	value     float64
	exemplars []gotExemplar
}

type gotExemplar struct {
	id            series.ID
	timeMS, value int64
	labels        []byte
}

// compare compares the points of a result, and their exemplars, with the expected ones.
func compare(want map[cellKey]fleetCell, exemplars bool, got iter.Seq[gotPoint]) error {
	if len(want) == 0 {
		return area.ErrEmpty
	}
	points := 0
	for p := range got {
		points++
		c, ok := want[p.cellKey]
		if !ok || math.Abs(p.value-float64(c.sum)) > 1e-9*float64(c.sum) {
			return fmt.Errorf("%w: %+v: %v, want %d", area.ErrUnequal, p.cellKey, p.value, c.sum)
		}
		if !exemplars {
			if len(p.exemplars) > 0 {
				return fmt.Errorf("%w: %+v has exemplars", area.ErrUnequal, p.cellKey)
			}
			continue
		}
		if len(p.exemplars) != 1 {
			return fmt.Errorf("%w: %+v has %d exemplars", area.ErrUnequal, p.cellKey, len(p.exemplars))
		}
		x := p.exemplars[0]
		if x.value != c.best || x.id != idOf(c.row) || x.timeMS != c.time/1e6 || !bytes.Equal(x.labels, c.labels) {
			return fmt.Errorf("%w: exemplar of %+v: %+v, want %+v", area.ErrUnequal, p.cellKey, x, c)
		}
	}
	if points != len(want) {
		return fmt.Errorf("%w: %d points of %d", area.ErrUnequal, points, len(want))
	}
	return nil
}

// compareEngine compares the engine's result of a request, without exemplars and with them.
func compareEngine(ctx context.Context, e *query.Engine, req series.SeriesRequest, f *fleet) error {
	want := f.expected(&req)
	for _, exemplars := range []bool{false, true} {
		req.Exemplars = exemplars
		result, err := e.SelectSeries(ctx, &req)
		if err != nil {
			return err
		}
		err = errors.Join(errors.Join(result.Warnings...), compare(want, exemplars, pointsOf(result, req.GroupBy)))
		result.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// pointsOf are the points of the engine's result.
func pointsOf(result *series.SeriesResult, by []string) iter.Seq[gotPoint] {
	return func(yield func(gotPoint) bool) {
		for i := range result.Series {
			s := &result.Series[i]
			group := groupOf(s.Labels, by)
			for j, p := range s.Points {
				got := gotPoint{cellKey: cellKey{group, p.TimeMS}, value: p.Value}
				if len(s.Exemplars) > 0 {
					x := &s.Exemplars[j]
					set, _ := labelenc.AppendWithout(nil, result.Sets[x.Set], result.GroupBy) // it is valid
					got.exemplars = []gotExemplar{{x.ID, x.TimeNS / 1e6, x.Value, set}}
				}
				if !yield(got) {
					return
				}
			}
		}
	}
}

// pointsOfMessage are the points of a response.
func pointsOfMessage(m *profilepb.SelectSeriesResponse) iter.Seq[gotPoint] {
	return func(yield func(gotPoint) bool) {
		for _, s := range m.Series {
			var group string
			for _, l := range s.Labels {
				group = l.Value
			}
			for _, p := range s.Points {
				got := gotPoint{cellKey: cellKey{group, p.Timestamp}, value: p.Value}
				for _, x := range p.Exemplars {
					one := gotExemplar{timeMS: x.Timestamp, value: x.Value}
					one.id, _ = series.ParseID(x.ProfileId) // the zero ID is unequal to any
					for _, l := range x.Labels {
						one.labels = labelenc.AppendLabel(one.labels, l.Name, l.Value)
					}
					got.exemplars = append(got.exemplars, one)
				}
				if !yield(got) {
					return
				}
			}
		}
	}
}
