package main

import (
	"fmt"
	"time"

	"github.com/prometheus/prometheus/prompb"
)

// The series of a load: every target has five series of each of 200 metrics.
const (
	seriesOfTarget = 1000
	metrics        = 200
	codes          = seriesOfTarget / metrics
)

// model knows the value of each sample. All values and their sums are integers that a float64 holds exactly.
type model struct {
	series   int
	begin    time.Time // of the first round
	interval time.Duration
}

func metricName(m int) string { return fmt.Sprintf("load_metric_%03d", m) }
func host(target int) string  { return fmt.Sprintf("host-%05d", target) }

// labels returns the labels of series n, sorted by name.
func (m *model) labels(n int) []prompb.Label {
	within := n % seriesOfTarget
	return []prompb.Label{
		{Name: "__name__", Value: metricName(within % metrics)},
		{Name: "code", Value: fmt.Sprintf("c%d", within/metrics)},
		{Name: "instance", Value: host(n / seriesOfTarget)},
		{Name: "job", Value: "load"},
	}
}

// value returns the value of series n in a round.
func (m *model) value(n, round int) int64 { return int64(n%997) + int64(round)*int64(1+n%7) }

// at returns the time of a round's samples.
func (m *model) at(round int) time.Time {
	return m.begin.Add(time.Duration(round) * m.interval).Truncate(time.Millisecond)
}

// roundAt returns the last round whose samples are at or before a time, -1 before the first.
func (m *model) roundAt(t time.Time) int {
	round := int(t.Sub(m.begin) / m.interval)
	for round >= 0 && m.at(round).After(t) {
		round--
	}
	return max(round, -1)
}

// numbers returns the series of a metric on one target, in the order of the label code.
func (m *model) numbers(metric, target int) (ns [codes]int) {
	for code := range ns {
		ns[code] = target*seriesOfTarget + code*metrics + metric
	}
	return ns
}

// sums returns the number of samples of a metric in the given number of rounds, and the sum of their values.
func (m *model) sums(metric, rounds int) (count, sum int64) {
	for target := range m.series / seriesOfTarget {
		for _, n := range m.numbers(metric, target) {
			for round := range rounds {
				count++
				sum += m.value(n, round)
			}
		}
	}
	return count, sum
}
