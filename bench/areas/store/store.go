// Package store measures the cost of reading blocks in a bucket: goals store/*.
//
// Thanos' and ferula's store gateways run as processes over one directory with the same flags. One client requests the
// same series from them in turn. Before the measurement both responses are decoded and must be equal: labels, order,
// chunks. Requests to the bucket and fetched bytes are read from metrics of the client library that both gateways use.
package store

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/ferula-io/ferula/bench/area"
	"github.com/ferula-io/ferula/bench/blocks"
	"github.com/ferula-io/ferula/bench/peer"
	"github.com/ferula-io/ferula/bench/proc"
	"github.com/ferula-io/ferula/bench/stores"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

// Area is the entry of this area in the list of cmd/bench.
var Area = area.Area{
	Name: "store", About: "blocks in a bucket as a StoreAPI: store gateways of Thanos and ferula, as processes",
	Sides: []string{"Thanos", "ferula"}, Run: run,
}

const (
	requests = 10     // to one process; all but the first are warm
	many     = 10_000 // blocks of the start

	what      = "Series of 10,000 x 8 h in four blocks"
	coldCPU   = "CPU, cold: " + what
	warmCPU   = "CPU, warm: " + what
	coldWall  = "last message, cold: " + what
	peakAnon  = "peak of RssAnon over ten requests"
	coldReqs  = "requests to the bucket, cold"
	coldBytes = "bytes fetched, cold"
	startMany = "time to ready, 10,000 blocks, warm folder"
	idleMany  = "RssAnon, 10,000 blocks"
)

func spec() blocks.Spec { return area.Floats(8) }

// smallSpec is the block that is served 10,000 times.
func smallSpec() blocks.Spec {
	s := area.Floats(2)
	s.Series = 100
	return s
}

func run(ctx context.Context, b *area.Bench) error {
	sides, err := b.Pair(ctx, peer.Thanos)
	if err != nil {
		return err
	}
	bucket, large := filepath.Join(b.Dir, "bucket"), filepath.Join(b.Dir, "large")
	if err := makeBucket(ctx, b.Cache, spec(), bucket, 1); err != nil {
		return err
	}
	if err := b.EachRound("cold and warm", func(round int) error { return fresh(ctx, b, round, sides, bucket) }); err != nil {
		return err
	}
	defer os.RemoveAll(large) // the next run creates it again
	if err := makeBucket(ctx, b.Cache, smallSpec(), large, many); err != nil {
		return err
	}
	for _, s := range sides { // fills the data directory for later starts
		if err := b.With(ctx, over(large), func() error { return nil }, s); err != nil {
			return err
		}
	}
	if err := b.InTurn("start", sides, func(round int, s *area.Side) error { return starts(ctx, b, round, s, large) }); err != nil {
		return err
	}
	if err := year(ctx, b, sides[1]); err != nil {
		return err
	}
	conclude(b)
	return nil
}

// makeBucket creates the directory of a bucket from blocks. It contains each block once, with the section that shippers
// add to meta.json, or the first block n times, as links to the same files.
func makeBucket(ctx context.Context, cache string, spec blocks.Spec, to string, n int) error {
	from, err := blocks.Ensure(ctx, cache, spec)
	if err != nil {
		return err
	}
	list, err := blocks.List(from)
	if err := errors.Join(err, os.RemoveAll(to)); err != nil || len(list) == 0 {
		return errors.Join(err, area.ErrEmpty)
	}
	if n > 1 {
		list = list[:1]
	}
	for _, block := range list {
		for i := range n {
			id := filepath.Base(block)
			if n > 1 {
				id = ulid.MustNew(uint64(1_700_000_000_000+i), rand.Reader).String()
			}
			external := map[string]string{"prometheus": "bench", "replica": "a"} // no series has labels of these names
			if i > 0 {
				external["number"] = strconv.Itoa(i % 100)
			}
			if err := blocks.LinkToBucket(block, to, id, external); err != nil {
				return err
			}
		}
	}
	return nil
}

// over launches a gateway over a bucket. Both programs take the same flags.
func over(bucket string) area.Launch {
	launch := area.AtGRPC(func(s *area.Side) proc.Spec { return s.Program.Store(s.Log(), s.GRPC, bucket, s.TSDBDir()) })
	return func(s *area.Side) (proc.Spec, error) {
		if err := os.MkdirAll(s.TSDBDir(), 0o755); err != nil {
			return proc.Spec{}, err
		}
		return launch(s)
	}
}

func request() storeapi.SeriesRequest {
	return stores.Request(spec().Metric, spec().StartMS, spec().EndMS())
}

