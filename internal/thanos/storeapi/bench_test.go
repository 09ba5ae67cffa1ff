package storeapi

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/util/annotations"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"

	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/series/labelenc"
	pb "github.com/ferula-io/ferula/internal/thanos/storepb/thanospb"
)

// benchSeries are series of nine labels. Neighbours differ in a few labels.
type benchSeries struct {
	sets   [][]byte
	chunks []series.Chunk
}

func newBenchSeries(b *testing.B, n int) *benchSeries {
	return newBenchSeriesOf(b, n, func(i int) labels.Labels {
		return labels.FromStrings("__name__", "container_network_receive_bytes_total", "cluster", "eu-west-1-production", "container", fmt.Sprintf("container-%d", i*10/n),
			"endpoint", "https-metrics", "instance", fmt.Sprintf("10.32.%05d:10250", i%(n/10)), "job", "kubernetes-pods", "namespace", fmt.Sprintf("team-%02d", i%20),
			"node", fmt.Sprintf("ip-10-0-%03d.eu-west-1.compute.internal", i%100), "pod", fmt.Sprintf("service-%03d-abcdef01-%05d", i%250, i%(n/10)))
	})
}

// newBenchLengths returns series whose labels differ in length from those of the series before.
func newBenchLengths(b *testing.B, n int) *benchSeries {
	return newBenchSeriesOf(b, n, func(i int) labels.Labels {
		return labels.FromStrings("__name__", "container_network_receive_bytes_total", "cluster", "eu-west-1-production", "container", fmt.Sprintf("container-%d", i*10/n),
			"endpoint", "https-metrics", "instance", fmt.Sprintf("10.32.%05d:10250", i%(n/10)), "job", "kubernetes-pods", "namespace", "team-"+strings.Repeat("x", i%5),
			"node", fmt.Sprintf("ip-10-0-%d.eu-west-1.compute.internal", i*7%300), "pod", fmt.Sprintf("service-%d-abcdef01-%d", i*7%3000, i))
	})
}

// newBenchJob returns the series of a job: hundred metrics of a thousand containers, whose ids are long.
func newBenchJob(b *testing.B, n int) *benchSeries {
	containers := n / 100
	ids := make([]string, containers)
	for i := range ids {
		ids[i] = fmt.Sprintf("%x", sha256.Sum256([]byte(strconv.Itoa(i))))
	}
	slices.Sort(ids)
	return newBenchSeriesOf(b, n, func(i int) labels.Labels {
		c := i % containers
		return labels.FromStrings("__name__", fmt.Sprintf("container_metric_%03d_total", i/containers), "cluster", "eu-west-1-production", "id", "/kubepods/burstable/"+ids[c],
			"image", "registry/"+ids[c%50], "instance", fmt.Sprintf("10.32.0.%d:10250", c%100), "job", "kubelet", "namespace", fmt.Sprintf("team-%02d", c%20), "pod", "service-"+ids[c/2][:16])
	})
}

// newBenchNames returns the series of a job whose metrics have names of different lengths and not quite the same containers. Values differ
// in length, too.
func newBenchNames(b *testing.B, n int) *benchSeries {
	containers := n / 100
	return newBenchSeriesOf(b, n, func(i int) labels.Labels {
		m, c := i/containers, 2*(i%containers)
		if c*31%100 == m {
			c++ // a container that has few of the metrics
		}
		return labels.FromStrings("__name__", fmt.Sprintf("container_%03d_%s_total", m, strings.Repeat("x", m%9)), "cluster", "eu-west-1-production", "container", fmt.Sprintf("container-%06d", c),
			"id", "/kubepods/burstable/"+fmt.Sprintf("%x", sha256.Sum256([]byte(strconv.Itoa(c)))), "instance", fmt.Sprintf("10.32.0.%d:10250", c%100), "job", "kubelet", "namespace", "team-"+strings.Repeat("x", c%5), "pod", fmt.Sprintf("service-%d-%d", c*7%3000, c))
	})
}

func newBenchSeriesOf(b *testing.B, n int, labelsOf func(i int) labels.Labels) *benchSeries {
	s := &benchSeries{chunks: []series.Chunk{xor(b, 1000, 100)}}
	for i := range n {
		s.sets = append(s.sets, labelenc.Append(nil, labelsOf(i)))
	}
	return s
}

// discard frees the messages that are sent to it.
type discard struct {
	memoryStream
	keep bool
}

func (d *discard) SendMsg(m any) error {
	if d.keep {
		return d.memoryStream.SendMsg(m)
	}
	data, err := m.(*outFrame).take()
	data.Free()
	return err
}

// benchForms are the forms of labels that are compared.
var benchForms = []struct {
	name string
	e    *pb.Extension
}{{"plain", &pb.Extension{}}, {"deltas", &pb.Extension{Deltas: true}}}

func (s *benchSeries) encode(b *testing.B, to *discard, e *pb.Extension) {
	out := newBatchWriter(to, &pb.SeriesRequest{ResponseBatchSize: 1 << 16, Extension: e})
	for _, lset := range s.sets {
		if err := out.add(lset, s.chunks); err != nil {
			b.Fatal(err)
		}
	}
	if err := out.flush(); err != nil {
		b.Fatal(err)
	}
}

