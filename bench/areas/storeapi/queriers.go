package storeapi

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/ferula-io/ferula/bench/area"
	"github.com/ferula-io/ferula/bench/blocks"
	"github.com/ferula-io/ferula/bench/peer"
	"github.com/ferula-io/ferula/bench/proc"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

// The data and queries for queriers. The blocks of 8 h and the steps are those of area api.
var (
	querySpec = blocks.Spec{
		Metric: "bench_metric", Values: blocks.Floats15, Series: 10_000, Samples: 8 * 3600 / 15, StepMS: 15_000, StartMS: blocks.QuietStartMS, Seed: 1,
	}
	hopSpec = blocks.Spec{
		Metric: "bench_metric", Values: blocks.Floats15, Series: 100_000, Samples: 120, StepMS: 15_000, StartMS: blocks.QuietStartMS, Seed: 1,
	}
	queryExprs = []struct{ what, expr string }{
		{"sum by (namespace), 8 h", "sum by (namespace) (bench_metric)"},
		{"max by (namespace) of avg_over_time[5m], 8 h", "max by (namespace) (avg_over_time(bench_metric[5m]))"},
	}
)

const (
	queryPoints        = 161
	queryStepMS        = 180_000
	queryFromMS        = blocks.QuietStartMS + 60_000
	requestsPerReading = 3 // consecutive requests for one reading
	hopWhat            = "200,000 series of 120 samples of two stores, merged and forwarded"
	querierPrefix      = "CPU of the querier: "
)

// querier is one of the two querier processes.
type querier struct {
	name    string
	address string // of its StoreAPI
	server  *proc.Server
	conn    *grpc.ClientConn
	client  *storeapi.Client
}

// queriers measures the cost of PromQL queries and of merged Series streams in the querier process.
func (b *bench) queriers(ctx context.Context) error {
	if err := b.queries(ctx); err != nil {
		return fmt.Errorf("query: %w", err)
	}
	if err := b.hop(ctx); err != nil {
		return fmt.Errorf("hop2: %w", err)
	}
	b.out.Notes = append(b.out.Notes,
		"Queriers are processes between a client and ferula serve as the store; only their own CPU is counted. Thanos query runs its default, the Prometheus engine. 161 steps of 3 min over 10,000 series x 8 h of 15-digit floats every 15 s: most of the CPU is the engine. For the first query ferula's querier sends its steps, and the store leaves out the samples between them, at the cost of the store, whose CPU is not counted here; Thanos query gets whole chunks. The second query needs all samples.",
		"Hop: a client requests batches of 64, as Thanos does, and receives every series; both stores have the same series with different replica labels, so that the series of the two alternate.",
	)
	return nil
}

// runQueriers starts Thanos query and ferula query over the same stores.
func (b *bench) runQueriers(ctx context.Context, stores []string) (both [2]querier, stop func() error, err error) {
	stop = func() error {
		var errs []error
		for _, q := range both {
			if q.conn != nil {
				errs = append(errs, q.conn.Close())
			}
			if q.server != nil {
				errs = append(errs, q.server.Stop())
			}
		}
		return errors.Join(errs...)
	}
	theirs, err := b.env.Programs.Get(ctx, peer.Thanos)
	if err != nil {
		return both, stop, err
	}
	ours, err := b.env.Programs.Ferula(ctx, peer.Thanos)
	if err != nil {
		return both, stop, err
	}
	for i, p := range []peer.Program{theirs, ours} {
		q := &both[i]
		q.name = []string{thanos, ferula}[i]
		address, err := freeAddress()
		if err != nil {
			return both, stop, err
		}
		q.address = address
		q.server, err = proc.Start(ctx, proc.Spec{
			Name: p.Name + "-query", Path: p.Path, Env: peer.RuntimeEnv(), Ready: "/-/ready", Log: filepath.Join(b.env.Cache, "run", "querier", p.Name+".log"),
			Args: func(http string) []string {
				args := []string{"query", "--http-address=" + http, "--grpc-address=" + address}
				for _, store := range stores {
					args = append(args, "--endpoint="+store)
				}
				return args
			},
		})
		if err != nil {
			return both, stop, err
		}
		if q.conn, err = grpc.NewClient(address, append(storeapi.GRPCDialOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()))...); err != nil {
			return both, stop, err
		}
		q.client = storeapi.NewClient(q.conn, storeapi.ClientOptions{NoExtension: true, BatchSeries: thanosBatch})
		if err := q.waitForStores(ctx, stores); err != nil {
			return both, stop, err
		}
		b.out.Versions = append(b.out.Versions, p.Version)
	}
	return both, stop, nil
}

