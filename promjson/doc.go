// Package promjson encodes, scans and decodes the JSON of the Prometheus HTTP API.
//
// What comes in are samples, label strings and histograms, one value at a time.
// What goes out are the very bytes that Prometheus writes for them, appended to
// a slice of the caller's: nothing is retained, dst[:len(dst)] is not touched,
// and a slice with room is not reallocated.
//
// What is not here: HTTP, compression, label matching and PromQL.
package promjson
