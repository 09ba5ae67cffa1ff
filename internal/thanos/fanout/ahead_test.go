package fanout

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/ferula-io/ferula/internal/series/labelenc"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

// aheadWorld has a querier over four stores. The label sets of a store sort after those of the previous store. The stores
// after the first are read as far ahead as possible before the first store sends its second series. Each series has a chunk
// of at least size bytes.
func aheadWorld(t *testing.T, opts Options, each, size int) (f *Fanout, release func()) {
	gate := make(chan struct{})
	var stores []*fakeStore
	for i := range 4 {
		s := big(t, i*each, each, 1)
		for j := range s.series {
			c := &s.series[j].chunks[0]
			c.Data = append(make([]byte, size), c.Data...)
		}
		s.buffers = 64 << 10
		stores = append(stores, s)
	}
	stores[0].onNext = func(ctx context.Context, _ storeapi.SeriesRequest, left int) {
		if left < each {
			select {
			case <-gate:
			case <-ctx.Done():
			}
		}
	}
	f, _ = newTestFanout(t, opts, stores...)
	return f, sync.OnceFunc(func() { close(gate) })
}

// released fails unless all memory is returned.
func released(t *testing.T, f *Fanout) {
	t.Helper()
	if n := f.budget.held(); n != 0 {
		t.Errorf("%d bytes are held at the end", n)
	}
	if f.budget.keep != 0 {
		t.Errorf("%d bytes are kept free at the end", f.budget.keep)
	}
}

// A query that is alone must not wait for the memory of the stores that it has read ahead itself. (It did, when this memory
// was released at the end of the query only.)
func TestSource_ReadAheadLeavesMemoryForTheStoreThatTheMergeWaitsFor(t *testing.T) {
	for name, tt := range map[string]struct {
		total      int64
		each, size int
		least      int // pages that are read ahead
	}{
		"little memory":           {3 << 20, 5500, 0, 3},
		"memory for some":         {8 << 20, 5500, 0, 20},
		"no limit":                {0, 5500, 0, 100},
		"pages that are not kept": {12 << 20, 40, 300 << 10, 6},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, release := aheadWorld(t, Options{TotalBytesMax: tt.total}, tt.each, tt.size)
				set := f.Source().Series(t.Context(), storeapi.SeriesRequest{MaxMS: 1 << 40, Matchers: []*labels.Matcher{everything}})
				synctest.Wait()
				ahead := 0
				for _, a := range set.(forwardedStream).ahead {
					ahead += len(a.pages)
				}
				if ahead < tt.least {
					t.Errorf("%d pages are read ahead: there is memory for more", ahead)
				}
				release()
				n := 0
				for ; set.Next(); n++ {
					if want := fmt.Sprintf("%06d", n); string(labelenc.Value(set.Labels(), "i")) != want || !strings.HasSuffix(string(set.Chunks()[0].Data), want) {
						t.Fatalf("%q, want series %s", set.Labels(), want)
					}
				}
				if err := errors.Join(set.Err(), set.Close()); err != nil || n != 4*tt.each || f.budget.waits.Get() != 0 {
					t.Errorf("%d series, %v; %d waits", n, err, f.budget.waits.Get())
				}
				released(t, f)
			})
		})
	}
}

// A goroutine that waits for the memory of an earlier page of its store ends when the request ends.
func TestSource_ReadAheadWithoutMemoryEndsWithTheRequest(t *testing.T) {
	for name, end := range map[string]func(cancel context.CancelFunc, set storeapi.Stream){
		"its context": func(cancel context.CancelFunc, set storeapi.Stream) {
			if cancel(); set.Next() || !errors.Is(set.Err(), context.Canceled) {
				t.Errorf("%v", set.Err())
			}
		},
		"the client": func(context.CancelFunc, storeapi.Stream) {},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, release := aheadWorld(t, Options{TotalBytesMax: 4 << 20}, 5500, 0)
				defer release()
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				set := f.Source().Series(ctx, storeapi.SeriesRequest{MaxMS: 1 << 40, Matchers: []*labels.Matcher{everything}})
				if !set.Next() {
					t.Fatal(set.Err())
				}
				synctest.Wait()
				end(cancel, set)
				if err := set.Close(); err != nil {
					t.Error(err)
				}
				released(t, f)
			})
		})
	}
}

// Over connections the messages of the stores take memory, too.
func TestSource_ForwardsMoreThanTheLimitOfAllQueries(t *testing.T) {
	const each = 5500
	eo := EndpointsOptions{Dial: func(a Address) (Client, error) { return dialStore(a.Name, storeapi.ClientOptions{}) }}
	for i := range 4 {
		s := big(t, i*each, each, 1)
		s.info.Store = &storeapi.StoreInfo{TimeRange: anyTime}
		eo.Static = append(eo.Static, Address{Name: listen(t, served{s})})
	}
	e := NewEndpoints(eo)
	e.Update(t.Context())
	t.Cleanup(func() { e.replace(nil) })
	f := New(e, Options{TotalBytesMax: 8 << 20})
	if names, warnings, err := passOn(t, f, storeapi.SeriesRequest{AbortOnPartial: true}); err != nil || len(names) != 4*each || f.budget.refused.Get() != 0 {
		t.Errorf("%d series, %q, %v", len(names), warnings, err)
	}
	released(t, f)
}
