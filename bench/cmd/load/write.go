package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/klauspost/compress/snappy"
	"github.com/prometheus/prometheus/prompb"

	"github.com/ferula-io/ferula/bench/areas/profiles"
)

const (
	writers     = 4
	pushers     = 16
	profilePods = 20
	retryEvery  = time.Second
)

var (
	errRefused = errors.New("refused")
	errBehind  = errors.New("remote write is behind its schedule by more than an interval")
)

// write sends a sample of each series once every interval; the requests of a round are spread over the interval. The last round
// ends an interval before the load, so that all its samples are acknowledged.
func (l *load) write(ctx context.Context) error {
	requests := l.series / seriesOfTarget
	rounds := l.roundsToWrite()
	done := context.WithoutCancel(ctx) // a request that has begun is completed
	errs := make([]error, writers)
	var running sync.WaitGroup
	for w := range writers {
		running.Go(func() {
			for i := w; i < rounds*requests; i += writers {
				round, target := i/requests, i%requests
				due := l.at(round).Add(l.interval * time.Duration(target) / time.Duration(requests))
				if errs[w] = sleep(ctx, time.Until(due)); errs[w] != nil {
					return
				}
				if errs[w] = l.writeTarget(done, round, target); errs[w] != nil {
					return
				}
				l.acknowledged[target].Store(int64(round) + 1)
				l.latency(writeName, time.Since(due))
			}
		})
	}
	running.Wait()
	behind := false
	for _, err := range errs {
		if errors.Is(err, errOver) {
			behind = true // requests of the last rounds were not sent
		} else if err != nil {
			return err
		}
	}
	if behind {
		return errBehind
	}
	l.rounds = rounds
	return nil
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
	plain, err := request.Marshal()
	if err != nil {
		return err
	}
	header := http.Header{"Content-Encoding": {"snappy"}, "Content-Type": {"application/x-protobuf"}, "X-Prometheus-Remote-Write-Version": {"0.1.0"}}
	return l.send(ctx, l.serve.URL()+"/api/v1/write", header, snappy.Encode(nil, plain))
}

// send posts a body. Like Prometheus, it repeats a request that gets status 429 or 5xx.
func (l *load) send(ctx context.Context, url string, header http.Header, body []byte) error {
	for {
		status, text, err := l.post(ctx, url, header, body)
		switch {
		case err != nil:
			return err
		case status/100 == 2:
			return nil
		case status != http.StatusTooManyRequests && status/100 != 5:
			return fmt.Errorf("%s: %w: %d: %s", url, errRefused, status, text)
		}
		l.repeated.Add(1)
		if err := sleep(ctx, retryEvery); err != nil {
			return err
		}
	}
}

func (l *load) post(ctx context.Context, url string, header http.Header, body []byte) (status int, text []byte, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	request.Header = header
	response, err := l.http.Do(request)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()
	text, err = io.ReadAll(response.Body)
	return response.StatusCode, text, err
}

// push pushes profiles at the rate of -profiles.
func (l *load) push(ctx context.Context) error {
	done := context.WithoutCancel(ctx)
	header := http.Header{"Content-Type": {"application/proto"}}
	errs := make([]error, pushers)
	var running sync.WaitGroup
	for p := range pushers {
		running.Go(func() {
			pushes, err := profiles.NewPushes(l.fleet)
			for n := p; err == nil; n += pushers {
				due := l.begin.Add(time.Duration(float64(n) / l.o.pushes * float64(time.Second)))
				if err = sleep(ctx, time.Until(due)); err != nil {
					break
				}
				var body []byte
				var total int64
				if body, total, err = pushes.Request(n, due.UnixNano()); err != nil {
					break
				}
				if err = l.send(done, l.serve.URL()+profiles.PushPath, header, body); err != nil {
					break
				}
				l.latency(pushName, time.Since(due))
				l.allocated.Add(total)
			}
			errs[p] = err
		})
	}
	running.Wait()
	for _, err := range errs {
		if err != nil && !errors.Is(err, errOver) {
			return err
		}
	}
	return nil
}

// sleep waits for d, or until the context ends, whose cause it returns.
func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return context.Cause(ctx)
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}
