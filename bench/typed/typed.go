// Package typed puts the parts of a range query's answer together the way frontends with typed JSON codecs do: decode
// every sample, merge the series, encode every sample again. It is the peer of a splice.
//
// In come the parts as streams, in the order of time; out goes the answer. There are two codecs, so that the faster one
// can be the peer. Both are json-iterator with codecs written for samples and labels. "Cortex" is put together as Cortex'
// frontend is, which cannot be imported: structures of its own, text as the key of a series, samples encoded by way of
// strings. "engine" leaves out what can be left out: it decodes into the engine's types, allocates each series at once,
// and Prometheus' API codec encodes. What is not here: splitting, HTTP, measuring.
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
	return []Codec{{"Cortex", newCortexJoin()}, {"engine", joinEngine}}
}

const readBytes = 64 << 10

func checkEnvelope(status, resultType string) error {
	if status != "success" || resultType != "matrix" {
		return fmt.Errorf("%w: %q, %q", ErrAnswer, status, resultType)
	}
	return nil
}
