package frontend

import (
	"context"
	"net/http"
	"sync"
)

// sharedMaxBytes is how long a response may be to be shared. It is gathered before
// its first byte is sent, so that no client, gone or slow, holds up the others. A
// longer one is streamed to the client whose request it was made for, and the
// others' requests are answered for themselves.
const sharedResponseMaxBytes = 1 << 20

// flights are the requests being answered now, so that who asks the same at the
// same time gets the same answer. A dashboard on ten screens asks once.
type singleFlight struct {
	mu     sync.Mutex
	calls map[string]*call
}

func newSingleFlight() *singleFlight { return &singleFlight{calls: map[string]*call{}} }

// flight is one answer being made. What stands below done is read only once it
// is closed.
type call struct {
	waiters int                // clients that want the response
	cancel  context.CancelFunc // of the work on it, when there are none
	done    chan struct{}
	once    sync.Once

	complete bool
	err      error // of all who wait
	tooLong     bool  // too long to be shared
	status   int
	header   http.Header
	body     []byte
}

// join returns the flight of a request, and the context of the work if the caller
// is to make the answer. It does not end with the caller's client, but with the last
// of all clients.
func (f *singleFlight) join(ctx context.Context, key string) (fl *call, work context.Context) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if fl, ok := f.calls[key]; ok {
		fl.waiters++
		return fl, nil
	}
	fl = &call{waiters: 1, done: make(chan struct{})}
	work, fl.cancel = context.WithCancel(context.WithoutCancel(ctx))
	f.calls[key] = fl
	return fl, work
}

// leave takes a client out of a flight. With the last one the work ends, and nobody
// joins any more.
func (f *singleFlight) leave(key string, fl *call) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if fl.waiters--; fl.waiters > 0 {
		return
	}
	if f.calls[key] == fl {
		delete(f.calls, key)
	}
	fl.cancel()
}

// land ends a flight: nobody joins any more, and who waits goes on.
func (f *singleFlight) finish(key string, fl *call) {
	fl.once.Do(func() {
		f.mu.Lock()
		if f.calls[key] == fl {
			delete(f.calls, key)
		}
		f.mu.Unlock()
		close(fl.done)
	})
}

// shareKey names what two requests must share to have one response: the key of
// everything that may change it, the times, the forms that the client accepts, and
// whether a cached response will do.
func (x *requestContext) callKey() string {
	var k keyBuilder
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
func (f *Frontend) deduplicate(x *requestContext, make func() error) error {
	if !x.shareable() {
		return make()
	}
	key := x.callKey()
	client := x.r
	for {
		fl, work := f.calls.join(client.Context(), key)
		if work != nil {
			return f.runCall(x, key, fl, work, make)
		}
		select {
		case <-fl.done:
		case <-client.Context().Done():
			f.calls.leave(key, fl)
			return client.Context().Err()
		}
		f.calls.leave(key, fl)
		switch {
		case fl.complete:
			f.metrics.sharedResponse()
			return x.replay(fl)
		case fl.err != nil: // it would fail again, and take as long
			return fl.err
		case fl.tooLong:
			return make()
		}
	}
}

// lead makes the answer of a flight. It goes on for the others when x's client has
// gone, and is sent to it, like to them, once it is complete.
func (f *Frontend) runCall(x *requestContext, key string, fl *call, work context.Context, make func() error) error {
	client := x.r
	left := context.AfterFunc(client.Context(), func() { f.calls.leave(key, fl) })
	defer func() {
		if left() {
			f.calls.leave(key, fl)
		}
	}()
	// Whatever happens, also a panic, who waits goes on.
	defer f.calls.finish(key, fl)
	x.r = client.WithContext(work)
	x.response.call = fl
	x.response.finishCall = func() { f.calls.finish(key, fl) }
	err := make()
	x.r = client
	if x.response.call == nil { // it was too long, and has been sent
		return err
	}
	if err == nil {
		fl.complete, fl.status = true, x.status
		fl.header = x.response.sharedHeader()
	} else {
		fl.err = err
	}
	x.response.call = nil
	x.response.reset()
	f.calls.finish(key, fl)
	switch {
	case client.Context().Err() != nil:
		return client.Context().Err()
	case err != nil:
		return err
	}
	return x.replay(fl)
}

// repeat sends what another request was answered.
func (x *requestContext) replay(fl *call) error {
	h := x.w.Header()
	for name, values := range fl.header {
		h[name] = values
	}
	x.status, x.cache = fl.status, fl.header.Get("X-Ferula-Cache")
	x.response.open(fl.header.Get("Content-Type"))
	x.response.body.SetStatus(fl.status)
	x.response.body.Whole(len(fl.body))
	if _, err := x.response.Write(fl.body); err != nil {
		return err
	}
	return x.response.close()
}
