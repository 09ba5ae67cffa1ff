// Package typed joins the parts of a range query's response as frontends with typed JSON codecs do: it decodes every sample,
// merges the series and encodes every sample again. A splice is compared with it.
//
// A Codec takes the parts as streams, in order of time, and writes the joined response. There are two codecs, so that a
// splice is compared with the faster one. Both are json-iterator with hand-written codecs for samples and labels. "Cortex"
// is built like Cortex' frontend, which cannot be imported: it has its own structures, uses labels as text as the key of a
// series, and encodes samples through strings. "engine" avoids needless cost: it decodes into the engine's types, allocates
// each series at once, and encodes with Prometheus' API codec. Splitting, HTTP and measuring are in other packages.
package typed

import (
	"errors"
	"fmt"
	"io"
)

// ErrNotMatrix means that a part is not the response to a range query.
var ErrNotMatrix = errors.New("not a matrix")

// Codec is one way to join parts with types.
type Codec struct {
	Name string
	// Join reads all parts, in order of time, and writes the joined response. A single part is decoded and encoded.
	Join func(w io.Writer, parts ...io.Reader) error
}

// Codecs returns both codecs.
func Codecs() []Codec {
	return []Codec{{"Cortex", newCortexJoin()}, {"engine", joinEngine}}
}

const readBytes = 64 << 10

func checkEnvelope(status, resultType string) error {
	if status != "success" || resultType != "matrix" {
		return fmt.Errorf("%w: %q, %q", ErrNotMatrix, status, resultType)
	}
	return nil
}
