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
//	for set.Next() { set.Labels(); set.Chunks() }
//	err, warnings := set.Err(), set.Warnings()
//
//	server := grpc.NewServer(storeapi.GRPCServerOptions()...)
//	storeapi.NewServer(source, storeapi.ServerOptions{}).Register(server)
//
// No protobuf type leaves this package. It has no storage, does not merge stores and does not
// listen: the packages below internal/thanos/fanout and internal/app do that.
package storeapi

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/prometheus/prometheus/model/exemplar"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/metadata"

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
type Aggr = series.Aggr

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

// JoinAny is the JoinMS of a request whose chunks may all be joined.
const JoinAny = math.MaxInt64

// SeriesRequest selects series. Timestamps are inclusive.
type SeriesRequest struct {
	MinMS, MaxMS         int64
	Matchers             []*labels.Matcher
	SkipChunks           bool     // return labels without chunks
	Limit                int64    // of series; 0: none
	WithoutReplicaLabels []string // labels to remove from every series; the result is sorted without them
	Shard                *Shard   // nil: all series
	MaxResolutionMS      int64    // Thanos' MaxResolutionWindow: coarsest resolution that is acceptable; 0: raw
	Aggregates           []Aggr   // requested from downsampled data; others are left out
	AbortOnPartial       bool     // partial response strategy ABORT: an unreadable store is an error; false: a warning
	Hints                *Hints   // may be nil
	// Steps are the times at which the series are evaluated, if only the last sample at or before each of them counts.
	// A raw chunk may then lack samples: all but the last of the chunk, and the last at or before each step. nil: no
	// sample may be lacking.
	Steps *series.Steps
	// JoinMS means, with Steps, that what remains of successive chunks of a series may be one chunk if they begin in the
	// same span of so many ms, counted from 1970. Its samples are the last of all and the last at or before each step.
	// 0: no chunks are joined; JoinAny: no chunk begins too late.
	JoinMS int64
	// Summaries states which raw float chunks may be Summarized; nil: none. Its range is MinMS to MaxMS.
	Summaries *series.Summaries
	BytesMax  int64 // of a message and of a series, checked by the client; 0: the client's own limit
	// SortBytesMax is the limit of the series that a source sorts again; 0: 256 MiB. It is not sent.
	SortBytesMax int
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

// MetadataRequest selects the metadata of one metric, or of all if Metric is "".
type MetadataRequest struct {
	Metric         string
	Limit          int // of the metrics of each store; -1: none
	AbortOnPartial bool
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

// API is a store. All methods are safe for concurrent use. Names and values are sorted. Warnings are texts for users.
type API interface {
	Info(ctx context.Context) (Info, error)
	// Series never returns nil; errors are in the stream.
	Series(ctx context.Context, r SeriesRequest) Stream
	LabelNames(ctx context.Context, r LabelsRequest) (names, warnings []string, err error)
	LabelValues(ctx context.Context, r LabelsRequest) (values, warnings []string, err error)
	Services
}

// Services are the APIs that not every store has. NoServices has none of them.
type Services interface {
	Exemplars(ctx context.Context, r ExemplarsRequest) (results []exemplar.QueryResult, warnings []string, err error)
	Rules(ctx context.Context, r RulesRequest) (groups []RuleGroup, warnings []string, err error)
	Targets(ctx context.Context, r TargetsRequest) (found Targets, warnings []string, err error)
	MetricMetadata(ctx context.Context, r MetadataRequest) (found map[string][]metadata.Metadata, warnings []string, err error)
	// TSDBStatistics returns the statistics of each tenant and TSDB.
	TSDBStatistics(ctx context.Context, r StatusRequest) (all []TSDBStatistics, warnings []string, err error)
}

// Source is the data that a server serves. Its Series applies external labels, replica labels and shards, as
// LocalSeries does for a source of series without external labels. The server applies shards and Limit to what is left,
// and its own limits.
type Source interface {
	API
	Capabilities() Capabilities
	// ExternalLabels returns the labels that the server adds to names, values and exemplars. Empty if the source adds
	// them itself. LabelNames and LabelValues are called without matchers of external labels, which the server evaluates,
	// and LabelValues is not called for an external label.
	ExternalLabels() labels.Labels
}

// Capabilities state what a Source has. They do not change.
type Capabilities struct {
	// The services that the server registers.
	Exemplars, Rules, Targets, MetricMetadata, Status bool
	// ForwardsSteps: the source sends the steps of a request to other stores, which leave out samples themselves. Of the
	// chunks of other sources the server leaves out samples.
	ForwardsSteps bool
}

// NoServices is embedded in stores that lack some or all of the services.
type NoServices struct{}

// Exemplars implements Services.
func (NoServices) Exemplars(context.Context, ExemplarsRequest) ([]exemplar.QueryResult, []string, error) {
	return nil, nil, nil
}

// Rules implements Services.
func (NoServices) Rules(context.Context, RulesRequest) ([]RuleGroup, []string, error) {
	return nil, nil, nil
}

// Targets implements Services.
func (NoServices) Targets(context.Context, TargetsRequest) (found Targets, warnings []string, err error) {
	return found, nil, nil
}

// MetricMetadata implements Services.
func (NoServices) MetricMetadata(context.Context, MetadataRequest) (map[string][]metadata.Metadata, []string, error) {
	return nil, nil, nil
}

// TSDBStatistics implements Services.
func (NoServices) TSDBStatistics(context.Context, StatusRequest) ([]TSDBStatistics, []string, error) {
	return nil, nil, nil
}

// Stream is a set that its reader closes.
type Stream interface {
	series.Set
	// BufferedBytes returns the memory of received messages. The stream holds it until its end, in addition to the copies
	// of the reader.
	BufferedBytes() int64
	Close() error
}

// Failed returns a stream without series whose Err returns err. err may be nil.
func Failed(err error) Stream { return selection{Set: series.Failed(err)} }

// selection is a set with its querier.
type selection struct {
	series.Set
	from series.Querier // nil: none
}

func (selection) BufferedBytes() int64 { return 0 }

func (s selection) Close() error {
	if s.from == nil {
		return nil
	}
	return s.from.Close()
}

// LocalSeries serves a request from series without external labels.
func LocalSeries(ctx context.Context, from series.Source, external labels.Labels, r SeriesRequest) Stream {
	matchers, found := series.MatchExternal(external, r.Matchers)
	switch {
	case !found:
		return Failed(nil)
	case len(matchers) == 0:
		return Failed(fmt.Errorf("%w: no matchers except on external labels", ErrBadRequest))
	}
	q, err := from.RawQuerier(ctx, r.MinMS, r.MaxMS)
	if err != nil {
		return Failed(err)
	}
	opts := series.SelectOptions{LabelsOnly: r.SkipChunks, Summaries: r.Summaries}
	return selection{series.SelectReplacingLabels(ctx, q, opts, external, r.WithoutReplicaLabels,
		series.NewSortBudget(r.SortBytesMax), matchers...), q}
}
