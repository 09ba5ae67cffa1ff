package columns

import (
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
)

type number struct{ in, out int }

// squares is a stage whose batches are numbers below n.
func squares(n int, consume func(*number) error) Stage[*number] {
	next := 0
	return Stage[*number]{
		New: func() *number { return new(number) },
		Read: func(b *number) bool {
			b.in = next
			next++ // not locked: calls do not overlap
			return b.in < n
		},
		Compute: func(b *number) { b.out = b.in * b.in },
		Consume: consume,
	}
}

func TestRun_HandsOverInOrder(t *testing.T) {
	for _, workers := range []int{0, 1, 2, 7} {
		for _, n := range []int{0, 1, 3, 1000} {
			w, want := NewWorkers(workers), 0
			err := Run(w, squares(n, func(b *number) error {
				if b.in != want || b.out != want*want {
					t.Fatalf("%d workers: batch %d with %d, want %d", workers, b.in, b.out, want)
				}
				want++
				return nil
			}))
			if err != nil || want != n {
				t.Errorf("%d workers: %d batches of %d, %v", workers, want, n, err)
			}
			if len(w.slots) != 0 {
				t.Errorf("%d workers are busy", len(w.slots))
			}
		}
	}
}

func TestRun_NeedsNoWorker(t *testing.T) {
	w := NewWorkers(1)
	w.slots <- struct{}{} // another stage has it
	n := 0
	if err := Run(w, squares(100, func(*number) error { n++; return nil })); err != nil || n != 100 {
		t.Errorf("%d batches, %v", n, err)
	}
}

func TestRun_ComputesAtTheSameTime(t *testing.T) {
	var both sync.WaitGroup
	both.Add(2)
	s := squares(2, func(*number) error { return nil })
	s.Compute = func(*number) {
		both.Done()
		both.Wait() // for the other batch, which only another goroutine can compute
	}
	if err := Run(NewWorkers(1), s); err != nil {
		t.Error(err)
	}
}

func TestRun_SharesItsWorkers(t *testing.T) {
	const stages, workers = 10, 3
	w := NewWorkers(workers)
	var now, most atomic.Int64
	var all sync.WaitGroup
	for range stages {
		s := squares(200, func(*number) error { return nil })
		s.Compute = func(*number) {
			n := now.Add(1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			now.Add(-1)
		}
		all.Go(func() { _ = Run(w, s) })
	}
	all.Wait()
	if n := most.Load(); n > stages+workers {
		t.Errorf("%d goroutines computed at a time, want at most %d", n, stages+workers)
	}
}

func TestRun_ReadsFewBatchesAhead(t *testing.T) {
	var read atomic.Int64
	s := squares(1000, nil)
	inner := s.Read
	s.Read = func(b *number) bool { read.Add(1); return inner(b) }
	consumed := int64(0)
	s.Consume = func(*number) error {
		if n := read.Load() - consumed; n > ahead*4 {
			t.Fatalf("%d batches are not consumed", n)
		}
		consumed++
		return nil
	}
	if err := Run(NewWorkers(3), s); err != nil {
		t.Error(err)
	}
}

func TestRun_EndsWithTheFirstError(t *testing.T) {
	broken := errors.New("broken")
	var read atomic.Int64
	s := squares(1<<30, func(b *number) error {
		if b.in == 5 {
			return broken
		}
		return nil
	})
	inner := s.Read
	s.Read = func(b *number) bool { read.Add(1); return inner(b) }
	if err := Run(NewWorkers(3), s); !errors.Is(err, broken) {
		t.Errorf("%v", err)
	}
	if n := read.Load(); n > 6+ahead*4 {
		t.Errorf("%d batches were read", n)
	}
}

func TestRun_PanicsWithItsFunctions(t *testing.T) {
	for name, change := range map[string]func(*Stage[*number]){
		"read":    func(s *Stage[*number]) { s.Read = func(*number) bool { panic("read") } },
		"compute": func(s *Stage[*number]) { s.Compute = func(*number) { panic("compute") } },
		"consume": func(s *Stage[*number]) { s.Consume = func(*number) error { panic("consume") } },
	} {
		w := NewWorkers(2)
		func() {
			defer func() {
				if p := recover(); p != name {
					t.Errorf("%s: %v", name, p)
				}
			}()
			s := squares(100, func(*number) error { return nil })
			change(&s)
			_ = Run(w, s)
		}()
		if len(w.slots) != 0 {
			t.Errorf("%s: %d workers are busy", name, len(w.slots))
		}
	}
}

func TestFork_RunsAtTheSameTimeAndLeavesItsWorkerWhenItIsWaitedFor(t *testing.T) {
	w := NewWorkers(1)
	begun, end := make(chan struct{}), make(chan struct{})
	k := w.Fork(func() {
		close(begun)
		<-end
	})
	<-begun
	if w.Fork(func() {}) != nil {
		t.Error("a worker that is busy runs a second function")
	}
	waited := make(chan any)
	go func() { waited <- k.Wait() }()
	for len(w.slots) != 0 { // until the worker is left
		runtime.Gosched()
	}
	other := w.Fork(func() { panic("other") })
	if other == nil {
		t.Fatal("the worker of a fork that is waited for is not free")
	}
	if p := other.Wait(); p != "other" {
		t.Errorf("panicked with %v", p)
	}
	close(end)
	if p := <-waited; p != nil {
		t.Errorf("panicked with %v", p)
	}
	if k.Wait() != nil || len(w.slots) != 0 {
		t.Errorf("%d workers are busy", len(w.slots))
	}
}

func TestFork_NeedsAWorker(t *testing.T) {
	for _, w := range []*Workers{nil, NewWorkers(0)} {
		if w.Fork(func() { t.Error("runs") }) != nil {
			t.Error("a fork without workers")
		}
	}
}
