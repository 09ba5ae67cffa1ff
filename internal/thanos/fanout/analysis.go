package fanout

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"
)

// Analysis collects the amounts of data that the stores sent for the selections of one query. It is safe for concurrent
// use.
type Analysis struct {
	mu  sync.Mutex
	all map[string]*StoreTraffic
}

// StoreTraffic is the amount of data that one store sent, summed over selections.
type StoreTraffic struct {
	Address    string
	Duration   time.Duration // of the longest selection, from the request to the end
	Selections int
	Series     int
	Chunks     int
	Samples    int // by the headers of the chunks; each requested aggregate of downsampled chunks counts
	Bytes      int // of labels and chunks
}

type analysisKey struct{}

// WithAnalysis returns a context whose selections are collected.
func WithAnalysis(ctx context.Context) (context.Context, *Analysis) {
	a := &Analysis{all: map[string]*StoreTraffic{}}
	return context.WithValue(ctx, analysisKey{}, a), a
}

// Stores returns the collected amounts, sorted by address.
func (a *Analysis) Stores() (all []StoreTraffic) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, t := range a.all {
		all = append(all, *t)
	}
	slices.SortFunc(all, func(a, b StoreTraffic) int { return strings.Compare(a.Address, b.Address) })
	return all
}

// analyze adds the traffic of a stream that has ended to the analysis of its query, if
// there is one.
func analyze(ctx context.Context, address string, t traffic) {
	a, ok := ctx.Value(analysisKey{}).(*Analysis)
	if !ok || t.begun.IsZero() {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	one := a.all[address]
	if one == nil {
		one = &StoreTraffic{Address: address}
		a.all[address] = one
	}
	one.Duration = max(one.Duration, time.Since(t.begun))
	one.Selections++
	one.Series += t.series
	one.Chunks += t.chunks
	one.Samples += t.samples
	one.Bytes += t.bytes
}
