package proc

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"
)

func TestOpenLoop_LatencyBeginsWhenARequestIsDue(t *testing.T) {
	const requests, blocked = 10, 50 * time.Millisecond
	latencies, err := OpenLoop{Rate: 1000, Requests: requests, Clients: 1, LateMax: time.Minute}.Run(t.Context(),
		func(_ context.Context, _, request int) error {
			if request == 0 {
				time.Sleep(blocked)
			}
			return nil
		})
	if err != nil || len(latencies) != requests {
		t.Fatalf("%d latencies, %v", len(latencies), err)
	}
	// The last request was due 9 ms after the first one, which held the only client.
	if least := blocked - (requests-1)*time.Millisecond; latencies[0] < blocked || latencies[requests-1] < least {
		t.Errorf("got %v, want at least %v for the first and %v for the last", latencies, blocked, least)
	}
}

func TestOpenLoop_SendsEachRequestOnceAndNotBeforeItIsDue(t *testing.T) {
	const requests = 20
	var sent [requests]atomic.Int64
	begin := time.Now()
	_, err := OpenLoop{Rate: 500, Requests: requests, Clients: 4, LateMax: time.Minute}.Run(t.Context(),
		func(_ context.Context, client, request int) error {
			sent[request].Add(1)
			if early := time.Duration(request)*2*time.Millisecond - time.Since(begin); early > 0 {
				t.Errorf("request %d was sent %v early", request, early)
			}
			if client < 0 || client >= 4 {
				t.Errorf("client %d", client)
			}
			return nil
		})
	if err != nil {
		t.Fatal(err)
	}
	for i := range sent {
		if n := sent[i].Load(); n != 1 {
			t.Errorf("request %d was sent %d times", i, n)
		}
	}
}

func TestOpenLoop_EndsWithErrors(t *testing.T) {
	failed := errors.New("failed")
	if _, err := (OpenLoop{Rate: 1000, Requests: 10, Clients: 2, LateMax: time.Minute}).Run(t.Context(), func(context.Context, int, int) error { return failed }); !errors.Is(err, failed) {
		t.Errorf("an error of a request: got %v", err)
	}
	slow := func(context.Context, int, int) error { time.Sleep(20 * time.Millisecond); return nil }
	if _, err := (OpenLoop{Rate: 1000, Requests: 100, Clients: 1, LateMax: 10 * time.Millisecond}).Run(t.Context(), slow); !errors.Is(err, ErrOverload) {
		t.Errorf("late requests: got %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := (OpenLoop{Rate: 1000, Requests: 10, Clients: 1, LateMax: time.Minute}).Run(ctx, slow); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: got %v", err)
	}
}

func TestQuantile_IsTheSmallestDurationThatCoversTheShare(t *testing.T) {
	var hundred []time.Duration
	for i := 100; i > 0; i-- {
		hundred = append(hundred, time.Duration(i))
	}
	for q, want := range map[float64]time.Duration{0: 1, 0.5: 50, 0.99: 99, 0.991: 100, 1: 100} {
		if got := Quantile(hundred, q); got != want {
			t.Errorf("%v: got %d, want %d", q, got, want)
		}
	}
	if got := Quantile(nil, 0.5); got != 0 {
		t.Errorf("of none: got %d", got)
	}
}
