package storeapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"sync"
	"time"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/ferula-io/ferula/bench/area"
	"github.com/ferula-io/ferula/bench/blocks"
	"github.com/ferula-io/ferula/internal/bufpool"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

// The stores of disjoint series. They are small, so that the latency of the connection,
// not the work of the store, takes most of the time.
const (
	disjointStores   = 8
	disjointRequests = 20 // requests of one reading, which is their mean
	storeDelay       = 5 * time.Millisecond
	disjointAll      = "wall time: 8 disjoint stores behind 5 ms each"
	disjointAlone    = "wall time: the slowest of the 8 alone"
	onSameCores      = ", each a ferula serve on the querier's cores"
)

var disjointSpec = blocks.Spec{
	Metric: "bench_metric", Values: blocks.Floats15, Series: 100, Samples: 120, StepMS: 15_000, StartMS: blocks.QuietStartMS, Seed: 1,
}

// disjoint measures the duration of a stream of several stores through a querier, and of
// a stream of each store alone. The goal counts stores that have their series prepared. Stores that are processes share the
// querier's cores: on two cores eight of them at once take four times as long as one alone, whatever the querier does.
func (b *bench) disjoint(ctx context.Context) error {
	all, err := prepare(disjointSpec)
	if err != nil {
		return err
	}
	prepared := func(name string) (string, func() error, error) {
		times := storeapi.TimeRange{MinMS: disjointSpec.StartMS, MaxMS: disjointSpec.EndMS()}
		return servePrepared(&preparedSource{series: all, external: labels.FromStrings("store", name), times: times}, storeDelay)
	}
	if err := b.disjointOver(ctx, "", prepared); err != nil {
		return err
	}
	from, err := blocks.Ensure(ctx, b.env.Cache, disjointSpec)
	if err != nil {
		return err
	}
	processes := func(name string) (string, func() error, error) {
		server, address, err := b.runStore(ctx, from, "disjoint-"+name, "global: {external_labels: {store: "+name+"}}\nscrape_configs: []\n")
		if err != nil {
			return "", nil, err
		}
		proxy, err := newDelay(address, storeDelay)
		if err != nil {
			return "", nil, errors.Join(err, server.Stop())
		}
		return proxy.address(), func() error { return errors.Join(proxy.close(), server.Stop()) }, nil
	}
	if err := b.disjointOver(ctx, onSameCores, processes); err != nil {
		return err
	}
	rec := &b.out.Recorder
	b.out.Measure("storeapi/disjoint-wall", area.Over(rec.Median(ferula, disjointAll), rec.Median(ferula, disjointAlone)), disjointAll, disjointAlone)
	b.out.Notes = append(b.out.Notes, fmt.Sprintf("Disjoint stores: %d stores of %d series x %d samples, which differ in an external label, what each sends arrives %s later. A matcher of the external label selects one store alone; \"the slowest\" is the greatest mean of the eight. "+
		"The stores of the goal send series that were encoded before, so that they leave the cores to the querier, as stores on other machines do; further rows have the times of eight processes that share its cores.", disjointStores, disjointSpec.Series, disjointSpec.Samples, storeDelay))
	return nil
}

// disjointOver measures stores that start starts, each behind the delay. kind is added to the names of the readings.
func (b *bench) disjointOver(ctx context.Context, kind string, start func(name string) (address string, stop func() error, err error)) (err error) {
	var stores []string
	for i := range disjointStores {
		address, end, failed := start(storeName(i))
		if failed != nil {
			return failed
		}
		defer func() { err = errors.Join(err, end()) }()
		stores = append(stores, address)
	}
	both, stop, err := b.runQueriers(ctx, stores)
	defer func() { err = errors.Join(err, stop()) }()
	if err != nil {
		return err
	}
	for i := range both {
		if err := both[i].compareDisjoint(ctx); err != nil {
			return fmt.Errorf("%s: %w", both[i].name, err)
		}
	}
	for round := 1; round <= b.env.Rounds; round++ {
		for i := range both {
			if err := b.measureDisjoint(ctx, round, kind, &both[i]); err != nil {
				return fmt.Errorf("%s: %w", both[i].name, err)
			}
		}
		b.env.Logf("disjoint stores%s, round %d of %d", kind, round, b.env.Rounds)
	}
	return nil
}

func storeName(i int) string { return fmt.Sprintf("s%d", i) }

