// Package storepb is StoreAPI's stream of series as bytes.
package storepb

import "errors"

// ErrCorrupt is returned for bytes that are not what they should be.
var ErrCorrupt = errors.New("corrupt StoreAPI message")

// Aggr says what the samples of a chunk are.
type Aggr uint8

// The aggregates, with their numbers in requests.
const (
	Raw Aggr = iota
	Count
	Sum
	Min
	Max
	Counter
)
