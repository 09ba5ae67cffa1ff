// Command storestream moves series through ferula's StoreAPI. It is a worker of package streams: server and client are in
// this process, connected by TCP over loopback. With -serve it is only a server, of any requested number of series.
//
// The server's source holds encoded label sets and chunks, as package series defines them, and uses storeapi.Server. The
// client decodes each label set to labels.Labels, and reads the chunks or holds all of them until the stream ends. The
// client of a Querier task is ferula query's. Noop tasks move the same messages over gRPC with a codec that copies bytes.
package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"syscall"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/util/annotations"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/ferula-io/ferula/bench/streams"
	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/series/labelenc"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

func main() {
	addr := flag.String("serve", "", "address of an HTTP server, to serve generated series instead of running tasks")
	grpcAddr := flag.String("grpc", "", "with -serve: address of the StoreAPI")
	flag.Parse()
	storeapi.RegisterSnappy()
	err := error(nil)
	if *addr != "" {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		err = serve(ctx, *addr, *grpcAddr)
	} else {
		err = streams.Work((&worker{}).do)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "storestream:", err)
		os.Exit(1)
	}
}

// one is an encoded series, as in package series.
type one struct {
	labels []byte
	chunks []series.Chunk
}

// source is a store of series in memory.
type source struct {
	storeapi.NoServices
	series []one
}

// Info implements storeapi.Source: any series may be here.
func (s *source) Info(context.Context) (storeapi.Info, error) {
	return storeapi.Info{Component: "store", Store: &storeapi.StoreInfo{TimeRange: storeapi.TimeRange{MaxMS: endMS}, Sharding: true, WithoutReplicaLabels: true}}, nil
}

func (s *source) ExternalLabels() labels.Labels { return labels.EmptyLabels() }

func (s *source) LabelNames(context.Context, storeapi.LabelsRequest) (names, warnings []string, err error) {
	return nil, nil, nil
}

func (s *source) LabelValues(context.Context, storeapi.LabelsRequest) (values, warnings []string, err error) {
	return nil, nil, nil
}

func (*source) Capabilities() storeapi.Capabilities { return storeapi.Capabilities{} }

func (s *source) Series(ctx context.Context, r storeapi.SeriesRequest) storeapi.Stream {
	return storeapi.LocalSeries(ctx, s, labels.EmptyLabels(), r)
}

func (s *source) RawQuerier(context.Context, int64, int64) (series.Querier, error) {
	return querier{s.series}, nil
}

type querier struct{ series []one }

func (q querier) Select(context.Context, series.SelectOptions, ...*labels.Matcher) series.Set {
	return &set{rest: q.series}
}
func (querier) Capabilities() series.Capabilities { return series.Capabilities{} }
func (querier) LabelNames(context.Context, series.SelectOptions, ...*labels.Matcher) ([]string, error) {
	return nil, nil
}
func (querier) Close() error { return nil }

type set struct {
	rest []one
	at   one
}

func (s *set) Next() bool {
	if len(s.rest) == 0 {
		return false
	}
	s.at, s.rest = s.rest[0], s.rest[1:]
	return true
}

func (s *set) Labels() []byte                  { return s.at.labels }
func (s *set) Chunks() []series.Chunk          { return s.at.chunks }
func (*set) Err() error                        { return nil }
func (*set) Warnings() annotations.Annotations { return nil }

// worker runs tasks. It caches the file of the last task.
type worker struct {
	file   string
	series []one
}

func (w *worker) load(file string) error {
	if w.file == file {
		return nil
	}
	w.series = nil
	list, err := streams.Read(file)
	if err != nil {
		return err
	}
	// Everything is in one buffer, as in the mapped files of a block.
	var data []byte
	var chunks []series.Chunk
	type end struct{ labels, data, chunks int }
	var ends []end
	for _, s := range list {
		for _, l := range s.Labels {
			data = labelenc.AppendLabel(data, l.Name, l.Value)
		}
		e := end{labels: len(data)}
		for _, c := range s.Chunks {
			data = append(data, c.Data...)
			chunks = append(chunks, series.Chunk{MinMS: c.MinMS, MaxMS: c.MaxMS, Encoding: chunkenc.Encoding(c.Encoding), Data: c.Data})
		}
		e.data, e.chunks = len(data), len(chunks)
		ends = append(ends, e)
	}
	var from end
	for _, e := range ends {
		at := e.labels
		for i := from.chunks; i < e.chunks; i++ {
			n := len(chunks[i].Data)
			chunks[i].Data, at = data[at:at+n:at+n], at+n
		}
		w.series = append(w.series, one{data[from.data:e.labels:e.labels], chunks[from.chunks:e.chunks:e.chunks]})
		from = e
	}
	w.file = file
	return nil
}

