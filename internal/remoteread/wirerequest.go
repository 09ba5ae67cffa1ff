package remoteread

import (
	"fmt"

	"github.com/prometheus/prometheus/prompb"
)

// No real request comes near these limits. Without them 32 MiB of empty messages would decode
// into gigabytes of structs.
const (
	queriesMax = 100 // Prometheus and Thanos send one
	fieldsMax  = 100_000
	// acceptedMax bounds the bytes of a packed list of response types. The protocol defines two.
	acceptedMax = 1000
)

// DecodeRequest decodes a request, which does not alias src, by Prometheus' message. Before, it counts what it decodes.
func DecodeRequest(src []byte) (*prompb.ReadRequest, error) {
	fields := 0
	if err := count(src, 0, &fields); err != nil {
		return nil, err
	}
	r := &prompb.ReadRequest{}
	if err := r.Unmarshal(src); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	if len(r.Queries) > queriesMax {
		return nil, fmt.Errorf("%w: more than %d queries", ErrCorrupt, queriesMax)
	}
	return r, nil
}

// count adds the fields of a message to fields, up to the limits. level is 0 for a request, 1 for a query and 2 for
// hints.
func count(src []byte, level int, fields *int) error {
	for len(src) > 0 {
		f, rest, err := nextField(src)
		if err != nil {
			return err
		}
		src = rest
		if *fields++; *fields > fieldsMax {
			return fmt.Errorf("%w: more than %d fields", ErrCorrupt, fieldsMax)
		}
		switch {
		case level == 0 && f.number == 1 || level == 1 && f.number == 4:
			if err := count(f.bytes, level+1, fields); err != nil {
				return err
			}
		case level == 0 && f.number == 2 && len(f.bytes) > acceptedMax:
			return fmt.Errorf("%w: response types of more than %d bytes", ErrCorrupt, acceptedMax)
		}
	}
	return nil
}

// rangeOf returns the time range of a query's hints, inclusive. Without hints, or with hints that have no time range,
// it returns the time range of the query.
func rangeOf(q *prompb.Query) (startMS, endMS int64) {
	if h := q.Hints; h.GetStartMs() != 0 || h.GetEndMs() != 0 {
		return h.GetStartMs(), h.GetEndMs()
	}
	return q.StartTimestampMs, q.EndTimestampMs
}
