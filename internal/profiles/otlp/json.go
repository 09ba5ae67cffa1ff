package otlp

import (
	"fmt"

	"go.opentelemetry.io/collector/pdata/pprofile/pprofileotlp"
)

// depthMax limits the nesting of a JSON request. The library that decodes the request has no
// limit: a deep request would overflow the goroutine's stack, which ends the process.
const depthMax = 64

// elementBytes is the estimated memory of an element that the library has decoded.
const elementBytes = 128

// FromJSON returns a request in OTLP's JSON encoding as protobuf.
func FromJSON(src []byte, limits Limits) ([]byte, error) {
	elements, depth := measure(src)
	if most := limits.withDefaults().Bytes / elementBytes; elements > most {
		return nil, fmt.Errorf("%w: more than %d elements as JSON", ErrLimit, most)
	}
	if depth > depthMax {
		return nil, corrupt("more than %d levels of objects and arrays", depthMax)
	}
	request := pprofileotlp.NewExportRequest()
	if err := request.UnmarshalJSON(src); err != nil {
		return nil, corrupt("%.500v", err)
	}
	return request.MarshalProto()
}

// measure returns the number of objects, arrays and elements of a JSON text, and its nesting.
func measure(src []byte) (elements, deepest int) {
	depth, quoted := 0, false
	for i := 0; i < len(src); i++ {
		switch b := src[i]; {
		case quoted && b == '\\':
			i++
		case b == '"':
			quoted = !quoted
		case quoted:
		case b == '{' || b == '[':
			elements++
			depth++
			deepest = max(deepest, depth)
		case b == '}' || b == ']':
			depth--
		case b == ',':
			elements++
		}
	}
	return elements, deepest
}
