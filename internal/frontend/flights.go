package frontend

import (
	"net/http"
	"sync"
)

// sharedMaxBytes is how much of an answer is held for those who asked the same
// meanwhile. They ask for themselves if there is more.
const sharedMaxBytes = 1 << 20

// flights are the requests being answered now, so that who asks the same at the
// same time gets the same answer. A dashboard on ten screens asks once.
type flights struct {
	mu     sync.Mutex
	flying map[string]*flight
}

func newFlights() *flights { return &flights{flying: map[string]*flight{}} }

// flight is one answer being made. What stands below done is read only once it
// is closed.
type flight struct {
	done chan struct{}
	once sync.Once

	complete bool
	status   int
	header   http.Header
	body     []byte
}

// join returns the flight of a request, and whether the caller is to make the
// answer.
func (f *flights) join(key string) (fl *flight, leads bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if fl, ok := f.flying[key]; ok {
		return fl, false
	}
	fl = &flight{done: make(chan struct{})}
	f.flying[key] = fl
	return fl, true
}

// land ends a flight: nobody joins any more, and who waits goes on.
func (f *flights) land(key string, fl *flight) {
	fl.once.Do(func() {
		f.mu.Lock()
		delete(f.flying, key)
		f.mu.Unlock()
		close(fl.done)
	})
}

// shareKey names what two requests must share to have one response: the key of
// everything that may change it, the times, the forms that the client accepts, and
// whether a cached response will do.
func (x *exchange) shareKey() string {
	var k keyText
	k.part(x.query.key())
	k.list("start", x.query.params["start"])
	k.list("end", x.query.params["end"])
	k.list("accept", x.query.header["Accept"])
	if hasNoStore(x.r.Header) {
		k.part("no-store")
	}
	return k.String()
}

// share answers x by another request's answer, or makes the answer and lets
// others have it.
func (f *Frontend) share(x *exchange, make func() error) error {
	if !x.sharable() {
		return make()
	}
	key := x.shareKey()
	fl, leads := f.shared.join(key)
	if !leads {
		select {
		case <-fl.done:
		case <-x.r.Context().Done():
			return x.r.Context().Err()
		}
		if !fl.complete {
			return make()
		}
		f.metrics.sharedAnswer()
		return x.repeat(fl)
	}
	// Whatever happens, also a panic that cuts the connection, who waits goes on.
	defer f.shared.land(key, fl)
	x.answer.flight, x.answer.land = fl, func() { f.shared.land(key, fl) }
	err := make()
	if err == nil && x.answer.flight != nil {
		fl.complete, fl.status = true, x.status
		fl.header = x.answer.sharedHeader()
	}
	return err
}

// repeat sends what another request was answered.
func (x *exchange) repeat(fl *flight) error {
	h := x.w.Header()
	for name, values := range fl.header {
		h[name] = values
	}
	x.status, x.cache = fl.status, fl.header.Get("X-Ferula-Cache")
	x.answer.open(fl.header.Get("Content-Type"))
	x.answer.body.SetStatus(fl.status)
	x.answer.body.Whole(len(fl.body))
	if _, err := x.answer.Write(fl.body); err != nil {
		return err
	}
	return x.answer.close()
}