// receiveDisjoint requests the series of all stores, or of one, and returns their number.
func (q *querier) receiveDisjoint(ctx context.Context, store string) (series int, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	matchers := []*labels.Matcher{labels.MustNewMatcher(labels.MatchEqual, "__name__", disjointSpec.Metric)}
	if store != "" {
		matchers = append(matchers, labels.MustNewMatcher(labels.MatchEqual, "store", store))
	}
	set := q.client.Series(ctx, storeapi.SeriesRequest{MinMS: disjointSpec.StartMS, MaxMS: disjointSpec.EndMS(), Matchers: matchers})
	defer set.Close()
	for set.Next() {
		if len(set.Chunks()) == 0 {
			return series, fmt.Errorf("a series: %w", area.ErrEmpty)
		}
		series++
	}
	return series, set.Err()
}

// compareDisjoint returns an error unless all series of all stores, and of each store alone, are received.
func (q *querier) compareDisjoint(ctx context.Context) error {
	all, err := q.receiveDisjoint(ctx, "")
	if err == nil && all != disjointStores*disjointSpec.Series {
		err = fmt.Errorf("%w: %d series of %d stores, want %d", area.ErrUnequal, all, disjointStores, disjointStores*disjointSpec.Series)
	}
	for i := range disjointStores {
		one, oneErr := q.receiveDisjoint(ctx, storeName(i))
		if oneErr == nil && one != disjointSpec.Series {
			oneErr = fmt.Errorf("%w: %d series of store %d, want %d", area.ErrUnequal, one, i, disjointSpec.Series)
		}
		err = errors.Join(err, oneErr)
	}
	return err
}

func (b *bench) measureDisjoint(ctx context.Context, round int, kind string, q *querier) error {
	mean := func(store string, series int) (float64, error) {
		begun := time.Now()
		for range disjointRequests {
			n, err := q.receiveDisjoint(ctx, store)
			if err == nil && n != series {
				err = fmt.Errorf("%w: %d series, want %d", area.ErrUnequal, n, series)
			}
			if err != nil {
				return math.NaN(), err
			}
		}
		return time.Since(begun).Seconds() / disjointRequests, nil
	}
	slowest := 0.0
	for i := range disjointStores {
		t, err := mean(storeName(i), disjointSpec.Series)
		if err != nil {
			return err
		}
		slowest = max(slowest, t)
	}
	all, err := mean("", disjointStores*disjointSpec.Series)
	if err != nil {
		return err
	}
	b.out.Recorder.Add(round, q.name, disjointAlone+kind, area.Seconds, slowest)
	b.out.Recorder.Add(round, q.name, disjointAll+kind, area.Seconds, all)
	return nil
}

// delay is a TCP proxy that forwards the bytes of the server after a delay. It does not
// limit the throughput.
type delay struct {
	listener net.Listener
	target   string
	by       time.Duration
	running  sync.WaitGroup
	mu       sync.Mutex
	conns    []net.Conn
}

func newDelay(target string, by time.Duration) (*delay, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	d := &delay{listener: l, target: target, by: by}
	d.running.Go(d.accept)
	return d, nil
}

func (d *delay) address() string { return d.listener.Addr().String() }

// close ends all connections and waits for their goroutines.
func (d *delay) close() error {
	err := d.listener.Close()
	d.mu.Lock()
	for _, c := range d.conns {
		_ = c.Close() // may be closed already
	}
	d.mu.Unlock()
	d.running.Wait()
	return err
}

func (d *delay) accept() {
	for {
		client, err := d.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", d.target)
		if err != nil {
			_ = client.Close()
			continue
		}
		d.mu.Lock()
		d.conns = append(d.conns, client, server)
		d.mu.Unlock()
		d.running.Go(func() {
			_, _ = io.Copy(server, client) // ends when either connection ends
			_ = server.Close()
		})
		d.running.Go(func() { d.pass(client, server) })
	}
}

// delayed are bytes that were read from the server, and the time at which they are due.
type delayed struct {
	data *[]byte // of delayedPool
	due  time.Time
}

const (
	delayedMax   = 1024     // pieces in flight
	delayedBytes = 64 << 10 // of a piece
)

// delayedPool has buffers of delayedBytes or more. The garbage of the proxies would be collected on the cores of the querier.
var delayedPool = bufpool.New(delayedBytes, 16*delayedBytes)

func (d *delay) pass(client, server net.Conn) {
	pieces := make(chan delayed, delayedMax)
	d.running.Go(func() {
		for p := range pieces {
			time.Sleep(time.Until(p.due))
			_, err := client.Write(*p.data)
			delayedPool.Put(p.data)
			if err != nil {
				break
			}
		}
		_ = client.Close()
		for p := range pieces { // the reader must not block
			delayedPool.Put(p.data)
		}
	})
	defer close(pieces)
	for {
		data := delayedPool.Get()
		n, err := server.Read((*data)[:cap(*data)])
		if n > 0 {
			*data = (*data)[:n]
			pieces <- delayed{data, time.Now().Add(d.by)}
		} else {
			delayedPool.Put(data)
		}
		if err != nil {
			return
		}
	}
}
