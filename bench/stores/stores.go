// Package stores is a client of StoreAPIs that measures their responses, and a store of series in memory.
//
// A Client sends a request, drains the response and returns its size: series, chunks, messages and bytes. A Digest hashes
// what is received, independent of its division into messages, so that responses of several stores can be compared. A
// Memory serves encoded series at no other cost than that of StoreAPI itself.
package stores

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"math"
	"sync/atomic"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/stats"

	"github.com/ferula-io/ferula/bench/area"
	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

// Batch is the batch size that Thanos' querier requests.
const Batch = 64

// requestTimeout is far above the duration of any request.
const requestTimeout = 5 * time.Minute

// LikeThanos are the options of a client that requests what Thanos' querier does.
var LikeThanos = storeapi.ClientOptions{NoExtension: true, BatchSeries: Batch}

// Client is a client of one StoreAPI.
type Client struct {
	conn   *grpc.ClientConn
	client *storeapi.Client
	in     messages
}

// Dial returns a client of the StoreAPI at an address.
func Dial(address string, opts storeapi.ClientOptions) (c *Client, err error) {
	c = &Client{}
	c.conn, err = grpc.NewClient(address, append(storeapi.GRPCDialOptions(),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithStatsHandler(&c.in))...)
	if err == nil {
		c.client = storeapi.NewClient(c.conn, opts)
	}
	return c, err
}

// With calls work with a client of each StoreAPI.
func With(opts storeapi.ClientOptions, work func(clients []*Client) error, addresses ...string) (err error) {
	var clients []*Client
	for _, address := range addresses {
		c, err := Dial(address, opts)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, c.Close()) }()
		clients = append(clients, c)
	}
	return work(clients)
}

// Close closes the connection.
func (c *Client) Close() error { return c.conn.Close() }

// messages counts the messages that a client receives, and their bytes. first is the time of the first one, in ns.
type messages struct{ n, bytes, first atomic.Int64 }

func (*messages) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (*messages) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (*messages) HandleConn(context.Context, stats.ConnStats)                       {}

// HandleRPC implements stats.Handler.
func (m *messages) HandleRPC(_ context.Context, s stats.RPCStats) {
	if in, ok := s.(*stats.InPayload); ok {
		m.first.CompareAndSwap(0, time.Now().UnixNano())
		m.n.Add(1)
		m.bytes.Add(int64(in.WireLength))
	}
}

// Response is the size and the duration of a response.
type Response struct {
	Series, Chunks  int
	Messages, Bytes int64
	First, Elapsed  time.Duration // from the request to the first message, and to the end
}

// Request returns a request of all series of a metric; both times are inclusive.
func Request(metric string, minMS, maxMS int64, more ...*labels.Matcher) storeapi.SeriesRequest {
	name := labels.MustNewMatcher(labels.MatchEqual, labels.MetricName, metric)
	return storeapi.SeriesRequest{MinMS: minMS, MaxMS: maxMS, Matchers: append([]*labels.Matcher{name}, more...), AbortOnPartial: true}
}

// Receive sends a request and drains the response. each, if not nil, is called with every series.
func (c *Client) Receive(ctx context.Context, r storeapi.SeriesRequest, each func(lset []byte, chunks []series.Chunk) error) (a Response, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	begun, n, bytes := time.Now(), c.in.n.Load(), c.in.bytes.Load()
	c.in.first.Store(0)
	set := c.client.Series(ctx, r)
	defer func() { err = errors.Join(err, set.Close()) }()
	for set.Next() {
		a.Series++
		a.Chunks += len(set.Chunks())
		if each == nil {
			continue
		}
		if err := each(set.Labels(), set.Chunks()); err != nil {
			return a, err
		}
	}
	a.Messages, a.Bytes, a.Elapsed = c.in.n.Load()-n, c.in.bytes.Load()-bytes, time.Since(begun)
	a.First = time.Duration(c.in.first.Load() - begun.UnixNano())
	return a, set.Err()
}

// Digest hashes series. With samples it is independent of the division into chunks, too: it hashes the samples of its range,
// because a store may send whole chunks.
type Digest struct {
	Samples      bool
	MinMS, MaxMS int64 // inclusive
	Count        int   // of samples

	hash     hash.Hash
	iterator chunkenc.Iterator
}

// Sum returns the digest.
func (d Digest) Sum() (sum [sha256.Size]byte) {
	if d.hash != nil {
		copy(sum[:], d.hash.Sum(nil))
	}
	return sum
}

// Add adds a series.
func (d *Digest) Add(lset []byte, chunks []series.Chunk) error {
	if d.hash == nil {
		d.hash = sha256.New()
	}
	d.put(0, 0, lset)
	for _, c := range chunks {
		if !d.Samples {
			d.put(uint64(c.MinMS), uint64(c.MaxMS), append([]byte{byte(c.Encoding)}, c.Data...))
			continue
		}
		decoded, err := chunkenc.FromData(c.Encoding, c.Data)
		if err != nil {
			return err
		}
		for d.iterator = decoded.Iterator(d.iterator); d.iterator.Next() == chunkenc.ValFloat; {
			if ms, v := d.iterator.At(); ms >= d.MinMS && ms <= d.MaxMS {
				d.Count++
				d.put(uint64(ms), math.Float64bits(v), nil)
			}
		}
		if err := d.iterator.Err(); err != nil {
			return err
		}
	}
	return nil
}

func (d *Digest) put(a, b uint64, data []byte) {
	head := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, a), b)
	d.hash.Write(binary.BigEndian.AppendUint64(head, uint64(len(data))))
	d.hash.Write(data)
}

// Compare sends a request to several stores, and returns an error unless all send the same series. It returns the responses.
// samples compares samples in the range of the request, not chunks.
func Compare(ctx context.Context, r storeapi.SeriesRequest, samples bool, clients ...*Client) (all []Response, first Digest, err error) {
	for i, c := range clients {
		d := Digest{Samples: samples, MinMS: r.MinMS, MaxMS: r.MaxMS}
		a, err := c.Receive(ctx, r, d.Add)
		if err != nil {
			return nil, d, fmt.Errorf("store %d: %w", i, err)
		}
		if i == 0 {
			first = d
		}
		if all = append(all, a); a.Series == 0 {
			return nil, d, fmt.Errorf("store %d: %w", i, area.ErrEmpty)
		}
		if d.Sum() != first.Sum() {
			return nil, d, fmt.Errorf("%w: %d series, %d chunks, %d samples; from store %d: %d, %d, %d", area.ErrUnequal,
				all[0].Series, all[0].Chunks, first.Count, i, a.Series, a.Chunks, d.Count)
		}
	}
	return all, first, nil
}
