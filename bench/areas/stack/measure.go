package stack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/ferula-io/ferula/bench/area"
	"github.com/ferula-io/ferula/bench/peer"
	"github.com/ferula-io/ferula/bench/proc"
)

const (
	clientsMax       = 16
	queriesPerClient = 2 // small queries per client
)

// start runs the components, those nearest to the blocks first. Both programs have the same flags.
func (b *bench) start(ctx context.Context, l layout, s *stack) error {
	var addresses [parts]string
	for part := range addresses {
		var err error
		if addresses[part], err = peer.FreeAddress(); err != nil {
			return err
		}
	}
	endpoints := []string{addresses[sidecar]}
	if l.bucket != "" {
		endpoints = append(endpoints, addresses[store])
	}
	for part := parts - 1; part >= 0; part-- {
		if part == store && l.bucket == "" {
			continue
		}
		program := b.thanos
		if s.ferula[part] {
			program = b.ferula
		}
		dir := filepath.Join(b.dir, s.name)
		log := filepath.Join(dir, partNames[part]+".log")
		var spec proc.Spec
		switch part {
		case store:
			spec = program.Store(peer.Store{Bucket: l.bucket, Data: filepath.Join(dir, "store-data"), GRPC: addresses[store], Log: log})
		case sidecar:
			spec = program.Sidecar(peer.Sidecar{Prometheus: b.server.URL(), TSDB: b.data, GRPC: addresses[sidecar], Log: log})
		case querier:
			spec = program.Query(peer.Query{Endpoints: endpoints, GRPC: addresses[querier], Log: log})
		default:
			spec = program.Frontend(peer.Frontend{Downstream: s.servers[querier].URL(), Interval: "24h", Log: log})
		}
		var err error
		if s.servers[part], err = proc.Start(ctx, spec); err != nil {
			return err
		}
	}
	return nil
}

func (s *stack) stop() error {
	var errs []error
	for i, server := range s.servers {
		if server != nil {
			errs = append(errs, server.Stop())
			s.servers[i] = nil
		}
	}
	return errors.Join(errs...)
}

// measure takes one reading of everything of one stack, from new processes.
func (b *bench) measure(ctx context.Context, round int, l layout, s *stack) (err error) {
	defer func() { err = errors.Join(err, s.stop()) }()
	if err := b.start(ctx, l, s); err != nil {
		return err
	}
	if err := b.waitForStores(ctx, s); err != nil {
		return err
	}
	if err := b.peaks(ctx, round, l, s); err != nil {
		return err
	}
	for _, q := range queries() {
		if err := b.compare(ctx, s.servers[frontend], q); err != nil {
			return err
		}
	}
	for _, q := range []rangeQuery{whole, sums} {
		if err := b.costs(ctx, round, l, s, q); err != nil {
			return err
		}
	}
	for _, clients := range []int{1, 4, clientsMax} {
		if err := b.latency(ctx, round, l, s, clients); err != nil {
			return err
		}
	}
	return nil
}

// waitForStores waits until the querier has discovered all its stores: until a small response is equal.
func (b *bench) waitForStores(ctx context.Context, s *stack) error {
	var err error
	for range 100 {
		if err = b.compare(ctx, s.servers[querier], few); err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
	}
	return fmt.Errorf("the querier has not discovered its stores: %w", err)
}

// query sends a query to the frontend.
func (s *stack) query(ctx context.Context, q rangeQuery) (proc.Response, error) {
	a, err := s.servers[frontend].Get(ctx, q.request(), io.Discard)
	if err == nil && a.Bytes < int64(q.series)*points {
		err = fmt.Errorf("%s: %w: %d bytes", q.what, area.ErrEmpty, a.Bytes)
	}
	return a, err
}

// peaks measures the memory of all components during the first large query.
func (b *bench) peaks(ctx context.Context, round int, l layout, s *stack) error {
	work := func() error { _, err := s.query(ctx, whole); return err }
	var total int64
	for part, server := range s.servers {
		if server == nil {
			continue
		}
		below := work
		work = func() error {
			g, err := server.GrowthDuring(ctx, below)
			b.out.Recorder.Add(round, s.name, l.prefix+"peak RssAnon: "+partNames[part], area.Bytes, float64(g.Peak))
			total += g.Peak
			return err
		}
	}
	if err := work(); err != nil {
		return err
	}
	b.out.Recorder.Add(round, s.name, l.prefix+peakOfAll, area.Bytes, float64(total))
	return nil
}

// costs measures the CPU of each component and of Prometheus for one query, and the bytes that each writes.
func (b *bench) costs(ctx context.Context, round int, l layout, s *stack, q rangeQuery) error {
	type part struct {
		name   string
		server *proc.Server
	}
	all := []part{{"Prometheus", b.server}}
	for i, server := range slices.Backward(s.servers[:]) {
		if server != nil {
			all = append(all, part{partNames[i], server})
		}
	}
	var total time.Duration
	tape := &b.out.Recorder
	work := func() error { _, err := s.query(ctx, q); return err }
	for _, p := range all {
		below := work
		work = func() error {
			before, err := p.server.IO()
			if err != nil {
				return err
			}
			var wrote proc.IO
			cpu, err := p.server.CPUDuring(ctx, func() error {
				err := below()
				after, ioErr := p.server.IO()
				wrote = after.Sub(before)
				return errors.Join(err, ioErr)
			})
			tape.Add(round, s.name, l.prefix+"CPU: "+q.what+": "+p.name, area.Seconds, cpu.Seconds())
			tape.Add(round, s.name, l.prefix+"bytes written: "+q.what+": "+p.name, area.Bytes, float64(wrote.WriteBytes))
			if p.server != b.server {
				total += cpu
			}
			return err
		}
	}
	if err := work(); err != nil {
		return err
	}
	tape.Add(round, s.name, l.prefix+cpuOfAll(q), area.Seconds, total.Seconds())
	return nil
}

// latency measures the duration of small queries with a number of concurrent clients.
func (b *bench) latency(ctx context.Context, round int, l layout, s *stack, clients int) error {
	var mu sync.Mutex
	var sum time.Duration
	var errs []error
	var wait sync.WaitGroup
	for range clients {
		wait.Go(func() {
			c := proc.NewClient(s.servers[frontend].URL())
			defer c.Close()
			for range queriesPerClient {
				a, err := c.Get(ctx, few.request(), io.Discard)
				if err == nil && a.Bytes < int64(few.series)*points {
					err = fmt.Errorf("%s: %w: %d bytes", few.what, area.ErrEmpty, a.Bytes)
				}
				mu.Lock()
				sum += a.Elapsed
				if err != nil {
					errs = append(errs, err)
				}
				mu.Unlock()
			}
		})
	}
	wait.Wait()
	if len(errs) > 0 {
		return errs[0]
	}
	b.out.Recorder.Add(round, s.name, l.prefix+latencyOf(clients), area.Seconds, sum.Seconds()/float64(clients*queriesPerClient))
	return nil
}