func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// waitForStores waits until a querier has discovered all of its stores.
func (q *querier) waitForStores(ctx context.Context, stores []string) error {
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		body, _, err := q.server.Fetch(ctx, proc.Request{Path: "/api/v1/stores"})
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(stores, func(s string) bool { return !strings.Contains(string(body), s) }) {
			return nil
		}
	}
	return fmt.Errorf("%s has not discovered its stores", q.name)
}

// runStore starts ferula serve as a store over a copy of blocks, with further flags.
func (b *bench) runStore(ctx context.Context, from, name, config string, flags ...string) (server *proc.Server, address string, err error) {
	p, err := b.env.Programs.Get(ctx, peer.Ferula)
	if err != nil {
		return nil, "", err
	}
	dir := filepath.Join(b.env.Cache, "run", "querier", name)
	if err := blocks.Copy(from, filepath.Join(dir, "data")); err != nil {
		return nil, "", err
	}
	file := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(file, []byte(config), 0o644); err != nil {
		return nil, "", err
	}
	if address, err = freeAddress(); err != nil {
		return nil, "", err
	}
	spec := p.Serve(peer.TSDB{Dir: filepath.Join(dir, "data"), Config: file, Log: filepath.Join(dir, "log"), More: flags})
	args := spec.Args
	spec.Args = func(http string) []string { return append(args(http), "--grpc-address="+address) }
	server, err = proc.Start(ctx, spec)
	return server, address, err
}

// queries sends PromQL queries to both queriers.
func (b *bench) queries(ctx context.Context) (err error) {
	from, err := blocks.Ensure(ctx, b.env.Cache, querySpec)
	if err != nil {
		return err
	}
	store, address, err := b.runStore(ctx, from, "one", "scrape_configs: []\n")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Stop()) }()
	both, stop, err := b.runQueriers(ctx, []string{address})
	defer func() { err = errors.Join(err, stop()) }()
	if err != nil {
		return err
	}
	for _, e := range queryExprs {
		var results [2]string
		for i := range both {
			body, _, err := both[i].server.Fetch(ctx, queryRequest(e.expr))
			if err != nil {
				return fmt.Errorf("%s: %w", both[i].name, err)
			}
			if results[i], err = normalizedResult(body); err != nil {
				return fmt.Errorf("%s: %w: %.300s", both[i].name, err, body)
			}
		}
		if results[0] != results[1] {
			return fmt.Errorf("%s: %w: %.300s\n%.300s", e.what, area.ErrUnequal, results[0], results[1])
		}
	}
	b.env.Logf("responses of the queriers are equal")
	for round := 1; round <= b.env.Rounds; round++ {
		for _, e := range queryExprs {
			for i := range both {
				q := &both[i]
				cpu, err := q.server.CPUDuring(ctx, func() error {
					for range requestsPerReading {
						if _, _, err := q.server.Fetch(ctx, queryRequest(e.expr)); err != nil {
							return err
						}
					}
					return nil
				})
				if err != nil {
					return fmt.Errorf("%s: %w", q.name, err)
				}
				b.out.Recorder.Add(round, q.name, querierPrefix+e.what, area.Seconds, cpu.Seconds()/requestsPerReading)
			}
		}
		b.env.Logf("queriers, round %d of %d", round, b.env.Rounds)
	}
	what := querierPrefix + queryExprs[0].what
	b.out.Measure("storeapi/query", b.out.Recorder.Over(ferula, thanos, what), what)
	return nil
}

func queryRequest(expr string) proc.Request {
	seconds := func(ms int64) string { return strconv.FormatFloat(float64(ms)/1000, 'f', -1, 64) }
	return proc.Request{Path: "/api/v1/query_range", Query: url.Values{
		"query": {expr}, "start": {seconds(queryFromMS)}, "end": {seconds(queryFromMS + (queryPoints-1)*queryStepMS)}, "step": {seconds(queryStepMS)},
	}}
}

