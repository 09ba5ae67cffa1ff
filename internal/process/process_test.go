package process

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// journal records events in order.
type journal struct {
	mu     sync.Mutex
	events []string
}

func (j *journal) add(event string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.events = append(j.events, event)
}

func (j *journal) all() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.events)
}

// component records its life. Run ends when its context is canceled.
func (j *journal) component(name string) Component {
	return Component{
		Name:  name,
		Open:  func(context.Context) error { j.add("open " + name); return nil },
		Run:   func(ctx context.Context) error { <-ctx.Done(); j.add("end " + name); return nil },
		Close: func() error { j.add("close " + name); return nil },
	}
}

// server records its life. Serve ends when it drains.
func (j *journal) server(name string) Server {
	stop := make(chan struct{})
	return Server{
		Name:     name,
		Serve:    func() error { <-stop; return nil },
		Stopping: func() { j.add("stopping " + name) },
		Drain:    func() error { j.add("drain " + name); close(stop); return nil },
	}
}

func newTestProcess() *Process { return New(slog.New(slog.DiscardHandler)) }

// run runs a process in a bubble and returns its result.
func run(ctx context.Context, p *Process) <-chan error {
	result := make(chan error, 1)
	go func() { result <- p.Run(ctx) }()
	return result
}

func TestProcess_StopsInOrderOfDependence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j, p := &journal{}, newTestProcess()
		remote := j.component("stores")
		remote.ForRequests = true
		p.Add(j.component("storage"), remote, j.component("scraper"))
		p.AddServer(j.server("web"), j.server("grpc"))
		p.Opened = func() { j.add("opened"); p.Ready() }
		ctx, cancel := context.WithCancel(t.Context())
		result := run(ctx, p)
		synctest.Wait()
		if got := j.all(); !slices.Equal(got, []string{"open storage", "open stores", "open scraper", "opened"}) || !p.IsReady() {
			t.Errorf("started: %v, ready %t", got, p.IsReady())
		}
		cancel()
		if err := <-result; err != nil {
			t.Error(err)
		}
		got := j.all()[4:]
		slices.Sort(got[:4]) // components end concurrently
		want := []string{"end scraper", "end storage", "stopping grpc", "stopping web", "drain web", "drain grpc", "end stores", "close scraper", "close stores", "close storage"}
		if !slices.Equal(got, want) {
			t.Errorf("%v\nwant %v", got, want)
		}
		if p.Ready(); p.IsReady() {
			t.Error("ready after shutdown")
		}
	})
}

func TestProcess_AComponentThatFailsToOpenEndsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j, p := &journal{}, newTestProcess()
		broken := j.component("broken")
		broken.Open = func(context.Context) error { return io.ErrUnexpectedEOF }
		p.Add(j.component("first"), broken, j.component("last"))
		p.AddServer(j.server("web"))
		p.Opened = func() { t.Error("opened") }
		if err := p.Run(t.Context()); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%v", err)
		}
		want := []string{"open first", "stopping web", "drain web", "close last", "close broken", "close first"}
		if got := j.all(); !slices.Equal(got, want) {
			t.Errorf("%v\nwant %v", got, want)
		}
	})
}

func TestProcess_AComponentThatFailsWhileRunningEndsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j, p := &journal{}, newTestProcess()
		broken := j.component("broken")
		broken.Run = func(context.Context) error { time.Sleep(time.Hour); return io.ErrUnexpectedEOF }
		other := j.component("other")
		other.Close = func() error { return io.ErrShortWrite }
		early := Component{Name: "early", Run: func(context.Context) error { return nil }} // ends nothing
		p.Add(other, early, broken)
		p.AddServer(j.server("web"))
		if err := p.Run(t.Context()); !errors.Is(err, io.ErrUnexpectedEOF) || !errors.Is(err, io.ErrShortWrite) {
			t.Errorf("%v", err)
		}
		if got := j.all(); !slices.Contains(got[:len(got)-2], "end other") || !slices.Equal(got[len(got)-2:], []string{"drain web", "close broken"}) {
			t.Errorf("%v", got)
		}
	})
}

func TestProcess_AServerThatFailsEndsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j, p := &journal{}, newTestProcess()
		p.Add(j.component("storage"))
		broken := j.server("web server")
		broken.Serve = func() error { return io.ErrClosedPipe }
		p.AddServer(j.server("gRPC server"), broken)
		if err := p.Run(t.Context()); !errors.Is(err, io.ErrClosedPipe) || !strings.HasPrefix(err.Error(), "web server: ") {
			t.Errorf("%v", err)
		}
		if got := j.all(); got[len(got)-1] != "close storage" {
			t.Errorf("%v", got)
		}
	})
}

func TestProcess_ShutdownDuringStartOpensNothingMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j, p := &journal{}, newTestProcess()
		slow := j.component("slow")
		release := make(chan struct{})
		slow.Open = func(context.Context) error { <-release; j.add("open slow"); return nil } // as the replay of a WAL
		p.Add(slow, j.component("last"))
		p.AddServer(j.server("web"))
		p.Opened = func() { t.Error("opened") }
		ctx, cancel := context.WithCancel(t.Context())
		result := run(ctx, p)
		synctest.Wait()
		cancel()
		synctest.Wait()
		if got := j.all(); !slices.Equal(got, []string{"stopping web"}) {
			t.Errorf("closed while a component opens: %v", got)
		}
		close(release)
		if err := <-result; err != nil {
			t.Error(err)
		}
		if got := j.all(); !slices.Equal(got, []string{"stopping web", "open slow", "drain web", "close last", "close slow"}) {
			t.Errorf("%v", got)
		}
	})
}

func TestProcess_ACanceledOpenEndsWithoutError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j, p := &journal{}, newTestProcess()
		waits := j.component("waits")
		waits.Open = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
		p.Add(waits)
		result := run(t.Context(), p)
		synctest.Wait()
		p.Quit()
		p.Quit()
		if err := <-result; err != nil {
			t.Error(err)
		}
		if got := j.all(); !slices.Equal(got, []string{"close waits"}) {
			t.Errorf("%v", got)
		}
	})
}

func TestProcess_NamesAPartThatDoesNotStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var logged bytes.Buffer
		j, p := &journal{}, New(slog.New(slog.NewTextHandler(&logged, nil)))
		stuck := j.component("stuck")
		release := make(chan struct{})
		stuck.Run = func(context.Context) error { <-release; return nil }
		p.Add(j.component("storage"), stuck)
		web := j.server("web")
		web.Drain = func() error { return io.ErrNoProgress } // requests that did not end in time
		web.Serve = func() error { return nil }
		p.AddServer(web)
		result := run(t.Context(), p)
		synctest.Wait()
		p.Quit()
		time.Sleep(31 * time.Second)
		synctest.Wait()
		if got := logged.String(); !strings.Contains(got, `level=WARN msg="The shutdown waits for components that are still running" parts=stuck`) {
			t.Errorf("%s", got)
		}
		if got := j.all(); slices.Contains(got, "close storage") {
			t.Errorf("a store was closed under a running component: %v", got)
		}
		close(release)
		if err := <-result; !errors.Is(err, io.ErrNoProgress) {
			t.Errorf("%v", err)
		}
		if got := j.all(); got[len(got)-1] != "close storage" {
			t.Errorf("%v", got)
		}
	})
}

func TestProcess_CloseReleasesWhatDidNotRun(t *testing.T) {
	j, p := &journal{}, newTestProcess()
	p.Add(j.component("a"), Component{Name: "none"}, j.component("b"))
	p.AddServer(j.server("web"))
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if got := j.all(); !slices.Equal(got, []string{"drain web", "close b", "close a"}) {
		t.Errorf("%v", got)
	}
}

// change records its steps and fails in those that are listed.
func (j *journal) change(name string, fails ...string) Change {
	step := func(kind string) func() error {
		return func() error {
			j.add(kind + " " + name)
			if slices.Contains(fails, kind) {
				return errors.New(name + " cannot " + kind)
			}
			return nil
		}
	}
	return Change{Apply: step("apply"), Undo: step("undo"), Commit: func() { j.add("commit " + name) }}
}

func TestApply_AppliesAllOrNone(t *testing.T) {
	for _, tt := range []struct {
		name    string
		changes func(*journal) []Change
		events  string
		errs    []string
	}{
		{"all", func(j *journal) []Change { return []Change{j.change("a"), {}, j.change("b")} }, "apply a, apply b, commit a, commit b", nil},
		{"the last is rejected", func(j *journal) []Change { return []Change{j.change("a"), {}, j.change("b"), j.change("c", "apply")} },
			"apply a, apply b, apply c, undo b, undo a", []string{"c cannot apply"}},
		{"an undo fails too", func(j *journal) []Change { return []Change{j.change("a", "undo"), j.change("b", "apply")} },
			"apply a, apply b, undo a", []string{"b cannot apply", "the old configuration could not be restored: a cannot undo"}},
	} {
		j := &journal{}
		err := Apply(tt.changes(j)...)
		if got := strings.Join(j.all(), ", "); got != tt.events {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.events)
		}
		if (err == nil) != (tt.errs == nil) {
			t.Errorf("%s: %v", tt.name, err)
		}
		for _, want := range tt.errs {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %s", tt.name, err, want)
			}
		}
	}
}
