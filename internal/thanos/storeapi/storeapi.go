// Package storeapi is Thanos' StoreAPI over gRPC, client and server.
//
// Server: it serves a Source. It decodes requests into structs and reads series from the source
// through the raw interface (package series). It adds the external labels, removes replica labels
// if the request names them, checks the limits, and encodes batches by hand into pooled buffers.
// Client: it sends a SeriesRequest and returns a SeriesSet, a series.Set that receives batches as
// its Next is called. The set copies labels and chunks from gRPC's buffers to its own buffers,
// which it reuses for the next batch. Between two ferula processes labels may be sent as deltas:
// differences from the labels of the series before.
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
// No protobuf type leaves this package. It has no storage, does not merge stores and does not
// listen: the packages below internal/query and internal/app do that.
package storeapi

import (
	"context"
	"errors"
	"fmt"

	"github.com/prometheus/prometheus/model/exemplar"
	"github.com/prometheus/prometheus/model/labels"

	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/thanos/storepb"
)

// Errors of sources, servers and clients. The comment of each names its gRPC status code. Errors
// of a client also wrap the status that it received.
var (
	ErrBadRequest  = errors.New("bad request")       // InvalidArgument
	ErrLimit       = errors.New("limit exceeded")    // ResourceExhausted
	ErrUnavailable = errors.New("store unavailable") // Unavailable
	ErrCorrupt     = storepb.ErrCorrupt              // DataLoss
)

// ErrBytesMax is returned for a message or a series longer than SeriesRequest.BytesMax, or longer
// than ClientOptions.MessageBytesMax.
var ErrBytesMax = fmt.Errorf("%w: the response exceeds the byte limit of the request", ErrLimit)

// Aggr is the aggregate that the samples of a chunk hold.
type Aggr = storepb.Aggr

// The aggregates: raw samples, and the aggregates that downsampling computes from them.
const (
	Raw     = storepb.Raw
	Count   = storepb.Count
	Sum     = storepb.Sum
	Min     = storepb.Min
	Max     = storepb.Max
	Counter = storepb.Counter
)

// AggrChunk is a chunk of one aggregate. The chunks of one downsampled span are
// adjacent and have the same time range.
type AggrChunk struct {
	Aggr Aggr
	series.Chunk
}

// SpanLen returns how many of the chunks, from the first on, belong to one downsampled
// span: different aggregates of the same time range.
func SpanLen(chunks []AggrChunk) int {
	n := 1
	for n < len(chunks) && chunks[n].Aggr > chunks[n-1].Aggr && chunks[n].MinMS == chunks[0].MinMS &&
		chunks[n].MaxMS == chunks[0].MaxMS {
		n++
	}
	return n
}

// Shard is Thanos' ShardInfo: it selects the series whose labels, without replica labels, hash to Index of Total.
type Shard struct {
	Index, Total int64
	By           bool     // hash only Labels; false: hash all labels except Labels
	Labels       []string // in any order
}

// Hints are Thanos' QueryHints: they describe the query that needs the series. A store may ignore
// them.
type Hints struct {
	StepMS, RangeMS int64
	Func            string
	By              bool
	Grouping        []string
}

// SeriesRequest selects series. Timestamps are inclusive.
type SeriesRequest struct {
	MinMS, MaxMS         int64
	Matchers             []*labels.Matcher
	SkipChunks           bool     // return labels without chunks
	Limit                int64    // of series; 0: none
	WithoutReplicaLabels []string // labels to remove from every series; the result is sorted without them
	Shard                *Shard   // nil: all series
	MaxResolutionMS      int64    // Thanos' MaxResolutionWindow: coarsest resolution that is acceptable; 0: raw
	Aggregates           []Aggr   // requested from downsampled data
	AbortOnPartial       bool     // partial response strategy ABORT: an unreadable store is an error; false: a warning
	Hints                *Hints   // may be nil
	// Steps are the times at which the series are evaluated, if only the last sample at or before each of them counts.
	// A raw chunk may then lack samples: all but the last of the chunk, and the last at or before each step. nil: no
	// sample may be lacking.
	Steps *series.Steps
	// JoinChunks means, with Steps, that what remains of successive chunks of a series may be one chunk, whose samples
	// are the last of all and the last at or before each step.
	JoinChunks bool
	BytesMax   int64 // of a message and of a series, checked by the client; 0: the client's own limit
}

// LabelsRequest selects label names, or the values of one label.
type LabelsRequest struct {
	Label                string // label whose values are requested; "" for label names
	MinMS, MaxMS         int64  // inclusive
	Matchers             []*labels.Matcher
	WithoutReplicaLabels []string
	Limit                int64 // of names or values; 0: none
	AbortOnPartial       bool
}

// ExemplarsRequest selects the exemplars of the selectors in a PromQL expression.
type ExemplarsRequest struct {
	Query          string
	MinMS, MaxMS   int64 // inclusive
	AbortOnPartial bool
}

// Info is the description of a store.
type Info struct {
	LabelSets []labels.Labels // external labels of its data, one set or many
	Component string          // Thanos' name of the component: sidecar, store, receive, rule, query
	Store     *StoreInfo      // nil: no StoreAPI
	Exemplars *TimeRange      // nil: no exemplars
	// Further gRPC services that the store offers.
	Rules, MetricMetadata, Targets, Query, Status bool
}

// TimeRange is inclusive.
type TimeRange struct{ MinMS, MaxMS int64 }

// StoreInfo is the description of the StoreAPI.
type StoreInfo struct {
	TimeRange
	Sharding             bool // honours Shard
	WithoutReplicaLabels bool // honours WithoutReplicaLabels
	TSDBs                []TSDBInfo
}

// TSDBInfo is the description of one TSDB behind a store.
type TSDBInfo struct {
	Labels labels.Labels
	TimeRange
}

// Source is the data that a server serves. All methods are safe for concurrent use.
// Names and values are sorted. Warnings are texts for users.
type Source interface {
	// Info is called every few seconds by every querier. The server sets Sharding and
	// WithoutReplicaLabels of the StoreInfo, unless the source is a SeriesSource.
	Info(ctx context.Context) (Info, error)
	// ExternalLabels returns the labels that the server adds to every series. A label of the
	// series with the same name is replaced. Empty if the source adds them itself.
	ExternalLabels() labels.Labels
	// RawQuerier opens a querier for one request.
	series.Source
	// LabelNames and LabelValues are called without matchers of external labels: the server
	// evaluates these itself. The server adds the names of the external labels to the names. It
	// does not call LabelValues for an external label.
	LabelNames(ctx context.Context, r LabelsRequest) (names, warnings []string, err error)
	LabelValues(ctx context.Context, r LabelsRequest) (values, warnings []string, err error)
}

// Stream is a set that its reader closes. If it has a method AggrChunks() []AggrChunk,
// the server sends these chunks too.
type Stream interface {
	series.Set
	Close() error
}

// SeriesSource is a Source that serves a whole request itself, such as a proxy for other stores:
// it applies external labels, replica labels and shards. The server still applies Limit and its
// own limits.
type SeriesSource interface {
	Series(ctx context.Context, r SeriesRequest) Stream
}

// StepsForwarder is a SeriesSource that sends the steps of a request to other stores, which leave out samples
// themselves. Of the chunks of other sources the server leaves out samples.
type StepsForwarder interface {
	SeriesSource
	ForwardsSteps()
}

// ExemplarSource is a Source with exemplars.
type ExemplarSource interface {
	Exemplars(ctx context.Context, r ExemplarsRequest) (results []exemplar.QueryResult, warnings []string, err error)
}
