package pages

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// memory is a bucket in memory, whose requests can be counted, stopped and failed.
type memory struct {
	objects  map[string][]byte
	requests atomic.Int64
	bytes    atomic.Int64
	failures atomic.Int64  // requests that fail next
	cut      atomic.Int64  // next requests whose body ends early
	cutBy    error         // error at their end; nil: errSlow
	stall    atomic.Int64  // next requests whose body stalls in the middle
	gate     chan struct{} // nil: requests are not stopped
}

var errSlow = errors.New("503 SlowDown")

func (m *memory) GetRange(ctx context.Context, name string, off, length int64) (io.ReadCloser, error) {
	m.requests.Add(1)
	m.bytes.Add(length)
	if m.gate != nil {
		select {
		case <-m.gate:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if m.failures.Add(-1) >= 0 {
		return nil, errSlow
	}
	o := m.objects[name]
	if off >= int64(len(o)) {
		return nil, errors.New("416")
	}
	body := o[off:min(off+length, int64(len(o)))]
	if m.cut.Add(-1) >= 0 {
		return io.NopCloser(io.MultiReader(bytes.NewReader(body[:len(body)/2]), failing{cmp.Or(m.cutBy, errSlow)})), nil
	}
	if m.stall.Add(-1) >= 0 {
		return io.NopCloser(io.MultiReader(bytes.NewReader(body[:len(body)/2]), untilCanceled{ctx})), nil
	}
	return io.NopCloser(bytes.NewReader(body)), nil
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

type untilCanceled struct{ ctx context.Context }

func (u untilCanceled) Read([]byte) (int, error) {
	<-u.ctx.Done()
	return 0, u.ctx.Err()
}

func content(n int) []byte {
	rng := rand.New(rand.NewPCG(1, uint64(n)))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}

func open(t testing.TB, o Options) *Cache {
	t.Helper()
	o.Pause = time.Millisecond
	c, err := Open(t.TempDir(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func TestReader_ReturnsTheBytesOfTheObject(t *testing.T) {
	data := content(3*slotsMin*Bytes + 123)
	m := &memory{objects: map[string][]byte{"a": data}}
	c := open(t, Options{BytesMax: 1}) // the least number of slots
	o := c.Object(m, "a", int64(len(data)))
	var all sync.WaitGroup
	for seed := range 4 {
		all.Go(func() {
			rng := rand.New(rand.NewPCG(2, uint64(seed)))
			r := c.Reader()
			defer r.Release()
			for range 300 {
				off := rng.Int64N(int64(len(data)))
				n := int(min(rng.Int64N(2*Bytes), int64(len(data))-off))
				got, err := r.Bytes(t.Context(), o, off, n)
				if err != nil || !bytes.Equal(got, data[off:off+int64(n)]) {
					t.Errorf("%d bytes at %d differ: %v", n, off, err)
					return
				}
				part, err := r.At(t.Context(), o, off)
				if err != nil || !bytes.Equal(part, data[off:off+int64(len(part))]) || !bytes.Equal(got, data[off:off+int64(n)]) {
					t.Errorf("part at %d differs: %v", off, err)
					return
				}
				r.Release()
			}
		})
	}
	all.Wait()
	r := c.Reader()
	defer r.Release()
	for _, beyond := range [][2]int64{{int64(len(data)), 1}, {int64(len(data)) - 1, 2}, {-1, 1}, {1 << 60, 1}, {0, -1}} {
		if _, err := r.Bytes(t.Context(), o, beyond[0], int(beyond[1])); !errors.Is(err, ErrShort) {
			t.Errorf("%v: %v", beyond, err)
		}
	}
}

func TestFetch_JoinsWhatIsNear(t *testing.T) {
	data := content(200 * Bytes)
	m := &memory{objects: map[string][]byte{"a": data}}
	c := open(t, Options{BytesMax: 300 * Bytes, GapBytes: 4 * Bytes, RunBytes: 64 * Bytes})
	o := c.Object(m, "a", int64(len(data)))
	page := func(n int64) Span { return Span{n*Bytes + 5, 10} }
	for _, step := range []struct {
		spans    []Span
		requests int64
	}{
		{[]Span{page(0), page(1), page(6)}, 1}, // a gap of four pages
		{[]Span{page(20), page(26)}, 2},
		{[]Span{page(0), page(20), page(26)}, 0},
		{[]Span{page(3), page(2)}, 1}, // in any order
		{[]Span{{30 * Bytes, 100 * Bytes}}, 2},
		{[]Span{{199*Bytes + 7, 1 << 40}, {-3, 5}, {1 << 50, 3}}, 1},
	} {
		before := m.requests.Load()
		if err := o.Fetch(t.Context(), step.spans); err != nil {
			t.Fatal(err)
		}
		if got := m.requests.Load() - before; got != step.requests {
			t.Errorf("%v: %d requests, want %d", step.spans, got, step.requests)
		}
	}
	before := m.requests.Load()
	r := c.Reader()
	defer r.Release()
	for _, n := range []int64{0, 1, 6, 20, 26, 2, 3, 30, 129, 199} {
		if got, err := r.Bytes(t.Context(), o, n*Bytes, Bytes); err != nil || !bytes.Equal(got, data[n*Bytes:(n+1)*Bytes]) {
			t.Errorf("page %d: %v", n, err)
		}
	}
	if m.requests.Load() != before {
		t.Error("fetched pages were requested again")
	}
}

func TestReader_ConcurrentReadersShareOneRequest(t *testing.T) {
	m := &memory{objects: map[string][]byte{"a": content(Bytes)}, gate: make(chan struct{})}
	c := open(t, Options{})
	o := c.Object(m, "a", Bytes)
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			r := c.Reader()
			defer r.Release()
			if _, err := r.At(t.Context(), o, 7); err != nil {
				t.Error(err)
			}
		})
	}
	m.gate <- struct{}{}
	all.Wait()
	if m.requests.Load() != 1 {
		t.Errorf("%d requests", m.requests.Load())
	}
}

// If the reader that has sent a request is canceled, another reader of the same page does
// not fail with it.
func TestReader_CancelledRequestOfAnotherIsRepeated(t *testing.T) {
	m := &memory{objects: map[string][]byte{"a": content(Bytes)}, gate: make(chan struct{})}
	c := open(t, Options{})
	o := c.Object(m, "a", Bytes)
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	all.Go(func() {
		r := c.Reader()
		defer r.Release()
		if _, err := r.At(ctx, o, 0); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	for m.requests.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	all.Go(func() {
		r := c.Reader()
		defer r.Release()
		if _, err := r.At(t.Context(), o, 0); err != nil {
			t.Error(err)
		}
	})
	cancel()
	m.gate <- struct{}{} // only the second request continues: the first has ended
	all.Wait()
}

func TestReader_WaitsForAFreePageThenFails(t *testing.T) {
	data := content(2 * slotsMin * Bytes)
	m := &memory{objects: map[string][]byte{"a": data}}
	c := open(t, Options{BytesMax: 1, WaitMax: 20 * time.Millisecond})
	o := c.Object(m, "a", int64(len(data)))
	holder, other := c.Reader(), c.Reader()
	defer other.Release()
	for n := range int64(slotsMin) {
		if _, err := holder.At(t.Context(), o, n*Bytes); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := other.At(t.Context(), o, (slotsMin+14)*Bytes); !errors.Is(err, ErrBudget) {
		t.Errorf("%v", err)
	}
	if err := o.Fetch(t.Context(), []Span{{(slotsMin + 14) * Bytes, 1}}); err != nil {
		t.Errorf("reading ahead without a free page: %v", err)
	}
	c.opts.WaitMax = 30 * time.Second
	done := make(chan error)
	go func() {
		_, err := other.At(t.Context(), o, (slotsMin+14)*Bytes)
		done <- err
	}()
	waiting := func() bool { c.mu.Lock(); defer c.mu.Unlock(); return c.waiting > 0 }
	for !waiting() {
		time.Sleep(time.Millisecond)
	}
	holder.Release()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestFetch_RepeatsFailedRequestsWithinABudget(t *testing.T) {
	data := content(10 * Bytes)
	m := &memory{objects: map[string][]byte{"a": data}}
	c := open(t, Options{Permanent: func(err error) bool { return err.Error() == "416" }})
	o := c.Object(m, "a", int64(len(data)))
	r := c.Reader()
	defer r.Release()
	m.failures.Store(2)
	m.cut.Store(1)
	if got, err := r.Bytes(t.Context(), o, 0, 3*Bytes); err != nil || !bytes.Equal(got, data[:3*Bytes]) {
		t.Errorf("after failures: %v", err)
	}
	m.failures.Store(1 << 40)
	before := m.requests.Load()
	if _, err := r.At(t.Context(), o, 5*Bytes); !errors.Is(err, errSlow) || m.requests.Load()-before != 4 {
		t.Errorf("%v after %d requests", err, m.requests.Load()-before)
	}
	for range 200 { // uses up the budget
		_, _ = r.At(t.Context(), o, 5*Bytes)
	}
	before = m.requests.Load()
	_, _ = r.At(t.Context(), o, 5*Bytes)
	if m.requests.Load()-before != 1 {
		t.Errorf("%d requests without a budget", m.requests.Load()-before)
	}
	m.failures.Store(0)
	short := c.Object(m, "a", int64(len(data))+Bytes)
	before = m.requests.Load()
	if err := short.Fetch(t.Context(), []Span{{9*Bytes + 1, Bytes}}); !errors.Is(err, ErrShort) || m.requests.Load()-before != 1 {
		t.Errorf("%v after %d requests", err, m.requests.Load()-before)
	}
	if got, err := r.Bytes(t.Context(), short, 9*Bytes, 10); err != nil || !bytes.Equal(got, data[9*Bytes:9*Bytes+10]) {
		t.Errorf("the part that is there: %v", err)
	}
}

func TestObject_CopyRequestsWhatIsNotCached(t *testing.T) {
	const n = 20
	data := content(n*Bytes - 77)
	m := &memory{objects: map[string][]byte{"a": data}}
	size := int64(len(data))
	rng := rand.New(rand.NewPCG(3, 1))
	for i := range 60 {
		c := open(t, Options{BytesMax: 1, GapBytes: 1})
		o := c.Object(m, "a", size)
		for range i % 5 {
			if err := o.Fetch(t.Context(), []Span{{rng.Int64N(size), rng.Int64N(4 * Bytes)}}); err != nil {
				t.Fatal(err)
			}
		}
		off := rng.Int64N(size)
		length := 1 + rng.Int64N(size-off)
		before := m.bytes.Load()
		var got bytes.Buffer
		if err := o.Copy(t.Context(), &got, off, length); err != nil || !bytes.Equal(got.Bytes(), data[off:off+length]) {
			t.Fatalf("%d bytes at %d differ: %v", length, off, err)
		}
		if most := (off+length-1)/Bytes - off/Bytes + 1; m.bytes.Load()-before > most*Bytes {
			t.Fatalf("%d bytes are requested for %d at %d", m.bytes.Load()-before, length, off)
		}
	}
	c := open(t, Options{})
	o := c.Object(m, "a", size)
	if err := o.Fetch(t.Context(), []Span{{0, 3 * Bytes}, {(n - tailMax) * Bytes, tailMax * Bytes}}); err != nil {
		t.Fatal(err)
	}
	before, requests := m.bytes.Load(), m.requests.Load()
	var got bytes.Buffer
	if err := o.Copy(t.Context(), &got, 5, size-5); err != nil || !bytes.Equal(got.Bytes(), data[5:]) {
		t.Fatalf("%d bytes differ: %v", got.Len(), err)
	}
	if some := m.bytes.Load() - before; some != (n-tailMax-3)*Bytes || m.requests.Load() != requests+1 {
		t.Errorf("%d bytes by %d requests", some, m.requests.Load()-requests)
	}
	if err := o.Copy(t.Context(), &got, 2*Bytes+1, Bytes-1); err != nil || m.requests.Load() != requests+1 {
		t.Errorf("a cached page is requested again: %v", err)
	}
}

func BenchmarkReader_CachedPage(b *testing.B) {
	data := content(64 * Bytes)
	c := open(b, Options{})
	o := c.Object(&memory{objects: map[string][]byte{"a": data}}, "a", int64(len(data)))
	r := c.Reader()
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if _, err := r.Bytes(b.Context(), o, int64(i%1000)*1000, 200); err != nil {
			b.Fatal(err)
		}
		r.Release()
	}
}

// net/http ends the body of a connection that was cut with ErrUnexpectedEOF.
func TestReader_BodyThatIsCutOrStallsIsContinued(t *testing.T) {
	data := content(20*Bytes + 99)
	for name, tt := range map[string]struct {
		set   func(m *memory)
		stall time.Duration
	}{
		"cut":   {func(m *memory) { m.cutBy = io.ErrUnexpectedEOF; m.cut.Store(3) }, time.Minute},
		"stall": {func(m *memory) { m.stall.Store(3) }, 300 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			m := &memory{objects: map[string][]byte{"a": data}}
			tt.set(m)
			c := open(t, Options{BytesMax: 64 * Bytes, Stall: tt.stall})
			o := c.Object(m, "a", int64(len(data)))
			if err := o.Fetch(t.Context(), []Span{{0, int64(len(data))}}); err != nil {
				t.Error(err)
			}
			r := c.Reader()
			defer r.Release()
			if got, err := r.Bytes(t.Context(), o, 0, len(data)); err != nil || !bytes.Equal(got, data) {
				t.Errorf("%d bytes, %v", len(got), err)
			}
			if n := m.requests.Load(); n < 4 || name == "cut" && n > 4 {
				t.Errorf("%d requests, want 4: one and three that continue it", n)
			}
		})
	}
}

// A reader whose object is always cut, or stalls, gets a named error.
func TestReader_BodyThatNeverArrivesFails(t *testing.T) {
	data := content(3 * Bytes)
	for name, tt := range map[string]struct {
		set  func(m *memory)
		want error
	}{
		"cut":   {func(m *memory) { m.cutBy = io.ErrUnexpectedEOF; m.cut.Store(1 << 30) }, ErrShort},
		"stall": {func(m *memory) { m.stall.Store(1 << 30) }, ErrStalled},
	} {
		t.Run(name, func(t *testing.T) {
			m := &memory{objects: map[string][]byte{"a": data[:Bytes]}}
			tt.set(m)
			c := open(t, Options{BytesMax: 64 * Bytes, Stall: 20 * time.Millisecond})
			o := c.Object(m, "a", Bytes)
			r := c.Reader()
			defer r.Release()
			if _, err := r.Bytes(t.Context(), o, 0, 10); !errors.Is(err, tt.want) || errors.Is(err, context.Canceled) {
				t.Errorf("%v, want %v", err, tt.want)
			}
			if n := m.requests.Load(); n != 4 {
				t.Errorf("%d requests", n)
			}
		})
	}
}
