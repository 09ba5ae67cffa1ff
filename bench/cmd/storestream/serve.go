package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	_ "net/http/pprof" // for the bench: garbage collections
	"strconv"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"google.golang.org/grpc"

	"github.com/ferula-io/ferula/bench/stores"
	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/series/labelenc"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

// serve serves series that it generates while it sends them, so that only the memory of the StoreAPI server can grow with
// their number. The number is the value of the matcher of the label "series".
func serve(ctx context.Context, addr, grpcAddr string) error {
	http.HandleFunc("/-/ready", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ready") })
	l, err := net.Listen("tcp", grpcAddr)
	if err != nil {
		return err
	}
	server := grpc.NewServer(storeapi.GRPCServerOptions()...)
	storeapi.NewServer(&stores.Memory{Times: times, Select: madeUp}, storeapi.ServerOptions{}).Register(server)
	web := &http.Server{Addr: addr}
	failed := make(chan error, 2)
	go func() { failed <- server.Serve(l) }()
	go func() { failed <- web.ListenAndServe() }()
	select {
	case err = <-failed:
	case <-ctx.Done():
	}
	server.Stop()
	return errors.Join(err, web.Close())
}

// madeUp returns the requested number of series.
func madeUp(matchers []*labels.Matcher) series.Set {
	n, err := strconv.Atoi(matchers[0].Value)
	if err != nil {
		return series.Failed(err)
	}
	return &madeUpSet{Set: series.Failed(nil), left: n, chunks: []series.Chunk{{MaxMS: 1, Encoding: chunkenc.EncXOR, Data: make([]byte, 300)}}}
}

type madeUpSet struct {
	series.Set // without an error
	left, n    int
	labels     []byte
	value      []byte
	chunks     []series.Chunk
}

func (s *madeUpSet) Next() bool {
	if s.n == s.left {
		return false
	}
	s.n++
	s.labels = labelenc.AppendLabel(s.labels[:0], "__name__", "made_up_bytes_total")
	s.labels = labelenc.AppendSymbols(s.labels, []byte(instanceName), s.instance())
	s.labels = labelenc.AppendLabel(s.labels, "job", "made-up")
	return true
}

// instanceName is preceded by its length.
const instanceName = "\x08instance"

// instance is a label value preceded by its length. It does not allocate, so that only the server allocates per series.
func (s *madeUpSet) instance() []byte {
	s.value = append(s.value[:0], 0)
	s.value = append(s.value, "instance-000000000.internal:9100"...)
	for i, n := len("?instance-000000000")-1, s.n; n > 0; i, n = i-1, n/10 {
		s.value[i] = byte('0' + n%10)
	}
	s.value[0] = byte(len(s.value) - 1)
	return s.value
}

func (s *madeUpSet) Labels() []byte         { return s.labels }
func (s *madeUpSet) Chunks() []series.Chunk { return s.chunks }
