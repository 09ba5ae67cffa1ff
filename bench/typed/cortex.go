package typed

import (
	"io"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	jsoniter "github.com/json-iterator/go"
	"github.com/modern-go/reflect2"
)

// The types of a frontend with its own structures, as in Cortex: labels as pairs, samples with hand-written codecs,
// everything else by reflection.
type (
	response struct {
		Status string `json:"status"`
		Data   struct {
			ResultType string   `json:"resultType"`
			Result     []stream `json:"result"`
		} `json:"data"`
	}
	stream struct {
		Metric metric   `json:"metric"`
		Values []sample `json:"values"`
	}
	metric []pair
	pair   struct{ name, value string }
	sample struct {
		ms int64
		v  float64
	}
)

// codecOf is json-iterator with codecs for samples and metrics. Its configuration is compatible with the standard library,
// as in Cortex.
func codecOf() jsoniter.API {
	api := jsoniter.Config{EscapeHTML: false, SortMapKeys: true, ValidateJsonRawMessage: true}.Froze()
	api.RegisterExtension(jsoniter.DecoderExtension{
		reflect2.TypeOf(sample{}): decoderFunc(decodeSample), reflect2.TypeOf(metric{}): decoderFunc(decodeMetric),
	})
	api.RegisterExtension(jsoniter.EncoderExtension{
		reflect2.TypeOf(sample{}): encoderFunc(encodeSample), reflect2.TypeOf(metric{}): encoderFunc(encodeMetric),
	})
	return api
}

type decoderFunc func(ptr unsafe.Pointer, iter *jsoniter.Iterator)

// Decode implements jsoniter.ValDecoder.
func (f decoderFunc) Decode(ptr unsafe.Pointer, iter *jsoniter.Iterator) { f(ptr, iter) }

type encoderFunc func(ptr unsafe.Pointer, stream *jsoniter.Stream)

// Encode implements jsoniter.ValEncoder.
func (f encoderFunc) Encode(ptr unsafe.Pointer, stream *jsoniter.Stream) { f(ptr, stream) }

// IsEmpty implements jsoniter.ValEncoder.
func (f encoderFunc) IsEmpty(unsafe.Pointer) bool { return false }

func decodeSample(ptr unsafe.Pointer, iter *jsoniter.Iterator) {
	ok := iter.ReadArray()
	t := iter.ReadFloat64()
	ok = ok && iter.ReadArray()
	text := iter.ReadStringAsSlice()
	v, err := strconv.ParseFloat(unsafe.String(unsafe.SliceData(text), len(text)), 64)
	if !ok || err != nil || iter.ReadArray() {
		iter.ReportError("sample", "not a time and a value")
		return
	}
	*(*sample)(ptr) = sample{int64(t * 1000), v}
}

func encodeSample(ptr unsafe.Pointer, w *jsoniter.Stream) {
	s := (*sample)(ptr)
	w.WriteArrayStart()
	w.WriteFloat64(float64(s.ms) / 1000)
	w.WriteMore()
	w.WriteString(strconv.FormatFloat(s.v, 'f', -1, 64))
	w.WriteArrayEnd()
}

func decodeMetric(ptr unsafe.Pointer, iter *jsoniter.Iterator) {
	var m metric
	for name := iter.ReadObject(); name != ""; name = iter.ReadObject() {
		m = append(m, pair{name, iter.ReadString()})
	}
	slices.SortFunc(m, func(a, b pair) int { return strings.Compare(a.name, b.name) })
	*(*metric)(ptr) = m
}

func encodeMetric(ptr unsafe.Pointer, w *jsoniter.Stream) {
	w.WriteObjectStart()
	for i, p := range *(*metric)(ptr) {
		if i > 0 {
			w.WriteMore()
		}
		w.WriteObjectField(p.name)
		w.WriteString(p.value)
	}
	w.WriteObjectEnd()
}

func newCortexJoin() func(w io.Writer, parts ...io.Reader) error {
	api := codecOf()
	return func(w io.Writer, parts ...io.Reader) error {
		decoded := make([]response, len(parts))
		for i, part := range parts {
			iter := jsoniter.Parse(api, part, readBytes)
			iter.ReadVal(&decoded[i])
			if iter.Error != nil && iter.Error != io.EOF {
				return iter.Error
			}
			if err := checkEnvelope(decoded[i].Status, decoded[i].Data.ResultType); err != nil {
				return err
			}
		}
		merged := response{Status: "success"}
		merged.Data.ResultType, merged.Data.Result = "matrix", mergeStreams(decoded)
		out := jsoniter.NewStream(api, w, readBytes)
		out.WriteVal(&merged)
		return out.Flush()
	}
}

// mergeStreams appends the samples of series with the same labels. It finds them by the labels as text.
func mergeStreams(parts []response) []stream {
	if len(parts) == 1 {
		return parts[0].Data.Result
	}
	at := map[string]int{}
	var merged []stream
	var keys []string
	for _, part := range parts {
		for _, s := range part.Data.Result {
			key := s.Metric.text()
			i, ok := at[key]
			if !ok {
				at[key] = len(merged)
				merged, keys = append(merged, s), append(keys, key)
				continue
			}
			merged[i].Values = append(merged[i].Values, s.Values...)
		}
	}
	slices.Sort(keys)
	sorted := make([]stream, len(merged))
	for i, key := range keys {
		sorted[i] = merged[at[key]]
	}
	return sorted
}

func (m metric) text() string {
	var b strings.Builder
	b.WriteByte('{')
	for i, p := range m {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(p.name + "=" + strconv.Quote(p.value))
	}
	b.WriteByte('}')
	return b.String()
}
