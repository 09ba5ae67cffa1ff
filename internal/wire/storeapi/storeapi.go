// Package storeapi is Thanos' StoreAPI over gRPC, both sides.
//
// Server: a Source is put behind the wire. Requests become plain structs;
// series come from the source through the raw seam (package series), get the
// external labels, lose replica labels if the request says so, are counted
// against the limits, and leave as batches that are encoded by hand into pooled
// buffers. Client: a SeriesRequest goes out, and a SeriesSet, which is a
// series.Set, receives batches as its Next is called; labels and chunks are
// copied out of gRPC's buffers into the set's own, which are used again for the
// next batch. Between two ferulas labels may travel as numbers.
//
//	conn, err := grpc.NewClient(target, append(storeapi.GRPCDialOptions(), …)...)
//	client := storeapi.NewClient(conn, storeapi.ClientOptions{})
//	set := client.Series(ctx, storeapi.SeriesRequest{MinMS: mint, MaxMS: maxt, Matchers: matchers})
//	defer set.Close()
//	for set.Next() { set.Labels(); set.Chunks(); set.AggrChunks() }
//	err, warnings := set.Err(), set.Warnings()
//
//	server := grpc.NewServer(storeapi.GRPCServerOptions()...)
//	storeapi.NewServer(source, storeapi.ServerOptions{}).Register(server)
//
// No protobuf type leaves this package. There is no storage here, no merging of
// several stores and no listening: queries and roles do that.
package storeapi

import (
	"context"
	"errors"
	"fmt"

	"github.com/prometheus/prometheus/model/exemplar"
	"github.com/prometheus/prometheus/model/labels"

	"github.com/ferula-io/ferula/internal/codec/storepb"
	"github.com/ferula-io/ferula/internal/series"
)

// What a source, a server or a client reports; each has one status code. Errors
// of a client also wrap the status that came over the wire.
var (
	ErrBadRequest  = errors.New("bad request")       // InvalidArgument
	ErrLimit       = errors.New("limit exceeded")    // ResourceExhausted
	ErrUnavailable = errors.New("store unavailable") // Unavailable
	ErrCorrupt     = storepb.ErrCorrupt              // DataLoss
)

// ErrBytesMax is a message or a series that is longer than the request takes.
var ErrBytesMax = fmt.Errorf("%w: more bytes than the request takes", ErrLimit)

// Aggr says what the samples of a chunk are.
type Aggr = storepb.Aggr

// What there is: samples as measured, and what downsampling makes of them.
const (
	Raw     = storepb.Raw
	Count   = storepb.Count
	Sum     = storepb.Sum
	Min     = storepb.Min
	Max     = storepb.Max
	Counter = storepb.Counter
)

// AggrChunk is a chunk of one aggregate. Those of one downsampled span follow
// each other and have the same range.
type AggrChunk struct {
	Aggr Aggr
	series.Chunk
}

// SpanLen is how many of the chunks, from the first one on, are of one downsampled span:
// different aggregates of the same range.
func SpanLen(chunks []AggrChunk) int {
	n := 1
	for n < len(chunks) && chunks[n].Aggr > chunks[n-1].Aggr && chunks[n].MinMS == chunks[0].MinMS && chunks[n].MaxMS == chunks[0].MaxMS {
		n++
	}
	return n
}

// Shard asks for those series whose labels hash to Index of Total.
type Shard struct {
	Index, Total int64
	By           bool     // hash these labels; else all but these
	Labels       []string // in any order
}

// Hints say what series are for; nobody must use them.
type Hints struct {
	StepMS, RangeMS int64
	Func            string
	By              bool
	Grouping        []string
}

// SeriesRequest asks for series. Times are inclusive.
type SeriesRequest struct {
	MinMS, MaxMS         int64
	Matchers             []*labels.Matcher
	SkipChunks           bool     // labels only
	Limit                int64    // of series; 0: none
	WithoutReplicaLabels []string // to be removed from every series, which are in order without them
	Shard                *Shard   // nil: every series
	MaxResolutionMS      int64    // the coarsest downsampling that will do; 0: raw
	Aggregates           []Aggr   // wanted of downsampled data
	AbortOnPartial       bool     // fail rather than warn when a part is missing
	Hints                *Hints   // may be nil
	BytesMax             int64    // a client takes no longer message and no longer series; 0: its own limit
}

// LabelsRequest asks for the names of labels, or for one's values.
type LabelsRequest struct {
	Label                string // whose values are asked for; "" for names
	MinMS, MaxMS         int64  // inclusive
	Matchers             []*labels.Matcher
	WithoutReplicaLabels []string
	Limit                int64 // of names or values; 0: none
	AbortOnPartial       bool
}

// ExemplarsRequest asks for the exemplars of the selectors in a PromQL expression.
type ExemplarsRequest struct {
	Query          string
	MinMS, MaxMS   int64 // inclusive
	AbortOnPartial bool
}

// Info is what a store says of itself.
type Info struct {
	LabelSets []labels.Labels // external labels of what it holds, one set or many
	Component string          // Thanos' word for the kind: sidecar, store, receive, rule, query
	Store     *StoreInfo      // nil: no StoreAPI
	Exemplars *TimeRange      // nil: no exemplars
	// Services that it offers beside.
	Rules, MetricMetadata, Targets, Query, Status bool
}

// TimeRange is inclusive.
type TimeRange struct{ MinMS, MaxMS int64 }

// StoreInfo describes the StoreAPI.
type StoreInfo struct {
	TimeRange
	Sharding             bool // honours Shard
	WithoutReplicaLabels bool // honours WithoutReplicaLabels
	TSDBs                []TSDBInfo
}

// TSDBInfo describes one database behind a store.
type TSDBInfo struct {
	Labels labels.Labels
	TimeRange
}

// Source is what a server serves. All of it is safe for concurrent use. Names
// and values are given sorted; warnings are for people.
type Source interface {
	// Info is asked for every few seconds by every querier. The server fills in
	// that it honours shards and replica labels.
	Info(ctx context.Context) (Info, error)
	// ExternalLabels are added to every series by the server, and win over a
	// series' own. Empty if the source's series have them already.
	ExternalLabels() labels.Labels
	// Source opens a querier for one request.
	series.Source
	// LabelNames and LabelValues know nothing of external labels: the server has
	// removed matchers of them and adds them.
	LabelNames(ctx context.Context, r LabelsRequest) (names, warnings []string, err error)
	LabelValues(ctx context.Context, r LabelsRequest) (values, warnings []string, err error)
}

// Stream is a set that is closed when it is not needed any more. It may have a
// method AggrChunks() []AggrChunk, which is then what is served.
type Stream interface {
	series.Set
	Close() error
}

// SeriesSource is a Source that answers whole requests itself, as one in front of
// other stores does: external labels, replica labels, shards and all. The server
// still cuts off at Limit and counts.
type SeriesSource interface {
	Series(ctx context.Context, r SeriesRequest) Stream
}

// ExemplarSource is a Source that has exemplars.
type ExemplarSource interface {
	Exemplars(ctx context.Context, r ExemplarsRequest) (results []exemplar.QueryResult, warnings []string, err error)
}
