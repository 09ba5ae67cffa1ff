package limit

import "time"

// Query limits what one query may ask for. A zero field is no limit.
type Query struct {
	LengthMax        time.Duration // from start to end
	PointsMax        int64         // of each series; start and end count
	QueryBytesMax    int64         // of the expression's text
	ResponseBytesMax int64         // which are counted where they are written
}

// CheckText refuses an expression that is too long.
func (q Query) CheckText(expr string) error {
	if n := int64(len(expr)); q.QueryBytesMax > 0 && n > q.QueryBytesMax {
		return &Error{Limit: "length of the query's text", Value: n, Max: q.QueryBytesMax, Unit: "bytes"}
	}
	return nil
}

// CheckRange refuses a range that is too long or has too many points. startMS and
// endMS are inclusive. A range that ends before it starts, or a step that is not
// positive, is not checked: others find that out.
func (q Query) CheckRange(startMS, endMS, stepMS int64) error {
	if endMS < startMS {
		return nil
	}
	lengthMS := uint64(endMS) - uint64(startMS) // right even where the difference overflows
	if q.LengthMax > 0 && lengthMS > uint64(q.LengthMax.Milliseconds()) {
		return &Error{Limit: "range from start to end", Value: clamp(lengthMS), Max: q.LengthMax.Milliseconds(), Unit: "ms"}
	}
	if stepMS <= 0 {
		return nil
	}
	if points := lengthMS/uint64(stepMS) + 1; q.PointsMax > 0 && points > uint64(q.PointsMax) {
		return &Error{Limit: "points of each series, which are the range over the step", Value: clamp(points), Max: q.PointsMax}
	}
	return nil
}

func clamp(n uint64) int64 { return int64(min(n, 1<<63-1)) }
