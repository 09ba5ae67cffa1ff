package ingest

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"
	httppprof "net/http/pprof"
	"runtime"
	"runtime/pprof"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ferula-io/ferula/internal/process"
	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/profilepb"
)

// SelfOptions configure the profiles of this process.
type SelfOptions struct {
	Every  time.Duration        // duration of a CPU profile and interval of the others; 0: 15 s
	Tenant string               // tenant of the profiles
	Labels []profilepb.RawLabel // in addition to service_name="ferula"
}

// Sampling of contention while the profiler runs.
const (
	mutexFraction = 100              // 1 of 100 contentions is sampled
	blockRate     = time.Millisecond // one sample per millisecond of blocking
)

// Self profiles this process continuously. CPU profiles follow each other without a gap; each
// is called a slice. Profiles of the heap, goroutines, mutexes and blocking are taken once in
// four slices, because they change slowly. A process has one CPU profiler: a request to
// /debug/pprof/profile ends the running slice, and the next slice waits until that request has
// ended.
type Self struct {
	opts   SelfOptions
	in     *Ingester
	logger *slog.Logger

	profiler chan struct{} // full while the CPU profiler is in use
	endSlice chan struct{} // signals the running slice to end
	current  atomic.Pointer[profiles.ID]
	counted  map[string]*cumulative // by name of the runtime profile
}

// NewSelf creates a profiler, which is idle until Run.
func NewSelf(opts SelfOptions, in *Ingester, logger *slog.Logger) *Self {
	opts.Every = cmp.Or(opts.Every, 15*time.Second)
	return &Self{
		opts: opts, in: in, logger: logger,
		profiler: make(chan struct{}, 1), endSlice: make(chan struct{}, 1), counted: map[string]*cumulative{},
	}
}

// Current returns the profile ID of the running CPU slice, and false without one. The ID is
// an exemplar label of requests that are served now.
func (s *Self) Current() (profiles.ID, bool) {
	if s == nil {
		return profiles.ID{}, false
	}
	if id := s.current.Load(); id != nil {
		return *id, true
	}
	return profiles.ID{}, false
}

// ServeCPU serves /debug/pprof/profile. It interrupts the CPU slices.
func (s *Self) ServeCPU(w http.ResponseWriter, r *http.Request) {
	select {
	case s.endSlice <- struct{}{}:
	default: // already signalled
	}
	select {
	case s.profiler <- struct{}{}:
		defer func() { <-s.profiler }()
		s.logger.Info("Pausing own CPU profiles during a requested CPU profile", "from", r.RemoteAddr)
		httppprof.Profile(w, r)
	case <-r.Context().Done():
	}
}

// Run profiles until ctx is canceled and pushes the last slice.
func (s *Self) Run(ctx context.Context) {
	defer runtime.SetMutexProfileFraction(runtime.SetMutexProfileFraction(mutexFraction))
	runtime.SetBlockProfileRate(int(blockRate))
	defer runtime.SetBlockProfileRate(0)
	var states sync.WaitGroup
	states.Go(func() { s.runStates(ctx) })
	defer states.Wait()
	for ctx.Err() == nil {
		select {
		case s.profiler <- struct{}{}:
		case <-ctx.Done():
			return
		}
		err := s.slice(ctx)
		<-s.profiler
		if err != nil {
			s.logger.Warn("Failed to record own CPU profile", "err", err)
			select {
			case <-time.After(s.opts.Every):
			case <-ctx.Done():
			}
		}
	}
}

// slice records and pushes one CPU profile.
func (s *Self) slice(ctx context.Context) error {
	var b bytes.Buffer
	start := time.Now()
	id := profiles.NewID(start.UnixMilli())
	if err := pprof.StartCPUProfile(&b); err != nil {
		return err
	}
	s.current.Store(&id)
	timer := time.NewTimer(s.opts.Every)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.endSlice:
	case <-ctx.Done():
	}
	s.current.Store(nil)
	pprof.StopCPUProfile()
	return s.push(ctx, "process_cpu", id.String(), start, b.Bytes())
}

// states are the other profiles, by name in package runtime/pprof.
var states = []struct{ lookup, name string }{{"heap", "memory"}, {"goroutine", "goroutines"}, {"mutex", "mutex"},
	{"block", "block"}}

const statesEvery = 4 // slices

func (s *Self) runStates(ctx context.Context) {
	tick := time.NewTicker(statesEvery * s.opts.Every)
	defer tick.Stop()
	since := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			for _, state := range states {
				if ctx.Err() != nil {
					return // though the next tick is due, and further profiles could each wait for pushTimeout
				}
				if err := s.state(ctx, state.lookup, state.name, since); err != nil && ctx.Err() == nil {
					s.logger.Warn("Failed to record own profile", "profile", state.name, "err", err)
				}
			}
			since = now
			process.FreeMemory()
		}
	}
}

// state records and pushes a runtime profile. Cumulative values become the difference from
// the previous one.
func (s *Self) state(ctx context.Context, lookup, name string, since time.Time) error {
	source := pprof.Lookup(lookup)
	if source == nil {
		return errors.New("no such runtime profile")
	}
	var b bytes.Buffer
	if err := source.WriteTo(&b, 0); err != nil {
		return err
	}
	raw := b.Bytes()
	if name != "goroutines" {
		c := s.counted[lookup]
		if c == nil {
			c = &cumulative{since: since}
			s.counted[lookup] = c
		}
		var err error
		if raw, err = c.next(raw, time.Now()); err != nil {
			return err
		}
	}
	return s.push(ctx, name, "", since, raw)
}

// pushTimeout limits a push. Shutdown waits for the last one.
const pushTimeout = 5 * time.Second

func (s *Self) push(ctx context.Context, name, id string, start time.Time, raw []byte) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), pushTimeout)
	defer cancel()
	lset := append([]profilepb.RawLabel{{Name: profiles.LabelName, Value: name},
		{Name: profiles.LabelService, Value: "ferula"}}, s.opts.Labels...)
	return s.in.Push(ctx, s.opts.Tenant, []profilepb.RawProfile{{Labels: lset, Raw: raw, ID: id,
		TimeNS: start.UnixNano()}})
}
