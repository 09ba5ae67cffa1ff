package storeapi

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/util/annotations"
	"google.golang.org/grpc"

	"github.com/ferula-io/ferula/bench/blocks"
	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/series/labelenc"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

// preparedSeries is an encoded series, as in package series.
type preparedSeries struct {
	labels []byte
	chunks []series.Chunk
}

// prepare encodes the series of spec, sorted by labels, in chunks of 120 samples.
func prepare(spec blocks.Spec) (all []preparedSeries, err error) {
	for i := range spec.Series {
		one := preparedSeries{labels: labelenc.Append(nil, spec.Labels(i))}
		times, values := spec.Times(i), blocks.SpecSequence(spec, i, spec.Samples)
		for from := 0; from < spec.Samples; from += chunkSamples {
			to := min(from+chunkSamples, spec.Samples)
			c := chunkenc.NewXORChunk()
			app, err := c.Appender()
			if err != nil {
				return nil, err
			}
			for j := from; j < to; j++ {
				app.Append(0, times[j], values[j])
			}
			one.chunks = append(one.chunks, series.Chunk{MinMS: times[from], MaxMS: times[to-1], Encoding: c.Encoding(), Data: slices.Clone(c.Bytes())})
		}
		all = append(all, one)
	}
	slices.SortFunc(all, func(a, b preparedSeries) int { return labelenc.Compare(a.labels, b.labels) })
	return all, nil
}

// preparedSource is a store of prepared series. It returns all of them to every request that its external labels match, and
// does no work but sending, because it shares the cores of the querier.
type preparedSource struct {
	storeapi.NoServices
	series   []preparedSeries
	external labels.Labels
	times    storeapi.TimeRange
}

// Info implements storeapi.Source.
func (p *preparedSource) Info(context.Context) (storeapi.Info, error) {
	return storeapi.Info{
		Component: "sidecar", LabelSets: []labels.Labels{p.external},
		Store: &storeapi.StoreInfo{TimeRange: p.times, TSDBs: []storeapi.TSDBInfo{{Labels: p.external, TimeRange: p.times}}, Sharding: true, WithoutReplicaLabels: true},
	}, nil
}

// ExternalLabels implements storeapi.Source.
func (p *preparedSource) ExternalLabels() labels.Labels { return p.external }

// LabelNames implements storeapi.Source.
func (*preparedSource) LabelNames(context.Context, storeapi.LabelsRequest) (names, warnings []string, err error) {
	return nil, nil, nil
}

// LabelValues implements storeapi.Source.
func (*preparedSource) LabelValues(context.Context, storeapi.LabelsRequest) (values, warnings []string, err error) {
	return nil, nil, nil
}

// Capabilities implements storeapi.Source.
func (*preparedSource) Capabilities() storeapi.Capabilities { return storeapi.Capabilities{} }

// Series implements storeapi.API.
func (p *preparedSource) Series(ctx context.Context, r storeapi.SeriesRequest) storeapi.Stream {
	return storeapi.LocalSeries(ctx, p, p.external, r)
}

// RawQuerier implements series.Source.
func (p *preparedSource) RawQuerier(context.Context, int64, int64) (series.Querier, error) {
	return preparedQuerier{p.series}, nil
}

type preparedQuerier struct{ series []preparedSeries }

func (q preparedQuerier) Select(context.Context, series.SelectOptions, ...*labels.Matcher) series.Set {
	return &preparedSet{rest: q.series}
}
func (preparedQuerier) Capabilities() series.Capabilities { return series.Capabilities{} }
func (preparedQuerier) LabelNames(context.Context, series.SelectOptions, ...*labels.Matcher) ([]string, error) {
	return nil, nil
}
func (preparedQuerier) Close() error { return nil }

type preparedSet struct {
	rest []preparedSeries
	at   preparedSeries
}

func (s *preparedSet) Next() bool {
	if len(s.rest) == 0 {
		return false
	}
	s.at, s.rest = s.rest[0], s.rest[1:]
	return true
}

func (s *preparedSet) Labels() []byte                  { return s.at.labels }
func (s *preparedSet) Chunks() []series.Chunk          { return s.at.chunks }
func (*preparedSet) Err() error                        { return nil }
func (*preparedSet) Warnings() annotations.Annotations { return nil }

// servePrepared serves a source over TCP until stop is called. What it sends is delayed.
func servePrepared(src storeapi.Source, by time.Duration) (address string, stop func() error, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	l = delayingListener{l, by}
	server := grpc.NewServer(storeapi.GRPCServerOptions()...)
	storeapi.NewServer(src, storeapi.ServerOptions{}).Register(server)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	return l.Addr().String(), func() error {
		server.Stop()
		if err := <-ended; !errors.Is(err, grpc.ErrServerStopped) {
			return err
		}
		return nil
	}, nil
}

// delayingListener accepts connections whose writes arrive after a delay, without the second connection of a proxy. It does
// not limit the throughput.
type delayingListener struct {
	net.Listener
	by time.Duration
}

// Accept implements net.Listener.
func (l delayingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	d := &delayingConn{Conn: c, by: l.by, pieces: make(chan delayed, delayedMax), closed: make(chan struct{})}
	go d.send()
	return d, nil
}

type delayingConn struct {
	net.Conn
	by     time.Duration
	pieces chan delayed
	close  sync.Once
	closed chan struct{}
}

// Write implements net.Conn. It returns before the bytes are sent.
func (d *delayingConn) Write(b []byte) (int, error) {
	data := delayedPool.Get()
	*data = append(*data, b...)
	select {
	case d.pieces <- delayed{data, time.Now().Add(d.by)}:
		return len(b), nil
	case <-d.closed:
		return 0, net.ErrClosed
	}
}

// Close implements net.Conn. Bytes that are not due are lost.
func (d *delayingConn) Close() error {
	d.close.Do(func() { close(d.closed) })
	return d.Conn.Close()
}

func (d *delayingConn) send() {
	for {
		select {
		case p := <-d.pieces:
			time.Sleep(time.Until(p.due))
			_, err := d.Conn.Write(*p.data)
			delayedPool.Put(p.data)
			if err != nil {
				_ = d.Close() // the server sees that its writes fail
				return
			}
		case <-d.closed:
			return
		}
	}
}
