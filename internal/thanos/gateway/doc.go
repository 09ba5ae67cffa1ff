// Package gateway reads the series of blocks directly from a bucket.
//
// A Store lists blocks (package metas) and keeps them by external labels and resolution. Select
// chooses the blocks of a time range as Thanos does, and returns a Selection: a series.Set with
// the chunks as stored.
//
// The first read of a block fetches the symbols and the postings offset table of its index into a
// local file, the header, which is mapped while it is in use. Postings, series and chunks are read
// through pages (package pages). Lists of postings are intersected in the pages, without a copy.
// Only the lists of a matcher that selects several values are united in memory.
//
// Postings list series in the order of their labels. The entries and chunks of the series have the
// same order in the block, so they are read forward, one batch ahead of the caller. The chunks of
// many batches are requested together, by few requests to the bucket, and are used as they arrive.
// Chunks alias pages: they are borrowed until Next, and their pages cannot be evicted until then. A
// chunk that lies in several pages is copied.
//
// If a block cannot be read, a request that forbids partial responses fails. Another request
// gets a warning that names the block, the series of the other blocks, and those series of this block
// that were read before the error. A request that exceeds a limit fails in any case. The package does
// not merge replicas, decode samples or speak gRPC.
package gateway

import (
	"errors"

	"github.com/ferula-io/ferula/internal/thanos/gateway/metas"
)

var (
	// ErrCorrupt is returned for a block with invalid bytes.
	ErrCorrupt = errors.New("corrupt block")
	// ErrLimit is returned for a request that exceeds a limit.
	ErrLimit = errors.New("limit exceeded")
	// ErrBlock is returned if a block cannot be read and the request does not allow a
	// partial response.
	ErrBlock = errors.New("block cannot be read")
	// ErrClosed is returned by a closed store.
	ErrClosed = errors.New("store is closed")
)

// Rules decide which blocks are served.
type Rules = metas.Rules
