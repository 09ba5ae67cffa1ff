package sim

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// samples are the values of a response or of the model, by series (see seriesKey) and
// timestamp in milliseconds.
type samples map[string]map[int64]float64

func (s samples) put(series string, ms int64, v float64) {
	if s[series] == nil {
		s[series] = map[int64]float64{}
	}
	s[series][ms] = v
}

func (s samples) has(series string, ms int64, v float64) bool {
	got, ok := s[series][ms]
	return ok && got == v
}

func (s samples) count() int {
	n := 0
	for _, points := range s {
		n += len(points)
	}
	return n
}

// seriesKey returns a label set as text, sorted by name, without the labels in drop.
func seriesKey(labels map[string]string, drop ...string) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		if !slices.Contains(drop, name) {
			parts = append(parts, fmt.Sprintf("%s=%q", name, labels[name]))
		}
	}
	return strings.Join(parts, ",")
}

// dataKey returns the key of a series in the model: its labels without those in drop and, for
// floats, without the metric name.
func dataKey(labels map[string]string, drop []string) string {
	if labels["__name__"] == metricName {
		drop = append(slices.Clone(drop), "__name__")
	}
	return seriesKey(labels, drop...)
}

// model records the samples sent to a storage. A response must have every acknowledged
// sample, and may have samples of requests that ended without a status.
type model struct {
	acked samples
	maybe samples
}

func newModel() *model { return &model{acked: samples{}, maybe: samples{}} }

// maybeCount returns the number of samples that may be stored, because their request ended
// without a status.
func (m *model) maybeCount() int { return m.maybe.count() }

// clone returns a copy that later writes do not change.
func (m *model) clone() *model {
	c := newModel()
	for series, points := range m.acked {
		c.acked[series] = maps.Clone(points)
	}
	for series, points := range m.maybe {
		c.maybe[series] = maps.Clone(points)
	}
	return c
}

// withoutNative returns the model without native histograms.
func (m *model) withoutNative() *model {
	c := m.clone()
	for _, all := range []samples{c.acked, c.maybe} {
		maps.DeleteFunc(all, func(series string, _ map[int64]float64) bool { return strings.Contains(series, nativeName) })
	}
	return c
}

// check compares a response with the model over [minMS, maxMS]. Samples before
// keepFromMS may be missing, because retention may have deleted them.
func (m *model) check(got samples, minMS, maxMS, keepFromMS int64) error {
	for series, points := range m.acked {
		for ms, v := range points {
			if ms < max(minMS, keepFromMS) || ms > maxMS {
				continue
			}
			have, ok := got[series][ms]
			if !ok {
				return fmt.Errorf("acknowledged sample {%s} @%d is missing (the response has %d of %d samples of the series)", series, ms, len(got[series]), len(points))
			}
			if have != v {
				return fmt.Errorf("sample {%s} @%d is %v, but %v was written", series, ms, have, v)
			}
		}
	}
	for series, points := range got {
		for ms, v := range points {
			if !m.acked.has(series, ms, v) && !m.maybe.has(series, ms, v) {
				return fmt.Errorf("sample {%s} @%d %v was never written", series, ms, v)
			}
			if ms < minMS || ms > maxMS {
				return fmt.Errorf("sample {%s} @%d is outside of the range %d to %d", series, ms, minMS, maxMS)
			}
		}
	}
	return nil
}

// profileModel records the total values of pushed profiles by service.
type profileModel struct {
	acked map[string]int64
	maybe map[string][]int64
}

func newProfileModel() *profileModel {
	return &profileModel{acked: map[string]int64{}, maybe: map[string][]int64{}}
}

// check compares the total of a service. A push without a status is stored as a whole
// or not at all.
func (m *profileModel) check(service string, got int64) error {
	sums := map[int64]bool{m.acked[service]: true}
	for _, v := range m.maybe[service] {
		more := map[int64]bool{}
		for sum := range sums {
			more[sum+v] = true
		}
		maps.Copy(sums, more)
	}
	if !sums[got] {
		return fmt.Errorf("profiles of %s sum to %d, but %d was pushed (%d pushes without a status)", service, got, m.acked[service], len(m.maybe[service]))
	}
	return nil
}
