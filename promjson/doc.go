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
// An [Encoder] writes a whole response of any endpoint to an io.Writer, one full buffer at a
// time. Each append function takes one value (samples, a label string, a native histogram)
// and appends to dst the bytes that Prometheus writes for it: [AppendPoints] and
// [AppendColumns] with the [Steps] of the query, [AppendLabels], [AppendString],
// [AppendHistogram]. An append function does not change dst[:len(dst)] and retains none of
// its arguments. Append functions that take an iterator allocate; the others do not if dst
// has enough capacity.
//
// # Reading
//
// A [Scanner] reads a response from an io.Reader and returns each series as bytes,
// optionally cut to a [Window]. The Scanner owns these bytes; they are valid until its
// next call. That is enough for a proxy: a [Splicer] merges the responses to consecutive
// time ranges into one by copying these bytes, in the order of [CompareMetrics]. [FirstTime] and
// [LastTime] return the timestamps of the first and the last point of a piece. Callers that
// need samples can iterate over them ([Scanner.Points]), decode single pieces ([DecodePoints],
// [DecodeColumns], [DecodeHistograms], [DecodeLabels]), or decode a response into their own
// types ([Types]) or types of this package ([Decode]). The caller owns decoded values.
// [Validate] checks a response and retains nothing of it.
//
// The responses of other endpoints have lists instead of series. They are decoded element
// by element: [Scanner.Strings] for /labels and /label/NAME/values, [Scanner.LabelSets]
// for /series, [Scanner.Exemplars] and [Scanner.Metadata]. [Collect] returns the elements
// as a slice. [Types.LabelSets] and [Types.Exemplars] return labels and values in the
// caller's types.
//
// [Options] bound the memory, except for the results of Decode and Collect. No input causes
// a panic. Bad input is an [Error] with the byte offset and the reason, which wraps [ErrSyntax],
// [ErrLimit] or the error of the reader.
//
// # Scope
//
// HTTP, compression, PromQL and query splitting are left to the caller. To decode responses
// with rules, targets, alerts and the status use encoding/json, see the example of [Options].
package promjson
