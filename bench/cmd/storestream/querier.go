package main

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"

	"github.com/ferula-io/ferula/bench/stores"
	"github.com/ferula-io/ferula/bench/streams"
	"github.com/ferula-io/ferula/internal/thanos/fanout"
	"github.com/ferula-io/ferula/internal/thanos/storeclient"
)

// endMS is the end of every request.
const endMS = 1 << 60

// promql reads a store as ferula query does for PromQL: every selection keeps all series in memory until it is closed.
type promql struct {
	endpoints *fanout.Endpoints
	fanout    *fanout.Fanout
}

// newPromQL connects to the store at address.
func newPromQL(ctx context.Context, address string) (*promql, error) {
	dial, err := storeclient.Options{}.Dialer()
	if err != nil {
		return nil, err
	}
	e := fanout.NewEndpoints(fanout.EndpointsOptions{Static: []fanout.Address{{Name: address}}, Dial: dial})
	e.Update(ctx)
	return &promql{e, fanout.New(e, fanout.Options{})}, nil
}

func (q *promql) close() { q.endpoints.Close() }

// receive selects all series, calls look with the set, and releases the series.
func (q *promql) receive(ctx context.Context, look func(storage.SeriesSet) error) (err error) {
	selection, err := q.fanout.Queryable(fanout.Request{AbortOnPartial: true}).Querier(0, endMS)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, selection.Close()) }()
	set := selection.Select(ctx, true, nil, labels.MustNewMatcher(labels.MatchNotEqual, "__name__", ""))
	return errors.Join(look(set), set.Err())
}

// keep runs a task of the querier over a store that holds these series.
func keep(t streams.Task, held []stores.Series, store *connection) (f streams.Figures, err error) {
	ctx := context.Background()
	q, err := newPromQL(ctx, store.conn.Target())
	if err != nil {
		return f, err
	}
	defer q.close()
	if t.Check {
		err := q.receive(ctx, func(set storage.SeriesSet) (err error) {
			f.Digest, err = keptDigest(set, held)
			return err
		})
		return f, err
	}
	return streams.Measure(store.listener, t.Repeats, func() error {
		return q.receive(ctx, func(set storage.SeriesSet) error {
			n := 0
			for set.Next() {
				n++
			}
			if n != len(held) {
				return fmt.Errorf("%w: %d of %d series", errKept, n, len(held))
			}
			return nil
		})
	})
}

// errKept means that the querier does not hold what the store sent.
var errKept = errors.New("the querier holds other series")

// keptDigest returns the digest of labels and samples. The querier returns samples and no chunks, so the samples are encoded
// again, in chunks as long as those that the store holds: equal samples have equal chunks.
func keptDigest(set storage.SeriesSet, held []stores.Series) (string, error) {
	d := streams.Digest{Hash: sha256.New()}
	n := 0
	var it chunkenc.Iterator
	for ; set.Next(); n++ {
		if n == len(held) {
			return "", fmt.Errorf("%w: more than %d", errKept, n)
		}
		s := set.At()
		s.Labels().Range(func(l labels.Label) { d.Label(l.Name, l.Value) })
		it = s.Iterator(it)
		for _, c := range held[n].Chunks {
			if err := encodeAgain(&d, it, int(binary.BigEndian.Uint16(c.Data))); err != nil {
				return "", fmt.Errorf("%s: %w", s.Labels(), err)
			}
		}
		if it.Next() != chunkenc.ValNone {
			return "", fmt.Errorf("%s: %w: more samples", s.Labels(), errKept)
		}
		if err := it.Err(); err != nil {
			return "", fmt.Errorf("%s: %w", s.Labels(), err)
		}
		d.End()
	}
	if n != len(held) {
		return "", fmt.Errorf("%w: %d of %d", errKept, n, len(held))
	}
	return d.String(), set.Err()
}

// encodeAgain adds the next n samples to the digest, as one chunk.
func encodeAgain(d *streams.Digest, it chunkenc.Iterator, n int) error {
	c := chunkenc.NewXORChunk()
	app, err := c.Appender()
	if err != nil {
		return err
	}
	var first, last int64
	for i := range n {
		if it.Next() != chunkenc.ValFloat {
			return errors.Join(fmt.Errorf("%w: %d of %d samples", errKept, i, n), it.Err())
		}
		at, v := it.At()
		if i == 0 {
			first = at
		}
		last = at
		app.Append(0, at, v)
	}
	d.Chunk(first, last, byte(c.Encoding()), c.Bytes())
	return nil
}
