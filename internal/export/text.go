package export

import (
	"bufio"
	"strconv"

	"github.com/prometheus/prometheus/model/histogram"

	"github.com/ferula-io/ferula/internal/series/labelenc"
	"github.com/ferula-io/ferula/promjson"
)

// labelText formats a label set for a message. The text ends before the first corrupt label.
func labelText(labels []byte) string {
	text, _ := appendLabels(nil, labels)
	return string(text)
}

// appendLabels appends a label set as Prometheus' API encodes metrics: a JSON object sorted by
// name.
func appendLabels(dst, labels []byte) ([]byte, error) {
	dst = append(dst, '{')
	for first := true; len(labels) > 0; first = false {
		name, value, rest, err := labelenc.Next(labels)
		if err != nil {
			return dst, err
		}
		if !first {
			dst = append(dst, ',')
		}
		dst = promjson.AppendLabelString(dst, string(name))
		dst = append(dst, ':')
		dst = promjson.AppendLabelString(dst, string(value))
		labels = rest
	}
	return append(dst, '}'), nil
}

// appendHistogram appends a native histogram as one JSON object: the fields count, sum and
// buckets of the API, followed by the fields of the histogram that the API omits.
func appendHistogram(dst []byte, h *histogram.FloatHistogram) []byte {
	dst = promjson.AppendHistogramStart(dst, h.Count, h.Sum)
	any := false
	for it := h.AllBucketIterator(); it.Next(); {
		b := it.At()
		if b.Count == 0 {
			continue
		}
		dst = promjson.AppendBucket(dst, !any, promjson.Boundaries(b.LowerInclusive, b.UpperInclusive), b.Lower,
			b.Upper, b.Count)
		any = true
	}
	dst = promjson.AppendHistogramEnd(dst, any)
	dst = append(dst[:len(dst)-1], `,"schema":`...) // instead of the closing brace: more fields follow
	dst = strconv.AppendInt(dst, int64(h.Schema), 10)
	dst = append(dst, `,"zero_threshold":"`...)
	dst = promjson.AppendFloat(dst, h.ZeroThreshold)
	dst = append(dst, `","zero_count":"`...)
	dst = promjson.AppendFloat(dst, h.ZeroCount)
	dst = append(dst, '"')
	dst = appendSpans(dst, `,"negative_spans":[`, h.NegativeSpans)
	dst = appendFloats(dst, `,"negative_counts":[`, h.NegativeBuckets)
	dst = appendSpans(dst, `,"positive_spans":[`, h.PositiveSpans)
	dst = appendFloats(dst, `,"positive_counts":[`, h.PositiveBuckets)
	dst = appendFloats(dst, `,"custom_values":[`, h.CustomValues)
	dst = append(dst, `,"counter_reset":"`...)
	dst = append(dst, resetHints[h.CounterResetHint&3]...)
	return append(dst, `"}`...)
}

var resetHints = [4]string{
	histogram.UnknownCounterReset: "unknown", histogram.CounterReset: "reset", histogram.NotCounterReset: "no_reset",
	histogram.GaugeType: "gauge",
}

// appendSpans appends [offset,length] pairs. An empty list is omitted.
func appendSpans(dst []byte, head string, spans []histogram.Span) []byte {
	for i, span := range spans {
		if i == 0 {
			dst = append(dst, head...)
		} else {
			dst = append(dst, ',')
		}
		dst = append(dst, '[')
		dst = strconv.AppendInt(dst, int64(span.Offset), 10)
		dst = append(dst, ',')
		dst = strconv.AppendUint(dst, uint64(span.Length), 10)
		dst = append(dst, ']')
	}
	if len(spans) > 0 {
		dst = append(dst, ']')
	}
	return dst
}

func appendFloats(dst []byte, head string, values []float64) []byte {
	for i, v := range values {
		if i == 0 {
			dst = append(dst, head...)
		} else {
			dst = append(dst, ',')
		}
		dst = append(dst, '"')
		dst = promjson.AppendFloat(dst, v)
		dst = append(dst, '"')
	}
	if len(values) > 0 {
		dst = append(dst, ']')
	}
	return dst
}

