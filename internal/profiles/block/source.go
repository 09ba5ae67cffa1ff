// Package block stores profiles in columns of fixed width and lists of samples, in the same
// layout in a head and in a file.
//
// A row is one sample type of one profile for one set of labels. The caller of a Writer adds
// sorted rows. The Writer writes a directory with a Parquet file of rows and samples, and an
// index of everything else. If samples belong to spans of traces, it also writes a file of
// spans. Open maps the files; OpenAt reads them by ranges. Queries read blocks and heads through
// the interface Source. A block never changes. docs/formats/profile-block.md describes the files
// byte by byte. Logs, tenants and queries are in other packages.
//
//	row        series u32 | time i64 | value i64 | profile u32     read by scans
//	           id 16 bytes                                         not read by scans
//	samples    (stack u32, value i64)*                             read by merges
//	spans      id u64 | row u32 | trace | samples                  read for spans only
package block

import (
	"context"
	"encoding/binary"
	"math"
	"slices"
	"strings"
	"unique"
	"unsafe"

	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/series/labelenc"
)

// ErrCorrupt is returned for files that were not written by a Writer.
var ErrCorrupt = profiles.ErrCorrupt

// Series is the type and labels that rows share.
type Series struct {
	Type   uint32                // index into the source's types
	Plain  []byte                // labels as pushed, encoded
	Labels []byte                // Plain and the labels of the type
	held   unique.Handle[string] // of Plain: equal sets share its memory while one is held
}

// NewSeries returns a series of the type with this number and these TypeLabels. It copies the labels, unless a series
// of any source has the same labels: then Plain is the same memory in both.
func NewSeries(number uint32, ofType, plain []byte) Series {
	h := unique.Make(string(plain))
	//lint:ignore gosec Plain is never written to
	shared := unsafe.Slice(unsafe.StringData(h.Value()), len(plain))
	return Series{Type: number, Plain: shared, Labels: FullLabels(shared, ofType), held: h}
}

// Span is a range of rows [Lo, Hi), with properties that its rows share.
type Span struct {
	Type     int32 // type of its rows; -1: several
	Lo, Hi   int
	Dataset  string   // the service of its profiles; "" in a head
	Sorted   bool     // rows are sorted by timestamp, then profile
	MultiRow bool     // some profiles have several rows; these are adjacent, except for profiles in Shared
	Series   []uint32 // includes every series that has rows in the span, sorted; nil: unknown
}

// Columns are rows as little-endian numbers of fixed width. They are shared and immutable.
type Columns struct {
	First   int    // number of the first row
	N       int    // number of rows
	Series  []byte // 4 bytes a row
	Time    []byte // 8, nanoseconds
	Value   []byte // 8
	Profile []byte // 4: equal for the rows of one profile
}

// SeriesAt returns a row's series. i is the number of the row minus First, as in the methods
// below.
func (c *Columns) SeriesAt(i int) uint32 { return binary.LittleEndian.Uint32(c.Series[4*i:]) }

// TimeAt returns a row's timestamp in nanoseconds.
func (c *Columns) TimeAt(i int) int64 { return int64(binary.LittleEndian.Uint64(c.Time[8*i:])) }

// ValueAt returns a row's value, the sum of its samples.
func (c *Columns) ValueAt(i int) int64 { return int64(binary.LittleEndian.Uint64(c.Value[8*i:])) }

// ProfileAt returns the number of a row's profile.
func (c *Columns) ProfileAt(i int) uint32 { return binary.LittleEndian.Uint32(c.Profile[4*i:]) }

// Key identifies a profile. Its rows are stored once for each series.
type Key struct {
	ID     profiles.ID
	TimeNS int64
}

// Source is a head or a block. Results are shared and immutable, and valid while the caller
// has a reference to the source.
type Source interface {
	Name() string
	Bounds() (minNS, maxNS int64)
	Rows() int
	Types() []profiles.Type
	Series() ([]Series, error)
	Spans() ([]Span, error)
	// Columns returns the columns of a group of rows that includes row.
	Columns(row int) (Columns, error)
	// IDs returns the IDs of the rows that Columns returns for row, 16 bytes each.
	IDs(row int) ([]byte, error)
	// ID returns the ID of a row's profile.
	ID(row int) (profiles.ID, error)
	// Find calls f with the rows of a profile, in any order.
	Find(id profiles.ID, f func(row int)) error
	// Parts returns the parts into which the symbols are divided, or WholePart alone. Samples has numbers of stacks in
	// the source; see Part.
	Parts() []Part
	// PartOf returns the part of a row. All rows from row to end-1 belong to this part.
	PartOf(row int) (part, end int)
	// PartSymbols returns the symbols of a part; its nodes have the numbers of Part.Local.
	PartSymbols(part int) (*Symbols, error)
	// Samples calls f with the samples of rows, which must ascend; f borrows its arguments.
	Samples(ctx context.Context, rows []int, f func(row int, stacks []uint32, values []int64) error) error
	// TraceSpans returns the spans of traces that samples belong to; nil if there are none.
	TraceSpans() (*TraceSpans, error)
	// Shared returns the profiles whose rows arrived in several pushes. Some of these rows may be
	// in an older source.
	Shared() []Key
}

// AddValues adds two non-negative values. A sum above the greatest int64 becomes the greatest
// int64. So the order of several additions does not matter.
func AddValues(a, b int64) int64 {
	if sum := a + b; sum >= 0 {
		return sum
	}
	return math.MaxInt64
}

// TypeLabels returns the labels of a type, encoded.
func TypeLabels(t profiles.Type) (set []byte) {
	ofType := [...][2]string{
		{profiles.LabelPeriodType, t.PeriodType}, {profiles.LabelPeriodUnit, t.PeriodUnit}, {profiles.LabelType, t.String()},
		{profiles.LabelSampleType, t.SampleType}, {profiles.LabelSampleUnit, t.SampleUnit},
	}
	slices.SortFunc(ofType[:], func(a, b [2]string) int { return strings.Compare(a[0], b[0]) })
	for _, l := range ofType {
		if l[1] != "" {
			set = labelenc.AppendLabel(set, l[0], l[1])
		}
	}
	return set
}

// FullLabels returns a pushed label set with the labels of its type added.
func FullLabels(plain, ofType []byte) []byte {
	full, err := labelenc.AppendMerged(make([]byte, 0, len(ofType)+len(plain)), ofType, plain)
	if err != nil {
		return plain
	}
	return full
}
