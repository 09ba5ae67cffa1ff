package storepb

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/cespare/xxhash/v2"
	"github.com/prometheus/prometheus/tsdb/chunkenc"

	"github.com/ferula-io/ferula/internal/series"
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
		tag, rest, err := nextTag(src)
		if err != nil {
			return None, nil, err
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
			src, err = skip(tag, rest)
		} else {
			kind = found
			body, src, err = nextBody(tag, rest)
		}
		if err != nil {
			return None, nil, err
		}
	}
	return kind, body, nil
}

// NextSeries cuts the first series off a batch. series is nil at the end.
func NextSeries(batch []byte) (series, rest []byte, err error) {
	for len(batch) > 0 {
		tag, rest, err := nextTag(batch)
		if err != nil {
			return nil, nil, err
		}
		if tag == tagSeries {
			return nextBody(tag, rest)
		}
		if batch, err = skip(tag, rest); err != nil {
			return nil, nil, err
		}
	}
	return nil, nil, nil
}

// Decoder decodes series. The zero value decodes raw chunks only.
type Decoder struct {
	Wanted    series.Aggrs // aggregates of downsampled chunks; others are left out
	Summaries bool         // raw chunks may be series.Summarized
	// Arena gets what does not alias a message: downsampled chunks, and the labels of deltas. The caller may empty it
	// when none of them is used any more.
	Arena    []byte
	previous []byte        // labels of the series before in the same message, if these are deltas
	parts    []series.Part // memory of span
}

// Series decodes a series. Its labels alias src if they are adjacent, as in series of all known peers; otherwise they
// are appended to the arena. Its chunks, whose data aliases src or the arena, are appended to chunks. Labels are not
// validated: see labelenc.Follows.
func (d *Decoder) Series(src []byte, chunks []series.Chunk) (labels []byte, _ []series.Chunk, err error) {
	at := 0
	for at < len(src) && src[at] == tagSeries { // a label has the same tag
		_, rest, err := nextBody(tagSeries, src[at+1:])
		if err != nil {
			return nil, chunks, err
		}
		at = len(src) - len(rest)
	}
	labels, src = src[:at:at], src[at:]
	for {
		if chunks, src, err = d.Chunks(src, chunks); err != nil || len(src) == 0 {
			return labels, chunks, err
		}
		_, rest, err := nextBody(tagSeries, src[1:])
		if err != nil {
			return nil, chunks, err
		}
		start := len(d.Arena)
		d.Arena = append(append(d.Arena, labels...), src[:len(src)-len(rest)]...)
		labels, src = d.Arena[start:len(d.Arena):len(d.Arena)], rest
	}
}

// Chunks decodes the part of a series after its labels. It stops at a further label, where rest begins: the caller must
// then decode the whole series by Series.
func (d *Decoder) Chunks(src []byte, chunks []series.Chunk) (_ []series.Chunk, rest []byte, err error) {
	for len(src) > 0 {
		tag, rest, err := nextTag(src)
		switch {
		case err != nil:
			return chunks, nil, err
		case tag == tagSeries:
			return chunks, src, nil
		case tag == tagChunk:
			var body []byte
			if body, src, err = nextBody(tag, rest); err == nil {
				chunks, err = d.span(body, chunks)
			}
		default:
			src, err = skip(tag, rest)
		}
		if err != nil {
			return chunks, nil, err
		}
	}
	return chunks, nil, nil
}

// CountChunks returns how many chunks a series, with or without labels, has. It allocates nothing. For a series that
// does not decode it returns the number before the fault.
func CountChunks(src []byte) (chunks int) {
	for len(src) > 0 {
		tag, rest, err := nextTag(src)
		if err != nil {
			return chunks
		}
		if src, err = skip(tag, rest); err != nil {
			return chunks
		}
		if tag == tagChunk {
			chunks++
		}
	}
	return chunks
}

// span decodes one AggrChunk message: a raw chunk, or the aggregates of a downsampled chunk. Nearly all peers send the
// aggregates in ascending order.
func (d *Decoder) span(src []byte, chunks []series.Chunk) ([]series.Chunk, error) {
	var minMS, maxMS int64
	var raw series.Part
	var found series.Aggrs
	d.parts = d.parts[:0]
	for len(src) > 0 {
		tag, rest, err := nextTag(src)
		if err != nil {
			return chunks, err
		}
		switch number := tag >> 3; {
		case tag == 1<<3 || tag == 2<<3:
			v, n := uvarint(rest)
			if n == 0 {
				return chunks, cutShort(tag)
			}
			if src = rest[n:]; number == 1 {
				minMS = int64(v)
			} else {
				maxMS = int64(v)
			}
		case tag&7 == wireBytes && number >= fieldRaw && number <= fieldCounter:
			var body []byte
			if body, src, err = nextBody(tag, rest); err != nil {
				return chunks, err
			}
			aggr := series.Aggr(number - fieldRaw)
			if found.Has(aggr) {
				return chunks, fmt.Errorf("%w: a chunk has a duplicate %s", ErrCorrupt, aggr)
			}
			found = found.With(aggr)
			p, err := decodePart(aggr, body, d.Summaries && aggr == series.Raw)
			if err != nil {
				return chunks, fmt.Errorf("%s: %w", aggr, err)
			}
			if aggr == series.Raw {
				raw = p
			} else {
				d.parts = append(d.parts, p)
			}
		default:
			if src, err = skip(tag, rest); err != nil {
				return chunks, err
			}
		}
	}
	c := series.Chunk{MinMS: minMS, MaxMS: maxMS, Encoding: raw.Encoding, Data: raw.Data}
	if found.Has(series.Raw) {
		chunks = append(chunks, c)
	}
	if len(d.parts) == 0 {
		return chunks, nil
	}
	slices.SortFunc(d.parts, func(a, b series.Part) int { return cmp.Compare(a.Aggr, b.Aggr) })
	start := len(d.Arena)
	d.Arena = series.AppendAggregated(d.Arena, d.Wanted.Of(d.parts))
	c.Encoding, c.Data = series.Aggregated, d.Arena[start:len(d.Arena):len(d.Arena)]
	if len(c.Data) > 0 {
		chunks = append(chunks, c)
	}
	return chunks, nil
}

func decodePart(aggr series.Aggr, src []byte, summaries bool) (p series.Part, err error) {
	p.Aggr, p.Encoding = aggr, chunkenc.EncXOR
	var hash uint64
	for len(src) > 0 {
		tag, rest, err := nextTag(src)
		if err != nil {
			return p, err
		}
		switch tag {
		case 1 << 3, 3 << 3:
			v, n := binary.Uvarint(rest)
			if n <= 0 {
				return p, cutShort(tag)
			}
			if tag == 3<<3 {
				hash = v
			} else if v >= EncodingMax && (!summaries || v != uint64(series.Summarized-1)) {
				return p, fmt.Errorf("%w: unknown chunk encoding %d", ErrCorrupt, v)
			} else {
				p.Encoding = chunkenc.Encoding(v) + 1
			}
			src = rest[n:]
		case 2<<3 | wireBytes:
			p.Data, src, err = nextBody(tag, rest)
		default:
			src, err = skip(tag, rest)
		}
		if err != nil {
			return p, err
		}
	}
	if hash != 0 {
		if got := xxhash.Sum64(p.Data); got != hash {
			return p, fmt.Errorf("%w: hash of the chunk is %016x, not %016x", ErrCorrupt, got, hash)
		}
	}
	return p, nil
}
