package profile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	httppprof "net/http/pprof"
	"runtime"
	"runtime/pprof"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/pprof/profile"

	"github.com/ferula-io/ferula/internal/codec/profilepb"
	"github.com/ferula-io/ferula/internal/series/profiles"
)

// SelfOptions are about the profiles of this very process.
type SelfOptions struct {
	Every         time.Duration        // length of a slice of CPU, and between the other profiles; 0: 15 s
	Tenant        string               // who they belong to
	Labels        []profilepb.RawLabel // beside service_name=ferula
	MutexFraction int                  // one of so many contentions is counted; 0: 100; negative: none
	BlockRateNS   int                  // a sample for so long a wait; 0: 1 ms; negative: none
}

func (o SelfOptions) withDefaults() SelfOptions {
	if o.Every == 0 {
		o.Every = 15 * time.Second
	}
	if o.MutexFraction == 0 {
		o.MutexFraction = 100
	}
	if o.BlockRateNS == 0 {
		o.BlockRateNS = int(time.Millisecond)
	}
	return o
}

// Self profiles this process without a gap: one slice of CPU after the other, and
// between them heap, goroutines, mutexes and blocking. A process has one CPU
// profiler, so whoever asks for /debug/pprof/profile has the running slice ended
// and the next one waits.
type Self struct {
	opts   SelfOptions
	in     *Ingester
	logger *slog.Logger

	profiler chan struct{} // full while somebody profiles the CPU
	wanted   chan struct{} // ends the running slice
	current  atomic.Pointer[profiles.ID]
	previous map[string]*profile.Profile // by what is counted
}

// NewSelf makes a profiler that is idle until Run.
func NewSelf(opts SelfOptions, in *Ingester, logger *slog.Logger) *Self {
	return &Self{
		opts: opts.withDefaults(), in: in, logger: logger,
		profiler: make(chan struct{}, 1), wanted: make(chan struct{}, 1), previous: map[string]*profile.Profile{},
	}
}

// Current is the id under which the CPU's running slice will be found, and false
// if there is none. What happens now leads to it.
func (s *Self) Current() (profiles.ID, bool) {
	if s == nil {
		return profiles.ID{}, false
	}
	if id := s.current.Load(); id != nil {
		return *id, true
	}
	return profiles.ID{}, false
}

// ServeCPU is /debug/pprof/profile beside the slices.
func (s *Self) ServeCPU(w http.ResponseWriter, r *http.Request) {
	select {
	case s.wanted <- struct{}{}:
	default: // said already
	}
	select {
	case s.profiler <- struct{}{}:
		defer func() { <-s.profiler }()
		s.logger.Info("Own CPU slices pause while somebody takes a CPU profile", "from", r.RemoteAddr)
		httppprof.Profile(w, r)
	case <-r.Context().Done():
	}
}

// Run profiles until ctx ends; what was gathered until then is pushed.
func (s *Self) Run(ctx context.Context) {
	if s.opts.MutexFraction > 0 {
		defer runtime.SetMutexProfileFraction(runtime.SetMutexProfileFraction(s.opts.MutexFraction))
	}
	if s.opts.BlockRateNS > 0 {
		runtime.SetBlockProfileRate(s.opts.BlockRateNS)
		defer runtime.SetBlockProfileRate(0)
	}
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
			s.logger.Warn("A slice of own CPU is missing", "err", err)
			select {
			case <-time.After(s.opts.Every):
			case <-ctx.Done():
			}
		}
	}
}

// slice profiles the CPU once.
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
	case <-s.wanted:
	case <-ctx.Done():
	}
	s.current.Store(nil)
	pprof.StopCPUProfile()
	return s.push(ctx, "process_cpu", id.String(), start, b.Bytes())
}

// states are the other profiles, by the name that Go knows them by.
var states = []struct{ lookup, name string }{{"heap", "memory"}, {"goroutine", "goroutines"}, {"mutex", "mutex"}, {"block", "block"}}

func (s *Self) runStates(ctx context.Context) {
	tick := time.NewTicker(s.opts.Every)
	defer tick.Stop()
	since := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			for _, state := range states {
				if err := s.state(ctx, state.lookup, state.name, since); err != nil && ctx.Err() == nil {
					s.logger.Warn("An own profile is missing", "profile", state.name, "err", err)
				}
			}
			since = now
		}
	}
}

// state pushes one of Go's profiles; of counts, what was added since the last one.
func (s *Self) state(ctx context.Context, lookup, name string, since time.Time) error {
	source := pprof.Lookup(lookup)
	if source == nil {
		return errors.New("this Go has no such profile")
	}
	var b bytes.Buffer
	if err := source.WriteTo(&b, 0); err != nil {
		return err
	}
	if name == "goroutines" {
		return s.push(ctx, name, "", since, b.Bytes())
	}
	p, err := profile.ParseData(b.Bytes())
	if err != nil {
		return fmt.Errorf("parse: %w", err)
	}
	previous := s.previous[lookup]
	s.previous[lookup] = p.Copy()
	if previous != nil {
		if p, err = difference(previous, p, isCount); err != nil {
			return err
		}
	}
	p.TimeNanos, p.DurationNanos = since.UnixNano(), int64(time.Since(since))
	raw, err := encode(p)
	if err != nil {
		return err
	}
	return s.push(ctx, name, "", since, raw)
}

// pushTimeout is for the last push, which the end of the process waits for.
const pushTimeout = 5 * time.Second

func (s *Self) push(ctx context.Context, name, id string, start time.Time, raw []byte) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), pushTimeout)
	defer cancel()
	lset := append([]profilepb.RawLabel{{Name: profiles.LabelName, Value: name}, {Name: profiles.LabelService, Value: "ferula"}}, s.opts.Labels...)
	return s.in.Push(ctx, s.opts.Tenant, []profilepb.RawProfile{{Labels: lset, Raw: raw, ID: id, TimeNS: start.UnixNano()}})
}