// normalizedResult returns the data of a response as text, with sorted series. Values are rounded to 12 digits, because the
// engine in Thanos is of an older release, which adds in another order.
func normalizedResult(body []byte) (string, error) {
	var response struct {
		Data struct {
			Result []struct {
				Metric map[string]string
				Values [][2]any
			}
		}
	}
	if err := json.Unmarshal(body, &response); err != nil {
		return "", err
	}
	if len(response.Data.Result) < 2 {
		return "", area.ErrEmpty
	}
	var lines []string
	for _, s := range response.Data.Result {
		if len(s.Values) != queryPoints {
			return "", fmt.Errorf("%d points: %w", len(s.Values), area.ErrEmpty)
		}
		line := fmt.Sprint(s.Metric)
		for _, v := range s.Values {
			f, err := strconv.ParseFloat(fmt.Sprint(v[1]), 64)
			if err != nil {
				return "", err
			}
			line += fmt.Sprintf(" %v:%.12g", v[0], f)
		}
		lines = append(lines, line)
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n"), nil
}

// hop measures both queriers while they forward the merged series of two stores.
func (b *bench) hop(ctx context.Context) (err error) {
	from, err := blocks.Ensure(ctx, b.env.Cache, hopSpec)
	if err != nil {
		return err
	}
	var stores []string
	for _, name := range []string{"a", "b"} {
		server, address, err := b.runStore(ctx, from, name, "global: {external_labels: {replica: "+name+"}}\nscrape_configs: []\n")
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, server.Stop()) }()
		stores = append(stores, address)
	}
	both, stop, err := b.runQueriers(ctx, stores)
	defer func() { err = errors.Join(err, stop()) }()
	if err != nil {
		return err
	}
	var found [2]received
	for i := range both {
		if found[i], err = both[i].receive(ctx, true); err != nil {
			return fmt.Errorf("%s: %w", both[i].name, err)
		}
	}
	if found[0] != found[1] || found[0].series != 2*hopSpec.Series {
		return fmt.Errorf("%w: %d series, %d chunks; %d and %d", area.ErrUnequal, found[0].series, found[0].chunks, found[1].series, found[1].chunks)
	}
	b.env.Logf("merged streams are equal: %d series, %d chunks", found[0].series, found[0].chunks)
	what := querierPrefix + hopWhat
	for round := 1; round <= b.env.Rounds; round++ {
		for i := range both {
			q := &both[i]
			cpu, err := q.server.CPUDuring(ctx, func() error {
				for range requestsPerReading {
					got, err := q.receive(ctx, false)
					if err == nil && (got.series != found[0].series || got.chunks != found[0].chunks) {
						err = area.ErrUnequal
					}
					if err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				return fmt.Errorf("%s: %w", q.name, err)
			}
			b.out.Recorder.Add(round, q.name, what, area.Seconds, cpu.Seconds()/requestsPerReading)
		}
		b.env.Logf("hop, round %d of %d", round, b.env.Rounds)
	}
	b.out.Measure("storeapi/hop2", b.out.Recorder.Over(ferula, thanos, what), what)
	return nil
}

// received is the digest of a stream.
type received struct {
	series, chunks int
	sum            [sha256.Size]byte
}

// receive requests all series. With look it also hashes them.
func (q *querier) receive(ctx context.Context, look bool) (r received, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	set := q.client.Series(ctx, storeapi.SeriesRequest{
		MinMS: hopSpec.StartMS, MaxMS: hopSpec.EndMS(), Matchers: []*labels.Matcher{labels.MustNewMatcher(labels.MatchEqual, "__name__", hopSpec.Metric)},
	})
	defer set.Close()
	hash := sha256.New()
	for set.Next() {
		r.series++
		r.chunks += len(set.Chunks())
		if !look {
			continue
		}
		hash.Write(set.Labels())
		for _, c := range set.Chunks() {
			fmt.Fprint(hash, c.MinMS, c.MaxMS, c.Encoding)
			hash.Write(c.Data)
		}
	}
	r.sum = [sha256.Size]byte(hash.Sum(nil))
	return r, set.Err()
}
