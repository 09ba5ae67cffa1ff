package storeapi

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"google.golang.org/grpc"

	"github.com/ferula-io/ferula/bench/area"
	"github.com/ferula-io/ferula/bench/blocks"
	"github.com/ferula-io/ferula/bench/stores"
	"github.com/ferula-io/ferula/internal/bufpool"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

// The stores of disjoint series. They are small, so that the latency of the connection, not the work of the store, takes most
// of the time.
const (
	disjointStores   = 8
	disjointRequests = 20 // requests of one reading, which is their mean
	storeDelay       = 5 * time.Millisecond
	disjointAll      = "wall time: 8 disjoint stores behind 5 ms each"
	disjointAlone    = "wall time: the slowest of the 8 alone"
)

var disjointSpec = blocks.Spec{
	Metric: "bench_metric", Values: blocks.Floats15, Series: 100, Samples: 120, StepMS: 15_000, StartMS: blocks.QuietStartMS, Seed: 1,
}

func storeName(i int) string { return fmt.Sprintf("s%d", i) }

// disjoint measures the duration of a stream of several stores through a querier, and of a stream of each store alone. The
// stores have their series encoded, because stores that are processes would share the querier's cores: on two cores eight of
// them at once take four times as long as one alone, whatever the querier does.
func (b *bench) disjoint(ctx context.Context) (err error) {
	encoded, err := stores.Encode(disjointSpec)
	if err != nil {
		return err
	}
	var endpoints []string
	for i := range disjointStores {
		address, stop, failed := serveLate(&stores.Memory{
			External: labels.FromStrings("store", storeName(i)), Select: stores.Held(encoded),
			Times: storeapi.TimeRange{MinMS: disjointSpec.StartMS, MaxMS: disjointSpec.EndMS()},
		}, storeDelay)
		if failed != nil {
			return failed
		}
		defer func() { err = errors.Join(err, stop()) }()
		endpoints = append(endpoints, address)
	}
	return b.withQueriers(ctx, endpoints, func(both []*area.Side) error {
		return stores.With(stores.LikeThanos, func(clients []*stores.Client) error {
			for _, c := range clients { // every response is checked: also these, which warm connections
				if _, _, err := durations(ctx, c, 1); err != nil {
					return err
				}
			}
			err := b.InTurn("disjoint stores", both, func(round int, s *area.Side) error {
				all, slowest, err := durations(ctx, clients[slices.Index(both, s)], disjointRequests)
				b.Add(round, s.Name, disjointAlone, area.Seconds, slowest)
				b.Add(round, s.Name, disjointAll, area.Seconds, all)
				return err
			})
			all, alone := b.Median(ferula, disjointAll), b.Median(ferula, disjointAlone)
			b.Measure("storeapi/disjoint-wall", area.Over(all, alone), disjointAll, disjointAlone)
			b.Note(fmt.Sprintf("Disjoint stores: %d stores of %d series x %d samples, which differ in an external label, what each sends arrives %s later. A matcher of the external label selects one store alone; \"the slowest\" is the greatest mean of the eight. The stores send series that were encoded before, so that they leave the cores to the querier, as stores on other machines do.", disjointStores, disjointSpec.Series, disjointSpec.Samples, storeDelay))
			return err
		}, both[0].GRPC, both[1].GRPC)
	})
}

// durations returns the mean seconds of a request of the series of all stores, and those of the slowest store alone.
func durations(ctx context.Context, c *stores.Client, requests int) (all, slowest float64, err error) {
	mean := func(series int, more ...*labels.Matcher) (float64, error) {
		r := stores.Request(disjointSpec.Metric, disjointSpec.StartMS, disjointSpec.EndMS(), more...)
		begun := time.Now()
		for range requests {
			a, err := c.Receive(ctx, r, nil)
			if err == nil && (a.Series != series || a.Chunks < series) {
				err = fmt.Errorf("%w: %d series, want %d", area.ErrUnequal, a.Series, series)
			}
			if err != nil {
				return 0, err
			}
		}
		return time.Since(begun).Seconds() / float64(requests), nil
	}
	for i := range disjointStores {
		t, err := mean(disjointSpec.Series, labels.MustNewMatcher(labels.MatchEqual, "store", storeName(i)))
		if err != nil {
			return 0, 0, err
		}
		slowest = max(slowest, t)
	}
	all, err = mean(disjointStores * disjointSpec.Series)
	return all, slowest, err
}

// serveLate serves a source over TCP until stop is called. What it sends is delayed.
func serveLate(src storeapi.Source, by time.Duration) (address string, stop func() error, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	l = delayingListener{l, by}
	server := grpc.NewServer(storeapi.GRPCServerOptions()...)
	storeapi.NewServer(src, storeapi.ServerOptions{}).Register(server)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	return l.Addr().String(), func() error {
		server.Stop()
		if err := <-ended; !errors.Is(err, grpc.ErrServerStopped) {
			return err
		}
		return nil
	}, nil
}

// delayingListener accepts connections whose writes arrive after a delay. It does not limit the throughput.
type delayingListener struct {
	net.Listener
	by time.Duration
}

// delayed are bytes that were written, and the time at which they are due.
type delayed struct {
	data *[]byte // of delayedPool
	due  time.Time
}

const (
	delayedMax   = 1024     // pieces in flight
	delayedBytes = 64 << 10 // of a piece
)

// delayedPool has buffers of delayedBytes or more. Their garbage would be collected on the cores of the querier.
var delayedPool = bufpool.New(delayedBytes, 16*delayedBytes)

// Accept implements net.Listener.
func (l delayingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	d := &delayingConn{Conn: c, by: l.by, pieces: make(chan delayed, delayedMax), closed: make(chan struct{})}
	go d.send()
	return d, nil
}

type delayingConn struct {
	net.Conn
	by     time.Duration
	pieces chan delayed
	close  sync.Once
	closed chan struct{}
}

// Write implements net.Conn. It returns before the bytes are sent.
func (d *delayingConn) Write(b []byte) (int, error) {
	data := delayedPool.Get()
	*data = append(*data, b...)
	select {
	case d.pieces <- delayed{data, time.Now().Add(d.by)}:
		return len(b), nil
	case <-d.closed:
		return 0, net.ErrClosed
	}
}

// Close implements net.Conn. Bytes that are not due are lost.
func (d *delayingConn) Close() error {
	d.close.Do(func() { close(d.closed) })
	return d.Conn.Close()
}

func (d *delayingConn) send() {
	for {
		select {
		case p := <-d.pieces:
			time.Sleep(time.Until(p.due))
			_, err := d.Conn.Write(*p.data)
			delayedPool.Put(p.data)
			if err != nil {
				_ = d.Close() // the server sees that its writes fail
				return
			}
		case <-d.closed:
			return
		}
	}
}
