package storeclient

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc/resolver"

	"github.com/ferula-io/ferula/internal/dnslookup"
)

// lookupScheme is the scheme of targets that lookupBuilder resolves.
const lookupScheme = "lookup"

// lookupBuilder resolves the names of endpoint groups that have a prefix of package dnslookup, such as dns+ or
// dnssrv+. gRPC's own resolver does not know these prefixes.
type lookupBuilder struct {
	resolver dnslookup.Resolver
	interval time.Duration
}

var _ resolver.Builder = lookupBuilder{}

// Scheme implements resolver.Builder.
func (lookupBuilder) Scheme() string { return lookupScheme }

// Build implements resolver.Builder. The lookups end with Close.
func (b lookupBuilder) Build(target resolver.Target, conn resolver.ClientConn,
	_ resolver.BuildOptions) (resolver.Resolver, error) {
	ctx, cancel := context.WithCancel(context.Background())
	r := &lookups{cancel: cancel, now: make(chan struct{}, 1)}
	r.running.Go(func() { r.run(ctx, b, target.Endpoint(), conn) })
	return r, nil
}

// lookups resolves one name repeatedly.
type lookups struct {
	cancel  context.CancelFunc
	now     chan struct{} // gets a value if gRPC requests a lookup before the interval has passed
	running sync.WaitGroup
}

// soonest is the minimum time between two lookups, even if gRPC requests more.
const soonest = time.Second

func (r *lookups) run(ctx context.Context, b lookupBuilder, name string, conn resolver.ClientConn) {
	for {
		limited, done := context.WithTimeout(ctx, b.interval)
		found, err := dnslookup.Lookup(limited, b.resolver, name)
		done()
		if ctx.Err() != nil {
			return
		}
		if err != nil { // gRPC keeps the addresses of the last lookup
			conn.ReportError(err)
		} else {
			var state resolver.State
			for _, address := range found {
				state.Addresses = append(state.Addresses, resolver.Address{Addr: address})
			}
			_ = conn.UpdateState(state) // without addresses calls fail until a lookup finds some
		}
		if !wait(ctx, soonest, nil) || !wait(ctx, b.interval-soonest, r.now) {
			return
		}
	}
}

// wait waits until d has passed or a value can be received from now, and returns true. It returns false if ctx ends
// before.
func wait(ctx context.Context, d time.Duration, now <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
	case <-now:
	}
	return true
}

// ResolveNow implements resolver.Resolver.
func (r *lookups) ResolveNow(resolver.ResolveNowOptions) {
	select {
	case r.now <- struct{}{}:
	default:
	}
}

// Close implements resolver.Resolver.
func (r *lookups) Close() {
	r.cancel()
	r.running.Wait()
}