// fresh takes the readings of one round that need a new process and an empty directory, and compares the responses.
func fresh(ctx context.Context, b *area.Bench, round int, sides []*area.Side, bucket string) error {
	clients := make([]*stores.Client, len(sides))
	for _, s := range sides {
		if err := os.RemoveAll(s.Dir); err != nil {
			return err
		}
	}
	return b.With(ctx, over(bucket), func() (err error) {
		for i, s := range sides {
			if clients[i], err = stores.Dial(s.GRPC, storeapi.ClientOptions{NoExtension: true}); err != nil {
				return err
			}
			defer func() { err = errors.Join(err, clients[i].Close()) }()
			if err := measure(ctx, b, round, s, clients[i]); err != nil {
				return fmt.Errorf("%s: %w", s.Name, err)
			}
		}
		found, _, err := stores.Compare(ctx, request(), false, clients...)
		if err == nil && (found[0].Series != spec().Series || found[0].Chunks < spec().Series*8) {
			err = fmt.Errorf("%s: %w: %d series, %d chunks", what, area.ErrEmpty, found[0].Series, found[0].Chunks)
		}
		return err
	}, sides...)
}

func measure(ctx context.Context, b *area.Bench, round int, s *area.Side, c *stores.Client) error {
	send := func(n int) (time.Duration, error) {
		return s.CPUDuring(ctx, func() error {
			for range n {
				if _, err := c.Receive(ctx, request(), nil); err != nil {
					return err
				}
			}
			return nil
		})
	}
	growth, err := s.GrowthDuring(ctx, func() error {
		begun := time.Now()
		cpu, err := send(1)
		if err != nil {
			return err
		}
		b.Add(round, s.Name, coldCPU, area.Seconds, cpu.Seconds())
		b.Add(round, s.Name, coldWall, area.Seconds, time.Since(begun).Seconds())
		reqs, bytes, err := fetched(ctx, s)
		if err != nil {
			return err
		}
		b.Add(round, s.Name, coldReqs, area.Count, reqs)
		b.Add(round, s.Name, coldBytes, area.Bytes, bytes)
		cpu, err = send(requests - 1)
		b.Add(round, s.Name, warmCPU, area.Seconds, cpu.Seconds()/(requests-1))
		return err
	})
	b.Add(round, s.Name, peakAnon, area.Bytes, float64(growth.Peak))
	return err
}

// fetched returns the number of requests of a process to the bucket since its start, and the fetched bytes.
func fetched(ctx context.Context, s *area.Side) (requests, bytes float64, err error) {
	page, _, err := s.Fetch(ctx, proc.Request{Path: "/metrics"})
	for line := range strings.Lines(string(page)) {
		at := strings.LastIndexByte(line, ' ') // the name of the bucket has a space
		name, value := line[:max(at, 0)], strings.TrimSpace(line[at+1:])
		v, err := strconv.ParseFloat(value, 64)
		switch {
		case err != nil:
		case strings.HasPrefix(name, "thanos_objstore_bucket_operations_total"):
			requests += v
		case strings.HasPrefix(name, "thanos_objstore_bucket_operation_fetched_bytes_total"):
			bytes += v
		}
	}
	return requests, bytes, err
}

// starts measures the start of a gateway over a bucket with many blocks.
func starts(ctx context.Context, b *area.Bench, round int, s *area.Side, bucket string) (err error) {
	begun := time.Now()
	if err := s.Start(ctx, over(bucket)); err != nil {
		return err
	}
	defer func() {
		stopped := s.Stop()
		if stopped != nil && s.Name != "ferula" {
			b.Logf("%s: %v", s.Name, stopped) // Thanos panics if it stops while it lists many blocks
			stopped = nil
		}
		err = errors.Join(err, stopped)
	}()
	b.Add(round, s.Name, startMany, area.Seconds, time.Since(begun).Seconds())
	anon, err := s.GrowthDuring(ctx, func() error { return nil })
	b.Add(round, s.Name, idleMany, area.Bytes, float64(anon.Idle))
	return err
}

// conclude computes the figures of the goals.
func conclude(b *area.Bench) {
	for goal, kind := range map[string]string{
		"series-cpu": coldCPU, "warm-cpu": warmCPU, "anon": peakAnon, "requests": coldReqs, "bytes": coldBytes, "start-10k": startMany,
	} {
		b.Ratio("store/"+goal, kind)
	}
	b.Own("store/idle-10k-mib", area.MiB, idleMany)
	if math.IsNaN(b.Figure("store/bytes")) {
		b.Note("One of the programs has no metric of the bytes that it fetched.")
	}
	worst, of := yearRatio(b)
	b.Measure("store/year-bytes", worst, of...)
	b.Note(
		fmt.Sprintf("Long ranges: %d counters x 28 d every 15 s in two blocks that were compacted from 2 h each; at a step of 6 h, windows of the step and of $__rate_interval. The worse ratio counts. Answers with and without summaries are equal, byte by byte.", yearSpec().Series),
		fmt.Sprintf("%d series x 8 h of 15-digit floats every 15 s in four blocks of 2 h in a folder. Cold: the first request of a new process with an empty data folder. Warm: the mean of the nine after it.", spec().Series),
		"Requests and bytes are those from the start of the process to the end of the first request, from the metrics thanos_objstore_bucket_* of both.",
		"10,000 blocks of 100 series are links to the files of one, with a meta.json each; the data folder is that of an earlier start.",
	)
}
