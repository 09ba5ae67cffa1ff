package fanout

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/exemplar"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/metadata"
	"github.com/prometheus/prometheus/storage"

	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

// silent is a store that offers everything, and responds to nothing but Info.
type silent struct{ *fakeStore }

func (s silent) Info(context.Context) (storeapi.Info, error) {
	info := storeapi.Info{LabelSets: []labels.Labels{labels.FromStrings("region", "eu")}, Exemplars: &anyTime, Rules: true, Targets: true, MetricMetadata: true, Status: true}
	info.Store = &storeapi.StoreInfo{TimeRange: anyTime}
	return info, nil
}

func (silent) LabelNames(ctx context.Context, _ storeapi.LabelsRequest) (names, warnings []string, err error) {
	<-ctx.Done()
	return nil, nil, ctx.Err()
}

func (silent) LabelValues(ctx context.Context, _ storeapi.LabelsRequest) (values, warnings []string, err error) {
	<-ctx.Done()
	return nil, nil, ctx.Err()
}

func (silent) Exemplars(ctx context.Context, _ storeapi.ExemplarsRequest) ([]exemplar.QueryResult, []string, error) {
	<-ctx.Done()
	return nil, nil, ctx.Err()
}

func (silent) MetricMetadata(ctx context.Context, _ storeapi.MetadataRequest) (map[string][]metadata.Metadata, []string, error) {
	<-ctx.Done()
	return nil, nil, ctx.Err()
}

func (silent) Targets(ctx context.Context, _ storeapi.TargetsRequest) (storeapi.Targets, []string, error) {
	<-ctx.Done()
	return storeapi.Targets{}, nil, ctx.Err()
}

func (silent) Rules(ctx context.Context, _ storeapi.RulesRequest) ([]storeapi.RuleGroup, []string, error) {
	<-ctx.Done()
	return nil, nil, ctx.Err()
}

func (silent) TSDBStatistics(ctx context.Context, _ storeapi.StatusRequest) ([]storeapi.TSDBStatistics, []string, error) {
	<-ctx.Done()
	return nil, nil, ctx.Err()
}

// A stalled store is DeadlineExceeded for another querier. The code Internal would mean that this querier has a fault.
func TestSource_StalledStoreIsDeadlineExceeded(t *testing.T) {
	e := NewEndpoints(EndpointsOptions{Static: []Address{{Name: "s0"}}, Dial: func(Address) (Client, error) { return silent{&fakeStore{stall: true}}, nil }})
	e.Update(t.Context())
	t.Cleanup(func() { e.replace(nil) })
	client, err := dialStore(listen(t, New(e, Options{ResponseTimeout: 20 * time.Millisecond}).Source()), storeapi.ClientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for what, call := range map[string]func(ctx context.Context) error{
		"series": func(ctx context.Context) error {
			set := client.Series(ctx, storeapi.SeriesRequest{MaxMS: 9, Matchers: []*labels.Matcher{everything}, AbortOnPartial: true})
			if set.Next() {
				t.Error("a series")
			}
			return errors.Join(set.Err(), set.Close())
		},
		"label names": func(ctx context.Context) error {
			_, _, err := client.LabelNames(ctx, storeapi.LabelsRequest{MaxMS: 9, AbortOnPartial: true})
			return err
		},
		"label values": func(ctx context.Context) error {
			_, _, err := client.LabelValues(ctx, storeapi.LabelsRequest{Label: "a", MaxMS: 9, AbortOnPartial: true})
			return err
		},
		"exemplars": func(ctx context.Context) error {
			_, _, err := client.Exemplars(ctx, storeapi.ExemplarsRequest{Query: "m", MaxMS: 9, AbortOnPartial: true})
			return err
		},
		"metadata": func(ctx context.Context) error {
			_, _, err := client.MetricMetadata(ctx, storeapi.MetadataRequest{Limit: -1})
			return err
		},
		"targets": func(ctx context.Context) error {
			_, _, err := client.Targets(ctx, storeapi.TargetsRequest{AbortOnPartial: true})
			return err
		},
		"rules": func(ctx context.Context) error {
			_, _, err := client.Rules(ctx, storeapi.RulesRequest{AbortOnPartial: true})
			return err
		},
		"status": func(ctx context.Context) error {
			_, _, err := client.TSDBStatistics(ctx, storeapi.StatusRequest{AbortOnPartial: true})
			return err
		},
	} {
		err := call(t.Context())
		if err == nil && what == "metadata" {
			continue // its request names no strategy
		}
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "store s0: "+ErrStalled.Error()) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// late is a store whose own stores have stalled.
type late struct{ silent }

func (late) LabelNames(context.Context, storeapi.LabelsRequest) (names, warnings []string, err error) {
	return nil, nil, fmt.Errorf("%w: its store", context.DeadlineExceeded)
}

// The failure of one store cancels the requests to the other stores. The error does not say that these have not responded
// in time.
func TestSource_DeadlineOfAStoreNamesThatStoreOnly(t *testing.T) {
	f := describingWorld(t, late{silent{&fakeStore{}}}, silent{&fakeStore{}})
	_, _, err := f.Source().LabelNames(t.Context(), storeapi.LabelsRequest{MaxMS: 9, AbortOnPartial: true})
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "store s0") || strings.Contains(err.Error(), "s1") {
		t.Errorf("%v", err)
	}
}

// slowTimer is a context whose deadline has passed before its timer fires.
type slowTimer struct {
	context.Context
	deadline time.Time
}

func (c slowTimer) Deadline() (time.Time, bool) { return c.deadline, true }

// Stores have the deadline of the request. If the error of one arrives before the querier's own timer fires, the request has
// timed out. A partial response would mean that a longer timeout does not help.
func TestQuerier_StoreThatTimesOutBeforeTheRequestDoesIsNoPartialResponse(t *testing.T) {
	passed := fmt.Errorf("%w: of the request", context.DeadlineExceeded)
	f, _ := newTestFanout(t, Options{}, &fakeStore{err: passed, openErr: passed}, &fakeStore{})
	for what, call := range map[string]func(ctx context.Context, q storage.Querier) error{
		"series": func(ctx context.Context, q storage.Querier) error {
			set := q.Select(ctx, true, nil, everything)
			for set.Next() {
				t.Error("a series")
			}
			return set.Err()
		},
		"label names": func(ctx context.Context, q storage.Querier) error {
			_, _, err := q.LabelNames(ctx, nil)
			return err
		},
	} {
		for deadline, timedOut := range map[time.Duration]bool{-time.Second: true, time.Hour: false} {
			parent, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			q, err := f.Queryable(Request{}).Querier(0, 9)
			if err != nil {
				t.Fatal(err)
			}
			err = call(slowTimer{parent, time.Now().Add(deadline)}, q)
			if errors.Is(err, context.DeadlineExceeded) != timedOut || !timedOut && err != nil {
				t.Errorf("%s, deadline in %s: %v", what, deadline, err)
			}
			if err := q.Close(); err != nil {
				t.Error(err)
			}
			cancel()
		}
	}
}
