package storeapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"google.golang.org/grpc"

	"github.com/ferula-io/ferula/internal/series"
	pb "github.com/ferula-io/ferula/internal/thanos/storepb/thanospb"
)

var errBroken = errors.New("it is broken")

// closing is a source whose queriers fail to be closed.
type closing struct {
	memorySource
	closed error
}

func (c *closing) Series(ctx context.Context, r SeriesRequest) Stream {
	return LocalSeries(ctx, c, c.external, r)
}

func (c *closing) RawQuerier(ctx context.Context, mint, maxt int64) (series.Querier, error) {
	q, err := c.memorySource.RawQuerier(ctx, mint, maxt)
	return closingQuerier{q, c.closed}, err
}

type closingQuerier struct {
	series.Querier
	err error
}

func (q closingQuerier) Close() error { return errors.Join(q.Querier.Close(), q.err) }

// observedStream records what a server sends, and fails after some messages.
type observedStream struct {
	failingSends
	ctx context.Context
}

func (o *observedStream) Context() context.Context { return o.ctx }

// A querier that is not closed delays the deletion of its blocks.
func TestServer_QueriersAreClosed(t *testing.T) {
	in := func() *pb.SeriesRequest {
		return seriesRequest(SeriesRequest{MaxMS: 1 << 40, Matchers: all()}, ClientOptions{NoExtension: true})
	}
	canceled, cancel := context.WithCancelCause(t.Context())
	cancel(errBroken)
	for name, tt := range map[string]struct {
		src  *memorySource
		opts ServerOptions
		ctx  context.Context
		left int
		want error
	}{
		"all sent":        {&memorySource{warnings: []string{"w"}}, ServerOptions{}, t.Context(), 100, nil},
		"a broken set":    {&memorySource{err: errBroken}, ServerOptions{}, t.Context(), 100, errBroken},
		"a limit":         {&memorySource{}, ServerOptions{SeriesMax: 2}, t.Context(), 100, ErrLimit},
		"a client gone":   {&memorySource{}, ServerOptions{}, t.Context(), 0, io.ErrClosedPipe},
		"before warnings": {&memorySource{warnings: []string{"w"}}, ServerOptions{}, t.Context(), 3, io.ErrClosedPipe},
		"a canceled call": {&memorySource{}, ServerOptions{}, canceled, 100, errBroken},
	} {
		var lines strings.Builder
		tt.opts.Logger = slog.New(slog.NewTextHandler(&lines, nil))
		src := &closing{memorySource: memorySource{rows: rows(t, 3), warnings: tt.src.warnings, err: tt.src.err}}
		s := NewServer(src, tt.opts)
		if err := s.series(in(), &observedStream{failingSends{left: tt.left}, tt.ctx}); !errors.Is(err, tt.want) || tt.want == nil && err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if src.openQueriers() != 0 || lines.Len() > 0 {
			t.Errorf("%s: %d queriers are open, %s", name, src.openQueriers(), lines.String())
		}
	}
	var lines strings.Builder
	src := &closing{memorySource: memorySource{rows: rows(t, 3)}, closed: errBroken}
	s := NewServer(src, ServerOptions{Logger: slog.New(slog.NewTextHandler(&lines, nil))})
	if err := s.series(in(), &observedStream{failingSends{left: 100}, t.Context()}); err != nil || !strings.Contains(lines.String(), "it is broken") {
		t.Errorf("%v, %s", err, lines.String())
	}
}

func TestServer_LookupOfAnExternalLabelClosesItsQuerier(t *testing.T) {
	external := labels.FromStrings("cluster", "eu")
	request := func(value string) *pb.LabelValuesRequest {
		return &pb.LabelValuesRequest{Label: "cluster", End: 10, Matchers: matchersTo([]*labels.Matcher{equal("__name__", value)})}
	}
	for name, tt := range map[string]struct {
		src    *closing
		metric string
		values string
		want   error
	}{
		"a series":      {&closing{}, "requests_total", "[eu]", nil},
		"no series":     {&closing{}, "none", "[]", nil},
		"a broken set":  {&closing{memorySource: memorySource{err: errBroken}}, "none", "", errBroken},
		"opening":       {&closing{memorySource: memorySource{querier: func(int64, int64) error { return errBroken }}}, "none", "", errBroken},
		"closing fails": {&closing{closed: errBroken}, "requests_total", "", errBroken},
	} {
		src := &closing{memorySource: memorySource{rows: rows(t, 3), external: external, err: tt.src.err, querier: tt.src.querier}, closed: tt.src.closed}
		out, err := NewServer(src, ServerOptions{}).labelValues(t.Context(), request(tt.metric))
		if !errors.Is(err, tt.want) || tt.want == nil && (err != nil || fmt.Sprint(out.Values) != tt.values) || src.openQueriers() != 0 {
			t.Errorf("%s: %v, %v, %d queriers are open", name, out, err, src.openQueriers())
		}
	}
}

// observedConn keeps the context of the latest stream.
type observedConn struct {
	brokenConn
	ctx context.Context
}

func (o *observedConn) NewStream(ctx context.Context, d *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	o.ctx = ctx
	return o.brokenConn.NewStream(ctx, d, method, opts...)
}

// gRPC holds the resources of a stream until its context is done.
func TestClient_StreamsEndWithTheirCalls(t *testing.T) {
	for _, broken := range []brokenConn{{}, {begin: errBroken}, {send: errBroken}, {end: errBroken}} {
		conn := &observedConn{brokenConn: broken}
		c := NewClient(conn, ClientOptions{})
		_, _, err := c.Rules(t.Context(), RulesRequest{})
		if (err != nil) != (broken != brokenConn{}) || conn.ctx.Err() == nil {
			t.Errorf("%+v: %v, its context outlives it: %v", broken, err, conn.ctx.Err() == nil)
		}
		set := c.Series(t.Context(), SeriesRequest{})
		for set.Next() {
		}
		if err := set.Close(); err != nil || conn.ctx.Err() == nil {
			t.Errorf("series of %+v: %v, its context outlives it: %v", broken, err, conn.ctx.Err() == nil)
		}
	}
	conn := &observedConn{}
	set := NewClient(conn, ClientOptions{}).Series(t.Context(), SeriesRequest{})
	if conn.ctx.Err() != nil {
		t.Error("the stream ends before it is read")
	}
	if err := set.Close(); err != nil || conn.ctx.Err() == nil {
		t.Errorf("not read: %v", err)
	}
}

func TestRegisterSnappy_CanBeRepeated(t *testing.T) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 2 {
			RegisterSnappy()
		}
	}()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatal("the second call hangs")
	}
}
