package ingest

import (
	"fmt"

	"go.opentelemetry.io/collector/pdata/pprofile/pprofileotlp"
	"google.golang.org/protobuf/encoding/protowire"
)

// A request of OTLP is that of the collector's service ProfilesService, version v1development, of opentelemetry-proto
// 1.10 and 1.11.
//
//	request     1 resource*  2 dictionary
//	resource    1 {1 attribute*}  2 scope*           scope  1 {3 attribute*}  2 profile*
//	profile     1 type  2 sample*  3 time  4 duration  5 period type  6 period  7 id  11 attribute*
//	sample      1 stack  2 attribute*  3 link  4 value*  5 time*
//	dictionary  1 mapping*  2 location*  3 function*  4 link*  5 string*  6 attribute*  7 stack*
//
// decodeOTLP only finds the profiles and the elements of the dictionary. Their messages are read when a profile is
// converted, so a profile with an invalid message is rejected alone. The collector's library is not used for protobuf:
// it reads either the attributes whose keys are texts or those whose keys are numbers of the dictionary's strings, and
// its messages take several times the memory.

// otlpLimits are the limits of one request.
type otlpLimits struct {
	elements int // profiles, resources, scopes, and elements of the dictionary
	profiles int
}

var otlpMax = otlpLimits{elements: 64 << 20 / 24, profiles: 10_000} // an element is a slice of 24 bytes

// otlpTable is a table of the dictionary, by field number.
type otlpTable int

const (
	otlpMappings otlpTable = iota + 1
	otlpLocations
	otlpFunctions
	otlpLinks
	otlpStrings
	otlpAttributes
	otlpStacks
	otlpTables
)

var otlpTableNames = [otlpTables]string{"", "mapping", "location", "function", "link", "string", "attribute", "stack"}

// otlpExport is a request. It aliases the bytes that were decoded.
type otlpExport struct {
	profiles []otlpProfile
	tables   [otlpTables][][]byte
	left     otlpLimits
}

// otlpProfile is a profile of one sample type.
type otlpProfile struct {
	place           [3]int  // number of the resource in the request, of the scope in it, and of the profile in that
	resource, scope *[]byte // messages with attributes; set once the request is decoded
	message         []byte
}

// decodeOTLP decodes a request in the encoding of protobuf.
func decodeOTLP(src []byte, limits otlpLimits) (*otlpExport, error) {
	r, resources := &otlpExport{left: limits}, 0
	err := eachField(src, func(f protoField) error {
		return f.set(func(b []byte) error {
			resources++
			return atOTLP("resource_profiles", resources-1, r.resource(b, resources-1))
		}, r.dictionary)
	})
	return r, err
}

// take counts an element.
func (r *otlpExport) take() error {
	if r.left.elements--; r.left.elements < 0 {
		return limitError("profile_size", "the request has too many elements")
	}
	return nil
}

func (r *otlpExport) resource(src []byte, number int) error {
	if err := r.take(); err != nil {
		return err
	}
	own, scopes := &[]byte{}, 0
	return eachField(src, func(f protoField) error {
		return f.set(own, func(b []byte) error {
			scopes++
			return atOTLP("scope_profiles", scopes-1, r.scope(b, otlpProfile{place: [3]int{number, scopes - 1}, resource: own}))
		})
	})
}

func (r *otlpExport) scope(src []byte, p otlpProfile) error {
	if err := r.take(); err != nil {
		return err
	}
	p.scope = &[]byte{}
	return eachField(src, func(f protoField) error {
		return f.set(p.scope, func(b []byte) error {
			if r.left.profiles--; r.left.profiles < 0 {
				return limitError("profile_size", "the request has too many profiles")
			}
			p.message = b
			r.profiles = append(r.profiles, p)
			p.place[2]++
			return r.take()
		})
	})
}

func (r *otlpExport) dictionary(src []byte) error {
	return eachField(src, func(f protoField) error {
		if f.number >= protowire.Number(otlpTables) {
			return nil
		}
		if f.kind != protowire.BytesType {
			return f.wrongType()
		}
		r.tables[f.number] = append(r.tables[f.number], f.b)
		return r.take()
	})
}

// element returns an element of the dictionary. Element 0 means none, and is valid for an empty table, too.
func (r *otlpExport) element(table otlpTable, i int32) ([]byte, error) {
	elements := r.tables[table]
	if i >= 0 && int(i) < len(elements) {
		return elements[i], nil
	}
	if i == 0 {
		return nil, nil
	}
	name := otlpTableNames[table]
	return nil, invalidOTLP("%s %d, but %s_table has %d elements", name, i, name, len(elements))
}

// otlpValue is the value of an attribute.
type otlpValue struct {
	kind   otlpKind
	text   []byte
	bits   uint64 // of a bool, an int or a double
	double protoFixed
	number int32 // for kind otlpReference: of a string of the dictionary
}

type otlpKind uint8

// Kinds of values. otlpOther is a list, a map or bytes.
const (
	otlpNone otlpKind = iota
	otlpText
	otlpBool
	otlpInt
	otlpDouble
	otlpOther
	otlpReference = 8
)

// decode decodes a value. It does not read lists and maps. A text that is a reference is looked up.
func (v *otlpValue) decode(r *otlpExport, src []byte) error {
	err := eachField(src, func(f protoField) error {
		if f.number <= otlpReference {
			v.kind = min(otlpKind(f.number), otlpOther)
		}
		if f.number == otlpReference {
			v.kind = otlpReference
		}
		return f.set(&v.text, &v.bits, &v.bits, &v.double, nil, nil, nil, &v.number)
	})
	if err == nil && v.kind == otlpReference {
		v.kind = otlpText
		v.text, err = r.element(otlpStrings, v.number)
	}
	return err
}

// atOTLP adds the position of an element in a list to an error.
func atOTLP(list string, i int, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s[%d]: %w", list, i, err)
}

func invalidOTLP(format string, args ...any) error {
	return badRequest("invalid OTLP profiles: %s", fmt.Sprintf(format, args...))
}

const (
	// otlpDepthMax limits the nesting of a JSON request. The library that decodes the request has no limit: a deep
	// request would overflow the goroutine's stack, which ends the process.
	otlpDepthMax = 64
	// otlpJSONMax limits the elements of a JSON request. The library takes about 128 bytes for each.
	otlpJSONMax = 64 << 20 / 128
)

// otlpFromJSON returns a request in OTLP's JSON encoding as protobuf.
func otlpFromJSON(src []byte, elementsMax int) ([]byte, error) {
	elements, depth := measureJSON(src)
	if elements > elementsMax {
		return nil, limitError("profile_size", "more than %d elements as JSON", elementsMax)
	}
	if depth > otlpDepthMax {
		return nil, invalidOTLP("more than %d levels of objects and arrays", otlpDepthMax)
	}
	request := pprofileotlp.NewExportRequest()
	if err := request.UnmarshalJSON(src); err != nil {
		return nil, invalidOTLP("%.500v", err)
	}
	return request.MarshalProto()
}

// measureJSON returns the number of objects, arrays and elements of a JSON text, and its nesting.
func measureJSON(src []byte) (elements, deepest int) {
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
