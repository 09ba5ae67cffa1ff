package storepb

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/cespare/xxhash/v2"
)

// Kind is the content of a response.
type Kind uint8

// The kinds of responses. A response with none of the known fields, such as one of a
// later release, is None.
const (
	None Kind = iota
	OneSeries
	Batch
	DeltaBatch
	Warning
)

// DecodeResponse returns the kind of a response and its body, which aliases src: the
// series, the batch for NextSeries, or the text of the warning.
// The fields are a oneof: if a response has several, the last one counts. Hints are not decoded:
// a response of hints is None.
func DecodeResponse(src []byte) (kind Kind, body []byte, err error) {
	for len(src) > 0 {
		tag, n := uvarint(src)
		if n == 0 {
			return None, nil, fmt.Errorf("%w: truncated or invalid field tag", ErrCorrupt)
		}
		found := None
		switch tag {
		case tagSeries:
			found = OneSeries
		case tagBatch:
			found = Batch
		case tagDeltaBatch:
			found = DeltaBatch
		case tagWarning:
			found = Warning
		case tagHints:
			kind = None
		}
		if found == None {
			if src, err = skip(tag, src[n:]); err != nil {
				return None, nil, err
			}
			continue
		}
		var ok bool
		if body, src, ok = prefixed(src[n:]); !ok {
			return None, nil, cutShort(tag)
		}
		kind = found
	}
	return kind, body, nil
}

// NextSeries cuts the first series off a batch. series is nil at the end.
func NextSeries(batch []byte) (series, rest []byte, err error) {
	return nextMessage(tagSeries, batch)
}

// nextMessage cuts src after the first field with tag want, and returns that field.
func nextMessage(want uint64, src []byte) (body, rest []byte, err error) {
	for len(src) > 0 {
		tag, n := uvarint(src)
		if n == 0 {
			return nil, nil, fmt.Errorf("%w: truncated or invalid field tag", ErrCorrupt)
		}
		if tag == want {
			body, rest, ok := prefixed(src[n:])
			if !ok {
				return nil, nil, cutShort(tag)
			}
			return body, rest, nil
		}
		if src, err = skip(tag, src[n:]); err != nil {
			return nil, nil, err
		}
	}
	return nil, nil, nil
}

// DecodeSeries decodes a series. Its labels alias src if they are adjacent, as in series
// of all known peers; otherwise they are appended to scratch. Its chunks, whose data
// aliases src, are appended to chunks. Labels are not validated: see labelenc.Follows.
func DecodeSeries(src, scratch []byte, chunks []Chunk) (labels, scratchOut []byte, _ []Chunk, err error) {
	whole, at := src, 0
	for at < len(whole) && whole[at] == tagSeries { // a label has the same tag
		_, rest, ok := prefixed(whole[at+1:])
		if !ok {
			return nil, scratch, chunks, cutShort(tagSeries)
		}
		at = len(whole) - len(rest)
	}
	labels, src = whole[:at:at], whole[at:]
	for len(src) > 0 {
		tag, n := uvarint(src)
		if n == 0 {
			return nil, scratch, chunks, fmt.Errorf("%w: truncated or invalid field tag", ErrCorrupt)
		}
		switch tag {
		case 2<<3 | wireBytes:
			body, rest, ok := prefixed(src[n:])
			if !ok {
				return nil, scratch, chunks, cutShort(tag)
			}
			if chunks, err = decodeSpan(body, chunks); err != nil {
				return labels, scratch, chunks, err
			}
			src = rest
		case tagSeries:
			_, rest, ok := prefixed(src[n:])
			if !ok {
				return nil, scratch, chunks, cutShort(tag)
			}
			start := len(scratch)
			scratch = append(append(scratch, labels...), src[:len(src)-len(rest)]...)
			labels, src = scratch[start:], rest
		default:
			if src, err = skip(tag, src[n:]); err != nil {
				return labels, scratch, chunks, err
			}
		}
	}
	return labels, scratch, chunks, nil
}

// DecodeChunks decodes the part of a series after its labels. If that part has labels too,
// apart is true, and the caller must decode the whole series by DecodeSeries.
func DecodeChunks(src []byte, chunks []Chunk) (_ []Chunk, apart bool, err error) {
	for len(src) > 0 {
		tag, n := uvarint(src)
		switch {
		case n == 0:
			return chunks, false, fmt.Errorf("%w: truncated or invalid field tag", ErrCorrupt)
		case tag == 2<<3|wireBytes:
			body, rest, ok := prefixed(src[n:])
			if !ok {
				return chunks, false, cutShort(tag)
			}
			if chunks, err = decodeSpan(body, chunks); err != nil {
				return chunks, false, err
			}
			src = rest
		case tag == tagSeries:
			return chunks, true, nil
		default:
			if src, err = skip(tag, src[n:]); err != nil {
				return chunks, false, err
			}
		}
	}
	return chunks, false, nil
}

