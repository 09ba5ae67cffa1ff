package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/url"
	"strconv"
	"time"

	prom "github.com/prometheus/common/model"

	"github.com/ferula-io/ferula/bench/area"
	"github.com/ferula-io/ferula/bench/proc"
)

const (
	queriers   = 64 // queries that run at once, at most
	hostsOfSum = 10
	rangeStep  = time.Minute
	rangeSpan  = 30 * time.Minute
	windows    = 5 // length of the window of a rate, in intervals

	roundsBeforeQueries = 2

	instantPath = "/api/v1/query"
)

var errWrong = errors.New("wrong response")

// checkedQuery is a query and the check of its response.
type checkedQuery struct {
	what, path string
	values     url.Values
	check      func(prom.Matrix) error
}

// query sends queries at the rate of -queries, alternately to the frontend and to the querier.
func (l *load) query(ctx context.Context) error {
	if err := proc.Wait(ctx, time.Until(l.at(roundsBeforeQueries))); err != nil {
		return err
	}
	begin := time.Now()
	done := context.WithoutCancel(ctx)
	return proc.Parallel(queriers, func(q int) error {
		r := rand.New(rand.NewPCG(uint64(q), 1))
		for n := q; ; n += queriers {
			due := begin.Add(time.Duration(float64(n) / l.o.queries * float64(time.Second)))
			if err := proc.Wait(ctx, time.Until(due)); err != nil {
				return unlessOver(err)
			}
			server, where := l.querier, "query"
			if n%2 == 0 {
				server, where = l.frontend, "query-frontend"
			}
			p := l.checkedQuery(r, n/2)
			if err := l.runQuery(done, server, p); err != nil {
				return fmt.Errorf("%s: %s: %w", where, p.values.Get("query"), err)
			}
			l.latency(where+": "+p.what, time.Since(due))
		}
	})
}

// checkedQuery returns the n-th query: most are those of a dashboard's panels, one in a hundred reads 0.5 % of all series.
func (l *load) checkedQuery(r *rand.Rand, n int) checkedQuery {
	metric, target := r.IntN(metrics), r.IntN(l.series/seriesOfTarget)
	now := time.Now()
	switch {
	case n%100 == 99:
		return checkedQuery{"count of a metric on all targets", instantPath, url.Values{"query": {"count(" + metricName(metric) + ")"}, "time": {seconds(now)}},
			func(a prom.Matrix) error { return l.checkCount(a) }}
	case n%3 == 0:
		expr := fmt.Sprintf("%s{instance=%q}", metricName(metric), host(target))
		acknowledged := l.acknowledged[target].Load()
		return checkedQuery{"instant, 5 series", instantPath, url.Values{"query": {expr}, "time": {seconds(now)}},
			func(a prom.Matrix) error { return l.checkInstant(a, metric, target, acknowledged, now) }}
	case n%3 == 1:
		expr := fmt.Sprintf("rate(%s{instance=%q}[%s])", metricName(metric), host(target), l.window())
		return checkedQuery{"rate of 5 series over 30 minutes", "/api/v1/query_range", l.rangeOf(expr, now),
			func(a prom.Matrix) error { return l.checkRates(a, metric, []int{target}, now) }}
	}
	first := target - target%hostsOfSum
	var targets []int
	for t := first; t < min(first+hostsOfSum, l.series/seriesOfTarget); t++ {
		targets = append(targets, t)
	}
	expr := fmt.Sprintf("sum by (code) (rate(%s{instance=~%q}[%s]))", metricName(metric), host(first)[:len(host(first))-1]+".", l.window())
	return checkedQuery{"sum of rates of 50 series over 30 minutes", "/api/v1/query_range", l.rangeOf(expr, now),
		func(a prom.Matrix) error { return l.checkRates(a, metric, targets, now) }}
}

func (l *load) window() string { return (windows * l.interval).Round(time.Second).String() }

