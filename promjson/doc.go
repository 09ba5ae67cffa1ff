// Package promjson encodes, scans, splices and decodes the responses of the
// Prometheus HTTP API to /api/v1/query and /api/v1/query_range:
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
// Each append function takes one value (samples, a label string, a native
// histogram) and appends the bytes that Prometheus writes for it to a slice of
// the caller: [AppendPoints] with the [Steps] of the query, [AppendLabelString],
// [AppendString], [AppendHistogram]. An append function does not change
// dst[:len(dst)], retains none of its arguments, and does not allocate if dst has
// enough capacity.
//
// # Reading
//
// A [Scanner] reads a response from an io.Reader and returns each series as
// bytes, optionally cut to a [Window]. The Scanner owns these bytes; they are
// valid until its next call. A proxy needs no more than that: a [Splicer] merges
// the responses to consecutive time ranges into one by copying byte ranges. It
// decides with [CompareMetrics], [FirstTime] and [LastTime] which range comes
// next. Callers that need samples decode single pieces ([DecodePoints],
// [DecodeHistograms], [DecodeLabels]) or a whole response ([Decode]); the caller
// owns decoded values.
//
// [Options] bound the memory of everything except Decode. No input causes a panic:
// an [Error] holds the byte offset and the reason, and wraps [ErrSyntax],
// [ErrLimit] or the error of the reader.
//
// # Scope
//
// HTTP, compression, PromQL and query splitting are left to the caller. So are the
// other endpoints, whose responses consist of AppendString's strings and, in
// /api/v1/series, of metric objects.
package promjson
