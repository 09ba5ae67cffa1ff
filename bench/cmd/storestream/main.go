// Command storestream moves series through ferula's StoreAPI. It is a worker of package streams: server and client are in
// this process, connected by TCP over loopback. With -listen it is only a server, of any requested number of series.
//
// The server's source holds encoded label sets and chunks, as package series defines them, and uses storeapi.Server. The
// client decodes each label set to labels.Labels, and reads the chunks. The client of a Querier task is ferula query's. Noop
// tasks move the same messages over gRPC with a codec that copies bytes.
package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/ferula-io/ferula/bench/stores"
	"github.com/ferula-io/ferula/bench/streams"
	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/series/labelenc"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

func main() {
	addr := flag.String("listen", "", "address of an HTTP server, to serve generated series instead of running tasks")
	grpcAddr := flag.String("grpc", "", "with -listen: address of the StoreAPI")
	flag.Parse()
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

// times are those of every store here, and of every request.
var times = storeapi.TimeRange{MaxMS: endMS}

// worker runs tasks. It caches the file of the last task.
type worker struct {
	file   string
	series []stores.Series
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
		w.series = append(w.series, stores.Series{Labels: data[from.data:e.labels:e.labels], Chunks: chunks[from.chunks:e.chunks:e.chunks]})
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
	c, err := connect(t, func(s *grpc.Server) {
		storeapi.NewServer(&stores.Memory{Times: times, Select: stores.Held(held)}, storeapi.ServerOptions{}).Register(s)
	}, storeapi.GRPCServerOptions())
	if err != nil {
		return f, err
	}
	defer c.close()
	if t.Querier {
		return keep(t, held, c)
	}
	client := storeapi.NewClient(c.conn, storeapi.ClientOptions{BatchSeries: t.Batch, NoExtension: !t.Extension, NoDeltas: t.NoDeltas})
	if t.Check {
		d := &streams.Digest{Hash: sha256.New()}
		_, err := receive(client, d)
		return streams.Figures{Digest: d.String()}, err
	}
	return streams.Measure(c.listener, t.Repeats, func() error {
		n, err := receive(client, nil)
		if err == nil && n != len(held) {
			err = fmt.Errorf("received %d of %d series", n, len(held))
		}
		return err
	})
}

// connection is a server with a client connected to it.
type connection struct {
	listener *streams.Listener
	conn     *grpc.ClientConn
	server   *grpc.Server
	done     chan struct{}
}

// connect starts a server, and a client of it, with the transport of a task.
func connect(t streams.Task, register func(*grpc.Server), opts []grpc.ServerOption) (*connection, error) {
	server, client := insecure.NewCredentials(), insecure.NewCredentials()
	if t.TLS {
		theirs, own, err := streams.TLSConfigs()
		if err != nil {
			return nil, err
		}
		server, client = credentials.NewTLS(theirs), credentials.NewTLS(own)
	}
	l, err := streams.Listen()
	if err != nil {
		return nil, err
	}
	c := &connection{listener: l, server: grpc.NewServer(append(opts, grpc.Creds(server))...), done: make(chan struct{})}
	register(c.server)
	go func() { defer close(c.done); _ = c.server.Serve(l) }()
	dial := append(storeapi.GRPCDialOptions(), grpc.WithTransportCredentials(client))
	if t.Snappy {
		storeapi.RegisterSnappy()
		dial = append(dial, grpc.WithDefaultCallOptions(grpc.UseCompressor(storeapi.Snappy)))
	}
	c.conn, err = grpc.NewClient(l.Addr().String(), dial...)
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

// receive reads a stream and returns the number of series: it converts labels to the engine's type, reads chunks, and drops
// them. A digest gets all of them.
func receive(client *storeapi.Client, d *streams.Digest) (n int, err error) {
	set := client.Series(context.Background(), storeapi.SeriesRequest{
		MaxMS: endMS, Matchers: []*labels.Matcher{labels.MustNewMatcher(labels.MatchNotEqual, "__name__", "")},
	})
	defer func() { err = errors.Join(err, set.Close()) }()
	builder := labels.NewScratchBuilder(16)
	looked := 0
	for ; set.Next(); n++ {
		lset, err := labelenc.Labels(set.Labels(), &builder)
		if err != nil {
			return n, err
		}
		looked += lset.Len()
		for _, c := range set.Chunks() {
			looked += len(c.Data)
		}
		if d == nil {
			continue
		}
		lset.Range(func(l labels.Label) { d.Label(l.Name, l.Value) })
		for _, c := range set.Chunks() {
			d.Chunk(c.MinMS, c.MaxMS, byte(c.Encoding), c.Data)
		}
		d.End()
	}
	if looked == 0 && n > 0 {
		return n, errors.New("the series are empty")
	}
	return n, set.Err()
}
