package sidecar

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/ferula-io/ferula/bench/area"
	"github.com/ferula-io/ferula/bench/blocks"
	"github.com/ferula-io/ferula/bench/peer"
	"github.com/ferula-io/ferula/bench/proc"
	"github.com/ferula-io/ferula/bench/push"
)

const (
	recentSamples = 135 * 60_000 / stepMS // of a series
	recentEndMS   = blocks.QuietStartMS + recentSamples*stepMS
)

// recent is pushed by remote write. Its range is less than 3 h, so it stays in the heads.
var recent = blocks.Spec{
	Metric: metric, Values: blocks.Floats15, Series: series, Samples: recentSamples,
	StepMS: stepMS, StartMS: blocks.QuietStartMS, Seed: 4,
}

// recentSeries requests the last 2 h of the head. Its start cuts chunks.
var recentSeries = seriesRequest{what: "Series of the last 2 h, in the head", fromMS: recentEndMS - 2*hourMS, toMS: recentEndMS - 1}

const (
	storeName   = "store: "
	withServer  = "Prometheus and sidecar: "
	receiveFlag = "--web.enable-remote-write-receiver"

	prometheusHead, serveHead = "prometheus-head", "serve-head" // directories
)

// store is all processes that are needed to serve StoreAPI, and a client of the one that does.
type store struct {
	name   string // the column of its readings
	client *client
	procs  []*proc.Server
}

// overHead measures both sidecars of a Prometheus whose samples are in the head, and a ferula serve with the same samples.
func (b *bench) overHead(ctx context.Context) error {
	if err := b.fill(ctx); err != nil {
		return err
	}
	return b.storesMemory(ctx)
}

// fill pushes the samples to new servers, and measures while they run.
func (b *bench) fill(ctx context.Context) (err error) {
	for _, name := range []string{prometheusHead, serveHead} {
		if err := os.RemoveAll(filepath.Join(b.dir, name)); err != nil {
			return err
		}
	}
	own, stopOwn, err := b.startServe(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stopOwn()) }()
	if b.prometheus, err = b.serve(ctx, b.program, prometheusHead, receiveFlag); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.prometheus.Stop()) }()
	servers := append([]*proc.Server{b.prometheus}, own.procs...)
	for _, s := range servers {
		if err := push.Samples(ctx, s.URL(), recent); err != nil {
			return err
		}
		b.env.Logf("%d samples pushed", recent.Series*recent.Samples)
	}
	for _, s := range servers {
		if err := push.WaitMapped(ctx, s, recent); err != nil {
			return err
		}
	}
	if err := b.measureRunning(ctx, recentSeries); err != nil {
		return err
	}
	if err := b.stores(ctx, own); err != nil {
		return err
	}
	return b.measureMemory(ctx, recentSeries)
}

// startServe starts ferula serve on its directory. With -null it is no process, because Prometheus has no StoreAPI.
func (b *bench) startServe(ctx context.Context) (own store, stop func() error, err error) {
	if b.env.Programs.Null {
		return own, func() error { return nil }, nil
	}
	program, err := b.env.Programs.Get(ctx, peer.Ferula)
	if err != nil {
		return own, nil, err
	}
	address, err := freeAddress()
	if err != nil {
		return own, nil, err
	}
	server, err := b.serve(ctx, program, serveHead, receiveFlag, "--grpc-address="+address)
	if err != nil {
		return own, nil, err
	}
	c, err := dial(address)
	if err != nil {
		return own, nil, errors.Join(err, server.Stop())
	}
	return store{b.sides[1].name, c, []*proc.Server{server}}, func() error { return errors.Join(c.conn.Close(), server.Stop()) }, nil
}

// behind returns the store that a running sidecar and its Prometheus are.
func (b *bench) behind(s *side) store {
	return store{s.name, s.client, []*proc.Server{b.prometheus, s.server}}
}

// stores compares the three stores by their samples and measures them. own is ferula serve.
func (b *bench) stores(ctx context.Context, own store) (err error) {
	for i := range b.sides {
		s := &b.sides[i]
		if err := b.start(ctx, s); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, s.stop()) }()
	}
	thanos, ours := b.behind(&b.sides[0]), b.behind(&b.sides[1])
	all := []store{thanos, ours}
	if own.client != nil {
		all = append(all, own)
	}
	lengths := make([]int64, len(all))
	if err := compareStores(ctx, all, lengths); err != nil {
		return err
	}
	b.env.Logf("samples are equal: %s, from %d stores", recentSeries.what, len(all))
	for round := 1; round <= b.env.Rounds; round++ {
		for i, s := range all {
			rows := [][]string{{storeName, withServer}, {withServer}, {storeName}}[i]
			if err := b.measureStore(ctx, round, s, lengths[i], rows); err != nil {
				return err
			}
		}
		b.env.Logf("round %d of %d: stores with a head", round, b.env.Rounds)
	}
	return nil
}

