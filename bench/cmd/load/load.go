package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	prom "github.com/prometheus/common/model"

	"github.com/ferula-io/ferula/bench/areas/profiles"
	"github.com/ferula-io/ferula/bench/proc"
)

const (
	watchEvery = time.Second
	startIn    = 2 * time.Second
	mib        = 1 << 20
)

// load is one run.
type load struct {
	o options
	*cluster
	model
	fleet  *profiles.Fleet
	rounds int // number of rounds; all their samples were acknowledged

	acknowledged []atomic.Int64 // number of acknowledged rounds of each target

	repeated, allocated, compared atomic.Int64

	mu        sync.Mutex
	latencies map[string][]time.Duration
	ended     map[string]time.Time     // of the last request, by the same names
	memory    map[*proc.Server][]int64 // RssAnon, once a second
	cpu       map[*proc.Server]time.Duration
	applied   time.Duration // from the begin of the load to the last reading of cpu
}

func newLoad(o options, c *cluster, fleet *profiles.Fleet) *load {
	return &load{
		o: o, cluster: c, fleet: fleet, latencies: map[string][]time.Duration{}, ended: map[string]time.Time{}, memory: map[*proc.Server][]int64{}, cpu: map[*proc.Server]time.Duration{},
		model:        model{series: o.series, begin: time.Now().Add(startIn).Truncate(time.Second), interval: o.interval},
		acknowledged: make([]atomic.Int64, o.series/seriesOfTarget),
	}
}

func (l *load) latency(what string, d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.latencies[what] = append(l.latencies[what], d)
	l.ended[what] = time.Now()
}

// watch reads the memory and the CPU time of the processes once a second.
func (l *load) watch(ctx context.Context) error {
	for {
		for _, s := range l.servers() {
			anon, err := s.Anon()
			if err != nil {
				return err
			}
			l.memory[s] = append(l.memory[s], anon)
			if l.cpu[s], err = s.CPU(); err != nil {
				return err
			}
		}
		l.applied = time.Since(l.begin)
		if err := proc.Wait(ctx, watchEvery); err != nil {
			return err
		}
	}
}

// verify queries the number and the sum of all samples, and the total of all profiles, and compares them with what was sent.
func (l *load) verify(ctx context.Context) error {
	now := time.Now()
	span := fmt.Sprintf("%ds", int(now.Sub(l.begin).Seconds())+2)
	var errs []error
	for _, server := range []*proc.Server{l.serve, l.frontend} {
		for metric := range metrics {
			count, sum := l.sums(metric, l.rounds)
			for function, want := range map[string]int64{"count_over_time": count, "sum_over_time": sum} {
				expr := fmt.Sprintf("sum(%s(%s[%s]))", function, metricName(metric), span)
				err := l.runQuery(ctx, server, checkedQuery{expr, instantPath, url.Values{"query": {expr}, "time": {seconds(now)}}, func(a prom.Matrix) error {
					if len(a) != 1 || float64(a[0].Values[0].Value) != float64(want) {
						return fmt.Errorf("%w: %s is %+v, want %d", errWrong, expr, a, want)
					}
					return nil
				}})
				errs = append(errs, err)
			}
		}
	}
	message, err := profiles.MergeRequest(`{pod!=""}`, l.begin.Add(-time.Minute).UnixMilli(), now.UnixMilli())
	if err != nil {
		return err
	}
	text, _, err := l.serve.Fetch(ctx, profiles.Call(profiles.MergePath, message))
	if err != nil {
		return errors.Join(append(errs, fmt.Errorf("merge of all profiles: %w", err))...)
	}
	total, err := profiles.MergedTotal(text)
	if want := l.allocated.Load(); err == nil && total != want {
		err = fmt.Errorf("%w: all profiles record %d bytes, want %d", errWrong, total, want)
	}
	return errors.Join(append(errs, err)...)
}
