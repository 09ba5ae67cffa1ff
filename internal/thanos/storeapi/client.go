package storeapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/prometheus/prometheus/model/exemplar"
	"github.com/prometheus/prometheus/model/labels"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/status"

	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/thanos/storepb"
	pb "github.com/ferula-io/ferula/internal/thanos/storepb/thanospb"
)

// ClientOptions are the options of a Client. The zero value is usable.
type ClientOptions struct {
	BatchSeries     int    // series per batch to request from servers that support batches; 0: 64; 1: no batches
	NoExtension     bool   // use none of ferula's extensions: deltas, large batches, steps
	NoDeltas        bool   // do not request deltas: labels as differences to the previous series
	MessageBytesMax int    // a longer message or series is an error; 0: 2 GiB less one byte
	Compression     string // name of a registered compressor for requests; "": none
}

func (o ClientOptions) withDefaults() ClientOptions {
	o.BatchSeries = cmp.Or(o.BatchSeries, 64)
	// As in Thanos, whose batches are limited by the number of series only.
	o.MessageBytesMax = cmp.Or(o.MessageBytesMax, math.MaxInt32)
	return o
}

// Client sends requests to one store. It is safe for concurrent use. The caller owns
// the connection.
type Client struct {
	conn grpc.ClientConnInterface
	opts ClientOptions
	call []grpc.CallOption
	list []grpc.CallOption // additional options of all calls except Series and Info
}

// NewClient returns a client. It sends nothing yet.
func NewClient(conn grpc.ClientConnInterface, opts ClientOptions) *Client {
	c := &Client{conn: conn, opts: opts.withDefaults()}
	c.call = []grpc.CallOption{grpc.ForceCodecV2(codec{encoding.GetCodecV2("proto"), responseElementsMax}),
		grpc.MaxCallRecvMsgSize(c.opts.MessageBytesMax)}
	if opts.Compression != "" {
		c.call = append(c.call, grpc.UseCompressor(opts.Compression))
	}
	c.list = []grpc.CallOption{grpc.MaxCallRecvMsgSize(min(c.opts.MessageBytesMax, listBytesMax))}
	return c
}

// Limits of the responses that are held in memory as a whole: all except series.
const (
	infoBytesMax        = 64 << 20
	listBytesMax        = 256 << 20 // of all messages of a response
	responseElementsMax = 16 << 20  // messages and elements of repeated fields in one message
)

// Info requests the description of the store.
func (c *Client) Info(ctx context.Context) (Info, error) {
	var out pb.InfoResponse
	if err := c.conn.Invoke(ctx, "/thanos.info.Info/Info", &pb.InfoRequest{}, &out,
		append(slices.Clip(c.call), grpc.MaxCallRecvMsgSize(min(c.opts.MessageBytesMax, infoBytesMax)))...); err != nil {
		return Info{}, fromStatus(err)
	}
	return infoFrom(&out), nil
}

// LabelNames returns the label names.
func (c *Client) LabelNames(ctx context.Context, r LabelsRequest) (names, warnings []string, err error) {
	var out pb.LabelNamesResponse
	if err := c.conn.Invoke(ctx, "/thanos.Store/LabelNames", namesRequest(r), &out,
		slices.Concat(c.call, c.list)...); err != nil {
		return nil, nil, fromStatus(err)
	}
	return out.Names, out.Warnings, nil
}

// LabelValues returns the values of the label r.Label.
func (c *Client) LabelValues(ctx context.Context, r LabelsRequest) (values, warnings []string, err error) {
	var out pb.LabelValuesResponse
	if err := c.conn.Invoke(ctx, "/thanos.Store/LabelValues", valuesRequest(r), &out,
		slices.Concat(c.call, c.list)...); err != nil {
		return nil, nil, fromStatus(err)
	}
	return out.Values, out.Warnings, nil
}

// Exemplars returns the exemplars of a store. The whole response is in memory; more than listMax
// series, exemplars and warnings are ErrLimit.
func (c *Client) Exemplars(ctx context.Context, r ExemplarsRequest) (results []exemplar.QueryResult, warnings []string,
	err error) {
	request := &pb.ExemplarsRequest{Query: r.Query, Start: r.MinMS, End: r.MaxMS,
		PartialResponseStrategy: strategy(r.AbortOnPartial)}
	const method = "/thanos.Exemplars/Exemplars"
	warnings, err = receive(ctx, c, method, request, "exemplars", func(msg *pb.ExemplarsResponse) int {
		data := msg.GetData()
		if data != nil {
			results = append(results, exemplarsFrom(data))
		}
		return len(data.GetExemplars())
	})
	if err != nil {
		return nil, nil, err
	}
	return results, warnings, nil
}

// stream sends the only message of a call with a stream of responses.
func (c *Client) stream(ctx context.Context, method string, request any,
	more ...grpc.CallOption) (grpc.ClientStream, error) {
	stream, err := c.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, method, slices.Concat(c.call, more)...)
	if err != nil {
		return nil, err
	}
	// io.EOF means that the status is to be received. Any other error of sending is final.
	if err := stream.SendMsg(request); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return stream, stream.CloseSend()
}

// Series requests series. It does not wait for the response: the set returns all errors. The
// caller must close the set.
func (c *Client) Series(ctx context.Context, r SeriesRequest) *SeriesSet {
	ctx, cancel := context.WithCancel(ctx)
	s := &SeriesSet{cancel: cancel, bytesMax: c.opts.MessageBytesMax,
		decoder: storepb.Decoder{Wanted: series.AggrsOf(r.Aggregates), Summaries: r.Summaries != nil}}
	request := seriesRequest(r, c.opts)
	var limit []grpc.CallOption
	if r.BytesMax > 0 && r.BytesMax < int64(s.bytesMax) {
		s.bytesMax = int(r.BytesMax)
		limit = append(limit, grpc.MaxCallRecvMsgSize(s.bytesMax))
	}
	stream, err := c.stream(ctx, "/thanos.Store/Series", request, limit...)
	if err != nil {
		s.fail(fromStatus(err))
	}
	s.stream = stream
	return s
}

// fromStatus wraps a status error with the sentinel of its code.
func fromStatus(err error) error {
	switch status.Code(err) {
	case codes.InvalidArgument:
		return fmt.Errorf("%w: %w", ErrBadRequest, err)
	case codes.ResourceExhausted:
		return fmt.Errorf("%w: %w", ErrLimit, err)
	case codes.Unavailable:
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	case codes.DataLoss:
		return fmt.Errorf("%w: %w", ErrCorrupt, err)
	case codes.Canceled:
		return fmt.Errorf("%w: %w", context.Canceled, err)
	case codes.DeadlineExceeded:
		return fmt.Errorf("%w: %w", context.DeadlineExceeded, err)
	}
	return err
}

func labelsOf(set []*pb.Label) labels.Labels {
	b := labels.NewScratchBuilder(len(set))
	for _, l := range set {
		b.Add(l.Name, l.Value)
	}
	b.Sort()
	return b.Labels()
}
