package columns

import "sync"

// Workers are goroutines that all stages of a process share, so concurrent stages together use no more of them than one
// stage. No stage waits for a free worker. A nil pointer has none, and must not be passed to Run.
type Workers struct{ slots chan struct{} }

// NewWorkers returns up to n workers. They run only while they compute.
func NewWorkers(n int) *Workers { return &Workers{make(chan struct{}, max(0, n))} }

// Any reports whether there are workers, busy or not.
func (w *Workers) Any() bool { return w != nil && cap(w.slots) > 0 }

// batches returns how many batches of a stage are in memory at most.
func (w *Workers) batches() int { return ahead * (1 + cap(w.slots)) }

func (w *Workers) try() bool {
	select {
	case w.slots <- struct{}{}:
		return true
	default:
		return false
	}
}

// Stage is a sequence of batches, which are read one after the other, computed on several goroutines, and consumed in
// the order in which they were read. Batches that New returned are reused.
type Stage[B any] struct {
	// New returns an empty batch.
	New func() B
	// Read fills the next batch; it returns false if there is none. Its calls do not overlap,
	// but may come from different goroutines.
	Read func(B) bool
	// Compute computes a batch. Several calls may run at the same time.
	Compute func(B)
	// Consume gets the computed batches in order, on the goroutine of Run. An error ends Run.
	Consume func(B) error
}

// Fork is a function that runs on a worker while its caller does something else.
type Fork struct {
	workers  *Workers
	leave    sync.Once
	done     chan struct{} // closed when the function has ended
	panicked any
}

// Fork runs f on a worker. It returns nil, and does not run f, if no worker is free.
func (w *Workers) Fork(f func()) *Fork {
	if !w.Any() || !w.try() {
		return nil
	}
	k := &Fork{workers: w, done: make(chan struct{})}
	go func() {
		defer close(k.done)
		defer k.free()
		defer func() { k.panicked = recover() }()
		f()
	}()
	return k
}

// Wait waits until the function has ended, and returns the value that it panicked with. It frees the slot of the worker
// at once, because the caller computes nothing while it waits.
func (k *Fork) Wait() (panicked any) {
	k.free()
	<-k.done
	return k.panicked
}

func (k *Fork) free() { k.leave.Do(func() { <-k.workers.slots }) }

// ahead is the maximum number of batches per goroutine that are read and not yet consumed.
const ahead = 2

// Run runs a stage until all batches are consumed, or until Consume fails: then Run returns the error of Consume. When
// Run returns, no worker is busy with the stage. If a function of the stage panics, Run panics with the same value.
func Run[B any](w *Workers, stage Stage[B]) error {
	r := &run[B]{Stage: stage, workers: w, ring: make([]*slot[B], w.batches())}
	defer r.stop()
	for number := 0; ; number++ {
		r.spawn()
		s := r.await(number)
		if s == nil {
			if r.panicked != nil {
				panic(r.panicked)
			}
			return nil
		}
		if s.panicked != nil {
			panic(s.panicked)
		}
		if err := r.Consume(s.batch); err != nil {
			return err
		}
		r.release(number)
	}
}

// slot is a batch between Read and Consume.
type slot[B any] struct {
	batch    B
	done     chan struct{} // gets one value when the batch is computed
	panicked any           // by Compute
}

type run[B any] struct {
	Stage[B]
	workers *Workers
	group   sync.WaitGroup // the workers of this stage

	mu       sync.Mutex
	ended    bool // no further batch is read
	panicked any  // by Read
	read     int  // batches read
	consumed int
	busy     int        // workers that run for this stage
	ring     []*slot[B] // batches that are not consumed, by their number modulo the length of ring
	free     []*slot[B]
}

// take reads the next batch. It returns nil if there is none, or if too many batches are not yet consumed.
func (r *run[B]) take() (s *slot[B]) {
	r.mu.Lock()
	defer func() {
		if p := recover(); p != nil {
			r.panicked, r.ended, s = p, true, nil
		}
		r.mu.Unlock()
	}()
	if r.ended || r.read-r.consumed == len(r.ring) {
		return nil
	}
	if n := len(r.free); n > 0 {
		s, r.free = r.free[n-1], r.free[:n-1]
	} else {
		s = &slot[B]{batch: r.New(), done: make(chan struct{}, 1)}
	}
	if !r.Read(s.batch) {
		r.ended = true
		return nil
	}
	r.ring[r.read%len(r.ring)] = s
	r.read++
	return s
}

func (r *run[B]) compute(s *slot[B]) {
	defer func() {
		s.panicked = recover()
		s.done <- struct{}{}
	}()
	r.Compute(s.batch)
}

// spawn starts free workers while the ring has room for the batch of one more worker. Each busy worker may add a
// batch, and one place remains for the goroutine of Run.
func (r *run[B]) spawn() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for !r.ended && r.read-r.consumed+r.busy < len(r.ring)-1 && r.workers.try() {
		r.busy++
		r.group.Go(r.work)
	}
}

// work reads and computes batches until there is none to read, and then frees the slot of its worker.
func (r *run[B]) work() {
	defer func() {
		r.mu.Lock()
		r.busy--
		r.mu.Unlock()
		<-r.workers.slots
	}()
	for s := r.take(); s != nil; s = r.take() {
		r.compute(s)
	}
}

// await returns a batch once it is computed, nil if there is none. While it waits it reads and computes other batches.
func (r *run[B]) await(number int) *slot[B] {
	s := r.at(number)
	for s == nil {
		own := r.take()
		if own != nil {
			r.compute(own)
		}
		if s = r.at(number); s == nil && own == nil {
			return nil
		}
	}
	for {
		select {
		case <-s.done:
			return s
		default:
		}
		own := r.take()
		if own == nil {
			<-s.done
			return s
		}
		r.compute(own)
	}
}

func (r *run[B]) at(number int) *slot[B] {
	r.mu.Lock()
	defer r.mu.Unlock()
	if number >= r.read {
		return nil
	}
	return r.ring[number%len(r.ring)]
}

// release makes the slot of a consumed batch available for reuse.
func (r *run[B]) release(number int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := number % len(r.ring)
	r.free, r.ring[i] = append(r.free, r.ring[i]), nil
	r.consumed++
}

func (r *run[B]) stop() {
	r.mu.Lock()
	r.ended = true
	r.mu.Unlock()
	r.group.Wait()
}
