// Package typed puts the parts of a range query's answer together the way frontends with typed JSON codecs do: decode
// every sample, merge the series, encode every sample again. It is the peer of a splice.
//
// In come the parts as streams, in the order of time; out goes the answer. There are two codecs, so that the faster one
// can be the peer: json-iterator with decoders written for labels and samples, as Cortex has them, into the engine's
// types, which Prometheus' API codec encodes; and client_golang's types with the codecs that it registers for them. Both
// merge as Cortex does: a map by labels, samples appended, sorted at the end. What is not here: splitting, HTTP,
// measuring.
package typed

import (
	"errors"
	"fmt"
	"io"
)

// ErrAnswer says that a part is not the answer to a range query.
var ErrAnswer = errors.New("not a matrix")

// Codec is one way to put parts together with types.
type Codec struct {
	Name string
	// Join reads all parts, which are in the order of time, and writes the whole answer. One part is decoded and encoded.
	Join func(w io.Writer, parts ...io.Reader) error
}

// Codecs are all of them.
func Codecs() []Codec {
	return []Codec{{"json-iterator, JSONCodec", joinEngine}, {"client_golang", joinClient}}
}

const readBytes = 64 << 10

func checkEnvelope(status, resultType string) error {
	if status != "success" || resultType != "matrix" {
		return fmt.Errorf("%w: %q, %q", ErrAnswer, status, resultType)
	}
	return nil
}
