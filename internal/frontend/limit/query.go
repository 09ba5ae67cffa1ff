package limit

import (
	"time"

	"github.com/ferula-io/ferula/internal/hint"
)

// Query has the limits of one query. 0 means no limit.
type Query struct {
	LengthMax        time.Duration // from start to end
	PointsMax        int64         // steps, start and end included
	QueryBytesMax    int64         // length of the expression
	ResponseBytesMax int64         // length of the response; checked when it is written
	TimeMax          time.Duration // of a request once it is admitted, until its response has ended
	Flags            hint.Flags    // names of the flags that raise the limits, for errors
}

// CheckText returns an Error if an expression is too long.
func (q Query) CheckText(expr string) error {
	if n := int64(len(expr)); q.QueryBytesMax > 0 && n > q.QueryBytesMax {
		return &Error{Limit: "query length", Value: n, Max: q.QueryBytesMax, Unit: "bytes",
			Flag: q.Flags.Of("QueryBytesMax")}
	}
	return nil
}

// CheckRange returns an Error if a range is too long or has too many steps. startMS and
// endMS are inclusive. It accepts a range that ends before it starts and a step that is
// not positive: the downstream returns an error for both.
func (q Query) CheckRange(startMS, endMS, stepMS int64) error {
	if endMS < startMS {
		return nil
	}
	lengthMS := uint64(endMS) - uint64(startMS) // correct even if the difference overflows int64
	if q.LengthMax > 0 && lengthMS > uint64(q.LengthMax.Milliseconds()) {
		return &Error{Limit: "query range", Value: clamp(lengthMS), Max: q.LengthMax.Milliseconds(), Unit: "ms",
			Flag: q.Flags.Of("LengthMax")}
	}
	if stepMS <= 0 {
		return nil
	}
	if points := lengthMS/uint64(stepMS) + 1; q.PointsMax > 0 && points > uint64(q.PointsMax) {
		return &Error{Limit: "points per series (range divided by step)", Value: clamp(points),
			Max: q.PointsMax, Flag: q.Flags.Of("PointsMax")}
	}
	return nil
}

func clamp(n uint64) int64 { return int64(min(n, 1<<63-1)) }
