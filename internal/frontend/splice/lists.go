package splice

import (
	"bytes"
	"fmt"
	"io"
	"slices"

	"github.com/ferula-io/ferula/promjson"
)

// List is the answer to a request for label names, label values or series: JSON
// strings, or metric objects.
type List struct {
	Annotations
	elements []element
	infos    []string
	members  []promjson.Member // that Prometheus does not have
}

// element is one of a list.
type element struct {
	raw  []byte // aliases the answer
	decoded string // what a string with escapes means
}

// means is what a string means.
func (e *element) value() []byte {
	if e.decoded != "" {
		return []byte(e.decoded)
	}
	return e.raw[1 : len(e.raw)-1]
}

// isPlain tells whether a string in its quotes means what it spells.
func isPlain(raw []byte) bool {
	for _, c := range raw {
		if c < ' ' || c == '\\' || c >= 0x80 {
			return false
		}
	}
	return true
}

// ReadList reads an answer whose data is a list. An answer that says it is an
// error gives a promjson.APIError. The list aliases the answer.
func ReadList(answer []byte) (List, error) {
	s := promjson.NewScanner(nil, promjson.Options{MaxUnknownBytes: len(answer) + 1, MaxBufferBytes: len(answer) + 1, MaxTextBytes: len(answer) + 1})
	s.ResetBytes(answer)
	for s.Next() {
		return List{}, fmt.Errorf("%w: data is no list", promjson.ErrSyntax)
	}
	if s.Err() != nil {
		return List{}, s.Err()
	}
	e := s.Envelope()
	if e.Status != "success" {
		return List{}, &promjson.APIError{Status: e.Status, Type: e.ErrorType, Message: e.Error}
	}
	l := List{Annotations: annotationsOf(e), infos: e.Infos}
	left := unknownBytes
	for _, m := range e.Unknown {
		if m.InData {
			continue
		}
		if m.Name == "data" {
			var err error
			if l.elements, err = elementsOf(m.Value); err != nil {
				return List{}, err
			}
		} else if size := len(m.Name) + len(m.Value); size <= left {
			left -= size
			l.members = append(l.members, m)
		}
	}
	return l, nil
}

// elementsOf cuts a JSON array, which is known to be one or null, into its
// elements.
func elementsOf(list []byte) ([]element, error) {
	if !bytes.HasPrefix(list, []byte("[")) {
		return nil, nil
	}
	var all []element
	for i := 1; i < len(list); {
		switch c := list[i]; c {
		case '"', '{':
			end := valueEnd(list, i)
			e := element{raw: list[i:end]}
			if c == '"' && !isPlain(e.raw) {
				labels, err := promjson.DecodeLabels(nil, slices.Concat([]byte(`{"":`), e.raw, []byte("}")))
				if err != nil {
					return nil, err
				}
				e.decoded = labels[0].Value
			}
			all, i = append(all, e), end
		case ' ', '\t', '\r', '\n', ',', ']':
			i++
		default:
			return nil, fmt.Errorf("%w: a list of neither strings nor metrics", promjson.ErrSyntax)
		}
	}
	return all, nil
}

// valueEnd is where the string or object that begins at i ends.
func valueEnd(b []byte, i int) int {
	depth, inside := 0, false
	for ; i < len(b); i++ {
		switch c := b[i]; {
		case inside && c == '\\':
			i++
		case c == '"':
			if inside = !inside; !inside && depth == 0 {
				return i + 1
			}
		case inside:
		case c == '{':
			depth++
		case c == '}':
			if depth--; depth == 0 {
				return i + 1
			}
		}
	}
	return len(b)
}

func compareElements(a, b *element) int {
	if a.raw[0] == '{' || b.raw[0] == '{' {
		if bytes.Equal(a.raw, b.raw) {
			return 0
		}
		return promjson.CompareMetrics(a.raw, b.raw)
	}
	return bytes.Compare(a.value(), b.value())
}

// sortElements sorts what is not sorted: names and values are, series may not be.
func sortElements(list []element) {
	if !slices.IsSortedFunc(list, func(a, b element) int { return compareElements(&a, &b) }) {
		slices.SortFunc(list, func(a, b element) int { return compareElements(&a, &b) })
	}
}

// nextElement takes the least element off all lists that have it, however often; nil
// at their end.
func nextElement(lists [][]element) (least *element) {
	for _, l := range lists {
		if len(l) > 0 && (least == nil || compareElements(&l[0], least) < 0) {
			least = &l[0]
		}
	}
	if least == nil {
		return nil
	}
	for i := range lists {
		for len(lists[i]) > 0 && compareElements(&lists[i][0], least) == 0 {
			lists[i] = lists[i][1:]
		}
	}
	return least
}

// WriteUnion writes the answer that has the elements of all lists, each once and
// in order, their warnings and infos, and members that are not one list's only.
func WriteUnion(w io.Writer, lists []List) error {
	var warnings, infos annotationSet
	rest := make([][]element, 0, len(lists))
	for _, l := range lists {
		sortElements(l.elements)
		rest = append(rest, l.elements)
		warnings.add(l.Warnings)
		infos.add(l.infos)
	}
	b := []byte(`{"status":"success","data":[`)
	for n := 0; ; n++ {
		e := nextElement(rest)
		if e == nil {
			break
		}
		if n > 0 {
			b = append(b, ',')
		}
		var err error
		if b, err = writeFull(w, append(b, e.raw...), 64<<10); err != nil {
			return err
		}
	}
	b = append(b, ']')
	b = appendAnnotations(b, "warnings", warnings.list)
	b = appendAnnotations(b, "infos", infos.list)
	for _, m := range uniteMembers(lists) {
		b = promjson.AppendString(append(b, ','), m.Name)
		b = append(append(b, ':'), m.Value...)
	}
	_, err := writeFull(w, append(b, '}'), 0)
	return err
}