// CountChunks returns how many chunks a series, with or without labels, decodes to. It allocates nothing. For a
// series that does not decode it returns the number before the fault.
func CountChunks(src []byte) (chunks int) {
	for len(src) > 0 {
		tag, n := uvarint(src)
		if n == 0 {
			return chunks
		}
		if tag == 2<<3|wireBytes {
			body, rest, ok := prefixed(src[n:])
			if !ok {
				return chunks
			}
			chunks, src = chunks+countSpan(body), rest
			continue
		}
		var err error
		if src, err = skip(tag, src[n:]); err != nil {
			return chunks
		}
	}
	return chunks
}

// countSpan returns the number of chunks that decodeSpan appends.
func countSpan(src []byte) (chunks int) {
	for len(src) > 0 {
		tag, n := uvarint(src)
		if n == 0 {
			return chunks
		}
		if number := tag >> 3; tag&7 == wireBytes && number >= fieldRaw && number <= fieldCounter {
			chunks++
		}
		var err error
		if src, err = skip(tag, src[n:]); err != nil {
			return chunks
		}
	}
	return chunks
}

// decodeSpan appends the chunks of one AggrChunk message: a raw chunk, or the aggregates of a
// downsampled chunk.
func decodeSpan(src []byte, chunks []Chunk) ([]Chunk, error) {
	first := len(chunks)
	var minMS, maxMS int64
	for len(src) > 0 {
		tag, n := uvarint(src)
		if n == 0 {
			return chunks, fmt.Errorf("%w: truncated or invalid field tag", ErrCorrupt)
		}
		number := tag >> 3
		switch {
		case tag == 1<<3 || tag == 2<<3:
			v, m := uvarint(src[n:])
			if m == 0 {
				return chunks, cutShort(tag)
			}
			if number == 1 {
				minMS = int64(v)
			} else {
				maxMS = int64(v)
			}
			src = src[n+m:]
		case tag&7 == wireBytes && number >= fieldRaw && number <= fieldCounter:
			body, rest, ok := prefixed(src[n:])
			if !ok {
				return chunks, cutShort(tag)
			}
			c := Chunk{Aggr: Aggr(number - fieldRaw), Encoding: 1}
			if err := decodeData(body, &c); err != nil {
				return chunks, fmt.Errorf("%s: %w", c.Aggr, err)
			}
			chunks, src = append(chunks, c), rest
		default:
			var err error
			if src, err = skip(tag, src[n:]); err != nil {
				return chunks, err
			}
		}
	}
	span := chunks[first:]
	for i := range span {
		span[i].MinMS, span[i].MaxMS = minMS, maxMS
	}
	return chunks, orderSpan(span)
}

// orderSpan sorts the aggregates of one message by number. Nearly all peers send them
// sorted. A duplicate is an error.
func orderSpan(span []Chunk) error {
	for i := 1; i < len(span); i++ {
		if span[i].Aggr <= span[i-1].Aggr {
			slices.SortStableFunc(span, func(a, b Chunk) int { return int(a.Aggr) - int(b.Aggr) })
			for j := 1; j < len(span); j++ {
				if span[j].Aggr == span[j-1].Aggr {
					return fmt.Errorf("%w: a chunk has a duplicate %s", ErrCorrupt, span[j].Aggr)
				}
			}
			return nil
		}
	}
	return nil
}

func decodeData(src []byte, c *Chunk) error {
	var hash uint64
	for len(src) > 0 {
		tag, n := uvarint(src)
		if n == 0 {
			return fmt.Errorf("%w: truncated or invalid field tag", ErrCorrupt)
		}
		switch tag {
		case 1 << 3, 3 << 3:
			v, m := binary.Uvarint(src[n:])
			if m <= 0 {
				return cutShort(tag)
			}
			if tag == 3<<3 {
				hash = v
			} else if v >= EncodingMax {
				return fmt.Errorf("%w: unknown chunk encoding %d", ErrCorrupt, v)
			} else {
				c.Encoding = uint8(v) + 1
			}
			src = src[n+m:]
		case 2<<3 | wireBytes:
			var ok bool
			if c.Data, src, ok = prefixed(src[n:]); !ok {
				return cutShort(tag)
			}
		default:
			var err error
			if src, err = skip(tag, src[n:]); err != nil {
				return err
			}
		}
	}
	if hash != 0 {
		if got := xxhash.Sum64(c.Data); got != hash {
			return fmt.Errorf("%w: hash of the chunk is %016x, not %016x", ErrCorrupt, got, hash)
		}
	}
	return nil
}
