package frontend

import (
	"context"
	"maps"
	"net/http"
	"sync"

	"github.com/ferula-io/ferula/internal/frontend/downstream"
)

// sharedResponseMaxBytes is the longest response that identical requests share. It is
// buffered whole before its first byte is sent, so that a client that disconnects or
// reads slowly does not delay the others. A longer response is streamed to the client
// whose request started the call; every other client's request then makes a call of its
// own.
const sharedResponseMaxBytes = 1 << 20

// singleFlight holds the calls in progress by key. Identical concurrent requests wait
// for one call and get its response: a dashboard on ten screens queries once.
type singleFlight struct {
	mu    sync.Mutex
	calls map[string]*call
}

func newSingleFlight() *singleFlight { return &singleFlight{calls: map[string]*call{}} }

// call is one response in progress. Waiters must not read the fields from complete on before done is
// closed.
type call struct {
	waiters int                // clients that wait for the response
	cancel  context.CancelFunc // cancels the work; called when no client waits
	done    chan struct{}
	once    sync.Once

	complete bool  // status, header and body are the whole response
	err      error // returned to every waiter
	tooLong  bool  // longer than sharedResponseMaxBytes
	status   int
	header   http.Header
	body     []byte
}

// join adds a client to the call of a key. If there is none it starts one, and returns
// the context for its work; otherwise work is nil. The work ends with its last client,
// not with the one that started it.
func (f *singleFlight) join(ctx context.Context, key string) (c *call, work context.Context) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c, ok := f.calls[key]; ok {
		c.waiters++
		return c, nil
	}
	c = &call{waiters: 1, done: make(chan struct{})}
	work, c.cancel = context.WithCancel(context.WithoutCancel(ctx))
	f.calls[key] = c
	return c, work
}

// leave removes a client from a call. When the last one leaves, the work is canceled
// and no further client joins.
func (f *singleFlight) leave(key string, c *call) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c.waiters--; c.waiters > 0 {
		return
	}
	if f.calls[key] == c {
		delete(f.calls, key)
	}
	c.cancel()
}

// finish ends a call: no further client joins, and the waiters go on.
func (f *singleFlight) finish(key string, c *call) {
	c.once.Do(func() {
		f.mu.Lock()
		if f.calls[key] == c {
			delete(f.calls, key)
		}
		f.mu.Unlock()
		close(c.done)
	})
}

// callKey is equal for two requests that may share one response. It contains the
// query's key, start and end, the accepted media types, and whether the client refuses
// a cached response.
func (x *requestContext) callKey() string {
	var k keyBuilder
	k.part(x.query.key())
	k.list("start", x.query.params["start"])
	k.list("end", x.query.params["end"])
	k.list("accept", x.query.header["Accept"])
	if downstream.HasNoStore(x.r.Header) {
		k.part("no-store")
	}
	return k.String()
}

// deduplicate waits for an identical request in progress and sends its response to the client of x.
// If there is no such request, deduplicate calls handle, and shares the response with identical
// requests that arrive meanwhile.
func (f *Frontend) deduplicate(x *requestContext, handle func() error) error {
	if !x.shareable() {
		return handle()
	}
	key := x.callKey()
	client := x.r
	for {
		c, work := f.calls.join(client.Context(), key)
		if work != nil {
			return f.runCall(x, key, c, work, handle)
		}
		select {
		case <-c.done:
		case <-client.Context().Done():
			f.calls.leave(key, c)
			return client.Context().Err()
		}
		f.calls.leave(key, c)
		switch {
		case c.complete:
			f.metrics.shared.Inc()
			return x.replay(c)
		case c.err != nil: // a further call would fail in the same way and take as long
			return c.err
		case c.tooLong:
			return handle()
		}
	}
}

// runCall calls handle for all clients of a call. If x's client disconnects, the work continues for
// the other clients. Every client, including x's, gets the response once it is complete.
func (f *Frontend) runCall(x *requestContext, key string, c *call, work context.Context, handle func() error) error {
	client := x.r
	stopWatching := context.AfterFunc(client.Context(), func() { f.calls.leave(key, c) })
	defer func() {
		if stopWatching() {
			f.calls.leave(key, c)
		}
	}()
	// The waiters go on even if handle panics.
	defer f.calls.finish(key, c)
	x.r = client.WithContext(work)
	x.response.call = c
	x.response.finishCall = func() { f.calls.finish(key, c) }
	err := handle()
	x.r = client
	if x.response.call == nil { // too long to share: it was streamed to x's client
		return err
	}
	if err == nil {
		c.complete, c.status = true, x.status
		c.header = x.response.sharedHeader()
	} else {
		c.err = err
	}
	x.response.call = nil
	cookies := x.w.Header()["Set-Cookie"] // of x's client alone
	x.response.reset()
	f.calls.finish(key, c)
	switch {
	case client.Context().Err() != nil:
		return client.Context().Err()
	case err != nil:
		return err
	}
	if len(cookies) > 0 {
		x.w.Header()["Set-Cookie"] = cookies
	}
	return x.replay(c)
}

// replay sends the response of a complete call.
func (x *requestContext) replay(c *call) error {
	maps.Copy(x.w.Header(), c.header)
	x.status, x.cache = c.status, c.header.Get("X-Ferula-Cache")
	x.response.open(c.header.Get("Content-Type"))
	x.response.body.SetStatus(c.status)
	x.response.body.SetLength(len(c.body))
	if _, err := x.response.Write(c.body); err != nil {
		return err
	}
	return x.response.close()
}
