// Command thanoscodec moves series through Thanos' own StoreAPI messages and codec, as its releases are built: with -tags
// slicelabels and the module versions of its own go.mod. It is a worker of package streams. Server and client are in this
// process, connected by TCP over loopback.
//
// The server holds encoded messages and sends them in batches, as Thanos' batching server does. The client reads each
// message. Stores, interceptors and merging are not part of it.
package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math"
	"os"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	_ "github.com/thanos-io/thanos/pkg/extgrpc" // its gRPC codec
	"github.com/thanos-io/thanos/pkg/extgrpc/snappy"
	"github.com/thanos-io/thanos/pkg/store/labelpb"
	"github.com/thanos-io/thanos/pkg/store/storepb"

	"github.com/ferula-io/ferula/bench/streams"
)

func main() {
	w := &worker{}
	if err := streams.Work(w.do); err != nil {
		fmt.Fprintln(os.Stderr, "thanoscodec:", err)
		os.Exit(1)
	}
}

// worker runs tasks. It caches the file of the last task.
type worker struct {
	file   string
	series []*storepb.Series
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
	for _, s := range list {
		one := &storepb.Series{}
		for _, l := range s.Labels {
			one.Labels = append(one.Labels, labelpb.ZLabel{Name: l.Name, Value: l.Value})
		}
		for _, c := range s.Chunks {
			one.Chunks = append(one.Chunks, storepb.AggrChunk{MinTime: c.MinMS, MaxTime: c.MaxMS, Raw: &storepb.Chunk{Type: storepb.Chunk_Encoding(c.Encoding - 1), Data: c.Data}})
		}
		w.series = append(w.series, one)
	}
	w.file = file
	return nil
}

// server streams the first series of its file.
type server struct {
	storepb.UnimplementedStoreServer
	series []*storepb.Series
}

func (s *server) Series(r *storepb.SeriesRequest, out storepb.Store_SeriesServer) error {
	size := int(r.ResponseBatchSize)
	batch := make([]*storepb.Series, 0, max(size, 1))
	for _, one := range s.series {
		if size <= 1 {
			if err := out.Send(storepb.NewSeriesResponse(one)); err != nil {
				return err
			}
			continue
		}
		if batch = append(batch, one); len(batch) >= size {
			if err := out.Send(storepb.NewBatchResponse(batch)); err != nil {
				return err
			}
			batch = make([]*storepb.Series, 0, size)
		}
	}
	if len(batch) > 0 {
		return out.Send(storepb.NewBatchResponse(batch))
	}
	return nil
}

func (w *worker) do(t streams.Task) (f streams.Figures, err error) {
	if t.Noop {
		return f, errors.New("this worker has no no-op codec")
	}
	if err := w.load(t.File); err != nil {
		return f, err
	}
	serverCreds, clientCreds := insecure.NewCredentials(), insecure.NewCredentials()
	if t.TLS {
		theirs, own, err := streams.TLSConfigs()
		if err != nil {
			return f, err
		}
		serverCreds, clientCreds = credentials.NewTLS(theirs), credentials.NewTLS(own)
	}
	l, err := streams.Listen()
	if err != nil {
		return f, err
	}
	srv := grpc.NewServer(grpc.Creds(serverCreds), grpc.MaxSendMsgSize(math.MaxInt32), grpc.MaxRecvMsgSize(math.MaxInt32))
	storepb.RegisterStoreServer(srv, &server{series: w.series[:min(t.Series, len(w.series))]})
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(l) }()
	defer func() { srv.Stop(); <-done }()
	calls := []grpc.CallOption{grpc.MaxCallRecvMsgSize(math.MaxInt32)}
	if t.Snappy {
		calls = append(calls, grpc.UseCompressor(snappy.Name))
	}
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(clientCreds), grpc.WithDefaultCallOptions(calls...))
	if err != nil {
		return f, err
	}
	defer conn.Close()
	client := storepb.NewStoreClient(conn)
	if t.Check {
		d := &streams.Digest{Hash: sha256.New()}
		_, err := receive(client, t, d)
		return streams.Figures{Digest: d.String()}, err
	}
	return streams.Measure(l, t.Repeats, func() error {
		n, err := receive(client, t, nil)
		if err == nil && n != min(t.Series, len(w.series)) {
			err = fmt.Errorf("received %d of %d series", n, t.Series)
		}
		return err
	})
}

// receive reads a stream and returns the number of series. A digest gets all of them.
func receive(client storepb.StoreClient, t streams.Task, d *streams.Digest) (n int, err error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	stream, err := client.Series(ctx, &storepb.SeriesRequest{MaxTime: math.MaxInt64, ResponseBatchSize: int64(t.Batch)})
	if err != nil {
		return 0, err
	}
	looked := 0
	for {
		r, err := stream.Recv()
		if err == io.EOF {
			if looked == 0 && n > 0 {
				return 0, errors.New("the series are empty")
			}
			return n, nil
		}
		if err != nil {
			return 0, err
		}
		var all []*storepb.Series
		if one := r.GetSeries(); one != nil {
			all = []*storepb.Series{one}
		} else if batch := r.GetBatch(); batch != nil {
			all = batch.Series
		}
		for _, one := range all {
			n++
			looked += one.PromLabels().Len()
			for i := range one.Chunks {
				looked += len(one.Chunks[i].Raw.Data)
			}
			if d != nil {
				add(d, one)
			}
		}
	}
}

func add(d *streams.Digest, s *storepb.Series) {
	for _, l := range s.Labels {
		d.Label(l.Name, l.Value)
	}
	for _, c := range s.Chunks {
		d.Chunk(c.MinTime, c.MaxTime, byte(c.Raw.Type)+1, c.Raw.Data)
	}
	d.End()
}
