package downstream

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"time"
)

const (
	probeTimeout  = 5 * time.Second // or ProbeOptions.Every if that is shorter
	probeBytesMax = 4 << 10         // of a response that are read
)

// ProbeOptions are the options of a Probe.
type ProbeOptions struct {
	Every time.Duration // interval of the probes; 0: 10 s
	Busy  func() bool   // reports whether all slots for requests to the downstream are in use

	IsReady func() bool     // reports whether Ready was called later than Waiting
	Ready   func()          // called when the downstream becomes available
	Waiting func(err error) // called with the reason when the downstream becomes unavailable
}

// Probe requests /-/ready of a downstream at an interval. It also sends the requests of the
// frontend, and records when the downstream last responded to one of them: a downstream that
// responds to queries is available, even if it is too busy to respond to /-/ready.
type Probe struct {
	*Client
	opts ProbeOptions
	last atomic.Int64 // time of the last response with a status below 500, in ns since the epoch
}

// NewProbe returns the probe of the downstream of client.
func NewProbe(client *Client, opts ProbeOptions) *Probe {
	opts.Every = cmp.Or(opts.Every, 10*time.Second)
	return &Probe{Client: client, opts: opts}
}

// Run probes the downstream until ctx is canceled. It calls ProbeOptions.Ready or ProbeOptions.Waiting
// at each change, and Waiting once if the downstream is unavailable from the start.
func (p *Probe) Run(ctx context.Context) error {
	// begun is when the previous probe ended or, for the first probe, when Run was called. A response since then shows
	// that the downstream is available.
	begun, reported := time.Now(), false
	for ctx.Err() == nil {
		err := p.probe(ctx)
		// A probe takes no slot. If all slots are in use, the probe may still time out although the downstream is available:
		// queries may hold all connections that max_conns_per_host allows. A downstream that was ready then stays ready.
		alive := err == nil || p.respondedSince(begun) || p.opts.IsReady() && p.opts.Busy()
		begun = time.Now()
		switch {
		case ctx.Err() != nil:
			return nil
		case alive && !p.opts.IsReady():
			reported = false
			p.opts.Ready()
		case !alive && (p.opts.IsReady() || !reported):
			reported = true
			p.opts.Waiting(err)
		}
		pause := p.opts.Every
		if !alive {
			pause = min(pause, 2*time.Second) // the downstream may be starting
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
	}
	return nil
}

// probe requests /-/ready of the downstream. Every status below 500 means ready. This includes
// 404, because a server may implement the query API without a readiness endpoint.
func (p *Probe) probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, min(probeTimeout, p.opts.Every))
	defer cancel()
	resp, err := p.Client.Open(ctx, Request{Path: "/-/ready", Retries: -1})
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, _ = io.CopyN(io.Discard, resp.Body, probeBytesMax) // a body that is not read to its end ends the connection
	if resp.Status >= http.StatusInternalServerError {
		return fmt.Errorf("GET /-/ready returned status %d", resp.Status)
	}
	return nil
}

// Open is Client.Open, and records when the downstream has responded.
func (p *Probe) Open(ctx context.Context, r Request) (*Response, error) {
	resp, err := p.Client.Open(ctx, r)
	if err == nil && resp.Status < http.StatusInternalServerError {
		p.last.Store(time.Now().UnixNano())
	}
	return resp, err
}

// respondedSince reports whether a request got a response after t.
func (p *Probe) respondedSince(t time.Time) bool { return p.last.Load() > t.UnixNano() }
