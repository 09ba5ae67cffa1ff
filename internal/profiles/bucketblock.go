package profiles

import (
	"io"
	"time"

	"github.com/oklog/ulid/v2"
)

// BucketBlock is a profile block in a bucket: its files, read by ranges. Reads have timeouts of their own.
type BucketBlock struct {
	Tenant      string
	ID          ulid.ULID
	Index, Rows io.ReaderAt
	Spans       io.ReaderAt // block.SpansFile; reads fail if the block has none
	IndexBytes  int64
	RowsBytes   int64
	Head        []byte    // beginning of Index, with the meta of a complete block; nil: not known
	Marked      time.Time // when the block was marked for deletion; zero: it was not
	MarkReason  string    // details of the mark
	MarkUnread  bool      // there is a mark that cannot be read: the block must not be deleted
	Unread      error     // why the sizes cannot be read; Index, Rows and Spans are nil then
	// Doubt makes the next list request the sizes again. A reader calls it if a file does not have the size above, or if
	// Index does not begin with Head: the index of the bucket, from which both can be, is then out of date.
	Doubt func()
}
