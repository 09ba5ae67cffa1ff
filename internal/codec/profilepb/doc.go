// Package profilepb is the profile API's messages as bytes: push.v1, querier.v1 and
// types.v1 of the Pyroscope API, by the same names and numbers.
//
// Requests are small, so generated code (from proto/, by `make generate`) reads them.
// Answers are big and are written by hand: a query's result, with label sets as the
// bytes that labelenc spells, is appended as protobuf or as protobuf's JSON.
//
//	series      0x0A len ( labels: the set's own bytes   0x12 len point )*
//	point       0x09 float64  0x10 varint ms  0x22 len exemplar
//	exemplar    0x08 ms  0x12 id  0x20 value  0x2A len label
//
// Append functions leave dst[:len(dst)] alone and retain nothing. Label sets are
// valid ones, made by ferula; texts may be anything and leave as valid UTF-8. There
// is no HTTP, no selection and no compression here.
package profilepb

// Pushed is one profile as it came in.
type RawProfile struct {
	Labels []RawLabel // in the sender's order, not checked
	Raw    []byte     // pprof, compressed or not; the pusher's until the push returns
	ID     string     // "" lets the store choose one
	TimeNS int64      // when it began, if it does not say so itself
}

// LabelText is a label as it came in.
type RawLabel struct{ Name, Value string }
