// Package block is how profiles lie: in columns of fixed width with their samples
// beside them, the same in a head and in a file.
//
// A row is one sample type of one profile for one set of labels. Rows come in from
// a Writer's caller in order and go out to a folder of two files, a Parquet file of
// rows and samples and an index of everything else, which Open maps and OpenAt reads
// by ranges; Source is what
// a block and a head have in common, and all that queries know. A block never
// changes. docs/formats/profile-block.md draws the files byte by byte. There is no
// log, no tenant and no query here.
//
//	row        series u32 | time i64 | value i64 | profile u32     what a scan reads
//	           id 16 bytes                                         what it never reads
//	samples    (stack u32, value i64)*                             what merges read
package block

import (
	"context"
	"encoding/binary"
	"errors"

	"github.com/ferula-io/ferula/internal/series/profiles"
)

// ErrCorrupt is returned for files that are not what a Writer wrote.
var ErrCorrupt = profiles.ErrCorrupt

// errStop ends an iteration early.
var errStop = errors.New("stop")

// Series is what rows have in common.
type Series struct {
	Type   uint32 // of the source's types
	Plain  []byte // the labels it was pushed with, encoded
	Labels []byte // those and the ones that say the type
}

// Span is a run of rows [Lo, Hi) in which a reader may look for some series.
type Span struct {
	Type    int32 // of its rows; -1: of several
	Lo, Hi  int
	Dataset string   // what its profiles have in common: the service; "" of a head
	Sorted  bool     // by time, then profile
	Splits  bool     // a profile may have several rows; they lie side by side
	Series  []uint32 // that have rows in it, sorted; nil: any
}

// Columns are rows as little-endian numbers of fixed width: shared and immutable.
type Columns struct {
	First  int // number of the first row
	N      int
	Series []byte // 4 bytes a row
	Time   []byte // 8, nanoseconds
	Value  []byte // 8
	Ord    []byte // 4: equal for the rows of one profile
}

// SeriesAt is a row's series; i counts from First, here and below.
func (c *Columns) SeriesAt(i int) uint32 { return binary.LittleEndian.Uint32(c.Series[4*i:]) }

// TimeAt is a row's time in nanoseconds.
func (c *Columns) TimeAt(i int) int64 { return int64(binary.LittleEndian.Uint64(c.Time[8*i:])) }

// ValueAt is a row's value, the sum of its samples.
func (c *Columns) ValueAt(i int) int64 { return int64(binary.LittleEndian.Uint64(c.Value[8*i:])) }

// OrdAt is the number of a row's profile.
func (c *Columns) OrdAt(i int) uint32 { return binary.LittleEndian.Uint32(c.Ord[4*i:]) }

// Key names a profile at a time: what must not be there twice for one series.
type Key struct {
	ID     profiles.ID
	TimeNS int64
}

// Source is a head or a block, held by whoever reads it. What it returns is shared
// and immutable, and valid while the source is held.
type Source interface {
	Name() string
	Bounds() (minNS, maxNS int64)
	Rows() int
	Types() []profiles.Type
	Series() ([]Series, error)
	Spans() ([]Span, error)
	// Columns are those in which a row lies: a part of the rows, row among them.
	Columns(row int) (Columns, error)
	// IDs are the ids of the rows of Columns, 16 bytes each.
	IDs(row int) ([]byte, error)
	// ID is the id of a row's profile.
	ID(row int) (profiles.ID, error)
	// Find calls f with the rows of a profile, in any order.
	Find(id profiles.ID, f func(row int)) error
	// Symbols are what stacks mean.
	Symbols() (*Symbols, error)
	// Samples calls f with the samples of rows, which ascend; what f gets is borrowed.
	Samples(ctx context.Context, rows []int, f func(row int, stacks []uint32, values []int64) error) error
	// Shared are profiles that have rows in an older source, too.
	Shared() []Key
}