// csvEncoder writes one line per sample:
//
//	name,labels,timestamp,value,histogram
//	up,"{""__name__"":""up"",""job"":""node""}",1700000000000,1,
//
// A line with neither value nor histogram is a staleness marker.
type csvEncoder struct {
	w      *bufio.Writer
	header bool   // the header line is not written yet
	prefix []byte // of the series' lines
	line   []byte
}

const csvHeader = "name,labels,timestamp,value,histogram\n"

func (e *csvEncoder) head() error {
	if !e.header {
		return nil
	}
	e.header = false
	_, err := e.w.WriteString(csvHeader)
	return err
}

func (e *csvEncoder) add(s *samples) (err error) {
	if err := e.head(); err != nil {
		return err
	}
	if e.line, err = appendLabels(e.line[:0], s.labels); err != nil {
		return err
	}
	e.prefix = appendCSV(e.prefix[:0], labelenc.Value(s.labels, "__name__"))
	e.prefix = append(e.prefix, ',')
	e.prefix = append(appendCSV(e.prefix, e.line), ',')
	for {
		more, err := s.next()
		if !more {
			return err
		}
		line := append(e.w.AvailableBuffer(), e.prefix...)
		line = append(strconv.AppendInt(line, s.time, 10), ',')
		switch {
		case s.stale():
			line = append(line, ',')
		case s.hist != nil:
			line = appendCSV(append(line, ','), appendHistogram(nil, s.hist))
		default:
			line = append(promjson.AppendFloat(line, s.value), ',')
		}
		if _, err := e.w.Write(append(line, '\n')); err != nil {
			return err
		}
	}
}

func (e *csvEncoder) close() error        { return e.head() }
func (*csvEncoder) skippedSamples() int64 { return 0 }

// appendCSV appends a field. It quotes the field if it contains a quotation mark, a comma, a line
// break or a space (RFC 4180 requires quotes for all of these but a space).
func appendCSV(dst, field []byte) []byte {
	plain := true
	for _, c := range field {
		if c == '"' || c == ',' || c == '\n' || c == '\r' || c == ' ' {
			plain = false
			break
		}
	}
	if plain {
		return append(dst, field...)
	}
	dst = append(dst, '"')
	for _, c := range field {
		if c == '"' {
			dst = append(dst, '"')
		}
		dst = append(dst, c)
	}
	return append(dst, '"')
}

// jsonEncoder writes one line per series and window, encoded as a series of a matrix in the
// API:
//
//	{"metric":{…},"values":[[1700000000,"1"],[1700000015.500,null]],"histograms":[[1700000000,{…}]]}
//
// null is a staleness marker.
type jsonEncoder struct {
	w    *bufio.Writer
	line []byte
}

func (e *jsonEncoder) add(s *samples) (err error) {
	if e.line, err = appendLabels(append(e.line[:0], `{"metric":`...), s.labels); err != nil {
		return err
	}
	if _, err := e.w.Write(e.line); err != nil {
		return err
	}
	others, err := e.list(s, `,"values":[[`, false)
	if err == nil && others {
		s.rewind()
		_, err = e.list(s, `,"histograms":[[`, true)
	}
	if err != nil {
		return err
	}
	_, err = e.w.WriteString("}\n")
	return err
}

// list writes the floats or the histograms of a series. head precedes the first sample: it opens the
// list and the pair of timestamp and value. list reports whether the series has samples of the
// other kind.
func (e *jsonEncoder) list(s *samples, head string, histograms bool) (others bool, err error) {
	before := head // the text before the next sample
	for {
		more, err := s.next()
		switch {
		case err != nil:
			return others, err
		case !more:
			if before != head {
				err = e.w.WriteByte(']')
			}
			return others, err
		case (s.hist != nil) != histograms:
			others = true
			continue
		}
		line := append(promjson.AppendTimestamp(append(e.w.AvailableBuffer(), before...), s.time), ',')
		switch {
		case s.stale():
			line = append(line, "null"...)
		case histograms:
			line = appendHistogram(line, s.hist)
		default:
			line = append(promjson.AppendFloat(append(line, '"'), s.value), '"')
		}
		if _, err := e.w.Write(append(line, ']')); err != nil {
			return others, err
		}
		before = ",["
	}
}

func (*jsonEncoder) skippedSamples() int64 { return 0 }
func (*jsonEncoder) close() error          { return nil }