// compareStores returns an error unless all stores send the same labels and samples of the range. It sets the lengths of their
// responses.
func compareStores(ctx context.Context, all []store, lengths []int64) error {
	q := recentSeries
	first := contents{samplesOf: &q}
	for i, s := range all {
		found := contents{samplesOf: &q}
		got, err := s.client.drain(ctx, q, found.read)
		if err != nil {
			return fmt.Errorf("store %d: %w", i, err)
		}
		found.finish()
		if lengths[i] = got.bytes; i == 0 {
			first = found
		}
		if err := same(q, first, found); err != nil {
			return fmt.Errorf("store %d: %w", i, err)
		}
	}
	return nil
}

// measureStore measures the CPU of all processes of a store, and records it in the named rows.
func (b *bench) measureStore(ctx context.Context, round int, s store, length int64, rows []string) error {
	var last responseStats
	var total float64
	work := func() (err error) {
		for range repeats {
			if last, err = s.client.drain(ctx, recentSeries, nil); err != nil {
				return err
			}
			if last.bytes != length {
				return fmt.Errorf("%w: %d bytes, %d before", area.ErrUnequal, last.bytes, length)
			}
		}
		return nil
	}
	for _, server := range s.procs {
		inner := work
		work = func() error {
			cpu, err := server.CPUDuring(ctx, inner)
			total += cpu.Seconds() / repeats
			return err
		}
	}
	if err := work(); err != nil {
		return fmt.Errorf("%s: %w", s.name, err)
	}
	tape := &b.out.Recorder
	for _, row := range rows {
		what := row + recentSeries.what
		tape.Add(round, s.name, "CPU of "+what, area.Seconds, total)
		tape.Add(round, s.name, "last message of "+what, area.Seconds, last.elapsed.Seconds())
		tape.Add(round, s.name, "bytes of messages of "+what, area.Bytes, float64(last.bytes))
	}
	return nil
}

// storesMemory measures the growth of memory of stores that have just replayed their heads.
func (b *bench) storesMemory(ctx context.Context) error {
	for round := 1; round <= b.env.Rounds; round++ {
		if err := b.peerMemory(ctx, round); err != nil {
			return err
		}
		if err := b.serveMemory(ctx, round); err != nil {
			return err
		}
		b.env.Logf("round %d of %d: memory of stores with a head", round, b.env.Rounds)
	}
	return nil
}

// peerMemory is that of Prometheus and Thanos' sidecar.
func (b *bench) peerMemory(ctx context.Context, round int) (err error) {
	if b.prometheus, err = b.serve(ctx, b.program, prometheusHead, receiveFlag); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.prometheus.Stop()) }()
	s := &b.sides[0]
	if err := b.start(ctx, s); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	return b.storeMemory(ctx, round, b.behind(s))
}

func (b *bench) serveMemory(ctx context.Context, round int) (err error) {
	own, stop, err := b.startServe(ctx)
	if err != nil || own.client == nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	return b.storeMemory(ctx, round, own)
}

// storeMemory records the sum of the growths of the processes of a store during its first request, and checks that the second
// response has every sample. The first one is not decoded meanwhile, so that the client is fast.
func (b *bench) storeMemory(ctx context.Context, round int, s store) error {
	q := recentSeries
	var first responseStats
	work := func() (err error) {
		first, err = s.client.drain(ctx, q, nil)
		return err
	}
	var total int64
	for _, server := range s.procs {
		inner := work
		work = func() error {
			grown, err := server.GrowthDuring(ctx, inner)
			total += grown.Bytes()
			return err
		}
	}
	if err := work(); err != nil {
		return fmt.Errorf("%s: %w", s.name, err)
	}
	found := contents{samplesOf: &q}
	second, err := s.client.drain(ctx, q, found.read)
	if err != nil {
		return fmt.Errorf("%s: %w", s.name, err)
	}
	found.finish()
	if err := same(q, found, found); err != nil {
		return fmt.Errorf("%s: %w", s.name, err)
	}
	if first.bytes != second.bytes {
		return fmt.Errorf("%s: %w: %d bytes, then %d", s.name, area.ErrUnequal, first.bytes, second.bytes)
	}
	b.out.Recorder.Add(round, s.name, growth+storeName+q.what, area.Bytes, float64(total))
	return nil
}
