package columns_test

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/storage"
	"github.com/thanos-io/objstore"
	"github.com/thanos-io/objstore/providers/filesystem"
	"google.golang.org/grpc"

	"github.com/ferula-io/ferula/internal/bucket"
	"github.com/ferula-io/ferula/internal/promql/columns"
	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/thanos/fanout"
	"github.com/ferula-io/ferula/internal/thanos/gateway"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
	"github.com/ferula-io/ferula/internal/thanos/storeclient"
)

// objects is a bucket in a directory that counts the bytes of its responses.
type objects struct {
	objstore.Bucket
	mu      sync.Mutex
	fetched map[string]int // by the name after the ULID, without the number of a segment
}

func (o *objects) GetRange(ctx context.Context, name string, off, n int64) (io.ReadCloser, error) {
	_, kind, _ := strings.Cut(name, "/")
	o.mu.Lock()
	o.fetched[strings.TrimRight(kind, "0123456789/")] += int(n)
	o.mu.Unlock()
	return o.Bucket.GetRange(ctx, name, off, n)
}

func (o *objects) take() map[string]int {
	o.mu.Lock()
	defer o.mu.Unlock()
	was := o.fetched
	o.fetched = map[string]int{}
	return was
}

// newObjects returns a bucket with the blocks of a database's directory.
func newObjects(t testing.TB, from string, external string) (*objects, string) {
	t.Helper()
	dir := t.TempDir()
	found, err := filepath.Glob(filepath.Join(from, "*", "meta.json"))
	if err != nil || len(found) == 0 {
		t.Fatalf("%d blocks, %v", len(found), err)
	}
	for _, meta := range found {
		to := filepath.Join(dir, filepath.Base(filepath.Dir(meta)))
		if err := os.CopyFS(to, os.DirFS(filepath.Dir(meta))); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(meta)
		if err == nil {
			text = bytes.Replace(text, []byte("{"), []byte(`{"thanos": {"version": 1, "labels": {`+external+`}, "downsample": {"resolution": 0}, "source": "sidecar"},`), 1)
			err = os.WriteFile(filepath.Join(to, "meta.json"), text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	b, err := filesystem.NewBucket(dir)
	if err != nil {
		t.Fatal(err)
	}
	return &objects{Bucket: b, fetched: map[string]int{}}, dir
}

// newGateway returns a store over a bucket.
func newGateway(t testing.TB, from objstore.Bucket) *gateway.Store {
	t.Helper()
	store, err := gateway.Open(from, gateway.Options{Dir: t.TempDir(), CacheBytes: 32 << 20, Rules: gateway.Rules{IgnoreDeletedDelay: time.Hour}})
	if err == nil {
		err = store.Sync(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	return store
}

// summarize makes the summaries of a bucket.
func summarize(t testing.TB, b objstore.Bucket) (made []string) {
	t.Helper()
	err := newGateway(t, b).Summarize(t.Context(), b, false, func(m *bucket.Meta, _ int64) { made = append(made, m.ID.String()) })
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// through returns a querier of stores, which it serves over gRPC.
func through(t testing.TB, r fanout.Request, all ...storeapi.Source) storage.Queryable {
	t.Helper()
	dial, err := storeclient.Options{}.Dialer()
	if err != nil {
		t.Fatal(err)
	}
	opts := fanout.EndpointsOptions{Dial: dial}
	for _, source := range all {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		server := grpc.NewServer(storeapi.GRPCServerOptions()...)
		storeapi.NewServer(source, storeapi.ServerOptions{}).Register(server)
		go func() { _ = server.Serve(listener) }()
		t.Cleanup(server.Stop)
		opts.Static = append(opts.Static, fanout.Address{Name: listener.Addr().String()})
	}
	endpoints := fanout.NewEndpoints(opts)
	endpoints.Update(t.Context())
	t.Cleanup(endpoints.Close)
	r.AbortOnPartial = true
	return fanout.New(endpoints, fanout.Options{}).Queryable(r)
}

// counted is a store that counts the summaries that it sends.
type counted struct {
	storeapi.Source
	counts *summaryCounts
}

func (c counted) Series(ctx context.Context, r storeapi.SeriesRequest) storeapi.Stream {
	c.counts.selections.Add(1)
	stream := c.Source.Series(ctx, r)
	if r.Summaries == nil {
		return stream
	}
	c.counts.asked.Add(1)
	return countedStream{stream, c.counts}
}

type countedStream struct {
	storeapi.Stream
	counts *summaryCounts
}

func (s countedStream) Next() bool {
	if !s.Stream.Next() {
		return false
	}
	for _, c := range s.Chunks() {
		if c.Encoding == series.Summarized {
			s.counts.summaries.Add(1)
			s.counts.samples.Add(int64(series.SamplesOf([]series.Chunk{c})))
		} else {
			s.counts.decoded.Add(1)
		}
	}
	return true
}

// Random queries return the same through a querier of stores with and without summaries in the bucket.
func TestEngine_ReturnsTheSameFromSummariesOfABucket(t *testing.T) {
	fetched, own, all := map[bool]map[string]int{false: {}, true: {}}, 0, 0
	var alone, beside summaryCounts
	for world, samplesOfChunk := range []int{1, 5, 20, 120} {
		_, dir := newSummaryWorldIn(t, uint64(world), samplesOfChunk)
		plain, _ := newObjects(t, dir, `"p": "1"`)
		with, _ := newObjects(t, dir, `"p": "1"`)
		if made := summarize(t, with); len(made) != 2 {
			t.Fatalf("made %v", made)
		}
		if made := summarize(t, with); len(made) != 0 {
			t.Fatalf("made again: %v", made)
		}
		want, got := through(t, fanout.Request{}, newGateway(t, plain)), through(t, fanout.Request{}, counted{newGateway(t, with), &alone})
		twice := through(t, fanout.Request{}, counted{newGateway(t, with), &beside}, newGateway(t, plain))
		rng := random{rand.New(rand.NewPCG(uint64(world), *seedFlag))}
		for range *queriesFlag / 4 {
			opts := engineOpts(50_000_000)
			newEngine := func() promql.QueryEngine {
				e := columns.New(optionsOf(opts))
				if rng.Uint64()%2 == 0 {
					e = helped(opts, 2)
				}
				return columns.Summarizing(e)
			}
			r, _ := rng.request()
			expected, _ := r.run(t, newEngine(), want)
			result, by := r.run(t, newEngine(), got)
			if all++; by != "columns" {
				continue
			}
			own++
			if result != expected {
				t.Fatalf("world %d: %s: %s", world, r, difference(result, expected))
			}
			if result, _ := r.run(t, newEngine(), twice); result != expected {
				t.Fatalf("world %d, two stores: %s: %s", world, r, difference(result, expected))
			}
		}
		for has, b := range map[bool]*objects{false: plain, true: with} {
			for kind, n := range b.take() {
				fetched[has][kind] += n
			}
		}
	}
	t.Logf("%d of %d queries by columns; bytes without %v, with %v", own, all, fetched[false], fetched[true])
	for _, c := range []*summaryCounts{&alone, &beside} {
		t.Logf("%d of %d selections ask, %d summaries with %d samples, %d chunks", c.asked.Load(), c.selections.Load(), c.summaries.Load(),
			c.samples.Load(), c.decoded.Load())
		if own < all*7/10 || c.samples.Load() < c.decoded.Load() {
			t.Error("too few")
		}
	}
}
