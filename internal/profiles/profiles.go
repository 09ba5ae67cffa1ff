// Package profiles is the interface between ingestion, store, wire and query of profiles:
// the types in which profiles are pushed, queried and returned.
//
// A RawProfile is pushed: an encoded label set (labelenc: sorted, with __name__, and usually with
// service_name, by which the store divides profiles into datasets), an ID, and pprof bytes. The
// store writes one row for each sample type and each set of labels that its samples have.
// Requests name a Type, matchers, and an inclusive range in milliseconds. Results are structs
// whose label sets are encoded bytes. A SeriesResult borrows memory until Close. The caller owns
// a FlameGraph and pprof bytes.
//
//	profiles/store.Store     Append(ctx, tenant, []RawProfile) error   returns once durable
//	profiles/query.Engine    SelectSeries, MergeFlame, MergePprof, ProfileTypes,
//	                        LabelNames, LabelValues, Series, Stats
//
// Labels that name the measured quantity of a row (__profile_type__, __type__, __unit__, __period_type__,
// __period_unit__) are not pushed. They follow from the pprof: requests can match them, group by them and list them.
// The labels of an exemplar do not contain them. The package has no protobuf, no JSON and no I/O.
package profiles

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/ferula-io/ferula/internal/profiles/pprof"
)

// Errors by cause: an invalid request, a limit, an unavailable source, corrupt stored data.
var (
	ErrBadRequest  = errors.New("bad request")
	ErrLimit       = errors.New("limit exceeded")
	ErrUnavailable = errors.New("profiles are unavailable")
	ErrCorrupt     = errors.New("corrupt profile data")
)

// ErrNewer is the error of stored data in a format that only a newer version of ferula knows. Such an error is
// ErrCorrupt, too, because both kinds of data are left out and kept. Messages and metrics differ: newer data needs
// another version, and not a repair.
var ErrNewer error = newerError{}

type newerError struct{}

func (newerError) Error() string        { return "profile data of a newer version of ferula" }
func (newerError) Is(target error) bool { return target == ErrCorrupt }

// Names of labels with a special meaning.
const (
	LabelName       = labels.MetricName
	LabelService    = "service_name"
	LabelType       = "__profile_type__"
	LabelSampleType = "__type__"
	LabelSampleUnit = "__unit__"
	LabelPeriodType = "__period_type__"
	LabelPeriodUnit = "__period_unit__"
)

// ID identifies a profile: a UUID.
type ID [16]byte

// ParseID reads a UUID, with or without dashes.
func ParseID(text string) (ID, error) {
	var id ID
	plain := text
	if len(text) == 36 && text[8] == '-' && text[13] == '-' && text[18] == '-' && text[23] == '-' {
		plain = text[:8] + text[9:13] + text[14:18] + text[19:23] + text[24:]
	}
	if len(plain) != 32 {
		return id, fmt.Errorf("%w: profile id %.100q is not a UUID", ErrBadRequest, text)
	}
	if _, err := hex.Decode(id[:], []byte(plain)); err != nil {
		return id, fmt.Errorf("%w: profile id %.100q is not a UUID", ErrBadRequest, text)
	}
	return id, nil
}

// NewID returns a UUID of version 7: a timestamp in milliseconds followed by random bits.
func NewID(timeMS int64) (id ID) {
	_, _ = rand.Read(id[6:]) // it never fails
	for i := range 6 {
		id[i] = byte(timeMS >> (40 - 8*i))
	}
	id[6], id[8] = id[6]&0x0f|0x70, id[8]&0x3f|0x80
	return id
}

// TimeMS returns the timestamp of a UUID of version 7. ok is false for other versions.
func (id ID) TimeMS() (ms int64, ok bool) {
	if id[6]>>4 != 7 || id[8]>>6 != 2 {
		return 0, false
	}
	for _, b := range id[:6] {
		ms = ms<<8 | int64(b)
	}
	return ms, true
}

// IDBytes is the length of a UUID in text.
const IDBytes = 36

// Append appends the UUID in text, with dashes.
func (id *ID) Append(dst []byte) []byte {
	n := len(dst)
	dst = slices.Grow(dst, IDBytes)[:n+IDBytes]
	id.Put(dst[n:])
	return dst
}

