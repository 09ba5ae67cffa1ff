package wire

import (
	"fmt"
)

// ResponseType is the format of a response.
type ResponseType int32

// The response types.
const (
	Samples           ResponseType = 0
	StreamedXORChunks ResponseType = 1
)

// MatchType is the operator of a matcher.
type MatchType int32

// The match types: =, !=, =~ and !~.
const (
	MatchEqual MatchType = iota
	MatchNotEqual
	MatchRegexp
	MatchNotRegexp
)

// Matcher matches series by one label.
type Matcher struct {
	Type        MatchType
	Name, Value string
}

// Hints describe the query that needs the samples.
type Hints struct {
	StepMS         int64
	Func           string
	StartMS, EndMS int64 // inclusive
	Grouping       []string
	By             bool
	RangeMS        int64
}

// Query selects the series that match all matchers. Start and end are inclusive.
type Query struct {
	StartMS, EndMS int64
	Matchers       []Matcher
	Hints          *Hints // may be nil
}

// Range returns the time range of the hints. If the query has no hints, or hints without a time
// range, it returns the time range of the query.
func (q Query) Range() (startMS, endMS int64) {
	if q.Hints != nil && (q.Hints.StartMS != 0 || q.Hints.EndMS != 0) {
		return q.Hints.StartMS, q.Hints.EndMS
	}
	return q.StartMS, q.EndMS
}

// Request is a ReadRequest.
type Request struct {
	Queries  []Query
	Accepted []ResponseType // in order of preference; none: Samples
}

// ResponseType returns the first accepted type that is supported. ok is false if there
// is none.
func (r Request) ResponseType() (form ResponseType, ok bool) {
	if len(r.Accepted) == 0 {
		return Samples, true
	}
	for _, form := range r.Accepted {
		if form == Samples || form == StreamedXORChunks {
			return form, true
		}
	}
	return 0, false
}

// No real request comes near these limits. Without them 32 MiB of empty messages would decode
// into gigabytes of structs.
const (
	queriesMax  = 100 // Prometheus and Thanos send one
	matchersMax = 100_000
)

// DecodeRequest decodes a request. The result does not alias src.
func DecodeRequest(src []byte) (Request, error) {
	var r Request
	matchers := 0
	for len(src) > 0 {
		f, rest, err := nextField(src)
		if err != nil {
			return r, err
		}
		src = rest
		switch f.number {
		case 1:
			if err := f.is(wireBytes); err != nil {
				return r, err
			}
			q, err := decodeQuery(f.bytes)
			if err != nil {
				return r, fmt.Errorf("query %d: %w", len(r.Queries), err)
			}
			r.Queries = append(r.Queries, q)
			if matchers += len(q.Matchers); len(r.Queries) > queriesMax || matchers > matchersMax {
				return r, fmt.Errorf("%w: more than %d queries or %d matchers", ErrCorrupt, queriesMax, matchersMax)
			}
		case 2:
			if r.Accepted, err = decodeAccepted(r.Accepted, f); err != nil {
				return r, err
			}
		}
	}
	return r, nil
}

// acceptedMax bounds the list of response types. The protocol defines two.
const acceptedMax = 1000

// decodeAccepted decodes one entry, or a packed list of entries.
func decodeAccepted(list []ResponseType, f field) ([]ResponseType, error) {
	if f.wire == wireVarint {
		list = append(list, ResponseType(f.value))
	} else {
		if err := f.is(wireBytes); err != nil {
			return list, err
		}
		for packed := f.bytes; len(packed) > 0; {
			v, n := uvarint(packed)
			if n <= 0 {
				return list, fmt.Errorf("%w: response types are cut short", ErrCorrupt)
			}
			list, packed = append(list, ResponseType(v)), packed[n:]
		}
	}
	if len(list) > acceptedMax {
		return list, fmt.Errorf("%w: more than %d response types", ErrCorrupt, acceptedMax)
	}
	return list, nil
}

