// Package profiles is the seam of the profile lane: the words in which profiles
// are pushed, asked for and answered, so that ingest, store, wire and query need
// not know each other.
//
// A profile comes in as a Pushed: an encoded label set (labelenc; sorted, with
// __name__ and, if it is to have a dataset of its own, service_name), an ID, and
// pprof bytes. The store makes one row of each of its sample types and of each set
// of labels that its samples carry. Questions name a Type, matchers, and times in
// milliseconds, inclusive; answers are structs whose label sets are encoded bytes.
// A SeriesAnswer lies in memory that Close takes back; a FlameGraph and pprof bytes
// are the caller's.
//
//	store/profile.Store     Append(ctx, tenant, []Pushed) error       once durable
//	query/profile.Engine    SelectSeries, MergeFlame, MergePprof, ProfileTypes,
//	                        LabelNames, LabelValues, Series, Stats
//
// Labels that say what a row measures (__profile_type__, __type__, __unit__,
// __period_type__, __period_unit__) are not pushed: every series has them for
// matchers, groups and lists, and an exemplar does not repeat them. There is no
// protobuf, no JSON and no I/O here.
package profiles

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/ferula-io/ferula/internal/codec/pprof"
)

// What can be wrong with a request, or with us.
var (
	ErrBadRequest  = errors.New("bad request")
	ErrLimit       = errors.New("limit exceeded")
	ErrUnavailable = errors.New("profiles are unavailable")
	ErrCorrupt     = errors.New("corrupt profile data")
)

// Names of labels with a meaning of their own.
const (
	LabelName       = labels.MetricName
	LabelService    = "service_name"
	LabelType       = "__profile_type__"
	LabelSampleType = "__type__"
	LabelSampleUnit = "__unit__"
	LabelPeriodType = "__period_type__"
	LabelPeriodUnit = "__period_unit__"
)

// ID names a profile: a UUID.
type ID [16]byte

// ParseID reads a UUID, with or without dashes.
func ParseID(text string) (ID, error) {
	var id ID
	plain := text
	if len(text) == 36 && text[8] == '-' && text[13] == '-' && text[18] == '-' && text[23] == '-' {
		plain = text[:8] + text[9:13] + text[14:18] + text[19:23] + text[24:]
	}
	if len(plain) != 32 {
		return id, fmt.Errorf("%w: profile id %q is no UUID", ErrBadRequest, text)
	}
	if _, err := hex.Decode(id[:], []byte(plain)); err != nil {
		return id, fmt.Errorf("%w: profile id %q is no UUID", ErrBadRequest, text)
	}
	return id, nil
}

// NewID makes a UUID of version 7: it begins with a time, the rest is random.
func NewID(timeMS int64) (id ID) {
	_, _ = rand.Read(id[6:]) // it never fails
	for i := range 6 {
		id[i] = byte(timeMS >> (40 - 8*i))
	}
	id[6], id[8] = id[6]&0x0f|0x70, id[8]&0x3f|0x80
	return id
}

// TimeMS is the time that a UUID of version 7 begins with.
func (id ID) TimeMS() (ms int64, ok bool) {
	if id[6]>>4 != 7 || id[8]>>6 != 2 {
		return 0, false
	}
	for _, b := range id[:6] {
		ms = ms<<8 | int64(b)
	}
	return ms, true
}

// Append appends the 36 characters of the UUID.
func (id ID) Append(dst []byte) []byte {
	for i, b := range id {
		if i == 4 || i == 6 || i == 8 || i == 10 {
			dst = append(dst, '-')
		}
		dst = append(dst, hexDigits[b>>4], hexDigits[b&15])
	}
	return dst
}

const hexDigits = "0123456789abcdef"

// String is the UUID with dashes.
func (id ID) String() string { return string(id.Append(make([]byte, 0, 36))) }

// Type is what a profile measures.
type Type struct{ Name, SampleType, SampleUnit, PeriodType, PeriodUnit string }