// Put writes the UUID in text to dst, which has IDBytes bytes.
func (id *ID) Put(dst []byte) {
	_ = dst[IDBytes-1]
	le := binary.LittleEndian
	le.PutUint64(dst, hexDigits(le.Uint32(id[:])))
	dst[8] = '-'
	v := hexDigits(le.Uint32(id[4:]))
	le.PutUint32(dst[9:], uint32(v))
	dst[13] = '-'
	le.PutUint32(dst[14:], uint32(v>>32))
	dst[18] = '-'
	v = hexDigits(le.Uint32(id[8:]))
	le.PutUint32(dst[19:], uint32(v))
	dst[23] = '-'
	le.PutUint32(dst[24:], uint32(v>>32))
	le.PutUint64(dst[28:], hexDigits(le.Uint32(id[12:])))
}

// hexDigits returns the eight hexadecimal digits of four bytes, in the order of memory.
func hexDigits(v uint32) uint64 {
	x := uint64(v)
	x = (x | x<<16) & 0x0000FFFF0000FFFF
	x = (x | x<<8) & 0x00FF00FF00FF00FF
	digits := x>>4&0x000F000F000F000F | x&0x000F000F000F000F<<8
	letters := (digits + 0x0606060606060606) >> 4 & 0x0101010101010101 // 1 for digits above 9
	return digits + 0x3030303030303030 + letters*('a'-'0'-10)
}

// String returns the UUID with dashes.
func (id ID) String() string { return string(id.Append(make([]byte, 0, IDBytes))) }

// TraceID identifies a trace.
type TraceID [16]byte

// ParseTraceID parses a trace ID of 32 hexadecimal digits. The ID zero is an error.
func ParseTraceID(text string) (id TraceID, err error) {
	if len(text) == 32 {
		_, err = hex.Decode(id[:], []byte(text))
	}
	if len(text) != 32 || err != nil || id == (TraceID{}) {
		return TraceID{}, fmt.Errorf("%w: trace id %.100q is not 32 hexadecimal digits", ErrBadRequest, text)
	}
	return id, nil
}

// ParseSpanID parses a span ID of 16 hexadecimal digits. The ID zero is an error.
func ParseSpanID(text string) (uint64, error) {
	id, err := strconv.ParseUint(text, 16, 64)
	if len(text) != 16 || err != nil || id == 0 {
		return 0, fmt.Errorf("%w: span id %.100q is not 16 hexadecimal digits", ErrBadRequest, text)
	}
	return id, nil
}

// Type is the quantity that a profile measures.
type Type struct{ Name, SampleType, SampleUnit, PeriodType, PeriodUnit string }

// ParseType parses `name:sample_type:sample_unit:period_type:period_unit`.
func ParseType(text string) (Type, error) {
	parts := strings.Split(text, ":")
	if len(parts) != 5 || parts[0] == "" || parts[1] == "" {
		return Type{}, fmt.Errorf("%w: profile type %.200q is not name:sample_type:sample_unit:period_type:period_unit",
			ErrBadRequest, text)
	}
	return Type{parts[0], parts[1], parts[2], parts[3], parts[4]}, nil
}

// String returns the type in the format that ParseType reads.
func (t Type) String() string {
	return t.Name + ":" + t.SampleType + ":" + t.SampleUnit + ":" + t.PeriodType + ":" + t.PeriodUnit
}

// RawProfile is one profile to be stored. All of it is borrowed until Append returns.
type RawProfile struct {
	Labels []byte // encoded, valid, with __name__
	ID     ID     // zero: the store chooses one
	TimeNS int64  // Unix time; 0: the time in the pprof
	Raw    []byte // pprof, gzip or plain, as written to the write-ahead log
	// Profile is the decoded Raw, if the caller has decoded it already; nil: the store decodes Raw.
	Profile *pprof.Profile
}

// SeriesRequest selects values over time. The point at timestamp t sums the rows in
// (t-StepMS, t]; timestamps are StartMS, StartMS+StepMS and so on up to EndMS.
type SeriesRequest struct {
	Tenant    string
	Type      Type
	Matchers  []*labels.Matcher
	StartMS   int64
	EndMS     int64
	StepMS    int64 // at least 1
	GroupBy   []string
	Average   bool     // return the average of a point's rows, not the sum
	CallSite  []string // count only stacks that begin with these functions, root first
	Limit     int      // number of series, greatest totals first; 0: all
	Exemplars bool     // return one profile with each point
	Spans     bool     // with Exemplars: return a span of a trace, not a profile; without CallSite only
}

// SeriesResult is owned by the caller until Close. Nothing of it may be used after Close.
type SeriesResult struct {
	Series   []Series // sorted by labels
	Warnings []error  // sources that could not be read; the result lacks their data

	// Sets holds the encoded label sets to which Exemplar.Set refers; nil without exemplars. Not all of them belong to an
	// exemplar. A set may contain labels that GroupBy names. The labels of an exemplar do not contain them: an encoder
	// omits them.
	Sets    [][]byte
	GroupBy []string // sorted
	// Spans holds the spans to which Exemplar.Span refers; nil if the exemplars are profiles. Spans[0] stands for no
	// span: a point whose exemplar refers to it has no exemplar.
	Spans []Span

	release func()
}