func (l *load) rangeOf(expr string, now time.Time) url.Values {
	end := now.Truncate(rangeStep)
	return url.Values{"query": {expr}, "start": {seconds(end.Add(-rangeSpan))}, "end": {seconds(end)}, "step": {seconds(time.Unix(0, int64(rangeStep)))}}
}

func seconds(t time.Time) string { return area.Secs(t.UnixMilli()) }

func (l *load) runQuery(ctx context.Context, s *proc.Server, q checkedQuery) error {
	body, _, err := s.Fetch(ctx, proc.Request{Path: q.path, Query: q.values})
	if err != nil {
		return err
	}
	a, err := area.DecodeMatrix(body)
	if q.path == instantPath {
		var v prom.Vector
		v, err = area.DecodeVector(body)
		for _, one := range v {
			a = append(a, &prom.SampleStream{Metric: one.Metric, Values: []prom.SamplePair{{Timestamp: one.Timestamp, Value: one.Value}}})
		}
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errWrong, err)
	}
	return q.check(a)
}

// checkCount checks the count of a metric's series.
func (l *load) checkCount(a prom.Matrix) error {
	want := float64(l.series / metrics)
	if len(a) != 1 || float64(a[0].Values[0].Value) != want {
		return fmt.Errorf("%w: %+v, want a count of %v", errWrong, a, want)
	}
	return nil
}

// checkInstant checks the last values of a metric on one target. Each value must be that of the last round that had been
// acknowledged before the query, or of a later one: a round may become readable before it is acknowledged. The time of the query
// is now.
func (l *load) checkInstant(a prom.Matrix, metric, target int, acknowledged int64, now time.Time) error {
	if len(a) != codes {
		return fmt.Errorf("%w: %d series, want %d", errWrong, len(a), codes)
	}
	first, last := int(acknowledged)-1, l.roundAt(now)
	for _, one := range a {
		n, err := l.numberOf(one.Metric, metric, target)
		if err != nil {
			return err
		}
		round := first
		for round <= last && float64(one.Values[0].Value) != float64(l.value(n, round)) {
			round++
		}
		if round > last {
			return fmt.Errorf("%w: %v has the value %v, want %d of round %d, which is acknowledged, or that of a later round until %d", errWrong, one.Metric, float64(one.Values[0].Value), l.value(n, first), first, last)
		}
	}
	return nil
}

// numberOf returns the number in the model of the series with these labels.
func (l *load) numberOf(labels prom.Metric, metric, target int) (int, error) {
	for code, n := range l.numbers(metric, target) {
		if string(labels["code"]) == "c"+strconv.Itoa(code) {
			return n, nil
		}
	}
	return 0, fmt.Errorf("%w: series %v", errWrong, labels)
}

// checkRates checks the rates of each code, added up over targets. The windows of the first six intervals may lack samples from
// before the load, and those of the last three may lack samples that have not been sent yet. The rates at these times are not
// compared with the model.
func (l *load) checkRates(a prom.Matrix, metric int, targets []int, now time.Time) error {
	if len(a) != codes {
		return fmt.Errorf("%w: %d series, want %d", errWrong, len(a), codes)
	}
	const tolerance = 1e-9
	from, to := l.at(windows+1), now.Add(-3*l.interval)
	for _, one := range a {
		var want float64
		for _, target := range targets {
			n, err := l.numberOf(one.Metric, metric, target)
			if err != nil {
				return err
			}
			want += float64(l.value(n, 1)-l.value(n, 0)) / l.interval.Seconds()
		}
		if len(one.Values) == 0 {
			return fmt.Errorf("%w: %v has no values", errWrong, one.Metric)
		}
		for _, s := range one.Values {
			at, v := s.Timestamp.Time(), float64(s.Value)
			if !at.After(from) || !at.Before(to) {
				continue
			}
			if math.IsNaN(v) || math.Abs(v-want) > tolerance*want {
				return fmt.Errorf("%w: %v has the rate %v at %s, want %v", errWrong, one.Metric, v, at, want)
			}
			l.compared.Add(1)
		}
	}
	return nil
}
