package block

import (
	"context"

	"github.com/ferula-io/ferula/internal/series/profiles"
)

// Reader is an open block.
type Reader struct{ Source }

// Close closes it.
func (r *Reader) Close() error { return nil }

var _ = context.Background
var _ profiles.ID
