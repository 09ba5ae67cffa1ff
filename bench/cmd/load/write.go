package main

import (
	"context"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/prometheus/prometheus/prompb"

	"github.com/ferula-io/ferula/bench/areas/profiles"
	"github.com/ferula-io/ferula/bench/proc"
	"github.com/ferula-io/ferula/bench/push"
)

const (
	writers     = 4
	pushers     = 16
	profilePods = 20
	retryEvery  = time.Second
)

var errBehind = errors.New("remote write is behind its schedule by more than an interval")

// write sends a sample of each series once every interval; the requests of a round are spread over the interval. The last round
// ends an interval before the load, so that all its samples are acknowledged.
func (l *load) write(ctx context.Context) error {
	requests := l.series / seriesOfTarget
	rounds := l.roundsToWrite()
	done := context.WithoutCancel(ctx) // a request that has begun is completed
	err := proc.Parallel(writers, func(w int) error {
		for i := w; i < rounds*requests; i += writers {
			round, target := i/requests, i%requests
			due := l.at(round).Add(l.interval * time.Duration(target) / time.Duration(requests))
			if err := proc.Wait(ctx, time.Until(due)); errors.Is(err, errOver) {
				return errBehind // requests of the last rounds were not sent
			} else if err != nil {
				return err
			}
			if err := l.writeTarget(done, round, target); err != nil {
				return err
			}
			l.acknowledged[target].Store(int64(round) + 1)
			l.latency(writeName, time.Since(due))
		}
		return nil
	})
	if err == nil {
		l.rounds = rounds
	}
	return err
}

// roundsToWrite returns the number of rounds of samples.
func (l *load) roundsToWrite() int { return int(l.o.duration/l.interval) - 1 }

func (l *load) writeTarget(ctx context.Context, round, target int) error {
	request := prompb.WriteRequest{Timeseries: make([]prompb.TimeSeries, seriesOfTarget)}
	at := l.at(round).UnixMilli()
	for i := range request.Timeseries {
		n := target*seriesOfTarget + i
		request.Timeseries[i] = prompb.TimeSeries{Labels: l.labels(n), Samples: []prompb.Sample{{Timestamp: at, Value: float64(l.value(n, round))}}}
	}
	r, err := push.Request(&request)
	if err != nil {
		return err
	}
	return l.send(ctx, r)
}

// send posts a body to ferula serve. Like Prometheus, it repeats a request that gets status 429 or 5xx.
func (l *load) send(ctx context.Context, r proc.Request) error {
	for {
		a, err := l.serve.Get(ctx, r, io.Discard)
		if err == nil || a.Status != http.StatusTooManyRequests && a.Status/100 != 5 {
			return err
		}
		l.repeated.Add(1)
		if err := proc.Wait(ctx, retryEvery); err != nil {
			return err
		}
	}
}

// push pushes profiles at the rate of -profiles, until the load is over.
func (l *load) push(ctx context.Context) error {
	done := context.WithoutCancel(ctx)
	return proc.Parallel(pushers, func(p int) error {
		for n := p; ; n += pushers {
			due := l.begin.Add(time.Duration(float64(n) / l.o.pushes * float64(time.Second)))
			if err := proc.Wait(ctx, time.Until(due)); err != nil {
				return unlessOver(err)
			}
			body, total, err := l.fleet.Request(n, due.UnixNano())
			if err == nil {
				err = l.send(done, profiles.Call(profiles.PushPath, body))
			}
			if err != nil {
				return err
			}
			l.latency(pushName, time.Since(due))
			l.allocated.Add(total)
		}
	})
}

// unlessOver returns an error unless it is that the time of the load is over.
func unlessOver(err error) error {
	if errors.Is(err, errOver) {
		return nil
	}
	return err
}