func (w *worker) do(t streams.Task) (f streams.Figures, err error) {
	if err := w.load(t.File); err != nil {
		return f, err
	}
	held := w.series[:min(t.Series, len(w.series))]
	if t.Noop {
		return noop(t, held)
	}
	c, err := connect(t.Check, func(s *grpc.Server) { storeapi.NewServer(&source{series: held}, storeapi.ServerOptions{}).Register(s) }, storeapi.GRPCServerOptions())
	if err != nil {
		return f, err
	}
	defer c.close()
	if t.Querier {
		return keep(t, held, c.conn.Target())
	}
	client := storeapi.NewClient(c.conn, storeapi.ClientOptions{BatchSeries: t.Batch, NoExtension: !t.Extension, NoDeltas: t.NoDeltas, Compression: t.Compression})
	if t.Check {
		t.Keep = true
		k, err := receive(client, t)
		if err != nil {
			return f, err
		}
		defer k.set.Close()
		return streams.Figures{WireBytes: c.counter.Bytes.Load(), Digest: k.digest()}, nil
	}
	return streams.Measure(t.Repeats, func() error {
		k, err := receive(client, t)
		if err == nil && k.n != len(held) {
			err = fmt.Errorf("received %d of %d series", k.n, len(held))
		}
		return errors.Join(err, k.set.Close())
	})
}

// connection is a server with a client connected to it.
type connection struct {
	conn    *grpc.ClientConn
	counter *streams.Counter
	server  *grpc.Server
	done    chan struct{}
}

func connect(count bool, register func(*grpc.Server), opts []grpc.ServerOption) (*connection, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	c := &connection{counter: &streams.Counter{Listener: l}, server: grpc.NewServer(opts...), done: make(chan struct{})}
	if count {
		l = c.counter
	}
	register(c.server)
	go func() { defer close(c.done); _ = c.server.Serve(l) }()
	c.conn, err = grpc.NewClient(l.Addr().String(), append(storeapi.GRPCDialOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		c.server.Stop()
		return nil, err
	}
	return c, nil
}

func (c *connection) close() {
	_ = c.conn.Close()
	c.server.Stop()
	<-c.done
}

// kept holds what a client retains of a stream: labels and chunks, copied.
type kept struct {
	set    *storeapi.SeriesSet
	n      int
	looked int
	labels []labels.Labels
	chunks [][]series.Chunk
	slots  []series.Chunk // memory of the lists of chunks
}

const arenaSlots = 4096

func (k *kept) add(lset labels.Labels, chunks []series.Chunk) {
	if len(k.slots)+len(chunks) > cap(k.slots) {
		k.slots = make([]series.Chunk, 0, max(arenaSlots, len(chunks)))
	}
	first := len(k.slots)
	for _, c := range chunks {
		c.Data = bytes.Clone(c.Data)
		k.slots = append(k.slots, c)
	}
	k.labels = append(k.labels, lset)
	k.chunks = append(k.chunks, k.slots[first:len(k.slots):len(k.slots)])
}

func receive(client *storeapi.Client, t streams.Task) (*kept, error) {
	set := client.Series(context.Background(), storeapi.SeriesRequest{
		MaxMS: endMS, SkipChunks: t.LabelsOnly, Matchers: []*labels.Matcher{labels.MustNewMatcher(labels.MatchNotEqual, "__name__", "")},
	})
	k := &kept{set: set}
	builder := labels.NewScratchBuilder(16)
	for set.Next() {
		lset, err := labelenc.Labels(set.Labels(), &builder)
		if err != nil {
			return k, err
		}
		k.n++
		if t.Keep {
			k.add(lset, set.Chunks())
			continue
		}
		k.looked += lset.Len()
		for _, c := range set.Chunks() {
			k.looked += len(c.Data)
		}
	}
	if !t.Keep && k.looked == 0 && k.n > 0 {
		return k, errors.New("the series are empty")
	}
	return k, set.Err()
}

func (k *kept) digest() string {
	d := streams.Digest{Hash: sha256.New()}
	for i, lset := range k.labels {
		lset.Range(func(l labels.Label) { d.Label(l.Name, l.Value) })
		for _, c := range k.chunks[i] {
			d.Chunk(c.MinMS, c.MaxMS, byte(c.Encoding), c.Data)
		}
		d.End()
	}
	return d.String()
}
