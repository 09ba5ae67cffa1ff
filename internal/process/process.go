// Package process runs the parts of every process of ferula: it has a readiness state, and
// it opens, runs, drains and closes the parts in order.
//
// A Process has components and servers. Components are listed in order of dependence: a
// component uses only those before it. A server may use any component.
//
//	start      every server accepts requests; components open one after the other
//	run        once all are open, all components run concurrently
//	shutdown   not ready; components end; servers drain; components with ForRequests end;
//	           components close, the last first
//
// Shutdown begins when the context is canceled, when Quit is called, or when a part fails.
// What is not here: signals, flags, HTTP and gRPC.
package process

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"
)

// Component is a part of a process. Every function may be nil.
type Component struct {
	Name string // in logs

	// Open prepares the component. It is called once all components before it are open. Its
	// context is canceled at shutdown; an error ends the process.
	Open func(ctx context.Context) error

	// Run works until its context is canceled. It is called once all components are open.
	// An error ends the process; without an error, Run may return early.
	Run func(ctx context.Context) error

	// ForRequests lets Run continue until running requests have drained.
	ForRequests bool

	// Close releases what the component holds. It is called once, also if Open failed or
	// was not called, and after everything that uses the component has ended.
	Close func() error
}

// Server accepts requests while the process runs, also before components are open.
type Server struct {
	Name     string       // in errors
	Serve    func() error // until Drain is called
	Stopping func()       // at the beginning of shutdown; may be nil
	// Drain refuses further requests and waits for running ones, for a bounded time. It may
	// be called without Serve.
	Drain func() error
}

// Process is a set of components and servers. Call Run. If the process could not be set up completely, call Close
// instead.
type Process struct {
	Readiness
	// Opened is called when all components are open, unless the process is stopping; may be
	// nil.
	Opened func()

	logger     *slog.Logger
	components []Component
	servers    []Server
	quit       chan struct{}
	quitOnce   sync.Once
	warnAfter  time.Duration // a shutdown that waits for this long is logged

	mu      sync.Mutex
	running map[string]int // by name, for the log
}

// New creates a process without parts.
func New(logger *slog.Logger) *Process {
	return &Process{logger: logger, quit: make(chan struct{}), warnAfter: 30 * time.Second, running: map[string]int{}}
}

// Add appends components. Components that were added earlier must not use them.
func (p *Process) Add(components ...Component) { p.components = append(p.components, components...) }

// AddServer appends servers. They drain one after the other.
func (p *Process) AddServer(servers ...Server) { p.servers = append(p.servers, servers...) }

// Quit ends Run as if its context was canceled.
func (p *Process) Quit() { p.quitOnce.Do(func() { close(p.quit) }) }

// Run serves until ctx is canceled, Quit is called or a part fails. It returns when
// everything that it started has ended and every component is closed.
func (p *Process) Run(ctx context.Context) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	requests, drained := context.WithCancel(context.WithoutCancel(ctx))
	defer drained()
	var serving, working, forRequests sync.WaitGroup
	defer context.AfterFunc(ctx, func() { p.Stopping() })()
	for _, s := range p.servers {
		p.start(&serving, s.Name, func() {
			if err := s.Serve(); err != nil {
				stop(fmt.Errorf("%s: %w", s.Name, err))
			}
		})
	}
	p.start(&working, "start", func() {
		if err := p.open(ctx); err != nil {
			stop(err)
		}
		if ctx.Err() != nil {
			return
		}
		if p.Opened != nil {
			p.Opened()
		}
		for _, c := range p.components {
			group, until := &working, ctx
			if c.ForRequests {
				group, until = &forRequests, requests
			}
			if c.Run == nil {
				continue
			}
			p.start(group, c.Name, func() {
				if err := c.Run(until); err != nil {
					stop(err)
				}
			})
		}
		FreeMemory()
	})
	select {
	case <-ctx.Done():
	case <-p.quit:
		stop(context.Canceled)
	}
	p.Stopping()
	for _, s := range p.servers {
		if s.Stopping != nil {
			s.Stopping()
		}
	}
	p.logger.Info("Stopping", "reason", context.Cause(ctx))
	p.wait(&working)
	err := p.drain()
	p.wait(&serving)
	drained()
	p.wait(&forRequests)
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		err = errors.Join(err, cause)
	}
	return errors.Join(err, p.close())
}

// open opens the components in order, until ctx is canceled.
func (p *Process) open(ctx context.Context) error {
	for _, c := range p.components {
		if ctx.Err() != nil {
			return nil
		}
		if c.Open == nil {
			continue
		}
		if err := c.Open(ctx); err != nil {
			return err
		}
	}
	return nil
}

// start calls f in a goroutine of a group.
func (p *Process) start(group *sync.WaitGroup, name string, f func()) {
	p.count(name, 1)
	group.Go(func() {
		defer p.count(name, -1)
		f()
	})
}

func (p *Process) count(name string, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running[name] += n
}

// wait waits for a group. It has no timeout, because a component that is closed while
// another one uses it would lose data. After a while it logs what is still running.
func (p *Process) wait(group *sync.WaitGroup) {
	done := make(chan struct{})
	go func() { defer close(done); group.Wait() }()
	ticker := time.NewTicker(p.warnAfter)
	defer ticker.Stop()
	for {
		select {
		case <-done:
			return
		case <-ticker.C:
			p.logger.Warn("The shutdown waits for components that are still running", "parts", p.stillRunning())
		}
	}
}

func (p *Process) stillRunning() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var names []string
	for _, c := range p.components {
		if p.running[c.Name] > 0 {
			names = append(names, c.Name)
		}
	}
	if p.running["start"] > 0 {
		names = append(names, "start")
	}
	return strings.Join(names, ", ")
}

func (p *Process) drain() error {
	var errs []error
	for _, s := range p.servers {
		errs = append(errs, s.Drain())
	}
	return errors.Join(errs...)
}

// close closes the components, the last first.
func (p *Process) close() error {
	var errs []error
	for _, c := range slices.Backward(p.components) {
		if c.Close != nil {
			errs = append(errs, c.Close())
		}
	}
	return errors.Join(errs...)
}

// Close releases a process on which Run was not called.
func (p *Process) Close() error { return errors.Join(p.drain(), p.close()) }
