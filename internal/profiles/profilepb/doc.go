// Package profilepb encodes and decodes the messages of the profile API: push.v1,
// querier.v1 and types.v1 of the Pyroscope API, with the same names and field numbers.
//
// Requests are small, so generated code (from proto/, by `make generate`) decodes them.
// Responses are large and encoded by hand: a query's result, with label sets in the
// encoding of labelenc, is appended as protobuf or as protobuf's JSON.
//
//	series      0x0A len { labels: the set's own bytes   (0x12 len point)* }
//	point       0x09 float64  0x10 varint ms  [0x22 len exemplar]
//	exemplar    0x08 ms  0x12 id  0x20 value  (0x2A len label)*
//
// Append functions do not change dst[:len(dst)] and retain nothing. Label sets must be
// valid. Texts may be any bytes and are encoded as valid UTF-8. This package has no
// HTTP, no selection and no compression.
package profilepb

// RawProfile is one profile as it was pushed.
type RawProfile struct {
	Labels []RawLabel // in the sender's order, not validated
	Raw    []byte     // pprof, compressed or not; borrowed until the push returns
	ID     string     // empty: the store chooses one
	TimeNS int64      // start, if the profile itself has none
}

// RawLabel is a label as it was pushed.
type RawLabel struct{ Name, Value string }
