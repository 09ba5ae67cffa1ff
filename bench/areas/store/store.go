// Package store measures the cost of reading blocks in a bucket: goals store/*.
//
// Thanos' and ferula's store gateways run as processes over one directory with the same flags. One client requests the
// same series from them in turn. Before the measurement both responses are decoded and must be equal: labels, order,
// chunks. Requests to the bucket and fetched bytes are read from metrics of the client library that both gateways use.
package store

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/prometheus/prometheus/model/labels"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/ferula-io/ferula/bench/area"
	"github.com/ferula-io/ferula/bench/blocks"
	"github.com/ferula-io/ferula/bench/peer"
	"github.com/ferula-io/ferula/bench/proc"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

// Area is the entry of this area in the list of cmd/bench.
var Area = area.Area{Name: "store", About: "blocks in a bucket as a StoreAPI: store gateways of Thanos and ferula, as processes", Run: run}

const (
	series   = 10_000
	hours    = 8
	stepMS   = 15_000
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

var spec = blocks.Spec{
	Metric: "bench_metric", Values: blocks.Floats15, Series: series, Samples: hours * 3600_000 / stepMS,
	StepMS: stepMS, StartMS: blocks.QuietStartMS, Seed: 1,
}

// smallSpec is the block that is served 10,000 times.
var smallSpec = blocks.Spec{
	Metric: "bench_metric", Values: blocks.Floats15, Series: 100, Samples: 480, StepMS: stepMS, StartMS: blocks.QuietStartMS, Seed: 1,
}

// side is one of the two gateways. server is nil while none runs.
type side struct {
	name    string
	program peer.Program
	dir     string
	server  *proc.Server
	conn    *grpc.ClientConn
	client  *storeapi.Client
}

type bench struct {
	env   area.Env
	sides [2]side
	out   *area.Outcome
}

func run(ctx context.Context, env area.Env) (*area.Outcome, error) {
	b := &bench{env: env, out: &area.Outcome{Sides: []string{"Thanos", "ferula"}}}
	env.Logf("blocks: %d series x %d samples", spec.Series, spec.Samples)
	from, err := blocks.Ensure(ctx, env.Cache, spec)
	if err != nil {
		return nil, err
	}
	thanos, err := env.Programs.Get(ctx, peer.Thanos)
	if err != nil {
		return nil, err
	}
	ferula, err := env.Programs.Ferula(ctx, peer.Thanos)
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(env.Cache, "run", "store")
	for i, program := range []peer.Program{thanos, ferula} {
		b.sides[i] = side{name: b.out.Sides[i], program: program, dir: filepath.Join(dir, b.out.Sides[i])}
		b.out.Versions = append(b.out.Versions, program.Version)
	}
	bucket, large := filepath.Join(dir, "bucket"), filepath.Join(dir, "large")
	if err := makeBucket(from, bucket, 1); err != nil {
		return nil, err
	}
	for round := 1; round <= env.Rounds; round++ {
		if err := b.series(ctx, round, bucket); err != nil {
			return nil, err
		}
	}
	small, err := blocks.Ensure(ctx, env.Cache, smallSpec)
	if err != nil {
		return nil, err
	}
	if err := makeBucket(small, large, many); err != nil {
		return nil, err
	}
	defer os.RemoveAll(large) // the next run creates it again
	for i := range b.sides {
		if err := b.start(ctx, &b.sides[i], large); err != nil { // fills the data directory for later starts
			return nil, err
		}
		if err := b.sides[i].stop(); err != nil {
			return nil, err
		}
	}
	for round := 1; round <= env.Rounds; round++ {
		for i := range b.sides {
			if err := b.many(ctx, round, &b.sides[i], large); err != nil {
				return nil, err
			}
		}
	}
	b.conclude()
	return b.out, nil
}

// makeBucket creates the directory of a bucket from blocks. It contains each block once, with the section that shippers
// add to meta.json, or the first block n times, as links to the same files.
func makeBucket(from, to string, n int) error {
	if err := os.RemoveAll(to); err != nil {
		return err
	}
	metas, err := filepath.Glob(filepath.Join(from, "*", "meta.json"))
	if err != nil || len(metas) == 0 {
		return errors.Join(err, area.ErrEmpty)
	}
	if n > 1 {
		metas = metas[:1]
	}
	for _, file := range metas {
		block := filepath.Dir(file)
		for i := range n {
			id := filepath.Base(block)
			if n > 1 {
				made, err := ulid.New(uint64(1_700_000_000_000+i), rand.Reader)
				if err != nil {
					return err
				}
				id = made.String()
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

// start runs a gateway. Both programs take the same flags.
func (b *bench) start(ctx context.Context, s *side, bucket string) error {
	address, err := peer.FreeAddress()
	data := filepath.Join(s.dir, "data")
	if err := errors.Join(err, os.MkdirAll(data, 0o755)); err != nil {
		return err
	}
	s.server, err = proc.Start(ctx, s.program.Store(peer.Store{Bucket: bucket, Data: data, GRPC: address, Log: filepath.Join(s.dir, "log")}))
	if err != nil {
		return err
	}
	if s.conn, err = grpc.NewClient(address, append(storeapi.GRPCDialOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()))...); err != nil {
		return errors.Join(err, s.stop())
	}
	s.client = storeapi.NewClient(s.conn, storeapi.ClientOptions{NoExtension: true})
	return nil
}

func (s *side) stop() error {
	server, conn := s.server, s.conn
	s.server, s.conn = nil, nil
	var err error
	if conn != nil {
		err = conn.Close()
	}
	return errors.Join(err, server.Stop())
}

// contents is a response, independent of its division into messages.
type contents struct {
	series, chunks int
	sum            [sha256.Size]byte
}

// request reads all series. It computes the digest if digest is true.
func (s *side) request(ctx context.Context, digest bool) (c contents, err error) {
	set := s.client.Series(ctx, storeapi.SeriesRequest{
		MinMS: blocks.QuietStartMS, MaxMS: spec.EndMS(), Matchers: []*labels.Matcher{labels.MustNewMatcher(labels.MatchEqual, "__name__", spec.Metric)}, AbortOnPartial: true,
	})
	defer set.Close()
	hash := sha256.New()
	for set.Next() {
		c.series++
		c.chunks += len(set.Chunks())
		if digest {
			hash.Write(set.Labels())
			for _, chunk := range set.Chunks() {
				fmt.Fprintln(hash, chunk.MinMS, chunk.MaxMS, chunk.Encoding, len(chunk.Data))
				hash.Write(chunk.Data)
			}
		}
	}
	copy(c.sum[:], hash.Sum(nil))
	return c, set.Err()
}

// series takes the readings of one round that need a new process and an empty directory.
func (b *bench) series(ctx context.Context, round int, bucket string) error {
	var found [2]contents
	for i := range b.sides {
		var err error
		if found[i], err = b.fresh(ctx, round, &b.sides[i], bucket); err != nil {
			return fmt.Errorf("%s: %w", b.sides[i].name, err)
		}
	}
	if found[0].series != series || found[0].chunks < series*hours {
		return fmt.Errorf("%s: %w: %d series, %d chunks", what, area.ErrEmpty, found[0].series, found[0].chunks)
	}
	if found[0] != found[1] {
		return fmt.Errorf("%s: %w: %d series and %d chunks, %d and %d", what, area.ErrUnequal, found[0].series, found[0].chunks, found[1].series, found[1].chunks)
	}
	for _, kind := range []string{coldCPU, warmCPU, peakAnon, coldReqs, coldBytes} {
		b.env.Logf("round %d: %s: %v and %v", round, kind, b.out.Recorder.Median("Thanos", kind), b.out.Recorder.Median("ferula", kind))
	}
	return nil
}

func (b *bench) fresh(ctx context.Context, round int, s *side, bucket string) (c contents, err error) {
	if err := os.RemoveAll(s.dir); err != nil {
		return c, err
	}
	if err := b.start(ctx, s, bucket); err != nil {
		return c, err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	tape := &b.out.Recorder
	growth, err := s.server.GrowthDuring(ctx, func() error {
		begun := time.Now()
		cpu, err := s.server.CPUDuring(ctx, func() error { _, err := s.request(ctx, false); return err })
		if err != nil {
			return err
		}
		tape.Add(round, s.name, coldCPU, area.Seconds, cpu.Seconds())
		tape.Add(round, s.name, coldWall, area.Seconds, time.Since(begun).Seconds())
		after, err := s.fetched(ctx)
		if err != nil {
			return err
		}
		tape.Add(round, s.name, coldReqs, area.Count, after.requests)
		tape.Add(round, s.name, coldBytes, area.Bytes, after.bytes)
		cpu, err = s.server.CPUDuring(ctx, func() error {
			for range requests - 1 {
				if _, err := s.request(ctx, false); err != nil {
					return err
				}
			}
			return nil
		})
		tape.Add(round, s.name, warmCPU, area.Seconds, cpu.Seconds()/(requests-1))
		return err
	})
	if err != nil {
		return c, err
	}
	tape.Add(round, s.name, peakAnon, area.Bytes, float64(growth.Peak))
	return s.request(ctx, true)
}

// fetched has the number of requests of a process to the bucket since its start, and the fetched bytes.
type fetched struct{ requests, bytes float64 }

func (s *side) fetched(ctx context.Context) (f fetched, err error) {
	client := proc.NewClient(s.server.URL())
	defer client.Close()
	page, _, err := client.Fetch(ctx, proc.Request{Path: "/metrics"})
	if err != nil {
		return f, err
	}
	lines := bufio.NewScanner(bytes.NewReader(page))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		at := strings.LastIndexByte(lines.Text(), ' ') // the name of the bucket has a space
		name, value := lines.Text()[:max(at, 0)], lines.Text()[at+1:]
		if !strings.HasPrefix(name, "thanos_objstore_bucket_operation") {
			continue
		}
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			continue
		}
		switch {
		case strings.HasPrefix(name, "thanos_objstore_bucket_operations_total"):
			f.requests += v
		case strings.HasPrefix(name, "thanos_objstore_bucket_operation_fetched_bytes_total"):
			f.bytes += v
		}
	}
	return f, lines.Err()
}

// many measures the start of a gateway over a bucket with many blocks.
func (b *bench) many(ctx context.Context, round int, s *side, bucket string) (err error) {
	begun := time.Now()
	if err := b.start(ctx, s, bucket); err != nil {
		return err
	}
	defer func() {
		if stopped := s.stop(); stopped != nil && s.name != "ferula" {
			b.env.Logf("%s: %v", s.name, stopped) // Thanos panics if it stops while it lists many blocks
		} else {
			err = errors.Join(err, stopped)
		}
	}()
	b.out.Recorder.Add(round, s.name, startMany, area.Seconds, time.Since(begun).Seconds())
	anon, err := s.server.GrowthDuring(ctx, func() error { return nil })
	b.out.Recorder.Add(round, s.name, idleMany, area.Bytes, float64(anon.Idle))
	return err
}

// conclude computes the figures of the goals.
func (b *bench) conclude() {
	tape, out := &b.out.Recorder, b.out
	for goal, kind := range map[string]string{"series-cpu": coldCPU, "warm-cpu": warmCPU, "anon": peakAnon, "requests": coldReqs, "bytes": coldBytes, "start-10k": startMany} {
		out.Measure("store/"+goal, tape.Over("ferula", "Thanos", kind), kind)
	}
	out.Measure("store/idle-10k-mib", tape.Median("ferula", idleMany)/(1<<20), idleMany)
	if math.IsNaN(out.Figure("store/bytes")) {
		out.Notes = append(out.Notes, "One of the programs has no metric of the bytes that it fetched.")
	}
	out.Notes = append(out.Notes,
		fmt.Sprintf("%d series x %d h of 15-digit floats every 15 s in four blocks of 2 h in a folder. Cold: the first request of a new process with an empty data folder. Warm: the mean of the nine after it.", series, hours),
		"Requests and bytes are those from the start of the process to the end of the first request, from the metrics thanos_objstore_bucket_* of both.",
		"10,000 blocks of 100 series are links to the files of one, with a meta.json each; the data folder is that of an earlier start.",
	)
}