func BenchmarkEncode(b *testing.B) {
	s := newBenchSeries(b, 100_000)
	for _, form := range benchForms {
		b.Run(form.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				s.encode(b, &discard{}, form.e)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(s.sets)), "ns/series")
		})
	}
}

func BenchmarkDecode(b *testing.B) {
	s := newBenchSeries(b, 100_000)
	for _, form := range benchForms {
		b.Run(form.name, func(b *testing.B) {
			to := &discard{keep: true}
			s.encode(b, to, form.e)
			var pieces []mem.BufferSlice
			for _, m := range to.messages {
				pieces = append(pieces, mem.BufferSlice{mem.SliceBuffer(m)})
			}
			codec := clientCodec()
			b.ReportAllocs()
			for b.Loop() {
				set := &SeriesSet{stream: reader{&memoryStream{pieces: pieces}, codec}, cancel: func() {}}
				n := 0
				for set.Next() {
					n++
				}
				if set.Err() != nil || n != len(s.sets) {
					b.Fatal(n, set.Err())
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(s.sets)), "ns/series")
		})
	}
}

// benchSource is a Source of benchSeries.
type benchSource struct {
	*memorySource
	s *benchSeries
}

func (b benchSource) Series(ctx context.Context, r SeriesRequest) Stream {
	return LocalSeries(ctx, b, b.external, r)
}

func (b benchSource) RawQuerier(context.Context, int64, int64) (series.Querier, error) {
	return &benchQuerier{b: b}, nil
}

type benchQuerier struct {
	memoryQuerier
	b benchSource
}

func (benchQuerier) Close() error { return nil }

func (q benchQuerier) Select(context.Context, series.SelectOptions, ...*labels.Matcher) series.Set {
	return &benchRows{s: q.b.s, at: -1}
}

type benchRows struct {
	series.Set
	s  *benchSeries
	at int
}

func (r *benchRows) Next() bool                      { r.at++; return r.at < len(r.s.sets) }
func (r *benchRows) Labels() []byte                  { return r.s.sets[r.at] }
func (r *benchRows) Chunks() []series.Chunk          { return r.s.chunks }
func (*benchRows) Err() error                        { return nil }
func (*benchRows) Warnings() annotations.Annotations { return nil }

// countedListener counts the bytes that its connections write.
type countedListener struct {
	net.Listener
	bytes atomic.Int64
}

func (l *countedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	return countedConn{conn, l}, err
}

type countedConn struct {
	net.Conn
	l *countedListener
}

func (c countedConn) Write(p []byte) (int, error) {
	c.l.bytes.Add(int64(len(p)))
	return c.Conn.Write(p)
}

// BenchmarkStream moves series from a server to a client over TCP: labels alone, a metric, one whose
// labels differ in length, a job, and one with names of metrics and values of different lengths. cpu-ns/series is the CPU time of both,
// system calls included.
func BenchmarkStream(b *testing.B) {
	for kind, newSeries := range map[string]func(*testing.B, int) *benchSeries{"labels": newBenchSeries, "metric": newBenchSeries, "lengths": newBenchLengths, "job": newBenchJob, "names": newBenchNames} {
		s := newSeries(b, 100_000)
		labelsOnly := kind == "labels"
		for _, form := range []struct {
			name string
			opts ClientOptions
		}{{"plain", ClientOptions{NoDeltas: true}}, {"deltas", ClientOptions{}}} {
			b.Run(kind+"/"+form.name, func(b *testing.B) {
				benchmarkStream(b, benchSource{&memorySource{}, s}, form.opts, labelsOnly)
			})
		}
	}
}

func benchmarkStream(b *testing.B, src benchSource, opts ClientOptions, labelsOnly bool) {
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	l := &countedListener{Listener: tcp}
	s := grpc.NewServer(GRPCServerOptions()...)
	NewServer(src, ServerOptions{}).Register(s)
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	defer func() { s.Stop(); <-done }()
	conn, err := grpc.NewClient(l.Addr().String(), append(GRPCDialOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	client := NewClient(conn, opts)
	var before, after syscall.Rusage
	runs := 0
	b.ReportAllocs()
	for b.Loop() {
		if runs == 0 {
			if err := syscall.Getrusage(syscall.RUSAGE_SELF, &before); err != nil {
				b.Fatal(err)
			}
			l.bytes.Store(0)
		}
		runs++
		set := client.Series(context.Background(), SeriesRequest{MaxMS: 9, Matchers: all(), SkipChunks: labelsOnly})
		n := 0
		for set.Next() {
			n++
		}
		if err := set.Err(); err != nil || n != len(src.s.sets) {
			b.Fatal(n, err)
		}
		if err := set.Close(); err != nil {
			b.Fatal(err)
		}
	}
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &after); err != nil {
		b.Fatal(err)
	}
	total := float64(runs * len(src.s.sets))
	cpu := after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano()
	b.ReportMetric(float64(cpu)/total, "cpu-ns/series")
	b.ReportMetric(float64(l.bytes.Load())/total, "wire-B/series")
}