func decodeQuery(src []byte) (Query, error) {
	var q Query
	for len(src) > 0 {
		f, rest, err := nextField(src)
		if err != nil {
			return q, err
		}
		src = rest
		switch f.number {
		case 1, 2:
			if err := f.is(wireVarint); err != nil {
				return q, err
			}
			if f.number == 1 {
				q.StartMS = int64(f.value)
			} else {
				q.EndMS = int64(f.value)
			}
		case 3, 4:
			if err := f.is(wireBytes); err != nil {
				return q, err
			}
			if f.number == 4 {
				if q.Hints == nil {
					q.Hints = &Hints{}
				}
				if err := decodeHints(q.Hints, f.bytes); err != nil {
					return q, fmt.Errorf("hints: %w", err)
				}
				continue
			}
			m, err := decodeMatcher(f.bytes)
			if err != nil {
				return q, fmt.Errorf("matcher %d: %w", len(q.Matchers), err)
			}
			q.Matchers = append(q.Matchers, m)
		}
	}
	return q, nil
}

func decodeMatcher(src []byte) (Matcher, error) {
	var m Matcher
	for len(src) > 0 {
		f, rest, err := nextField(src)
		if err != nil {
			return m, err
		}
		src = rest
		switch f.number {
		case 1:
			if err := f.is(wireVarint); err != nil {
				return m, err
			}
			m.Type = MatchType(f.value)
			if m.Type < MatchEqual || m.Type > MatchNotRegexp {
				return m, fmt.Errorf("%w: unknown matcher type %d", ErrCorrupt, m.Type)
			}
		case 2, 3:
			if err := f.is(wireBytes); err != nil {
				return m, err
			}
			if f.number == 2 {
				m.Name = string(f.bytes)
			} else {
				m.Value = string(f.bytes)
			}
		}
	}
	return m, nil
}

func decodeHints(h *Hints, src []byte) error {
	for len(src) > 0 {
		f, rest, err := nextField(src)
		if err != nil {
			return err
		}
		src = rest
		switch f.number {
		case 2, 5:
			if err := f.is(wireBytes); err != nil {
				return err
			}
			if f.number == 2 {
				h.Func = string(f.bytes)
			} else if h.Grouping = append(h.Grouping, string(f.bytes)); len(h.Grouping) > matchersMax {
				return fmt.Errorf("%w: more than %d labels to group by", ErrCorrupt, matchersMax)
			}
		case 1, 3, 4, 6, 7:
			if err := f.is(wireVarint); err != nil {
				return err
			}
			v := int64(f.value)
			switch f.number {
			case 1:
				h.StepMS = v
			case 3:
				h.StartMS = v
			case 4:
				h.EndMS = v
			case 6:
				h.By = v != 0
			case 7:
				h.RangeMS = v
			}
		}
	}
	return nil
}

// AppendRequest appends a request in the encoding of Prometheus.
func AppendRequest(dst []byte, r Request) []byte {
	for _, q := range r.Queries {
		dst = appendMessage(dst, 1, func(dst []byte) []byte { return appendQuery(dst, q) })
	}
	if len(r.Accepted) > 0 {
		dst = appendMessage(dst, 2, func(dst []byte) []byte {
			for _, form := range r.Accepted {
				dst = appendUvarint(dst, uint64(form))
			}
			return dst
		})
	}
	return dst
}

func appendQuery(dst []byte, q Query) []byte {
	dst = appendVarint(dst, 1, uint64(q.StartMS))
	dst = appendVarint(dst, 2, uint64(q.EndMS))
	for _, m := range q.Matchers {
		dst = appendMessage(dst, 3, func(dst []byte) []byte {
			dst = appendVarint(dst, 1, uint64(m.Type))
			dst = appendText(dst, 2, m.Name)
			return appendText(dst, 3, m.Value)
		})
	}
	if h := q.Hints; h != nil {
		dst = appendMessage(dst, 4, func(dst []byte) []byte {
			dst = appendVarint(dst, 1, uint64(h.StepMS))
			dst = appendText(dst, 2, h.Func)
			dst = appendVarint(dst, 3, uint64(h.StartMS))
			dst = appendVarint(dst, 4, uint64(h.EndMS))
			for _, name := range h.Grouping {
				dst = append(appendUvarint(append(dst, 5<<3|wireBytes), uint64(len(name))), name...)
			}
			if h.By {
				dst = appendVarint(dst, 6, 1)
			}
			return appendVarint(dst, 7, uint64(h.RangeMS))
		})
	}
	return dst
}
