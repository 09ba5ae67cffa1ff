// Package promjson encodes, scans, splices and decodes the answers of the
// Prometheus HTTP API to query and query_range:
//
//	{"status":"success",                                        envelope
//	 "data":{"resultType":"matrix","result":[
//	   {"metric":{"__name__":"up","job":"node"},                metric object
//	    "values":[[1700000000,"1"],[1700000015.500,"0.1"]],     points
//	    "histograms":[[1700000000,{"count":"5","sum":"18.4",    native histograms
//	      "buckets":[[3,"-0.001","0.001","5"]]}]]}]},
//	 "warnings":["..."],"infos":["..."]}
//
// The way out: samples, label strings and histograms come in one by one, and the
// very bytes that Prometheus writes for them are appended to a slice of the
// caller's ([AppendPoints] with a [Steps], [AppendLabelString], [AppendString],
// [AppendHistogram]). An append function leaves dst[:len(dst)] alone, retains
// nothing, and does not allocate where dst has room.
//
// The way in: a [Scanner] reads an answer from a stream and hands out each series
// as bytes, which it owns and lends until its next call, cut to a [Window] if one
// is set. Whoever forwards or merges answers never needs more: a [Splicer] makes one of several over
// consecutive times by copying byte ranges, with [CompareMetrics] and the times at
// both ends ([FirstTime], [LastTime]) to tell what goes where. Whoever needs the
// samples decodes pieces ([DecodePoints], [DecodeHistograms], [DecodeLabels]) or
// all at once ([Decode]); what is decoded is the caller's.
//
// Memory is bounded everywhere but in Decode, by the [Options]. Input never
// panics: an [Error] says what is wrong with which byte, and wraps [ErrSyntax],
// [ErrLimit] or what the reader said.
//
// What is not here: HTTP, compression, PromQL, splitting of queries, and the
// other endpoints, whose answers consist of AppendString's strings and, in
// /api/v1/series, of metric objects.
package promjson