// NewSeriesResult returns a result whose Close calls release.
func NewSeriesResult(release func()) *SeriesResult { return &SeriesResult{release: release} }

// Close releases the memory of the result.
func (a *SeriesResult) Close() {
	if a != nil && a.release != nil {
		release := a.release
		a.release = nil
		release()
	}
}

// Series is one group. Its labels are the labels of GroupBy that the group has.
type Series struct {
	Labels    []byte // encoded
	Points    []Point
	Exemplars []Exemplar // empty, or one for each point
}

// Point is the value of one step. A step without rows has no point.
type Point struct {
	TimeMS int64
	Value  float64
}

// Exemplar is the profile with the greatest value of a point. Of several profiles with the greatest value it is the
// earliest. Of several such profiles with the same timestamp it is the profile with the smallest ID.
type Exemplar struct {
	ID     ID
	TimeNS int64
	Value  int64  // sum of the profile's rows in the step
	Set    uint32 // number of its label set in SeriesResult.Sets
	Span   uint32 // number of its span in SeriesResult.Spans; then Value is the sum of the span's samples
}

// HeatmapRequest selects profiles, or spans, to be counted by time and value. The slot at timestamp t counts the
// profiles in (t-StepMS, t], as a point of a SeriesRequest does. Exemplars are one for each interval of values in a
// slot. With Spans, they count spans of traces, not profiles. Average and CallSite are not used.
type HeatmapRequest struct{ SeriesRequest }

// Heatmap is the result of a HeatmapRequest.
type Heatmap struct {
	Series   []HeatmapSeries // sorted by labels
	Warnings []error
}

// HeatmapSeries is one group. Labels are encoded.
type HeatmapSeries struct {
	Labels []byte
	Slots  []HeatmapSlot
}

// HeatmapSlot is a step that has profiles. Counts[i] is the number of profiles in the interval of values that begins at
// YMin[i]. Intervals without profiles are omitted. Exemplars is empty, or has one for each interval.
type HeatmapSlot struct {
	TimeMS    int64
	YMin      []float64
	Counts    []int32
	Exemplars []HeatmapExemplar
}

// HeatmapExemplar is the profile, or span, with the greatest value in one interval of a slot.
type HeatmapExemplar struct {
	ID     ID
	TimeNS int64
	Value  int64
	Labels []byte // encoded, without GroupBy
	Span   Span   // zero for a profile
}

// MergeRequest selects profiles to be summed.
type MergeRequest struct {
	Tenant   string
	Type     Type
	Matchers []*labels.Matcher
	StartMS  int64
	EndMS    int64
	IDs      []ID      // only these profiles; empty: all
	Spans    []uint64  // only samples of these spans or of Traces; both empty: all
	Traces   []TraceID // only samples of these traces
	CallSite []string
	PGO      *PGO // cut a pprof for Go's compiler; nil: whole stacks
	MaxNodes int  // of the flame graph; the smallest are merged as "other"; 0: no limit
}

// PGO cuts the stacks of a pprof to what Go's compiler uses for profile-guided optimization.
type PGO struct {
	KeepFrames       int  // number of frames of a stack, from the leaf; 0: all
	AggregateCallees bool // leave out the line number of the leaf, so that the samples of one function are merged
}

// Analysis is the amount of data that a query would read.
type Analysis struct {
	Blocks, Series, Profiles            int
	IndexBytes, RowsBytes, SymbolsBytes int64 // of blocks
}

// FlameGraph is a tree of functions by level. A node is four integers: its offset from the
// end of its left neighbour, its total, its self value, the index of its name.
type FlameGraph struct {
	Names    []string
	Levels   [][]int64
	Total    int64
	MaxSelf  int64
	Warnings []error
}

// LabelsRequest selects labels and profile types. No matchers select all; several sets of
// matchers are joined by "or".
type LabelsRequest struct {
	Tenant   string
	AnyOf    [][]*labels.Matcher
	StartMS  int64
	EndMS    int64
	Names    []string // for Series: return only these labels; empty: all
	LabelFor string   // for LabelValues: the label name
}

// Stats is the time range of a tenant's profiles. Both are 0 if the tenant has none.
type Stats struct{ OldestMS, NewestMS int64 }