// ParseType reads `name:sample_type:sample_unit:period_type:period_unit`.
func ParseType(text string) (Type, error) {
	parts := strings.Split(text, ":")
	if len(parts) != 5 || parts[0] == "" || parts[1] == "" {
		return Type{}, fmt.Errorf("%w: profile type %q is not name:sample_type:sample_unit:period_type:period_unit", ErrBadRequest, text)
	}
	return Type{parts[0], parts[1], parts[2], parts[3], parts[4]}, nil
}

// String is the ID of the type.
func (t Type) String() string {
	return t.Name + ":" + t.SampleType + ":" + t.SampleUnit + ":" + t.PeriodType + ":" + t.PeriodUnit
}

// Pushed is one profile on its way in. All of it is borrowed until Append returns.
type RawProfile struct {
	Labels []byte // encoded, valid, with __name__
	ID     ID     // zero: the store chooses one
	TimeNS int64  // since 1970; 0: what the profile says
	Raw    []byte // pprof, gzip or plain, as it goes into the log
	// Profile is Raw decoded, if somebody has already done it; nil: the store does.
	Profile *pprof.Profile
}

// SeriesRequest asks for values over time. The point labelled t holds the rows in
// (t-StepMS, t]; labels are StartMS, StartMS+StepMS and so on up to EndMS.
type SeriesRequest struct {
	Tenant    string
	Type      Type
	Matchers  []*labels.Matcher
	StartMS   int64
	EndMS     int64
	StepMS    int64 // at least 1
	GroupBy   []string
	Average   bool     // of the rows of a point, in place of their sum
	CallSite  []string // count only stacks that begin with these functions, root first
	Limit     int      // so many series, the greatest totals first; 0: all
	Exemplars bool     // one profile for each point
}

// SeriesAnswer is owned by who asked until Close; nothing of it may be kept after.
type SeriesResult struct {
	Series   []Series // in the order of their labels
	Warnings []error  // what could not be read; the rest is answered

	release func()
}

// NewSeriesAnswer makes an answer whose memory release takes back.
func NewSeriesResult(release func()) *SeriesResult { return &SeriesResult{release: release} }

// Close gives the answer's memory back.
func (a *SeriesResult) Close() {
	if a != nil && a.release != nil {
		release := a.release
		a.release = nil
		release()
	}
}

// AnsweredSeries is one group: its labels are those of GroupBy that it has.
type Series struct {
	Labels []byte // encoded
	Points []Point
}

// AnsweredPoint is a step that has rows.
type Point struct {
	TimeMS    int64
	Value     float64
	Exemplars []Exemplar // one at most
}

// Exemplar is the profile with the greatest value of its point; of equals the
// earlier one, then the one with the smaller id.
type Exemplar struct {
	ID     ID
	TimeNS int64
	Value  int64  // of all its rows in the point together
	Labels []byte // encoded; what all its rows have in common, less GroupBy
}

// MergeRequest asks for the sum of profiles.
type MergeRequest struct {
	Tenant   string
	Type     Type
	Matchers []*labels.Matcher
	StartMS  int64
	EndMS    int64
	IDs      []ID // only these profiles; empty: all
	CallSite []string
	MaxNodes int // of the flame graph; the smallest are put together as "other"; 0: no limit
}

// FlameGraph is a tree of functions by level. A node is four integers: how far it
// starts behind the end of its left neighbour, its total, its self, its name.
type FlameGraph struct {
	Names    []string
	Levels   [][]int64
	Total    int64
	MaxSelf  int64
	Warnings []error
}

// LabelsRequest asks which labels and types there are. No matcher means all;
// several sets of matchers are joined.
type LabelsRequest struct {
	Tenant   string
	AnyOf    [][]*labels.Matcher
	StartMS  int64
	EndMS    int64
	Names    []string // Series: only these labels of each series; empty: all
	LabelFor string   // LabelValues: of which label
}

// Stats say what time the profiles of a tenant span. Both are 0 without any.
type Stats struct{ OldestMS, NewestMS int64 }
