// Package promjson encodes and decodes the responses of the Prometheus HTTP API, and scans,
// checks and splices those to /api/v1/query and /api/v1/query_range:
//
//	{"status":"success",                                        envelope
//	 "data":{"resultType":"matrix","result":[
//	   {"metric":{"__name__":"up","job":"node"},                metric object
//	    "values":[[1700000000,"1"],[1700000015.500,"0.1"]],     points
//	    "histograms":[[1700000000,{"count":"5","sum":"18.4",    native histograms
//	      "buckets":[[3,"-0.001","0.001","5"]]}]]}]},
//	 "warnings":["..."],"infos":["..."]}
//
// # Encoding
//
// An [Encoder] writes a whole response of any endpoint to an io.Writer, in pieces of
// one buffer. Each append function takes one value (samples, a label string, a native
// histogram) and appends the bytes that Prometheus writes for it to a slice of
// the caller: [AppendPoints] and [AppendColumns] with the [Steps] of the query,
// [AppendLabels], [AppendString], [AppendHistogram]. An append function does not change
// dst[:len(dst)], retains none of its arguments, and does not allocate if dst has
// enough capacity, except for those that take an iterator.
//
// # Reading
//
// A [Scanner] reads a response from an io.Reader and returns each series as bytes,
// optionally cut to a [Window]. The Scanner owns these bytes; they are valid until its
// next call. That is enough for a proxy: a [Splicer] merges the responses to consecutive
// time ranges into one by copying byte ranges. It decides with [CompareMetrics],
// [FirstTime] and [LastTime] which range comes next. Callers that need samples can
// iterate over them ([Scanner.Points]). They can decode single pieces ([DecodePoints],
// [DecodeColumns], [DecodeHistograms], [DecodeLabels]). And they can decode a response
// into their own types ([Types]) or those of this package ([Decode]). The caller owns
// decoded values. [Validate] checks a response and retains nothing of it.
//
// The responses of other endpoints have lists instead of series. They are decoded element
// by element: [Scanner.Strings] for /labels and /label/NAME/values, [Scanner.LabelSets]
// for /series, [Scanner.Exemplars] and [Scanner.Metadata]. [Collect] returns the elements
// as a slice. [Types.LabelSets] and [Types.Exemplars] return labels and values in the
// caller's types.
//
// [Options] bound the memory of everything except Decode and Collect. No input causes a panic:
// an [Error] holds the byte offset and the reason, and wraps [ErrSyntax],
// [ErrLimit] or the error of the reader.
//
// # Scope
//
// HTTP, compression, PromQL and query splitting are left to the caller. So is decoding
// rules, targets, alerts and the status: encoding/json does that, see the example of [Options].
package promjson
